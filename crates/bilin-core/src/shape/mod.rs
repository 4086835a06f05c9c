//! Pure arithmetic: errors, dtypes, layouts, specs, plans.

pub mod dtype;
pub mod error;
pub mod layout;
pub mod list;
pub mod plan;
pub mod spec;
