//! Optimisers: they change leaves in place, under `no_grad`, in the leaf's memory. A step of an f16 or bf16 leaf is computed in
//! f32, with its state in f32, and rounded once; steps below half a unit of the leaf are lost, so train with f32 leaves and autocast.

pub(crate) mod clip;

pub use clip::{ClipOptions, clip_grad_norm, clip_grad_norm_with};

use bilin_core::{DType, Error, Prim, Result, Tensor, no_grad};

/// What changes parameters by their gradients, as [`GradScaler`](crate::amp::GradScaler) drives it.
pub trait Optimizer {
    /// The parameters.
    fn params(&self) -> &[Tensor];
    /// One step.
    fn step(&mut self) -> Result<()>;
    /// Forgets the gradients.
    fn zero_grad(&self) {
        self.params().iter().for_each(Tensor::zero_grad);
    }
}

macro_rules! optimizer {
    ($name:ident) => {
        impl Optimizer for $name {
            fn params(&self) -> &[Tensor] {
                &self.params
            }
            fn step(&mut self) -> Result<()> {
                $name::step(self)
            }
        }
    };
}
optimizer!(Sgd);
optimizer!(AdamW);

/// The dtype of a parameter's steps and state: f32 for halves.
fn wide(p: &Tensor) -> DType {
    if p.dtype().is_half() { DType::F32 } else { p.dtype() }
}

/// The gradient of a parameter, or `None` where there is none yet.
fn gradient(p: &Tensor) -> Option<Tensor> {
    p.grad().map(|g| g.detach())
}

fn check(params: &[Tensor]) -> Result<()> {
    match params.iter().position(|p| !(p.is_leaf() && p.requires_grad())) {
        None => Ok(()),
        Some(i) => Err(Error::invalid(
            "optim",
            "params",
            format!("number {i}, which requires no gradient"),
            "call requires_grad_ on it first; results of ops aren't leaves",
        )),
    }
}

/// Settings are finite numbers from 0 on, betas below 1.
fn in_range(settings: &[(&'static str, f64)]) -> Result<()> {
    let is_sound = |&(name, x): &(&str, f64)| if name == "betas" { (0.0..1.0).contains(&x) } else { (0.0..=f64::MAX).contains(&x) };
    match settings.iter().find(|setting| !is_sound(setting)) {
        None => Ok(()),
        Some(&(name, x)) => {
            let want = if name == "betas" { "want numbers from 0 to below 1" } else { "want a finite number from 0 on" };
            Err(Error::invalid("optim", name, x, want))
        }
    }
}

/// Stochastic gradient descent with momentum and weight decay.
///
/// v ← momentum·v + g + decay·p; p ← p − lr·v.
#[derive(Debug)]
pub struct Sgd {
    params: Vec<Tensor>,
    velocity: Vec<Option<Tensor>>,
    /// Step size.
    pub lr: f64,
    /// Share of the last step that is kept.
    pub momentum: f64,
    /// Pull towards 0.
    pub weight_decay: f64,
}

impl Sgd {
    /// Plain descent on `params`. Errors: `InvalidArgument` for a parameter that isn't a leaf with a gradient, and for a
    /// step size that is negative or not finite.
    pub fn new(params: &[Tensor], lr: f64) -> Result<Sgd> {
        check(params)?;
        let new = Sgd { params: params.to_vec(), velocity: vec![None; params.len()], lr, momentum: 0.0, weight_decay: 0.0 };
        new.check().map(|()| new)
    }

    /// Whether the settings are in range, which each step asks first. Errors: `InvalidArgument` names the one that isn't.
    pub fn check(&self) -> Result<()> {
        in_range(&[("lr", self.lr), ("momentum", self.momentum), ("weight_decay", self.weight_decay)])
    }

    /// One step; parameters without a gradient stay. Errors: those of [`check`](Self::check), before anything changes.
    pub fn step(&mut self) -> Result<()> {
        self.check()?;
        // g + decay·p, p being read by `from`.
        let pull = |from: Prim| -> Vec<Prim> {
            let decay = [from, Prim::Const(self.weight_decay), Prim::Mul, Prim::Add];
            [Prim::Input(0)].into_iter().chain(decay.into_iter().filter(|_| self.weight_decay != 0.0)).collect()
        };
        let momentum = [Prim::Old, Prim::Const(self.momentum), Prim::Mul];
        let to_velocity: Vec<Prim> = momentum.into_iter().chain(pull(Prim::Input(1))).chain([Prim::Add]).collect();
        let descend = [Prim::Const(self.lr), Prim::Mul, Prim::Sub];
        let by = |step: Vec<Prim>| -> Vec<Prim> { [Prim::Old].into_iter().chain(step).chain(descend).collect() };
        no_grad(|| {
            for (p, velocity) in self.params.iter().zip(&mut self.velocity) {
                let Some(g) = gradient(p) else { continue };
                if self.momentum == 0.0 {
                    p.map_(by(pull(Prim::Old)), &[&g])?;
                    continue;
                }
                let v = match velocity {
                    Some(v) => v,
                    None => velocity.insert(Tensor::zeros(p.shape(), wide(p), p.device())?),
                };
                v.map_(to_velocity.clone(), &[&g, p])?;
                p.map_(by(vec![Prim::Input(0)]), &[v])?;
            }
            Ok(())
        })
    }

    /// Forgets the gradients.
    pub fn zero_grad(&self) {
        self.params.iter().for_each(Tensor::zero_grad);
    }

    /// Named tensors that continue the run: `0.velocity`, …
    pub fn state_dict(&self) -> Result<Vec<(String, Tensor)>> {
        let there = self.velocity.iter().enumerate().filter_map(|(i, v)| Some((i, v.as_ref()?)));
        there.map(|(i, v)| Ok((format!("{i}.velocity"), v.copy()?))).collect()
    }

    /// Takes up a state of [`Sgd::state_dict`]. Errors: `InvalidArgument` for a shape or dtype that isn't the parameter's.
    pub fn load_state_dict(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        let mut velocity = vec![None; self.params.len()];
        for (i, slot) in velocity.iter_mut().enumerate() {
            *slot = find(state, &format!("{i}.velocity"), &self.params[i])?;
        }
        self.velocity = velocity;
        Ok(())
    }
}

fn find(state: &[(String, Tensor)], name: &str, p: &Tensor) -> Result<Option<Tensor>> {
    let Some((_, t)) = state.iter().find(|(n, _)| n == name) else { return Ok(None) };
    if t.shape() != p.shape() || t.dtype() != wide(p) {
        return Err(Error::invalid(
            "load_state_dict",
            "state",
            format!("{name} of shape {:?} and {}", t.shape(), t.dtype()),
            format!("want {:?} and {}", p.shape(), wide(p)),
        ));
    }
    Ok(Some(t.copy()?))
}

/// Adam with decoupled weight decay. Source: Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
#[derive(Debug)]
pub struct AdamW {
    params: Vec<Tensor>,
    moments: Vec<Option<[Tensor; 2]>>,
    steps: u64,
    /// Step size.
    pub lr: f64,
    /// Decay of the running mean of gradients and of their squares.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Pull towards 0, times the step size.
    pub weight_decay: f64,
}

impl AdamW {
    /// With betas 0.9 and 0.999, eps 1e-8, decay 0.01. Errors: `InvalidArgument` for a parameter that isn't a leaf with a
    /// gradient, and for a step size that is negative or not finite.
    pub fn new(params: &[Tensor], lr: f64) -> Result<AdamW> {
        check(params)?;
        let new = AdamW {
            params: params.to_vec(),
            moments: vec![None; params.len()],
            steps: 0,
            lr,
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.01,
        };
        new.check().map(|()| new)
    }

    /// Whether the settings are in range, which each step asks first. Errors: `InvalidArgument` names the one that isn't.
    pub fn check(&self) -> Result<()> {
        let [b1, b2] = self.betas;
        in_range(&[("lr", self.lr), ("betas", b1), ("betas", b2), ("eps", self.eps), ("weight_decay", self.weight_decay)])
    }

    /// One step; parameters without a gradient stay. Errors: those of [`check`](Self::check), before anything changes.
    pub fn step(&mut self) -> Result<()> {
        self.check()?;
        self.steps += 1;
        let n = self.steps.min(i32::MAX as u64) as i32;
        let [b1, b2] = self.betas;
        let (scale1, scale2) = (1.0 - b1.powi(n), 1.0 - b2.powi(n));
        let (old, [g, m, v]) = (Prim::Old, [0, 0, 1].map(Prim::Input));
        let times = |c: f64| [Prim::Const(c), Prim::Mul];
        let program = |parts: &[&[Prim]]| parts.concat();
        let mean = program(&[&[old], &times(b1), &[g], &times(1.0 - b1), &[Prim::Add]]);
        let square = program(&[&[old], &times(b2), &[g, g, Prim::Mul], &times(1.0 - b2), &[Prim::Add]]);
        let root = program(&[&[v], &times(1.0 / scale2), &[Prim::Sqrt, Prim::Const(self.eps), Prim::Add]]);
        let keep = times(1.0 - self.lr * self.weight_decay);
        let descend = program(&[&[old], &keep, &[m], &times(self.lr / scale1), &root, &[Prim::Div, Prim::Sub]]);
        no_grad(|| {
            for (p, moments) in self.params.iter().zip(&mut self.moments) {
                let Some(g) = gradient(p) else { continue };
                let zeros = || Tensor::zeros(p.shape(), wide(p), p.device());
                let [m, v] = match moments {
                    Some(moments) => moments,
                    None => moments.insert([zeros()?, zeros()?]),
                };
                m.map_(mean.clone(), &[&g])?;
                v.map_(square.clone(), &[&g])?;
                p.map_(descend.clone(), &[m, v])?;
            }
            Ok(())
        })
    }

    /// Forgets the gradients.
    pub fn zero_grad(&self) {
        self.params.iter().for_each(Tensor::zero_grad);
    }

    /// Named tensors that continue the run: `step`, `0.mean`, `0.square`, …
    pub fn state_dict(&self) -> Result<Vec<(String, Tensor)>> {
        let mut out = Vec::new();
        if let Some(p) = self.params.first() {
            out.push(("step".to_owned(), Tensor::scalar(self.steps as i64, p.device())?));
        }
        for (i, moments) in self.moments.iter().enumerate() {
            if let Some([m, v]) = moments {
                out.push((format!("{i}.mean"), m.copy()?));
                out.push((format!("{i}.square"), v.copy()?));
            }
        }
        Ok(out)
    }

    /// Takes up a state of [`AdamW::state_dict`]. Errors: `InvalidArgument` for a shape or dtype that isn't the parameter's.
    pub fn load_state_dict(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        let steps = match state.iter().find(|(n, _)| n == "step") {
            Some((_, t)) => t.astype(DType::I64)?.item::<i64>()?.max(0) as u64,
            None => 0,
        };
        let mut moments = Vec::new();
        for (i, p) in self.params.iter().enumerate() {
            let pair = (find(state, &format!("{i}.mean"), p)?, find(state, &format!("{i}.square"), p)?);
            moments.push(if let (Some(m), Some(v)) = pair { Some([m, v]) } else { None });
        }
        (self.steps, self.moments) = (steps, moments);
        Ok(())
    }
}
