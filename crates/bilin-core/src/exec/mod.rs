//! Backends and what they are asked to do.

pub mod backend;
pub mod buffer;
pub mod call;
pub mod map_expr;
pub mod order;
