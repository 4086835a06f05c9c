//! A bar on a terminal, a line an epoch elsewhere.

use std::io::Write;
use std::time::{Duration, Instant};

use super::train::Epoch;

/// Cells of the bar.
const CELLS: usize = 24;

/// Shows how far training is. What can't be written is dropped: progress is no result.
pub struct Progress<'a> {
    to: &'a mut dyn Write,
    terminal: bool,
    epochs: usize,
    started: Instant,
    drawn: Option<Instant>,
}

impl<'a> Progress<'a> {
    /// Of `epochs` epochs, on a terminal or not.
    pub fn new(to: &'a mut dyn Write, terminal: bool, epochs: usize) -> Progress<'a> {
        Progress { to, terminal, epochs, started: Instant::now(), drawn: None }
    }

    /// Within epoch `epoch` (from 0), of which `share` is done; `last` is the epoch before.
    pub fn step(&mut self, epoch: usize, share: f64, last: Option<&Epoch>) {
        if self.terminal && self.drawn.is_none_or(|at| at.elapsed() > Duration::from_millis(80)) {
            self.draw(epoch + 1, (epoch as f64 + share) / self.epochs as f64, last);
        }
    }

    /// Epoch `epoch` (from 0) is done.
    pub fn epoch(&mut self, epoch: usize, numbers: &Epoch) {
        if self.terminal {
            self.draw(epoch + 1, (epoch + 1) as f64 / self.epochs as f64, Some(numbers));
        } else {
            let _ = writeln!(self.to, "epoch {:>3}/{}  {}", epoch + 1, self.epochs, text(numbers));
        }
    }

    fn draw(&mut self, epoch: usize, share: f64, numbers: Option<&Epoch>) {
        let full = ((share * CELLS as f64).round() as usize).min(CELLS);
        let bar = "█".repeat(full) + &"░".repeat(CELLS - full);
        let left = self.started.elapsed().mul_f64((1.0 / share - 1.0).clamp(0.0, 1e6)).as_secs_f64().ceil();
        let _ =
            write!(self.to, "\repoch {epoch:>3}/{} {bar} {} {left:.0} s left\x1b[K", self.epochs, numbers.map(text).unwrap_or_default());
        let _ = self.to.flush();
        self.drawn = Some(Instant::now());
    }
}

impl Drop for Progress<'_> {
    /// Leaves the bar where it is and goes to the next line.
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = writeln!(self.to);
        }
    }
}

fn text(numbers: &Epoch) -> String {
    format!("loss {:.4}  accuracy {:.1} %", numbers.training_loss, 100.0 * numbers.accuracy)
}
