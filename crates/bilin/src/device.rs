//! The devices that this build has.

use std::sync::OnceLock;

use bilin_core::{DType, Device, Error, MemoryStats, Result};

/// What a device is, or why it is absent.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// As [`Devices::parse`] takes it.
    pub name: String,
    /// `cpu`, `wgpu`, …
    pub backend: &'static str,
    /// Dtypes that can live there.
    pub dtypes: Vec<DType>,
    /// Names of its contraction kernels, best first.
    pub kernels: Vec<&'static str>,
    /// What it runs on, as its driver says; `None` where there is no driver.
    pub adapter: Option<String>,
    /// What bounds a call there, by name: bytes, or workgroups.
    pub limits: Vec<(&'static str, u64)>,
    /// Why it can't be used; `None` where it can.
    pub absent: Option<String>,
}

/// Constructors of [`Device`]; in scope with the prelude.
pub trait Devices: Sized {
    /// The CPU.
    #[cfg(feature = "cpu")]
    fn cpu() -> Self;
    /// The adapter at `index` of [`gpu::adapters`](crate::gpu::adapters), opened once in a process. Errors: `InvalidArgument`
    /// naming the adapters there are, `DeviceLost`.
    #[cfg(feature = "wgpu")]
    fn wgpu(index: usize) -> Result<Self>;
    /// `cpu`, `reference`, or with the feature `wgpu` also `wgpu` or `wgpu:1`. Errors: `InvalidArgument` naming what there is.
    fn parse(name: &str) -> Result<Self>;
    /// Every device of this build, and why others are absent.
    fn available() -> Vec<DeviceInfo>;
}

impl Devices for Device {
    #[cfg(feature = "cpu")]
    fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| Device::lasting("cpu", Box::new(bilin_cpu::CpuBackend::new()))).clone()
    }

    #[cfg(feature = "wgpu")]
    fn wgpu(index: usize) -> Result<Device> {
        use std::collections::BTreeMap;
        use std::sync::{Mutex, PoisonError};
        static OPEN: Mutex<BTreeMap<usize, Device>> = Mutex::new(BTreeMap::new());
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = open.get(&index) {
            return Ok(device.clone());
        }
        let device = bilin_gpu::open_device(index)?;
        open.insert(index, device.clone());
        Ok(device)
    }

    fn parse(name: &str) -> Result<Device> {
        #[cfg(feature = "wgpu")]
        if let Some(index) = match name.strip_prefix("wgpu") {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix(':').and_then(|i| i.parse().ok()),
            None => None,
        } {
            return Device::wgpu(index);
        }
        match name {
            #[cfg(feature = "cpu")]
            "cpu" => Ok(Device::cpu()),
            "reference" => Ok(Device::reference()),
            _ => Err(Error::invalid("device", "name", name, names())),
        }
    }

    fn available() -> Vec<DeviceInfo> {
        let info = |device: Device| DeviceInfo {
            name: device.name().to_owned(),
            backend: device.backend().name(),
            dtypes: DType::ALL.into_iter().filter(|d| device.backend().has_dtype(*d)).collect(),
            kernels: device.backend().kernels(),
            adapter: None,
            limits: Vec::new(),
            absent: None,
        };
        let absent = |backend: &'static str| DeviceInfo {
            name: backend.to_owned(),
            backend,
            dtypes: Vec::new(),
            kernels: Vec::new(),
            adapter: None,
            limits: Vec::new(),
            absent: Some("this build has no such backend".to_owned()),
        };
        let mut all = Vec::from([
            #[cfg(feature = "cpu")]
            info(Device::cpu()),
            info(Device::reference()),
        ]);
        #[cfg(feature = "wgpu")]
        {
            let adapters = bilin_gpu::adapters();
            if adapters.is_empty() {
                all.push(DeviceInfo { absent: Some("no adapter: install a Vulkan driver".to_owned()), ..absent("wgpu") });
            }
            for (index, a) in adapters.iter().enumerate() {
                all.push(match Device::wgpu(index) {
                    Ok(device) => DeviceInfo {
                        adapter: Some(format!("{} ({}, {})", a.name, a.api, a.driver)),
                        limits: Vec::from([
                            ("buffer bytes", a.max_buffer_bytes),
                            ("binding bytes", a.max_binding_bytes),
                            ("workgroup bytes", a.max_workgroup_bytes.into()),
                            ("workgroups an axis", a.max_groups.into()),
                        ]),
                        ..info(device)
                    },
                    Err(e) => DeviceInfo { name: format!("wgpu:{index}"), absent: Some(e.to_string()), ..absent("wgpu") },
                });
            }
        }
        all.extend([
            #[cfg(not(feature = "wgpu"))]
            absent("wgpu"),
            absent("cuda"),
        ]);
        all
    }
}

fn names() -> &'static str {
    if cfg!(feature = "wgpu") { "this build has cpu, reference and wgpu:0, wgpu:1, …" } else { "this build has cpu and reference" }
}

/// What lives on a device.
pub fn memory_stats(device: &Device) -> MemoryStats {
    device.memory_stats()
}

/// Lets a device's peak start again from what is in use now.
pub fn reset_peak_memory_stats(device: &Device) {
    device.reset_peak_memory_stats();
}

/// Refuses allocations that would pass `limit_bytes` with `OutOfMemory`; `None` lifts it.
pub fn set_memory_limit(device: &Device, limit_bytes: Option<u64>) {
    device.set_memory_limit(limit_bytes);
}
