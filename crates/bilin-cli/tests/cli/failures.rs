//! What is refused: the status, the one line, and that nothing is left behind.

use std::fs;
use std::process::Stdio;

use crate::program::Folder;

fn operands() -> Folder {
    let folder = Folder::new();
    folder.put("a.npy", &[1f32, 2., 3., 4., 5., 6.], &[2, 3]);
    folder.put("d.npy", &[1f64, 2., 3.], &[3]);
    folder
}

#[test]
fn shapes_that_do_not_fit() {
    let folder = operands();
    let error = folder.run(&["matmul", "a.npy", "a.npy", "-o", "c.npy"]).fails(1);
    assert_eq!(
        error,
        "bilin: matmul: shapes (2, 3) and (2, 3) don't fit: axis 1 of operand 0 has length 3, axis 0 of operand 1 has length 2; \
         K of lhs and rhs must be equal; transpose with mt() or reshape"
    );
    assert_eq!(folder.names(), ["a.npy", "d.npy"]);
    let error = folder.run(&["matvec", "a.npy", "d.npy"]).fails(1);
    assert_eq!(error, "bilin: matvec: dtypes (float32, float64) don't fit; convert one operand with --dtype");
    assert!(folder.run(&["einsum", "ij,j", "a.npy", "a.npy"]).fails(1).starts_with("bilin: einsum: "));
    assert!(folder.run(&["tensordot", "a.npy", "a.npy", "--axes", "-1"]).fails(1).starts_with("bilin: tensordot: axes is -1"));
}

#[test]
fn files_that_cannot_be_read() {
    let folder = operands();
    let error = folder.run(&["matmul", "a.npy", "missing.npy"]).fails(1);
    assert!(error.starts_with("bilin: load: missing.npy: "), "{error}");
    assert!(folder.run(&["info", "a.txt"]).fails(1).contains(".npy, .npz or .safetensors"));
    let whole = fs::read(folder.path().join("a.npy")).unwrap();
    for len in [0, 5, 9, 60, whole.len() - 1] {
        fs::write(folder.path().join("cut.npy"), &whole[..len]).unwrap();
        let error = folder.run(&["inner", "a.npy", "cut.npy", "-o", "c.npy"]).fails(1);
        assert!(error.starts_with("bilin: load: cut.npy: "), "{error}");
    }
    fs::write(folder.path().join("a\nb.npy"), b"x").unwrap();
    assert!(folder.run(&["info", "a\nb.npy"]).fails(1).contains("a\\nb.npy"));
    assert!(!folder.names().contains(&"c.npy".to_owned()));
}

#[test]
fn nothing_is_written_when_a_later_part_fails() {
    let folder = operands();
    folder.put("short.npy", &[1f32], &[1]);
    folder.put("old.npy", &[9f32], &[1]);
    let before = folder.names();
    // The product succeeds; the cotangent has another shape.
    let error = folder.run(&["inner", "a.npy", "a.npy", "-o", "old.npy", "--grad", "short.npy", "--grad-out", "g"]).fails(1);
    assert!(error.contains("(1,)") && error.contains("(2, 2)"), "{error}");
    // A missing vector, and one of another shape.
    folder.run(&["inner", "a.npy", "a.npy", "-o", "c.npy", "--hvp", "."]).fails(1);
    assert_eq!(folder.names(), before);
    folder.put("h/v0.npy", &[1f32], &[1]);
    folder.put("h/v1.npy", &[1f32], &[1]);
    let error = folder.run(&["inner", "a.npy", "a.npy", "-o", "c.npy", "--hvp", "h"]).fails(1);
    assert!(error.starts_with("bilin: hvp: "), "{error}");
    // bfloat16 has no place in .npy.
    let error = folder
        .run(&["inner", "a.npy", "a.npy", "--autocast", "f16", "--dtype", "bf16", "-o", "c.npy", "--grad", "ones", "--grad-out", "g"])
        .fails(1);
    assert!(error.contains("bfloat16") && error.contains("safetensors"), "{error}");
    let error = folder.run(&["inner", "a.npy", "a.npy", "-o", "c.txt"]).fails(1);
    assert!(error.contains("c.txt"), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before.len() + 1);
    assert_eq!(folder.numbers::<f32>("old.npy").1, [9.]);
}

#[test]
fn a_folder_that_cannot_be_written_to() {
    let folder = operands();
    let error = folder.run(&["inner", "a.npy", "a.npy", "-o", "no/such/c.npy"]).fails(1);
    assert!(error.starts_with("bilin: save: no/such/c.npy: "), "{error}");
    let error = folder.run(&["inner", "a.npy", "a.npy", "--grad", "ones", "--grad-out", "a.npy/g"]).fails(1);
    assert!(error.starts_with("bilin: save: a.npy/g: "), "{error}");
}

#[test]
fn wrong_usage_names_what_is_wrong() {
    let folder = operands();
    let cases: &[(&[&str], &str)] = &[
        (&[], "bilin: no command; try bilin --help"),
        (&["matmull", "a.npy"], "bilin: unknown command 'matmull'; did you mean 'matmul'? try bilin --help"),
        (&["fourier"], "bilin: unknown command 'fourier'; try bilin --help"),
        (&["help", "benhc"], "bilin: unknown command 'benhc'; did you mean 'bench'? try bilin --help"),
        (&["--verison"], "bilin: unknown option '--verison' before a command; did you mean '--version'? try bilin --help"),
        (
            &["matmul", "a.npy", "a.npy", "--dtyp", "f32"],
            "bilin: matmul: unknown option '--dtyp'; did you mean '--dtype'? try bilin --help",
        ),
        (&["matmul", "-x"], "bilin: matmul: unknown option '-x'; try bilin --help"),
        (&["ops", "--grad", "ones"], "bilin: ops: unknown option '--grad'; try bilin --help"),
        (&["matmul", "a.npy"], "bilin: matmul: takes two files, got 1; try bilin --help"),
        (&["einsum", "ij"], "bilin: einsum: takes subscripts and at least one file, got 1; try bilin --help"),
        (&["matmul", "a.npy", "a.npy", "-o"], "bilin: matmul: --out needs a value, FILE; try bilin --help"),
        (&["matmul", "a.npy", "a.npy", "--json=1"], "bilin: matmul: --json takes no value; try bilin --help"),
        (&["matmul", "a.npy", "a.npy", "--axes", "1"], "bilin: matmul: unknown option '--axes'; try bilin --help"),
        (&["matmul", "a.npy", "a.npy", "--threads", "0"], "bilin: matmul: --threads is '0'; want a number from 1; try bilin --help"),
        (&["matmul", "a.npy", "a.npy", "--grad", "ones"], "bilin: matmul: --grad needs --grad-out DIR; try bilin --help"),
        (&["matmul", "a.npy", "a.npy", "--grad-out", "g"], "bilin: matmul: --grad-out needs --grad ones or --grad G.npy; try bilin --help"),
        (
            &["matmul", "a.npy", "a.npy", "--precision", "f8"],
            "bilin: matmul: --precision is 'f8'; want ieee, tf32 or bf16x3; try bilin --help",
        ),
        (&["matmul", "a.npy", "a.npy", "--autocast", "i8"], "bilin: matmul: --autocast is 'i8'; want bf16, f16 or f32; try bilin --help"),
    ];
    for (arguments, want) in cases {
        assert_eq!(&folder.run(arguments).fails(2), want);
    }
    // A place that can't be written leaves the others alone.
    let before = folder.names();
    assert!(folder.run(&["vecdot", "a.npy", "a.npy", "-o", "c.npy", "--profile", "no/t.json"]).fails(1).contains("no/t.json"));
    assert_eq!(folder.names(), before);
    assert!(folder.run(&["matmul", "a.npy", "a.npy", "--dtype", "f33"]).fails(2).contains("--dtype is 'f33'; want bool, uint8"));
    assert!(folder.run(&["tensordot", "a.npy", "a.npy", "--axes", "1:x"]).fails(2).contains("--axes is '1:x'"));
    // The device's own error; other builds have other devices.
    assert!(folder.run(&["matmul", "a.npy", "a.npy", "--device", "abacus"]).fails(1).contains("abacus"));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let folder = operands();
    let mut child = folder.command(&["ops"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure() {
    let folder = operands();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = folder.command(&["ops"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.starts_with(b"bilin: stdout: "));
}
