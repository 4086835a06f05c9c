//! Elementwise ops of one and two operands: tables of expression, dtype rule and derivative.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use smallvec::{SmallVec, smallvec};

use super::apply::apply_one;
use super::cast::astype;
use super::contract::contract;
use super::reduce::sum_to;
use super::registry::{OpEntry, Sample, Values};
use crate::exec::call::Conj;
use crate::exec::launch::{self, View};
use crate::exec::map_expr::{MapExpr, Prim};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::{DType, Kind};
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::broadcast_shapes;
use crate::shape::spec::{Axes, Axis, Spec};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Saves, Tensor};

use Prim::Input;

/// Runs an expression over operands that broadcast to the result.
pub(super) fn eval_map(
    schema: &OpSchema,
    prims: &'static [Prim],
    compute: DType,
    inputs: &[&View],
    out: &Meta,
) -> Result<SmallVec<[View; 1]>> {
    let op: OpName = schema.name.into();
    let expr = MapExpr::new(&op, prims, compute)?;
    Ok(smallvec![launch::map(&op, inputs[0].storage.device(), &expr, inputs, &out.shape, out.dtype)?])
}

/// The result's dtype from the operand's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gives {
    /// The operand's.
    Same,
    /// The operand's; float64 for integers and bool, as NumPy.
    Inexact,
    /// The real dtype of a complex operand.
    Real,
}

fn gives(rule: Gives, dtype: DType) -> DType {
    match rule {
        Gives::Same => dtype,
        Gives::Inexact if dtype.is_differentiable() => dtype,
        Gives::Inexact => DType::F64,
        Gives::Real => dtype.real(),
    }
}

/// What a gradient is made of.
#[derive(Debug, Clone, Copy)]
enum Slope {
    /// f′ of the operand; multiplied conjugated in reverse mode.
    OfInput(fn(&Tensor) -> Result<Tensor>),
    /// f′ of the result.
    OfOutput(fn(&Tensor) -> Result<Tensor>),
    /// A linear op: its adjoint and itself. The adjoint also gets the operand's dtype.
    Linear(fn(&Tensor, DType) -> Result<Tensor>),
    /// |x|: not holomorphic, g·sign(x) and Re(conj(sign(x))·t).
    Modulus,
    /// x/|x|: zero for real numbers; for complex ones (t − s·Re(conj(s)·t))/|x|, which is its own adjoint.
    Direction,
    /// Zero almost everywhere.
    Flat,
}

#[derive(Debug)]
struct Unary {
    schema: OpSchema,
    prims: &'static [Prim],
    gives: Gives,
    slope: Slope,
}

const fn unary(name: &'static str, policy: AmpPolicy, prims: &'static [Prim], gives: Gives, slope: Slope) -> Unary {
    Unary { schema: OpSchema::schema_v1(name, policy, Arity::Exact(1)), prims, gives, slope }
}

static NEG: Unary = unary("neg", AmpPolicy::KeepInput, &[Input(0), Prim::Neg], Gives::Same, Slope::Linear(|g, _| g.neg()));
static CONJ: Unary = unary("conj", AmpPolicy::KeepInput, &[Input(0), Prim::Conj], Gives::Same, Slope::Linear(|g, _| g.conj()));
static REAL: Unary = unary("real", AmpPolicy::KeepInput, &[Input(0), Prim::Real], Gives::Real, Slope::Linear(astype));
static IMAG: Unary = unary(
    "imag",
    AmpPolicy::KeepInput,
    &[Input(0), Prim::Imag],
    Gives::Real,
    Slope::Linear(|g, dtype| if dtype.is_complex() { apply_one(UnaryOp(&TIMES_I), &[&astype(g, dtype)?]) } else { g.zeros_like() }),
);
static TIMES_I: Unary = unary(
    "times_i",
    AmpPolicy::KeepInput,
    &[Input(0), Prim::ConstComplex(0.0, 1.0), Prim::Mul],
    Gives::Same,
    Slope::Linear(|g, _| apply_one(UnaryOp(&TIMES_I), &[g])?.neg()),
);
static ABS: Unary = unary("abs", AmpPolicy::KeepInput, &[Input(0), Prim::Abs], Gives::Real, Slope::Modulus);
static SIGN: Unary = unary("sign", AmpPolicy::KeepInput, &[Input(0), Prim::Sign], Gives::Same, Slope::Direction);
static FLOOR: Unary = unary("floor", AmpPolicy::KeepInput, &[Input(0), Prim::Floor], Gives::Inexact, Slope::Flat);
static EXP: Unary = unary("exp", AmpPolicy::ForceFP32, &[Input(0), Prim::Exp], Gives::Inexact, Slope::OfOutput(|y| Ok(y.clone())));
static EXPM1: Unary =
    unary("expm1", AmpPolicy::ForceFP32, &[Input(0), Prim::Expm1], Gives::Inexact, Slope::OfOutput(|y| y.add_scalar(1.0)));
static LOG: Unary =
    unary("log", AmpPolicy::ForceFP32, &[Input(0), Prim::Log], Gives::Inexact, Slope::OfInput(|x| x.scalar_like(1.0)?.div(x)));
static LOG1P: Unary = unary(
    "log1p",
    AmpPolicy::ForceFP32,
    &[Input(0), Prim::Log1p],
    Gives::Inexact,
    Slope::OfInput(|x| x.scalar_like(1.0)?.div(&x.add_scalar(1.0)?)),
);
static SQRT: Unary =
    unary("sqrt", AmpPolicy::ForceFP32, &[Input(0), Prim::Sqrt], Gives::Inexact, Slope::OfOutput(|y| y.scalar_like(0.5)?.div(y)));
static SIN: Unary = unary("sin", AmpPolicy::ForceFP32, &[Input(0), Prim::Sin], Gives::Inexact, Slope::OfInput(|x| x.cos()));
static COS: Unary = unary("cos", AmpPolicy::ForceFP32, &[Input(0), Prim::Cos], Gives::Inexact, Slope::OfInput(|x| x.sin()?.neg()));
static TANH: Unary =
    unary("tanh", AmpPolicy::KeepInput, &[Input(0), Prim::Tanh], Gives::Inexact, Slope::OfOutput(|y| y.scalar_like(1.0)?.sub(&y.mul(y)?)));
static SIGMOID: Unary = unary(
    "sigmoid",
    AmpPolicy::KeepInput,
    &[Input(0), Prim::Sigmoid],
    Gives::Inexact,
    Slope::OfOutput(|y| y.mul(&y.scalar_like(1.0)?.sub(y)?)),
);
static ERF: Unary =
    unary("erf", AmpPolicy::ForceFP32, &[Input(0), Prim::Erf], Gives::Inexact, Slope::OfInput(|x| bell(x, 1.0, FRAC_2_SQRT_PI)));
static ERFC: Unary =
    unary("erfc", AmpPolicy::ForceFP32, &[Input(0), Prim::Erfc], Gives::Inexact, Slope::OfInput(|x| bell(x, 1.0, -FRAC_2_SQRT_PI)));
/// x·Φ(x) as x/2·erfc(−x/√2), which keeps its digits for x far below 0.
static GELU: Unary = unary(
    "gelu",
    AmpPolicy::KeepInput,
    &[Input(0), Prim::Const(0.5), Prim::Mul, Input(0), Prim::Const(-FRAC_1_SQRT_2), Prim::Mul, Prim::Erfc, Prim::Mul],
    Gives::Inexact,
    Slope::OfInput(|x| {
        let x = astype(x, x.dtype().accumulator())?;
        let below = x.mul_scalar(-FRAC_1_SQRT_2)?.erfc()?.mul_scalar(0.5)?;
        below.add(&x.mul(&bell(&x, 0.5, 0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI)?)?)
    }),
);
static RELU: Unary = unary(
    "relu",
    AmpPolicy::KeepInput,
    &[Input(0), Prim::ConstInt(0), Prim::Max],
    Gives::Same,
    Slope::OfInput(|x| astype(&x.gt(&x.scalar_like(0.0)?)?, x.dtype())),
);

#[derive(Debug)]
struct UnaryOp(&'static Unary);

impl Op for UnaryOp {
    fn schema(&self) -> &'static OpSchema {
        &self.0.schema
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let dtype = inputs[0].dtype;
        if dtype == DType::Bool && self.0.gives == Gives::Same {
            return Err(Error::DtypeMismatch {
                op: self.0.schema.name.into(),
                dtypes: vec![dtype],
                remedy: "it takes numbers; convert with astype",
            });
        }
        let out = gives(self.0.gives, dtype);
        MapExpr::new(&self.0.schema.name.into(), self.0.prims, if dtype.is_complex() { dtype } else { out })?;
        Ok(Inference::one(&inputs[0].shape, out))
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let compute = if inputs[0].dtype.is_complex() { inputs[0].dtype } else { outputs[0].dtype };
        eval_map(&self.0.schema, self.0.prims, compute, inputs, &outputs[0])
    }
    fn flops(&self, _inputs: &[&View], outputs: &[Meta]) -> u64 {
        outputs[0].shape.iter().product::<usize>() as u64
    }
    fn saves(&self, _need: &[bool]) -> Saves {
        match self.0.slope {
            Slope::OfInput(_) | Slope::Modulus | Slope::Direction => Saves { inputs: 1, outputs: 0 },
            Slope::OfOutput(_) => Saves { inputs: 0, outputs: 1 },
            Slope::Linear(_) | Slope::Flat => Saves::default(),
        }
    }
    fn vjp(&self, saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let dtype = saved.input_metas[0].dtype;
        let grad = match self.0.slope {
            Slope::OfInput(f) => times_conj(g, &f(saved.input(0)?)?)?,
            Slope::OfOutput(f) => times_conj(g, &f(saved.output(0)?)?)?,
            Slope::Linear(f) => f(g, dtype)?,
            Slope::Modulus => astype(g, dtype)?.mul(&saved.input(0)?.sign()?)?,
            Slope::Direction => turn(&astype(g, dtype)?, saved.input(0)?)?,
            Slope::Flat => astype(g, dtype)?.zeros_like()?,
        };
        Ok(smallvec![Some(grad)])
    }
    fn is_multilinear(&self) -> bool {
        matches!(self.0.slope, Slope::Linear(_))
    }
    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let Some(t) = &tangents[0] else { return Ok(Grads::new()) };
        let tangent = match self.0.slope {
            Slope::OfInput(f) => t.mul(&f(&inputs[0])?)?,
            Slope::OfOutput(f) => t.mul(&f(&outputs[0])?)?,
            Slope::Modulus => times_conj(t, &inputs[0].sign()?)?.real()?,
            Slope::Direction => turn(t, &inputs[0])?,
            Slope::Linear(_) | Slope::Flat => return Ok(Grads::new()),
        };
        Ok(smallvec![Some(tangent)])
    }
}

/// c·e^(−a·x²), in f32 for halves: rounding x² would cost digits of the power.
fn bell(x: &Tensor, a: f64, c: f64) -> Result<Tensor> {
    let x = astype(x, x.dtype().accumulator())?;
    x.mul(&x)?.mul_scalar(-a)?.exp()?.mul_scalar(c)
}

/// The derivative of x/|x| along `t`; 0 for real numbers and at 0.
fn turn(t: &Tensor, x: &Tensor) -> Result<Tensor> {
    if !x.dtype().is_complex() {
        return t.zeros_like();
    }
    let (s, size) = (x.sign()?, astype(&x.abs()?, x.dtype())?);
    let across = t.sub(&s.mul(&astype(&times_conj(t, &s)?.real()?, x.dtype())?)?)?.div(&size)?;
    let zero = x.scalar_like(0.0)?;
    x.eq(&zero)?.where_(&zero, &across)
}

fn times_conj(g: &Tensor, slope: &Tensor) -> Result<Tensor> {
    // A gradient kept in f32 for a half operand stays in f32.
    let slope = astype(slope, g.dtype())?;
    if g.dtype().is_complex() { g.mul(&slope.conj()?) } else { g.mul(&slope) }
}

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
    /// Of (lhs, rhs, out).
    Of(fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>),
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

/// 1 where `a` wins, ½ where they tie.
fn share(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let dtype = a.dtype();
    astype(&a.gt(b)?, dtype)?.add(&astype(&a.eq(b)?, dtype)?.mul_scalar(0.5)?)
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
static DIV: Binary = binary(
    "div",
    AmpPolicy::ForceFP32,
    &[Input(0), Input(1), Prim::Div],
    Gives::Inexact,
    true,
    [Partial::Of(|_, b, _| b.scalar_like(1.0)?.div(b)), Partial::Of(|a, b, _| a.div(b)?.div(b)?.neg())],
    [RHS, BOTH],
);
static MAXIMUM: Binary = binary(
    "maximum",
    AmpPolicy::Promote,
    &[Input(0), Input(1), Prim::Max],
    Gives::Same,
    true,
    [Partial::Of(|a, b, _| share(a, b)), Partial::Of(|a, b, _| share(b, a))],
    [BOTH, BOTH],
);
static MINIMUM: Binary = binary(
    "minimum",
    AmpPolicy::Promote,
    &[Input(0), Input(1), Prim::Min],
    Gives::Same,
    true,
    [Partial::Of(|a, b, _| share(b, a)), Partial::Of(|a, b, _| share(a, b))],
    [BOTH, BOTH],
);
static POW: Binary = binary(
    "pow",
    AmpPolicy::ForceFP32,
    &[Input(0), Input(1), Prim::Pow],
    Gives::Same,
    false,
    [
        Partial::Of(|a, b, _| {
            // b·a^(b−1), but 0 for b = 0, where a = 0 would give 0·∞.
            let slope = b.mul(&a.pow(&b.add_scalar(-1.0)?)?)?;
            b.eq(&b.scalar_like(0.0)?)?.where_(&slope.scalar_like(0.0)?, &slope)
        }),
        Partial::Of(|a, b, _| {
            let slope = a.pow(b)?.mul(&a.log()?)?;
            a.eq(&a.scalar_like(0.0)?)?.where_(&slope.scalar_like(0.0)?, &slope)
        }),
    ],
    [BOTH, BOTH],
);

#[derive(Debug)]
struct BinaryOp(&'static Binary);

/// Operands of equal dtype, and what they broadcast to.
fn pair(op: &OpName, inputs: &[Meta]) -> Result<(DType, crate::shape::layout::Dims)> {
    if inputs[0].dtype != inputs[1].dtype {
        return Err(Error::DtypeMismatch {
            op: op.clone(),
            dtypes: inputs.iter().map(|m| m.dtype).collect(),
            remedy: "convert one operand with astype",
        });
    }
    Ok((inputs[0].dtype, broadcast_shapes(op, &[&inputs[0].shape, &inputs[1].shape])?))
}

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
        MapExpr::new(&op, self.0.prims, out)?;
        Ok(Inference::one(&shape, out))
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
                (Some(_), Partial::Other) => Some(times_summed(g, saved.input(1 - i)?, &saved.input_metas[i].shape)?),
                // A partial that doesn't read an operand gets the other in its place.
                (_, Partial::Of(f)) => {
                    let (a, b) = match self.0.reads[i].inputs {
                        1 => (saved.input(0)?, saved.input(0)?),
                        2 => (saved.input(1)?, saved.input(1)?),
                        _ => (saved.input(0)?, saved.input(1)?),
                    };
                    Some(times_conj(g, &f(a, b, g)?)?)
                }
            };
            grads.push(grad.map(|grad| sum_to(&grad, &saved.input_metas[i].shape)).transpose()?);
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
                Partial::Of(f) => t.mul(&f(&inputs[0], &inputs[1], &outputs[0])?)?,
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

#[derive(Debug)]
struct Compare {
    schema: OpSchema,
    prims: &'static [Prim],
}
const fn compare(name: &'static str, prims: &'static [Prim]) -> Compare {
    Compare { schema: OpSchema::schema_v1(name, AmpPolicy::KeepInput, Arity::Exact(2)), prims }
}
static EQ: Compare = compare("eq", &[Input(0), Input(1), Prim::Eq]);
static NE: Compare = compare("ne", &[Input(0), Input(1), Prim::Ne]);
static LT: Compare = compare("lt", &[Input(0), Input(1), Prim::Lt]);
static LE: Compare = compare("le", &[Input(0), Input(1), Prim::Le]);
static GT: Compare = compare("gt", &[Input(0), Input(1), Prim::Gt]);
static GE: Compare = compare("ge", &[Input(0), Input(1), Prim::Ge]);

#[derive(Debug)]
struct CompareOp(&'static Compare);

impl Op for CompareOp {
    fn schema(&self) -> &'static OpSchema {
        &self.0.schema
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let op: OpName = self.0.schema.name.into();
        let (dtype, shape) = pair(&op, inputs)?;
        MapExpr::new(&op, self.0.prims, dtype)?;
        Ok(Inference::one(&shape, DType::Bool))
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        eval_map(&self.0.schema, self.0.prims, inputs[0].dtype, inputs, &outputs[0])
    }
    fn vjp(&self, _saved: &Saved, _need: &[Option<DType>], _g: &[Option<Tensor>]) -> Result<Grads> {
        Ok(Grads::new())
    }
}

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident $table:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self) -> Result<Tensor> {
                apply_one(UnaryOp(&$table), &[self])
            }
        )*}
    };
}
unary_methods! {
    /// −x.
    neg NEG;
    /// Complex conjugate; the same tensor's values for real dtypes.
    conj CONJ;
    /// Real part, in the real dtype.
    real REAL;
    /// Imaginary part, in the real dtype; 0 for real dtypes.
    imag IMAG;
    /// |x|; the modulus of a complex number, in the real dtype. Gradient 0 at 0.
    abs ABS;
    /// −1, 0 or 1; x/|x| for complex numbers. Its gradient is zero for real numbers, and for complex ones at 0.
    sign SIGN;
    /// Greatest integer not above. Its gradient is zero.
    floor FLOOR;
    /// eˣ; float64 for integers, as NumPy; so the next ones.
    exp EXP;
    /// eˣ − 1, accurate near 0.
    expm1 EXPM1;
    /// Natural logarithm.
    log LOG;
    /// ln(1 + x), accurate near 0.
    log1p LOG1P;
    /// Square root.
    sqrt SQRT;
    /// Sine.
    sin SIN;
    /// Cosine.
    cos COS;
    /// Hyperbolic tangent.
    tanh TANH;
    /// 1/(1 + e⁻ˣ).
    sigmoid SIGMOID;
    /// Error function, 2/√π·∫₀ˣ e^(−t²) dt.
    erf ERF;
    /// 1 − erf x, accurate where that is small.
    erfc ERFC;
    /// x·Φ(x), Φ the normal distribution; exact, not the approximation by tanh. Source: Hendrycks and Gimpel, "Gaussian error
    /// linear units", 2016.
    gelu GELU;
    /// max(x, 0); NaN stays. Gradient 0 at 0.
    relu RELU;
}

macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident $wrap:ident $table:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self, rhs: &Tensor) -> Result<Tensor> {
                apply_one($wrap(&$table), &[self, rhs])
            }
        )*}
    };
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
    /// lhs = rhs, as bool.
    eq CompareOp EQ;
    /// lhs ≠ rhs, as bool.
    ne CompareOp NE;
    /// lhs < rhs, as bool.
    lt CompareOp LT;
    /// lhs ≤ rhs, as bool.
    le CompareOp LE;
    /// lhs > rhs, as bool.
    gt CompareOp GT;
    /// lhs ≥ rhs, as bool.
    ge CompareOp GE;
}

impl Tensor {
    /// x + c.
    pub fn add_scalar(&self, c: f64) -> Result<Tensor> {
        self.add(&self.scalar_like(c)?)
    }
    /// x · c.
    pub fn mul_scalar(&self, c: f64) -> Result<Tensor> {
        self.mul(&self.scalar_like(c)?)
    }
    /// x to the power c.
    pub fn pow_scalar(&self, c: f64) -> Result<Tensor> {
        self.pow(&self.scalar_like(c)?)
    }
    /// A 0-d tensor of this dtype on this device.
    pub fn scalar_like(&self, c: f64) -> Result<Tensor> {
        let value = match self.dtype().kind() {
            Kind::Int | Kind::Bool => Prim::ConstInt(c as i64),
            _ => Prim::Const(c),
        };
        Ok(Tensor::from_view(launch::full(&"scalar".into(), self.device(), &[], self.dtype(), value)?))
    }
    /// Zeros of this shape, dtype and device.
    pub fn zeros_like(&self) -> Result<Tensor> {
        Ok(Tensor::from_view(launch::full(&"zeros".into(), self.device(), self.shape(), self.dtype(), Prim::ConstInt(0))?))
    }
    /// Ones of this shape, dtype and device.
    pub fn ones_like(&self) -> Result<Tensor> {
        Ok(Tensor::from_view(launch::full(&"ones".into(), self.device(), self.shape(), self.dtype(), Prim::ConstInt(1))?))
    }
}

macro_rules! entry1 {
    ($table:ident, $call:ident, $values:ident) => {
        OpEntry {
            schema: &$table.schema,
            params: &[],
            call: |x, _| x[0].$call(),
            samples: &[Sample::new(&[&[3, 4]], ""), Sample::new(&[&[0]], ""), Sample::new(&[&[]], "")],
            values: Values::$values,
        }
    };
}
macro_rules! entry2 {
    ($table:ident, $call:ident, $values:ident) => {
        OpEntry {
            schema: &$table.schema,
            params: &[],
            call: |x, _| x[0].$call(&x[1]),
            samples: &[Sample::new(&[&[3, 4], &[3, 4]], ""), Sample::new(&[&[2, 1, 3], &[4, 1]], ""), Sample::new(&[&[0, 2], &[2]], "")],
            values: Values::$values,
        }
    };
}
pub(super) static ENTRIES: &[OpEntry] = &[
    entry1!(NEG, neg, Any),
    entry1!(CONJ, conj, Any),
    entry1!(REAL, real, Any),
    entry1!(IMAG, imag, Any),
    entry1!(ABS, abs, Distinct),
    entry1!(SIGN, sign, Distinct),
    entry1!(FLOOR, floor, Distinct),
    entry1!(EXP, exp, Inexact),
    entry1!(EXPM1, expm1, Distinct),
    entry1!(LOG, log, Positive),
    entry1!(LOG1P, log1p, Positive),
    entry1!(SQRT, sqrt, Positive),
    entry1!(SIN, sin, Inexact),
    entry1!(COS, cos, Inexact),
    entry1!(TANH, tanh, Inexact),
    entry1!(SIGMOID, sigmoid, Inexact),
    entry1!(ERF, erf, Distinct),
    entry1!(ERFC, erfc, Distinct),
    entry1!(GELU, gelu, Distinct),
    entry1!(RELU, relu, Distinct),
    OpEntry {
        schema: &TIMES_I.schema,
        params: &[],
        call: |x, _| apply_one(UnaryOp(&TIMES_I), &[&x[0]]),
        samples: &[Sample::new(&[&[3]], "")],
        values: Values::Inexact,
    },
    entry2!(ADD, add, Any),
    entry2!(SUB, sub, Any),
    entry2!(MUL, mul, Any),
    entry2!(DIV, div, Positive),
    entry2!(MAXIMUM, maximum, Distinct),
    entry2!(MINIMUM, minimum, Distinct),
    entry2!(POW, pow, Positive),
    entry2!(EQ, eq, Any),
    entry2!(NE, ne, Any),
    entry2!(LT, lt, Distinct),
    entry2!(LE, le, Distinct),
    entry2!(GT, gt, Distinct),
    entry2!(GE, ge, Distinct),
];
