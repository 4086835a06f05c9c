//! Every op, sample, dtype and class of strides: both devices give the bits of the reference on contiguous operands, or one
//! typed error that names the op.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::ops::{OpEntry, Values};
use bilin::prelude::*;
use bilin::{Kind, op_call, op_lookup, op_registry_all, ops, schema_hash};
use conformance::compare::assert_same_bits;
use conformance::samples::{all, attribute_texts, call, operand_dtype, operands};
use conformance::strides::{Strides, repeated, with_strides};

fn devices() -> [Device; 2] {
    [Device::cpu(), Device::reference()]
}

fn assert_refused(entry: &OpEntry, error: &Error, what: &str) {
    assert!(matches!(error, Error::DtypeMismatch { .. } | Error::Unsupported { .. }), "{what}: {error}");
    assert!(error.to_string().starts_with(&format!("{}: ", entry.schema.name)), "{what}: the error names another op: {error}");
}

fn is_product(entry: &OpEntry) -> bool {
    matches!(entry.schema.name, "matmul" | "dot" | "inner" | "outer" | "tensordot" | "einsum" | "vecdot" | "matvec" | "vecmat")
}

#[test]
fn every_class_of_strides_gives_the_same_bits_on_every_device() {
    let mut calls = 0;
    for (entry, sample, seed) in all() {
        for dtype in DType::ALL {
            for text in attribute_texts(entry, sample, dtype) {
                let at = |device: &Device| operands(entry, sample, dtype, device, seed);
                let what = format!("{} {:?} '{text}' {dtype}", entry.schema.name, sample.shapes);
                let want = match call(entry, &at(&Device::reference()), &text) {
                    Ok(want) => want,
                    Err(error) => {
                        // Multiplication by i is defined for complex dtypes alone.
                        let always = if entry.schema.name == "times_i" { [DType::C64, DType::C128] } else { [DType::F32, DType::F64] };
                        assert!(!always.contains(&dtype) && !is_product(entry), "{what}: {error}");
                        assert_refused(entry, &error, &what);
                        for device in devices() {
                            let strided: Vec<Tensor> = at(&device).iter().map(|x| with_strides(x, Strides::Sliced)).collect();
                            assert_refused(entry, &call(entry, &strided, &text).unwrap_err(), &what);
                        }
                        continue;
                    }
                };
                for device in devices() {
                    let plain = at(&device);
                    for class in Strides::ALL {
                        // All operands alike, and each in another class.
                        for step in 0..2 {
                            let strided: Vec<Tensor> =
                                plain.iter().enumerate().map(|(i, x)| with_strides(x, class.after(i * step))).collect();
                            let got = call(entry, &strided, &text).unwrap();
                            assert_same_bits(&got, &want, &format!("{what} on {device}, {class:?} by {step}"));
                            calls += 1;
                            if plain.len() == 1 {
                                break;
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(calls > 10_000, "only {calls} calls");
}

#[test]
fn operands_of_stride_0_give_the_bits_of_their_copies() {
    let mut calls = 0;
    for (entry, sample, seed) in all() {
        for dtype in DType::ALL {
            let at = |device: &Device| operands(entry, sample, dtype, device, seed);
            if call(entry, &at(&Device::reference()), sample.attrs).is_err() {
                continue;
            }
            for device in devices() {
                let (plain, home) = (at(&device), at(&Device::reference()));
                for i in 0..plain.len() {
                    for (view, twin) in repeated(&plain[i]).into_iter().zip(repeated(&home[i])) {
                        let (mut strided, mut dense) = (plain.clone(), home.clone());
                        strided[i] = view;
                        dense[i] = twin.copy().unwrap();
                        let got = call(entry, &strided, sample.attrs).unwrap();
                        let want = call(entry, &dense, sample.attrs).unwrap();
                        let what = format!(
                            "{} {:?} {dtype} on {device}, operand {i} of strides {:?}",
                            entry.schema.name,
                            sample.shapes,
                            strided[i].strides()
                        );
                        assert_same_bits(&got, &want, &what);
                        calls += 1;
                    }
                }
            }
        }
    }
    assert!(calls > 3_000, "only {calls} calls");
}

#[test]
fn one_tensor_may_be_every_operand() {
    for (entry, sample, seed) in all() {
        let is_square = sample.shapes.len() > 1 && sample.shapes.windows(2).all(|w| w[0] == w[1]);
        if !is_square || matches!(entry.values, Values::Indexed | Values::Masked) {
            continue;
        }
        for device in devices() {
            let x = operands(entry, sample, DType::F32, &device, seed)[0].clone();
            let one = call(entry, &vec![x.clone(); sample.shapes.len()], sample.attrs).unwrap();
            let copies: Vec<Tensor> = sample.shapes.iter().map(|_| x.copy().unwrap()).collect();
            assert_same_bits(&one, &call(entry, &copies, sample.attrs).unwrap(), entry.schema.name);
        }
    }
}

#[test]
fn positions_of_every_integer_width_are_the_same_positions() {
    for (entry, sample, seed) in all().filter(|(e, ..)| e.values == Values::Indexed) {
        for device in devices() {
            let plain = operands(entry, sample, DType::F32, &device, seed);
            let want = call(entry, &plain, sample.attrs).unwrap();
            for dtype in DType::ALL.into_iter().filter(|d| d.kind() == Kind::Int) {
                let mut other = plain.clone();
                let last = other.len() - 1;
                other[last] = with_strides(&plain[last].astype(dtype).unwrap(), Strides::Sliced);
                assert_same_bits(&call(entry, &other, sample.attrs).unwrap(), &want, &format!("{} {dtype}", entry.schema.name));
            }
        }
    }
}

#[test]
fn dtypes_of_results_follow_the_rules() {
    for (entry, sample, seed) in all() {
        for dtype in DType::ALL {
            let plain = operands(entry, sample, dtype, &Device::cpu(), seed);
            let Ok(got) = call(entry, &plain, sample.attrs) else { continue };
            let is_inexact = dtype.is_differentiable();
            let want = match entry.schema.name {
                "eq" | "ne" | "lt" | "le" | "gt" | "ge" => DType::Bool,
                "argmax" | "argmin" => DType::I64,
                "sum" if !is_inexact => DType::I64,
                "real" | "imag" | "abs" => dtype.real(),
                "mean" | "div" | "exp" | "expm1" | "log" | "log1p" | "sqrt" | "sin" | "cos" | "tanh" | "sigmoid" | "floor" | "erf"
                | "erfc" | "gelu"
                    if !is_inexact =>
                {
                    DType::F64
                }
                "astype" => got.dtype(),
                _ => operand_dtype(entry, if entry.values == Values::Masked { 1 } else { 0 }, plain.len(), dtype),
            };
            assert_eq!(got.dtype(), want, "{} of {dtype}", entry.schema.name);
        }
    }
}

#[test]
fn the_registry_knows_each_op_once_and_by_name() {
    let all = op_registry_all();
    assert!(all.windows(2).all(|w| w[0].name < w[1].name), "names are sorted and unique");
    for entry in ops::entries() {
        assert_eq!(op_lookup(entry.schema.name), Some(entry.schema));
        assert!(!entry.samples.is_empty(), "{} has no sample", entry.schema.name);
        assert!(entry.schema.deterministic || !entry.schema.determinism_note.is_empty(), "{} doesn't say why", entry.schema.name);
    }
    let matmul = op_lookup("matmul").unwrap();
    assert_eq!((matmul.version, matmul.amp_policy, matmul.deterministic), (1, bilin::AmpPolicy::Promote, true));
    // FNV-1a-64 of "matmul", NUL, 1 in four bytes, policy 0, deterministic 1.
    let bytes = b"matmul\0\x01\0\0\0\0\x01";
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3));
    assert_eq!(schema_hash(matmul), hash);
    assert!(matches!(op_call("matmull", &[], ""), Err(Error::InvalidArgument { .. })));
}
