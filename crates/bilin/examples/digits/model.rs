//! The classifier: 64 pixels → 128 hidden units → 10 classes.

use bilin::prelude::*;

use super::data::{CLASSES, PIXELS};

/// Hidden units.
const HIDDEN: usize = 128;

/// Two layers: weights (in, out) and biases (out).
#[derive(Debug)]
pub struct Model {
    layers: [(Tensor, Tensor); 2],
}

impl Model {
    /// Random weights of variance 2/inputs and zero biases. Source: He et al., "Delving deep into rectifiers", ICCV 2015.
    pub fn new(rng: &mut Rng, device: &Device) -> Result<Model> {
        let mut layer = |inputs: usize, outputs: usize| -> Result<(Tensor, Tensor)> {
            let scale = (2.0 / inputs as f64).sqrt();
            let weight = Tensor::randn([inputs, outputs], DType::F32, device, rng)?.mul_scalar(scale)?.requires_grad_(true)?;
            Ok((weight, Tensor::zeros([outputs], DType::F32, device)?.requires_grad_(true)?))
        };
        Ok(Model { layers: [layer(PIXELS, HIDDEN)?, layer(HIDDEN, CLASSES)?] })
    }

    /// What an optimiser changes.
    pub fn parameters(&self) -> Vec<Tensor> {
        self.layers.iter().flat_map(|(w, b)| [w.clone(), b.clone()]).collect()
    }

    /// (N, 64) → (N, 10): the greater, the likelier the class.
    pub fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let [(w1, b1), (w2, b2)] = &self.layers;
        let hidden = x.matmul(w1)?.add(b1)?.relu()?;
        hidden.matmul(w2)?.add(b2)
    }
}
