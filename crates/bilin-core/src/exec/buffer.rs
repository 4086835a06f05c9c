//! Memory of a device, as backends hand it out.

use std::any::Any;
use std::fmt::Debug;

use crate::shape::error::Result;

/// Memory that a backend allocated. Dropping it gives it back.
pub trait Buffer: Debug + Send + Sync {
    /// Bytes that may be used.
    fn byte_len(&self) -> usize;
    /// The bytes, where the host can read them.
    fn host(&self) -> Option<&[u8]>;
    /// The bytes, where the host can write them.
    fn host_mut(&mut self) -> Option<&mut [u8]>;
    /// For a backend to find its own type again.
    fn as_any(&self) -> &dyn Any;
    /// The same, to write.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// What stands in the place of a buffer that was given back; a box of it needs no memory.
#[derive(Debug)]
pub(super) struct NoMemory;

impl Buffer for NoMemory {
    fn byte_len(&self) -> usize {
        0
    }
    fn host(&self) -> Option<&[u8]> {
        None
    }
    fn host_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Host memory of 16-byte alignment, zeroed.
#[derive(Debug)]
pub struct HostBuffer {
    words: Vec<u128>,
    byte_len: usize,
}

impl HostBuffer {
    /// `byte_len` zero bytes; `None` where the system has no room.
    pub fn zeroed(byte_len: usize) -> Option<HostBuffer> {
        let mut words: Vec<u128> = Vec::new();
        words.try_reserve_exact(byte_len.div_ceil(16)).ok()?;
        words.resize(byte_len.div_ceil(16), 0);
        Some(HostBuffer { words, byte_len })
    }
}

impl Buffer for HostBuffer {
    fn byte_len(&self) -> usize {
        self.byte_len
    }
    fn host(&self) -> Option<&[u8]> {
        bytemuck::cast_slice::<u128, u8>(&self.words).get(..self.byte_len)
    }
    fn host_mut(&mut self) -> Option<&mut [u8]> {
        bytemuck::cast_slice_mut::<u128, u8>(&mut self.words).get_mut(..self.byte_len)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The host's bytes of a buffer, or an error that names the op.
pub fn host_bytes<'a>(op: &crate::shape::error::OpName, buffer: &'a dyn Buffer) -> Result<&'a [u8]> {
    buffer.host().ok_or_else(|| foreign(op))
}

/// The same, to write.
pub fn host_bytes_mut<'a>(op: &crate::shape::error::OpName, buffer: &'a mut dyn Buffer) -> Result<&'a mut [u8]> {
    let foreign = || {
        let want = "copy the tensor, or move it with to_device";
        crate::shape::error::Error::invalid(op.clone(), "buffer", "memory that can't be written here", want)
    };
    buffer.host_mut().ok_or_else(foreign)
}

fn foreign(op: &crate::shape::error::OpName) -> crate::shape::error::Error {
    crate::shape::error::Error::invalid(op.clone(), "buffer", "memory of another device", "move the tensor with to_device")
}
