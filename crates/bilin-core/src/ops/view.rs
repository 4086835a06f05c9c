//! Ops that change only strides, and their adjoints.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::apply::apply_one;
use super::reduce::sum_to;
use super::registry::{OpEntry, Sample, Values};
use crate::exec::launch::{View, copy, full, map_into};
use crate::exec::map_expr::{MapExpr, Prim};
use crate::schema::{AmpPolicy, Arity, OpSchema};
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result, ShapeFault};
use crate::shape::layout::{Dims, Layout, checked_numel, normalize_axes, normalize_axis};
use crate::tape::{Grads, Inference, Meta, Op, Saved, Tensor, Vmap};

const fn schema(name: &'static str) -> OpSchema {
    OpSchema::schema_v1(name, AmpPolicy::KeepInput, Arity::Exact(1))
}
static PERMUTE: OpSchema = schema("permute");
static RESHAPE: OpSchema = schema("reshape");
pub(super) static BROADCAST_TO: OpSchema = schema("broadcast_to");
static NARROW: OpSchema = schema("narrow");
static FLIP: OpSchema = schema("flip");
static DIAGONAL: OpSchema = schema("diagonal");
static SQUEEZE: OpSchema = schema("squeeze");
static UNSQUEEZE: OpSchema = schema("unsqueeze");
static EMBED: OpSchema = schema("embed");

/// One change of strides, checked against the operand's shape.
#[derive(Debug, Clone)]
enum Change {
    Permute(SmallVec<[usize; 6]>),
    Reshape(Dims),
    BroadcastTo(Dims),
    Narrow { axis: usize, start: usize, len: usize, step: isize },
    Flip(usize),
    Diagonal(usize, usize),
    Squeeze(SmallVec<[usize; 6]>),
    Unsqueeze(usize),
}

impl Change {
    /// The changed layout; `None` where strides can't say it.
    fn of(&self, layout: &Layout) -> Option<Layout> {
        Some(match self {
            Change::Permute(axes) => layout.permute(axes),
            Change::Reshape(shape) => return layout.reshape(shape),
            Change::BroadcastTo(shape) => return layout.broadcast_to(shape),
            Change::Narrow { axis, start, len, step } => layout.narrow(*axis, *start, *len, *step),
            Change::Flip(axis) => {
                let len = layout.shape()[*axis];
                layout.narrow(*axis, len.saturating_sub(1), len, -1)
            }
            Change::Diagonal(a, b) => layout.diagonal(*a, *b),
            Change::Squeeze(axes) => layout.squeeze(axes),
            Change::Unsqueeze(axis) => layout.unsqueeze(*axis),
        })
    }

    /// The same change behind an axis of `lanes` before the others.
    fn behind(&self, lanes: usize) -> Change {
        let shape = |shape: &Dims| std::iter::once(lanes).chain(shape.iter().copied()).collect();
        match self {
            Change::Permute(order) => Change::Permute(std::iter::once(0).chain(order.iter().map(|a| a + 1)).collect()),
            Change::Reshape(to) => Change::Reshape(shape(to)),
            Change::BroadcastTo(to) => Change::BroadcastTo(shape(to)),
            Change::Narrow { axis, start, len, step } => Change::Narrow { axis: axis + 1, start: *start, len: *len, step: *step },
            Change::Flip(axis) => Change::Flip(axis + 1),
            Change::Diagonal(a, b) => Change::Diagonal(a + 1, b + 1),
            Change::Squeeze(which) => Change::Squeeze(which.iter().map(|a| a + 1).collect()),
            Change::Unsqueeze(axis) => Change::Unsqueeze(axis + 1),
        }
    }
}

#[derive(Debug, Clone)]
struct Restride {
    schema: &'static OpSchema,
    change: Change,
}

impl Op for Restride {
    fn schema(&self) -> &'static OpSchema {
        self.schema
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        let shape = match &self.change {
            Change::Reshape(shape) | Change::BroadcastTo(shape) => shape.clone(),
            change => match change.of(&Layout::contiguous(&inputs[0].shape)) {
                Some(layout) => Dims::from_slice(layout.shape()),
                None => Dims::new(),
            },
        };
        Ok(Inference::one(&shape, inputs[0].dtype))
    }
    fn eval(&self, inputs: &[&View], _outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        if let Some(layout) = self.change.of(&inputs[0].layout) {
            return Ok(smallvec![View { layout, ..inputs[0].clone() }]);
        }
        // A reshape that strides can't say.
        let dense = copy(&self.schema.name.into(), inputs[0], inputs[0].dtype)?;
        let layout = self.change.of(&dense.layout);
        let layout =
            layout.ok_or_else(|| Error::invalid(self.schema.name, "layout", "a shape that doesn't fit", "this is a fault of the op"))?;
        Ok(smallvec![View { layout, ..dense }])
    }
    fn vmap(&self, lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        let op = Arc::new(Restride { schema: self.schema, change: self.change.behind(lanes) });
        if matches!(self.change, Change::BroadcastTo(_)) { Vmap::Broadcast(Some(op)) } else { Vmap::All(op) }
    }
    fn vjp(&self, saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let Some(g) = &g[0] else { return Ok(Grads::new()) };
        let shape = &saved.input_metas()[0].shape;
        let grad = match &self.change {
            Change::Permute(axes) => {
                let mut back: SmallVec<[isize; 6]> = smallvec![0; axes.len()];
                for (to, &from) in axes.iter().enumerate() {
                    back[from] = to as isize;
                }
                g.permute(&back)?
            }
            Change::Reshape(_) | Change::Squeeze(_) | Change::Unsqueeze(_) => g.reshape(shape.as_slice())?,
            Change::BroadcastTo(_) => sum_to(g, shape)?,
            Change::Flip(axis) => g.flip(*axis as isize)?,
            Change::Narrow { .. } | Change::Diagonal(..) => apply_one(Embed { change: self.change.clone(), shape: shape.clone() }, &[g])?,
        };
        Ok(smallvec![Some(grad)])
    }
    fn is_multilinear(&self) -> bool {
        true
    }
}

/// Zeros of `shape` whose changed view holds the operand: the adjoint of a view that picks elements.
#[derive(Debug, Clone)]
struct Embed {
    change: Change,
    shape: Dims,
}

impl Op for Embed {
    fn schema(&self) -> &'static OpSchema {
        &EMBED
    }
    fn infer(&self, inputs: &[Meta]) -> Result<Inference> {
        Ok(Inference::one(&self.shape, inputs[0].dtype))
    }
    fn eval(&self, inputs: &[&View], _outputs: &[Meta]) -> Result<SmallVec<[View; 1]>> {
        let op: OpName = EMBED.name.into();
        let out = full(&op, inputs[0].storage.device(), &self.shape, inputs[0].dtype, Prim::ConstInt(0))?;
        if let Some(layout) = self.change.of(&out.layout) {
            let part = View { layout, ..out.clone() };
            map_into(&op, &MapExpr::new(&op, &[Prim::Input(0)][..], part.dtype)?, inputs, &part)?;
        }
        Ok(smallvec![out])
    }
    fn vmap(&self, lanes: usize, _differs: &[bool], _inputs: &[Meta]) -> Vmap {
        let shape = std::iter::once(lanes).chain(self.shape.iter().copied()).collect();
        Vmap::All(Arc::new(Embed { change: self.change.behind(lanes), shape }))
    }
    fn vjp(&self, _saved: &Saved, _need: &[Option<DType>], g: &[Option<Tensor>]) -> Result<Grads> {
        let pick = |g: &Tensor| apply_one(Restride { schema: &NARROW, change: self.change.clone() }, &[g]);
        Ok(smallvec![g[0].as_ref().map(pick).transpose()?])
    }
    fn is_multilinear(&self) -> bool {
        true
    }
}

/// A run of positions along one axis: `start..stop` in steps, with Python's rules for negative and missing ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// One position; the axis goes away.
    At(isize),
    /// A run.
    Slice {
        /// First position; from the near end where missing.
        start: Option<isize>,
        /// End, excluded; to the far end where missing.
        stop: Option<isize>,
        /// Step, not 0; negative walks down.
        step: isize,
    },
    /// A new axis of length 1.
    NewAxis,
    /// As many whole axes as are left.
    Ellipsis,
}

impl Index {
    /// The whole axis.
    pub const ALL: Index = Index::Slice { start: None, stop: None, step: 1 };
}
impl From<std::ops::Range<isize>> for Index {
    fn from(r: std::ops::Range<isize>) -> Index {
        Index::Slice { start: Some(r.start), stop: Some(r.end), step: 1 }
    }
}
impl From<std::ops::RangeFull> for Index {
    fn from(_: std::ops::RangeFull) -> Index {
        Index::ALL
    }
}
impl From<isize> for Index {
    fn from(at: isize) -> Index {
        Index::At(at)
    }
}

fn count_fault(op: &'static str, x: &Tensor, want: String, remedy: &'static str) -> Error {
    Error::ShapeMismatch { op: op.into(), shapes: vec![x.shape().to_vec()], fault: ShapeFault::Count { want, remedy } }
}

impl Tensor {
    fn restride(&self, schema: &'static OpSchema, change: Change) -> Result<Tensor> {
        apply_one(Restride { schema, change }, &[self])
    }

    /// Axes in another order: axis i of the result is axis `axes[i]`. A view.
    pub fn permute(&self, axes: &[isize]) -> Result<Tensor> {
        let order = normalize_axes(&PERMUTE.name.into(), axes, self.rank())?;
        if order.len() != self.rank() {
            return Err(count_fault(
                "permute",
                self,
                format!("{} axes, one for each of the operand's", self.rank()),
                "name every axis once",
            ));
        }
        self.restride(&PERMUTE, Change::Permute(order))
    }

    /// The last two axes exchanged. A view. Errors: `ShapeMismatch` for ranks below 2.
    pub fn mt(&self) -> Result<Tensor> {
        let rank = self.rank() as isize;
        if rank < 2 {
            let fault = ShapeFault::Rank { operand: 0, want: "at least 2", remedy: "unsqueeze a vector first" };
            return Err(Error::ShapeMismatch { op: "permute".into(), shapes: vec![self.shape().to_vec()], fault });
        }
        let axes: SmallVec<[isize; 6]> = (0..rank - 2).chain([rank - 1, rank - 2]).collect();
        self.permute(&axes)
    }

    /// All axes in reverse order. A view.
    pub fn t(&self) -> Result<Tensor> {
        let axes: SmallVec<[isize; 6]> = (0..self.rank() as isize).rev().collect();
        self.permute(&axes)
    }

    /// The same elements under another shape; a view where strides can say it, else a row-major copy.
    pub fn reshape(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = shape.as_ref();
        let numel = checked_numel(&RESHAPE.name.into(), shape, self.dtype())?;
        if numel != self.numel() {
            return Err(count_fault(
                "reshape",
                self,
                format!("a shape of {} elements, not {shape:?} of {numel}", self.numel()),
                "the product of the lengths must stay",
            ));
        }
        self.restride(&RESHAPE, Change::Reshape(Dims::from_slice(shape)))
    }

    /// Length-1 and new leading axes repeated to `shape`. A view of stride 0: nothing is copied.
    pub fn broadcast_to(&self, shape: impl AsRef<[usize]>) -> Result<Tensor> {
        let shape = shape.as_ref();
        checked_numel(&BROADCAST_TO.name.into(), shape, self.dtype())?;
        let change = Change::BroadcastTo(Dims::from_slice(shape));
        if change.of(self.layout()).is_none() {
            return Err(count_fault(
                "broadcast_to",
                self,
                format!("a shape that broadcasts to {shape:?}"),
                "lengths, aligned at the last axis, must be equal or 1",
            ));
        }
        self.restride(&BROADCAST_TO, change)
    }

    /// `len` positions of `axis` from `start`. A view.
    pub fn narrow(&self, axis: isize, start: usize, len: usize) -> Result<Tensor> {
        let axis = normalize_axis(&NARROW.name.into(), axis, self.rank())?;
        let have = self.shape()[axis];
        if start.checked_add(len).is_none_or(|end| end > have) {
            return Err(Error::invalid(
                "narrow",
                "range",
                format!("{len} positions from {start}"),
                format!("axis {axis} of {} has length {have}", crate::shape_text(self.shape())),
            ));
        }
        self.restride(&NARROW, Change::Narrow { axis, start, len, step: 1 })
    }

    /// Positions, runs, new axes and an ellipsis, one for each axis from the first. A view.
    ///
    /// Errors: `InvalidArgument` for a position out of range or step 0, `ShapeMismatch` for more than there are axes.
    pub fn index(&self, items: &[Index]) -> Result<Tensor> {
        let used = items.iter().filter(|i| matches!(i, Index::At(_) | Index::Slice { .. })).count();
        if used > self.rank() || items.iter().filter(|i| **i == Index::Ellipsis).count() > 1 {
            return Err(count_fault("index", self, format!("at most {} items and one ellipsis", self.rank()), "give one item an axis"));
        }
        let (mut out, mut axis) = (self.clone(), 0);
        for item in items {
            match *item {
                Index::Ellipsis => axis += self.rank() - used,
                Index::NewAxis => {
                    out = out.unsqueeze(axis as isize)?;
                    axis += 1;
                }
                Index::At(at) => {
                    let len = out.shape()[axis];
                    let place = if at < 0 { at + len as isize } else { at };
                    if place < 0 || place >= len as isize {
                        return Err(Error::invalid(
                            "index",
                            "position",
                            at,
                            format!("axis {axis} of {} has length {len}", crate::shape_text(out.shape())),
                        ));
                    }
                    out = out.narrow(axis as isize, place as usize, 1)?.squeeze(&[axis as isize])?;
                }
                Index::Slice { start, stop, step } => {
                    if step == 0 {
                        return Err(Error::invalid("index", "step", 0, "want a step other than 0"));
                    }
                    let len = out.shape()[axis] as isize;
                    let (low, high) = if step > 0 { (0, len) } else { (-1, len - 1) };
                    let clamp = |end: Option<isize>, default: isize| match end {
                        None => default,
                        Some(e) => (if e < 0 { e.saturating_add(len) } else { e }).clamp(low, high),
                    };
                    let (first, last) =
                        if step > 0 { (clamp(start, low), clamp(stop, high)) } else { (clamp(start, high), clamp(stop, low)) };
                    let distance = if step > 0 { last - first } else { first - last };
                    let count = if distance <= 0 { 0 } else { (distance as usize).div_ceil(step.unsigned_abs()) };
                    if (first, count as isize, step) != (0, len, 1) {
                        let first = first.max(0) as usize;
                        out = out.restride(&NARROW, Change::Narrow { axis, start: first, len: count, step })?;
                    }
                    axis += 1;
                }
            }
        }
        Ok(out)
    }

    /// Positions `start..stop` of `axis`, `step` apart, with Python's rules for the ends. A view.
    pub fn slice(&self, axis: isize, start: Option<isize>, stop: Option<isize>, step: isize) -> Result<Tensor> {
        let axis = normalize_axis(&"slice".into(), axis, self.rank())?;
        let mut items: SmallVec<[Index; 6]> = smallvec![Index::ALL; axis];
        items.push(Index::Slice { start, stop, step });
        self.index(&items)
    }

    /// One axis in reverse order. A view.
    pub fn flip(&self, axis: isize) -> Result<Tensor> {
        let axis = normalize_axis(&FLIP.name.into(), axis, self.rank())?;
        self.restride(&FLIP, Change::Flip(axis))
    }

    /// The diagonal of two axes as a new last axis. A view.
    pub fn diagonal(&self, axis1: isize, axis2: isize) -> Result<Tensor> {
        let axes = normalize_axes(&DIAGONAL.name.into(), &[axis1, axis2], self.rank())?;
        self.restride(&DIAGONAL, Change::Diagonal(axes[0], axes[1]))
    }

    /// Without the axes named, which must have length 1. A view.
    pub fn squeeze(&self, axes: &[isize]) -> Result<Tensor> {
        let axes = normalize_axes(&SQUEEZE.name.into(), axes, self.rank())?;
        if let Some(&axis) = axes.iter().find(|&&a| self.shape()[a] != 1) {
            return Err(count_fault(
                "squeeze",
                self,
                format!("length 1 on axis {axis}, not {}", self.shape()[axis]),
                "index or sum the axis away",
            ));
        }
        self.restride(&SQUEEZE, Change::Squeeze(axes))
    }

    /// With a new axis of length 1 before `axis`; −1 appends. A view.
    pub fn unsqueeze(&self, axis: isize) -> Result<Tensor> {
        let axis = normalize_axis(&UNSQUEEZE.name.into(), axis, self.rank() + 1)?;
        self.restride(&UNSQUEEZE, Change::Unsqueeze(axis))
    }
}

fn axis_or(a: &super::registry::Attrs) -> Result<isize> {
    a.int("axis", 0)
}

pub(super) static ENTRIES: &[OpEntry] = &[
    OpEntry {
        schema: &PERMUTE,
        params: &["axes"],
        call: |x, a| x[0].permute(&a.ints("axes")?),
        samples: &[Sample::new(&[&[2, 3, 4]], "axes=2,0,1")],
        values: Values::Any,
    },
    OpEntry {
        schema: &RESHAPE,
        params: &["shape"],
        call: |x, a| x[0].reshape(a.lens("shape")?),
        samples: &[Sample::new(&[&[2, 6]], "shape=3,4"), Sample::new(&[&[1]], "shape=")],
        values: Values::Any,
    },
    OpEntry {
        schema: &BROADCAST_TO,
        params: &["shape"],
        call: |x, a| x[0].broadcast_to(a.lens("shape")?),
        samples: &[Sample::new(&[&[2, 1, 3]], "shape=4,2,5,3")],
        values: Values::Any,
    },
    OpEntry {
        schema: &NARROW,
        params: &["axis", "start", "len"],
        call: |x, a| x[0].narrow(axis_or(a)?, a.int("start", 0)?.max(0) as usize, a.int("len", 0)?.max(0) as usize),
        samples: &[Sample::new(&[&[2, 5]], "axis=1;start=1;len=3")],
        values: Values::Any,
    },
    OpEntry {
        schema: &FLIP,
        params: &["axis"],
        call: |x, a| x[0].flip(axis_or(a)?),
        samples: &[Sample::new(&[&[4, 3]], "axis=0"), Sample::new(&[&[0, 3]], "axis=0")],
        values: Values::Any,
    },
    OpEntry {
        schema: &DIAGONAL,
        params: &["axis1", "axis2"],
        call: |x, a| x[0].diagonal(a.int("axis1", 0)?, a.int("axis2", 1)?),
        samples: &[Sample::new(&[&[3, 4, 2]], ""), Sample::new(&[&[3, 2, 3]], "axis1=0;axis2=-1")],
        values: Values::Any,
    },
    OpEntry {
        schema: &SQUEEZE,
        params: &["axes"],
        call: |x, a| x[0].squeeze(&a.ints("axes")?),
        samples: &[Sample::new(&[&[2, 1, 3, 1]], "axes=1,-1")],
        values: Values::Any,
    },
    OpEntry {
        schema: &UNSQUEEZE,
        params: &["axis"],
        call: |x, a| x[0].unsqueeze(axis_or(a)?),
        samples: &[Sample::new(&[&[2, 3]], "axis=-1")],
        values: Values::Any,
    },
    OpEntry {
        schema: &EMBED,
        params: &["axis", "start", "len"],
        call: |x, a| {
            let axis = normalize_axis(&EMBED.name.into(), axis_or(a)?, x[0].rank())?;
            let (start, len) = (a.int("start", 0)?.max(0) as usize, a.int("len", 0)?.max(0) as usize);
            let have = x[0].shape()[axis];
            if start.checked_add(have).is_none_or(|end| end > len) {
                return Err(Error::invalid(EMBED.name, "len", len, format!("want at least start + {have}")));
            }
            let mut shape = Dims::from_slice(x[0].shape());
            shape[axis] = len;
            apply_one(Embed { change: Change::Narrow { axis, start, len: have, step: 1 }, shape }, &[&x[0]])
        },
        samples: &[Sample::new(&[&[2, 3]], "axis=1;start=1;len=6")],
        values: Values::Any,
    },
];
