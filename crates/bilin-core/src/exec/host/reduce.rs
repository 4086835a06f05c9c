//! Reductions in a fixed order, whatever the strides and the number of threads.

use std::marker::PhantomData;

use super::convert::{load_row, store_block};
use super::scalar::Scalar;
use super::{BLOCK, Work, Workers, check_alignment};
use crate::exec::buffer::{host_bytes, host_bytes_mut};
use crate::exec::call::{ReduceCall, Reduction};
use crate::exec::map_expr::compute_dtype;
use crate::exec::order::{SUM_BLOCK, SUM_LANES};
use crate::shape::dtype::{DType, c64, c128};
use crate::shape::error::Result;
use crate::shape::plan::{Loop, position, steps};

/// Runs a reduction. Cost: one pass over the operand.
pub fn reduce(call: ReduceCall<'_>, workers: &impl Workers) -> Result<()> {
    let compute = match call.reduction {
        Reduction::Sum => compute_dtype(call.accumulator),
        _ => compute_dtype(call.input.dtype),
    };
    match compute {
        DType::F32 => run::<f32, _>(call, workers),
        DType::F64 => run::<f64, _>(call, workers),
        DType::C64 => run::<c64, _>(call, workers),
        DType::C128 => run::<c128, _>(call, workers),
        _ => run::<i64, _>(call, workers),
    }
}

/// Columns that are reduced side by side.
const COLUMNS: usize = BLOCK;

struct Job<'a> {
    bytes: &'a [u8],
    dtype: DType,
    offset: isize,
    kept: &'a [Loop<1>],
    reduced: &'a [Loop<1>],
}

fn run<T: Scalar, W: Workers>(call: ReduceCall<'_>, workers: &W) -> Result<()> {
    let bytes = host_bytes(call.op, call.input.buffer)?;
    check_alignment::<u128>(call.op, bytes)?;
    let (out_dtype, size) = (call.out.dtype, call.out.dtype.size_bytes());
    let out = host_bytes_mut(call.op, call.out.buffer)?;
    check_alignment::<u128>(call.op, out)?;
    let (outputs, terms) = (steps(&call.kept), steps(&call.reduced));
    let job = Job { bytes, dtype: call.input.dtype, offset: call.offset as isize, kept: &call.kept, reduced: &call.reduced };
    // About as much work in a chunk as an elementwise chunk has, in whole column tiles.
    let per_chunk = (super::CHUNK / terms.max(1)).max(1).next_multiple_of(COLUMNS);
    let reduction = call.reduction;
    workers.chunks(&mut out[..outputs * size], per_chunk * size, outputs * terms.max(1), &|i, out| {
        let (first, count) = (i * per_chunk, out.len() / size);
        workers.compiled(Chunk::<T> { job: &job, reduction, first, count, out_dtype, out, compute: PhantomData });
    });
    Ok(())
}

/// Consecutive elements of the result.
struct Chunk<'a, T> {
    job: &'a Job<'a>,
    reduction: Reduction,
    first: usize,
    count: usize,
    out_dtype: DType,
    out: &'a mut [u8],
    compute: PhantomData<T>,
}

impl<T: Scalar> Work for Chunk<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Chunk { job, reduction, first, count, out_dtype, out, .. } = self;
        let is_max = matches!(reduction, Reduction::Max | Reduction::Argmax);
        let is_position = matches!(reduction, Reduction::Argmax | Reduction::Argmin);
        match (reduction, is_by_columns(job)) {
            (Reduction::Sum, true) => return sum_columns::<T>(job, first, count, out_dtype, out),
            (_, true) => return extreme_columns::<T>(job, first, count, [is_max, is_position], out_dtype, out),
            _ => {}
        }
        for i in 0..count {
            let at = job.offset + position(job.kept, first + i)[0];
            if reduction == Reduction::Sum {
                store_block(out_dtype, out, i as isize, 1, &[sum_row::<T>(job, at)]);
                continue;
            }
            let (value, term) = extreme::<T>(job, at, is_max, is_position);
            match is_position {
                true => store_block(out_dtype, out, i as isize, 1, &[term]),
                false => store_block(out_dtype, out, i as isize, 1, &[value]),
            }
        }
    }
}

/// Blocks of consecutive terms of one output, as (first position, stride, count).
#[inline(always)]
fn blocks<'a>(job: &'a Job<'_>, at: isize) -> impl Iterator<Item = (isize, isize, usize)> + 'a {
    let (outer, inner) = match job.reduced.split_last() {
        Some((inner, outer)) => (outer, *inner),
        None => (job.reduced, Loop { len: 1, strides: [0] }),
    };
    let stride = inner.strides[0];
    (0..steps(outer)).flat_map(move |row| {
        let start = at + position(outer, row)[0];
        (0..inner.len).step_by(BLOCK).map(move |done| (start + done as isize * stride, stride, BLOCK.min(inner.len - done)))
    })
}

/// The terms of a block: where they stand, or brought into `buffer`.
#[inline(always)]
fn terms<'a, T: Scalar>(job: &Job<'a>, (start, stride, n): (isize, isize, usize), buffer: &'a mut [T; BLOCK]) -> &'a [T] {
    if stride == 1 && job.dtype == T::DTYPE {
        return &bytemuck::cast_slice(job.bytes)[start as usize..start as usize + n];
    }
    load_row(job.dtype, job.bytes, start, stride, &mut buffer[..n]);
    &buffer[..n]
}

#[inline(always)]
fn fold<T: Scalar>(lanes: &mut [T; SUM_LANES]) -> T {
    let mut width = SUM_LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = lanes[i].add(lanes[i + width]);
        }
        width /= 2;
    }
    let sum = lanes[0];
    *lanes = [T::neutral(); SUM_LANES];
    sum
}

#[inline(always)]
fn sum_row<T: Scalar>(job: &Job<'_>, at: isize) -> T {
    let mut lanes = [T::neutral(); SUM_LANES];
    let mut buffer = [T::default(); BLOCK];
    let (mut term, mut total) = (0usize, None);
    for block in blocks(job, at) {
        let mut rest = terms(job, block, &mut buffer);
        while !rest.is_empty() {
            let room = SUM_BLOCK - term % SUM_BLOCK;
            let (now, later) = rest.split_at(room.min(rest.len()));
            let (whole, tail) = if term.is_multiple_of(SUM_LANES) { now.as_chunks::<SUM_LANES>() } else { (&[] as _, now) };
            let mut sums = lanes;
            for chunk in whole {
                for (lane, &x) in sums.iter_mut().zip(chunk) {
                    *lane = lane.add(x);
                }
            }
            lanes = sums;
            for (i, &x) in tail.iter().enumerate() {
                let lane = &mut lanes[(term + i) % SUM_LANES];
                *lane = lane.add(x);
            }
            term += now.len();
            if term.is_multiple_of(SUM_BLOCK) {
                total = Some(added(total, fold(&mut lanes)));
            }
            rest = later;
        }
    }
    if !term.is_multiple_of(SUM_BLOCK) {
        total = Some(added(total, fold(&mut lanes)));
    }
    total.unwrap_or_default()
}

#[inline(always)]
fn added<T: Scalar>(total: Option<T>, sum: T) -> T {
    total.map_or(sum, |total| total.add(sum))
}

/// Whether neighbours of the result stand closer together than neighbours of the sum.
fn is_by_columns(job: &Job<'_>) -> bool {
    match (job.kept.last(), job.reduced.last()) {
        (Some(kept), Some(reduced)) => kept.strides[0].unsigned_abs() < reduced.strides[0].unsigned_abs(),
        _ => false,
    }
}

#[inline(always)]
fn sum_columns<T: Scalar>(job: &Job<'_>, first: usize, count: usize, out_dtype: DType, out: &mut [u8]) {
    let Some(columns) = job.kept.last() else { return };
    let count_of_terms = steps(job.reduced);
    let mut done = 0;
    while done < count {
        let at = first + done;
        let width = COLUMNS.min(count - done).min(columns.len - at % columns.len);
        let base = job.offset + position(job.kept, at)[0];
        let mut lanes = [[T::neutral(); COLUMNS]; SUM_LANES];
        let mut total = [T::default(); COLUMNS];
        let mut buffer = [T::default(); BLOCK];
        for term in 0..count_of_terms {
            let row = terms(job, (base + position(job.reduced, term)[0], columns.strides[0], width), &mut buffer);
            for (lane, &x) in lanes[term % SUM_LANES][..width].iter_mut().zip(row) {
                *lane = lane.add(x);
            }
            if (term + 1) % SUM_BLOCK == 0 || term + 1 == count_of_terms {
                for (c, total) in total[..width].iter_mut().enumerate() {
                    let mut column = [T::neutral(); SUM_LANES];
                    for (l, lane) in lanes.iter_mut().enumerate() {
                        column[l] = lane[c];
                        lane[c] = T::neutral();
                    }
                    let sum = fold(&mut column);
                    *total = if term < SUM_BLOCK { sum } else { total.add(sum) };
                }
            }
        }
        store_block(out_dtype, out, done as isize, 1, &total[..width]);
        done += width;
    }
}

/// The greatest or least of several columns' terms, and which term that is: the first of equal ones, or of NaN.
struct Best<T, const N: usize> {
    values: [T; N],
    terms: [i64; N],
}

impl<T: Scalar, const N: usize> Best<T, N> {
    /// Of the first term of each.
    #[inline(always)]
    fn new(first: &[T], terms: [i64; N]) -> Self {
        let mut values = [T::default(); N];
        values.iter_mut().zip(first).for_each(|(value, &x)| *value = x);
        Best { values, terms }
    }

    /// Takes one more term of each in: `terms` come after those taken in before.
    #[inline(always)]
    fn take(&mut self, xs: &[T], terms: [i64; N], is_max: bool) {
        for (((best, at), &x), term) in self.values.iter_mut().zip(&mut self.terms).zip(xs).zip(terms) {
            let is_beyond = if is_max { best.lt(x) } else { x.lt(*best) };
            let is_better = is_beyond | (x.is_nan() & !best.is_nan());
            *best = if is_better { x } else { *best };
            *at = if is_better { term } else { *at };
        }
    }
}

/// The greatest or least term, NaN before all: the first of those that are equal, and where it stands if that is asked for.
#[inline(always)]
fn extreme<T: Scalar>(job: &Job<'_>, at: isize, is_max: bool, is_position: bool) -> (T, i64) {
    let is_beyond = |best: T, x: T| if is_max { best.lt(x) } else { x.lt(best) };
    let better = |best: T, x: T| if is_beyond(best, x) | x.is_nan() { x } else { best };
    let mut buffer = [T::default(); BLOCK];
    if steps(job.reduced) < SUM_LANES {
        let (mut best, mut at_term, mut term) = (T::default(), 0, 0);
        for block in blocks(job, at) {
            for &x in terms(job, block, &mut buffer) {
                if term == 0 || is_beyond(best, x) || (x.is_nan() && !best.is_nan()) {
                    (best, at_term) = (x, term);
                }
                term += 1;
            }
        }
        return (best, at_term);
    }
    let mut lanes: Option<[T; SUM_LANES]> = None;
    for block in blocks(job, at) {
        let (whole, tail) = terms(job, block, &mut buffer).as_chunks::<SUM_LANES>();
        let Some(first) = whole.first().or(tail.first().map(|&x| [x; SUM_LANES]).as_ref()).copied() else { continue };
        let mut best = lanes.unwrap_or(first);
        for xs in whole {
            for (best, &x) in best.iter_mut().zip(xs) {
                *best = better(*best, x);
            }
        }
        for (best, &x) in best.iter_mut().zip(tail) {
            *best = better(*best, x);
        }
        lanes = Some(best);
    }
    let mut lanes = lanes.unwrap_or_default();
    let mut width = SUM_LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = better(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    let best = lanes[0];
    if !is_position && !best.is_nan() && best != T::default() {
        return (best, 0);
    }
    // Zeros of both signs are equal, and so are all NaN here.
    let mut term = 0;
    for block in blocks(job, at) {
        let xs = terms(job, block, &mut buffer);
        if let Some(i) = xs.iter().position(|&x| x == best || (x.is_nan() && best.is_nan())) {
            return (xs[i], term + i as i64);
        }
        term += xs.len() as i64;
    }
    (best, 0)
}

#[inline(always)]
fn extreme_columns<T: Scalar>(
    job: &Job<'_>,
    first: usize,
    count: usize,
    [is_max, is_position]: [bool; 2],
    out_dtype: DType,
    out: &mut [u8],
) {
    let Some(columns) = job.kept.last() else { return };
    let mut buffer = [T::default(); BLOCK];
    let mut done = 0;
    while done < count {
        let at = first + done;
        let width = COLUMNS.min(count - done).min(columns.len - at % columns.len);
        let base = job.offset + position(job.kept, at)[0];
        let mut best = Best::<T, COLUMNS>::new(&[], [0; COLUMNS]);
        for term in 0..steps(job.reduced) {
            let row = terms(job, (base + position(job.reduced, term)[0], columns.strides[0], width), &mut buffer);
            match term {
                0 => best = Best::new(row, [0; COLUMNS]),
                _ => best.take(row, [term as i64; COLUMNS], is_max),
            }
        }
        match is_position {
            true => store_block(out_dtype, out, done as isize, 1, &best.terms[..width]),
            false => store_block(out_dtype, out, done as isize, 1, &best.values[..width]),
        }
        done += width;
    }
}
