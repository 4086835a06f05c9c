//! What stands for sums in the order of a tile unit where the processor's family has no vectors for them that are known here.

use super::Lines;

/// Terms between two visits of a total.
pub(crate) const TERMS: usize = 32;
/// Most rows of a call.
pub(crate) const MOST_ROWS: usize = 8;
/// Columns that are summed at once.
pub(crate) const WIDTH: usize = 32;

/// Adds `Σ x[i, k]·b[k, j]` over up to 32 terms to totals.
#[expect(dead_code, reason = "kernels of other processors read it")]
pub(crate) struct Block<'a> {
    pub rows: usize,
    pub columns: usize,
    pub x: &'a [u32],
    pub b: Lines<'a, u16>,
    pub has_next: bool,
    pub totals: &'a mut [f32],
}

/// Never.
pub(crate) fn are_here() -> bool {
    false
}
/// Never called.
pub(crate) fn add(_r: &mut Block<'_>) {}
