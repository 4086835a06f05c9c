//! Memory of a call that fails, and of one whose result is dropped, goes back to the backend that gave it.
#![allow(clippy::unwrap_used, reason = "a panic is how a check fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bilin_core::exec::backend::Backend;
use bilin_core::exec::buffer::{Buffer, HostBuffer};
use bilin_core::exec::call::{ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
use bilin_core::exec::reference::ReferenceBackend;
use bilin_core::exec::storage::Storage;
use bilin_core::{DType, Device, Result, Tensor};

/// The reference, which counts what it gets back.
#[derive(Debug)]
struct Counting(Arc<AtomicUsize>);

impl Backend for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn has_dtype(&self, _dtype: DType) -> bool {
        true
    }
    fn alloc(&self, byte_len: usize) -> Result<Option<Box<dyn Buffer>>> {
        ReferenceBackend.alloc(byte_len)
    }
    fn free(&self, buffer: Box<dyn Buffer>) {
        self.0.fetch_add(buffer.byte_len(), Relaxed);
    }
    fn upload(&self, src: &[u8], dst: &mut dyn Buffer) -> Result<()> {
        ReferenceBackend.upload(src, dst)
    }
    fn download(&self, src: &dyn Buffer, dst: &mut [u8]) -> Result<()> {
        ReferenceBackend.download(src, dst)
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn contract(&self, call: ContractCall<'_>) -> Result<()> {
        ReferenceBackend.contract(call)
    }
    fn map(&self, call: MapCall<'_>) -> Result<()> {
        ReferenceBackend.map(call)
    }
    fn reduce(&self, call: ReduceCall<'_>) -> Result<()> {
        ReferenceBackend.reduce(call)
    }
    fn gather(&self, call: GatherCall<'_>) -> Result<()> {
        ReferenceBackend.gather(call)
    }
    fn scatter_add(&self, call: ScatterCall<'_>) -> Result<()> {
        ReferenceBackend.scatter_add(call)
    }
    fn kernels(&self) -> Vec<&'static str> {
        Vec::new()
    }
}

#[test]
fn what_nobody_uses_goes_back() {
    let freed = Arc::new(AtomicUsize::new(0));
    let device = Device::new("counting", Box::new(Counting(freed.clone())));
    let x = Tensor::from_slice(&[1f32, 2., 3.], [3], &device).unwrap();
    let held = device.memory_stats();
    drop(x.neg().unwrap());
    assert_eq!(freed.load(Relaxed), 12);
    // A position past the end is found after the result's memory was had.
    let positions = Tensor::from_slice(&[0i64, 3], [2], &device).unwrap();
    let before = device.memory_stats();
    x.gather(0, &positions).unwrap_err();
    assert_eq!(freed.load(Relaxed), 12 + 8);
    let after = device.memory_stats();
    assert_eq!((after.current_bytes, after.alloc_count), (before.current_bytes, before.alloc_count + 1));
    assert_eq!(after.free_count, before.free_count + 1);
    // What somebody else allocated too.
    drop(Storage::adopt(&device, Box::new(HostBuffer::zeroed(100).unwrap())).unwrap());
    assert_eq!(freed.load(Relaxed), 12 + 8 + 100);
    drop((x, positions));
    assert_eq!((device.memory_stats().current_bytes, held.current_bytes), (0, 12));
}
