//! Learns the characters of a text with a small transformer, and goes on with the text.
//!
//! ```text
//! cargo run --release --example transformer -- --text book.txt --autocast bf16
//! ```

#[path = "../cli/arguments.rs"]
pub mod arguments;
pub mod model;
pub mod text;
pub mod train;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use arguments::{Arguments, Failure};
use bilin::io::atomic::write_whole;
use bilin::{DType, Rng};
use model::Shape;
use text::Text;
use train::Settings;

const HELP: &str = "Learns the characters of a text with a small transformer, and goes on with the text.

Usage: transformer [OPTIONS]
  --text FILE      what to learn, in UTF-8 [the project's LICENSE-APACHE]
  --steps N        steps of training [300]
  --seed N         seed of the weights, the windows and the text at the end [7]
  --lr X           step size at the start; it falls to 0 [0.003]
  --autocast T     compute products in bf16 [no: all in f32]
  --blocks N       blocks [2]
  --width N        features of a character, a multiple of --heads [64]
  --heads N        heads that ask, a multiple of --groups [4]
  --groups N       heads that answer [2]
  --context N      most characters that it looks back [64]
  --write N        characters to write at the end [200]
  --profile FILE   write a trace of the last step
  --device NAME    where to compute [cpu]
  --help           this text

Exit status: 0, 1 where something failed, 2 for wrong options.";

/// What a plain run trains with.
pub const DEFAULTS: Settings =
    Settings { steps: 300, seed: 7, lr: 0.003, autocast: None, shape: Shape { blocks: 2, width: 64, heads: 4, groups: 2, context: 64 } };

/// What a plain run learns.
pub const TEXT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../LICENSE-APACHE");

const OPTIONS: &[&str] = &[
    "--text",
    "--steps",
    "--seed",
    "--lr",
    "--autocast",
    "--blocks",
    "--width",
    "--heads",
    "--groups",
    "--context",
    "--write",
    "--profile",
    "--device",
];

/// The program: options in, losses and a text to `out`, progress to `err`.
pub fn run(args: &[String], out: &mut dyn Write, err: &mut dyn Write, terminal: bool) -> Result<(), Failure> {
    if args.iter().any(|a| a == "--help" || a == "-h") {
        return Ok(writeln!(out, "{HELP}")?);
    }
    let args = Arguments::parse(args, OPTIONS)?;
    let count = |name: &str, default: usize| args.value(name, default, "a whole number from 1 to 100000", |n| (1..=100_000).contains(n));
    let of = DEFAULTS.shape;
    let shape = Shape {
        blocks: count("--blocks", of.blocks)?,
        width: count("--width", of.width)?,
        heads: count("--heads", of.heads)?,
        groups: count("--groups", of.groups)?,
        context: count("--context", of.context)?,
    };
    if !shape.width.is_multiple_of(shape.heads) || !shape.heads.is_multiple_of(shape.groups) {
        let Shape { width, heads, groups, .. } = shape;
        return Err(Failure::Usage(format!("--width {width} --heads {heads} --groups {groups}: want multiples, each of the next")));
    }
    let settings = Settings {
        steps: count("--steps", DEFAULTS.steps)?,
        seed: args.value("--seed", DEFAULTS.seed, "a whole number from 0", |_| true)?,
        lr: args.value("--lr", DEFAULTS.lr, "a number above 0", |x: &f64| x.is_finite() && *x > 0.0)?,
        autocast: match args.text("--autocast") {
            None => None,
            Some(name) => match DType::parse(name) {
                Some(DType::Bf16) => Some(DType::Bf16),
                _ => return Err(Failure::Usage(format!("--autocast is '{name}'; want bf16"))),
            },
        },
        shape,
    };
    let length = args.value("--write", 200, "a whole number from 0 to 100000", |n| *n <= 100_000)?;
    let device = args.device()?;
    let text = Text::load(Path::new(args.text("--text").unwrap_or(TEXT)), shape.context).map_err(Failure::Run)?;

    // What can't be written to stderr is dropped: progress is no result.
    let every = if terminal { 1 } else { settings.steps.div_ceil(10) };
    let outcome = train::train(&text, &settings, &device, |step, loss| {
        if (step + 1) % every == 0 || step + 1 == settings.steps {
            let (start, end) = if terminal { ("\r", "\x1b[K") } else { ("", "\n") };
            let _ = write!(err, "{start}step {:>5}/{}  loss {loss:.4}{end}", step + 1, settings.steps).and_then(|()| err.flush());
        }
    });
    if terminal {
        let _ = writeln!(err);
    }
    let outcome = outcome?;
    writeln!(
        out,
        "loss of the text held back {:.4} nats a character; guessing costs {:.4}",
        outcome.held_back,
        (text.alphabet.len() as f64).ln()
    )?;
    if length > 0 {
        let mut rng = Rng::new(settings.seed);
        let written = train::continued(&outcome.model, &text.prompt(16.min(shape.context)), length, &shape, &mut rng, &device)?;
        writeln!(out, "\n{}", text.read(&written))?;
    }
    if let Some(path) = args.text("--profile") {
        write_whole(Path::new(path), outcome.profile.export_chrome_trace().as_bytes())?;
        writeln!(out, "\n{}wrote {path}", outcome.profile.table())?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let terminal = io::stderr().is_terminal();
    arguments::exit("transformer", run(&arguments::given(), &mut io::stdout(), &mut io::stderr(), terminal))
}
