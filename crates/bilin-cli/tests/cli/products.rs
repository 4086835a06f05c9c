//! Each product against numbers worked out by hand.

use std::fs;

use bilin::prelude::*;
use bilin::{c64, io};

use crate::program::Folder;

fn operands() -> Folder {
    let folder = Folder::new();
    folder.put("a.npy", &[1f32, 2., 3., 4., 5., 6.], &[2, 3]);
    folder.put("b.npy", &[7f32, 8., 9., 10., 11., 12.], &[3, 2]);
    folder.put("u.npy", &[1f32, 2., 3.], &[3]);
    folder.put("v.npy", &[4f32, 5., 6.], &[3]);
    folder
}

#[test]
fn products_of_two_files() {
    let folder = operands();
    let cases: &[(&[&str], &[usize], &[f32])] = &[
        (&["matmul", "a.npy", "b.npy"], &[2, 2], &[58., 64., 139., 154.]),
        (&["dot", "u.npy", "v.npy"], &[], &[32.]),
        (&["dot", "a.npy", "b.npy"], &[2, 2], &[58., 64., 139., 154.]),
        (&["inner", "a.npy", "u.npy"], &[2], &[14., 32.]),
        (&["outer", "u.npy", "v.npy"], &[3, 3], &[4., 5., 6., 8., 10., 12., 12., 15., 18.]),
        (&["vecdot", "a.npy", "u.npy"], &[2], &[14., 32.]),
        (&["matvec", "a.npy", "u.npy"], &[2], &[14., 32.]),
        (&["vecmat", "u.npy", "b.npy"], &[2], &[58., 64.]),
        (&["tensordot", "a.npy", "b.npy", "--axes", "1"], &[2, 2], &[58., 64., 139., 154.]),
        (&["tensordot", "a.npy", "b.npy", "--axes=1,0:0,1"], &[], &[212.]),
        (&["tensordot", "--axes", "-1:-2", "a.npy", "b.npy"], &[2, 2], &[58., 64., 139., 154.]),
        (&["tensordot", "a.npy", "a.npy"], &[], &[91.]),
        (&["einsum", "ij,jk->ki", "a.npy", "b.npy"], &[2, 2], &[58., 139., 64., 154.]),
        (&["einsum", "ij->j", "a.npy"], &[3], &[5., 7., 9.]),
        (&["einsum", "ij,j,j->i", "a.npy", "u.npy", "v.npy"], &[2], &[4. + 20. + 54., 16. + 50. + 108.]),
    ];
    for (arguments, shape, want) in cases {
        let arguments = [arguments, ["-o", "c.npy"].as_slice()].concat();
        assert_eq!(folder.run(&arguments).ok(), "");
        assert_eq!(folder.numbers::<f32>("c.npy"), (shape.to_vec(), want.to_vec()), "{arguments:?}");
        fs::remove_file(folder.path().join("c.npy")).unwrap();
    }
}

#[test]
fn complex_vectors_are_conjugated_where_numpy_does() {
    let folder = Folder::new();
    folder.put("z.npy", &[c64::new(1., 2.), c64::new(0., -1.)], &[2]);
    folder.run(&["vecdot", "z.npy", "z.npy", "-o", "c.npy"]).ok();
    assert_eq!(folder.numbers::<c64>("c.npy").1, [c64::new(6., 0.)]);
    folder.run(&["dot", "z.npy", "z.npy", "-o", "c.npy"]).ok();
    assert_eq!(folder.numbers::<c64>("c.npy").1, [c64::new(-4., 4.)]);
}

#[test]
fn the_result_is_printed_and_the_summary_stands_on_stderr() {
    let folder = operands();
    let run = folder.run(&["matmul", "a.npy", "b.npy"]);
    assert_eq!(run.out, "[[ 58.  64.]\n [139. 154.]]\n");
    assert!(run.err.starts_with("matmul: (2, 2) float32 on cpu, "), "{}", run.err);
    assert!(run.err.contains("GFLOP/s"));
    assert_eq!(run.err.lines().count(), 1);
}

/// A `.npy` file made by hand.
fn npy(descr: &str, fortran: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(elements);
    bytes
}

#[test]
fn fortran_order_and_big_endian_files_are_read() {
    let folder = operands();
    // Columns of [[1, 2, 3], [4, 5, 6]].
    let elements: Vec<u8> = [1f32, 4., 2., 5., 3., 6.].iter().flat_map(|x| x.to_be_bytes()).collect();
    fs::write(folder.path().join("f.npy"), npy(">f4", "True", "(2, 3)", &elements)).unwrap();
    folder.run(&["matmul", "f.npy", "b.npy", "-o", "c.npy"]).ok();
    assert_eq!(folder.numbers::<f32>("c.npy").1, [58., 64., 139., 154.]);
}

#[test]
fn one_tensor_of_several_is_picked_by_name() {
    let folder = operands();
    let (a, b) = (folder.get("a.npy"), folder.get("b.npy"));
    for file in ["both.npz", "both.safetensors"] {
        io::save(folder.path().join(file), &[("a", &a), ("b", &b)]).unwrap();
        let (lhs, rhs) = (format!("{file}:a"), format!("{file}:b"));
        folder.run(&["matmul", &lhs, &rhs, "-o", "c.npz"]).ok();
        assert_eq!(folder.numbers::<f32>("c.npz:out").1, [58., 64., 139., 154.]);
        let error = folder.run(&["matmul", file, "b.npy"]).fails(1);
        assert!(error.contains("holds 2 tensors") && error.contains("a, b"), "{error}");
        assert!(folder.run(&["matmul", &format!("{file}:c"), "b.npy"]).fails(1).contains("'c'"));
    }
}

#[test]
fn dtypes_are_converted_widened_and_cast() {
    let folder = operands();
    folder.put("i.npy", &[100i8, 100], &[2]);
    folder.run(&["dot", "i.npy", "i.npy", "--out-dtype", "i32", "-o", "c.npy"]).ok();
    assert_eq!(folder.numbers::<i32>("c.npy").1, [20_000]);
    folder.run(&["dot", "i.npy", "i.npy", "--dtype", "float64", "-o", "c.npy"]).ok();
    assert_eq!(folder.numbers::<f64>("c.npy").1, [20_000.]);
    folder.run(&["matmul", "a.npy", "b.npy", "--autocast", "bf16", "-o", "c.safetensors"]).ok();
    let c = folder.get("c.safetensors");
    assert_eq!(c.dtype(), DType::Bf16);
    assert_eq!(c.astype(DType::F32).unwrap().to_vec::<f32>().unwrap(), [58., 64., 139., 154.]);
    for mode in ["ieee", "tf32", "bf16x3"] {
        folder.run(&["matmul", "a.npy", "b.npy", "--precision", mode, "--device", "reference", "--threads", "2", "-o", "c.npy"]).ok();
    }
}

#[test]
fn json_is_one_object_with_the_measurements() {
    let folder = operands();
    let out = folder.run(&["matmul", "a.npy", "b.npy", "--json"]).ok();
    assert_eq!(out.lines().count(), 1);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["shape"], serde_json::json!([2, 2]));
    assert_eq!(report["dtype"], "float32");
    assert_eq!(report["device"], "cpu");
    assert_eq!(report["flops"], 2 * 2 * 2 * 3);
    assert_eq!(report["bytes"], 4 * (6 + 6 + 4));
    assert!(report["peak_bytes"].as_u64().unwrap() >= 64);
    assert!(report["seconds"].as_f64().unwrap() > 0.0);
    let flops = |arguments: &[&str]| -> u64 {
        let out = folder.run(&[arguments, &["--json"]].concat()).ok();
        serde_json::from_str::<serde_json::Value>(&out).unwrap()["flops"].as_u64().unwrap()
    };
    folder.put("z.npy", &[c64::new(1., 2.), c64::new(0., -1.)], &[2]);
    assert_eq!(flops(&["outer", "u.npy", "v.npy"]), 18);
    assert_eq!(flops(&["dot", "z.npy", "z.npy"]), 16);
    assert_eq!(flops(&["einsum", "i,i->", "z.npy", "z.npy"]), 16);
    assert_eq!(flops(&["einsum", "ij,jk->ik", "a.npy", "b.npy"]), 24);
    assert_eq!(flops(&["tensordot", "a.npy", "b.npy", "--axes", "1,0:0,1"]), 12);
    assert_eq!(flops(&["tensordot", "a.npy", "a.npy", "--axes", "2"]), 12);
    assert_eq!(flops(&["tensordot", "a.npy", "a.npy", "--axes", "0"]), 72);
}

#[test]
fn empty_axes_are_products_too() {
    let folder = Folder::new();
    folder.put::<f32>("a.npy", &[], &[2, 0]);
    folder.put::<f32>("b.npy", &[], &[0, 3]);
    folder.run(&["matmul", "a.npy", "b.npy", "--grad", "ones", "--grad-out", ".", "-o", "c.npy"]).ok();
    assert_eq!(folder.numbers::<f32>("c.npy"), (vec![2, 3], vec![0.; 6]));
    assert_eq!(folder.numbers::<f32>("grad1.npy"), (vec![0, 3], vec![]));
}
