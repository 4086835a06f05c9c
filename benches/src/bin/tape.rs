//! Cases of the tape for `benches/peers.py`: reads "CASE REPEATS" lines, answers each with seconds a repeat, so that a driver can
//! alternate with peers in other processes.

#[path = "../../../crates/bilin/examples/digits/main.rs"]
#[expect(dead_code, reason = "the example's program and pictures; its training is what is timed")]
mod digits;

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::time::Instant;

use bilin::autograd;
use bilin::prelude::*;

/// Nodes of a chain.
const CHAIN: usize = 1_000_000;
/// Consumers of a leaf.
const WIDE: usize = 100_000;

type Case = Box<dyn FnMut() -> Result<Vec<f64>>>;

fn seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

/// y ← −y, a million times: seconds without a record, to record and to go backward.
fn chain() -> Result<Vec<f64>> {
    let x = Tensor::ones([1], DType::F32, &Device::cpu())?.requires_grad_(true)?;
    let start = Instant::now();
    let mut y = x.detach();
    for _ in 0..CHAIN {
        y = y.neg()?;
    }
    let plain = seconds(start);
    let start = Instant::now();
    let mut y = x.clone();
    for _ in 0..CHAIN {
        y = y.neg()?;
    }
    let loss = y.sum(.., false)?;
    let forward = seconds(start);
    let start = Instant::now();
    drop(y);
    loss.backward()?;
    drop(loss);
    Ok(vec![plain, forward, seconds(start)])
}

/// A leaf with 100,000 consumers, concatenated and summed.
fn wide() -> Result<Vec<f64>> {
    let x = Tensor::ones([1], DType::F32, &Device::cpu())?.requires_grad_(true)?;
    let start = Instant::now();
    let all: Vec<Tensor> = (0..WIDE).map(|_| x.neg()).collect::<Result<_>>()?;
    let loss = bilin::concat(&all.iter().collect::<Vec<_>>(), 0)?.sum(.., false)?;
    let forward = seconds(start);
    let start = Instant::now();
    drop(all);
    loss.backward()?;
    drop(loss);
    Ok(vec![forward, seconds(start)])
}

/// Gradient and Hessian-vector product of Σ tanh(tanh(X·A)·B).
fn hvp(size: usize) -> Result<Case> {
    let (dev, mut rng) = (Device::cpu(), Rng::new(1));
    let mut of = |shape: [usize; 2]| Tensor::randn(shape, DType::F32, &dev, &mut rng)?.mul_scalar((size as f64).powf(-0.5));
    let (x, a, b, v, w) = (of([size, size])?, of([size, size])?, of([size, size])?, of([size, size])?, of([size, size])?);
    Ok(Box::new(move || {
        let f = |p: &[Tensor]| x.matmul(&p[0])?.tanh()?.matmul(&p[1])?.tanh()?.sum(.., false);
        let start = Instant::now();
        drop(autograd::value_and_grad(f, &[&a, &b])?);
        let gradient = seconds(start);
        let start = Instant::now();
        drop(autograd::hvp(f, &[&a, &b], &[&v, &w])?);
        Ok(vec![gradient, seconds(start)])
    }))
}

/// Epochs of one run of the example.
const EPOCHS: usize = 10;

/// Seconds an epoch of the example `digits`, its data read before.
fn learn(all: &[digits::data::Digit]) -> std::result::Result<Vec<f64>, Box<dyn std::error::Error>> {
    let settings = digits::train::Settings { epochs: EPOCHS, ..digits::DEFAULTS };
    let mut silent = io::sink();
    let mut progress = digits::progress::Progress::new(&mut silent, false, EPOCHS);
    let start = Instant::now();
    digits::train::train(all, &settings, &Device::cpu(), &mut progress).map_err(|e| format!("{e:?}"))?;
    Ok(vec![seconds(start) / EPOCHS as f64])
}

fn serve() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let (mut small, mut large) = (hvp(16)?, hvp(512)?);
    let images = digits::data::load(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/bilin/examples/data/digits.csv.gz")))?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let (name, repeats) = line.split_once(' ').ok_or("want CASE REPEATS")?;
        let repeats: u32 = repeats.parse()?;
        let mut sums = Vec::new();
        for _ in 0..repeats {
            let parts = match name {
                "chain" => chain()?,
                "wide" => wide()?,
                "hvp16" => small()?,
                "hvp512" => large()?,
                "digits" => learn(&images)?,
                other => return Err(format!("no case {other}").into()),
            };
            sums.resize(parts.len(), 0.0);
            sums.iter_mut().zip(parts).for_each(|(s, p)| *s += p / f64::from(repeats));
        }
        let sums: Vec<String> = sums.iter().map(|s| format!("{s:e}")).collect();
        writeln!(io::stdout(), "{}", sums.join(" "))?;
        io::stdout().flush()?;
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    match serve() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("tape: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
