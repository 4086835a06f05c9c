//! Adapters and the device opened on one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bilin_core::{DType, Error, OpName, Result};

use super::buffer::GpuBuffer;
use super::encoder::CommandEncoder;

/// Environment variable that chooses the adapter: its index in [`adapters`], or part of its name.
pub const ADAPTER_VARIABLE: &str = "BILIN_WGPU_ADAPTER";

/// What one adapter is.
#[derive(Debug, Clone)]
pub struct AdapterSummary {
    /// As the driver names it.
    pub name: String,
    /// `discrete`, `integrated`, `virtual`, `cpu` or `other`.
    pub kind: &'static str,
    /// `vulkan`, `metal` or `dx12`.
    pub api: String,
    /// The driver and its version.
    pub driver: String,
    /// Most bytes of one buffer.
    pub max_buffer_bytes: u64,
    /// Most bytes that a kernel sees of one buffer.
    pub max_binding_bytes: u64,
    /// Most workgroups along one dimension of a dispatch.
    pub max_groups: u32,
    /// Bytes of memory that a workgroup shares.
    pub max_workgroup_bytes: u32,
    /// Optional features that kernels here can use: `f16`, `i64`, `f64`, `timestamps`, `subgroups`; and `matrix-units`, which
    /// multiply 16 × 16 blocks of f16 and add in f32, 32 invocations together.
    pub features: Vec<&'static str>,
}

/// How to open a device.
#[derive(Debug, Clone, Default)]
pub struct GpuOptions {
    /// Index in [`adapters`]; by default what `BILIN_WGPU_ADAPTER` says, else the first.
    pub adapter: Option<usize>,
    /// Binds no more than this at a time, where it is less than the device's limit: kernels then go through a large
    /// buffer in windows, as they must for buffers beyond the limit.
    pub max_binding_bytes: Option<u64>,
    /// Holds no more than this in one buffer, likewise.
    pub max_buffer_bytes: Option<u64>,
    /// Starts no more workgroups than this along one dimension, likewise: kernels then stride over what doesn't fit.
    pub max_groups: Option<u32>,
}

/// What a device did since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Kernels recorded.
    pub dispatches: u64,
    /// Submissions to the queue.
    pub commits: u64,
    /// Barriers, found or asked for.
    pub barriers: u64,
    /// Pipelines compiled.
    pub compiles: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub dispatches: AtomicU64,
    pub commits: AtomicU64,
    pub barriers: AtomicU64,
    pub compiles: AtomicU64,
    pub current_bytes: AtomicU64,
    pub peak_bytes: AtomicU64,
}

/// A device and its one queue. Clones are the same device; threads may share it.
///
/// Work runs in the order of its commits. Memory that is read or written by the host takes its place in that order, so it
/// can't race with a kernel.
#[derive(Clone)]
pub struct GpuDevice(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub id: u64,
    pub summary: AdapterSummary,
    pub raw: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    pub counts: Counts,
    /// Layout of the group that carries the numbers of a dispatch.
    pub constants_layout: wgpu::BindGroupLayout,
    fault: Arc<Fault>,
}

/// What went wrong outside of a call.
#[derive(Default)]
struct Fault {
    lost: OnceLock<String>,
    first: Mutex<Option<String>>,
}

/// Most words that travel with a dispatch.
pub(crate) const CONSTANT_WORDS: usize = 128;

fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle()))
}

/// The turn of a thread that asks drivers for adapters or a device: twelve threads that did at once waited in NVIDIA's for
/// each other, for good.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adapters, the most capable first: discrete cards, then integrated and virtual ones, then software.
fn raw_adapters() -> Vec<wgpu::Adapter> {
    let mut all = pollster::block_on(instance().enumerate_adapters(wgpu::Backends::PRIMARY));
    all.sort_by_key(|a| match a.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Cpu => 4,
        wgpu::DeviceType::Other => 3,
    });
    all
}

/// Whether matrix units multiply 16 × 16 blocks of f16 and add in f32, and 32 invocations always run together.
fn has_matrix_units(adapter: &wgpu::Adapter) -> bool {
    use wgpu::CooperativeScalarType::{F16, F32};
    let info = adapter.get_info();
    let features = wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX | wgpu::Features::SHADER_F16;
    let blocks = adapter.cooperative_matrix_properties();
    let fits = blocks.iter().any(|b| [b.m_size, b.n_size, b.k_size] == [16; 3] && (b.ab_type, b.cr_type) == (F16, F32));
    adapter.features().contains(features) && [info.subgroup_min_size, info.subgroup_max_size] == [32; 2] && fits
}

fn summary(adapter: &wgpu::Adapter, limits: &wgpu::Limits) -> AdapterSummary {
    let (info, features) = (adapter.get_info(), adapter.features());
    let named = [
        (wgpu::Features::SHADER_F16, "f16"),
        (wgpu::Features::SHADER_INT64, "i64"),
        (wgpu::Features::SHADER_F64, "f64"),
        (wgpu::Features::TIMESTAMP_QUERY, "timestamps"),
        (wgpu::Features::SUBGROUP, "subgroups"),
    ];
    AdapterSummary {
        name: info.name,
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => "discrete",
            wgpu::DeviceType::IntegratedGpu => "integrated",
            wgpu::DeviceType::VirtualGpu => "virtual",
            wgpu::DeviceType::Cpu => "cpu",
            wgpu::DeviceType::Other => "other",
        },
        api: info.backend.to_string(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        max_buffer_bytes: limits.max_buffer_size,
        max_binding_bytes: limits.max_storage_buffer_binding_size,
        max_groups: limits.max_compute_workgroups_per_dimension,
        max_workgroup_bytes: limits.max_compute_workgroup_storage_size,
        features: (named.into_iter().filter(|(f, _)| features.contains(*f)).map(|(_, n)| n))
            .chain(has_matrix_units(adapter).then_some("matrix-units"))
            .collect(),
    }
}

/// What can be opened here, in the order of [`GpuDevice::open`]'s index.
pub fn adapters() -> Vec<AdapterSummary> {
    let _turn = turn();
    raw_adapters().iter().map(|a| summary(a, &a.limits())).collect()
}

/// Index of the adapter that a caller's `index` chooses, else the environment's `variable`: an index, or part of a name in any
/// case. By default the first.
fn choose(names: &[String], index: Option<usize>, variable: Option<&str>) -> Result<usize> {
    if names.is_empty() {
        let want = "install a Vulkan driver (Metal and DX12 come with the system), or use the device cpu";
        return Err(Error::invalid("wgpu", "adapter", "none: this machine has no adapter", want));
    }
    let (found, got) = match (index, variable) {
        (Some(index), _) => (Some(index), index.to_string()),
        (None, None) => (Some(0), String::new()),
        (None, Some(text)) => {
            let by_name = || names.iter().position(|n| n.to_lowercase().contains(&text.to_lowercase()));
            (text.parse().ok().or_else(by_name), text.to_owned())
        }
    };
    found.filter(|&i| i < names.len()).ok_or_else(|| {
        let all: Vec<String> = names.iter().enumerate().map(|(i, n)| format!("{i} {n}")).collect();
        Error::invalid("wgpu", "adapter", got, format!("want one of: {}", all.join(", ")))
    })
}

impl GpuDevice {
    /// The adapter that `BILIN_WGPU_ADAPTER` names by index or by part of its name; without it the first of [`adapters`].
    ///
    /// Errors: `InvalidArgument` where there is no adapter, or none that fits the variable.
    ///
    /// ```
    /// let device = bilin_gpu::GpuDevice::new()?;
    /// assert!(device.limits().max_groups >= 65_535);
    /// # Ok::<(), bilin_core::Error>(())
    /// ```
    pub fn new() -> Result<GpuDevice> {
        GpuDevice::with_options(&GpuOptions::default())
    }

    /// The adapter at `index` of [`adapters`]. Errors: `InvalidArgument` naming what there is.
    pub fn open(index: usize) -> Result<GpuDevice> {
        GpuDevice::with_options(&GpuOptions { adapter: Some(index), ..Default::default() })
    }

    /// A device as `options` say.
    pub fn with_options(options: &GpuOptions) -> Result<GpuDevice> {
        let _turn = turn();
        let all = raw_adapters();
        let names: Vec<String> = all.iter().map(|a| a.get_info().name).collect();
        let adapter = &all[choose(&names, options.adapter, std::env::var(ADAPTER_VARIABLE).ok().as_deref())?];
        let mut wanted = wgpu::Features::SHADER_F16
            | wgpu::Features::SHADER_INT64
            | wgpu::Features::SHADER_F64
            | wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::SUBGROUP;
        if has_matrix_units(adapter) {
            wanted |= wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX;
        }
        let mut limits = adapter.limits();
        let lower = |limit: &mut u64, most: Option<u64>| *limit = (*limit).min(most.unwrap_or(u64::MAX));
        lower(&mut limits.max_storage_buffer_binding_size, options.max_binding_bytes);
        lower(&mut limits.max_buffer_size, options.max_buffer_bytes);
        let groups = &mut limits.max_compute_workgroups_per_dimension;
        *groups = (*groups).min(options.max_groups.unwrap_or(u32::MAX));
        let summary = summary(adapter, &limits);
        let opened = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("bilin"),
            required_features: adapter.features() & wanted,
            required_limits: limits.clone(),
            experimental_features: super::trusted::experiments(),
            ..Default::default()
        }));
        let (raw, queue) = opened.map_err(|e| Error::DeviceLost { device: summary.name.clone(), message: e.to_string() })?;
        let fault = Arc::new(Fault::default());
        let (first, lost) = (Arc::clone(&fault), Arc::clone(&fault));
        raw.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
            first.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| e.to_string());
        }));
        raw.set_device_lost_callback(move |reason, message| {
            lost.lost.get_or_init(|| format!("{reason:?}: {message}"));
        });
        let constants_layout = raw.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("constants"),
            entries: &[wgpu::BindGroupLayoutEntry {
                binding: 0,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer { ty: wgpu::BufferBindingType::Uniform, has_dynamic_offset: true, min_binding_size: None },
                count: None,
            }],
        });
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Relaxed);
        let counts = Counts::default();
        Ok(GpuDevice(Arc::new(Inner { id, summary, raw, queue, limits, counts, constants_layout, fault })))
    }

    /// The adapter it was opened on, its limits and its features.
    pub fn limits(&self) -> &AdapterSummary {
        &self.0.summary
    }

    /// As the driver names it.
    pub fn name(&self) -> &str {
        &self.0.summary.name
    }

    /// Whether kernels here may use a feature by the name that [`AdapterSummary::features`] has for it.
    pub fn has_feature(&self, name: &str) -> bool {
        self.0.summary.features.contains(&name)
    }

    /// What it did so far.
    pub fn counters(&self) -> Counters {
        let c = &self.0.counts;
        Counters {
            dispatches: c.dispatches.load(Relaxed),
            commits: c.commits.load(Relaxed),
            barriers: c.barriers.load(Relaxed),
            compiles: c.compiles.load(Relaxed),
        }
    }

    /// Zero-filled memory of at least `byte_len` bytes for a row-major tensor of `shape`.
    ///
    /// Errors: `InvalidArgument` where `shape` needs more than `byte_len` or the device holds less in one buffer (size and
    /// limit are named), `OutOfMemory`, `DeviceLost`.
    pub fn alloc_buffer(&self, byte_len: usize, dtype: DType, shape: impl AsRef<[usize]>) -> Result<GpuBuffer> {
        GpuBuffer::alloc(self, byte_len, dtype, shape.as_ref())
    }

    /// A recording of work for this device.
    pub fn command_encoder(&self) -> CommandEncoder {
        CommandEncoder::new(self)
    }

    /// Waits until everything committed is done. Errors: the first fault since the last call, `DeviceLost`.
    pub fn wait(&self) -> Result<()> {
        let polled = self.0.raw.poll(wgpu::PollType::wait_indefinitely());
        self.check(&"wait".into())?;
        match polled {
            Ok(_) => Ok(()),
            Err(e) => Err(self.lost(e.to_string())),
        }
    }

    /// Gives the adapter up: what uses this device from now on is `DeviceLost`. The process and other devices go on.
    pub fn close(&self) {
        self.0.fault.lost.get_or_init(|| "closed".to_owned());
        self.0.raw.destroy();
    }

    pub(crate) fn is_same(&self, other: &GpuDevice) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn lost(&self, message: String) -> Error {
        Error::DeviceLost { device: self.name().to_owned(), message }
    }

    /// `DeviceLost`, or the first fault that no call has reported.
    pub(crate) fn check(&self, op: &OpName) -> Result<()> {
        if let Some(message) = self.0.fault.lost.get() {
            return Err(self.lost(message.clone()));
        }
        match self.0.fault.first.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(message) => Err(Error::invalid(op.clone(), "command", message, "the driver refused it")),
            None => Ok(()),
        }
    }

    /// Runs `make` and returns what it made, or what the driver said against it.
    pub(crate) fn scoped<T>(&self, op: &OpName, make: impl FnOnce() -> T) -> Result<T> {
        self.check(op)?;
        let memory = self.0.raw.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = self.0.raw.push_error_scope(wgpu::ErrorFilter::Validation);
        let internal = self.0.raw.push_error_scope(wgpu::ErrorFilter::Internal);
        let made = make();
        let faults = [internal.pop(), validation.pop()].map(pollster::block_on);
        let no_room = pollster::block_on(memory.pop());
        self.check(op)?;
        if no_room.is_some() {
            return Err(self.out_of_memory(0));
        }
        match faults.into_iter().flatten().next() {
            Some(fault) => Err(Error::invalid(op.clone(), "command", fault, "the driver refused it")),
            None => Ok(made),
        }
    }

    pub(crate) fn out_of_memory(&self, requested_bytes: u64) -> Error {
        Error::OutOfMemory {
            device: self.name().to_owned(),
            requested_bytes,
            current_bytes: self.0.counts.current_bytes.load(Relaxed),
            peak_bytes: self.0.counts.peak_bytes.load(Relaxed),
            limit_bytes: None,
        }
    }
}

impl fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuDevice({})", self.name())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a check fails")]
    use super::choose;

    #[test]
    fn an_adapter_is_chosen_by_index_else_by_the_variable_else_it_is_the_first() {
        let names = ["Apple M4".to_owned(), "NVIDIA H200".to_owned()];
        assert_eq!(choose(&names, None, None).unwrap(), 0);
        assert_eq!(choose(&names, None, Some("1")).unwrap(), 1);
        assert_eq!(choose(&names, None, Some("nvidia")).unwrap(), 1);
        assert_eq!(choose(&names, Some(0), Some("nvidia")).unwrap(), 0, "a caller's index rules");
        let text = |index, variable| choose(&names, index, variable).unwrap_err().to_string();
        assert_eq!(text(Some(2), None), "wgpu: adapter is 2; want one of: 0 Apple M4, 1 NVIDIA H200");
        assert_eq!(text(None, Some("radeon")), "wgpu: adapter is radeon; want one of: 0 Apple M4, 1 NVIDIA H200");
        let none = choose(&[], None, None).unwrap_err().to_string();
        assert!(none.starts_with("wgpu: adapter is none: this machine has no adapter; install a Vulkan driver"), "{none}");
    }
}
