//! The trait that every device's backend implements.

use std::fmt::Debug;
use std::time::Duration;

use super::buffer::Buffer;
use super::call::{ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
use crate::shape::dtype::DType;
use crate::shape::error::Result;

/// What runs plans on one kind of device. Calls come checked: every view inside its buffer, the result neither
/// overlapping itself nor standing in an input's buffer.
pub trait Backend: Debug + Send + Sync {
    /// `cpu`, `reference`, `wgpu`, …
    fn name(&self) -> &'static str;
    /// Whether tensors of this dtype can live here.
    fn has_dtype(&self, dtype: DType) -> bool;
    /// Memory for `byte_len` bytes with any contents; `None` where there is no room. Errors: what no freed memory would help,
    /// as [`DeviceLost`](crate::Error::DeviceLost), or more than the device holds in one piece.
    fn alloc(&self, byte_len: usize) -> Result<Option<Box<dyn Buffer>>>;
    /// Takes back a buffer that [`alloc`](Backend::alloc) gave, or that was adopted, which nobody uses any more; by default it is
    /// dropped.
    fn free(&self, buffer: Box<dyn Buffer>) {
        drop(buffer);
    }
    /// Copies bytes of the host to the start of a buffer.
    fn upload(&self, src: &[u8], dst: &mut dyn Buffer) -> Result<()>;
    /// Copies the first `dst.len()` bytes of a buffer to the host.
    fn download(&self, src: &dyn Buffer, dst: &mut [u8]) -> Result<()>;
    /// Waits for queued work; the first error of it comes back.
    fn sync(&self) -> Result<()>;
    /// Starts the device's own clock, for a profile; what is queued is handed over before.
    fn start_clock(&self) -> Result<()> {
        Ok(())
    }
    /// Waits for the work that was asked for since [`start_clock`](Self::start_clock), and says how long the device worked on
    /// it: `None` where only the host has a clock.
    fn stop_clock(&self) -> Result<Option<Duration>> {
        self.sync().map(|()| None)
    }
    /// Products.
    fn contract(&self, call: ContractCall<'_>) -> Result<()>;
    /// Two products at once, with the bits of one after the other, where memory that both read is read once by that. False, and
    /// nothing is touched, where it is no gain.
    fn contract_both(&self, calls: [ContractCall<'_>; 2]) -> Result<bool> {
        let _ = calls;
        Ok(false)
    }
    /// Whether [`contract`](Backend::contract) runs calls of [`Accum::Add`](super::call::Accum); it is given none where not.
    fn adds_products(&self) -> bool {
        false
    }
    /// Elementwise work.
    fn map(&self, call: MapCall<'_>) -> Result<()>;
    /// Reductions.
    fn reduce(&self, call: ReduceCall<'_>) -> Result<()>;
    /// Reads by index.
    fn gather(&self, call: GatherCall<'_>) -> Result<()>;
    /// Adds by index.
    fn scatter_add(&self, call: ScatterCall<'_>) -> Result<()>;
    /// The dtype that an autocast scope for `dtype` computes in here.
    fn autocast_dtype(&self, dtype: DType) -> DType {
        dtype
    }
    /// Names of the contraction kernels, best first.
    fn kernels(&self) -> Vec<&'static str>;
    /// Takes a contraction kernel that was found to miscompute out of the table; false where it can't or there is none of
    /// that name.
    fn ban_kernel(&self, _kernel: &str) -> bool {
        false
    }
}
