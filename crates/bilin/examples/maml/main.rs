//! Learns to learn: weights from which one gradient step fits a new sine. The gradient flows through the gradient step.
//!
//! ```text
//! cargo run --release --example maml
//! ```

#[path = "../cli/arguments.rs"]
pub mod arguments;
pub mod check;
pub mod learn;
pub mod network;
pub mod tasks;

use std::io::{self, Write};
use std::process::ExitCode;

use arguments::{Arguments, Failure};
use check::Checks;
use learn::{Settings, Trained};

const HELP: &str = "Learns weights of a small network from which one gradient step on ten points fits a sine of any height and shift
(MAML). The gradient through that step is checked against a closed form, on linear tasks, and a difference quotient.

Usage: maml [OPTIONS]
  --steps N      steps of learning, 16 sines each [600]
  --seed N       seed of the weights and the sines [3]
  --device NAME  where to compute, in float64 [cpu]
  --help         this text

Exit status: 0, 1 where something failed or a derivative differs too far, 2 for wrong options.";

/// A plain run.
pub const DEFAULTS: Settings = Settings { steps: 600, seed: 3 };
/// Relative difference from the closed form that fails the run.
pub const TOLERANCE: f64 = 1e-12;
/// The same from the difference quotient, of which some 8 digits are right.
pub const QUOTIENT_TOLERANCE: f64 = 1e-6;

/// Fails where a derivative isn't near enough.
pub fn verdict(checks: &Checks, tolerance: f64, quotient_tolerance: f64) -> Result<(), Failure> {
    for (what, apart, most) in [("closed form", checks.linear, tolerance), ("difference quotient", checks.quotient, quotient_tolerance)] {
        if apart.is_nan() || apart > most {
            return Err(Failure::Run(format!("the gradient differs from its {what} by {apart:.1e}, more than {most:.0e}")));
        }
    }
    Ok(())
}

fn print(trained: &Trained, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:>6} {:>16} {:>16}", "step", "before adapting", "after one step")?;
    for e in &trained.history {
        writeln!(out, "{:>6} {:>16.4} {:>16.4}", e.step, e.before, e.after)?;
    }
    writeln!(out, "\na new sine from ten points: mean square error after 0, 1, … gradient steps")?;
    for (name, errors) in [("from learned weights", &trained.learned), ("from random weights", &trained.random)] {
        let errors: Vec<String> = errors.iter().map(|e| format!("{e:>8.4}")).collect();
        writeln!(out, "{name:>22} {}", errors.join(" "))?;
    }
    Ok(())
}

/// The program: options in, tables to `out`.
pub fn run(args: &[String], out: &mut dyn Write) -> Result<(), Failure> {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        return Ok(writeln!(out, "{HELP}")?);
    }
    let args = Arguments::parse(args, &["--steps", "--seed", "--device"])?;
    let settings = Settings {
        steps: args.value("--steps", DEFAULTS.steps, "a whole number from 1 to 100000", |n| (1..=100_000).contains(n))?,
        seed: args.value("--seed", DEFAULTS.seed, "a whole number from 0", |_| true)?,
    };
    let device = args.device()?;
    let checks = check::checks(settings.seed, &device)?;
    print(&learn::learn(settings, &device)?, out)?;
    writeln!(out, "\ngradient through a gradient step: {:.1e} from the closed form of linear tasks,", checks.linear)?;
    writeln!(
        out,
        "{:.1e} from a difference quotient of the network's; without the inner step's own derivative it would be {:.1e}",
        checks.quotient, checks.first_order
    )?;
    verdict(&checks, TOLERANCE, QUOTIENT_TOLERANCE)
}

fn main() -> ExitCode {
    arguments::exit("maml", run(&arguments::given(), &mut io::stdout()))
}
