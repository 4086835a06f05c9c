//! Autocast by the schemas' policies, the accuracy of halves, profiles and limits of memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::amp::{autocast_disabled, autocast_dtype};
use bilin::autograd::{self, GradOptions};
use bilin::prelude::*;
use bilin::{AmpPolicy, memory_stats, profiler, set_memory_limit, use_deterministic_algorithms};
use conformance::compare::{assert_product_rule, assert_same_bits};
use conformance::samples::{Number, all, call, operand_dtype, operands, tensor_of};
use conformance::subject::{device, few, having};

fn random(shape: &[usize], dtype: DType, seed: u64) -> Tensor {
    Tensor::randn(shape, dtype, &device(), &mut Rng::new(seed)).unwrap()
}

/// Every op under every scope is itself on operands that were cast by the policy of its schema.
#[test]
fn every_op_casts_as_its_schema_says() {
    let device = device();
    for (entry, sample, seed) in all() {
        for dtype in having([DType::F16, DType::Bf16, DType::F32, DType::F64, DType::C64, DType::I32]) {
            let x = operands(entry, sample, dtype, &device, seed);
            // The CPU computes in f32 under a scope of f16.
            let half = if device == Device::cpu() { DType::F32 } else { DType::F16 };
            for (scope, promoted) in [(DType::Bf16, DType::Bf16), (DType::F16, half), (DType::F32, DType::F32)] {
                let cast = |x: &Tensor| match (entry.schema.amp_policy, x.dtype()) {
                    (AmpPolicy::Promote, DType::F16 | DType::Bf16 | DType::F32) => x.astype(promoted).unwrap(),
                    (AmpPolicy::ForceFP32, DType::F16 | DType::Bf16) => x.astype(DType::F32).unwrap(),
                    _ => x.clone(),
                };
                let by_hand: Vec<Tensor> = x.iter().map(cast).collect();
                let want = call(entry, &by_hand, sample.attrs);
                let got = {
                    let _scope = autocast(scope);
                    call(entry, &x, sample.attrs)
                };
                let what = format!("{} of {dtype} under {scope}", entry.schema.name);
                match (got, want) {
                    (Ok(got), Ok(want)) => assert_same_bits(&got, &want, &what),
                    (Err(got), Err(want)) => assert_eq!(got.kind(), want.kind(), "{what}"),
                    (got, want) => panic!("{what}: {got:?} instead of {want:?}"),
                }
                assert_eq!(operand_dtype(entry, 0, x.len(), dtype), x.first().map_or(dtype, Tensor::dtype));
            }
        }
    }
}

/// Every op under a scope has, in the operands' dtypes, the gradients of operands that were cast by hand.
#[test]
fn every_op_under_a_scope_has_the_gradients_of_casts_by_hand() {
    let device = device();
    let mut ran = std::collections::BTreeSet::new();
    for (entry, sample, seed) in all() {
        for dtype in [DType::F16, DType::Bf16, DType::F32] {
            let x = operands(entry, sample, dtype, &device, seed);
            let gradients = |scope: Option<DType>| -> Option<Vec<Tensor>> {
                let leaf = |x: &Tensor| x.detach().requires_grad_(x.dtype().is_differentiable()).unwrap();
                let leaves: Vec<Tensor> = x.iter().map(leaf).collect();
                let y = match scope {
                    Some(scope) => {
                        let _scope = autocast(scope);
                        call(entry, &leaves, sample.attrs)
                    }
                    None => {
                        let cast = |x: &Tensor| match (entry.schema.amp_policy, x.dtype()) {
                            (AmpPolicy::Promote, DType::F16 | DType::F32) => x.astype(DType::Bf16).unwrap(),
                            (AmpPolicy::ForceFP32, DType::F16 | DType::Bf16) => x.astype(DType::F32).unwrap(),
                            _ => x.clone(),
                        };
                        call(entry, &leaves.iter().map(cast).collect::<Vec<_>>(), sample.attrs)
                    }
                };
                let y = y.ok().filter(Tensor::requires_grad)?;
                let sines: Vec<Number> = (0..y.numel()).map(|i| Number::real((1.7 * i as f64).sin())).collect();
                let g = tensor_of(&sines, y.shape(), y.dtype(), &device);
                let wanted: Vec<&Tensor> = leaves.iter().filter(|x| x.requires_grad()).collect();
                let options = GradOptions { grad_outputs: vec![Some(g)], allow_unused: true, ..Default::default() };
                let grads = autograd::grad(&[&y], &wanted, options).unwrap();
                let full = grads.into_iter().zip(wanted).map(|(g, x)| g.unwrap_or_else(|| x.zeros_like().unwrap()));
                Some(full.collect())
            };
            let (got, want) = (gradients(Some(DType::Bf16)), gradients(None));
            let name = entry.schema.name;
            assert_eq!(got.is_some(), want.is_some(), "{name} of {dtype}");
            for (got, want) in got.into_iter().flatten().zip(want.into_iter().flatten()) {
                assert!(got.dtype() == dtype && !got.requires_grad(), "{name} of {dtype}: its gradient is of {}", got.dtype());
                assert_same_bits(&got, &want, &format!("a gradient of {name} of {dtype}"));
                ran.insert(name);
            }
        }
    }
    assert!(ran.len() > 50, "{ran:?}");
}

/// One parameter in one scope: without and with a record, before and after it was edited.
#[test]
fn a_cast_is_never_met_again_without_its_history_or_its_parameter() {
    let x = random(&[4, 3], DType::F32, 1);
    let w = random(&[3, 2], DType::F32, 2).requires_grad_(true).unwrap();
    let scope = autocast(DType::Bf16);
    let plain = no_grad(|| x.matmul(&w)).unwrap();
    assert!(!plain.requires_grad());
    let first = x.matmul(&w).unwrap();
    assert_same_bits(&first.detach(), &plain, "recorded or not");
    no_grad(|| w.fill_(0.75)).unwrap();
    // Neither product reads the parameter itself again: the cast was saved, and it hasn't changed.
    let second = x.matmul(&w).unwrap();
    let by_hand = |w: f64| x.astype(DType::Bf16).unwrap().matmul(&Tensor::full([3, 2], w, DType::Bf16, &device()).unwrap()).unwrap();
    assert_same_bits(&second.detach(), &by_hand(0.75), "an edited parameter");
    no_grad(|| w.narrow(0, 0, 3).unwrap().fill_(-1.5)).unwrap();
    assert_same_bits(&no_grad(|| x.matmul(&w)).unwrap(), &by_hand(-1.5), "edited through a view");
    drop(scope);
    first.sum(.., false).unwrap().add(&second.sum(.., false).unwrap()).unwrap().backward().unwrap();
    let g = w.grad().unwrap();
    assert_eq!(g.dtype(), DType::F32);
    let columns = x.astype(DType::Bf16).unwrap().astype(DType::F32).unwrap().sum(0, true).unwrap().mul_scalar(2.0).unwrap();
    for (g, want) in g.to_vec::<f32>().unwrap().chunks(2).zip(columns.to_vec::<f32>().unwrap()) {
        assert!(g.iter().all(|g| (g - want).abs() <= 1e-5), "{g:?} instead of {want}");
    }
}

/// The same parameter cast once by hand and used many times has one gradient in f32, without a rounding to bf16 between the parts.
#[test]
fn a_cast_that_is_shared_by_hand_sums_its_gradients_in_f32() {
    let w = Tensor::ones([1, 1], DType::F32, &device()).unwrap().requires_grad_(true).unwrap();
    let _scope = autocast(DType::Bf16);
    let shared = w.astype(DType::Bf16).unwrap();
    // 1 + 2⁻¹² and 2⁻¹³ are no sum in bf16.
    let parts = [1.0, 2f64.powi(-12), 2f64.powi(-13)].map(|x| Tensor::full([1, 1], x, DType::F32, &device()).unwrap());
    let y: Vec<Tensor> = parts.iter().map(|x| x.matmul(&shared).unwrap().sum(.., false).unwrap()).collect();
    autograd::backward_all(&y.iter().collect::<Vec<_>>(), &[], Default::default()).unwrap();
    assert_eq!(w.grad().unwrap().item::<f32>().unwrap(), 1.0 + 2f32.powi(-12) + 2f32.powi(-13));
}

#[test]
fn scopes_nest_and_are_left_exactly_also_by_errors_and_panics() {
    assert_eq!(autocast_dtype(), None);
    let outer = autocast(DType::Bf16);
    {
        let _inner = autocast(DType::F16);
        assert_eq!(autocast_dtype(), Some(DType::F16));
        {
            let _off = autocast_disabled();
            assert_eq!(autocast_dtype(), None);
            assert_eq!(random(&[2, 2], DType::F32, 1).matmul(&random(&[2, 2], DType::F32, 2)).unwrap().dtype(), DType::F32);
        }
        assert_eq!(autocast_dtype(), Some(DType::F16));
    }
    let fails = || -> Result<Tensor> {
        let _scope = autocast(DType::F16);
        random(&[2, 3], DType::F32, 1).matmul(&random(&[2, 3], DType::F32, 2))
    };
    assert!(fails().is_err());
    assert_eq!(autocast_dtype(), Some(DType::Bf16));
    let panicked = std::panic::catch_unwind(|| {
        let _scope = autocast(DType::F16);
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panicked.is_err());
    assert_eq!(autocast_dtype(), Some(DType::Bf16));
    std::thread::scope(|s| s.spawn(|| assert_eq!(autocast_dtype(), None)).join().unwrap());
    drop(outer);
    assert_eq!(autocast_dtype(), None);
}

#[test]
fn what_still_disagrees_is_a_dtype_mismatch() {
    let _scope = autocast(DType::Bf16);
    for dtype in having([DType::F64, DType::C64, DType::I32]) {
        let other = Tensor::ones([2, 2], dtype, &device()).unwrap();
        for error in [other.matmul(&random(&[2, 2], DType::F32, 1)), random(&[2, 2], DType::F16, 1).matmul(&other)] {
            assert!(matches!(error.unwrap_err(), Error::DtypeMismatch { .. }));
        }
        assert_eq!(other.matmul(&other).unwrap().dtype(), dtype);
    }
}

#[test]
fn gradients_have_the_parameters_dtype_from_any_thread_and_scope() {
    let (x, w) = (random(&[5, 7], DType::F32, 1), random(&[7, 3], DType::F32, 2));
    let loss = |w: &Tensor| {
        let _scope = autocast(DType::Bf16);
        x.matmul(w).unwrap().tanh().unwrap().sum(.., false).unwrap()
    };
    let leaf = || w.detach().requires_grad_(true).unwrap();
    let here = leaf();
    loss(&here).backward().unwrap();
    let want = here.grad().unwrap();
    assert_eq!(want.dtype(), DType::F32);
    for scope in [None, Some(DType::Bf16), Some(DType::F16)] {
        let there = leaf();
        let y = loss(&there);
        std::thread::scope(|s| {
            let work = || {
                let _scope = scope.map(autocast);
                y.backward().unwrap();
            };
            s.spawn(work).join().unwrap();
        });
        assert_same_bits(&there.grad().unwrap(), &want, "a gradient of another thread");
    }
}

/// |got − ref| ≤ 4·2⁻²⁴·K·Σ|a||b| + one rounding, ref in f64: one row, few, many, a batch that broadcasts, views, every tail of K.
#[test]
fn products_of_halves_are_rounded_once() {
    let short: Vec<usize> = (1..=70).collect();
    for dtype in [DType::F16, DType::Bf16] {
        for k in few(&short).iter().copied().chain([127, 128, 129, 255, 256, 257, 511, 513, 1025, 4099]) {
            let sizes: &[(usize, usize)] = if k > 70 { &[(1, 9), (3, 33), (40, 65)] } else { &[(1, 1), (1, 17), (3, 33), (19, 50)] };
            for &(m, n) in sizes {
                let what = format!("({m}, {k})·({k}, {n}) of {dtype}");
                let (a, b) = (random(&[m, k], dtype, 3), random(&[k, n], dtype, 4));
                let views = [
                    (a.clone(), b.clone()),
                    (random(&[k, m], dtype, 5).mt().unwrap(), b.flip(0).unwrap()),
                    (a.clone(), random(&[n, k], dtype, 6).mt().unwrap()),
                ];
                for (a, b) in views {
                    let y = a.matmul(&b).unwrap();
                    assert_product_rule(&y, &[a, b], k, |x| x[0].matmul(&x[1]), &what);
                }
            }
            let (a, b) = (random(&[3, 1, 2, k], dtype, 7), random(&[2, k, 5], dtype, 8));
            let y = a.matmul(&b).unwrap();
            assert_product_rule(&y, &[a, b], k, |x| x[0].matmul(&x[1]), &format!("a batch of {dtype}, K {k}"));
            let (u, v) = (random(&[k], dtype, 9), random(&[k], dtype, 10));
            let y = u.dot(&v).unwrap();
            assert_product_rule(&y, &[u, v], k, |x| x[0].dot(&x[1]), &format!("dot of {dtype}, K {k}"));
        }
    }
}

/// The same test in a process for each instruction set; a name that the processor lacks falls back to what it has.
#[test]
fn every_instruction_set_rounds_halves_once() {
    for isa in ["portable", "avx2", "avx512", "amx"] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["products_of_halves_are_rounded_once", "--exact"])
            .env("BILIN_ISA", isa)
            .env_remove("CONFORMANCE_DEVICE")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{isa}: {text}");
    }
}

#[test]
fn a_trace_follows_its_format_and_its_arrows_have_two_ends() {
    let (a, b) = (random(&[40, 30], DType::F32, 1).requires_grad_(true).unwrap(), random(&[30, 20], DType::F32, 2));
    let profile = profiler::profile(|| {
        profiler::record_function("step \"1\"", || {
            let y = profiler::record_function("forward", || a.matmul(&b).unwrap().tanh().unwrap().sum(.., false).unwrap());
            y.backward().unwrap();
            no_grad(|| a.add_(&a.grad().unwrap())).unwrap();
        });
    });
    let event = profile.events().iter().find(|e| e.name == "matmul" && e.node.is_empty()).unwrap();
    assert_eq!(
        (event.device.as_ref().map(Device::name), event.dtype, event.flops),
        (Some(device().name()), Some(DType::F32), 2 * 40 * 30 * 20)
    );
    assert_eq!(event.bytes, 4 * (1200 + 600 + 800));
    assert!(event.thread > 0 && event.duration_ns > 0 && event.depth == 2);
    assert!(profile.events().iter().any(|e| e.name == "add_") && profile.events().iter().any(|e| e.node == "MatmulBackward"));
    assert!(profile.table().lines().next().unwrap().ends_with("of peak"));
    assert!(profile.table().lines().any(|l| l.starts_with("matmul ") && l.ends_with('%')), "{}", profile.table());

    let trace: serde_json::Value = serde_json::from_str(&profile.export_chrome_trace()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let slices: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
    assert_eq!(slices.len(), profile.events().len());
    let time = |e: &serde_json::Value| (e["ts"].as_f64().unwrap(), e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap());
    let named = |name: &str| slices.iter().find(|e| e["name"] == name).unwrap();
    let ((from, to), (start, end)) = (time(named("step \"1\"")), time(named("forward")));
    assert!(from <= start && end <= to, "scopes nest");
    let mut arrows = std::collections::BTreeMap::<u64, Vec<(&str, f64)>>::new();
    for e in events {
        let phase = e["ph"].as_str().unwrap();
        assert!(e["pid"].is_number() && matches!(phase, "X" | "s" | "f" | "C" | "M"), "{e}");
        assert!(phase == "M" || e["ts"].as_f64().unwrap() >= 0.0, "{e}");
        match phase {
            "s" | "f" => {
                let at = e["ts"].as_f64().unwrap();
                assert!(slices.iter().any(|s| s["tid"] == e["tid"] && s["ts"].as_f64() == Some(at)), "an arrow stands on a slice: {e}");
                assert!(phase == "s" || e["bp"] == "e");
                arrows.entry(e["id"].as_u64().unwrap()).or_default().push((phase, at));
            }
            "C" => assert!(e["args"]["bytes"].is_number()),
            _ => {}
        }
    }
    // The gradient of the sum is a view, which launches nothing.
    assert_eq!(arrows.len(), 2, "matmul and tanh: {arrows:?}");
    for ends in arrows.values() {
        assert!(matches!(ends.as_slice(), [("s", a), ("f", b)] if a < b), "{ends:?}");
    }
}

#[test]
fn a_limit_of_memory_is_an_error_and_nothing_is_lost() {
    let device = Device::new("limited", Box::new(bilin_cpu::CpuBackend::new()));
    let x = Tensor::ones([64, 64], DType::F32, &device).unwrap().requires_grad_(true).unwrap();
    let before = memory_stats(&device);
    assert_eq!((before.current_bytes, before.alloc_count - before.free_count), (16384, 1));
    set_memory_limit(&device, Some(20000));
    match x.matmul(&x).unwrap_err() {
        Error::OutOfMemory { requested_bytes, current_bytes, peak_bytes, limit_bytes, .. } => {
            assert_eq!((requested_bytes, current_bytes, peak_bytes, limit_bytes), (16384, 16384, 16384, Some(20000)));
        }
        other => panic!("{other}"),
    }
    assert_eq!(memory_stats(&device), before, "nothing was counted");
    set_memory_limit(&device, None);
    let error = Tensor::ones([1 << 50], DType::F64, &device).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { current_bytes: 16384, peak_bytes: 16384, limit_bytes: None, .. }), "{error}");
    assert_eq!(memory_stats(&device), before, "nor was what the system doesn't have");
    set_memory_limit(&device, Some(20000));
    assert!(no_grad(|| x.add_(&Tensor::ones([], DType::F32, &device).unwrap())).is_ok(), "in place needs no room");
    set_memory_limit(&device, Some(0));
    assert_eq!(x.mul(&x).unwrap_err().kind(), "OutOfMemory", "no bytes at all");
    set_memory_limit(&device, None);
    let y = x.matmul(&x).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [256.0; 4096]);
    // In backward too: the graph and the gradients so far stay, and another try goes through.
    let loss = y.sum(.., false).unwrap();
    set_memory_limit(&device, Some(memory_stats(&device).current_bytes + 20000));
    let options = || bilin::autograd::BackwardOptions { retain_graph: Some(true), ..Default::default() };
    assert_eq!(loss.backward_with(options()).unwrap_err().kind(), "OutOfMemory");
    assert!(x.grad().is_none());
    set_memory_limit(&device, None);
    loss.backward_with(options()).unwrap();
    assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), [256.0; 4096]);
    // Wherever a pass stops, no value has changed, and with more room it goes through.
    let [v, w] = [0.5, 2.0].map(|c| Tensor::full([64, 64], c, DType::F32, &device).unwrap().requires_grad_(true).unwrap());
    let whole = |t: &Tensor| t.to_vec::<f32>().unwrap();
    let loss = x.detach().matmul(&v).unwrap().matmul(&w).unwrap().sum(.., false).unwrap();
    let mut refused = 0;
    for room in (0..6 * 16384).step_by(4096) {
        let before = memory_stats(&device).current_bytes;
        set_memory_limit(&device, Some(before + room));
        let result = loss.backward_with(options());
        set_memory_limit(&device, None);
        if let Err(error) = result {
            refused += 1;
            assert_eq!((error.kind(), memory_stats(&device).current_bytes), ("OutOfMemory", before), "{error}");
            assert!(v.grad().is_none() && w.grad().is_none());
            loss.backward_with(options()).unwrap();
        }
        // With X all 2: ∂W = (X·V)ᵀ·1 and ∂V = Xᵀ·1·Wᵀ.
        assert_eq!([&v, &w].map(|t| whole(&t.grad().unwrap())), [vec![16384.0; 4096], vec![4096.0; 4096]]);
        assert_eq!([&v, &w].map(whole), [vec![0.5; 4096], vec![2.0; 4096]]);
        [&v, &w].into_iter().for_each(Tensor::zero_grad);
    }
    assert!((3..20).contains(&refused), "{refused} of 24 were refused");
    drop((y, loss));
    device.reset_peak_memory_stats();
    let stats = memory_stats(&device);
    assert_eq!(stats.peak_bytes, stats.current_bytes);
}

#[test]
fn deterministic_algorithms_refuse_nothing_that_promises_and_belong_to_a_thread() {
    use_deterministic_algorithms(true);
    for (entry, sample, seed) in all() {
        let x = operands(entry, sample, DType::F32, &device(), seed);
        let refused = matches!(call(entry, &x, sample.attrs), Err(Error::NonDeterministic { .. }));
        assert_eq!(refused, !entry.schema.deterministic, "{}", entry.schema.name);
    }
    std::thread::scope(|s| s.spawn(|| assert!(!bilin::are_deterministic_algorithms_enabled())).join().unwrap());
    use_deterministic_algorithms(false);
}
