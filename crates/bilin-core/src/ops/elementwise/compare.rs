//! Comparisons.

use smallvec::SmallVec;

use super::{eval_map, pair};
use crate::exec::launch::View;
use crate::exec::map_expr::{MapExpr, Prim, Prim::Input};
use crate::ops::apply::apply_static;
use crate::ops::registry::{OpEntry, Sample, Values};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{OpName, Result};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Tensor, Vmap};

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

#[derive(Debug, Clone)]
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
    fn vmap(&self, _lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        Vmap::Broadcast(None)
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        eval_map(&self.0.schema, self.0.prims, inputs[0].dtype, inputs, &outputs[0])
    }
    fn vjp(&self, _saved: &Saved, _need: &[Option<DType>], _g: &[Option<Tensor>]) -> Result<Grads> {
        Ok(Grads::new())
    }
}

binary_methods! {
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

pub(in crate::ops) static ENTRIES: &[OpEntry] = &[
    entry2!(EQ, eq, Any),
    entry2!(NE, ne, Any),
    entry2!(LT, lt, Distinct),
    entry2!(LE, le, Distinct),
    entry2!(GT, gt, Distinct),
    entry2!(GE, ge, Distinct),
];
