//! An op of another crate: registered once, recorded, cast by the policy of its schema and by nothing else, refused where it can't
//! promise its bits.
#![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bilin_core::exec::launch::{self, View};
use bilin_core::schema::modes::set_autocast;
use bilin_core::tape::{Grads, Inference, Meta, Saved};
use bilin_core::{
    AmpPolicy, Arity, DType, Device, Error, Op, OpSchema, Result, Tensor, apply, op_lookup, op_register, op_registry_all, schema_hash,
    use_deterministic_algorithms,
};
use smallvec::{SmallVec, smallvec};

const fn schema(name: &'static str, amp_policy: AmpPolicy) -> OpSchema {
    OpSchema::schema_v1(name, amp_policy, Arity::Exact(1))
}
static PROMOTED: OpSchema = schema("own_promoted", AmpPolicy::Promote);
static KEPT: OpSchema = schema("own_kept", AmpPolicy::KeepInput);
static FORCED: OpSchema = schema("own_forced", AmpPolicy::ForceFP32);
static LOOSE: OpSchema =
    OpSchema { deterministic: false, determinism_note: "adds in the order of arrival", ..schema("own_loose", AmpPolicy::KeepInput) };

/// The operand's values. Notes the dtype of each call.
#[derive(Debug, Clone)]
struct Same(&'static OpSchema, Arc<Mutex<Vec<DType>>>);

impl Op for Same {
    fn schema(&self) -> &'static OpSchema {
        self.0
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        Ok(Inference::one(&inputs[0].shape, inputs[0].dtype))
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        self.1.lock().unwrap().push(inputs[0].dtype);
        Ok(smallvec![launch::copy(&self.0.name.into(), inputs[0], outputs[0].dtype)?])
    }
    fn vjp(&self, _saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![g[0].clone()])
    }
    fn is_multilinear(&self) -> bool {
        true
    }
}

fn ones(dtype: DType, device: &Device) -> Tensor {
    Tensor::ones([3], dtype, device).unwrap()
}

#[test]
fn the_policy_of_the_schema_rules_and_the_gradient_has_the_operands_dtype() {
    let (f16, bf16, f32, f64, c64, i32) = (DType::F16, DType::Bf16, DType::F32, DType::F64, DType::C64, DType::I32);
    for (schema, seen) in [
        (&PROMOTED, [bf16, bf16, bf16, f64, c64, i32]),
        (&KEPT, [f16, bf16, f32, f64, c64, i32]),
        (&FORCED, [f32, f32, f32, f64, c64, i32]),
    ] {
        for (given, want) in [f16, bf16, f32, f64, c64, i32].into_iter().zip(seen) {
            let log = Arc::new(Mutex::new(Vec::new()));
            let x = ones(given, &Device::reference()).requires_grad_(given.is_differentiable()).unwrap();
            let run = || apply(Arc::new(Same(schema, log.clone())), &[&x]).unwrap().remove(0);
            let y = {
                let _scope = set_autocast(Some(bf16));
                run()
            };
            assert_eq!((y.dtype(), run().dtype()), (want, given), "{} of {given}", schema.name);
            assert_eq!(*log.lock().unwrap(), [want, given]);
            if given.is_differentiable() {
                let sum = y.sum(.., false).unwrap();
                if given.is_complex() { sum.real().unwrap().backward() } else { sum.backward() }.unwrap();
                assert_eq!(x.grad().unwrap().dtype(), given, "{}", schema.name);
            }
        }
    }
}

#[test]
fn an_op_that_promises_no_bits_is_refused_before_anything_runs() {
    let device = Device::new("own", Box::new(bilin_core::exec::reference::ReferenceBackend));
    let (log, x) = (Arc::new(Mutex::new(Vec::new())), ones(DType::F32, &device).requires_grad_(true).unwrap());
    let run = || apply(Arc::new(Same(&LOOSE, log.clone())), &[&x]);
    let y = run().unwrap().remove(0).sum(.., false).unwrap();
    let before = device.memory_stats();
    use_deterministic_algorithms(true);
    let error = run().unwrap_err();
    assert!(matches!(&error, Error::NonDeterministic { op, note: "adds in the order of arrival" } if op == "own_loose"), "{error}");
    assert!(error.to_string().contains("own_loose") && error.to_string().contains("adds in the order of arrival"), "{error}");
    assert_eq!((log.lock().unwrap().len(), device.memory_stats()), (1, before), "it ran, or memory was taken");
    // Of this thread alone; what promises runs on.
    std::thread::scope(|s| s.spawn(|| assert!(run().is_ok())).join().unwrap());
    y.backward().unwrap();
    use_deterministic_algorithms(false);
    assert!(run().is_ok());
}

#[test]
fn a_schema_is_added_once_and_found_by_its_name() {
    static TWIN: OpSchema = OpSchema { version: 2, ..schema("own_kept", AmpPolicy::Promote) };
    let before = op_registry_all().len();
    op_register(&KEPT).unwrap();
    for taken in [&KEPT, &TWIN, op_lookup("matmul").unwrap()] {
        let error = op_register(taken).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }) && error.to_string().contains(taken.name), "{error}");
    }
    assert_eq!((op_registry_all().len(), op_lookup("own_kept")), (before + 1, Some(&KEPT)));
    // Name, version, policy and determinism each show in the hash.
    let hashes: std::collections::BTreeSet<u64> = [&KEPT, &TWIN, &PROMOTED, &LOOSE].map(schema_hash).into();
    let by_hand = |s: &OpSchema| {
        let tail = [s.version as u8, 0, 0, 0, s.amp_policy as u8, u8::from(s.deterministic)];
        let bytes = s.name.as_bytes().iter().chain([&0]).chain(&tail);
        bytes.fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
    };
    assert_eq!(hashes, [&KEPT, &TWIN, &PROMOTED, &LOOSE].map(by_hand).into());
    assert_eq!(hashes.len(), 4);
}

/// Two threads that add the same name: one is refused.
#[test]
fn threads_do_not_add_a_name_twice() {
    static RACED: OpSchema = schema("own_raced", AmpPolicy::KeepInput);
    let added = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| added.fetch_add(usize::from(op_register(&RACED).is_ok()), Relaxed));
        }
    });
    assert_eq!(added.load(Relaxed), 1);
}
