//! The loss scale and the clipping of gradients.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bilin::amp::{GradScaler, ScalerOptions, Stepped, autocast};
use bilin::exec::backend::Backend;
use bilin::exec::buffer::Buffer;
use bilin::exec::call::{ContractCall, GatherCall, MapCall, ReduceCall, ScatterCall};
use bilin::exec::reference::ReferenceBackend;
use bilin::optim::{AdamW, ClipOptions, Optimizer, Sgd, clip_grad_norm, clip_grad_norm_with};
use bilin::prelude::*;

fn leaf(data: &[f32]) -> Tensor {
    Tensor::from_slice(data, [data.len()], &Device::cpu()).unwrap().requires_grad_(true).unwrap()
}

fn set_grad(p: &Tensor, data: &[f32]) {
    p.set_grad(Some(Tensor::from_slice(data, [data.len()], p.device()).unwrap())).unwrap();
}

fn values(t: &Tensor) -> Vec<f32> {
    t.astype(DType::F32).unwrap().to_vec().unwrap()
}

fn grad_of(p: &Tensor) -> Vec<f32> {
    values(&p.grad().unwrap())
}

#[test]
fn unscaled_gradients_are_those_of_the_plain_loss() {
    let run = |scaler: &mut GradScaler| {
        let w = leaf(&[0.5, -1.5, 3.0]);
        let mut optimizer = AdamW::new(std::slice::from_ref(&w), 0.1).unwrap();
        for _ in 0..3 {
            optimizer.zero_grad();
            let loss = w.mul(&w).unwrap().sum(.., false).unwrap();
            scaler.scale(&loss).unwrap().backward().unwrap();
            scaler.unscale_(&optimizer).unwrap();
            assert_eq!(scaler.step(&mut optimizer).unwrap(), Stepped::Taken);
            scaler.update().unwrap();
        }
        (values(&w), grad_of(&w))
    };
    assert_eq!(run(&mut GradScaler::default()), run(&mut GradScaler::disabled()));
}

#[test]
fn small_gradients_of_f16_survive_by_the_scale() {
    // 2⁻³⁰ is below half of f16's least number, 2⁻²⁴; the cast's gradient is kept in f32.
    let gradient = |scaler: &mut GradScaler| {
        let w = leaf(&[1.0]);
        let optimizer = Sgd::new(std::slice::from_ref(&w), 0.1).unwrap();
        let y = w.astype(DType::F16).unwrap().mul_scalar(1.0).unwrap();
        let loss = y.astype(DType::F32).unwrap().mul_scalar(2f64.powi(-30)).unwrap().sum(.., false).unwrap();
        scaler.scale(&loss).unwrap().backward().unwrap();
        scaler.unscale_(&optimizer).unwrap();
        grad_of(&w)[0]
    };
    assert_eq!(gradient(&mut GradScaler::disabled()), 0.0);
    assert_eq!(gradient(&mut GradScaler::default()), 2f32.powi(-30));
}

#[test]
fn the_scale_is_applied_in_f32_under_every_scope() {
    let loss = Tensor::scalar(f16::from_f32(60000.0), &Device::cpu()).unwrap();
    let _scope = autocast(DType::Bf16);
    let scaled = GradScaler::default().scale(&loss).unwrap();
    assert_eq!((scaled.dtype(), scaled.item::<f32>().unwrap()), (DType::F32, 60000.0 * 65536.0));
    let odd = Tensor::scalar(1.0f32 + f32::EPSILON, &Device::cpu()).unwrap();
    assert_eq!(GradScaler::default().scale(&odd).unwrap().item::<f32>().unwrap(), (1.0 + f32::EPSILON) * 65536.0);
}

#[test]
fn a_step_with_an_infinite_or_nan_gradient_is_skipped_and_says_so() {
    for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        for at in 0..3 {
            let (a, b) = (leaf(&[1.0, 2.0]), leaf(&[3.0]));
            let mut grads = [1.0; 3];
            grads[at] = bad;
            set_grad(&a, &grads[..2]);
            set_grad(&b, &grads[2..]);
            let mut optimizer = Sgd::new(&[a.clone(), b.clone()], 0.1).unwrap();
            let mut scaler = GradScaler::default();
            assert_eq!(scaler.step(&mut optimizer).unwrap(), Stepped::Skipped);
            scaler.update().unwrap();
            assert_eq!((values(&a), values(&b)), (vec![1.0, 2.0], vec![3.0]));
            assert_eq!((scaler.get_scale(), scaler.growth_tracker()), (32768.0, 0));
        }
    }
    // The largest numbers are finite, though their sum isn't.
    let w = leaf(&[1.0, 1.0]);
    set_grad(&w, &[f32::MAX, f32::MAX]);
    assert_eq!(GradScaler::default().step(&mut Sgd::new(std::slice::from_ref(&w), 0.0).unwrap()).unwrap(), Stepped::Taken);
}

#[test]
fn the_scale_grows_after_good_steps_in_a_row() {
    let options = ScalerOptions { init_scale: 8.0, growth_factor: 4.0, backoff_factor: 0.25, growth_interval: 3 };
    let mut scaler = GradScaler::new(options).unwrap();
    let w = leaf(&[0.0]);
    let mut optimizer = Sgd::new(std::slice::from_ref(&w), 0.0).unwrap();
    let mut scales = Vec::new();
    for good in [true, true, true, true, true, false, true, true, true, false, false, false, false] {
        set_grad(&w, &[if good { 1.0 } else { f32::NAN }]);
        let _ = scaler.step(&mut optimizer).unwrap();
        scaler.update().unwrap();
        scales.push(scaler.get_scale());
    }
    assert_eq!(scales, [8., 8., 32., 32., 32., 8., 8., 8., 32., 8., 2., 1., 1.]);
}

#[test]
fn the_scale_stays_finite_and_at_least_1() {
    let w = leaf(&[0.0]);
    let mut optimizer = Sgd::new(std::slice::from_ref(&w), 0.0).unwrap();
    // 2¹²⁶, whose inverse is a normal number, is the most; whatever the factor, the scale stops below.
    for (growth_factor, most) in [(2.0, 2f64.powi(126)), (1e30, 1e30), (f64::MAX, 1.0)] {
        let mut scaler =
            GradScaler::new(ScalerOptions { init_scale: 1.0, growth_factor, growth_interval: 1, ..Default::default() }).unwrap();
        for _ in 0..200 {
            set_grad(&w, &[1.0]);
            assert_eq!(scaler.step(&mut optimizer).unwrap(), Stepped::Taken);
            scaler.update().unwrap();
            assert!((scaler.get_scale() as f32).is_finite() && (1.0 / scaler.get_scale()) as f32 >= f32::MIN_POSITIVE);
        }
        assert_eq!(scaler.get_scale(), most);
        for _ in 0..200 {
            set_grad(&w, &[f32::INFINITY]);
            assert_eq!(scaler.step(&mut optimizer).unwrap(), Stepped::Skipped);
            scaler.update().unwrap();
        }
        assert_eq!(scaler.get_scale(), 1.0);
    }
    for scale in [0.5, f64::NAN, f64::INFINITY, 2f64.powi(127)] {
        assert!(GradScaler::default().update_to(scale).is_err(), "{scale}");
    }
}

#[test]
fn unscaled_then_clipped_is_the_step_of_the_clipped_plain_loss() {
    let run = |scaler: &mut GradScaler, max_norm: f64| {
        let w = leaf(&[0.5, -1.5, 3.0]);
        let mut optimizer = Sgd::new(std::slice::from_ref(&w), 0.25).unwrap();
        let mut norms = Vec::new();
        for _ in 0..3 {
            optimizer.zero_grad();
            scaler.scale(&w.mul(&w).unwrap().sum(.., false).unwrap()).unwrap().backward().unwrap();
            scaler.unscale_(&optimizer).unwrap();
            norms.push(clip_grad_norm(std::slice::from_ref(&w), max_norm).unwrap().item::<f32>().unwrap());
            assert_eq!(scaler.step(&mut optimizer).unwrap(), Stepped::Taken);
            scaler.update().unwrap();
        }
        (values(&w), norms)
    };
    let (clipped, norms) = run(&mut GradScaler::default(), 1.0);
    assert_eq!((clipped.clone(), norms.clone()), run(&mut GradScaler::disabled(), 1.0));
    assert_eq!(norms[0], 46f32.sqrt(), "2·|(0.5, −1.5, 3)|");
    assert_ne!(clipped, run(&mut GradScaler::default(), 1e9).0, "the clipping has no effect");
}

#[test]
fn calls_out_of_order_are_errors_and_change_nothing() {
    let w = leaf(&[1.0]);
    set_grad(&w, &[65536.0]);
    let mut optimizer = Sgd::new(std::slice::from_ref(&w), 0.5).unwrap();
    let mut scaler = GradScaler::default();
    assert!(scaler.update().unwrap_err().to_string().contains("step"));
    scaler.unscale_(&optimizer).unwrap();
    let error = scaler.unscale_(&optimizer).unwrap_err().to_string();
    assert!(error.starts_with("unscale_: ") && error.contains("update"), "{error}");
    assert_eq!(grad_of(&w), [1.0]);
    assert_eq!(scaler.step(&mut optimizer).unwrap(), Stepped::Taken);
    assert!(scaler.step(&mut optimizer).is_err());
    assert_eq!(values(&w), [0.5]);
    scaler.update().unwrap();
    // Another round may begin.
    set_grad(&w, &[65536.0]);
    assert_eq!(scaler.step(&mut optimizer).unwrap(), Stepped::Taken);
    for options in [
        ScalerOptions { init_scale: 0.5, ..Default::default() },
        ScalerOptions { init_scale: f64::INFINITY, ..Default::default() },
        ScalerOptions { init_scale: f64::NAN, ..Default::default() },
        ScalerOptions { growth_factor: 1.0, ..Default::default() },
        ScalerOptions { growth_factor: f64::NAN, ..Default::default() },
        ScalerOptions { backoff_factor: 1.0, ..Default::default() },
        ScalerOptions { backoff_factor: 0.0, ..Default::default() },
        ScalerOptions { growth_interval: 0, ..Default::default() },
    ] {
        assert_eq!(GradScaler::new(options).unwrap_err().kind(), "InvalidArgument", "{options:?}");
    }
    assert!(scaler.update_to(0.0).is_err());
    scaler.update_to(1024.0).unwrap();
    assert_eq!(scaler.get_scale(), 1024.0);
}

#[test]
fn an_optimiser_that_fails_may_step_again() {
    struct Fails(Vec<Tensor>, bool);
    impl Optimizer for Fails {
        fn params(&self) -> &[Tensor] {
            &self.0
        }
        fn step(&mut self) -> Result<()> {
            if std::mem::take(&mut self.1) { Err(Error::invalid("step", "test", "first", "try again")) } else { Ok(()) }
        }
    }
    let w = leaf(&[1.0]);
    set_grad(&w, &[65536.0]);
    let mut optimizer = Fails(vec![w.clone()], true);
    let mut scaler = GradScaler::default();
    assert!(scaler.step(&mut optimizer).is_err());
    assert_eq!(scaler.step(&mut optimizer).unwrap(), Stepped::Taken);
    assert_eq!(grad_of(&w), [1.0], "unscaled once");
}

#[test]
fn optimisers_step_apart_and_share_the_scale() {
    let (a, b) = (leaf(&[1.0]), leaf(&[1.0]));
    set_grad(&a, &[65536.0]);
    set_grad(&b, &[f32::INFINITY]);
    let (mut first, mut second) = (Sgd::new(std::slice::from_ref(&a), 1.0).unwrap(), Sgd::new(std::slice::from_ref(&b), 1.0).unwrap());
    let mut scaler = GradScaler::default();
    scaler.unscale_(&second).unwrap();
    assert_eq!(scaler.step(&mut first).unwrap(), Stepped::Taken);
    assert_eq!(scaler.step(&mut second).unwrap(), Stepped::Skipped);
    scaler.update().unwrap();
    assert_eq!((values(&a), values(&b), scaler.get_scale()), (vec![0.0], vec![1.0], 32768.0));
}

#[test]
fn a_state_continues_the_run_and_a_damaged_one_changes_nothing() {
    let options = ScalerOptions { init_scale: 512.0, growth_factor: 3.0, backoff_factor: 0.25, growth_interval: 7 };
    let mut scaler = GradScaler::new(options).unwrap();
    let w = leaf(&[0.0]);
    let mut optimizer = Sgd::new(std::slice::from_ref(&w), 0.0).unwrap();
    for _ in 0..3 {
        set_grad(&w, &[1.0]);
        let _ = scaler.step(&mut optimizer).unwrap();
        scaler.update().unwrap();
    }
    // Through a file.
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("scaler-{}.safetensors", std::process::id()));
    let saved = scaler.state_dict().unwrap();
    bilin::io::save(&path, &saved.iter().map(|(n, t)| (n.as_str(), t)).collect::<Vec<_>>()).unwrap();
    let state: Vec<(String, Tensor)> =
        bilin::io::load(&path, &Device::cpu()).unwrap().into_iter().map(|(n, t)| (n.unwrap_or_default(), t)).collect();
    std::fs::remove_file(&path).unwrap();
    let mut other = GradScaler::default();
    other.load_state_dict(&state).unwrap();
    assert_eq!((other.get_scale(), other.growth_tracker(), other.options().growth_interval), (512.0, 3, 7));
    assert_eq!((other.options().growth_factor, other.options().backoff_factor), (3.0, 0.25));
    for (name, bad) in [("scale", 0.0), ("scale", f64::NAN), ("growth_factor", 1.0), ("growth_interval", 0.0), ("growth_tracker", -1.0)] {
        let damaged: Vec<(String, Tensor)> = state
            .iter()
            .map(|(n, t)| (n.clone(), if n == name { Tensor::scalar(bad, &Device::cpu()).unwrap() } else { t.clone() }))
            .collect();
        assert!(other.load_state_dict(&damaged).is_err(), "{name} {bad}");
    }
    assert!(other.load_state_dict(&state[1..]).is_err());
    assert_eq!((other.get_scale(), other.growth_tracker(), other.options().growth_interval), (512.0, 3, 7));
}

static READS: AtomicUsize = AtomicUsize::new(0);

/// The reference, with its reads counted, and without some dtype.
#[derive(Debug)]
struct Counting(ReferenceBackend, Option<DType>);

impl Backend for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }
    fn has_dtype(&self, dtype: DType) -> bool {
        Some(dtype) != self.1 && self.0.has_dtype(dtype)
    }
    fn alloc(&self, byte_len: usize) -> Result<Option<Box<dyn Buffer>>> {
        self.0.alloc(byte_len)
    }
    fn upload(&self, src: &[u8], dst: &mut dyn Buffer) -> Result<()> {
        self.0.upload(src, dst)
    }
    fn download(&self, src: &dyn Buffer, dst: &mut [u8]) -> Result<()> {
        READS.fetch_add(1, Relaxed);
        self.0.download(src, dst)
    }
    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
    fn contract(&self, call: ContractCall<'_>) -> Result<()> {
        self.0.contract(call)
    }
    fn map(&self, call: MapCall<'_>) -> Result<()> {
        self.0.map(call)
    }
    fn reduce(&self, call: ReduceCall<'_>) -> Result<()> {
        self.0.reduce(call)
    }
    fn gather(&self, call: GatherCall<'_>) -> Result<()> {
        self.0.gather(call)
    }
    fn scatter_add(&self, call: ScatterCall<'_>) -> Result<()> {
        self.0.scatter_add(call)
    }
    fn kernels(&self) -> Vec<&'static str> {
        self.0.kernels()
    }
}

#[test]
fn a_step_reads_the_device_once() {
    let device = Device::new("counting", Box::new(Counting(ReferenceBackend, None)));
    let params: Vec<Tensor> = (1..5).map(|n| Tensor::ones([n, 2], DType::F32, &device).unwrap().requires_grad_(true).unwrap()).collect();
    let mut optimizer = AdamW::new(&params, 0.1).unwrap();
    let mut scaler = GradScaler::default();
    for _ in 0..3 {
        optimizer.zero_grad();
        let mut loss = Tensor::zeros([], DType::F32, &device).unwrap();
        for p in &params {
            loss = loss.add(&p.mul(p).unwrap().sum(.., false).unwrap()).unwrap();
        }
        scaler.scale(&loss).unwrap().backward().unwrap();
        let before = READS.load(Relaxed);
        scaler.unscale_(&optimizer).unwrap();
        let norm = clip_grad_norm(&params, 1.0).unwrap();
        assert_eq!(READS.load(Relaxed), before, "nothing is read before the step");
        assert_eq!(norm.device(), &device);
        assert_eq!(scaler.step(&mut optimizer).unwrap(), Stepped::Taken);
        scaler.update().unwrap();
        assert_eq!(READS.load(Relaxed), before + 1);
    }
}

#[test]
fn a_parameter_given_twice_is_unscaled_once() {
    let w = leaf(&[1.0]);
    set_grad(&w, &[65536.0]);
    let optimizer = Sgd::new(&[w.clone(), w.clone()], 1.0).unwrap();
    GradScaler::default().unscale_(&optimizer).unwrap();
    assert_eq!(grad_of(&w), [1.0]);
    set_grad(&w, &[3.0]);
    assert_eq!(clip_grad_norm(&[w.clone(), w.clone()], 10.0).unwrap().item::<f32>().unwrap(), 3.0);
}

#[test]
fn norms_are_those_of_all_gradients_together() {
    let (a, b) = (leaf(&[0.0; 2]), leaf(&[0.0]));
    let none = leaf(&[5.0]);
    for (norm_type, norm) in [(2.0, 13.0), (1.0, 19.0), (f64::INFINITY, 12.0), (3.0, (27f64 + 64. + 1728.).cbrt())] {
        for max_norm in [1.0, 20.0, 0.0] {
            set_grad(&a, &[3.0, -4.0]);
            set_grad(&b, &[12.0]);
            let options = ClipOptions { norm_type, error_if_nonfinite: true };
            let got = clip_grad_norm_with(&[a.clone(), b.clone(), none.clone()], max_norm, options).unwrap();
            assert!((f64::from(got.item::<f32>().unwrap()) - norm).abs() < 1e-5 * norm, "{norm_type}");
            let factor = (max_norm / (norm + 1e-6)).min(1.0);
            let want = [3.0, -4.0, 12.0].map(|g| g * factor);
            for (got, want) in grad_of(&a).into_iter().chain(grad_of(&b)).zip(want) {
                assert!((f64::from(got) - want).abs() <= 1e-5 * want.abs(), "{norm_type}, {max_norm}: {got} instead of {want}");
            }
            assert!(factor < 1.0 || grad_of(&a) == [3.0, -4.0], "not touched below the norm");
        }
    }
    assert!(none.grad().is_none());
    assert_eq!(clip_grad_norm(&[none], 1.0).unwrap().item::<f32>().unwrap(), 0.0);
}

/// Squares of these overflow f32, or vanish in it.
#[test]
fn norms_of_very_large_and_very_small_gradients_are_right() {
    let narrow = Device::new("narrow", Box::new(Counting(ReferenceBackend, Some(DType::F64))));
    for device in [Device::cpu(), narrow] {
        for dtype in [DType::F32, DType::Bf16] {
            let of = |x: [f32; 2]| {
                let w = Tensor::zeros([2], dtype, &device).unwrap().requires_grad_(true).unwrap();
                w.set_grad(Some(Tensor::from_slice(&x, [2], &device).unwrap().astype(dtype).unwrap())).unwrap();
                w
            };
            for size in [2f32.powi(-100), 2f32.powi(-60), 1.0, 2f32.powi(70), 2f32.powi(123)] {
                for norm_type in [2.0, 3.0, 1.0, f64::INFINITY] {
                    let (a, b) = (of([3.0 * size, -4.0 * size]), of([0.0, 12.0 * size]));
                    let options = ClipOptions { norm_type, error_if_nonfinite: true };
                    let want = f64::from(size)
                        * match norm_type {
                            2.0 => 13.0,
                            3.0 => 1819f64.cbrt(),
                            1.0 => 19.0,
                            _ => 12.0,
                        };
                    let got = clip_grad_norm_with(&[a.clone(), b.clone()], f64::from(size), options).unwrap();
                    let what = format!("{device}, {dtype}, {norm_type} of {size:e}");
                    assert_eq!(got.dtype(), DType::F32);
                    assert!((f64::from(got.item::<f32>().unwrap()) / want - 1.0).abs() < 1e-5, "{what}: {got:?} instead of {want:e}");
                    if size >= 1.0 {
                        let clipped = f64::from(b.grad().unwrap().astype(DType::F32).unwrap().to_vec::<f32>().unwrap()[1]);
                        let exact = 12.0 * f64::from(size) * f64::from(size) / (want + 1e-6);
                        assert!((clipped / exact - 1.0).abs() <= dtype.unit_roundoff() * 2.0 + 1e-5, "{what}: {clipped:e}, want {exact:e}");
                    }
                }
            }
            for (bad, norm) in [(f32::INFINITY, f32::INFINITY), (f32::NAN, f32::NAN)] {
                let got = clip_grad_norm(&[of([bad, 1.0])], 1.0).unwrap().item::<f32>().unwrap();
                assert!(got == norm || (got.is_nan() && norm.is_nan()), "{device}: {got} of {bad}");
            }
            assert_eq!(clip_grad_norm(&[of([0.0, 0.0])], 1.0).unwrap().item::<f32>().unwrap(), 0.0);
        }
    }
    // More than a chunk, and a gradient whose memory isn't in order.
    let w = Tensor::zeros([1000, 600], DType::F32, &Device::cpu()).unwrap().requires_grad_(true).unwrap();
    w.set_grad(Some(Tensor::full([600, 1000], 2.0, DType::F32, &Device::cpu()).unwrap().t().unwrap())).unwrap();
    let norm = clip_grad_norm(std::slice::from_ref(&w), 1e9).unwrap().item::<f32>().unwrap();
    assert!((f64::from(norm) - 2.0 * 600_000f64.sqrt()).abs() < 1e-3);
}

#[test]
fn norms_of_halves_are_summed_in_f32_and_strange_ones_are_told() {
    let w = Tensor::zeros([1000], DType::Bf16, &Device::cpu()).unwrap().requires_grad_(true).unwrap();
    w.set_grad(Some(w.ones_like().unwrap())).unwrap();
    // In bf16 the sum would stall at 256.
    let norm = clip_grad_norm(std::slice::from_ref(&w), 1e9).unwrap();
    assert!((norm.item::<f32>().unwrap() - 1000f32.sqrt()).abs() < 1e-3);
    let z = Tensor::zeros([1], DType::C128, &Device::cpu()).unwrap().requires_grad_(true).unwrap();
    z.set_grad(Some(Tensor::from_slice(&[c128::new(3., 4.)], [1], &Device::cpu()).unwrap())).unwrap();
    for norm_type in [2.0, 1.0, f64::INFINITY] {
        let norm = clip_grad_norm_with(std::slice::from_ref(&z), 10.0, ClipOptions { norm_type, ..Default::default() }).unwrap();
        assert!((norm.item::<f64>().unwrap() - 5.0).abs() < 1e-12);
    }
    let v = leaf(&[1.0, 1.0]);
    set_grad(&v, &[f32::INFINITY, 1.0]);
    let refusing = ClipOptions { error_if_nonfinite: true, ..Default::default() };
    assert!(clip_grad_norm_with(std::slice::from_ref(&v), 1.0, refusing).is_err());
    assert_eq!(grad_of(&v), [f32::INFINITY, 1.0], "nothing is changed by an error");
    for bad in [-1.0, f64::NAN] {
        assert_eq!(clip_grad_norm(std::slice::from_ref(&v), bad).unwrap_err().kind(), "InvalidArgument");
        assert!(clip_grad_norm_with(std::slice::from_ref(&v), 1.0, ClipOptions { norm_type: bad, ..Default::default() }).is_err());
    }
}
