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
    /// Why it can't be used; `None` where it can.
    pub absent: Option<String>,
}

/// Constructors of [`Device`]; in scope with the prelude.
pub trait Devices: Sized {
    /// The CPU.
    #[cfg(feature = "cpu")]
    fn cpu() -> Self;
    /// `cpu` or `reference`. Errors: `InvalidArgument` naming what there is.
    fn parse(name: &str) -> Result<Self>;
    /// Every device of this build, and why others are absent.
    fn available() -> Vec<DeviceInfo>;
}

impl Devices for Device {
    #[cfg(feature = "cpu")]
    fn cpu() -> Device {
        static CPU: OnceLock<Device> = OnceLock::new();
        CPU.get_or_init(|| Device::new("cpu", Box::new(bilin_cpu::CpuBackend::new()))).clone()
    }

    fn parse(name: &str) -> Result<Device> {
        match name {
            #[cfg(feature = "cpu")]
            "cpu" => Ok(Device::cpu()),
            "reference" => Ok(Device::reference()),
            _ => Err(Error::invalid("device", "name", name, "this build has cpu and reference")),
        }
    }

    fn available() -> Vec<DeviceInfo> {
        let info = |device: Device| DeviceInfo {
            name: device.name().to_owned(),
            backend: device.backend().name(),
            dtypes: DType::ALL.into_iter().filter(|d| device.backend().has_dtype(*d)).collect(),
            kernels: device.backend().kernels(),
            absent: None,
        };
        let absent = |backend: &'static str| DeviceInfo {
            name: backend.to_owned(),
            backend,
            dtypes: Vec::new(),
            kernels: Vec::new(),
            absent: Some("this build has no such backend".to_owned()),
        };
        let mut all = Vec::new();
        #[cfg(feature = "cpu")]
        all.push(info(Device::cpu()));
        all.push(info(Device::reference()));
        all.extend(["wgpu", "cuda"].map(absent));
        all
    }
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
