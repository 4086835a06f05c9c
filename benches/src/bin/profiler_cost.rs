//! What a profile costs the work that it covers: the same small op with and without one, in turns. Texts of the events are
//! made after the work, and aren't counted. `cargo run --release -p benches --bin
//! profiler_cost`; with `off` or `on`, 3,000 of each op and no clock, for an instruction counter such as callgrind.
#![allow(clippy::unwrap_used, reason = "a measurement stops at the first error")]

use std::hint::black_box;
use std::time::Instant;

use bilin::prelude::*;
use bilin::profiler;

/// Ops in a turn.
const OPS: u32 = 20_000;
const TURNS: usize = 41;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let a = Tensor::ones([4, 4], DType::F32, &Device::cpu()).unwrap();
    let leaf = a.detach().requires_grad_(true).unwrap();
    let forward = |ops: u32| {
        for _ in 0..ops {
            black_box(black_box(&a).matmul(&a).unwrap());
        }
    };
    // Forward and backward of a product are three kernels.
    let both = |ops: u32| {
        for _ in 0..ops / 3 {
            let y = leaf.matmul(&leaf).unwrap();
            black_box(
                bilin::autograd::grad(
                    &[&y],
                    &[&leaf],
                    bilin::autograd::GradOptions { grad_outputs: vec![Some(a.clone())], ..Default::default() },
                )
                .unwrap(),
            );
        }
    };
    let cases: [(&str, &dyn Fn(u32)); 2] = [("matmul (4,4)·(4,4)", &forward), ("the same and its gradients", &both)];
    if let Some(which) = std::env::args().nth(1) {
        let work = || cases.iter().for_each(|(_, work)| work(3000));
        match which.as_str() {
            "on" => println!("{} events", profiler::profile(work).events().len()),
            "off" => work(),
            _ => eprintln!("want off or on"),
        }
        return;
    }
    println!("{:<28} {:>12} {:>12} {:>16}", "op", "off, ns", "on, ns", "ns per event");
    for (name, work) in cases {
        let (mut off, mut on, mut more) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..TURNS {
            let time = || {
                let start = Instant::now();
                work(OPS);
                start.elapsed().as_nanos() as f64
            };
            let plain = time;
            let seen = || {
                let (took, profile) = profiler::profile_with(time);
                (took, profile.events().len())
            };
            // Each comes first every other time.
            let (without, (with, events)) = if turn % 2 == 0 {
                let without = plain();
                (without, seen())
            } else {
                let with = seen();
                (plain(), with)
            };
            off.push(without / f64::from(OPS));
            on.push(with / f64::from(OPS));
            more.push((with - without) / events as f64);
        }
        println!("{name:<28} {:>12.0} {:>12.0} {:>16.0}", median(off), median(on), median(more));
    }
}
