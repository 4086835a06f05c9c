//! The program on a GPU; without an adapter these tests fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, Output};

use bilin::io;
use bilin::prelude::*;

fn bilin(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bilin")).args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn devices_lists_the_adapters() {
    let adapter = &bilin::gpu::adapters()[0];
    let out = text(&bilin(&["devices"]));
    assert!(out.lines().any(|l| l.contains("wgpu:0")), "{out}");
    assert!(out.contains(&adapter.name) && out.contains(&format!("binding bytes {}", adapter.max_binding_bytes)), "{out}");
    let all: serde_json::Value = serde_json::from_str(&text(&bilin(&["devices", "--json"]))).unwrap();
    let found = all["devices"].as_array().unwrap().iter().find(|d| d["name"] == "wgpu:0").unwrap();
    assert_eq!(found["limits"]["workgroups an axis"], adapter.max_groups);
}

#[test]
fn a_product_and_its_gradients_are_computed_there() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (a, b) = (path("a.npy"), path("b.npy"));
    for (file, shape, seed) in [(&a, [7, 40], 1), (&b, [40, 5], 2)] {
        io::save(file, &[("x", &Tensor::randn(shape, DType::F32, &Device::cpu(), &mut Rng::new(seed)).unwrap())]).unwrap();
    }
    let mut all = Vec::new();
    for device in ["cpu", "wgpu", "wgpu:0"] {
        let (out, grads) = (path(&format!("{device}.npy")), path(&format!("{device}-grads")));
        text(&bilin(&["matmul", &a, &b, "--device", device, "-o", &out, "--grad", "ones", "--grad-out", &grads]));
        all.push(io::load_one(&out, &Device::cpu()).unwrap().to_vec::<f32>().unwrap());
    }
    for (i, want) in all[0].iter().enumerate() {
        assert!((all[1][i] - want).abs() < 1e-4, "{i}: {} and {want}", all[1][i]);
    }
    assert_eq!(all[1], all[2]);
    let refused = bilin(&["matmul", &a, &b, "--device", "wgpu", "--dtype", "f64"]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("float64 isn't supported by wgpu"), "{message}");
}

#[cfg(target_os = "linux")]
#[test]
fn without_a_driver_the_program_says_what_is_missing() {
    // The loader looks for drivers where there are none.
    let run = |arguments: &[&str]| {
        let variables = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].map(|name| (name, "/nonexistent"));
        Command::new(env!("CARGO_BIN_EXE_bilin")).args(arguments).envs(variables).output().unwrap()
    };
    let listed = text(&run(&["devices"]));
    assert!(listed.lines().any(|l| l.contains("wgpu") && l.contains("no adapter: install a Vulkan driver")), "{listed}");
    let refused = run(&["check", "wgpu"]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("this machine has no adapter; install a Vulkan driver"), "{message}");
}

#[test]
fn check_runs_the_self_test_of_the_adapter() {
    let out = text(&bilin(&["check", "wgpu"]));
    assert!(!out.contains("miscomputes") && out.lines().any(|l| l.starts_with("matmul") && l.contains("ok")), "{out}");
}
