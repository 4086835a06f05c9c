//! Newton's method: H·s = −g by conjugate gradients, then the longest of 1, ½, ¼, … that lowers the loss enough.

use bilin::Result;

use super::cancer::FEATURES;
use super::logistic::Logistic;

/// Gradients of this norm end the search.
const SMALL: f64 = 1e-10;
/// Newton steps at most.
const MOST_STEPS: usize = 50;
/// Share of the decrease that the slope promises which a step must keep. Source: Armijo, 1966.
const SHARE: f64 = 1e-4;

/// What one Newton step saw.
#[derive(Debug, Clone)]
pub struct Step {
    /// The parameters before it.
    pub at: Vec<f64>,
    /// The loss there.
    pub loss: f64,
    /// The gradient there.
    pub gradient: Vec<f64>,
    /// Hessian-vector products it took.
    pub products: usize,
    /// The share of the step that was gone; 0 for the last, which finds the gradient small.
    pub length: f64,
}

impl Step {
    /// The norm of the gradient.
    pub fn gradient_norm(&self) -> f64 {
        norm(&self.gradient)
    }
}

/// The steps of a fit and where they end.
#[derive(Debug)]
pub struct Fit {
    /// From the first.
    pub steps: Vec<Step>,
    /// Weights and intercept.
    pub parameters: Vec<f64>,
    /// Whether the last gradient is small.
    pub converged: bool,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}
/// a + t·b.
fn along(a: &[f64], t: f64, b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + t * b).collect()
}

/// H·s = −g to a residual of min(½, √|g|)·|g|: loose far away, so that no product is wasted, tight enough near the end for
/// steps that converge faster than linearly. Source: Dembo and Steihaug, "Truncated-Newton algorithms", 1983.
fn conjugate_gradients(logistic: &Logistic, at: &[f64], g: &[f64]) -> Result<(Vec<f64>, usize)> {
    let enough = norm(g) * norm(g).sqrt().min(0.5);
    let (mut s, mut r) = (vec![0.0; g.len()], along(&vec![0.0; g.len()], -1.0, g));
    let (mut p, mut rr, mut products) = (r.clone(), dot(&r, &r), 0);
    while rr.sqrt() > enough && products < 4 * g.len() {
        let hp = logistic.hessian_product(at, &p)?;
        products += 1;
        let alpha = rr / dot(&p, &hp);
        s = along(&s, alpha, &p);
        r = along(&r, -alpha, &hp);
        let next = dot(&r, &r);
        p = along(&r, next / rr, &p);
        rr = next;
    }
    Ok((s, products))
}

/// From zero weights to a small gradient.
pub fn newton(logistic: &Logistic) -> Result<Fit> {
    let (mut at, mut steps) = (vec![0.0; FEATURES + 1], Vec::new());
    for _ in 0..MOST_STEPS {
        let (loss, gradient) = logistic.value_and_gradient(&at)?;
        if norm(&gradient) <= SMALL {
            steps.push(Step { at: at.clone(), loss, gradient, products: 0, length: 0.0 });
            return Ok(Fit { steps, parameters: at, converged: true });
        }
        let (direction, products) = conjugate_gradients(logistic, &at, &gradient)?;
        let slope = dot(&gradient, &direction);
        let mut length = 1.0;
        // Below this the loss no longer tells two points apart.
        while length > 1e-6 && logistic.value_and_gradient(&along(&at, length, &direction))?.0 > loss + SHARE * length * slope + 1e-15 {
            length /= 2.0;
        }
        let next = along(&at, length, &direction);
        steps.push(Step { at, loss, gradient, products, length });
        at = next;
    }
    Ok(Fit { steps, parameters: at, converged: false })
}
