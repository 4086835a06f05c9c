//! A row of halves times a matrix of halves, or that matrix times a column: the matrix is read once, in the order in which it
//! stands, and widened, or multiplied in pairs, on the way.

use std::sync::atomic::{AtomicBool, Ordering};

use bilin_core::exec::order::PAIRED_FROM;
use half::f16;

use super::element::{Acc, Convert, Plain};
use super::job::Job;
use super::line::{self, Way};
use super::operand::is_same;
use super::scratch::{carve, carved_bytes, with_scratch};
use crate::arch::Lines;
use crate::arch::halves::{self, Kind, Row, WIDTH};
use crate::threads;

/// Most columns of a task where columns stand side by side: their sums stay in the nearest cache.
const MOST_COLUMNS: usize = 8192;

/// How a job goes.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    line: line::Form,
    kind: Kind,
}

/// Whether, and how, a job is a vector times a matrix with a dense axis, both of one half; by the instruction for pairs where
/// that is asked for. For bf16 this is a question of k alone, since what becomes of subnormal numbers depends on the answer.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>, in_pairs: bool) -> Option<Form> {
    let [_, m, n, k] = job.sizes;
    if !is_same::<A, f32>() || m.min(n) > 1 || m.max(n) == 1 || k == 1 {
        return None;
    }
    let ((lhs, _), (rhs, _)) = (job.lhs.halves()?, job.rhs.halves()?);
    if lhs != rhs {
        return None;
    }
    let kind = match (lhs, in_pairs) {
        (Kind::Bf16, true) if k >= PAIRED_FROM => Kind::Pairs,
        (kind, false) => kind,
        _ => return None,
    };
    Some(Form { line: line::form(job, n < m)?, kind }).filter(|_| kind.is_here())
}

/// Two terms of the vector as its kind wants them; −0 stands for one that isn't there, so that nothing is added for it.
fn pair(kind: Kind, a: u16, b: u16) -> [u32; 2] {
    match kind {
        Kind::Pairs => [u32::from(a) << 16 | u32::from(b), 0],
        Kind::Bf16 => [u32::from(a) << 16, u32::from(b) << 16],
        Kind::F16 => [a, b].map(|x| <Plain as Convert<f16, f32>>::convert(f16::from_bits(x)).to_bits()),
    }
}

/// Runs a job that [`accepts`] took; `None` where there is no room for sums.
pub(crate) fn run<A: Acc>(job: &Job<'_, A>, Form { line, kind }: Form) -> Option<()> {
    let o = job.oriented(line.is_swapped);
    let ((_, x), (_, b)) = (o.a.1.halves()?, o.b.1.halves()?);
    let [batch, _, _, k] = job.sizes;
    let columns = o.sizes[1];
    let work = threads::cost(columns.saturating_mul(k), columns.saturating_mul(k).saturating_mul(2));
    let threads = if work.saturating_mul(batch) < threads::SERIAL_BELOW { 1 } else { threads::current_threads() };
    let is_across = line.way == Way::Across;
    let wanted = if threads == 1 { 1 } else { (2 * threads).div_ceil(batch) };
    // Whole lines of memory a task, so that no two tasks write to one.
    let step = columns.div_ceil(wanted).min(if is_across { MOST_COLUMNS } else { columns }).next_multiple_of(64);
    let parts = columns.div_ceil(step);
    let pairs = k.div_ceil(2);
    let width = step.min(columns).next_multiple_of(WIDTH);
    let block = if is_across && k > A::BLOCK { width } else { 0 };
    let bytes = carved_bytes::<[u32; 2]>(pairs) + carved_bytes::<f32>(width) + carved_bytes::<f32>(block);
    let has_failed = AtomicBool::new(false);
    threads::for_each(batch * parts, work / parts, &|task| {
        let (bases, column) = (job.bases(task / parts), task % parts * step);
        let count = step.min(columns - column);
        let done = with_scratch(bytes, 0, |memory, _| {
            let (terms, memory) = carve::<[u32; 2]>(memory, pairs);
            let (totals, memory) = carve::<f32>(memory, width);
            let (sums, _) = carve::<f32>(memory, block);
            let term = |i: usize| if i < k { x[(bases[o.a.0] + i as isize * line.steps[0]) as usize] } else { 0x8000 };
            for (i, two) in terms.iter_mut().enumerate() {
                *two = pair(kind, term(2 * i), term(2 * i + 1));
            }
            let first = bases[o.b.0] + column as isize * if is_across { 1 } else { line.steps[1] };
            let row = |from: usize, terms_of: usize, c: &mut [f32]| {
                let at = first + from as isize * if is_across { line.steps[1] } else { 1 };
                let b = Lines { data: b, at, step: line.steps[1] };
                let row = &mut Row { terms: terms_of, columns: count, block: A::BLOCK, x: &terms[from / 2..], b, c };
                if is_across { halves::across(kind, row) } else { halves::along(kind, row) }
            };
            if is_across {
                row(0, k.min(A::BLOCK), totals);
                for from in (A::BLOCK..k).step_by(A::BLOCK) {
                    row(from, A::BLOCK.min(k - from), sums);
                    job.isa.with(line::Added(&mut totals[..count], &sums[..count]));
                }
            } else {
                row(0, k, totals);
            }
            let c_at = bases[2] + column as isize * line.column_step;
            job.out.scatter(c_at, line.column_step, bytemuck::cast_slice(&totals[..count]));
        });
        if done.is_none() {
            has_failed.store(true, Ordering::Relaxed);
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}
