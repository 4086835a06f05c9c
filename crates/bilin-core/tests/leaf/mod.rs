//! Leaves on the reference device, and what tensors hold.

use bilin_core::{DType, Device, Tensor};

pub fn dev() -> Device {
    Device::reference()
}

/// A vector that requires a gradient.
pub fn leaf(data: &[f64]) -> Tensor {
    Tensor::from_slice(data, [data.len()], &dev()).unwrap().requires_grad_(true).unwrap()
}

pub fn values(t: &Tensor) -> Vec<f64> {
    t.astype(DType::F64).unwrap().to_vec().unwrap()
}
