//! Fits a logistic regression by Newton's method without a Hessian: each step is solved by conjugate gradients, of which a step
//! costs one Hessian-vector product.
//!
//! ```text
//! cargo run --release --example newton
//! ```

#[path = "../cli/arguments.rs"]
pub mod arguments;
#[path = "../data/cancer.rs"]
pub mod cancer;
pub mod closed;
#[path = "../data/csv.rs"]
pub mod csv;
pub mod logistic;
pub mod solve;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use arguments::{Arguments, Failure};
use cancer::DATA;
use closed::Explicit;
use logistic::Logistic;
use solve::{Fit, Step};

const HELP: &str = "Fits a logistic regression to the breast-cancer table by Newton's method: every step solves with the Hessian by
conjugate gradients of Hessian-vector products. Gradients, products and the weights found stand beside those of an explicit
Hessian in plain loops.

Usage: newton [OPTIONS]
  --penalty X    strength λ of ½λ|w|² [0.01]
  --seed N       seed of the split [2]
  --device NAME  where to compute, in float64 [cpu]
  --data FILE    the table, gzipped CSV [the file beside the example]
  --help         this text

Exit status: 0, 1 where something failed or a number differs by more than 1e-8, 2 for wrong options.";

/// λ of a plain run.
pub const PENALTY: f64 = 0.01;
/// Seed of the split in a plain run.
pub const SEED: u64 = 2;
/// Relative differences above this fail the run.
pub const TOLERANCE: f64 = 1e-8;

/// How far the engine's numbers are from the explicit ones, each relative to the explicit one's norm.
#[derive(Debug, Clone, Copy)]
pub struct Differences {
    /// Of the gradient at the start and at the end of the first step.
    pub gradient: f64,
    /// Of a Hessian-vector product there.
    pub product: f64,
    /// Of the weights found.
    pub weights: f64,
}

impl Differences {
    /// The greatest; NaN where one is.
    pub fn worst(&self) -> f64 {
        [self.gradient, self.product, self.weights]
            .into_iter()
            .fold(0.0, |w: f64, d| if d.is_nan() || w.is_nan() { f64::NAN } else { w.max(d) })
    }
}

/// Compares with the explicit gradient and Hessian along the steps, and with the weights of an explicit Newton's method.
pub fn compare(logistic: &Logistic, explicit: &Explicit, fit: &Fit) -> Result<Differences, Failure> {
    let apart = |a: &[f64], b: &[f64]| {
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()).max(f64::MIN_POSITIVE)
    };
    let mut out = Differences { gradient: 0.0, product: 0.0, weights: apart(&fit.parameters, &explicit.newton().map_err(Failure::Run)?) };
    for Step { at, gradient, .. } in fit.steps.iter().take(3) {
        let direction: Vec<f64> = (0..at.len()).map(|i| (i as f64 * 0.7).sin()).collect();
        let (g, h) = explicit.derivatives(at);
        out.gradient = out.gradient.max(apart(gradient, &g));
        out.product = out.product.max(apart(&logistic.hessian_product(at, &direction)?, &closed::times(&h, &direction)));
    }
    Ok(out)
}

/// Fails where the worst difference is above `tolerance`, or no number.
pub fn verdict(differences: &Differences, tolerance: f64) -> Result<f64, Failure> {
    let worst = differences.worst();
    if worst <= tolerance {
        Ok(worst)
    } else {
        Err(Failure::Run(format!("a number differs from the explicit one by {worst:.1e}, more than {tolerance:.0e}")))
    }
}

fn print(fit: &Fit, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:>4} {:>16} {:>12} {:>10} {:>8}", "step", "loss", "|gradient|", "products", "length")?;
    for (i, s) in fit.steps.iter().enumerate() {
        writeln!(out, "{:>4} {:>16.12} {:>12.3e} {:>10} {:>8}", i + 1, s.loss, s.gradient_norm(), s.products, s.length)?;
    }
    Ok(())
}

/// The program: options in, a table to `out`.
pub fn run(args: &[String], out: &mut dyn Write) -> Result<(), Failure> {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        return Ok(writeln!(out, "{HELP}")?);
    }
    let args = Arguments::parse(args, &["--penalty", "--seed", "--device", "--data"])?;
    let penalty = args.value("--penalty", PENALTY, "a number above 0", |x: &f64| x.is_finite() && *x > 0.0)?;
    let seed = args.value("--seed", SEED, "a whole number from 0", |_| true)?;
    let device = args.device()?;
    let table = cancer::load(Path::new(args.text("--data").unwrap_or(DATA))).map_err(Failure::Run)?;
    let [training, held_back] = table.split(seed).map_err(Failure::Run)?;
    let logistic = Logistic::new(&training, penalty, &device)?;
    let fit = solve::newton(&logistic)?;
    print(&fit, out)?;

    let differences = compare(&logistic, &Explicit::new(&training, penalty), &fit)?;
    let products: usize = fit.steps.iter().map(|s| s.products).sum();
    writeln!(out, "\n{products} Hessian-vector products, no Hessian; differences from an explicit one, in plain loops:")?;
    writeln!(out, "gradient {:.1e}, product {:.1e}, weights {:.1e}", differences.gradient, differences.product, differences.weights)?;
    for (name, part) in [("fitted", &training), ("held back", &held_back)] {
        let right = logistic::right(&fit.parameters, part);
        writeln!(out, "{name}: {right} of {} classes right, {:.1} %", part.y.len(), 100.0 * right as f64 / part.y.len() as f64)?;
    }
    if !fit.converged {
        return Err(Failure::Run("the gradient isn't small after the last step".to_owned()));
    }
    verdict(&differences, TOLERANCE)?;
    Ok(())
}

fn main() -> ExitCode {
    arguments::exit("newton", run(&arguments::given(), &mut io::stdout()))
}
