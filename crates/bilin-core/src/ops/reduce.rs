//! Sums, means, extremes and their positions.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::apply::apply_one;
use super::cast::astype;
use super::registry::{Attrs, OpEntry, Sample, Values};
use crate::exec::call::Reduction;
use crate::exec::launch::{self, View};
use crate::exec::map_expr::{MapExpr, Prim};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::{DType, Kind};
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::{Dims, normalize_axes};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Saves, Tensor, Vmap};

const fn schema(name: &'static str, policy: AmpPolicy) -> OpSchema {
    OpSchema::schema_v1(name, policy, Arity::Exact(1))
}
static SUM: OpSchema = schema("sum", AmpPolicy::ForceFP32);
static MEAN: OpSchema = schema("mean", AmpPolicy::ForceFP32);
static MAX: OpSchema = schema("max", AmpPolicy::KeepInput);
static MIN: OpSchema = schema("min", AmpPolicy::KeepInput);
static ARGMAX: OpSchema = schema("argmax", AmpPolicy::KeepInput);
static ARGMIN: OpSchema = schema("argmin", AmpPolicy::KeepInput);

/// Which axes a reduction goes over: `..` for all, an axis, or several; negative ones count from the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// Every axis.
    All,
    /// These.
    Axes(SmallVec<[isize; 4]>),
}
impl From<std::ops::RangeFull> for Over {
    fn from(_: std::ops::RangeFull) -> Over {
        Over::All
    }
}
impl From<isize> for Over {
    fn from(axis: isize) -> Over {
        Over::Axes(smallvec![axis])
    }
}
impl<const N: usize> From<[isize; N]> for Over {
    fn from(axes: [isize; N]) -> Over {
        Over::Axes(SmallVec::from_slice(&axes))
    }
}
impl From<&[isize]> for Over {
    fn from(axes: &[isize]) -> Over {
        Over::Axes(SmallVec::from_slice(axes))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Sum,
    Mean,
    Extreme(Reduction),
    Position(Reduction),
}

#[derive(Debug, Clone)]
struct Reduce {
    schema: &'static OpSchema,
    what: What,
    over: Over,
    keepdim: bool,
    out_dtype: Option<DType>,
}

impl Reduce {
    /// Ascending axes.
    fn axes(&self, rank: usize) -> Result<SmallVec<[usize; 6]>> {
        let mut axes = match &self.over {
            Over::All => (0..rank).collect(),
            Over::Axes(axes) => normalize_axes(&self.schema.name.into(), axes, rank)?,
        };
        axes.sort_unstable();
        Ok(axes)
    }

    /// The result with its reduced axes back as length 1.
    fn kept(&self, t: &Tensor, input: &[usize]) -> Result<Tensor> {
        if self.keepdim {
            return Ok(t.clone());
        }
        let axes = self.axes(input.len())?;
        let shape: Dims = input.iter().enumerate().map(|(i, &len)| if axes.contains(&i) { 1 } else { len }).collect();
        t.reshape(shape.as_slice())
    }

    fn count(&self, input: &[usize]) -> Result<usize> {
        Ok(self.axes(input.len())?.iter().map(|&a| input[a]).product())
    }

    /// 1/count at each place of an extreme, shared by ties.
    fn shares(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let hits = astype(&x.eq(&self.kept(y, x.shape())?)?, x.dtype())?;
        let axes: SmallVec<[isize; 6]> = self.axes(x.rank())?.iter().map(|&a| a as isize).collect();
        hits.div(&hits.sum(axes.as_slice(), true)?)
    }
}

impl Op for Reduce {
    fn schema(&self) -> &'static OpSchema {
        self.schema
    }

    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let (shape, dtype) = (&inputs[0].shape, inputs[0].dtype);
        let op: OpName = self.schema.name.into();
        let is_extreme = matches!(self.what, What::Extreme(_) | What::Position(_));
        if is_extreme && dtype.is_complex() {
            return Err(Error::DtypeMismatch { op, dtypes: vec![dtype], remedy: "complex numbers have no order; take abs or real first" });
        }
        let axes = self.axes(shape.len())?;
        if is_extreme && axes.iter().any(|&a| shape[a] == 0) {
            return Err(Error::invalid(
                op,
                "axes",
                format!("a reduction over no elements of {}", crate::shape_text(shape)),
                "an empty extent has no extreme",
            ));
        }
        let out = match self.what {
            What::Sum => match dtype.kind() {
                Kind::Int | Kind::Bool => DType::I64,
                _ => dtype,
            },
            What::Mean if !dtype.is_differentiable() => DType::F64,
            What::Mean | What::Extreme(_) => dtype,
            What::Position(_) => DType::I64,
        };
        let kept = (0..shape.len()).filter(|a| self.keepdim || !axes.contains(a)).map(|a| if axes.contains(&a) { 1 } else { shape[a] });
        Ok(Inference::one(&kept.collect::<Dims>(), self.out_dtype.unwrap_or(out)))
    }

    fn eval(&self, inputs: &[&View], outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let op: OpName = self.schema.name.into();
        let (input, dtype) = (inputs[0], outputs[0].dtype);
        let axes = self.axes(input.layout.rank())?;
        let mut out = match self.what {
            What::Sum => {
                let accumulator = if dtype.kind() == Kind::Int { dtype } else { dtype.accumulator() };
                launch::reduce(&op, Reduction::Sum, input, &axes, accumulator, dtype)?
            }
            What::Mean => {
                let sum = launch::reduce(&op, Reduction::Sum, input, &axes, dtype.accumulator(), dtype.accumulator())?;
                let prims = vec![Prim::Input(0), Prim::Const(self.count(input.layout.shape())? as f64), Prim::Div];
                launch::map(&op, sum.storage.device(), &MapExpr::new(&op, prims, dtype)?, &[&sum], sum.layout.shape(), dtype)?
            }
            What::Extreme(reduction) | What::Position(reduction) => launch::reduce(&op, reduction, input, &axes, dtype, dtype)?,
        };
        out.layout = crate::shape::layout::Layout::contiguous(&outputs[0].shape);
        Ok(smallvec![out])
    }

    fn vmap(&self, _lanes: usize, _differs: &[bool], inputs: &[Meta]) -> Vmap {
        let Ok(axes) = self.axes(inputs[0].shape.len()) else { return Vmap::Each };
        let over = Over::Axes(axes.iter().map(|&a| a as isize + 1).collect());
        Vmap::All(Arc::new(Reduce { schema: self.schema, what: self.what, over, keepdim: self.keepdim, out_dtype: self.out_dtype }))
    }

    fn flops(&self, inputs: &[&View], _outputs: &[Meta]) -> u64 {
        inputs[0].layout.numel() as u64
    }

    fn saves(&self, _need: &[bool]) -> Saves {
        match self.what {
            What::Extreme(_) => Saves { inputs: 1, outputs: 1 },
            _ => Saves::default(),
        }
    }

    fn vjp(&self, saved: &Saved, need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let input = &saved.input_metas()[0];
        // The dtype before the broadcast, so that the widened tensor stays a view.
        let g = astype(g, need[0].unwrap_or(input.dtype))?;
        let g = match self.what {
            What::Mean => g.mul_scalar(1.0 / self.count(&input.shape)? as f64)?,
            _ => g,
        };
        let wide = self.kept(&g, &input.shape)?.broadcast_to(input.shape.as_slice())?;
        Ok(smallvec![Some(match self.what {
            What::Extreme(_) => wide.mul(&astype(&self.shares(saved.input(0)?, saved.output(0)?)?, wide.dtype())?)?,
            _ => wide,
        })])
    }

    fn is_multilinear(&self) -> bool {
        matches!(self.what, What::Sum | What::Mean)
    }

    fn jvp(&self, inputs: &[Tensor], outputs: &[Tensor], tangents: &[Option<Tensor>]) -> Result<Grads> {
        let (Some(t), What::Extreme(_)) = (&tangents[0], self.what) else { return Ok(Grads::new()) };
        let axes: SmallVec<[isize; 6]> = self.axes(inputs[0].rank())?.iter().map(|&a| a as isize).collect();
        Ok(smallvec![Some(t.mul(&self.shares(&inputs[0], &outputs[0])?)?.sum(axes.as_slice(), self.keepdim)?)])
    }
}

/// The sum over `axes` in `out_dtype`, unrounded on the way, recorded under another op's schema.
pub(super) fn sum_under(schema: &'static OpSchema, x: &Tensor, axes: &[isize], out_dtype: DType) -> Result<Tensor> {
    apply_one(Reduce { schema, what: What::Sum, over: axes.into(), keepdim: false, out_dtype: Some(out_dtype) }, &[x])
}

/// Whether any element along `axes` is true, recorded under another op's schema.
pub(super) fn any_under(schema: &'static OpSchema, x: &Tensor, axes: &[isize]) -> Result<Tensor> {
    apply_one(Reduce { schema, what: What::Extreme(Reduction::Max), over: axes.into(), keepdim: false, out_dtype: None }, &[x])
}

/// Sums what broadcasting repeated, back to `shape`.
pub(super) fn sum_to(g: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if g.shape() == shape {
        return Ok(g.clone());
    }
    let lead = g.rank() - shape.len();
    let axes: SmallVec<[isize; 6]> =
        (0..g.rank()).filter(|&a| a < lead || (shape[a - lead] == 1 && g.shape()[a] != 1)).map(|a| a as isize).collect();
    g.sum(axes.as_slice(), false)?.reshape(shape)
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident $schema:ident $what:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            pub fn $name(&self, over: impl Into<Over>, keepdim: bool) -> Result<Tensor> {
                apply_one(Reduce { schema: &$schema, what: $what, over: over.into(), keepdim, out_dtype: None }, &[self])
            }
        )*}
    };
}
reductions! {
    /// Sum over `over`; halves in f32 rounded once, integers and bool in int64.
    ///
    /// ```
    /// use bilin_core::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1f32, 2., 3., 4.], [2, 2], &Device::reference())?;
    /// assert_eq!(x.sum(.., false)?.item::<f32>()?, 10.);
    /// assert_eq!(x.sum(-1, true)?.shape(), [2, 1]);
    /// # Ok::<(), bilin_core::Error>(())
    /// ```
    sum SUM What::Sum;
    /// Mean over `over`; float64 for integers, as NumPy; NaN over no elements.
    mean MEAN What::Mean;
    /// Greatest over `over`; NaN wins; ties share the gradient. Errors: `InvalidArgument` over no elements.
    max MAX What::Extreme(Reduction::Max);
    /// Least over `over`; NaN wins; ties share the gradient. Errors: `InvalidArgument` over no elements.
    min MIN What::Extreme(Reduction::Min);
    /// Position (int64) of the first greatest, in the row-major order of the reduced axes.
    argmax ARGMAX What::Position(Reduction::Argmax);
    /// Position (int64) of the first least, likewise.
    argmin ARGMIN What::Position(Reduction::Argmin);
}

fn over(a: &Attrs) -> Result<Over> {
    Ok(if a.text("axes").is_some() { Over::Axes(SmallVec::from_vec(a.ints("axes")?)) } else { Over::All })
}
macro_rules! entry {
    ($schema:ident, $call:ident, $values:ident, [$($more:expr),*]) => {
        OpEntry {
            schema: &$schema,
            params: &["axes", "keepdim"],
            call: |x, a| x[0].$call(over(a)?, a.flag("keepdim")?),
            samples: &[Sample::new(&[&[3, 5, 2]], ""), Sample::new(&[&[3, 5, 2]], "axes=0,-1"), Sample::new(&[&[3, 5, 2]], "axes=1;keepdim=true"), Sample::new(&[&[]], ""), $($more),*],
            values: Values::$values,
        }
    };
}
pub(super) static ENTRIES: &[OpEntry] = &[
    entry!(SUM, sum, Any, [Sample::new(&[&[0, 3]], "axes=0"), Sample::new(&[&[3, 0]], "axes=0")]),
    entry!(MEAN, mean, Any, []),
    entry!(MAX, max, Distinct, []),
    entry!(MIN, min, Distinct, []),
    entry!(ARGMAX, argmax, Distinct, []),
    entry!(ARGMIN, argmin, Distinct, []),
];
