//! `where_`: one of two tensors, element by element.

use smallvec::{SmallVec, smallvec};

use super::apply::apply_one;
use super::elementwise::eval_map;
use super::reduce::sum_to;
use super::registry::{OpEntry, Sample, Values};
use crate::exec::launch::View;
use crate::exec::map_expr::Prim::{self, Input};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::broadcast_shapes;
use crate::tape::{Grads, Inference, Meta, Op, Saved, Saves, Tensor, Vmap};

static WHERE: OpSchema = OpSchema::schema_v1("where_", AmpPolicy::Promote, Arity::Exact(3));

#[derive(Debug, Clone)]
struct Where;

impl Op for Where {
    fn schema(&self) -> &'static OpSchema {
        &WHERE
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let op: OpName = WHERE.name.into();
        if inputs[0].dtype != DType::Bool || inputs[1].dtype != inputs[2].dtype {
            return Err(Error::DtypeMismatch {
                op,
                dtypes: inputs.iter().map(|m| m.dtype).collect(),
                remedy: "want bool and two of one dtype; convert with astype",
            });
        }
        let shapes: SmallVec<[&[usize]; 3]> = inputs.iter().map(|m| m.shape.as_slice()).collect();
        Ok(Inference::one(&broadcast_shapes(&op, &shapes)?, inputs[1].dtype))
    }
    fn vmap(&self, _lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        Vmap::Broadcast(None)
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        eval_map(&WHERE, &[Input(0), Input(1), Input(2), Prim::Select], outputs[0].dtype, inputs, &outputs[0])
    }
    fn saves(&self, _need: &[bool]) -> Saves {
        Saves { inputs: 1, outputs: 0 }
    }
    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let (mask, zero) = (saved.input(0)?, g.scalar_like(0.0)?);
        let part = |i: usize, grad: Tensor| sum_to(&grad, &saved.input_metas()[i].shape);
        let a = need[1].map(|_| part(1, mask.where_(g, &zero)?)).transpose()?;
        let b = need[2].map(|_| part(2, mask.where_(&zero, g)?)).transpose()?;
        Ok(smallvec![None, a, b])
    }
    fn jvp(&self, inputs: &[Tensor], _outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let of = |i: usize| tangents[i].clone().map_or_else(|| inputs[i].zeros_like(), Ok);
        Ok(smallvec![Some(inputs[0].where_(&of(1)?, &of(2)?)?)])
    }
}

impl Tensor {
    /// `a` where this bool tensor is true, `b` elsewhere; the three broadcast.
    pub fn where_(&self, a: &Tensor, b: &Tensor) -> Result<Tensor> {
        apply_one(Where, &[self, a, b])
    }
}

pub(super) static ENTRIES: &[OpEntry] = &[OpEntry {
    schema: &WHERE,
    params: &[],
    call: |x, _| x[0].where_(&x[1], &x[2]),
    samples: &[Sample::new(&[&[3, 1], &[4], &[3, 4]], "")],
    values: Values::Masked,
}];
