//! bilin: differentiable matrix products, right for every shape, stride and dtype, and reproducible to the bit.
//!
//! The facade, the only crate that users name.
//!
//! ```
//! use bilin::prelude::*;
//! let dev = Device::cpu();
//! let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2], &dev)?;
//! let w = Tensor::from_slice(&[0.5f32, -1.], [2, 1], &dev)?.requires_grad_(true)?;
//! let loss = x.matmul(&w)?.tanh()?.sum(.., false)?;
//! loss.backward()?;
//! assert_eq!(w.grad().unwrap().shape(), [2, 1]);
//! # Ok::<(), bilin::Error>(())
//! ```

pub mod amp;
mod device;
pub mod io;
pub mod optim;

pub use bilin_core::schema::profiler;
pub use bilin_core::{
    AmpPolicy, Arity, Axes, Backend, Conj, DType, Device, Dims, EinsumPath, Element, Error, Index, Kind, Layout, MapExpr, MemoryStats,
    Node, Op, OpSchema, Over, Precision, Prim, ProductOptions, Result, Rng, ShapeFault, Strides, Tensor, apply,
    are_deterministic_algorithms_enabled, autograd, c64, c128, concat, dot, einsum, einsum_path, einsum_with, enable_grad, exec, inner,
    is_grad_enabled, matmul, matvec, no_grad, op_call, op_lookup, op_register, op_registry_all, ops, outer, round_to_odd, schema_hash,
    set_grad_enabled, shape_text, stack, tape, tensordot, tensordot_with, use_deterministic_algorithms, vecdot, vecmat,
};
#[cfg(feature = "cpu")]
pub use bilin_cpu::{num_threads, set_num_threads};
#[cfg(feature = "wgpu")]
pub use bilin_gpu as gpu;
pub use device::{DeviceInfo, Devices, memory_stats, reset_peak_memory_stats, set_memory_limit};
pub use half::{bf16, f16};

/// What most programs use.
pub mod prelude {
    pub use crate::amp::autocast;
    pub use crate::device::Devices as _;
    pub use crate::{
        Axes, DType, Device, Element, Error, Index, Over, ProductOptions, Result, Rng, Tensor, bf16, c64, c128, einsum, f16, no_grad,
    };
}

/// The snippets of the pages are tests; `conformance/tests/pages.rs` sees that none is left out.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/mixed-precision.md")]
    mod mixed_precision {}
    #[doc = include_str!("../../../docs/profiling.md")]
    mod profiling {}
    #[cfg(feature = "wgpu")]
    #[doc = include_str!("../../../docs/gpu.md")]
    mod gpu {}
}
