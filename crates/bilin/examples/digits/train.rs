//! Training, and what came of it.

use bilin::optim::AdamW;
use bilin::prelude::*;

use super::arguments::Failure;
use super::data::{CLASSES, Digit, Set};
use super::model::Model;
use super::progress::Progress;

/// Digits a step.
const BATCH: usize = 64;

/// How to train.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Passes over the training digits.
    pub epochs: usize,
    /// Seed of the split, the weights and the order of the digits.
    pub seed: u64,
    /// Step size at the start; it falls to 0 in a straight line.
    pub lr: f64,
    /// The dtype of an autocast scope around the model and its loss.
    pub autocast: Option<DType>,
}

/// An epoch's numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Epoch {
    /// Mean loss over the training digits while they were learnt.
    pub training_loss: f64,
    /// Mean loss over the digits held back, after the epoch.
    pub held_back_loss: f64,
    /// Share of the digits held back that are read right, after the epoch.
    pub accuracy: f64,
}

/// What training gives.
#[derive(Debug)]
pub struct Outcome {
    /// Epoch by epoch.
    pub history: Vec<Epoch>,
    /// The digits held back.
    pub held_back: Vec<Digit>,
    /// What each was read as in the end.
    pub read: Vec<u8>,
}

impl Outcome {
    /// Digits read wrong, with what each was read as.
    pub fn misread(&self) -> Vec<(&Digit, u8)> {
        self.held_back.iter().zip(self.read.iter().copied()).filter(|(d, r)| d.class != *r).collect()
    }

    /// Share of the digits held back that are read right.
    pub fn accuracy(&self) -> f64 {
        1.0 - self.misread().len() as f64 / self.held_back.len() as f64
    }

    /// Counts by true class, then by what was read.
    pub fn confusion(&self) -> [[usize; CLASSES]; CLASSES] {
        let mut counts = [[0; CLASSES]; CLASSES];
        for (digit, &read) in self.held_back.iter().zip(&self.read) {
            counts[usize::from(digit.class)][usize::from(read)] += 1;
        }
        counts
    }
}

/// The mean loss over a set and what its digits are read as.
fn evaluate(model: &Model, set: &Set) -> Result<(f64, Vec<u8>)> {
    no_grad(|| {
        let logits = model.logits(&set.x)?;
        let loss = f64::from(logits.cross_entropy(&set.y)?.item::<f32>()?);
        let read = logits.argmax(-1, false)?.to_vec::<i64>()?;
        Ok((loss, read.iter().map(|&c| c as u8).collect()))
    })
}

/// Trains on four fifths of `digits`. The same settings give the same bits on every run. Errors: too few digits, a loss that
/// is no finite number, errors of the engine.
pub fn train(digits: &[Digit], settings: &Settings, device: &Device, progress: &mut Progress<'_>) -> std::result::Result<Outcome, Failure> {
    if digits.len() < 10 {
        return Err(Failure::Run(format!("{} digits are too few to learn from", digits.len())));
    }
    let mut rng = Rng::new(settings.seed);
    let (training, held_back) = Set::split(digits, &mut rng, device)?;
    let model = Model::new(&mut rng, device)?;
    let mut optimiser = AdamW::new(&model.parameters(), settings.lr)?;
    let steps = training.count().div_ceil(BATCH);
    let mut history: Vec<Epoch> = Vec::new();
    let mut read = Vec::new();
    for epoch in 0..settings.epochs {
        let order: Vec<i64> = rng.permutation(training.count()).iter().map(|&i| i as i64).collect();
        let mut sum = 0.0;
        for (step, batch) in order.chunks(BATCH).enumerate() {
            let rows = Tensor::from_slice(batch, [batch.len()], device)?;
            let loss = {
                let _scope = settings.autocast.map(autocast);
                model.logits(&training.x.index_select(0, &rows)?)?.cross_entropy(&training.y.index_select(0, &rows)?)?
            };
            optimiser.zero_grad();
            loss.backward()?;
            optimiser.lr = settings.lr * (1.0 - (epoch * steps + step) as f64 / (settings.epochs * steps) as f64);
            optimiser.step()?;
            let loss = f64::from(loss.item::<f32>()?);
            if !loss.is_finite() {
                return Err(Failure::Run(format!("the loss is {loss} in epoch {}; a smaller --lr may help", epoch + 1)));
            }
            sum += loss * batch.len() as f64;
            progress.step(epoch, (step + 1) as f64 / steps as f64, history.last());
        }
        let (held_back_loss, now) = evaluate(&model, &held_back)?;
        if !held_back_loss.is_finite() {
            return Err(Failure::Run(format!("the loss is {held_back_loss} after epoch {}; a smaller --lr may help", epoch + 1)));
        }
        let right = now.iter().zip(&held_back.digits).filter(|(r, d)| **r == d.class).count();
        let last =
            Epoch { training_loss: sum / training.count() as f64, held_back_loss, accuracy: right as f64 / held_back.count() as f64 };
        progress.epoch(epoch, &last);
        history.push(last);
        read = now;
    }
    Ok(Outcome { history, held_back: held_back.digits, read })
}
