//! Products on a tile unit: bf16 with sums in f32, and integers of every width, whose bytes are multiplied as limbs.
//!
//! A task packs its rows once per block of k, then two blocks of columns at a time, and multiplies while these are near.

#![allow(clippy::needless_range_loop, reason = "plain loops over arrays become vectors")]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bilin_core::exec::order::PAIRED_FROM;
use bilin_core::{c64, c128};

use super::blocks::{SIDE, direct_rows, pack, part};
use super::element::Acc;
use super::job::{Job, Oriented, inner_stride};
use super::operand::Raw;
use super::scratch::{carve, carved_bytes, with_scratch};
use super::steps::{Steps, fill_offsets};
use super::words;
use crate::arch::amx::{Block, Dot, Rows, Session};
use crate::arch::tile::Micro;
use crate::arch::{self, Work};
use crate::threads;

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
        let done = |part: usize, batch: Range<usize>| {
            let (row, column) = (part % row_parts * row_step, part / row_parts * column_step);
            let area = [[row, rows.min(row + row_step)], [column, columns.min(column + column_step)]];
            if rectangle(job, form, &o, &session, batch, area).is_none() {
                has_failed.store(true, Ordering::Relaxed);
            }
        };
        if parts == 1 {
            done(0, tasks);
        } else {
            tasks.for_each(|task| done(task % parts, task / parts..task / parts + 1));
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}

/// Rows times columns of some steps of the batch.
fn rectangle<A: Tiled>(
    job: &Job<'_, A>,
    form: Form,
    o: &Oriented<'_, A>,
    session: &Session,
    batch: Range<usize>,
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
    with_scratch(bytes, 2 * (rows + columns + terms), |memory, offsets| {
        let (a_blocks, memory) = carve::<Block>(memory, a_len);
        let (b_blocks, memory) = carve::<Block>(memory, b_len);
        let (sums, _) = carve::<A>(memory, kept * sums_len);
        let (a_rows, offsets) = offsets.split_at_mut(rows);
        let (c_rows, offsets) = offsets.split_at_mut(rows);
        let (b_columns, offsets) = offsets.split_at_mut(columns);
        let (c_columns, offsets) = offsets.split_at_mut(columns);
        let (a_ks, b_ks) = offsets.split_at_mut(terms);
        let (a_rows, b_columns) = (Steps::filled(o.rows, o.a.0, row[0], a_rows), Steps::filled(o.columns, o.b.0, column[0], b_columns));
        fill_offsets(o.rows, 2, row[0], c_rows);
        let c_columns = Steps::filled(o.columns, 2, column[0], c_columns);
        let mut limb_sums = [[[0; SIDE]; SIDE]; 8];
        let mut filled = None;
        for (batch, from) in batch.flat_map(|batch| (0..k).step_by(terms).map(move |from| (batch, from))) {
            let (bases, count) = (job.bases(batch), terms.min(k - from));
            if filled.replace(from) != Some(from) {
                fill_offsets(job.plan.k(), o.a.0, from, &mut a_ks[..count]);
                fill_offsets(job.plan.k(), o.b.0, from, &mut b_ks[..count]);
            }
            let (a_steps, b_steps) = (Steps::of(job.plan.k(), o.a.0, &a_ks[..count]), Steps::of(job.plan.k(), o.b.0, &b_ks[..count]));
            let run = count.div_ceil(SIDE * form.in_word) * form.planes;
            let (is_first, is_last) = (from == 0, from + count == k);
            let direct = if column_groups <= WIDE { direct_rows(a, form.planes, bases[o.a.0], a_rows, a_steps) } else { None };
            if direct.is_none() {
                pack(a, job.isa, form.planes, bases[o.a.0], a_rows, a_steps, false, &mut a_blocks[..row_groups * form.group * run]);
            }
            for column_group in 0..column_groups {
                let place = column_group % WIDE;
                if place == 0 {
                    let wide = WIDE.min(column_groups - column_group);
                    let some = part(b_columns, column_group * side, wide * side);
                    pack(b, job.isa, form.planes, bases[o.b.0], some, b_steps, true, &mut b_blocks[..wide * form.group * run]);
                }
                let b_group = &b_blocks[place * form.group * run..][..form.group * run];
                for (row_group, a_group) in a_blocks.chunks_exact(form.group * run).take(row_groups).enumerate() {
                    let at = if kept == 1 { 0 } else { column_group * row_groups + row_group };
                    let sums = &mut sums[at * sums_len..][..sums_len];
                    if form.planes == 1 {
                        let a = match direct {
                            Some((bytes, row)) => Rows { bytes: &bytes[row_group * side * row..], row: Some(row) },
                            None => Rows { bytes: bytemuck::cast_slice(a_group), row: None },
                        };
                        if let Some(c) = A::as_blocks(sums) {
                            session.square(dot, &a, b_group, c, is_first);
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
