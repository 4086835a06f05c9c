//! Learns to read handwritten digits, and shows the ones it misreads.
//!
//! ```text
//! cargo run --release --example digits -- --out pictures
//! ```

#[path = "../cli/arguments.rs"]
pub mod arguments;
#[path = "../data/csv.rs"]
pub mod csv;
pub mod data;
pub mod model;
pub mod plot;
pub mod progress;
pub mod svg;
pub mod train;

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use arguments::{Arguments, Failure};
use bilin::DType;
use bilin::io::atomic::write_whole;
use data::CLASSES;
use progress::Progress;
use train::{Outcome, Settings};

const HELP: &str = "Learns to read handwritten digits, and shows the ones it misreads.

Usage: digits [OPTIONS]
  --epochs N     passes over the training digits [30]
  --seed N       seed of the split, the weights and the order [7]
  --lr X         step size at the start; it falls to 0 [0.004]
  --autocast T   compute products in bf16 [no: all in f32]
  --device NAME  where to compute [cpu]
  --data FILE    the digits, gzipped CSV [the file beside the example]
  --out DIR      folder for loss.svg and misread.svg [target/digits]
  --help         this text

Exit status: 0, 1 where something failed, 2 for wrong options.";

/// What a plain run trains with.
pub const DEFAULTS: Settings = Settings { epochs: 30, seed: 7, lr: 0.004, autocast: None };

/// The digits that come with the example.
pub const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/digits.csv.gz");

/// The table of true class (rows) by what was read (columns).
pub fn confusion_table(outcome: &Outcome) -> String {
    let mut out = String::from("true\\read");
    (0..CLASSES).for_each(|c| out += &format!("{c:>5}"));
    out += "   right\n";
    for (class, row) in outcome.confusion().iter().enumerate() {
        out += &format!("{class:>9}");
        for &count in row {
            out += &if count == 0 { format!("{:>5}", "·") } else { format!("{count:>5}") };
        }
        let (right, all) = (row[class], row.iter().sum::<usize>());
        out += &if all > 0 { format!("{:>6.1} %\n", 100.0 * right as f64 / all as f64) } else { String::from("       –\n") };
    }
    out
}

/// Writes a picture, whole or not at all, and says so.
fn write_picture(folder: &Path, name: &str, svg: &str, out: &mut dyn Write) -> Result<(), Failure> {
    let path = folder.join(name);
    write_whole(&path, svg.as_bytes())?;
    Ok(writeln!(out, "wrote {}", path.display())?)
}

/// The program: options in, tables to `out`, progress to `err`.
pub fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write, terminal: bool) -> Result<(), Failure> {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        return Ok(writeln!(out, "{HELP}")?);
    }
    let args = Arguments::parse(args, &["--epochs", "--seed", "--lr", "--autocast", "--device", "--data", "--out"])?;
    let settings = Settings {
        epochs: args.value("--epochs", DEFAULTS.epochs, "a whole number from 1 to 100000", |n| (1..=100_000).contains(n))?,
        seed: args.value("--seed", DEFAULTS.seed, "a whole number from 0", |_| true)?,
        lr: args.value("--lr", DEFAULTS.lr, "a number above 0", |x: &f64| x.is_finite() && *x > 0.0)?,
        autocast: match args.text("--autocast") {
            None => None,
            Some(name) => match DType::parse(name) {
                Some(DType::Bf16) => Some(DType::Bf16),
                _ => return Err(Failure::Usage(format!("--autocast is '{name}'; want bf16"))),
            },
        },
    };
    let device = args.device()?;
    let folder = PathBuf::from(args.text("--out").unwrap_or("target/digits"));
    let digits = data::load(Path::new(args.text("--data").unwrap_or(DATA))).map_err(Failure::Run)?;
    fs::create_dir_all(&folder).map_err(|e| Failure::Run(format!("{}: {e}", folder.display())))?;

    let outcome = train::train(&digits, &settings, &device, &mut Progress::new(err, terminal, settings.epochs))?;
    let misread = outcome.misread();
    let all = outcome.held_back.len();
    writeln!(out, "test accuracy {:.2} %: {} of {all} digits held back are read right\n", 100.0 * outcome.accuracy(), all - misread.len())?;
    writeln!(out, "{}", confusion_table(&outcome))?;
    write_picture(&folder, "loss.svg", &plot::loss_curve(&outcome.history), out)?;
    write_picture(&folder, "misread.svg", &plot::misread_grid(&misread, all), out)
}

fn main() -> ExitCode {
    let terminal = io::stderr().is_terminal();
    arguments::exit("digits", run(&arguments::given(), &mut io::stdout(), &mut io::stderr(), terminal))
}
