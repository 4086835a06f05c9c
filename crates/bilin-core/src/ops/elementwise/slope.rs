//! A tangent or cotangent times a derivative that is a program: one pass over the operands, and so its own derivatives.

use std::borrow::Cow;

use smallvec::{SmallVec, smallvec};

use super::derive::{Program, depth, derivative};
use crate::exec::launch::{self, View};
use crate::exec::map_expr::{MAX_DEPTH, MapExpr, Prim};
use crate::ops::apply::apply_one;
use crate::ops::cast::astype;
use crate::ops::reduce::sum_to;
use crate::ops::registry::{OpEntry, Sample, Values};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::broadcast_shapes;
use crate::tape::{Grads, Inference, Meta, Op, Saved, Saves, Tensor, Vmap};

static TIMES_SLOPE: OpSchema = OpSchema::schema_v1("times_slope", AmpPolicy::KeepInput, Arity::AtLeast(2));

/// t·slope, or t·conj(slope), the last operand being t; in t's dtype, computed in its compute dtype and rounded once.
#[derive(Debug, Clone, Copy)]
struct TimesSlope {
    slope: Program,
    is_conj: bool,
}

impl Op for TimesSlope {
    fn schema(&self) -> &'static OpSchema {
        &TIMES_SLOPE
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let shapes: SmallVec<[&[usize]; 4]> = inputs.iter().map(|x| x.shape.as_slice()).collect();
        Ok(Inference::one(&broadcast_shapes(&TIMES_SLOPE.name.into(), &shapes)?, inputs[inputs.len() - 1].dtype))
    }
    fn vmap(&self, _lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        Vmap::Broadcast(None)
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let (op, out) = (OpName::from(TIMES_SLOPE.name), &outputs[0]);
        let conj: &[Prim] = if self.is_conj && out.dtype.is_complex() { &[Prim::Conj] } else { &[] };
        let prims = [self.slope, conj, &[Prim::Input(inputs.len() as u8 - 1), Prim::Mul]].concat();
        let expr = MapExpr::new(&op, Cow::Owned(prims), out.dtype)?;
        Ok(smallvec![launch::map(&op, inputs[0].storage.device(), &expr, inputs, &out.shape, out.dtype)?])
    }
    fn flops(&self, _inputs: &[&View], outputs: &[Meta]) -> u64 {
        outputs[0].shape.iter().product::<usize>() as u64
    }
    fn saves(&self, need: &[bool]) -> Saves {
        // t is read for the operands' gradients alone.
        let operands = (1 << (need.len() - 1)) - 1;
        Saves { inputs: if need[..need.len() - 1].contains(&true) { operands << 1 | 1 } else { operands }, outputs: 0 }
    }
    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let last = need.len() - 1;
        let operands = (0..last).map(|i| saved.input(i)).collect::<Result<SmallVec<[&Tensor; 2]>>>()?;
        let mut grads = Grads::new();
        for (i, need) in need.iter().enumerate() {
            let grad = match need {
                None => None,
                Some(_) if i == last => Some(times_slope(g, &operands, self.slope, !self.is_conj)?),
                // y = t·s̄ follows the operand's conjugate.
                Some(_) => match derivative(self.slope, i as u8)? {
                    None => None,
                    Some(slope) if self.is_conj => Some(times_slope(&conj(g)?.mul(saved.input(last)?)?, &operands, slope, true)?),
                    Some(slope) => Some(times_slope(&g.mul(&conj(saved.input(last)?)?)?, &operands, slope, true)?),
                },
            };
            grads.push(grad.map(|grad| sum_to(&grad, &saved.input_metas()[i].shape)).transpose()?);
        }
        Ok(grads)
    }
    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let (t, operands) = inputs.split_last().ok_or_else(|| fault("no operands"))?;
        let operands: SmallVec<[&Tensor; 2]> = operands.iter().collect();
        let mut sum: Option<Tensor> = None;
        for (i, tangent) in tangents.iter().enumerate() {
            let Some(tangent) = tangent else { continue };
            let (along, slope) = if i == operands.len() {
                (tangent.clone(), self.slope)
            } else {
                let Some(slope) = derivative(self.slope, i as u8)? else { continue };
                (t.mul(&if self.is_conj { conj(tangent)? } else { tangent.clone() })?, slope)
            };
            let part = times_slope(&along.broadcast_to(outputs[0].shape())?, &operands, slope, self.is_conj)?;
            sum = Some(match sum {
                Some(so_far) => so_far.add(&part)?,
                None => part,
            });
        }
        Ok(smallvec![sum])
    }
}

#[cold]
fn fault(what: &str) -> Error {
    Error::invalid(TIMES_SLOPE.name, "slope", what, "this is a fault of the engine")
}

fn conj(x: &Tensor) -> Result<Tensor> {
    if x.dtype().is_complex() { x.conj() } else { Ok(x.clone()) }
}

/// t times a derivative at `operands`, conjugated in reverse mode; `t` has the result's shape.
pub(super) fn times_slope(t: &Tensor, operands: &[&Tensor], slope: Program, is_conj: bool) -> Result<Tensor> {
    if depth(slope) <= MAX_DEPTH {
        let mut all: SmallVec<[&Tensor; 4]> = operands.into();
        all.push(t);
        return apply_one(TimesSlope { slope, is_conj }, &all);
    }
    let wide = t.dtype().accumulator();
    let operands = operands.iter().map(|x| astype(x, wide)).collect::<Result<SmallVec<[Tensor; 2]>>>()?;
    let slope = step_by_step(slope, &operands, wide)?;
    let slope = if is_conj { conj(&slope)? } else { slope };
    astype(&slope.mul(&astype(t, wide)?)?, t.dtype())
}

/// A program too deep for one pass, whose steps are ops then.
fn step_by_step(program: Program, operands: &[Tensor], wide: DType) -> Result<Tensor> {
    let like = operands.first().ok_or_else(|| fault("no operands"))?;
    let mut stack: SmallVec<[Tensor; 8]> = SmallVec::new();
    for prim in program {
        let mut raw = || stack.pop().ok_or_else(|| fault("an empty stack"));
        let mut pop = || raw().and_then(|x| astype(&x, wide));
        let value = match prim {
            Prim::Input(i) => operands.get(usize::from(*i)).ok_or_else(|| fault("an operand that isn't there"))?.clone(),
            Prim::Const(c) => like.scalar_like(*c)?,
            Prim::Neg => pop()?.neg()?,
            Prim::Exp => pop()?.exp()?,
            Prim::Log => pop()?.log()?,
            Prim::Sin => pop()?.sin()?,
            Prim::Cos => pop()?.cos()?,
            Prim::Erfc => pop()?.erfc()?,
            Prim::Select => {
                let (b, a) = (pop()?, pop()?);
                raw()?.where_(&a, &b)?
            }
            _ => {
                let (b, a) = (pop()?, pop()?);
                match prim {
                    Prim::Add => a.add(&b)?,
                    Prim::Sub => a.sub(&b)?,
                    Prim::Mul => a.mul(&b)?,
                    Prim::Div => a.div(&b)?,
                    Prim::Pow => a.pow(&b)?,
                    Prim::Max => a.maximum(&b)?,
                    Prim::Min => a.minimum(&b)?,
                    Prim::Eq => a.eq(&b)?,
                    Prim::Gt => a.gt(&b)?,
                    _ => return Err(fault("a step that isn't an op")),
                }
            }
        };
        stack.push(value);
    }
    astype(&stack.pop().ok_or_else(|| fault("an empty program"))?, wide)
}

pub(in crate::ops) static ENTRIES: &[OpEntry] = &[OpEntry {
    schema: &TIMES_SLOPE,
    params: &[],
    // Of x·eˣ, its conjugate in reverse mode being that of forward mode.
    call: |x, _| {
        let slope: Program = &[Prim::Input(0), Prim::Exp, Prim::Input(0), Prim::Const(1.0), Prim::Add, Prim::Mul];
        apply_one(TimesSlope { slope, is_conj: true }, &[&x[0], &x[1]])
    },
    samples: &[Sample::new(&[&[3, 4], &[3, 4]], ""), Sample::new(&[&[4, 1], &[2, 4, 3]], ""), Sample::new(&[&[0, 2], &[0, 2]], "")],
    values: Values::Inexact,
}];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first error")]

    use super::*;
    use crate::exec::buffer::host_bytes;
    use crate::exec::device::Device;

    #[test]
    fn steps_by_themselves_have_the_bits_of_one_pass_and_deep_programs_run() {
        let of = |step: usize| {
            let values: Vec<f64> = (0..40).map(|i| 0.05 + (i * step % 41) as f64 / 16.0).collect();
            let view = View::alloc(&"test".into(), &Device::reference(), &[40], DType::F64).unwrap();
            Device::reference().backend().upload(bytemuck::cast_slice(&values), view.storage.write().as_mut()).unwrap();
            Tensor::from_view(view)
        };
        let (a, b, t) = (of(7), of(11), of(13));
        const X: Prim = Prim::Input(0);
        const Y: Prim = Prim::Input(1);
        let all: [Program; 7] = [
            &[X, Y, Prim::Pow],
            &[X, Y, Prim::Div],
            &[X, Y, Prim::Max],
            &[X, Y, Prim::Min, Prim::Sin],
            &[X, Prim::Log, Y, Prim::Neg, Prim::Exp, Prim::Mul],
            &[X, Y, Prim::Sub, Prim::Cos, X, Prim::Erfc, Prim::Add],
            &[X, Y, Prim::Gt, X, Y, Prim::Mul, Y, Prim::Select],
        ];
        let (mut deep, mut compared) = (0, 0);
        for program in all {
            let orders = |programs: Vec<Program>| -> Vec<Program> {
                programs.iter().flat_map(|p| [0, 1].into_iter().filter_map(|i| derivative(p, i).unwrap())).collect()
            };
            let first = orders(vec![program]);
            let (second, third) = (orders(first.clone()), orders(orders(first.clone())));
            for slope in [vec![program], first, second, third].concat() {
                let steps = step_by_step(slope, &[a.clone(), b.clone()], DType::F64).unwrap().mul(&t).unwrap();
                let got = times_slope(&t, &[&a, &b], slope, false).unwrap();
                let bits = |t: &Tensor| host_bytes(&"test".into(), t.view().storage.read().as_ref()).unwrap().to_vec();
                assert_eq!(bits(&got), bits(&steps), "{slope:?}");
                deep += usize::from(depth(slope) > MAX_DEPTH);
                compared += 1;
            }
        }
        assert!(derivative(&[X, Prim::Floor], 0).is_err(), "a step without a rule is no constant");
        assert!(deep > 0 && compared > 2 * deep, "{deep} of {compared} are too deep for one pass");
    }
}
