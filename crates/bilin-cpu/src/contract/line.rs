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
        let c_at = bases[2] + column as isize;
        if !form.is_across {
            // A vector of columns from end to end, then the next.
            for first in (0..count).step_by(o.micro.lanes) {
                let some = o.micro.lanes.min(count - first);
                let start = bases[o.b.0] + (column + first) as isize * form.steps[1];
                for (from, terms) in blocks.clone() {
                    let b = Lines { data: b, at: start + from as isize, step: form.steps[1] };
                    let (sizes, row_steps, c_at) = ([terms, rows, some], form.row_steps, c_at + first as isize);
                    o.micro.along(&Rows { sizes, x: at(from), row_steps, b, c: out, c_at }, from == 0);
                }
            }
            return;
        }
        let b = |from: usize| Lines { data: b, at: bases[o.b.0] + column as isize + from as isize * form.steps[1], step: form.steps[1] };
        let room = if k > A::BLOCK { rows * count * size_of::<A>() } else { 0 };
        let done = with_scratch(room, 0, |memory, _| {
            let block: &mut [A::Part] = bytemuck::cast_slice_mut(memory);
            for (from, terms) in blocks {
                let sizes = [terms, rows, count];
                if from == 0 {
                    o.micro.across(&Rows { sizes, x: at(0), row_steps: form.row_steps, b: b(0), c: out, c_at });
                    continue;
                }
                let row_steps = [form.row_steps[0], count as isize];
                o.micro.across(&Rows { sizes, x: at(from), row_steps, b: b(from), c: &Shared::new(&mut *block), c_at: 0 });
                for (row, sums) in block.chunks_exact(count).enumerate() {
                    let total = out.run(c_at + row as isize * form.row_steps[1], count);
                    job.isa.with(Added::<A>(bytemuck::cast_slice_mut(total), bytemuck::cast_slice(sums)));
                }
            }
        });
        if done.is_none() {
            has_failed.store(true, Ordering::Relaxed);
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}
