//! Custom functions: what they save, what they answer, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

mod leaf;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bilin_core::autograd::{self, BackwardContext, BackwardOptions, ForwardContext, Function, GradOptions};
use bilin_core::{DType, Error, Result, Rng, Tensor, no_grad};
use leaf::{dev, leaf, values};

fn sum(t: &Tensor) -> Tensor {
    t.sum(.., false).unwrap()
}

/// A linear layer with a bias: three operands, needs asked for, forward mode written.
struct Linear;
impl Function for Linear {
    fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        ctx.save_for_backward(&[&x[0], &x[1]]);
        Ok(vec![x[0].matmul(&x[1])?.add(&x[2])?])
    }
    fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let [x, w] = ctx.saved() else { unreachable!() };
        Ok(vec![
            if ctx.needs_input_grad(0) { Some(g[0].matmul(&w.mt()?)?) } else { None },
            if ctx.needs_input_grad(1) { Some(x.mt()?.matmul(&g[0])?) } else { None },
            if ctx.needs_input_grad(2) { Some(g[0].sum([0], false)?) } else { None },
        ])
    }
    fn jvp(&self, x: &[Tensor], _y: &[Tensor], t: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(t[0].matmul(&x[1])?.add(&x[0].matmul(&t[1])?)?.add(&t[2])?)])
    }
}

/// exp, whose gradient reads its result.
struct Exp;
impl Function for Exp {
    fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let y = x[0].exp()?;
        ctx.save_for_backward(&[&y]);
        Ok(vec![y])
    }
    fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(g[0].mul(&ctx.saved()[0])?)])
    }
    fn jvp(&self, _x: &[Tensor], y: &[Tensor], t: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(t[0].mul(&y[0])?)])
    }
}

#[test]
fn every_derivative_of_a_function_written_in_ops() {
    let mut rng = Rng::new(4);
    let mut of = |shape: &[usize]| Tensor::randn(shape, DType::F64, &dev(), &mut rng).unwrap();
    let (x, w, b) = (of(&[4, 3]), of(&[3, 2]), of(&[2]));
    let f = |x: &[Tensor]| Exp.apply(&[&Linear.apply(&[&x[0], &x[1], &x[2]])?[0].mul_scalar(0.3)?]).map(|mut y| y.remove(0));
    let plain = |x: &[Tensor]| x[0].matmul(&x[1])?.add(&x[2])?.mul_scalar(0.3)?.exp();
    autograd::gradcheck(f, &[&x, &w, &b], Default::default()).unwrap();
    autograd::gradgradcheck(f, &[&x, &w, &b], Default::default()).unwrap();
    let v = [of(&[4, 3]), of(&[3, 2]), of(&[2])];
    let v = [&v[0], &v[1], &v[2]];
    let close = |a: &Tensor, b: &Tensor| {
        values(a).iter().zip(values(b)).for_each(|(a, b)| assert!((a - b).abs() <= 1e-13 * b.abs().max(1.0), "{a} {b}"));
    };
    let forward = autograd::jvp(f, &[&x, &w, &b], &v).unwrap();
    let want = autograd::jvp(plain, &[&x, &w, &b], &v).unwrap();
    close(&forward.1, &want.1);
    // Forward over reverse: the saved result has to have its tangent.
    let loss = |x: &[Tensor]| f(x)?.sum(.., false);
    let products = autograd::hvp(loss, &[&x, &w, &b], &v).unwrap();
    let want = autograd::hvp(|x| plain(x)?.sum(.., false), &[&x, &w, &b], &v).unwrap();
    products.iter().zip(&want).for_each(|(a, b)| close(a, b));
    // Reverse over forward.
    let slope = |x: &[Tensor]| autograd::jvp(f, &[&x[0], &x[1], &x[2]], &v).and_then(|(_, t)| t.sum(.., false));
    let (_, turned) = autograd::value_and_grad(slope, &[&x, &w, &b]).unwrap();
    turned.iter().zip(&want).for_each(|(a, b)| close(a, b));
}

#[test]
fn unneeded_gradients_are_not_asked_for() {
    struct Asked(Arc<AtomicUsize>);
    impl Function for Asked {
        fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
            assert_eq!([ctx.needs_input_grad(0), ctx.needs_input_grad(1), ctx.needs_input_grad(2)], [true, false, true]);
            Ok(vec![x[0].add(&x[1])?.add(&x[2])?])
        }
        fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
            self.0.store((0..3).map(|i| usize::from(ctx.needs_input_grad(i)) << i).sum(), Relaxed);
            Ok(vec![Some(g[0].clone()), None, Some(g[0].clone())])
        }
    }
    let asked = Arc::new(AtomicUsize::new(0));
    let (a, b, c) = (leaf(&[1.]), leaf(&[2.]).detach(), leaf(&[3.]));
    let y = Asked(asked.clone()).apply(&[&a, &b, &c]).unwrap().remove(0);
    autograd::grad(&[&y], &[&c], GradOptions { retain_graph: Some(true), ..Default::default() }).unwrap();
    assert_eq!(asked.load(Relaxed), 0b100);
    y.backward().unwrap();
    assert_eq!((asked.load(Relaxed), values(&a.grad().unwrap())), (0b101, vec![1.]));
}

/// Two results, (x², x³), and positions that have no gradient.
struct Powers;
impl Function for Powers {
    fn name(&self) -> &str {
        "powers"
    }
    fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        ctx.save_for_backward(&[&x[0]]);
        let square = x[0].mul(&x[0])?;
        Ok(vec![square.clone(), square.mul(&x[0])?, square.argmax(0, false)?])
    }
    fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        assert!(!ctx.has_output_grad(2) && g[2].dtype() == DType::I64);
        let x = &ctx.saved()[0];
        let square = g[0].mul(x)?.mul_scalar(2.0)?;
        Ok(vec![Some(square.add(&g[1].mul(x)?.mul(x)?.mul_scalar(3.0)?)?)])
    }
}

#[test]
fn several_results_and_zeros_for_those_that_nobody_used() {
    let x = leaf(&[2., 3.]);
    let y = Powers.apply(&[&x]).unwrap();
    assert_eq!(y[0].grad_fn().unwrap().name(), "PowersBackward");
    assert!(y[0].grad_fn().unwrap().is_same(&y[1].grad_fn().unwrap()));
    assert!(y[2].grad_fn().is_none() && !y[2].requires_grad());
    sum(&y[1]).backward_with(BackwardOptions { retain_graph: Some(true), ..Default::default() }).unwrap();
    assert_eq!(values(&x.grad().unwrap()), [12., 27.]);
    x.zero_grad();
    sum(&y[0]).add(&sum(&y[1])).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [16., 33.]);
    assert!(matches!(sum(&y[0]).backward(), Err(Error::GraphFreed { op }) if op == "powers"));
}

#[test]
fn a_saved_value_that_changed_is_an_error() {
    let x = leaf(&[1., 2.]);
    let y = Powers.apply(&[&x]).unwrap();
    no_grad(|| x.narrow(0, 0, 1).unwrap().fill_(5.0)).unwrap();
    let error = sum(&y[0]).backward().unwrap_err();
    assert!(matches!(&error, Error::VersionMismatch { op, operand: 0, .. } if op == "powers"), "{error}");
    // The result is operand 1 of a function of one operand.
    let x = leaf(&[1., 2.]);
    let y = Exp.apply(&[&x]).unwrap().remove(0);
    no_grad(|| y.fill_(0.0)).unwrap();
    let error = sum(&y).backward().unwrap_err();
    assert!(matches!(error, Error::VersionMismatch { operand: 1, saved: 0, current: 1, .. }), "{error}");
    // A change of what isn't saved is none of its business.
    let x = leaf(&[1., 2.]);
    let y = Exp.apply(&[&x]).unwrap().remove(0);
    no_grad(|| x.fill_(0.0)).unwrap();
    sum(&y).backward().unwrap();
}

/// Answers with what it was made with.
struct Answers(Vec<Option<Tensor>>);
impl Function for Answers {
    fn forward(&self, _ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].neg()?])
    }
    fn backward(&self, _ctx: &BackwardContext, _g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(self.0.clone())
    }
}

#[test]
fn wrong_answers_are_refused_by_name() {
    let of = |shape: &[usize], dtype: DType| Some(Tensor::ones(shape, dtype, &dev()).unwrap());
    let error = |answer: Vec<Option<Tensor>>| Answers(answer).apply(&[&leaf(&[1., 2.])]).unwrap()[0].sum(.., false).unwrap().backward();
    let text = |answer| error(answer).unwrap_err().to_string();
    assert_eq!(text(vec![]), "Answers: gradients is 0 of them; want 1, None for those that are zero");
    assert_eq!(text(vec![None, None]), "Answers: gradients is 2 of them; want 1, None for those that are zero");
    assert_eq!(text(vec![of(&[2, 1], DType::F64)]), "Answers: gradient is 0 of shape (2, 1); want shape (2,)");
    for dtype in [DType::C128, DType::I64, DType::Bool] {
        assert!(matches!(error(vec![of(&[2], dtype)]), Err(Error::DtypeMismatch { .. })), "{dtype}");
    }
    // None is zero, and another width is brought to the operand's.
    error(vec![None]).unwrap();
    let x = leaf(&[1., 2.]);
    sum(&Answers(vec![of(&[2], DType::F32)]).apply(&[&x]).unwrap()[0]).backward().unwrap();
    assert_eq!(x.grad().unwrap().dtype(), DType::F64);
}

#[test]
fn without_a_rule_forward_mode_is_refused() {
    let x = leaf(&[1., 2.]).detach();
    let f = |x: &[Tensor]| Powers.apply(&[&x[0]]).map(|mut y| y.remove(0));
    let error = autograd::jvp(f, &[&x], &[&x]).unwrap_err();
    assert!(matches!(&error, Error::NotDifferentiable { op, .. } if op == "powers"), "{error}");
    // Where nothing moves there is nothing to refuse.
    let fixed = autograd::jvp(|_| f(&[leaf(&[3.])]), &[&x], &[&x]).unwrap();
    assert_eq!(values(&fixed.1), [0.]);
}

/// Keeps a value that was computed on the way.
struct Halfway {
    as_constant: bool,
}
impl Function for Halfway {
    fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        let slope = x[0].mul_scalar(2.0)?;
        if self.as_constant {
            ctx.save_constants(&[&slope])
        } else {
            ctx.save_for_backward(&[&slope])
        }
        Ok(vec![x[0].mul(&x[0])?])
    }
    fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let slope = if self.as_constant { &ctx.constants()[0] } else { &ctx.saved()[0] };
        Ok(vec![Some(g[0].mul(slope)?)])
    }
    fn jvp(&self, x: &[Tensor], _y: &[Tensor], t: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(x[0].mul(&t[0])?.mul_scalar(2.0)?)])
    }
}

#[test]
fn a_second_derivative_through_an_intermediate_is_refused_not_dropped() {
    let graph = GradOptions { create_graph: true, ..Default::default() };
    let slope = |x: &Tensor, as_constant: bool| -> Result<Tensor> {
        let y = Halfway { as_constant }.apply(&[x])?.remove(0);
        Ok(autograd::grad(&[&sum(&y)], &[x], graph.clone())?.remove(0).unwrap())
    };
    let x = leaf(&[3.]);
    let g = slope(&x, false).unwrap();
    assert_eq!(values(&g), [6.]);
    let error = sum(&g).backward().unwrap_err();
    assert!(matches!(&error, Error::NotDifferentiable { op, .. } if op == "Halfway"), "{error}");
    // Said to be constant, its derivative is zero.
    let g = slope(&x, true).unwrap();
    assert!(!g.requires_grad());
    // Forward over reverse knows no tangent of it either.
    let f = |x: &[Tensor]| Ok(sum(&Halfway { as_constant: false }.apply(&[&x[0]])?[0]));
    assert!(matches!(autograd::hvp(f, &[&x], &[&x.detach()]), Err(Error::NotDifferentiable { .. })));
}

/// Gives operands and views of them back.
struct Returns;
impl Function for Returns {
    fn forward(&self, _ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].clone(), x[0].narrow(0, 1, 1)?])
    }
    fn backward(&self, _ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let whole = g[0].mul_scalar(-1.0)?;
        Ok(vec![Some(whole.add(&bilin_core::concat(&[&g[1].zeros_like()?, &g[1]], 0)?)?)])
    }
}

#[test]
fn results_may_be_operands_or_views_of_them() {
    let x = leaf(&[1., 2.]);
    let y = Returns.apply(&[&x]).unwrap();
    assert_eq!(y[0].grad_fn().unwrap().name(), "ReturnsBackward");
    sum(&y[0]).add(&sum(&y[1].mul_scalar(10.0).unwrap())).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [-1., 9.]);
    let plain = no_grad(|| Returns.apply(&[&x])).unwrap();
    assert!(!plain[0].requires_grad() && plain[0].grad_fn().is_none());
}

#[test]
fn marked_results_have_no_gradient() {
    struct Marked;
    impl Function for Marked {
        fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
            let (a, b) = (x[0].exp()?, x[0].neg()?);
            ctx.mark_non_differentiable(&[&a]);
            Ok(vec![a, b])
        }
        fn backward(&self, _ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
            Ok(vec![Some(g[1].neg()?)])
        }
    }
    let y = Marked.apply(&[&leaf(&[1.])]).unwrap();
    assert_eq!((y[0].requires_grad(), y[1].requires_grad()), (false, true));
}

#[test]
fn backward_runs_in_the_scope_of_its_forward() {
    let x = Tensor::ones([2, 3], DType::F32, &dev()).unwrap().requires_grad_(true).unwrap();
    let w = Tensor::ones([3, 2], DType::F32, &dev()).unwrap().requires_grad_(true).unwrap();
    struct Product;
    impl Function for Product {
        fn forward(&self, ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
            ctx.save_for_backward(&[&x[0], &x[1]]);
            Ok(vec![x[0].matmul(&x[1])?])
        }
        fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
            Ok(vec![Some(g[0].matmul(&ctx.saved()[1].mt()?)?), Some(ctx.saved()[0].mt()?.matmul(&g[0])?)])
        }
    }
    let y = {
        let _scope = bilin_core::schema::modes::set_autocast(Some(DType::Bf16));
        Product.apply(&[&x, &w]).unwrap().remove(0)
    };
    assert_eq!(y.dtype(), DType::Bf16);
    sum(&y).backward().unwrap();
    assert_eq!((x.grad().unwrap().dtype(), x.grad().unwrap().to_vec::<f32>().unwrap()), (DType::F32, vec![2.; 6]));
}

/// Holds a tensor in a field, as a context of another language would.
struct Holds(#[expect(dead_code, reason = "held for its drop")] Tensor);
impl Function for Holds {
    fn forward(&self, _ctx: &mut ForwardContext, x: &[Tensor]) -> Result<Vec<Tensor>> {
        Ok(vec![x[0].neg()?])
    }
    fn backward(&self, _ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(g[0].neg()?)])
    }
}

#[test]
fn long_chains_of_functions_need_no_stack() {
    let run = || {
        let x = leaf(&[1.]);
        let mut y = x.clone();
        for _ in 0..100_000 {
            y = Holds(y.clone()).apply(&[&y]).unwrap().remove(0);
        }
        sum(&y).backward().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [1.]);
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(run).unwrap().join().unwrap();
}
