//! The same derivatives without the engine: closed forms over a Cholesky factor, in plain loops.

use super::problem::{FEATURES, Problem, Table};

/// The normal equations, and the part that judges the weights.
#[derive(Debug)]
pub struct ClosedForm {
    gram: Vec<f64>,
    moment: Vec<f64>,
    validation: Table,
}

/// What is known at one λ = exp(θ).
#[derive(Debug, Clone)]
pub struct Point {
    /// w.
    pub weights: Vec<f64>,
    /// dw/dλ = −(XᵀX + λI)⁻¹·w.
    pub slope: Vec<f64>,
    /// Mean square error of the validation part.
    pub loss: f64,
    /// Its derivative by θ.
    pub first: f64,
    /// Its second derivative by θ.
    pub second: f64,
    /// A bound on the terms that the derivative is the sum of: what rounding errors of it are measured by where it nears 0.
    pub scale: f64,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn times(x: &[f64], v: &[f64]) -> Vec<f64> {
    x.chunks_exact(FEATURES).map(|row| dot(row, v)).collect()
}

/// The lower factor L of A = L·Lᵀ. Errors: A isn't positive definite.
fn cholesky(a: &[f64], n: usize) -> Result<Vec<f64>, String> {
    let mut l = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let rest = a[i * n + j] - dot(&l[i * n..i * n + j], &l[j * n..j * n + j]);
            l[i * n + j] = if i > j {
                rest / l[j * n + j]
            } else if rest > 0.0 {
                rest.sqrt()
            } else {
                return Err("XᵀX + λI isn't positive definite".to_owned());
            };
        }
    }
    Ok(l)
}

/// L·Lᵀ·x = b.
fn solve(l: &[f64], b: &[f64]) -> Vec<f64> {
    let n = b.len();
    let mut x = b.to_vec();
    for i in 0..n {
        x[i] = (x[i] - dot(&l[i * n..i * n + i], &x[..i])) / l[i * n + i];
    }
    for i in (0..n).rev() {
        let below: f64 = (i + 1..n).map(|j| l[j * n + i] * x[j]).sum();
        x[i] = (x[i] - below) / l[i * n + i];
    }
    x
}

impl ClosedForm {
    /// The equations of a problem.
    pub fn new(problem: &Problem) -> ClosedForm {
        let Table { x, y } = &problem.training;
        let mut gram = vec![0.0; FEATURES * FEATURES];
        let mut moment = vec![0.0; FEATURES];
        for (row, y) in x.chunks_exact(FEATURES).zip(y) {
            for (i, a) in row.iter().enumerate() {
                moment[i] += a * y;
                row.iter().enumerate().for_each(|(j, b)| gram[i * FEATURES + j] += a * b);
            }
        }
        ClosedForm { gram, moment, validation: problem.validation.clone() }
    }

    /// Weights, loss and derivatives at λ = exp(θ). With A = XᵀX + λI: A·w = Xᵀy, A·w′ = −w, A·w″ = −2w′.
    pub fn at(&self, theta: f64) -> Result<Point, String> {
        let lambda = theta.exp();
        let mut a = self.gram.clone();
        a.iter_mut().step_by(FEATURES + 1).for_each(|d| *d += lambda);
        let l = cholesky(&a, FEATURES)?;
        let weights = solve(&l, &self.moment);
        let slope: Vec<f64> = solve(&l, &weights).iter().map(|x| -x).collect();
        let bend: Vec<f64> = solve(&l, &slope).iter().map(|x| -2.0 * x).collect();

        let Table { x, y } = &self.validation;
        let n = y.len() as f64;
        let r: Vec<f64> = times(x, &weights).iter().zip(y).map(|(a, b)| a - b).collect();
        let (r1, r2) = (times(x, &slope), times(x, &bend));
        let by_lambda = 2.0 / n * dot(&r, &r1);
        let second = lambda * by_lambda + lambda * lambda * 2.0 / n * (dot(&r1, &r1) + dot(&r, &r2));
        let scale = lambda * 2.0 / n * (dot(&r, &r) * dot(&r1, &r1)).sqrt();
        Ok(Point { weights, slope, loss: dot(&r, &r) / n, first: lambda * by_lambda, second, scale })
    }
}
