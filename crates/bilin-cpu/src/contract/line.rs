//! A few rows times a matrix: mat-vec, vec-mat and their like. The matrix is read once, in the order in which it stands.

use std::sync::atomic::{AtomicBool, Ordering};

use bilin_core::shape::plan::Loop;

use super::disjoint::Shared;
use super::element::Acc;
use super::job::Job;
use super::scratch::with_scratch;
use crate::arch::line::Rows;
use crate::arch::tile::MAX_ROWS;
use crate::arch::{Lines, Work};
use crate::threads;

/// Bytes of sums of a task: they stay in the nearest cache.
const SUM_BYTES: usize = 32 << 10;
/// Bytes of a matrix from which reading it run by run pays, for one row and for several.
const FAR_BYTES: [usize; 2] = [16 << 10, 1 << 20];

/// How a job stands in memory.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    is_swapped: bool,
    /// Whether columns, rather than terms, stand side by side.
    is_across: bool,
    /// From one k to the next in the rows; from one k (across) or column (along) to the next in the matrix.
    steps: [isize; 2],
    /// From row to row, in the rows and in the result.
    row_steps: [isize; 2],
}

/// Whether, and how, one operand is a few rows and the other a matrix with a dense axis.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>) -> Option<Form> {
    let [_, m, n, _] = job.sizes;
    if A::PARTS != 1 || m.min(n) > MAX_ROWS || m.max(n) == 1 {
        return None;
    }
    job.lhs.plain()?;
    job.rhs.plain()?;
    job.out.plain()?;
    let is_swapped = n < m;
    form(job, is_swapped).or_else(|| if m.max(n) <= MAX_ROWS { form(job, !is_swapped) } else { None })
}

fn form<A: Acc>(job: &Job<'_, A>, is_swapped: bool) -> Option<Form> {
    let plan = job.plan;
    let (rows, columns, a, b) = if is_swapped { (plan.n(), plan.m(), 1, 0) } else { (plan.m(), plan.n(), 0, 1) };
    let row = match rows {
        [] => Loop { len: 1, strides: [0; 3] },
        [one] => *one,
        _ => return None,
    };
    let ([column], [term]) = (columns, plan.k()) else { return None };
    if column.strides[2] != 1 {
        return None;
    }
    let form =
        |is_across, step| Form { is_swapped, is_across, steps: [term.strides[a], step], row_steps: [row.strides[a], row.strides[2]] };
    let far = FAR_BYTES[usize::from(row.len > 1)];
    if column.strides[b] == 1 {
        return (column.len * term.len * size_of::<A>() > far).then(|| form(true, term.strides[b]));
    }
    let pays = term.strides[b] == 1 && column.len >= 4 * row.len && term.len >= 8;
    pays.then(|| form(false, column.strides[b]))
}

struct Added<'a, A>(&'a mut [A], &'a [A]);

impl<A: Acc> Work for Added<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (a, &b) in self.0.iter_mut().zip(self.1) {
            *a = a.plus(b);
        }
    }
}

/// Runs a job that [`accepts`] took; `None` where there is no room for sums.
pub(crate) fn run<A: Acc>(job: &Job<'_, A>, form: Form) -> Option<()> {
    let o = job.oriented(form.is_swapped);
    let (x, b, out) = (o.a.1.plain()?, o.b.1.plain()?, job.out.plain()?);
    let [batch, _, _, k] = job.sizes;
    let [rows, columns] = o.sizes;
    let work = rows.saturating_mul(columns).saturating_mul(k);
    let threads = if work.saturating_mul(batch) < threads::SERIAL_BELOW { 1 } else { threads::current_threads() };
    let most = if form.is_across { (SUM_BYTES / (rows * size_of::<A>())).max(64) } else { columns };
    let wanted = if threads == 1 { 1 } else { (2 * threads).div_ceil(batch) };
    // Whole lines of memory a task, so that no two tasks write to one.
    let step = columns.div_ceil(wanted).min(most).next_multiple_of(64);
    let parts = columns.div_ceil(step);
    let has_failed = AtomicBool::new(false);
    threads::for_each(batch * parts, work / parts + 16, &|task| {
        let (bases, column) = (job.bases(task / parts), task % parts * step);
        let count = step.min(columns - column);
        let at = |from: usize| Lines { data: x, at: bases[o.a.0] + from as isize * form.steps[0], step: form.steps[0] };
        let blocks = (0..k).step_by(A::BLOCK).map(|from| (from, A::BLOCK.min(k - from)));
        let b = |from: usize| {
            let ahead = if form.is_across {
                from as isize * form.steps[1] + column as isize
            } else {
                from as isize + column as isize * form.steps[1]
            };
            Lines { data: b, at: bases[o.b.0] + ahead, step: form.steps[1] }
        };
        let c_at = bases[2] + column as isize;
        let len = rows * count;
        // Totals that are added to the result stand apart until they are whole, as sums of a block do.
        let (totals, block) = (if job.adds { len } else { 0 }, if form.is_across && k > A::BLOCK { len } else { 0 });
        let done = with_scratch((totals + block) * size_of::<A>(), 0, |memory, _| {
            let (totals, block) = bytemuck::cast_slice_mut::<u8, A::Part>(memory).split_at_mut(totals);
            {
                let own = Shared::new(&mut *totals);
                let (c, c_at, c_row) = if job.adds { (&own, 0, count as isize) } else { (out, c_at, form.row_steps[1]) };
                let row_steps = [form.row_steps[0], c_row];
                for (from, terms) in blocks {
                    let sizes = [terms, rows, count];
                    if !form.is_across {
                        o.micro.along(&Rows { sizes, x: at(from), row_steps, b: b(from), c, c_at }, from == 0);
                    } else if from == 0 {
                        o.micro.across(&Rows { sizes, x: at(0), row_steps, b: b(0), c, c_at });
                    } else {
                        let row_steps = [form.row_steps[0], count as isize];
                        o.micro.across(&Rows { sizes, x: at(from), row_steps, b: b(from), c: &Shared::new(&mut *block), c_at: 0 });
                        for (row, sums) in block.chunks_exact(count).enumerate() {
                            let total = c.run(c_at + row as isize * c_row, count);
                            job.isa.with(Added::<A>(bytemuck::cast_slice_mut(total), bytemuck::cast_slice(sums)));
                        }
                    }
                }
            }
            for (row, total) in totals.chunks_exact(count).enumerate() {
                let old = out.run(c_at + row as isize * form.row_steps[1], count);
                job.isa.with(Added::<A>(bytemuck::cast_slice_mut(old), bytemuck::cast_slice(total)));
            }
        });
        if done.is_none() {
            has_failed.store(true, Ordering::Relaxed);
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}
