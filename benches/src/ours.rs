//! This engine's side of a case.

use std::hint::black_box;

use bilin::autograd::BackwardOptions;
use bilin::prelude::*;

use crate::Run;
use crate::case::{Case, Mode};

fn filled(shape: &[usize], dtype: DType) -> Result<Tensor> {
    let dev = Device::cpu();
    if matches!(dtype, DType::F16 | DType::Bf16 | DType::F32 | DType::F64 | DType::C64 | DType::C128) {
        Tensor::rand(shape, dtype, &dev, &mut Rng::new(1))
    } else {
        Tensor::arange(0.0, shape.iter().product::<usize>() as f64, 1.0, DType::I64, &dev)?.reshape(shape)?.astype(dtype)
    }
}

fn operand(shape: &[usize], dtype: DType, view: &str) -> Result<Tensor> {
    let mut stored = shape.to_vec();
    match view {
        "T" => {
            stored.reverse();
            filled(&stored, dtype)?.mt()
        }
        "flip" => filled(shape, dtype)?.flip(0),
        "half" => {
            stored[0] *= 2;
            let (rows, columns) = (shape[0], shape[1]);
            filled(&stored, dtype)?.reshape([rows, 2, columns])?.narrow(1, 0, 1)?.squeeze(&[1])
        }
        _ => filled(shape, dtype),
    }
}

fn product(case: &Case, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (case.is_outer, a.rank(), b.rank()) {
        (true, ..) => a.outer(b),
        (_, 1, 1) => a.dot(b),
        (_, 1, _) => a.vecmat(b),
        (_, _, 1) => a.matvec(b),
        _ => a.matmul(b),
    }
}

/// One call: the product, its gradients, or both.
pub(crate) fn run(case: &Case) -> Result<Run> {
    let case = case.clone();
    let (mut a, mut b) = (operand(&case.shapes[0], case.dtype, &case.views[0])?, operand(&case.shapes[1], case.dtype, &case.views[1])?);
    if case.mode == Mode::Forward {
        return Ok(Box::new(move || product(&case, &a, &b).map(|c| drop(black_box(c)))));
    }
    (a, b) = (a.requires_grad_(true)?, b.requires_grad_(true)?);
    let c = product(&case, &a, &b)?;
    let cotangent = c.detach().ones_like()?;
    let kept = (case.mode == Mode::Backward).then_some(c);
    Ok(Box::new(move || {
        let fresh = if kept.is_none() { Some(product(&case, &a, &b)?) } else { None };
        let Some(c) = fresh.as_ref().or(kept.as_ref()) else { return Ok(()) };
        let gradient = Some(cotangent.clone());
        c.backward_with(BackwardOptions { gradient, retain_graph: Some(kept.is_some()), ..BackwardOptions::default() })?;
        black_box((a.grad(), b.grad()));
        a.zero_grad();
        b.zero_grad();
        Ok(())
    }))
}
