//! Values, gradients and second gradients computed by another library; in f32 on a device without f64.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bilin::autograd::{self, GradOptions};
use bilin::prelude::*;
use bilin::{dot, inner, matmul, matvec, outer, tensordot, vecdot, vecmat};
use conformance::compare::{assert_close, numbers};
use conformance::subject;
use serde_json::Value;

struct Vectors {
    cases: Vec<Value>,
    tensors: BTreeMap<String, Tensor>,
}

fn load() -> Vectors {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/torch_products.safetensors");
    // The list of cases stands in the metadata, which the reader leaves alone.
    let bytes = std::fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let cases: Vec<Value> = serde_json::from_str(header["__metadata__"]["cases"].as_str().unwrap()).unwrap();
    let raw = bilin::io::load(&path, &Device::reference()).unwrap();
    let tensors = raw.into_iter().map(|(name, t)| (name.unwrap(), t)).map(|(name, t)| {
        let t = if name.contains("/complex128/") { complex(&t) } else { t };
        (name, t)
    });
    Vectors { cases, tensors: tensors.collect() }
}

/// The last axis, of length 2, as real and imaginary part.
fn complex(t: &Tensor) -> Tensor {
    let (shape, parts) = (t.shape(), t.to_vec::<f64>().unwrap());
    let data: Vec<c128> = parts.chunks_exact(2).map(|p| c128::new(p[0], p[1])).collect();
    Tensor::from_vec(data, &shape[..shape.len() - 1], t.device()).unwrap()
}

/// The operator @: rank 1 allowed, nothing conjugated.
fn at(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    match (a.rank(), b.rank()) {
        (1, 1) => dot(a, b),
        (1, _) => {
            let y = a.unsqueeze(0)?.matmul(b)?;
            y.squeeze(&[-2])
        }
        (_, 1) => matvec(a, b),
        _ => matmul(a, b),
    }
}

fn scalar(v: &Value, like: &Tensor) -> Result<Tensor> {
    match (v, like.dtype()) {
        (Value::Array(z), _) => Tensor::scalar(c128::new(z[0].as_f64().unwrap(), z[1].as_f64().unwrap()), like.device()),
        (_, DType::C128) => Tensor::scalar(c128::new(v.as_f64().unwrap(), 0.0), like.device()),
        (_, DType::I64) => Tensor::scalar(v.as_i64().unwrap(), like.device()),
        _ => like.scalar_like(v.as_f64().unwrap()),
    }
}

fn is_zero(v: &Value) -> bool {
    match v {
        Value::Array(z) => z.iter().all(is_zero),
        _ => v.as_f64() == Some(0.0),
    }
}

/// beta·c + alpha·product; c isn't read for beta 0.
fn affine(args: &Value, c: &Tensor, product: &Tensor) -> Result<Tensor> {
    let scaled = product.mul(&scalar(&args["alpha"], product)?)?;
    if is_zero(&args["beta"]) { Ok(scaled) } else { c.mul(&scalar(&args["beta"], c)?)?.add(&scaled) }
}

fn axes(v: &Value) -> Axes {
    let list = |v: &Value| v.as_array().unwrap().iter().map(|i| i.as_i64().unwrap() as isize).collect::<Vec<_>>();
    match v.as_i64() {
        Some(count) => Axes::Count(count as isize),
        None => Axes::pairs(list(&v[0]), list(&v[1])),
    }
}

fn run(op: &str, args: &Value, x: &[Tensor]) -> Result<Tensor> {
    match op {
        "matmul" | "mm" | "bmm" => at(&x[0], &x[1]),
        "mv" | "matvec" => matvec(&x[0], &x[1]),
        "vecmat" => vecmat(&x[0], &x[1]),
        "dot" => dot(&x[0], &x[1]),
        // NumPy's vdot flattens.
        "vdot" => vecdot(&x[0].reshape([x[0].numel()])?, &x[1].reshape([x[1].numel()])?),
        "vecdot" => bilin::ops::vecdot_axis(&x[0], &x[1], args["axis"].as_i64().unwrap_or(-1) as isize),
        "inner" if x.iter().any(|t| t.rank() == 0) => tensordot(&x[0], &x[1], 0),
        "inner" => inner(&x[0], &x[1]),
        "outer" => outer(&x[0], &x[1]),
        "tensordot" => tensordot(&x[0], &x[1], axes(&args["axes"])),
        "einsum" => einsum(args["equation"].as_str().unwrap(), &x.iter().collect::<Vec<_>>()),
        "linear" => {
            let y = inner(&x[0], &x[1])?;
            if x.len() == 3 { y.add(&x[2]) } else { Ok(y) }
        }
        "multi_dot" => x[1..].iter().try_fold(x[0].clone(), |y, t| at(&y, t)),
        "addmm" | "baddbmm" => affine(args, &x[0], &matmul(&x[1], &x[2])?),
        "addmv" => affine(args, &x[0], &matvec(&x[1], &x[2])?),
        "addr" => affine(args, &x[0], &outer(&x[1], &x[2])?),
        "addbmm" => affine(args, &x[0], &tensordot(&x[1], &x[2], Axes::pairs([0, 2], [0, 1]))?),
        _ => panic!("no op named {op}"),
    }
}

fn square_norm(g: &Tensor) -> Result<Tensor> {
    let square = if g.dtype().is_complex() { g.conj()?.mul(g)?.real()? } else { g.mul(g)? };
    square.sum(.., false)
}

/// A case's tensor on the device, in f32 where the device has no f64: every operand is rounded once.
fn placed(t: &Tensor, device: &Device) -> Option<Tensor> {
    let narrow = if t.dtype().is_complex() { DType::C64 } else { DType::F32 };
    let dtype = [t.dtype(), narrow].into_iter().find(|d| device.backend().has_dtype(*d))?;
    Some(t.astype(dtype).unwrap().to_device(device).unwrap())
}

#[test]
fn products_and_their_gradients_of_two_orders_equal_the_vectors() {
    let vectors = load();
    assert_eq!(vectors.cases.len(), 252);
    for device in subject::devices() {
        let (mut ops, mut lacking) = (BTreeSet::new(), 0);
        for case in &vectors.cases {
            match check_case(&vectors, case, &device) {
                true => drop(ops.insert(case["op"].as_str().unwrap())),
                false => lacking += 1,
            }
        }
        assert_eq!(ops.len(), 20, "{ops:?}");
        let complex = vectors.cases.iter().filter(|c| c["dtype"] == "complex128").count();
        assert_eq!(lacking, if device.backend().has_dtype(DType::C64) { 0 } else { complex }, "cases in dtypes that {device} lacks");
    }
}

/// False where the device lacks the case's dtype.
fn check_case(vectors: &Vectors, case: &Value, device: &Device) -> bool {
    let (key, op, args) = (case["key"].as_str().unwrap(), case["op"].as_str().unwrap(), &case["args"]);
    let want = |name: &str| vectors.tensors.get(&format!("{key}/{name}"));
    let n = case["n"].as_u64().unwrap() as usize;
    let Some(x) = (0..n).map(|i| placed(want(&format!("in{i}")).unwrap(), device)).collect::<Option<Vec<Tensor>>>() else { return false };
    // The bounds are c·u·K·max(|A|·|B|) with c = 4 and the u of f64, and hold the roundings of operands too: each sum of K terms has
    // fewer than K roundings of its own, each term one or two of its factors.
    let units = x[0].dtype().unit_roundoff() / DType::F64.unit_roundoff();
    let bound = |name: &str| case["tol"].get(name).and_then(Value::as_f64).unwrap_or(0.0) * units;
    let ct = want("ct").map(|ct| placed(ct, device).unwrap());
    let x: Vec<Tensor> = x.into_iter().map(|t| t.requires_grad_(ct.is_some()).unwrap()).collect();
    let out = run(op, args, &x).unwrap_or_else(|e| panic!("{key}: {e}"));
    let check = |name: &str, got: &Tensor| match want(name) {
        Some(w) => {
            assert_eq!(got.shape(), w.shape(), "{key} {name} on {device}");
            assert_close(got, &numbers(w), |_| bound(name), &format!("{key} {name} on {device}"));
        }
        // An absent gradient is zero.
        None => assert!(numbers(got).iter().all(|z| *z == c128::new(0.0, 0.0)), "{key} {name} on {device} isn't zero"),
    };
    assert!(want("out").is_some(), "{key}");
    check("out", &out);
    let Some(ct) = ct else { return true };
    let leaves: Vec<&Tensor> = x.iter().collect();
    let options = GradOptions { grad_outputs: vec![Some(ct)], create_graph: true, allow_unused: true, ..Default::default() };
    let grads = autograd::grad(&[&out], &leaves, options).unwrap();
    let zero = |t: &Tensor| t.zeros_like().unwrap();
    for (i, g) in grads.iter().enumerate() {
        check(&format!("g{i}"), &g.clone().unwrap_or_else(|| zero(&x[i])));
    }
    let norms: Vec<Tensor> = grads.iter().flatten().map(|g| square_norm(g).unwrap()).collect();
    let total = norms[1..].iter().fold(norms[0].clone(), |sum, t| sum.add(t).unwrap());
    let second = if total.requires_grad() {
        autograd::grad(&[&total], &leaves, GradOptions { allow_unused: true, ..Default::default() }).unwrap()
    } else {
        vec![None; n]
    };
    for (i, g) in second.into_iter().enumerate() {
        check(&format!("gg{i}"), &g.unwrap_or_else(|| zero(&x[i])));
    }
    true
}
