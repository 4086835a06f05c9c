//! Gradients of a fixed point z = tanh(W·z + U·x + b) by the implicit function theorem: nothing of the iteration is kept.
//!
//! ```text
//! cargo run --release --example equilibrium
//! ```

#[path = "../cli/arguments.rs"]
pub mod arguments;
pub mod closed;
pub mod fixed_point;
pub mod layer;

use std::io::{self, Write};
use std::process::ExitCode;

use arguments::{Arguments, Failure};
use layer::{Answers, Layer};

const HELP: &str = "Finds the fixed point z = tanh(W·z + U·x + b) and the gradients of ½|z|² by W, U, x and b: implicitly, through every
step of the iteration, and in closed form. Second derivatives stand beside difference quotients.

Usage: equilibrium [OPTIONS]
  --states N     length of z [32]
  --seed N       seed of the numbers [5]
  --device NAME  where to compute, in float64 [cpu]
  --help         this text

Exit status: 0, 1 where something failed or a derivative differs too far, 2 for wrong options.";

/// States of a plain run.
pub const STATES: usize = 32;
/// Seed of a plain run.
pub const SEED: u64 = 5;
/// Relative differences of gradients above this fail the run.
pub const TOLERANCE: f64 = 1e-10;
/// The same for second derivatives, of which a central difference has some 7 digits.
pub const SECOND_TOLERANCE: f64 = 1e-6;

/// Fails where the implicit gradient or its derivative isn't near enough.
pub fn verdict(answers: &Answers, tolerance: f64, second_tolerance: f64) -> Result<(), Failure> {
    for (what, apart, most) in [("gradient", answers.implicit, tolerance), ("second derivative", answers.second, second_tolerance)] {
        if apart.is_nan() || apart > most {
            return Err(Failure::Run(format!("the implicit {what} is {apart:.1e} off, more than {most:.0e}")));
        }
    }
    Ok(())
}

/// The program: options in, a table to `out`.
pub fn run(args: &[String], out: &mut dyn Write) -> Result<(), Failure> {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        return Ok(writeln!(out, "{HELP}")?);
    }
    let args = Arguments::parse(args, &["--states", "--seed", "--device"])?;
    let states = args.value("--states", STATES, "a whole number from 1 to 1000", |n| (1..=1000).contains(n))?;
    let seed = args.value("--seed", SEED, "a whole number from 0", |_| true)?;
    let answers = layer::answers(&Layer::new(states, seed, &args.device()?)?)?;
    writeln!(out, "{:>22} {:>14} {:>14}", "gradient of ½|z|²", "bytes kept", "difference")?;
    for u in &answers.unrolled {
        writeln!(out, "{:>22} {:>14} {:>14.1e}", format!("through {} steps", u.steps), u.bytes, u.difference)?;
    }
    writeln!(out, "{:>22} {:>14} {:>14.1e}", "implicit", answers.bytes, answers.implicit)?;
    writeln!(
        out,
        "\nDifferences are of the gradients by W, U, x and b from those of (I − D·W)ᵀ solved by elimination, relative to these."
    )?;
    writeln!(out, "second derivative along a direction: {:.1e} from the difference quotient of the gradient", answers.second)?;
    verdict(&answers, TOLERANCE, SECOND_TOLERANCE)
}

fn main() -> ExitCode {
    arguments::exit("equilibrium", run(&arguments::given(), &mut io::stdout()))
}
