//! Transforms of functions: what they answer, that they nest, and that nothing of a nest is lost.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::sync::{Arc, Mutex};

use bilin_core::autograd::{self, BackwardContext, ForwardContext, Function, GradOptions};
use bilin_core::autograd::{hessian, hvp, jacfwd, jacobian, jacrev, jvp, value_and_grad, vjp};
use bilin_core::schema::profiler::profile;
use bilin_core::{DType, Device, Result, Rng, Tensor, einsum, no_grad};

type Jacobian = fn(&dyn Fn(&Tensor) -> Result<Tensor>, &Tensor) -> Result<Tensor>;
const WAYS: [Jacobian; 3] = [|f, x| jacfwd(f, x), |f, x| jacrev(f, x), |f, x| jacobian(f, x)];

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

#[test]
fn a_jacobian_runs_each_op_once_for_all_rows() {
    let dev = Device::reference();
    let mut rng = Rng::new(4);
    let mut of = |shape: [usize; 2]| Tensor::randn(shape, DType::F64, &dev, &mut rng).unwrap();
    let count = |f: &dyn Fn() -> Tensor| profile(|| drop(f())).events().len();
    let mut counts = Vec::new();
    for n in [4, 40] {
        let (a, b, x) = (of([n, 24]), of([24, n]), of([1, n]));
        let mlp = |x: &Tensor| x.matmul(&a)?.tanh()?.matmul(&b)?.softmax(-1)?.permute(&[1, 0])?.narrow(0, 0, n)?.reshape([n]);
        counts.push([count(&|| jacrev(mlp, &x).unwrap()), count(&|| jacfwd(mlp, &x).unwrap())]);
        counts.push([count(&|| hessian(|x| mlp(x)?.narrow(0, 0, 1)?.sum(.., false), &x).unwrap()), 0]);
    }
    assert_eq!(counts[..2], counts[2..], "kernels of jacrev, jacfwd and hessian over 4 and over 40 directions");
}

#[test]
fn a_jacobian_takes_the_mode_with_fewer_directions() {
    let of = |shape: [usize; 2]| Tensor::randn(shape, DType::F64, &Device::reference(), &mut Rng::new(6)).unwrap();
    let kernels = |jac: Jacobian, w: &Tensor| {
        let x = of([w.shape()[1], 1]).reshape([w.shape()[1]]).unwrap();
        profile(|| drop(jac(&|x| w.matvec(x)?.tanh()?.mul_scalar(3.0), &x).unwrap()))
            .events()
            .iter()
            .map(|e| (e.name.to_string(), e.node, e.flops))
            .collect::<Vec<_>>()
    };
    let [forward, reverse, chosen] = WAYS;
    let (tall, wide) = (of([12, 3]), of([3, 12]));
    for w in [&tall, &wide] {
        assert_ne!(kernels(forward, w), kernels(reverse, w), "the modes can't be told apart");
    }
    assert_eq!(kernels(chosen, &wide), kernels(reverse, &wide));
    // The shape of the result is learned by a call of the function.
    assert!(kernels(chosen, &tall).ends_with(&kernels(forward, &tall)));
    assert!(kernels(chosen, &tall).iter().all(|(_, node, _)| node.is_empty()), "no gradient by rows");
}

/// A change in place has no tangent: it would leave a value beside the tangent of another.
#[test]
fn in_place_on_a_value_that_moves_is_refused_in_forward_mode() {
    let (x, v) = (vector(&[2., 3.]), vector(&[1., 10.]));
    type Change = fn(&Tensor, &Tensor) -> Result<()>;
    let changes: [Change; 4] = [|a, b| a.mul_(b), |a, b| a.copy_(b), |a, _| a.fill_(1.0), |a, _| a.zero_()];
    for change in changes {
        for guarded in [false, true] {
            let still = vector(&[5., 7.]);
            let run = |a: &Tensor, b: &Tensor| if guarded { no_grad(|| change(a, b)) } else { change(a, b) };
            let moving = |x: &[Tensor]| {
                let y = x[0].mul_scalar(2.0)?;
                run(&y, &still)?;
                Ok(y)
            };
            let text = jvp(moving, &[&x], &[&v]).unwrap_err().to_string();
            assert!(text.contains("_: ") && text.contains("forward mode"), "{text}");
            // What doesn't move may change.
            let (y, t) = jvp(|x| run(&still, &vector(&[1., 2.])).and_then(|()| x[0].mul(&still)), &[&x], &[&v]).unwrap();
            assert_eq!(values(&y), values(&x.mul(&still).unwrap()));
            assert_eq!(values(&t), values(&v.mul(&still).unwrap()));
        }
    }
    // A source that moves, and a level that is closed.
    let still = vector(&[5., 7.]);
    assert!(jvp(|x| still.add_(&x[0]).and_then(|()| x[0].exp()), &[&x], &[&v]).unwrap_err().to_string().contains("forward mode"));
    assert_eq!(values(&still), [5., 7.]);
    let mut out = None;
    jvp(|x| Ok(out.insert(x[0].mul_scalar(2.0)?).clone()), &[&x], &[&v]).unwrap();
    out.unwrap().fill_(1.0).unwrap();
}

/// Reads its cotangent on the host, as no op can over several rows at once.
struct Sign;
impl Function for Sign {
    fn forward(&self, _ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].mul_scalar(3.0)?])
    }
    fn backward(&self, _ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let g = Tensor::from_vec(g[0].to_vec::<f64>()?.iter().map(|g| 3.0 * g).collect(), g[0].shape(), g[0].device())?;
        Ok(vec![Some(g)])
    }
    fn jvp(&self, _x: &[Tensor], _y: &[Tensor], t: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let t = Tensor::from_vec(t[0].to_vec::<f64>()?.iter().map(|t| 3.0 * t).collect(), t[0].shape(), t[0].device())?;
        Ok(vec![Some(t)])
    }
}

#[test]
fn functions_hooks_and_checkpoints_see_one_row_at_a_time() {
    let x = vector(&[2., 3., 4.]);
    let rows = Arc::new(Mutex::new(Vec::new()));
    let seen = rows.clone();
    let f = move |x: &Tensor| {
        let y = Sign.apply(&[x])?.remove(0);
        if y.requires_grad() {
            let seen = seen.clone();
            y.register_hook(move |g| {
                seen.lock().unwrap().push(values(g));
                Ok(Some(g.mul_scalar(2.0)?))
            })?;
        }
        let z = autograd::checkpoint(|y| Ok(vec![y[0].mul(&y[0])?]), &[&y])?.remove(0);
        z.sum(.., false)?.mul(x)
    };
    // z = 9x², f = x·Σz: δᵢⱼ·Σz + xᵢ·18·xⱼ, whose second part the hook doubles.
    let total = 9.0 * 29.0;
    let want = |twice: f64| -> Vec<f64> {
        let at = [2., 3., 4.];
        (0..9).map(|i| if i % 4 == 0 { total } else { 0.0 } + twice * 18.0 * at[i / 3] * at[i % 3]).collect()
    };
    assert_eq!(values(&jacrev(&f, &x).unwrap()), want(2.0));
    assert_eq!(rows.lock().unwrap().clone(), [2., 3., 4.].map(|x| [2., 3., 4.].map(|y| x * 6.0 * y).to_vec()));
    assert_eq!(values(&jacfwd(&f, &x).unwrap()), want(1.0));
}

/// The derivative of x·y by y is x, whose derivative by x is 1, not 2: lanes of nested calls don't mix either.
#[test]
fn nested_jacobians_do_not_mix() {
    let x = vector(&[2., 3.]);
    for (outer, inner) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let got = WAYS[outer](&|x| WAYS[inner](&|y| x.mul(y), x), &x).unwrap();
        assert_eq!(values(&got), [1., 0., 0., 0., 0., 0., 0., 1.], "{outer} {inner}: δ(i,j)·δ(j,k)");
    }
}

#[test]
fn jacobians_of_nothing_have_their_shape() {
    let (none, x) = (vector(&[]), vector(&[1., 2.]));
    for jac in WAYS {
        assert_eq!(jac(&|x| x.mul(x), &none).unwrap().shape(), [0, 0]);
        assert_eq!(jac(&|x| x.narrow(0, 0, 0), &x).unwrap().shape(), [0, 2]);
        assert_eq!(values(&jac(&|x| x.detach().mul(&x.detach()), &x).unwrap()), [0.; 4]);
    }
}
