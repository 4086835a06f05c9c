//! Every op, sample, dtype and class of strides: each device gives what the reference gives on contiguous operands, or one typed
//! error that names the op.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use bilin::ops::{OpEntry, Values};
use bilin::prelude::*;
use bilin::{Kind, op_call, op_lookup, op_registry_all, ops, schema_hash};
use conformance::compare::{assert_near, assert_reference, assert_same_bits};
use conformance::samples::{all, attribute_texts, call, operand_dtype, operands};
use conformance::strides::{Strides, repeated, with_strides};
use conformance::subject::{device, devices, few, has_order_of_tiles, has_reference_bits, having};

fn assert_refused(entry: &OpEntry, error: &Error, what: &str) {
    assert!(matches!(error, Error::DtypeMismatch { .. } | Error::Unsupported { .. }), "{what}: {error}");
    assert!(error.to_string().starts_with(&format!("{}: ", entry.schema.name)), "{what}: the error names another op: {error}");
}

/// Fails where the device has the dtypes of operands and result, or where what it lacks isn't said by op, dtype and backend.
fn assert_unsupported(entry: &OpEntry, device: &Device, home: &[Tensor], text: &str, what: &str) {
    let there = home.iter().map(|x| x.to_device(device)).collect::<Result<Vec<_>>>();
    let error = there.and_then(|x| call(entry, &x, text)).err().unwrap_or_else(|| panic!("{what}: not refused"));
    let Error::Unsupported { op, dtype, backend, .. } = &error else { panic!("{what}: {error}") };
    assert!(!op.is_empty() && !device.backend().has_dtype(*dtype) && backend == device.backend().name(), "{what}: {error}");
    assert!(error.to_string().starts_with(&format!("{op}: {dtype} isn't supported by {backend}")), "{what}: {error}");
}

fn is_product(entry: &OpEntry) -> bool {
    matches!(entry.schema.name, "matmul" | "dot" | "inner" | "outer" | "tensordot" | "einsum" | "vecdot" | "matvec" | "vecmat")
}

#[test]
fn every_class_of_strides_gives_the_same_bits_on_every_device() {
    let (mut calls, mut refused) = (0, 0);
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
                        for device in devices().into_iter().filter(|d| d.backend().has_dtype(dtype)) {
                            let strided: Vec<Tensor> = at(&device).iter().map(|x| with_strides(x, Strides::Sliced)).collect();
                            assert_refused(entry, &call(entry, &strided, &text).unwrap_err(), &what);
                        }
                        continue;
                    }
                };
                for device in devices() {
                    let home = at(&Device::reference());
                    if home.iter().chain([&want]).any(|x| !device.backend().has_dtype(x.dtype())) {
                        assert_unsupported(entry, &device, &home, &text, &what);
                        refused += 1;
                        continue;
                    }
                    let plain = at(&device);
                    let own = call(entry, &plain, &text).unwrap();
                    let most_terms = home.iter().map(Tensor::numel).max().unwrap_or(0);
                    let is_of_tiles = is_product(entry) && dtype == DType::Bf16 && has_order_of_tiles(&device, most_terms);
                    let compare = if is_of_tiles { assert_near } else { assert_reference };
                    compare(&own, &want, &home, &format!("{what} on {device}"));
                    // On a device where every call is waited for, all classes of one dtype.
                    let classes: &[Strides] = if dtype == DType::F32 { &Strides::ALL } else { few(&Strides::ALL) };
                    for &class in classes {
                        // All operands alike, and each in another class.
                        for &step in few(&[0, 1]) {
                            let strided: Vec<Tensor> =
                                plain.iter().enumerate().map(|(i, x)| with_strides(x, class.after(i * step))).collect();
                            let got = call(entry, &strided, &text).unwrap();
                            let what = format!("{what} on {device}, {class:?} by {step}");
                            if has_reference_bits(&device) {
                                assert_same_bits(&got, &own, &what)
                            } else {
                                assert_reference(&got, &want, &home, &what)
                            }
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
    assert!(calls > 1_500, "only {calls} calls");
    assert_eq!(refused > 0, having(DType::ALL).len() < DType::ALL.len(), "{refused} refused");
}

#[test]
fn operands_of_stride_0_give_the_bits_of_their_copies() {
    let mut calls = 0;
    for (entry, sample, seed) in all() {
        for dtype in having(DType::ALL) {
            let at = |device: &Device| operands(entry, sample, dtype, device, seed);
            let Ok(out) = call(entry, &at(&Device::reference()), sample.attrs) else { continue };
            for device in devices().into_iter().filter(|d| d.backend().has_dtype(out.dtype())) {
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
                        assert_reference(&got, &want, &dense, &what);
                        calls += 1;
                    }
                }
            }
        }
    }
    assert!(calls > 1_000, "only {calls} calls");
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
            for dtype in having(DType::ALL).into_iter().filter(|d| d.kind() == Kind::Int) {
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
        for dtype in having(DType::ALL) {
            let plain = operands(entry, sample, dtype, &device(), seed);
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
