//! Memory shared by all views of it, its version, and the guard that keeps reads and in-place writes apart.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::buffer::{Buffer, NoMemory};
use super::device::Device;
use crate::shape::error::Result;

/// A buffer with its version.
#[derive(Debug)]
pub struct Storage {
    device: Device,
    byte_len: usize,
    version: AtomicU64,
    buffer: RwLock<Box<dyn Buffer>>,
}

/// Memory that somebody fills before it can be seen: what is dropped unfinished is given back.
pub(super) struct Filling<'a> {
    device: &'a Device,
    buffer: Box<dyn Buffer>,
    byte_len: usize,
}

impl<'a> Filling<'a> {
    /// Memory with any contents. Errors: [`OutOfMemory`](crate::Error::OutOfMemory), and what the backend's
    /// [`alloc`](super::backend::Backend::alloc) says.
    #[inline]
    pub(super) fn alloc(device: &'a Device, byte_len: usize) -> Result<Filling<'a>> {
        let buffer = device.count_alloc(byte_len as u64, || device.backend().alloc(byte_len))?;
        Ok(Filling { device, buffer, byte_len })
    }

    /// The memory.
    #[inline]
    pub(super) fn buffer(&mut self) -> &mut (dyn Buffer + 'static) {
        self.buffer.as_mut()
    }

    /// The memory as it is shared from now on.
    #[inline]
    pub(super) fn share(mut self) -> Arc<Storage> {
        let buffer = std::mem::replace(&mut self.buffer, Box::new(NoMemory));
        let (device, byte_len) = (self.device.clone(), self.byte_len);
        std::mem::forget(self);
        Arc::new(Storage { device, byte_len, version: AtomicU64::new(0), buffer: RwLock::new(buffer) })
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        give_back(self.device, &mut self.buffer, self.byte_len);
    }
}

fn give_back(device: &Device, buffer: &mut Box<dyn Buffer>, byte_len: usize) {
    device.backend().free(std::mem::replace(buffer, Box::new(NoMemory)));
    device.count_free(byte_len as u64);
}

impl Storage {
    /// Memory that somebody else allocated, of a kind that the device's backend can use; it counts as allocated here until it
    /// is dropped. Errors: [`OutOfMemory`](crate::Error::OutOfMemory) past the device's limit.
    pub fn adopt(device: &Device, buffer: Box<dyn Buffer>) -> Result<Storage> {
        let byte_len = buffer.byte_len();
        let buffer = device.count_alloc(byte_len as u64, || Ok(Some(buffer)))?;
        Ok(Storage { device: device.clone(), byte_len, version: AtomicU64::new(0), buffer: RwLock::new(buffer) })
    }

    /// Where it lives.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes that were asked for.
    pub fn byte_len(&self) -> usize {
        self.byte_len
    }

    /// How often it was changed in place.
    pub fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Counts a change in place.
    pub fn bump_version(&self) {
        self.version.fetch_add(1, Relaxed);
    }

    /// Guard for reading. A thread that panicked while it held the guard left a whole buffer: bytes have no invariant.
    pub fn read(&self) -> RwLockReadGuard<'_, Box<dyn Buffer>> {
        self.buffer.read().unwrap_or_else(|e| e.into_inner())
    }

    /// Guard for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, Box<dyn Buffer>> {
        self.buffer.write().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        give_back(&self.device, self.buffer.get_mut().unwrap_or_else(|e| e.into_inner()), self.byte_len);
    }
}
