//! The engine of bilin: every product is one primitive, `contract`, over labelled axes; its gradients are again `contract`;
//! backends only run plans.
//!
//! Modules stand from the bottom up; imports only go down: `shape`, `einsum`, `exec`, `schema`, `tape`, `ops`, `api`,
//! `autograd`.

#![forbid(unsafe_code)]

pub mod api;
pub mod autograd;
pub mod einsum;
pub mod exec;
pub mod ops;
pub mod schema;
pub mod shape;
pub mod tape;

pub use api::Rng;
pub use exec::backend::Backend;
pub use exec::call::{Conj, Precision};
pub use exec::device::{Device, MemoryStats};
pub use exec::map_expr::{MapExpr, Prim};
pub use ops::{
    Axes, EinsumPath, Index, Over, ProductOptions, apply, concat, dot, einsum, einsum_path, einsum_with, inner, matmul, matvec, op_call,
    op_lookup, op_register, op_registry_all, outer, stack, tensordot, tensordot_with, vecdot, vecmat,
};
pub use schema::modes::{
    are_deterministic_algorithms_enabled, enable_grad, is_grad_enabled, no_grad, set_grad_enabled, use_deterministic_algorithms,
};
pub use schema::{AmpPolicy, Arity, OpSchema, schema_hash};
pub use shape::dtype::{DType, Element, Kind, c64, c128, round_to_odd};
pub use shape::error::{Error, OpName, Result, ShapeFault, shape_text};
pub use shape::layout::{Dims, Layout, Strides};
pub use tape::{Node, Op, Tensor};
