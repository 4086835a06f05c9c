//! Gradients against finite differences, along random directions.

use std::collections::VecDeque;

use super::reverse::{GradOptions, grad};
use crate::api::Rng;
use crate::ops::astype;
use crate::schema::modes;
use crate::shape::dtype::{DType, c128};
use crate::shape::error::{Error, Result};
use crate::tape::{Node, NodeInput, Tensor};

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

/// Numbers of random sign or phase and of sizes in [½, 1½): no element is so small that an error there could hide.
fn random(like: &Tensor, rng: &mut Rng) -> Result<Tensor> {
    let size = Tensor::rand(like.shape(), DType::F64, like.device(), rng)?.add_scalar(0.5)?;
    let size = astype(&size, like.dtype())?;
    Tensor::randn(like.shape(), like.dtype(), like.device(), rng)?.sign()?.mul(&size)
}

/// The names of the ops that made a result, last first, each once.
fn ops_of(out: &Tensor) -> String {
    const MOST: usize = 8;
    let (mut names, mut seen): (Vec<&str>, Vec<Node>) = (Vec::new(), Vec::new());
    let mut next: VecDeque<Node> = out.grad_fn().into_iter().collect();
    while let Some(node) = next.pop_front().filter(|_| names.len() < MOST) {
        if seen.iter().any(|n| n.is_same(&node)) {
            continue;
        }
        if !names.contains(&node.schema().name) {
            names.push(node.schema().name);
        }
        next.extend(node.inputs().iter().filter_map(|i| if let NodeInput::Interior(edge) = i { Some(edge.node.clone()) } else { None }));
        seen.push(node);
    }
    names.join(" of ")
}

/// A function at a point, for difference quotients of ⟨u, f⟩.
struct Probe<'a, F> {
    f: F,
    x: &'a [&'a Tensor],
    u: Tensor,
    step: f64,
}

impl<F: Fn(&[Tensor]) -> Result<Tensor>> Probe<'_, F> {
    /// The central difference along the direction `v` of input `i`.
    fn quotient(&self, i: usize, v: &Tensor) -> Result<f64> {
        let at = |step: f64| -> Result<f64> {
            let mut moved: Vec<Tensor> = self.x.iter().map(|x| x.detach()).collect();
            moved[i] = self.x[i].detach().add(&v.mul_scalar(step)?)?;
            modes::no_grad(|| inner(&self.u, &(self.f)(&moved)?))?.item::<f64>()
        };
        Ok((at(self.step)? - at(-self.step)?) / (2.0 * self.step))
    }

    /// How far quotient and gradient are apart along `v`.
    fn apart(&self, i: usize, g: &Tensor, v: &Tensor) -> Result<f64> {
        let apart = (self.quotient(i, v)? - inner(g, v)?.item::<f64>()?).abs();
        Ok(if apart.is_nan() { f64::INFINITY } else { apart })
    }

    /// An element of input `i` at which gradient and quotient differ, and both there, as text: halves of the direction `v` are
    /// tried until one element is left.
    fn locate(&self, i: usize, g: &Tensor, v: &Tensor) -> Result<String> {
        let (n, device) = (v.numel(), v.device());
        let weights: Vec<c128> = v.astype(DType::C128)?.to_vec()?;
        let direction = |part: &dyn Fn(usize) -> c128| -> Result<Tensor> {
            let flat: Vec<c128> = (0..n).map(part).collect();
            let flat = Tensor::from_vec(flat, v.shape(), device)?;
            if v.dtype().is_complex() { Ok(flat) } else { flat.real() }
        };
        let (mut low, mut high) = (0, n);
        while high - low > 1 {
            let middle = low.midpoint(high);
            let of = |from: usize, to: usize| direction(&|e| if (from..to).contains(&e) { weights[e] } else { c128::default() });
            if self.apart(i, g, &of(low, middle)?)? >= self.apart(i, g, &of(middle, high)?)? {
                high = middle;
            } else {
                low = middle;
            }
        }
        let unit = |z: c128| direction(&|e| if e == low { z } else { c128::default() });
        let numbers = |z: c128| -> Result<[f64; 2]> { Ok([inner(g, &unit(z)?)?.item()?, self.quotient(i, &unit(z)?)?]) };
        let [derivative, quotient] = numbers(c128::new(1.0, 0.0))?;
        let mut text = [format!("{derivative:e}"), format!("{quotient:e}")];
        if v.dtype().is_complex() {
            let parts = numbers(c128::new(0.0, 1.0))?;
            text.iter_mut().zip(parts).for_each(|(t, im)| *t += &format!("{im:+e}i"));
        }
        let mut rest = low;
        let mut index: Vec<String> = v.shape().iter().rev().map(|&len| (rest % len, rest /= len).0.to_string()).collect();
        index.reverse();
        let [derivative, quotient] = text;
        Ok(format!("at element [{}] the derivative is {derivative}, the difference quotient {quotient}", index.join(", ")))
    }
}

/// Compares the gradients of `f` at `x` with central differences of ⟨u, f⟩ for a random u, along a random direction for
/// each input; inputs are f64 or c128 and may be strided or broadcast, others are held fixed. Cost: two calls of `f` an input;
/// where one is wrong, some 4·log₂(elements) more find an element.
///
/// Errors: `InvalidArgument` naming the ops, the input, the element and both numbers.
///
/// ```
/// use bilin_core::autograd::{gradcheck, GradcheckOptions};
/// use bilin_core::{DType, Device, Rng, Tensor};
/// let mut rng = Rng::new(1);
/// let a = Tensor::randn([3, 4], DType::F64, &Device::reference(), &mut rng)?;
/// gradcheck(|x| x[0].matmul(&x[0].mt()?)?.tanh(), &[&a], GradcheckOptions::default())?;
/// // A gradient that is cut is found.
/// let cut = |x: &[Tensor]| x[0].mul(&x[0].detach());
/// assert!(gradcheck(cut, &[&a], GradcheckOptions::default()).unwrap_err().to_string().contains("of mul"));
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn gradcheck(f: impl Fn(&[Tensor]) -> Result<Tensor>, x: &[&Tensor], options: GradcheckOptions) -> Result<()> {
    let mut rng = Rng::new(options.seed);
    let leaves: Result<Vec<Tensor>> = x.iter().map(|x| x.detach().requires_grad_(is_double(x))).collect();
    let leaves = leaves?;
    let out = modes::enable_grad(|| f(&leaves))?;
    if !out.requires_grad() {
        return Ok(());
    }
    let u = random(&out.detach(), &mut rng)?;
    let checked: Vec<usize> = (0..x.len()).filter(|&i| is_double(x[i])).collect();
    let inputs: Vec<&Tensor> = checked.iter().map(|&i| &leaves[i]).collect();
    let ops = ops_of(&out);
    let grads = grad(&[&out], &inputs, GradOptions { grad_outputs: vec![Some(u.clone())], allow_unused: true, ..Default::default() })?;
    let probe = Probe { f, x, u, step: options.step };
    for (&i, g) in checked.iter().zip(grads) {
        let g = g.map_or_else(|| x[i].zeros_like(), Ok)?;
        let v = random(x[i], &mut rng)?;
        let (numeric, analytic) = (probe.quotient(i, &v)?, inner(&g, &v)?.item::<f64>()?);
        let bound = options.tolerance * numeric.abs().max(analytic.abs()).max(1.0);
        if (numeric - analytic).abs().partial_cmp(&bound) != Some(std::cmp::Ordering::Less) {
            let found = probe.locate(i, &g, &v)?;
            let got = format!("{i} of {ops}: {found}; along a random direction they are {analytic:e} and {numeric:e}");
            return Err(Error::invalid("gradcheck", "input", got, format!("they may differ by {bound:e}; check the op's vjp")));
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
    let g = random(&out, &mut Rng::new(options.seed.wrapping_add(1)))?;
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
