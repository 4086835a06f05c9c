//! Passes: checkpoints, anomalies, hooks after accumulation, several roots, sums in place, threads.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bilin_core::autograd::{self, BackwardOptions, GradOptions};
use bilin_core::exec::reference::ReferenceBackend;
use bilin_core::schema::modes::set_autocast;
use bilin_core::{DType, Device, Error, Result, Rng, Tensor, concat, no_grad};

fn dev() -> Device {
    Device::reference()
}
/// A device whose memory no other test counts.
fn own_device() -> Device {
    Device::new("own", Box::new(ReferenceBackend))
}
fn leaf(data: &[f64]) -> Tensor {
    Tensor::from_slice(data, [data.len()], &dev()).unwrap().requires_grad_(true).unwrap()
}
fn values(t: &Tensor) -> Vec<f64> {
    t.astype(DType::F64).unwrap().to_vec().unwrap()
}
fn sum(t: &Tensor) -> Result<Tensor> {
    t.sum(.., false)
}
fn keeping() -> BackwardOptions {
    BackwardOptions { retain_graph: Some(true), ..Default::default() }
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
    let y = {
        let _scope = set_autocast(Some(DType::Bf16));
        autograd::checkpoint(product, &[&a]).unwrap().remove(0)
    };
    sum(&y).unwrap().backward().unwrap();
    assert_eq!(*dtypes.lock().unwrap(), [DType::Bf16; 2]);
}

#[test]
fn a_checkpoint_keeps_its_operands_alone_and_says_what_went_wrong() {
    let device = own_device();
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

#[test]
fn the_op_that_made_the_first_nan_is_named() {
    let x = leaf(&[0., 4.]);
    // 0·∞ in the gradient of sqrt; the ops before it pass NaN on.
    let y = || x.neg().unwrap().neg().unwrap().sqrt().unwrap().mul(&x).unwrap().sum(.., false).unwrap();
    y().backward().unwrap();
    let _guard = autograd::detect_anomaly(true);
    let error = y().backward().unwrap_err();
    assert!(matches!(&error, Error::NanGradient { op, operand: Some(0), shapes } if op == "sqrt" && *shapes == vec![vec![2]]), "{error}");
    let given = BackwardOptions { gradient: Some(Tensor::from_slice(&[f64::NAN, 1.], [2], &dev()).unwrap()), ..Default::default() };
    let error = x.neg().unwrap().backward_with(given).unwrap_err();
    assert!(matches!(&error, Error::NanGradient { op, operand: None, .. } if op == "neg"), "{error}");
    x.exp().unwrap().sum(.., false).unwrap().backward().unwrap();
}

#[test]
fn leaf_hooks_run_before_accumulation_and_post_hooks_after() {
    let x = leaf(&[1., 2.]);
    let log = Arc::new(Mutex::new(Vec::new()));
    let (a, b) = (log.clone(), log.clone());
    let first = x
        .register_hook(move |g| {
            a.lock().unwrap().push(("hook", values(g)));
            Ok(Some(g.mul_scalar(2.0)?))
        })
        .unwrap();
    let after = x
        .register_post_accumulate_grad_hook(move |x| {
            b.lock().unwrap().push(("after", values(&x.grad().unwrap())));
            Ok(())
        })
        .unwrap();
    let y = x.mul(&x).unwrap().sum(.., false).unwrap();
    y.backward_with(keeping()).unwrap();
    y.backward_with(keeping()).unwrap();
    let want = [("hook", vec![2., 4.]), ("after", vec![4., 8.]), ("hook", vec![2., 4.]), ("after", vec![8., 16.])];
    assert_eq!(*log.lock().unwrap(), want);
    autograd::grad(&[&y], &[&x], GradOptions { retain_graph: Some(true), ..Default::default() }).unwrap();
    assert_eq!(log.lock().unwrap().len(), 5, "grad runs the hook, and accumulates nothing");
    first.remove();
    after.remove();
    y.backward().unwrap();
    assert_eq!(log.lock().unwrap().len(), 5);
    assert!(x.neg().unwrap().register_post_accumulate_grad_hook(|_| Ok(())).is_err());
}

#[test]
fn several_roots_and_interior_inputs_in_one_pass() {
    let x = leaf(&[2., 3.]);
    let y = x.mul(&x).unwrap();
    y.retain_grad().unwrap();
    let (a, b) = (y.exp().unwrap().log().unwrap(), y.mul_scalar(3.0).unwrap());
    let ones = a.ones_like().unwrap();
    let g = [Some(ones.clone()), Some(ones.clone())];
    let options = GradOptions { grad_outputs: g.to_vec(), retain_graph: Some(true), ..Default::default() };
    let found = autograd::grad(&[&a, &b], &[&y, &x, &y], options).unwrap();
    let found: Vec<Vec<f64>> = found.iter().map(|g| values(g.as_ref().unwrap())).collect();
    let near = |a: &[f64], b: &[f64]| a.iter().zip(b).for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{a} {b}"));
    near(&found[0], &[4., 4.]);
    near(&found[1], &[16., 24.]);
    assert_eq!(found[0], found[2]);
    assert!(y.grad().is_none() && x.grad().is_none(), "grad touches no .grad");
    autograd::backward_all(&[&a, &b], &g, BackwardOptions::default()).unwrap();
    near(&values(&x.grad().unwrap()), &[16., 24.]);
    near(&values(&y.grad().unwrap()), &[4., 4.]);
    assert!(autograd::backward_all(&[&a, &b], &g[..1], BackwardOptions::default()).is_err());
    // The same output twice counts twice.
    let z = x.sum(.., false).unwrap();
    x.zero_grad();
    autograd::backward_all(&[&z, &z], &[], BackwardOptions::default()).unwrap();
    assert_eq!(values(&x.grad().unwrap()), [2., 2.]);
}

#[test]
fn gradients_of_many_consumers_add_in_one_buffer() {
    let device = own_device();
    let x = Tensor::ones([1024], DType::F64, &device).unwrap().requires_grad_(true).unwrap();
    let consumers: Vec<Tensor> = (0..64).map(|i| x.mul_scalar(f64::from(i)).unwrap().sum(.., true).unwrap()).collect();
    let y = concat(&consumers.iter().collect::<Vec<_>>(), 0).unwrap().sum(.., false).unwrap();
    drop(consumers);
    let before = device.memory_stats();
    device.reset_peak_memory_stats();
    y.backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [2016.0; 1024]);
    let peak = device.memory_stats().peak_bytes - before.current_bytes;
    assert!(peak <= 4 * 8192, "{peak} bytes for a gradient of 8192");
    // A second backward adds to what stands there.
    let held = device.memory_stats().current_bytes;
    x.mul_scalar(2.0).unwrap().sum(.., false).unwrap().backward().unwrap();
    assert_eq!((values(&x.grad().unwrap())[0], device.memory_stats().current_bytes), (2018.0, held));
}

#[test]
fn products_add_to_the_sum_that_stands_without_a_buffer_between() {
    let device = own_device();
    let mut rng = Rng::new(3);
    for (dtype, wide) in [DType::F32, DType::F64, DType::C64, DType::C128]
        .map(|d| (d, d))
        .into_iter()
        .chain([(DType::Bf16, DType::F32), (DType::F16, DType::F32)])
    {
        let mut of = |shape: [usize; 2]| Tensor::randn(shape, dtype, &device, &mut rng).unwrap();
        // 600 terms are two blocks of an f32 sum: the sum is added as a whole.
        let (weight, parts, g) = (of([48, 32]), [of([600, 48]), of([600, 48]), of([600, 48])], of([600, 32]));
        let leaf = || {
            let w = weight.detach().requires_grad_(true).unwrap();
            w.set_grad_dtype(wide).unwrap();
            w
        };
        let go = |y: Tensor| y.backward_with(BackwardOptions { gradient: Some(g.clone()), ..Default::default() }).unwrap();
        let alone = |x: &Tensor| {
            let w = leaf();
            go(x.matmul(&w).unwrap());
            w.grad().unwrap()
        };
        let alone = [alone(&parts[0]), alone(&parts[1]), alone(&parts[2])];
        let peak_of = |work: &mut dyn FnMut()| {
            let before = device.memory_stats();
            device.reset_peak_memory_stats();
            work();
            let after = device.memory_stats();
            (after.peak_bytes - before.current_bytes, after.alloc_count - before.alloc_count)
        };
        let bytes = |t: &Tensor| (t.numel() * t.dtype().size_bytes()) as u64;
        // A second pass adds to the gradient of the first: the pass allocates nothing.
        let w = leaf();
        go(parts[0].matmul(&w).unwrap());
        let y = parts[1].matmul(&w).unwrap();
        assert_eq!(peak_of(&mut || go(y.clone())), (0, 0), "{dtype}");
        assert_eq!(values(&w.grad().unwrap()), values(&alone[0].add(&alone[1]).unwrap()), "{dtype}");
        // What somebody holds stays.
        let held = w.grad().unwrap();
        let kept = values(&held);
        go(parts[2].matmul(&w).unwrap());
        assert_eq!(values(&held), kept);
        assert_eq!(values(&w.grad().unwrap()), values(&held.add(&alone[2]).unwrap()), "{dtype}");
        // Several consumers: one buffer for all, here of the first part, which is the consumer made last.
        let w = leaf();
        let ys: Vec<Tensor> = parts.iter().map(|x| x.matmul(&w).unwrap()).collect();
        let gs = vec![Some(g.clone()); 3];
        let work = &mut || autograd::backward_all(&ys.iter().collect::<Vec<_>>(), &gs, BackwardOptions::default()).unwrap();
        assert_eq!(peak_of(work), (bytes(&alone[0]), 1), "{dtype}");
        let sum = alone[2].add(&alone[1]).unwrap().add(&alone[0]).unwrap();
        assert_eq!((values(&w.grad().unwrap()), w.grad().unwrap().dtype()), (values(&sum), wide), "{dtype}");
        // An interior sum likewise: its buffer, and that of the op below.
        if !dtype.is_half() {
            let w = leaf();
            let inner = w.neg().unwrap().neg().unwrap();
            let ys: Vec<Tensor> = parts.iter().map(|x| x.matmul(&inner).unwrap()).collect();
            let work = &mut || autograd::backward_all(&ys.iter().collect::<Vec<_>>(), &gs, BackwardOptions::default()).unwrap();
            assert_eq!(peak_of(work), (2 * bytes(&sum), 3), "{dtype}");
            assert_eq!(values(&w.grad().unwrap()), values(&sum), "{dtype}");
        }
    }
}

#[test]
fn hooks_see_the_part_of_a_pass_and_run_after_a_product_that_adds() {
    let w = Tensor::ones([1, 1], DType::F64, &dev()).unwrap().requires_grad_(true).unwrap();
    let (x, log) = (leaf(&[3.]).detach().reshape([1, 1]).unwrap(), Arc::new(Mutex::new(Vec::new())));
    let pass = || x.matmul(&w).unwrap().sum(.., false).unwrap().backward().unwrap();
    let seen = log.clone();
    w.register_post_accumulate_grad_hook(move |w| {
        seen.lock().unwrap().push(("after", values(&w.grad().unwrap())[0]));
        Ok(())
    })
    .unwrap();
    pass();
    pass();
    let seen = log.clone();
    let hook = w.register_hook(move |g| {
        seen.lock().unwrap().push(("hook", values(g)[0]));
        Ok(None)
    });
    pass();
    drop(hook);
    assert_eq!(*log.lock().unwrap(), [("after", 3.), ("after", 6.), ("hook", 3.), ("after", 9.)]);
}

#[test]
fn an_f32_gradient_of_a_half_leaf_is_never_rounded_to_half() {
    for dtype in [DType::Bf16, DType::F16] {
        let w = Tensor::ones([1, 1], dtype, &dev()).unwrap().requires_grad_(true).unwrap();
        w.set_grad_dtype(DType::F32).unwrap();
        // 1 + 2⁻¹² is no half; neither is the sum with what was there before.
        let x = Tensor::from_slice(&[1f32, 2f32.powi(-12)], [2, 1], &dev()).unwrap().astype(dtype).unwrap();
        let mut want = 0f32;
        for _ in 0..3 {
            x.matmul(&w).unwrap().sum(.., false).unwrap().backward().unwrap();
            want += 1.0 + 2f32.powi(-12);
            let g = w.grad().unwrap();
            assert_eq!((g.dtype(), g.item::<f32>().unwrap()), (DType::F32, want), "{dtype}");
        }
        w.zero_grad();
        let twice = x.matmul(&w).unwrap().add(&x.matmul(&w).unwrap()).unwrap();
        twice.sum(.., false).unwrap().backward().unwrap();
        assert_eq!(w.grad().unwrap().item::<f32>().unwrap(), 2.0 + 2f32.powi(-11));
    }
}

#[test]
fn a_leaf_of_a_hundred_thousand_consumers_needs_no_stack() {
    let run = || {
        let x = leaf(&[1.]);
        let consumers: Vec<Tensor> = (0..100_000).map(|_| x.neg().unwrap()).collect();
        concat(&consumers.iter().collect::<Vec<_>>(), 0).unwrap().sum(.., false).unwrap().backward().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [-100_000.0]);
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(run).unwrap().join().unwrap();
}

#[test]
fn threads_go_backward_through_a_shared_part_and_their_sums_are_right() {
    for _ in 0..20 {
        let x = leaf(&[1., 2., 3.]);
        let shared = x.mul(&x).unwrap().exp().unwrap().log().unwrap();
        let (rounds, threads) = (25, 4);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        shared.mul_scalar(1.0).unwrap().sum(.., false).unwrap().backward_with(keeping()).unwrap();
                    }
                });
            }
        });
        for (g, x) in values(&x.grad().unwrap()).iter().zip([1.0, 2.0, 3.0]) {
            let want = 2.0 * x * f64::from(rounds * threads);
            assert!((g - want).abs() <= 1e-12 * want, "{g}, want {want}");
        }
    }
}
