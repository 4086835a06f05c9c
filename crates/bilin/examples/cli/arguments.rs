//! Options on the command line, and how a run ends.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::str::FromStr;

/// Why a run ended early; shown as one line.
#[derive(Debug)]
pub enum Failure {
    /// Wrong options: exit status 2.
    Usage(String),
    /// Anything else: exit status 1.
    Run(String),
}

impl Failure {
    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Run(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(what) => write!(f, "{what}; --help lists the options"),
            Failure::Run(what) => f.write_str(what),
        }
    }
}

impl From<bilin::Error> for Failure {
    fn from(e: bilin::Error) -> Failure {
        Failure::Run(e.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        Failure::Run(format!("output: {e}"))
    }
}

/// What a program is called with.
pub fn given() -> Vec<String> {
    std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect()
}

/// The exit code of a run, after its failure is told on stderr.
pub fn exit(program: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Nobody is left to tell where stderr is closed.
            let _ = writeln!(io::stderr(), "{program}: {failure}");
            ExitCode::from(failure.status())
        }
    }
}

/// Options with a value: `--name value` or `--name=value`; of several of one name, the last counts.
#[derive(Debug)]
pub struct Arguments {
    pairs: Vec<(String, String)>,
}

impl Arguments {
    /// Errors: an option that isn't in `known`, a missing value, a word that is no option.
    pub fn parse(args: &[String], known: &[&str]) -> Result<Arguments, Failure> {
        let mut pairs = Vec::new();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let (name, joined) = match arg.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (arg.as_str(), None),
            };
            if !known.contains(&name) {
                return Err(Failure::Usage(format!("unknown option {arg:?}")));
            }
            let value = joined.or_else(|| rest.next().cloned()).ok_or_else(|| Failure::Usage(format!("{name} wants a value")))?;
            pairs.push((name.to_owned(), value));
        }
        Ok(Arguments { pairs })
    }

    /// The text of an option.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.pairs.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The value of an option, or `default` where it is missing. Errors: a text that is no `T`, a value that isn't `allowed`.
    pub fn value<T: FromStr>(&self, name: &str, default: T, want: &str, allowed: impl Fn(&T) -> bool) -> Result<T, Failure> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => {
                let value = text.parse().ok().filter(allowed);
                value.ok_or_else(|| Failure::Usage(format!("{name} {text:?}: want {want}")))
            }
        }
    }

    /// The device of `--device`, the CPU where it is missing. Errors: a device that this build lacks.
    pub fn device(&self) -> Result<bilin::Device, Failure> {
        <bilin::Device as bilin::Devices>::parse(self.text("--device").unwrap_or("cpu")).map_err(|e| Failure::Usage(e.to_string()))
    }
}
