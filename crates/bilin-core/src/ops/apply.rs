//! The one road from user to kernel.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::cast;
use crate::exec::launch::View;
use crate::schema::modes;
use crate::schema::profiler::{self, Run, Watch};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::tape::{Edge, Grads, Inference, Meta, Node, Op, Tangents, Tensor, Tensors, Written};

/// Runs an op: devices → determinism → effective dtypes → `infer` → casts → eval → record. Everything is checked before
/// anything is cast or allocated.
pub fn apply(op: Arc<dyn Op>, inputs: &[&Tensor]) -> Result<Tensors> {
    let mut checked = check(op.as_ref(), inputs)?;
    let op = checked.inference.lowered.take().unwrap_or(op);
    checked.run(op, inputs)
}

/// [`apply`] for an op with one result.
pub fn apply_one(op: impl Op, inputs: &[&Tensor]) -> Result<Tensor> {
    let name = op.schema().name;
    let mut checked = check(&op, inputs)?;
    let op = checked.inference.lowered.take().unwrap_or_else(|| Arc::new(op));
    let out = checked.run(op, inputs)?.into_iter().next();
    out.ok_or_else(|| Error::invalid(name, "outputs", 0, "want one result"))
}

/// A call that has passed every check.
struct Checked {
    inference: Inference,
    /// The dtypes that operands are cast to, where an autocast scope is open.
    dtypes: Option<SmallVec<[DType; 4]>>,
}

fn check(op: &dyn Op, inputs: &[&Tensor]) -> Result<Checked> {
    let schema = op.schema();
    check_arity(schema, inputs.len())?;
    check_devices(schema, inputs)?;
    if !schema.deterministic && modes::are_deterministic_algorithms_enabled() {
        return Err(Error::NonDeterministic { op: schema.name.into(), note: schema.determinism_note });
    }
    let scope = modes::autocast_dtype();
    let mut metas: SmallVec<[Meta; 2]> = SmallVec::new();
    for t in inputs {
        metas.push(Meta::new(t.shape(), scope.map_or(t.dtype(), |scope| effective_dtype(schema, t, scope))));
    }
    let inference = op.infer(&metas)?;
    Ok(Checked { inference, dtypes: scope.map(|_| metas.iter().map(|m| m.dtype).collect()) })
}

impl Checked {
    fn run(self, op: Arc<dyn Op>, inputs: &[&Tensor]) -> Result<Tensors> {
        let outputs = &self.inference.outputs;
        match self.dtypes {
            Some(dtypes) if dtypes.iter().zip(inputs).any(|(d, t)| *d != t.dtype()) => {
                let mut casts: SmallVec<[Tensor; 4]> = SmallVec::new();
                for (dtype, t) in dtypes.iter().zip(inputs) {
                    casts.push(cast::astype(t, *dtype)?);
                }
                run(op, &casts.iter().collect::<SmallVec<[&Tensor; 4]>>(), outputs)
            }
            _ => run(op, inputs, outputs),
        }
    }
}

fn check_arity(schema: &OpSchema, count: usize) -> Result<()> {
    let (fits, least) = match schema.arity {
        Arity::Exact(n) => (count == usize::from(n), n),
        Arity::AtLeast(n) => (count >= usize::from(n), n),
    };
    if fits {
        return Ok(());
    }
    let more = if matches!(schema.arity, Arity::AtLeast(_)) { " or more" } else { "" };
    Err(Error::invalid(schema.name, "operands", count, format!("want {least}{more}")))
}

fn check_devices(schema: &OpSchema, inputs: &[&Tensor]) -> Result<()> {
    if inputs.windows(2).all(|w| w[0].device() == w[1].device()) {
        return Ok(());
    }
    Err(Error::DeviceMismatch { op: schema.name.into(), devices: inputs.iter().map(|t| t.device().name().to_owned()).collect() })
}

/// The dtype of an operand under the autocast scope `scope`.
pub(crate) fn effective_dtype(schema: &OpSchema, t: &Tensor, scope: DType) -> DType {
    match (schema.amp_policy, t.dtype()) {
        (AmpPolicy::Promote, DType::F16 | DType::Bf16 | DType::F32) if scope.is_half() || scope == DType::F32 => {
            t.device().backend().autocast_dtype(scope)
        }
        (AmpPolicy::ForceFP32, DType::F16 | DType::Bf16) => DType::F32,
        (_, dtype) => dtype,
    }
}

fn run(op: Arc<dyn Op>, inputs: &[&Tensor], outputs: &[Meta]) -> Result<Tensors> {
    // Without a record the strides of a view say all there is to save.
    let records = modes::is_grad_enabled() && inputs.iter().any(|t| t.requires_grad());
    match if records { op.rewrite(inputs) } else { None } {
        Some((other, others)) => {
            let written = Written::new(op, inputs);
            evaluate(other, &others.iter().collect::<SmallVec<[&Tensor; 2]>>(), outputs, Some(written))
        }
        None => evaluate(op, inputs, outputs, None),
    }
}

fn evaluate(op: Arc<dyn Op>, inputs: &[&Tensor], outputs: &[Meta], written: Option<Written>) -> Result<Tensors> {
    let sources: SmallVec<[&View; 4]> = inputs.iter().map(|t| t.view()).collect();
    if modes::is_profiling() {
        let (views, at) = watched(op.as_ref(), &sources, outputs, || op.eval(&sources, outputs))?;
        let tensors = record(op, inputs, views, outputs, written)?;
        if let Some((at, edge)) = at.zip(tensors.first().and_then(Tensor::edge)) {
            profiler::set_sequence(at, edge.node.0.sequence);
        }
        return Ok(tensors);
    }
    let views = op.eval(&sources, outputs)?;
    record(op, inputs, views, outputs, written)
}

/// The results of an evaluation with their history and tangents.
fn record(op: Arc<dyn Op>, inputs: &[&Tensor], views: Views, outputs: &[Meta], written: Option<Written>) -> Result<Tensors> {
    let level = modes::tangent_level();
    let has_tangents = level > 0 && inputs.iter().any(|t| t.tangents().iter().any(|(l, _)| *l <= level));
    let records = modes::is_grad_enabled() && inputs.iter().any(|t| t.requires_grad());
    let node = records.then(|| {
        let need: SmallVec<[bool; 4]> = inputs.iter().map(|t| t.requires_grad()).collect();
        let keep = op.saves(&need);
        let grad_dtypes: SmallVec<[DType; 1]> = outputs.iter().map(|o| grad_dtype(inputs, op.as_ref(), o.dtype)).collect();
        Node::record(op.clone(), inputs, &views, &grad_dtypes, keep, has_tangents && keep.outputs != 0, written)
    });
    let edge = |index: usize, dtype: DType| match &node {
        Some(node) if dtype.is_differentiable() => Some(Edge { node: node.clone(), index }),
        _ => None,
    };
    let plain = views.into_iter().enumerate().map(|(i, v)| {
        let edge = edge(i, v.dtype);
        Tensor::with_history(v, edge, Tangents::new())
    });
    let outputs: Tensors = plain.collect();
    if has_tangents { push_forward(&op, inputs, outputs, level) } else { Ok(outputs) }
}

/// Adds the one result of an op to `sum`, an untracked tensor of its shape and dtype that nobody else holds: the same bits as
/// [`apply`] and an addition after it, without the buffer between. False, and nothing is touched, where the op can't.
fn apply_onto(op: &dyn Op, inputs: &[&Tensor], sum: &Tensor) -> Result<bool> {
    if inputs.iter().any(|t| !t.tangents().is_empty()) {
        return Ok(false);
    }
    let outputs = check(op, inputs)?.inference.outputs;
    if outputs.as_slice() != [Meta::new(sum.shape(), sum.dtype())] || inputs.iter().any(|t| t.device() != sum.device()) {
        return Ok(false);
    }
    let sources: SmallVec<[&View; 4]> = inputs.iter().map(|t| t.view()).collect();
    let onto = || Ok(if op.eval_onto(&sources, sum.view())? { smallvec![sum.view().clone()] } else { SmallVec::new() });
    let views = if modes::is_profiling() { watched(op, &sources, &outputs, onto)?.0 } else { onto()? };
    if views.is_empty() {
        return Ok(false);
    }
    sum.view().storage.bump_version();
    Ok(true)
}

type Views = SmallVec<[View; 1]>;

/// Runs an op under a profile, and gives the place of its event. A view launches nothing and has none.
#[cold]
fn watched(op: &dyn Op, sources: &[&View], outputs: &[Meta], run: impl FnOnce() -> Result<Views>) -> Result<(Views, Option<usize>)> {
    let device = sources.first().map(|v| v.storage.device());
    let watch = Watch::start(device)?;
    let views = run();
    // Stopped whatever came of the work.
    let lap = watch.stop(device);
    let views = views?;
    let launched = views.first().filter(|v| !sources.iter().any(|s| Arc::ptr_eq(&s.storage, &v.storage)));
    let Some(first) = launched else { return Ok((views, None)) };
    let at = lap?.record(Run {
        op: op.schema().name,
        device: first.storage.device(),
        operands: sources.iter().map(|v| (v.layout.shape(), v.dtype)),
        result_bytes: views.iter().map(|v| (v.layout.numel() * v.dtype.size_bytes()) as u64).sum(),
        dtype: Some(first.dtype),
        flops: op.flops(sources, outputs),
    });
    Ok((views, Some(at)))
}

/// The dtype in which the gradient of a result is wanted: its own, or across `astype` the source's, so that a sum of
/// gradients isn't rounded on the way to a wider leaf.
fn grad_dtype(inputs: &[&Tensor], op: &dyn Op, own: DType) -> DType {
    match inputs {
        [source] if op.schema().name == cast::ASTYPE.name && own.is_half() => {
            let wanted = source.node_input().slot().map_or(source.dtype(), |s| s.grad_dtype());
            if wanted.is_differentiable() && !wanted.is_complex() { wanted } else { own }
        }
        _ => own,
    }
}

/// Tangents of the results, level by level from the outermost. A level's tangent is computed with only the levels
/// outside it flowing, so nested levels never mix.
pub(crate) fn push_forward(op: &Arc<dyn Op>, inputs: &[&Tensor], outputs: Tensors, level: u32) -> Result<Tensors> {
    let mut levels: SmallVec<[u32; 2]> = inputs.iter().flat_map(|t| t.tangents()).map(|(l, _)| *l).filter(|l| *l <= level).collect();
    levels.sort_unstable();
    levels.dedup();
    let mut collected: SmallVec<[Tangents; 1]> = outputs.iter().map(|_| Tangents::new()).collect();
    let owned: SmallVec<[Tensor; 2]> = inputs.iter().map(|t| (*t).clone()).collect();
    for l in levels {
        let _outer = modes::set_tangent_level(l - 1);
        let _plain = modes::set_autocast(None);
        let tangents: SmallVec<[Option<Tensor>; 2]> = inputs.iter().map(|t| t.tangent(l).cloned()).collect();
        // Results as the levels outside see them.
        let seen: Tensors =
            outputs.iter().zip(&collected).map(|(o, t)| if t.is_empty() { o.clone() } else { o.with_tangents(t.clone()) }).collect();
        let results = if op.is_multilinear() { replace_each(op, &owned, &tangents)? } else { op.jvp(&owned, &seen, &tangents)? };
        for (into, t) in collected.iter_mut().zip(results) {
            if let Some(t) = t {
                into.push((l, t));
            }
        }
    }
    Ok(outputs.into_iter().zip(collected).map(|(o, t)| if t.is_empty() { o } else { o.with_tangents(t) }).collect())
}

fn replace_each(op: &Arc<dyn Op>, inputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
    let mut sum: Grads = Grads::new();
    for (i, tangent) in tangents.iter().enumerate() {
        let Some(tangent) = tangent else { continue };
        let operands: SmallVec<[&Tensor; 4]> = inputs.iter().enumerate().map(|(j, x)| if i == j { tangent } else { x }).collect();
        for (j, part) in apply(op.clone(), &operands)?.into_iter().enumerate() {
            match sum.get_mut(j) {
                Some(slot) => {
                    *slot = match slot.take() {
                        Some(so_far) => Some(so_far.add(&part)?),
                        None => Some(part),
                    }
                }
                None => sum.push(Some(part)),
            }
        }
    }
    Ok(sum)
}

/// The gradients of a node's operands for the cotangents `g`: the op's rule, under the thread's grad mode, with autocast
/// off. `need[i]` names the dtype in which operand i's gradient is wanted.
pub(crate) fn run_vjp(node: &Node, g: &[Option<Tensor>], need: &[Option<DType>]) -> Result<Grads> {
    run_vjp_onto(node, None, g, need, &mut |_, _, _| Ok(false))
}

/// Adds a gradient to the sum it is given, in place; false where that can't be done.
pub(crate) type Add<'a> = &'a dyn Fn(&Tensor) -> Result<bool>;

/// The same, for the operands as `written` where the recorded op reads others. `sums` is asked for each operand, with the dtype
/// of its gradient, before that is computed: it may have it added to a sum that stands already, and then there is none to return.
pub(crate) fn run_vjp_onto(
    node: &Node,
    written: Option<&Written>,
    g: &[Option<Tensor>],
    need: &[Option<DType>],
    sums: &mut dyn FnMut(usize, DType, Add<'_>) -> Result<bool>,
) -> Result<Grads> {
    let _plain = modes::set_autocast(None);
    let mut saved = node.unpack()?;
    if node.0.recomputes {
        let outputs = saved.all_inputs().map(|inputs| apply(node.0.op.clone(), &inputs)).transpose()?;
        saved.set_outputs(outputs.into_iter().flatten());
    }
    let watches = modes::is_detecting_anomaly();
    if watches {
        refuse_nan(node, None, g)?;
    }
    let rule = match written {
        Some(written) => {
            saved.expand(&written.metas, |t, shape| t.broadcast_to(shape))?;
            &written.op
        }
        None => &node.0.op,
    };
    let mut need: SmallVec<[Option<DType>; 2]> = need.into();
    // Anomalies are looked for in each part.
    for (i, want) in need.iter_mut().enumerate().filter(|_| !watches) {
        let Some(dtype) = *want else { continue };
        let add = |sum: &Tensor| match rule.vjp_call(&saved, i, dtype, g)? {
            Some((op, operands)) => apply_onto(op.as_ref(), &operands.iter().collect::<SmallVec<[&Tensor; 2]>>(), sum),
            None => Ok(false),
        };
        if sums(i, dtype, &add)? {
            *want = None;
        }
    }
    let grads = rule.vjp(&saved, &need, g)?;
    let op = node.schema().name;
    let mut out = Grads::new();
    for (i, want) in need.iter().enumerate() {
        let grad = match (grads.get(i).cloned().flatten(), want) {
            (Some(grad), Some(dtype)) => {
                let want = &saved.input_metas[i].shape;
                if grad.shape() != want.as_slice() {
                    let got = format!("a gradient of shape {:?} for operand {i}", grad.shape());
                    return Err(Error::invalid(op, "vjp", got, format!("want the operand's shape {want:?}")));
                }
                Some(cast::astype(&grad, *dtype)?)
            }
            _ => None,
        };
        if watches {
            refuse_nan(node, Some(i), std::slice::from_ref(&grad))?;
        }
        out.push(grad);
    }
    Ok(out)
}

fn refuse_nan(node: &Node, operand: Option<usize>, grads: &[Option<Tensor>]) -> Result<()> {
    let _plain = modes::set_grad_enabled(false);
    for grad in grads.iter().flatten().map(Tensor::detach).filter(|g| g.dtype().is_differentiable() && g.numel() > 0) {
        if grad.ne(&grad)?.sum(.., false)?.item::<i64>()? > 0 {
            let shapes = node.0.input_metas.iter().map(|m| m.shape.to_vec()).collect();
            return Err(Error::NanGradient { op: node.schema().name.into(), operand, shapes });
        }
    }
    Ok(())
}
