//! `astype` and `contiguous`: the same values in another dtype or in row-major order.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::apply::apply;
use super::registry::{OpEntry, Sample, Values};
use crate::exec::launch::{View, copy};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, Result};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Tensor, Vmap};

/// Schema of `astype`.
pub static ASTYPE: OpSchema = OpSchema::schema_v1("astype", AmpPolicy::KeepInput, Arity::Exact(1));
/// Schema of `contiguous`.
pub static CONTIGUOUS: OpSchema = OpSchema::schema_v1("contiguous", AmpPolicy::KeepInput, Arity::Exact(1));

/// A row-major copy in `dtype`.
#[derive(Debug, Clone)]
struct Copy {
    schema: &'static OpSchema,
    dtype: Option<DType>,
}

impl Op for Copy {
    fn schema(&self) -> &'static OpSchema {
        self.schema
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        Ok(Inference::one(&inputs[0].shape, self.dtype.unwrap_or(inputs[0].dtype)))
    }
    fn vmap(&self, _lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        Vmap::Broadcast(None)
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        Ok(smallvec![copy(&self.schema.name.into(), inputs[0], outputs[0].dtype)?])
    }
    fn vjp(&self, saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        // Complex → real keeps the real part, and its gradient is real: the cast back is the rule.
        let back = |g: &Tensor| {
            astype(
                g,
                if g.dtype().is_complex() == saved.input_metas()[0].dtype.is_complex() { g.dtype() } else { saved.input_metas()[0].dtype },
            )
        };
        Ok(smallvec![g[0].as_ref().map(back).transpose()?])
    }
    fn is_multilinear(&self) -> bool {
        true
    }
}

/// The same values in `dtype`; the same tensor where it has it already. To integers and bool the gradient stops.
pub(crate) fn astype(x: &Tensor, dtype: DType) -> Result<Tensor> {
    if x.dtype() == dtype {
        return Ok(x.clone());
    }
    if !x.device().backend().has_dtype(dtype) {
        let backend = x.device().backend().name().to_owned();
        return Err(Error::Unsupported { op: "astype".into(), dtype, backend, remedy: "use another dtype or device" });
    }
    one(Copy { schema: &ASTYPE, dtype: Some(dtype) }, x)
}

/// The same values in row-major order; the same tensor where they stand so.
pub(crate) fn contiguous(x: &Tensor) -> Result<Tensor> {
    if x.is_contiguous() { Ok(x.clone()) } else { one(Copy { schema: &CONTIGUOUS, dtype: None }, x) }
}

fn one(op: Copy, x: &Tensor) -> Result<Tensor> {
    let name = op.schema.name;
    let out = apply(Arc::new(op), &[x])?.into_iter().next();
    out.ok_or_else(|| Error::invalid(name, "outputs", 0, "want one result"))
}

pub(super) static ENTRIES: &[OpEntry] = &[
    OpEntry {
        schema: &ASTYPE,
        params: &["dtype"],
        call: |x, a| astype(&x[0], a.dtype("dtype")?),
        samples: &[
            Sample::new(&[&[3, 4]], "dtype=float32"),
            Sample::new(&[&[0]], "dtype=float64"),
            Sample::new(&[&[2, 3]], "dtype=complex128"),
        ],
        values: Values::Any,
    },
    OpEntry {
        schema: &CONTIGUOUS,
        params: &[],
        call: |x, _| contiguous(&x[0]),
        samples: &[Sample::new(&[&[3, 4]], ""), Sample::new(&[&[2, 0, 3]], "")],
        values: Values::Any,
    },
];
