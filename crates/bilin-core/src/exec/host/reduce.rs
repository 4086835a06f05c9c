//! Reductions in a fixed order, whatever the strides and the number of threads.

use super::convert::{load_block, store_block};
use super::scalar::Scalar;
use super::{BLOCK, Workers, check_alignment};
use crate::exec::buffer::{host_bytes, host_bytes_mut};
use crate::exec::call::{ReduceCall, Reduction};
use crate::exec::map_expr::compute_dtype;
use crate::exec::order::{SUM_BLOCK, SUM_LANES};
use crate::shape::dtype::{DType, c64, c128};
use crate::shape::error::Result;
use crate::shape::plan::{Loop, position, steps};

/// Runs a reduction. Cost: one pass over the operand.
pub fn reduce(call: ReduceCall<'_>, workers: &dyn Workers) -> Result<()> {
    let compute = match call.reduction {
        Reduction::Sum => compute_dtype(call.accumulator),
        _ => compute_dtype(call.input.dtype),
    };
    match compute {
        DType::F32 => run::<f32>(call, workers),
        DType::F64 => run::<f64>(call, workers),
        DType::C64 => run::<c64>(call, workers),
        DType::C128 => run::<c128>(call, workers),
        _ => run::<i64>(call, workers),
    }
}

/// Columns that are summed side by side.
const COLUMNS: usize = 32;

struct Job<'a> {
    bytes: &'a [u8],
    dtype: DType,
    offset: isize,
    kept: &'a [Loop<1>],
    reduced: &'a [Loop<1>],
}

fn run<T: Scalar>(call: ReduceCall<'_>, workers: &dyn Workers) -> Result<()> {
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
    workers.chunks(&mut out[..outputs * size], per_chunk * size, outputs * terms.max(1), &|i, chunk| {
        let first = i * per_chunk;
        let count = chunk.len() / size;
        match reduction {
            Reduction::Sum if is_by_columns(&job) => sum_columns::<T>(&job, first, count, out_dtype, chunk),
            Reduction::Sum => each(&job, first, count, |at| sum_row::<T>(&job, at), |i, v| store_block(out_dtype, chunk, i, 1, &[v])),
            Reduction::Max | Reduction::Min => each(
                &job,
                first,
                count,
                |at| extreme::<T>(&job, at, reduction == Reduction::Max).0,
                |i, v| store_block(out_dtype, chunk, i, 1, &[v]),
            ),
            Reduction::Argmax | Reduction::Argmin => each(
                &job,
                first,
                count,
                |at| extreme::<T>(&job, at, reduction == Reduction::Argmax).1,
                |i, v| store_block(out_dtype, chunk, i, 1, &[v]),
            ),
        }
    });
    Ok(())
}

fn each<V>(job: &Job<'_>, first: usize, count: usize, value: impl Fn(isize) -> V, mut put: impl FnMut(isize, V)) {
    for i in 0..count {
        let at = job.offset + position(job.kept, first + i)[0];
        put(i as isize, value(at));
    }
}

/// Blocks of consecutive terms of one output, as (first position, stride, count).
fn blocks(job: &Job<'_>, at: isize, mut visit: impl FnMut(isize, isize, usize)) {
    let one = Loop { len: 1, strides: [0] };
    let (outer, inner) = match job.reduced.split_last() {
        Some((inner, outer)) => (outer, *inner),
        None => (&[] as &[Loop<1>], one),
    };
    for row in 0..steps(outer) {
        let start = at + position(outer, row)[0];
        let mut done = 0;
        while done < inner.len {
            let n = BLOCK.min(inner.len - done);
            visit(start + done as isize * inner.strides[0], inner.strides[0], n);
            done += n;
        }
    }
}

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

fn sum_row<T: Scalar>(job: &Job<'_>, at: isize) -> T {
    let mut lanes = [T::neutral(); SUM_LANES];
    let mut buffer = [T::default(); BLOCK];
    let (mut term, mut total, mut is_first) = (0usize, T::default(), true);
    let mut close = |lanes: &mut [T; SUM_LANES], total: &mut T| {
        let sum = fold(lanes);
        *total = if is_first { sum } else { total.add(sum) };
        is_first = false;
    };
    blocks(job, at, |start, stride, n| {
        load_block(job.dtype, job.bytes, start, stride, &mut buffer[..n]);
        let mut rest = &buffer[..n];
        while !rest.is_empty() {
            let room = SUM_BLOCK - term % SUM_BLOCK;
            let (now, later) = rest.split_at(room.min(rest.len()));
            if term.is_multiple_of(SUM_LANES) {
                for chunk in now.chunks(SUM_LANES) {
                    for (lane, &x) in lanes.iter_mut().zip(chunk) {
                        *lane = lane.add(x);
                    }
                }
            } else {
                for (i, &x) in now.iter().enumerate() {
                    let lane = &mut lanes[(term + i) % SUM_LANES];
                    *lane = lane.add(x);
                }
            }
            term += now.len();
            if term.is_multiple_of(SUM_BLOCK) {
                close(&mut lanes, &mut total);
            }
            rest = later;
        }
    });
    if !term.is_multiple_of(SUM_BLOCK) {
        close(&mut lanes, &mut total);
    }
    total
}

/// Whether neighbours of the result stand closer together than neighbours of the sum.
fn is_by_columns(job: &Job<'_>) -> bool {
    match (job.kept.last(), job.reduced.last()) {
        (Some(kept), Some(reduced)) => kept.strides[0].unsigned_abs() < reduced.strides[0].unsigned_abs(),
        _ => false,
    }
}

fn sum_columns<T: Scalar>(job: &Job<'_>, first: usize, count: usize, out_dtype: DType, out: &mut [u8]) {
    let Some(columns) = job.kept.last() else { return };
    let terms = steps(job.reduced);
    let mut done = 0;
    while done < count {
        let at = first + done;
        let width = COLUMNS.min(count - done).min(columns.len - at % columns.len);
        let base = job.offset + position(job.kept, at)[0];
        let mut lanes = [[T::neutral(); COLUMNS]; SUM_LANES];
        let mut total = [T::default(); COLUMNS];
        let mut row = [T::default(); COLUMNS];
        for term in 0..terms {
            load_block(job.dtype, job.bytes, base + position(job.reduced, term)[0], columns.strides[0], &mut row[..width]);
            for (lane, &x) in lanes[term % SUM_LANES][..width].iter_mut().zip(&row[..width]) {
                *lane = lane.add(x);
            }
            if (term + 1) % SUM_BLOCK == 0 || term + 1 == terms {
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

fn extreme<T: Scalar>(job: &Job<'_>, at: isize, is_max: bool) -> (T, i64) {
    let mut buffer = [T::default(); BLOCK];
    let mut best: Option<(T, i64)> = None;
    let mut term = 0i64;
    blocks(job, at, |start, stride, n| {
        load_block(job.dtype, job.bytes, start, stride, &mut buffer[..n]);
        for &x in &buffer[..n] {
            let is_better = match best {
                None => true,
                Some((b, _)) if b.is_nan() => false,
                Some((b, _)) => x.is_nan() || if is_max { b.lt(x) } else { x.lt(b) },
            };
            if is_better {
                best = Some((x, term));
            }
            term += 1;
        }
    });
    best.unwrap_or_default()
}
