//! Recycled memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bilin_core::{DType, OpName, Result};

use super::buffer::{GpuBuffer, Memory};
use super::device::GpuDevice;

/// What a [`BufferPool`] did and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Requests served from memory that was given back.
    pub hits: u64,
    /// Requests that took new memory from the device.
    pub misses: u64,
    /// Bytes on the shelves, ready to be given out.
    pub held_bytes: u64,
}

/// Memory that was given back, by size.
#[derive(Default)]
pub(crate) struct Shelves {
    inner: Mutex<Shelf>,
}

#[derive(Default)]
struct Shelf {
    free: BTreeMap<u64, Vec<wgpu::Buffer>>,
    stats: PoolStats,
}

impl Shelves {
    fn lock(&self) -> MutexGuard<'_, Shelf> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, raw: wgpu::Buffer, byte_len: u64) {
        let mut shelf = self.lock();
        shelf.free.entry(byte_len).or_default().push(raw);
        shelf.stats.held_bytes += byte_len;
    }
}

/// Hands out memory with any contents and takes it back when the last view of it goes. Kernels that still use it were
/// recorded before whoever gets it next, and a device runs in the order of commits, so reuse never races.
///
/// Sizes are rounded up so that at most an eighth is lost.
#[derive(Clone)]
pub struct BufferPool {
    device: GpuDevice,
    shelves: Arc<Shelves>,
}

impl BufferPool {
    /// An empty pool.
    pub fn new(device: &GpuDevice) -> BufferPool {
        BufferPool { device: device.clone(), shelves: Arc::default() }
    }

    /// Memory as [`GpuDevice::alloc_buffer`] gives it, but with any contents. Where the device has no room, what lies on
    /// the shelves is given up first. Errors: as there.
    pub fn acquire(&self, byte_len: usize, dtype: DType, shape: impl AsRef<[usize]>) -> Result<GpuBuffer> {
        let (op, shape) = (OpName::from("acquire"), shape.as_ref());
        GpuBuffer::check_room(&op, byte_len as u64, dtype, shape)?;
        let size = size_class(byte_len as u64).min(self.device.0.limits.max_buffer_size / 16 * 16).max(byte_len as u64);
        let found = {
            let mut shelf = self.shelves.lock();
            let raw = shelf.free.get_mut(&size).and_then(Vec::pop);
            match raw {
                Some(_) => {
                    shelf.stats.hits += 1;
                    shelf.stats.held_bytes -= size;
                }
                None => shelf.stats.misses += 1,
            }
            raw
        };
        let memory = match found {
            Some(raw) => Memory::around(&self.device, raw, size, Arc::downgrade(&self.shelves)),
            None => {
                let mut memory = Memory::alloc(&op, &self.device, size).or_else(|e| {
                    let held = self.stats().held_bytes;
                    self.trim();
                    if held > 0 { Memory::alloc(&op, &self.device, size) } else { Err(e) }
                })?;
                memory.home = Arc::downgrade(&self.shelves);
                memory
            }
        };
        Ok(GpuBuffer::over(Arc::new(memory), byte_len as u64, dtype, shape))
    }

    /// Gives what lies on the shelves back to the device.
    pub fn trim(&self) {
        let mut shelf = self.shelves.lock();
        shelf.free.clear();
        shelf.stats.held_bytes = 0;
    }

    /// What it did and holds.
    pub fn stats(&self) -> PoolStats {
        self.shelves.lock().stats
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufferPool({:?}, {:?})", self.device, self.stats())
    }
}

/// The size rounded up to a multiple of an eighth of its power of two, at least 256.
fn size_class(bytes: u64) -> u64 {
    let step = (bytes.max(256).next_power_of_two() / 16).max(256);
    bytes.max(1).checked_next_multiple_of(step).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn size_classes_hold_their_size_and_lose_little() {
        for bytes in (0..5000).chain([1 << 20, (1 << 20) + 1, 3_000_000_000, (1 << 40) + 7]) {
            let class = size_class(bytes);
            assert!(class >= bytes && class.is_multiple_of(256), "{bytes}: {class}");
            assert!(class <= 256 * bytes.div_ceil(256).max(1) || class - bytes <= bytes / 8, "{bytes}: {class}");
        }
    }
}
