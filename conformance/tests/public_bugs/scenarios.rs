//! The scenarios of `public_bugs.json`, each a test by its id.

use bilin::amp::{GradScaler, ScalerOptions, Stepped};
use bilin::autograd::BackwardOptions;
use bilin::optim::Sgd;
use bilin::prelude::*;
use bilin::{memory_stats, reset_peak_memory_stats};
use conformance::compare::{assert_reference, assert_same_bits, numbers};
use conformance::samples::{Number, tensor_of};
use conformance::strides::{Strides, with_strides};
use conformance::subject::{device, fix_batches, having, widest_float};

use super::private_cpu;

type Check = fn();

/// Scenarios that run here.
pub const HERE: &[(&str, Check)] = &[
    ("G5.c", g5_c),
    ("L3.b", l3_b),
    ("L8.b", l8_b),
    ("M2.b", m2_b),
    ("G9", g9),
    ("I2.b", i2_b),
    ("W1.c", w1_c),
    ("A3.b", a3_b),
    ("A7", a7),
    ("A1.a", a1_a),
    ("A1.b", a1_b),
    ("A6.a", a6_a),
    ("A6.b", a6_b),
    ("S1.a", s1_a),
    ("S1.b", s1_b),
    ("S3.b", s3_b),
    ("E1.a", e1_a),
    ("E1.b", e1_b),
    ("D1.a", d1_a),
    ("D2.a", d2_a),
    ("D2.b", d2_b),
    ("D2.c", d2_c),
];

/// Scenarios that run elsewhere, or can't run in this crate, and why.
pub const ELSEWHERE: &[(&str, &str)] = &[
    ("S3", "tests/lifetimes.rs: the count of live nodes is one for the process, so it needs a process of its own"),
    ("D1.b", "tests/determinism.rs: one process for each number of threads"),
    ("I1.a", "needs 8 GiB"),
    ("I1.b", "needs 2 GiB"),
    ("I2.a", "needs 1.1 GiB"),
    ("W5", "needs a GPU: a limit of its bindings"),
    ("W7", "needs a GPU: kernels that don't compile"),
    ("W8", "needs a GPU: shading languages without NaN"),
    ("V1", "a timing: benches"),
    ("V2", "a timing: benches"),
    ("V3", "a timing: benches"),
    ("V4", "a timing on a GPU: benches"),
    ("V5", "a timing: benches"),
    ("X2", "needs the Python package: NumPy arrays and DLPack"),
    ("X3", "needs the Python package: NumPy arrays and DLPack"),
    ("X6", "needs the Python package: NumPy arrays and DLPack"),
    ("X8", "needs the Python package: NumPy arrays"),
];

fn sines(step: f64, shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    let count = shape.iter().product();
    tensor_of(&(0..count).map(|i: usize| Number::real((step * i as f64).sin())).collect::<Vec<_>>(), shape, dtype, device)
}

fn ones(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::ones(shape, dtype, &device()).unwrap()
}

fn leaf(x: Tensor) -> Tensor {
    x.requires_grad_(true).unwrap()
}

fn sum(x: &Tensor) -> Tensor {
    x.sum(.., false).unwrap()
}

fn assert_all(x: &Tensor, value: f64) {
    assert!(numbers(x).iter().all(|z| z.re == value && z.im == 0.0), "{x:?} isn't {value} everywhere: {:?}", numbers(x)[0]);
}

/// Bytes beyond those in use before that `f` had in use at most.
fn extra<T>(device: &Device, f: impl FnOnce() -> T) -> (T, u64) {
    let before = memory_stats(device).current_bytes;
    reset_peak_memory_stats(device);
    let out = f();
    (out, memory_stats(device).peak_bytes - before)
}

fn g5_c() {
    let x = leaf(Tensor::from_slice(&[1f32, 2., 3., 4., -5., 6.], [3, 2], &device()).unwrap());
    for _ in 0..2 {
        sum(&x.matmul(&x.mt().unwrap()).unwrap()).backward().unwrap();
    }
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [-4., 48., -4., 48., -4., 48.]);
}

fn l3_b() {
    let z = Tensor::full([256, 512], 7, DType::F32, &device()).unwrap();
    let window = z.narrow(1, 128, 256).unwrap();
    window.copy_(&ones(&[256, 256], DType::F32).matmul(&ones(&[256, 256], DType::F32)).unwrap()).unwrap();
    for (i, x) in z.to_vec::<f32>().unwrap().into_iter().enumerate() {
        assert_eq!(x, if (128..384).contains(&(i % 512)) { 256. } else { 7. }, "element {i}");
    }
}

/// The property without the timing: no matrix is allocated, and the rows are those of the plain product in reverse.
fn l8_b() {
    let device = private_cpu();
    let a = sines(0.7, &[512, 512], DType::F64, &device);
    let x = sines(0.3, &[512], DType::F64, &device);
    let plain = a.matvec(&x).unwrap();
    let reversed = a.flip(0).unwrap();
    let (y, bytes) = extra(&device, || reversed.matvec(&x).unwrap());
    assert!(bytes <= 64 << 10, "{bytes} bytes where the result has 4096 and the matrix 2 MiB");
    assert_same_bits(&y, &plain.flip(0).unwrap(), "rows in reverse");
}

fn m2_b() {
    let device = private_cpu();
    let of = |shape: &[usize]| leaf(Tensor::ones(shape, DType::Bf16, &device).unwrap());
    // Half the scenario's lengths: the batch of gradients would still take 36 MiB.
    let (x, w) = (of(&[96, 2, 256]), of(&[256, 768]));
    let (_, bytes) = extra(&device, || sum(&x.matmul(&w).unwrap()).backward().unwrap());
    assert_all(&w.grad().unwrap(), 192.0);
    // 2 bytes an element of the result, of W and of x.
    let allowed = 2 * (96 * 2 * 768 + 256 * 768 + 96 * 2 * 256) + (16 << 20);
    assert!(bytes <= allowed, "{bytes} bytes, allowed {allowed}");
}

fn g9() {
    let device = private_cpu();
    // Half the scenario's lengths, a quarter of its bound.
    let x = leaf(Tensor::ones([8, 1024], DType::F32, &device).unwrap());
    let w = sines(0.01, &[1024, 1024], DType::F32, &device);
    let y = x.matmul(&w).unwrap();
    no_grad(|| x.fill_(3.0)).unwrap();
    let loss = sum(&y);
    let (_, bytes) = extra(&device, || loss.backward().unwrap());
    assert!(w.grad().is_none());
    assert!(bytes <= 1 << 20, "{bytes} bytes in backward");
    let want = Tensor::ones([8, 1024], DType::F32, &device).unwrap().matmul(&w.mt().unwrap()).unwrap();
    assert_same_bits(&x.grad().unwrap(), &want, "row sums of W");
}

fn i2_b() {
    let rows = (1 << 21) + 10;
    let a: Vec<f32> = (0..rows).flat_map(|i| [(i % 5) as f32, 1.0]).collect();
    let a = Tensor::from_vec(a, [rows, 2], &device()).unwrap();
    let b = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2], &device()).unwrap();
    for (i, row) in a.matmul(&b).unwrap().to_vec::<f32>().unwrap().chunks_exact(2).enumerate() {
        let x = (i % 5) as f32;
        assert_eq!(row, [x + 3.0, 2.0 * x + 4.0], "row {i}");
    }
}

fn w1_c() {
    let device = device();
    // Around the edges of tiles: 4, 6, 8, 16, 32 and one more or less.
    let edges = [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33];
    let shapes = (0..edges.len())
        .flat_map(|i| [(edges[i], edges[(i * 5 + 1) % 13], edges[(i * 7 + 2) % 13]), (edges[(i * 3) % 13], edges[i], edges[(i * 5) % 13])]);
    for (m, n, k) in shapes {
        for dtype in having([DType::F32, DType::F64, DType::Bf16]) {
            let (a, b, g) = (sines(0.7, &[m, k], dtype, &device), sines(0.9, &[k, n], dtype, &device), sines(1.1, &[m, n], dtype, &device));
            let run = |class: Strides| {
                let (a, b) = (leaf(with_strides(&a, class).detach()), leaf(with_strides(&b, class).detach()));
                let y = a.matmul(&b).unwrap();
                y.backward_with(BackwardOptions { gradient: Some(with_strides(&g, class)), ..Default::default() }).unwrap();
                [y.detach(), a.grad().unwrap(), b.grad().unwrap()]
            };
            let want = run(Strides::Contiguous);
            for class in [Strides::Sliced, Strides::TransposedSliced] {
                for (got, want) in run(class).iter().zip(&want) {
                    assert_reference(got, want, &[a.clone(), b.clone(), g.clone()], &format!("({m}, {k})·({k}, {n}) {dtype} {class:?}"));
                    assert!(numbers(got).iter().all(|z| !z.re.is_nan()));
                }
            }
        }
    }
}

fn a3_b() {
    let (x, w) = (ones(&[3, 4], DType::F32), leaf(ones(&[4, 5], DType::F32)));
    let y = {
        let _scope = autocast(DType::Bf16);
        x.matmul(&w).unwrap()
    };
    assert_eq!(y.dtype(), DType::Bf16);
    let rows = Tensor::from_slice(&[512f32, 1., 1.], [3, 1], &device()).unwrap();
    let g = rows.broadcast_to([3, 5]).unwrap().astype(DType::Bf16).unwrap();
    y.backward_with(BackwardOptions { gradient: Some(g), ..Default::default() }).unwrap();
    assert_eq!(w.grad().unwrap().dtype(), DType::F32);
    assert_all(&w.grad().unwrap(), 514.0);
}

fn a7() {
    let w = leaf(ones(&[1, 1], DType::Bf16));
    w.set_grad_dtype(DType::F32).unwrap();
    for _ in 0..1000 {
        sum(&ones(&[1, 1], DType::Bf16).matmul(&w).unwrap()).backward().unwrap();
    }
    assert_eq!(w.grad().unwrap().item::<f32>().unwrap(), 1000.0);
}

fn a1_a() {
    let (x, w) = (ones(&[2, 3], DType::F32), leaf(ones(&[3, 2], DType::F32)));
    let _scope = autocast(DType::Bf16);
    no_grad(|| x.matmul(&w)).unwrap();
    sum(&x.matmul(&w).unwrap()).backward().unwrap();
    assert_eq!(w.grad().unwrap().dtype(), DType::F32);
    assert_all(&w.grad().unwrap(), 2.0);
}

fn a1_b() {
    let (x, w) = (ones(&[2, 3], DType::F32), leaf(ones(&[3, 2], DType::F32)));
    let _scope = autocast(DType::Bf16);
    assert_all(&x.matmul(&w).unwrap(), 3.0);
    no_grad(|| w.add_(&ones(&[], DType::F32))).unwrap();
    assert_all(&x.matmul(&w).unwrap(), 6.0);
}

fn a6_a() {
    let w = leaf(ones(&[1], DType::F32));
    let mut optimizer = Sgd::new(std::slice::from_ref(&w), 0.0).unwrap();
    let mut scaler = GradScaler::new(ScalerOptions { growth_interval: 1, ..Default::default() }).unwrap();
    for (gradient, count, outcome) in [(1.0, 200, Stepped::Taken), (f32::INFINITY, 400, Stepped::Skipped)] {
        for _ in 0..count {
            w.set_grad(Some(Tensor::from_slice(&[gradient], [1], &device()).unwrap())).unwrap();
            assert_eq!(scaler.step(&mut optimizer).unwrap(), outcome);
            scaler.update().unwrap();
            let scale = scaler.get_scale();
            assert!((scale as f32).is_finite() && (1.0 / scale as f32).is_normal() && scale >= 1.0, "{scale}");
        }
        assert!((scaler.get_scale() == 1.0) == (count == 400));
    }
}

fn a6_b() {
    let (a, b) = (leaf(ones(&[1, 2], DType::F16)), leaf(ones(&[2, 1], DType::F16)));
    let mut optimizer = Sgd::new(&[a.clone(), b.clone()], 0.0).unwrap();
    let mut scaler = GradScaler::default();
    for (outcome, scale) in [(Stepped::Skipped, 32768.0), (Stepped::Taken, 32768.0)] {
        optimizer.zero_grad();
        scaler.scale(&sum(&a.matmul(&b).unwrap())).unwrap().backward().unwrap();
        assert_eq!(scaler.step(&mut optimizer).unwrap(), outcome);
        scaler.update().unwrap();
        assert_eq!(scaler.get_scale(), scale);
        [&a, &b].iter().for_each(|w| assert_all(w, 1.0));
    }
    assert_all(&a.grad().unwrap(), 1.0);
    assert_all(&b.grad().unwrap(), 1.0);
}

fn s1_a() {
    let (x, w) = (leaf(ones(&[2, 3], DType::F32)), leaf(ones(&[3, 2], DType::F32)));
    let y = sum(&x.matmul(&w).unwrap());
    no_grad(|| w.add_(&ones(&[], DType::F32))).unwrap();
    let error = y.backward().unwrap_err();
    match &error {
        Error::VersionMismatch { op, operand: 1, shape, saved: 0, current: 1 } => {
            assert_eq!((op.as_ref(), shape.as_slice()), ("matmul", &[3usize, 2][..]))
        }
        _ => panic!("{error}"),
    }
    assert!(x.grad().is_none() && w.grad().is_none(), "no gradient from a changed operand");
}

fn s1_b() {
    for before in [true, false] {
        let (x, w) = (leaf(ones(&[2, 3], DType::F32)), leaf(ones(&[3, 2], DType::F32)));
        let view = || no_grad(|| x.narrow(0, 0, 1)).unwrap();
        let early = view();
        let y = sum(&x.matmul(&w).unwrap());
        let v = if before { early } else { view() };
        no_grad(|| v.add_(&ones(&[], DType::F32))).unwrap();
        let error = y.backward().unwrap_err();
        assert!(matches!(error, Error::VersionMismatch { operand: 0, .. }), "{error}");
    }
}

fn s3_b() {
    let run = || {
        let device = private_cpu();
        let x = leaf(Tensor::ones([1, 1], DType::F32, &device).unwrap());
        let before = memory_stats(&device).current_bytes;
        let mut y = x.clone();
        for _ in 0..1_000_000 {
            y = y.matmul(&x).unwrap();
        }
        drop(y);
        assert_eq!(memory_stats(&device).current_bytes, before);
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap().join().unwrap();
}

fn e1_a() {
    let (here, there) = (ones(&[2, 2], DType::F32), Tensor::ones([2, 3], DType::F32, &Device::reference()).unwrap());
    for (a, b) in [(&here, &there), (&there.mt().unwrap(), &here)] {
        let error = a.matmul(b).unwrap_err();
        assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
        assert!(error.to_string().contains(device().name()) && error.to_string().contains("reference"), "{error}");
    }
}

fn e1_b() {
    let scalar = ones(&[], DType::F32);
    let vector = Tensor::full([3], 2, DType::F64, &Device::reference()).unwrap();
    for error in [
        scalar.mul(&vector).unwrap_err(),
        vector.mul_(&scalar).unwrap_err(),
        vector.matmul(&scalar).unwrap_err(),
        einsum("i,->i", &[&vector, &scalar]).unwrap_err(),
    ] {
        assert!(matches!(error, Error::DeviceMismatch { .. }), "device wins over dtype and shape: {error}");
    }
    assert_all(&vector, 2.0);
    assert_eq!(vector.version(), 0);
}

/// `x` at an offset of `by` elements in a larger buffer.
fn placed(x: &Tensor, by: usize) -> Tensor {
    let room = Tensor::full([x.numel() + 16], f64::NAN, x.dtype(), x.device()).unwrap();
    let view = room.narrow(0, by, x.numel()).unwrap();
    view.copy_(x).unwrap();
    view
}

fn d1_a() {
    for dtype in having([DType::F32, DType::F64]) {
        let (x, y) = (sines(1.1, &[50], dtype, &device()), sines(1.3, &[50], dtype, &device()));
        let want = x.dot(&y).unwrap();
        for by in 0..16 {
            for (a, b) in [(by, by), (by, 0), (0, by), (by, 15 - by)] {
                assert_same_bits(&placed(&x, a).dot(&placed(&y, b)).unwrap(), &want, &format!("offsets {a} and {b}"));
            }
        }
    }
}

fn d2_a() {
    fix_batches();
    let (x, a) = (sines(0.7, &[100, 30, 8], DType::F32, &device()), sines(0.9, &[8, 20], DType::F32, &device()));
    let whole = x.matmul(&a).unwrap();
    for chunk in [1, 2, 50] {
        for first in (0..100).step_by(chunk) {
            let part = x.narrow(0, first, chunk).unwrap().matmul(&a).unwrap();
            assert_same_bits(&part, &whole.narrow(0, first, chunk).unwrap(), &format!("{chunk} from {first}"));
        }
    }
}

fn d2_b() {
    fix_batches();
    for dtype in having([DType::F32, DType::F64, DType::Bf16]) {
        // Fewer columns and rows than the scenario's: an element's bits may depend on neither.
        let (a, b) = (sines(0.7, &[257, 2048], dtype, &device()), sines(0.9, &[2048, 16], dtype, &device()));
        let whole = a.matmul(&b).unwrap();
        for rows in [1, 2, 17, 33, 128] {
            let part = a.narrow(0, 0, rows).unwrap().matmul(&b).unwrap();
            assert_same_bits(&part, &whole.narrow(0, 0, rows).unwrap(), &format!("{rows} rows of {dtype}"));
        }
    }
}

fn d2_c() {
    fix_batches();
    let dtype = widest_float();
    let w = sines(0.3, &[90, 7], dtype, &device());
    let one = ones(&[1, 90], dtype).matmul(&w).unwrap();
    let two = ones(&[2, 90], dtype).matmul(&w).unwrap();
    for row in 0..2 {
        assert_same_bits(&two.narrow(0, row, 1).unwrap(), &one, "row");
    }
}
