//! Elements that stand several to a word, and words of them.

#![allow(clippy::needless_range_loop, reason = "plain loops over arrays become vectors")]

use bytemuck::Pod;
use half::bf16;

use crate::arch;
use crate::arch::vector::MOST_LANES;

/// An element that is a piece of a word.
pub(super) trait Piece<const N: usize>: Pod + Default {
    /// A word of pieces, the first the earliest.
    fn word(pieces: [Self; N]) -> u32;
    /// Lines of words of neighbours, two runs of halves to a line of words; whether there is a kernel for it.
    fn interleave(_data: &[Self], _at: [isize; 2], _step: isize, _sizes: [usize; 2], _dst: &mut [u32]) -> bool {
        false
    }
    /// Words of neighbours, from lines of their pieces.
    #[inline(always)]
    fn across(lines: &[[Self; MOST_LANES]; N], words: &mut [u32; MOST_LANES]) {
        for j in 0..MOST_LANES {
            let mut pieces = [Self::default(); N];
            for q in 0..N {
                pieces[q] = lines[q][j];
            }
            words[j] = Self::word(pieces);
        }
    }
    /// Words of a run of whole words.
    fn words(run: &[Self], dst: &mut [u32]) {
        for (word, pieces) in dst.iter_mut().zip(run.as_chunks::<N>().0) {
            *word = Self::word(*pieces);
        }
    }
}
impl Piece<2> for bf16 {
    #[inline(always)]
    fn word([a, b]: [bf16; 2]) -> u32 {
        u32::from(a.to_bits()) << 16 | u32::from(b.to_bits())
    }
    fn interleave(data: &[bf16], [earlier, later]: [isize; 2], step: isize, sizes: [usize; 2], dst: &mut [u32]) -> bool {
        arch::halves::interleave(bytemuck::cast_slice(data), [earlier, later], step, sizes, dst);
        true
    }
}
macro_rules! pieces {
    ($($t:ty),*) => {$(
        impl Piece<2> for $t {
            #[inline(always)]
            fn word([a, b]: [$t; 2]) -> u32 {
                u32::from(a as i16 as u16) | u32::from(b as i16 as u16) << 16
            }
        }
    )*};
}
pieces!(i16, i8, u8);
macro_rules! bytes {
    ($($t:ty),*) => {$(
        impl Piece<4> for $t {
            #[inline(always)]
            fn word([a, b, c, d]: [$t; 4]) -> u32 {
                u32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
            }
        }
    )*};
}
bytes!(i8, u8);

/// 1 for each of eight bytes that isn't 0.
#[inline(always)]
fn truths(bytes: u64) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    // A carry into a byte's upper bit, or the bit itself, says that there is a bit in it.
    ((((bytes & (0x7f * ONES)) + 0x7f * ONES) | bytes) >> 7) & ONES
}

/// Truth values.
impl Piece<32> for u8 {
    #[inline(always)]
    fn word(pieces: [u8; 32]) -> u32 {
        let eights: &[[u8; 8]; 4] = bytemuck::cast_ref(&pieces);
        let mut word = 0;
        for i in 0..4 {
            // Each byte's bit is moved to its place in the product's upper byte.
            word |= ((truths(u64::from_le_bytes(eights[i])).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32) << (8 * i);
        }
        word
    }
    #[inline(always)]
    fn across(lines: &[[u8; MOST_LANES]; 32], words: &mut [u32; MOST_LANES]) {
        // A byte of all words at a time.
        let mut bytes = [[0u64; MOST_LANES / 8]; 4];
        for q in 0..32 {
            let eights: &[[u8; 8]; MOST_LANES / 8] = bytemuck::cast_ref(&lines[q]);
            for i in 0..MOST_LANES / 8 {
                bytes[q / 8][i] |= truths(u64::from_le_bytes(eights[i])) << (q % 8);
            }
        }
        for j in 0..MOST_LANES {
            words[j] = (0..4).fold(0, |word, i| word | (((bytes[i][j / 8] >> (8 * (j % 8))) & 0xff) as u32) << (8 * i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte in every place of a word, among zeros and among bytes of one bit.
    #[test]
    fn a_bit_for_each_byte_that_is_not_zero() {
        for (byte, place, other) in (0..=u8::MAX).flat_map(|b| (0..32).flat_map(move |q| [0, 1, 0x80, 0xff].map(|other| (b, q, other)))) {
            let mut pieces = [other; 32];
            pieces[place] = byte;
            let want = (0..32).fold(0u32, |word, q| word | u32::from(pieces[q] != 0) << q);
            assert_eq!(<u8 as Piece<32>>::word(pieces), want, "{byte} at {place} among {other}");
            let mut lines = [[other; MOST_LANES]; 32];
            let column = place % MOST_LANES;
            (0..32).for_each(|q| lines[q][column] = pieces[q]);
            let mut words = [7; MOST_LANES];
            <u8 as Piece<32>>::across(&lines, &mut words);
            for (j, word) in words.into_iter().enumerate() {
                assert_eq!(
                    word,
                    if j == column { want } else { <u8 as Piece<32>>::word([other; 32]) },
                    "{byte} at {place} among {other}, word {j}"
                );
            }
        }
    }
}
