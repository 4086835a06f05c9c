//! Modes of a thread: recording, autocast, determinism, the open levels of forward differentiation.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::shape::dtype::DType;

#[derive(Clone, Copy)]
pub(crate) struct Modes {
    pub(crate) records: bool,
    pub(crate) autocast: Option<DType>,
    pub(crate) deterministic: bool,
    /// Tangents of this level and below flow; 0 for none.
    pub(crate) level: u32,
    pub(crate) profiles: bool,
    /// What ops read is noted.
    pub(crate) notes: bool,
    /// Gradients are searched for NaN.
    anomaly: bool,
}

thread_local! {
    static MODES: Cell<Modes> = const { Cell::new(Modes { records: true, autocast: None, deterministic: false, level: 0, profiles: false, notes: false, anomaly: false }) };
}

/// Puts one mode of this thread back when it is dropped. It stays on its thread:
///
/// ```compile_fail,E0277
/// let guard = bilin_core::set_grad_enabled(false);
/// std::thread::spawn(move || drop(guard));
/// ```
#[must_use = "the mode is put back when the guard is dropped"]
pub struct ModeGuard {
    restore: fn(&mut Modes, &Modes),
    before: Modes,
    /// Modes belong to a thread, so the guard stays on it.
    not_send: PhantomData<*const ()>,
}

impl std::fmt::Debug for ModeGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ModeGuard")
    }
}

impl Drop for ModeGuard {
    fn drop(&mut self) {
        let mut now = MODES.get();
        (self.restore)(&mut now, &self.before);
        MODES.set(now);
    }
}

fn set(change: impl FnOnce(&mut Modes), restore: fn(&mut Modes, &Modes)) -> ModeGuard {
    let before = MODES.get();
    let mut now = before;
    change(&mut now);
    MODES.set(now);
    ModeGuard { restore, before, not_send: PhantomData }
}

/// All modes of this thread, read at once.
#[inline]
pub(crate) fn current() -> Modes {
    MODES.get()
}

/// Whether ops of this thread are recorded.
pub fn is_grad_enabled() -> bool {
    MODES.get().records
}

/// Turns recording on or off until the guard is dropped.
pub fn set_grad_enabled(on: bool) -> ModeGuard {
    set(|m| m.records = on, |m, before| m.records = before.records)
}

/// Runs `f` without recording.
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    let _guard = set_grad_enabled(false);
    f()
}

/// Runs `f` with recording, also inside [`no_grad`].
pub fn enable_grad<T>(f: impl FnOnce() -> T) -> T {
    let _guard = set_grad_enabled(true);
    f()
}

/// The dtype of the innermost autocast scope.
pub fn autocast_dtype() -> Option<DType> {
    MODES.get().autocast
}

/// Opens an autocast scope; `None` is a scope without casts.
pub fn set_autocast(dtype: Option<DType>) -> ModeGuard {
    set(|m| m.autocast = dtype, |m, before| m.autocast = before.autocast)
}

/// Whether this thread refuses ops that can't promise equal bits.
pub fn are_deterministic_algorithms_enabled() -> bool {
    MODES.get().deterministic
}

/// Refuses ops that can't promise equal bits, from now on, on this thread.
pub fn use_deterministic_algorithms(on: bool) {
    let mut now = MODES.get();
    now.deterministic = on;
    MODES.set(now);
}

/// The innermost level whose tangents flow; 0 for none.
pub fn tangent_level() -> u32 {
    MODES.get().level
}

/// Lets tangents up to `level` flow.
pub fn set_tangent_level(level: u32) -> ModeGuard {
    set(|m| m.level = level, |m, before| m.level = before.level)
}

/// Searches every gradient for NaN until the guard is dropped: backward stops at the op that made the first one, with
/// `NanGradient`. Costs a pass over every gradient; for finding faults.
///
/// ```
/// use bilin_core::{Device, Error, Tensor, autograd};
/// let x = Tensor::scalar(0f64, &Device::reference())?.requires_grad_(true)?;
/// let _guard = autograd::detect_anomaly(true);
/// let error = x.sqrt()?.mul(&x)?.backward().unwrap_err();
/// assert!(matches!(error, Error::NanGradient { op, .. } if op == "sqrt"));
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn detect_anomaly(on: bool) -> ModeGuard {
    set(|m| m.anomaly = on, |m, before| m.anomaly = before.anomaly)
}

/// Whether gradients of this thread are searched for NaN.
pub fn is_detecting_anomaly() -> bool {
    MODES.get().anomaly
}

/// Whether events of this thread are collected.
pub fn is_profiling() -> bool {
    MODES.get().profiles
}

/// Notes what ops of this thread read, or stops.
pub(crate) fn set_noting(on: bool) -> ModeGuard {
    set(|m| m.notes = on, |m, before| m.notes = before.notes)
}

/// Collects events of this thread, or stops.
pub(super) fn set_profiling(on: bool) -> ModeGuard {
    set(|m| m.profiles = on, |m, before| m.profiles = before.profiles)
}
