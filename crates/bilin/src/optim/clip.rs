//! Clipping gradients by their common norm.

use std::collections::HashSet;
use std::sync::Arc;

use bilin_core::schema::modes;
use bilin_core::{DType, Error, Result, Tensor, no_grad, stack, tensordot, vecdot};

/// How [`clip_grad_norm_with`] measures and what it refuses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipOptions {
    /// p of the p-norm, above 0; infinity is the largest magnitude.
    pub norm_type: f64,
    /// Refuses a norm that is infinite or NaN, before anything is changed. Reads the norm from the device.
    pub error_if_nonfinite: bool,
}

impl Default for ClipOptions {
    fn default() -> ClipOptions {
        ClipOptions { norm_type: 2.0, error_if_nonfinite: false }
    }
}

/// The gradients of `params`, each memory once: a parameter may be given twice.
pub(crate) fn gradients(params: &[Tensor]) -> Vec<Tensor> {
    let mut seen = HashSet::new();
    let grads = params.iter().filter_map(Tensor::grad);
    grads.map(|g| g.detach()).filter(|g| seen.insert((Arc::as_ptr(&g.view().storage), g.layout().offset()))).collect()
}

/// Scales the gradients of `params` in place so that the 2-norm of all of them together is at most `max_norm`, and returns the
/// norm that they had.
///
/// The norm is a 0-d f32 tensor (f64 where every gradient is of 64-bit parts) on the device of the gradients; nothing is read
/// back. Sums are in f64, or on a device without it in f32 of the gradients over the largest of them, so that no square
/// overflows or vanishes. Gradients are multiplied by min(1, max_norm / (norm + 1e-6)); an infinite or NaN norm spoils
/// them, unless [`ClipOptions::error_if_nonfinite`] is set. With a [`GradScaler`](crate::amp::GradScaler), unscale first.
///
/// Cost: two passes over the gradients, five on a device without f64. Errors: `InvalidArgument` for a `max_norm` that is negative or NaN, `DeviceMismatch`.
/// Source: Pascanu, Mikolov and Bengio, "On the difficulty of training recurrent neural networks", ICML 2013.
///
/// ```
/// use bilin::{optim::clip_grad_norm, prelude::*};
/// let w = Tensor::from_slice(&[3f32, 4.], [2], &Device::cpu())?.requires_grad_(true)?;
/// w.mul(&w)?.sum(.., false)?.backward()?; // the gradient is (6, 8)
/// assert_eq!(clip_grad_norm(&[w.clone()], 1.0)?.item::<f32>()?, 10.0);
/// assert!((w.grad().unwrap().to_vec::<f32>()?[0] - 0.6).abs() < 1e-6);
/// # Ok::<(), bilin::Error>(())
/// ```
pub fn clip_grad_norm(params: &[Tensor], max_norm: f64) -> Result<Tensor> {
    clip_grad_norm_with(params, max_norm, ClipOptions::default())
}

/// [`clip_grad_norm`] by another norm, or refusing one that isn't finite.
pub fn clip_grad_norm_with(params: &[Tensor], max_norm: f64, options: ClipOptions) -> Result<Tensor> {
    let wrong = |name: &'static str, got: f64, want: &'static str| Err(Error::invalid("clip_grad_norm", name, got, want));
    if max_norm.is_nan() || max_norm < 0.0 {
        return wrong("max_norm", max_norm, "want a number from 0");
    }
    if options.norm_type.is_nan() || options.norm_type <= 0.0 {
        return wrong("norm_type", options.norm_type, "want a number above 0, or infinity");
    }
    let _plain = modes::set_autocast(None);
    no_grad(|| {
        let grads = gradients(params);
        let Some(first) = grads.first() else { return Tensor::scalar(0f32, &bilin_core::Device::reference()) };
        if let Some(other) = grads.iter().find(|g| g.device() != first.device()) {
            let devices = vec![first.device().name().to_owned(), other.device().name().to_owned()];
            return Err(Error::DeviceMismatch { op: "clip_grad_norm".into(), devices });
        }
        let norm = common_norm(&grads, options.norm_type)?;
        if options.error_if_nonfinite {
            let got = if norm.dtype() == DType::F64 { norm.item::<f64>()? } else { f64::from(norm.item::<f32>()?) };
            if !got.is_finite() {
                return wrong("norm", got, "a gradient is infinite or NaN; skip this step, or lower the step size or the loss scale");
            }
        }
        // NaN goes through, as through every op.
        let factor = norm.scalar_like(max_norm)?.div(&norm.add_scalar(1e-6)?)?.minimum(&norm.scalar_like(1.0)?)?;
        for g in &grads {
            g.mul_(&factor.astype(g.dtype())?)?;
        }
        let is_wide = grads.iter().all(|g| g.dtype().real() == DType::F64);
        norm.astype(if is_wide { DType::F64 } else { DType::F32 })
    })
}

/// The p-norm of all of `grads`: in f64, where a sum of powers of f32 stays in range, or on a device without it in f32 of the
/// gradients over their largest magnitude.
fn common_norm(grads: &[Tensor], p: f64) -> Result<Tensor> {
    let all = |parts: Result<Vec<Tensor>>| stack(&parts?.iter().collect::<Vec<_>>(), 0);
    let largest = |dtype: DType| all(grads.iter().map(|g| magnitude(g)?.astype(dtype)).collect())?.max(.., false);
    let has_wide = grads.iter().all(|g| g.device().backend().has_dtype(DType::F64));
    let wide = if has_wide { DType::F64 } else { DType::F32 };
    if p == f64::INFINITY {
        return largest(wide);
    }
    let unit = if has_wide { None } else { Some(unit(&largest(wide)?)?) };
    let part = |g: &Tensor| match &unit {
        None => power_sum(g, p, wide),
        Some(unit) => power_sum(&g.astype(wide)?.div(unit)?, p, wide),
    };
    let sum = all(grads.iter().map(part).collect())?.sum(.., false)?;
    let norm = match p {
        2.0 => sum.sqrt()?,
        1.0 => sum,
        p => sum.pow_scalar(1.0 / p)?,
    };
    unit.map_or(Ok(norm.clone()), |unit| norm.mul(&unit))
}

/// What to divide by so that numbers up to `largest` are at most 1: a normal number, and 1 where `largest` is infinite or NaN.
fn unit(largest: &Tensor) -> Result<Tensor> {
    let finite = largest.lt(&largest.scalar_like(f64::INFINITY)?)?;
    finite.where_(&largest.maximum(&largest.scalar_like(f64::from(f32::MIN_POSITIVE))?)?, &largest.scalar_like(1.0)?)
}

/// The largest |g|; 0 of none.
fn magnitude(g: &Tensor) -> Result<Tensor> {
    if g.numel() == 0 { g.sum(.., false)?.abs() } else { g.abs()?.max(.., false) }
}

/// Elements that are widened at a time: they stay in the cache.
const CHUNK: usize = 1 << 18;

/// Σ|g|ᵖ in `wide`.
fn power_sum(g: &Tensor, p: f64, wide: DType) -> Result<Tensor> {
    let flat = g.reshape([g.numel()])?;
    let chunk = |start: usize| {
        let some = flat.narrow(0, start, CHUNK.min(g.numel() - start))?;
        if p == 2.0 {
            let some = some.astype(if g.dtype().is_complex() { DType::C128 } else { wide })?;
            return vecdot(&some, &some)?.real();
        }
        let size = some.abs()?.astype(wide)?;
        if p == 1.0 { size.sum(.., false) } else { size.pow_scalar(p)?.sum(.., false) }
    };
    let parts = (0..g.numel().max(1)).step_by(CHUNK).map(chunk).collect::<Result<Vec<_>>>()?;
    stack(&parts.iter().collect::<Vec<_>>(), 0)?.sum(.., false)
}

/// A finite 0-d f32 tensor where every element of `g` is finite, else one that isn't: g·0, summed inside the product.
pub(crate) fn finiteness(g: &Tensor) -> Result<Tensor> {
    let zero = g.scalar_like(0.0)?.broadcast_to(g.shape())?;
    tensordot(g, &zero, g.rank())?.abs()?.astype(DType::F32)
}
