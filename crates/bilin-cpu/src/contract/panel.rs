//! The general driver: packed panels, tiles in registers, any strides and dtypes.
//!
//! A task owns a rectangle of the result. For each block of k it packs the columns' operand once, then panel by panel
//! the rows' operand, and adds the block's sums to the result, or to partial sums where the result can't hold them.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bilin_core::shape::plan::Loop;

use super::disjoint::Shared;
use super::element::Acc;
use super::job::{Job, Oriented, inner_stride};
use super::operand::{Packed, Source};
use super::scratch::{carve, carved_bytes, with_scratch};
use super::steps::Steps;
use crate::arch::tile::{MAX_ROWS, Micro};
use crate::arch::vector::MOST_LANES;
use crate::arch::{self, Lines, Run};
use crate::threads;

/// Bytes of a packed block of columns: half of a usual second-level cache.
const BLOCK_BYTES: usize = 1 << 20;
/// Most rows or columns of a task.
const MOST: usize = 4096;
/// Most columns where sums stand apart from the result until they are whole.
const MOST_APART: usize = 1024;
/// Rows that are packed at once.
const PACKED_ROWS: usize = 64;
/// Rows that pass by the columns at once where they are read in place and are many: few, which leave the second-level cache to the
/// columns.
const STANDING_ROWS: usize = 24;
/// Terms of the tiles that a kernel is called for at once: of shallow ones several.
const CALL_TERMS: usize = 4096;
/// Bytes of partial sums of a task.
const PARTIAL_BYTES: usize = 2 << 20;

/// How a job is cut.
#[derive(Clone, Copy)]
struct Cut {
    batch: usize,
    rows: usize,
    columns: usize,
    row_parts: usize,
    column_parts: usize,
}

impl Cut {
    fn new<A: Acc>(job: &Job<'_, A>, o: &Oriented<'_, A>) -> Cut {
        let [batch, _, _, k] = job.sizes;
        let [m, n] = o.sizes;
        let (lanes, width) = (o.micro.lanes, o.micro.lanes * o.micro.vectors);
        let line = k.min(A::BLOCK).div_ceil(o.b.1.in_word()) * size_of::<A>();
        let in_place = is_written_in_place(job, o);
        let most_columns = (BLOCK_BYTES / line).clamp(width, if in_place { MOST } else { MOST_APART }) / lanes * lanes;
        let mut column_parts = n.div_ceil(most_columns);
        let padded = n.div_ceil(column_parts).next_multiple_of(lanes);
        let most_rows =
            if in_place || k <= A::BLOCK { MOST } else { (PARTIAL_BYTES / (padded * size_of::<A>())).clamp(o.micro.rows, MOST) };
        let mut row_parts = m.div_ceil(most_rows);
        let work = (m as u128) * (n as u128) * (k as u128) * (batch as u128);
        let want = if work * A::PARTS as u128 >= threads::SERIAL_BELOW as u128 { threads::current_threads() } else { 1 };
        let want = if want > 1 { 2 * want } else { 1 };
        while batch.saturating_mul(row_parts).saturating_mul(column_parts) < want {
            let (rows, columns) = (m.div_ceil(row_parts), n.div_ceil(column_parts));
            if columns >= rows && columns > width {
                column_parts *= 2;
            } else if rows > 4 * o.micro.rows {
                row_parts *= 2;
            } else if columns > width {
                column_parts *= 2;
            } else {
                break;
            }
        }
        let rows = m.div_ceil(row_parts).next_multiple_of(o.micro.rows);
        let columns = n.div_ceil(column_parts).next_multiple_of(lanes);
        Cut { batch, rows, columns, row_parts: m.div_ceil(rows), column_parts: n.div_ceil(columns) }
    }
}

/// Whether tiles go straight into the result: accumulators whose columns are neighbours there. A sum of several blocks is added
/// as a whole.
fn is_written_in_place<A: Acc>(job: &Job<'_, A>, o: &Oriented<'_, A>) -> bool {
    job.out.plain().is_some() && !(job.adds && job.sizes[3] > A::BLOCK) && matches!(o.columns, [] | [Loop { strides: [_, _, 1], .. }])
}

/// Whether rhs should stand in the rows: by what writes the result in whole vectors and packs least.
fn is_better_swapped<A: Acc>(job: &Job<'_, A>) -> bool {
    let [_, m, n, _] = job.sizes;
    let plan = job.plan;
    // The few columns are packed, the many rows read in place.
    if m.saturating_mul(16) < n && inner_stride(plan.n(), 1) != 1 {
        return true;
    }
    if n.saturating_mul(16) < m && inner_stride(plan.m(), 0) != 1 {
        return false;
    }
    let (by_n, by_m) = (inner_stride(plan.n(), 2) == 1, inner_stride(plan.m(), 2) == 1);
    if by_n != by_m {
        return if n == 1 {
            true
        } else if m == 1 {
            false
        } else {
            by_m
        };
    }
    n < m && n < 8
}

/// Runs a job; `None` where there is no room for panels.
pub(crate) fn run<A: Acc>(job: &Job<'_, A>) -> Option<()> {
    run_on(job, job.oriented(is_better_swapped(job)))
}

/// Runs a job with these micro-kernels, and rhs in the rows or not where that is set.
pub(crate) fn run_by<A: Acc>(job: &Job<'_, A>, micro: &'static Micro<A::Part>, is_swapped: Option<bool>) -> Option<()> {
    run_on(job, Oriented { micro, ..job.oriented(is_swapped.unwrap_or_else(|| is_better_swapped(job))) })
}

fn run_on<A: Acc>(job: &Job<'_, A>, o: Oriented<'_, A>) -> Option<()> {
    let cut = Cut::new(job, &o);
    let has_failed = AtomicBool::new(false);
    let tasks = cut.batch * cut.row_parts * cut.column_parts;
    let [_, _, _, k] = job.sizes;
    let cost = cut.rows.min(o.sizes[0]) * cut.columns.min(o.sizes[1]) * k.div_ceil(o.b.1.in_word()) * A::PARTS;
    // Items of the batch that are cut alike come one after the other: they share tables, and what they have in common.
    threads::for_ranges(tasks, cost, &|mut tasks| {
        while !tasks.is_empty() {
            let (part, item) = (tasks.start / cut.batch, tasks.start % cut.batch);
            let items = item..cut.batch.min(item + tasks.len());
            tasks.start += items.len();
            let (row, column) = (part % cut.row_parts * cut.rows, part / cut.row_parts * cut.columns);
            let area = Area { row, rows: cut.rows.min(o.sizes[0] - row), column, columns: cut.columns.min(o.sizes[1] - column) };
            if rectangle(job, &o, items, area).is_none() {
                has_failed.store(true, Ordering::Relaxed);
            }
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}

/// A rectangle of each item's result.
#[derive(Clone, Copy)]
struct Area {
    row: usize,
    rows: usize,
    column: usize,
    columns: usize,
}

fn rectangle<A: Acc>(job: &Job<'_, A>, o: &Oriented<'_, A>, items: Range<usize>, area: Area) -> Option<()> {
    let [_, _, _, k] = job.sizes;
    let micro = o.micro;
    let block = k.min(A::BLOCK);
    let padded = area.columns.next_multiple_of(micro.lanes);
    let stands = o.a.1.plain().is_some() && inner_stride(job.plan.k(), o.a.0) == 1;
    let most_rows = if stands && area.rows > PACKED_ROWS { STANDING_ROWS } else { PACKED_ROWS };
    let group_rows = (most_rows / micro.rows * micro.rows).min(area.rows.next_multiple_of(micro.rows));
    let in_word = o.b.1.in_word();
    let depth = block.div_ceil(in_word);
    let has_starts = o.b.1.has_starts();
    let (a_len, b_len) = (group_rows * depth, (depth + usize::from(has_starts)) * padded * A::PARTS);
    let in_place = is_written_in_place(job, o);
    // Sums of one block are whole after each group of rows.
    let p_rows = if k > A::BLOCK { area.rows } else { group_rows };
    let p_len = if in_place { 0 } else { p_rows * padded * A::PARTS };
    let bytes = carved_bytes::<A>(a_len) + carved_bytes::<A::Part>(b_len) + carved_bytes::<A::Part>(p_len);
    with_scratch(bytes, 2 * (area.rows + area.columns + block), |memory, offsets| {
        let (a_panels, memory) = carve::<A>(memory, a_len);
        let (b_block, memory) = carve::<A::Part>(memory, b_len);
        let (partial, _) = carve::<A::Part>(memory, p_len);
        let (a_rows, offsets) = offsets.split_at_mut(area.rows);
        let (c_rows, offsets) = offsets.split_at_mut(area.rows);
        let (b_columns, offsets) = offsets.split_at_mut(area.columns);
        let (c_columns, offsets) = offsets.split_at_mut(area.columns);
        let (a_ks, b_ks) = offsets.split_at_mut(block);
        let a_rows = Steps::filled(o.rows, o.a.0, area.row, a_rows);
        let c_stride = Steps::filled(o.rows, 2, area.row, c_rows).stride;
        let direct = job.out.plain().filter(|_| in_place);
        if direct.is_some() {
            c_rows.iter_mut().for_each(|row| *row *= A::PARTS as isize);
        }
        let b_columns = Steps::filled(o.columns, o.b.0, area.column, b_columns);
        let c_columns = Steps::filled(o.columns, 2, area.column, c_columns);
        let c_beside = c_columns.run();
        let is_streamed = in_place && job.is_streamed();
        let partial_rows: [isize; MAX_ROWS] = std::array::from_fn(|i| (i * padded * A::PARTS) as isize);
        {
            let own = Shared::new(&mut *partial);
            let mut bases = [0; 3];
            let (mut packed_at, mut steps_at, mut strides) = (None, None, [None; 2]);
            for (item, from) in items.flat_map(|item| (0..k).step_by(block).map(move |from| (item, from))) {
                let terms = block.min(k - from);
                if from == 0 {
                    bases = job.bases(item);
                }
                let (a_at, b_at) = (&mut a_ks[..terms], &mut b_ks[..terms]);
                if steps_at != Some(from) {
                    steps_at = Some(from);
                    strides =
                        [Steps::filled(job.plan.k(), o.a.0, from, a_at), Steps::filled(job.plan.k(), o.b.0, from, b_at)].map(|s| s.stride);
                }
                let (a_steps, b_steps) = (Steps { at: a_at, stride: strides[0] }, Steps { at: b_at, stride: strides[1] });
                let depth = terms.div_ceil(in_word);
                let b_direct = direct_columns::<A>(o, &b_columns, &b_steps, area.rows);
                let width = micro.lanes * micro.vectors;
                // Columns that several items share are packed once, those that stand side by side by the first tiles that read them.
                let mut by_tiles = None;
                if b_direct.is_none() && packed_at != Some((bases[o.b.0], from)) {
                    packed_at = Some((bases[o.b.0], from));
                    by_tiles = packed_by_tiles(o, &b_columns, &b_steps, area.rows);
                    let left = if by_tiles.is_some() { micro.full_panels(area.columns) } else { 0 };
                    if left < area.columns {
                        let to = &mut b_block[left * depth * A::PARTS..];
                        o.b.1.pack_columns(bases[o.b.0], b_steps, b_columns.part(left, area.columns - left), job.isa, micro, to);
                    }
                }
                let a_direct = o.a.1.plain().zip(a_steps.stride).filter(|&(_, step)| step == 1 || area.columns <= 2 * width);
                for group in (0..area.rows).step_by(group_rows) {
                    let group_len = group_rows.min(area.rows - group);
                    let group_offsets = a_rows.part(group, group_len);
                    let packed = match a_direct {
                        Some(_) => Packed::RowMajor,
                        None => {
                            o.a.1.pack_rows(bases[o.a.0], group_offsets, a_steps, job.isa, micro.rows, &mut a_panels[..group_len * depth])
                        }
                    };
                    let next = group + group_len;
                    let kept_from = if k > A::BLOCK { 0 } else { group };
                    // Rows that are read in place come in time by themselves.
                    let to_come = if a_direct.is_some() { 0 } else { group_rows.min(area.rows - next) };
                    let mut ahead =
                        Ahead::new(a_rows.part(next, to_come), a_steps, group_len.div_ceil(micro.rows) * area.columns.div_ceil(width));
                    let scaled = |offset: isize| offset * A::PARTS as isize;
                    // From tile to tile down a panel, where that is one step.
                    let a_tile = if a_direct.is_some() {
                        group_offsets.stride.map(|s| s * micro.rows as isize)
                    } else {
                        Some((micro.rows * depth) as isize)
                    };
                    let c_tile = if direct.is_some() { c_stride } else { Some(padded as isize) }.map(|s| s * micro.rows as isize);
                    let (tile_steps, at_once) = match (a_tile, c_tile) {
                        (Some(a), Some(c)) => ([scaled(a), 0, scaled(c)], (CALL_TERMS / depth).max(1)),
                        _ => ([0; 3], 1),
                    };
                    let mut at = 0;
                    while at < area.columns {
                        let cols = micro.panel(area.columns - at);
                        let b_at = scaled((at * depth) as isize);
                        let stored = if A::PARTS == 2 { cols.next_multiple_of(micro.lanes) * 2 } else { cols };
                        let mut first = 0;
                        while first < group_len {
                            let rows = micro.rows.min(group_len - first);
                            let standing = b_direct.or(by_tiles.filter(|_| group + first == 0 && cols == width));
                            let packs = standing.is_some() && b_direct.is_none();
                            let count = if packs { 1 } else { ((group_len - first) / rows).min(at_once) };
                            ahead.step(o.a.1, bases[o.a.0], count);
                            let row = group + first;
                            let mut starts = [0; MAX_ROWS];
                            let a = if let Some((data, step)) = a_direct {
                                for (start, &row) in starts.iter_mut().zip(&group_offsets.at[first..first + rows]) {
                                    *start = scaled(row);
                                }
                                Lines { data, at: scaled(bases[o.a.0] + a_steps.at[0]), step: scaled(step) }
                            } else {
                                let (row_step, k_step) = match packed {
                                    Packed::RowMajor => (depth, 1),
                                    Packed::KMajor => (1, rows),
                                };
                                for (i, start) in starts.iter_mut().enumerate() {
                                    *start = scaled((i * row_step) as isize);
                                }
                                let data = bytemuck::cast_slice::<A, A::Part>(&*a_panels);
                                Lines { data, at: scaled((first * depth) as isize), step: scaled(k_step as isize) }
                            };
                            let (c, c_at, c_rows) = match direct {
                                Some(c) => (c, scaled(bases[2] + c_columns.at[at]), &c_rows[row..row + rows]),
                                None => (&own, scaled(((row - kept_from) * padded + at) as isize), &partial_rows[..rows]),
                            };
                            let (panel, start) = b_block.split_at_mut(if has_starts { area.columns * depth } else { b_len });
                            let run = |b, start| Run {
                                terms: depth,
                                a,
                                a_rows: &starts[..rows],
                                b,
                                c,
                                c_at,
                                c_rows,
                                cols,
                                start,
                                first: from == 0 && !(in_place && job.adds),
                                is_streamed,
                                count,
                                steps: tile_steps,
                            };
                            match standing {
                                Some((data, step)) => {
                                    let first = scaled(bases[o.b.0] + b_steps.at[0] + b_columns.at[at]);
                                    let r = run(Lines { data, at: first, step: scaled(step) }, &[]);
                                    if packs { micro.run_packing(&r, &mut panel[b_at as usize..]) } else { micro.run(&r) }
                                }
                                None => {
                                    let start = if has_starts { &start[at..][..cols] } else { &[] };
                                    micro.run(&run(Lines { data: &*panel, at: b_at, step: stored as isize }, start));
                                }
                            }
                            first += rows * count;
                        }
                        at += cols;
                    }
                    if direct.is_some() || from + terms < k {
                        continue;
                    }
                    let rows = &c_rows[group..group + group_len];
                    let (from, len) = ((group - kept_from) * padded * A::PARTS, group_len * padded * A::PARTS);
                    let sums: &[A] = bytemuck::cast_slice(own.run(from as isize, len));
                    if c_columns.stride == Some(1) || c_beside < MOST_LANES {
                        job.out.store_block(job.isa, bases[2], rows, c_columns, padded, sums);
                        continue;
                    }
                    for (row, sums) in rows.iter().zip(sums.chunks_exact(padded)) {
                        for (piece, sums) in sums[..area.columns].chunks(c_beside).enumerate() {
                            let columns = c_columns.part(piece * c_beside, sums.len());
                            job.out.store_block(job.isa, bases[2] + row, &[0], columns, sums.len(), sums);
                        }
                    }
                }
            }
        }
        if is_streamed {
            arch::settle();
        }
    })
}

/// Reads of the next group of rows, asked for little by little while the current one is multiplied.
struct Ahead<'a> {
    /// Where the runs begin, and an offset common to all.
    runs: &'a [isize],
    first: isize,
    /// Elements of a run.
    len: usize,
    /// Runs to ask for at a step.
    each: usize,
}

impl<'a> Ahead<'a> {
    fn new(rows: Steps<'a>, ks: Steps<'a>, steps: usize) -> Self {
        let (runs, first, len) = match (rows.at, ks.at) {
            ([], _) | (_, []) => (&[][..], 0, 0),
            (_, [k, ..]) if ks.stride == Some(1) => (rows.at, *k, ks.at.len()),
            ([row, ..], _) if rows.stride == Some(1) => (ks.at, *row, rows.at.len()),
            _ => (&[][..], 0, 0),
        };
        Ahead { runs, first, len, each: runs.len().div_ceil(steps) }
    }
    #[inline]
    fn step<A: Acc>(&mut self, source: &dyn Source<A>, base: isize, steps: usize) {
        let (now, later) = self.runs.split_at((self.each * steps).min(self.runs.len()));
        for run in now {
            source.ask_for(base + self.first + run, self.len);
        }
        self.runs = later;
    }
}

/// The columns' operand as it stands, where the first tiles can pack it: its columns stand side by side.
fn packed_by_tiles<'a, A: Acc>(o: &Oriented<'a, A>, columns: &Steps<'_>, ks: &Steps<'_>, rows: usize) -> Option<(&'a [A::Part], isize)> {
    o.b.1.plain().zip(ks.stride).filter(|_| columns.stride == Some(1) && rows >= o.micro.rows)
}

/// The columns' operand as it stands, where packing wouldn't pay.
fn direct_columns<'a, A: Acc>(o: &Oriented<'a, A>, columns: &Steps<'_>, ks: &Steps<'_>, rows: usize) -> Option<(&'a [A::Part], isize)> {
    if A::PARTS != 1 || columns.stride != Some(1) {
        return None;
    }
    let step = ks.stride?;
    let is_near = step.unsigned_abs() * ks.at.len() * size_of::<A>() <= 64 << 10;
    if rows <= 2 * o.micro.rows || is_near { o.b.1.plain().map(|data| (data, step)) } else { None }
}
