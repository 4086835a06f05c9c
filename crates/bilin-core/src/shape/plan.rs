//! From a spec and three layouts to loops with strides: what a backend runs.

use smallvec::{Array, SmallVec};

use super::error::{Error, OpName, Result};
use super::layout::Layout;
use super::spec::{Axis, Spec};

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
/// Loops of one role of a product: few, so that a plan is small to move.
type RoleLoops = SmallVec<[Loop<3>; 2]>;

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
        let (outer, inner) = (loops[done], loops[next]);
        let fits = (0..N).all(|i| inner.strides[i].checked_mul(inner.len as isize) == Some(outer.strides[i]));
        match outer.len.checked_mul(inner.len) {
            Some(len) if fits => loops[done] = Loop { len, strides: inner.strides },
            _ => {
                done += 1;
                loops[done] = inner;
            }
        }
    }
    loops.truncate(done + 1);
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

/// The loops of one contraction, by role; operands stand in the order lhs, rhs, out.
///
/// Fields are private so that a plan is always one that [`Plan::new`] has checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    batch: RoleLoops,
    m: RoleLoops,
    n: RoleLoops,
    k: RoleLoops,
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
        let operands = [(spec.lhs(), lhs), (spec.rhs(), rhs), (spec.out(), out)];
        let mut plan = Plan {
            batch: RoleLoops::new(),
            m: RoleLoops::new(),
            n: RoleLoops::new(),
            k: RoleLoops::new(),
            offsets: [lhs.offset(), rhs.offset(), out.offset()],
            need: [0; 3],
            sizes: [1; 4],
        };
        for (need, (axes, layout)) in plan.need.iter_mut().zip(operands) {
            if axes.len() != layout.rank() {
                let want = format!("want {}, the rank of the layout", layout.rank());
                return Err(Error::invalid(op.clone(), "spec", format!("{} axes", axes.len()), want));
            }
            *need = layout.need(op)?;
        }
        if out.may_self_overlap() {
            return Err(Error::invalid(op.clone(), "out", "a view that overlaps itself", "write into a view whose elements are distinct"));
        }
        // Out's order for the free labels, lhs's order for the summed ones: the latter is part of the meaning.
        for &axis in spec.out() {
            plan.push(op, axis, &operands)?;
        }
        for &axis in spec.lhs() {
            if !spec.out().contains(&axis) {
                plan.push(op, axis, &operands)?;
            }
        }
        for (size, list) in plan.sizes.iter_mut().zip([&mut plan.batch, &mut plan.m, &mut plan.n, &mut plan.k]) {
            if !list.is_empty() {
                fuse(list);
                *size = steps(list);
            }
        }
        Ok(plan)
    }

    /// The loop of one label, by its role.
    #[inline]
    fn push(&mut self, op: &OpName, axis: Axis, operands: &[(&[Axis], &Layout); 3]) -> Result<()> {
        if axis == Axis::Unit {
            return Ok(());
        }
        let mut one = Loop { len: usize::MAX, strides: [0; 3] };
        let mut stands = [false; 3];
        for (i, (axes, layout)) in operands.iter().enumerate() {
            let Some(at) = axes.iter().position(|a| *a == axis) else { continue };
            let len = layout.shape()[at];
            if one.len != usize::MAX && one.len != len {
                let got = format!("length {len} on a loop of length {}", one.len);
                return Err(Error::invalid(op.clone(), "layout", got, "lengths of one label must agree"));
            }
            one.len = len;
            one.strides[i] = layout.strides()[at];
            stands[i] = true;
        }
        if one.len != 1 {
            match (stands, one.strides) {
                ([true, true, false], _) => self.k.push(one),
                ([_, false, _], _) | ([true, true, true], [_, 0, _]) => self.m.push(one),
                ([false, _, _], _) | ([true, true, true], [0, _, _]) => self.n.push(one),
                _ => self.batch.push(one),
            }
        }
        Ok(())
    }

    /// Loops over the batch, outermost first.
    pub fn batch(&self) -> &[Loop<3>] {
        &self.batch
    }
    /// Loops that move lhs and out.
    pub fn m(&self) -> &[Loop<3>] {
        &self.m
    }
    /// Loops that move rhs and out.
    pub fn n(&self) -> &[Loop<3>] {
        &self.n
    }
    /// Summed loops, in the order of summation.
    pub fn k(&self) -> &[Loop<3>] {
        &self.k
    }
    /// First elements of lhs, rhs and out.
    pub fn offsets(&self) -> [usize; 3] {
        self.offsets
    }
    /// Batch, m, n and k as numbers of steps.
    pub fn sizes(&self) -> [usize; 4] {
        self.sizes
    }
    /// Elements that the buffers of lhs, rhs and out must hold at least.
    pub fn need(&self) -> [usize; 3] {
        self.need
    }
}
