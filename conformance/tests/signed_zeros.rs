//! Sums begin at −0: a product without a summed axis is the elementwise product, the sign of zero included.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::autograd::{GradOptions, grad};
use bilin::prelude::*;
use bilin::{concat, op_call};
use conformance::compare::{assert_same_bits, numbers};
use conformance::samples::{Number, tensor_of};
use conformance::subject::devices;

const FLOATS: [DType; 6] = [DType::F16, DType::Bf16, DType::F32, DType::F64, DType::C64, DType::C128];

/// Every pair of parts, where the dtype has two.
fn specials(dtype: DType, device: &Device) -> Tensor {
    let parts = [0.0, -0.0, 1.0, -2.0, if dtype.is_complex() { 3.0 } else { f64::from(f32::MIN_POSITIVE) }];
    let all = |x: f64| parts.map(|y| Number { z: bilin::c128::new(x, y), n: 0 });
    let numbers: Vec<Number> = parts.into_iter().flat_map(all).collect();
    tensor_of(&numbers, &[numbers.len()], dtype, device)
}

#[test]
fn products_without_a_sum_are_elementwise_products() {
    for device in devices() {
        for dtype in FLOATS.into_iter().filter(|d| device.backend().has_dtype(*d)) {
            let x = specials(dtype, &device);
            let n = x.numel();
            let (column, row) = (x.reshape([n, 1]).unwrap(), x.reshape([1, n]).unwrap());
            let want = column.mul(&row).unwrap();
            let checks = [
                ("outer", "", [&x, &x], want.clone()),
                ("matmul", "", [&column, &row], want.clone()),
                ("tensordot", "axes=0", [&x, &x], want.clone()),
                ("inner", "", [&column, &column], want.clone()),
                ("einsum", "subscripts=i,j->ij", [&x, &x], want.clone()),
                ("einsum", "subscripts=i,j->ji", [&x, &x], want.mt().unwrap()),
                ("einsum", "subscripts=i,i->i", [&x, &x], x.mul(&x).unwrap()),
                ("matvec", "", [&column, &x.narrow(0, 5, 1).unwrap()], x.mul(&x.narrow(0, 5, 1).unwrap()).unwrap()),
                ("vecdot", "", [&column, &column], x.conj().unwrap().mul(&x).unwrap()),
            ];
            for (op, attributes, operands, want) in checks {
                let got = op_call(op, &operands.map(Tensor::clone), attributes).unwrap();
                assert_same_bits(&got, &want, &format!("{op} {attributes} {dtype} on {device}"));
            }
        }
    }
}

#[test]
fn gradients_of_products_without_a_sum_keep_the_sign_of_zero() {
    for device in devices() {
        for dtype in [DType::F32, DType::F64].into_iter().filter(|d| device.backend().has_dtype(*d)) {
            let x = specials(dtype, &device);
            let (a, b) = (x.detach().requires_grad_(true).unwrap(), x.narrow(0, 5, 1).unwrap());
            let cotangent = x.flip(0).unwrap().reshape([x.numel(), 1]).unwrap();
            let out = a.outer(&b).unwrap();
            let options = GradOptions { grad_outputs: vec![Some(cotangent)], ..GradOptions::default() };
            let got = grad(&[&out], &[&a], options).unwrap().remove(0).unwrap();
            assert_same_bits(&got, &x.flip(0).unwrap().mul(&b).unwrap(), &format!("{dtype} on {device}"));
        }
    }
}

#[test]
fn sums_of_negative_zeros_are_negative_and_of_nothing_positive() {
    for device in devices() {
        for dtype in FLOATS.into_iter().filter(|d| device.backend().has_dtype(*d)) {
            let zero = |n: usize, x: f64| tensor_of(&vec![Number { z: bilin::c128::new(x, x), n: 0 }; n], &[n], dtype, &device);
            for n in [0, 1, 17, 5000] {
                let total = numbers(&zero(n, -0.0).sum(.., false).unwrap())[0];
                assert!(total.re == 0.0 && total.re.is_sign_negative() == (n > 0), "{n} of {dtype} on {device}: {total}");
                let columns = zero(n, -0.0).reshape([n, 1]).unwrap().broadcast_to([n, 40]).unwrap().contiguous().unwrap();
                for z in numbers(&columns.sum(0, false).unwrap()) {
                    assert!(z.re == 0.0 && z.re.is_sign_negative() == (n > 0), "{n} rows of {dtype} on {device}: {z}");
                }
                let mixed = numbers(&concat(&[&zero(n, -0.0), &zero(1, 0.0)], 0).unwrap().sum(.., false).unwrap())[0];
                assert!(mixed.re == 0.0 && mixed.re.is_sign_positive(), "{n} and +0 of {dtype} on {device}: {mixed}");
            }
        }
    }
}
