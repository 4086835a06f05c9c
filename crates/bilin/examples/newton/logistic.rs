//! The loss: mean log loss of the classes and a penalty on the weights. Parameters are 30 weights, then the intercept.

use bilin::autograd;
use bilin::prelude::*;

use super::cancer::{FEATURES, Table};

/// The problem on a device.
#[derive(Debug)]
pub struct Logistic {
    x: Tensor,
    classes: Tensor,
    penalty: f64,
}

impl Logistic {
    /// Of a standardised table.
    pub fn new(table: &Table, penalty: f64, device: &Device) -> Result<Logistic> {
        let classes: Vec<i64> = table.y.iter().map(|&y| i64::from(y > 0.0)).collect();
        let (x, _) = table.tensors(device)?;
        Ok(Logistic { x, classes: Tensor::from_slice(&classes, [classes.len()], device)?, penalty })
    }

    /// The loss of weights of shape (30) and an intercept of shape ().
    fn loss(&self, p: &[Tensor]) -> Result<Tensor> {
        let scores = self.x.matvec(&p[0])?.add(&p[1])?;
        let logits = bilin::stack(&[&scores.zeros_like()?, &scores], 1)?;
        let penalty = p[0].dot(&p[0])?.mul_scalar(self.penalty / 2.0)?;
        logits.cross_entropy(&self.classes)?.add(&penalty)
    }

    fn parameters(&self, values: &[f64]) -> Result<[Tensor; 2]> {
        let (w, b) = values.split_at(FEATURES);
        Ok([Tensor::from_slice(w, [FEATURES], self.x.device())?, Tensor::from_slice(b, [], self.x.device())?])
    }

    fn flat(parts: &[Tensor]) -> Result<Vec<f64>> {
        Ok(parts.iter().map(Tensor::to_vec::<f64>).collect::<Result<Vec<_>>>()?.concat())
    }

    /// The loss and its gradient.
    pub fn value_and_gradient(&self, at: &[f64]) -> Result<(f64, Vec<f64>)> {
        let [w, b] = self.parameters(at)?;
        let (value, grads) = autograd::value_and_grad(|p| self.loss(p), &[&w, &b])?;
        Ok((value.item()?, Self::flat(&grads)?))
    }

    /// The product of the Hessian with a direction.
    pub fn hessian_product(&self, at: &[f64], direction: &[f64]) -> Result<Vec<f64>> {
        let ([w, b], [v, c]) = (self.parameters(at)?, self.parameters(direction)?);
        Self::flat(&autograd::hvp(|p| self.loss(p), &[&w, &b], &[&v, &c])?)
    }
}

/// Rows of a table on whose side of the plane their class lies.
pub fn right(parameters: &[f64], table: &Table) -> usize {
    let score = |row: &[f64]| row.iter().zip(parameters).map(|(x, w)| x * w).sum::<f64>() + parameters[FEATURES];
    table.x.chunks_exact(FEATURES).zip(&table.y).filter(|(row, y)| score(row) * **y > 0.0).count()
}
