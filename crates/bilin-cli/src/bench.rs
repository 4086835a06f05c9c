//! Measurements of products on a device.

use std::hint::black_box;
use std::time::Instant;

use bilin::amp;
use bilin::prelude::*;
use serde_json::{Value, json};

use crate::args::MachineArgs;
use crate::progress::Progress;
use crate::report::duration;
use crate::{Failure, Streams};

/// A case takes at least this many runs, and more while they fit into [`BUDGET`] seconds.
const LEAST_RUNS: usize = 3;
const MOST_RUNS: usize = 200;
const BUDGET: f64 = 0.5;
/// A first run of more seconds than this is the only one.
const LONG_RUN: f64 = 2.0;
const COPY_BYTES: usize = 64 << 20;

struct Case {
    name: &'static str,
    product: fn(&Tensor, &Tensor) -> Result<Tensor>,
    lhs: &'static [usize],
    rhs: &'static [usize],
    /// Terms of each sum.
    terms: usize,
}

static CASES: &[Case] = &[
    Case { name: "gemm 256", product: Tensor::matmul, lhs: &[256, 256], rhs: &[256, 256], terms: 256 },
    Case { name: "gemm 512", product: Tensor::matmul, lhs: &[512, 512], rhs: &[512, 512], terms: 512 },
    Case { name: "gemm 1024", product: Tensor::matmul, lhs: &[1024, 1024], rhs: &[1024, 1024], terms: 1024 },
    Case { name: "batched 64 x 128", product: Tensor::matmul, lhs: &[64, 128, 128], rhs: &[64, 128, 128], terms: 128 },
    Case { name: "outer 2048", product: Tensor::outer, lhs: &[2048], rhs: &[2048], terms: 1 },
    Case { name: "matvec 2048", product: Tensor::matvec, lhs: &[2048, 2048], rhs: &[2048], terms: 2048 },
];
const DTYPES: [DType; 2] = [DType::F32, DType::F64];

struct Measured {
    name: &'static str,
    dtype: DType,
    shape: Vec<usize>,
    runs: usize,
    /// Median time of a run.
    seconds: f64,
    gflops: f64,
    /// Operands read once and the result written once.
    gbytes: f64,
}

pub(crate) fn run(args: &MachineArgs, streams: &mut Streams<'_>) -> std::result::Result<(), Failure> {
    if let Some(count) = args.threads {
        bilin::set_num_threads(count.get())?;
    }
    let device = Device::parse(&args.device)?;
    let progress = Progress::new(CASES.len() * DTYPES.len() + 1);
    progress.show(streams, 0, "copy bandwidth");
    let copy = copy_bandwidth();
    progress.clear(streams);
    if !args.json {
        streams.line(format_args!("device {device}; copy bandwidth of one thread {copy:.2} GB/s"))?;
        streams.line(format_args!(
            "{:<18}{:<9}{:>11}{:>6}{:>12}{:>10}{:>9}",
            "case", "dtype", "median", "runs", "GFLOP/s", "GB/s", "of copy"
        ))?;
    }
    let mut all: Vec<Value> = Vec::new();
    let cases = CASES.iter().flat_map(|case| DTYPES.map(|dtype| (case, dtype)));
    for (done, (case, dtype)) in cases.enumerate() {
        if streams.is_closed() {
            return Ok(());
        }
        progress.show(streams, done + 1, &format!("{} {dtype}", case.name));
        let measured = measure(case, dtype, &device);
        progress.clear(streams);
        let m = measured?;
        let share = m.gbytes / copy;
        if args.json {
            all.push(json!({
                "case": m.name, "dtype": m.dtype.name(), "shape": m.shape, "runs": m.runs, "seconds": m.seconds,
                "gflops_per_second": m.gflops, "gbytes_per_second": m.gbytes, "share_of_copy": share,
            }));
        } else {
            streams.line(format_args!(
                "{:<18}{:<9}{:>11}{:>6}{:>12.3}{:>10.3}{:>8.1}%",
                m.name,
                m.dtype.name(),
                duration(m.seconds),
                m.runs,
                m.gflops,
                m.gbytes,
                100.0 * share
            ))?;
        }
    }
    if args.json {
        streams.line(format_args!("{}", json!({ "device": device.name(), "copy_gbytes_per_second": copy, "cases": all })))?;
    }
    Ok(())
}

/// The median of times in any order.
fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    match (times.get(times.len() / 2), times.get(times.len().saturating_sub(1) / 2)) {
        (Some(high), Some(low)) => (low + high) / 2.0,
        _ => f64::NAN,
    }
}

fn measure(case: &Case, dtype: DType, device: &Device) -> Result<Measured> {
    let _plain = amp::autocast_disabled();
    let mut rng = Rng::new(1);
    let lhs = Tensor::randn(case.lhs, dtype, device, &mut rng)?;
    let rhs = Tensor::randn(case.rhs, dtype, device, &mut rng)?;
    let begin = Instant::now();
    let out = no_grad(|| (case.product)(&lhs, &rhs))?;
    device.sync()?;
    // The first run, which may compile or warm up, isn't counted, unless that is small beside its length.
    let first = begin.elapsed().as_secs_f64();
    let is_long = first > LONG_RUN;
    let mut times = if is_long { vec![first] } else { Vec::new() };
    let begin = Instant::now();
    while !is_long && (times.len() < LEAST_RUNS || (times.len() < MOST_RUNS && begin.elapsed().as_secs_f64() < BUDGET)) {
        let start = Instant::now();
        black_box(no_grad(|| (case.product)(&lhs, &rhs))?);
        device.sync()?;
        times.push(start.elapsed().as_secs_f64());
    }
    let runs = times.len();
    let seconds = median(times);
    let elements = lhs.numel() + rhs.numel() + out.numel();
    Ok(Measured {
        name: case.name,
        dtype,
        shape: out.shape().to_vec(),
        runs,
        seconds,
        gflops: 2.0 * (out.numel() * case.terms) as f64 / seconds / 1e9,
        gbytes: (elements * dtype.size_bytes()) as f64 / seconds / 1e9,
    })
}

/// Bytes read and written by a copy between buffers larger than most caches, by one thread, in GB/s.
fn copy_bandwidth() -> f64 {
    let (from, mut to) = (vec![1u8; COPY_BYTES], vec![0u8; COPY_BYTES]);
    let mut times = Vec::new();
    for _ in 0..6 {
        let start = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        times.push(start.elapsed().as_secs_f64());
    }
    // The first copy also maps the pages.
    times.remove(0);
    2.0 * COPY_BYTES as f64 / median(times) / 1e9
}

#[cfg(test)]
mod tests {
    use super::{Case, measure, median};
    use bilin::prelude::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3., 1., 2.]), 2.);
        assert_eq!(median(vec![4., 1., 2., 3.]), 2.5);
    }

    #[test]
    fn a_case_counts_operations_and_bytes() {
        let case = Case { name: "tiny", product: Tensor::matmul, lhs: &[2, 3], rhs: &[3, 4], terms: 3 };
        let m = measure(&case, DType::F32, &Device::reference()).unwrap();
        assert_eq!(m.shape, [2, 4]);
        assert!(m.runs >= 3);
        assert!((m.gflops / m.gbytes - 48. / 104.).abs() < 1e-9);
    }
}
