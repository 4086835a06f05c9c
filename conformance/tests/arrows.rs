//! Imports go only down, unsafe code stands in few rooms, names say something, files are short.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use conformance::source::{code_of, files, module_of, re_exports, read, root_names, tokens};

/// Rooms of the core from the bottom up.
const ROOMS: [&str; 8] = ["shape", "einsum", "exec", "schema", "tape", "ops", "api", "autograd"];
/// Crates from the bottom up; the last two are for development.
const CRATES: [&str; 9] =
    ["bilin-core", "bilin-cpu", "bilin-gpu", "bilin-cuda", "bilin", "bilin-cli", "bilin-py", "conformance", "benches"];
/// Where unsafe code may stand.
const UNSAFE: [&str; 7] = [
    "crates/bilin-cpu/src/arch/",
    "crates/bilin-cpu/src/contract/disjoint.rs",
    "crates/bilin-cpu/src/alloc.rs",
    "crates/bilin-gpu/src/layer/trusted.rs",
    "crates/bilin-py/src/memory.rs",
    "benches/src/peers.rs",
    "benches/src/roof.rs",
];
const LONGEST: usize = 700;

fn sources() -> Vec<PathBuf> {
    files().into_iter().filter(|f| f.extension().is_some_and(|e| e == "rs")).collect()
}

fn height(room: &str) -> Option<usize> {
    ROOMS.iter().position(|r| *r == room)
}

/// Paths of a file of the core that lead up, as (from, to).
fn upward(code: &str, relative: &Path, exports: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let module = module_of(relative);
    let Some(from) = module.first().and_then(|m| height(m)) else { return Vec::new() };
    let mut out = Vec::new();
    for name in root_names(code, &module) {
        // A name that is both a room and a function, such as einsum, is taken for the room.
        let room = if height(&name).is_some() { name } else { exports.get(&name).cloned().unwrap_or(name) };
        match height(&room) {
            Some(to) if to <= from => {}
            _ => out.push((ROOMS[from].to_owned(), room)),
        }
    }
    out
}

#[test]
fn the_parser_sees_paths_and_nothing_else() {
    let code = code_of(
        "// use crate::api::A;\n/* crate::api /* nested */ */ let s = \"crate::api\"; let c = '\"'; /// crate::api\nlet r = r#\"crate::api \" \"#; let l: &'a str;",
    );
    assert_eq!(root_names(&code, &["ops".into()]), [""; 0]);
    assert!(code.contains("let c") && code.contains("let r") && code.contains("&'a str"), "{code}");
    let module = ["ops".to_owned(), "einsum".to_owned()];
    let names = |text: &str| root_names(&code_of(text), &module);
    assert_eq!(names("use crate::exec::call::Conj;"), ["exec"]);
    assert_eq!(names("use crate::{api::{Rng, self}, tape::Tensor, Error};"), ["api", "tape", "Error"]);
    assert_eq!(names("fn f() -> crate::shape::error::Result<()> { crate :: shape_text(x) }"), ["shape", "shape_text"]);
    assert_eq!(names("use super::matmul; use super::super::api::Rng; super::super::super::x;"), ["api", "x"]);
    assert_eq!(names("mycrate::api::f(); my::crate_::x"), [""; 0]);
    assert_eq!(module_of(Path::new("exec/host/mod.rs")), ["exec", "host"]);
    assert_eq!(module_of(Path::new("lib.rs")), [""; 0]);
    let exports = re_exports("pub use api::Rng; pub use ops::{Axes, dot as d, x::Y}; use tape::T;");
    let flat: Vec<(&str, &str)> = exports.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(flat, [("Rng", "api"), ("Axes", "ops"), ("d", "ops"), ("Y", "ops")]);
}

#[test]
fn an_arrow_that_leads_up_is_found() {
    let exports = BTreeMap::from([("Rng".to_owned(), "api".to_owned()), ("Error".to_owned(), "shape".to_owned())]);
    let of = |text: &str, file: &str| upward(&code_of(text), Path::new(file), &exports);
    assert_eq!(of("use crate::autograd::grad;", "ops/view.rs"), [("ops".into(), "autograd".into())]);
    assert_eq!(of("use crate::Rng;", "tape/mod.rs"), [("tape".into(), "api".into())]);
    assert_eq!(of("use crate::unknown::X;", "tape/mod.rs"), [("tape".into(), "unknown".into())]);
    assert_eq!(of("super::super::tape::Node", "exec/call.rs"), [("exec".into(), "tape".into())]);
    assert_eq!(of("use crate::shape::spec::Spec; use crate::Error; use super::view;", "ops/view.rs"), []);
}

#[test]
fn imports_of_the_core_only_lead_down() {
    let root = Path::new("crates/bilin-core/src");
    let exports: BTreeMap<String, String> = re_exports(&code_of(&read(&root.join("lib.rs")))).into_iter().collect();
    assert_eq!(exports.get("shape_text").map(String::as_str), Some("shape"));
    let (mut paths, mut rooms) = (0, std::collections::BTreeSet::new());
    for file in sources() {
        let Ok(relative) = file.strip_prefix(root) else { continue };
        let code = code_of(&read(&file));
        let module = module_of(relative);
        paths += root_names(&code, &module).len();
        rooms.extend(module.first().cloned());
        let up = upward(&code, relative, &exports);
        assert!(up.is_empty(), "{}: {up:?} lead up; the order is {ROOMS:?}", file.display());
    }
    assert!(paths > 200, "only {paths} paths were read");
    let known: std::collections::BTreeSet<String> = ROOMS.iter().map(|r| (*r).to_owned()).collect();
    assert_eq!(rooms, known, "every room has its place in the order");
}

/// Names under `[dependencies]` and tables of it in a manifest.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut inside = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            let table = table.trim_end_matches(']');
            inside = table == "dependencies" || (table.starts_with("target.") && table.ends_with(".dependencies"));
            out.extend(table.strip_prefix("dependencies.").map(str::to_owned));
        } else if inside && !line.starts_with('#') {
            let name: String = line.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect();
            out.extend((!name.is_empty()).then_some(name));
        }
    }
    out
}

#[test]
fn crates_depend_only_on_lower_ones() {
    assert_eq!(
        dependencies(
            "[package]\nname = \"x\"\n[dependencies]\n# a\na = \"1\"\nbilin-core.workspace = true\n[dependencies.c]\n[dev-dependencies]\nd = \"1\""
        ),
        ["a", "bilin-core", "c"]
    );
    let mut arrows = 0;
    for file in files().into_iter().filter(|f| f.file_name().is_some_and(|n| n == "Cargo.toml")) {
        let manifest = read(&file);
        let Some(name) = manifest.split("[package]").nth(1).and_then(|t| t.split("name = \"").nth(1)).and_then(|t| t.split('"').next())
        else {
            continue;
        };
        let height = |name: &str| CRATES.iter().position(|c| *c == name);
        // Crates that aren't in the list stand on the facade, and nothing of the list may stand on them.
        let own = height(name).unwrap_or(CRATES.len());
        for dependency in dependencies(&manifest) {
            let Some(to) = height(&dependency) else { continue };
            arrows += 1;
            assert!(to < own, "{name} depends on {dependency}, which stands above it");
            assert!(to == 0 || own > 3, "{name} may depend on bilin-core alone, not on {dependency}");
        }
    }
    assert!(arrows >= 6, "only {arrows} dependencies were read");
}

#[test]
fn unsafe_code_stands_in_its_rooms_alone() {
    let has_unsafe = |text: &str| tokens(&code_of(text)).iter().any(|t| t == "unsafe");
    assert!(has_unsafe("fn f() { unsafe { g() } }") && !has_unsafe("// unsafe\nlet unsafe_code = \"unsafe\";"));
    for file in sources() {
        let path = file.to_string_lossy().replace('\\', "/");
        if UNSAFE.iter().any(|room| path.starts_with(room)) {
            continue;
        }
        assert!(!has_unsafe(&read(&file)), "{path}: unsafe code outside {UNSAFE:?}");
    }
    let core = code_of(&read(Path::new("crates/bilin-core/src/lib.rs")));
    assert!(tokens(&core).windows(3).any(|w| w == ["forbid", "(", "unsafe_code"]), "bilin-core forbids unsafe code");
}

#[test]
fn names_say_something_and_files_are_short() {
    let all = files();
    assert!(all.len() > 80, "only {} files were read", all.len());
    for file in &all {
        for part in file.iter() {
            let part = part.to_string_lossy().to_lowercase();
            let stem = part.split('.').next().unwrap_or_default();
            assert!(!matches!(stem, "utils" | "util" | "common" | "base" | "misc" | "helpers" | "helper"), "{}", file.display());
        }
    }
    for file in sources() {
        let lines = read(&file).lines().count();
        assert!(lines <= LONGEST, "{}: {lines} lines, at most {LONGEST}", file.display());
    }
}
