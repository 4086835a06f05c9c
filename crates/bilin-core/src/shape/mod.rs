//! Pure arithmetic: errors, dtypes, shapes.

pub mod dtype;
pub mod error;
