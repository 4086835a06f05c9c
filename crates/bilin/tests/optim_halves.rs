//! A step of a half parameter is the step in f32, rounded once.
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
