//! The one road from user to kernel.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{cast, vmap};
use crate::exec::launch::View;
use crate::schema::modes::{self, Modes};
use crate::schema::profiler::{self, Run, Watch};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::tape::{Edge, Grads, Inference, KeptOp, Meta, Metas, Node, Op, Tangents, Tensor, Tensors, Written, note};

/// Runs an op: devices → determinism → effective dtypes → `infer` → casts → eval → record. Everything is checked before
/// anything is cast or allocated.
pub fn apply(op: Arc<dyn Op>, inputs: &[&Tensor]) -> Result<Tensors> {
    apply_kept(&op.into(), inputs)
}

/// [`apply`] for an op with one result.
pub fn apply_one<O: Op + Clone>(op: O, inputs: &[&Tensor]) -> Result<Tensor> {
    one(Call { op: &op, keep: &|| KeptOp::Shared(Arc::new(op.clone())) }, inputs)
}

/// [`apply_one`] for an op of a table.
pub(crate) fn apply_static(op: &'static dyn Op, inputs: &[&Tensor]) -> Result<Tensor> {
    one(Call { op, keep: &|| KeptOp::Static(op) }, inputs)
}

/// [`apply`] for an op that is kept already.
pub(crate) fn apply_kept(op: &KeptOp, inputs: &[&Tensor]) -> Result<Tensors> {
    road(Call { op: &**op, keep: &|| op.clone() }, inputs)
}

fn one(call: Call<'_>, inputs: &[&Tensor]) -> Result<Tensor> {
    let name = call.op.schema().name;
    road(call, inputs)?.pop().ok_or_else(|| Error::invalid(name, "outputs", 0, "want one result"))
}

/// An op that is borrowed until somebody keeps it.
#[derive(Clone, Copy)]
struct Call<'a> {
    op: &'a dyn Op,
    keep: &'a dyn Fn() -> KeptOp,
}

/// What an op would give for these operands, or why it can't. Into `metas` go their facts as the op sees them, and into `is_cast`
/// whether casts bring them there.
#[inline]
fn check(op: &dyn Op, inputs: &[&Tensor], modes: Modes, metas: &mut Metas, is_cast: &mut bool) -> Result<Inference> {
    let schema = op.schema();
    check_arity(schema, inputs.len())?;
    check_devices(schema, inputs)?;
    if !schema.deterministic && modes.deterministic {
        return Err(Error::NonDeterministic { op: schema.name.into(), note: schema.determinism_note });
    }
    for t in inputs {
        let mut meta = t.meta();
        if let Some(scope) = modes.autocast {
            meta.dtype = effective_dtype(schema, t, scope);
            *is_cast |= meta.dtype != t.dtype();
        }
        metas.push(meta);
    }
    op.infer(metas)
}

fn road(call: Call<'_>, inputs: &[&Tensor]) -> Result<Tensors> {
    let modes = modes::current();
    let (mut metas, mut is_cast) = (Metas::new(), false);
    let Inference { outputs, lowered } = &check(call.op, inputs, modes, &mut metas, &mut is_cast)?;
    if modes.notes {
        note(inputs);
    }
    let lowered = lowered.as_ref();
    let call = Call { op: lowered.map_or(call.op, |op| &**op), keep: &|| lowered.map_or_else(call.keep, KeptOp::clone) };
    if !is_cast {
        return run(call, inputs, &metas, outputs, modes);
    }
    let mut casts: SmallVec<[Tensor; 4]> = SmallVec::new();
    for (meta, t) in metas.iter().zip(inputs) {
        casts.push(cast::astype(t, meta.dtype)?);
    }
    run(call, &casts.iter().collect::<SmallVec<[&Tensor; 4]>>(), &metas, outputs, modes)
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

#[inline]
fn run(call: Call<'_>, inputs: &[&Tensor], metas: &Metas, outputs: &[Meta], modes: Modes) -> Result<Tensors> {
    if inputs.iter().any(|t| t.lanes().is_some()) {
        return vmap::run(&(call.keep)(), inputs, outputs);
    }
    let records = modes.records && inputs.iter().any(|t| t.requires_grad());
    // Without a record the strides of a view say all there is to save.
    match if records { call.op.rewrite(inputs) } else { None } {
        Some((other, others)) => {
            let written = Written::new((call.keep)(), inputs, metas.clone());
            let others: SmallVec<[&Tensor; 2]> = others.iter().collect();
            let metas = others.iter().map(|t| t.meta()).collect();
            let call = Call { op: other.as_ref(), keep: &|| other.clone().into() };
            evaluate(call, &others, outputs, modes, Some((&metas, Some(written))))
        }
        None => evaluate(call, inputs, outputs, modes, records.then_some((metas, None))),
    }
}

/// What is recorded: the operands' facts, and the op as the user wrote it where that is another.
type Record<'a> = Option<(&'a Metas, Option<Written>)>;

#[inline]
fn evaluate(call: Call<'_>, inputs: &[&Tensor], outputs: &[Meta], modes: Modes, record: Record<'_>) -> Result<Tensors> {
    let op = call.op;
    let mut sources: SmallVec<[&View; 4]> = SmallVec::new();
    inputs.iter().for_each(|t| sources.push(t.view()));
    if modes.profiles {
        let (mut views, at) = watched(op, &sources, outputs, || op.eval(&sources, outputs))?;
        let tensors = finish(call, inputs, &mut views, modes, record)?;
        if let Some((at, edge)) = at.zip(tensors.first().and_then(Tensor::edge)) {
            profiler::set_sequence(at, edge.node.0.sequence);
        }
        return Ok(tensors);
    }
    // Views are large to move: they stay where they were returned.
    match &mut op.eval(&sources, outputs) {
        Ok(views) => finish(call, inputs, views, modes, record),
        Err(e) => Err(e.clone()),
    }
}

/// The results of an evaluation with their history and tangents.
#[inline]
fn finish(call: Call<'_>, inputs: &[&Tensor], views: &mut Views, modes: Modes, record: Record<'_>) -> Result<Tensors> {
    let (op, level) = (call.op, modes.level);
    let has_tangents = level > 0 && inputs.iter().any(|t| t.has_tangent(level));
    let node = record.map(|(metas, written)| {
        let mut need: SmallVec<[bool; 4]> = SmallVec::new();
        inputs.iter().for_each(|t| need.push(t.requires_grad()));
        let keep = op.saves(&need);
        let grad_dtype = |dtype| grad_dtype(inputs, op, dtype);
        Node::record((call.keep)(), inputs, metas, views, grad_dtype, keep, has_tangents && keep.outputs != 0, written)
    });
    let mut results = Tensors::new();
    for (index, view) in views.drain(..).enumerate() {
        let edge = node.as_ref().filter(|_| view.dtype.is_differentiable()).map(|node| Edge { node: node.clone(), index });
        results.push(Tensor::made_by(view, edge));
    }
    if has_tangents { push_forward(&(call.keep)(), inputs, results, level) } else { Ok(results) }
}

/// Adds the one result of an op to `sum`, an untracked tensor of its shape and dtype that nobody else holds: the same bits as
/// [`apply`] and an addition after it, without the buffer between. False, and nothing is touched, where the op can't.
fn apply_onto(op: &dyn Op, inputs: &[&Tensor], sum: &Tensor) -> Result<bool> {
    if inputs.iter().any(|t| !t.tangents().is_empty() || t.lanes().is_some()) {
        return Ok(false);
    }
    let outputs = check(op, inputs, modes::current(), &mut Metas::new(), &mut false)?.outputs;
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

/// Two ops of one result each, which read one tensor, at once by `run`: the same bits as [`apply`] of each. `None`, and nothing is
/// computed, where somebody records, follows or repeats them, or `run` has no gain from it.
pub(super) fn apply_both(
    ops: [&dyn Op; 2],
    inputs: [[&Tensor; 2]; 2],
    run: impl FnOnce([[&View; 2]; 2], [&Meta; 2]) -> Result<Option<[View; 2]>>,
) -> Result<Option<[Tensor; 2]>> {
    let modes = modes::current();
    let is_plain = |t: &&Tensor| t.tangents().is_empty() && t.lanes().is_none() && !(modes.records && t.requires_grad());
    if modes.notes || !inputs.iter().flatten().all(is_plain) {
        return Ok(None);
    }
    let outputs = |i: usize| check(ops[i], &inputs[i], modes, &mut Metas::new(), &mut false).map(|inference| inference.outputs);
    let outputs = [outputs(0)?, outputs(1)?];
    let sources = inputs.map(|inputs| inputs.map(Tensor::view));
    let (device, run) = (inputs[0][0].device(), || run(sources, [&outputs[0][0], &outputs[1][0]]));
    if !modes.profiles {
        return Ok(run()?.map(|views| views.map(Tensor::from_view)));
    }
    let watch = Watch::start(Some(device))?;
    let views = run();
    let lap = watch.stop(Some(device));
    let Some(views) = views? else { return Ok(None) };
    for (i, lap) in lap?.halved(device).into_iter().enumerate() {
        lap.record(event(ops[i], &sources[i], &views[i..=i], &outputs[i], &views[i]));
    }
    Ok(Some(views.map(Tensor::from_view)))
}

type Views = SmallVec<[View; 1]>;

/// What a profile says of an op that has run.
fn event<'a>(
    op: &dyn Op,
    sources: &'a [&'a View],
    views: &[View],
    outputs: &[Meta],
    first: &'a View,
) -> Run<'a, impl Iterator<Item = (&'a [usize], DType)>> {
    Run {
        op: op.schema().name,
        device: first.storage.device(),
        operands: sources.iter().map(|v| (v.layout.shape(), v.dtype)),
        result_bytes: views.iter().map(|v| (v.layout.numel() * v.dtype.size_bytes()) as u64).sum(),
        dtype: Some(first.dtype),
        flops: op.flops(sources, outputs),
    }
}

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
    let at = lap?.record(event(op, sources, &views, outputs, first));
    Ok((views, Some(at)))
}

/// The dtype in which the gradient of a result is wanted: its own, or across `astype` the source's, so that a sum of
/// gradients isn't rounded on the way to a wider leaf.
fn grad_dtype(inputs: &[&Tensor], op: &dyn Op, own: DType) -> DType {
    match inputs {
        [source] if own.is_half() && op.schema().name == cast::ASTYPE.name => {
            let wanted = source.node_input().slot().map_or(source.dtype(), |s| s.grad_dtype());
            if wanted.is_differentiable() && !wanted.is_complex() { wanted } else { own }
        }
        _ => own,
    }
}

/// Tangents of the results, level by level from the outermost. A level's tangent is computed with only the levels
/// outside it flowing, so nested levels never mix.
pub(crate) fn push_forward(op: &KeptOp, inputs: &[&Tensor], outputs: Tensors, level: u32) -> Result<Tensors> {
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

fn replace_each(op: &KeptOp, inputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
    let mut sum: Grads = Grads::new();
    for (i, tangent) in tangents.iter().enumerate() {
        let Some(tangent) = tangent else { continue };
        let operands: SmallVec<[&Tensor; 4]> = inputs.iter().enumerate().map(|(j, x)| if i == j { tangent } else { x }).collect();
        for (j, part) in apply_kept(op, &operands)?.into_iter().enumerate() {
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
        let outputs = saved.all_inputs().map(|inputs| apply_kept(&node.0.op, &inputs)).transpose()?;
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
    let mut need: SmallVec<[Option<DType>; 2]> = SmallVec::from_slice(need);
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
    let mut out = rule.vjp(&saved, &need, g)?;
    out.resize(need.len(), None);
    for (i, want) in need.iter().enumerate() {
        let Some(grad) = out[i].take() else { continue };
        if let Some(dtype) = want {
            let want = &saved.input_metas()[i].shape;
            if grad.shape() != want.as_slice() {
                let got = format!("a gradient of shape {:?} for operand {i}", grad.shape());
                return Err(Error::invalid(node.schema().name, "vjp", got, format!("want the operand's shape {want:?}")));
            }
            out[i] = Some(if grad.dtype() == *dtype { grad } else { cast::astype(&grad, *dtype)? });
        }
        if watches {
            refuse_nan(node, Some(i), &out[i..=i])?;
        }
    }
    Ok(out)
}

/// All values that a tensor stands for.
fn every_lane(t: &Tensor) -> &Tensor {
    t.lanes().map_or(t, |l| every_lane(&l.stack))
}

fn refuse_nan(node: &Node, operand: Option<usize>, grads: &[Option<Tensor>]) -> Result<()> {
    let _plain = modes::set_grad_enabled(false);
    for grad in grads.iter().flatten().map(|g| every_lane(g).detach()).filter(|g| g.dtype().is_differentiable() && g.numel() > 0) {
        if grad.ne(&grad)?.sum(.., false)?.item::<i64>()? > 0 {
            let shapes = node.0.input_metas.iter().map(|m| m.shape.to_vec()).collect();
            return Err(Error::NanGradient { op: node.schema().name.into(), operand, shapes });
        }
    }
    Ok(())
}
