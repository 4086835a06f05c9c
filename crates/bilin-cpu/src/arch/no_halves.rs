//! What stands for kernels of halves where the processor's family has none that are known here.

use super::Lines;
use crate::contract::disjoint::Shared;

/// Columns that are summed at once.
pub(crate) const WIDTH: usize = 32;

/// How two terms are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// bf16 by an instruction for pairs.
    Pairs,
    /// bf16, widened.
    Bf16,
    /// f16, widened.
    F16,
}

impl Kind {
    /// Never.
    pub(crate) fn is_here(self) -> bool {
        false
    }
}

/// `c[j] = Σ x[k]·b[k, j]`.
#[expect(dead_code, reason = "kernels of other processors read it")]
pub(crate) struct Row<'a> {
    pub terms: usize,
    pub columns: usize,
    pub block: usize,
    pub x: &'a [[u32; 2]],
    pub b: Lines<'a, u16>,
    pub c: &'a mut [f32],
}

/// Never called.
pub(crate) fn across(_kind: Kind, _r: &mut Row<'_>) {}
/// Never called.
pub(crate) fn along(_kind: Kind, _r: &mut Row<'_>) {}
/// Never called.
pub(crate) fn interleave(_data: &[u16], _firsts: [isize; 2], _step: isize, _sizes: [usize; 2], _dst: &mut [u32]) {}
/// Not here.
pub(crate) fn round_rows(_src: &[f32], _height: usize, _out: &Shared<'_, u16>, _base: isize, _rows: &[isize], _count: usize) -> bool {
    false
}
