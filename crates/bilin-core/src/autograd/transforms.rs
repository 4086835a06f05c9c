//! Functions of functions, built of the reverse pass and forward mode.

use super::forward::{jvp, jvp_of};
use super::reverse::{GradOptions, grad};
use super::variable::{depends_on_others, variable};
use crate::ops::{concat, stack};
use crate::schema::modes;
use crate::shape::error::{Error, Result};
use crate::tape::Tensor;

/// A function run at variables of its own.
struct Run {
    variables: Vec<Tensor>,
    out: Tensor,
    /// Somebody outside differentiates by what the result or the cotangent came from.
    recorded: bool,
}

impl Run {
    fn of(f: impl FnOnce(&[Tensor]) -> Result<Tensor>, x: &[&Tensor], cotangent: Option<&Tensor>) -> Result<Run> {
        let variables: Vec<Tensor> = x.iter().map(|x| variable(x)).collect::<Result<_>>()?;
        let out = modes::enable_grad(|| f(&variables))?;
        let others = || depends_on_others(&[&out], &variables.iter().collect::<Vec<_>>());
        let recorded = modes::is_grad_enabled() && (cotangent.is_some_and(Tensor::requires_grad) || others());
        Ok(Run { variables, out, recorded })
    }

    /// The gradients for a cotangent, 1 for a real scalar where missing; zeros for inputs that the result doesn't depend on.
    fn gradients(&self, cotangent: Option<&Tensor>, retain: bool) -> Result<Vec<Tensor>> {
        let wanted: Vec<&Tensor> = self.variables.iter().collect();
        let found = if self.out.requires_grad() {
            let options = GradOptions {
                grad_outputs: vec![cotangent.cloned()],
                retain_graph: Some(retain || self.recorded),
                create_graph: self.recorded,
                allow_unused: true,
            };
            grad(&[&self.out], &wanted, options)?
        } else {
            vec![None; wanted.len()]
        };
        found.into_iter().zip(wanted).map(|(g, x)| g.map_or_else(|| x.zeros_like(), Ok)).collect()
    }

    /// The value, with its history where somebody outside wants it.
    fn finish(self) -> Result<Tensor> {
        for v in self.variables {
            if v.is_leaf() {
                v.requires_grad_(false)?;
            }
        }
        if self.recorded { Ok(self.out) } else { self.out.fresh_leaf() }
    }
}

/// The real scalar `f` at `x` and its gradients. Both are recorded where recording is on and they depend on anything else that
/// requires a gradient, `x` before this call included: transforms nest.
///
/// ```
/// use bilin_core::{Device, Tensor, autograd};
/// let x = Tensor::scalar(3f64, &Device::reference())?;
/// let (y, g) = autograd::value_and_grad(|x| x[0].mul(&x[0]), &[&x])?;
/// assert_eq!((y.item::<f64>()?, g[0].item::<f64>()?), (9., 6.));
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn value_and_grad(f: impl FnOnce(&[Tensor]) -> Result<Tensor>, x: &[&Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
    let run = Run::of(f, x, None)?;
    let grads = run.gradients(None, false)?;
    Ok((run.finish()?, grads))
}

/// The value of `f` at `x`, and the gradients of ⟨g, f(x)⟩ for the cotangent `g`; recorded as by [`value_and_grad`].
pub fn vjp(f: impl FnOnce(&[Tensor]) -> Result<Tensor>, x: &[&Tensor], g: &Tensor) -> Result<(Tensor, Vec<Tensor>)> {
    let run = Run::of(f, x, Some(g))?;
    let grads = run.gradients(Some(g), false)?;
    Ok((run.finish()?, grads))
}

/// The product of the Hessian of the real scalar `f` at `x` with `v`, a part for each input: forward over reverse, so nothing is
/// materialised. Recorded as [`value_and_grad`] is; a leaf that requires a gradient is better detached where nobody wants the
/// third derivative. Cost: at most 4 gradients.
///
/// ```
/// use bilin_core::{Device, Tensor, autograd};
/// let dev = Device::reference();
/// let (x, v) = (Tensor::from_slice(&[1f64, 2.], [2], &dev)?, Tensor::from_slice(&[1f64, 0.], [2], &dev)?);
/// let f = |x: &[Tensor]| x[0].mul(&x[0])?.mul(&x[0])?.sum(.., false);
/// assert_eq!(autograd::hvp(f, &[&x], &[&v])?[0].to_vec::<f64>()?, [6., 0.]);
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn hvp(f: impl FnOnce(&[Tensor]) -> Result<Tensor>, x: &[&Tensor], v: &[&Tensor]) -> Result<Vec<Tensor>> {
    let gradient = |x: &[Tensor]| Ok(value_and_grad(f, &x.iter().collect::<Vec<_>>())?.1);
    Ok(jvp_of("hvp", gradient, x, v)?.into_iter().map(|(_, product)| product).collect())
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
/// Recorded as [`value_and_grad`] is.
///
/// Cost: one call of `f`, and a backward pass for each element of the result or a call in forward mode for each element of `x`;
/// the passes aren't batched, so each reads the operands of products again.
pub fn jacobian(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<Tensor> {
    let run = Run::of(|x| f(&x[0]), &[x], None)?;
    let out = &run.out;
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
        .iter()
        .map(|g| {
            let row = run.gradients(Some(g), true)?.swap_remove(0);
            // A complex gradient is conjugated: Jᴴ·g.
            if out.dtype().is_complex() { row.conj() } else { Ok(row) }
        })
        .collect();
    let rows = stack(&rows?.iter().collect::<Vec<_>>(), 0)?.reshape(shape)?;
    run.finish()?;
    Ok(rows)
}

/// The second derivative of the real scalar `f` at `x`: shape x.shape + x.shape. Cost: [`hvp`] for each element of `x`.
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
        basis(x)?.iter().map(|v| hvp(|x| f(&x[0]), &[x], &[v])?.swap_remove(0).reshape([x.numel(), 1])).collect();
    concat(&columns?.iter().collect::<Vec<_>>(), 1)?.reshape(shape)
}
