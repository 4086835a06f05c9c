//! Operands on their way into blocks of a tile unit: 16 lines of 16 words, a word being two halves or four bytes.

#![allow(clippy::needless_range_loop, reason = "plain loops over arrays become vectors")]

use bytemuck::Pod;
use half::bf16;

use super::operand::Raw;
use super::steps::Steps;
use crate::arch::amx::{self, Block};
use crate::arch::{Isa, Work};

/// Rows and columns of a block, and its words of k.
pub(super) const SIDE: usize = 16;
/// Bytes of a line of a block.
pub(super) const LINE: usize = 4 * SIDE;

/// The lines from `from`, at most `most`.
pub(super) fn part(all: Steps<'_>, from: usize, most: usize) -> Steps<'_> {
    let from = from.min(all.at.len());
    let at = &all.at[from..all.at.len().min(from + most)];
    Steps { at, stride: if at.len() <= 1 { Some(1) } else { all.stride } }
}

/// Elements that tiles can be loaded from as they stand, as bytes, and the bytes of one.
pub(super) fn as_bytes(raw: Raw<'_>) -> Option<(&[u8], usize)> {
    match raw {
        Raw::Bf16(data) => Some((bytemuck::cast_slice(data), 2)),
        Raw::U8(data) => Some((data, 1)),
        Raw::I8(data) => Some((bytemuck::cast_slice(data), 1)),
        _ => None,
    }
}

/// What stands in words.
trait Piece: Pod {
    /// In a word: 2 or 4.
    const IN_WORD: usize;
    /// The piece of a plane in the low bits.
    fn piece(self, plane: usize) -> u32;
}
impl Piece for bf16 {
    const IN_WORD: usize = 2;
    #[inline(always)]
    fn piece(self, _plane: usize) -> u32 {
        self.to_bits().into()
    }
}
macro_rules! bytes {
    ($($t:ty),*) => {$(
        impl Piece for $t {
            const IN_WORD: usize = 4;
            #[inline(always)]
            fn piece(self, plane: usize) -> u32 {
                // Of a value that is narrower than its sum, the upper limbs repeat the sign.
                if size_of::<$t>() == 8 { (self as i64 >> (8 * plane)) as u32 & 0xff } else { (self as i32 >> (8 * plane).min(31)) as u32 & 0xff }
            }
        }
    )*};
}
bytes!(u8, i8, i16, i32, i64);

/// Packs lines, for each 16 of which there is one block for each plane of each 16 words of k.
#[expect(clippy::too_many_arguments, reason = "two call sites, all arguments distinct")]
pub(super) fn pack(
    raw: Raw<'_>,
    isa: Isa,
    planes: usize,
    base: isize,
    lines: Steps<'_>,
    ks: Steps<'_>,
    are_columns: bool,
    dst: &mut [Block],
) {
    macro_rules! packed {
        ($($name:ident),*) => {
            match raw {
                $(Raw::$name(data) => isa.with(Packed { data, base, lines, ks, planes, are_columns, dst }),)*
                Raw::Bool(_) => unreachable!("truth values, which tiles refuse"),
            }
        };
    }
    packed!(Bf16, U8, I8, I16, I32, I64)
}

/// Lines (rows, or columns) on their way into blocks: for each 16 lines, one block for each plane of each 16 words of k.
struct Packed<'a, S> {
    data: &'a [S],
    base: isize,
    lines: Steps<'a>,
    ks: Steps<'a>,
    planes: usize,
    are_columns: bool,
    dst: &'a mut [Block],
}

impl<S: Piece> Work for Packed<'_, S> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Packed { data, base, lines, ks, planes, are_columns, dst } = self;
        let width = SIDE * S::IN_WORD;
        let depth = ks.at.len().div_ceil(width);
        let groups = dst.len() / (depth * planes);
        // Rows want words of k along a line of the block, columns want them down the block.
        let is_down = lines.stride == Some(1) && ks.stride != Some(1) && !lines.at.is_empty();
        // Halves fill a vector with the columns of two blocks.
        let is_paired = is_down && are_columns && S::IN_WORD == 2;
        let (paired, whole) = if is_paired { (lines.at.len() / (2 * SIDE) * 2, ks.at.len() / width) } else { (0, 0) };
        for (i, group) in (0..whole).flat_map(|i| (0..paired).step_by(2).map(move |group| (i, group))) {
            let (left, right) = dst.split_at_mut((group + 1) * depth);
            let words = left[group * depth + i].iter_mut().zip(&mut right[i]);
            for (at, (left, right)) in ks.at[i * width..].chunks_exact(S::IN_WORD).zip(words) {
                beside(data, base + lines.at[group * SIDE], at, left, right);
            }
        }
        for turn in 0..groups * depth {
            // Memory is read along its dense axis.
            let (group, i) = if is_down { (turn % groups, turn / groups) } else { (turn / depth, turn % depth) };
            if group < paired && i < whole {
                continue;
            }
            let some = part(lines, group * SIDE, SIDE).at;
            let ks = Steps { at: &ks.at[i * width..ks.at.len().min((i + 1) * width)], stride: ks.stride };
            let is_whole = some.len() == SIDE && ks.at.len() == width;
            for (plane, block) in dst[(group * depth + i) * planes..][..planes].iter_mut().enumerate() {
                if !is_whole {
                    *block = [[0; SIDE]; SIDE];
                }
                if some.is_empty() {
                    continue;
                }
                if is_down && is_whole {
                    for (at, words) in ks.at.chunks_exact(S::IN_WORD).zip(block.iter_mut()) {
                        down(data, base + some[0], at, plane, words);
                    }
                } else if is_down {
                    for (at, words) in ks.at.chunks(S::IN_WORD).zip(block.iter_mut()) {
                        for (q, &k) in at.iter().enumerate() {
                            for (word, x) in words.iter_mut().zip(&data[(base + k + some[0]) as usize..][..some.len()]) {
                                *word |= x.piece(plane) << (32 / S::IN_WORD * q);
                            }
                        }
                    }
                } else if ks.stride == Some(1) {
                    for (&line, words) in some.iter().zip(block.iter_mut()) {
                        along(&data[(base + line + ks.at[0]) as usize..][..ks.at.len()], plane, words);
                    }
                } else {
                    for (&line, words) in some.iter().zip(block.iter_mut()) {
                        for (word, at) in words.iter_mut().zip(ks.at.chunks(S::IN_WORD)) {
                            let piece = |(q, &k): (usize, &isize)| data[(base + line + k) as usize].piece(plane) << (32 / S::IN_WORD * q);
                            *word = at.iter().enumerate().map(piece).fold(0, |w, x| w | x);
                        }
                    }
                }
                if is_down != are_columns {
                    amx::transpose(block);
                }
            }
        }
    }
}

/// Words of twice 16 lines that stand side by side, from 2 runs.
#[inline(always)]
fn beside<S: Piece>(data: &[S], base: isize, ks: &[isize], left: &mut [u32; SIDE], right: &mut [u32; SIDE]) {
    let run = |q: usize| data[(base + ks[q]) as usize..].first_chunk::<{ 2 * SIDE }>();
    if let (Some(a), Some(b)) = (run(0), run(1)) {
        let (a, b) = (*a, *b);
        let mut words = [0u32; 2 * SIDE];
        for j in 0..2 * SIDE {
            words[j] = a[j].piece(0) | b[j].piece(0) << 16;
        }
        left.copy_from_slice(&words[..SIDE]);
        right.copy_from_slice(&words[SIDE..]);
    }
}

/// Words of 16 lines that stand side by side, from 2 or 4 runs.
#[inline(always)]
fn down<S: Piece>(data: &[S], base: isize, ks: &[isize], plane: usize, words: &mut [u32; SIDE]) {
    let run = |q: usize| data[(base + ks[q]) as usize..].first_chunk::<SIDE>();
    if S::IN_WORD == 2 {
        if let (Some(a), Some(b)) = (run(0), run(1)) {
            for j in 0..SIDE {
                words[j] = a[j].piece(plane) | b[j].piece(plane) << 16;
            }
        }
    } else if let (Some(a), Some(b), Some(c), Some(d)) = (run(0), run(1), run(2), run(3)) {
        for j in 0..SIDE {
            words[j] = a[j].piece(plane) | b[j].piece(plane) << 8 | c[j].piece(plane) << 16 | d[j].piece(plane) << 24;
        }
    }
}

/// A run of k as words.
#[inline(always)]
fn along<S: Piece>(from: &[S], plane: usize, words: &mut [u32; SIDE]) {
    if S::IN_WORD == 2 {
        let halves: &mut [u16] = bytemuck::cast_slice_mut(words);
        if let (Ok(to), Ok(from)) = (<&mut [u16; 2 * SIDE]>::try_from(&mut halves[..]), <&[S; 2 * SIDE]>::try_from(from)) {
            let from = *from;
            for i in 0..2 * SIDE {
                to[i] = from[i].piece(plane) as u16;
            }
            return;
        }
        for (to, x) in halves.iter_mut().zip(from) {
            *to = x.piece(plane) as u16;
        }
    } else {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(words);
        if let (Ok(to), Ok(from)) = (<&mut [u8; 4 * SIDE]>::try_from(&mut bytes[..]), <&[S; 4 * SIDE]>::try_from(from)) {
            let from = *from;
            for i in 0..4 * SIDE {
                to[i] = from[i].piece(plane) as u8;
            }
            return;
        }
        for (to, x) in bytes.iter_mut().zip(from) {
            *to = x.piece(plane) as u8;
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Blocks by their definition: word (line, w) of the block of a group of lines, of 16 words of k and of a plane holds the
    /// pieces of that plane of the elements at `line` and at k of `IN_WORD`·w and up; columns stand across.
    fn check<S: Piece>(data: &[S], raw: Raw<'_>, planes: usize, in_word: usize) {
        for (line_count, k_count) in [(16usize, 64usize), (1, 1), (17, 63), (40, 130), (33, 65), (64, 200), (64, 192)] {
            for [line_step, k_step] in [[1, line_count + 3], [k_count + 3, 1], [2, 2 * line_count + 5], [1, 1]] {
                let lines: Vec<isize> = (0..line_count).map(|i| (i * line_step) as isize).collect();
                let ks: Vec<isize> = (0..k_count).map(|i| (i * k_step) as isize).collect();
                let (depth, groups) = (k_count.div_ceil(SIDE * in_word), line_count.div_ceil(SIDE) + 1);
                let standing = as_bytes(raw).filter(|_| k_step == 1);
                assert_eq!(as_bytes(raw).is_some(), planes == 1);
                for are_columns in [false, true] {
                    let mut blocks = vec![[[u32::MAX; SIDE]; SIDE]; groups * depth * planes];
                    pack(raw, Isa::best(), planes, 5, Steps::new(&lines), Steps::new(&ks), are_columns, &mut blocks);
                    for (at, block) in blocks.iter().enumerate() {
                        let (group, i, plane) = (at / planes / depth, at / planes % depth, at % planes);
                        for (line, w) in (0..SIDE).flat_map(|line| (0..SIDE).map(move |w| (line, w))) {
                            let piece = |q: usize| match (lines.get(group * SIDE + line), ks.get((i * SIDE + w) * in_word + q)) {
                                (Some(l), Some(k)) => data[(5 + l + k) as usize].piece(plane) << (32 / in_word * q),
                                _ => 0,
                            };
                            let want = (0..in_word).fold(0, |word, q| word | piece(q));
                            let got = if are_columns { block[w][line] } else { block[line][w] };
                            let is_whole = group * SIDE + line < line_count && (i * SIDE + w + 1) * in_word <= k_count;
                            if let (Some((bytes, size)), false, true) = (standing, are_columns, is_whole) {
                                let at = (5 + (group * SIDE + line) * line_step) * size + i * LINE + 4 * w;
                                assert_eq!(bytes[at..][..4], want.to_le_bytes(), "{line_count} {k_count} {line_step} {at} where it stands");
                            }
                            assert_eq!(got, want, "{line_count} {k_count} {line_step} {k_step} {are_columns} {at} {line} {w}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_hold_the_words_of_their_lines() {
        if Isa::detected() < Isa::Avx512 {
            return;
        }
        let words: Vec<u64> = (1..40_000u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        let of = |size: usize| &bytemuck::cast_slice::<u64, u8>(&words)[..words.len() * size];
        check::<bf16>(bytemuck::cast_slice(of(2)), Raw::Bf16(bytemuck::cast_slice(of(2))), 1, 2);
        check::<u8>(of(1), Raw::U8(of(1)), 1, 4);
        check::<i8>(bytemuck::cast_slice(of(1)), Raw::I8(bytemuck::cast_slice(of(1))), 1, 4);
        check::<i16>(bytemuck::cast_slice(of(2)), Raw::I16(bytemuck::cast_slice(of(2))), 2, 4);
        check::<i32>(bytemuck::cast_slice(of(4)), Raw::I32(bytemuck::cast_slice(of(4))), 4, 4);
        check::<i64>(bytemuck::cast_slice(of(8)), Raw::I64(bytemuck::cast_slice(of(8))), 8, 4);
    }
}
