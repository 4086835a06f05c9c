//! Kernels by name.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bilin_core::{Error, Result};

use super::device::GpuDevice;
use super::kernel::{Kernel, Source};
use crate::outer_product;

type Slot = Arc<OnceLock<Result<Arc<Kernel>>>>;

/// Sources by name. All names are known at once; a pipeline is compiled on first use, once for each device, and shared by
/// threads: who asks while another compiles waits for that one.
pub struct KernelRegistry {
    inner: Mutex<Inner>,
}

struct Inner {
    sources: HashMap<String, Source>,
    compiled: HashMap<(u64, String), Slot>,
}

impl Default for KernelRegistry {
    fn default() -> Self {
        KernelRegistry::new()
    }
}

impl std::fmt::Debug for KernelRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KernelRegistry({:?})", self.names())
    }
}

impl KernelRegistry {
    /// The kernels of this crate.
    pub fn new() -> KernelRegistry {
        let registry = KernelRegistry { inner: Mutex::new(Inner { sources: HashMap::new(), compiled: HashMap::new() }) };
        for (name, text) in outer_product::sources() {
            registry.register(name, text, true);
        }
        registry
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a kernel of your own: WGSL with one compute entry point, buffers in group 0 and, if it needs numbers, a uniform
    /// of at most 512 bytes at `@group(1) @binding(0)`, which [`CommandEncoder::encode_with`] fills. It runs with bounds
    /// checks. A name that is taken gets the new source; what was compiled from the old one is dropped.
    ///
    /// [`CommandEncoder::encode_with`]: crate::CommandEncoder::encode_with
    pub fn register_source(&self, name: impl Into<String>, wgsl: impl Into<Arc<str>>) {
        self.register(name, wgsl, false);
    }

    pub(crate) fn register(&self, name: impl Into<String>, wgsl: impl Into<Arc<str>>, is_trusted: bool) {
        let (name, text) = (name.into(), wgsl.into());
        let mut inner = self.lock();
        inner.compiled.retain(|(_, n), _| *n != name);
        inner.sources.insert(name, Source { text, is_trusted });
    }

    /// Adds a kernel of this crate unless its name is known.
    pub(crate) fn register_once(&self, name: &str, text: impl FnOnce() -> String) {
        let mut inner = self.lock();
        if !inner.sources.contains_key(name) {
            inner.sources.insert(name.to_owned(), Source { text: text().into(), is_trusted: true });
        }
    }

    /// Every name, sorted.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.lock().sources.keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// The source of a kernel.
    pub fn source(&self, name: &str) -> Option<Arc<str>> {
        self.lock().sources.get(name).map(|s| Arc::clone(&s.text))
    }

    /// The kernel, compiled for `device` if it isn't yet.
    ///
    /// Errors: `KernelNotFound`; `ShaderCompilation` naming kernel and line, after which the device can be used as before.
    pub fn get_pipeline(&self, name: &str, device: &GpuDevice) -> Result<Arc<Kernel>> {
        let (slot, source) = {
            let mut inner = self.lock();
            let Some(source) = inner.sources.get(name).cloned() else {
                return Err(Error::KernelNotFound { kernel: name.to_owned(), backend: "wgpu".to_owned() });
            };
            (Arc::clone(inner.compiled.entry((device.0.id, name.to_owned())).or_default()), source)
        };
        slot.get_or_init(|| Kernel::compile(name, &source, device).map(Arc::new)).clone()
    }

    /// Whether a kernel is compiled, for any device.
    pub fn is_cached(&self, name: &str) -> bool {
        self.lock().compiled.iter().any(|((_, n), slot)| n == name && matches!(slot.get(), Some(Ok(_))))
    }

    /// Number of compiled pipelines, over all devices.
    pub fn cached_count(&self) -> usize {
        self.lock().compiled.values().filter(|slot| matches!(slot.get(), Some(Ok(_)))).count()
    }

    /// Compiles kernels ahead of their first use, the names side by side. Errors: the first in the order of `names`.
    pub fn prewarm(&self, device: &GpuDevice, names: &[&str]) -> Result<()> {
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let running: Vec<_> = names.iter().map(|name| scope.spawn(|| self.get_pipeline(name, device).map(drop))).collect();
            running.into_iter().map(|r| r.join().unwrap_or_else(|p| std::panic::resume_unwind(p))).collect()
        });
        outcomes.into_iter().collect()
    }
}
