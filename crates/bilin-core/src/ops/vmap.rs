//! Several lanes at once: an op over tensors that stand for many values runs once, over operands with one more axis.

use smallvec::SmallVec;

use super::apply::apply_kept;
use super::index::stack;
use crate::shape::error::Result;
use crate::shape::layout::Dims;
use crate::tape::{Grads, KeptOp, Lanes, Meta, Tensor, Tensors, Vmap};

/// The deepest level of lanes among tensors, and their number.
fn deepest<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Option<(u32, usize)> {
    tensors.filter_map(Tensor::lanes).map(|l| (l.level, l.stack.shape()[0])).max()
}

/// What a tensor stands for at a level.
fn at_level(t: &Tensor, level: u32) -> Option<&Lanes> {
    t.lanes().filter(|l| l.level == level)
}

/// An operand as the op over all lanes wants it.
type Arrange<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

/// Runs an op of which an operand stands for several values; `outputs` are the results of one lane.
pub(super) fn run(op: &KeptOp, inputs: &[&Tensor], outputs: &[Meta]) -> Result<Tensors> {
    let Some((level, lanes)) = deepest(inputs.iter().copied()) else { return Ok(Tensors::new()) };
    let differs: SmallVec<[bool; 4]> = inputs.iter().map(|t| at_level(t, level).is_some()).collect();
    let metas: SmallVec<[Meta; 2]> = inputs.iter().map(|t| Meta::new(t.shape(), t.dtype())).collect();
    let (op, arrange): (KeptOp, Arrange<'_>) = match op.vmap(lanes, &differs, &metas) {
        Vmap::Each => {
            let operands: SmallVec<[Option<Tensor>; 2]> = inputs.iter().map(|t| Some((*t).clone())).collect();
            let one = &mut |x: &[Option<Tensor>]| Ok(apply_kept(op, &refs(x))?.into_iter().map(Some).collect());
            return Ok(each_lane(&operands, one)?.into_iter().flatten().collect());
        }
        // The new axis stands before the result's; a shorter operand gets axes of length 1 behind it.
        Vmap::Broadcast(other) => (other.map_or_else(|| op.clone(), KeptOp::from), &|t| {
            let Some(Lanes { stack, .. }) = at_level(t, level) else { return Ok(t.clone()) };
            let rank = outputs.first().map_or(0, |o| o.shape.len());
            (t.rank()..rank).try_fold(stack.clone(), |s, _| s.unsqueeze(1))
        }),
        Vmap::All(op) => (op.into(), &|t| match at_level(t, level) {
            Some(lanes) => Ok(lanes.stack.clone()),
            None => t.broadcast_to(std::iter::once(lanes).chain(t.shape().iter().copied()).collect::<Dims>()),
        }),
        Vmap::Some(op) => (op.into(), &|t| Ok(at_level(t, level).map_or(t, |l| &l.stack).clone())),
    };
    let operands: Result<SmallVec<[Tensor; 2]>> = inputs.iter().map(|t| arrange(t)).collect();
    let stacks = apply_kept(&op, &operands?.iter().collect::<SmallVec<[&Tensor; 2]>>())?;
    Ok(stacks.into_iter().map(|s| Tensor::from_lanes(level, s)).collect())
}

fn refs(x: &[Option<Tensor>]) -> SmallVec<[&Tensor; 4]> {
    x.iter().flatten().collect()
}

/// Calls `one` for one lane after the other, where any of `tensors` stands for several values, and stacks what comes back.
pub(crate) fn each_lane(tensors: &[Option<Tensor>], one: &mut dyn FnMut(&[Option<Tensor>]) -> Result<Grads>) -> Result<Grads> {
    let Some((level, lanes)) = deepest(tensors.iter().flatten()) else { return one(tensors) };
    let mut results: SmallVec<[Vec<Option<Tensor>>; 2]> = SmallVec::new();
    for lane in 0..lanes {
        let of = |t: &Tensor| at_level(t, level).map_or_else(|| Ok(t.clone()), |l| l.stack.narrow(0, lane, 1)?.squeeze(&[0]));
        let values: Result<SmallVec<[Option<Tensor>; 2]>> = tensors.iter().map(|t| t.as_ref().map(of).transpose()).collect();
        for (i, t) in each_lane(&values?, one)?.into_iter().enumerate() {
            if i == results.len() {
                results.push(Vec::new());
            }
            results[i].push(t);
        }
    }
    let together = |parts: Vec<Option<Tensor>>| {
        let Some(like) = parts.iter().flatten().next().cloned() else { return Ok(None) };
        // Nothing is zero.
        let parts: Result<Vec<Tensor>> = parts.into_iter().map(|t| t.map_or_else(|| like.zeros_like(), Ok)).collect();
        Ok(Some(Tensor::from_lanes(level, stack(&parts?.iter().collect::<Vec<_>>(), 0)?)))
    };
    results.into_iter().map(together).collect()
}

/// The values of `t` at `level` along a new leading axis; of a tensor that is the same in all lanes, one that repeats it.
pub(crate) fn unstack(t: &Tensor, level: u32, lanes: usize) -> Result<Tensor> {
    let shape: Dims = std::iter::once(lanes).chain(t.shape().iter().copied()).collect();
    at_level(t, level).map_or_else(|| t.broadcast_to(shape), |l| Ok(l.stack.clone()))
}
