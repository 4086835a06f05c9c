//! The layer, and its gradients by three ways.

use std::sync::Arc;

use bilin::autograd::{self, GradOptions};
use bilin::prelude::*;

use super::arguments::Failure;
use super::closed;
use super::fixed_point::{Step, fixed_point};

/// The spectral radius of W, about: below 1 the step is a contraction near the fixed point.
const SPREAD: f64 = 0.8;
/// Depths at which the iteration is differentiated through.
const DEPTHS: [usize; 4] = [5, 20, 80, 320];
/// Step of the difference quotient, near the cube root of the rounding error.
const STEP: f64 = 1e-5;

/// z = tanh(W·z + U·x + b); the parameters are W (N, N), U (N, 8), x (8), b (N).
#[derive(Debug)]
pub struct Layer {
    parameters: Vec<Tensor>,
    directions: Vec<Tensor>,
}

/// The iteration to some depth, differentiated through.
#[derive(Debug)]
pub struct Unrolled {
    /// Depth.
    pub steps: usize,
    /// What its graph holds.
    pub bytes: u64,
    /// The gradients' distance from the closed form.
    pub difference: f64,
}

/// What the ways answer.
#[derive(Debug)]
pub struct Answers {
    /// By depth.
    pub unrolled: Vec<Unrolled>,
    /// What the implicit graph holds.
    pub bytes: u64,
    /// The implicit gradients' distance from the closed form.
    pub implicit: f64,
    /// The distance of the implicit gradients' derivative from a difference quotient.
    pub second: f64,
}

fn step(z: &Tensor, p: &[Tensor]) -> Result<Tensor> {
    p[0].matvec(z)?.add(&p[1].matvec(&p[2])?)?.add(&p[3])?.tanh()
}

fn half_square(z: &Tensor) -> Result<Tensor> {
    z.dot(z)?.mul_scalar(0.5)
}

fn start(p: &[Tensor]) -> Result<Tensor> {
    p[3].detach().zeros_like()
}

fn implicit(p: &[Tensor]) -> Result<Tensor> {
    let step: Step = Arc::new(step);
    half_square(&fixed_point(step, &start(p)?, p)?)
}

fn unrolled(p: &[Tensor], steps: usize) -> Result<Tensor> {
    half_square(&(0..steps).try_fold(start(p)?, |z, _| step(&z, p))?)
}

impl Layer {
    /// Random parameters, W scaled down to a contraction.
    pub fn new(states: usize, seed: u64, device: &Device) -> Result<Layer> {
        let mut rng = Rng::new(seed);
        let shapes: [&[usize]; 4] = [&[states, states], &[states, 8], &[8], &[states]];
        let mut draw = || -> Result<Vec<Tensor>> { shapes.iter().map(|s| Tensor::randn(s, DType::F64, device, &mut rng)).collect() };
        let (mut parameters, directions) = (draw()?, draw()?);
        parameters[0] = parameters[0].mul_scalar(SPREAD / (states as f64).sqrt())?;
        Ok(Layer { parameters, directions })
    }

    /// A recorded loss and its gradients, flat, and the bytes that the graph holds.
    fn gradients(&self, f: impl Fn(&[Tensor]) -> Result<Tensor>, at: &[Tensor]) -> Result<(Vec<f64>, u64)> {
        let device = at[0].device().clone();
        let leaves: Vec<Tensor> = at.iter().map(|t| t.detach().requires_grad_(true)).collect::<Result<_>>()?;
        let before = device.memory_stats().current_bytes;
        let loss = f(&leaves)?;
        // Others who use the device meanwhile are counted too.
        let bytes = device.memory_stats().current_bytes.saturating_sub(before);
        let grads = autograd::grad(&[&loss], &leaves.iter().collect::<Vec<_>>(), GradOptions::default())?;
        Ok((flat(&grads.into_iter().flatten().collect::<Vec<_>>())?, bytes))
    }

    fn moved(&self, by: f64) -> Result<Vec<Tensor>> {
        self.parameters.iter().zip(&self.directions).map(|(p, v)| p.add(&v.mul_scalar(by)?)).collect()
    }
}

fn flat(parts: &[Tensor]) -> Result<Vec<f64>> {
    Ok(parts.iter().map(Tensor::to_vec::<f64>).collect::<Result<Vec<_>>>()?.concat())
}

fn apart(a: &[f64], b: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()).max(f64::MIN_POSITIVE)
}

/// All of them.
pub fn answers(layer: &Layer) -> std::result::Result<Answers, Failure> {
    let p = &layer.parameters;
    let want = closed::gradients(&p.iter().map(Tensor::to_vec).collect::<Result<Vec<Vec<f64>>>>()?).map_err(Failure::Run)?;
    let mut depths = Vec::new();
    for steps in DEPTHS {
        let (grads, bytes) = layer.gradients(|p| unrolled(p, steps), p)?;
        depths.push(Unrolled { steps, bytes, difference: apart(&grads, &want) });
    }
    let (grads, bytes) = layer.gradients(implicit, p)?;

    // Reverse over reverse: the gradient of ⟨gradient, direction⟩.
    let leaves: Vec<Tensor> = p.iter().map(|t| t.detach().requires_grad_(true)).collect::<Result<_>>()?;
    let wanted: Vec<&Tensor> = leaves.iter().collect();
    let recorded = GradOptions { create_graph: true, ..Default::default() };
    let first = autograd::grad(&[&implicit(&leaves)?], &wanted, recorded)?;
    let cotangents = layer.directions.iter().cloned().map(Some).collect();
    let first: Vec<Tensor> = first.into_iter().flatten().collect();
    let along = GradOptions { grad_outputs: cotangents, ..Default::default() };
    let second = autograd::grad(&first.iter().collect::<Vec<_>>(), &wanted, along)?;
    let (up, _) = layer.gradients(implicit, &layer.moved(STEP)?)?;
    let (down, _) = layer.gradients(implicit, &layer.moved(-STEP)?)?;
    let quotient: Vec<f64> = up.iter().zip(&down).map(|(a, b)| (a - b) / (2.0 * STEP)).collect();
    let second = apart(&flat(&second.into_iter().flatten().collect::<Vec<_>>())?, &quotient);
    Ok(Answers { unrolled: depths, bytes, implicit: apart(&grads, &want), second })
}
