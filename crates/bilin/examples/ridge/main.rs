//! Learns the strength of a ridge regression through its solver, and checks every derivative against its closed form.
//!
//! ```text
//! cargo run --release --example ridge
//! ```

#[path = "../cli/arguments.rs"]
pub mod arguments;
#[path = "../data/cancer.rs"]
pub mod cancer;
pub mod closed;
#[path = "../data/csv.rs"]
pub mod csv;
pub mod problem;
pub mod search;
pub mod solve;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use arguments::{Arguments, Failure};
use cancer::DATA;
use closed::ClosedForm;
use problem::Problem;
use search::{Row, Search};
use solve::Ridge;

const HELP: &str = "Learns the strength λ = exp(θ) of a ridge regression on a validation part: the gradient flows through every
step of the solver. Each derivative stands beside its closed form.

Usage: ridge [OPTIONS]
  --seed N       seed of the split [2]
  --device NAME  where to compute, in float64 [cpu]
  --data FILE    the table, gzipped CSV [the file beside the example]
  --help         this text

Exit status: 0, 1 where something failed or two derivatives differ by more than 1e-6 of the closed form, 2 for wrong options.";

/// Seed of the split in a plain run.
pub const SEED: u64 = 2;

/// Relative differences above this fail the run.
pub const TOLERANCE: f64 = 1e-6;

fn print_first(title: &str, rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{title}")?;
    writeln!(out, "{:>4} {:>13} {:>12} {:>19} {:>19} {:>11}", "step", "λ", "loss", "dL/dθ", "closed form", "difference")?;
    for (i, r) in rows.iter().enumerate() {
        let f = r.first;
        writeln!(
            out,
            "{:>4} {:>13.6} {:>12.8} {:>19.11e} {:>19.11e} {:>11.1e}",
            i + 1,
            r.lambda,
            r.loss.tape,
            f.tape,
            f.closed,
            f.difference
        )?;
    }
    Ok(())
}

fn print_second(rows: &[Row], out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nNewton steps on θ: d²L/dθ²")?;
    writeln!(
        out,
        "{:>4} {:>13} {:>19} {:>19} {:>19} {:>11}",
        "step", "λ", "reverse twice", "forward on reverse", "closed form", "difference"
    )?;
    for (i, r) in rows.iter().enumerate() {
        let Some(s) = r.second else { continue };
        let (a, b) = (s.reverse_twice, s.forward_over_reverse);
        let worse = if a.difference >= b.difference { a.difference } else { b.difference };
        writeln!(out, "{:>4} {:>13.6} {:>19.11e} {:>19.11e} {:>19.11e} {worse:>11.1e}", i + 1, r.lambda, a.tape, b.tape, a.closed)?;
    }
    Ok(())
}

fn print_slopes(search: &Search, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "\nweights by λ, dw/dλ = −(XᵀX + λI)⁻¹w: norms, and the norm of the difference")?;
    writeln!(out, "{:>13} {:>19} {:>19} {:>11}", "λ", "forward mode", "closed form", "difference")?;
    for r in search.rows() {
        let s = r.slope;
        writeln!(out, "{:>13.6} {:>19.11e} {:>19.11e} {:>11.1e}", r.lambda, s.tape, s.closed, s.difference)?;
    }
    Ok(())
}

/// Fails where the worst difference of a search is above `tolerance`, or no number.
pub fn verdict(search: &Search, tolerance: f64) -> Result<f64, Failure> {
    let worst = search.rows().map(|r| r.difference()).fold(0.0, |w: f64, d| if d.is_nan() || w.is_nan() { f64::NAN } else { w.max(d) });
    if worst <= tolerance {
        Ok(worst)
    } else {
        Err(Failure::Run(format!("a derivative differs from its closed form by {worst:.1e}, more than {tolerance:.0e}")))
    }
}

/// The program: options in, tables to `out`.
pub fn run(args: &[String], out: &mut dyn Write) -> Result<(), Failure> {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        return Ok(writeln!(out, "{HELP}")?);
    }
    let args = Arguments::parse(args, &["--seed", "--device", "--data"])?;
    let seed = args.value("--seed", SEED, "a whole number from 0", |_| true)?;
    let device = args.device()?;
    let table = cancer::load(Path::new(args.text("--data").unwrap_or(DATA))).map_err(Failure::Run)?;
    let problem = Problem::new(&table, seed).map_err(Failure::Run)?;
    let search = search::search(&Ridge::new(&problem, &device)?, &ClosedForm::new(&problem), &device)?;

    print_first("gradient descent on θ = ln λ, L the validation loss", &search.descent, out)?;
    print_first("\nNewton steps on θ", &search.newton, out)?;
    print_second(&search.newton, out)?;
    print_slopes(&search, out)?;
    let worst = verdict(&search, TOLERANCE)?;
    writeln!(out, "\nDifferences are relative to the closed form; where that nears 0, to 1e-4 of the terms it is the sum of.")?;
    writeln!(out, "worst relative difference {worst:.1e}, allowed {TOLERANCE:.0e}")?;
    if let Some(last) = search.newton.last() {
        let state = if search.converged { "least validation loss" } else { "not at a least value yet: validation loss" };
        writeln!(out, "{state} {:.8} at λ = {:.6}", last.loss.tape, last.lambda)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    arguments::exit("ridge", run(&arguments::given(), &mut io::stdout()))
}
