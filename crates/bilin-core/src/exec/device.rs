//! Devices and the count of what lives on them.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use super::backend::Backend;
use super::buffer::Buffer;
use super::reference::ReferenceBackend;
use crate::shape::error::{Error, Result};

/// A handle to a device; clones are the same device.
#[derive(Clone)]
pub struct Device(Handle);

/// Every tensor has one: counting those of a device that is never closed would cost each call two locked instructions.
#[derive(Clone)]
enum Handle {
    Lasting(&'static Inner),
    Shared(Arc<Inner>),
}

impl Deref for Handle {
    type Target = Inner;
    #[inline]
    fn deref(&self) -> &Inner {
        match self {
            Handle::Lasting(inner) => inner,
            Handle::Shared(inner) => inner,
        }
    }
}

struct Inner {
    name: String,
    backend: Box<dyn Backend>,
    memory: Memory,
}

impl Inner {
    fn new(name: String, backend: Box<dyn Backend>) -> Inner {
        let [current, peak, allocs, frees] = [const { AtomicU64::new(0) }; 4];
        Inner { name, backend, memory: Memory { current, peak, allocs, frees, limit: AtomicU64::new(NO_LIMIT) } }
    }
}

struct Memory {
    current: AtomicU64,
    peak: AtomicU64,
    allocs: AtomicU64,
    frees: AtomicU64,
    /// Bytes; `NO_LIMIT` for none.
    limit: AtomicU64,
}

const NO_LIMIT: u64 = u64::MAX;

/// What lives on a device: bytes that tensors asked for, and counts since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes in use.
    pub current_bytes: u64,
    /// Most bytes in use since the start or the last reset.
    pub peak_bytes: u64,
    /// Allocations.
    pub alloc_count: u64,
    /// Releases.
    pub free_count: u64,
}

impl Device {
    /// A device run by `backend`; `name` is what [`Device::name`] gives, such as `cpu` or `wgpu:1`.
    pub fn new(name: impl Into<String>, backend: Box<dyn Backend>) -> Device {
        Device(Handle::Shared(Arc::new(Inner::new(name.into(), backend))))
    }

    /// The same for as long as the process runs, for a device that is opened once: it is never closed, and its handles aren't
    /// counted. Cost: the memory of each device made so is never given back.
    ///
    /// ```
    /// use std::sync::LazyLock;
    /// use bilin_core::exec::reference::ReferenceBackend;
    /// use bilin_core::{DType, Device, Tensor};
    /// static OWN: LazyLock<Device> = LazyLock::new(|| Device::lasting("own", Box::new(ReferenceBackend)));
    /// assert_eq!(Tensor::ones([2], DType::F32, &OWN)?.device(), &*OWN);
    /// # Ok::<(), bilin_core::Error>(())
    /// ```
    pub fn lasting(name: impl Into<String>, backend: Box<dyn Backend>) -> Device {
        Device(Handle::Lasting(Box::leak(Box::new(Inner::new(name.into(), backend)))))
    }

    /// The device of plain loops that others are compared with.
    pub fn reference() -> Device {
        static REFERENCE: OnceLock<Device> = OnceLock::new();
        REFERENCE.get_or_init(|| Device::lasting("reference", Box::new(ReferenceBackend))).clone()
    }

    /// `cpu`, `reference`, `wgpu:0`, …
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What runs its work.
    pub fn backend(&self) -> &dyn Backend {
        self.0.backend.as_ref()
    }

    /// Waits for queued work; the first error of it comes back.
    pub fn sync(&self) -> Result<()> {
        self.backend().sync()
    }

    /// What lives here.
    pub fn memory_stats(&self) -> MemoryStats {
        let m = &self.0.memory;
        MemoryStats {
            current_bytes: m.current.load(Relaxed),
            peak_bytes: m.peak.load(Relaxed),
            alloc_count: m.allocs.load(Relaxed),
            free_count: m.frees.load(Relaxed),
        }
    }

    /// Bytes in use.
    pub(crate) fn current_bytes(&self) -> u64 {
        self.0.memory.current.load(Relaxed)
    }

    /// Forgets a peak since `before` was read, for work that isn't the user's.
    pub(crate) fn put_back_peak(&self, before: u64) {
        self.0.memory.peak.store(before.max(self.current_bytes()), Relaxed);
    }

    /// Lets the peak start again from what is in use now.
    pub fn reset_peak_memory_stats(&self) {
        self.put_back_peak(0);
    }

    /// Refuses allocations that would pass `limit_bytes`; `None` lifts it.
    pub fn set_memory_limit(&self, limit_bytes: Option<u64>) {
        self.0.memory.limit.store(limit_bytes.unwrap_or(NO_LIMIT), Relaxed);
    }

    fn out_of_memory(&self, requested_bytes: u64) -> Error {
        let stats = self.memory_stats();
        let limit = self.0.memory.limit.load(Relaxed);
        Error::OutOfMemory {
            device: self.name().to_owned(),
            requested_bytes,
            current_bytes: stats.current_bytes,
            peak_bytes: stats.peak_bytes,
            limit_bytes: (limit != NO_LIMIT).then_some(limit),
        }
    }

    /// Memory that `make` gives, counted, where the limit leaves room for it; what isn't had isn't counted.
    pub(super) fn count_alloc(&self, bytes: u64, make: impl FnOnce() -> Result<Option<Box<dyn Buffer>>>) -> Result<Box<dyn Buffer>> {
        let m = &self.0.memory;
        let now = m.current.fetch_add(bytes, Relaxed) + bytes;
        let made = if now > m.limit.load(Relaxed) { Ok(None) } else { make() };
        let buffer = match made {
            Ok(Some(buffer)) => buffer,
            other => {
                m.current.fetch_sub(bytes, Relaxed);
                return Err(other.err().unwrap_or_else(|| self.out_of_memory(bytes)));
            }
        };
        if now > m.peak.load(Relaxed) {
            m.peak.fetch_max(now, Relaxed);
        }
        m.allocs.fetch_add(1, Relaxed);
        Ok(buffer)
    }

    pub(super) fn count_free(&self, bytes: u64) {
        self.0.memory.current.fetch_sub(bytes, Relaxed);
        self.0.memory.frees.fetch_add(1, Relaxed);
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Device) -> bool {
        std::ptr::eq(&*self.0, &*other.0)
    }
}
impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.0.name)
    }
}
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.name)
    }
}
