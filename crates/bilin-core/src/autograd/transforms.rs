//! Functions of functions, built of the reverse pass and forward mode.

use std::cell::Cell;

use super::forward::{jvp, jvp_of};
use super::reverse::{GradOptions, grad};
use super::variable::{depends_on_others, variable};
use crate::ops::{concat, unstack};
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

/// Most derivatives that are computed at once.
const LANES: usize = 256;

thread_local! {
    static OPEN: Cell<u32> = const { Cell::new(0) };
}

/// A level of lanes, closed when dropped.
struct Level(u32);
impl Level {
    fn open() -> Level {
        OPEN.set(OPEN.get() + 1);
        Level(OPEN.get())
    }
}
impl Drop for Level {
    fn drop(&mut self) {
        OPEN.set(self.0 - 1);
    }
}

/// What `part` makes of every one-hot tensor of the shape of `like`, in row-major order along a new leading axis: it is handed
/// tensors that stand for many of them.
fn over_basis(like: &Tensor, part: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let level = Level::open();
    let stacks = (0..like.numel()).step_by(LANES).map(|start| {
        let lanes = LANES.min(like.numel() - start);
        let at = Tensor::from_vec((start..start + lanes).map(|i| i as i64).collect(), [lanes, 1], like.device())?;
        let ones = like.scalar_like(1.0)?.broadcast_to([lanes, 1])?;
        let shape: Vec<usize> = std::iter::once(lanes).chain(like.shape().iter().copied()).collect();
        let basis = Tensor::from_lanes(level.0, ones.scatter_add(1, &at, like.numel())?.reshape(shape)?);
        unstack(&part(&basis)?, level.0, lanes)
    });
    concat(&stacks.collect::<Result<Vec<_>>>()?.iter().collect::<Vec<_>>(), 0)
}

/// The leading axis as the last ones, of the shape of `x`.
fn as_columns(rows: &Tensor, x: &Tensor) -> Result<Tensor> {
    let order: Vec<isize> = (1..rows.rank() as isize).chain([0]).collect();
    rows.permute(&order)?.reshape([&rows.shape()[1..], x.shape()].concat())
}

/// The derivative of `f` at `x`: shape f(x).shape + x.shape, by [`jacfwd`] or [`jacrev`], whichever takes fewer passes; a complex
/// derivative of a real x only in forward mode, a gradient by a complex x of a real f only in reverse. Recorded as
/// [`value_and_grad`] is.
///
/// Up to 256 columns or rows are computed in one pass, in which each op runs once over all of them: a product has one more label,
/// an elementwise op broadcasts. Hooks and the gradients of custom functions run for one row after the other. On CPUs the bits are
/// those of one column or row at a time. Memory: that of as many passes.
///
/// ```
/// use bilin_core::{Device, Tensor, autograd};
/// let x = Tensor::from_slice(&[1f64, 2., 3.], [3], &Device::reference())?;
/// let j = autograd::jacobian(|x| x.mul(x), &x)?;
/// assert_eq!(j.to_vec::<f64>()?, [2., 0., 0., 0., 4., 0., 0., 0., 6.]);
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn jacobian(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<Tensor> {
    let run = Run::of(|x| f(&x[0]), &[x], None)?;
    let is_narrow = match (x.dtype().is_complex(), run.out.dtype().is_complex()) {
        (false, true) => true,
        (true, false) => false,
        _ => x.numel() < run.out.numel(),
    };
    if is_narrow {
        run.finish()?;
        return jacfwd(f, x);
    }
    rows(run, x)
}

/// [`jacobian`] by columns, in forward mode: `f` is called for each 256 elements of `x`. Of a complex `x` the derivative along real
/// directions, which is the whole one where `f` is holomorphic.
pub fn jacfwd(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<Tensor> {
    if x.numel() == 0 {
        let out = modes::no_grad(|| f(x))?;
        return Tensor::zeros([out.shape(), x.shape()].concat(), out.dtype(), x.device());
    }
    as_columns(&over_basis(x, |v| Ok(jvp(|x| f(&x[0]), &[x], &[v])?.1))?, x)
}

/// [`jacobian`] by rows, in reverse: one call of `f`, and a backward pass for each 256 elements of its result. Errors:
/// `DtypeMismatch` for a complex f of a real x, whose derivative is no row.
pub fn jacrev(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<Tensor> {
    let run = Run::of(|x| f(&x[0]), &[x], None)?;
    if run.out.dtype().is_complex() && !x.dtype().is_complex() {
        let dtypes = vec![x.dtype(), run.out.dtype()];
        return Err(Error::DtypeMismatch { op: "jacrev".into(), dtypes, remedy: "use jacfwd, or take real and imaginary parts" });
    }
    rows(run, x)
}

fn rows(run: Run, x: &Tensor) -> Result<Tensor> {
    let out = &run.out;
    let shape = [out.shape(), x.shape()].concat();
    let rows = if out.numel() == 0 || x.numel() == 0 || !out.requires_grad() {
        Tensor::zeros(shape, x.dtype(), x.device())?
    } else {
        let row = |g: &Tensor| {
            let row = run.gradients(Some(g), true)?.swap_remove(0);
            // A complex gradient is conjugated: Jᴴ·g.
            if out.dtype().is_complex() { row.conj() } else { Ok(row) }
        };
        over_basis(&out.detach(), row)?.reshape(shape)?
    };
    run.finish()?;
    Ok(rows)
}

/// The second derivative of the real scalar `f` at `x`: shape x.shape + x.shape. Cost: [`hvp`] for each 256 elements of `x`, over
/// all of them at once, as in [`jacobian`].
pub fn hessian(f: impl Fn(&Tensor) -> Result<Tensor>, x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_complex() {
        return Err(Error::DtypeMismatch { op: "hessian".into(), dtypes: vec![x.dtype()], remedy: "take it by real and imaginary parts" });
    }
    if x.numel() == 0 {
        return Tensor::zeros([x.shape(), x.shape()].concat(), x.dtype(), x.device());
    }
    as_columns(&over_basis(x, |v| Ok(hvp(|x| f(&x[0]), &[x], &[v])?.swap_remove(0)))?, x)
}
