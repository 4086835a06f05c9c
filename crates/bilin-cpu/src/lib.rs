//! The CPU backend of bilin.
use bilin_core::exec::backend::Backend;
use bilin_core::exec::buffer::Buffer;
use bilin_core::exec::call::{ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
use bilin_core::exec::reference::ReferenceBackend;
use bilin_core::{DType, Result};

/// The CPU backend; its kernels are those of the reference until its own land.
#[derive(Debug, Default)]
pub struct CpuBackend(ReferenceBackend);
impl CpuBackend {
    /// A backend.
    pub fn new() -> CpuBackend {
        CpuBackend::default()
    }
}
impl Backend for CpuBackend {
    fn name(&self) -> &'static str {
        "cpu"
    }
    fn has_dtype(&self, dtype: DType) -> bool {
        self.0.has_dtype(dtype)
    }
    fn alloc(&self, byte_len: usize) -> Option<Box<dyn Buffer>> {
        self.0.alloc(byte_len)
    }
    fn upload(&self, src: &[u8], dst: &mut dyn Buffer) -> Result<()> {
        self.0.upload(src, dst)
    }
    fn download(&self, src: &dyn Buffer, dst: &mut [u8]) -> Result<()> {
        self.0.download(src, dst)
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn contract(&self, call: ContractCall<'_>) -> Result<()> {
        self.0.contract(call)
    }
    fn map(&self, call: MapCall<'_>) -> Result<()> {
        self.0.map(call)
    }
    fn reduce(&self, call: ReduceCall<'_>) -> Result<()> {
        self.0.reduce(call)
    }
    fn gather(&self, call: GatherCall<'_>) -> Result<()> {
        self.0.gather(call)
    }
    fn scatter_add(&self, call: ScatterCall<'_>) -> Result<()> {
        self.0.scatter_add(call)
    }
    fn autocast_dtype(&self, dtype: DType) -> DType {
        self.0.autocast_dtype(dtype)
    }
    fn kernels(&self) -> Vec<&'static str> {
        self.0.kernels()
    }
}
