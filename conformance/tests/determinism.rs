//! Equal bits: run after run, at any alignment, for any number of rows and columns, at any place of a batch, with any
//! number of threads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::process::Command;

use bilin::autograd;
use bilin::prelude::*;
use conformance::compare::{assert_reference, assert_same_bits};
use conformance::samples::{Number, all, call, operands, tensor_of};
use conformance::subject::{device, few, fix_batches, having};

const DTYPES: [DType; 6] = [DType::F32, DType::F64, DType::C64, DType::C128, DType::F16, DType::Bf16];

fn sines(step: f64, shape: &[usize], dtype: DType) -> Tensor {
    let of = |i: usize| Number { z: c128::new((step * i as f64).sin(), (step * i as f64).cos()), n: 0 };
    tensor_of(&(0..shape.iter().product()).map(of).collect::<Vec<_>>(), shape, dtype, &device())
}

/// `x` row-major from element `by` of a larger buffer of NaN.
fn placed(x: &Tensor, by: usize) -> Tensor {
    let room = Tensor::full([x.numel() + 16], f64::NAN, x.dtype(), x.device()).unwrap();
    let view = room.narrow(0, by, x.numel()).unwrap().reshape(x.shape()).unwrap();
    view.copy_(x).unwrap();
    view
}

/// Value and both gradients of a product.
fn product(a: &Tensor, b: &Tensor, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Vec<Tensor> {
    let (y, g) = {
        let y = f(a, b).unwrap();
        let g = sines(1.7, y.shape(), y.dtype());
        autograd::vjp(|x| f(&x[0], &x[1]), &[a, b], &g).unwrap()
    };
    std::iter::once(y).chain(g).collect()
}

#[test]
fn repeated_runs_of_every_op_give_the_same_bits() {
    for (entry, sample, seed) in all() {
        for dtype in having(DTYPES) {
            let x = operands(entry, sample, dtype, &device(), seed);
            let Ok(first) = call(entry, &x, sample.attrs) else { continue };
            for _ in 0..3 {
                assert_same_bits(&call(entry, &x, sample.attrs).unwrap(), &first, entry.schema.name);
            }
        }
    }
}

#[test]
fn alignment_does_not_show() {
    for dtype in having(DTYPES) {
        let (a, b) = (sines(0.7, &[13, 70], dtype), sines(0.9, &[70, 19], dtype));
        let (v, w) = (sines(1.1, &[70], dtype), sines(1.3, &[13], dtype));
        type Form = fn(&Tensor, &Tensor) -> Result<Tensor>;
        let forms: [(&Tensor, &Tensor, Form); 5] = [
            (&a, &b, |a, b| a.matmul(b)),
            (&a, &v, |a, v| a.matvec(v)),
            (&w, &a, |w, a| w.vecmat(a)),
            (&v, &v, |v, w| v.dot(w)),
            (&v, &w, |v, w| v.outer(w)),
        ];
        for (i, (x, y, form)) in forms.into_iter().enumerate() {
            let want = product(x, y, form);
            for by in 0..16 {
                for (got, want) in product(&placed(x, by), &placed(y, (by * 7) % 16), form).iter().zip(&want) {
                    assert_same_bits(got, want, &format!("form {i} of {dtype} at offset {by}"));
                }
            }
        }
        // Reductions and elementwise ops read the same views.
        let want = [a.sum(1, false).unwrap(), a.mean(0, false).unwrap(), a.mul(&a).unwrap()];
        for by in 0..16 {
            let x = placed(&a, by);
            let got = [x.sum(1, false).unwrap(), x.mean(0, false).unwrap(), x.mul(&x).unwrap()];
            got.iter().zip(&want).for_each(|(g, w)| assert_same_bits(g, w, &format!("{dtype} at offset {by}")));
        }
    }
}

/// The same bits where those are the reference's, else both within the bound of sums over the elements of `operands`.
fn assert_alike(got: &Tensor, want: &Tensor, operands: &[&Tensor], what: &str) {
    assert_reference(got, want, &operands.iter().map(|x| (*x).clone()).collect::<Vec<_>>(), what);
}

/// K below, at and above the lengths of the blocks of summation.
const DEPTHS: [usize; 5] = [1, 64, 300, 513, 1030];

#[test]
fn a_row_has_the_same_bits_for_any_number_of_rows() {
    fix_batches();
    for dtype in having(DTYPES) {
        for k in DEPTHS {
            let (a, b) = (sines(0.7, &[33, k], dtype), sines(0.9, &[k, 9], dtype));
            let whole = a.matmul(&b).unwrap();
            for rows in [1, 2, 17] {
                for first in [0, 33 - rows] {
                    let part = a.narrow(0, first, rows).unwrap().matmul(&b).unwrap();
                    assert_same_bits(&part, &whole.narrow(0, first, rows).unwrap(), &format!("{rows} rows from {first} of {dtype}, K {k}"));
                }
            }
        }
    }
}

#[test]
fn an_element_has_the_same_bits_in_every_product_that_holds_it() {
    for dtype in having(DTYPES) {
        for k in DEPTHS {
            let (a, b) = (sines(0.7, &[5, k], dtype), sines(0.9, &[k, 35], dtype));
            let whole = a.matmul(&b).unwrap();
            for columns in [1, 2, 17] {
                let part = a.matmul(&b.narrow(1, 35 - columns, columns).unwrap()).unwrap();
                assert_alike(
                    &part,
                    &whole.narrow(1, 35 - columns, columns).unwrap(),
                    &[&a, &b],
                    &format!("{columns} columns of {dtype}, K {k}"),
                );
            }
            // The same element by the ops for vectors; vecmat and vecdot conjugate their left operand.
            let row = a.index(&[2.into()]).unwrap();
            let column = b.index(&[(..).into(), 3.into()]).unwrap();
            let one = whole.index(&[2.into(), 3.into()]).unwrap();
            let what = format!("{dtype}, K {k}");
            assert_alike(&row.dot(&column).unwrap(), &one, &[&a, &b], &format!("dot, {what}"));
            assert_alike(&row.inner(&column).unwrap(), &one, &[&a, &b], &format!("inner, {what}"));
            assert_alike(&einsum("i,i->", &[&row, &column]).unwrap(), &one, &[&a, &b], &format!("einsum, {what}"));
            assert_alike(
                &a.matvec(&column).unwrap(),
                &whole.index(&[(..).into(), 3.into()]).unwrap(),
                &[&a, &b],
                &format!("matvec, {what}"),
            );
            assert_alike(
                &row.conj().unwrap().vecmat(&b).unwrap(),
                &whole.index(&[2.into()]).unwrap(),
                &[&a, &b],
                &format!("vecmat, {what}"),
            );
            assert_alike(&row.conj().unwrap().vecdot(&column).unwrap(), &one, &[&a, &b], &format!("vecdot, {what}"));
            // The parts of a complex product are added in another order where the operands change sides.
            if !dtype.is_complex() {
                let turned = b.mt().unwrap().matmul(&a.mt().unwrap()).unwrap();
                assert_alike(&turned.mt().unwrap(), &whole, &[&a, &b], &format!("transposed, {what}"));
            }
        }
    }
}

#[test]
fn the_place_in_a_batch_does_not_show() {
    fix_batches();
    for dtype in having(DTYPES) {
        let (a, b) = (sines(0.7, &[7, 3, 300], dtype), sines(0.9, &[7, 300, 5], dtype));
        let whole = product(&a, &b, |a, b| a.matmul(b));
        let g = sines(1.7, &[7, 3, 5], dtype);
        for i in 0..7 {
            let at = |t: &Tensor| t.narrow(0, i, 1).unwrap();
            let (y, grads) = autograd::vjp(|x| x[0].matmul(&x[1]), &[&at(&a), &at(&b)], &at(&g)).unwrap();
            for (got, want) in std::iter::once(&y).chain(&grads).zip(&whole) {
                assert_same_bits(got, &at(want), &format!("batch {i} of {dtype}"));
            }
        }
        // A batch of one matrix, seen by stride 0.
        let one = b.narrow(0, 2, 1).unwrap();
        let wide = a.matmul(&one.broadcast_to([7, 300, 5]).unwrap()).unwrap();
        assert_same_bits(&wide, &a.matmul(&one).unwrap(), &format!("broadcast view of {dtype}"));
        assert_same_bits(&wide, &a.matmul(&one.squeeze(&[0]).unwrap()).unwrap(), &format!("matrix for all of {dtype}"));
    }
}

/// FNV-1a-64.
fn hash(tensors: &[Tensor]) -> u64 {
    let bytes = tensors.iter().flat_map(|t| t.to_bytes().unwrap());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

const CHILD: &str = "CONFORMANCE_CHILD";
/// Elements before the operands in their memory.
const OFFSET: &str = "CONFORMANCE_OFFSET";

/// What a child process prints; nothing in the parent.
#[test]
fn child_prints_the_hash_of_its_products() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    for dtype in having(DTYPES) {
        let mut all = product(&sines(0.7, &[64, 56], dtype), &sines(0.9, &[56, 444], dtype), |a, b| a.matmul(b));
        all.extend(product(&sines(0.7, &[64, 1100], dtype), &sines(0.9, &[1100, 3], dtype), |a, b| a.matmul(b)));
        all.extend(product(&sines(0.7, &[300, 700], dtype), &sines(0.9, &[700], dtype), |a, b| a.matvec(b)));
        all.extend(product(&sines(0.7, &[20_000], dtype), &sines(0.9, &[20_000], dtype), |a, b| a.dot(b)));
        all.push(sines(0.7, &[300, 700], dtype).sum(.., false).unwrap());
        // Large enough for several threads.
        let (x, g) = (sines(0.3, &[600, 700], dtype), sines(0.6, &[600, 700], dtype));
        type Form = fn(&Tensor) -> Result<Tensor>;
        let forms: [Form; 7] = [
            |x| x.softmax(-1),
            |x| x.log_softmax(0),
            |x| x.tanh()?.mul(x),
            |x| x.exp(),
            |x| x.sum(0, true)?.mul(x),
            |x| x.mean(1, true)?.add(x),
            |x| x.permute(&[1, 0])?.contiguous()?.permute(&[1, 0]),
        ];
        for form in forms {
            let Ok((y, grads)) = autograd::vjp(|x| form(&x[0]), &[&x], &g) else { continue };
            all.push(y);
            all.extend(grads);
        }
        all.extend(every_op(dtype));
        println!("bits of {dtype}: {:016x}", hash(&all));
    }
}

/// Value and gradients of every sample of the registry, with operands at an odd place in their memory.
fn every_op(dtype: DType) -> Vec<Tensor> {
    let by: usize = std::env::var(OFFSET).map_or(0, |v| v.parse().unwrap());
    let mut out = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for (entry, sample, seed) in all() {
        let leaves: Vec<Tensor> = operands(entry, sample, dtype, &device(), seed)
            .iter()
            .map(|x| placed(x, by).detach().requires_grad_(x.dtype().is_differentiable()).unwrap())
            .collect();
        let Ok(y) = call(entry, &leaves, sample.attrs) else { continue };
        names.insert(entry.schema.name);
        if y.requires_grad() {
            let g = placed(&sines(1.7, y.shape(), y.dtype()), by);
            let wanted: Vec<&Tensor> = leaves.iter().filter(|x| x.requires_grad()).collect();
            let options = autograd::GradOptions { grad_outputs: vec![Some(g)], allow_unused: true, ..Default::default() };
            out.extend(autograd::grad(&[&y], &wanted, options).unwrap().into_iter().flatten());
        }
        out.push(y.detach());
    }
    // Every op runs in f32, those of one kind of number in their own.
    if dtype == DType::F32 {
        let never: Vec<_> = bilin::op_registry_all().iter().map(|s| s.name).filter(|n| !names.contains(n)).collect();
        assert!(never.iter().all(|n| matches!(*n, "imag" | "real" | "times_i" | "conj")), "never ran: {never:?}");
    }
    out
}

/// Scenario D1.b of `data/public_bugs.json`.
#[test]
fn neither_process_nor_threads_nor_alignment_show_in_any_op() {
    let run = |threads: &str, offset: &str| -> Vec<String> {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["child_prints_the_hash_of_its_products", "--exact", "--nocapture"])
            .env(CHILD, "1")
            .env("BILIN_NUM_THREADS", threads)
            .env(OFFSET, offset)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        text.lines().filter_map(|l| l.find("bits of ").map(|at| l[at..].to_owned())).collect()
    };
    let want = run("1", "0");
    assert_eq!(want.len(), having(DTYPES).len(), "{want:?}");
    for (threads, offset) in few(&[("1", "0"), ("1", "3"), ("2", "0"), ("2", "1"), ("3", "5"), ("6", "7")]) {
        assert_eq!(run(threads, offset), want, "{threads} threads, operands at {offset}");
    }
}
