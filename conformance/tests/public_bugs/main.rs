//! Small inputs on which other libraries have failed: every row of `data/public_bugs.json`, on every device here.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

mod scenarios;

use std::collections::BTreeSet;
use std::path::PathBuf;

use bilin::autograd::{self, GradOptions};
use bilin::prelude::*;
use bilin::{memory_stats, op_call, reset_peak_memory_stats};
use conformance::compare::{assert_close, assert_product_rule, assert_reference, assert_same_bits, numbers};
use conformance::generate::{Sizes, dtypes, tensor, view};
use conformance::subject::{devices, has_reference_bits};
use serde_json::Value;

fn cases() -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/public_bugs.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn id(case: &Value) -> &str {
    case["id"].as_str().unwrap()
}

/// A device of its own, so that nothing else counts in its memory.
pub fn private_cpu() -> Device {
    Device::new("private", Box::new(bilin_cpu::CpuBackend::new()))
}

/// The attribute text of a case's `args`.
fn attributes(case: &Value) -> String {
    let args = &case["args"];
    let list = |v: &Value| v.as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>().join(",");
    let mut parts = Vec::new();
    match &args["axes"] {
        Value::Array(pair) => parts.push(format!("lhs={};rhs={}", list(&pair[0]), list(&pair[1]))),
        Value::Number(count) => parts.push(format!("axes={count}")),
        _ => {}
    }
    for name in ["subscripts", "out_dtype"] {
        if let Some(text) = args[name].as_str() {
            parts.push(format!("{name}={text}"));
        }
    }
    parts.join(";")
}

/// One case under one choice of its sizes, on one device.
struct Run<'a> {
    case: &'a Value,
    sizes: Sizes,
    device: Device,
    what: String,
}

impl Run<'_> {
    /// A case of f64 is one of f32 on a device without f64.
    fn on_device(&self, dtype: DType) -> DType {
        let narrow = if dtype.is_complex() { DType::C64 } else { DType::F32 };
        if self.device.backend().has_dtype(dtype) { dtype } else { narrow }
    }

    fn dtypes(&self) -> Vec<DType> {
        let list = dtypes(&self.case["dtype"], self.case["inputs"].as_array().unwrap().len());
        list.into_iter().map(|d| self.on_device(d)).collect()
    }

    /// The dtype of the case's result, given or the first operand's.
    fn named(&self, name: &str, otherwise: DType) -> DType {
        self.case["expect"][name].as_str().map_or(otherwise, |d| self.on_device(DType::parse(d).unwrap()))
    }

    /// Whether the device has the dtypes. An error may be about those that it lacks.
    fn can_run(&self) -> bool {
        let result = self.named("value_dtype", self.dtypes()[0]);
        if self.case["expect"].get("error").is_some() && dtypes(&self.case["dtype"], self.dtypes().len()) != self.dtypes() {
            return false;
        }
        self.dtypes().into_iter().chain([result]).all(|d| self.device.backend().has_dtype(d))
    }

    /// The operands, as leaves; one that is `same` is a recorded view of another, and no leaf of its own.
    fn operands(&self, tracked: bool) -> (Vec<Tensor>, Vec<usize>) {
        let (mut operands, mut leaves): (Vec<Tensor>, Vec<usize>) = (Vec::new(), Vec::new());
        for (i, (input, dtype)) in self.case["inputs"].as_array().unwrap().iter().zip(self.dtypes()).enumerate() {
            if let Some(same) = input.get("same") {
                operands.push(view(&operands[same.as_u64().unwrap() as usize], &input["ops"], &self.sizes));
                continue;
            }
            let x = tensor(input, dtype, &self.device, &self.sizes);
            operands.push(x.requires_grad_(tracked && dtype.is_differentiable()).unwrap());
            leaves.push(i);
        }
        (operands, leaves)
    }

    fn call(&self, operands: &[Tensor]) -> Result<Tensor> {
        op_call(self.case["op"].as_str().unwrap(), operands, &attributes(self.case))
    }

    fn expected(&self, v: &Value, dtype: DType) -> Tensor {
        tensor(v, dtype, &self.device, &self.sizes)
    }

    /// `exact`, or the absolute bound.
    fn check(&self, got: &Tensor, want: &Value, name: &str) {
        let want = self.expected(want, got.dtype());
        let what = format!("{}: {name}", self.what);
        assert_eq!(got.shape(), want.shape(), "{what}");
        // Bounds of f64 are so many of its units, and as many of the narrower.
        let is_narrowed = dtypes(&self.case["dtype"], 1)[0] != self.dtypes()[0];
        let units = if is_narrowed { DType::F32.unit_roundoff() / DType::F64.unit_roundoff() } else { 1.0 };
        let bound = self.case["tol"].as_f64().unwrap_or(0.0) * units;
        assert_close(got, &numbers(&want), |_| bound, &what);
    }

    fn check_error(&self) {
        let expect = &self.case["expect"];
        for tracked in [false, true] {
            let (operands, _) = self.operands(tracked);
            let error = match self.call(&operands) {
                Err(error) => error,
                Ok(out) => panic!("{}: gave {out:?}, want an error", self.what),
            };
            let classes = expect["error"].as_str().unwrap();
            assert!(classes.split('|').any(|c| c == error.kind()), "{}: {} instead of {classes}: {error}", self.what, error.kind());
            for word in expect["mentions"].as_array().unwrap() {
                let word = word.as_str().unwrap();
                assert!(error.to_string().contains(word), "{}: '{error}' doesn't mention '{word}'", self.what);
            }
        }
    }

    /// The value: given, or the reference's bits, which themselves obey the error bound (or are exact) in f64.
    fn check_value(&self, out: &Tensor, operands: &[Tensor]) {
        let expect = &self.case["expect"];
        if let Some(shape) = expect.get("shape") {
            assert_eq!(out.shape(), conformance::generate::shape(shape, &self.sizes), "{}", self.what);
        }
        let dtype = self.named("value_dtype", self.dtypes()[0]);
        assert_eq!(out.dtype(), dtype, "{}", self.what);
        match &expect["value"] {
            Value::Null => {}
            Value::String(s) if s == "reference" => {
                let home: Vec<Tensor> = operands.iter().map(|x| x.detach().to_device(&Device::reference()).unwrap()).collect();
                let want = self.call(&home).unwrap();
                assert_reference(&out.detach(), &want, &home, &self.what);
                if self.case["tol"] == "exact" {
                    let wide: Vec<Tensor> = home.iter().map(conformance::compare::widened).collect();
                    assert_close(out, &numbers(&self.call(&wide).unwrap()), |_| 0.0, &self.what);
                } else {
                    assert_eq!(self.case["op"], "matmul", "{}: the number of terms is known for matmul", self.what);
                    let terms = home[0].shape()[home[0].rank() - 1];
                    assert_product_rule(out, &home, terms, |x| self.call(x), &self.what);
                }
            }
            want => self.check(out, want, "value"),
        }
    }

    fn cotangent(&self, out: &Tensor) -> Tensor {
        match self.case.get("cotangent") {
            Some(g) => self.expected(g, out.dtype()),
            None => out.ones_like().unwrap(),
        }
    }

    fn gradients(&self, out: &Tensor, leaves: &[&Tensor], create_graph: bool) -> Vec<Tensor> {
        let options = GradOptions { grad_outputs: vec![Some(self.cotangent(out))], create_graph, ..Default::default() };
        autograd::grad(&[out], leaves, options).unwrap().into_iter().map(Option::unwrap).collect()
    }

    fn check_derivatives(&self) {
        let expect = &self.case["expect"];
        let (operands, leaves) = self.operands(true);
        let leaves: Vec<&Tensor> = leaves.into_iter().map(|i| &operands[i]).collect();
        if let Some(want) = expect["grads"].as_array() {
            let grads = self.gradients(&self.call(&operands).unwrap(), &leaves, false);
            assert_eq!(grads.len(), want.len(), "{}: number of gradients", self.what);
            for (i, (g, w)) in grads.iter().zip(want).enumerate() {
                let dtype = self.named("grad_dtype", leaves[i].dtype());
                assert_eq!((g.shape(), g.dtype()), (leaves[i].shape(), dtype), "{}", self.what);
                self.check(g, w, &format!("gradient {i}"));
            }
        }
        if let Some(want) = expect.get("second") {
            let at = |name: &str| self.case["second"][name].as_u64().unwrap() as usize;
            let first = self.gradients(&self.call(&operands).unwrap(), &[leaves[at("of")]], true).remove(0);
            let norm = first.mul(&first).unwrap().sum(.., false).unwrap();
            let second = autograd::grad(&[&norm], &[leaves[at("wrt")]], GradOptions::default()).unwrap()[0].clone().unwrap();
            self.check(&second, want, "second derivative");
        }
        if let Some(want) = expect.get("tangent") {
            let dtype = self.dtypes()[0];
            let tangents: Vec<Tensor> = self.case["tangents"].as_array().unwrap().iter().map(|t| self.expected(t, dtype)).collect();
            let x: Vec<Tensor> = leaves.iter().map(|x| x.detach()).collect();
            let (_, t) = autograd::jvp(|x| self.call(x), &x.iter().collect::<Vec<_>>(), &tangents.iter().collect::<Vec<_>>()).unwrap();
            self.check(&t, want, "tangent");
        }
    }

    fn check_all(&self) {
        if self.case["expect"].get("error").is_some() {
            return self.check_error();
        }
        let (operands, _) = self.operands(false);
        self.check_value(&self.call(&operands).unwrap_or_else(|e| panic!("{}: {e}", self.what)), &operands);
        self.check_derivatives();
        if self.case["expect"].get("property").is_some() {
            self.check_property();
        }
    }

    /// The sentence of a case that isn't a scenario, by id.
    fn check_property(&self) {
        let (operands, _) = self.operands(false);
        match id(self.case) {
            "M1.a" | "M1.b" | "M1.c" | "M1.d" => self.check_extra_memory(),
            // Memory full of NaN is freed just before each call.
            "N1.a" | "N1.b" => {
                let first = self.call(&operands).unwrap();
                let many = if has_reference_bits(&self.device) { 10_000 } else { 500 };
                for _ in 0..if id(self.case) == "N1.a" { many } else { 2 } {
                    drop(Tensor::full(first.shape(), f64::NAN, first.dtype(), &self.device).unwrap());
                    assert_same_bits(&self.call(&operands).unwrap(), &first, &self.what);
                }
            }
            // The processor's floating-point flags can't be read in safe code: the value alone is compared.
            "N4" => {}
            other => panic!("{other}: its property isn't spelled out here"),
        }
    }

    /// Nothing beside the result and 16 MiB while the product runs, on a device of the same kind.
    fn check_extra_memory(&self) {
        // tests/memory.rs asks it of other devices, in a process where nothing else is counted.
        if self.device != Device::cpu() {
            return;
        }
        let device = private_cpu();
        let operands: Vec<Tensor> = self.operands(false).0.iter().map(|x| x.to_device(&device).unwrap()).collect();
        reset_peak_memory_stats(&device);
        let before = memory_stats(&device).current_bytes;
        let out = self.call(&operands).unwrap();
        let extra = memory_stats(&device).peak_bytes - before;
        let out_bytes = (out.numel() * out.dtype().size_bytes()) as u64;
        assert!(extra <= out_bytes + (16 << 20), "{}: {extra} bytes beside operands, of which the result is {out_bytes}", self.what);
    }
}

/// Whether a case costs the reference's plain loops too long; its value is still compared with theirs on the CPU's side.
fn is_heavy(case: &Value) -> bool {
    matches!(id(case), "M1.a" | "M1.b" | "M1.c" | "M1.d" | "N1.b" | "W4")
}

#[test]
fn every_case_gives_the_right_result() {
    let mut seen = BTreeSet::new();
    for case in cases().iter().filter(|c| c["op"] != "scenario") {
        let start = std::time::Instant::now();
        let choices: Vec<Sizes> = match case.get("for").and_then(Value::as_object) {
            None => vec![Sizes::new()],
            Some(names) => {
                let (name, values) = names.iter().next().unwrap();
                values.as_array().unwrap().iter().map(|v| Sizes::from([(name.clone(), v.as_u64().unwrap() as usize)])).collect()
            }
        };
        for sizes in choices {
            for device in devices() {
                if device == Device::reference() && is_heavy(case) {
                    continue;
                }
                let what = format!("{} ({}) {sizes:?} on {device}", id(case), case["about"].as_str().unwrap());
                let run = Run { case, sizes: sizes.clone(), device, what };
                if run.can_run() {
                    run.check_all();
                    seen.insert(id(case).to_owned());
                }
            }
        }
        eprintln!("{}: {:?}", id(case), start.elapsed());
    }
    assert!(seen.len() > 60, "only {} cases", seen.len());
}

#[test]
fn every_scenario_is_a_test_or_says_why_not() {
    let cases = cases();
    assert_eq!(cases.len(), 109);
    let wanted: Vec<&str> = cases.iter().filter(|c| c["op"] == "scenario").map(id).collect();
    let known: Vec<&str> = scenarios::HERE.iter().map(|(id, _)| *id).chain(scenarios::ELSEWHERE.iter().map(|(id, _)| *id)).collect();
    for id in &wanted {
        assert_eq!(known.iter().filter(|k| k == &id).count(), 1, "{id} must stand in exactly one table");
    }
    for id in &known {
        assert!(wanted.contains(id), "{id} isn't a scenario of the file");
    }
}

#[test]
fn every_scenario_that_can_run_here_holds() {
    for (id, check) in scenarios::HERE {
        let start = std::time::Instant::now();
        check();
        eprintln!("{id}: {:?}", start.elapsed());
    }
}
