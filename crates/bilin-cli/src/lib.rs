//! The `bilin` program as a library: [`run`] takes arguments and streams and returns the exit status.
//!
//! Status 0 is success, 1 an error of the input or a failed check, 2 wrong usage. Errors are one line on stderr.

pub mod args;
pub mod bench;
pub mod check;
pub mod commands;
mod derivatives;
mod failure;
mod help;
mod inspect;
mod output;
mod print;
mod product;
mod progress;
mod report;
mod samples;
mod streams;
mod suggest;
mod trace;

use std::ffi::OsString;

pub use failure::Failure;
pub use streams::Streams;

use args::Request;

/// Runs the program for `arguments`, without the program's own name, and returns the exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>, streams: &mut Streams<'_>) -> u8 {
    match args::parse(arguments).and_then(|request| perform(&request, streams)).and_then(|()| streams.flush()) {
        Ok(()) => 0,
        Err(failure) => {
            streams.note(format_args!("bilin: {failure}"));
            failure.status()
        }
    }
}

fn perform(request: &Request, streams: &mut Streams<'_>) -> Result<(), Failure> {
    match request {
        Request::Help(command) => help::print(*command, streams),
        Request::Version => streams.line(format_args!("bilin {}", env!("CARGO_PKG_VERSION"))),
        Request::Product(args) => product::run(args, streams),
        Request::Ops { names, json } => inspect::ops(names, *json, streams),
        Request::Devices { json } => inspect::devices(*json, streams),
        Request::Info { file, json } => inspect::info(file, *json, streams),
        Request::Trace { file, output } => trace::run(file, output.as_deref(), streams),
        Request::Bench(args) => bench::run(args, streams),
        Request::Check(args) => check::run(args, streams),
    }
}
