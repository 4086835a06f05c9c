//! The same without the engine: gradient and Hessian written out, in plain loops.

use super::cancer::{FEATURES, Table};

const N: usize = FEATURES + 1;

/// The loss of a standardised table; parameters are 30 weights, then the intercept.
#[derive(Debug)]
pub struct Explicit<'a> {
    table: &'a Table,
    penalty: f64,
}

/// A square matrix, row-major, by a vector.
pub fn times(matrix: &[f64], v: &[f64]) -> Vec<f64> {
    matrix.chunks_exact(v.len()).map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum()).collect()
}

/// A·x = b by elimination with pivots. Errors: A is singular.
fn solve(mut a: Vec<f64>, mut b: Vec<f64>) -> Result<Vec<f64>, String> {
    let n = b.len();
    for c in 0..n {
        let pivot = (c..n).max_by(|&i, &j| a[i * n + c].abs().total_cmp(&a[j * n + c].abs())).unwrap_or(c);
        if a[pivot * n + c] == 0.0 {
            return Err("the Hessian is singular".to_owned());
        }
        (0..n).for_each(|j| a.swap(c * n + j, pivot * n + j));
        b.swap(c, pivot);
        for i in c + 1..n {
            let factor = a[i * n + c] / a[c * n + c];
            (c..n).for_each(|j| a[i * n + j] -= factor * a[c * n + j]);
            b[i] -= factor * b[c];
        }
    }
    for i in (0..n).rev() {
        let rest: f64 = (i + 1..n).map(|j| a[i * n + j] * b[j]).sum();
        b[i] = (b[i] - rest) / a[i * n + i];
    }
    Ok(b)
}

impl<'a> Explicit<'a> {
    /// Of a table.
    pub fn new(table: &'a Table, penalty: f64) -> Explicit<'a> {
        Explicit { table, penalty }
    }

    /// Gradient and Hessian: with p = σ(x·w + b), (p − c)·(x, 1) and p(1 − p)·(x, 1)(x, 1)ᵀ in the mean, and the penalty's λw, λI.
    pub fn derivatives(&self, at: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let (mut g, mut h) = (vec![0.0; N], vec![0.0; N * N]);
        let n = self.table.y.len() as f64;
        for (row, y) in self.table.x.chunks_exact(FEATURES).zip(&self.table.y) {
            let row: Vec<f64> = row.iter().copied().chain([1.0]).collect();
            let score: f64 = row.iter().zip(at).map(|(x, w)| x * w).sum();
            let p = 1.0 / (1.0 + (-score).exp());
            let class = if *y > 0.0 { 1.0 } else { 0.0 };
            for i in 0..N {
                g[i] += (p - class) * row[i] / n;
                (0..N).for_each(|j| h[i * N + j] += p * (1.0 - p) * row[i] * row[j] / n);
            }
        }
        for i in 0..FEATURES {
            g[i] += self.penalty * at[i];
            h[i * N + i] += self.penalty;
        }
        (g, h)
    }

    /// The parameters of the least loss, by Newton's method with the Hessian solved by elimination. Errors: it doesn't settle.
    pub fn newton(&self) -> Result<Vec<f64>, String> {
        let mut at = vec![0.0; N];
        for _ in 0..50 {
            let (g, h) = self.derivatives(&at);
            let step = solve(h, g)?;
            let length = step.iter().map(|s| s * s).sum::<f64>().sqrt();
            at.iter_mut().zip(&step).for_each(|(x, s)| *x -= s);
            if length <= 1e-13 {
                return Ok(at);
            }
        }
        Err("the explicit Newton's method doesn't settle".to_owned())
    }
}
