//! A progress bar on a terminal.

use crate::Streams;

const WIDTH: usize = 24;

/// How far a long command is. Draws on standard error, and only where that is a terminal.
pub(crate) struct Progress {
    total: usize,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Progress {
        Progress { total: total.max(1) }
    }

    /// Shows that `done` of the parts are done and `what` is next.
    pub(crate) fn show(&self, streams: &mut Streams<'_>, done: usize, what: &str) {
        let full = WIDTH * done.min(self.total) / self.total;
        if let Some(terminal) = streams.terminal() {
            let _ = write!(terminal, "\r\x1b[2K[{:<WIDTH$}] {done}/{} {what}", "#".repeat(full), self.total);
            let _ = terminal.flush();
        }
    }

    /// Takes the bar away, so that a line can be written.
    pub(crate) fn clear(&self, streams: &mut Streams<'_>) {
        if let Some(terminal) = streams.terminal() {
            let _ = write!(terminal, "\r\x1b[2K");
            let _ = terminal.flush();
        }
    }
}
