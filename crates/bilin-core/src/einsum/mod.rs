//! Einsum before any tensor is touched: what the subscripts say, and in which order to contract.

pub mod path;
pub mod subscripts;

use smallvec::SmallVec;

/// Label ids, one an axis.
pub type Labels = SmallVec<[u16; 6]>;
