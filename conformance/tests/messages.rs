//! The text of every kind of user error, compared line by line with `data/messages.txt`; `UPDATE=1` writes the file anew.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]

use std::path::PathBuf;

use bilin::autograd::{self, BackwardOptions, GradOptions, GradcheckOptions};
use bilin::ops::{entries, op_call};
use bilin::prelude::*;
use bilin::{AmpPolicy, Arity, OpSchema, concat, dot, einsum_path, inner, matmul, matvec, outer, stack, tensordot, vecdot, vecmat};

fn zeros(shape: &[usize]) -> Tensor {
    of(shape, DType::F32)
}
fn of(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::zeros(shape, dtype, &Device::cpu()).unwrap()
}
fn leaf(shape: &[usize]) -> Tensor {
    zeros(shape).requires_grad_(true).unwrap()
}

struct Lines(Vec<(String, Error)>);

impl Lines {
    fn add<T>(&mut self, label: &str, result: Result<T>) {
        match result {
            Err(error) => self.0.push((label.to_owned(), error)),
            Ok(_) => panic!("{label}: no error"),
        }
    }
}

fn products(l: &mut Lines) {
    let (v, m, b) = (zeros(&[3]), zeros(&[2, 3]), zeros(&[2, 2, 3]));
    l.add("matmul of vectors", matmul(&v, &v));
    l.add("matmul of a scalar", matmul(&m, &zeros(&[])));
    l.add("matmul, K", matmul(&m, &m));
    l.add("matmul, batch", matmul(&b, &zeros(&[3, 3, 2])));
    l.add("matmul, batch of three axes", matmul(&zeros(&[4, 2, 2, 3]), &zeros(&[5, 1, 3, 2])));
    l.add("matmul, dtypes", matmul(&m, &of(&[3, 2], DType::F64)));
    l.add("matmul, integer and float", matmul(&of(&[2, 3], DType::I32), &zeros(&[3, 2])));
    l.add("matmul, devices", matmul(&m, &Tensor::zeros([3, 2], DType::F32, &Device::reference()).unwrap()));
    l.add("matmul, out_dtype of f32", m.matmul_with(&zeros(&[3, 2]), ProductOptions::default().out_dtype(DType::F16)));
    l.add(
        "matmul, out_dtype of i32",
        of(&[2, 3], DType::I32).matmul_with(&of(&[3, 2], DType::I32), ProductOptions::default().out_dtype(DType::I8)),
    );
    l.add("matmul, result too large", {
        let long = zeros(&[1]).broadcast_to([1 << 40, 1]).unwrap();
        matmul(&long, &long.mt().unwrap())
    });
    l.add("dot, ranks", dot(&m, &b));
    l.add("dot, rank 0", dot(&zeros(&[]), &v));
    l.add("dot, lengths", dot(&v, &zeros(&[4])));
    l.add("dot, matrices", dot(&m, &m));
    l.add("inner, rank 0", inner(&zeros(&[]), &v));
    l.add("inner, lengths", inner(&m, &zeros(&[4, 2])));
    l.add("outer, ranks", outer(&m, &v));
    l.add("outer, dtypes", outer(&v, &of(&[3], DType::Bf16)));
    l.add("tensordot, negative count", tensordot(&m, &m, -1));
    l.add("tensordot, count too great", tensordot(&m, &m, 3));
    l.add("tensordot, lengths by count", tensordot(&m, &zeros(&[2, 2]), 1));
    l.add("tensordot, lengths by pairs", tensordot(&m, &b, Axes::pairs([0], [-1])));
    l.add("tensordot, duplicate axis", tensordot(&m, &m, Axes::pairs([1, -1], [0, 1])));
    l.add("tensordot, axis out of range", tensordot(&m, &m, Axes::pairs([2], [0])));
    l.add("tensordot, unequal lists", tensordot(&m, &m, Axes::pairs([0, 1], [0])));
    l.add("vecdot, rank 0", vecdot(&zeros(&[]), &v));
    l.add("vecdot, lengths", vecdot(&v, &m.mt().unwrap()));
    l.add("vecdot, axis", bilin::ops::vecdot_axis(&m, &m, 2));
    l.add("matvec, rank", matvec(&v, &v));
    l.add("matvec, lengths", matvec(&m, &zeros(&[2])));
    l.add("matvec, batch", matvec(&b, &zeros(&[4, 3])));
    l.add("vecmat, rank", vecmat(&v, &v));
    l.add("vecmat, lengths", vecmat(&v, &m));
}

fn subscripts(l: &mut Lines) {
    let (m, v) = (zeros(&[2, 3]), zeros(&[3]));
    let mut one = |label: &str, text: &str, operands: &[&Tensor]| l.add(label, einsum(text, operands));
    one("einsum, no operand", "->", &[]);
    one("einsum, count of terms", "ij,jk->ik", &[&m]);
    one("einsum, rank", "ijk->i", &[&m]);
    one("einsum, label lengths", "ij,jk->ik", &[&m, &m]);
    one("einsum, lengths of a repeated label", "ii->i", &[&m]);
    one("einsum, label of the result alone", "ij->ik", &[&m]);
    one("einsum, result label twice", "ij->ii", &[&m]);
    one("einsum, bad character", "i1->i", &[&m]);
    one("einsum, arrow twice", "ij->i->j", &[&m]);
    one("einsum, half an arrow", "ij-i", &[&m]);
    one("einsum, two dots", "..j->j", &[&m]);
    one("einsum, ellipsis twice", "...i...->i", &[&m]);
    one("einsum, ellipsis lengths", "...,...->...", &[&zeros(&[2]), &v]);
    one("einsum, empty term", "ij,->ij", &[&m, &v]);
    l.add("einsum, dtypes", einsum("i,i->", &[&v, &of(&[3], DType::F64)]));
    l.add("einsum, devices", einsum("i,i->", &[&v, &Tensor::zeros([3], DType::F32, &Device::reference()).unwrap()]));
    l.add("einsum_path, rank", einsum_path("ijk->i", &[&m]));
}

fn views(l: &mut Lines) {
    let m = zeros(&[2, 3]);
    l.add("permute, count", m.permute(&[0]));
    l.add("permute, duplicate", m.permute(&[0, -2]));
    l.add("permute, axis", m.permute(&[0, 2]));
    l.add("mt of a vector", zeros(&[3]).mt());
    l.add("reshape, count", m.reshape([4]));
    l.add("reshape, overflow", m.reshape([usize::MAX, 2]));
    l.add("broadcast_to, lengths", m.broadcast_to([2, 4]));
    l.add("broadcast_to, rank", m.broadcast_to([3]));
    l.add("narrow, range", m.narrow(1, 2, 2));
    l.add("narrow, axis", m.narrow(-3, 0, 1));
    l.add("index, count", m.index(&[0.into(), 0.into(), 0.into()]));
    l.add("index, position", m.index(&[2.into()]));
    l.add("index, step", m.index(&[Index::Slice { start: None, stop: None, step: 0 }]));
    l.add("slice, axis", m.slice(2, None, None, 1));
    l.add("flip, axis", m.flip(2));
    l.add("diagonal, one axis twice", m.diagonal(0, -2));
    l.add("squeeze, length", m.squeeze(&[1]));
    l.add("unsqueeze, axis", m.unsqueeze(4));
}

fn elementwise(l: &mut Lines) {
    let (m, n) = (zeros(&[2, 3]), zeros(&[2, 4]));
    l.add("add, lengths", m.add(&n));
    l.add("mul, dtypes", m.mul(&of(&[2, 3], DType::I64)));
    l.add("sub of bool", of(&[2], DType::Bool).sub(&of(&[2], DType::Bool)));
    l.add("neg of bool", of(&[2], DType::Bool).neg());
    l.add("maximum of complex", of(&[2], DType::C64).maximum(&of(&[2], DType::C64)));
    l.add("lt of complex", of(&[2], DType::C64).lt(&of(&[2], DType::C64)));
    l.add("floor of complex", of(&[2], DType::C64).floor());
    l.add("where_, mask", m.where_(&m, &m));
    l.add("where_, lengths", of(&[2, 3], DType::Bool).where_(&m, &n));
    l.add("sum, axis", m.sum(2, false));
    l.add("sum, duplicate axis", m.sum([1, -1], false));
    l.add("max over nothing", zeros(&[0, 3]).max(0, false));
    l.add("argmax of complex", of(&[2], DType::C64).argmax(.., false));
    l.add("softmax, axis", m.softmax(2));
    l.add("softmax of integers", of(&[2], DType::I32).softmax(0));
    l.add("cross_entropy, ranks", m.cross_entropy(&of(&[2, 1], DType::I64)));
    l.add("cross_entropy, rows", m.cross_entropy(&of(&[3], DType::I64)));
    l.add("cross_entropy, dtypes", m.cross_entropy(&zeros(&[2])));
    l.add("cross_entropy, class", m.cross_entropy(&Tensor::from_slice(&[0i64, 3], [2], &Device::cpu()).unwrap()));
    l.add("gather, position", m.gather(1, &Tensor::full([2, 1], 3, DType::I64, &Device::cpu()).unwrap()));
    l.add("gather, dtype", m.gather(1, &m));
    l.add("gather, lengths", m.gather(1, &of(&[3, 1], DType::I64)));
    l.add("scatter_add, position", m.scatter_add(0, &Tensor::full([2, 3], 5, DType::I64, &Device::cpu()).unwrap(), 5));
    l.add("scatter_add, lengths", m.scatter_add(0, &of(&[1, 3], DType::I64), 5));
    l.add("index_select, rank", m.index_select(0, &of(&[1, 1], DType::I64)));
    l.add("concat of nothing", concat(&[], 0));
    l.add("concat, lengths", concat(&[&m, &n], 0));
    l.add("concat, dtypes", concat(&[&m, &of(&[2, 3], DType::F64)], 0));
    l.add("stack, lengths", stack(&[&m, &n], 0));
}

fn making_and_reading(l: &mut Lines) {
    let dev = Device::cpu();
    l.add("from_slice, count", Tensor::from_slice(&[1f32, 2.], [3], &dev));
    l.add("zeros, overflow", Tensor::zeros([usize::MAX, 2], DType::F32, &dev));
    l.add("zeros, bytes overflow beside an empty axis", Tensor::zeros([usize::MAX, 0], DType::F32, &dev));
    l.add("arange, step", Tensor::arange(0.0, 1.0, 0.0, DType::F32, &dev));
    l.add("arange, count", Tensor::arange(0.0, 1e30, 1.0, DType::F32, &dev));
    l.add("rand of integers", Tensor::rand([2], DType::I32, &dev, &mut Rng::new(1)));
    l.add("to_vec, dtype", zeros(&[2]).to_vec::<f64>());
    l.add("item, count", zeros(&[2]).item::<f32>());
    l.add("device, name", Device::parse("tpu").map_err(without_devices));
    l.add("op_call, name", op_call("matmull", &[], ""));
    l.add("op_call, count", op_call("matmul", &[zeros(&[2])], ""));
    l.add("op_call, attribute without a value", op_call("flip", &[zeros(&[2])], "axis"));
    l.add("op_call, attribute that is no number", op_call("flip", &[zeros(&[2])], "axis=x"));
    l.add("op_call, attribute that is no list", op_call("sum", &[zeros(&[2])], "axes=0,x"));
    l.add("op_call, attribute that is no truth value", op_call("sum", &[zeros(&[2])], "keepdim=1"));
    l.add("op_call, attribute that is no dtype", op_call("astype", &[zeros(&[2])], "dtype=float31"));
    l.add("op_call, attribute missing", op_call("einsum", &[zeros(&[2])], ""));
    static TAKEN: OpSchema = OpSchema::schema_v1("matmul", AmpPolicy::Promote, Arity::Exact(2));
    l.add("op_register, name", bilin::op_register(&TAKEN));
    let small = Device::new("small", Box::new(bilin_cpu::CpuBackend::new()));
    small.set_memory_limit(Some(1024));
    l.add("out of memory", Tensor::zeros([1000], DType::F32, &small));
    l.add("load, extension", bilin::io::load("weights.bin", &dev));
    l.add("save, extension", bilin::io::save("weights.bin", &[("x", &zeros(&[2]))]));
}

fn in_place(l: &mut Lines) {
    let (m, x) = (zeros(&[2, 3]), leaf(&[2, 3]));
    l.add("fill_ of a leaf", x.fill_(1.0));
    l.add("add_ of a recorded tensor", x.mul_scalar(2.0).unwrap().add_(&m));
    l.add("add_ from a leaf", m.add_(&x));
    l.add("copy_, lengths", m.copy_(&zeros(&[4])));
    l.add("copy_, dtypes", m.copy_(&of(&[3], DType::F64)));
    l.add("copy_, devices", m.copy_(&Tensor::zeros([3], DType::F32, &Device::reference()).unwrap()));
    l.add("mul_ of a repeated view", zeros(&[1]).broadcast_to([3]).unwrap().mul_(&zeros(&[])));
}

fn gradients(l: &mut Lines) {
    let x = leaf(&[2, 3]);
    let y = || x.mul(&x).unwrap();
    let loss = || y().sum(.., false).unwrap();
    l.add("backward without history", zeros(&[]).backward());
    l.add("backward of many elements", y().backward());
    l.add("backward of a complex scalar", of(&[], DType::C64).requires_grad_(true).unwrap().conj().unwrap().backward());
    let with = |gradient: Tensor| y().backward_with(BackwardOptions { gradient: Some(gradient), ..Default::default() });
    l.add("backward, cotangent's shape", with(zeros(&[3])));
    l.add("backward, cotangent's dtype", with(of(&[2, 3], DType::F64)));
    l.add("backward, cotangent's device", with(Tensor::zeros([2, 3], DType::F32, &Device::reference()).unwrap()));
    l.add("backward a second time", {
        let loss = loss();
        loss.backward().unwrap();
        loss.backward()
    });
    l.add("backward after a change", {
        let (x, w) = (leaf(&[2, 3]), leaf(&[3, 2]));
        let y = x.matmul(&w).unwrap().sum(.., false).unwrap();
        no_grad(|| w.fill_(1.0)).unwrap();
        y.backward()
    });
    l.add("grad of an unused input", autograd::grad(&[&loss()], &[&leaf(&[1])], GradOptions::default()));
    l.add("grad of an output without history", autograd::grad(&[&zeros(&[])], &[&x], GradOptions::default()));
    l.add("requires_grad_ of integers", of(&[2], DType::I32).requires_grad_(true));
    l.add("requires_grad_(false) of an interior tensor", y().requires_grad_(false));
    l.add("retain_grad without history", zeros(&[2]).retain_grad());
    l.add("register_hook without history", zeros(&[2]).register_hook(|_| Ok(None)));
    l.add("a hook's shape", {
        let x = leaf(&[2]);
        x.register_hook(|_| Ok(Some(zeros(&[3])))).unwrap();
        x.sum(.., false).unwrap().backward()
    });
    l.add("set_grad, shape", x.set_grad(Some(zeros(&[3]))));
    l.add("set_grad_dtype, narrower", x.set_grad_dtype(DType::F16));
    l.add("Node::apply, shape", y().grad_fn().unwrap().apply(&zeros(&[3])));
    l.add("jvp, count", autograd::jvp(|x| Ok(x[0].clone()), &[&x], &[]));
    l.add("jvp, tangent's shape", autograd::jvp(|x| Ok(x[0].clone()), &[&x], &[&zeros(&[3])]));
    l.add("hvp, tangent's dtype", autograd::hvp(|x| x[0].sum(.., false), &[&x], &[&of(&[2, 3], DType::F64)]));
    l.add("hessian of a complex input", autograd::hessian(|x| Ok(x.clone()), &of(&[2], DType::C128)));
    // A derivative that is wrong on purpose: half of the function is hidden.
    let half = |x: &[Tensor]| x[0].mul(&x[0].detach());
    let at = Tensor::full([1], 3, DType::F64, &Device::cpu()).unwrap();
    l.add("gradcheck of a wrong derivative", autograd::gradcheck(half, &[&at], GradcheckOptions::default()).map_err(rounded));
}

/// The numbers of a failed gradcheck depend on the last bits: the text keeps their places.
fn rounded(error: Error) -> Error {
    match error {
        Error::InvalidArgument { op, argument, got, want } => {
            let words = |text: &str| {
                text.split(' ')
                    .map(|w| if w.trim_end_matches([',', ';']).parse::<f64>().is_ok_and(|x| x.fract() != 0.0) { "…" } else { w })
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            Error::InvalidArgument { op, argument, got: words(&got), want: words(&want) }
        }
        other => other,
    }
}

/// Which devices a build has depends on its features: the text keeps their place.
fn without_devices(error: Error) -> Error {
    match error {
        Error::InvalidArgument { op, argument, got, want } => {
            let want = want.split_once(" has ").map_or(want.clone(), |(start, _)| format!("{start} has …"));
            Error::InvalidArgument { op, argument, got, want }
        }
        other => other,
    }
}

fn all() -> Vec<(String, Error)> {
    let mut lines = Lines(Vec::new());
    for part in [products, subscripts, views, elementwise, making_and_reading, in_place, gradients] {
        part(&mut lines);
    }
    lines.0
}

#[test]
fn error_texts_are_those_of_the_file() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/messages.txt");
    let lines: Vec<String> = all().iter().map(|(label, error)| format!("{label} | {} | {error}", error.kind())).collect();
    if std::env::var_os("UPDATE").is_some_and(|v| v == "1") {
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        return;
    }
    let text = std::fs::read_to_string(&path).unwrap();
    let want: Vec<&str> = text.lines().collect();
    for (i, (got, want)) in lines.iter().zip(&want).enumerate() {
        assert_eq!(got, want, "line {} (UPDATE=1 writes the file anew)", i + 1);
    }
    assert_eq!(lines.len(), want.len(), "number of lines (UPDATE=1 writes the file anew)");
}

#[test]
fn every_text_is_an_op_then_facts_then_a_remedy() {
    for (label, error) in all() {
        let text = error.to_string();
        let (op, rest) = text.split_once(": ").unwrap_or_else(|| panic!("{label}: no op in '{text}'"));
        assert!(!op.is_empty() && op.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'), "{label}: '{op}' is no op");
        let (facts, remedy) = rest.split_once("; ").unwrap_or_else(|| panic!("{label}: no remedy in '{text}'"));
        assert!(!facts.is_empty() && !remedy.is_empty(), "{label}: '{text}'");
        assert!(!text.contains('\n') && !text.ends_with('.'), "{label}: '{text}'");
    }
}

#[test]
fn every_op_with_more_than_one_operand_refuses_two_devices_and_names_both() {
    let mut checked = 0;
    for entry in entries() {
        for sample in entry.samples.iter().filter(|s| s.shapes.len() > 1) {
            let mut operands: Vec<Tensor> = sample.shapes.iter().map(|s| zeros(s)).collect();
            operands[1] = operands[1].to_device(&Device::reference()).unwrap();
            let error = op_call(entry.schema.name, &operands, sample.attrs).unwrap_err();
            assert!(matches!(error, Error::DeviceMismatch { .. }), "{}: {error}", entry.schema.name);
            let text = error.to_string();
            assert!(text.starts_with(entry.schema.name) && text.contains("cpu") && text.contains("reference"), "{text}");
            checked += 1;
        }
    }
    assert!(checked > 40, "only {checked}");
}
