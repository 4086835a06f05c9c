//! The program of `docs/gpu-kernels.md` is the example, and it runs.
#![allow(clippy::unwrap_used, reason = "a panic is how a check fails")]

#[path = "../examples/own_kernel.rs"]
mod own_kernel;

#[test]
fn the_guide_shows_the_example_and_it_runs() {
    let guide = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/gpu-kernels.md")).unwrap();
    let example = include_str!("../examples/own_kernel.rs");
    assert!(guide.contains(example.trim_end()), "docs/gpu-kernels.md shows another program than examples/own_kernel.rs");
    assert!(example.lines().count() <= 45, "{} lines", example.lines().count());
    own_kernel::main().unwrap();
}
