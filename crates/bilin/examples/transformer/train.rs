//! The training loop, and a text from the model.

use bilin::optim::{AdamW, clip_grad_norm};
use bilin::prelude::*;
use bilin::profiler::{self, Profile, record_function};

use super::arguments::Failure;
use super::model::{Model, Shape};
use super::text::Text;

/// Windows a step.
const BATCH: usize = 16;

/// How to train.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Steps.
    pub steps: usize,
    /// Seed of the weights, the windows and the text at the end.
    pub seed: u64,
    /// Step size at the start; it falls to 0 in a straight line.
    pub lr: f64,
    /// The dtype of an autocast scope around the model and its loss.
    pub autocast: Option<DType>,
    /// Lengths of the model.
    pub shape: Shape,
}

/// What training gives.
#[derive(Debug)]
pub struct Outcome {
    /// The model.
    pub model: Model,
    /// Loss of each step, in nats a character.
    pub losses: Vec<f64>,
    /// Loss of the text held back, in f32.
    pub held_back: f64,
    /// The events of the last step.
    pub profile: Profile,
}

/// Trains on nine tenths of a text; `told` hears of each step and its loss. The same settings give the same bits on every run.
/// Errors: a loss that is no finite number, errors of the engine.
pub fn train(text: &Text, settings: &Settings, device: &Device, mut told: impl FnMut(usize, f64)) -> std::result::Result<Outcome, Failure> {
    let (mut rng, context) = (Rng::new(settings.seed), settings.shape.context);
    let model = Model::new(settings.shape, text.alphabet.len(), &mut rng, device)?;
    let mut optimiser = AdamW::new(model.parameters(), settings.lr)?;
    let (mut losses, mut profile) = (Vec::new(), Profile::default());
    for step in 0..settings.steps {
        let (x, next) = text.batch(BATCH, context, &mut rng, device)?;
        optimiser.lr = settings.lr * (1.0 - step as f64 / settings.steps as f64);
        let mut work = || -> Result<f64> {
            let loss = record_function("forward", || {
                let _scope = settings.autocast.map(autocast);
                model.loss(&x, &next)
            })?;
            optimiser.zero_grad();
            record_function("backward", || loss.backward())?;
            record_function("step", || clip_grad_norm(model.parameters(), 1.0).and_then(|_| optimiser.step()))?;
            Ok(f64::from(loss.item::<f32>()?))
        };
        let loss = if step + 1 == settings.steps {
            let (loss, seen) = profiler::profile_with(work);
            profile = seen;
            loss?
        } else {
            work()?
        };
        if !loss.is_finite() {
            return Err(Failure::Run(format!("the loss is {loss} in step {}; a smaller --lr may help", step + 1)));
        }
        told(step, loss);
        losses.push(loss);
    }
    let (x, next) = text.held_back(context, device)?;
    let held_back = no_grad(|| model.loss(&x, &next)?.item::<f32>())?;
    Ok(Outcome { model, losses, held_back: f64::from(held_back), profile })
}

/// `count` characters after a prompt, each drawn by its probability.
pub fn continued(model: &Model, prompt: &[i64], count: usize, shape: &Shape, rng: &mut Rng, device: &Device) -> Result<Vec<i64>> {
    let mut text = prompt.to_vec();
    for _ in 0..count {
        let seen = &text[text.len().saturating_sub(shape.context)..];
        let chances = no_grad(|| {
            let logits = model.logits(&Tensor::from_slice(seen, [1, seen.len()], device)?)?;
            logits.narrow(1, seen.len() - 1, 1)?.softmax(-1)?.to_vec::<f32>()
        })?;
        let mut left = rng.below(1 << 24) as f32 / (1 << 24) as f32;
        let drawn = chances.iter().position(|p| {
            left -= p;
            left < 0.0
        });
        text.push(drawn.unwrap_or(chances.len() - 1) as i64);
    }
    Ok(text)
}
