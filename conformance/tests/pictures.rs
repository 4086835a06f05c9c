//! The pictures of docs/autograd.md are those that the engine draws. `BLESS=1 cargo test -p conformance --test pictures` writes
//! them again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::path::Path;

use bilin::autograd::{self, GradOptions, Picture};
use bilin::prelude::*;

fn leaf(shape: &[usize]) -> Tensor {
    Tensor::ones(shape, DType::F32, &Device::cpu()).unwrap().requires_grad_(true).unwrap()
}

#[track_caller]
fn same(name: &str, picture: &Picture) {
    for (ending, text) in [("dot", picture.to_dot()), ("svg", picture.to_svg())] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures").join(format!("{name}.{ending}"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == text, "{} isn't what is drawn; write it with BLESS=1 cargo test -p conformance --test pictures", path.display());
    }
}

#[test]
fn pictures_are_what_is_drawn() {
    let (x, w, b) = (leaf(&[8, 3]), leaf(&[3, 2]), leaf(&[2]));
    let loss = x.matmul(&w).unwrap().add(&b).unwrap().tanh().unwrap().sum(.., false).unwrap();
    same("layer", &Picture::new(&[&loss]));
    let options = GradOptions { create_graph: true, ..Default::default() };
    let x = leaf(&[]);
    let slope = autograd::grad(&[&x.exp().unwrap().mul(&x).unwrap()], &[&x], options).unwrap().remove(0).unwrap();
    same("slope", &Picture::new(&[&slope]));
    assert_eq!(Picture::new(&[&slope]).to_dot(), slope.grad_fn().unwrap().picture().to_dot());
}
