//! The engine's backend on wgpu: every verb is a shader whose text is made from the call's structure (dtypes, numbers of
//! loops, expression) and whose sizes travel as numbers, so that few pipelines serve all shapes.

mod check;
mod contract;
mod gemm;
#[cfg(test)]
mod guards;
mod index;
mod map;
mod queue;
mod reduce;
mod storage;
mod units;
mod wgsl;

use std::sync::Arc;
use std::time::Duration;

use bilin_core::exec::buffer::Buffer;
use bilin_core::exec::call::{ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
use bilin_core::{Backend, DType, Device, Error, OpName, Result};

use crate::layer::device::GpuDevice;
pub use check::check_kernels;
use queue::Queue;
use storage::WgpuStorage;

/// The backend of one [`GpuDevice`].
///
/// dtypes: f32, f16, bf16, and where the device's shaders have 64-bit integers bool and all integers. Halves are stored as
/// two bytes and computed in f32, so they need nothing of the device. f64 and complex are `Unsupported`.
///
/// Work is queued; faults of it surface at [`sync`](Backend::sync) or when values are read, whichever comes first.
#[derive(Debug)]
pub struct WgpuBackend {
    queue: Arc<Queue>,
}

impl WgpuBackend {
    /// A backend on `device`.
    pub fn new(device: &GpuDevice) -> WgpuBackend {
        WgpuBackend { queue: Arc::new(Queue::new(device)) }
    }

    /// The device it runs on.
    pub fn device(&self) -> &GpuDevice {
        &self.queue.device
    }
}

/// An engine's device on the adapter at `index` of [`adapters`](crate::adapters), named `wgpu:index`. Each call opens the
/// adapter anew; tensors of two openings don't mix. Errors: `InvalidArgument` naming the adapters there are, `DeviceLost`.
pub fn open_device(index: usize) -> Result<Device> {
    Ok(Device::new(format!("wgpu:{index}"), Box::new(WgpuBackend::new(&GpuDevice::open(index)?))))
}

/// An error that names op, dtype and backend.
fn unsupported(op: &OpName, dtype: DType) -> Error {
    let remedy = "convert with astype to float32, or move to the device cpu";
    Error::Unsupported { op: op.clone(), dtype, backend: "wgpu".to_owned(), remedy }
}

impl Backend for WgpuBackend {
    fn name(&self) -> &'static str {
        "wgpu"
    }
    fn has_dtype(&self, dtype: DType) -> bool {
        match dtype {
            DType::F16 | DType::Bf16 | DType::F32 => true,
            DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => self.device().has_feature("i64"),
            DType::F64 | DType::C64 | DType::C128 => false,
        }
    }
    fn alloc(&self, byte_len: usize) -> Result<Option<Box<dyn Buffer>>> {
        match self.queue.acquire(byte_len) {
            Ok(storage) => Ok(Some(Box::new(storage))),
            Err(Error::OutOfMemory { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
    fn upload(&self, src: &[u8], dst: &mut dyn Buffer) -> Result<()> {
        let op = OpName::from("upload");
        let room = dst.byte_len();
        if src.len() > room {
            return Err(Error::invalid(op, "src", format!("{} bytes", src.len()), format!("the buffer has {room}")));
        }
        self.queue.upload(src, WgpuStorage::of(&op, dst)?)
    }
    fn download(&self, src: &dyn Buffer, dst: &mut [u8]) -> Result<()> {
        let op = OpName::from("download");
        let have = src.byte_len();
        if dst.len() > have {
            return Err(Error::invalid(op, "dst", format!("{} bytes", dst.len()), format!("the buffer has {have}")));
        }
        let storage = WgpuStorage::of(&op, src)?;
        self.queue.flush()?;
        storage.buffer.read_bytes(dst)?;
        self.queue.check_positions()
    }
    fn sync(&self) -> Result<()> {
        self.queue.sync()
    }
    fn start_clock(&self) -> Result<()> {
        self.queue.start_clock()
    }
    fn stop_clock(&self) -> Result<Option<Duration>> {
        self.queue.stop_clock()
    }
    fn contract(&self, call: ContractCall<'_>) -> Result<()> {
        contract::run(&self.queue, call)
    }
    fn map(&self, call: MapCall<'_>) -> Result<()> {
        map::run(&self.queue, call)
    }
    fn reduce(&self, call: ReduceCall<'_>) -> Result<()> {
        reduce::run(&self.queue, call)
    }
    fn gather(&self, call: GatherCall<'_>) -> Result<()> {
        index::gather(&self.queue, call)
    }
    fn scatter_add(&self, call: ScatterCall<'_>) -> Result<()> {
        index::scatter_add(&self.queue, call)
    }
    fn kernels(&self) -> Vec<&'static str> {
        let has_units = self.device().has_feature("matrix-units");
        let runs = |k: &&str| !self.queue.is_banned(k) && (has_units || contract::units_tile(k).is_none());
        contract::KERNELS.into_iter().filter(runs).collect()
    }
    fn ban_kernel(&self, kernel: &str) -> bool {
        let found = contract::KERNELS.into_iter().find(|k| *k == kernel);
        found.is_some_and(|k| self.queue.ban(k))
    }
}
