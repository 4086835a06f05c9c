//! bilin: differentiable matrix products. The facade, the only crate that users name.

pub use bilin_core::{DType, Element, Error, Kind, Result};

pub mod io;
