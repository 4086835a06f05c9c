//! Products whose operands are read where they stand: small ones, batches of them, matrix times vector.

use bilin_core::shape::plan::Loop;

use super::element::Acc;
use super::job::{Job, Oriented};
use crate::arch::tile::MAX_ROWS;
use crate::arch::{self, Isa, Lines, Run};
use crate::threads;

/// Bytes that a block of k spans in the columns' operand, up to which reading it in place costs less than packing it: what a
/// second-level cache keeps of it.
const NEAR_BYTES: usize = 768 << 10;
/// Bytes that all k span there, likewise, where rows are many and the third-level cache is far, as on processors with tiles: each
/// block comes from there, and packing brings it in order.
const ALL_NEAR_BYTES: usize = 1280 << 10;
/// Bytes of a block of k in the rows' operand where k is contiguous, likewise.
const ROWS_NEAR_BYTES: usize = 1200 << 10;
/// And where they aren't.
const ROWS_STRIDED_BYTES: usize = 96 << 10;

/// Bytes of the rows that are multiplied by one panel of columns after the other: they stay in the second-level cache.
const STRIP_BYTES: usize = 128 << 10;

/// Strides of one loop, zero where there is none.
fn only(loops: &[Loop<3>]) -> Option<[isize; 3]> {
    match loops {
        [] => Some([0; 3]),
        [one] => Some(one.strides),
        _ => None,
    }
}

/// Strides by role, once rows and columns are chosen.
#[derive(Clone, Copy)]
pub(crate) struct Strides {
    pub(super) is_swapped: bool,
    /// From row to row in a and out.
    pub(super) rows: [isize; 2],
    /// From k to k in a and b.
    pub(super) k: [isize; 2],
}

/// Strides of a job whose columns stand side by side.
pub(super) fn strides<A: Acc>(job: &Job<'_, A>, is_swapped: bool, width: usize) -> Option<Strides> {
    let (plan, [_, m, n, k]) = (job.plan, job.sizes);
    let (m_loops, n_loops, k_loops) = (only(plan.m())?, only(plan.n())?, only(plan.k())?);
    let (a, b) = if is_swapped { (1, 0) } else { (0, 1) };
    let (row_count, column_count, by_row, by_column) = if is_swapped { (n, m, n_loops, m_loops) } else { (m, n, m_loops, n_loops) };
    if column_count > 1 && (by_column[b] != 1 || by_column[2] != 1) {
        return None;
    }
    let size = size_of::<A>();
    let is_near = |stride: isize, count: usize, most: usize| stride.unsigned_abs().saturating_mul(count).saturating_mul(size) <= most;
    let is_b_near = is_near(k_loops[b], k.min(A::BLOCK), NEAR_BYTES)
        && (job.isa < Isa::Amx || row_count < 4 * MAX_ROWS || is_near(k_loops[b], k, ALL_NEAR_BYTES));
    if row_count > 2 * MAX_ROWS && !is_b_near && column_count > 1 {
        return None;
    }
    let a_span = by_row[a].unsigned_abs().saturating_mul(row_count).max(k_loops[a].unsigned_abs().saturating_mul(k));
    let a_block = row_count.saturating_mul(k.min(A::BLOCK)) as isize;
    let is_a_near = if k_loops[a] == 1 { is_near(a_block, 1, ROWS_NEAR_BYTES) } else { is_near(a_span as isize, 1, ROWS_STRIDED_BYTES) };
    if column_count > 2 * width && row_count > 1 && !is_a_near {
        return None;
    }
    Some(Strides { is_swapped, rows: [by_row[a], by_row[2]], k: [k_loops[a], k_loops[b]] })
}

/// Whether, and how, a job can be read in place.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>) -> Option<Strides> {
    // A sum of several blocks is added as a whole.
    if A::PARTS != 1 || (job.adds && job.sizes[3] > A::BLOCK) {
        return None;
    }
    job.lhs.plain()?;
    job.rhs.plain()?;
    job.out.plain()?;
    let [_, m, n, _] = job.sizes;
    let micro = A::micro(job.isa, false);
    let width = micro.lanes * micro.vectors;
    let across_n = strides(job, false, width);
    match across_n {
        Some(s) if n > 1 || m == 1 => Some(s),
        _ => strides(job, true, width).or(across_n),
    }
}

/// Runs a job that [`accepts`] took.
pub(crate) fn run<A: Acc>(job: &Job<'_, A>, s: Strides) -> Option<()> {
    let o = job.oriented(s.is_swapped);
    let data = (o.a.1.plain()?, o.b.1.plain()?);
    let [batch, _, _, k] = job.sizes;
    let [rows, columns] = o.sizes;
    let cost = rows.saturating_mul(columns).saturating_mul(k);
    let micro = o.micro;
    let width = micro.lanes * micro.vectors;
    if let (Some(inner), true) = (job.plan.batch().last(), rows <= micro.rows && columns <= width && k <= A::BLOCK) {
        return small(job, &o, &s, data, inner);
    }
    let (mut row_step, mut column_step) = (rows, columns);
    if cost.saturating_mul(batch) >= threads::SERIAL_BELOW && batch < 8 {
        let want = 4 * threads::current_threads() / batch;
        if want > 1 {
            if rows >= micro.rows * want {
                row_step = rows.div_ceil(want).next_multiple_of(micro.rows);
            } else if columns > width {
                column_step = columns.div_ceil(want).next_multiple_of(width);
            }
        }
    }
    let (row_parts, column_parts) = (rows.div_ceil(row_step), columns.div_ceil(column_step));
    let parts = row_parts * column_parts;
    if batch == 1 && parts == 1 {
        area(job, &o, &s, data, 0, [0, rows], [0, columns]);
        return Some(());
    }
    threads::for_each(batch * parts, cost / parts + 64, &|task| {
        let (row, column) = (task % parts / column_parts * row_step, task % column_parts * column_step);
        area(job, &o, &s, data, task / parts, [row, rows.min(row + row_step)], [column, columns.min(column + column_step)]);
    });
    Some(())
}

/// A batch of products of one tile each.
fn small<A: Acc>(job: &Job<'_, A>, o: &Oriented<'_, A>, s: &Strides, data: (&[A::Part], &[A::Part]), inner: &Loop<3>) -> Option<()> {
    let c = job.out.plain()?;
    let [batch, _, _, terms] = job.sizes;
    let [rows, cols] = o.sizes;
    let (a_rows, c_rows): ([isize; MAX_ROWS], [isize; MAX_ROWS]) =
        (std::array::from_fn(|i| i as isize * s.rows[0]), std::array::from_fn(|i| i as isize * s.rows[1]));
    let steps = [inner.strides[o.a.0], inner.strides[o.b.0], inner.strides[2]];
    let bytes = (rows * terms + terms * cols + rows * cols) * size_of::<A>();
    threads::for_ranges(batch, threads::cost(rows * cols * terms, bytes), &|range| {
        let mut at = range.start;
        while at < range.end {
            let count = (inner.len - at % inner.len).min(range.end - at);
            let bases = job.bases(at);
            let a = Lines { data: data.0, at: bases[o.a.0], step: s.k[0] };
            let b = Lines { data: data.1, at: bases[o.b.0], step: s.k[1] };
            let (a_rows, c_rows) = (&a_rows[..rows], &c_rows[..rows]);
            o.micro.run(&Run {
                terms,
                a,
                a_rows,
                b,
                c,
                c_at: bases[2],
                c_rows,
                cols,
                start: &[],
                first: !job.adds,
                is_streamed: false,
                count,
                steps,
            });
            at += count;
        }
    });
    Some(())
}

#[inline]
fn area<A: Acc>(
    job: &Job<'_, A>,
    o: &Oriented<'_, A>,
    s: &Strides,
    data: (&[A::Part], &[A::Part]),
    batch: usize,
    rows: [usize; 2],
    columns: [usize; 2],
) {
    let Some(out) = job.out.plain() else { return };
    let bases = job.bases(batch);
    let micro = o.micro;
    let k = job.sizes[3];
    let mut a_rows = [0isize; MAX_ROWS];
    let mut c_rows = [0isize; MAX_ROWS];
    for i in 0..micro.rows.min(rows[1] - rows[0]) {
        a_rows[i] = i as isize * s.rows[0];
        c_rows[i] = i as isize * s.rows[1];
    }
    let is_streamed = job.is_streamed();
    let mut from = 0;
    while from < k {
        let terms = A::BLOCK.min(k - from);
        let first = from == 0 && !job.adds;
        let strip = (STRIP_BYTES / (terms * size_of::<A>()) / micro.rows).max(1) * micro.rows;
        for strip_row in (rows[0]..rows[1]).step_by(strip) {
            let end = rows[1].min(strip_row + strip);
            let mut column = columns[0];
            while column < columns[1] {
                let cols = micro.panel(columns[1] - column);
                let b = Lines { data: data.1, at: bases[o.b.0] + column as isize + from as isize * s.k[1], step: s.k[1] };
                let mut row = strip_row;
                // All whole tiles down a strip at once, then one of the rows that are left.
                while row < end {
                    let height = micro.rows.min(end - row);
                    let count = (end - row) / height;
                    let a = Lines { data: data.0, at: bases[o.a.0] + row as isize * s.rows[0] + from as isize * s.k[0], step: s.k[0] };
                    let c_at = bases[2] + row as isize * s.rows[1] + column as isize;
                    let (a_rows, c_rows) = (&a_rows[..height], &c_rows[..height]);
                    let steps = [s.rows[0], 0, s.rows[1]].map(|step| step * height as isize);
                    micro.run(&Run { terms, a, a_rows, b, c: out, c_at, c_rows, cols, start: &[], first, is_streamed, count, steps });
                    row += height * count;
                }
                column += cols;
            }
        }
        from += terms;
    }
    if is_streamed {
        arch::settle();
    }
}
