//! From a spec and three layouts to loops with strides: what a backend runs.

use smallvec::{Array, SmallVec};

use super::error::{Error, OpName, Result};
use super::layout::Layout;
use super::spec::{Role, Spec};

/// One loop over `N` operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loop<const N: usize> {
    /// How many steps; never 1.
    pub len: usize,
    /// Elements that each operand moves by in a step.
    pub strides: [isize; N],
}

/// Nested loops, outermost first.
pub type Loops<const N: usize> = SmallVec<[Loop<N>; 2]>;

/// The one fusing rule: two neighbours become one loop only where, in every operand, outer stride = inner stride ×
/// inner length. Loops of length 1 are dropped first. The linear order of the steps never changes.
pub fn fuse<const N: usize, A: Array<Item = Loop<N>>>(loops: &mut SmallVec<A>) {
    if loops.iter().any(|l| l.len == 1) {
        loops.retain(|l| l.len != 1);
    }
    if loops.len() < 2 {
        return;
    }
    let mut done = 0;
    for next in 1..loops.len() {
        let inner = loops[next];
        match fused(&loops[done], &inner) {
            Some(one) => loops[done] = one,
            None => {
                done += 1;
                loops[done] = inner;
            }
        }
    }
    loops.truncate(done + 1);
}

/// Two neighbours as one loop, where they are one.
#[inline]
fn fused<const N: usize>(outer: &Loop<N>, inner: &Loop<N>) -> Option<Loop<N>> {
    let fits = (0..N).all(|i| inner.strides[i].checked_mul(inner.len as isize) == Some(outer.strides[i]));
    if fits { Some(Loop { len: outer.len.checked_mul(inner.len)?, strides: inner.strides }) } else { None }
}

/// Number of steps of nested loops.
pub fn steps<const N: usize>(loops: &[Loop<N>]) -> usize {
    loops.iter().map(|l| l.len).product()
}

/// Offsets of `N` operands at linear step `at` of nested loops.
pub fn position<const N: usize>(loops: &[Loop<N>], mut at: usize) -> [isize; N] {
    let mut out = [0; N];
    for l in loops.iter().rev() {
        let i = (at % l.len) as isize;
        at /= l.len;
        for (o, s) in out.iter_mut().zip(l.strides) {
            *o += i * s;
        }
    }
    out
}

#[cold]
fn uneven(op: &OpName, len: usize, other: usize) -> Error {
    Error::invalid(op.clone(), "layout", format!("length {len} on a loop of length {other}"), "lengths of one label must agree")
}

/// The loops of one contraction, by role; operands stand in the order lhs, rhs, out.
///
/// Fields are private so that a plan is always one that [`Plan::new`] has checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// In the order of roles, in one list: a plan is small to move.
    loops: SmallVec<[Loop<3>; 4]>,
    /// Where those of each role begin; the last end with the list.
    starts: [usize; 4],
    offsets: [usize; 3],
    /// Elements each buffer must hold at least.
    need: [usize; 3],
    /// Steps of batch, m, n and k.
    sizes: [usize; 4],
}

impl Plan {
    /// Loops from a spec and the three layouts. A batch loop in which one operand doesn't move is a loop of the other
    /// operand alone: it becomes m or n, so a broadcast operand is read once and never expanded.
    pub fn new(op: &OpName, spec: &Spec, lhs: &Layout, rhs: &Layout, out: &Layout) -> Result<Plan> {
        let layouts = [lhs, rhs, out];
        let (shapes, strides, offsets) = (layouts.map(Layout::shape), layouts.map(Layout::strides), layouts.map(Layout::offset));
        let mut plan = Plan { loops: SmallVec::new(), starts: [0; 4], offsets, need: [0; 3], sizes: [1; 4] };
        for (i, axes) in [spec.lhs(), spec.rhs(), spec.out()].into_iter().enumerate() {
            if axes.len() != shapes[i].len() {
                let want = format!("want {}, the rank of the layout", shapes[i].len());
                return Err(Error::invalid(op.clone(), "spec", format!("{} axes", axes.len()), want));
            }
            plan.need[i] = layouts[i].need(op)?;
        }
        if out.may_self_overlap() {
            return Err(Error::invalid(op.clone(), "out", "a view that overlaps itself", "write into a view whose elements are distinct"));
        }
        // Out's order for the free labels, lhs's order for the summed ones: the latter is part of the meaning.
        for places in spec.loops() {
            let mut one = Loop { len: usize::MAX, strides: [0; 3] };
            for i in 0..3 {
                // A spec has the layouts' ranks: what isn't there is a label that the operand lacks.
                let at = usize::from(places.at[i]);
                let Some(&len) = shapes[i].get(at) else { continue };
                if len != one.len {
                    if one.len != usize::MAX {
                        return Err(uneven(op, len, one.len));
                    }
                    one.len = len;
                }
                one.strides[i] = strides[i][at];
            }
            if one.len != 1 {
                plan.push(one, places.role);
            }
        }
        Ok(plan)
    }

    /// Takes the next loop of a role.
    #[inline]
    fn push(&mut self, one: Loop<3>, role: Role) {
        let role = match (role, one.strides) {
            (Role::Batch, [_, 0, _]) => Role::M,
            (Role::Batch, [0, _, _]) => Role::N,
            (role, _) => role,
        } as usize;
        self.sizes[role] *= one.len;
        let end = self.starts.get(role + 1).map_or(self.loops.len(), |end| *end);
        if end > self.starts[role]
            && let Some(both) = fused(&self.loops[end - 1], &one)
        {
            self.loops[end - 1] = both;
            return;
        }
        for start in &mut self.starts[role + 1..] {
            *start += 1;
        }
        if end == self.loops.len() { self.loops.push(one) } else { self.loops.insert(end, one) }
    }

    #[inline]
    fn role(&self, role: Role) -> &[Loop<3>] {
        let end = self.starts.get(role as usize + 1).map_or(self.loops.len(), |end| *end);
        self.loops.get(self.starts[role as usize]..end).unwrap_or_default()
    }

    /// Loops over the batch, outermost first.
    #[inline]
    pub fn batch(&self) -> &[Loop<3>] {
        self.role(Role::Batch)
    }
    /// Loops that move lhs and out.
    #[inline]
    pub fn m(&self) -> &[Loop<3>] {
        self.role(Role::M)
    }
    /// Loops that move rhs and out.
    #[inline]
    pub fn n(&self) -> &[Loop<3>] {
        self.role(Role::N)
    }
    /// Summed loops, in the order of summation.
    #[inline]
    pub fn k(&self) -> &[Loop<3>] {
        self.role(Role::K)
    }
    /// First elements of lhs, rhs and out.
    #[inline]
    pub fn offsets(&self) -> [usize; 3] {
        self.offsets
    }
    /// Batch, m, n and k as numbers of steps.
    #[inline]
    pub fn sizes(&self) -> [usize; 4] {
        self.sizes
    }
    /// Elements that the buffers of lhs, rhs and out must hold at least.
    #[inline]
    pub fn need(&self) -> [usize; 3] {
        self.need
    }
}
