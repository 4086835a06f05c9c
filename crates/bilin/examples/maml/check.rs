//! The gradient through a gradient step against numbers the engine had no part in.

use bilin::autograd::{self, GradOptions};
use bilin::prelude::*;

use super::network::{INNER, error_after, network, weights};
use super::tasks::Tasks;

/// Step of the difference quotient, near the cube root of the rounding error.
const STEP: f64 = 1e-5;
/// Inner step of the linear tasks.
const LINEAR_RATE: f64 = 0.05;

/// Relative differences.
#[derive(Debug, Clone, Copy)]
pub struct Checks {
    /// Of linear tasks from their closed form.
    pub linear: f64,
    /// Of the network's from a difference quotient along a direction.
    pub quotient: f64,
    /// The same of the gradient that takes the inner step for a constant.
    pub first_order: f64,
}

fn gradients(loss: &Tensor, w: &[Tensor]) -> Result<Vec<Tensor>> {
    Ok(autograd::grad(&[loss], &w.iter().collect::<Vec<_>>(), GradOptions::default())?.into_iter().flatten().collect())
}

/// Two tasks y = X·w of three weights and four points. With H = 2/n·XᵀX and w′ = w − rate·H(w − t) for points X·t, the gradient of
/// the error after the step is the mean over tasks of (I − rate·H)·2/m·Aᵀ(A·w′ − b).
fn linear(device: &Device, rng: &mut Rng) -> Result<f64> {
    let mut of = |shape: [usize; 3]| Tensor::randn(shape, DType::F64, device, rng);
    let (given, asked) = ([of([2, 4, 3])?, of([2, 4, 1])?], [of([2, 4, 3])?, of([2, 4, 1])?]);
    let w = of([1, 3, 1])?.reshape([3, 1])?.requires_grad_(true)?;
    let loss = error_after(|w, x| x.matmul(&w[0]), std::slice::from_ref(&w), &given, &asked, LINEAR_RATE, true)?;
    let found: Vec<f64> = gradients(&loss, std::slice::from_ref(&w))?[0].to_vec()?;

    let at: Vec<f64> = w.to_vec()?;
    let read = |[x, y]: &[Tensor; 2]| -> Result<(Vec<f64>, Vec<f64>)> { Ok((x.to_vec()?, y.to_vec()?)) };
    let ((x, y), (a, b)) = (read(&given)?, read(&asked)?);
    // 2/n·Xᵀ(X·w − y), or with no y, H·w.
    let slope = |x: &[f64], y: Option<&[f64]>, w: &[f64]| -> Vec<f64> {
        let mut out = vec![0.0; 3];
        for (i, row) in x.chunks_exact(3).enumerate() {
            let r = row.iter().zip(w).map(|(x, w)| x * w).sum::<f64>() - y.map_or(0.0, |y| y[i]);
            out.iter_mut().zip(row).for_each(|(o, x)| *o += 2.0 / 4.0 * x * r);
        }
        out
    };
    let mut want = vec![0.0; 3];
    for t in 0..2 {
        let (x, y, a, b) = (&x[t * 12..][..12], &y[t * 4..][..4], &a[t * 12..][..12], &b[t * 4..][..4]);
        let moved: Vec<f64> = at.iter().zip(slope(x, Some(y), &at)).map(|(w, g)| w - LINEAR_RATE * g).collect();
        let g = slope(a, Some(b), &moved);
        let bent = slope(x, None, &g);
        want.iter_mut().zip(g.iter().zip(&bent)).for_each(|(o, (g, h))| *o += (g - LINEAR_RATE * h) / 2.0);
    }
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let apart: Vec<f64> = found.iter().zip(&want).map(|(a, b)| a - b).collect();
    Ok(norm(&apart) / norm(&want))
}

/// All of them.
pub fn checks(seed: u64, device: &Device) -> Result<Checks> {
    let mut rng = Rng::new(seed);
    let tasks = Tasks::draw(4, device, &mut rng)?;
    let w: Vec<Tensor> = weights(device, &mut rng)?.into_iter().map(|w| w.requires_grad_(true)).collect::<Result<_>>()?;
    let directions: Vec<Tensor> = w.iter().map(|w| Tensor::randn(w.shape(), DType::F64, device, &mut rng)).collect::<Result<_>>()?;
    // A large inner step, so that its own derivative shows.
    let rate = 5.0 * INNER;
    let after = |w: &[Tensor], create_graph: bool| error_after(network, w, &tasks.given, &tasks.asked, rate, create_graph);
    let along = |create_graph: bool| -> Result<f64> {
        let grads = gradients(&after(&w, create_graph)?, &w)?;
        let parts: Result<Vec<f64>> = grads.iter().zip(&directions).map(|(g, v)| g.mul(v)?.sum(.., false)?.item::<f64>()).collect();
        Ok(parts?.iter().sum())
    };
    let at = |by: f64| -> Result<f64> {
        let moved = w.iter().zip(&directions).map(|(w, v)| w.detach().add(&v.mul_scalar(by)?)?.requires_grad_(true));
        after(&moved.collect::<Result<Vec<_>>>()?, false)?.item()
    };
    let quotient = (at(STEP)? - at(-STEP)?) / (2.0 * STEP);
    let relative = |x: f64| (x - quotient).abs() / quotient.abs().max(f64::MIN_POSITIVE);
    Ok(Checks { linear: linear(device, &mut rng)?, quotient: relative(along(true)?), first_order: relative(along(false)?) })
}
