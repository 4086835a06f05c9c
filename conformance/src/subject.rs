//! The device that the suite runs on.

use bilin::{DType, Device, Devices as _, use_deterministic_algorithms};
use bilin_core::exec::order::PAIRED_FROM;

/// The device under test: the CPU, or the one that `CONFORMANCE_DEVICE` names, such as `wgpu:0`.
pub fn device() -> Device {
    match std::env::var("CONFORMANCE_DEVICE") {
        Ok(name) => Device::parse(&name).unwrap_or_else(|e| panic!("CONFORMANCE_DEVICE: {e}")),
        Err(_) => Device::cpu(),
    }
}

/// The device under test once more, with memory that no other test counts.
pub fn own_device() -> Device {
    let device = device();
    #[cfg(feature = "wgpu")]
    if let Some(index) = device.name().strip_prefix("wgpu:") {
        return bilin::gpu::open_device(index.parse().expect("an index")).expect("the device again");
    }
    assert!(device == Device::cpu(), "{device}: say how it is opened again");
    Device::new("own", Box::new(bilin_cpu::CpuBackend::new()))
}

/// The device under test, and beside the CPU the reference of plain loops.
pub fn devices() -> Vec<Device> {
    let device = device();
    let reference = (device == Device::cpu()).then(Device::reference);
    std::iter::once(device).chain(reference).collect()
}

/// Whether a device promises the bits of the reference; others promise its results within the error bound, and their own bits
/// again for the same call.
pub fn has_reference_bits(device: &Device) -> bool {
    matches!(device.backend().name(), "cpu" | "reference")
}

/// Whether a device adds this many terms of products of two bf16 operands in the order of a tile unit (docs/adr/0005).
pub fn has_order_of_tiles(device: &Device, terms: usize) -> bool {
    device.backend().name() == "cpu" && terms >= PAIRED_FROM && bilin_cpu::kernel_names().contains(&"amx-bf16-tiles")
}

/// Those of `list` that the device under test has.
pub fn having(list: impl IntoIterator<Item = DType>) -> Vec<DType> {
    let device = device();
    list.into_iter().filter(|d| device.backend().has_dtype(*d)).collect()
}

/// The widest floating and complex dtypes of the device under test.
pub fn widest() -> Vec<DType> {
    let double = having([DType::F64, DType::C128]);
    if double.is_empty() { having([DType::F32, DType::C64]) } else { double }
}

/// The widest floating dtype of the device under test.
pub fn widest_float() -> DType {
    widest()[0]
}

/// All of `list`, or its last alone on a device where every call is launched and waited for.
pub fn few<T>(list: &[T]) -> &[T] {
    if has_reference_bits(&device()) { list } else { &list[list.len().saturating_sub(1)..] }
}

/// On this thread bits don't depend on the size of a batch; the CPU's never do.
pub fn fix_batches() {
    use_deterministic_algorithms(!has_reference_bits(&device()));
}
