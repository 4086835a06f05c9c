//! Fixed points as a differentiable function, of any order: the gradient of one is another.

use std::sync::Arc;

use bilin::autograd::{self, BackwardContext, ForwardContext, Function};
use bilin::prelude::*;

/// Steps this short, relative to the state, end an iteration.
const SHORT: f64 = 1e-15;
/// Steps at most.
const MOST_STEPS: usize = 2000;

/// A contraction: the next state from the state and the parameters.
pub type Step = Arc<dyn Fn(&Tensor, &[Tensor]) -> Result<Tensor> + Send + Sync>;

struct FixedPoint {
    step: Step,
    start: Tensor,
}

fn length(x: &Tensor) -> Result<f64> {
    Ok(x.mul(x)?.sum(.., false)?.item::<f64>()?.sqrt())
}

/// The state z = step(z, parameters) that the iteration from `start` ends at, differentiable by the parameters. Errors:
/// `InvalidArgument` where it doesn't settle, so that no gradient is of a state that is no fixed point.
pub fn fixed_point(step: Step, start: &Tensor, parameters: &[Tensor]) -> Result<Tensor> {
    let point = FixedPoint { step, start: start.detach() };
    Ok(point.apply(&parameters.iter().collect::<Vec<_>>())?.swap_remove(0))
}

impl Function for FixedPoint {
    fn forward(&self, ctx: &mut ForwardContext, parameters: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut z = self.start.clone();
        for _ in 0..MOST_STEPS {
            let next = (self.step)(&z, parameters)?;
            let moved = length(&next.sub(&z)?)?;
            z = next;
            if moved <= SHORT * length(&z)?.max(1.0) {
                let mut kept: Vec<&Tensor> = parameters.iter().collect();
                kept.push(&z);
                ctx.save_for_backward(&kept);
                return Ok(vec![z]);
            }
        }
        Err(Error::invalid("fixed_point", "step", format!("no rest after {MOST_STEPS} steps"), "want a contraction"))
    }

    /// With J = ∂step/∂z at the fixed point, u = Jᵀu + g, and the gradients are those of ⟨u, step⟩ by the parameters. The
    /// equation for u is a fixed point of (z, parameters, g), differentiable again by this very rule.
    fn backward(&self, ctx: &BackwardContext, g: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let Some((z, parameters)) = ctx.saved().split_last() else { return Ok(Vec::new()) };
        let step = self.step.clone();
        let adjoint: Step = Arc::new(move |u, known| {
            let [parameters @ .., z, g] = known else { return Ok(u.clone()) };
            let pulled = autograd::vjp(|z| step(&z[0], parameters), &[z], u)?.1.swap_remove(0);
            pulled.add(g)
        });
        let known: Vec<Tensor> = parameters.iter().chain([z, &g[0]]).cloned().collect();
        let u = fixed_point(adjoint, &g[0].zeros_like()?, &known)?;
        let inputs: Vec<&Tensor> = parameters.iter().collect();
        let grads = autograd::vjp(|p| (self.step)(z, p), &inputs, &u)?.1;
        Ok(grads.into_iter().map(Some).collect())
    }
}
