//! Arithmetic of two operands that broadcast.

use smallvec::{SmallVec, smallvec};

use super::derive::derivative;
use super::slope::times_slope;
use super::{Gives, eval_map, gives, pair, times_conj};
use crate::exec::call::Conj;
use crate::exec::launch::View;
use crate::exec::map_expr::{MapExpr, Prim, Prim::Input};
use crate::ops::apply::apply_static;
use crate::ops::contract::contract;
use crate::ops::reduce::sum_to;
use crate::ops::registry::{OpEntry, Sample, Values};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result};
use crate::shape::spec::{Axes, Axis, Spec};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Saves, Tensor, Vmap};

/// Σ g·conj(other) over what broadcasting repeated, in `shape`: one contraction, in which nothing is expanded.
fn times_summed(g: &Tensor, other: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if g.shape() == shape {
        return times_conj(g, other);
    }
    let axes = |shape: &[usize]| -> Axes {
        let lead = g.rank() - shape.len();
        let axis = |(i, &len): (usize, &usize)| if len == g.shape()[lead + i] { Axis::Label((lead + i) as u16) } else { Axis::Unit };
        shape.iter().enumerate().map(axis).collect()
    };
    match Spec::new(axes(g.shape()), axes(other.shape()), axes(shape)) {
        Some(spec) => contract(&MUL.schema, spec, [Conj::No, Conj::Yes], g.dtype(), g, other),
        None => sum_to(&times_conj(g, other)?, shape),
    }
}

/// ∂out/∂operand of a two-operand op.
#[derive(Debug, Clone, Copy)]
enum Partial {
    One,
    MinusOne,
    /// The other operand.
    Other,
    /// Derived from the op's program.
    Derived,
}

#[derive(Debug)]
struct Binary {
    schema: OpSchema,
    prims: &'static [Prim],
    gives: Gives,
    takes_bool: bool,
    partials: [Partial; 2],
    /// What each partial reads.
    reads: [Saves; 2],
}

const LHS: Saves = Saves { inputs: 1, outputs: 0 };
const RHS: Saves = Saves { inputs: 2, outputs: 0 };
const BOTH: Saves = Saves { inputs: 3, outputs: 0 };
const NONE: Saves = Saves { inputs: 0, outputs: 0 };

const fn binary(
    name: &'static str,
    policy: AmpPolicy,
    prims: &'static [Prim],
    gives: Gives,
    takes_bool: bool,
    partials: [Partial; 2],
    reads: [Saves; 2],
) -> Binary {
    Binary { schema: OpSchema::schema_v1(name, policy, Arity::Exact(2)), prims, gives, takes_bool, partials, reads }
}

static ADD: Binary =
    binary("add", AmpPolicy::Promote, &[Input(0), Input(1), Prim::Add], Gives::Same, true, [Partial::One, Partial::One], [NONE, NONE]);
static SUB: Binary = binary(
    "sub",
    AmpPolicy::Promote,
    &[Input(0), Input(1), Prim::Sub],
    Gives::Same,
    false,
    [Partial::One, Partial::MinusOne],
    [NONE, NONE],
);
static MUL: Binary =
    binary("mul", AmpPolicy::Promote, &[Input(0), Input(1), Prim::Mul], Gives::Same, true, [Partial::Other, Partial::Other], [RHS, LHS]);
static DIV: Binary =
    binary("div", AmpPolicy::ForceFP32, &[Input(0), Input(1), Prim::Div], Gives::Inexact, true, [Partial::Derived; 2], [RHS, BOTH]);
static MAXIMUM: Binary =
    binary("maximum", AmpPolicy::Promote, &[Input(0), Input(1), Prim::Max], Gives::Same, true, [Partial::Derived; 2], [BOTH, BOTH]);
static MINIMUM: Binary =
    binary("minimum", AmpPolicy::Promote, &[Input(0), Input(1), Prim::Min], Gives::Same, true, [Partial::Derived; 2], [BOTH, BOTH]);
static POW: Binary =
    binary("pow", AmpPolicy::ForceFP32, &[Input(0), Input(1), Prim::Pow], Gives::Same, false, [Partial::Derived; 2], [BOTH, BOTH]);

#[derive(Debug, Clone)]
struct BinaryOp(&'static Binary);

impl Op for BinaryOp {
    fn schema(&self) -> &'static OpSchema {
        &self.0.schema
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let op: OpName = self.0.schema.name.into();
        let (dtype, shape) = pair(&op, inputs)?;
        if dtype == DType::Bool && !self.0.takes_bool {
            return Err(Error::DtypeMismatch { op, dtypes: vec![dtype; 2], remedy: "it takes numbers; convert with astype" });
        }
        let out = gives(self.0.gives, dtype);
        MapExpr::check_kind(&op, self.0.prims, out)?;
        Ok(Inference::one(&shape, out))
    }
    fn vmap(&self, _lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        Vmap::Broadcast(None)
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        eval_map(&self.0.schema, self.0.prims, outputs[0].dtype, inputs, &outputs[0])
    }
    fn flops(&self, _inputs: &[&View], outputs: &[Meta]) -> u64 {
        outputs[0].shape.iter().product::<usize>() as u64
    }
    fn saves(&self, need: &[bool]) -> Saves {
        let part = |i: usize| if need[i] { self.0.reads[i].inputs } else { 0 };
        Saves { inputs: part(0) | part(1), outputs: 0 }
    }
    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let mut grads = Grads::new();
        for (i, partial) in self.0.partials.iter().enumerate() {
            let grad = match (need[i], partial) {
                (None, _) => None,
                (_, Partial::One) => Some(g.clone()),
                (_, Partial::MinusOne) => Some(g.neg()?),
                (Some(_), Partial::Other) => Some(times_summed(g, saved.input(1 - i)?, &saved.input_metas()[i].shape)?),
                // A partial that doesn't read an operand gets the other in its place.
                (_, Partial::Derived) => {
                    let (a, b) = match self.0.reads[i].inputs {
                        1 => (saved.input(0)?, saved.input(0)?),
                        2 => (saved.input(1)?, saved.input(1)?),
                        _ => (saved.input(0)?, saved.input(1)?),
                    };
                    derivative(self.0.prims, i as u8)?.map(|slope| times_slope(g, &[a, b], slope, true)).transpose()?
                }
            };
            grads.push(grad.map(|grad| sum_to(&grad, &saved.input_metas()[i].shape)).transpose()?);
        }
        Ok(grads)
    }
    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let mut sum: Option<Tensor> = None;
        for (i, partial) in self.0.partials.iter().enumerate() {
            let Some(t) = &tangents[i] else { continue };
            let part = match partial {
                Partial::One => t.clone(),
                Partial::MinusOne => t.neg()?,
                Partial::Other => t.mul(&inputs[1 - i])?,
                Partial::Derived => {
                    let Some(slope) = derivative(self.0.prims, i as u8)? else { continue };
                    times_slope(&t.broadcast_to(outputs[0].shape())?, &[&inputs[0], &inputs[1]], slope, false)?
                }
            };
            sum = Some(match sum {
                Some(so_far) => so_far.add(&part)?,
                None => part,
            });
        }
        let out = sum.map(|s| if s.shape() == outputs[0].shape() { Ok(s) } else { s.broadcast_to(outputs[0].shape()) }).transpose()?;
        Ok(smallvec![out])
    }
}

binary_methods! {
    /// lhs + rhs over shapes that broadcast; operands have one dtype (so the next ones).
    add BinaryOp ADD;
    /// lhs − rhs.
    sub BinaryOp SUB;
    /// lhs · rhs.
    mul BinaryOp MUL;
    /// lhs / rhs; float64 for integers, as NumPy.
    div BinaryOp DIV;
    /// The greater; NaN wins; a tie splits the gradient.
    maximum BinaryOp MAXIMUM;
    /// The lesser; NaN wins; a tie splits the gradient.
    minimum BinaryOp MINIMUM;
    /// lhs to the power rhs.
    pow BinaryOp POW;
}

pub(in crate::ops) static ENTRIES: &[OpEntry] = &[
    entry2!(ADD, add, Any),
    entry2!(SUB, sub, Any),
    entry2!(MUL, mul, Any),
    entry2!(DIV, div, Positive),
    entry2!(MAXIMUM, maximum, Distinct),
    entry2!(MINIMUM, minimum, Distinct),
    entry2!(POW, pow, Positive),
];
