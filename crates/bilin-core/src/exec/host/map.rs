//! The interpreter of [`MapExpr`]: each primitive runs over a block of elements at a time.

use super::convert::{load_block, store_block};
use super::scalar::Scalar;
use super::{BLOCK, CHUNK, Workers, check_alignment};
use crate::exec::buffer::{host_bytes, host_bytes_mut};
use crate::exec::call::{MAP_INPUTS, MapCall};
use crate::exec::map_expr::{MAX_DEPTH, MapExpr, Prim};
use crate::shape::dtype::{DType, c64, c128};
use crate::shape::error::{OpName, Result};
use crate::shape::plan::{Loop, position, steps};

/// Runs an elementwise call. Cost: one pass over the operands.
pub fn map(call: MapCall<'_>, workers: &dyn Workers) -> Result<()> {
    match call.expr.compute() {
        DType::F32 => run::<f32>(call, workers),
        DType::F64 => run::<f64>(call, workers),
        DType::C64 => run::<c64>(call, workers),
        DType::C128 => run::<c128>(call, workers),
        _ => run::<i64>(call, workers),
    }
}

/// Elements of a result that need no whole block.
const FEW: usize = 8;

struct Job<'a> {
    expr: &'a MapExpr,
    loops: &'a [Loop<5>],
    offsets: [usize; 5],
    inputs: [(&'a [u8], DType); MAP_INPUTS],
    out_dtype: DType,
}

fn run<T: Scalar>(call: MapCall<'_>, workers: &dyn Workers) -> Result<()> {
    let op: &OpName = call.op;
    let mut inputs = [(&[] as &[u8], DType::Bool); MAP_INPUTS];
    for (slot, source) in inputs.iter_mut().zip(call.inputs) {
        *slot = (host_bytes(op, source.buffer)?, source.dtype);
        check_alignment::<u128>(op, slot.0)?;
    }
    let out_dtype = call.out.dtype;
    let out = host_bytes_mut(op, call.out.buffer)?;
    check_alignment::<u128>(op, out)?;
    let total = steps(call.plan.loops());
    if total == 0 {
        return Ok(());
    }
    let mut job = Job { expr: call.expr, loops: call.plan.loops(), offsets: call.plan.offsets(), inputs, out_dtype };
    let size = out_dtype.size_bytes();
    let end = total.saturating_mul(size);
    if call.is_dense && total <= FEW {
        // Clearing a stack of whole blocks would cost more than the work.
        range::<T, FEW>(&job, 0, total, out, 0);
    } else if call.is_dense && end <= out.len() {
        let job = &job;
        workers.chunks(&mut out[..end], CHUNK * size, total * job.expr.prims().len(), &|i, chunk| {
            let start = i * CHUNK;
            range::<T, BLOCK>(job, start, chunk.len() / size, chunk, -(start as isize));
        });
    } else {
        let base = job.offsets[0] as isize;
        job.offsets[0] = 0;
        range::<T, BLOCK>(&job, 0, total, out, base);
    }
    Ok(())
}

/// Steps `start .. start + count` of the loops; `shift` is added to positions of the result.
fn range<T: Scalar, const B: usize>(job: &Job<'_>, start: usize, count: usize, out: &mut [u8], shift: isize) {
    let whole = [Loop { len: 1, strides: [0; 5] }];
    let (outer, inner) = match job.loops.split_last() {
        Some((inner, outer)) => (outer, inner),
        None => (&[] as &[Loop<5>], &whole[0]),
    };
    let mut stack = [[T::default(); B]; MAX_DEPTH];
    let mut at = start;
    let end = start + count;
    while at < end {
        let (row, first) = (at / inner.len, at % inner.len);
        let here = position(outer, row);
        let row_end = (inner.len - first).min(end - at);
        let mut done = 0;
        while done < row_end {
            let n = B.min(row_end - done);
            let mut places = [0isize; 5];
            for (i, p) in places.iter_mut().enumerate() {
                *p = job.offsets[i] as isize + here[i] + (first + done) as isize * inner.strides[i];
            }
            places[0] += shift;
            evaluate(job, &mut stack, &places, &inner.strides, n, out);
            store_block(job.out_dtype, out, places[0], inner.strides[0], &stack[0][..n]);
            done += n;
        }
        at += row_end;
    }
}

fn evaluate<T: Scalar, const B: usize>(
    job: &Job<'_>,
    stack: &mut [[T; B]; MAX_DEPTH],
    places: &[isize; 5],
    strides: &[isize; 5],
    n: usize,
    out: &[u8],
) {
    let mut top = 0;
    for prim in job.expr.prims() {
        macro_rules! push {
            ($value:expr) => {{
                stack[top][..n].fill($value);
                top += 1;
            }};
        }
        macro_rules! unary {
            ($f:expr) => {
                for a in &mut stack[top - 1][..n] {
                    *a = $f(*a);
                }
            };
        }
        macro_rules! binary {
            ($f:expr) => {{
                let (below, above) = stack.split_at_mut(top - 1);
                for (a, b) in below[top - 2][..n].iter_mut().zip(&above[0][..n]) {
                    *a = $f(*a, *b);
                }
                top -= 1;
            }};
        }
        match *prim {
            Prim::Input(i) => {
                let (bytes, dtype) = job.inputs[usize::from(i)];
                load_block(dtype, bytes, places[1 + usize::from(i)], strides[1 + usize::from(i)], &mut stack[top][..n]);
                top += 1;
            }
            Prim::Old => {
                load_block(job.out_dtype, out, places[0], strides[0], &mut stack[top][..n]);
                top += 1;
            }
            Prim::Const(x) => push!(T::constant(x)),
            Prim::ConstComplex(re, im) => push!(T::constant_complex(re, im)),
            Prim::ConstInt(x) => push!(T::constant_int(x)),
            Prim::Add => binary!(T::add),
            Prim::Sub => binary!(T::sub),
            Prim::Mul => binary!(T::mul),
            Prim::Div => binary!(T::div),
            Prim::Pow => binary!(T::pow),
            Prim::Max => binary!(T::max),
            Prim::Min => binary!(T::min),
            Prim::Eq => binary!(|a: T, b: T| T::truth(a == b)),
            Prim::Ne => binary!(|a: T, b: T| T::truth(a != b)),
            Prim::Lt => binary!(|a: T, b: T| T::truth(a.lt(b))),
            Prim::Le => binary!(|a: T, b: T| T::truth(a.le(b))),
            Prim::Gt => binary!(|a: T, b: T| T::truth(b.lt(a))),
            Prim::Ge => binary!(|a: T, b: T| T::truth(b.le(a))),
            Prim::Select => {
                let (below, above) = stack.split_at_mut(top - 2);
                let (a, b) = above.split_at(1);
                for ((c, &a), &b) in below[top - 3][..n].iter_mut().zip(&a[0]).zip(&b[0]) {
                    *c = if *c != T::default() { a } else { b };
                }
                top -= 2;
            }
            Prim::Neg => unary!(T::neg),
            Prim::Abs => unary!(T::abs),
            Prim::Sign => unary!(T::sign),
            Prim::Exp => unary!(T::exp),
            Prim::Log => unary!(T::log),
            Prim::Log1p => unary!(T::log1p),
            Prim::Expm1 => unary!(T::expm1),
            Prim::Sqrt => unary!(T::sqrt),
            Prim::Tanh => unary!(T::tanh),
            Prim::Sigmoid => unary!(T::sigmoid),
            Prim::Erf => unary!(T::erf),
            Prim::Erfc => unary!(T::erfc),
            Prim::Sin => unary!(T::sin),
            Prim::Cos => unary!(T::cos),
            Prim::Floor => unary!(T::floor),
            Prim::Conj => unary!(T::conj),
            Prim::Real => unary!(T::real),
            Prim::Imag => unary!(T::imag),
        }
    }
}
