//! Products on a tile unit: bf16 with sums in f32, and integers of every width, whose bytes are multiplied as limbs.
//!
//! A task packs columns, as many as the second-level cache holds, and passes by them with a group of rows at a time, a piece of k
//! after the other, so that the rows stay in the nearest cache and results are written along their rows. Rows are loaded where they
//! stand, or from blocks that are packed once for all columns.

#![allow(clippy::needless_range_loop, reason = "plain loops over arrays become vectors")]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bilin_core::exec::order::PAIRED_FROM;
use bilin_core::shape::plan::Loop;
use bilin_core::{c64, c128};

use super::blocks::{LINE, SIDE, as_bytes, pack, part};
use super::element::Acc;
use super::job::{Job, Oriented, inner_stride};
use super::operand::Raw;
use super::scratch::{carve, carved_bytes, with_scratch};
use super::steps::{Steps, fill_offsets};
use super::words;
use crate::arch::amx::{Block, Dot, Rows, Session};
use crate::arch::tile::Micro;
use crate::arch::{self, Isa, Work};
use crate::threads;

/// Elements of a block.
const AREA: usize = SIDE * SIDE;
/// Words of k between two visits of a sum: of rows that are packed, and of those that stand.
const DEPTH: usize = 32 * SIDE;
const STANDING_DEPTH: usize = 128 * SIDE;
/// The same between two visits while columns stay packed: rows of so many stay in the nearest cache.
const NEAR: usize = 16 * SIDE;
/// Blocks of packed rows: half of a second-level cache of 2 MiB.
const MOST_ROW_BLOCKS: usize = 1 << 10;
/// Blocks of packed columns: less, since rows, sums and results pass through the same cache.
const MOST_COLUMN_BLOCKS: usize = 896;
/// Most columns of a task whose sums of all blocks of k have a place.
const MOST_COLUMNS: usize = 1024;
/// Most rows and columns of any other.
const MOST: usize = 4096;
/// Groups of columns up to which rows that don't begin at lines of memory are best loaded where they stand.
const FEW_GROUPS: usize = 4;

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

impl Form {
    /// Blocks of 16 lines of some terms.
    fn blocks(self, terms: usize) -> usize {
        terms.div_ceil(SIDE * self.in_word) * self.planes
    }

    /// Pieces of some terms, each packed by itself: the first term of each, and terms.
    fn pieces(self, terms: usize) -> impl Iterator<Item = (usize, usize)> {
        // Sums of limbs take a pass of their own for each.
        let most = if self.planes == 1 { terms.min(NEAR * self.in_word) } else { terms };
        (0..terms).step_by(most).map(move |at| (at, most.min(terms - at)))
    }

    /// Hands each piece of some terms its part of blocks of as many lines as there is room for.
    fn by_pieces(self, mut blocks: &mut [Block], terms: usize, pack: impl Fn(usize, usize, &mut [Block])) {
        let lines = blocks.len() / self.blocks(terms);
        for (at, terms) in self.pieces(terms) {
            let (some, rest) = blocks.split_at_mut(lines * self.blocks(terms));
            pack(at, terms, some);
            blocks = rest;
        }
    }
}

/// An accumulator that tiles may sum in.
pub(crate) trait Tiled: Acc {
    /// Sums as the tile unit keeps them, where they are of its width.
    fn as_blocks(_sums: &mut [Self]) -> Option<&mut [Block; 4]> {
        None
    }
    /// Kernels of words, where they sum in this and the processor has them.
    fn words(_kind: words::Kind, _isa: Isa) -> Option<&'static Micro<Self::Part>> {
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
    fn words(kind: words::Kind, isa: Isa) -> Option<&'static Micro<f32>> {
        if kind == words::Kind::Halves { arch::words::halves(isa) } else { None }
    }
}
impl Tiled for i32 {
    fn words(kind: words::Kind, isa: Isa) -> Option<&'static Micro<i32>> {
        match kind {
            words::Kind::Shorts => arch::words::shorts(isa),
            words::Kind::Bytes => arch::words::bytes(isa),
            words::Kind::Halves | words::Kind::Bits => None,
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
impl Tiled for u32 {
    fn words(kind: words::Kind, isa: Isa) -> Option<&'static Micro<u32>> {
        // What holds for one bit holds for all bits of a word.
        (kind == words::Kind::Bits).then(|| arch::truth(isa))
    }
}

/// Whether, and how, a job can run on tiles. For bf16 this is a question of k alone, since the order of its sums
/// depends on the answer.
pub(crate) fn accepts<A: Tiled>(job: &Job<'_, A>) -> Option<Form> {
    let (lhs, rhs) = (job.lhs.raw()?, job.rhs.raw()?);
    if let (Raw::Bf16(_), Raw::Bf16(_)) = (lhs, rhs) {
        let is_f32 = A::as_blocks(&mut [A::default(); 4 * AREA]).is_some();
        return (is_f32 && job.sizes[3] >= PAIRED_FROM).then_some(Form { dot: Dot::Bf16, planes: 1, in_word: 2, group: 2 });
    }
    if let Raw::Bool(_) = lhs {
        return None;
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
    let side = form.group * SIDE;
    let o = job.oriented(is_better_swapped(job, side));
    let [rows, columns] = o.sizes;
    let way = Way::new(job, form, &o);
    let stands = way.row.is_some();
    let size = if form.in_word == 2 { 2 } else { form.planes };
    let read = batch.saturating_mul(m.saturating_add(n)).saturating_mul(k).saturating_mul(size);
    let work = threads::cost(m.saturating_mul(n).saturating_mul(k).saturating_mul(batch) / 8, read);
    let want = if work < threads::SERIAL_BELOW || threads::current_threads() == 1 { 1 } else { 2 * threads::current_threads() };
    let most_rows = MOST_ROW_BLOCKS / form.blocks(way.terms.min(DEPTH * form.in_word)) * SIDE;
    let [most_rows, most_columns] = if stands && k <= way.terms && rows > side { [MOST; 2] } else { [most_rows, MOST_COLUMNS] };
    let (mut row_parts, mut column_parts) = (rows.div_ceil(most_rows), columns.div_ceil(most_columns));
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
            if rectangle(job, form, &o, &session, batch, area, &way).is_none() {
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

/// Whether rhs should stand in the rows: by what can be loaded where it stands, or else what writes the result in whole lines.
fn is_better_swapped<A: Tiled>(job: &Job<'_, A>, side: usize) -> bool {
    let ([_, m, n, _], plan) = (job.sizes, job.plan);
    let along = |lines: &[Loop<3>], which: usize| inner_stride(plan.k(), which) == 1 && inner_stride(lines, which) != 1;
    if n < side && along(plan.m(), 0) {
        false
    } else if m < side && along(plan.n(), 1) {
        true
    } else if n < side || m < side {
        n < m
    } else {
        inner_stride(plan.m(), 2) == 1 && inner_stride(plan.n(), 2) != 1
    }
}

/// How rows come onto tiles.
struct Way {
    /// Bytes from row to row, where tiles are loaded from the rows as they stand.
    row: Option<usize>,
    /// Most terms between two visits of a sum.
    terms: usize,
}

impl Way {
    fn new<A: Tiled>(job: &Job<'_, A>, form: Form, o: &Oriented<'_, A>) -> Way {
        let row = match (o.a.1.raw().and_then(as_bytes), o.rows, job.plan.k()) {
            (Some((_, size)), [row], [k]) if form.planes == 1 && k.strides[o.a.0] == 1 && row.strides[o.a.0] > 0 => {
                let step = row.strides[o.a.0].unsigned_abs() * size;
                let is_whole = row.len.is_multiple_of(form.group * SIDE) && (k.len * size).is_multiple_of(LINE);
                let is_few = o.sizes[1] <= FEW_GROUPS * form.group * SIDE;
                (is_whole && (is_few || step.is_multiple_of(LINE))).then_some(step)
            }
            _ => None,
        };
        Way { row, terms: job.sizes[3].min(if row.is_some() { STANDING_DEPTH } else { DEPTH } * form.in_word) }
    }
}

/// Rows times columns of some steps of the batch.
fn rectangle<A: Tiled>(
    job: &Job<'_, A>,
    form: Form,
    o: &Oriented<'_, A>,
    session: &Session,
    batch: Range<usize>,
    [row, column]: [[usize; 2]; 2],
    way: &Way,
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
    let most_terms = if is_read_once { k.min(SIDE * form.in_word) } else { way.terms };
    let standing = way.row.zip(as_bytes(a));
    let run = form.group * form.blocks(most_terms);
    // Groups of columns that are packed at once, the last as many as the others.
    let most_wide = if is_read_once { FEW_GROUPS } else { (MOST_COLUMN_BLOCKS / run).max(1) };
    let wide = column_groups.div_ceil(column_groups.div_ceil(most_wide));
    let sums_len = side * side;
    // Sums stay where they are made if k is one piece, else there is room for those that wait for the next piece, or block.
    let kept = if k > most_terms {
        row_groups * column_groups
    } else if form.pieces(k).nth(1).is_some() {
        wide
    } else {
        1
    };
    let (a_len, b_len) = (if standing.is_some() { 0 } else { row_groups * run }, wide * run);
    let bytes = carved_bytes::<Block>(a_len) + carved_bytes::<Block>(b_len) + carved_bytes::<A>(kept * sums_len);
    with_scratch(bytes, 2 * (rows + columns + most_terms), |memory, offsets| {
        let (a_blocks, memory) = carve::<Block>(memory, a_len);
        let (b_blocks, memory) = carve::<Block>(memory, b_len);
        let (sums, _) = carve::<A>(memory, kept * sums_len);
        let (a_rows, offsets) = offsets.split_at_mut(rows);
        let (c_rows, offsets) = offsets.split_at_mut(rows);
        let (b_columns, offsets) = offsets.split_at_mut(columns);
        let (c_columns, offsets) = offsets.split_at_mut(columns);
        let (a_ks, b_ks) = offsets.split_at_mut(most_terms);
        let (a_rows, b_columns) = (Steps::filled(o.rows, o.a.0, row[0], a_rows), Steps::filled(o.columns, o.b.0, column[0], b_columns));
        fill_offsets(o.rows, 2, row[0], c_rows);
        let c_columns = Steps::filled(o.columns, 2, column[0], c_columns);
        let mut limb_sums = [[[0; SIDE]; SIDE]; 8];
        let (mut filled, mut packed) = (None, None);
        for (batch, from) in batch.flat_map(|batch| (0..k).step_by(most_terms).map(move |from| (batch, from))) {
            let (bases, count) = (job.bases(batch), most_terms.min(k - from));
            if filled.replace(from) != Some(from) {
                fill_offsets(job.plan.k(), o.a.0, from, &mut a_ks[..count]);
                fill_offsets(job.plan.k(), o.b.0, from, &mut b_ks[..count]);
            }
            let (a_steps, b_steps) = (Steps::of(job.plan.k(), o.a.0, &a_ks[..count]), Steps::of(job.plan.k(), o.b.0, &b_ks[..count]));
            if standing.is_none() {
                form.by_pieces(&mut a_blocks[..row_groups * form.group * form.blocks(count)], count, |at, terms, to| {
                    pack(a, job.isa, form.planes, bases[o.a.0], a_rows, a_steps.part(at, terms), false, to);
                });
            }
            for first in (0..column_groups).step_by(wide) {
                let groups = wide.min(column_groups - first);
                let b_blocks = &mut b_blocks[..groups * form.group * form.blocks(count)];
                // Columns that steps of the batch share stay packed.
                if packed.replace((bases[o.b.0], from, first)) != Some((bases[o.b.0], from, first)) {
                    let some = part(b_columns, first * side, groups * side);
                    form.by_pieces(b_blocks, count, |at, terms, to| {
                        pack(b, job.isa, form.planes, bases[o.b.0], some, b_steps.part(at, terms), true, to);
                    });
                }
                let turns = (0..row_groups).flat_map(|row_group| form.pieces(count).map(move |piece| (row_group, piece)));
                for (row_group, (piece, terms)) in turns {
                    let (before, run) = (form.group * form.blocks(piece), form.group * form.blocks(terms));
                    let (is_first, is_last) = (from + piece == 0, from + piece + terms == k);
                    let packed = if standing.is_some() { &[][..] } else { &a_blocks[row_groups * before + row_group * run..][..run] };
                    let a_rows = match standing {
                        Some((row, (bytes, size))) => {
                            let first = (bases[o.a.0] + a_rows.at[row_group * side] + a_steps.at[piece]) as usize;
                            Rows { bytes: &bytes[first * size..], row: Some(row) }
                        }
                        None => Rows { bytes: bytemuck::cast_slice(packed), row: None },
                    };
                    for (group, b_group) in b_blocks[groups * before..].chunks_exact(run).take(groups).enumerate() {
                        let at = if k > most_terms { (first + group) * row_groups + row_group } else { group % kept };
                        let sums = &mut sums[at * sums_len..][..sums_len];
                        if form.planes > 1 {
                            session.limbs(form.planes, packed, b_group, &mut limb_sums);
                            job.isa.with(Joined { limbs: &limb_sums[..form.planes], is_first, sums });
                        } else if let Some(c) = A::as_blocks(sums) {
                            session.square(dot, &a_rows, b_group, c, is_first);
                        }
                        if is_last {
                            let rows = &c_rows[row_group * side..rows.min((row_group + 1) * side)];
                            store(job, bases[2], rows, part(c_columns, (first + group) * side, side), sums);
                        }
                    }
                }
            }
        }
    })
}

/// Writes blocks of sums. Those that stand side by side go row by row, so that a line of memory is written at once.
fn store<A: Tiled>(job: &Job<'_, A>, base: isize, rows: &[isize], columns: Steps<'_>, sums: &[A]) {
    let across = columns.at.len().div_ceil(SIDE) * AREA;
    // As many blocks stand below each other as beside, whether there are columns for them or not.
    let beside = if sums.len() > AREA { 2 * AREA } else { AREA };
    for (rows, sums) in rows.chunks(SIDE).zip(sums.chunks_exact(beside)) {
        job.out.store_block(job.isa, base, rows, columns, SIDE, &sums[..across]);
    }
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
