//! Two products of one matrix, by a row and by a column, as the gradients of an outer product are. Both wait for the matrix
//! where it is larger than the caches, so it is read once for both.

use bilin_core::exec::buffer::{host_bytes, host_bytes_mut};
use bilin_core::exec::call::{Accum, ContractCall};
use bilin_core::shape::plan::Plan;
use bilin_core::{DType, Result};

use super::disjoint::Shared;
use super::element::Acc;
use super::line::{self, Added, Form, Way};
use super::scratch::with_scratch;
use super::typed::{elements, elements_mut};
use crate::arch::line::{Aside, Rows};
use crate::arch::{Isa, Lines};
use crate::threads;

/// How two products stand, where each is a vector times a matrix of the same lines, of which the terms of the first stand side by
/// side, and the columns of the second.
fn accepts<A: Acc>(plans: [&Plan; 2]) -> Option<[Form; 2]> {
    let form = |plan: &Plan, way| {
        let [batch, m, n, _] = plan.sizes();
        let form = if batch == 1 && m.min(n) == 1 { line::form::<A>(plan, n < m) } else { None };
        form.filter(|f| f.way == way && f.column_step == 1)
    };
    let forms = [form(plans[0], Way::Along)?, form(plans[1], Way::Across)?];
    let [[_, m, n, k], [_, p, q, l]] = plans.map(Plan::sizes);
    ([m.max(n), k] == [l, p.max(q)] && forms[0].steps[1] == forms[1].steps[1]).then_some(forms)
}

/// The memory of a product, with its first elements.
struct Side<'a, A> {
    matrix: (&'a [A], isize),
    vector: Lines<'a, A>,
    out: (Shared<'a, A>, isize),
}

/// `None` where memory isn't aligned to elements.
fn side<'a, A: Acc>(call: ContractCall<'a>, form: &Form) -> Result<Option<Side<'a, A>>> {
    let ContractCall { op, plan, lhs, rhs, out, .. } = call;
    let [lhs_at, rhs_at, out_at] = plan.offsets().map(|o| o as isize);
    let mut sides = [(elements(host_bytes(op, lhs.buffer)?), lhs_at), (elements(host_bytes(op, rhs.buffer)?), rhs_at)];
    if form.is_swapped {
        sides.reverse();
    }
    let out = elements_mut(host_bytes_mut(op, out.buffer)?);
    let [(Some(vector), at), (Some(matrix), matrix_at)] = sides else { return Ok(None) };
    let vector = Lines { data: vector, at, step: form.steps[0] };
    Ok(out.map(|out| Side { matrix: (matrix, matrix_at), vector, out: (Shared::new(out), out_at) }))
}

/// Runs two calls whose operands, sums and results are all of `dtype`, which is `A`'s. False, and nothing is touched, where they
/// are of others or not of one matrix, or where one after the other is better or all there is room for.
pub(super) fn run<A: Acc<Part = A>>(mut calls: [ContractCall<'_>; 2], dtype: DType) -> Result<bool> {
    let is_plain = |c: &ContractCall<'_>| [c.accumulator, c.lhs.dtype, c.rhs.dtype, c.out.dtype] == [dtype; 4];
    if calls.iter().any(|c| c.accum != Accum::Replace || !is_plain(c)) {
        return Ok(false);
    }
    let found = |calls: &[ContractCall<'_>; 2]| accepts::<A>([calls[0].plan, calls[1].plan]);
    let forms = found(&calls).or_else(|| {
        calls.reverse();
        found(&calls)
    });
    let Some(forms) = forms else { return Ok(false) };
    let [rows, columns] = [calls[1].plan.sizes()[3], calls[0].plan.sizes()[3]];
    // A task reads the rows of one block of the sums over columns, so that it sums each of these from end to end.
    let blocks = rows.div_ceil(A::BLOCK);
    let cost = threads::cost(2 * A::BLOCK * columns, A::BLOCK.saturating_mul(columns) * size_of::<A>());
    // Twice by all threads is better than once by less than half of them.
    if cost.saturating_mul(blocks) >= threads::SERIAL_BELOW && 2 * blocks < threads::current_threads() {
        return Ok(false);
    }
    let [first, second] = calls;
    let (Some(along), Some(across)) = (side::<A>(first, &forms[0])?, side::<A>(second, &forms[1])?) else { return Ok(false) };
    let ((matrix, at), step) = (along.matrix, forms[0].steps[1]);
    if !std::ptr::eq(matrix, across.matrix.0) || at != across.matrix.1 {
        return Ok(false);
    }
    let isa = Isa::best();
    let done = with_scratch((blocks - 1) * columns * size_of::<A>(), 0, |memory, _| {
        let more: &mut [A] = bytemuck::cast_slice_mut(memory);
        let kept = Shared::new(&mut *more);
        threads::for_each(blocks, cost, &|block| {
            let from = (block * A::BLOCK) as isize;
            let later = block.checked_sub(1).map(|later| (&kept, (later * columns) as isize));
            let (sums, sums_at) = later.unwrap_or((&across.out.0, across.out.1));
            let rows = Rows {
                sizes: [columns, 1, A::BLOCK.min(rows - block * A::BLOCK)],
                block: A::BLOCK,
                x: along.vector,
                row_steps: [0, 0],
                b: Lines { data: matrix, at: at + from * step, step },
                c: &along.out.0,
                c_at: along.out.1 + from,
            };
            let weights = Lines { at: across.vector.at + from * across.vector.step, ..across.vector };
            A::micro(isa, false).both(&rows, &Aside { weights, sums, at: sums_at });
        });
        let total: &mut [A] = across.out.0.run(across.out.1, columns);
        more.chunks_exact(columns).for_each(|sums| isa.with(Added(&mut *total, sums)));
    });
    Ok(done.is_some())
}
