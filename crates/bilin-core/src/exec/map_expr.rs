//! Elementwise functions as tiny postfix programs, one form for all backends.

use std::borrow::Cow;

use crate::shape::dtype::{DType, Kind};
use crate::shape::error::{Error, OpName, Result};

/// One step of a [`MapExpr`]. Operands come off a stack, the result goes onto it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Prim {
    /// Push input i, converted to the compute dtype.
    Input(u8),
    /// Push the result's old value (in-place ops).
    Old,
    /// Push a constant.
    Const(f64),
    /// Push a complex constant.
    ConstComplex(f64, f64),
    /// Push an integer constant, exact in integer expressions.
    ConstInt(i64),
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a · b.
    Mul,
    /// a / b.
    Div,
    /// a to the power b.
    Pow,
    /// The greater; NaN wins.
    Max,
    /// The lesser; NaN wins.
    Min,
    /// a = b, as 1 or 0; so the next five.
    Eq,
    /// a ≠ b.
    Ne,
    /// a < b.
    Lt,
    /// a ≤ b.
    Le,
    /// a > b.
    Gt,
    /// a ≥ b.
    Ge,
    /// c ≠ 0 ? a : b, pushed as c, a, b.
    Select,
    /// −a.
    Neg,
    /// |a|; of a complex number its modulus.
    Abs,
    /// −1, 0 or 1; of a complex number a/|a|.
    Sign,
    /// eᵃ.
    Exp,
    /// Natural logarithm.
    Log,
    /// ln(1 + a).
    Log1p,
    /// eᵃ − 1.
    Expm1,
    /// Square root.
    Sqrt,
    /// Hyperbolic tangent.
    Tanh,
    /// 1/(1 + e⁻ᵃ).
    Sigmoid,
    /// Error function, 2/√π·∫₀ᵃ e^(−t²) dt.
    Erf,
    /// 1 − erf a, accurate where that is small.
    Erfc,
    /// Sine.
    Sin,
    /// Cosine.
    Cos,
    /// Greatest integer not above.
    Floor,
    /// Complex conjugate.
    Conj,
    /// Real part.
    Real,
    /// Imaginary part; 0 of a real number.
    Imag,
}

impl Prim {
    /// Values taken off the stack.
    pub(crate) fn arity(self) -> usize {
        match self {
            Prim::Input(_) | Prim::Old | Prim::Const(_) | Prim::ConstComplex(..) | Prim::ConstInt(_) => 0,
            Prim::Add | Prim::Sub | Prim::Mul | Prim::Div | Prim::Pow | Prim::Max | Prim::Min => 2,
            Prim::Eq | Prim::Ne | Prim::Lt | Prim::Le | Prim::Gt | Prim::Ge => 2,
            Prim::Select => 3,
            _ => 1,
        }
    }

    fn is_defined_for(self, kind: Kind) -> bool {
        match kind {
            Kind::Float => !matches!(self, Prim::ConstComplex(..)),
            Kind::Complex => !matches!(
                self,
                Prim::Max
                    | Prim::Min
                    | Prim::Lt
                    | Prim::Le
                    | Prim::Gt
                    | Prim::Ge
                    | Prim::Floor
                    | Prim::Log1p
                    | Prim::Expm1
                    | Prim::Erf
                    | Prim::Erfc
            ),
            Kind::Int | Kind::Bool => !matches!(
                self,
                Prim::ConstComplex(..)
                    | Prim::Exp
                    | Prim::Log
                    | Prim::Log1p
                    | Prim::Expm1
                    | Prim::Sqrt
                    | Prim::Tanh
                    | Prim::Sigmoid
                    | Prim::Erf
                    | Prim::Erfc
                    | Prim::Sin
                    | Prim::Cos
                    | Prim::Div
                    | Prim::Floor
            ),
        }
    }
}

/// Deepest stack of a program.
pub const MAX_DEPTH: usize = 8;

/// A checked postfix program over one compute dtype: inputs are converted to it, the result from it.
#[derive(Debug, Clone, PartialEq)]
pub struct MapExpr {
    prims: Cow<'static, [Prim]>,
    compute: DType,
    inputs: usize,
    reads_old: bool,
}

/// The dtype in which values of `dtype` are computed: i64 for integers and bool, f32 for halves.
pub const fn compute_dtype(dtype: DType) -> DType {
    match dtype {
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => DType::I64,
        DType::F16 | DType::Bf16 | DType::F32 => DType::F32,
        other => other,
    }
}

#[cold]
fn undefined(op: &OpName, dtype: DType) -> Error {
    let remedy = "it isn't defined for this kind of number; convert with astype";
    Error::DtypeMismatch { op: op.clone(), dtypes: vec![dtype], remedy }
}

impl MapExpr {
    /// Whether every step of a program is defined for this kind of number, or which error says that one isn't.
    #[inline]
    pub(crate) fn check_kind(op: &OpName, prims: &[Prim], dtype: DType) -> Result<()> {
        let kind = compute_dtype(dtype).kind();
        if prims.iter().all(|prim| prim.is_defined_for(kind)) { Ok(()) } else { Err(undefined(op, dtype)) }
    }

    /// A program for values of `dtype`'s compute dtype. Errors: a stack that under- or overflows or doesn't end with one
    /// value, or a primitive that this kind of number hasn't.
    pub fn new(op: &OpName, prims: impl Into<Cow<'static, [Prim]>>, dtype: DType) -> Result<MapExpr> {
        let (prims, compute) = (prims.into(), compute_dtype(dtype));
        let (mut depth, mut inputs, mut reads_old) = (0usize, 0, false);
        let kind = compute.kind();
        for prim in prims.iter() {
            if !prim.is_defined_for(kind) {
                return Err(undefined(op, dtype));
            }
            if let Prim::Input(i) = prim {
                inputs = inputs.max(usize::from(*i) + 1);
            }
            reads_old |= *prim == Prim::Old;
            depth = match depth.checked_sub(prim.arity()) {
                Some(rest) if rest < MAX_DEPTH => rest + 1,
                _ => {
                    return Err(Error::invalid(
                        op.clone(),
                        "expr",
                        format!("{prim:?} at depth {depth}"),
                        format!("a postfix program of depth 1 to {MAX_DEPTH}"),
                    ));
                }
            };
        }
        if depth != 1 {
            return Err(Error::invalid(op.clone(), "expr", format!("a program that leaves {depth} values"), "leave one value"));
        }
        Ok(MapExpr { prims, compute, inputs, reads_old })
    }

    /// The steps.
    pub fn prims(&self) -> &[Prim] {
        &self.prims
    }
    /// Dtype in which it is computed: i64, f32, f64, c64 or c128.
    pub fn compute(&self) -> DType {
        self.compute
    }
    /// Number of inputs read.
    pub fn inputs(&self) -> usize {
        self.inputs
    }
    /// Whether the result's old value is read.
    pub fn reads_old(&self) -> bool {
        self.reads_old
    }
}
