//! The order of summation, which is part of the meaning of a product on CPUs.

use crate::shape::dtype::DType;

/// Terms in a block of a contraction's sum: inside a block one fused multiply-add after the other, ascending in k; block
/// sums are added left to right. A block begins at −0, to which adding changes nothing: the sum of one term is its product
/// with the product's sign, and zeros add up to −0 only where all of them are −0. A sum of no terms is +0. Exact dtypes
/// have any order.
pub const fn contract_block_len(accumulator: DType) -> usize {
    match accumulator {
        DType::F32 => 512,
        DType::F64 | DType::C64 => 256,
        DType::C128 => 128,
        _ => 1024,
    }
}

/// Terms from which a product of two bf16 operands may have the order of a tile unit (AMX) where the processor has one;
/// shorter sums have the order above on every processor. Terms are taken 32 at a time: from +0, one chain of fused
/// multiply-adds over the 16 even ones and one over the odd ones, the sum of the two added to the total so far, in f32,
/// subnormal operands and results counting as zeros of their sign.
pub const PAIRED_FROM: usize = 32;

/// Running sums of a reduction, from −0 as well: term j goes to lane j mod 16.
pub const SUM_LANES: usize = 16;
/// Terms in a block of a reduction: lanes are folded 16 → 8 → 4 → 2 → 1 at its end and block sums added left to right.
pub const SUM_BLOCK: usize = 4096;
