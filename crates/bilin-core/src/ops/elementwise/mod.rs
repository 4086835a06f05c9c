//! Elementwise ops: tables of expression, dtype rule and derivative.

use smallvec::SmallVec;

use super::cast::astype;
use crate::exec::launch::{self, View};
use crate::exec::map_expr::{MapExpr, Prim};
use crate::schema::OpSchema;
use crate::shape::dtype::{DType, Kind};
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::{Dims, broadcast_shapes};
use crate::tape::{Meta, Tensor};

/// Methods of two operands.
macro_rules! binary_methods {
    ($($(#[$doc:meta])* $name:ident $wrap:ident $table:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self, rhs: &Tensor) -> Result<Tensor> {
                static OP: $wrap = $wrap(&$table);
                apply_static(&OP, &[self, rhs])
            }
        )*}
    };
}
/// An op of two operands in the registry.
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
mod binary;
mod compare;
mod derive;
mod slope;
mod unary;

pub(super) use binary::ENTRIES as BINARY;
pub(super) use compare::ENTRIES as COMPARE;
pub(super) use slope::ENTRIES as SLOPE;
pub(super) use unary::ENTRIES as UNARY;

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
    launch::map(&op, inputs[0].storage.device(), &expr, inputs, &out.shape, out.dtype).map(|view| SmallVec::from_buf([view]))
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

fn times_conj(g: &Tensor, slope: &Tensor) -> Result<Tensor> {
    // A gradient kept in f32 for a half operand stays in f32.
    let slope = astype(slope, g.dtype())?;
    if g.dtype().is_complex() { g.mul(&slope.conj()?) } else { g.mul(&slope) }
}

/// Operands of equal dtype, and what they broadcast to.
fn pair(op: &OpName, inputs: &[Meta]) -> Result<(DType, Dims)> {
    if inputs[0].dtype != inputs[1].dtype {
        return Err(Error::DtypeMismatch {
            op: op.clone(),
            dtypes: inputs.iter().map(|m| m.dtype).collect(),
            remedy: "convert one operand with astype",
        });
    }
    Ok((inputs[0].dtype, broadcast_shapes(op, &[&inputs[0].shape, &inputs[1].shape])?))
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
