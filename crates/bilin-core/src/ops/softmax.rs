//! `softmax`, `log_softmax`, `logsumexp`, `cross_entropy`: shifted by the greatest element, in f32 for halves.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::apply::apply_one;
use super::cast::astype;
use super::registry::{OpEntry, Sample, Values};
use crate::exec::call::Reduction;
use crate::exec::launch::{self, View};
use crate::exec::map_expr::{MapExpr, Prim};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::{DType, Kind};
use crate::shape::error::{Error, OpName, Result, ShapeFault};
use crate::shape::layout::{Dims, Layout, normalize_axis};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Saves, Tensor, Vmap};

const fn schema(name: &'static str) -> OpSchema {
    OpSchema::schema_v1(name, AmpPolicy::ForceFP32, Arity::Exact(1))
}
static SOFTMAX: OpSchema = schema("softmax");
static LOG_SOFTMAX: OpSchema = schema("log_softmax");
static LOGSUMEXP: OpSchema = schema("logsumexp");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Softmax,
    LogSoftmax,
    LogSumExp,
}

#[derive(Debug, Clone, Copy)]
struct Normalize {
    schema: &'static OpSchema,
    form: Form,
    axis: isize,
    keepdim: bool,
}

impl Normalize {
    fn axis(&self, rank: usize) -> Result<usize> {
        normalize_axis(&self.schema.name.into(), self.axis, rank)
    }
}

impl Op for Normalize {
    fn schema(&self) -> &'static OpSchema {
        self.schema
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let Meta { shape, dtype } = &inputs[0];
        if dtype.kind() != Kind::Float {
            return Err(Error::DtypeMismatch {
                op: self.schema.name.into(),
                dtypes: vec![*dtype],
                remedy: "it takes real floating point; convert with astype",
            });
        }
        let axis = self.axis(shape.len())?;
        let mut out = shape.clone();
        if self.form == Form::LogSumExp {
            out[axis] = 1;
            if !self.keepdim {
                out.remove(axis);
            }
        }
        Ok(Inference::one(&out, *dtype))
    }

    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let (op, x) = (OpName::from(self.schema.name), inputs[0]);
        let (axis, wide) = (self.axis(x.layout.rank())?, x.dtype.accumulator());
        let shape = x.layout.shape();
        if shape[axis] == 0 {
            // A sum over nothing: log 0.
            return Ok(smallvec![launch::full(&op, x.storage.device(), &outputs[0].shape, x.dtype, Prim::Const(f64::NEG_INFINITY))?]);
        }
        let mut kept = Dims::from_slice(shape);
        kept[axis] = 1;
        let keep = |mut v: View| {
            v.layout = Layout::contiguous(&kept);
            v
        };
        let run = |prims: &'static [Prim], inputs: &[&View], shape: &[usize], dtype: DType| {
            launch::map(&op, x.storage.device(), &MapExpr::new(&op, prims, wide)?, inputs, shape, dtype)
        };
        // An infinite extreme is no shift: ∞ − ∞ would be NaN.
        let top = keep(launch::reduce(&op, Reduction::Max, x, &[axis], wide, wide)?);
        let top = run(
            &[Prim::Input(0), Prim::Abs, Prim::Const(f64::INFINITY), Prim::Eq, Prim::Const(0.0), Prim::Input(0), Prim::Select],
            &[&top],
            &kept,
            wide,
        )?;
        let powers = run(&[Prim::Input(0), Prim::Input(1), Prim::Sub, Prim::Exp], &[x, &top], shape, wide)?;
        let sum = keep(launch::reduce(&op, Reduction::Sum, &powers, &[axis], wide, wide)?);
        let mut out = match self.form {
            Form::Softmax => run(&[Prim::Input(0), Prim::Input(1), Prim::Div], &[&powers, &sum], shape, x.dtype)?,
            Form::LogSoftmax => {
                run(&[Prim::Input(0), Prim::Input(1), Prim::Sub, Prim::Input(2), Prim::Log, Prim::Sub], &[x, &top, &sum], shape, x.dtype)?
            }
            Form::LogSumExp => run(&[Prim::Input(0), Prim::Log, Prim::Input(1), Prim::Add], &[&sum, &top], &kept, x.dtype)?,
        };
        out.layout = Layout::contiguous(&outputs[0].shape);
        Ok(smallvec![out])
    }

    fn vmap(&self, _lanes: usize, _differs: &[bool], inputs: &[Meta]) -> Vmap {
        match self.axis(inputs[0].shape.len()) {
            Ok(axis) => Vmap::All(Arc::new(Normalize { axis: axis as isize + 1, ..*self })),
            Err(_) => Vmap::Each,
        }
    }

    /// A maximum, a subtraction, a power, a sum and a division each.
    fn flops(&self, inputs: &[&View], _outputs: &[Meta]) -> u64 {
        5 * inputs[0].layout.numel() as u64
    }

    fn saves(&self, _need: &[bool]) -> Saves {
        match self.form {
            Form::LogSumExp => Saves { inputs: 1, outputs: 0 },
            _ => Saves { inputs: 0, outputs: 1 },
        }
    }

    fn vjp(&self, saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let axis = self.axis(saved.input_metas()[0].shape.len())? as isize;
        let same = |t: &Tensor| astype(t, g.dtype());
        let grad = match self.form {
            Form::Softmax => {
                let y = same(saved.output(0)?)?;
                y.mul(&g.sub(&g.mul(&y)?.sum(axis, true)?)?)?
            }
            Form::LogSoftmax => g.sub(&same(saved.output(0)?)?.exp()?.mul(&g.sum(axis, true)?)?)?,
            Form::LogSumExp => {
                let g = if self.keepdim { g.clone() } else { g.unsqueeze(axis)? };
                same(&saved.input(0)?.softmax(axis)?)?.mul(&g)?
            }
        };
        Ok(smallvec![Some(grad)])
    }

    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let Some(t) = &tangents[0] else { return Ok(Grads::new()) };
        let axis = self.axis(inputs[0].rank())? as isize;
        let out = match self.form {
            Form::Softmax => outputs[0].mul(&t.sub(&outputs[0].mul(t)?.sum(axis, true)?)?)?,
            Form::LogSoftmax => t.sub(&outputs[0].exp()?.mul(t)?.sum(axis, true)?)?,
            Form::LogSumExp => inputs[0].softmax(axis)?.mul(t)?.sum(axis, self.keepdim)?,
        };
        Ok(smallvec![Some(out)])
    }
}

impl Tensor {
    /// eˣ/Σeˣ along `axis`. Real floating point; halves are computed in f32 and rounded once.
    pub fn softmax(&self, axis: isize) -> Result<Tensor> {
        apply_one(Normalize { schema: &SOFTMAX, form: Form::Softmax, axis, keepdim: true }, &[self])
    }
    /// x − ln Σeˣ along `axis`, without the overflow of taking the logarithm of [`Tensor::softmax`].
    pub fn log_softmax(&self, axis: isize) -> Result<Tensor> {
        apply_one(Normalize { schema: &LOG_SOFTMAX, form: Form::LogSoftmax, axis, keepdim: true }, &[self])
    }
    /// ln Σeˣ over `axis`; −∞ over no elements.
    pub fn logsumexp(&self, axis: isize, keepdim: bool) -> Result<Tensor> {
        apply_one(Normalize { schema: &LOGSUMEXP, form: Form::LogSumExp, axis, keepdim }, &[self])
    }
}

/// Mean over rows of `−log softmax(logits)[target]`.
#[derive(Debug, Clone)]
struct CrossEntropy;

static CROSS_ENTROPY: OpSchema = OpSchema::schema_v1("cross_entropy", AmpPolicy::ForceFP32, Arity::Exact(2));

impl CrossEntropy {
    /// (softmax − one-hot)/N: the gradient by the logits.
    fn slope(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let rows = targets.unsqueeze(-1)?;
        let one = logits.scalar_like(1.0)?.broadcast_to(rows.shape())?;
        let hot = one.scatter_add(-1, &rows, logits.shape()[1])?;
        logits.softmax(-1)?.sub(&hot)?.mul_scalar(1.0 / targets.numel().max(1) as f64)
    }
}

impl Op for CrossEntropy {
    fn schema(&self) -> &'static OpSchema {
        &CROSS_ENTROPY
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let op: OpName = CROSS_ENTROPY.name.into();
        let [logits, targets] = inputs else { return Err(Error::invalid(op, "operands", inputs.len(), "want 2")) };
        if logits.dtype.kind() != Kind::Float || targets.dtype.kind() != Kind::Int {
            return Err(Error::DtypeMismatch {
                op,
                dtypes: vec![logits.dtype, targets.dtype],
                remedy: "logits are real floating point, targets integer classes; convert with astype",
            });
        }
        let shapes = vec![logits.shape.to_vec(), targets.shape.to_vec()];
        if logits.shape.len() != 2 {
            return Err(Error::ShapeMismatch {
                op,
                shapes,
                fault: ShapeFault::Rank { operand: 0, want: "2 (rows, classes)", remedy: "reshape" },
            });
        }
        if targets.shape.len() != 1 {
            return Err(Error::ShapeMismatch {
                op,
                shapes,
                fault: ShapeFault::Rank { operand: 1, want: "1 (a class for each row)", remedy: "reshape" },
            });
        }
        if logits.shape[0] != targets.shape[0] {
            let fault = ShapeFault::Lengths {
                lhs_axis: 0,
                lhs_len: logits.shape[0],
                rhs_axis: 0,
                rhs_len: targets.shape[0],
                remedy: "give one class a row",
            };
            return Err(Error::ShapeMismatch { op, shapes, fault });
        }
        Ok(Inference::one(&[], logits.dtype))
    }
    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let op: OpName = CROSS_ENTROPY.name.into();
        let (logits, targets) = (inputs[0], inputs[1]);
        let (wide, rows) = (logits.dtype.accumulator(), logits.layout.shape()[0]);
        let log_sum = Normalize { schema: &CROSS_ENTROPY, form: Form::LogSumExp, axis: -1, keepdim: true };
        let input = if wide == logits.dtype { logits.clone() } else { launch::copy(&op, logits, wide)? };
        let lse = log_sum.eval(&[&input], &[Meta::new(&[rows, 1], wide)])?;
        let index = View { layout: targets.layout.unsqueeze(1), ..targets.clone() };
        let picked = launch::gather(&op, &input, &index, 1)?;
        let expr = MapExpr::new(&op, &[Prim::Input(0), Prim::Input(1), Prim::Sub][..], wide)?;
        let losses = launch::map(&op, picked.storage.device(), &expr, &[&lse[0], &picked], &[rows, 1], wide)?;
        let sum = launch::reduce(&op, Reduction::Sum, &losses, &[0, 1], wide, wide)?;
        let mean = MapExpr::new(&op, vec![Prim::Input(0), Prim::Const(rows as f64), Prim::Div], wide)?;
        Ok(smallvec![launch::map(&op, sum.storage.device(), &mean, &[&sum], &[], outputs[0].dtype)?])
    }
    fn saves(&self, _need: &[bool]) -> Saves {
        Saves { inputs: 3, outputs: 0 }
    }
    fn vjp(&self, saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let slope = Self::slope(saved.input(0)?, saved.input(1)?)?;
        Ok(smallvec![Some(astype(&slope, g.dtype())?.mul(g)?), None])
    }
    fn jvp(&self, inputs: &[Tensor], _outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let Some(t) = &tangents[0] else { return Ok(Grads::new()) };
        Ok(smallvec![Some(Self::slope(&inputs[0], &inputs[1])?.mul(t)?.sum(.., false)?)])
    }
}

impl Tensor {
    /// Mean over rows of `−log softmax(self)[target]`: logits (N, C), targets (N) integers from 0 to C − 1 → ().
    ///
    /// Halves are computed in f32. Gradient: (softmax − one-hot)/N. Errors: `DtypeMismatch`, `ShapeMismatch`,
    /// `InvalidArgument` for a class out of range. Source: PyTorch `cross_entropy`, reduction `mean`.
    pub fn cross_entropy(&self, targets: &Tensor) -> Result<Tensor> {
        apply_one(CrossEntropy, &[self, targets])
    }
}

pub(super) static ENTRIES: &[OpEntry] = &[
    OpEntry {
        schema: &SOFTMAX,
        params: &["axis"],
        call: |x, a| x[0].softmax(a.int("axis", -1)?),
        samples: &[Sample::new(&[&[3, 5]], ""), Sample::new(&[&[3, 5]], "axis=0"), Sample::new(&[&[0, 5]], "")],
        values: Values::Positive,
    },
    OpEntry {
        schema: &LOG_SOFTMAX,
        params: &["axis"],
        call: |x, a| x[0].log_softmax(a.int("axis", -1)?),
        samples: &[Sample::new(&[&[3, 5]], ""), Sample::new(&[&[3, 5]], "axis=0")],
        values: Values::Positive,
    },
    OpEntry {
        schema: &LOGSUMEXP,
        params: &["axis", "keepdim"],
        call: |x, a| x[0].logsumexp(a.int("axis", -1)?, a.flag("keepdim")?),
        samples: &[Sample::new(&[&[3, 5]], ""), Sample::new(&[&[3, 5]], "axis=0;keepdim=true")],
        values: Values::Positive,
    },
    OpEntry {
        schema: &CROSS_ENTROPY,
        params: &[],
        call: |x, _| x[0].cross_entropy(&x[1]),
        samples: &[Sample::new(&[&[6, 4], &[6]], "below=4")],
        values: Values::Indexed,
    },
];
