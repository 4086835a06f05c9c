//! Every differentiable op and sample: derivatives of first and second order against differences, forward against reverse
//! mode, recorded against eager, device against device.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::collections::BTreeSet;

use bilin::autograd::{self, GradOptions, GradcheckOptions, gradcheck, gradgradcheck};
use bilin::ops::{OpEntry, Sample};
use bilin::prelude::*;
use conformance::compare::{C, assert_reference, assert_same_bits, inner, numbers};
use conformance::samples::{Number, all, call, operands, tensor_of};
use conformance::strides::{Strides, with_strides};
use conformance::subject::{device, devices, few, fix_batches, has_reference_bits, having, widest, widest_float};
use conformance::travel::from_f64;

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
    // Multiplication by i is an op of complex numbers alone.
    let lacking = if having([DType::C64]).is_empty() { vec!["times_i"] } else { vec![] };
    let unmoved: BTreeSet<&str> = UNMOVED.into_iter().chain(lacking).collect();
    assert_eq!(missed.into_iter().collect::<BTreeSet<_>>(), unmoved, "not checked, beside those that have no derivative");
}

const CHECKED: [Strides; 3] = [Strides::Contiguous, Strides::TransposedSliced, Strides::NegativeSliced];

/// On a device without f64 the functions run there in f32, the differences are taken of what they give: a step of 2⁻⁸ leaves errors of
/// 2⁻¹⁶·f‴/6 and of 2⁸ roundings of the values.
#[test]
fn first_and_second_derivatives_equal_differences() {
    let device = device();
    let is_double = device.backend().has_dtype(DType::F64);
    let options = if is_double {
        GradcheckOptions::default()
    } else {
        GradcheckOptions { step: 2f64.powi(-8), tolerance: 0.02, ..Default::default() }
    };
    let home = if is_double { device.clone() } else { Device::reference() };
    let mut checked = BTreeSet::new();
    for (entry, sample, seed) in all() {
        for dtype in if is_double { vec![DType::F64, DType::C128] } else { vec![DType::F64] } {
            let plain = operands(entry, sample, dtype, &home, seed);
            // Differences of a narrower result say nothing about a derivative.
            let there = if is_double { plain.clone() } else { operands(entry, sample, DType::F32, &device, seed) };
            if !tracked(entry, sample, &there).is_some_and(|(_, out)| widest().contains(&out.dtype())) {
                continue;
            }
            for &class in few(&CHECKED) {
                let x: Vec<Tensor> = plain.iter().enumerate().map(|(i, x)| with_strides(x, class.after(i))).collect();
                let x: Vec<&Tensor> = x.iter().collect();
                let what = format!("{} {:?} '{}' {dtype} {class:?}", entry.schema.name, sample.shapes, sample.attrs);
                let f = |x: &[Tensor]| call(entry, x, sample.attrs);
                let result = if is_double {
                    gradcheck(f, &x, options).and_then(|()| gradgradcheck(f, &x, options))
                } else {
                    let f = from_f64(&device, f);
                    gradcheck(&f, &x, options).and_then(|()| gradgradcheck(&f, &x, options))
                };
                result.unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            checked.insert(entry.schema.name);
        }
    }
    assert_every_op(&checked);
}

/// Σ |u|·|J e|·|v| over the real directions e of the operands: what both sides of ⟨u, Jv⟩ add up, without cancellation.
fn terms(entry: &OpEntry, sample: &Sample, x: &[Tensor], u: &Tensor, v: &[Tensor]) -> f64 {
    let zeros: Vec<Tensor> = x.iter().map(|x| x.zeros_like().unwrap()).collect();
    let none = Number::whole(0);
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
                let mut one = vec![none; weights.len()];
                one[j].z = unit;
                let basis = tensor_of(&one, x[i].shape(), x[i].dtype(), x[i].device());
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
    let device = device();
    let mut checked = BTreeSet::new();
    for (entry, sample, seed) in all() {
        for dtype in widest() {
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
            let unit = out.dtype().unit_roundoff().max(dtype.unit_roundoff());
            let bound = C * unit * depth * terms(entry, sample, &plain, &u, &v);
            assert!((forward - reverse).abs() <= bound, "{what}: {forward} forward, {reverse} reverse, bound {bound:e}");
            checked.insert(entry.schema.name);
        }
    }
    assert_every_op(&checked);
}

#[test]
fn recorded_gradients_have_the_bits_of_eager_ones() {
    for (entry, sample, seed) in all() {
        for dtype in having(DType::ALL).into_iter().filter(|d| d.is_differentiable()) {
            let plain = operands(entry, sample, dtype, &device(), seed);
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

/// Gradients with the cotangent `u`, and of the sum of their squares again.
fn two_orders(leaves: &[Tensor], out: &Tensor, u: &Tensor) -> [Vec<Tensor>; 2] {
    let first = gradients(leaves, out, u, true);
    let squares = first.iter().filter(|g| g.requires_grad()).map(|g| {
        let square = if g.dtype().is_complex() { g.conj().unwrap().mul(g).unwrap().real() } else { g.mul(g) };
        square.unwrap().sum(.., false).unwrap()
    });
    let total = squares.reduce(|a, b| if a.dtype() == b.dtype() { a.add(&b).unwrap() } else { a });
    let second = total.map(|s| gradients(leaves, &s, &s.detach().ones_like().unwrap(), false)).unwrap_or_default();
    [first, second]
}

#[test]
fn gradients_of_two_orders_on_every_device_and_stride_are_the_references() {
    let mut checked = 0;
    for (entry, sample, seed) in all() {
        for dtype in having(DType::ALL).into_iter().filter(|d| d.is_differentiable()) {
            let home = operands(entry, sample, dtype, &Device::reference(), seed);
            let Some((leaves, out)) = tracked(entry, sample, &home) else { continue };
            let u = random_like(&out, seed + 1);
            let want = two_orders(&leaves, &out, &u);
            // Of a second derivative each element is a chain of about four products.
            let scale = |x: &Tensor| x.abs().unwrap().mul_scalar(4.0).unwrap();
            let scale: Vec<Tensor> =
                home.iter().chain([&u]).chain(want.iter().flatten()).filter(|x| x.dtype().is_differentiable()).map(scale).collect();
            for device in devices() {
                if !device.backend().has_dtype(out.dtype()) {
                    continue;
                }
                for &class in few(&CHECKED) {
                    let x: Vec<Tensor> = operands(entry, sample, dtype, &device, seed).iter().map(|x| with_strides(x, class)).collect();
                    let (leaves, out) = tracked(entry, sample, &x).unwrap();
                    let g = with_strides(&u.to_device(&device).unwrap(), class);
                    for (order, (got, want)) in two_orders(&leaves, &out, &g).iter().zip(&want).enumerate() {
                        assert_eq!(got.len(), want.len());
                        for (i, (g, w)) in got.iter().zip(want).enumerate() {
                            let what = format!(
                                "{} {:?} '{}' {dtype} on {device}, {class:?}, order {}, operand {i}",
                                entry.schema.name,
                                sample.shapes,
                                sample.attrs,
                                order + 1
                            );
                            assert_reference(g, w, &scale, &what);
                            checked += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(checked > 1_000, "only {checked}");
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
    let (device, dtype) = (device(), widest_float());
    let mut checked = 0;
    for (entry, sample, seed) in all() {
        let x = operands(entry, sample, dtype, &device, seed);
        let Some((leaves, out)) = tracked(entry, sample, &x) else { continue };
        if out.dtype() != dtype || x.iter().any(|x| x.numel() > 12) {
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
            let u = C * dtype.unit_roundoff() * (n + m + 16) as f64;
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
    fix_batches();
    for (entry, sample, seed) in all() {
        let dtypes = having(DType::ALL).into_iter().filter(|d| d.is_differentiable()).map(|d| (d, device()));
        let reference = has_reference_bits(&device()).then(|| (DType::F64, Device::reference()));
        for (dtype, device) in dtypes.chain(reference) {
            let x = operands(entry, sample, dtype, &device, seed);
            let Some((leaves, out)) = tracked(entry, sample, &x) else { continue };
            // More than 256 elements, which take several passes, in one dtype; one sample of an op where every call is waited for.
            let is_seen = !has_reference_bits(&device) && checked.contains(entry.schema.name);
            if is_seen || (out.numel() > 64 && dtype != DType::F32) {
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
    let device = device();
    let mut checked = BTreeSet::new();
    for (entry, sample, seed) in all() {
        // One sample of an op where every call is waited for.
        if !has_reference_bits(&device) && checked.contains(entry.schema.name) {
            continue;
        }
        // Complex numbers where the op takes no others.
        let tried = widest().into_iter().map(|dtype| operands(entry, sample, dtype, &device, seed));
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
            let bound = C * out.dtype().unit_roundoff() * (out.numel() + x[i].numel() + 16) as f64 * size;
            for &(outer, inner) in few(&[(0, 0), (0, 1), (1, 1), (1, 0)]) {
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
fn jacobians_are_the_same_by_rows_and_by_columns() {
    let device = device();
    let mut rng = Rng::new(5);
    // (2,3)·x is taken by rows, (4,3)·x by columns; both derivatives are the matrix itself.
    for (rows, dtype) in widest().into_iter().flat_map(|d| [(2, d), (4, d)]) {
        let w = Tensor::randn([rows, 3], dtype, &device, &mut rng).unwrap();
        let x = Tensor::randn([3], dtype, &device, &mut rng).unwrap();
        assert_same_bits(&autograd::jacobian(|x| w.matvec(x), &x).unwrap(), &w, "jacobian");
    }
}

#[test]
fn backward_does_not_depend_on_the_autocast_scope_it_runs_in() {
    let device = device();
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
    let device = device();
    let mut checked = BTreeSet::new();
    for (entry, sample, seed) in all() {
        for (dtype, class) in widest().into_iter().flat_map(|d| few(&CHECKED).iter().map(move |c| (d, *c))) {
            let plain = operands(entry, sample, dtype, &device, seed);
            let Some((leaves, out)) = tracked(entry, sample, &plain) else { continue };
            if !widest().contains(&out.dtype()) {
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
                let mut total = Tensor::zeros([], dtype.real(), &device)?;
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
            let bound = C * dtype.unit_roundoff() * count * size;
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
