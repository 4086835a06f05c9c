//! Checks shared by the tests of this crate. A failed check panics: the crate is built for tests only.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test-only code: a panic is how a check fails")]

pub mod compare;
pub mod generate;
pub mod samples;
pub mod source;
pub mod strides;
pub mod subject;
pub mod travel;
