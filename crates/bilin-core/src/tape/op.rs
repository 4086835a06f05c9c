//! The trait of ops: everything the engine knows of one stands behind it.

use std::fmt::Debug;
use std::sync::Arc;

use smallvec::SmallVec;

use super::node::Saved;
use super::tensor::Tensor;
use crate::exec::launch::View;
use crate::schema::OpSchema;
use crate::shape::dtype::DType;
use crate::shape::error::Result;
use crate::shape::layout::Dims;

/// Shape and dtype of an operand or a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Lengths of the axes.
    pub shape: Dims,
    /// Element type.
    pub dtype: DType,
}

impl Meta {
    /// From a shape and a dtype.
    #[inline]
    pub fn new(shape: &[usize], dtype: DType) -> Meta {
        Meta { shape: Dims::from_slice(shape), dtype }
    }
}

/// Those of the operands.
pub(crate) type Metas = SmallVec<[Meta; 2]>;

/// What [`Op::infer`] found.
#[derive(Debug)]
pub struct Inference {
    /// The results.
    pub outputs: SmallVec<[Meta; 1]>,
    /// The op that does the work and is recorded, under the user's schema, where that is another.
    pub lowered: Option<KeptOp>,
}

impl Inference {
    /// One result, no lowering.
    pub fn one(shape: &[usize], dtype: DType) -> Inference {
        Inference::of(Meta::new(shape, dtype))
    }

    /// The same, of a shape that is a list already.
    #[inline]
    pub(crate) fn of(result: Meta) -> Inference {
        Inference { outputs: SmallVec::from_buf([result]), lowered: None }
    }
}

/// What the needed gradients read: bit i of `inputs` for operand i, of `outputs` for result i.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Saves {
    /// Operands.
    pub inputs: u64,
    /// Results.
    pub outputs: u64,
}

/// An op that somebody keeps.
#[derive(Debug, Clone)]
pub enum KeptOp {
    /// One of a table: a record of it costs no memory of its own.
    Static(&'static dyn Op),
    /// One made for a call.
    Shared(Arc<dyn Op>),
}

impl std::ops::Deref for KeptOp {
    type Target = dyn Op;
    #[inline]
    fn deref(&self) -> &(dyn Op + 'static) {
        match self {
            KeptOp::Static(op) => *op,
            KeptOp::Shared(op) => op.as_ref(),
        }
    }
}

impl From<Arc<dyn Op>> for KeptOp {
    fn from(op: Arc<dyn Op>) -> KeptOp {
        KeptOp::Shared(op)
    }
}

/// Another op and its operands, for the same results.
pub type Rewritten = (Arc<dyn Op>, SmallVec<[Tensor; 2]>);

/// How an op runs for several lanes at once: over operands with one more axis before the others.
#[derive(Debug)]
pub enum Vmap {
    /// One lane after the other.
    Each,
    /// The op itself, or another; the new axis broadcasts against operands that lack it.
    Broadcast(Option<Arc<dyn Op>>),
    /// This op, over operands that all have the new axis.
    All(Arc<dyn Op>),
    /// This op, over operands of which some have it.
    Some(Arc<dyn Op>),
}
/// Results of an op.
pub type Tensors = SmallVec<[Tensor; 1]>;
/// A gradient or tangent for each operand or result; `None` is zero or not wanted.
pub type Grads = SmallVec<[Option<Tensor>; 2]>;

/// An op. Other crates may add their own: implement it, register the schema, call [`apply`](crate::apply).
///
/// Gradients are written in ops, so recorded they are differentiable again.
pub trait Op: Debug + Send + Sync + 'static {
    /// Name, version, promises.
    fn schema(&self) -> &'static OpSchema;

    /// Checks dtypes, then ranks, then sizes; says what comes out.
    fn infer(&self, inputs: &[Meta]) -> Result<Inference>;

    /// The op for `lanes` calls at once, of which operand i is another in each where `differs[i]` and else the same; `inputs` are
    /// those of one call. Its bits are those of the calls one by one.
    fn vmap(&self, lanes: usize, differs: &[bool], inputs: &[Meta]) -> Vmap {
        let _ = (lanes, differs, inputs);
        Vmap::Each
    }

    /// The same op over other operands, where that saves work in the gradient: a product of a broadcast view is one of its
    /// source.
    fn rewrite(&self, inputs: &[&Tensor]) -> Option<Rewritten> {
        let _ = inputs;
        None
    }

    /// Computes the results; `inputs` are as `infer` saw them.
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>>;

    /// Adds the one result to `sum`, of its shape and dtype, with the bits of a result by itself that is added after; false,
    /// and nothing touched, where that can't be done without a buffer between.
    fn eval_onto(&self, inputs: &[&View], sum: &View) -> Result<bool> {
        let _ = (inputs, sum);
        Ok(false)
    }

    /// Floating-point operations of one call, for profiles; 0 where it only moves elements.
    fn flops(&self, inputs: &[&View], outputs: &[Meta]) -> u64 {
        let _ = (inputs, outputs);
        0
    }

    /// What the gradients of the operands in `need` read.
    fn saves(&self, need: &[bool]) -> Saves {
        let _ = need;
        Saves::default()
    }

    /// The gradient of every operand i for which `need[i]` names a dtype, in that dtype or one that `astype` brings there;
    /// `g` are the cotangents of the results.
    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads>;

    /// The gradient of operand `i` in `dtype` as a call of an op, where it is one: a pass adds it to a sum that stands already
    /// by [`Op::eval_onto`].
    fn vjp_call(&self, saved: &Saved, i: usize, dtype: DType, g: &[Option<Tensor>]) -> Result<Option<Rewritten>> {
        let _ = (saved, i, dtype, g);
        Ok(None)
    }

    /// Whether the op is linear in each operand alone; then its tangent is the sum, over operands with a tangent, of the op
    /// with that operand replaced, and [`Op::jvp`] is never called.
    fn is_multilinear(&self) -> bool {
        false
    }

    /// The tangents of the results, for operands of which some have tangents.
    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let _ = (inputs, outputs, tangents);
        Ok(Grads::new())
    }
}
