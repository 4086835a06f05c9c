//! The program, run as a user runs it, and its parser under random arguments.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod derivatives;
mod failures;
mod fuzz_arguments;
mod pages;
mod products;
mod program;
mod traces;
