//! The order of summation, which is part of the meaning of a product on CPUs.

use crate::shape::dtype::DType;

/// Terms in a block of a contraction's sum: inside a block one fused multiply-add after the other from +0, ascending in
/// k; block sums are added left to right. Exact dtypes have any order.
pub const fn contract_block_len(accumulator: DType) -> usize {
    match accumulator {
        DType::F32 => 512,
        DType::F64 | DType::C64 => 256,
        DType::C128 => 128,
        _ => 1024,
    }
}

/// Running sums of a reduction: term j goes to lane j mod 16.
pub const SUM_LANES: usize = 16;
/// Terms in a block of a reduction: lanes are folded 16 → 8 → 4 → 2 → 1 at its end and block sums added left to right.
pub const SUM_BLOCK: usize = 4096;
