//! Reads and sums by index, and joining along an axis.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::apply::{apply, apply_one};
use super::registry::{OpEntry, Sample, Values};
use crate::exec::launch::{self, View};
use crate::exec::map_expr::{MapExpr, Prim};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::{DType, Kind};
use crate::shape::error::{Error, OpName, Result, ShapeFault};
use crate::shape::layout::{Dims, normalize_axis};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Saves, Tensor, Vmap};

static GATHER: OpSchema = OpSchema::schema_v1("gather", AmpPolicy::KeepInput, Arity::Exact(2));
static SCATTER_ADD: OpSchema = OpSchema::schema_v1("scatter_add", AmpPolicy::KeepInput, Arity::Exact(2));
static CONCAT: OpSchema = OpSchema::schema_v1("concat", AmpPolicy::Promote, Arity::AtLeast(1));

#[derive(Debug, Clone)]
struct Gather {
    axis: usize,
}

#[derive(Debug, Clone)]
struct ScatterAdd {
    axis: usize,
    len: usize,
}

fn check(op: &OpName, inputs: &[Meta], axis: usize, is_scatter: bool) -> Result<()> {
    let (src, index) = (&inputs[0], &inputs[1]);
    if index.dtype.kind() != Kind::Int {
        return Err(Error::DtypeMismatch {
            op: op.clone(),
            dtypes: vec![src.dtype, index.dtype],
            remedy: "positions are integers; convert with astype",
        });
    }
    let fits =
        src.shape.len() == index.shape.len() && (0..src.shape.len()).all(|a| (a == axis && !is_scatter) || src.shape[a] == index.shape[a]);
    if fits {
        return Ok(());
    }
    let want = if is_scatter {
        "an index of the operand's shape".to_owned()
    } else {
        format!("an index of equal rank whose lengths agree outside axis {axis}")
    };
    let fault = ShapeFault::Count { want, remedy: "broadcast_to the index" };
    Err(Error::ShapeMismatch { op: op.clone(), shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(), fault })
}

impl Op for Gather {
    fn schema(&self) -> &'static OpSchema {
        &GATHER
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        check(&GATHER.name.into(), inputs, self.axis, false)?;
        Ok(Inference::one(&inputs[1].shape, inputs[0].dtype))
    }
    fn eval(&self, inputs: &[&View], _outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        Ok(smallvec![launch::gather(&GATHER.name.into(), inputs[0], inputs[1], self.axis)?])
    }
    fn saves(&self, _need: &[bool]) -> Saves {
        Saves { inputs: 2, outputs: 0 }
    }
    fn vmap(&self, _lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        Vmap::All(Arc::new(Gather { axis: self.axis + 1 }))
    }
    fn vjp(&self, saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let len = saved.input_metas()[0].shape[self.axis];
        Ok(smallvec![Some(apply_one(ScatterAdd { axis: self.axis, len }, &[g, saved.input(1)?])?), None])
    }
    fn is_multilinear(&self) -> bool {
        true
    }
}

impl Op for ScatterAdd {
    fn schema(&self) -> &'static OpSchema {
        &SCATTER_ADD
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        check(&SCATTER_ADD.name.into(), inputs, self.axis, true)?;
        if inputs[0].dtype == DType::Bool {
            return Err(Error::DtypeMismatch {
                op: SCATTER_ADD.name.into(),
                dtypes: vec![DType::Bool],
                remedy: "it adds numbers; convert with astype",
            });
        }
        let mut shape = inputs[0].shape.clone();
        shape[self.axis] = self.len;
        Ok(Inference::one(&shape, inputs[0].dtype))
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let (op, dtype) = (OpName::from(SCATTER_ADD.name), outputs[0].dtype);
        let sum = launch::scatter_add(&op, inputs[0], inputs[1], self.axis, &outputs[0].shape, dtype.accumulator())?;
        Ok(smallvec![if sum.dtype == dtype { sum } else { launch::copy(&op, &sum, dtype)? }])
    }
    fn saves(&self, _need: &[bool]) -> Saves {
        Saves { inputs: 2, outputs: 0 }
    }
    fn vmap(&self, _lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        Vmap::All(Arc::new(ScatterAdd { axis: self.axis + 1, len: self.len }))
    }
    fn vjp(&self, saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        Ok(smallvec![Some(apply_one(Gather { axis: self.axis }, &[g, saved.input(1)?])?), None])
    }
    fn is_multilinear(&self) -> bool {
        true
    }
}

/// Operands one after the other along an axis.
#[derive(Debug, Clone)]
struct Concat {
    axis: usize,
}

impl Op for Concat {
    fn schema(&self) -> &'static OpSchema {
        &CONCAT
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let (op, first) = (OpName::from(CONCAT.name), &inputs[0]);
        if inputs.iter().any(|m| m.dtype != first.dtype) {
            return Err(Error::DtypeMismatch { op, dtypes: inputs.iter().map(|m| m.dtype).collect(), remedy: "convert with astype" });
        }
        let fits =
            |m: &Meta| m.shape.len() == first.shape.len() && (0..m.shape.len()).all(|a| a == self.axis || m.shape[a] == first.shape[a]);
        if !inputs.iter().all(fits) {
            let fault = ShapeFault::Count {
                want: format!("equal ranks and lengths outside axis {}", self.axis),
                remedy: "broadcast_to or reshape first",
            };
            return Err(Error::ShapeMismatch { op, shapes: inputs.iter().map(|m| m.shape.to_vec()).collect(), fault });
        }
        let mut shape = first.shape.clone();
        let total = inputs.iter().try_fold(0usize, |n, m| n.checked_add(m.shape[self.axis]));
        shape[self.axis] = total.ok_or_else(|| Error::TooLarge { op, shape: first.shape.to_vec(), dtype: first.dtype })?;
        Ok(Inference::one(&shape, first.dtype))
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let op: OpName = CONCAT.name.into();
        let out = View::alloc(&op, inputs[0].storage.device(), &outputs[0].shape, outputs[0].dtype)?;
        let expr = MapExpr::new(&op, &[Prim::Input(0)][..], out.dtype)?;
        let mut start = 0;
        for input in inputs {
            let len = input.layout.shape()[self.axis];
            let part = View { layout: out.layout.narrow(self.axis, start, len, 1), ..out.clone() };
            launch::map_into(&op, &expr, &[input], &part)?;
            start += len;
        }
        Ok(smallvec![out])
    }
    fn vmap(&self, _lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        Vmap::All(Arc::new(Concat { axis: self.axis + 1 }))
    }
    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let (mut start, mut grads) = (0, Grads::new());
        for (meta, need) in saved.input_metas().iter().zip(need) {
            let len = meta.shape[self.axis];
            grads.push(need.map(|_| g.narrow(self.axis as isize, start, len)).transpose()?);
            start += len;
        }
        Ok(grads)
    }
    fn jvp(&self, inputs: &[Tensor], _outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let parts: Result<Vec<Tensor>> = inputs.iter().zip(tangents).map(|(x, t)| t.clone().map_or_else(|| x.zeros_like(), Ok)).collect();
        Ok(smallvec![Some(concat(&parts?.iter().collect::<Vec<_>>(), self.axis as isize)?)])
    }
}

/// Tensors one after the other along `axis`. Errors: `InvalidArgument` for an empty list, `ShapeMismatch`,
/// `DtypeMismatch`.
pub fn concat(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    let op: OpName = CONCAT.name.into();
    let Some(first) = tensors.first() else { return Err(Error::invalid(op, "tensors", "an empty list", "want at least one")) };
    let axis = normalize_axis(&op, axis, first.rank())?;
    let out = apply(Arc::new(Concat { axis }), tensors)?.into_iter().next();
    out.ok_or_else(|| Error::invalid(op, "outputs", 0, "want one result"))
}

/// Tensors of one shape along a new axis.
pub fn stack(tensors: &[&Tensor], axis: isize) -> Result<Tensor> {
    let parts: Result<Vec<Tensor>> = tensors.iter().map(|t| t.unsqueeze(axis)).collect();
    concat(&parts?.iter().collect::<Vec<_>>(), axis)
}

impl Tensor {
    /// out[.., i, ..] = self[.., index[.., i, ..], ..] along `axis`. `index` holds integers from 0, has this rank and, but for
    /// `axis`, these lengths. Errors: `InvalidArgument` for a position out of range, before anything is written.
    pub fn gather(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        let axis = normalize_axis(&GATHER.name.into(), axis, self.rank())?;
        apply_one(Gather { axis }, &[self, index])
    }

    /// Zeros with `len` positions along `axis`, to which this tensor is added at `index`, in row-major order, so that equal
    /// positions add in a fixed order; halves in f32, rounded once.
    pub fn scatter_add(&self, axis: isize, index: &Tensor, len: usize) -> Result<Tensor> {
        let axis = normalize_axis(&SCATTER_ADD.name.into(), axis, self.rank())?;
        apply_one(ScatterAdd { axis, len }, &[self, index])
    }

    /// The positions `index` (1-D, integers) along `axis`, such as rows of a table.
    pub fn index_select(&self, axis: isize, index: &Tensor) -> Result<Tensor> {
        let op = OpName::from("index_select");
        let axis = normalize_axis(&op, axis, self.rank())?;
        if index.rank() != 1 {
            let fault = ShapeFault::Rank { operand: 1, want: "1", remedy: "reshape the index, or use gather" };
            return Err(Error::ShapeMismatch { op, shapes: vec![self.shape().to_vec(), index.shape().to_vec()], fault });
        }
        let mut shape = Dims::from_slice(self.shape());
        shape[axis] = index.numel();
        let mut spread = Dims::from_elem(1, self.rank());
        spread[axis] = index.numel();
        // The index is broadcast by strides: nothing is copied.
        self.gather(axis as isize, &index.reshape(spread.as_slice())?.broadcast_to(shape.as_slice())?)
    }
}

pub(super) static ENTRIES: &[OpEntry] = &[
    OpEntry {
        schema: &GATHER,
        params: &["axis"],
        call: |x, a| x[0].gather(a.int("axis", 0)?, &x[1]),
        samples: &[Sample::new(&[&[4, 3], &[5, 3]], "axis=0;below=4")],
        values: Values::Indexed,
    },
    OpEntry {
        schema: &SCATTER_ADD,
        params: &["axis", "len"],
        call: |x, a| x[0].scatter_add(a.int("axis", 0)?, &x[1], a.int("len", 0)?.max(0) as usize),
        samples: &[Sample::new(&[&[5, 3], &[5, 3]], "axis=0;len=4;below=4")],
        values: Values::Indexed,
    },
    OpEntry {
        schema: &CONCAT,
        params: &["axis"],
        call: |x, a| concat(&x.iter().collect::<Vec<_>>(), a.int("axis", 0)?),
        samples: &[Sample::new(&[&[2, 3], &[2, 1], &[2, 0]], "axis=-1")],
        values: Values::Any,
    },
];
