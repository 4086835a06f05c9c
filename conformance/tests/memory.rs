//! No operand is expanded: memory of products that broadcast, as the engine counts it and as the system sees it.
//!
//! One test, so that the process's peak is its own.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::prelude::*;
use bilin::{memory_stats, profiler, reset_peak_memory_stats};
use conformance::subject::{device, has_reference_bits};

const MIB: u64 = 1 << 20;

/// `VmHWM` or `VmRSS` of this process, in bytes.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|l| l.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn bytes(t: &Tensor) -> u64 {
    (t.numel() * t.dtype().size_bytes()) as u64
}

#[test]
fn a_broadcast_batch_costs_its_result_and_its_gradients() {
    let dev = device();
    let mut rng = Rng::new(1);
    let cases: [(&[usize], &[usize]); 3] = [
        (&[64, 1, 256, 256], &[1, 64, 256, 4]),
        // One weight for a batch.
        (&[64, 128, 256], &[256, 512]),
        // Grouped heads.
        (&[2, 8, 4, 256, 64], &[2, 8, 1, 64, 256]),
    ];
    for (a, b) in cases {
        let a = Tensor::rand(a, DType::F32, &dev, &mut rng).unwrap().requires_grad_(true).unwrap();
        let b = Tensor::rand(b, DType::F32, &dev, &mut rng).unwrap().requires_grad_(true).unwrap();
        reset_peak_memory_stats(&dev);
        // Resets the system's own peak of this process.
        std::fs::write("/proc/self/clear_refs", "5").unwrap();
        let (counted, seen) = (memory_stats(&dev).current_bytes, status("VmRSS"));

        let mut y = None;
        let profile = profiler::profile(|| y = a.matmul(&b).ok());
        let y = y.unwrap();
        assert_eq!(profile.events()[0].memory_change_bytes, bytes(&y) as i64, "an event says what its op took");
        let forward = memory_stats(&dev).peak_bytes - counted;
        assert_eq!(forward, bytes(&y), "forward allocates the result alone");

        y.sum(.., false).unwrap().backward().unwrap();
        let both = memory_stats(&dev).peak_bytes - counted;
        let results = bytes(&y) + bytes(&a) + bytes(&b);
        assert!(both <= results + MIB, "{both} bytes for results of {results}");
        let grown = status("VmHWM").saturating_sub(seen);
        // Where the device's memory is this process's.
        assert!(!has_reference_bits(&dev) || grown <= results + 20 * MIB, "the process grew by {grown} bytes for results of {results}");
    }
}
