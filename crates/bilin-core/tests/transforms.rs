//! Transforms of functions: what they answer, that they nest, and that nothing of a nest is lost.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use bilin_core::autograd::{self, GradOptions, hessian, hvp, jacobian, jvp, value_and_grad, vjp};
use bilin_core::{DType, Device, Result, Tensor, einsum, no_grad};

fn vector(data: &[f64]) -> Tensor {
    Tensor::from_slice(data, [data.len()], &Device::reference()).unwrap()
}
fn leaf(data: &[f64]) -> Tensor {
    vector(data).requires_grad_(true).unwrap()
}
fn values(t: &Tensor) -> Vec<f64> {
    t.to_vec().unwrap()
}
fn gradient(out: &Tensor, x: &Tensor) -> Vec<f64> {
    values(autograd::grad(&[out], &[x], GradOptions { retain_graph: Some(true), ..Default::default() }).unwrap()[0].as_ref().unwrap())
}
fn total(t: &Tensor) -> Tensor {
    t.sum(.., false).unwrap()
}
/// Σ x³.
fn cubes(x: &[Tensor]) -> Result<Tensor> {
    x[0].mul(&x[0])?.mul(&x[0])?.sum(.., false)
}

#[test]
fn a_gradient_inside_a_recorded_function_is_differentiated_too() {
    let x = leaf(&[2., 3.]);
    let (value, grads) = value_and_grad(cubes, &[&x]).unwrap();
    assert_eq!((values(&value), values(&grads[0])), (vec![35.], vec![12., 27.]));
    assert_eq!(gradient(&total(&grads[0]), &x), [12., 18.], "6x");
    assert_eq!(gradient(&value, &x), [12., 27.]);
    // Of an interior tensor, and of one that the function captured.
    let y = x.mul_scalar(2.0).unwrap();
    assert_eq!(gradient(&total(&value_and_grad(cubes, &[&y]).unwrap().1[0]), &x), [48., 72.], "12y");
    let w = leaf(&[5., 7.]);
    let (_, grads) = value_and_grad(|x| total(&w.mul(&x[0])?).mul(&total(&x[0])), &[&x.detach()]).unwrap();
    assert_eq!(gradient(&total(&grads[0]), &w), [9., 11.]);
    // Nothing is recorded for nobody.
    assert!(!value_and_grad(cubes, &[&x.detach()]).unwrap().1[0].requires_grad());
    assert!(!no_grad(|| value_and_grad(cubes, &[&x])).unwrap().1[0].requires_grad());
}

#[test]
fn a_pullback_is_differentiable_by_its_cotangent() {
    let (x, g) = (vector(&[2., 3.]), leaf(&[1., 10.]));
    let (value, grads) = vjp(|x| x[0].mul(&x[0]), &[&x], &g).unwrap();
    assert_eq!((values(&value), values(&grads[0])), (vec![4., 9.], vec![4., 60.]));
    assert_eq!(gradient(&total(&grads[0]), &g), [4., 6.], "2x");
}

#[test]
fn jacobians_by_rows_and_by_columns_are_differentiable() {
    let x = leaf(&[2., 3.]);
    // One row, then more rows than columns.
    let rows = jacobian(|x| cubes(std::slice::from_ref(x)), &x).unwrap();
    assert_eq!((rows.shape(), values(&rows)), (&[2][..], vec![12., 27.]));
    assert_eq!(gradient(&total(&rows), &x), [12., 18.]);
    let w = vector(&[1., -1., 2.]);
    let columns = jacobian(|x| w.outer(&x.mul(x)?), &x).unwrap();
    assert_eq!(columns.shape(), [3, 2, 2]);
    assert_eq!(gradient(&total(&columns), &x), [4.; 2], "2·Σw");
}

#[test]
fn hessian_products_nest_and_are_zero_where_nothing_moves() {
    let (x, v) = (leaf(&[2., 3.]), vector(&[1., 10.]));
    let product = hvp(cubes, &[&x], &[&v]).unwrap().remove(0);
    assert_eq!((values(&product), gradient(&total(&product), &x)), (vec![12., 180.], vec![6., 60.]));
    // The third derivative by forward mode over it.
    let along = jvp(|x| Ok(hvp(cubes, &[&x[0]], &[&v])?.remove(0)), &[&x.detach()], &[&v]).unwrap().1;
    assert_eq!(values(&along), [6., 600.]);
    let c = vector(&[1.]);
    let constant = hvp(|_| total(&c).add(&total(&c)), &[&x.detach()], &[&v]).unwrap();
    assert_eq!(values(&constant[0]), [0., 0.]);
    let h = hessian(|x| cubes(std::slice::from_ref(x)), &x).unwrap();
    assert_eq!((values(&h), gradient(&total(&h), &x)), (vec![12., 0., 0., 18.], vec![6., 6.]));
    let error = hvp(cubes, &[&x], &[&vector(&[1.])]).unwrap_err().to_string();
    assert!(error.starts_with("hvp: "), "{error}");
}

/// d/dx [x · d/dy (x + y)] = 1: perturbations of nested calls don't mix, whatever the modes.
#[test]
fn perturbations_of_nested_transforms_do_not_mix() {
    let one = Tensor::scalar(1f64, &Device::reference()).unwrap();
    let slope = |f: &dyn Fn(&Tensor) -> Result<Tensor>, forward: bool| -> Result<Tensor> {
        if forward { Ok(jvp(|x| f(&x[0]), &[&one], &[&one])?.1) } else { Ok(value_and_grad(|x| f(&x[0]), &[&one])?.1.remove(0)) }
    };
    for (outer, inner) in [(true, true), (true, false), (false, true), (false, false)] {
        let answer = slope(&|x| x.mul(&slope(&|y| x.add(y), inner)?), outer).unwrap();
        assert_eq!(answer.item::<f64>().unwrap(), 1.0, "{outer} {inner}");
    }
}

#[test]
fn the_derivative_of_a_matrix_product_is_the_other_operand() {
    let dev = Device::reference();
    let a = Tensor::arange(0., 6., 1., DType::F64, &dev).unwrap().reshape([2, 3]).unwrap();
    let b = Tensor::arange(0., 12., 1., DType::F64, &dev).unwrap().reshape([3, 4]).unwrap();
    // ∂(AB)[i,j]/∂A[k,l] = δ(i,k)·B[l,j]
    let by_a = jacobian(|a| a.matmul(&b), &a).unwrap();
    let eye = Tensor::eye(2, DType::F64, &dev).unwrap();
    assert_eq!(values(&by_a), values(&einsum("ik,lj->ijkl", &[&eye, &b]).unwrap()));
}
