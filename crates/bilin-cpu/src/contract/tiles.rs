//! Products on a tile unit: bf16 with sums in f32, and integers of every width, whose bytes are multiplied as limbs.
//!
//! A task packs its rows once per block of k, then two blocks of columns at a time, and multiplies while these are near.

#![allow(clippy::needless_range_loop, reason = "plain loops over arrays become vectors")]

use std::sync::atomic::{AtomicBool, Ordering};

use bilin_core::exec::order::PAIRED_FROM;
use bilin_core::{c64, c128};
use bytemuck::Pod;
use half::bf16;

use super::element::Acc;
use super::job::{Job, Oriented, inner_stride};
use super::operand::Raw;
use super::scratch::{carve, carved_bytes, with_scratch};
use super::steps::{Steps, fill_offsets};
use super::words;
use crate::arch::amx::{self, Block, Dot, Session};
use crate::arch::tile::Micro;
use crate::arch::{self, Isa, Work};
use crate::threads;

/// Rows and columns of a block, and its words of k.
const SIDE: usize = 16;
/// Elements of a block.
const AREA: usize = SIDE * SIDE;
/// Words of k between two visits of a sum.
const DEPTH: usize = 32 * SIDE;
/// Blocks of packed rows.
const MOST_ROW_BLOCKS: usize = 1 << 10;
/// Most columns of a task.
const MOST_COLUMNS: usize = 1024;
/// Groups of columns that are packed together, so that a line of memory is read with its neighbours.
const WIDE: usize = 4;

/// How a job goes onto tiles.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    dot: Dot,
    /// Limbs of an element: 1, 2, 4 or 8 bytes.
    planes: usize,
    /// Elements in a word.
    in_word: usize,
    /// Blocks of rows, and of columns, that are multiplied at once.
    group: usize,
}

/// An accumulator that tiles may sum in.
pub(crate) trait Tiled: Acc {
    /// Sums as the tile unit keeps them, where they are of its width.
    fn as_blocks(_sums: &mut [Self]) -> Option<&mut [Block; 4]> {
        None
    }
    /// Kernels of words, where they sum in this and the processor has them.
    fn words(_kind: words::Kind) -> Option<&'static Micro<Self::Part>> {
        None
    }
    /// With a sum of limbs added, modulo the width.
    fn plus_word(self, _word: u64) -> Self {
        self
    }
}
impl Tiled for f32 {
    fn as_blocks(sums: &mut [f32]) -> Option<&mut [Block; 4]> {
        bytemuck::cast_slice_mut(sums).try_into().ok()
    }
    fn words(kind: words::Kind) -> Option<&'static Micro<f32>> {
        if kind == words::Kind::Halves { arch::words::halves() } else { None }
    }
}
impl Tiled for i32 {
    fn words(kind: words::Kind) -> Option<&'static Micro<i32>> {
        match kind {
            words::Kind::Halves => None,
            words::Kind::Shorts => arch::words::shorts(),
            words::Kind::Bytes => arch::words::bytes(),
        }
    }
    fn as_blocks(sums: &mut [i32]) -> Option<&mut [Block; 4]> {
        bytemuck::cast_slice_mut(sums).try_into().ok()
    }
    #[inline(always)]
    fn plus_word(self, word: u64) -> i32 {
        self.wrapping_add(word as i32)
    }
}
impl Tiled for i64 {
    #[inline(always)]
    fn plus_word(self, word: u64) -> i64 {
        self.wrapping_add(word as i64)
    }
}
impl Tiled for f64 {}
impl Tiled for c64 {}
impl Tiled for c128 {}
impl Tiled for u32 {}

/// Whether, and how, a job can run on tiles. For bf16 this is a question of k alone, since the order of its sums
/// depends on the answer.
pub(crate) fn accepts<A: Tiled>(job: &Job<'_, A>) -> Option<Form> {
    let (lhs, rhs) = (job.lhs.raw()?, job.rhs.raw()?);
    if let (Raw::Bf16(_), Raw::Bf16(_)) = (lhs, rhs) {
        let is_f32 = A::as_blocks(&mut [A::default(); 4 * AREA]).is_some();
        return (is_f32 && job.sizes[3] >= PAIRED_FROM).then_some(Form { dot: Dot::Bf16, planes: 1, in_word: 2, group: 2 });
    }
    let sign = |raw| match raw {
        Raw::I8(_) => Some(true),
        Raw::U8(_) => Some(false),
        _ => None,
    };
    let bytes = |dot| Some(Form { dot, planes: 1, in_word: 4, group: 2 });
    match (job.out.width(), sign(lhs), sign(rhs)) {
        (1, ..) => bytes(Dot::Bytes([false; 2])),
        (2 | 4, Some(a), Some(b)) => bytes(Dot::Bytes([a, b])),
        (planes @ (2 | 4 | 8), ..) => Some(Form { dot: Dot::Bytes([false; 2]), planes, in_word: 4, group: 1 }),
        _ => None,
    }
}

/// Whether tiles are worth their padding where vectors give the same bits.
pub(crate) fn pays<A: Tiled>(job: &Job<'_, A>) -> bool {
    let [_, m, n, k] = job.sizes;
    match job.lhs.raw() {
        None => false,
        Some(Raw::Bf16(_)) => true,
        Some(_) => k >= 24 && m >= 8 && n >= 8,
    }
}

/// Runs a job that [`accepts`] took; `None` where there is no room for panels.
pub(crate) fn run<A: Tiled>(job: &Job<'_, A>, form: Form) -> Option<()> {
    let [batch, m, n, k] = job.sizes;
    let (by_n, by_m) = (inner_stride(job.plan.n(), 2) == 1, inner_stride(job.plan.m(), 2) == 1);
    let side = form.group * SIDE;
    let is_swapped = if n < side || m < side { n < m } else { by_m && !by_n };
    let o = job.oriented(is_swapped);
    let depth = k.min(DEPTH * form.in_word).div_ceil(SIDE * form.in_word);
    let most_rows = MOST_ROW_BLOCKS / (depth * form.planes) * SIDE;
    let [rows, columns] = o.sizes;
    let work = m.saturating_mul(n).saturating_mul(k).saturating_mul(batch) / 8;
    let want = if work < threads::SERIAL_BELOW || threads::current_threads() == 1 { 1 } else { 2 * threads::current_threads() };
    let (mut row_parts, mut column_parts) = (rows.div_ceil(most_rows), columns.div_ceil(MOST_COLUMNS));
    while batch.saturating_mul(row_parts).saturating_mul(column_parts) < want {
        let (r, c) = (rows.div_ceil(row_parts), columns.div_ceil(column_parts));
        if c >= r && c > side {
            column_parts *= 2;
        } else if r > side {
            row_parts *= 2;
        } else {
            break;
        }
    }
    let (row_step, column_step) = (rows.div_ceil(row_parts).next_multiple_of(side), columns.div_ceil(column_parts).next_multiple_of(side));
    let (row_parts, column_parts) = (rows.div_ceil(row_step), columns.div_ceil(column_step));
    let parts = row_parts * column_parts;
    let has_failed = AtomicBool::new(false);
    threads::for_ranges(batch * parts, work / (batch * parts) + 64, &|tasks| {
        let Some(session) = Session::new() else {
            return has_failed.store(true, Ordering::Relaxed);
        };
        for task in tasks {
            let (row, column) = (task % parts % row_parts * row_step, task % parts / row_parts * column_step);
            let area = [[row, rows.min(row + row_step)], [column, columns.min(column + column_step)]];
            if rectangle(job, form, &o, &session, task / parts, area).is_none() {
                has_failed.store(true, Ordering::Relaxed);
            }
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}

fn rectangle<A: Tiled>(
    job: &Job<'_, A>,
    form: Form,
    o: &Oriented<'_, A>,
    session: &Session,
    batch: usize,
    [row, column]: [[usize; 2]; 2],
) -> Option<()> {
    let k = job.sizes[3];
    let (rows, columns) = (row[1] - row[0], column[1] - column[0]);
    let (a, b) = (o.a.1.raw()?, o.b.1.raw()?);
    let dot = match form.dot {
        Dot::Bytes([lhs, rhs]) if o.a.0 == 1 => Dot::Bytes([rhs, lhs]),
        other => other,
    };
    let side = form.group * SIDE;
    let (row_groups, column_groups) = (rows.div_ceil(side), columns.div_ceil(side));
    // Few rows leave nothing to multiply twice, so columns that stand side by side are read from end to end.
    let is_read_once = row_groups == 1 && inner_stride(o.columns, o.b.0) == 1 && inner_stride(job.plan.k(), o.b.0) != 1;
    let terms = k.min(if is_read_once { SIDE } else { DEPTH } * form.in_word);
    let run = terms.div_ceil(SIDE * form.in_word) * form.planes;
    let sums_len = side * side;
    // Sums of a block of k stay where they are made if there is one block, else there is room for all.
    let kept = if k > terms { row_groups * column_groups } else { 1 };
    let (a_len, b_len) = (row_groups * form.group * run, WIDE.min(column_groups) * form.group * run);
    let bytes = carved_bytes::<Block>(a_len) + carved_bytes::<Block>(b_len) + carved_bytes::<A>(kept * sums_len);
    let bases = job.bases(batch);
    with_scratch(bytes, 2 * (rows + columns + terms), |memory, offsets| {
        let (a_blocks, memory) = carve::<Block>(memory, a_len);
        let (b_blocks, memory) = carve::<Block>(memory, b_len);
        let (sums, _) = carve::<A>(memory, kept * sums_len);
        let (a_rows, offsets) = offsets.split_at_mut(rows);
        let (c_rows, offsets) = offsets.split_at_mut(rows);
        let (b_columns, offsets) = offsets.split_at_mut(columns);
        let (c_columns, offsets) = offsets.split_at_mut(columns);
        let (a_ks, b_ks) = offsets.split_at_mut(terms);
        fill_offsets(o.rows, o.a.0, row[0], a_rows);
        fill_offsets(o.rows, 2, row[0], c_rows);
        fill_offsets(o.columns, o.b.0, column[0], b_columns);
        fill_offsets(o.columns, 2, column[0], c_columns);
        let (a_rows, b_columns, c_columns) = (Steps::new(a_rows), Steps::new(b_columns), Steps::new(c_columns));
        let mut limb_sums = [[[0; SIDE]; SIDE]; 8];
        for from in (0..k).step_by(terms) {
            let count = terms.min(k - from);
            fill_offsets(job.plan.k(), o.a.0, from, &mut a_ks[..count]);
            fill_offsets(job.plan.k(), o.b.0, from, &mut b_ks[..count]);
            let (a_steps, b_steps) = (Steps::new(&a_ks[..count]), Steps::new(&b_ks[..count]));
            let run = count.div_ceil(SIDE * form.in_word) * form.planes;
            let (is_first, is_last) = (from == 0, from + count == k);
            let a_used = &mut a_blocks[..row_groups * form.group * run];
            pack(a, job.isa, form, bases[o.a.0], a_rows, a_steps, false, a_used);
            for column_group in 0..column_groups {
                let place = column_group % WIDE;
                if place == 0 {
                    let wide = WIDE.min(column_groups - column_group);
                    let some = part(b_columns, column_group * side, wide * side);
                    pack(b, job.isa, form, bases[o.b.0], some, b_steps, true, &mut b_blocks[..wide * form.group * run]);
                }
                let b_group = &b_blocks[place * form.group * run..][..form.group * run];
                for (row_group, a_group) in a_blocks.chunks_exact(form.group * run).take(row_groups).enumerate() {
                    let at = if kept == 1 { 0 } else { column_group * row_groups + row_group };
                    let sums = &mut sums[at * sums_len..][..sums_len];
                    if form.planes == 1 {
                        let (a, b) = (a_group.split_at(run), b_group.split_at(run));
                        if let Some(c) = A::as_blocks(sums) {
                            session.square(dot, [a.0, a.1], [b.0, b.1], c, is_first);
                        }
                    } else {
                        session.limbs(form.planes, a_group, b_group, &mut limb_sums);
                        job.isa.with(Joined { limbs: &limb_sums[..form.planes], is_first, sums });
                    }
                    if is_last {
                        // Blocks that stand side by side go row by row, so that a line of memory is written at once.
                        let columns = part(c_columns, column_group * side, side);
                        let used = columns.at.len().div_ceil(SIDE) * AREA;
                        for (i, some) in sums.chunks_exact(form.group * AREA).enumerate() {
                            let rows = part(Steps { at: c_rows, stride: None }, row_group * side + i * SIDE, SIDE);
                            if !rows.at.is_empty() {
                                job.out.store_block(job.isa, bases[2], rows.at, columns, SIDE, &some[..used]);
                            }
                        }
                    }
                }
            }
        }
    })
}

/// The lines from `from`, at most `most`.
fn part(all: Steps<'_>, from: usize, most: usize) -> Steps<'_> {
    let from = from.min(all.at.len());
    let at = &all.at[from..all.at.len().min(from + most)];
    Steps { at, stride: if at.len() <= 1 { Some(1) } else { all.stride } }
}

/// Sums of limbs, joined.
struct Joined<'a, A> {
    limbs: &'a [Block],
    is_first: bool,
    sums: &'a mut [A],
}

impl<A: Tiled> Work for Joined<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        if self.is_first {
            self.sums.fill(A::default());
        }
        for (shift, limb) in self.limbs.iter().enumerate() {
            for (sum, &x) in self.sums.iter_mut().zip(limb.as_flattened()) {
                *sum = sum.plus_word(u64::from(x) << (8 * shift));
            }
        }
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

#[expect(clippy::too_many_arguments, reason = "two call sites, all arguments distinct")]
fn pack(raw: Raw<'_>, isa: Isa, form: Form, base: isize, lines: Steps<'_>, ks: Steps<'_>, are_columns: bool, dst: &mut [Block]) {
    macro_rules! packed {
        ($($name:ident),*) => {
            match raw { $(Raw::$name(data) => isa.with(Packed { data, base, lines, ks, planes: form.planes, are_columns, dst }),)* }
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
        for turn in 0..groups * depth {
            // Memory is read along its dense axis.
            let (group, i) = if is_down { (turn % groups, turn / groups) } else { (turn / depth, turn % depth) };
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
        let form = Form { dot: Dot::Bytes([false; 2]), planes, in_word, group: 1 };
        for (line_count, k_count) in [(16usize, 64usize), (1, 1), (17, 63), (40, 130), (33, 65), (64, 200)] {
            for [line_step, k_step] in [[1, line_count + 3], [k_count + 3, 1], [2, 2 * line_count + 5], [1, 1]] {
                let lines: Vec<isize> = (0..line_count).map(|i| (i * line_step) as isize).collect();
                let ks: Vec<isize> = (0..k_count).map(|i| (i * k_step) as isize).collect();
                let (depth, groups) = (k_count.div_ceil(SIDE * in_word), line_count.div_ceil(SIDE) + 1);
                for are_columns in [false, true] {
                    let mut blocks = vec![[[u32::MAX; SIDE]; SIDE]; groups * depth * planes];
                    pack(raw, Isa::best(), form, 5, Steps::new(&lines), Steps::new(&ks), are_columns, &mut blocks);
                    for (at, block) in blocks.iter().enumerate() {
                        let (group, i, plane) = (at / planes / depth, at / planes % depth, at % planes);
                        for (line, w) in (0..SIDE).flat_map(|line| (0..SIDE).map(move |w| (line, w))) {
                            let piece = |q: usize| match (lines.get(group * SIDE + line), ks.get((i * SIDE + w) * in_word + q)) {
                                (Some(l), Some(k)) => data[(5 + l + k) as usize].piece(plane) << (32 / in_word * q),
                                _ => 0,
                            };
                            let want = (0..in_word).fold(0, |word, q| word | piece(q));
                            let got = if are_columns { block[w][line] } else { block[line][w] };
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
