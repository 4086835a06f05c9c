//! GPU kernels of bilin: a thin, safe layer for kernels of one's own, three outer-product kernels, and the engine's wgpu
//! backend, which is built on nothing else. Shaders are WGSL, so one source reaches Vulkan, Metal and DX12.
//!
//! The layer: [`GpuDevice`] opens an adapter, [`GpuBuffer`] is typed memory on it, [`BufferPool`] recycles memory,
//! [`KernelRegistry`] holds sources and compiles each once, [`CommandEncoder`] records dispatches and finds the barriers
//! between them, [`Graph`] replays a recording. `docs/gpu-kernels.md` shows a user's own kernel from source to result.

mod backend;
mod layer;
mod outer_product;

pub use backend::{WgpuBackend, check_kernels, open_device};
pub use layer::buffer::GpuBuffer;
pub use layer::device::{AdapterSummary, Counters, GpuDevice, GpuOptions, adapters};
pub use layer::encoder::{CommandEncoder, Submission};
pub use layer::graph::Graph;
pub use layer::kernel::{Access, Kernel};
pub use layer::pool::{BufferPool, PoolStats};
pub use layer::registry::KernelRegistry;
pub use outer_product::{dispatch_outer_product_backward_lhs_f32, dispatch_outer_product_backward_rhs_f32, dispatch_outer_product_f32};
