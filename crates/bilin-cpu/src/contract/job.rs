//! One contraction as the drivers see it.

use bilin_core::shape::plan::{Loop, Plan, position};

use super::element::Acc;
use super::operand::{Sink, Source};
use crate::arch::Isa;
use crate::arch::tile::Micro;

/// A contraction over accumulators `A`.
#[derive(Clone, Copy)]
pub(crate) struct Job<'a, A: Acc> {
    /// The loops.
    pub plan: &'a Plan,
    /// Batch, m, n and k as numbers of steps.
    pub sizes: [usize; 4],
    /// Left operand.
    pub lhs: &'a dyn Source<A>,
    /// Right operand.
    pub rhs: &'a dyn Source<A>,
    /// The result.
    pub out: &'a dyn Sink<A>,
    /// Whether it is added to.
    pub adds: bool,
    /// Instruction set.
    pub isa: Isa,
}

/// The roles after the choice of which operand stands in the rows of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Oriented<'a, A: Acc> {
    /// Operand whose elements are spread over a vector, one a row: place in the plan and memory.
    pub a: (usize, &'a dyn Source<A>),
    /// Operand whose columns fill vectors.
    pub b: (usize, &'a dyn Source<A>),
    /// Loops over rows.
    pub rows: &'a [Loop<3>],
    /// Loops over columns.
    pub columns: &'a [Loop<3>],
    /// Numbers of rows and columns.
    pub sizes: [usize; 2],
    /// Micro-kernels.
    pub micro: &'static Micro<A::Part>,
}

impl<'a, A: Acc> Job<'a, A> {
    /// Roles: lhs in the rows, or swapped.
    pub(crate) fn oriented(&self, is_swapped: bool) -> Oriented<'a, A> {
        let [_, m, n, _] = self.sizes;
        let micro = A::micro(self.isa, is_swapped);
        if is_swapped {
            Oriented { a: (1, self.rhs), b: (0, self.lhs), rows: self.plan.n(), columns: self.plan.m(), sizes: [n, m], micro }
        } else {
            Oriented { a: (0, self.lhs), b: (1, self.rhs), rows: self.plan.m(), columns: self.plan.n(), sizes: [m, n], micro }
        }
    }

    /// First elements of the three operands at a step of the batch.
    pub(crate) fn bases(&self, batch: usize) -> [isize; 3] {
        let mut at = position(self.plan.batch(), batch);
        for (a, o) in at.iter_mut().zip(self.plan.offsets()) {
            *a += o as isize;
        }
        at
    }
}

/// The stride of the innermost loop for operand `which`; 1 where there is none.
pub(crate) fn inner_stride(loops: &[Loop<3>], which: usize) -> isize {
    loops.last().map_or(1, |l| l.strides[which])
}
