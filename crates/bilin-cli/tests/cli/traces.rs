//! `--profile` with `--autocast` on files, and `trace`.

use std::fs;
use std::path::Path;

use bilin::prelude::*;
use serde_json::Value;

use crate::program::Folder;

#[test]
fn a_product_of_files_under_autocast_leaves_a_trace_and_its_picture() {
    let folder = Folder::new();
    let ramp = |count: usize| -> Vec<f32> { (0..count).map(|i| (i as f32 * 0.37).sin()).collect() };
    folder.put("a.npy", &ramp(40 * 30), &[40, 30]);
    folder.put("b.npy", &ramp(30 * 20), &[30, 20]);
    let words = "matmul a.npy b.npy -o c.safetensors --autocast bf16 --grad ones --grad-out grads --profile trace.json";
    let run = folder.run(&words.split(' ').collect::<Vec<_>>());
    assert_eq!(run.status, 0, "{}", run.err);
    assert!(run.err.contains("matmul in MatmulBackward"), "{}", run.err);
    // The bits of the product of operands that were cast by hand, and gradients in the files' dtype.
    let half = |name: &str| folder.get(name).astype(DType::Bf16).unwrap();
    let want = half("a.npy").matmul(&half("b.npy")).unwrap();
    assert_eq!(folder.numbers::<bf16>("c.safetensors"), (vec![40, 20], want.to_vec().unwrap()));
    let ones = Tensor::ones([40, 20], DType::Bf16, &Device::reference()).unwrap();
    let wide = ProductOptions::default().out_dtype(DType::F32);
    let grad = ones.matmul_with(&half("b.npy").mt().unwrap(), wide).unwrap();
    assert_eq!(folder.numbers::<f32>("grads/grad0.npy"), (vec![40, 30], grad.to_vec().unwrap()));
    assert_eq!(folder.get("grads/grad1.npy").dtype(), DType::F32);
    let trace: Value = serde_json::from_str(&fs::read_to_string(folder.path().join("trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |name: &str, dtype: &str| events.iter().filter(|e| e["name"] == name && e["args"]["dtype"] == dtype).count();
    assert_eq!((of("astype", "bfloat16"), of("matmul", "bfloat16"), of("matmul", "float32")), (2, 1, 2), "{trace}");
    assert_eq!(events.iter().filter(|e| e["ph"] == "s").count(), events.iter().filter(|e| e["ph"] == "f").count());

    assert_eq!(folder.run(&["trace", "trace.json", "-o", "trace.svg"]).ok(), "");
    let svg = fs::read_to_string(folder.path().join("trace.svg")).unwrap();
    assert_eq!(folder.run(&["trace", "trace.json"]).ok(), svg);
    assert_eq!(svg.matches("<title>matmul ").count(), 3, "{svg}");
    assert_eq!(svg.matches("#7a5ea8").count(), events.iter().filter(|e| e["ph"] == "s").count(), "an arrow is missing");
}

#[test]
fn the_documented_picture_is_that_of_the_documented_trace() {
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/pictures");
    let drawn = Folder::new().run(&["trace", pictures.join("trace.json").to_str().unwrap()]).ok();
    let kept = fs::read_to_string(pictures.join("trace.svg")).unwrap();
    assert!(drawn == kept, "draw it again: bilin trace docs/pictures/trace.json -o docs/pictures/trace.svg");
}

#[test]
fn slices_nest_and_any_trace_is_drawn_or_refused_in_one_line() {
    let folder = Folder::new();
    let put = |text: &str| fs::write(folder.path().join("t.json"), text).unwrap();
    let slice = |name: &str, ts: f64, dur: f64| format!(r#"{{"name":"{name}","ph":"X","tid":1,"ts":{ts},"dur":{dur}}}"#);
    put(&format!("[{},{},{}]", slice("outer", 0.0, 10.0), slice("<in & out>", 2.0, 3.0), slice("later", 5.0, 5.0)));
    let svg = folder.run(&["trace", "t.json"]).ok();
    let row = |name: &str| -> f64 {
        let line = svg.lines().find(|l| l.contains(&format!("<title>{name}"))).unwrap();
        line.split("y=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
    };
    assert!(row("outer") < row("&lt;in &amp; out&gt;") && row("later") == row("&lt;in &amp; out&gt;"), "{svg}");
    for (text, part) in [
        ("", "no JSON"),
        ("{\"traceEvents\": 3}", "want a list"),
        ("[]", "no events"),
        ("[{}]", "event 0 has no phase"),
        ("[3]", "event 0 has no phase"),
        (r#"[{"ph":"X","ts":"x"}]"#, "event 0 has no time"),
        (r#"[{"ph":"X","ts":-1}]"#, "event 0 has no time"),
        (r#"[{"ph":"s","ts":1,"id":"x"}]"#, "id"),
    ] {
        put(text);
        let run = folder.run(&["trace", "t.json", "-o", "t.svg"]);
        assert_eq!((run.status, run.err.lines().count()), (1, 1), "{text}: {}", run.err);
        assert!(run.err.starts_with("bilin: trace: t.json: ") && run.err.contains(part), "{text}: {}", run.err);
    }
    assert!(!folder.names().contains(&"t.svg".to_owned()));
    for odd in [slice("a", 1e300, 1e300), slice("a", 0.0, 0.0), slice("a", 1e-300, 1e-300), slice("a", 3.0, -1.0)] {
        put(&format!("[{odd}]"));
        let svg = folder.run(&["trace", "t.json"]).ok();
        assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.len() < 10_000, "{odd}: {svg}");
    }
}
