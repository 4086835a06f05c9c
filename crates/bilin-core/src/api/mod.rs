//! What users call beside the ops: making and reading tensors, operators, random numbers.

mod create;
mod operators;
mod random;
mod read;

pub use random::Rng;
