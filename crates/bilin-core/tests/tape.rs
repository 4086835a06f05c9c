//! The tape: what is recorded, saved, checked and let go.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use bilin_core::autograd::{self, BackwardOptions, GradOptions};
use bilin_core::{DType, Device, Error, Rng, Tensor, einsum, no_grad};

fn dev() -> Device {
    Device::reference()
}
fn leaf(data: &[f64], shape: &[usize]) -> Tensor {
    Tensor::from_slice(data, shape, &dev()).unwrap().requires_grad_(true).unwrap()
}
fn values(t: &Tensor) -> Vec<f64> {
    t.astype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn gradient_of_a_broadcast_operand_has_its_shape() {
    let a = leaf(&[1., 2., 3., 4., 5., 6., 7., 8.], &[2, 2, 2]);
    let b = leaf(&[9., 10., 11., 12.], &[2, 2]);
    let y = a.matmul(&b).unwrap();
    assert_eq!(y.grad_fn().unwrap().name(), "MatmulBackward");
    y.sum(.., false).unwrap().backward().unwrap();
    assert_eq!(b.grad().unwrap().shape(), [2, 2]);
    assert_eq!(values(&b.grad().unwrap()), [16., 16., 20., 20.]);
    assert_eq!(values(&a.grad().unwrap()), [19., 23., 19., 23., 19., 23., 19., 23.]);
}

#[test]
fn a_saved_operand_that_changed_is_an_error_and_an_unread_one_is_not() {
    let x = leaf(&[1., 2., 3., 4.], &[2, 2]);
    let w = leaf(&[1., 0., 0., 1.], &[2, 2]);
    let y = x.matmul(&w).unwrap();
    let view = no_grad(|| x.narrow(0, 0, 1)).unwrap();
    no_grad(|| view.fill_(9.0)).unwrap();
    let error = y.sum(.., false).unwrap().backward().unwrap_err();
    assert!(matches!(error, Error::VersionMismatch { operand: 0, saved: 0, current: 1, .. }), "{error}");
    let z = x.add(&w).unwrap();
    no_grad(|| x.fill_(1.0)).unwrap();
    z.sum(.., false).unwrap().backward().unwrap();
}

#[test]
fn only_what_a_needed_gradient_reads_is_saved() {
    let x = leaf(&[1., 2., 3., 4.], &[2, 2]);
    let w = Tensor::ones([2, 2], DType::F64, &dev()).unwrap();
    let y = x.matmul(&w).unwrap();
    no_grad(|| x.fill_(5.0)).unwrap();
    y.sum(.., false).unwrap().backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [2.; 4]);
    assert!(w.grad().is_none());
}

#[test]
fn a_released_graph_says_so() {
    let x = leaf(&[2.], &[1]);
    let y = x.mul(&x).unwrap().sum(.., false).unwrap();
    y.backward_with(BackwardOptions { retain_graph: Some(true), ..Default::default() }).unwrap();
    y.backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [8.]);
    let error = y.backward().unwrap_err();
    assert!(matches!(&error, Error::GraphFreed { op } if op == "mul"), "{error}");
    assert!(error.to_string().contains("retain_graph"));
}

#[test]
fn in_place_on_a_tracked_tensor_is_refused() {
    let x = leaf(&[1., 2.], &[2]);
    assert!(matches!(x.fill_(0.0), Err(Error::InvalidArgument { .. })));
    assert_eq!(values(&x), [1., 2.]);
    no_grad(|| x.fill_(0.0)).unwrap();
    assert_eq!(x.version(), 1);
}

#[test]
fn third_derivatives_by_three_ways() {
    let x = leaf(&[0.7], &[]);
    let f = |x: &Tensor| x.exp()?.mul(&x.sin()?);
    let with_graph = GradOptions { create_graph: true, ..Default::default() };
    let mut y = f(&x).unwrap();
    for _ in 0..3 {
        y = autograd::grad(&[&y], &[&x], with_graph.clone()).unwrap()[0].clone().unwrap();
    }
    // (eˣ sin x)‴ = 2eˣ(cos x − sin x)
    let want = 2.0 * 0.7f64.exp() * (0.7f64.cos() - 0.7f64.sin());
    assert!((values(&y)[0] - want).abs() < 1e-14);
    let one = x.ones_like().unwrap();
    let third = autograd::jvp(
        |x| Ok(autograd::jvp(|x| Ok(autograd::jvp(|x| f(&x[0]), &[&x[0]], &[&one])?.1), &[&x[0]], &[&one])?.1),
        &[&x.detach()],
        &[&one],
    );
    assert!((values(&third.unwrap().1)[0] - want).abs() < 1e-14);
    let mixed = autograd::hvp(|x| Ok(autograd::jvp(|x| f(&x[0]), &[&x[0]], &[&one])?.1), &[&x.detach()], &[&one]).unwrap();
    assert!((values(&mixed[0])[0] - want).abs() < 1e-14);
}

#[test]
fn perturbations_of_nested_levels_do_not_mix() {
    // d/dx [x · d/dy (x + y) at y = 1] = 1
    let one = Tensor::scalar(1f64, &dev()).unwrap();
    let outer = autograd::jvp(
        |x| {
            let inner = autograd::jvp(|y| x[0].add(&y[0]), &[&one], &[&one])?.1;
            x[0].mul(&inner)
        },
        &[&one],
        &[&one],
    );
    assert_eq!(values(&outer.unwrap().1), [1.]);
}

#[test]
fn hooks_see_the_whole_gradient_once_and_may_replace_it() {
    let x = leaf(&[3.], &[1]);
    let y = x.mul_scalar(2.0).unwrap();
    y.retain_grad().unwrap();
    let handle = y.register_hook(|g| Ok(Some(g.mul_scalar(10.0)?))).unwrap();
    let loss = y.mul(&y).unwrap().add(&y).unwrap().sum(.., false).unwrap();
    loss.backward_with(BackwardOptions { retain_graph: Some(true), ..Default::default() }).unwrap();
    assert_eq!(values(&y.grad().unwrap()), [130.]);
    assert_eq!(values(&x.grad().unwrap()), [260.]);
    handle.remove();
    x.zero_grad();
    loss.backward().unwrap();
    assert_eq!(values(&x.grad().unwrap()), [26.]);
}

#[test]
fn halves_sum_their_gradients_in_f32() {
    let x = Tensor::ones([1], DType::Bf16, &dev()).unwrap().requires_grad_(true).unwrap();
    let mut parts = Vec::new();
    // 1 + 300·2⁻⁹ needs more than bf16's 8 bits on the way.
    parts.push(x.mul_scalar(1.0).unwrap());
    for _ in 0..300 {
        parts.push(x.mul_scalar(2f64.powi(-9)).unwrap());
    }
    let all = bilin_core::concat(&parts.iter().collect::<Vec<_>>(), 0).unwrap();
    all.sum(.., false).unwrap().backward().unwrap();
    let g = x.grad().unwrap();
    assert_eq!(g.dtype(), DType::Bf16);
    assert_eq!(values(&g), [f64::from(half_round(1.0 + 300.0 / 512.0))]);
}
fn half_round(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF_0000)
}

#[test]
fn a_bf16_cast_keeps_an_f32_gradient() {
    let w = Tensor::from_slice(&[1f32 + 2f32.powi(-12)], [1, 1], &dev()).unwrap().requires_grad_(true).unwrap();
    let x = Tensor::from_slice(&[1f32, 2f32.powi(-12)], [2, 1], &dev()).unwrap().astype(DType::Bf16).unwrap();
    x.matmul(&w.astype(DType::Bf16).unwrap()).unwrap().sum(.., false).unwrap().backward().unwrap();
    let g = w.grad().unwrap();
    assert_eq!((g.dtype(), g.item::<f32>().unwrap()), (DType::F32, 1.0 + 2f32.powi(-12)));
}

#[test]
fn a_million_nodes_need_neither_stack_nor_leave_memory() {
    let run = || {
        let device = dev();
        let x = leaf(&[1.], &[1, 1]);
        let mut y = x.clone();
        for _ in 0..1_000_000 {
            y = y.add(&x).unwrap();
        }
        drop(y);
        let mut y = x.clone();
        for _ in 0..1_000_000 {
            y = y.neg().unwrap();
        }
        y.sum(.., false).unwrap().backward().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [1.]);
        device
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(move || drop(run())).unwrap().join().unwrap();
}

#[test]
fn einsum_is_differentiable_twice() {
    let mut rng = Rng::new(3);
    let of = |shape: &[usize], rng: &mut Rng| Tensor::randn(shape, DType::F64, &dev(), rng).unwrap();
    let (a, b, c) = (of(&[2, 3], &mut rng), of(&[3, 1], &mut rng), of(&[4, 2], &mut rng));
    let f = |x: &[Tensor]| einsum("ij,jk,ki->jk", &[&x[0], &x[1], &x[2]]);
    autograd::gradcheck(f, &[&a, &b, &c], Default::default()).unwrap();
    autograd::gradgradcheck(f, &[&a, &b, &c], Default::default()).unwrap();
}

#[test]
fn a_product_of_a_broadcast_view_is_one_of_its_source() {
    let a = leaf(&[1., 2., 3., 4.], &[2, 2]);
    let b = Tensor::randn([5, 2, 3], DType::F64, &dev(), &mut Rng::new(1)).unwrap();
    let wide = a.broadcast_to([5, 2, 2]).unwrap();
    let y = wide.matmul(&b).unwrap();
    let node = y.grad_fn().unwrap();
    assert!(matches!(&node.inputs()[0], bilin_core::tape::NodeInput::Leaf(_)), "{:?}", node.inputs());
    let g = y.ones_like().unwrap();
    assert_eq!(node.apply(&g).unwrap()[0].as_ref().unwrap().shape(), [2, 2]);
    y.sum(.., false).unwrap().backward().unwrap();
    let plain = leaf(&[1., 2., 3., 4.], &[2, 2]);
    plain.matmul(&b).unwrap().sum(.., false).unwrap().backward().unwrap();
    assert_eq!(values(&a.grad().unwrap()), values(&plain.grad().unwrap()));
}

#[test]
fn summed_axes_and_both_sides_may_be_broadcast_views_too() {
    let mut rng = Rng::new(2);
    let of = |shape: &[usize], rng: &mut Rng| Tensor::randn(shape, DType::F64, &dev(), rng).unwrap();
    let (a, b) = (of(&[2, 1], &mut rng), of(&[1, 1, 3], &mut rng));
    let f = |x: &[Tensor]| x[0].broadcast_to([4, 2, 3])?.matmul(&x[1].broadcast_to([4, 3, 3])?);
    autograd::gradcheck(f, &[&a, &b], Default::default()).unwrap();
    autograd::gradgradcheck(f, &[&a, &b], Default::default()).unwrap();
}

#[test]
fn each_leaf_has_a_gradient_of_its_own() {
    let (x, y) = (leaf(&[1., 2.], &[2]), leaf(&[3., 4.], &[2]));
    let g = Tensor::ones([2], DType::F64, &dev()).unwrap();
    x.add(&y).unwrap().backward_with(BackwardOptions { gradient: Some(g.clone()), ..Default::default() }).unwrap();
    x.grad().unwrap().fill_(7.0).unwrap();
    assert_eq!((values(&x.grad().unwrap()), values(&y.grad().unwrap()), values(&g)), (vec![7.; 2], vec![1.; 2], vec![1.; 2]));
    let z = leaf(&[1., 2.], &[2]);
    z.sum(.., false).unwrap().backward().unwrap();
    z.grad().unwrap().fill_(7.0).unwrap();
    let kept = z.grad().unwrap();
    z.sum(.., false).unwrap().backward().unwrap();
    assert_eq!((values(&kept), values(&z.grad().unwrap())), (vec![7.; 2], vec![8.; 2]));
}

#[test]
fn tensors_and_nodes_cross_threads() {
    fn crosses<T: Send + Sync>() {}
    crosses::<Tensor>();
    crosses::<bilin_core::Node>();
    crosses::<Device>();
}

#[test]
fn a_profile_has_an_event_for_every_kernel_of_both_passes() {
    use bilin_core::schema::profiler::{Direction, profile, record_function};
    let (a, b) = (leaf(&[1.; 6], &[2, 3]), leaf(&[1.; 12], &[3, 4]));
    let profile = profile(|| record_function("step", || a.matmul(&b).unwrap().sum(.., false).unwrap().backward().unwrap()));
    let products: Vec<_> = profile.events().iter().filter(|e| e.name == "matmul").collect();
    assert_eq!(products.iter().map(|e| e.flops).collect::<Vec<_>>(), [48, 48, 48]);
    assert_eq!(products.iter().map(|e| e.node).collect::<Vec<_>>(), ["", "MatmulBackward", "MatmulBackward"]);
    assert!(products.iter().all(|e| e.sequence == products[0].sequence && e.sequence > 0 && e.depth == 1));
    assert_eq!(products[0].shapes.iter().map(|s| s.as_slice()).collect::<Vec<_>>(), [[2, 3], [3, 4]]);
    assert_eq!((products[0].bytes, products[0].dtype), (8 * (6 + 12 + 8), Some(DType::F64)));
    assert_eq!(products[1].direction, Direction::Backward);
    let scope = profile.events().last().unwrap();
    assert_eq!((&*scope.name, scope.direction, scope.depth), ("step", Direction::Scope, 0));
    assert!(products.iter().all(|e| e.start_ns + e.duration_ns <= scope.start_ns + scope.duration_ns));
    assert!(profile.table().contains("matmul in MatmulBackward"));
    let trace = profile.export_chrome_trace();
    // The gradient of the sum is a view, so no arrow leads to it: one that began would never end.
    for phase in ["\"ph\":\"s\"", "\"ph\":\"f\""] {
        assert_eq!(trace.matches(phase).count(), 1, "{trace}");
    }
    assert!(a.matmul(&b).is_ok() && !bilin_core::schema::modes::is_profiling());
}

/// A product reads a broadcast view's source, but the view's own gradient, hooks and `retain_grad` are still its own.
#[test]
fn a_broadcast_view_that_a_product_looks_through_has_its_gradient() {
    let run = |keep: bool| {
        let a = leaf(&[1., 2., 3., 4.], &[2, 2]);
        let b = Tensor::randn([3, 2, 2], DType::F64, &dev(), &mut Rng::new(1)).unwrap();
        let wide = a.broadcast_to([3, 2, 2]).unwrap();
        if keep {
            wide.retain_grad().unwrap();
            wide.register_hook(|g| Ok(Some(g.mul_scalar(2.0)?))).unwrap();
        }
        let y = wide.matmul(&b).unwrap().sum(.., false).unwrap();
        let keeping = GradOptions { retain_graph: Some(true), ..Default::default() };
        let g = autograd::grad(&[&y], &[&wide], keeping).unwrap().remove(0).unwrap();
        y.backward().unwrap();
        (g, wide.grad(), a.grad().unwrap(), b)
    };
    let (g, _, plain, b) = run(false);
    let want = Tensor::ones([3, 2, 2], DType::F64, &dev()).unwrap().matmul(&b.mt().unwrap()).unwrap();
    assert_eq!((g.shape(), values(&g)), (&[3, 2, 2][..], values(&want)));
    let (_, kept, doubled, _) = run(true);
    assert_eq!(values(&kept.unwrap()), values(&want.mul_scalar(2.0).unwrap()));
    // Summed inside the product or after it: 6 terms of size up to 3.
    let near = |a: &f64, b: &f64| (a - b).abs() <= 2.0 * 6.0 * 18.0 * f64::EPSILON;
    assert!(values(&doubled).iter().zip(values(&plain.mul_scalar(2.0).unwrap())).all(|(a, b)| near(a, &b)));
}
