//! Every snippet of a page is run somewhere: Rust by the facade's doctests, Python by the package's tests, and a program that
//! stands in a page as a whole by the test that compares it with its file.
#![allow(clippy::unwrap_used, reason = "a panic is how a check fails")]

use std::path::Path;

use conformance::source::{files, read};

/// Pages with a fence of this language.
fn pages_with(language: &str) -> Vec<String> {
    let pages = files().into_iter().filter(|p| p.extension().is_some_and(|e| e == "md"));
    let has = |p: &Path| read(p).lines().any(|l| l.strip_prefix("```") == Some(language));
    pages.filter(|p| has(p)).map(|p| p.to_string_lossy().into_owned()).collect()
}

#[test]
fn every_snippet_of_a_page_is_a_test() {
    // Beside the program's file, of which docs/gpu-kernels.md is a copy.
    let (facade, compared) = (read(Path::new("crates/bilin/src/lib.rs")), read(Path::new("crates/bilin-gpu/tests/guide.rs")));
    let package = read(Path::new("python/tests/test_package.py"));
    let rust = pages_with("rust");
    assert!(rust.len() >= 5, "{rust:?}");
    for page in rust {
        let is_run = facade.contains(&format!("include_str!(\"../../../{page}\")")) || compared.contains(&page);
        assert!(is_run, "{page} has Rust that no test runs: include it in crates/bilin/src/lib.rs");
    }
    let python = pages_with("python");
    assert!(python.len() >= 3, "{python:?}");
    for page in python {
        assert!(package.contains(&format!("\"{page}\"")), "{page} has Python that no test runs: name it in python/tests/test_package.py");
    }
}

/// rustdoc takes a fence without a language, and an indented block, for Rust.
#[test]
fn every_fence_names_its_language() {
    for page in files().into_iter().filter(|p| p.extension().is_some_and(|e| e == "md")) {
        let mut is_open = false;
        for (i, line) in read(&page).lines().enumerate().filter(|(_, l)| l.starts_with("```")) {
            let at = format!("{} line {}", page.display(), i + 1);
            assert_eq!(line == "```", is_open, "{at}: a fence that opens names a language, one that closes doesn't");
            let known = ["", "rust", "python", "sh", "text", "toml", "json"];
            assert!(known.contains(&&line[3..]), "{at}: {line}");
            is_open = !is_open;
        }
        assert!(!is_open, "{}: a fence is left open", page.display());
    }
}
