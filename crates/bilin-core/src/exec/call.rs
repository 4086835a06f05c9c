//! What a backend is asked to do. Every call is checked here, once; a backend may rely on it.

use super::buffer::Buffer;
use super::map_expr::MapExpr;
use crate::shape::dtype::DType;
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::Layout;
use crate::shape::plan::{Loop, Loops, Plan, fuse};

/// Whether an operand is conjugated while it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Conj {
    /// As it stands.
    #[default]
    No,
    /// Conjugated; the same for real dtypes.
    Yes,
}

impl Conj {
    /// Conjugated once more.
    pub fn flipped(self) -> Conj {
        match self {
            Conj::No => Conj::Yes,
            Conj::Yes => Conj::No,
        }
    }
}

/// The least precision that a product may use: a backend may always do better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// IEEE arithmetic of the accumulator's dtype.
    #[default]
    Ieee,
    /// Operands of f32 products may be rounded to 10 bits of fraction.
    Tf32,
    /// f32 products from three bf16 products.
    Bf16x3,
}

/// An operand: a buffer and what its elements are.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The memory.
    pub buffer: &'a dyn Buffer,
    /// Type of its elements.
    pub dtype: DType,
}

/// Where a result goes. Its old contents are never read unless the call says so.
#[derive(Debug)]
pub struct Target<'a> {
    /// The memory; no input of the call stands in it.
    pub buffer: &'a mut (dyn Buffer + 'static),
    /// Type of its elements.
    pub dtype: DType,
}

/// Whether a buffer holds `need` elements.
#[inline]
fn check(op: &OpName, what: &'static str, need: usize, buffer: &dyn Buffer, dtype: DType) -> Result<()> {
    let bytes = buffer.byte_len();
    if need.saturating_mul(dtype.size_bytes()) <= bytes { Ok(()) } else { Err(too_small(op, what, need, bytes / dtype.size_bytes())) }
}

#[cold]
fn too_small(op: &OpName, what: &'static str, need: usize, have: usize) -> Error {
    Error::invalid(op.clone(), what, format!("a buffer of {have} elements"), format!("the layout needs {need}"))
}

/// What becomes of the result's old contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Accum {
    /// They are never read.
    #[default]
    Replace,
    /// The product is added to them, with the bits of a product by itself and an addition after it: old + total, where the total
    /// is the whole sum over k. After an error some elements may have been added and others not.
    Add,
}

/// One contraction: out = Σ lhs·rhs over the plan's loops.
#[derive(Debug)]
#[non_exhaustive]
pub struct ContractCall<'a> {
    /// The user's op, for errors and profiles.
    pub op: &'a OpName,
    /// The loops.
    pub plan: &'a Plan,
    /// Left operand; its dtype may be narrower than the accumulator.
    pub lhs: Source<'a>,
    /// Right operand.
    pub rhs: Source<'a>,
    /// The result.
    pub out: Target<'a>,
    /// Conjugation of lhs and rhs.
    pub conj: [Conj; 2],
    /// Dtype in which the sums are kept.
    pub accumulator: DType,
    /// The least precision.
    pub precision: Precision,
    /// Whether the result is replaced or added to.
    pub accum: Accum,
}

impl<'a> ContractCall<'a> {
    /// A call whose buffers have been checked against the plan.
    #[expect(clippy::too_many_arguments, reason = "the one constructor of the struct, which callers read by field")]
    pub fn new(
        op: &'a OpName,
        plan: &'a Plan,
        lhs: Source<'a>,
        rhs: Source<'a>,
        out: Target<'a>,
        conj: [Conj; 2],
        accumulator: DType,
        precision: Precision,
    ) -> Result<Self> {
        let need = plan.need();
        check(op, "lhs", need[0], lhs.buffer, lhs.dtype)?;
        check(op, "rhs", need[1], rhs.buffer, rhs.dtype)?;
        check(op, "out", need[2], out.buffer, out.dtype)?;
        Ok(ContractCall { op, plan, lhs, rhs, out, conj, accumulator, precision, accum: Accum::Replace })
    }

    /// The same call, which adds to the result: one that holds unrounded sums, of a floating or complex accumulator's dtype.
    pub fn adding(mut self) -> Result<Self> {
        if self.out.dtype != self.accumulator || !self.accumulator.is_differentiable() {
            let dtypes = vec![self.accumulator, self.out.dtype];
            let remedy = "sums are added to in a floating or complex accumulator's dtype; add the product by itself";
            return Err(Error::DtypeMismatch { op: self.op.clone(), dtypes, remedy });
        }
        self.accum = Accum::Add;
        Ok(self)
    }
}

/// Most inputs of a map.
pub const MAP_INPUTS: usize = 4;

/// Loops of an elementwise call; operand 0 is the result, the inputs follow.
#[derive(Debug, Clone)]
pub struct MapPlan {
    /// Loops over the result's elements, outermost first.
    loops: Loops<5>,
    /// First elements.
    offsets: [usize; 5],
    /// Elements each buffer must hold at least.
    need: [usize; 5],
    inputs: usize,
    is_dense: bool,
}

impl MapPlan {
    /// Loops from the result's layout and the inputs', which broadcast to its shape; a length-1 axis is a loop that doesn't move.
    pub fn new(op: &OpName, out: &Layout, inputs: &[&Layout]) -> Result<MapPlan> {
        let is_contiguous = out.is_contiguous();
        if !is_contiguous && out.may_self_overlap() {
            return Err(Error::invalid(op.clone(), "out", "a view that overlaps itself", "write into a view whose elements are distinct"));
        }
        if inputs.len() > MAP_INPUTS {
            return Err(Error::invalid(op.clone(), "inputs", format!("{} layouts", inputs.len()), "want at most 4"));
        }
        let (numel, rank) = (out.numel(), out.rank());
        let is_dense = is_contiguous && out.offset() == 0;
        let mut plan = MapPlan { loops: Loops::new(), offsets: [0; 5], need: [0; 5], inputs: inputs.len(), is_dense };
        plan.offsets[0] = out.offset();
        plan.need[0] = out.need(op)?;
        let mut whole = Loop { len: numel, strides: [1, 0, 0, 0, 0] };
        let mut is_whole = is_contiguous;
        for (i, l) in inputs.iter().enumerate() {
            plan.offsets[i + 1] = l.offset();
            // A result without elements reads nothing.
            plan.need[i + 1] = if numel == 0 { 0 } else { l.need(op)? };
            whole.strides[i + 1] = 1;
            if l.shape() != out.shape() {
                is_whole = false;
                let fits =
                    l.rank() <= rank && l.shape().iter().zip(&out.shape()[rank - l.rank()..]).all(|(own, len)| own == len || *own == 1);
                if !fits {
                    let want = format!("want a shape that broadcasts to {:?}", out.shape());
                    return Err(Error::invalid(op.clone(), "input", format!("{:?}", l.shape()), want));
                }
            } else {
                is_whole &= l.is_contiguous();
            }
        }
        if is_whole {
            // What fusing comes to where everything is row-major.
            if numel != 1 {
                plan.loops.push(whole);
            }
            return Ok(plan);
        }
        for (axis, &len) in out.shape().iter().enumerate() {
            let mut one = Loop { len, strides: [0; 5] };
            one.strides[0] = out.strides()[axis];
            for (stride, l) in one.strides[1..].iter_mut().zip(inputs) {
                if let Some(own) = (axis + l.rank()).checked_sub(rank)
                    && l.shape()[own] == len
                {
                    *stride = l.strides()[own];
                }
            }
            plan.loops.push(one);
        }
        fuse(&mut plan.loops);
        Ok(plan)
    }

    /// The loops, outermost first.
    pub fn loops(&self) -> &[Loop<5>] {
        &self.loops
    }
    /// First elements of the result and the inputs.
    pub fn offsets(&self) -> [usize; 5] {
        self.offsets
    }
}

/// One elementwise call.
#[derive(Debug)]
#[non_exhaustive]
pub struct MapCall<'a> {
    /// The user's op.
    pub op: &'a OpName,
    /// The loops.
    pub plan: &'a MapPlan,
    /// What to compute.
    pub expr: &'a MapExpr,
    /// The inputs.
    pub inputs: &'a [Source<'a>],
    /// The result.
    pub out: Target<'a>,
    /// Whether the result is row-major from offset 0, so that chunks of it are chunks of the linear order.
    pub is_dense: bool,
}

impl<'a> MapCall<'a> {
    /// A call whose buffers have been checked against the plan.
    pub fn new(op: &'a OpName, plan: &'a MapPlan, expr: &'a MapExpr, inputs: &'a [Source<'a>], out: Target<'a>) -> Result<Self> {
        check(op, "out", plan.need[0], out.buffer, out.dtype)?;
        for (need, source) in plan.need[1..].iter().zip(inputs) {
            check(op, "input", *need, source.buffer, source.dtype)?;
        }
        if plan.inputs != inputs.len() || expr.inputs() > inputs.len() {
            return Err(Error::invalid(
                op.clone(),
                "inputs",
                format!("{} inputs", inputs.len()),
                format!("the expression reads {}", expr.inputs()),
            ));
        }
        Ok(MapCall { op, plan, expr, inputs, out, is_dense: plan.is_dense })
    }
}

/// What a reduction does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Sum in the accumulator's dtype.
    Sum,
    /// Greatest; NaN wins.
    Max,
    /// Least; NaN wins.
    Min,
    /// Index of the first greatest (the first NaN, where there is one), in the linear order of the reduced axes.
    Argmax,
    /// Index of the first least, likewise.
    Argmin,
}

/// One reduction. The result is row-major from offset 0.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReduceCall<'a> {
    /// The user's op.
    pub op: &'a OpName,
    /// What to do.
    pub reduction: Reduction,
    /// The operand.
    pub input: Source<'a>,
    /// First element of the operand.
    pub offset: usize,
    /// Loops over the result's elements, outermost first.
    pub kept: Loops<1>,
    /// Loops over what is reduced, in the order of reduction.
    pub reduced: Loops<1>,
    /// Dtype in which sums are kept.
    pub accumulator: DType,
    /// The result.
    pub out: Target<'a>,
}

impl<'a> ReduceCall<'a> {
    /// A call from the operand's layout and the axes to reduce, ascending; buffers are checked.
    pub fn new(
        op: &'a OpName,
        reduction: Reduction,
        input: Source<'a>,
        layout: &Layout,
        axes: &[usize],
        accumulator: DType,
        out: Target<'a>,
    ) -> Result<Self> {
        check(op, "input", layout.need(op)?, input.buffer, input.dtype)?;
        let pick = |is_reduced: bool| -> Loops<1> {
            let mut loops: Loops<1> = (0..layout.rank())
                .filter(|a| axes.contains(a) == is_reduced)
                .map(|a| Loop { len: layout.shape()[a], strides: [layout.strides()[a]] })
                .collect();
            fuse(&mut loops);
            loops
        };
        let (kept, reduced) = (pick(false), pick(true));
        check(op, "out", kept.iter().map(|l| l.len).product(), out.buffer, out.dtype)?;
        Ok(ReduceCall { op, reduction, input, offset: layout.offset(), kept, reduced, accumulator, out })
    }
}

/// `out[.., i, ..] = src[.., index[.., i, ..], ..]` along one axis. The result is row-major from offset 0.
#[derive(Debug)]
#[non_exhaustive]
pub struct GatherCall<'a> {
    /// The user's op.
    pub op: &'a OpName,
    /// Operand, its layout.
    pub src: (Source<'a>, &'a Layout),
    /// Positions (i64) along the axis and their layout, which has the result's shape.
    pub index: (Source<'a>, &'a Layout),
    /// The axis.
    pub axis: usize,
    /// The result.
    pub out: Target<'a>,
}

/// `out[.., index[.., i, ..], ..] += src[.., i, ..]` along one axis, in the linear order of `src`, so equal positions
/// add in a fixed order. The result holds the values to add to.
#[derive(Debug)]
#[non_exhaustive]
pub struct ScatterCall<'a> {
    /// The user's op.
    pub op: &'a OpName,
    /// What to add and its layout.
    pub src: (Source<'a>, &'a Layout),
    /// Positions (i64) along the axis and their layout, which has the shape of `src`.
    pub index: (Source<'a>, &'a Layout),
    /// The axis.
    pub axis: usize,
    /// The result and its row-major layout.
    pub out: (Target<'a>, &'a Layout),
}

fn check_index(op: &OpName, src: &Layout, index: &Layout, axis: usize) -> Result<()> {
    let fits = src.rank() == index.rank() && axis < src.rank() && (0..src.rank()).all(|a| a == axis || src.shape()[a] == index.shape()[a]);
    if fits {
        return Ok(());
    }
    Err(Error::ShapeMismatch {
        op: op.clone(),
        shapes: vec![src.shape().to_vec(), index.shape().to_vec()],
        fault: crate::shape::error::ShapeFault::Count {
            want: format!("an index of equal rank whose lengths agree outside axis {axis}"),
            remedy: "broadcast_to the index, or reshape it",
        },
    })
}

fn check_layout(op: &OpName, what: &'static str, source: &Source<'_>, layout: &Layout) -> Result<()> {
    check(op, what, layout.need(op)?, source.buffer, source.dtype)
}

impl<'a> GatherCall<'a> {
    /// A call whose shapes and buffers are checked. Positions are checked by the backend, before it writes.
    pub fn new(
        op: &'a OpName,
        src: (Source<'a>, &'a Layout),
        index: (Source<'a>, &'a Layout),
        axis: usize,
        out: Target<'a>,
    ) -> Result<Self> {
        check_index(op, src.1, index.1, axis)?;
        check_layout(op, "src", &src.0, src.1)?;
        check_layout(op, "index", &index.0, index.1)?;
        check(op, "out", index.1.numel(), out.buffer, out.dtype)?;
        Ok(GatherCall { op, src, index, axis, out })
    }
}

impl<'a> ScatterCall<'a> {
    /// A call whose shapes and buffers are checked. Positions are checked by the backend, before it writes.
    pub fn new(
        op: &'a OpName,
        src: (Source<'a>, &'a Layout),
        index: (Source<'a>, &'a Layout),
        axis: usize,
        out: (Target<'a>, &'a Layout),
    ) -> Result<Self> {
        check_index(op, out.1, index.1, axis)?;
        check_layout(op, "src", &src.0, src.1)?;
        check_layout(op, "index", &index.0, index.1)?;
        check(op, "out", out.1.numel(), out.0.buffer, out.0.dtype)?;
        if src.1.shape() != index.1.shape() {
            check_index(op, src.1, index.1, axis)?;
            return Err(Error::invalid(
                op.clone(),
                "index",
                format!("{:?}", index.1.shape()),
                format!("want the shape of what is added, {:?}", src.1.shape()),
            ));
        }
        Ok(ScatterCall { op, src, index, axis, out })
    }
}
