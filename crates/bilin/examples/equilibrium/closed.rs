//! The gradients without the engine: the fixed point by plain loops, the adjoint equation by elimination.

/// Gradients of ½|z|² by W, U, x, b, one after the other. With D = diag(1 − z²): (I − Wᵀ·D)·u = z, r = D·u, and then ∂W = r·zᵀ,
/// ∂U = r·xᵀ, ∂x = Uᵀ·r, ∂b = r. Errors: the equation is singular.
pub fn gradients(parameters: &[Vec<f64>]) -> Result<Vec<f64>, String> {
    let [w, u, x, b] = parameters else { return Err("want W, U, x and b".to_owned()) };
    let (n, k) = (b.len(), x.len());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut z = vec![0.0; n];
    for _ in 0..5000 {
        z = (0..n).map(|i| (dot(&w[i * n..(i + 1) * n], &z) + dot(&u[i * k..(i + 1) * k], x) + b[i]).tanh()).collect();
    }
    let slope: Vec<f64> = z.iter().map(|z| 1.0 - z * z).collect();
    let mut a: Vec<f64> = (0..n * n).map(|at| f64::from(at / n == at % n) - w[(at % n) * n + at / n] * slope[at % n]).collect();
    let mut r = z.clone();
    for c in 0..n {
        let pivot = (c..n).max_by(|&i, &j| a[i * n + c].abs().total_cmp(&a[j * n + c].abs())).unwrap_or(c);
        if a[pivot * n + c] == 0.0 {
            return Err("I − D·W is singular".to_owned());
        }
        (0..n).for_each(|j| a.swap(c * n + j, pivot * n + j));
        r.swap(c, pivot);
        for i in c + 1..n {
            let factor = a[i * n + c] / a[c * n + c];
            (c..n).for_each(|j| a[i * n + j] -= factor * a[c * n + j]);
            r[i] -= factor * r[c];
        }
    }
    for i in (0..n).rev() {
        let rest: f64 = (i + 1..n).map(|j| a[i * n + j] * r[j]).sum();
        r[i] = (r[i] - rest) / a[i * n + i];
    }
    r.iter_mut().zip(&slope).for_each(|(u, d)| *u *= d);
    let by_w = r.iter().flat_map(|r| z.iter().map(move |z| r * z));
    let by_u = r.iter().flat_map(|r| x.iter().map(move |x| r * x));
    let by_x = (0..k).map(|j| (0..n).map(|i| u[i * k + j] * r[i]).sum());
    Ok(by_w.chain(by_u).chain(by_x).chain(r.iter().copied()).collect())
}
