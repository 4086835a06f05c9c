//! Memory of a call that fails goes back as that of a result that is dropped does, and memory that others made is let go of.
#![allow(clippy::unwrap_used, reason = "a panic is how a check fails")]

use std::any::Any;
use std::sync::Arc;

use bilin_core::exec::buffer::{Buffer, HostBuffer};
use bilin_core::exec::reference::ReferenceBackend;
use bilin_core::exec::storage::Storage;
use bilin_core::{Device, Tensor};

/// Memory whose holders can be counted.
#[derive(Debug)]
struct Adopted(HostBuffer, #[expect(dead_code, reason = "held to be counted")] Arc<()>);

impl Buffer for Adopted {
    fn byte_len(&self) -> usize {
        self.0.byte_len()
    }
    fn host(&self) -> Option<&[u8]> {
        self.0.host()
    }
    fn host_mut(&mut self) -> Option<&mut [u8]> {
        self.0.host_mut()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[test]
fn what_nobody_uses_goes_back() {
    let device = Device::new("own", Box::new(ReferenceBackend));
    let x = Tensor::from_slice(&[1f32, 2., 3.], [3], &device).unwrap();
    let positions = Tensor::from_slice(&[0i64, 3], [2], &device).unwrap();
    let counts = || {
        let stats = device.memory_stats();
        (stats.current_bytes, stats.alloc_count, stats.free_count)
    };
    let (held, allocs, frees) = counts();
    drop(x.neg().unwrap());
    assert_eq!(counts(), (held, allocs + 1, frees + 1));
    // A position past the end is found after the result's memory was had.
    x.gather(0, &positions).unwrap_err();
    assert_eq!(counts(), (held, allocs + 2, frees + 2));
    let holders = Arc::new(());
    let storage = Storage::adopt(&device, Box::new(Adopted(HostBuffer::zeroed(100).unwrap(), holders.clone()))).unwrap();
    assert_eq!((counts().0, Arc::strong_count(&holders)), (held + 100, 2));
    drop(storage);
    assert_eq!((counts().0, Arc::strong_count(&holders)), (held, 1));
    drop((x, positions));
    assert_eq!(counts().0, 0);
}
