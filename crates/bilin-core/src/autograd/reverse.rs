//! Reverse mode as users call it.

use smallvec::SmallVec;

use super::pass::{accumulate_into_leaves, collect};
use crate::ops::run_vjp;
use crate::schema::{modes, profiler};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result};
use crate::tape::{GradSlot, Grads, Node, NodeInput, Tensor};

/// How [`backward`] runs.
#[derive(Debug, Clone, Default)]
pub struct BackwardOptions {
    /// Cotangent of the output, of its shape; 1 for a real scalar where missing.
    pub gradient: Option<Tensor>,
    /// Keeps saved values for another pass; follows `create_graph` where missing.
    pub retain_graph: Option<bool>,
    /// Records the gradients' own computation.
    pub create_graph: bool,
}

/// How [`grad`] runs.
#[derive(Debug, Clone, Default)]
pub struct GradOptions {
    /// A cotangent for each output; 1 for a real scalar where missing.
    pub grad_outputs: Vec<Option<Tensor>>,
    /// Keeps saved values for another pass; follows `create_graph` where missing.
    pub retain_graph: Option<bool>,
    /// Records the gradients' own computation.
    pub create_graph: bool,
    /// Answers `None` for an input that no output depends on, instead of an error.
    pub allow_unused: bool,
}

fn root(op: &'static str, output: &Tensor, gradient: Option<&Tensor>) -> Result<(NodeInput, Tensor)> {
    let input = output.node_input();
    if matches!(input, NodeInput::Constant) {
        return Err(Error::invalid(op, "output", "a tensor without history", "call requires_grad_ on an input before computing it"));
    }
    let g = match gradient {
        Some(g) => {
            if g.shape() != output.shape() {
                let got = format!("of shape {}", crate::shape_text(g.shape()));
                return Err(Error::invalid(op, "gradient", got, format!("want the output's shape {}", crate::shape_text(output.shape()))));
            }
            if g.device() != output.device() {
                return Err(Error::DeviceMismatch {
                    op: op.into(),
                    devices: vec![output.device().name().into(), g.device().name().into()],
                });
            }
            if g.dtype() != output.dtype() {
                return Err(Error::DtypeMismatch {
                    op: op.into(),
                    dtypes: vec![output.dtype(), g.dtype()],
                    remedy: "the gradient has the output's dtype; convert with astype",
                });
            }
            g.clone()
        }
        None => {
            if output.numel() != 1 || output.dtype().is_complex() {
                let got = format!("missing for an output of shape {} and {}", crate::shape_text(output.shape()), output.dtype());
                return Err(Error::invalid(op, "gradient", got, "give a cotangent, or reduce the output to a real scalar"));
            }
            output.ones_like()?
        }
    };
    Ok((input, g))
}

/// Adds the gradient of `output` to the `.grad` of every leaf that it depends on and that requires one.
///
/// Errors: `InvalidArgument` for an output without history or a missing cotangent, `VersionMismatch`, `GraphFreed`.
pub fn backward(output: &Tensor, options: BackwardOptions) -> Result<()> {
    let gradient = options.gradient.clone();
    backward_all(&[output], &[gradient], options)
}

/// [`backward`] of several outputs in one pass: the gradient of Σ ⟨gradients, outputs⟩. `options.gradient` isn't read.
///
/// Errors: those of [`backward`], and `InvalidArgument` where there are cotangents, but not one an output.
pub fn backward_all(outputs: &[&Tensor], gradients: &[Option<Tensor>], options: BackwardOptions) -> Result<()> {
    check_count("backward", "gradients", outputs, gradients)?;
    let mut roots = Vec::new();
    for (i, output) in outputs.iter().enumerate() {
        roots.push(root("backward", output, gradients.get(i).and_then(Option::as_ref))?);
    }
    let _mode = modes::set_grad_enabled(options.create_graph);
    // The sums of gradients too don't depend on the scope that backward is called in.
    let _plain = modes::set_autocast(None);
    accumulate_into_leaves(roots, !options.retain_graph.unwrap_or(options.create_graph))
}

fn check_count(op: &'static str, argument: &'static str, outputs: &[&Tensor], gradients: &[Option<Tensor>]) -> Result<()> {
    if gradients.is_empty() || gradients.len() == outputs.len() {
        return Ok(());
    }
    Err(Error::invalid(op, argument, format!("{} of them", gradients.len()), format!("want {}, one an output", outputs.len())))
}

/// The gradients at `inputs` as part of another gradient.
pub(super) fn gradients_at(roots: Vec<(NodeInput, Tensor)>, inputs: &[NodeInput], create_graph: bool) -> Result<Vec<Option<Tensor>>> {
    collect(roots, inputs, !create_graph, true)
}

/// The gradients of ⟨grad_outputs, outputs⟩ by `inputs`, leaves or interior tensors; `.grad` isn't touched, and an input asked
/// for twice is answered twice.
///
/// ```
/// use bilin_core::{Device, Tensor, autograd};
/// let x = Tensor::from_slice(&[3f64], [1], &Device::reference())?.requires_grad_(true)?;
/// let y = x.mul(&x)?.mul(&x)?.sum(.., false)?;
/// let options = autograd::GradOptions { create_graph: true, ..Default::default() };
/// let first = autograd::grad(&[&y], &[&x], options)?[0].clone().unwrap();
/// let second = autograd::grad(&[&first.sum(.., false)?], &[&x], Default::default())?[0].clone().unwrap();
/// assert_eq!((first.item::<f64>()?, second.item::<f64>()?), (27., 18.));
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn grad(outputs: &[&Tensor], inputs: &[&Tensor], options: GradOptions) -> Result<Vec<Option<Tensor>>> {
    check_count("grad", "grad_outputs", outputs, &options.grad_outputs)?;
    let mut roots = Vec::new();
    for (i, output) in outputs.iter().enumerate() {
        roots.push(root("grad", output, options.grad_outputs.get(i).and_then(Option::as_ref))?);
    }
    let places: Vec<NodeInput> = inputs.iter().map(|t| t.node_input()).collect();
    let found = {
        let _mode = modes::set_grad_enabled(options.create_graph);
        let _plain = modes::set_autocast(None);
        collect(roots, &places, !options.retain_graph.unwrap_or(options.create_graph), false)?
    };
    let mut out = Vec::new();
    for (i, grad) in found.into_iter().enumerate() {
        if grad.is_none() && !options.allow_unused {
            return Err(Error::invalid(
                "grad",
                "inputs",
                format!("input {i}, on which no output depends"),
                "set allow_unused to get None for it",
            ));
        }
        out.push(grad);
    }
    Ok(out)
}

impl Node {
    fn apply_with(&self, g: &Tensor, records: bool) -> Result<Grads> {
        let op: OpName = self.schema().name.into();
        let Some(slot) = self.0.outputs.first() else { return Ok(Grads::new()) };
        if g.shape() != slot.shape.as_slice() {
            let got = format!("of shape {}", crate::shape_text(g.shape()));
            return Err(Error::invalid(op, "g", got, format!("want the result's shape {}", crate::shape_text(&slot.shape))));
        }
        let _mode = modes::set_grad_enabled(records);
        let _node = modes::is_profiling().then(|| profiler::InNode::enter(self.schema().name, self.0.sequence));
        let need: SmallVec<[Option<DType>; 2]> = self.inputs().iter().map(|i| i.slot().map(GradSlot::grad_dtype)).collect();
        let cotangents: SmallVec<[Option<Tensor>; 2]> = (0..self.0.outputs.len()).map(|i| (i == 0).then(|| g.clone())).collect();
        run_vjp(self, &cotangents, &need)
    }

    /// The gradients of the operands for the cotangent `g`; `None` where none is needed. Nothing is released.
    pub fn apply(&self, g: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(self.apply_with(g, false)?.into_vec())
    }

    /// The same, recorded: the gradients are differentiable again.
    pub fn apply_for_graph(&self, g: &Tensor) -> Result<Vec<Option<Tensor>>> {
        Ok(self.apply_with(g, true)?.into_vec())
    }
}
