//! Recording work and handing it to the queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bilin_core::{Error, OpName, Result};
use smallvec::SmallVec;

use super::buffer::GpuBuffer;
use super::device::{CONSTANT_WORDS, GpuDevice};
use super::hazard::{Hazards, Touch};
use super::kernel::{Access, Kernel};

/// One recorded dispatch.
#[derive(Clone)]
pub(crate) struct Dispatch {
    pub kernel: Arc<Kernel>,
    pub buffers: SmallVec<[GpuBuffer; 6]>,
    pub constants: SmallVec<[u32; 16]>,
    pub grid: [u32; 3],
    /// Whether it waits for what was recorded before.
    pub waits: bool,
}

/// Records dispatches and finds the barriers between them: work waits only for work that shares a byte with it, where one of
/// the two writes. [`commit`](CommandEncoder::commit) takes the encoder, so recording after it doesn't compile:
///
/// ```compile_fail,E0382
/// # use bilin_gpu::{CommandEncoder, Kernel, GpuBuffer};
/// # fn f(mut encoder: CommandEncoder, kernel: &std::sync::Arc<Kernel>, x: &GpuBuffer) -> bilin_core::Result<()> {
/// encoder.commit()?;
/// encoder.encode(kernel, &[x], [1, 1, 1])
/// # }
/// ```
///
/// A barrier ends a compute pass. The driver layer below adds memory barriers of its own between dispatches of one pass that
/// write one buffer, whatever their ranges.
#[must_use = "what is recorded runs only once it is committed"]
pub struct CommandEncoder {
    device: GpuDevice,
    pub(crate) dispatches: Vec<Dispatch>,
    hazards: Hazards,
    /// A barrier was asked for since the last dispatch.
    is_barred: bool,
}

/// Work on the queue.
#[derive(Debug)]
pub struct Submission {
    device: GpuDevice,
    index: Option<wgpu::SubmissionIndex>,
}

impl Submission {
    /// Waits until it, and all work before it, is done. Errors: `DeviceLost`, a fault of the driver.
    pub fn wait(self) -> Result<()> {
        let device = &self.device;
        let polled = device.0.raw.poll(wgpu::PollType::Wait { submission_index: self.index, timeout: None });
        device.check(&"wait".into())?;
        polled.map(drop).map_err(|e| Error::DeviceLost { device: device.name().to_owned(), message: e.to_string() })
    }
}

impl CommandEncoder {
    pub(crate) fn new(device: &GpuDevice) -> CommandEncoder {
        CommandEncoder { device: device.clone(), dispatches: Vec::new(), hazards: Hazards::default(), is_barred: false }
    }

    /// Number of dispatches recorded.
    pub fn len(&self) -> usize {
        self.dispatches.len()
    }

    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        self.dispatches.is_empty()
    }

    /// Records a kernel over `grid` workgroups; `buffers` stand in the order of its bindings in group 0.
    ///
    /// Errors, and then nothing is recorded: `InvalidArgument` for another number of buffers, an empty or too large grid, a
    /// view at an offset that the device can't bind, one larger than it binds, or one memory bound both to be written and
    /// otherwise; `DeviceMismatch`.
    pub fn encode(&mut self, kernel: &Arc<Kernel>, buffers: &[&GpuBuffer], grid: [u32; 3]) -> Result<()> {
        self.encode_with(kernel, buffers, &[], grid)
    }

    /// The same for a kernel that takes numbers: `constants` are the words of its uniform at `@group(1) @binding(0)`.
    pub fn encode_with(&mut self, kernel: &Arc<Kernel>, buffers: &[&GpuBuffer], constants: &[u32], grid: [u32; 3]) -> Result<()> {
        self.check(kernel, buffers, constants, grid)?;
        let touches =
            buffers.iter().zip(&kernel.bindings).map(|(b, (_, access))| Touch { memory: b.memory.id, bytes: b.range(), access: *access });
        let waits = self.hazards.add(touches) | self.is_barred;
        self.is_barred = false;
        self.device.0.counts.barriers.fetch_add(u64::from(waits), Relaxed);
        self.device.0.counts.dispatches.fetch_add(1, Relaxed);
        self.dispatches.push(Dispatch {
            kernel: Arc::clone(kernel),
            buffers: buffers.iter().map(|b| (*b).clone()).collect(),
            constants: SmallVec::from_slice(constants),
            grid,
            waits,
        });
        Ok(())
    }

    fn check(&self, kernel: &Kernel, buffers: &[&GpuBuffer], constants: &[u32], grid: [u32; 3]) -> Result<()> {
        let op = || OpName::from(kernel.name().to_owned());
        let limits = &self.device.0.limits;
        if let Some(other) = std::iter::once(&kernel.device).chain(buffers.iter().map(|b| b.device())).find(|d| !d.is_same(&self.device)) {
            let devices = vec![self.device.name().to_owned(), format!("another opening of {}", other.name())];
            return Err(Error::DeviceMismatch { op: op(), devices });
        }
        if buffers.len() != kernel.bindings.len() {
            let want = format!("want {}, one for each binding of group 0", kernel.bindings.len());
            return Err(Error::invalid(op(), "buffers", format!("{} buffers", buffers.len()), want));
        }
        kernel.check_constants(constants)?;
        let most = limits.max_compute_workgroups_per_dimension;
        if grid.iter().any(|&g| g == 0 || g > most) {
            return Err(Error::invalid(op(), "grid", format!("{grid:?}"), format!("want 1 to {most} workgroups along each dimension")));
        }
        for (i, (buffer, (binding, access))) in buffers.iter().zip(&kernel.bindings).enumerate() {
            let range = buffer.range();
            let (align, largest) = match access {
                Access::Uniform => (limits.min_uniform_buffer_offset_alignment, limits.max_uniform_buffer_binding_size),
                _ => (limits.min_storage_buffer_offset_alignment, limits.max_storage_buffer_binding_size),
            };
            let fault = if range.is_empty() {
                Some(("no bytes".to_owned(), "want a buffer that holds something".to_owned()))
            } else if !range.start.is_multiple_of(u64::from(align)) {
                Some((format!("binding {binding} at byte {}", range.start), format!("want a multiple of {align}; copy the view")))
            } else if range.end - range.start > largest {
                let got = format!("binding {binding} of {} bytes", range.end - range.start);
                Some((got, format!("want at most {largest}; bind a slice_view at a time")))
            } else {
                let touch = |b: &GpuBuffer, access: Access| Touch { memory: b.memory.id, bytes: b.range(), access };
                let earlier = buffers.iter().zip(&kernel.bindings).take(i);
                let mixes = |(b, (_, a)): &(&&GpuBuffer, &(u32, Access))| {
                    b.memory.id == buffer.memory.id && (a.writes() != access.writes() || touch(b, *a).conflicts(&touch(buffer, *access)))
                };
                let clash = earlier.clone().find(mixes);
                clash.map(|(_, (other, _))| {
                    let got = format!("binding {binding} in the memory of binding {other}, and one of them is written");
                    (got, "want distinct memory; copy one of them".to_owned())
                })
            };
            if let Some((got, want)) = fault {
                return Err(Error::invalid(op(), "buffers", got, want));
            }
        }
        Ok(())
    }

    /// Lets everything recorded after wait for everything recorded before. Needless between kernels that share memory:
    /// those barriers are found.
    pub fn barrier(&mut self) {
        self.is_barred |= self.hazards.clear();
    }

    /// Hands the recording to the queue and returns at once. Errors: a fault of the driver, `DeviceLost`, `OutOfMemory`.
    pub fn commit(self) -> Result<Submission> {
        let device = self.device.clone();
        let index = submit(&device, &self.dispatches, None)?;
        Ok(Submission { device, index })
    }

    /// The same, and waits until it is done.
    pub fn commit_and_wait(self) -> Result<()> {
        self.commit()?.wait()
    }

    /// The same, and returns how long the device worked on it, from its first kernel's start to its last kernel's end.
    ///
    /// Errors: also `InvalidArgument` where the device has no timestamps.
    pub fn commit_and_wait_timed(self) -> Result<Duration> {
        let op = OpName::from("commit_and_wait_timed");
        let device = &self.device;
        if !device.has_feature("timestamps") {
            return Err(Error::invalid(op, "device", device.name(), "it has no timestamps; measure on the host"));
        }
        if self.dispatches.is_empty() {
            return Ok(Duration::ZERO);
        }
        let inner = &device.0;
        let queries = device.scoped(&op, || {
            inner.raw.create_query_set(&wgpu::QuerySetDescriptor { label: None, ty: wgpu::QueryType::Timestamp, count: 2 })
        })?;
        let ticks = device.alloc_buffer(16, bilin_core::DType::I64, [2])?;
        let resolved = device.scoped(&op, || {
            inner.raw.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: 16,
                usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
                mapped_at_creation: false,
            })
        })?;
        let index = submit(device, &self.dispatches, Some(&queries))?;
        device.scoped(&op, || {
            let mut encoder = inner.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.resolve_query_set(&queries, 0..2, &resolved, 0);
            encoder.copy_buffer_to_buffer(&resolved, 0, &ticks.memory.raw, 0, 16);
            inner.queue.submit([encoder.finish()]);
        })?;
        Submission { device: device.clone(), index }.wait()?;
        let [start, end] = ticks.read::<i64>()?[..] else { return Ok(Duration::ZERO) };
        let nanoseconds = end.wrapping_sub(start).max(0) as f64 * f64::from(inner.queue.get_timestamp_period());
        Ok(Duration::from_secs_f64(nanoseconds * 1e-9))
    }
}

/// Bind groups and the constants' buffer of a recording; they can be used again for the same recording.
pub(crate) struct Bound {
    groups: Vec<wgpu::BindGroup>,
    constants: Option<(wgpu::Buffer, wgpu::BindGroup, Vec<u32>)>,
}

fn resource(b: &GpuBuffer) -> wgpu::BindingResource<'_> {
    // A kernel sees whole words.
    let size = std::num::NonZeroU64::new((b.range().end - b.range().start).next_multiple_of(4));
    wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer: &b.memory.raw, offset: b.range().start, size })
}

impl Bound {
    pub(crate) fn new(device: &GpuDevice, dispatches: &[Dispatch]) -> Bound {
        let inner = &device.0;
        let group = |d: &Dispatch| {
            let entries: Vec<wgpu::BindGroupEntry<'_>> = (d.kernel.bindings.iter().zip(&d.buffers))
                .map(|((binding, _), b)| wgpu::BindGroupEntry { binding: *binding, resource: resource(b) })
                .collect();
            inner.raw.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &d.kernel.layout, entries: &entries })
        };
        let groups = dispatches.iter().map(group).collect();
        Bound { groups, constants: constants_of(device, dispatches) }
    }
}

fn constants_of(device: &GpuDevice, dispatches: &[Dispatch]) -> Option<(wgpu::Buffer, wgpu::BindGroup, Vec<u32>)> {
    let inner = &device.0;
    let slot = ((CONSTANT_WORDS * 4) as u32).next_multiple_of(inner.limits.min_uniform_buffer_offset_alignment) as usize;
    let mut words: Vec<u32> = Vec::new();
    let mut offsets = Vec::with_capacity(dispatches.len());
    for d in dispatches {
        offsets.push((words.len() * 4) as u32);
        if !d.constants.is_empty() {
            let start = words.len();
            words.extend_from_slice(&d.constants);
            words.resize(start + slot / 4, 0);
        }
    }
    if words.is_empty() {
        return None;
    }
    let buffer = inner.raw.create_buffer(&wgpu::BufferDescriptor {
        label: Some("constants"),
        size: (words.len() * 4) as u64,
        usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    inner.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(&words));
    let group = inner.raw.create_bind_group(&wgpu::BindGroupDescriptor {
        label: Some("constants"),
        layout: &inner.constants_layout,
        entries: &[wgpu::BindGroupEntry {
            binding: 0,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &buffer,
                offset: 0,
                size: std::num::NonZeroU64::new((CONSTANT_WORDS * 4) as u64),
            }),
        }],
    });
    Some((buffer, group, offsets))
}

fn submit(device: &GpuDevice, dispatches: &[Dispatch], queries: Option<&wgpu::QuerySet>) -> Result<Option<wgpu::SubmissionIndex>> {
    let bound = device.scoped(&"commit".into(), || Bound::new(device, dispatches))?;
    run(device, dispatches, &bound, queries)
}

/// Submits a recording; `None` where it is empty.
pub(crate) fn run(
    device: &GpuDevice,
    dispatches: &[Dispatch],
    bound: &Bound,
    queries: Option<&wgpu::QuerySet>,
) -> Result<Option<wgpu::SubmissionIndex>> {
    let op = OpName::from("commit");
    device.0.counts.commits.fetch_add(1, Relaxed);
    if dispatches.is_empty() {
        device.check(&op)?;
        return Ok(None);
    }
    device.scoped(&op, || {
        let mut encoder = device.0.raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut start = 0;
        while start < dispatches.len() {
            let end = (start + 1..dispatches.len()).find(|&i| dispatches[i].waits).unwrap_or(dispatches.len());
            let timestamp_writes = queries.map(|query_set| wgpu::ComputePassTimestampWrites {
                query_set,
                beginning_of_pass_write_index: (start == 0).then_some(0),
                end_of_pass_write_index: (end == dispatches.len()).then_some(1),
            });
            // A pass in the middle writes no timestamp, and such a pass must not name the queries.
            let timestamp_writes = timestamp_writes.filter(|_| start == 0 || end == dispatches.len());
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
            for (i, d) in dispatches.iter().enumerate().take(end).skip(start) {
                pass.set_pipeline(&d.kernel.pipeline);
                pass.set_bind_group(0, &bound.groups[i], &[]);
                if let Some((_, group, offsets)) = bound.constants.as_ref().filter(|_| d.kernel.has_constants) {
                    pass.set_bind_group(1, group, &offsets[i..=i]);
                }
                pass.dispatch_workgroups(d.grid[0], d.grid[1], d.grid[2]);
            }
            drop(pass);
            start = end;
        }
        Some(device.0.queue.submit([encoder.finish()]))
    })
}

impl Submission {
    pub(crate) fn new(device: &GpuDevice, index: Option<wgpu::SubmissionIndex>) -> Submission {
        Submission { device: device.clone(), index }
    }
}

impl std::fmt::Debug for CommandEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CommandEncoder({:?}, {} dispatches)", self.device, self.dispatches.len())
    }
}

impl CommandEncoder {
    pub(crate) fn device(&self) -> &GpuDevice {
        &self.device
    }
}
