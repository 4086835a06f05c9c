//! The engine of bilin. Modules stand from the bottom up; imports only go down.

pub mod einsum;
pub mod exec;
pub mod shape;

pub use shape::dtype::{DType, Element, Kind, c64, c128};
pub use shape::error::{Error, OpName, Result, ShapeFault, shape_text};
pub use shape::layout::{Dims, Layout, Strides};
