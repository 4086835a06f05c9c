//! Functions of functions, built of the reverse pass and forward mode.

use super::forward::jvp;
use super::reverse::{GradOptions, grad};
use crate::ops::{concat, stack};
use crate::schema::modes;
use crate::shape::error::{Error, Result};
use crate::tape::Tensor;

fn leaves(x: &[&Tensor]) -> Result<Vec<Tensor>> {
    x.iter().map(|x| x.fresh_leaf()?.requires_grad_(true)).collect()
}

fn or_zeros(grads: Vec<Option<Tensor>>, x: &[&Tensor]) -> Result<Vec<Tensor>> {
    grads.into_iter().zip(x).map(|(g, x)| g.map_or_else(|| x.zeros_like(), Ok)).collect()
}

/// The real scalar `f` at `x` and its gradients.
pub fn value_and_grad(f: impl FnOnce(&[Tensor]) -> Result<Tensor>, x: &[&Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
    let x_leaves = leaves(x)?;
    let out = modes::enable_grad(|| f(&x_leaves))?;
    if !out.requires_grad() {
        return Ok((out, or_zeros(vec![None; x.len()], x)?));
    }
    let options = GradOptions { allow_unused: true, ..Default::default() };
    let grads = grad(&[&out], &x_leaves.iter().collect::<Vec<_>>(), options)?;
    Ok((out.detach(), or_zeros(grads, x)?))
}

/// The value of `f` at `x`, and the gradients of ⟨g, f(x)⟩ for the cotangent `g`.
pub fn vjp(f: impl FnOnce(&[Tensor]) -> Result<Tensor>, x: &[&Tensor], g: &Tensor) -> Result<(Tensor, Vec<Tensor>)> {
    let x_leaves = leaves(x)?;
    let out = modes::enable_grad(|| f(&x_leaves))?;
    if !out.requires_grad() {
        return Ok((out, or_zeros(vec![None; x.len()], x)?));
    }
    let options = GradOptions { grad_outputs: vec![Some(g.clone())], allow_unused: true, ..Default::default() };
    let grads = grad(&[&out], &x_leaves.iter().collect::<Vec<_>>(), options)?;
    Ok((out.detach(), or_zeros(grads, x)?))
}

/// One-hot tensors of the shape of `like`, in row-major order.
fn basis(like: &Tensor) -> Result<Vec<Tensor>> {
    let n = like.numel();
    let one = like.scalar_like(1.0)?.reshape([1])?;
    (0..n)
        .map(|i| {
            let at = Tensor::from_slice(&[i as i64], [1], like.device())?;
            one.scatter_add(0, &at, n)?.reshape(like.shape())
        })
        .collect()
}

/// The derivative of `f` at `x`: shape f(x).shape + x.shape, by columns in forward mode or by rows in reverse, whichever are
/// fewer; a complex derivative of a real x only in forward mode, a gradient by a complex x of a real f only in reverse.
/// Differentiable itself where recording is on.
pub fn jacobian(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<Tensor> {
    let leaf = x.fresh_leaf()?.requires_grad_(true)?;
    let out = modes::enable_grad(|| f(&leaf))?;
    let mut shape = out.shape().to_vec();
    shape.extend(x.shape());
    if out.numel() == 0 || x.numel() == 0 || !out.requires_grad() {
        return Tensor::zeros(shape, x.dtype(), x.device());
    }
    let by_columns = match (x.dtype().is_complex(), out.dtype().is_complex()) {
        (false, true) => true,
        (true, false) => false,
        _ => x.numel() < out.numel(),
    };
    if by_columns {
        let columns: Result<Vec<Tensor>> = basis(x)?.iter().map(|v| jvp(|x| f(&x[0]), &[x], &[v])?.1.reshape([out.numel(), 1])).collect();
        return concat(&columns?.iter().collect::<Vec<_>>(), 1)?.reshape(shape);
    }
    let rows: Result<Vec<Tensor>> = basis(&out.detach())?
        .into_iter()
        .map(|g| {
            let options = GradOptions { grad_outputs: vec![Some(g)], retain_graph: Some(true), allow_unused: true, ..Default::default() };
            let row = grad(&[&out], &[&leaf], options)?.pop().flatten().map_or_else(|| x.zeros_like(), Ok)?;
            // A complex gradient is conjugated: Jᴴ·g.
            if out.dtype().is_complex() { row.conj() } else { Ok(row) }
        })
        .collect();
    stack(&rows?.iter().collect::<Vec<_>>(), 0)?.reshape(shape)
}

/// The second derivative of the real scalar `f` at `x`: shape x.shape + x.shape, a Hessian-vector product a column.
pub fn hessian(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_complex() {
        return Err(Error::DtypeMismatch { op: "hessian".into(), dtypes: vec![x.dtype()], remedy: "take it by real and imaginary parts" });
    }
    let mut shape = x.shape().to_vec();
    shape.extend(x.shape());
    if x.numel() == 0 {
        return Tensor::zeros(shape, x.dtype(), x.device());
    }
    let columns: Result<Vec<Tensor>> =
        basis(x)?.iter().map(|v| super::forward::hvp(|x| f(&x[0]), &[x], &[v])?.swap_remove(0).reshape([x.numel(), 1])).collect();
    concat(&columns?.iter().collect::<Vec<_>>(), 1)?.reshape(shape)
}
