//! Where the program writes.

use std::fmt;
use std::io::{self, Write};

use crate::Failure;

/// Standard output and standard error.
///
/// When the reader of the output goes away (`bilin ops | head`), further output is dropped and the program goes on to
/// its own status.
pub struct Streams<'a> {
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    err_is_terminal: bool,
    is_closed: bool,
}

impl<'a> Streams<'a> {
    /// Streams over any writers; `err_is_terminal` allows a progress bar.
    pub fn new(out: &'a mut dyn Write, err: &'a mut dyn Write, err_is_terminal: bool) -> Streams<'a> {
        Streams { out, err, err_is_terminal, is_closed: false }
    }

    /// Writes a line of output.
    pub(crate) fn line(&mut self, text: fmt::Arguments<'_>) -> Result<(), Failure> {
        if self.is_closed {
            return Ok(());
        }
        let written = writeln!(self.out, "{text}");
        self.settle(written)
    }

    /// Hands what is buffered to the system, so that a full disk is noticed.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        if self.is_closed {
            return Ok(());
        }
        let flushed = self.out.flush();
        self.settle(flushed)
    }

    fn settle(&mut self, result: io::Result<()>) -> Result<(), Failure> {
        match result {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            Err(e) => Err(Failure::Input(format!("stdout: {e}"))),
        }
    }

    /// Whether nobody reads the output any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Writes a line to standard error. If that fails there is nowhere left to say so.
    pub(crate) fn note(&mut self, text: fmt::Arguments<'_>) {
        let _ = writeln!(self.err, "{text}");
    }

    /// Where a progress bar may be drawn.
    pub(crate) fn terminal(&mut self) -> Option<&mut dyn Write> {
        if self.err_is_terminal { Some(&mut *self.err) } else { None }
    }
}

impl fmt::Debug for Streams<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams")
            .field("err_is_terminal", &self.err_is_terminal)
            .field("is_closed", &self.is_closed)
            .finish_non_exhaustive()
    }
}
