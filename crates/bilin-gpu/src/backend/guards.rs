//! Poisoned memory around and inside everything that the backend allocates.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::sync::{Arc, Mutex, PoisonError};

use bilin_core::{DType, Device, Result, Tensor};

use super::WgpuBackend;
use crate::layer::buffer::GpuBuffer;
use crate::layer::device::GpuDevice;

/// Bytes before and after; a view must start at a multiple of it to be bound.
const GUARD: usize = 256;

/// What was handed out: the whole memory, and the bytes in its middle that belong to the tensor.
#[derive(Debug, Default)]
pub(super) struct Guards(Mutex<Option<Vec<(GpuBuffer, usize)>>>);

impl Guards {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Vec<(GpuBuffer, usize)>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on memory comes with guards, and all of it is NaN at first.
    pub fn raise(&self) {
        *self.lock() = Some(Vec::new());
    }

    /// Memory between guards, where they are raised.
    pub fn acquire(&self, device: &GpuDevice, byte_len: usize) -> Result<Option<GpuBuffer>> {
        let mut handed = self.lock();
        let Some(handed) = handed.as_mut() else { return Ok(None) };
        // A kernel binds whole words, and of nothing one vector that it never reads.
        let inside = if byte_len == 0 { 16 } else { byte_len.next_multiple_of(4) };
        let len = inside + 2 * GUARD;
        let whole = device.alloc_buffer(len, DType::U8, [len])?;
        whole.write_bytes(&vec![0xFF; len])?;
        let view = whole.slice_view(GUARD, [inside])?;
        handed.push((whole, inside));
        Ok(Some(view))
    }

    /// Fails where a guard was written; memory that was handed out so far is then forgotten.
    pub fn assert_intact(&self, what: &str) -> usize {
        let mut handed = self.lock();
        let all: Vec<(GpuBuffer, usize)> = handed.as_mut().map(std::mem::take).unwrap_or_default();
        for (whole, inside) in &all {
            let mut bytes = vec![0; whole.byte_len()];
            whole.read_bytes(&mut bytes).unwrap();
            let outside = bytes[..GUARD].iter().chain(&bytes[GUARD + inside..]);
            assert!(outside.clone().all(|&b| b == 0xFF), "{what}: a kernel wrote beside the {inside} bytes of its result");
        }
        all.len()
    }
}

#[test]
fn work_in_place_leaves_what_surrounds_a_view_alone() {
    type View = fn(&Tensor) -> Result<Tensor>;
    let backend = WgpuBackend::new(&GpuDevice::new().unwrap());
    let queue = Arc::clone(&backend.queue);
    let device = Device::new("wgpu:0", Box::new(backend));
    queue.guards.raise();
    let views: [(&str, View); 6] = [
        ("all", |x| Ok(x.clone())),
        ("fours", |x| x.narrow(1, 4, 8)),
        ("from an odd place", |x| x.narrow(1, 3, 8)),
        ("an odd number", |x| x.narrow(1, 4, 5)),
        ("columns", |x| x.mt()?.narrow(0, 2, 3)),
        ("one row", |x| x.narrow(0, 6, 1)),
    ];
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::U8, DType::I16, DType::I64] {
        for (name, view) in views {
            let work = |device: &Device| {
                let base: Vec<f32> = (0..7 * 12).map(|i| (i % 13) as f32).collect();
                let base = Tensor::from_vec(base, [7, 12], &Device::reference()).unwrap().astype(dtype).unwrap().to_device(device).unwrap();
                let part = view(&base).unwrap();
                let two = Tensor::full(part.shape(), 2.0, dtype, device).unwrap();
                part.add_(&two).unwrap();
                part.mul_(&two).unwrap();
                part.narrow(0, 0, 1).unwrap().fill_(5.0).unwrap();
                part.narrow(1, 0, 1).unwrap().copy_(&two.narrow(1, 0, 1).unwrap()).unwrap();
                base.to_bytes().unwrap()
            };
            assert_eq!(work(&device), work(&Device::reference()), "{name}, {dtype}");
            queue.guards.assert_intact(name);
        }
    }
}
