//! Values of `erf`, `erfc`, `gelu` and `layer_norm` against their definitions, computed here in f64.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::f64::consts::PI;

use bilin::prelude::*;
use conformance::compare::numbers;
use conformance::samples::{Number, tensor_of};
use conformance::subject::{device, has_reference_bits, having};

/// 2/√π·∫ₐᵇ e^(−t²) dt by Simpson's rule in steps of 2⁻¹³: a relative error below 10⁻¹².
fn integral(a: f64, b: f64) -> f64 {
    let count = 2 * ((b - a).abs() * 4096.0).ceil().max(1.0) as usize;
    let h = (b - a) / count as f64;
    let bell = |i: usize| (-(a + h * i as f64).powi(2)).exp();
    let weighted = (0..=count).map(|i| bell(i) * if i == 0 || i == count { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 });
    weighted.sum::<f64>() * h / 3.0 * 2.0 / PI.sqrt()
}

fn unit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 2f64.powi(-53),
        DType::F16 => 2f64.powi(-11),
        DType::Bf16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    }
}

/// Within `units` in the last place of the dtype that is computed in, of a result of size `size`, and its rounding.
#[track_caller]
fn close([got, want]: [f64; 2], size: f64, units: f64, dtype: DType, what: &str) {
    // Below its normal numbers f16 steps by 2⁻²⁴; the integral is good to 10⁻¹².
    let floor = if dtype == DType::F16 { 2f64.powi(-25) } else { 1e-12 * size };
    // A GPU's division may be off by 2.5 units in the last place: five roundings in place of one.
    let units = if has_reference_bits(&device()) { units } else { units + 4.0 };
    let bound = size * units * unit(dtype.accumulator()) + want.abs() * unit(dtype) + floor;
    assert!((got - want).abs() <= bound, "{what} in {dtype}: {got} instead of {want}");
}

type Unary = fn(&Tensor) -> Result<Tensor>;

/// Between −20 and 20, with places where the functions are 0 or turn, and around 1 as close as half a unit of f16.
fn places() -> Vec<f64> {
    let wide = (-320..=320).map(|i| f64::from(i) / 16.0);
    let close = (-64..=64).map(|i| f64::from(i) / 2048.0);
    wide.chain(close.clone()).chain(close.map(|x| 1.0 + x)).collect()
}

#[test]
fn elementary_functions_keep_their_digits() {
    type Pair = (&'static str, Unary, fn(f64) -> f64);
    let functions: [Pair; 9] = [
        ("exp", Tensor::exp, f64::exp),
        ("expm1", Tensor::expm1, f64::exp_m1),
        ("log", Tensor::log, f64::ln),
        ("log1p", Tensor::log1p, f64::ln_1p),
        ("tanh", Tensor::tanh, f64::tanh),
        ("sigmoid", Tensor::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
        ("sqrt", Tensor::sqrt, f64::sqrt),
        ("sin", Tensor::sin, f64::sin),
        ("cos", Tensor::cos, f64::cos),
    ];
    for dtype in having([DType::F64, DType::F32, DType::F16, DType::Bf16]) {
        // What the dtype makes of them.
        let x = tensor_of(&places().into_iter().map(Number::real).collect::<Vec<_>>(), &[places().len()], dtype, &device());
        for (name, ours, theirs) in functions {
            for (x, y) in numbers(&x).iter().zip(numbers(&ours(&x).unwrap())) {
                let want = match theirs(x.re) {
                    // Beyond the largest f16.
                    want if dtype == DType::F16 && want.abs() >= 65520.0 => f64::INFINITY,
                    want => want,
                };
                if want.is_nan() || want.is_infinite() {
                    assert_eq!((y.re.is_nan(), y.re.is_infinite()), (want.is_nan(), want.is_infinite()), "{name} {} in {dtype}", x.re);
                    continue;
                }
                // Sine and cosine have errors of their argument, once whole turns are taken off it.
                let size = if matches!(name, "sin" | "cos") { want.abs().max(0.125 * x.re.abs().min(1.0)) } else { want.abs() };
                close([y.re, want], size, 4.0, dtype, &format!("{name} {}", x.re));
            }
        }
    }
}

#[test]
fn gelu_and_the_error_functions_keep_their_digits_far_out() {
    for dtype in having([DType::F64, DType::F32, DType::F16, DType::Bf16]) {
        // Multiples of 1/8 are exact in every dtype.
        let places: Vec<f64> = (-40..=40).map(|i| f64::from(i) / 8.0).collect();
        let x = tensor_of(&places.iter().map(|&x| Number::real(x)).collect::<Vec<_>>(), &[81], dtype, &device());
        let x = x.detach().requires_grad_(true).unwrap();
        let of = |y: Result<Tensor>| numbers(&y.unwrap()).iter().map(|z| z.re).collect::<Vec<f64>>();
        x.gelu()
            .unwrap()
            .backward_with(bilin::autograd::BackwardOptions { gradient: Some(x.ones_like().unwrap()), ..Default::default() })
            .unwrap();
        let (erf, erfc, gelu, slope) = (of(x.erf()), of(x.erfc()), of(x.gelu()), of(Ok(x.grad().unwrap())));
        for (i, &x) in places.iter().enumerate() {
            let check =
                |name: &str, got: f64, want: f64, size: f64, units: f64| close([got, want], size, units, dtype, &format!("{name} {x}"));
            let tail = |x: f64| if x > 0.0 { integral(x, x + 10.0) } else { 2.0 - integral(-x, 10.0 - x) };
            check("erf", erf[i], integral(0.0, x), integral(0.0, x).abs(), 2.0);
            check("erfc", erfc[i], tail(x), tail(x), 4.0);
            // e^(−x²/2) enlarges a relative rounding of its argument by x².
            let (units, normal) = (8.0 + 4.0 * x * x, tail(-x / 2f64.sqrt()) / 2.0);
            check("gelu", gelu[i], x * normal, (x * normal).abs(), units);
            // Both parts of the slope cancel below 0; their sizes count.
            let bell = x * (-x * x / 2.0).exp() / (2.0 * PI).sqrt();
            check("the slope of gelu", slope[i], normal + bell, normal + bell.abs(), units);
        }
    }
}

#[test]
fn layer_norm_is_its_definition_also_far_from_zero() {
    for dtype in having([DType::F64, DType::F32, DType::F16, DType::Bf16]) {
        let mut rng = Rng::new(3);
        // A mean of 60 would cancel in a difference of squares.
        let mut make = |shape: &[usize], shift: f64| {
            let t = Tensor::randn(shape, DType::F64, &Device::cpu(), &mut rng).unwrap().add_scalar(shift).unwrap();
            t.astype(dtype).unwrap().to_device(&device()).unwrap()
        };
        let (x, w, b) = (make(&[7, 3, 10], 60.0), make(&[3, 10], 0.0), make(&[3, 10], 0.0));
        let re = |t: &Tensor| numbers(t).iter().map(|z| z.re).collect::<Vec<f64>>();
        let (xs, ws, bs) = (re(&x), re(&w), re(&b));
        let got = x.layer_norm(&[3, 10], Some(&w), Some(&b), 1e-5).unwrap();
        assert_eq!(got.dtype(), dtype);
        let u = unit(dtype.accumulator());
        for (row, y) in xs.chunks(30).zip(re(&got).chunks(30)) {
            let mean = row.iter().sum::<f64>() / 30.0;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 30.0;
            for i in 0..30 {
                let (white, size) = ((row[i] - mean) / (variance + 1e-5).sqrt(), 61.0 / variance.sqrt());
                let want = white * ws[i] + bs[i];
                // The mean is within 30 roundings of numbers of size 61, and each difference as far.
                let bound = 4.0 * 32.0 * u * (size * (1.0 + white * white) * ws[i].abs() + bs[i].abs()) + unit(dtype) * want.abs();
                assert!((y[i] - want).abs() <= bound, "{} instead of {want} in {dtype}", y[i]);
            }
        }
    }
    let x = Tensor::ones([2, 3], DType::F32, &device()).unwrap();
    for bad in [x.layer_norm(&[2], None, None, 1e-5), x.layer_norm(&[], None, None, 1e-5), x.layer_norm(&[3], Some(&x), None, 1e-5)] {
        let error = bad.unwrap_err();
        assert_eq!(error.kind(), "ShapeMismatch");
        assert!(error.to_string().starts_with("layer_norm: "), "{error}");
    }
    assert_eq!(x.layer_norm(&[3], None, None, -1.0).unwrap_err().kind(), "InvalidArgument");
    let _scope = autocast(DType::Bf16);
    assert_eq!(x.astype(DType::Bf16).unwrap().layer_norm(&[3], None, None, 1e-5).unwrap().dtype(), DType::F32);
    assert_eq!(x.astype(DType::Bf16).unwrap().gelu().unwrap().dtype(), DType::Bf16);
}
