//! What is let go, counted for the whole process: this file has one test, so that nothing else is counted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::autograd::{self, BackwardContext, ForwardContext, Function, GradOptions};
use bilin::memory_stats;
use bilin::prelude::*;
use bilin::tape::live_nodes;
use conformance::compare::numbers;
use conformance::samples::{Number, all, call, operands, tensor_of};
use conformance::subject::{device, has_reference_bits, widest_float};

/// exp, whose gradient reads its result.
struct Exp;
impl Function for Exp {
    fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let y = x[0].exp()?;
        ctx.save_for_backward(&[&y]);
        Ok(vec![y])
    }
    fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(g[0].mul(&ctx.saved()[0])?)])
    }
    fn jvp(&self, _x: &[Tensor], y: &[Tensor], t: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(t[0].mul(&y[0])?)])
    }
}

/// Scenario S3 of `data/public_bugs.json`: graphs that are never used in backward are freed with their tensors.
#[test]
fn graphs_without_backward_free_everything() {
    let device = device();
    let before = (live_nodes(), memory_stats(&device).current_bytes);
    for i in 0..if has_reference_bits(&device) { 100_000 } else { 1_000 } {
        let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2], &device).unwrap().requires_grad_(true).unwrap();
        let y = x.matmul(&x).unwrap();
        let row = y.index(&[0.into()]).unwrap();
        let z = row.dot(&row).unwrap();
        let o = row.outer(&row).unwrap();
        if i == 0 {
            assert!(live_nodes() >= before.0 + 4 && z.requires_grad() && o.requires_grad());
        }
    }
    assert_eq!((live_nodes(), memory_stats(&device).current_bytes), before);
    let value = || tensor_of(&[0.5, 1.0].map(Number::real), &[2], widest_float(), &device);
    let f = |x: &[Tensor]| Exp.apply(&[&x[0].exp()?])?[0].exp()?.sum(.., false);
    autograd::hvp(f, &[&value()], &[&value()]).unwrap();
    assert_eq!((live_nodes(), memory_stats(&device).current_bytes), before, "forward over reverse");
    let slope = |x: &[Tensor]| Ok(autograd::jvp(f, &[&x[0]], &[&value()])?.1);
    autograd::value_and_grad(slope, &[&value()]).unwrap();
    assert_eq!((live_nodes(), memory_stats(&device).current_bytes), before, "reverse over forward");
    let x = value().requires_grad_(true).unwrap();
    let options = GradOptions { create_graph: true, ..Default::default() };
    let g = autograd::grad(&[&f(std::slice::from_ref(&x)).unwrap()], &[&x], options).unwrap().remove(0).unwrap();
    assert!(live_nodes() > before.0 && g.requires_grad());
    drop((x, g));
    assert_eq!((live_nodes(), memory_stats(&device).current_bytes), before, "create_graph");
    every_op_lets_go(&device);
    what_cant_be_allocated_is_an_error(&device);
}

/// Backward, a recorded gradient, both nestings of the modes, a checkpoint, hooks and a graph that nobody uses, of every op.
fn every_op_lets_go(device: &Device) {
    let before = (live_nodes(), memory_stats(device).current_bytes);
    for (entry, sample, seed) in all() {
        let x = operands(entry, sample, widest_float(), device, seed);
        let leaf = |x: &Tensor| x.detach().requires_grad_(x.dtype().is_differentiable()).unwrap();
        let leaves: Vec<Tensor> = x.iter().map(leaf).collect();
        if !call(entry, &leaves, sample.attrs).is_ok_and(|y| y.requires_grad() && !y.dtype().is_complex()) {
            continue;
        }
        let f = |x: &[Tensor]| {
            let y = call(entry, x, sample.attrs)?;
            y.mul(&y)?.sum(.., false)
        };
        let y = f(&leaves).unwrap();
        y.register_hook(|g| Ok(Some(g.clone()))).unwrap();
        y.retain_grad().unwrap();
        let options = GradOptions { create_graph: true, allow_unused: true, ..Default::default() };
        autograd::grad(&[&y], &leaves.iter().filter(|x| x.requires_grad()).collect::<Vec<_>>(), options).unwrap();
        y.backward().unwrap();
        let body = move |x: &[Tensor]| Ok(vec![call(entry, x, sample.attrs)?]);
        let again = autograd::checkpoint(body, &leaves.iter().collect::<Vec<_>>()).unwrap().remove(0);
        again.mul(&again).unwrap().sum(.., false).unwrap().backward().unwrap();
        // Of the operands that move, and as a function of them alone.
        let moving: Vec<usize> = (0..x.len()).filter(|&i| leaves[i].requires_grad()).collect();
        let of = |part: &[Tensor]| {
            let mut all = x.clone();
            moving.iter().zip(part).for_each(|(&i, t)| all[i] = t.clone());
            f(&all)
        };
        let at: Vec<&Tensor> = moving.iter().map(|&i| &x[i]).collect();
        autograd::hvp(of, &at, &at).unwrap();
        autograd::value_and_grad(|part| Ok(autograd::jvp(of, &part.iter().collect::<Vec<_>>(), &at)?.1), &at).unwrap();
        drop((x, leaves, y, again));
        assert_eq!((live_nodes(), memory_stats(device).current_bytes), before, "{} {:?}", entry.schema.name, sample.shapes);
    }
}

/// 2²³·2²³ numbers of four bytes are 2⁴⁸ bytes, beyond any address space of a process.
fn what_cant_be_allocated_is_an_error(device: &Device) {
    let dtype = widest_float();
    let x = Tensor::ones([1 << 23], dtype, device).unwrap().requires_grad_(true).unwrap();
    let column = x.reshape([1 << 23, 1]).unwrap();
    let before = (live_nodes(), memory_stats(device).current_bytes);
    let too_much: [&dyn Fn() -> Result<Tensor>; 5] =
        [&|| x.outer(&x), &|| column.matmul(&column.mt()?), &|| einsum("i,j->ij", &[&x, &x]), &|| column.add(&x), &|| {
            Tensor::zeros([1 << 23, 1 << 23], dtype, device)
        }];
    for call in too_much {
        match call().map(|t| t.shape().to_vec()) {
            Err(Error::OutOfMemory { requested_bytes, limit_bytes: None, .. }) => assert!(requested_bytes >= 1 << 48),
            // More than any one buffer of the device.
            Err(Error::InvalidArgument { got, want, .. }) if !has_reference_bits(device) => {
                assert!(got.parse::<u64>().unwrap() >= 1 << 48 && want.contains("in one buffer"), "{got}, {want}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!((live_nodes(), memory_stats(device).current_bytes), before);
    }
    assert_eq!(numbers(&x.dot(&x).unwrap())[0].re, (1u64 << 23) as f64, "and the next product works");
}
