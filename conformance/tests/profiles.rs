//! Every kernel of every op is an event of its pass.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::collections::BTreeSet;
use std::sync::Arc;

use bilin::autograd::{self, BackwardOptions};
use bilin::prelude::*;
use bilin::profiler::{Direction, Event, profile_with};
use conformance::samples::{all, call, operands};
use conformance::subject::{device, having, own_device};

#[test]
fn every_op_leaves_events_of_both_passes() {
    let device = own_device();
    let (mut forward, mut backward) = (BTreeSet::new(), BTreeSet::new());
    for (entry, sample, seed) in all() {
        for dtype in having([DType::F32, DType::C128]) {
            let leaf = |x: &Tensor| x.detach().requires_grad_(x.dtype().is_differentiable()).unwrap();
            let x: Vec<Tensor> = operands(entry, sample, dtype, &device, seed).iter().map(leaf).collect();
            let (y, profile) = profile_with(|| call(entry, &x, sample.attrs));
            let Ok(y) = y else { continue };
            let what = format!("{} {:?} '{}' {dtype}", entry.schema.name, sample.shapes, sample.attrs);
            let is_here = |e: &Event| e.device.as_ref() == Some(&device) && e.dtype.is_some() && !e.shapes.is_empty() && e.thread > 0;
            assert!(profile.events().iter().all(|e| e.direction == Direction::Forward && e.node.is_empty() && is_here(e)), "{what}");
            let shares = |a: &Tensor, b: &Tensor| Arc::ptr_eq(&a.view().storage, &b.view().storage);
            if x.iter().any(|x| shares(x, &y)) {
                // A view launches nothing.
                assert!(profile.events().is_empty(), "{what}: {:?}", profile.events());
            } else {
                let last = profile.events().last().unwrap_or_else(|| panic!("{what}: no event"));
                assert_eq!((last.dtype, last.sequence > 0), (Some(y.dtype()), y.requires_grad()), "{what}");
                assert!(profile.events().iter().any(|e| e.memory_change_bytes > 0) || y.numel() == 0, "{what}");
                forward.insert(entry.schema.name);
            }
            if !y.requires_grad() {
                continue;
            }
            let g = Tensor::randn(y.shape(), y.dtype(), &device, &mut Rng::new(seed)).unwrap();
            let options = BackwardOptions { gradient: Some(g), ..Default::default() };
            let (result, gradient) = profile_with(|| y.backward_with(options));
            result.unwrap();
            for e in gradient.events() {
                assert!(e.direction == Direction::Backward && e.node.ends_with("Backward") && is_here(e), "{what}: {e:?}");
            }
            // What flows from the forward pass: a number that both have.
            let made: BTreeSet<u64> = profile.events().iter().map(|e| e.sequence).filter(|s| *s > 0).collect();
            if gradient.events().iter().any(|e| made.contains(&e.sequence)) {
                backward.insert(entry.schema.name);
            }
        }
    }
    assert!(forward.len() > 50, "{forward:?}");
    // Gradients that are views or the cotangent itself launch nothing.
    let silent: Vec<_> = forward.difference(&backward).collect();
    let free = ["argmax", "argmin", "concat", "embed", "eq", "floor", "ge", "gt", "le", "lt", "ne", "sum"];
    // Of real numbers these are the number itself, or don't move.
    let of_reals = if having([DType::C128]).is_empty() { ["imag", "real", "sign"].as_slice() } else { &[] };
    assert!(silent.iter().all(|name| free.contains(name) || of_reals.contains(name)), "no event in their gradients: {silent:?}");
}

#[test]
fn sums_of_cotangents_belong_to_the_backward_pass() {
    let x = Tensor::ones([3], DType::F32, &device()).unwrap().requires_grad_(true).unwrap();
    let y = x.exp().unwrap().sum(.., false).unwrap();
    let (result, profile) = profile_with(|| autograd::backward_all(&[&y, &y, &y], &[], BackwardOptions::default()));
    result.unwrap();
    assert!(profile.events().len() >= 2 && profile.events().iter().all(|e| e.direction == Direction::Backward), "{:?}", profile.events());
}
