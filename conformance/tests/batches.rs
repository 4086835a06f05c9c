//! An item of a batch has the same bits alone, in a batch of any size and at any position, forward and backward, for every op of
//! the registry; in fresh processes with 1 and 2 threads and with operands at odd places in their memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::collections::BTreeSet;
use std::process::Command;

use bilin::autograd::{self, GradOptions};
use bilin::ops::{OpEntry, Sample, entries};
use bilin::{concat, prelude::*};
use conformance::compare::assert_same_bits;
use conformance::samples::{Number, call, operands, tensor_of};
use conformance::subject::{device, fix_batches, has_reference_bits, having};

/// How a batch enters an op.
#[derive(Clone, Copy)]
enum Batch {
    /// Axis 0 of every operand but the `shared` ones, and of the result. Shapes are those of one item, without that axis;
    /// `{n}` in the attributes is the number of items.
    Of { shapes: &'static [&'static [usize]], shared: &'static [usize], attrs: &'static str },
    /// No axis of this op is a batch, and why.
    None(&'static str),
}

const fn of(shapes: &'static [&'static [usize]], attrs: &'static str) -> Batch {
    Batch::Of { shapes, shared: &[], attrs }
}
const fn shared(shapes: &'static [&'static [usize]], shared: &'static [usize], attrs: &'static str) -> Batch {
    Batch::Of { shapes, shared, attrs }
}

/// Not a multiple of any vector, so that items begin at every place of one.
const UNARY: Batch = of(&[&[37]], "");
const BINARY: Batch = of(&[&[37], &[37]], "");
const PAIR: Batch = of(&[&[5, 300], &[300, 7]], "");
const AXES: Batch = of(&[&[3, 71]], "axes=-1");

/// One row an op.
#[rustfmt::skip]
const TABLE: &[(&str, Batch)] = &[
    ("abs", UNARY), ("conj", UNARY), ("contiguous", UNARY), ("cos", UNARY), ("erf", UNARY), ("erfc", UNARY), ("exp", UNARY),
    ("expm1", UNARY), ("floor", UNARY), ("gelu", UNARY), ("imag", UNARY), ("log", UNARY), ("log1p", UNARY), ("neg", UNARY),
    ("real", UNARY), ("relu", UNARY), ("sigmoid", UNARY), ("sign", UNARY), ("sin", UNARY), ("sqrt", UNARY), ("tanh", UNARY),
    ("times_i", UNARY),
    ("add", BINARY), ("div", BINARY), ("maximum", BINARY), ("minimum", BINARY), ("mul", BINARY), ("pow", BINARY), ("sub", BINARY),
    ("times_slope", BINARY),
    ("eq", BINARY), ("ge", BINARY), ("gt", BINARY), ("le", BINARY), ("lt", BINARY), ("ne", BINARY),
    ("where_", of(&[&[37], &[37], &[37]], "")),
    ("astype", of(&[&[37]], "dtype=float32")),
    ("broadcast_to", of(&[&[1, 7]], "shape={n},5,7")),
    ("concat", of(&[&[3, 4], &[2, 4]], "axis=1")),
    ("diagonal", of(&[&[5, 6]], "axis1=1;axis2=2")),
    ("embed", of(&[&[5]], "axis=1;start=2;len=9")),
    ("flip", of(&[&[7]], "axis=1")),
    ("narrow", of(&[&[9]], "axis=1;start=2;len=5")),
    ("permute", of(&[&[3, 5]], "axes=0,2,1")),
    ("reshape", of(&[&[4, 9]], "shape={n},6,6")),
    ("squeeze", of(&[&[3, 1]], "axes=2")),
    ("unsqueeze", of(&[&[7]], "axis=1")),
    ("gather", of(&[&[9], &[5]], "axis=1;below=9")),
    ("scatter_add", of(&[&[40], &[40]], "axis=1;len=9;below=9")),
    ("sum", AXES), ("mean", AXES), ("max", AXES), ("min", AXES), ("argmax", AXES), ("argmin", AXES),
    ("softmax", of(&[&[71]], "axis=-1")), ("log_softmax", of(&[&[71]], "axis=-1")), ("logsumexp", of(&[&[71]], "axis=-1")),
    ("layer_norm", shared(&[&[71], &[71], &[71]], &[1, 2], "normalized_shape=71")),
    ("cross_entropy", Batch::None("its result is the mean over the rows")),
    ("matmul", PAIR), ("einsum", of(&[&[5, 300], &[300, 7]], "subscripts=bij,bjk->bik")),
    ("matvec", of(&[&[5, 300], &[300]], "")), ("vecmat", of(&[&[300], &[300, 7]], "")), ("vecdot", of(&[&[300], &[300]], "")),
    ("dot", shared(&[&[300], &[300, 7]], &[1], "")),
    ("inner", shared(&[&[300], &[7, 300]], &[1], "")),
    ("outer", shared(&[&[], &[37]], &[1], "")),
    ("tensordot", shared(&[&[20, 15], &[20, 15, 7]], &[1], "axes=2")),
];

/// More ways in: weights that every item shares, as layers use them.
const ALSO: &[(&str, Batch)] = &[
    ("matmul", shared(&[&[5, 300], &[300, 7]], &[1], "")),
    ("matmul", shared(&[&[5, 300], &[300, 7]], &[0], "")),
    ("matmul", of(&[&[1, 70], &[70, 1]], "")),
    ("matmul", of(&[&[3, 3], &[3, 3]], "")),
    ("einsum", shared(&[&[2, 3, 40], &[3, 40, 6]], &[1], "subscripts=nhik,hkj->nhij")),
    ("mul", shared(&[&[37], &[37]], &[1], "")),
    ("where_", shared(&[&[37], &[37], &[37]], &[0, 2], "")),
    ("sum", of(&[&[3, 1100]], "axes=1,2")),
    ("softmax", of(&[&[33, 5]], "axis=1")),
];

/// `x` row-major from element `by` of a larger buffer of NaN, or of −1.
fn placed(x: &Tensor, by: usize) -> Tensor {
    let poison = if x.dtype().is_differentiable() { f64::NAN } else { -1.0 };
    let room = Tensor::full([x.numel() + 16], poison, x.dtype(), x.device()).unwrap();
    let view = room.narrow(0, by, x.numel()).unwrap().reshape(x.shape()).unwrap();
    view.copy_(x).unwrap();
    view
}

/// Result and gradients of the operands with a batch, each with the batch on axis 0.
fn run(entry: &OpEntry, x: &[Tensor], g: Option<&Tensor>, shared: &[usize], attrs: &str) -> Result<Vec<Tensor>> {
    let leaf = |x: &Tensor| if x.dtype().is_differentiable() { x.detach().requires_grad_(true) } else { Ok(x.clone()) };
    let leaves = x.iter().map(leaf).collect::<Result<Vec<_>>>()?;
    let y = call(entry, &leaves, attrs)?;
    let mut all = vec![y.detach()];
    if let (true, Some(g)) = (y.requires_grad(), g) {
        let wanted: Vec<&Tensor> =
            leaves.iter().enumerate().filter(|(i, x)| x.requires_grad() && !shared.contains(i)).map(|(_, x)| x).collect();
        let options = GradOptions { grad_outputs: vec![Some(g.astype(y.dtype())?)], allow_unused: true, ..Default::default() };
        all.extend(autograd::grad(&[&y], &wanted, options)?.into_iter().flatten());
    }
    Ok(all)
}

/// Items of a batch, one after the other, in memory of their own.
fn pick(x: &Tensor, items: &[usize], by: usize) -> Tensor {
    let parts: Vec<Tensor> = items.iter().map(|&i| x.narrow(0, i, 1).unwrap()).collect();
    placed(&concat(&parts.iter().collect::<Vec<_>>(), 0).unwrap(), by)
}

/// A batch of `count` items against some of them alone and in other batches. Gives the results, or none where the op has no such
/// dtype.
fn check(entry: &OpEntry, row: Batch, dtype: DType, count: usize, by: usize) -> Option<Vec<Tensor>> {
    let Batch::Of { shapes, shared, attrs } = row else { return None };
    let batched: Vec<Vec<usize>> =
        shapes.iter().enumerate().map(|(i, s)| if shared.contains(&i) { s.to_vec() } else { [&[count], *s].concat() }).collect();
    let lists: Vec<&'static [usize]> = batched.into_iter().map(|s| &*s.leak()).collect();
    let text = |n: usize| attrs.replace("{n}", &n.to_string());
    let sample = Sample::new(lists.leak(), text(count).leak());
    let x = operands(entry, &sample, dtype, &device(), 17);
    let at = |items: Option<&[usize]>, by: usize| -> Vec<Tensor> {
        let one = |(i, x): (usize, &Tensor)| match items {
            Some(items) if !shared.contains(&i) => pick(x, items, by),
            _ => placed(x, by),
        };
        x.iter().enumerate().map(one).collect()
    };
    let plain = run(entry, &x, None, shared, sample.attrs).ok()?;
    let sines: Vec<Number> = (0..plain[0].numel()).map(|i| Number::real((1.7 * i as f64).sin())).collect();
    let g =
        tensor_of(&sines, plain[0].shape(), if plain[0].dtype().is_differentiable() { plain[0].dtype() } else { DType::F32 }, &device());
    let whole = run(entry, &at(None, by), Some(&placed(&g, by)), shared, sample.attrs).unwrap();
    assert_same_bits(&whole[0], &plain[0], entry.schema.name);
    let last = count - 1;
    let some: [&[usize]; 7] = [&[0], &[count / 2], &[last], &[last, 0], &[1, last, count / 2], &[last, 2, 1, 0], &[0, 3, 1, last, 2, 4]];
    for (turn, items) in some.into_iter().enumerate() {
        let by = (by + turn) % 16;
        let got = run(entry, &at(Some(items), by), Some(&pick(&g, items, by)), shared, &text(items.len())).unwrap();
        assert_eq!(got.len(), whole.len());
        for (part, (got, whole)) in got.iter().zip(&whole).enumerate() {
            let name = entry.schema.name;
            let what = || format!("{name} of {dtype}, part {part}: items {items:?} of {count} {shapes:?} {attrs:?}, at offset {by}");
            assert_eq!(got.shape()[0], items.len(), "{}", what());
            assert_same_bits(got, &pick(whole, items, 0), &what());
        }
    }
    Some(whole)
}

const DTYPES: [DType; 8] = [DType::F32, DType::F64, DType::C64, DType::C128, DType::F16, DType::Bf16, DType::I32, DType::U8];

/// On a device where every call is waited for, one dtype of each kernel.
fn dtypes() -> Vec<DType> {
    if has_reference_bits(&device()) { DTYPES.to_vec() } else { having([DType::F32, DType::F16]) }
}

#[test]
fn the_table_has_a_row_for_every_op() {
    let names: Vec<_> = TABLE.iter().map(|(name, _)| *name).collect();
    let known: BTreeSet<_> = names.iter().copied().collect();
    let registered: BTreeSet<_> = entries().map(|e| e.schema.name).collect();
    assert_eq!(known.len(), names.len(), "an op has two rows");
    assert_eq!(known, registered, "the rows are the ops of the registry");
    assert!(ALSO.iter().all(|(name, _)| known.contains(name)));
    for (name, row) in TABLE {
        assert!(!matches!(row, Batch::None(why) if why.is_empty()), "{name}: say why");
    }
}

const CHILD: &str = "CONFORMANCE_BATCHES";

/// What a child process does: every op and dtype, in batches of 7 and in one that takes several threads.
#[test]
fn child_compares_items_of_batches() {
    let Some(by) = std::env::var(CHILD).ok().map(|v| v.parse::<usize>().unwrap()) else { return };
    fix_batches();
    for dtype in dtypes() {
        let (mut hash, mut ran) = (0xcbf2_9ce4_8422_2325u64, 0);
        for (name, row) in TABLE.iter().chain(ALSO) {
            let entry = entries().find(|e| e.schema.name == *name).unwrap();
            let Batch::Of { shapes, .. } = row else { continue };
            let elements = shapes.iter().map(|s| s.iter().product::<usize>()).max().unwrap_or(1).max(1);
            // Elementwise work is split from 2¹⁷ elements on; how doesn't depend on what they are.
            let large = 140_000 / elements + 5;
            let counts = if matches!(dtype, DType::F32 | DType::Bf16) { vec![7, large] } else { vec![7] };
            for count in counts {
                let Some(all) = check(entry, *row, dtype, count, by) else { continue };
                // One result alone would be no gradient at all.
                let is_flat = matches!(*name, "argmax" | "argmin" | "eq" | "ge" | "gt" | "le" | "lt" | "ne");
                let has_gradient = dtype.is_differentiable() && !is_flat && !(*name == "floor" && all.len() == 1);
                assert!(!has_gradient || all.len() > 1, "{name} of {dtype} has no gradient");
                ran += 1;
                for byte in all.iter().flat_map(|t| t.to_bytes().unwrap()) {
                    hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
                }
            }
        }
        println!("bits of {dtype}: {hash:016x} of {ran}");
        let least = match dtype.kind() {
            bilin::Kind::Float => entries().count() - 5,
            _ => 40,
        };
        assert!(ran >= least, "{dtype}: {ran} of {least}");
    }
}

#[test]
fn neither_batch_nor_position_nor_process_nor_threads_nor_alignment_show_in_any_op() {
    let run = |threads: &str, by: &str| -> Vec<String> {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["child_compares_items_of_batches", "--exact", "--nocapture"]);
        let output = child.env("BILIN_NUM_THREADS", threads).env(CHILD, by).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{threads} threads at {by}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text.lines().filter_map(|l| l.find("bits of ").map(|at| l[at..].to_owned())).collect()
    };
    let want = run("1", "0");
    assert_eq!(want.len(), dtypes().len(), "{want:?}");
    // Within a process the offset moves with every batch.
    assert_eq!(run("2", "5"), want, "2 threads, operands at 5");
}
