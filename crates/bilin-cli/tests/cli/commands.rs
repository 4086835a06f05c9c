//! `help`, `ops`, `devices`, `info`, `check`.

use bilin::io;
use bilin::prelude::*;
use serde_json::{Value, json};

use crate::program::Folder;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn help_names_every_command_and_option() {
    let folder = Folder::new();
    let all = folder.run(&["--help"]).ok();
    assert_eq!(folder.run(&["help"]).ok(), all);
    assert_eq!(folder.run(&["-h"]).ok(), all);
    for command in bilin_cli::commands::COMMANDS {
        assert!(all.contains(&format!("\n  {} ", command.name)), "{}", command.name);
        let one = folder.run(&["help", command.name]).ok();
        assert_eq!(folder.run(&[command.name, "--help"]).ok(), one);
        assert!(one.starts_with(&format!("usage: bilin {}", command.name)));
        for option in command.all_options() {
            assert!(one.contains(&format!("--{}", option.long)), "{} {}", command.name, option.long);
        }
    }
    assert_eq!(folder.run(&["--version"]).ok(), format!("bilin {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn ops_lists_the_registry() {
    let folder = Folder::new();
    let ops = parsed(&folder.run(&["ops", "--json"]).ok());
    let ops = ops["ops"].as_array().unwrap();
    assert_eq!(ops.len(), bilin::op_registry_all().len());
    let matmul = ops.iter().find(|o| o["name"] == "matmul").unwrap();
    assert_eq!((&matmul["version"], &matmul["amp_policy"], &matmul["deterministic"]), (&json!(1), &json!("Promote"), &json!(true)));
    let hash = format!("{:016x}", bilin::schema_hash(bilin::op_lookup("matmul").unwrap()));
    assert_eq!(matmul["hash"], json!(hash));
    let table = folder.run(&["ops"]).ok();
    assert_eq!(table.lines().count(), ops.len() + 1);
    let row: Vec<&str> = table.lines().find(|l| l.starts_with("matmul ")).unwrap().split_whitespace().collect();
    assert_eq!(row, ["matmul", "1", "2", "Promote", "yes", &hash]);
    let two = folder.run(&["ops", "einsum", "matmul"]).ok();
    assert_eq!(two.lines().skip(1).map(|l| l.split(' ').next().unwrap()).collect::<Vec<_>>(), ["einsum", "matmul"]);
    assert_eq!(folder.run(&["ops", "matmull"]).fails(2), "bilin: ops: no op 'matmull'; did you mean 'matmul'? try bilin --help");
}

#[test]
fn devices_are_listed_also_those_that_are_absent() {
    let folder = Folder::new();
    let devices = parsed(&folder.run(&["devices", "--json"]).ok());
    let devices = devices["devices"].as_array().unwrap();
    assert!(
        devices.iter().any(|d| d["name"] == "cpu" && d["absent"].is_null() && d["dtypes"].as_array().unwrap().contains(&json!("float32")))
    );
    let table = folder.run(&["devices"]).ok();
    for device in devices {
        assert!(table.contains(device["name"].as_str().unwrap()));
    }
}

#[test]
fn info_says_what_a_file_holds() {
    let folder = Folder::new();
    folder.put("a.npy", &[1f32, 2., 3.], &[3, 1]);
    assert_eq!(folder.run(&["info", "a.npy"]).ok(), "float32     (3, 1)  12 bytes\n");
    let a = folder.get("a.npy");
    let b = a.astype(DType::Bf16).unwrap();
    io::save(folder.path().join("two.safetensors"), &[("layer.0", &a), ("b\u{1b}", &b)]).unwrap();
    let text = folder.run(&["info", "two.safetensors"]).ok();
    assert!(text.contains("layer.0  ") && text.contains("bfloat16") && text.contains("b\\u{1b}"), "{text}");
    let one = parsed(&folder.run(&["info", "two.safetensors:layer.0", "--json"]).ok());
    assert_eq!(one["tensors"], json!([{ "name": "layer.0", "dtype": "float32", "shape": [3, 1], "bytes": 12 }]));
}

#[test]
fn check_compares_every_op_with_the_reference() {
    let folder = Folder::new();
    let run = folder.run(&["check"]);
    assert_eq!(run.status, 0, "{run:?}");
    assert_eq!(run.out.lines().count(), bilin::ops::entries().count());
    assert!(run.out.lines().all(|l| l.contains(" ok, ") && !l.contains(" 0 calls")), "{}", run.out);
    assert_eq!(run.err, "");
    assert!(folder.run(&["check", "abacus"]).fails(1).contains("abacus"));
}
