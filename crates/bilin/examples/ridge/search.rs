//! The search for the ridge strength λ = exp(θ): gradient descent, then Newton steps, each derivative beside its closed form.

use bilin::autograd::{self, GradOptions};
use bilin::prelude::*;

use super::arguments::Failure;
use super::closed::{ClosedForm, Point};
use super::solve::Ridge;

/// θ at the start.
const START: f64 = 6.0;
/// Steps of gradient descent, and their size.
const DESCENTS: usize = 6;
const RATE: f64 = 60.0;
/// Newton steps at most, and how far one may go.
const NEWTONS: usize = 10;
const REACH: f64 = 1.0;
/// Newton steps shorter than this end the search.
const SHORT: f64 = 1e-9;
/// A derivative below this share of its terms is measured by that share: what is left there is rounding.
const SHARE: f64 = 1e-4;

/// A number from the tape beside its closed form.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// The engine's.
    pub tape: f64,
    /// The closed form's.
    pub closed: f64,
    /// How far they are apart, relative to the closed form.
    pub difference: f64,
}

impl Pair {
    fn of(tape: f64, closed: f64, scale: f64) -> Pair {
        Pair { tape, closed, difference: (tape - closed).abs() / closed.abs().max(SHARE * scale).max(f64::MIN_POSITIVE) }
    }

    /// Two vectors: their norms, and the norm of their difference.
    fn of_vectors(tape: &[f64], closed: &[f64]) -> Pair {
        let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let apart = norm(&mut tape.iter().zip(closed).map(|(a, b)| a - b));
        let (tape, closed) = (norm(&mut tape.iter().copied()), norm(&mut closed.iter().copied()));
        Pair { tape, closed, difference: apart / closed.max(f64::MIN_POSITIVE) }
    }
}

/// Second derivatives by θ: the reverse pass twice, and forward over reverse.
#[derive(Debug, Clone, Copy)]
pub struct Second {
    /// `grad` of a recorded `grad`.
    pub reverse_twice: Pair,
    /// `hvp`.
    pub forward_over_reverse: Pair,
}

/// What one step saw.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The ridge strength.
    pub lambda: f64,
    /// The validation loss.
    pub loss: Pair,
    /// Its derivative by θ.
    pub first: Pair,
    /// Its second derivative by θ, where the step needed it.
    pub second: Option<Second>,
    /// dw/dλ: norms, by forward mode and by the closed form.
    pub slope: Pair,
}

impl Row {
    /// The greatest difference of the row; NaN where one is.
    pub fn difference(&self) -> f64 {
        let second = self.second.map_or([0.0; 2], |s| [s.reverse_twice.difference, s.forward_over_reverse.difference]);
        let all = [self.loss.difference, self.first.difference, self.slope.difference, second[0], second[1]];
        all.into_iter().fold(0.0, |worst: f64, d| if d.is_nan() || worst.is_nan() { f64::NAN } else { worst.max(d) })
    }
}

/// The steps of a search.
#[derive(Debug, Default)]
pub struct Search {
    /// Gradient descent.
    pub descent: Vec<Row>,
    /// Newton.
    pub newton: Vec<Row>,
    /// Whether the last Newton step was short.
    pub converged: bool,
}

impl Search {
    /// All rows.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.descent.iter().chain(&self.newton)
    }
}

fn only(mut grads: Vec<Option<Tensor>>) -> Result<Tensor> {
    grads.pop().flatten().ok_or_else(|| Error::invalid("grad", "inputs", "no gradient", "want one"))
}

fn slope(ridge: &Ridge, theta: &Tensor, point: &Point) -> Result<Pair> {
    let lambda = theta.detach().exp()?;
    let (_, slope) = autograd::jvp(|l| ridge.weights(&l[0]), &[&lambda], &[&lambda.ones_like()?])?;
    Ok(Pair::of_vectors(&slope.to_vec()?, &point.slope))
}

/// The loss and its derivative at θ, through every step of the solver.
fn first_order(ridge: &Ridge, theta: f64, point: &Point, device: &Device) -> Result<Row> {
    let leaf = Tensor::scalar(theta, device)?.requires_grad_(true)?;
    let loss = ridge.loss(&leaf)?;
    loss.backward()?;
    let first = only(vec![leaf.grad()])?;
    Ok(Row {
        lambda: theta.exp(),
        loss: Pair::of(loss.item()?, point.loss, 0.0),
        first: Pair::of(first.item()?, point.first, point.scale),
        second: None,
        slope: slope(ridge, &leaf, point)?,
    })
}

/// The same with second derivatives: the gradient is recorded, and differentiated again.
fn second_order(ridge: &Ridge, theta: f64, point: &Point, device: &Device) -> Result<Row> {
    let leaf = Tensor::scalar(theta, device)?.requires_grad_(true)?;
    let loss = ridge.loss(&leaf)?;
    let first = only(autograd::grad(&[&loss], &[&leaf], GradOptions { create_graph: true, ..Default::default() })?)?;
    let second = only(autograd::grad(&[&first], &[&leaf], GradOptions::default())?)?;
    let along = autograd::hvp(|t| ridge.loss(&t[0]), &[&leaf.detach()], &[&leaf.detach().ones_like()?])?;
    let pair = |second: &Tensor| -> Result<Pair> { Ok(Pair::of(second.item()?, point.second, point.scale)) };
    Ok(Row {
        lambda: theta.exp(),
        loss: Pair::of(loss.item()?, point.loss, 0.0),
        first: Pair::of(first.item()?, point.first, point.scale),
        second: Some(Second { reverse_twice: pair(&second)?, forward_over_reverse: pair(&only(along.into_iter().map(Some).collect())?)? }),
        slope: slope(ridge, &leaf, point)?,
    })
}

/// Gradient descent from λ = e⁶, then Newton steps: downhill by at most 1 where the loss curves the wrong way.
pub fn search(ridge: &Ridge, closed: &ClosedForm, device: &Device) -> std::result::Result<Search, Failure> {
    let mut out = Search::default();
    let mut theta = START;
    for _ in 0..DESCENTS {
        let row = first_order(ridge, theta, &closed.at(theta).map_err(Failure::Run)?, device)?;
        theta -= (RATE * row.first.tape).clamp(-REACH, REACH);
        out.descent.push(row);
    }
    for _ in 0..NEWTONS {
        let row = second_order(ridge, theta, &closed.at(theta).map_err(Failure::Run)?, device)?;
        let bend = row.second.map_or(1.0, |s| s.reverse_twice.tape);
        let step = -(row.first.tape / bend.abs()).clamp(-REACH, REACH);
        theta += step;
        out.newton.push(row);
        // A short step towards a least value, not towards a greatest.
        out.converged = bend > 0.0 && step.abs() < SHORT;
        if out.converged || !step.is_finite() {
            break;
        }
    }
    Ok(out)
}
