//! The `bilin` program.

use std::io::{IsTerminal, stderr, stdout};
use std::process::ExitCode;

use bilin_cli::Streams;

fn main() -> ExitCode {
    let is_terminal = stderr().is_terminal();
    let (mut out, mut err) = (stdout().lock(), stderr().lock());
    let mut streams = Streams::new(&mut out, &mut err, is_terminal);
    ExitCode::from(bilin_cli::run(std::env::args_os().skip(1), &mut streams))
}
