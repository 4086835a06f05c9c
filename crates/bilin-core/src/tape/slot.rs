//! Where gradients are watched and kept: of leaves, and of results of recorded ops.

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::tensor::Tensor;
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::shape::layout::Dims;

/// Numbers of nodes, leaves and hooks, in the order of their making.
static SEQUENCE: AtomicU64 = AtomicU64::new(1);

/// The next of them.
pub(super) fn next_sequence() -> u64 {
    SEQUENCE.fetch_add(1, Relaxed)
}

/// The number of the node or leaf made last.
pub(crate) fn last_sequence() -> u64 {
    SEQUENCE.load(Relaxed) - 1
}

/// Runs after a leaf's gradient was accumulated.
pub(crate) type AfterHook = Arc<dyn Fn() -> Result<()> + Send + Sync>;

/// Sees a gradient and may return another in its place.
pub type Hook = Arc<dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync>;

/// Where the gradient of one tensor is watched and kept.
pub struct GradSlot {
    sequence: u64,
    pub(crate) shape: Dims,
    pub(crate) dtype: DType,
    /// The dtype in which its gradient is wanted, as `DType as u8`.
    grad_dtype: AtomicU8,
    /// For leaves: requires a gradient. For interior tensors: retains it.
    wanted: AtomicBool,
    kept: OnceLock<Box<Kept>>,
}

#[derive(Default)]
struct Kept {
    grad: Mutex<Option<Tensor>>,
    /// Whether there is one: most passes find none, which is seen without the lock.
    has_grad: AtomicBool,
    hooks: Hooks<Hook>,
    after: Hooks<AfterHook>,
    /// Held from reading the gradient to putting the sum back.
    accumulating: Mutex<()>,
}

/// Hooks by the numbers that take them off again, in the order they were registered.
struct Hooks<T> {
    list: Mutex<Vec<(u64, T)>>,
    /// How many there are: most lists are empty, which is seen without a lock.
    count: AtomicUsize,
}

impl<T> Default for Hooks<T> {
    fn default() -> Self {
        Hooks { list: Mutex::default(), count: AtomicUsize::new(0) }
    }
}

impl<T: Clone> Hooks<T> {
    fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }
    fn change(&self, change: impl FnOnce(&mut Vec<(u64, T)>)) {
        let mut list = lock(&self.list);
        change(&mut list);
        self.count.store(list.len(), Relaxed);
    }
    fn all(&self) -> Vec<(u64, T)> {
        if self.is_empty() { Vec::new() } else { lock(&self.list).clone() }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GradSlot {
    pub(super) fn new(sequence: u64, shape: &[usize], dtype: DType, grad_dtype: DType) -> GradSlot {
        GradSlot {
            sequence,
            shape: Dims::from_slice(shape),
            dtype,
            grad_dtype: AtomicU8::new(grad_dtype as u8),
            wanted: AtomicBool::new(false),
            kept: OnceLock::new(),
        }
    }

    pub(crate) fn leaf(shape: &[usize], dtype: DType) -> GradSlot {
        GradSlot::new(next_sequence(), shape, dtype, dtype)
    }

    /// What is kept here, away from a result whose node is dropped.
    pub(super) fn take_kept(&mut self) -> Option<Box<dyn Any + Send>> {
        self.kept.take().map(|kept| -> Box<dyn Any + Send> { kept })
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Relaxed)
    }
    pub(crate) fn set_wanted(&self, on: bool) {
        self.wanted.store(on, Relaxed);
    }
    pub(crate) fn grad_dtype(&self) -> DType {
        DType::ALL[usize::from(self.grad_dtype.load(Relaxed))]
    }
    pub(crate) fn set_grad_dtype(&self, dtype: DType) {
        self.grad_dtype.store(dtype as u8, Relaxed);
    }
    pub(crate) fn has_grad(&self) -> bool {
        self.kept.get().is_some_and(|k| k.has_grad.load(Relaxed))
    }
    pub(crate) fn grad(&self) -> Option<Tensor> {
        self.kept.get().filter(|_| self.has_grad()).and_then(|k| lock(&k.grad).clone())
    }
    pub(crate) fn set_grad(&self, grad: Option<Tensor>) -> Option<Tensor> {
        if grad.is_none() && !self.has_grad() {
            return None;
        }
        let kept = self.kept.get_or_init(Box::default);
        let mut now = lock(&kept.grad);
        kept.has_grad.store(grad.is_some(), Relaxed);
        std::mem::replace(&mut now, grad)
    }
    /// Keeps other threads from adding to the gradient until the guard is dropped.
    pub(crate) fn accumulating(&self) -> MutexGuard<'_, ()> {
        lock(&self.kept.get_or_init(Box::default).accumulating)
    }
    pub(crate) fn add_hook(&self, hook: Hook) -> u64 {
        let id = next_sequence();
        self.kept.get_or_init(Box::default).hooks.change(|list| list.push((id, hook)));
        id
    }
    pub(crate) fn remove_hook(&self, id: u64) {
        if let Some(kept) = self.kept.get() {
            kept.hooks.change(|list| list.retain(|(i, _)| *i != id));
            kept.after.change(|list| list.retain(|(i, _)| *i != id));
        }
    }
    /// Whether a hook sees the gradient.
    pub(crate) fn has_hooks(&self) -> bool {
        self.kept.get().is_some_and(|k| !k.hooks.is_empty())
    }
    /// Whether somebody looks at the gradient here: a hook, or for interior tensors `retain_grad`.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_wanted() || self.has_hooks()
    }
    pub(crate) fn add_after_hook(&self, hook: AfterHook) -> u64 {
        let id = next_sequence();
        self.kept.get_or_init(Box::default).after.change(|list| list.push((id, hook)));
        id
    }
    pub(crate) fn run_after_hooks(&self) -> Result<()> {
        let hooks = self.kept.get().map_or_else(Vec::new, |k| k.after.all());
        hooks.iter().try_for_each(|(_, hook)| hook())
    }
    /// The gradient after the hooks, in the order they were registered. No lock is held while they run.
    pub(crate) fn run_hooks(&self, mut grad: Tensor) -> Result<Tensor> {
        let hooks = self.kept.get().map_or_else(Vec::new, |k| k.hooks.all());
        for (_, hook) in hooks {
            if let Some(other) = hook(&grad)? {
                if other.shape() != grad.shape() || other.dtype() != grad.dtype() {
                    let got = format!("a gradient of shape {:?} and {}", other.shape(), other.dtype());
                    return Err(Error::invalid(
                        "register_hook",
                        "result",
                        got,
                        format!("want shape {:?} and {}", grad.shape(), grad.dtype()),
                    ));
                }
                grad = other;
            }
        }
        Ok(grad)
    }
}
