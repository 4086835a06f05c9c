//! The outer-product kernels against the host, between guard bands, in windows, and their refusals.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin_core::{DType, Error, Result};
use bilin_gpu::{
    CommandEncoder, GpuBuffer, GpuDevice, GpuOptions, KernelRegistry, dispatch_outer_product_backward_lhs_f32 as backward_lhs,
    dispatch_outer_product_backward_rhs_f32 as backward_rhs, dispatch_outer_product_f32 as forward,
};

const SHAPES: [(usize, usize); 12] =
    [(8, 5), (1, 1), (7, 3), (1, 1000), (1000, 1), (3, 4), (129, 256), (4097, 1023), (515, 1028), (2000, 64), (1, 70_000), (70_000, 1)];
/// Elements of poison on both sides of a buffer: the widest alignment of a binding.
const GUARD: usize = 64;
const POISON: f32 = f32::NAN;

type Kernel = fn(&mut CommandEncoder, &KernelRegistry, &GpuDevice, &GpuBuffer, &GpuBuffer, &GpuBuffer, &GpuBuffer, u32, u32) -> Result<()>;

struct Bench {
    device: GpuDevice,
    registry: KernelRegistry,
    params: GpuBuffer,
}

impl Bench {
    fn new(options: &GpuOptions) -> Bench {
        let device = GpuDevice::with_options(options).unwrap();
        // What stands in params is wrong on purpose: the arguments rule.
        let params = device.alloc_buffer(8, DType::I32, [2]).unwrap();
        params.write(&[i32::MAX, i32::MAX]).unwrap();
        Bench { device, registry: KernelRegistry::new(), params }
    }

    /// `values` in the middle of a poisoned buffer, and the whole of it.
    fn guarded(&self, values: &[f32]) -> (GpuBuffer, GpuBuffer) {
        // The end stays where the values end, so that the next element is poison.
        let all: Vec<f32> = [POISON; GUARD].into_iter().chain(values.iter().copied()).chain([POISON; GUARD]).collect();
        let whole = self.device.alloc_buffer(all.len() * 4, DType::F32, [all.len()]).unwrap();
        whole.write(&all).unwrap();
        (whole.slice_view(GUARD * 4, [values.len()]).unwrap(), whole)
    }

    /// Runs a kernel on poisoned surroundings and returns the result; the surroundings of the result must be as they were.
    fn run(&self, kernel: Kernel, a: &[f32], b: &[f32], len: usize, n: usize, m: usize) -> Vec<f32> {
        let ((a, _), (b, _), (y, whole)) = (self.guarded(a), self.guarded(b), self.guarded(&vec![POISON; len]));
        let mut encoder = self.device.command_encoder();
        kernel(&mut encoder, &self.registry, &self.device, &a, &b, &y, &self.params, n as u32, m as u32).unwrap();
        encoder.commit_and_wait().unwrap();
        let all = whole.read::<f32>().unwrap();
        assert!(all[..GUARD].iter().chain(&all[GUARD + len..]).all(|x| x.is_nan()), "({n}, {m}): a guard band was written");
        all[GUARD..GUARD + len].to_vec()
    }
}

fn sines(step: f32, len: usize) -> Vec<f32> {
    (0..len).map(|i| (step * (i % 100_003) as f32).sin()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Within c·u·K·Σ|terms|, of terms in f64.
fn assert_sum(got: f32, terms: impl Iterator<Item = f64> + Clone, count: usize, what: &str) {
    let (sum, size) = (terms.clone().sum::<f64>(), terms.map(f64::abs).sum::<f64>());
    let bound = 4.0 * DType::F32.unit_roundoff() * count as f64 * size + f64::from(f32::MIN_POSITIVE) * count as f64;
    assert!((f64::from(got) - sum).abs() <= bound, "{what}: {got}, want {sum} within {bound:e}");
}

fn check(bench: &Bench, n: usize, m: usize) {
    let (lhs, rhs, dy) = (sines(0.7, n), sines(1.3, m), sines(0.9, n * m));
    let y = bench.run(forward, &lhs, &rhs, n * m, n, m);
    let want: Vec<f32> = lhs.iter().flat_map(|a| rhs.iter().map(move |b| a * b)).collect();
    assert_eq!(bits(&y), bits(&want), "({n}, {m})");
    let dlhs = bench.run(backward_lhs, &dy, &rhs, n, n, m);
    for (i, got) in dlhs.iter().enumerate() {
        let terms = (0..m).map(|j| f64::from(dy[i * m + j]) * f64::from(rhs[j]));
        assert_sum(*got, terms, m, &format!("dlhs[{i}] of ({n}, {m})"));
    }
    let drhs = bench.run(backward_rhs, &dy, &lhs, m, n, m);
    for (j, got) in drhs.iter().enumerate() {
        let terms = (0..n).map(|i| f64::from(dy[i * m + j]) * f64::from(lhs[i]));
        assert_sum(*got, terms, n, &format!("drhs[{j}] of ({n}, {m})"));
    }
    assert_eq!(bits(&bench.run(backward_lhs, &dy, &rhs, n, n, m)), bits(&dlhs), "dlhs of ({n}, {m}) run twice");
    assert_eq!(bits(&bench.run(backward_rhs, &dy, &lhs, m, n, m)), bits(&drhs), "drhs of ({n}, {m}) run twice");
}

#[test]
fn forward_and_gradients_equal_the_host() {
    let bench = Bench::new(&GpuOptions::default());
    for (n, m) in SHAPES {
        check(&bench, n, m);
    }
}

#[test]
fn a_matrix_beyond_the_binding_limit_goes_in_windows() {
    let bench = Bench::new(&GpuOptions { max_binding_bytes: Some(64 * 1024), ..Default::default() });
    for (n, m) in [(300, 256), (301, 77), (1000, 1028)] {
        check(&bench, n, m);
    }
    // A row that no window holds.
    let y = bench.device.alloc_buffer(2 * 20_000 * 4, DType::F32, [2, 20_000]).unwrap();
    let (lhs, rhs) = (bench.guarded(&[1., 2.]).0, bench.guarded(&vec![1.; 20_000]).0);
    let mut encoder = bench.device.command_encoder();
    let error = forward(&mut encoder, &bench.registry, &bench.device, &lhs, &rhs, &y, &bench.params, 2, 20_000).unwrap_err();
    assert!(error.to_string().contains("80000 bytes") && error.to_string().contains("65536"), "{error}");
}

#[test]
fn grids_beyond_the_limit_are_strided_over() {
    let bench = Bench::new(&GpuOptions { max_groups: Some(3), ..Default::default() });
    for (n, m) in [(515, 1028), (70, 3001), (1, 70_000), (3000, 1)] {
        check(&bench, n, m);
    }
}

#[test]
fn the_gradient_by_lhs_is_the_difference_of_the_sum() {
    let bench = Bench::new(&GpuOptions::default());
    let (n, m) = (9, 6);
    // Eighths, so that every product and sum is exact and the difference quotient of the linear function has no error.
    let rhs: Vec<f32> = (0..m).map(|j| j as f32 / 8.0 - 0.25).collect();
    let lhs: Vec<f32> = (0..n).map(|i| i as f32 / 8.0).collect();
    let sum = |lhs: &[f32]| bench.run(forward, lhs, &rhs, n * m, n, m).iter().sum::<f32>();
    let dlhs = bench.run(backward_lhs, &vec![1.0; n * m], &rhs, n, n, m);
    for i in 0..n {
        let (mut up, mut down) = (lhs.clone(), lhs.clone());
        up[i] += 0.5;
        down[i] -= 0.5;
        assert_eq!(dlhs[i], sum(&up) - sum(&down), "dlhs[{i}]");
        assert_eq!(dlhs[i], rhs.iter().sum::<f32>());
    }
}

#[test]
fn values_that_are_not_finite_propagate() {
    let bench = Bench::new(&GpuOptions::default());
    let (lhs, rhs) = ([0.0, f32::INFINITY, 1.0], [1.0, f32::NAN, 0.0, f32::NEG_INFINITY]);
    let y = bench.run(forward, &lhs, &rhs, 12, 3, 4);
    for (i, got) in y.iter().enumerate() {
        let want = lhs[i / 4] * rhs[i % 4];
        assert!(got.is_nan() == want.is_nan() && (want.is_nan() || *got == want), "{i}: {got}, want {want}");
    }
}

#[test]
fn each_check_refuses_by_its_message_in_order_and_touches_nothing() {
    let bench = Bench::new(&GpuOptions::default());
    let device = &bench.device;
    let of = |dtype, len: usize| device.alloc_buffer(len * 4, dtype, [len]).unwrap();
    let (a, b, y) = (of(DType::F32, 2), of(DType::F32, 3), of(DType::F32, 6));
    y.write(&[5f32; 6]).unwrap();
    let short = device.alloc_buffer(7, DType::U8, [7]).unwrap();
    let ints = of(DType::I32, 3);
    let mut encoder = device.command_encoder();
    let p = &bench.params;
    let empty = KernelRegistry::new();
    let mut refused = |kernel: Kernel, x: [&GpuBuffer; 4], n, m| {
        let error = kernel(&mut encoder, &empty, device, x[0], x[1], x[2], x[3], n, m).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        error.to_string()
    };
    // Everything is wrong at once: the first check speaks.
    let f = "dispatch_outer_product_f32";
    assert_eq!(refused(forward, [&ints, &ints, &ints, &short], 0, 0), format!("{f}: n is 0; want at least 1"));
    assert_eq!(refused(forward, [&ints, &ints, &ints, &short], 2, 0), format!("{f}: m is 0; want at least 1"));
    assert_eq!(
        refused(forward, [&ints, &ints, &ints, &short], 2, 3),
        format!("{f}: params is 7 bytes; want at least 8: n and m as two u32")
    );
    assert_eq!(refused(forward, [&b, &ints, &y, p], 2, 3), format!("{f}: rhs is int32; want float32"));
    assert_eq!(refused(forward, [&b, &b, &y, p], 2, 3), format!("{f}: lhs is 3 elements; want 2, for n = 2 and m = 3"));
    assert_eq!(refused(forward, [&a, &a, &y, p], 2, 3), format!("{f}: rhs is 2 elements; want 3, for n = 2 and m = 3"));
    assert_eq!(refused(forward, [&a, &b, &b, p], 2, 3), format!("{f}: y is 3 elements; want 6, for n = 2 and m = 3"));
    let l = "dispatch_outer_product_backward_lhs_f32";
    assert_eq!(refused(backward_lhs, [&y, &ints, &a, p], 2, 3), format!("{l}: rhs is int32; want float32"));
    assert_eq!(refused(backward_lhs, [&b, &b, &a, p], 2, 3), format!("{l}: dy is 3 elements; want 6, for n = 2 and m = 3"));
    assert_eq!(refused(backward_lhs, [&y, &b, &b, p], 2, 3), format!("{l}: dlhs is 3 elements; want 2, for n = 2 and m = 3"));
    let r = "dispatch_outer_product_backward_rhs_f32";
    assert_eq!(refused(backward_rhs, [&y, &b, &b, p], 2, 3), format!("{r}: lhs is 3 elements; want 2, for n = 2 and m = 3"));
    assert_eq!(refused(backward_rhs, [&y, &a, &a, p], 2, 3), format!("{r}: drhs is 2 elements; want 3, for n = 2 and m = 3"));
    assert!(encoder.is_empty());
    encoder.commit_and_wait().unwrap();
    assert_eq!(y.read::<f32>().unwrap(), [5.0; 6]);
}
