//! Forward mode: a level is opened, tangents flow beside the values, the level is closed.

use std::cell::Cell;

use smallvec::smallvec;

use crate::schema::modes;
use crate::shape::error::{Error, Result};
use crate::tape::{Tangents, Tensor};

thread_local! {
    static OPEN: Cell<u32> = const { Cell::new(0) };
}

/// Closes the innermost level when dropped, also on error.
struct Level(u32, #[expect(dead_code, reason = "held for its drop")] modes::ModeGuard);

impl Level {
    fn open() -> Level {
        let level = OPEN.get() + 1;
        OPEN.set(level);
        Level(level, modes::set_tangent_level(level))
    }
}
impl Drop for Level {
    fn drop(&mut self) {
        OPEN.set(self.0 - 1);
    }
}

fn check(x: &Tensor, v: &Tensor, op: &'static str) -> Result<()> {
    if x.shape() != v.shape() || x.dtype() != v.dtype() {
        let got = format!("of shape {} and {}", crate::shape_text(v.shape()), v.dtype());
        return Err(Error::invalid(
            op,
            "tangent",
            got,
            format!("want the input's shape {} and {}", crate::shape_text(x.shape()), x.dtype()),
        ));
    }
    Ok(())
}

/// The value of `f` at `x` and its derivative along `v`, exact, in one pass.
///
/// ```
/// use bilin_core::{Device, Tensor, autograd};
/// let x = Tensor::scalar(3f64, &Device::reference())?;
/// let (y, t) = autograd::jvp(|x| x[0].mul(&x[0]), &[&x], &[&x.ones_like()?])?;
/// assert_eq!((y.item::<f64>()?, t.item::<f64>()?), (9., 6.));
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn jvp(f: impl FnOnce(&[Tensor]) -> Result<Tensor>, x: &[&Tensor], v: &[&Tensor]) -> Result<(Tensor, Tensor)> {
    let mut pairs = jvp_many(|x| Ok(vec![f(x)?]), x, v)?;
    pairs.pop().ok_or_else(|| Error::invalid("jvp", "f", "without a result", "want one"))
}

/// [`jvp`] of a function with any number of results: each with its derivative.
pub fn jvp_many(f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>, x: &[&Tensor], v: &[&Tensor]) -> Result<Vec<(Tensor, Tensor)>> {
    jvp_of("jvp", f, x, v)
}

/// [`jvp_many`] for the transform `op`, which errors speak of.
pub(super) fn jvp_of(
    op: &'static str,
    f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    x: &[&Tensor],
    v: &[&Tensor],
) -> Result<Vec<(Tensor, Tensor)>> {
    if x.len() != v.len() {
        return Err(Error::invalid(op, "v", format!("{} tangents", v.len()), format!("want {}, one an input", x.len())));
    }
    for (x, v) in x.iter().zip(v) {
        check(x, v, op)?;
    }
    let level = Level::open();
    let duals: Vec<Tensor> = x
        .iter()
        .zip(v)
        .map(|(x, v)| {
            let mut tangents: Tangents = x.tangents().iter().cloned().collect();
            // Integers and bool don't move, whatever the tangent.
            if x.dtype().is_differentiable() {
                tangents.push((level.0, (*v).clone()));
            }
            x.with_tangents(tangents)
        })
        .collect();
    let results = f(&duals)?;
    let number = level.0;
    drop(level);
    results
        .into_iter()
        .map(|out| {
            let outer: Tangents = out.tangents().iter().filter(|(l, _)| *l < number).cloned().collect();
            let value = out.with_tangents(outer);
            let tangent = out.tangent(number).cloned().map_or_else(|| value.zeros_like(), Ok)?;
            Ok((value, tangent))
        })
        .collect()
}

impl Tensor {
    /// The value as a new leaf, with the tangents of the levels outside.
    pub(crate) fn fresh_leaf(&self) -> Result<Tensor> {
        let tangents: Tangents = if self.tangents().is_empty() { smallvec![] } else { self.tangents().iter().cloned().collect() };
        Ok(Tensor::with_history(self.view().clone(), None, tangents))
    }
}
