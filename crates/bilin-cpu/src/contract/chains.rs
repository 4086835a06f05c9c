//! A few rows of bf16 times a matrix whose columns stand side by side, in the order of a tile unit: the matrix is read once, as
//! it stands, while tiles would have it packed.

use std::sync::atomic::{AtomicBool, Ordering};

use bilin_core::exec::order::PAIRED_FROM;

use super::element::Acc;
use super::job::Job;
use super::line::only;
use super::operand::is_same;
use super::scratch::{carve, carved_bytes, with_scratch};
use super::steps::fill_offsets;
use crate::arch::chains::{self, Block, MOST_ROWS, TERMS, WIDTH};
use crate::arch::halves::Kind;
use crate::arch::{Lines, Work};
use crate::threads;

/// Bytes of totals of a task: they stay in the second-level cache. Runs of memory that are longer gain more than nearer totals do.
const TOTAL_BYTES: usize = 256 << 10;

/// Elements of a matrix below which tiles take more than four rows in less time.
const SMALL: usize = 1 << 12;

/// How a job stands in memory.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    is_swapped: bool,
    /// From one k to the next in the rows and in the matrix.
    k_steps: [isize; 2],
    /// From column to column in the result.
    column_step: isize,
}

/// Whether, and how, a job is a few rows of bf16 times columns that stand side by side.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>) -> Option<Form> {
    let [_, m, n, k] = job.sizes;
    if !is_same::<A, f32>() || k < PAIRED_FROM || !chains::are_here() {
        return None;
    }
    let ((lhs, _), (rhs, _)) = (job.lhs.halves()?, job.rhs.halves()?);
    if [lhs, rhs] != [Kind::Bf16; 2] {
        return None;
    }
    form(job, n < m).or_else(|| form(job, n >= m))
}

/// How a job stands where the operand that isn't swapped away is the matrix.
fn form<A: Acc>(job: &Job<'_, A>, is_swapped: bool) -> Option<Form> {
    let plan = job.plan;
    let [_, m, n, _] = job.sizes;
    let (rows, columns, a, b) = if is_swapped { (n, plan.m(), 1, 0) } else { (m, plan.n(), 0, 1) };
    let ([column], term) = (columns, only(plan.k())?) else { return None };
    let k_steps = [term.strides[a], term.strides[b]];
    (column.strides[b] == 1 && rows <= MOST_ROWS).then_some(Form { is_swapped, k_steps, column_step: column.strides[2] })
}

/// Whether this takes less time than tiles do, for a job that [`accepts`] takes: but for many of the few rows beside a small
/// matrix it does.
pub(crate) fn pays<A: Acc>(job: &Job<'_, A>) -> bool {
    let [_, m, n, k] = job.sizes;
    let (rows, columns) = (m.min(n), m.max(n));
    columns >= WIDTH && (rows <= 4 || columns.saturating_mul(k) >= SMALL)
}

/// Even and odd columns of a row's totals, side by side again.
struct Unfolded<'a> {
    totals: &'a [f32],
    rows: usize,
    row: usize,
    line: &'a mut [f32],
}

impl Work for Unfolded<'_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let (totals, _) = self.totals.as_chunks::<WIDTH>();
        let (line, _) = self.line.as_chunks_mut::<WIDTH>();
        for (to, of) in line.iter_mut().zip(totals.chunks_exact(self.rows)) {
            let from = of[self.row];
            for i in 0..WIDTH / 2 {
                to[2 * i] = from[i];
                to[2 * i + 1] = from[WIDTH / 2 + i];
            }
        }
    }
}

/// Runs a job that [`accepts`] took; `None` where there is no room for sums.
pub(crate) fn run<A: Acc>(job: &Job<'_, A>, form: Form) -> Option<()> {
    let o = job.oriented(form.is_swapped);
    let ((_, x), (_, b)) = (o.a.1.halves()?, o.b.1.halves()?);
    let [batch, _, _, k] = job.sizes;
    let [rows, columns] = o.sizes;
    let elements = columns.saturating_mul(k);
    let work = threads::cost(rows.saturating_mul(elements), elements.saturating_mul(2));
    let threads = if work.saturating_mul(batch) < threads::SERIAL_BELOW { 1 } else { threads::current_threads() };
    let wanted = if threads == 1 { 1 } else { (2 * threads).div_ceil(batch) };
    // Whole lines of memory a task, so that no two tasks write to one.
    let step = columns.div_ceil(wanted).min(TOTAL_BYTES / (4 * rows)).next_multiple_of(64);
    let parts = columns.div_ceil(step);
    let width = step.min(columns).next_multiple_of(WIDTH);
    let bytes = carved_bytes::<u32>(TERMS * rows) + carved_bytes::<f32>(rows * width) + carved_bytes::<f32>(width);
    let mut row_steps = [[0; MOST_ROWS]; 2];
    fill_offsets(o.rows, o.a.0, 0, &mut row_steps[0][..rows]);
    fill_offsets(o.rows, 2, 0, &mut row_steps[1][..rows]);
    let has_failed = AtomicBool::new(false);
    threads::for_each(batch * parts, work / parts, &|task| {
        let (bases, column) = (job.bases(task / parts), task % parts * step);
        let count = step.min(columns - column);
        let done = with_scratch(bytes, 0, |memory, _| {
            let (terms, memory) = carve::<u32>(memory, TERMS * rows);
            let (totals, memory) = carve::<f32>(memory, rows * width);
            let (line, _) = carve::<f32>(memory, width);
            totals.fill(0.0);
            for from in (0..k).step_by(TERMS) {
                let len = TERMS.min(k - from);
                let first = bases[o.a.0] + from as isize * form.k_steps[0];
                for (row, step) in row_steps[0][..rows].iter().enumerate() {
                    let first = first + step;
                    for i in 0..len {
                        let place = i % 2 * len.div_ceil(2) + i / 2;
                        terms[place * rows + row] = u32::from(x[(first + i as isize * form.k_steps[0]) as usize]) << 16;
                    }
                }
                let at = bases[o.b.0] + column as isize + from as isize * form.k_steps[1];
                let b = Lines { data: b, at, step: form.k_steps[1] };
                let has_next = from + TERMS < k;
                chains::add(&mut Block { rows, columns: count, x: &terms[..len * rows], b, has_next, totals });
            }
            for (row, step) in row_steps[1][..rows].iter().enumerate() {
                job.isa.with(Unfolded { totals, rows, row, line });
                let c_at = bases[2] + step + column as isize * form.column_step;
                job.out.scatter(c_at, form.column_step, bytemuck::cast_slice(&line[..count]));
            }
        });
        if done.is_none() {
            has_failed.store(true, Ordering::Relaxed);
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}
