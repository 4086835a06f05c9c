//! Elementwise work, reductions and indexed copies on host memory, in safe code over blocks of elements. Backends whose
//! buffers the host can read share it and bring their own [`Workers`].

mod convert;
mod elementary;
mod halves;
mod index;
mod map;
mod reduce;
mod scalar;

pub use index::{gather, scatter_add};
pub use map::map;
pub use reduce::reduce;

use crate::shape::error::{Error, OpName, Result};

/// Code to compile once per instruction set; `run` is `#[inline(always)]`.
pub trait Work {
    /// What it returns.
    type Output;
    /// The code.
    fn run(self) -> Self::Output;
}

/// Who does the work on consecutive chunks of a result.
pub trait Workers: Sync {
    /// Calls `run(i, chunk)` for every chunk of `chunk_bytes` bytes (the last may be shorter). `cost` counts elementary
    /// operations over all chunks; what is too small for threads runs on the caller's.
    fn chunks(&self, bytes: &mut [u8], chunk_bytes: usize, cost: usize, run: &(dyn Fn(usize, &mut [u8]) + Sync));

    /// Runs work, compiled for a richer instruction set where there is one. Bits don't depend on it.
    fn compiled<W: Work>(&self, work: W) -> W::Output
    where
        Self: Sized,
    {
        work.run()
    }
}

/// The caller's thread alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct Serial;

impl Workers for Serial {
    fn chunks(&self, bytes: &mut [u8], chunk_bytes: usize, _cost: usize, run: &(dyn Fn(usize, &mut [u8]) + Sync)) {
        for (i, chunk) in bytes.chunks_mut(chunk_bytes.max(1)).enumerate() {
            run(i, chunk);
        }
    }
}

/// Elements that one block holds.
const BLOCK: usize = 128;
/// Elements of a result that one chunk of work holds.
const CHUNK: usize = 16 * 1024;

fn check_alignment<T>(op: &OpName, bytes: &[u8]) -> Result<()> {
    if bytes.as_ptr().addr().is_multiple_of(align_of::<T>()) {
        return Ok(());
    }
    Err(Error::invalid(op.clone(), "buffer", "misaligned memory", "backends allocate with 16-byte alignment"))
}
