//! Why the program ends without success.

use std::fmt;

/// What ends the program: its text, which becomes one line, and its status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The input is wrong, or a check found a difference: status 1.
    Input(String),
    /// The command line is wrong: status 2.
    Usage(String),
}

impl Failure {
    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Failure::Input(_) => 1,
            Failure::Usage(_) => 2,
        }
    }
}

impl From<bilin::Error> for Failure {
    fn from(error: bilin::Error) -> Failure {
        let text = error.to_string();
        // What converts a tensor here is an option.
        Failure::Input(if matches!(error, bilin::Error::DtypeMismatch { .. }) { text.replace("with astype", "with --dtype") } else { text })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names of files may hold line breaks and other control characters; the message stays one line.
        let one_line = |f: &mut fmt::Formatter<'_>, text: &str| {
            text.chars().try_for_each(|c| if c.is_control() { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") })
        };
        match self {
            Failure::Input(text) => one_line(f, text),
            Failure::Usage(text) => {
                one_line(f, text)?;
                f.write_str(if text.ends_with('?') { " try bilin --help" } else { "; try bilin --help" })
            }
        }
    }
}
