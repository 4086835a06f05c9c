//! Every differentiable op and sample: derivatives of first and second order against differences, forward against reverse
//! mode, recorded against eager, device against device.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::collections::BTreeSet;

use bilin::autograd::{self, GradOptions, GradcheckOptions, gradcheck, gradgradcheck};
use bilin::ops::{OpEntry, Sample};
use bilin::prelude::*;
use conformance::compare::{C, assert_same_bits, inner, numbers};
use conformance::samples::{all, call, operands};
use conformance::strides::{Strides, with_strides};

/// The positions that a derivative is taken by, and the result where it has one.
fn tracked(entry: &OpEntry, sample: &Sample, x: &[Tensor]) -> Option<(Vec<Tensor>, Tensor)> {
    let leaves: Vec<Tensor> = x.iter().map(|x| x.detach().requires_grad_(x.dtype().is_differentiable()).unwrap()).collect();
    let out = call(entry, &leaves, sample.attrs).ok()?;
    out.requires_grad().then_some((leaves, out))
}

fn differentiable(leaves: &[Tensor]) -> Vec<usize> {
    (0..leaves.len()).filter(|&i| leaves[i].requires_grad()).collect()
}

fn gradients(leaves: &[Tensor], out: &Tensor, u: &Tensor, create_graph: bool) -> Vec<Tensor> {
    let wanted: Vec<&Tensor> = differentiable(leaves).into_iter().map(|i| &leaves[i]).collect();
    let options = GradOptions { grad_outputs: vec![Some(u.clone())], retain_graph: Some(true), create_graph, allow_unused: true };
    let grads = autograd::grad(&[out], &wanted, options).unwrap();
    grads.into_iter().zip(wanted).map(|(g, x)| g.unwrap_or_else(|| x.zeros_like().unwrap())).collect()
}

fn random_like(x: &Tensor, seed: u64) -> Tensor {
    Tensor::randn(x.shape(), x.dtype(), x.device(), &mut Rng::new(seed)).unwrap()
}

/// Ops whose results are whole numbers or bool, which don't move.
const UNMOVED: [&str; 8] = ["argmax", "argmin", "eq", "ge", "gt", "le", "lt", "ne"];

/// Every op of the registry was checked, but those without a derivative.
#[track_caller]
fn assert_every_op(checked: &BTreeSet<&'static str>) {
    let missed: Vec<&str> = bilin::ops::entries().map(|e| e.schema.name).filter(|n| !checked.contains(n)).collect();
    let unmoved: BTreeSet<&str> = UNMOVED.into();
    assert_eq!(missed.into_iter().collect::<BTreeSet<_>>(), unmoved, "not checked, beside those that have no derivative");
}

const CHECKED: [Strides; 3] = [Strides::Contiguous, Strides::NegativeSliced, Strides::TransposedSliced];

#[test]
fn first_and_second_derivatives_equal_differences() {
    let device = Device::cpu();
    let mut checked = BTreeSet::new();
    for (entry, sample, seed) in all() {
        for dtype in [DType::F64, DType::C128] {
            let plain = operands(entry, sample, dtype, &device, seed);
            let Some((_, out)) = tracked(entry, sample, &plain) else { continue };
            // Differences of a narrower result say nothing about a derivative.
            if !matches!(out.dtype(), DType::F64 | DType::C128) {
                continue;
            }
            for class in CHECKED {
                let x: Vec<Tensor> = plain.iter().enumerate().map(|(i, x)| with_strides(x, class.after(i))).collect();
                let x: Vec<&Tensor> = x.iter().collect();
                let f = |x: &[Tensor]| call(entry, x, sample.attrs);
                let what = format!("{} {:?} '{}' {dtype} {class:?}", entry.schema.name, sample.shapes, sample.attrs);
                let options = GradcheckOptions::default();
                if let Err(e) = gradcheck(f, &x, options) {
                    panic!("{what}: {e}");
                }
                if let Err(e) = gradgradcheck(f, &x, options) {
                    panic!("{what}, second order: {e}");
                }
            }
            checked.insert(entry.schema.name);
        }
    }
    assert_every_op(&checked);
}

/// Σ |u|·|J e|·|v| over the real directions e of the operands: what both sides of ⟨u, Jv⟩ add up, without cancellation.
fn terms(entry: &OpEntry, sample: &Sample, x: &[Tensor], u: &Tensor, v: &[Tensor]) -> f64 {
    let zeros: Vec<Tensor> = x.iter().map(|x| x.zeros_like().unwrap()).collect();
    let size =
        |t: &Tensor| -> f64 { numbers(t).iter().zip(numbers(u)).map(|(a, b)| (a.re.abs() + a.im.abs()) * (b.re.abs() + b.im.abs())).sum() };
    let mut total = 0.0;
    for i in 0..x.len() {
        let weights = numbers(&v[i]);
        for (j, w) in weights.iter().enumerate() {
            for (part, unit) in [(w.re, c128::new(1.0, 0.0)), (w.im, c128::new(0.0, 1.0))] {
                if part == 0.0 {
                    continue;
                }
                let mut one = vec![c128::new(0.0, 0.0); weights.len()];
                one[j] = unit;
                let basis = match x[i].dtype() {
                    DType::C128 => Tensor::from_vec(one, x[i].shape(), x[i].device()).unwrap(),
                    _ => Tensor::from_vec(one.iter().map(|z| z.re).collect::<Vec<f64>>(), x[i].shape(), x[i].device()).unwrap(),
                };
                let mut direction: Vec<&Tensor> = zeros.iter().collect();
                direction[i] = &basis;
                let (_, column) = autograd::jvp(|x| call(entry, x, sample.attrs), &x.iter().collect::<Vec<_>>(), &direction).unwrap();
                total += part.abs() * size(&column);
            }
        }
    }
    total
}

#[test]
fn forward_mode_is_the_adjoint_of_reverse_mode() {
    let device = Device::cpu();
    let mut checked = BTreeSet::new();
    for (entry, sample, seed) in all() {
        for dtype in [DType::F64, DType::C128] {
            let plain = operands(entry, sample, dtype, &device, seed);
            let Some((leaves, out)) = tracked(entry, sample, &plain) else { continue };
            let u = random_like(&out, seed + 1);
            let grads = gradients(&leaves, &out, &u, false);
            let moves = differentiable(&leaves);
            let v: Vec<Tensor> = plain
                .iter()
                .enumerate()
                .map(|(i, x)| if moves.contains(&i) { random_like(x, seed + 2 + i as u64) } else { x.zeros_like().unwrap() })
                .collect();
            let (value, t) =
                autograd::jvp(|x| call(entry, x, sample.attrs), &plain.iter().collect::<Vec<_>>(), &v.iter().collect::<Vec<_>>()).unwrap();
            let what = format!("{} {:?} '{}' {dtype}", entry.schema.name, sample.shapes, sample.attrs);
            assert_same_bits(&value, &out.detach(), &what);
            let forward = inner(&u, &t);
            let reverse: f64 = grads.iter().zip(&moves).map(|(g, &i)| inner(g, &v[i])).sum();
            // Each of the products u·J·v is rounded in J (at most 8 operations beside a sum) and in two sums.
            let depth = (out.numel() + plain.iter().map(Tensor::numel).sum::<usize>() + 8) as f64;
            let narrow = if out.dtype().real() == DType::F32 { DType::F32 } else { DType::F64 };
            let bound = C * narrow.unit_roundoff() * depth * terms(entry, sample, &plain, &u, &v);
            assert!((forward - reverse).abs() <= bound, "{what}: {forward} forward, {reverse} reverse, bound {bound:e}");
            checked.insert(entry.schema.name);
        }
    }
    assert_every_op(&checked);
}

#[test]
fn recorded_gradients_have_the_bits_of_eager_ones() {
    for (entry, sample, seed) in all() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_differentiable()) {
            let plain = operands(entry, sample, dtype, &Device::cpu(), seed);
            let Some((leaves, out)) = tracked(entry, sample, &plain) else { continue };
            let u = random_like(&out, seed + 1);
            let what = format!("{} {:?} '{}' {dtype}", entry.schema.name, sample.shapes, sample.attrs);
            let eager = gradients(&leaves, &out, &u, false);
            let recorded = gradients(&leaves, &out, &u, true);
            for (e, r) in eager.iter().zip(&recorded) {
                assert_same_bits(e, r, &what);
                assert!(!e.requires_grad(), "{what}: the eager gradient is recorded");
            }
            // An op that has nothing to do gives the operand back.
            let Some(node) = out.grad_fn() else { continue };
            let (eager, recorded) = (node.apply(&u).unwrap(), node.apply_for_graph(&u).unwrap());
            assert_eq!(eager.len(), recorded.len(), "{what}");
            for (e, r) in eager.iter().zip(&recorded) {
                match (e, r) {
                    (Some(e), Some(r)) => assert_same_bits(e, r, &what),
                    (None, None) => {}
                    _ => panic!("{what}: one of eager and recorded gives no gradient"),
                }
            }
        }
    }
}

#[test]
fn gradients_on_every_device_and_stride_have_the_reference_bits() {
    for (entry, sample, seed) in all() {
        for dtype in DType::ALL.into_iter().filter(|d| d.is_differentiable()) {
            let home = operands(entry, sample, dtype, &Device::reference(), seed);
            let Some((leaves, out)) = tracked(entry, sample, &home) else { continue };
            let u = random_like(&out, seed + 1);
            let want = gradients(&leaves, &out, &u, false);
            for device in [Device::cpu(), Device::reference()] {
                for class in CHECKED {
                    let x: Vec<Tensor> = operands(entry, sample, dtype, &device, seed).iter().map(|x| with_strides(x, class)).collect();
                    let (leaves, out) = tracked(entry, sample, &x).unwrap();
                    let g = with_strides(&u.to_device(&device).unwrap(), class);
                    for (i, (g, w)) in gradients(&leaves, &out, &g, false).iter().zip(&want).enumerate() {
                        let what = format!(
                            "{} {:?} '{}' {dtype} on {device}, {class:?}, gradient {i}",
                            entry.schema.name, sample.shapes, sample.attrs
                        );
                        assert_same_bits(g, w, &what);
                    }
                }
            }
        }
    }
}

/// ½‖op(x)‖², as a function of operand `i` alone.
fn half_norm(entry: &OpEntry, sample: &Sample, x: &[Tensor], i: usize, moving: &Tensor) -> Result<Tensor> {
    let mut x = x.to_vec();
    x[i] = moving.clone();
    let y = call(entry, &x, sample.attrs)?;
    y.mul(&y)?.sum(.., false)?.mul_scalar(0.5)
}

#[test]
fn hessian_products_equal_the_jacobian_of_the_gradient() {
    let device = Device::cpu();
    let mut checked = 0;
    for (entry, sample, seed) in all() {
        let x = operands(entry, sample, DType::F64, &device, seed);
        let Some((leaves, out)) = tracked(entry, sample, &x) else { continue };
        if out.dtype() != DType::F64 || x.iter().any(|x| x.numel() > 12) {
            continue;
        }
        for i in differentiable(&leaves) {
            let f = |t: &Tensor| half_norm(entry, sample, &x, i, t);
            let gradient = |t: &Tensor| -> Result<Tensor> {
                let options = GradOptions { create_graph: true, allow_unused: true, ..Default::default() };
                autograd::grad(&[&f(t)?], &[t], options)?.pop().flatten().map_or_else(|| t.zeros_like(), Ok)
            };
            let n = x[i].numel();
            let v = random_like(&x[i], seed + 3);
            let product = autograd::hvp(|t| f(&t[0]), &[&x[i]], &[&v]).unwrap().swap_remove(0);
            let hessian = autograd::jacobian(gradient, &x[i]).unwrap();
            let columns = autograd::hessian(f, &x[i]).unwrap();
            let slope = autograd::jacobian(
                |t| {
                    call(
                        entry,
                        &x.iter().enumerate().map(|(j, x)| if i == j { t.clone() } else { x.clone() }).collect::<Vec<_>>(),
                        sample.attrs,
                    )
                },
                &x[i],
            )
            .unwrap();
            let what = format!("{} {:?} '{}', operand {i}", entry.schema.name, sample.shapes, sample.attrs);
            assert_eq!(hessian.shape(), [x[i].shape(), x[i].shape()].concat(), "{what}");
            let (h, c, j, w, p) = (numbers(&hessian), numbers(&columns), numbers(&slope), numbers(&v), numbers(&product));
            let m = out.numel();
            let y: f64 = numbers(&out).iter().map(|z| z.re.abs()).fold(0.0, f64::max);
            // The Hessian is JᵀJ + Σ y·∂²y: entries are sums of m products each, the product with v one of n.
            let size = |a: usize, b: usize| {
                (0..m).map(|r| (j[r * n + a].re * j[r * n + b].re).abs()).sum::<f64>() + m as f64 * y * (1.0 + h[a * n + b].re.abs())
            };
            let u = C * DType::F64.unit_roundoff() * (n + m + 16) as f64;
            for a in 0..n {
                let want: f64 = (0..n).map(|b| h[a * n + b].re * w[b].re).sum();
                let bound = u * (0..n).map(|b| size(a, b) * w[b].re.abs()).sum::<f64>();
                assert!((p[a].re - want).abs() <= bound, "{what}: element {a} of the product is {}, want {want}", p[a].re);
                for b in 0..n {
                    assert!(
                        (h[a * n + b].re - c[a * n + b].re).abs() <= u * size(a, b),
                        "{what}: ({a}, {b}) of the Hessian is {} by columns, {} by rows",
                        c[a * n + b],
                        h[a * n + b]
                    );
                }
            }
            checked += 1;
        }
    }
    assert!(checked > 60, "only {checked} operands");
}

/// One-hot tensors of the shape of `like`.
fn basis(like: &Tensor) -> Vec<Tensor> {
    let n = like.numel();
    let one = like.scalar_like(1.0).unwrap().reshape([1]).unwrap();
    let at = |i: usize| Tensor::from_slice(&[i as i64], [1], like.device()).unwrap();
    (0..n).map(|i| one.scatter_add(0, &at(i), n).unwrap().reshape(like.shape()).unwrap()).collect()
}

#[test]
fn batched_derivatives_have_the_bits_of_one_at_a_time() {
    let mut checked = BTreeSet::new();
    for (entry, sample, seed) in all() {
        let dtypes = DType::ALL.into_iter().filter(|d| d.is_differentiable()).map(|d| (d, Device::cpu()));
        for (dtype, device) in dtypes.chain([(DType::F64, Device::reference())]) {
            let x = operands(entry, sample, dtype, &device, seed);
            let Some((leaves, out)) = tracked(entry, sample, &x) else { continue };
            // More than 256 elements, which take several passes, in one dtype.
            if out.numel() > 64 && dtype != DType::F32 {
                continue;
            }
            for i in differentiable(&leaves) {
                let what = format!("{} {:?} '{}' {dtype} on {device}, operand {i}", entry.schema.name, sample.shapes, sample.attrs);
                let class = CHECKED[i % CHECKED.len()];
                let at = with_strides(&x[i], class);
                let f = |t: &Tensor| {
                    let mut x = x.clone();
                    x[i] = t.clone();
                    call(entry, &x, sample.attrs)
                };
                let same = |batched: &Tensor, parts: &[Tensor], by_columns: bool| {
                    let stacked = if parts.is_empty() {
                        Tensor::zeros([0], batched.dtype(), &device).unwrap()
                    } else {
                        let parts: Vec<Tensor> = parts.iter().map(|t| t.reshape([t.numel()]).unwrap()).collect();
                        bilin::stack(&parts.iter().collect::<Vec<_>>(), if by_columns { 1 } else { 0 }).unwrap()
                    };
                    assert_same_bits(&batched.reshape([batched.numel()]).unwrap(), &stacked.reshape([stacked.numel()]).unwrap(), &what);
                };
                let columns: Vec<Tensor> = basis(&at).iter().map(|v| autograd::jvp(|x| f(&x[0]), &[&at], &[v]).unwrap().1).collect();
                same(&autograd::jacfwd(f, &at).unwrap(), &columns, true);
                if dtype.is_complex() || !out.dtype().is_complex() {
                    let row = |g: &Tensor| {
                        let row = autograd::vjp(|x| f(&x[0]), &[&at], g).unwrap().1.swap_remove(0);
                        if out.dtype().is_complex() { row.conj().unwrap() } else { row }
                    };
                    let rows: Vec<Tensor> = basis(&out.detach()).iter().map(row).collect();
                    same(&autograd::jacrev(f, &at).unwrap(), &rows, false);
                }
                // Forward over reverse, of sums weighted so that every op has a second derivative to show.
                if !dtype.is_complex() && !out.dtype().is_complex() && dtype != DType::F16 {
                    let f = |t: &Tensor| {
                        let y = f(t)?;
                        y.mul(&y)?.sum(.., false)
                    };
                    let columns: Vec<Tensor> =
                        basis(&at).iter().map(|v| autograd::hvp(|x| f(&x[0]), &[&at], &[v]).unwrap().swap_remove(0)).collect();
                    same(&autograd::hessian(f, &at).unwrap(), &columns, true);
                }
            }
            checked.insert(entry.schema.name);
        }
    }
    assert_every_op(&checked);
}

#[test]
fn batched_derivatives_nest() {
    let device = Device::cpu();
    let mut checked = BTreeSet::new();
    for (entry, sample, seed) in all() {
        // Complex numbers where the op takes no others.
        let tried = [DType::F64, DType::C128].map(|dtype| operands(entry, sample, dtype, &device, seed));
        let Some((x, (leaves, out))) = tried.into_iter().find_map(|x| tracked(entry, sample, &x).map(|t| (x, t))) else { continue };
        if out.dtype() != leaves[differentiable(&leaves)[0]].dtype() || x.iter().any(|x| x.numel().pow(2) * out.numel() > 20_000) {
            continue;
        }
        for i in differentiable(&leaves) {
            let f = |t: &Tensor| {
                let mut x = x.clone();
                x[i] = t.clone();
                let y = call(entry, &x, sample.attrs)?;
                y.mul(&y)
            };
            type Jacobian = fn(&dyn Fn(&Tensor) -> Result<Tensor>, &Tensor) -> Result<Tensor>;
            let modes: [Jacobian; 2] = [|f, x| autograd::jacfwd(f, x), |f, x| autograd::jacrev(f, x)];
            // Each row of the inner derivative by itself, one direction after the other.
            let want: Vec<Tensor> =
                basis(&x[i]).iter().map(|v| autograd::jvp(|x| autograd::jacrev(f, &x[0]), &[&x[i]], &[v]).unwrap().1).collect();
            let size = largest(&[&out.detach(), &x[i]]).powi(2) * largest(&want.iter().collect::<Vec<_>>());
            let bound = C * DType::F64.unit_roundoff() * (out.numel() + x[i].numel() + 16) as f64 * size;
            for (outer, inner) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let what = format!("{} {:?} '{}', operand {i}, {outer} of {inner}", entry.schema.name, sample.shapes, sample.attrs);
                let got = modes[outer](&|t| modes[inner](&f, t), &x[i]).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(got.shape(), [out.shape(), x[i].shape(), x[i].shape()].concat(), "{what}");
                let n = x[i].numel();
                for (at, z) in numbers(&got).iter().enumerate() {
                    let w = numbers(&want[at % n])[at / n];
                    let error = (z.re - w.re).abs() + (z.im - w.im).abs();
                    assert!(error <= bound, "{what}: element {at} is {z}, want {w}, bound {bound:e}");
                }
            }
            checked.insert(entry.schema.name);
        }
    }
    assert_every_op(&checked);
}

#[test]
fn jacobians_of_complex_functions_are_the_same_by_rows_and_by_columns() {
    let device = Device::cpu();
    let mut rng = Rng::new(5);
    // (2,3)·x is taken by rows, (4,3)·x by columns; both derivatives are the matrix itself.
    for rows in [2, 4] {
        let w = Tensor::randn([rows, 3], DType::C128, &device, &mut rng).unwrap();
        let x = Tensor::randn([3], DType::C128, &device, &mut rng).unwrap();
        assert_same_bits(&autograd::jacobian(|x| w.matvec(x), &x).unwrap(), &w, "jacobian");
    }
}

#[test]
fn backward_does_not_depend_on_the_autocast_scope_it_runs_in() {
    let device = Device::cpu();
    let run = |scope: bool| {
        let x = Tensor::full([3], 1.0 + 2f64.powi(-20), DType::F32, &device).unwrap().requires_grad_(true).unwrap();
        let once = || x.mul(&x).unwrap().add(&x).unwrap().sum(.., false).unwrap();
        let (a, b) = (once(), once());
        let _scope = scope.then(|| autocast(DType::Bf16));
        a.backward().unwrap();
        b.backward().unwrap();
        x.grad().unwrap()
    };
    assert_same_bits(&run(true), &run(false), "gradient");
}

fn largest(ts: &[&Tensor]) -> f64 {
    ts.iter().flat_map(|t| numbers(t)).map(|z| z.re.abs() + z.im.abs()).fold(1.0, f64::max)
}

#[test]
fn second_derivatives_are_the_same_by_three_nestings() {
    let device = Device::cpu();
    let mut checked = BTreeSet::new();
    for (entry, sample, seed) in all() {
        for (dtype, class) in [DType::F64, DType::C128].into_iter().flat_map(|d| CHECKED.map(|c| (d, c))) {
            let plain = operands(entry, sample, dtype, &device, seed);
            let Some((leaves, out)) = tracked(entry, sample, &plain) else { continue };
            if !matches!(out.dtype(), DType::F64 | DType::C128) {
                continue;
            }
            let x: Vec<Tensor> = plain.iter().enumerate().map(|(i, x)| with_strides(x, class.after(i))).collect();
            let moves = differentiable(&leaves);
            let full = |part: &[Tensor]| {
                let mut all = x.clone();
                moves.iter().zip(part).for_each(|(&i, t)| all[i] = t.clone());
                all
            };
            // ½‖y‖², real also where y is complex.
            let f = |part: &[Tensor]| -> Result<Tensor> {
                let y = call(entry, &full(part), sample.attrs)?;
                let square = if y.dtype().is_complex() { y.conj()?.mul(&y)?.real()? } else { y.mul(&y)? };
                square.sum(.., false)?.mul_scalar(0.5)
            };
            let at: Vec<&Tensor> = moves.iter().map(|&i| &x[i]).collect();
            let v: Vec<Tensor> = at.iter().enumerate().map(|(i, x)| random_like(x, seed + 20 + i as u64)).collect();
            let v: Vec<&Tensor> = v.iter().collect();
            let what = format!("{} {:?} '{}' {dtype} {class:?}", entry.schema.name, sample.shapes, sample.attrs);
            let forward_reverse = autograd::hvp(f, &at, &v).unwrap_or_else(|e| panic!("{what}: {e}"));
            let slope = |part: &[Tensor]| Ok(autograd::jvp(f, &part.iter().collect::<Vec<_>>(), &v)?.1);
            let (_, reverse_forward) = autograd::value_and_grad(slope, &at).unwrap_or_else(|e| panic!("{what}: {e}"));
            let along = |part: &[Tensor]| -> Result<Tensor> {
                let options = GradOptions { create_graph: true, allow_unused: true, ..Default::default() };
                let grads = autograd::grad(&[&f(part)?], &part.iter().collect::<Vec<_>>(), options)?;
                let mut total = Tensor::zeros([], DType::F64, &device)?;
                for (g, v) in grads.iter().zip(&v) {
                    let Some(g) = g else { continue };
                    let product = if g.dtype().is_complex() { g.conj()?.mul(v)?.real()? } else { g.mul(v)? };
                    total = total.add(&product.sum(.., false)?)?;
                }
                Ok(total)
            };
            let (_, reverse_reverse) = autograd::value_and_grad(along, &at).unwrap_or_else(|e| panic!("{what}: {e}"));
            // Each element is a sum over results and directions of products of at most four factors of this size.
            let count = (out.numel() + at.iter().map(|x| x.numel()).sum::<usize>() + 16) as f64;
            let size = largest(&[at.as_slice(), v.as_slice(), &[&out.detach()]].concat()).powi(4)
                * largest(&forward_reverse.iter().collect::<Vec<_>>());
            let bound = C * DType::F64.unit_roundoff() * count * size;
            for other in [&reverse_forward, &reverse_reverse] {
                for (a, b) in forward_reverse.iter().zip(other) {
                    for (a, b) in numbers(a).iter().zip(numbers(b)) {
                        assert!((a.re - b.re).abs() + (a.im - b.im).abs() <= bound, "{what}: {a} and {b}, bound {bound:e}");
                    }
                }
            }
            checked.insert(entry.schema.name);
        }
    }
    assert_every_op(&checked);
}

#[test]
fn a_hessian_product_costs_at_most_four_gradients_and_materialises_nothing() {
    // A device whose memory no other test counts.
    let device = Device::new("own", Box::new(bilin::exec::reference::ReferenceBackend));
    let mut rng = Rng::new(3);
    let mut of = |shape: &[usize]| Tensor::randn(shape, DType::F64, &device, &mut rng).unwrap();
    let (x, a, b) = (of(&[32, 64]), of(&[64, 64]), of(&[64, 8]));
    let v = [of(&[64, 64]), of(&[64, 8])];
    let f = |w: &[Tensor]| x.matmul(&w[0])?.tanh()?.matmul(&w[1])?.tanh()?.sum(.., false);
    let measure = |run: &dyn Fn()| {
        let before = device.memory_stats().current_bytes;
        device.reset_peak_memory_stats();
        let profile = bilin::profiler::profile(run);
        let peak = device.memory_stats().peak_bytes - before;
        let flops: u64 = profile.events().iter().map(|e| e.flops).sum();
        (flops, profile.events().iter().filter(|e| e.name == "matmul").count(), peak)
    };
    let gradient = measure(&|| drop(autograd::value_and_grad(f, &[&a, &b]).unwrap()));
    let product = measure(&|| drop(autograd::hvp(f, &[&a, &b], &[&v[0], &v[1]]).unwrap()));
    let what = format!("(FLOPs, products, peak bytes) are {product:?} for a gradient of {gradient:?}");
    // Forward, and by a, b and the hidden layer in reverse.
    assert_eq!(gradient.1, 5, "{what}");
    assert!(gradient.0 > 0 && product.0 <= 4 * gradient.0 && product.1 <= 4 * gradient.1, "{what}");
    // A Hessian of 4,608 parameters would be 170 MB; a column of it for each hidden unit some 2 MB.
    assert!(product.2 <= 4 * gradient.2, "{what}");
}
