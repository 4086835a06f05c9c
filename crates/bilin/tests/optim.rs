//! Optimisers: a step of a half parameter is the step in f32, rounded once; settings out of range are refused.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use bilin::optim::{AdamW, Optimizer, Sgd};
use bilin::prelude::*;

fn leaf(dtype: DType) -> Tensor {
    let numbers: Vec<f32> = (1..=64).map(|i| bf16::from_f32(0.37 * i as f32).to_f32()).collect();
    Tensor::from_vec(numbers, [64], &Device::cpu()).unwrap().astype(dtype).unwrap().detach().requires_grad_(true).unwrap()
}

fn steps(p: &Tensor, optimizer: &mut dyn Optimizer) {
    optimizer.zero_grad();
    p.astype(DType::F32).unwrap().mul_scalar(0.31).unwrap().sum(.., false).unwrap().backward().unwrap();
    optimizer.step().unwrap();
}

#[test]
fn a_step_of_a_half_parameter_is_rounded_once() {
    type Make = fn(&[Tensor]) -> Box<dyn Optimizer>;
    let makers: [Make; 2] = [
        |p| {
            let mut sgd = Sgd::new(p, 0.3).unwrap();
            (sgd.momentum, sgd.weight_decay) = (0.9, 0.01);
            Box::new(sgd)
        },
        |p| Box::new(AdamW::new(p, 0.3).unwrap()),
    ];
    for make in makers {
        let (half, full) = (leaf(DType::Bf16), leaf(DType::F32));
        let before = half.detach().to_vec::<bf16>().unwrap();
        let mut optimizers = [make(std::slice::from_ref(&half)), make(std::slice::from_ref(&full))];
        steps(&half, optimizers[0].as_mut());
        // The gradient of the half leaf, 0.31 in bf16, for both.
        let g = Tensor::full([64], f64::from(bf16::from_f32(0.31).to_f32()), DType::F32, &Device::cpu()).unwrap();
        full.mul(&g).unwrap().sum(.., false).unwrap().backward().unwrap();
        optimizers[1].step().unwrap();
        let want: Vec<bf16> = full.to_vec::<f32>().unwrap().into_iter().map(bf16::from_f32).collect();
        assert_eq!(half.to_vec::<bf16>().unwrap(), want);
        assert_ne!(before, want);
    }
}

#[test]
fn settings_out_of_range_are_refused_by_name_before_anything_changes() {
    let p = leaf(DType::F32);
    for lr in [f64::NAN, -0.1, f64::INFINITY] {
        assert!(Sgd::new(std::slice::from_ref(&p), lr).unwrap_err().to_string().contains("lr"));
        assert!(AdamW::new(std::slice::from_ref(&p), lr).unwrap_err().to_string().contains("lr"));
    }
    let before = p.to_vec::<f32>().unwrap();
    p.sum(.., false).unwrap().backward().unwrap();
    let mut sgd = Sgd::new(std::slice::from_ref(&p), 0.1).unwrap();
    sgd.momentum = f64::NAN;
    assert!(sgd.step().unwrap_err().to_string().contains("momentum"));
    let mut adam = AdamW::new(std::slice::from_ref(&p), 0.1).unwrap();
    adam.betas = [0.9, 1.0];
    assert!(adam.step().unwrap_err().to_string().contains("betas"));
    adam.betas = [0.9, 0.999];
    adam.eps = -1.0;
    assert!(adam.step().unwrap_err().to_string().contains("eps"));
    assert_eq!(p.to_vec::<f32>().unwrap(), before);
}

/// Two steps of each, worked by hand from their papers' rules in f64.
#[test]
fn steps_are_those_of_the_rules() {
    let device = Device::cpu();
    let p = Tensor::from_vec(vec![1.5f64, -2.0], [2], &device).unwrap().requires_grad_(true).unwrap();
    let g = [[0.5f64, -1.0], [0.25, 2.0]];
    let give = |p: &Tensor, g: [f64; 2]| {
        p.zero_grad();
        p.mul(&Tensor::from_vec(g.to_vec(), [2], &device).unwrap()).unwrap().sum(.., false).unwrap().backward().unwrap();
    };
    let near = |p: &Tensor, want: [f64; 2]| {
        for (a, b) in p.to_vec::<f64>().unwrap().iter().zip(want) {
            assert!((a - b).abs() <= 8.0 * f64::EPSILON * b.abs(), "{a} and {b}");
        }
    };
    let mut sgd = Sgd::new(std::slice::from_ref(&p), 0.1).unwrap();
    (sgd.momentum, sgd.weight_decay) = (0.9, 0.02);
    let (mut x, mut v) = ([1.5f64, -2.0], [0.0f64; 2]);
    for g in g {
        give(&p, g);
        sgd.step().unwrap();
        for i in 0..2 {
            v[i] = 0.9 * v[i] + (g[i] + 0.02 * x[i]);
            x[i] -= 0.1 * v[i];
        }
        near(&p, x);
    }
    let mut adam = AdamW::new(std::slice::from_ref(&p), 0.1).unwrap();
    let (mut m, mut v) = ([0.0f64; 2], [0.0f64; 2]);
    for (t, g) in (1..).zip(g) {
        give(&p, g);
        adam.step().unwrap();
        for i in 0..2 {
            m[i] = 0.9 * m[i] + (1.0 - 0.9) * g[i];
            v[i] = 0.999 * v[i] + (1.0 - 0.999) * g[i] * g[i];
            let (mean, square) = (m[i] / (1.0 - 0.9f64.powi(t)), v[i] / (1.0 - 0.999f64.powi(t)));
            x[i] = x[i] * (1.0 - 0.1 * 0.01) - 0.1 * mean / (square.sqrt() + 1e-8);
        }
        near(&p, x);
    }
}
