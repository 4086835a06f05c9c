//! What a call costs beside its arithmetic: `calls CASE REPEATS` prints nanoseconds a repeat, least and median of 21 rounds.

use std::time::Instant;

use bilin::autograd;
use bilin::prelude::*;

type Case = Box<dyn FnMut() -> Result<()>>;

/// Links of a chain, one repeat each.
const CHAIN: usize = 1000;

fn small(shape: [usize; 2]) -> Result<Tensor> {
    Tensor::randn(shape, DType::F32, &Device::cpu(), &mut Rng::new(1))
}

fn case(name: &str) -> Result<(Case, usize)> {
    let (a, b) = (small([2, 2])?, small([2, 2])?);
    let (x, w) = (small([2, 2])?.requires_grad_(true)?, small([2, 2])?.requires_grad_(true)?);
    let g = small([2, 2])?;
    Ok(match name {
        "matmul" => (Box::new(move || a.matmul(&b).map(drop)), 1),
        "add" => (Box::new(move || a.add(&b).map(drop)), 1),
        "recorded" => (Box::new(move || x.matmul(&w).map(drop)), 1),
        "grad" => (
            Box::new(move || {
                let options = autograd::GradOptions { grad_outputs: vec![Some(g.clone())], ..Default::default() };
                autograd::grad(&[&x.matmul(&w)?], &[&x, &w], options).map(drop)
            }),
            1,
        ),
        "backward" => (
            Box::new(move || {
                let options = autograd::BackwardOptions { gradient: Some(g.clone()), ..Default::default() };
                autograd::backward(&x.matmul(&w)?, options)?;
                x.zero_grad();
                w.zero_grad();
                Ok(())
            }),
            1,
        ),
        "chain" => (
            Box::new(move || {
                let mut y = x.clone();
                for _ in 0..CHAIN {
                    y = y.neg()?;
                }
                autograd::backward(&y, autograd::BackwardOptions { gradient: Some(g.clone()), ..Default::default() })
            }),
            CHAIN,
        ),
        other => return Err(Error::invalid("calls", "case", other, "want matmul, add, recorded, grad, backward or chain")),
    })
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let repeats: usize = arguments.next().and_then(|r| r.parse().ok()).unwrap_or(10_000);
    let (mut f, links) = case(&name)?;
    let repeats = repeats.div_ceil(links);
    let mut rounds = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        for _ in 0..repeats {
            f()?;
        }
        rounds.push(start.elapsed().as_secs_f64() * 1e9 / (repeats * links) as f64);
    }
    rounds.sort_by(f64::total_cmp);
    println!("{name}: least {:.0} ns, median {:.0} ns", rounds[0], rounds[10]);
    Ok(())
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("calls: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
