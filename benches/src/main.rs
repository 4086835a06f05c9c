//! Products of this engine beside Rust peers, in one run, alternating: `cargo run --release -p benches [-- FILTER]`.
//!
//! Cases stand in `cases.json`. Each is timed in rounds; in a round every contender runs for about 20 ms. A ratio is the median
//! over rounds of peer's time ÷ ours, so a drift of the machine's clock cancels: above 1 we are faster. `products.py` drives this
//! program over a pipe (`benches --serve`), beside libraries of Python.

use std::io::{BufRead, Write};
use std::time::Instant;

use bilin::prelude::*;

mod case;
mod ours;
mod peers;
mod roof;

use case::Case;

/// One call of a contender.
pub(crate) type Run = Box<dyn FnMut() -> Result<()>>;

const ROUNDS: usize = 9;
const SLICE_SECONDS: f64 = 0.02;

/// Who runs a case; `None` where it can't.
fn contender(name: &str, case: &Case) -> Result<Option<Run>> {
    match name {
        "bilin" => ours::run(case).map(Some),
        "gemm" => Ok(peers::gemm(case)),
        "matrixmultiply" => Ok(peers::matrixmultiply(case)),
        _ => Ok(None),
    }
}

fn seconds_a_call(run: &mut Run, calls: usize) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..calls {
        run()?;
    }
    Ok(start.elapsed().as_secs_f64() / calls as f64)
}

fn median(mut xs: Vec<f64>) -> f64 {
    xs.sort_by(f64::total_cmp);
    xs.get(xs.len() / 2).copied().unwrap_or(f64::NAN)
}

fn measure(case: &Case) -> Result<()> {
    let mut runs = Vec::new();
    for name in ["bilin", "gemm", "matrixmultiply"] {
        if let Some(run) = contender(name, case)? {
            runs.push((name, run, 1, Vec::new()));
        }
    }
    for (_, run, calls, _) in &mut runs {
        run()?;
        let once = seconds_a_call(run, 1)?.max(1e-9);
        let few = seconds_a_call(run, (1e-3 / once).ceil().max(1.0) as usize)?;
        *calls = (SLICE_SECONDS / few).ceil().max(1.0) as usize;
    }
    for _ in 0..ROUNDS {
        for (_, run, calls, times) in &mut runs {
            times.push(seconds_a_call(run, *calls)?);
        }
    }
    let own = runs.first().map(|r| r.3.clone()).unwrap_or_default();
    let own_median = median(own.clone());
    print!("| {} | {:.3} µs | {:.1} |", case.name, own_median * 1e6, case.flops() / own_median / 1e9);
    for (peer, _, _, times) in runs.iter().skip(1) {
        let ratio = median(times.iter().zip(&own).map(|(t, o)| t / o).collect());
        print!(" {peer} {ratio:.2}");
    }
    println!(" |");
    Ok(())
}

/// Answers lines `contender TAB case TAB calls` with seconds of wall time a call (`-` where the contender can't run the case),
/// and `roof TAB name TAB calls` with a limit of the machine.
fn serve(cases: &[Case]) -> Result<()> {
    let (mut current, mut runs) = (String::new(), Vec::<(String, Option<Run>)>::new());
    for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
        let mut parts = line.split('\t');
        let (who, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let calls = parts.next().and_then(|c| c.parse().ok()).unwrap_or(1);
        if current != name {
            runs.clear();
            current = name.to_string();
        }
        if !runs.iter().any(|(known, _)| known == who) {
            let run = match (who, cases.iter().find(|c| c.name == name)) {
                ("roof", _) => roof::run(name)?,
                (_, Some(case)) => contender(who, case)?,
                (_, None) => None,
            };
            runs.push((who.to_string(), run));
        }
        match runs.iter_mut().find(|(known, _)| known == who) {
            Some((_, Some(run))) => println!("{}", seconds_a_call(run, calls)?),
            _ => println!("-"),
        }
        let _ = std::io::stdout().flush();
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    let argument = std::env::args().nth(1).unwrap_or_default();
    let run = || -> Result<()> {
        let cases = case::all()?;
        if argument == "--serve" {
            return serve(&cases);
        }
        println!("threads {}", bilin::num_threads());
        println!("| case | time | GFLOP/s | peer's time ÷ ours |\n|---|---|---|---|");
        cases.iter().filter(|c| c.name.contains(&argument)).try_for_each(measure)
    };
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("benches: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}
