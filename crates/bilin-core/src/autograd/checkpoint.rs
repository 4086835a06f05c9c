//! Checkpoints: what a function computes on the way is let go, and computed again in backward.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use smallvec::{SmallVec, smallvec};

use super::pass::place;
use super::reverse::gradients_at;
use crate::api::Rng;
use crate::exec::launch::View;
use crate::schema::{AmpPolicy, Arity, OpSchema, modes};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::tape::{
    Edge, Grads, Inference, KeptOp, Meta, Node, NodeInput, Op, Read, Saved, Tangents, Tensor, clear_held, last_sequence, reads_of,
};

type Body = Box<dyn Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync>;

static CHECKPOINT: OpSchema = OpSchema::schema_v1("checkpoint", AmpPolicy::KeepInput, Arity::AtLeast(0));
static OPERAND: OpSchema = OpSchema::schema_v1("checkpoint_operand", AmpPolicy::KeepInput, Arity::Exact(1));

/// Calls `f` and keeps its operands alone: what its gradient reads is computed again when it is needed, under the autocast
/// scope of this call. Tensors that `f` captures get their gradients too. Nests, and has derivatives of every order; in
/// forward mode the tangents are carried along.
///
/// `f` must compute the same again, with the same shapes; for random numbers use [`checkpoint_with_rng`].
/// Cost: `f` once more in backward; memory of one run of `f` while it runs, of its operands in between.
/// Errors: what `f` returns; in backward `VersionMismatch` for an operand, or a tensor that an op of `f` read and that `f` still
/// holds (numbered after the operands), changed in place since, `InvalidArgument` if `f` gives
/// other shapes or dtypes than before.
///
/// ```
/// use bilin_core::{Device, Tensor, autograd};
/// let x = Tensor::scalar(2f64, &Device::reference())?.requires_grad_(true)?;
/// let y = autograd::checkpoint(|x| Ok(vec![x[0].exp()?.mul(&x[0])?]), &[&x])?.remove(0);
/// y.backward()?;
/// assert!((x.grad().unwrap().item::<f64>()? - 3.0 * 2f64.exp()).abs() < 1e-14);
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn checkpoint(f: impl Fn(&[Tensor]) -> Result<Vec<Tensor>> + Send + Sync + 'static, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    let operands: Vec<Tensor> = inputs.iter().map(|t| (*t).clone()).collect();
    if !modes::is_grad_enabled() {
        return f(&operands);
    }
    let start = last_sequence();
    let seen: Vec<Tensor> = operands.iter().map(|t| if t.requires_grad() { stand_in(t) } else { t.clone() }).collect();
    let (results, reads) = reads_of(|| f(&seen));
    let results = results?;
    if !results.iter().any(Tensor::requires_grad) {
        return Ok(results);
    }
    let captured = captured(&results, start);
    let mut origins: SmallVec<[NodeInput; 2]> = operands.iter().map(Tensor::node_input).collect();
    let mut metas: SmallVec<[Meta; 2]> = operands.iter().map(|t| Meta::new(t.shape(), t.dtype())).collect();
    for input in captured {
        metas.extend(input.slot().map(|slot| Meta { shape: slot.shape.clone(), dtype: slot.dtype }));
        origins.push(input);
    }
    type Shown = (View, bool, Tangents);
    let show = |t: &Tensor| (t.view().clone(), t.requires_grad(), t.tangents().iter().cloned().collect());
    let shown: Vec<Shown> = results.iter().map(show).collect();
    // What was made on the way goes with its graph; what is left of what was read was there before.
    drop((results, seen));
    let views: Vec<View> = shown.iter().map(|(view, ..)| view.clone()).collect();
    let reads = reads.alive(|storage| views.iter().any(|v| Arc::as_ptr(&v.storage) == storage));
    let scope = modes::autocast_dtype();
    let op = Checkpoint { body: Some(Box::new(f)), operands: operands.len(), origins: origins.len(), scope, reads };
    let node = Node::record_chosen(KeptOp::Shared(Arc::new(op)), origins, metas, &views, &operands, Vec::new());
    let rebased = shown.into_iter().enumerate().map(|(index, (view, is_tracked, tangents))| {
        let edge = is_tracked.then(|| Edge { node: node.clone(), index });
        Tensor::with_history(view, edge, tangents)
    });
    Ok(rebased.collect())
}

/// [`checkpoint`] of a function that draws random numbers: in backward it sees the same ones again, and `rng` goes on after
/// those of this call.
pub fn checkpoint_with_rng(
    f: impl Fn(&[Tensor], &mut Rng) -> Result<Vec<Tensor>> + Send + Sync + 'static,
    inputs: &[&Tensor],
    rng: &mut Rng,
) -> Result<Vec<Tensor>> {
    let (before, after) = (rng.clone(), Arc::new(Mutex::new(rng.clone())));
    let out = after.clone();
    let body = move |x: &[Tensor]| {
        let mut rng = before.clone();
        let results = f(x, &mut rng)?;
        *out.lock().unwrap_or_else(PoisonError::into_inner) = rng;
        Ok(results)
    };
    let results = checkpoint(body, inputs)?;
    *rng = after.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(results)
}

/// An operand as a place of its own, so that its gradient is what flows through the function alone, not through other operands
/// that were made of it.
fn stand_in(t: &Tensor) -> Tensor {
    let meta = Meta::new(t.shape(), t.dtype());
    let input = t.node_input();
    let wanted = input.slot().map_or(t.dtype(), |slot| slot.grad_dtype());
    let view = std::slice::from_ref(t.view());
    let node = Node::record_chosen(KeptOp::Static(&Operand), smallvec![input], smallvec![meta], view, &[], Vec::new());
    if let Some(slot) = node.0.outputs.first() {
        slot.set_grad_dtype(wanted);
    }
    let tangents: Tangents = t.tangents().iter().cloned().collect();
    Tensor::with_history(t.view().clone(), Some(Edge { node, index: 0 }), tangents)
}

/// What the results depend on beside the operands: places older than `start`, in the order of the walk.
fn captured(results: &[Tensor], start: u64) -> Vec<NodeInput> {
    let (mut known, mut out, mut stack) = (HashSet::new(), Vec::new(), Vec::new());
    stack.extend(results.iter().map(Tensor::node_input));
    let mut expanded = HashSet::new();
    while let Some(input) = stack.pop() {
        let Some(place) = place(&input) else { continue };
        if !known.insert(place) {
            continue;
        }
        match &input {
            NodeInput::Interior(edge) if edge.node.0.sequence > start => {
                let is_first = expanded.insert(Arc::as_ptr(&edge.node.0).addr());
                if is_first && !std::ptr::eq(edge.node.schema(), &OPERAND) {
                    stack.extend(edge.node.inputs().iter().cloned());
                }
            }
            NodeInput::Leaf(slot) if slot.sequence() > start => {}
            _ => out.push(input),
        }
    }
    out
}

struct Checkpoint {
    /// Taken when dropped.
    body: Option<Body>,
    operands: usize,
    origins: usize,
    scope: Option<DType>,
    /// What `body` read beside what it made.
    reads: Vec<Read>,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({} operands, {} captured)", self.operands, self.origins - self.operands)
    }
}

impl Drop for Checkpoint {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            clear_held(Box::new(body));
        }
    }
}

fn not_an_op(schema: &OpSchema) -> Error {
    Error::invalid(schema.name, "call", "an op", "call autograd::checkpoint")
}

impl Op for Checkpoint {
    fn schema(&self) -> &'static OpSchema {
        &CHECKPOINT
    }
    fn infer(&self, _inputs: &[Meta]) -> Result<Inference> {
        Err(not_an_op(&CHECKPOINT))
    }
    fn eval(&self, _inputs: &[&View], _outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        Err(not_an_op(&CHECKPOINT))
    }

    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let (Some(body), node) = (&self.body, saved.node) else { return Ok(Grads::new()) };
        for (i, read) in self.reads.iter().enumerate() {
            read.check(CHECKPOINT.name, self.operands + i)?;
        }
        let records = modes::is_grad_enabled();
        let mut seen = Vec::new();
        for (i, need) in need.iter().enumerate().take(self.operands) {
            let t = saved.input(i)?;
            seen.push(match need {
                Some(_) if records => stand_in(t),
                // Without a record of the gradient the history of the operand is of no use.
                Some(dtype) => {
                    let leaf = t.fresh_leaf()?.requires_grad_(true)?;
                    leaf.leaf_or_init().set_grad_dtype(*dtype);
                    leaf
                }
                // A recorded gradient depends on the others too.
                None if records => t.clone(),
                None => t.fresh_leaf()?,
            });
        }
        let results = {
            let _scope = modes::set_autocast(self.scope);
            let _record = modes::set_grad_enabled(true);
            body(&seen)?
        };
        let metas = |t: &Tensor| Meta::new(t.shape(), t.dtype());
        if !results.iter().map(metas).eq(saved.output_metas().iter().cloned()) {
            let text = |metas: &[Meta]| {
                metas.iter().map(|m| format!("{} {}", m.dtype, crate::shape_text(&m.shape))).collect::<Vec<_>>().join(", ")
            };
            let got: Vec<Meta> = results.iter().map(metas).collect();
            let want = format!("the first run gave {}; the function must compute the same again", text(&saved.output_metas()));
            return Err(Error::invalid("checkpoint", "result of the second run", text(&got), want));
        }
        let roots: Vec<(NodeInput, Tensor)> =
            results.iter().zip(g).filter(|(t, _)| t.requires_grad()).filter_map(|(t, g)| Some((t.node_input(), g.clone()?))).collect();
        let places = (0..self.origins).map(|i| match seen.get(i) {
            _ if need[i].is_none() => NodeInput::Constant,
            Some(t) => t.node_input(),
            None => node.inputs()[i].clone(),
        });
        Ok(gradients_at(roots, &places.collect::<Vec<_>>(), records)?.into())
    }
}

#[derive(Debug)]
struct Operand;

impl Op for Operand {
    fn schema(&self) -> &'static OpSchema {
        &OPERAND
    }
    fn infer(&self, _inputs: &[Meta]) -> Result<Inference> {
        Err(not_an_op(&OPERAND))
    }
    fn eval(&self, _inputs: &[&View], _outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        Err(not_an_op(&OPERAND))
    }
    fn vjp(&self, _saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        Ok(smallvec![g.first().cloned().flatten()])
    }
}
