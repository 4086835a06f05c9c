//! Passes: anomalies, hooks after accumulation, several roots, sums in place, threads.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

mod leaf;

use std::sync::{Arc, Mutex};

use bilin_core::autograd::{self, BackwardOptions, GradOptions};
use bilin_core::exec::reference::ReferenceBackend;
use bilin_core::{DType, Device, Error, Result, Rng, Tensor, concat};
use leaf::{dev, leaf, values};

/// A device whose memory no other test counts.
fn own_device() -> Device {
    Device::new("own", Box::new(ReferenceBackend))
}
fn sum(t: &Tensor) -> Result<Tensor> {
    t.sum(.., false)
}
fn keeping() -> BackwardOptions {
    BackwardOptions { retain_graph: Some(true), ..Default::default() }
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
fn a_retained_gradient_is_the_sum_of_its_consumers_and_adds_up_pass_by_pass() {
    let x = leaf(&[1., 2., 3.]);
    let y = x.mul_scalar(2.0).unwrap();
    y.retain_grad().unwrap();
    // Three consumers: 3y + y·y + the second element of y.
    let parts = [y.mul_scalar(3.0).unwrap(), y.mul(&y).unwrap(), y.narrow(0, 1, 1).unwrap()].map(|t| sum(&t).unwrap());
    let loss = parts[0].add(&parts[1]).unwrap().add(&parts[2]).unwrap();
    loss.backward_with(keeping()).unwrap();
    // 3 + 2y, and 1 for the second.
    let once = vec![7., 12., 15.];
    let held = y.grad().unwrap();
    assert_eq!(values(&held), once);
    loss.backward_with(keeping()).unwrap();
    assert_eq!(values(&y.grad().unwrap()), [14., 24., 30.]);
    assert_eq!((values(&held), values(&x.grad().unwrap())), (once.clone(), vec![28., 48., 60.]), "what somebody holds stays");
    y.zero_grad();
    assert!(y.grad().is_none());
    y.set_grad(Some(y.detach().ones_like().unwrap())).unwrap();
    loss.backward().unwrap();
    assert_eq!(values(&y.grad().unwrap()), [8., 13., 16.]);
    // Its memory is its own: neither the cotangent's nor another gradient's.
    let (y, g) = (x.reshape([3, 1]).unwrap(), Tensor::ones([3, 1], DType::F64, &dev()).unwrap());
    y.retain_grad().unwrap();
    x.zero_grad();
    y.backward_with(BackwardOptions { gradient: Some(g.clone()), ..Default::default() }).unwrap();
    y.grad().unwrap().fill_(9.0).unwrap();
    assert_eq!((values(&g), values(&x.grad().unwrap())), (vec![1.; 3], vec![1.; 3]));
}

#[test]
fn hooks_run_for_tensors_of_the_pass_once_each() {
    let (x, w) = (leaf(&[1., 2.]), leaf(&[3., 4.]));
    let [y, other] = [x.mul(&w).unwrap(), x.exp().unwrap()];
    // Two consumers of y and two roots.
    let roots = [sum(&y.mul(&y).unwrap()).unwrap(), sum(&y.mul_scalar(2.0).unwrap()).unwrap()];
    let unused = other.mul_scalar(2.0).unwrap();
    let log = Arc::new(Mutex::new(Vec::new()));
    let watch = |name: &'static str, t: &Tensor| {
        let log = log.clone();
        let hook = move |g: &Tensor| {
            log.lock().unwrap().push((name, values(g)));
            Ok(None)
        };
        t.register_hook(hook).unwrap()
    };
    let handles = [("x", &x), ("w", &w), ("y", &y), ("other", &other), ("unused", &unused)].map(|(name, t)| watch(name, t));
    let seen = || std::mem::take(&mut *log.lock().unwrap());
    let sorted = |mut all: Vec<(&'static str, Vec<f64>)>| {
        all.sort_by_key(|(name, _)| *name);
        all
    };
    autograd::backward_all(&[&roots[0], &roots[1]], &[], keeping()).unwrap();
    // y is (3, 8), its gradient 2y + 2.
    let by_y = ("y", vec![8., 18.]);
    assert_eq!(sorted(seen()), [("w", vec![8., 36.]), ("x", vec![24., 72.]), by_y.clone()]);
    // In `grad`, those on the way to what is asked for, and no others.
    let ask = |inputs: &[&Tensor]| {
        let options = GradOptions { retain_graph: Some(true), ..Default::default() };
        autograd::grad(&[&roots[0], &roots[1]], inputs, options).unwrap();
        sorted(seen())
    };
    assert_eq!(ask(&[&w]), [("w", vec![8., 36.]), by_y.clone()]);
    assert_eq!(ask(&[&y]), std::slice::from_ref(&by_y));
    assert_eq!(ask(&[&y, &x, &y]), [("x", vec![24., 72.]), by_y.clone()]);
    // What a hook returns flows on, in `grad` as in `backward`.
    let doubling = y.register_hook(|g| Ok(Some(g.mul_scalar(2.0)?))).unwrap();
    assert_eq!(ask(&[&w]), [("w", vec![16., 72.]), by_y.clone()]);
    doubling.remove();
    doubling.remove();
    handles[2].remove();
    sum(&unused).unwrap().backward().unwrap();
    assert_eq!(seen().iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["unused", "other", "x"]);
    assert_eq!(ask(&[&w]), [("w", vec![8., 36.])], "a hook that was removed");
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
