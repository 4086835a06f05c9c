//! Gradients against finite differences, along random directions.

use super::reverse::{GradOptions, grad};
use crate::api::Rng;
use crate::schema::modes;
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::tape::Tensor;

/// How [`gradcheck`] compares.
#[derive(Debug, Clone, Copy)]
pub struct GradcheckOptions {
    /// Step of the central difference.
    pub step: f64,
    /// Bound relative to the greater of the two numbers and 1.
    pub tolerance: f64,
    /// Seed of the directions.
    pub seed: u64,
}
impl Default for GradcheckOptions {
    fn default() -> Self {
        // Central differences err by step²·f‴/6 + u/step: least near u^(1/3) ≈ 5e-6, where both are about 1e-10.
        GradcheckOptions { step: 1e-5, tolerance: 1e-6, seed: 1 }
    }
}

fn is_double(x: &Tensor) -> bool {
    matches!(x.dtype(), DType::F64 | DType::C128)
}

/// Re⟨a, b⟩, the inner product that gradients of complex tensors stand in.
fn inner(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let product = if a.dtype().is_complex() { a.conj()?.mul(b)?.real()? } else { a.mul(b)? };
    product.sum(.., false)
}

/// Compares the gradients of `f` at `x` with central differences of ⟨u, f⟩ for a random u, along a random direction for
/// each input; inputs are f64 or c128, others are held fixed.
///
/// Errors: `InvalidArgument` naming the input and both numbers.
pub fn gradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, x: &[&Tensor], options: GradcheckOptions) -> Result<()> {
    let mut rng = Rng::new(options.seed);
    let leaves: Result<Vec<Tensor>> = x.iter().map(|x| x.detach().requires_grad_(is_double(x))).collect();
    let leaves = leaves?;
    let out = modes::enable_grad(|| f(&leaves))?;
    let u = Tensor::randn(out.shape(), out.dtype(), out.device(), &mut rng)?;
    if !out.requires_grad() {
        return Ok(());
    }
    let checked: Vec<usize> = (0..x.len()).filter(|&i| is_double(x[i])).collect();
    let inputs: Vec<&Tensor> = checked.iter().map(|&i| &leaves[i]).collect();
    let grads = grad(&[&out], &inputs, GradOptions { grad_outputs: vec![Some(u.clone())], allow_unused: true, ..Default::default() })?;
    for (&i, g) in checked.iter().zip(&grads) {
        let v = Tensor::randn(x[i].shape(), x[i].dtype(), x[i].device(), &mut rng)?;
        let at = |step: f64| -> Result<f64> {
            let mut moved: Vec<Tensor> = x.iter().map(|x| x.detach()).collect();
            moved[i] = x[i].detach().add(&v.mul_scalar(step)?)?;
            modes::no_grad(|| inner(&u, &f(&moved)?))?.item::<f64>()
        };
        let numeric = (at(options.step)? - at(-options.step)?) / (2.0 * options.step);
        let analytic = match g {
            Some(g) => inner(g, &v)?.item::<f64>()?,
            None => 0.0,
        };
        let scale = numeric.abs().max(analytic.abs()).max(1.0);
        if (numeric - analytic).abs().partial_cmp(&(options.tolerance * scale)) != Some(std::cmp::Ordering::Less) {
            let op = out.grad_fn().map_or("a function", |n| n.schema().name);
            let got = format!("{i} of {op}: derivative {analytic:e}, difference quotient {numeric:e}");
            return Err(Error::invalid(
                "gradcheck",
                "input",
                got,
                format!("they may differ by {:e}; check the op's vjp", options.tolerance * scale),
            ));
        }
    }
    Ok(())
}

/// [`gradcheck`] of the gradients of `f`: its second derivatives.
pub fn gradgradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, x: &[&Tensor], options: GradcheckOptions) -> Result<()> {
    let out = modes::no_grad(|| f(&x.iter().map(|x| x.detach()).collect::<Vec<_>>()))?;
    if !out.dtype().is_differentiable() {
        return Ok(());
    }
    let g = Tensor::randn(out.shape(), out.dtype(), out.device(), &mut Rng::new(options.seed + 1))?;
    for wanted in (0..x.len()).filter(|&i| is_double(x[i])) {
        let gradient = |inputs: &[Tensor]| -> Result<Tensor> {
            let (operands, g) = inputs.split_at(x.len());
            modes::enable_grad(|| {
                let operands: Result<Vec<Tensor>> = operands
                    .iter()
                    .zip(x)
                    .map(|(t, x)| if t.requires_grad() || !is_double(x) { Ok(t.clone()) } else { t.detach().requires_grad_(true) })
                    .collect();
                let operands = operands?;
                let out = f(&operands)?;
                if !out.requires_grad() {
                    return x[wanted].zeros_like();
                }
                let options =
                    GradOptions { grad_outputs: vec![Some(g[0].clone())], create_graph: true, allow_unused: true, ..Default::default() };
                grad(&[&out], &[&operands[wanted]], options)?.pop().flatten().map_or_else(|| x[wanted].zeros_like(), Ok)
            })
        };
        let mut inputs: Vec<&Tensor> = x.to_vec();
        inputs.push(&g);
        gradcheck(gradient, &inputs, options)?;
    }
    Ok(())
}
