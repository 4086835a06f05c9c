//! What is let go, counted for the whole process: this file has one test, so that nothing else is counted.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::memory_stats;
use bilin::prelude::*;
use bilin::tape::live_nodes;

/// Scenario S3 of `data/public_bugs.json`: graphs that are never used in backward are freed with their tensors.
#[test]
fn graphs_without_backward_free_everything() {
    let device = Device::cpu();
    let before = (live_nodes(), memory_stats(&device).current_bytes);
    for i in 0..100_000 {
        let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2], &device).unwrap().requires_grad_(true).unwrap();
        let y = x.matmul(&x).unwrap();
        let row = y.index(&[0.into()]).unwrap();
        let z = row.dot(&row).unwrap();
        let o = row.outer(&row).unwrap();
        if i == 0 {
            assert!(live_nodes() >= before.0 + 4 && z.requires_grad() && o.requires_grad());
        }
    }
    assert_eq!((live_nodes(), memory_stats(&device).current_bytes), before);
}
