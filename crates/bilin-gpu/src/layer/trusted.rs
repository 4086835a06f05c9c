//! The one room of unsafe code: shader modules without run-time checks, and features that wgpu calls experimental.

use wgpu::{Device, ExperimentalFeatures, ShaderModule, ShaderModuleDescriptor, ShaderRuntimeChecks};

/// Compiles a module of this crate without bounds checks, loop bounds and checks of divisors: on one card the checks of
/// bounds alone cost 14 times the run.
///
/// Only sources of this crate come here. Each takes its bounds from numbers that the host side has checked against the
/// buffers it binds (a dispatch names the kernel and the check), never from the contents of a buffer; tests run every
/// kernel between guard bands.
pub(crate) fn module(device: &Device, descriptor: ShaderModuleDescriptor<'_>) -> ShaderModule {
    // SAFETY: the kernels of this crate compute every index from sizes that the host checked, end every loop, and divide
    // by numbers that the host checked to be positive, as described above.
    unsafe { device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked()) }
}

/// Leave to ask a device for experimental features: matrix units are the only one that is asked for.
pub(crate) fn experiments() -> ExperimentalFeatures {
    // SAFETY: wgpu asks that what it doesn't check be used right. Matrices of matrix units stand in sources of this crate
    // alone (others that name them are refused), in uniform control flow, over shared memory that holds their 16 lines.
    unsafe { ExperimentalFeatures::enabled() }
}
