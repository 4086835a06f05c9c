//! The CPU backend of bilin: packing, SIMD micro-kernels, threads.
//!
//! Sums of f32, f64 and complex products have one order on every instruction set, number of threads and layout:
//! see `bilin_core::exec::order`.

mod alloc;
mod arch;
mod contract;
mod threads;

pub use alloc::{CpuBuffer, held_bytes, kept_bytes, release_kept, set_poison};
pub use arch::Isa;
pub use contract::{contract_with, kernel_names};
pub use threads::{num_threads, set_num_threads};

use bilin_core::exec::backend::Backend;
use bilin_core::exec::buffer::{Buffer, host_bytes, host_bytes_mut};
use bilin_core::exec::call::{ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
use bilin_core::exec::host;
use bilin_core::{DType, Error, Result};

/// The CPU as a device: every dtype, every kernel of `contract`, elementwise work on threads.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuBackend {
    workers: threads::RayonWorkers,
}

impl CpuBackend {
    /// The backend; it holds no memory of its own.
    pub fn new() -> CpuBackend {
        CpuBackend::default()
    }
}

impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }
    fn has_dtype(&self, _dtype: DType) -> bool {
        true
    }
    fn alloc(&self, byte_len: usize) -> Result<Option<Box<dyn Buffer>>> {
        Ok(alloc::take(byte_len))
    }
    fn free(&self, buffer: Box<dyn Buffer>) {
        alloc::give(buffer);
    }
    fn upload(&self, src: &[u8], dst: &mut dyn Buffer) -> Result<()> {
        let dst = host_bytes_mut(&"upload".into(), dst)?;
        let room = dst.len();
        let Some(dst) = dst.get_mut(..src.len()) else {
            return Err(Error::invalid("upload", "src", format!("{} bytes", src.len()), format!("the buffer has {room}")));
        };
        dst.copy_from_slice(src);
        Ok(())
    }
    fn download(&self, src: &dyn Buffer, dst: &mut [u8]) -> Result<()> {
        let src = host_bytes(&"download".into(), src)?;
        let Some(part) = src.get(..dst.len()) else {
            return Err(Error::invalid("download", "dst", format!("{} bytes", dst.len()), format!("the buffer has {}", src.len())));
        };
        dst.copy_from_slice(part);
        Ok(())
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn contract(&self, call: ContractCall<'_>) -> Result<()> {
        contract::contract(call)
    }
    fn contract_both(&self, calls: [ContractCall<'_>; 2]) -> Result<bool> {
        contract::contract_both(calls)
    }
    fn adds_products(&self) -> bool {
        true
    }
    fn map(&self, call: MapCall<'_>) -> Result<()> {
        host::map(call, &self.workers)
    }
    fn reduce(&self, call: ReduceCall<'_>) -> Result<()> {
        host::reduce(call, &self.workers)
    }
    fn gather(&self, call: GatherCall<'_>) -> Result<()> {
        host::gather(call, &self.workers)
    }
    fn scatter_add(&self, call: ScatterCall<'_>) -> Result<()> {
        host::scatter_add(call, &self.workers)
    }
    fn autocast_dtype(&self, dtype: DType) -> DType {
        if dtype == DType::F16 { DType::F32 } else { dtype }
    }
    fn kernels(&self) -> Vec<&'static str> {
        kernel_names()
    }
}
