//! The table of ops in the documentation is the registry's, hashes included: a schema that changes without a new version is
//! found here. `UPDATE=1 cargo test -p conformance --test schemas` writes the table anew, if every op that changed has one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::fmt::Write;
use std::path::Path;

use bilin::{AmpPolicy, Arity, OpSchema, op_lookup, op_register, op_registry_all, schema_hash};

static MINE: OpSchema = OpSchema::schema_v1("all_reduce_of_a_test", AmpPolicy::KeepInput, Arity::Exact(1));

fn table() -> String {
    let mut out = String::from("# Ops\nEvery op of the registry. The hash is FNV-1a-64 over name, version, policy and determinism.\n\n");
    out += "| op | version | operands | autocast | deterministic | hash |\n|---|---|---|---|---|---|\n";
    // Another test of this process adds an op of its own.
    for s in op_registry_all().into_iter().filter(|s| s.name != MINE.name) {
        let operands = match s.arity {
            Arity::Exact(n) => n.to_string(),
            Arity::AtLeast(n) => format!("{n} or more"),
        };
        let deterministic = if s.deterministic { "yes" } else { s.determinism_note };
        writeln!(out, "| `{}` | {} | {operands} | {:?} | {deterministic} | `{:016x}` |", s.name, s.version, s.amp_policy, schema_hash(s))
            .unwrap();
    }
    out
}

/// Ops whose row changed, but not its version.
fn changed_without_a_version(before: &str, now: &str) -> Vec<String> {
    let rows = |table: &str| -> Vec<[String; 3]> {
        let cells = |l: &str| l.splitn(4, '|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        table
            .lines()
            .filter(|l| l.starts_with("| `"))
            .map(|l| <[String; 4]>::try_from(cells(l)).unwrap())
            .map(|[_, a, b, c]| [a, b, c])
            .collect()
    };
    let before = rows(before);
    let is_old = |[name, version, rest]: &[String; 3]| before.iter().any(|[n, v, r]| n == name && v == version && r != rest);
    rows(now).into_iter().filter(is_old).map(|[name, ..]| name).collect()
}

#[test]
fn a_change_needs_a_version() {
    let now = table();
    let row = now.lines().find(|l| l.starts_with("| `matmul` ")).unwrap();
    for (old, new) in [("Promote", "KeepInput"), ("| 2 |", "| 3 |"), ("| yes |", "| on some devices |"), ("`028", "`128")] {
        assert!(row.contains(old), "{row}");
        let changed = now.replace(row, &row.replace(old, new));
        assert_eq!(changed_without_a_version(&now, &changed), ["`matmul`"], "{old} to {new}");
        assert!(changed_without_a_version(&now, &changed.replace("| `matmul` | 1 |", "| `matmul` | 2 |")).is_empty());
    }
    assert!(changed_without_a_version(&now, &now.replace(row, "")).is_empty() && changed_without_a_version("", &now).is_empty());
}

#[test]
fn the_documented_table_is_the_registrys() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/ops.md");
    let (table, mut documented) = (table(), std::fs::read_to_string(&path).unwrap());
    let unversioned = changed_without_a_version(&documented, &table);
    assert!(unversioned.is_empty(), "changed since docs/ops.md was written, without a new version: {unversioned:?}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &table).unwrap();
        documented.clone_from(&table);
    }
    for (want, got) in documented.lines().zip(table.lines()) {
        assert_eq!(want, got, "docs/ops.md differs from the registry; a changed schema needs a new version");
    }
    assert_eq!(documented.lines().count(), table.lines().count());
}

#[test]
fn matmul_is_as_promised_and_names_are_unique() {
    let matmul = op_lookup("matmul").unwrap();
    assert_eq!((matmul.name, matmul.version, matmul.amp_policy, matmul.deterministic), ("matmul", 1, AmpPolicy::Promote, true));
    // FNV-1a-64 by hand over "matmul\0", 1 as four bytes little-endian, 0, 1.
    let bytes = b"matmul\0\x01\x00\x00\x00\x00\x01";
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    assert_eq!(schema_hash(matmul), hash);
    let names: Vec<_> = op_registry_all().iter().map(|s| s.name).collect();
    assert!(names.windows(2).all(|w| w[0] < w[1]), "{names:?}");
    assert!(op_register(matmul).unwrap_err().to_string().contains("matmul"));
    op_register(&MINE).unwrap();
    assert!(op_register(&MINE).is_err());
    assert_eq!(op_lookup("all_reduce_of_a_test"), Some(&MINE));
}
