//! A recording that is replayed.

use std::sync::atomic::Ordering::Relaxed;

use bilin_core::{Error, OpName, Result};

use super::buffer::GpuBuffer;
use super::device::GpuDevice;
use super::encoder::{Bound, CommandEncoder, Dispatch, Submission, run};

/// Captured work. A replay runs the same kernels with the same numbers over the same grids, so over equal inputs it gives
/// equal bits.
pub struct Graph {
    device: GpuDevice,
    dispatches: Vec<Dispatch>,
    bound: Bound,
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({:?}, {} dispatches)", self.device, self.dispatches.len())
    }
}

impl Graph {
    /// Keeps what `encoder` recorded, with all checks done; nothing runs. Errors: `OutOfMemory`, `DeviceLost`.
    pub fn capture(encoder: CommandEncoder) -> Result<Graph> {
        let device = encoder.device().clone();
        let bound = device.scoped(&"capture".into(), || Bound::new(&device, &encoder.dispatches))?;
        Ok(Graph { device, dispatches: encoder.dispatches, bound })
    }

    /// Number of dispatches.
    pub fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }

    /// Runs the work again. For each pair (old, new) of `rebind`, `new` stands in for `old` and for views inside it.
    ///
    /// Errors, before anything runs: `InvalidArgument` where a pair differs in dtype, shape or bytes, or `old` isn't part of
    /// the graph, or what [`CommandEncoder::encode`] refuses.
    pub fn replay(&self, rebind: &[(&GpuBuffer, &GpuBuffer)]) -> Result<Submission> {
        if rebind.is_empty() {
            let barriers = self.dispatches.iter().filter(|d| d.waits).count();
            self.device.0.counts.dispatches.fetch_add(self.dispatches.len() as u64, Relaxed);
            self.device.0.counts.barriers.fetch_add(barriers as u64, Relaxed);
            let index = run(&self.device, &self.dispatches, &self.bound, None)?;
            return Ok(Submission::new(&self.device, index));
        }
        let op = OpName::from("replay");
        let inside = |old: &GpuBuffer, b: &GpuBuffer| {
            old.memory.id == b.memory.id && old.range().start <= b.range().start && b.range().end <= old.range().end
        };
        for (old, new) in rebind {
            if (old.dtype(), old.shape(), old.byte_len()) != (new.dtype(), new.shape(), new.byte_len()) {
                return Err(Error::invalid(op, "rebind", format!("{new:?}"), format!("want what {old:?} is")));
            }
            if !self.dispatches.iter().flat_map(|d| &d.buffers).any(|b| inside(old, b)) {
                return Err(Error::invalid(op, "rebind", format!("{old:?}"), "want a buffer that the graph uses"));
            }
        }
        let mut encoder = self.device.command_encoder();
        for (i, d) in self.dispatches.iter().enumerate() {
            let stand_in = |b: &GpuBuffer| match rebind.iter().find(|(old, _)| inside(old, b)) {
                Some((old, new)) => new.window(b.range().start - old.range().start, b.byte_len() as u64, b.shape()),
                None => b.clone(),
            };
            let buffers: Vec<GpuBuffer> = d.buffers.iter().map(stand_in).collect();
            // A barrier of the recording stays one, so that one that was asked for isn't lost.
            if i > 0 && d.waits {
                encoder.barrier();
            }
            encoder.encode_with(&d.kernel, &buffers.iter().collect::<Vec<_>>(), &d.constants, d.grid)?;
        }
        encoder.commit()
    }
}
