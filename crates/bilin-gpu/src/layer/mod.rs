//! The kernel layer.

pub mod buffer;
pub mod device;
pub mod encoder;
pub mod graph;
pub mod hazard;
pub mod kernel;
pub mod pool;
pub mod registry;
pub mod trusted;
