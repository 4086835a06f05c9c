//! Ops of one operand.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use smallvec::{SmallVec, smallvec};

use super::derive::Program;
use super::slope::times_slope;
use super::{Gives, eval_map, gives, times_conj};
use crate::exec::launch::View;
use crate::exec::map_expr::{MapExpr, Prim, Prim::Const, Prim::Input};
use crate::ops::apply::{apply_one, apply_static};
use crate::ops::cast::astype;
use crate::ops::registry::{OpEntry, Sample, Values};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Saves, Tensor, Vmap};

/// What a gradient is made of.
#[derive(Debug, Clone, Copy)]
enum Slope {
    /// f′ of the operand; multiplied conjugated in reverse mode.
    OfInput(Program),
    /// f′ of the result.
    OfOutput(Program),
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
static EXP: Unary = unary("exp", AmpPolicy::ForceFP32, &[Input(0), Prim::Exp], Gives::Inexact, Slope::OfOutput(&[Input(0)]));
static EXPM1: Unary =
    unary("expm1", AmpPolicy::ForceFP32, &[Input(0), Prim::Expm1], Gives::Inexact, Slope::OfOutput(&[Input(0), Const(1.0), Prim::Add]));
static LOG: Unary =
    unary("log", AmpPolicy::ForceFP32, &[Input(0), Prim::Log], Gives::Inexact, Slope::OfInput(&[Const(1.0), Input(0), Prim::Div]));
static LOG1P: Unary = unary(
    "log1p",
    AmpPolicy::ForceFP32,
    &[Input(0), Prim::Log1p],
    Gives::Inexact,
    Slope::OfInput(&[Const(1.0), Input(0), Const(1.0), Prim::Add, Prim::Div]),
);
static SQRT: Unary =
    unary("sqrt", AmpPolicy::ForceFP32, &[Input(0), Prim::Sqrt], Gives::Inexact, Slope::OfOutput(&[Const(0.5), Input(0), Prim::Div]));
static SIN: Unary = unary("sin", AmpPolicy::ForceFP32, &[Input(0), Prim::Sin], Gives::Inexact, Slope::OfInput(&[Input(0), Prim::Cos]));
static COS: Unary =
    unary("cos", AmpPolicy::ForceFP32, &[Input(0), Prim::Cos], Gives::Inexact, Slope::OfInput(&[Input(0), Prim::Sin, Prim::Neg]));
static TANH: Unary = unary(
    "tanh",
    AmpPolicy::KeepInput,
    &[Input(0), Prim::Tanh],
    Gives::Inexact,
    Slope::OfOutput(&[Const(1.0), Input(0), Input(0), Prim::Mul, Prim::Sub]),
);
static SIGMOID: Unary = unary(
    "sigmoid",
    AmpPolicy::KeepInput,
    &[Input(0), Prim::Sigmoid],
    Gives::Inexact,
    Slope::OfOutput(&[Input(0), Const(1.0), Input(0), Prim::Sub, Prim::Mul]),
);
static ERF: Unary = unary(
    "erf",
    AmpPolicy::ForceFP32,
    &[Input(0), Prim::Erf],
    Gives::Inexact,
    Slope::OfInput(&[Input(0), Input(0), Prim::Mul, Const(-1.0), Prim::Mul, Prim::Exp, Const(FRAC_2_SQRT_PI), Prim::Mul]),
);
static ERFC: Unary = unary(
    "erfc",
    AmpPolicy::ForceFP32,
    &[Input(0), Prim::Erfc],
    Gives::Inexact,
    Slope::OfInput(&[Input(0), Input(0), Prim::Mul, Const(-1.0), Prim::Mul, Prim::Exp, Const(-FRAC_2_SQRT_PI), Prim::Mul]),
);
/// x·Φ(x) as x/2·erfc(−x/√2), which keeps its digits for x far below 0.
static GELU: Unary = unary(
    "gelu",
    AmpPolicy::KeepInput,
    &[Input(0), Prim::Const(0.5), Prim::Mul, Input(0), Prim::Const(-FRAC_1_SQRT_2), Prim::Mul, Prim::Erfc, Prim::Mul],
    Gives::Inexact,
    // Φ(x) + x·φ(x).
    Slope::OfInput(&[
        Input(0),
        Const(-FRAC_1_SQRT_2),
        Prim::Mul,
        Prim::Erfc,
        Const(0.5),
        Prim::Mul,
        Input(0),
        Input(0),
        Input(0),
        Prim::Mul,
        Const(-0.5),
        Prim::Mul,
        Prim::Exp,
        Const(0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI),
        Prim::Mul,
        Prim::Mul,
        Prim::Add,
    ]),
);
static RELU: Unary = unary(
    "relu",
    AmpPolicy::KeepInput,
    &[Input(0), Prim::ConstInt(0), Prim::Max],
    Gives::Same,
    Slope::OfInput(&[Input(0), Const(0.0), Prim::Gt]),
);

#[derive(Debug, Clone)]
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
        MapExpr::check_kind(&self.0.schema.name.into(), self.0.prims, if dtype.is_complex() { dtype } else { out })?;
        Ok(Inference::one(&inputs[0].shape, out))
    }
    fn vmap(&self, _lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        Vmap::Broadcast(None)
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
        let dtype = saved.input_metas()[0].dtype;
        let grad = match self.0.slope {
            Slope::OfInput(f) => times_slope(g, &[saved.input(0)?], f, true)?,
            Slope::OfOutput(f) => times_slope(g, &[saved.output(0)?], f, true)?,
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
            Slope::OfInput(f) => times_slope(t, &[&inputs[0]], f, false)?,
            Slope::OfOutput(f) => times_slope(t, &[&outputs[0]], f, false)?,
            Slope::Modulus => times_conj(t, &inputs[0].sign()?)?.real()?,
            Slope::Direction => turn(t, &inputs[0])?,
            Slope::Linear(_) | Slope::Flat => return Ok(Grads::new()),
        };
        Ok(smallvec![Some(tangent)])
    }
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

macro_rules! unary_methods {
    ($($(#[$doc:meta])* $name:ident $table:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self) -> Result<Tensor> {
                static OP: UnaryOp = UnaryOp(&$table);
                apply_static(&OP, &[self])
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
pub(in crate::ops) static ENTRIES: &[OpEntry] = &[
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
];
