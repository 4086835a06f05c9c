//! Backends and what they are asked to do.

pub mod backend;
pub mod buffer;
pub mod call;
pub mod device;
pub mod host;
pub mod launch;
pub mod map_expr;
pub mod order;
pub mod reference;
pub mod storage;
