//! Gradients and Hessian-vector products of a product.

use std::path::Path;

use bilin::io::load_one;
use bilin::{DType, Device, Error, Result, Tensor, autograd};

use crate::args::Cotangent;

/// Refuses operands that no gradient exists for.
pub(crate) fn check_operands(op: &'static str, operands: &[Tensor]) -> Result<()> {
    if operands.iter().all(|t| t.dtype().is_differentiable()) {
        return Ok(());
    }
    let dtypes = operands.iter().map(Tensor::dtype).collect();
    Err(Error::DtypeMismatch { op: op.into(), dtypes, remedy: "gradients need floating or complex operands; convert with --dtype" })
}

/// The operands as leaves that require gradients; those of bf16 leaves are wanted in f32, without a rounding, as `.npy`
/// has no bf16.
pub(crate) fn leaves(operands: &[Tensor]) -> Result<Vec<Tensor>> {
    operands
        .iter()
        .map(|t| {
            let leaf = t.detach().requires_grad_(true)?;
            if leaf.dtype() == DType::Bf16 {
                leaf.set_grad_dtype(DType::F32)?;
            }
            Ok(leaf)
        })
        .collect()
}

/// A tensor from a file that goes with one of `dtype`: converted where the user asked for conversion, and from f32 to
/// bf16.
fn load_for(path: &Path, dtype: DType, converts: bool, device: &Device) -> Result<Tensor> {
    let t = load_one(path, device)?;
    if converts || (dtype == DType::Bf16 && t.dtype() == DType::F32) { t.astype(dtype) } else { Ok(t) }
}

/// The gradients of ⟨G, out⟩ by each leaf.
pub(crate) fn gradients(out: &Tensor, leaves: &[Tensor], cotangent: &Cotangent, converts: bool) -> Result<Vec<Tensor>> {
    let g = match cotangent {
        Cotangent::Ones => out.ones_like()?,
        Cotangent::File(path) => load_for(path, out.dtype(), converts, out.device())?,
    };
    let options = autograd::GradOptions { grad_outputs: vec![Some(g)], allow_unused: true, ..Default::default() };
    let grads = autograd::grad(&[out], &leaves.iter().collect::<Vec<_>>(), options)?;
    grads.into_iter().zip(leaves).map(|(g, x)| g.map_or_else(|| x.zeros_like(), Ok)).collect()
}

/// ½‖out‖² in the accumulator's dtype.
fn half_norm(out: &Tensor) -> Result<Tensor> {
    let out = out.astype(out.dtype().accumulator())?;
    let square = if out.dtype().is_complex() { out.conj()?.mul(&out)?.real()? } else { out.mul(&out)? };
    square.sum(.., false)?.mul_scalar(0.5)
}

/// The vectors `v0.npy`, `v1.npy`, … of a folder, one an operand.
pub(crate) fn load_vectors(folder: &Path, operands: &[Tensor], converts: bool) -> Result<Vec<Tensor>> {
    operands.iter().enumerate().map(|(i, x)| load_for(&folder.join(format!("v{i}.npy")), x.dtype(), converts, x.device())).collect()
}

/// The Hessian of ½‖f‖² at `operands`, times `vectors`; of bf16 operands as f32, since `.npy` has no bf16.
pub(crate) fn hessian_products(
    f: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    operands: &[Tensor],
    vectors: &[Tensor],
) -> Result<Vec<Tensor>> {
    let products = autograd::hvp(|x| half_norm(&f(x)?), &operands.iter().collect::<Vec<_>>(), &vectors.iter().collect::<Vec<_>>())?;
    products.into_iter().map(|t| if t.dtype() == DType::Bf16 { t.astype(DType::F32) } else { Ok(t) }).collect()
}
