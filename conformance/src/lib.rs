//! Checks shared by the tests of this crate.
