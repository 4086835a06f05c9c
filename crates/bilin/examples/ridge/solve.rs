//! Ridge regression by its normal equations, (XᵀX + λI)·w = Xᵀy, solved by conjugate gradients of differentiable products.

use bilin::prelude::*;

use super::problem::Problem;

/// Residuals of this share of |Xᵀy| end a round.
const TOLERANCE: f64 = 1e-13;
/// Steps a round at most.
const MOST_STEPS: usize = 400;
/// Rounds: the first solves, the second solves for what is left. Rounding in the recurrence hurts the derivatives of the steps
/// long before it hurts the solution; the second round mends both.
const ROUNDS: usize = 2;

/// The normal equations, and the part that judges the weights.
#[derive(Debug)]
pub struct Ridge {
    gram: Tensor,
    moment: Tensor,
    x: Tensor,
    y: Tensor,
}

impl Ridge {
    /// The equations of a problem, on a device.
    pub fn new(problem: &Problem, device: &Device) -> Result<Ridge> {
        let (x, y) = problem.training.tensors(device)?;
        let (gram, moment) = (x.t()?.matmul(&x)?, x.t()?.matvec(&y)?);
        let (x, y) = problem.validation.tensors(device)?;
        Ok(Ridge { gram, moment, x, y })
    }

    /// (XᵀX + λI)·v.
    fn system(&self, lambda: &Tensor, v: &Tensor) -> Result<Tensor> {
        self.gram.matvec(v)?.add(&v.mul(lambda)?)
    }

    /// Conjugate gradients from 0 for the right side `b`, every step recorded. Source: Hestenes and Stiefel, "Methods of
    /// conjugate gradients for solving linear systems", 1952.
    fn conjugate_gradients(&self, lambda: &Tensor, b: &Tensor) -> Result<Tensor> {
        let (mut w, mut r, mut p) = (b.zeros_like()?, b.clone(), b.clone());
        let mut rr = r.vecdot(&r)?;
        let enough = TOLERANCE.powi(2) * rr.item::<f64>()?;
        for _ in 0..MOST_STEPS {
            if rr.item::<f64>()? <= enough {
                break;
            }
            let ap = self.system(lambda, &p)?;
            let alpha = rr.div(&p.vecdot(&ap)?)?;
            w = w.add(&p.mul(&alpha)?)?;
            r = r.sub(&ap.mul(&alpha)?)?;
            let next = r.vecdot(&r)?;
            p = r.add(&p.mul(&next.div(&rr)?)?)?;
            rr = next;
        }
        Ok(w)
    }

    /// The weights of a ridge strength λ of shape ().
    pub fn weights(&self, lambda: &Tensor) -> Result<Tensor> {
        let mut w = self.conjugate_gradients(lambda, &self.moment)?;
        for _ in 1..ROUNDS {
            let left = self.moment.sub(&self.system(lambda, &w)?)?;
            w = w.add(&self.conjugate_gradients(lambda, &left)?)?;
        }
        Ok(w)
    }

    /// The mean square error of the validation part at λ = exp(θ), θ of shape ().
    pub fn loss(&self, theta: &Tensor) -> Result<Tensor> {
        let r = self.x.matvec(&self.weights(&theta.exp()?)?)?.sub(&self.y)?;
        r.mul(&r)?.mean(.., false)
    }
}
