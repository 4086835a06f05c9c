//! A tape that can't lie: changes through every kind of view, outputs that are views, operands that are one tensor, threads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::collections::BTreeSet;
use std::sync::Arc;

use bilin::autograd::{self, BackwardOptions, GradOptions};
use bilin::prelude::*;
use conformance::compare::{assert_same_bits, numbers};
use conformance::samples::{Number, all, call, operands, tensor_of};
use conformance::subject::{device, widest, widest_float};

fn plain(data: &[f64], shape: &[usize]) -> Tensor {
    tensor_of(&data.iter().map(|&x| Number::real(x)).collect::<Vec<_>>(), shape, widest_float(), &device())
}
fn leaf(data: &[f64], shape: &[usize]) -> Tensor {
    plain(data, shape).requires_grad_(true).unwrap()
}
fn values(t: &Tensor) -> Vec<f64> {
    numbers(t).iter().map(|z| z.re).collect()
}
fn total(t: &Tensor) -> Tensor {
    t.sum(.., false).unwrap()
}
fn shares(a: &Tensor, b: &Tensor) -> bool {
    Arc::ptr_eq(&a.view().storage, &b.view().storage)
}

type ViewOf = Box<dyn Fn(&Tensor) -> Result<Tensor>>;

/// Every way to a view: what the registry's ops give that shares the operand's memory, and the methods made of them.
fn views() -> Vec<(String, Vec<usize>, ViewOf)> {
    let mut out: Vec<(String, Vec<usize>, ViewOf)> = Vec::new();
    for (entry, sample, seed) in all().filter(|(_, s, _)| s.shapes.len() == 1) {
        let x = operands(entry, sample, widest_float(), &device(), seed);
        let is_view = |y: Tensor| shares(&y, &x[0]) && y.numel() > 0;
        if call(entry, &x, sample.attrs).is_ok_and(is_view) {
            let run = move |x: &Tensor| call(entry, std::slice::from_ref(x), sample.attrs);
            out.push((entry.schema.name.to_owned(), sample.shapes[0].to_vec(), Box::new(run)));
        }
    }
    let methods: [(&str, ViewOf); 9] = [
        ("clone", Box::new(|x| Ok(x.clone()))),
        ("detach", Box::new(|x| Ok(x.detach()))),
        ("mt", Box::new(Tensor::mt)),
        ("t", Box::new(Tensor::t)),
        ("index", Box::new(|x| x.index(&[Index::At(-1), Index::NewAxis]))),
        ("slice", Box::new(|x| x.slice(1, Some(-1), None, -2))),
        ("astype", Box::new(|x| x.astype(widest_float()))),
        ("contiguous", Box::new(Tensor::contiguous)),
        ("view of a view", Box::new(|x| x.t()?.flip(0)?.narrow(1, 1, 1)?.squeeze(&[1])?.unsqueeze(0))),
    ];
    out.extend(methods.into_iter().map(|(name, f)| (name.to_owned(), vec![2, 3], f)));
    out
}

#[test]
fn a_change_through_every_kind_of_view_is_found_and_only_where_it_is_read() {
    let mut seen = BTreeSet::new();
    for (name, shape, view) in views() {
        let data: Vec<f64> = (1..=shape.iter().product::<usize>()).map(|i| i as f64).collect();
        // The operand was saved, a view of it changes.
        let x = leaf(&data, &shape);
        let (read, unread) = (total(&x.mul(&x).unwrap()), total(&x.add(&x).unwrap()));
        let v = no_grad(|| view(&x)).unwrap();
        assert!(shares(&v, &x), "{name}");
        if v.layout().may_self_overlap() {
            // A place that stands for several elements can't be written.
            assert!(no_grad(|| v.fill_(0.5)).is_err() && x.version() == 0, "{name}");
            read.backward().unwrap();
        } else {
            no_grad(|| v.fill_(0.5)).unwrap();
            let error = read.backward().unwrap_err();
            assert!(matches!(&error, Error::VersionMismatch { op, saved: 0, current: 1, .. } if op == "mul"), "{name}: {error}");
            assert!(x.grad().is_none(), "{name}: part of a gradient");
            unread.backward().unwrap();
            assert_eq!(values(&x.grad().unwrap()), vec![2.0; data.len()], "{name}");
        }
        // A view was saved, what it is of changes.
        let x = leaf(&data, &shape);
        let v = view(&x).unwrap();
        if v.requires_grad() {
            let (read, unread) = (total(&v.exp().unwrap().mul(&v).unwrap()), total(&v.neg().unwrap()));
            no_grad(|| x.fill_(0.5)).unwrap();
            assert!(matches!(read.backward(), Err(Error::VersionMismatch { .. })), "{name}: the view was saved");
            unread.backward().unwrap();
        }
        // A recorded view can't be changed behind the tape's back.
        if v.requires_grad() {
            assert!(matches!(v.fill_(1.0), Err(Error::InvalidArgument { .. })), "{name}");
        }
        seen.insert(name);
    }
    for name in
        ["permute", "reshape", "broadcast_to", "narrow", "flip", "diagonal", "squeeze", "unsqueeze", "mt", "index", "slice", "detach"]
    {
        assert!(seen.contains(name), "{name} makes no view");
    }
}

#[test]
fn every_in_place_op_counts_and_results_that_were_saved_are_watched_too() {
    let one = plain(&[1.0, 1.0], &[2]);
    type Change<'a> = (&'a str, Box<dyn Fn(&Tensor) -> Result<()> + 'a>);
    let changes: [Change; 6] = [
        ("copy_", Box::new(|t| t.copy_(&one))),
        ("add_", Box::new(|t| t.add_(&one))),
        ("sub_", Box::new(|t| t.sub_(&one))),
        ("mul_", Box::new(|t| t.mul_(&one))),
        ("fill_", Box::new(|t| t.fill_(1.0))),
        ("zero_", Box::new(Tensor::zero_)),
    ];
    for (name, change) in changes {
        let x = leaf(&[1., 2.], &[2]);
        // exp reads its result, sin its operand.
        for recorded in [x.exp().unwrap(), x.sin().unwrap()] {
            let target = if recorded.grad_fn().unwrap().name() == "ExpBackward" { &recorded } else { &x };
            let before = target.version();
            no_grad(|| change(target)).unwrap();
            assert_eq!(target.version(), before + 1, "{name}");
            assert!(matches!(total(&recorded).backward(), Err(Error::VersionMismatch { .. })), "{name}");
        }
        assert!(change(&x).is_err(), "{name} on a leaf that requires a gradient");
    }
}

#[test]
fn results_that_are_views_of_operands_have_their_gradients() {
    for (name, shape, view) in views() {
        let data: Vec<f64> = (1..=shape.iter().product::<usize>()).map(|i| i as f64).collect();
        let x = leaf(&data, &shape);
        let v = view(&x).unwrap();
        if !v.requires_grad() {
            continue;
        }
        // ⟨g, view(x)⟩ by x, element by element.
        let g = Tensor::arange(1., v.numel() as f64 + 1., 1., v.dtype(), &device()).unwrap().reshape(v.shape()).unwrap();
        v.backward_with(BackwardOptions { gradient: Some(g.clone()), retain_graph: Some(true), ..Default::default() }).unwrap();
        let found = x.grad().unwrap();
        let want: Vec<f64> = (0..data.len())
            .map(|i| {
                let unit: Vec<f64> = (0..data.len()).map(|j| if i == j { 1.0 } else { 0.0 }).collect();
                let e = plain(&unit, &shape);
                values(&total(&view(&e).unwrap().mul(&g).unwrap()))[0]
            })
            .collect();
        assert_eq!(values(&found), want, "{name}");
        // The gradient is the leaf's own memory, whatever the cotangent's does.
        no_grad(|| g.fill_(9.0)).unwrap();
        assert_eq!(values(&x.grad().unwrap()), want, "{name}");
        assert!(!shares(&found, &g), "{name}");
    }
}

#[test]
fn one_tensor_as_several_operands_gets_every_part() {
    let x = leaf(&[1., 2., 3., 4.], &[2, 2]);
    let of = |y: &Tensor| values(autograd::grad(&[&total(y)], &[&x], GradOptions::default()).unwrap()[0].as_ref().unwrap());
    assert_eq!(of(&x.mul(&x).unwrap()), [2., 4., 6., 8.]);
    assert_eq!(of(&x.sub(&x).unwrap()), [0.; 4]);
    assert_eq!(of(&x.div(&x).unwrap()), [0.; 4]);
    // ∂ΣXX = 1Xᵀ + Xᵀ1.
    assert_eq!(of(&x.matmul(&x).unwrap()), [7., 11., 9., 13.]);
    assert_eq!(of(&einsum("ij,ij,ij->", &[&x, &x, &x]).unwrap()), [3., 12., 27., 48.]);
    assert_eq!(of(&bilin::concat(&[&x, &x, &x], 0).unwrap()), [3.; 4]);
    assert_eq!(of(&x.gt(&x).unwrap().where_(&x, &x).unwrap()), [1.; 4]);
    let y = x.mul_scalar(3.0).unwrap();
    let z = total(&y.mul(&y).unwrap());
    let found = autograd::grad(&[&z, &z], &[&y, &x, &y, &x], GradOptions { retain_graph: Some(true), ..Default::default() }).unwrap();
    let found: Vec<Vec<f64>> = found.iter().map(|g| values(g.as_ref().unwrap())).collect();
    assert_eq!((&found[0], &found[1]), (&found[2], &found[3]));
    assert_eq!((&found[0][..], &found[1][..]), (&[12., 24., 36., 48.][..], &[36., 72., 108., 144.][..]));
}

/// Ops that are linear in each operand alone: the gradient of one reads none of its own values.
fn is_linear(name: &str) -> bool {
    let linear = "add astype broadcast_to concat conj contiguous diagonal embed flip imag mean narrow neg permute real reshape squeeze sub \
                  sum times_i unsqueeze";
    linear.split_whitespace().any(|op| op == name)
}

/// For every op, whatever operand or result changes in place before backward: an error that names it, or the gradient of the
/// values that the op was recorded with. Linear ops read nothing, so there it is never an error.
#[test]
fn no_change_in_place_is_seen_in_a_gradient_of_any_op() {
    let (mut found, mut linear) = (BTreeSet::new(), BTreeSet::new());
    for (entry, sample, seed) in all() {
        let name = entry.schema.name;
        let Some(dtype) = widest().into_iter().find(|&dtype| {
            let x: Vec<Tensor> = fresh(&operands(entry, sample, dtype, &device(), seed));
            call(entry, &x, sample.attrs).is_ok_and(|y| y.requires_grad())
        }) else {
            continue;
        };
        // One operand after the other, then the result.
        for changed in 0..=sample.shapes.len() {
            let run = |change: bool| {
                let x = fresh(&operands(entry, sample, dtype, &device(), seed));
                let y = call(entry, &x, sample.attrs).unwrap();
                let g = y.detach().ones_like().unwrap();
                // A result that is a view of an operand is that operand's memory.
                let target = x.get(changed).unwrap_or(&y);
                let before = target.version();
                if change && target.numel() > 0 && !target.layout().may_self_overlap() {
                    no_grad(|| target.fill_(if target.dtype().is_differentiable() { 0.37 } else { 0.0 })).unwrap();
                    assert!(target.version() > before);
                }
                let wanted: Vec<&Tensor> = x.iter().filter(|x| x.requires_grad()).collect();
                let options = GradOptions { grad_outputs: vec![Some(g)], allow_unused: true, ..Default::default() };
                autograd::grad(&[&y], &wanted, options)
            };
            let want = run(false).unwrap();
            let what = format!("{name} {:?} '{}', {changed} changed", sample.shapes, sample.attrs);
            match run(true) {
                Ok(got) => {
                    for (got, want) in got.iter().zip(&want) {
                        match (got, want) {
                            (Some(got), Some(want)) => assert_same_bits(got, want, &what),
                            (got, want) => assert_eq!(got.is_some(), want.is_some(), "{what}"),
                        }
                    }
                    linear.extend(is_linear(name).then_some(name));
                }
                Err(Error::VersionMismatch { op, operand, saved, current, .. }) => {
                    assert!(!is_linear(name), "{what}: a false alarm");
                    assert!(current > saved, "{what}");
                    // Some are made of other ops, and an einsum of several of itself.
                    assert!(op != name || name == "einsum" || operand == changed, "{what}: it names operand {operand}");
                    found.insert(name);
                }
                Err(error) => panic!("{what}: {error}"),
            }
        }
    }
    for name in ["matmul", "einsum", "mul", "div", "exp", "sqrt", "softmax", "gather", "layer_norm", "max", "where_", "pow", "gelu"] {
        assert!(found.contains(name), "{name} reads nothing: {found:?}");
    }
    assert!(linear.len() > 15, "{linear:?}");
}

/// Leaves that require gradients where their dtype has any, in memory of their own.
fn fresh(x: &[Tensor]) -> Vec<Tensor> {
    x.iter().map(|x| x.detach().requires_grad_(x.dtype().is_differentiable()).unwrap()).collect()
}
