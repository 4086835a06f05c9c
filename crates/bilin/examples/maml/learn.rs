//! Learning: Adam on the error after adapting.

use bilin::optim::AdamW;
use bilin::prelude::*;

use super::network::{INNER, adapt, error, error_after, network, weights};
use super::tasks::Tasks;

/// Sines a step.
const BATCH: usize = 16;
/// Sines that learning never sees.
const JUDGES: usize = 200;
/// Size of the outer steps.
const RATE: f64 = 0.002;
/// Gradient steps that are shown on new sines.
const SHOWN: usize = 5;

/// How a run learns.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Outer steps.
    pub steps: usize,
    /// Of weights and sines.
    pub seed: u64,
}

/// Errors on new sines after some steps.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// How many.
    pub step: usize,
    /// Before the gradient step.
    pub before: f64,
    /// After it.
    pub after: f64,
}

/// What a run found.
#[derive(Debug)]
pub struct Trained {
    /// Some entries, the last at the end.
    pub history: Vec<Entry>,
    /// Errors on new sines after 0, 1, … gradient steps from the learned weights.
    pub learned: Vec<f64>,
    /// The same from random weights.
    pub random: Vec<f64>,
}

/// Mean errors on new sines after 0, 1, … gradient steps.
fn errors(w: &[Tensor], tasks: &Tasks) -> Result<Vec<f64>> {
    let count = tasks.given[0].shape()[0] as f64;
    let mut own: Vec<Tensor> = w.iter().map(|w| w.detach().requires_grad_(true)).collect::<Result<_>>()?;
    let mut out = vec![error(network, &own, &tasks.asked)?.item::<f64>()? / count];
    for _ in 0..SHOWN {
        own = adapt(network, &own, &tasks.given, INNER, false)?.iter().map(|w| w.detach().requires_grad_(true)).collect::<Result<_>>()?;
        out.push(error(network, &own, &tasks.asked)?.item::<f64>()? / count);
    }
    Ok(out)
}

/// Learns and judges.
pub fn learn(settings: Settings, device: &Device) -> Result<Trained> {
    let mut rng = Rng::new(settings.seed);
    let judges = Tasks::draw(JUDGES, device, &mut rng)?;
    let w: Vec<Tensor> = weights(device, &mut rng)?.into_iter().map(|w| w.requires_grad_(true)).collect::<Result<_>>()?;
    let random = errors(&w, &judges)?;
    let mut adam = AdamW::new(&w, RATE)?;
    adam.weight_decay = 0.0;
    let mut history = Vec::new();
    for step in 0..settings.steps {
        if step % settings.steps.div_ceil(8) == 0 {
            let e = errors(&w, &judges)?;
            history.push(Entry { step, before: e[0], after: e[1] });
        }
        let tasks = Tasks::draw(BATCH, device, &mut rng)?;
        adam.zero_grad();
        error_after(network, &w, &tasks.given, &tasks.asked, INNER, true)?.backward()?;
        adam.step()?;
    }
    let learned = errors(&w, &judges)?;
    history.push(Entry { step: settings.steps, before: learned[0], after: learned[1] });
    Ok(Trained { history, learned, random })
}
