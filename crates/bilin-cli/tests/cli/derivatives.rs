//! `--grad` and `--hvp` against closed forms.

use bilin::prelude::*;

use crate::program::Folder;

fn operands() -> Folder {
    let folder = Folder::new();
    folder.put("a.npy", &[1f64, 2., 3., 4.], &[2, 2]);
    folder.put("b.npy", &[5f64, -6., 7., 8.], &[2, 2]);
    folder
}

fn close(got: &Tensor, want: &Tensor) {
    assert_eq!((got.shape(), got.dtype()), (want.shape(), want.dtype()));
    let of = |t: &Tensor| t.to_vec::<f64>().unwrap();
    for (x, y) in of(got).into_iter().zip(of(want)) {
        assert!((x - y).abs() <= 1e-12 * y.abs().max(1.0), "{x} {y}");
    }
}

#[test]
fn gradients_of_a_matrix_product() {
    let folder = operands();
    folder.run(&["matmul", "a.npy", "b.npy", "--grad", "ones", "--grad-out", "new/folder"]).ok();
    // Rows of ones·Bᵀ are the row sums of B; of Aᵀ·ones the column sums of A.
    assert_eq!(folder.numbers::<f64>("new/folder/grad0.npy"), (vec![2, 2], vec![-1., 15., -1., 15.]));
    assert_eq!(folder.numbers::<f64>("new/folder/grad1.npy"), (vec![2, 2], vec![4., 4., 6., 6.]));
    folder.put("g.npy", &[1f64, 0., 0., 2.], &[2, 2]);
    folder.run(&["matmul", "a.npy", "b.npy", "--grad", "g.npy", "--grad-out", "."]).ok();
    assert_eq!(folder.numbers::<f64>("grad0.npy").1, [5., 7., -12., 16.]);
    assert_eq!(folder.numbers::<f64>("grad1.npy").1, [1., 6., 2., 8.]);
}

#[test]
fn gradients_of_an_einsum_of_three() {
    let folder = Folder::new();
    folder.put("x.npy", &[1f64, 2.], &[2]);
    folder.put("y.npy", &[3f64, 4.], &[2]);
    folder.put("z.npy", &[5f64, 6.], &[2]);
    folder.run(&["einsum", "i,i,i->", "x.npy", "y.npy", "z.npy", "--grad", "ones", "--grad-out", "."]).ok();
    assert_eq!(folder.numbers::<f64>("grad0.npy").1, [15., 24.]);
    assert_eq!(folder.numbers::<f64>("grad1.npy").1, [5., 12.]);
    assert_eq!(folder.numbers::<f64>("grad2.npy").1, [3., 8.]);
}

#[test]
fn gradients_of_bfloat16_operands_are_float32_unrounded() {
    let folder = Folder::new();
    let half = |x: &[f32], shape: &[usize]| Tensor::from_slice(x, shape, &Device::reference()).unwrap().astype(DType::Bf16).unwrap();
    folder.put_tensor("a.safetensors", &half(&[1., 1.], &[2]));
    folder.put_tensor("b.safetensors", &half(&[256., 3.], &[2]));
    folder.put("g.npy", &[1f32, 1., 1., 1.], &[2, 2]);
    folder.run(&["outer", "a.safetensors", "b.safetensors", "--grad", "g.npy", "--grad-out", "."]).ok();
    // 259 has nine bits, one more than bfloat16 holds.
    assert_eq!(folder.numbers::<f32>("grad0.npy").1, [259., 259.]);
}

/// With P = A·B, the Hessian of ½‖P‖² takes (V, W) to (D·Bᵀ + P·Wᵀ, Aᵀ·D + Vᵀ·P), where D = V·B + A·W.
#[test]
fn hessian_vector_products_of_a_matrix_product() {
    let folder = operands();
    folder.put("d/v0.npy", &[0.5f64, -1., 2., 0.25], &[2, 2]);
    folder.put("d/v1.npy", &[-3f64, 1., 0.125, 4.], &[2, 2]);
    let out = folder.run(&["matmul", "a.npy", "b.npy", "--hvp", "d", "--json"]).ok();
    let (a, b, v, w) = (folder.get("a.npy"), folder.get("b.npy"), folder.get("d/v0.npy"), folder.get("d/v1.npy"));
    let mm = |x: &Tensor, y: &Tensor| x.matmul(y).unwrap();
    let t = |x: &Tensor| x.mt().unwrap();
    let p = mm(&a, &b);
    let d = mm(&v, &b).add(&mm(&a, &w)).unwrap();
    close(&folder.get("d/hvp0.npy"), &mm(&d, &t(&b)).add(&mm(&p, &t(&w))).unwrap());
    close(&folder.get("d/hvp1.npy"), &mm(&t(&a), &d).add(&mm(&t(&v), &p)).unwrap());
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["files"].as_array().unwrap().len(), 2);
    assert!(report["hvp_seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_hessian_vector_product_of_a_complex_product() {
    let folder = Folder::new();
    folder.put("a.npy", &[c128::new(2., 1.)], &[1]);
    folder.put("b.npy", &[c128::new(0., 3.)], &[1]);
    folder.put("v0.npy", &[c128::new(1., -1.)], &[1]);
    folder.put("v1.npy", &[c128::new(0., 0.)], &[1]);
    folder.run(&["outer", "a.npy", "b.npy", "--hvp", "."]).ok();
    // ½|ab|²: along v alone, a gets v·|b|² and b gets 2·Re(conj(a)·v)·b.
    assert_eq!(folder.numbers::<c128>("hvp0.npy").1, [c128::new(9., -9.)]);
    assert_eq!(folder.numbers::<c128>("hvp1.npy").1, [c128::new(0., 6.)]);
}

#[test]
fn integers_have_no_gradients_unless_converted() {
    let folder = Folder::new();
    folder.put("a.npy", &[1i32, 2], &[2]);
    let arguments = ["dot", "a.npy", "a.npy", "--grad", "ones", "--grad-out", "g"];
    let error = folder.run(&arguments).fails(1);
    assert!(error.starts_with("bilin: dot: dtypes (int32, int32)") && error.contains("--dtype"), "{error}");
    assert_eq!(folder.names(), ["a.npy"]);
    folder.run(&[arguments.as_slice(), &["--dtype", "f32"]].concat()).ok();
    assert_eq!(folder.numbers::<f32>("g/grad1.npy").1, [1., 2.]);
}
