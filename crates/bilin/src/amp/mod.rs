//! Mixed precision: scopes in which ops cast their operands by the policy of their schema, and the scale of a loss.

mod scaler;

pub use scaler::{GradScaler, ScalerOptions, Stepped};

use bilin_core::DType;
use bilin_core::schema::modes::{self, ModeGuard};

/// Opens a scope in which `Promote` ops cast f16, bf16 and f32 operands to `dtype`, until the guard is dropped. Scopes nest;
/// the innermost wins. f16 on the CPU resolves to f32.
///
/// ```
/// use bilin::prelude::*;
/// let a = Tensor::ones([2, 2], DType::F32, &Device::cpu())?;
/// let y = { let _scope = autocast(DType::Bf16); a.matmul(&a)? };
/// assert_eq!(y.dtype(), DType::Bf16);
/// assert_eq!(a.matmul(&a)?.dtype(), DType::F32);
/// # Ok::<(), bilin::Error>(())
/// ```
pub fn autocast(dtype: DType) -> ModeGuard {
    modes::set_autocast(Some(dtype))
}

/// Opens a scope without casts.
pub fn autocast_disabled() -> ModeGuard {
    modes::set_autocast(None)
}

/// Whether a scope with casts is open on this thread.
pub fn is_autocast_enabled() -> bool {
    modes::autocast_dtype().is_some()
}

/// The dtype of the innermost scope.
pub fn autocast_dtype() -> Option<DType> {
    modes::autocast_dtype()
}
