//! Checkpoints: the derivatives of their functions, what they keep, what they restore, and what may not change under them.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

mod leaf;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bilin_core::autograd;
use bilin_core::exec::reference::ReferenceBackend;
use bilin_core::schema::modes::{autocast_dtype, set_autocast};
use bilin_core::{DType, Device, Error, Result, Rng, Tensor, no_grad};
use leaf::{dev, leaf, values};

fn sum(t: &Tensor) -> Result<Tensor> {
    t.sum(.., false)
}

/// Two results of two operands.
fn body(x: &[Tensor]) -> Result<Vec<Tensor>> {
    let p = x[0].mul(&x[1])?.sin()?;
    Ok(vec![p.mul(&x[0])?, p.exp()?])
}
fn checked(x: &[Tensor]) -> Result<Tensor> {
    let y = autograd::checkpoint(body, &[&x[0], &x[1]])?;
    y[0].mul(&y[1])?.add(&y[1])
}
fn plain(x: &[Tensor]) -> Result<Tensor> {
    let y = body(x)?;
    y[0].mul(&y[1])?.add(&y[1])
}

#[test]
fn a_checkpoint_has_the_derivatives_of_its_function() {
    let mut rng = Rng::new(9);
    let mut of = || Tensor::randn([3], DType::F64, &dev(), &mut rng).unwrap();
    let (a, b, u, v) = (of(), of(), of(), of());
    autograd::gradcheck(checked, &[&a, &b], Default::default()).unwrap();
    autograd::gradgradcheck(checked, &[&a, &b], Default::default()).unwrap();
    let same = |a: &[Tensor], b: &[Tensor]| a.iter().zip(b).for_each(|(a, b)| assert_eq!(values(a), values(b)));
    let total = |f: fn(&[Tensor]) -> Result<Tensor>| move |x: &[Tensor]| sum(&f(x)?);
    let gradient = |f: fn(&[Tensor]) -> Result<Tensor>| autograd::value_and_grad(total(f), &[&a, &b]).unwrap().1;
    same(&gradient(checked), &gradient(plain));
    let forward = |f: fn(&[Tensor]) -> Result<Tensor>| autograd::jvp(f, &[&a, &b], &[&u, &v]).unwrap().1;
    same(&[forward(checked)], &[forward(plain)]);
    let product = |f: fn(&[Tensor]) -> Result<Tensor>| autograd::hvp(total(f), &[&a, &b], &[&u, &v]).unwrap();
    same(&product(checked), &product(plain));
    // One operand made of another: each gradient is through the function alone.
    let related =
        |f: fn(&[Tensor]) -> Result<Tensor>| autograd::value_and_grad(move |x| sum(&f(&[x[0].clone(), x[0].exp()?])?), &[&a]).unwrap().1;
    same(&related(checked), &related(plain));
}

#[test]
fn checkpoints_nest_and_captured_tensors_get_gradients() {
    let run = |depth: usize| {
        let (x, w) = (leaf(&[0.3, 0.4]), leaf(&[1.5, -0.5]));
        let scaled = w.mul_scalar(2.0).unwrap();
        fn nest(x: &Tensor, w: Tensor, depth: usize) -> Result<Tensor> {
            let f = move |x: &[Tensor]| {
                let y = x[0].mul(&w)?.sin()?;
                Ok(vec![if depth > 1 { nest(&y, w.clone(), depth - 1)?.add(&y)? } else { y }])
            };
            Ok(if depth == 0 { x.clone() } else { autograd::checkpoint(f, &[x])?.remove(0) })
        }
        let y = if depth > 0 { nest(&x, scaled, depth).unwrap() } else { x.mul(&scaled).unwrap().sin().unwrap() };
        sum(&y).unwrap().backward().unwrap();
        (values(&x.grad().unwrap()), values(&w.grad().unwrap()))
    };
    assert_eq!(run(1), run(0));
    assert!(run(3).1.iter().all(|g| *g != 0.0));
    // Hooks of a captured leaf run once.
    let (x, w, calls) = (leaf(&[2.]), leaf(&[3.]), Arc::new(AtomicUsize::new(0)));
    let seen = calls.clone();
    let held = w.clone();
    w.register_hook(move |_| Ok((seen.fetch_add(1, Relaxed) > 9).then(|| held.detach()))).unwrap();
    let inner = w.detach().requires_grad_(true).unwrap();
    let (w2, i2) = (w.clone(), inner.clone());
    let y = autograd::checkpoint(move |x| Ok(vec![x[0].mul(&w2)?.mul(&i2)?]), &[&x]).unwrap().remove(0);
    y.backward().unwrap();
    assert_eq!((calls.load(Relaxed), values(&w.grad().unwrap()), values(&inner.grad().unwrap())), (1, vec![6.], vec![6.]));
}

#[test]
fn a_checkpoint_restores_random_numbers_and_the_autocast_scope() {
    let x = leaf(&[1., 2., 3., 4.]);
    let dropout = |x: &[Tensor], rng: &mut Rng| {
        let mask = Tensor::rand(x[0].shape(), DType::F64, x[0].device(), rng)?;
        Ok(vec![x[0].mul(&mask)?.mul(&x[0])?])
    };
    let (mut rng, mut same) = (Rng::new(5), Rng::new(5));
    let y = autograd::checkpoint_with_rng(dropout, &[&x], &mut rng).unwrap().remove(0);
    let want = dropout(&[x.detach()], &mut same).unwrap().remove(0);
    assert_eq!((values(&y), rng.next_u32x4()), (values(&want), same.next_u32x4()));
    rng.next_u32x4();
    sum(&y).unwrap().backward().unwrap();
    let slopes: Vec<f64> = values(&want).iter().zip(values(&x)).map(|(y, x)| 2.0 * y / x).collect();
    assert!(values(&x.grad().unwrap()).iter().zip(&slopes).all(|(a, b)| (a - b).abs() < 1e-14));
    let a = Tensor::full([2, 2], 1.0 + 2f64.powi(-12), DType::F32, &dev()).unwrap().requires_grad_(true).unwrap();
    let dtypes = Arc::new(Mutex::new(Vec::new()));
    let seen = dtypes.clone();
    let product = move |x: &[Tensor]| {
        let y = x[0].matmul(&x[0])?;
        seen.lock().unwrap().push(y.dtype());
        Ok(vec![y])
    };
    // The scope of the call, in whatever scope and thread backward runs.
    for (scope, dtype) in [(Some(DType::Bf16), DType::Bf16), (None, DType::F32)] {
        for other in [None, Some(DType::F32), Some(DType::Bf16)] {
            let y = {
                let _scope = set_autocast(scope);
                autograd::checkpoint(product.clone(), &[&a]).unwrap().remove(0)
            };
            let backward = || {
                let _scope = set_autocast(other);
                sum(&y).unwrap().backward().unwrap();
                assert_eq!(autocast_dtype(), other);
            };
            std::thread::scope(|s| s.spawn(backward).join().unwrap());
            assert_eq!(std::mem::take(&mut *dtypes.lock().unwrap()), [dtype; 2]);
        }
    }
}

#[test]
fn a_checkpoint_keeps_its_operands_alone_and_says_what_went_wrong() {
    // A device whose memory no other test counts.
    let device = Device::new("own", Box::new(ReferenceBackend));
    let x = Tensor::ones([1024], DType::F64, &device).unwrap().requires_grad_(true).unwrap();
    let deep = |x: &[Tensor]| (0..50).try_fold(x[0].clone(), |y, _| y.sin()).map(|y| vec![y]);
    let before = device.memory_stats().current_bytes;
    let whole = deep(std::slice::from_ref(&x)).unwrap();
    assert!(device.memory_stats().current_bytes - before >= 50 * 8192);
    drop(whole);
    let y = autograd::checkpoint(deep, &[&x]).unwrap().remove(0);
    assert_eq!(device.memory_stats().current_bytes - before, 8192, "the result alone");
    no_grad(|| x.fill_(2.0)).unwrap();
    let error = sum(&y).unwrap().backward().unwrap_err();
    assert!(matches!(&error, Error::VersionMismatch { op, operand: 0, .. } if op == "checkpoint"), "{error}");
    let runs = AtomicUsize::new(1);
    let changing = move |x: &[Tensor]| Ok(vec![x[0].narrow(0, 0, runs.fetch_add(1, Relaxed))?]);
    let y = autograd::checkpoint(changing, &[&leaf(&[1., 2., 3.])]).unwrap().remove(0);
    let text = sum(&y).unwrap().backward().unwrap_err().to_string();
    assert!(text.contains("float64 (2,)") && text.contains("float64 (1,)"), "{text}");
}

/// What the second run reads is what the first one did: a change in place of a tensor that the function captured is found, through
/// any view, whether the tensor requires a gradient or not, and in a checkpoint within a checkpoint.
#[test]
fn a_captured_tensor_that_changed_is_an_error() {
    type Change = fn(&Tensor) -> Result<()>;
    let changes: [Change; 3] = [|w| w.fill_(9.0), |w| w.narrow(0, 1, 1)?.zero_(), |w| w.detach().add_(&w.detach())];
    for tracked in [true, false] {
        for depth in 1..3 {
            for change in changes {
                let w = leaf(&[2., 3.]).detach().requires_grad_(tracked).unwrap();
                let (x, held) = (leaf(&[0.5, 0.25]), w.clone());
                // Read by an op that saves nothing of it.
                let inner = move |x: &[Tensor]| Ok(vec![x[0].add(&held)?.exp()?]);
                let y = match depth {
                    1 => autograd::checkpoint(inner, &[&x]),
                    _ => {
                        let inner = Arc::new(inner);
                        let outer = move |x: &[Tensor]| {
                            let inner = inner.clone();
                            autograd::checkpoint(move |x| inner(x), &[&x[0]])
                        };
                        autograd::checkpoint(outer, &[&x])
                    }
                };
                let loss = sum(&y.unwrap()[0]).unwrap();
                no_grad(|| change(&w)).unwrap();
                let error = loss.backward().unwrap_err();
                let named = matches!(&error, Error::VersionMismatch { op, operand, saved: 0, current: 1, .. } if op == "checkpoint" && *operand >= 1);
                assert!(named && x.grad().is_none() && w.grad().is_none(), "{error}");
            }
        }
    }
}

#[test]
fn what_a_checkpoint_does_not_read_again_may_change() {
    let (x, unread, state) = (leaf(&[0.5, 0.25]), leaf(&[1., 1.]).detach(), leaf(&[0., 0.]).detach());
    let (held, kept) = (unread.clone(), state.clone());
    let f = move |x: &[Tensor]| {
        let _ = held.shape();
        let mask = Tensor::full([2], 3.0, DType::F64, &dev())?;
        let y = x[0].mul(&mask)?.exp()?;
        // A state of the function's own, changed by every run.
        no_grad(|| kept.copy_(&y.detach()))?;
        Ok(vec![y.mul(&mask)?, y])
    };
    let y = autograd::checkpoint(f.clone(), &[&x]).unwrap();
    let again = autograd::checkpoint(f, &[&x]).unwrap();
    // Neither the results nor what was made on the way is read again.
    no_grad(|| y[0].fill_(0.0)).unwrap();
    no_grad(|| unread.fill_(5.0)).unwrap();
    let total = y.iter().chain(&again).map(|t| sum(t).unwrap()).reduce(|a, b| a.add(&b).unwrap()).unwrap();
    total.backward().unwrap();
    // 2·(3·3 + 3)·e^(3x).
    let want = [0.5f64, 0.25].map(|x| 24.0 * (3.0 * x).exp());
    assert!(values(&x.grad().unwrap()).iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-12 * w));
    assert!(values(&state).iter().all(|s| *s > 1.0));
}
