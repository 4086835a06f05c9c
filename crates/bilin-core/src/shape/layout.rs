//! Shapes, strides and the views that only change them.

use smallvec::SmallVec;

use super::dtype::DType;
use super::error::{Error, OpName, Result, ShapeFault};
use super::list::List;

/// Lengths of a tensor's axes.
pub type Dims = List<usize, 5>;
/// Strides in elements; zero and negative ones are allowed.
pub type Strides = List<isize, 5>;

/// Where the elements of a view stand in its buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    shape: Dims,
    strides: Strides,
    offset: usize,
    /// Found once, since every call asks.
    numel: usize,
    is_contiguous: bool,
}

/// Number of elements, or [`Error::TooLarge`] where their bytes pass `isize::MAX`.
#[inline]
pub fn checked_numel(op: &OpName, shape: &[usize], dtype: DType) -> Result<usize> {
    // Zero-length axes don't hide an overflow of the others: strides are computed from them too.
    let (mut padded, mut numel) = (1usize, 1usize);
    for &len in shape {
        padded = padded.saturating_mul(len.max(1));
        numel = numel.wrapping_mul(len);
    }
    if padded.saturating_mul(dtype.size_bytes()) <= isize::MAX as usize { Ok(numel) } else { Err(too_large(op, shape, dtype)) }
}

#[cold]
fn too_large(op: &OpName, shape: &[usize], dtype: DType) -> Error {
    Error::TooLarge { op: op.clone(), shape: shape.to_vec(), dtype }
}

/// An axis counted from the end where negative; out of range is [`Error::InvalidArgument`].
pub fn normalize_axis(op: &OpName, axis: isize, rank: usize) -> Result<usize> {
    let at = if axis < 0 { axis + rank as isize } else { axis };
    if at < 0 || at >= rank as isize {
        let want = format!("want an axis from {} to {} for rank {rank}", -(rank as isize), rank as isize - 1);
        return Err(Error::invalid(op.clone(), "axis", axis, want));
    }
    Ok(at as usize)
}

/// Several axes, normalised; a duplicate is [`Error::InvalidArgument`].
pub fn normalize_axes(op: &OpName, axes: &[isize], rank: usize) -> Result<SmallVec<[usize; 6]>> {
    let mut out = SmallVec::new();
    for &axis in axes {
        let at = normalize_axis(op, axis, rank)?;
        if out.contains(&at) {
            return Err(Error::invalid(
                op.clone(),
                "axes",
                format!("{axes:?}"),
                format!("axis {axis} is a duplicate; name each axis once"),
            ));
        }
        out.push(at);
    }
    Ok(out)
}

/// The shape that all of `shapes` broadcast to, aligned at the last axis.
pub fn broadcast_shapes(op: &OpName, shapes: &[&[usize]]) -> Result<Dims> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let mut out: Dims = Dims::from_elem(1, rank);
    for (operand, shape) in shapes.iter().enumerate() {
        for (i, &len) in shape.iter().enumerate() {
            let at = rank - shape.len() + i;
            if out[at] == 1 {
                out[at] = len;
            } else if len != 1 && len != out[at] {
                // The first operand that has this length names the other side of the fault.
                let from_end = shape.len() - i;
                let first =
                    (0..operand).find(|&o| shapes[o].len() >= from_end && shapes[o][shapes[o].len() - from_end] == out[at]).unwrap_or(0);
                let lhs_axis = shapes[first].len().saturating_sub(from_end);
                let (lhs_len, remedy) = (out[at], "lengths that broadcast are equal, or 1");
                let fault = if (first, operand) == (0, 1) {
                    ShapeFault::Lengths { lhs_axis, lhs_len, rhs_axis: i, rhs_len: len, remedy }
                } else {
                    let want = format!(
                        "axis {i} of operand {operand}, of length {len}, to fit axis {lhs_axis} of operand {first}, of length {lhs_len}"
                    );
                    ShapeFault::Count { want, remedy }
                };
                return Err(Error::ShapeMismatch { op: op.clone(), shapes: shapes.iter().map(|s| s.to_vec()).collect(), fault });
            }
        }
    }
    Ok(out)
}

#[cold]
fn outside(op: &OpName) -> Error {
    Error::invalid(op.clone(), "layout", "a view outside its buffer", "use a view of the tensor")
}

impl Layout {
    /// Row-major from offset 0. The caller has checked the size.
    #[inline]
    pub fn contiguous(shape: &[usize]) -> Layout {
        let mut strides: Strides = Strides::from_elem(0, shape.len());
        let to = &mut strides[..shape.len()];
        let (mut step, mut numel) = (1isize, 1);
        for axis in (0..shape.len()).rev() {
            to[axis] = step;
            step = step.saturating_mul(shape[axis].max(1) as isize);
            numel *= shape[axis];
        }
        Layout { shape: Dims::from_slice(shape), strides, offset: 0, numel, is_contiguous: true }
    }

    /// From lists of one length.
    fn new(shape: Dims, strides: Strides, offset: usize) -> Layout {
        let (mut step, mut is_contiguous) = (1isize, true);
        for (&len, &stride) in shape.iter().zip(&strides).rev() {
            is_contiguous &= len == 1 || stride == step;
            step = step.saturating_mul(len as isize);
        }
        let numel = shape.iter().fold(1, |n: usize, &len| n.saturating_mul(len));
        Layout { shape, strides, offset, numel, is_contiguous: is_contiguous || numel == 0 }
    }

    /// From its parts; the lists must be of one length.
    pub fn from_parts(op: &OpName, shape: Dims, strides: Strides, offset: usize) -> Result<Layout> {
        if shape.len() != strides.len() {
            return Err(Error::invalid(
                op.clone(),
                "strides",
                format!("{} strides", strides.len()),
                format!("want {}, one an axis", shape.len()),
            ));
        }
        Ok(Layout::new(shape, strides, offset))
    }

    /// Lengths of the axes.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The same as the list that it is.
    #[inline]
    pub(crate) fn dims(&self) -> &Dims {
        &self.shape
    }

    /// Strides in elements.
    #[inline]
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// Position of the first element, in elements.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    #[inline]
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// Whether the elements stand in row-major order without gaps. Strides of length-1 axes carry no meaning.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.is_contiguous
    }

    /// Lowest and highest element position that the view touches; `None` for an empty view or where a position is
    /// negative or overflows.
    #[inline]
    pub fn span(&self) -> Option<(usize, usize)> {
        if self.numel == 0 {
            return None;
        }
        if self.is_contiguous { Some((self.offset, self.offset.checked_add(self.numel - 1)?)) } else { self.strided_span() }
    }

    fn strided_span(&self) -> Option<(usize, usize)> {
        let mut low = isize::try_from(self.offset).ok()?;
        let mut high = low;
        for (&len, &stride) in self.shape.iter().zip(&self.strides) {
            let reach = stride.checked_mul(len as isize - 1)?;
            if reach < 0 {
                low = low.checked_add(reach)?;
            } else {
                high = high.checked_add(reach)?;
            }
        }
        Some((usize::try_from(low).ok()?, usize::try_from(high).ok()?))
    }

    /// Elements that a buffer must hold for this view; [`Error::InvalidArgument`] where a position is negative or overflows.
    #[inline]
    pub fn need(&self, op: &OpName) -> Result<usize> {
        match self.span() {
            Some((_, high)) => Ok(high + 1),
            None if self.numel == 0 => Ok(0),
            None => Err(outside(op)),
        }
    }

    /// Whether every element of the view stands inside a buffer of `len` elements.
    pub fn fits(&self, len: usize) -> bool {
        self.numel == 0 || self.span().is_some_and(|(_, high)| high < len)
    }

    /// Whether two indices may reach one element: the sorted-stride test, which never misses an overlap.
    #[inline]
    pub fn may_self_overlap(&self) -> bool {
        !self.is_contiguous && self.has_overlapping_strides()
    }

    fn has_overlapping_strides(&self) -> bool {
        let mut axes: SmallVec<[(usize, usize); 6]> =
            self.shape.iter().zip(&self.strides).filter(|(len, _)| **len > 1).map(|(&len, &s)| (s.unsigned_abs(), len)).collect();
        axes.sort_unstable();
        let mut reach = 0usize;
        for (stride, len) in axes {
            if stride <= reach {
                return true;
            }
            reach = reach.saturating_add(stride.saturating_mul(len - 1));
        }
        false
    }

    /// Axes in another order; `axes` is a permutation.
    pub fn permute(&self, axes: &[usize]) -> Layout {
        let (shape, strides) = (axes.iter().map(|&a| self.shape[a]).collect(), axes.iter().map(|&a| self.strides[a]).collect());
        Layout::new(shape, strides, self.offset)
    }

    /// `len` positions of `axis` from `start`, `step` apart (negative walks down). The caller has checked the range.
    pub fn narrow(&self, axis: usize, start: usize, len: usize, step: isize) -> Layout {
        let (mut shape, mut strides, mut offset) = (self.shape.clone(), self.strides.clone(), self.offset);
        if len > 0 {
            offset = (self.offset as isize + start as isize * self.strides[axis]) as usize;
        }
        shape[axis] = len;
        strides[axis] = self.strides[axis].saturating_mul(step);
        Layout::new(shape, strides, offset)
    }

    /// Stride 0 on new and length-1 axes; `None` where a length doesn't fit.
    pub fn broadcast_to(&self, shape: &[usize]) -> Option<Layout> {
        let lead = shape.len().checked_sub(self.rank())?;
        let mut strides: Strides = Strides::from_elem(0, shape.len());
        for axis in 0..self.rank() {
            let (from, to) = (self.shape[axis], shape[lead + axis]);
            if from == to {
                strides[lead + axis] = self.strides[axis];
            } else if from != 1 {
                return None;
            }
        }
        Some(Layout::new(Dims::from_slice(shape), strides, self.offset))
    }

    /// The diagonal of two axes as a new last axis. The caller has checked that the axes differ.
    pub fn diagonal(&self, axis1: usize, axis2: usize) -> Layout {
        let len = self.shape[axis1].min(self.shape[axis2]);
        let stride = self.strides[axis1].saturating_add(self.strides[axis2]);
        let keep = |i: &usize| *i != axis1 && *i != axis2;
        let mut shape: Dims = (0..self.rank()).filter(keep).map(|i| self.shape[i]).collect();
        let mut strides: Strides = (0..self.rank()).filter(keep).map(|i| self.strides[i]).collect();
        shape.push(len);
        strides.push(stride);
        Layout::new(shape, strides, self.offset)
    }

    /// Without the axes in `axes`, which have length 1.
    pub fn squeeze(&self, axes: &[usize]) -> Layout {
        let keep = |i: &usize| !axes.contains(i);
        let shape = (0..self.rank()).filter(keep).map(|i| self.shape[i]).collect();
        let strides = (0..self.rank()).filter(keep).map(|i| self.strides[i]).collect();
        Layout::new(shape, strides, self.offset)
    }

    /// With a new axis of length 1 at `axis`.
    pub fn unsqueeze(&self, axis: usize) -> Layout {
        let (mut shape, mut strides) = (self.shape.clone(), self.strides.clone());
        shape.insert(axis, 1);
        strides.insert(axis, 0);
        Layout::new(shape, strides, self.offset)
    }

    /// The same elements under another shape of equal count, where strides can say it.
    pub fn reshape(&self, shape: &[usize]) -> Option<Layout> {
        if self.numel() != shape.iter().product() {
            return None;
        }
        if self.numel() == 0 || self.is_contiguous() {
            let mut out = Layout::contiguous(shape);
            out.offset = self.offset;
            return Some(out);
        }
        let old: SmallVec<[(usize, isize); 6]> =
            self.shape.iter().zip(&self.strides).filter(|(len, _)| **len > 1).map(|(&l, &s)| (l, s)).collect();
        let mut strides: Strides = Strides::from_elem(0, shape.len());
        let (mut i, mut j) = (0, 0);
        while i < old.len() && j < shape.len() {
            // Grow both groups until they hold equally many elements.
            let (i0, j0) = (i, j);
            let (mut have, mut want) = (old[i].0, shape[j]);
            while have != want {
                if have < want {
                    i += 1;
                    have *= old[i].0;
                } else {
                    j += 1;
                    want *= shape[j];
                }
            }
            for at in i0..i {
                if old[at].1 != old[at + 1].1 * old[at + 1].0 as isize {
                    return None;
                }
            }
            let mut step = old[i].1;
            for at in (j0..=j).rev() {
                strides[at] = step;
                step *= shape[at] as isize;
            }
            i += 1;
            j += 1;
        }
        Some(Layout::new(Dims::from_slice(shape), strides, self.offset))
    }
}
