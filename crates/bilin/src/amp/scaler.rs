//! The scale of a loss, so that small gradients of halves don't vanish.

use std::sync::Arc;

use bilin_core::schema::modes;
use bilin_core::{DType, Device, Error, Result, Tensor, no_grad, stack};

use crate::optim::Optimizer;
use crate::optim::clip::{finiteness, gradients};

/// The least scale: a smaller one would lose more than none.
const LEAST: f64 = 1.0;
/// The largest scale whose inverse is a normal f32.
const MOST: f64 = (1u128 << 126) as f64;

/// How a [`GradScaler`] begins and moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalerOptions {
    /// The first scale, from 1 to 2¹²⁶.
    pub init_scale: f64,
    /// What the scale grows by after `growth_interval` good steps, above 1.
    pub growth_factor: f64,
    /// What it shrinks by after a step that was skipped, above 0 and below 1.
    pub backoff_factor: f64,
    /// Good steps in a row until it grows, at least 1.
    pub growth_interval: u64,
}

impl Default for ScalerOptions {
    fn default() -> ScalerOptions {
        ScalerOptions { init_scale: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000 }
    }
}

impl ScalerOptions {
    fn check(&self, op: &'static str) -> Result<()> {
        let wrong = |name: &'static str, got: f64, want: &'static str| Err(Error::invalid(op, name, got, want));
        // The comparisons are false for NaN.
        if !(LEAST..=MOST).contains(&self.init_scale) {
            return wrong("scale", self.init_scale, "want a number from 1 to 2^126");
        }
        if !(self.growth_factor > 1.0 && self.growth_factor.is_finite()) {
            return wrong("growth_factor", self.growth_factor, "want a finite number above 1");
        }
        if !(self.backoff_factor > 0.0 && self.backoff_factor < 1.0) {
            return wrong("backoff_factor", self.backoff_factor, "want a number between 0 and 1");
        }
        if self.growth_interval == 0 {
            return Err(Error::invalid(op, "growth_interval", 0, "want at least 1"));
        }
        Ok(())
    }
}

/// What [`GradScaler::step`] did.
#[must_use = "a skipped step changed no parameter"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stepped {
    /// The optimiser took its step.
    Taken,
    /// A gradient was infinite or NaN: nothing was changed.
    Skipped,
}

/// Whether gradients were finite: on the device until somebody asks.
#[derive(Debug, Clone)]
enum Finite {
    Pending(Tensor),
    Known(bool),
}

impl Finite {
    fn read(&mut self) -> Result<bool> {
        if let Finite::Pending(flag) = self {
            *self = Finite::Known(flag.item::<f32>()?.is_finite());
        }
        Ok(matches!(self, Finite::Known(true)))
    }
}

/// What became of an optimiser's gradients since the last update.
#[derive(Debug, Clone)]
struct Round {
    /// The optimiser's first parameter stands for it.
    first: Option<Tensor>,
    finite: Finite,
    stepped: bool,
}

fn is_same(a: Option<&Tensor>, b: Option<&Tensor>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(&a.view().storage, &b.view().storage) && a.layout().offset() == b.layout().offset(),
        (None, None) => true,
        _ => false,
    }
}

/// Scales a loss so that gradients in f16 don't fall below its least number, and undoes it before the step.
///
/// A step whose gradients aren't finite is skipped and the scale shrinks; after enough good steps it grows. It stays finite and
/// at least 1. bf16 has the range of f32 and needs none. Each step reads one number from the device.
/// Source: Micikevicius et al., "Mixed precision training", ICLR 2018.
///
/// ```
/// use bilin::amp::{GradScaler, Stepped, autocast};
/// use bilin::{optim::{AdamW, clip_grad_norm}, prelude::*};
/// let dev = Device::cpu();
/// let x = Tensor::ones([4, 3], DType::F32, &dev)?;
/// let w = Tensor::ones([3, 2], DType::F32, &dev)?.requires_grad_(true)?;
/// let mut optimizer = AdamW::new(&[w.clone()], 0.01)?;
/// let mut scaler = GradScaler::default();
/// for _ in 0..3 {
///     let loss = { let _scope = autocast(DType::Bf16); x.matmul(&w)?.mean(.., false)? };
///     optimizer.zero_grad();
///     scaler.scale(&loss)?.backward()?;
///     scaler.unscale_(&optimizer)?;
///     clip_grad_norm(&[w.clone()], 1.0)?;
///     assert_eq!(scaler.step(&mut optimizer)?, Stepped::Taken);
///     scaler.update()?;
/// }
/// # Ok::<(), bilin::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct GradScaler {
    options: ScalerOptions,
    scale: f64,
    good_steps: u64,
    is_enabled: bool,
    rounds: Vec<Round>,
}

impl Default for GradScaler {
    fn default() -> GradScaler {
        let options = ScalerOptions::default();
        GradScaler { options, scale: options.init_scale, good_steps: 0, is_enabled: true, rounds: Vec::new() }
    }
}

impl GradScaler {
    /// With other factors. Errors: `InvalidArgument` naming the one that is out of range.
    pub fn new(options: ScalerOptions) -> Result<GradScaler> {
        options.check("GradScaler")?;
        Ok(GradScaler { options, scale: options.init_scale, ..GradScaler::default() })
    }

    /// One that changes nothing: the scale is 1 and [`GradScaler::step`] is the optimiser's.
    pub fn disabled() -> GradScaler {
        GradScaler { is_enabled: false, ..GradScaler::default() }
    }

    /// Whether it scales.
    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// The scale now.
    pub fn get_scale(&self) -> f64 {
        if self.is_enabled { self.scale } else { 1.0 }
    }

    /// The factors and the interval; `init_scale` as it was given.
    pub fn options(&self) -> ScalerOptions {
        self.options
    }

    /// Good steps in a row so far.
    pub fn growth_tracker(&self) -> u64 {
        self.good_steps
    }

    /// `output` times the scale, differentiable, whatever autocast scope is open. f16 and bf16 widen to f32, which holds the
    /// product.
    pub fn scale(&self, output: &Tensor) -> Result<Tensor> {
        if !self.is_enabled {
            return Ok(output.clone());
        }
        let _plain = modes::set_autocast(None);
        let wide = if output.dtype().is_half() { output.astype(DType::F32)? } else { output.clone() };
        wide.mul_scalar(self.scale)
    }

    fn round(&mut self, optimizer: &dyn Optimizer) -> Option<usize> {
        let first = optimizer.params().first();
        self.rounds.iter().position(|r| is_same(r.first.as_ref(), first))
    }

    /// Divides the gradients of the optimiser's parameters by the scale, in place, so that they can be clipped or looked at.
    ///
    /// Once a step: [`GradScaler::step`] does it where it hasn't been done. A gradient in f16 stays in f16, where numbers that
    /// needed the scale vanish again: keep it in f32 by [`Tensor::set_grad_dtype`], or keep the parameter in f32. Errors:
    /// `InvalidArgument` the second time; nothing is changed then.
    pub fn unscale_(&mut self, optimizer: &dyn Optimizer) -> Result<()> {
        if !self.is_enabled {
            return Ok(());
        }
        if self.round(optimizer).is_some() {
            return Err(Error::invalid("unscale_", "optimizer", "unscaled since the last update", "call update after the step"));
        }
        let grads = gradients(optimizer.params());
        let _plain = modes::set_autocast(None);
        let inverse = 1.0 / self.scale;
        let finite = no_grad(|| -> Result<Finite> {
            // What can fail comes before what changes a gradient.
            let flags: Vec<Tensor> = grads.iter().map(finiteness).collect::<Result<_>>()?;
            let factors: Vec<Tensor> = grads.iter().map(|g| g.scalar_like(inverse)).collect::<Result<_>>()?;
            let flag = match flags.as_slice() {
                [] => None,
                all => Some(stack(&all.iter().collect::<Vec<_>>(), 0)?.sum(.., false)?),
            };
            for (g, factor) in grads.iter().zip(&factors) {
                g.mul_(factor)?;
            }
            Ok(flag.map_or(Finite::Known(true), Finite::Pending))
        })?;
        self.rounds.push(Round { first: optimizer.params().first().cloned(), finite, stepped: false });
        Ok(())
    }

    /// The optimiser's step, where every gradient is finite; the gradients are unscaled first, where they aren't yet.
    ///
    /// Errors: those of [`GradScaler::unscale_`] and of the optimiser; `InvalidArgument` the second time since the last update.
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<Stepped> {
        if !self.is_enabled {
            return optimizer.step().map(|()| Stepped::Taken);
        }
        let at = match self.round(optimizer) {
            Some(at) => at,
            None => {
                self.unscale_(optimizer)?;
                self.rounds.len() - 1
            }
        };
        let round = &mut self.rounds[at];
        if round.stepped {
            return Err(Error::invalid("step", "optimizer", "stepped since the last update", "call update after the step"));
        }
        let is_finite = round.finite.read()?;
        if is_finite {
            optimizer.step()?;
        }
        round.stepped = true;
        Ok(if is_finite { Stepped::Taken } else { Stepped::Skipped })
    }

    /// Moves the scale: down after a gradient that wasn't finite, up after `growth_interval` good steps in a row. Once, after the
    /// steps of all optimisers. Errors: `InvalidArgument` where nothing was unscaled since the last update.
    pub fn update(&mut self) -> Result<()> {
        if !self.is_enabled {
            return Ok(());
        }
        if self.rounds.is_empty() {
            return Err(Error::invalid("update", "step", "none since the last update", "call step, or unscale_, before update"));
        }
        let mut all_finite = true;
        for round in &mut self.rounds {
            all_finite &= round.finite.read()?;
        }
        self.rounds.clear();
        if !all_finite {
            self.scale = (self.scale * self.options.backoff_factor).max(LEAST);
            self.good_steps = 0;
            return Ok(());
        }
        self.good_steps += 1;
        if self.good_steps >= self.options.growth_interval {
            let grown = self.scale * self.options.growth_factor;
            if grown <= MOST {
                self.scale = grown;
            }
            self.good_steps = 0;
        }
        Ok(())
    }

    /// Sets the scale by hand, in place of [`GradScaler::update`]. Errors: `InvalidArgument` outside 1 to 2¹²⁶.
    pub fn update_to(&mut self, scale: f64) -> Result<()> {
        ScalerOptions { init_scale: scale, ..self.options }.check("update_to")?;
        self.scale = scale;
        self.rounds.clear();
        Ok(())
    }

    /// Named 0-d tensors that continue the run: `scale`, `growth_factor`, `backoff_factor`, `growth_interval`,
    /// `growth_tracker`. [`io::save`](crate::io::save) takes them beside the optimiser's.
    pub fn state_dict(&self) -> Result<Vec<(String, Tensor)>> {
        let host = Device::reference();
        let real = |name: &str, x: f64| Ok((name.to_owned(), Tensor::scalar(x, &host)?));
        let whole = |name: &str, n: u64| Ok((name.to_owned(), Tensor::scalar(n.min(i64::MAX as u64) as i64, &host)?));
        [
            real("scale", self.scale),
            real("growth_factor", self.options.growth_factor),
            real("backoff_factor", self.options.backoff_factor),
            whole("growth_interval", self.options.growth_interval),
            whole("growth_tracker", self.good_steps),
        ]
        .into_iter()
        .collect()
    }

    /// Takes up a state of [`GradScaler::state_dict`]. Errors: `InvalidArgument` for a number that is missing or out of range;
    /// the scaler stays as it was then.
    pub fn load_state_dict(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        const OP: &str = "load_state_dict";
        let find = |name: &'static str| {
            let found = state.iter().find(|(n, _)| n == name).map(|(_, t)| t);
            found.ok_or_else(|| Error::invalid(OP, "state", format_args!("no {name}"), "want what state_dict gave"))
        };
        let real = |name: &'static str| find(name)?.astype(DType::F64)?.item::<f64>();
        let whole = |name: &'static str| -> Result<u64> {
            let n = find(name)?.astype(DType::I64)?.item::<i64>()?;
            u64::try_from(n).map_err(|_| Error::invalid(OP, name, n, "want a whole number from 0"))
        };
        let options = ScalerOptions {
            init_scale: real("scale")?,
            growth_factor: real("growth_factor")?,
            backoff_factor: real("backoff_factor")?,
            growth_interval: whole("growth_interval")?,
        };
        options.check(OP)?;
        let good_steps = whole("growth_tracker")?;
        self.scale = options.init_scale;
        self.options = ScalerOptions { init_scale: self.options.init_scale, ..options };
        self.good_steps = good_steps;
        self.rounds.clear();
        Ok(())
    }
}
