//! The network, for all tasks at once: weights carry a leading axis of tasks, and a product of many networks is one product.

use bilin::autograd::{self, GradOptions};
use bilin::prelude::*;

/// Units of a hidden layer.
const HIDDEN: usize = 40;
/// Size of the inner gradient step.
pub const INNER: f64 = 0.01;

/// Random weights of one network: (1, H), (1, H), (H, H), (1, H), (H, 1), (1, 1).
pub fn weights(device: &Device, rng: &mut Rng) -> Result<Vec<Tensor>> {
    let mut layer = |rows: usize, columns: usize| -> Result<[Tensor; 2]> {
        let w = Tensor::randn([rows, columns], DType::F64, device, rng)?.mul_scalar((1.0 / rows as f64).sqrt())?;
        Ok([w, Tensor::zeros([1, columns], DType::F64, device)?])
    };
    Ok([layer(1, HIDDEN)?, layer(HIDDEN, HIDDEN)?, layer(HIDDEN, 1)?].concat())
}

/// Answers of shape (T, points, 1); weights of one network, or of T.
pub fn network(w: &[Tensor], x: &Tensor) -> Result<Tensor> {
    let hidden = x.matmul(&w[0])?.add(&w[1])?.tanh()?.matmul(&w[2])?.add(&w[3])?.tanh()?;
    hidden.matmul(&w[4])?.add(&w[5])
}

/// A model of T tasks: answers from weights and places.
pub type Model = fn(&[Tensor], &Tensor) -> Result<Tensor>;

/// The sum over tasks of the mean square error: each task's weights get the gradient of their own error.
pub fn error(model: Model, w: &[Tensor], [x, y]: &[Tensor; 2]) -> Result<Tensor> {
    let apart = model(w, x)?.sub(y)?;
    apart.mul(&apart)?.mean(&[-2, -1][..], false)?.sum(.., false)
}

/// Weights for each task, made of `w` by one gradient step on its points. Recorded with `create_graph`: then what is computed of
/// them has its gradient by `w` through the step; without, the step counts as a constant.
pub fn adapt(model: Model, w: &[Tensor], given: &[Tensor; 2], rate: f64, create_graph: bool) -> Result<Vec<Tensor>> {
    let tasks = given[0].shape()[0];
    let own: Vec<Tensor> = w
        .iter()
        .map(|w| if w.rank() == 2 { w.broadcast_to([tasks, w.shape()[0], w.shape()[1]]) } else { Ok(w.clone()) })
        .collect::<Result<_>>()?;
    let loss = error(model, &own, given)?;
    let options = GradOptions { create_graph, retain_graph: Some(true), ..Default::default() };
    let slopes = autograd::grad(&[&loss], &own.iter().collect::<Vec<_>>(), options)?;
    own.iter().zip(slopes.into_iter().flatten()).map(|(w, g)| w.sub(&g.mul_scalar(rate)?)).collect()
}

/// The mean error of adapted weights on points they haven't seen, as a function of the weights before.
pub fn error_after(model: Model, w: &[Tensor], given: &[Tensor; 2], asked: &[Tensor; 2], rate: f64, create_graph: bool) -> Result<Tensor> {
    let adapted = adapt(model, w, given, rate, create_graph)?;
    error(model, &adapted, asked)?.mul_scalar(1.0 / given[0].shape()[0] as f64)
}
