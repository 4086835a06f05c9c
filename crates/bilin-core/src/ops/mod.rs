//! `apply`, the one road from user to kernel, and the ops: schema, checks, evaluation and derivatives of each in one place.

mod apply;
mod cast;
mod contract;
mod einsum;
mod elementwise;
mod in_place;
mod index;
mod layer_norm;
mod product;
mod reduce;
mod registry;
mod select;
mod softmax;
mod view;
mod vmap;

pub(crate) use apply::{Add, push_forward, run_vjp, run_vjp_onto};
pub use apply::{apply, apply_one};
pub(crate) use cast::{astype, contiguous};
pub use contract::ProductOptions;
pub use einsum::{EinsumPath, einsum, einsum_path, einsum_with};
pub use index::{concat, stack};
pub use product::{Axes, dot, inner, matmul, matmul_with_vectors, matvec, outer, tensordot, tensordot_with, vecdot, vecdot_axis, vecmat};
pub use reduce::Over;
pub use registry::{Attrs, OpEntry, Sample, Values, entries, op_call, op_lookup, op_register, op_registry_all};
pub use view::Index;
pub(crate) use vmap::{each_lane, unstack};

/// The entries of each file of ops.
static ENTRIES: &[&[OpEntry]] = &[
    product::ENTRIES,
    einsum::ENTRIES,
    view::ENTRIES,
    elementwise::UNARY,
    elementwise::SLOPE,
    elementwise::BINARY,
    elementwise::COMPARE,
    select::ENTRIES,
    reduce::ENTRIES,
    softmax::ENTRIES,
    layer_norm::ENTRIES,
    index::ENTRIES,
    cast::ENTRIES,
];
