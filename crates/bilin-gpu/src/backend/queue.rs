//! The backend's one queue: calls are recorded into an open encoder, which goes to the device when it is long or somebody
//! wants to see values.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::{self, ThreadId};
use std::time::Duration;

use bilin_core::{DType, Error, OpName, Result};

use super::storage::WgpuStorage;
use crate::layer::buffer::GpuBuffer;
use crate::layer::device::GpuDevice;
use crate::layer::encoder::CommandEncoder;
use crate::layer::pool::BufferPool;
use crate::layer::registry::KernelRegistry;

/// Dispatches after which a recording goes to the device, so that it works while more is recorded.
const LONG: usize = 64;
/// Bytes of memory in use by a recording after which it goes to the device, so that what was dropped since can be used again.
const LARGE: u64 = 1 << 28;
/// Environment variable that forces a kernel of the table on the calls it accepts.
const KERNEL_VARIABLE: &str = "BILIN_WGPU_KERNEL";
/// Invocations of a workgroup in kernels over elements.
pub(super) const LANES: u64 = 256;

#[derive(Debug)]
pub(super) struct Queue {
    pub device: GpuDevice,
    pub registry: KernelRegistry,
    pool: BufferPool,
    pending: Mutex<Pending>,
    /// Where memory is handed out between poisoned guards, to see that no kernel touches what isn't its own.
    #[cfg(test)]
    pub guards: super::guards::Guards,
    /// Kernels that a self-test found wrong.
    banned: RwLock<Vec<&'static str>>,
}

#[derive(Debug, Default)]
struct Pending {
    encoder: Option<CommandEncoder>,
    /// Bytes of the buffers of its dispatches.
    bytes: u64,
    /// Calls that read positions which nobody has checked yet, by the thread that made them: a fault comes back there.
    watches: HashMap<ThreadId, Watch>,
    /// Memory of watches that met no fault: zeros.
    spare: Vec<GpuBuffer>,
    /// While a profile measures: how long the device worked on what was committed since.
    clock: Option<Duration>,
}

/// Positions of one thread's calls.
#[derive(Debug)]
struct Watch {
    /// The ops, with the length of their axis.
    calls: Vec<(OpName, usize)>,
    /// Three words: call + 1 of a wrong position, or 0, and the position's two halves.
    fault: GpuBuffer,
}

/// Workgroups over `count` pieces of work in two dimensions; kernels skip what lies past the end.
pub(super) fn grid(device: &GpuDevice, count: u64) -> [u32; 3] {
    let most = u64::from(device.0.limits.max_compute_workgroups_per_dimension);
    let x = count.clamp(1, most);
    [x as u32, count.div_ceil(x).clamp(1, most) as u32, 1]
}

impl Queue {
    pub fn new(device: &GpuDevice) -> Queue {
        Queue {
            device: device.clone(),
            registry: KernelRegistry::new(),
            pool: BufferPool::new(device),
            pending: Mutex::new(Pending::default()),
            #[cfg(test)]
            guards: Default::default(),
            banned: RwLock::new(Vec::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory with any contents.
    pub fn acquire(&self, byte_len: usize) -> Result<WgpuStorage> {
        #[cfg(test)]
        if let Some(buffer) = self.guards.acquire(&self.device, byte_len)? {
            return Ok(WgpuStorage { buffer, byte_len });
        }
        let room = byte_len.max(1).next_multiple_of(16);
        Ok(WgpuStorage { buffer: self.pool.acquire(room, DType::U8, [room])?, byte_len })
    }

    /// Whether a self-test took a kernel out of the table.
    pub fn is_banned(&self, kernel: &str) -> bool {
        self.banned.read().unwrap_or_else(PoisonError::into_inner).contains(&kernel)
    }

    /// Takes a kernel out of the table; false where it wasn't there.
    pub fn ban(&self, kernel: &'static str) -> bool {
        let was_here = !self.is_banned(kernel);
        self.banned.write().unwrap_or_else(PoisonError::into_inner).push(kernel);
        was_here
    }

    /// The first kernel, or the one that `BILIN_WGPU_KERNEL` names where it accepts the call.
    pub fn forced(&self, accepted: impl Iterator<Item = &'static str> + Clone) -> Option<&'static str> {
        let wanted = std::env::var(KERNEL_VARIABLE).ok();
        accepted.clone().find(|k| wanted.as_deref() == Some(*k)).or_else(|| accepted.clone().next())
    }

    /// Puts bytes at the start of memory, after everything recorded.
    pub fn upload(&self, src: &[u8], dst: &WgpuStorage) -> Result<()> {
        // A write takes its place before the next commit, so what is recorded and uses this memory must go first.
        if Arc::strong_count(&dst.buffer.memory) > 1 {
            self.flush()?;
        }
        match src.len().is_multiple_of(4) || src.len() != dst.byte_len {
            true => dst.buffer.write_bytes(src),
            // The whole memory is written, so its last word can be filled up.
            false => {
                let mut padded = src.to_vec();
                padded.resize(src.len().next_multiple_of(4), 0);
                dst.buffer.write_bytes(&padded)
            }
        }
    }

    /// Records a kernel, whose text is made where its name is new.
    pub fn record(
        &self,
        op: &OpName,
        name: &str,
        text: impl FnOnce() -> String,
        buffers: &[&GpuBuffer],
        constants: &[u32],
        grid: [u32; 3],
    ) -> Result<()> {
        let most = self.device.0.limits.max_storage_buffer_binding_size;
        if let Some(large) = buffers.iter().find(|b| b.byte_len() as u64 > most) {
            let want = format!("{} binds at most {most} at a time; split the tensor with narrow", self.device.name());
            return Err(Error::invalid(op.clone(), "buffer", format!("{} bytes", large.byte_len()), want));
        }
        self.registry.register_once(name, text);
        let kernel = self.registry.get_pipeline(name, &self.device)?;
        let mut pending = self.lock();
        let encoder = pending.encoder.get_or_insert_with(|| self.device.command_encoder());
        encoder.encode_with(&kernel, buffers, constants, grid)?;
        let is_long = encoder.len() >= LONG;
        pending.bytes += buffers.iter().map(|b| b.byte_len() as u64).sum::<u64>();
        if is_long || pending.bytes >= LARGE {
            commit(&mut pending)?;
        }
        Ok(())
    }

    /// Memory in which kernels of this thread's calls say that a position lies outside its axis, and this call's number there.
    pub fn watch_positions(&self, op: &OpName, len: usize) -> Result<(GpuBuffer, u32)> {
        let mut pending = self.lock();
        let pending = &mut *pending;
        let watch = match pending.watches.entry(thread::current().id()) {
            Entry::Occupied(here) => here.into_mut(),
            Entry::Vacant(free) => {
                let fault = pending.spare.pop().map_or_else(|| self.device.alloc_buffer(16, DType::U8, [16]), Ok)?;
                free.insert(Watch { calls: Vec::new(), fault })
            }
        };
        watch.calls.push((op.clone(), len));
        Ok((watch.fault.clone(), watch.calls.len() as u32))
    }

    /// The first wrong position that this thread's queued work met.
    pub fn check_positions(&self) -> Result<()> {
        let mut pending = self.lock();
        let Some(Watch { calls, fault }) = pending.watches.remove(&thread::current().id()) else { return Ok(()) };
        commit(&mut pending)?;
        let mut bytes = [0u8; 16];
        fault.read_bytes(&mut bytes)?;
        let words: [u32; 4] = bytemuck::pod_read_unaligned(&bytes);
        let Some((op, len)) = (words[0] as usize).checked_sub(1).and_then(|i| calls.get(i)) else {
            pending.spare.push(fault);
            return Ok(());
        };
        let at = (i64::from(words[2]) << 32) | i64::from(words[1]);
        Err(Error::invalid(op.clone(), "index", at, format!("want 0 to {} for an axis of length {len}", *len as i64 - 1)))
    }

    /// Hands what is recorded to the device.
    pub fn flush(&self) -> Result<()> {
        commit(&mut self.lock())
    }

    /// From now on the device's own clock measures what is committed, where it has one.
    pub fn start_clock(&self) -> Result<()> {
        let mut pending = self.lock();
        commit(&mut pending)?;
        pending.clock = self.device.has_feature("timestamps").then_some(Duration::ZERO);
        Ok(())
    }

    /// Waits for everything; what the clock measured since it was started.
    pub fn stop_clock(&self) -> Result<Option<Duration>> {
        let measured = {
            let mut pending = self.lock();
            let committed = commit(&mut pending);
            let measured = pending.clock.take();
            committed?;
            measured
        };
        self.sync()?;
        Ok(measured)
    }

    /// Waits for everything; the first fault comes back.
    pub fn sync(&self) -> Result<()> {
        self.flush()?;
        self.device.wait()?;
        self.check_positions()
    }
}

fn commit(pending: &mut Pending) -> Result<()> {
    pending.bytes = 0;
    match (pending.encoder.take(), &mut pending.clock) {
        (Some(encoder), Some(clock)) => encoder.commit_and_wait_timed().map(|time| *clock += time),
        (Some(encoder), None) => encoder.commit().map(drop),
        (None, _) => Ok(()),
    }
}
