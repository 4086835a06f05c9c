//! Memory of the engine's tensors.

use std::any::Any;

use bilin_core::exec::buffer::Buffer;
use bilin_core::{Error, OpName, Result};

use crate::layer::buffer::GpuBuffer;

/// Memory of a tensor: whole 16-byte words of the device, of which `byte_len` are the tensor's.
#[derive(Debug)]
pub(super) struct WgpuStorage {
    pub buffer: GpuBuffer,
    pub byte_len: usize,
}

impl WgpuStorage {
    /// This backend's memory behind a buffer, or an error that names the op.
    pub fn of<'a>(op: &OpName, buffer: &'a dyn Buffer) -> Result<&'a WgpuStorage> {
        let foreign = || Error::invalid(op.clone(), "buffer", "memory of another device", "move the tensor with to_device");
        buffer.as_any().downcast_ref().ok_or_else(foreign)
    }
}

impl Buffer for WgpuStorage {
    fn byte_len(&self) -> usize {
        self.byte_len
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
