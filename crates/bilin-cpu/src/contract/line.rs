//! A few rows times a matrix: mat-vec, vec-mat and their like. The matrix is read once, in the order in which it stands.
//! Outer products, which have one term, are written once in that order.

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
/// Terms from which reading columns whose terms stand side by side pays.
pub(super) const LEAST_ALONG: usize = 8;

/// How the matrix is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Its columns stand side by side.
    Across,
    /// Its terms do.
    Along,
    /// One term.
    Outer,
}

/// How a job stands in memory.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    pub(super) is_swapped: bool,
    pub(super) way: Way,
    /// From one k to the next in the rows; from one k (across) or column (along) to the next in the matrix.
    pub(super) steps: [isize; 2],
    /// From row to row, in the rows and in the result.
    row_steps: [isize; 2],
    /// From column to column in the result.
    pub(super) column_step: isize,
}

/// Whether, and how, one operand is a few rows and the other a matrix with a dense axis.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>) -> Option<Form> {
    let [_, m, n, k] = job.sizes;
    let is_outer = k == 1 && !job.adds;
    if A::PARTS != 1 || (m.min(n) > MAX_ROWS && !is_outer) || m.max(n) == 1 {
        return None;
    }
    // Neither way pays for so little.
    if !is_outer && k < LEAST_ALONG && m.max(n).saturating_mul(k * size_of::<A>()) <= FAR_BYTES[0] {
        return None;
    }
    job.lhs.plain()?;
    job.rhs.plain()?;
    job.out.plain()?;
    if is_outer {
        return form(job, false).or_else(|| form(job, true));
    }
    let is_swapped = n < m;
    form(job, is_swapped).or_else(|| if m.max(n) <= MAX_ROWS { form(job, !is_swapped) } else { None })
}

/// The one loop of a role, of a single step where there is none.
pub(super) fn only(loops: &[Loop<3>]) -> Option<Loop<3>> {
    match loops {
        [] => Some(Loop { len: 1, strides: [0; 3] }),
        [one] => Some(*one),
        _ => None,
    }
}

/// How a job stands where the operand that isn't swapped away is a matrix with a dense axis.
pub(super) fn form<A: Acc>(job: &Job<'_, A>, is_swapped: bool) -> Option<Form> {
    let plan = job.plan;
    let (rows, columns, a, b) = if is_swapped { (plan.n(), plan.m(), 1, 0) } else { (plan.m(), plan.n(), 0, 1) };
    let ([column], row, term) = (columns, only(rows)?, only(plan.k())?) else { return None };
    let form = |way, step| Form {
        is_swapped,
        way,
        steps: [term.strides[a], step],
        row_steps: [row.strides[a], row.strides[2]],
        column_step: column.strides[2],
    };
    let is_dense = column.strides[b] == 1;
    if term.len == 1 {
        return (is_dense && column.strides[2] == 1 && column.len >= 64).then(|| form(Way::Outer, 1));
    }
    if is_dense {
        let far = FAR_BYTES[usize::from(row.len > 1)];
        return (column.len * term.len * size_of::<A>() > far).then(|| form(Way::Across, term.strides[b]));
    }
    let pays = term.strides[b] == 1 && column.len >= 4 * row.len && term.len >= LEAST_ALONG;
    pays.then(|| form(Way::Along, column.strides[b]))
}

/// Sums of a block on their way to the totals.
pub(super) struct Added<'a, A>(pub(super) &'a mut [A], pub(super) &'a [A]);

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
    let elements = columns.saturating_mul(if k == 1 { rows } else { k });
    let bytes = elements.saturating_mul(size_of::<A>());
    let work = threads::cost(rows.saturating_mul(columns).saturating_mul(k), bytes);
    let threads = if work.saturating_mul(batch) < threads::SERIAL_BELOW { 1 } else { threads::current_threads() };
    if form.way == Way::Outer {
        let step = if threads == 1 { rows } else { rows.div_ceil(2 * threads) };
        threads::for_each(batch * rows.div_ceil(step), work / rows.div_ceil(step), &|task| {
            let (bases, row) = (job.bases(task / rows.div_ceil(step)), task % rows.div_ceil(step) * step);
            let x = Lines { data: x, at: bases[o.a.0] + row as isize * form.row_steps[0], step: 1 };
            let (b, c_at) = (Lines { data: b, at: bases[o.b.0], step: 1 }, bases[2] + row as isize * form.row_steps[1]);
            let sizes = [1, step.min(rows - row), columns];
            o.micro.outer(&Rows { sizes, block: A::BLOCK, x, row_steps: form.row_steps, b, c: out, c_at }, job.is_streamed());
        });
        return Some(());
    }
    let is_across = form.way == Way::Across;
    let most = if is_across { (SUM_BYTES / (rows * size_of::<A>())).max(64) } else { columns };
    let wanted = if threads == 1 { 1 } else { (2 * threads).div_ceil(batch) };
    // Whole lines of memory a task, so that no two tasks write to one.
    let step = columns.div_ceil(wanted).min(most).next_multiple_of(64);
    let parts = columns.div_ceil(step);
    let has_failed = AtomicBool::new(false);
    threads::for_each(batch * parts, work / parts, &|task| {
        let (bases, column) = (job.bases(task / parts), task % parts * step);
        let count = step.min(columns - column);
        let at = |from: usize| Lines { data: x, at: bases[o.a.0] + from as isize * form.steps[0], step: form.steps[0] };
        // Blocks of terms that stand side by side are read in one go.
        let once = if is_across { A::BLOCK } else { k };
        let blocks = (0..k).step_by(once).map(|from| (from, once.min(k - from)));
        let b = |from: usize| {
            let ahead =
                if is_across { from as isize * form.steps[1] + column as isize } else { from as isize + column as isize * form.steps[1] };
            Lines { data: b, at: bases[o.b.0] + ahead, step: form.steps[1] }
        };
        let c_at = bases[2] + column as isize * form.column_step;
        let len = rows * count;
        // Totals that are added to the result, or whose columns lie apart there, stand here until they are whole, as sums of
        // a block do.
        let is_apart = job.adds || form.column_step != 1;
        let (totals, block) = (if is_apart { len } else { 0 }, if is_across && k > A::BLOCK { len } else { 0 });
        let done = with_scratch((totals + block) * size_of::<A>(), 0, |memory, _| {
            let (totals, block) = bytemuck::cast_slice_mut::<u8, A::Part>(memory).split_at_mut(totals);
            {
                let own = Shared::new(&mut *totals);
                let (c, c_at, c_row) = if is_apart { (&own, 0, count as isize) } else { (out, c_at, form.row_steps[1]) };
                let row_steps = [form.row_steps[0], c_row];
                for (from, terms) in blocks {
                    let sizes = [terms, rows, count];
                    if !is_across {
                        o.micro.along(&Rows { sizes, block: A::BLOCK, x: at(from), row_steps, b: b(from), c, c_at });
                    } else if from == 0 {
                        o.micro.across(&Rows { sizes, block: A::BLOCK, x: at(0), row_steps, b: b(0), c, c_at });
                    } else {
                        let row_steps = [form.row_steps[0], count as isize];
                        o.micro.across(&Rows {
                            sizes,
                            block: A::BLOCK,
                            x: at(from),
                            row_steps,
                            b: b(from),
                            c: &Shared::new(&mut *block),
                            c_at: 0,
                        });
                        for (row, sums) in block.chunks_exact(count).enumerate() {
                            let total = c.run(c_at + row as isize * c_row, count);
                            job.isa.with(Added::<A>(bytemuck::cast_slice_mut(total), bytemuck::cast_slice(sums)));
                        }
                    }
                }
            }
            for (row, total) in totals.chunks_exact(count).enumerate() {
                job.out.scatter(c_at + row as isize * form.row_steps[1], form.column_step, bytemuck::cast_slice(total));
            }
        });
        if done.is_none() {
            has_failed.store(true, Ordering::Relaxed);
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}
