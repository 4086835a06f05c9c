//! Graphs shared between threads, counted for the whole process: this file has one test, so that nothing else is counted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::autograd::{self, BackwardOptions, GradOptions};
use bilin::memory_stats;
use bilin::prelude::*;
use bilin::tape::live_nodes;
use conformance::compare::numbers;
use conformance::samples::{Number, tensor_of};
use conformance::subject::{device, widest_float};

fn values(x: &Tensor) -> Vec<f64> {
    numbers(x).iter().map(|z| z.re).collect()
}

#[test]
fn shared_graphs_have_right_sums_and_leave_nothing() {
    let (device, dtype) = (device(), widest_float());
    let before = (live_nodes(), memory_stats(&device).current_bytes);
    const THREADS: usize = 8;
    for round in 0..50 {
        let x = tensor_of(&[1, 2, 3, 4].map(Number::whole), &[2, 2], dtype, &device).requires_grad_(true).unwrap();
        // Whole numbers: every order of adding gives the same bits.
        let shared = x.matmul(&x).unwrap().mul(&x).unwrap();
        let keep = || BackwardOptions { retain_graph: Some(true), ..Default::default() };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (x, shared) = (&x, &shared);
                scope.spawn(move || {
                    let own = shared.mul_scalar(1.0 + thread as f64).unwrap().sum(.., false).unwrap();
                    match (thread + round) % 4 {
                        // Through the shared part into `.grad`; recorded, to be dropped; to an interior tensor; never used.
                        0 | 1 => own.backward_with(keep()).unwrap(),
                        2 => {
                            let options = GradOptions { create_graph: true, ..Default::default() };
                            let g = autograd::grad(&[&own], &[x, shared], options).unwrap();
                            assert_eq!(values(g[1].as_ref().unwrap()), [1.0 + thread as f64; 4]);
                        }
                        _ => drop(own),
                    }
                });
            }
        });
        let weight: f64 = (0..THREADS).filter(|t| (t + round) % 4 < 2).map(|t| 1.0 + t as f64).sum();
        // Σ X∘XX by X: XX + XXᵀ + XᵀX.
        let by_hand = [7. + 5. + 10., 10. + 11. + 14., 15. + 11. + 14., 22. + 25. + 20.].map(|g| g * weight);
        assert_eq!(values(&x.grad().unwrap()), by_hand, "round {round}");
        // Whoever drops last frees: another thread.
        std::thread::spawn(move || drop(shared)).join().unwrap();
    }
    assert_eq!((live_nodes(), memory_stats(&device).current_bytes), before);
}
