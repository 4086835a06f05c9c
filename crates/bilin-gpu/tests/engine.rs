//! What is wgpu's own in the engine: its kernels, its switch, its clock and its errors. That every op means what it means elsewhere
//! is the conformance suite's, which `./test` runs on wgpu too.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::prelude::*;
use bilin::use_deterministic_algorithms;
use conformance::compare::{assert_product_rule, assert_same_bits};

fn gpu() -> Device {
    Device::wgpu(0).unwrap()
}

fn to(device: &Device, all: &[Tensor]) -> Vec<Tensor> {
    all.iter().map(|x| x.to_device(device).unwrap()).collect()
}

/// Normal numbers moved away from 0, so that products of two halves are no subnormal half.
fn normal(shape: &[usize], dtype: DType, seed: u64) -> Tensor {
    let x = Tensor::randn(shape, DType::F32, &Device::cpu(), &mut Rng::new(seed)).unwrap();
    let data: Vec<f32> = x.to_vec::<f32>().unwrap().into_iter().map(|x| x + 0.0625f32.copysign(x)).collect();
    Tensor::from_vec(data, shape, &Device::cpu()).unwrap().astype(dtype).unwrap()
}

#[test]
fn products_of_every_kernel_stay_in_the_bound_and_repeat_their_bits() {
    let device = gpu();
    // Tiles of every size with tails, vectors, split sums, outer products, batches with broadcast.
    let shapes: [(&[usize], &[usize]); 17] = [
        (&[132, 36], &[36, 260]),
        (&[100, 4096], &[4096, 100]),
        (&[3, 68, 40], &[40, 72]),
        (&[1283, 9], &[9, 1281]),
        (&[1284, 36], &[36, 1300]),
        (&[1, 1], &[1, 1]),
        (&[5, 7], &[7, 3]),
        (&[33, 17], &[17, 31]),
        (&[65, 40], &[40, 67]),
        (&[130, 33], &[33, 129]),
        (&[3, 5000], &[5000, 2]),
        (&[1, 4100], &[4100, 9]),
        (&[70, 300], &[300, 1]),
        (&[37, 1], &[1, 301]),
        (&[4, 9, 20], &[20, 11]),
        (&[9, 20], &[3, 20, 11]),
        (&[2, 1, 9, 20], &[3, 20, 11]),
    ];
    for (a, b) in shapes {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let home = [normal(a, dtype, 1), normal(b, dtype, 2)];
            let far = to(&device, &home);
            let what = format!("{a:?} {b:?} {dtype}");
            let got = far[0].matmul(&far[1]).unwrap();
            let terms = *a.last().unwrap();
            assert_product_rule(&got.to_device(&Device::cpu()).unwrap(), &home, terms, |x| x[0].matmul(&x[1]), &what);
            assert_same_bits(&far[0].matmul(&far[1]).unwrap(), &got, &what);
            // Transposed operands are read where they stand.
            let turned: Vec<Tensor> = far.iter().map(|x| x.mt().unwrap().contiguous().unwrap().mt().unwrap()).collect();
            let got = turned[0].matmul(&turned[1]).unwrap();
            assert_product_rule(&got.to_device(&Device::cpu()).unwrap(), &home, terms, |x| x[0].matmul(&x[1]), &what);
        }
    }
}

#[test]
fn under_the_deterministic_switch_bits_do_not_depend_on_the_batch() {
    type Op = fn(&Tensor, &Tensor) -> bilin::Result<Tensor>;
    // The batch is the first axis of the first operand and of the result.
    let ops: [(&str, &[usize], &[usize], Op); 14] = [
        ("rows by a tall matrix", &[130, 3000], &[3000, 5], |x, w| x.matmul(w)),
        ("rows by a wide matrix", &[130, 70], &[70, 132], |x, w| x.matmul(w)),
        ("rows by a vector", &[130, 3000], &[3000, 1], |x, w| x.matmul(w)),
        ("products in a batch", &[65, 4, 1100], &[1100, 6], |x, w| x.matmul(w)),
        ("a batch of grams", &[65, 3, 1100], &[1], |x, _| x.matmul(&x.mt()?)),
        ("sum of few", &[130, 20], &[1], |x, _| x.sum(1, false)),
        ("sum of many", &[130, 3000], &[1], |x, _| x.sum(1, false)),
        ("sum across", &[65, 300, 3], &[1], |x, _| x.sum(1, false)),
        ("sum of very many", &[66, 1 << 16], &[1], |x, _| x.sum(1, false)),
        ("sum of two axes", &[130, 40, 50], &[1], |x, _| x.sum([1, 2], false)),
        ("mean", &[130, 300], &[1], |x, _| x.mean(1, false)),
        ("softmax", &[130, 300], &[1], |x, _| x.softmax(1)),
        ("logsumexp", &[130, 300], &[1], |x, _| x.logsumexp(1, false)),
        ("gelu", &[130, 33], &[1], |x, _| x.gelu()),
    ];
    let device = gpu();
    use_deterministic_algorithms(true);
    for (name, x, w, op) in ops {
        for dtype in [DType::F32, DType::F16] {
            let (x, w) = (normal(x, dtype, 3).to_device(&device).unwrap(), normal(w, dtype, 4).to_device(&device).unwrap());
            let all = op(&x, &w).unwrap();
            for (first, rows) in [(0, 1), (0, 2), (7, 33), (1, 64)] {
                let part = op(&x.narrow(0, first, rows).unwrap(), &w).unwrap();
                assert_same_bits(&part, &all.narrow(0, first, rows).unwrap(), &format!("{name}, {dtype}, {rows} rows from {first}"));
            }
        }
    }
    use_deterministic_algorithms(false);
}

#[test]
fn nan_and_infinity_stand_where_they_stand_on_the_cpu() {
    let device = gpu();
    let mut data: Vec<f32> = normal(&[33, 40], DType::F32, 5).to_vec().unwrap();
    for (i, x) in [(3, f32::NAN), (90, f32::INFINITY), (200, f32::NEG_INFINITY), (333, 0.0), (777, -0.0)] {
        data[i] = x;
    }
    let x = Tensor::from_vec(data, [33, 40], &Device::cpu()).unwrap();
    let mut zeros = normal(&[40, 35], DType::F32, 6).to_vec::<f32>().unwrap();
    zeros.iter_mut().step_by(3).for_each(|z| *z = 0.0);
    let y = Tensor::from_vec(zeros, [40, 35], &Device::cpu()).unwrap();
    let mask = |t: Tensor| -> Vec<u8> {
        t.to_vec::<f32>()
            .unwrap()
            .iter()
            .map(|x| {
                if x.is_nan() {
                    3
                } else if *x == f32::INFINITY {
                    2
                } else {
                    u8::from(*x == f32::NEG_INFINITY)
                }
            })
            .collect()
    };
    let (fx, fy) = (x.to_device(&device).unwrap(), y.to_device(&device).unwrap());
    assert_eq!(mask(fx.matmul(&fy).unwrap()), mask(x.matmul(&y).unwrap()), "matmul: 0·inf is NaN");
    type Unary = fn(&Tensor) -> bilin::Result<Tensor>;
    let ops: [(&str, Unary); 11] = [
        ("exp", Tensor::exp),
        ("log", Tensor::log),
        ("sqrt", Tensor::sqrt),
        ("tanh", Tensor::tanh),
        ("sigmoid", Tensor::sigmoid),
        ("relu", Tensor::relu),
        ("neg", Tensor::neg),
        ("sin", Tensor::sin),
        ("cos", Tensor::cos),
        ("max", |x| x.max(1, false)),
        ("sum", |x| x.sum(1, false)),
    ];
    for (name, op) in ops {
        assert_eq!(mask(op(&fx).unwrap()), mask(op(&x).unwrap()), "{name}");
    }
}

/// WGSL lets a compiler ignore the sign of a zero; the drivers seen so far keep it.
#[test]
fn sums_begin_at_negative_zero_as_on_the_cpu() {
    let device = gpu();
    let has_units = device.backend().kernels().contains(&"units-64");
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for (m, k, n) in [(40, 1, 300), (3, 0, 5), (3, 2, 5), (70, 17, 33), (100, 20, 100), (9, 200, 1), (1, 5000, 6)] {
            for sign in [0.0f32, -0.0] {
                let full = |shape: [usize; 2], x: f32| Tensor::full(shape, x, DType::F32, &device).unwrap().astype(dtype).unwrap();
                let got = full([m, k], 0.0).matmul(&full([k, n], sign)).unwrap().astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
                let is_negative = k > 0 && sign.is_sign_negative();
                let what = format!("{m}×{k}×{n} {dtype}, {sign}");
                // Sums on matrix units begin at +0.
                let keeps_sign = !has_units || dtype != DType::F16 || m.min(n) <= 32;
                assert!(got.iter().all(|x| *x == 0.0 && (x.is_sign_negative() == is_negative || !keeps_sign)), "{what}");
                let sum = full([k, n], sign).sum(0, false).unwrap().astype(DType::F32).unwrap().to_vec::<f32>().unwrap();
                assert!(sum.iter().all(|x| *x == 0.0 && x.is_sign_negative() == is_negative), "sum of {what}");
            }
        }
    }
}

#[test]
fn a_position_outside_its_axis_is_an_error_when_values_are_read_and_the_device_goes_on() {
    let device = gpu();
    let x = Tensor::from_slice(&[1f32, 2., 3.], [3], &device).unwrap();
    let index = Tensor::from_slice(&[0i64, 3], [2], &device).unwrap();
    let picked = x.gather(0, &index).unwrap();
    let error = picked.to_vec::<f32>().unwrap_err().to_string();
    assert!(error.contains("index is 3; want 0 to 2 for an axis of length 3"), "{error}");
    assert_eq!(x.to_vec::<f32>().unwrap(), [1., 2., 3.]);
}

#[test]
fn tensors_are_made_with_the_bits_that_they_have_on_the_cpu() {
    let (gpu, cpu) = (gpu(), Device::cpu());
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let same = |what: &str, make: &dyn Fn(&Device) -> Tensor| assert_same_bits(&make(&gpu), &make(&cpu), &format!("{what} of {dtype}"));
        same("randn", &|d| Tensor::randn([7, 5], dtype, d, &mut Rng::new(9)).unwrap());
        same("rand", &|d| Tensor::rand([7, 5], dtype, d, &mut Rng::new(9)).unwrap());
        same("arange", &|d| Tensor::arange(-2.0, 3.0, 0.3, dtype, d).unwrap());
        same("linspace", &|d| Tensor::linspace(0.0, 1.0, 7, dtype, d).unwrap());
        same("full", &|d| Tensor::full([3], 0.1, dtype, d).unwrap());
        same("eye", &|d| Tensor::eye(3, dtype, d).unwrap());
    }
}

#[test]
fn negative_integers_of_every_width_keep_their_sign() {
    let device = gpu();
    for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
        let x = Tensor::from_slice(&[-12i64, 0, 7, -1], [4], &device).unwrap().astype(dtype).unwrap();
        let read = |t: Tensor| t.astype(DType::I64).unwrap().to_vec::<i64>().unwrap();
        assert_eq!(read(x.abs().unwrap()), [12, 0, 7, 1], "abs of {dtype}");
        assert_eq!(read(x.sign().unwrap()), [-1, 0, 1, -1], "sign of {dtype}");
        assert_eq!(read(x.sum(.., false).unwrap()), [-6], "sum of {dtype}");
        assert_eq!(read(x.min(.., false).unwrap()), [-12], "min of {dtype}");
    }
}

#[test]
fn a_profile_of_a_device_with_timestamps_has_its_own_times_and_says_so() {
    let device = gpu();
    let x = normal(&[200, 200], DType::F32, 8).to_device(&device).unwrap();
    let profile = bilin::profiler::profile(|| {
        let y = x.matmul(&x).unwrap().exp().unwrap();
        y.add_(&x).unwrap();
    });
    let has_clock = bilin::gpu::GpuDevice::open(0).unwrap().has_feature("timestamps");
    let want = if has_clock { bilin::profiler::Clock::Device } else { bilin::profiler::Clock::Host };
    assert_eq!(profile.events().len(), 3);
    for e in profile.events() {
        assert!(e.clock == want && e.duration_ns > 0 && e.duration_ns < 60_000_000_000, "{e:?}");
    }
    let table = profile.table();
    assert_eq!(table.contains("times of wgpu:0 by its own clock"), has_clock, "{table}");
    let text = if has_clock { "\"clock\":\"device\"" } else { "\"clock\":\"host\"" };
    assert_eq!(profile.export_chrome_trace().matches(text).count(), 3);
    // Unprofiled work is queued again.
    assert_eq!(x.add(&x).unwrap().to_vec::<f32>().unwrap().len(), 40_000);
}
