//! The interpreter of [`MapExpr`]: each primitive runs over a block of elements at a time.

use std::cell::Cell;
use std::marker::PhantomData;

use super::convert::{load_block, load_row, load_walk, store_row, store_walk};
use super::scalar::Scalar;
use super::{BLOCK, CHUNK, Work, Workers, check_alignment};
use crate::exec::buffer::{host_bytes, host_bytes_mut};
use crate::exec::call::{MAP_INPUTS, MapCall};
use crate::exec::map_expr::{MAX_DEPTH, MapExpr, Prim};
use crate::shape::dtype::{DType, c64, c128};
use crate::shape::error::{OpName, Result};
use crate::shape::plan::{Loop, position, steps};

/// Runs an elementwise call. Cost: one pass over the operands.
pub fn map(call: MapCall<'_>, workers: &impl Workers) -> Result<()> {
    match call.expr.compute() {
        DType::F32 => run::<f32, _>(call, workers),
        DType::F64 => run::<f64, _>(call, workers),
        DType::C64 => run::<c64, _>(call, workers),
        DType::C128 => run::<c128, _>(call, workers),
        _ => run::<i64, _>(call, workers),
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

fn run<T: Scalar, W: Workers>(call: MapCall<'_>, workers: &W) -> Result<()> {
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
        range(&job, &mut [[T::default(); FEW]; MAX_DEPTH], 0, total, out, 0);
    } else if call.is_dense && end <= out.len() {
        let job = &job;
        workers.chunks(&mut out[..end], CHUNK * size, total * job.expr.prims().len(), &|i, chunk| {
            let start = i * CHUNK;
            let (count, shift) = (chunk.len() / size, -(start as isize));
            workers.compiled(Blocks::<T> { job, start, count, out: chunk, shift, compute: PhantomData });
        });
    } else {
        let base = job.offsets[0] as isize;
        job.offsets[0] = 0;
        workers.compiled(Blocks::<T> { job: &job, start: 0, count: total, out, shift: base, compute: PhantomData });
    }
    Ok(())
}

thread_local! {
    /// The blocks of a thread: clearing them anew for each chunk would take as long as simple work on one.
    static STACK: Cell<Vec<u128>> = const { Cell::new(Vec::new()) };
}

/// A call of [`range`] over whole blocks.
struct Blocks<'a, T> {
    job: &'a Job<'a>,
    start: usize,
    count: usize,
    out: &'a mut [u8],
    shift: isize,
    compute: PhantomData<T>,
}

impl<T: Scalar> Work for Blocks<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let mut words = STACK.try_with(Cell::take).unwrap_or_default();
        words.resize(words.len().max(MAX_DEPTH * BLOCK * size_of::<T>() / size_of::<u128>()), 0);
        let (stack, _) = bytemuck::cast_slice_mut::<u128, T>(&mut words).as_chunks_mut::<BLOCK>();
        range(self.job, stack, self.start, self.count, self.out, self.shift);
        // A thread that is ending keeps nothing.
        let _ = STACK.try_with(|kept| kept.set(words));
    }
}

/// Where a block of steps stands.
#[derive(Clone, Copy)]
enum Block {
    /// In one row of the innermost loop: first elements and strides of all operands.
    Row([isize; 5], [isize; 5]),
    /// In several, from this step on.
    Rows(usize),
}

/// Steps `start .. start + count` of the loops; `shift` is added to positions of the result.
#[inline(always)]
fn range<T: Scalar, const B: usize>(job: &Job<'_>, stack: &mut [[T; B]], start: usize, count: usize, out: &mut [u8], shift: isize) {
    let whole = [Loop { len: 1, strides: [0; 5] }];
    let (outer, inner) = match job.loops.split_last() {
        Some((inner, outer)) => (outer, inner),
        None => (&[] as &[Loop<5>], &whole[0]),
    };
    let mut at = start;
    let end = start + count;
    let base = job.offsets[0] as isize + shift;
    if inner.len < B && !outer.is_empty() {
        // Short rows share a block.
        while at < end {
            let n = B.min(end - at);
            compute(job, stack, Block::Rows(at), base, n, out);
            at += n;
        }
        return;
    }
    while at < end {
        let (row, first) = (at / inner.len, at % inner.len);
        let here = position(outer, row);
        let row_end = (inner.len - first).min(end - at);
        let mut done = 0;
        while done < row_end {
            let n = B.min(row_end - done);
            let mut places = [0isize; 5];
            for (i, p) in places.iter_mut().enumerate().take(1 + job.expr.inputs()) {
                *p = job.offsets[i] as isize + here[i] + (first + done) as isize * inner.strides[i];
            }
            places[0] += shift;
            compute(job, stack, Block::Row(places, inner.strides), base, n, out);
            done += n;
        }
        at += row_end;
    }
}

/// One block, from its inputs to the result, whose first element is `base`.
#[inline(always)]
fn compute<T: Scalar, const B: usize>(job: &Job<'_>, stack: &mut [[T; B]], block: Block, base: isize, n: usize, out: &mut [u8]) {
    let Some(there) = evaluate(job, stack, block, base, n, out) else { return };
    let values = there.unwrap_or(&stack[0][..n]);
    match block {
        Block::Row(places, strides) => store_row(job.out_dtype, out, places[0], strides[0], values),
        Block::Rows(at) => store_walk(job.out_dtype, out, base, (job.loops, 0), at, values),
    }
}

/// A value on the stack.
#[derive(Clone, Copy)]
enum Slot<'a, T> {
    /// In the block of its depth.
    Here,
    /// In memory, where an input has it.
    There(&'a [T]),
    /// The same for all elements.
    All(T),
}

/// Brings a value into the block of its depth.
#[inline(always)]
fn settle<T: Scalar>(slot: &mut Slot<'_, T>, block: &mut [T]) {
    match *slot {
        Slot::Here => return,
        Slot::There(from) => block.copy_from_slice(from),
        Slot::All(x) => block.fill(x),
    }
    *slot = Slot::Here;
}

/// Where the result's elements of a block stand side by side as the program computes them.
#[inline(never)]
fn side_by_side<'o, T: Scalar>(job: &Job<'_>, block: Block, n: usize, out: &'o mut [u8]) -> Option<&'o mut [T]> {
    match block {
        Block::Row(places, strides) if strides[0] == 1 && job.out_dtype == T::DTYPE => {
            Some(&mut bytemuck::cast_slice_mut(out)[places[0] as usize..][..n])
        }
        _ => None,
    }
}

/// Runs a program. Its value is in the first block or where an input has it; `None` where the last step has written it to the
/// result. `base` is the result's first element.
#[inline(always)]
fn evaluate<'a, T: Scalar, const B: usize>(
    job: &Job<'a>,
    stack: &mut [[T; B]],
    block: Block,
    base: isize,
    n: usize,
    out: &mut [u8],
) -> Option<Option<&'a [T]>> {
    // Of whole blocks of real numbers alone: each loop of a swift step is compiled for every type and instruction set, and
    // for all types they would be a tenth of the program.
    let is_swift = B == BLOCK && matches!(T::DTYPE, DType::F32 | DType::F64);
    let mut slots = [Slot::Here; MAX_DEPTH];
    let mut top = 0;
    let last = job.expr.prims().len() - 1;
    for (step, prim) in job.expr.prims().iter().enumerate() {
        macro_rules! push {
            ($value:expr) => {{
                slots[top] = Slot::All($value);
                top += 1;
            }};
        }
        macro_rules! unary {
            ($f:expr) => {{
                settle(&mut slots[top - 1], &mut stack[top - 1][..n]);
                for a in &mut stack[top - 1][..n] {
                    *a = $f(*a);
                }
            }};
        }
        // Steps that take hardly longer than to copy a block read their operands where these are, and the last one writes the
        // result.
        macro_rules! swift_unary {
            ($f:expr) => {{
                let own = &mut stack[top - 1][..n];
                let result = if step == last { side_by_side::<T>(job, block, n, out) } else { None };
                let is_result = result.is_some();
                match (slots[top - 1], result) {
                    (Slot::All(x), _) => slots[top - 1] = Slot::All($f(x)),
                    (Slot::Here, None) => own.iter_mut().for_each(|a| *a = $f(*a)),
                    (slot, result) => {
                        let (to, from): (&mut [T], &[T]) = match (slot, result) {
                            (Slot::There(from), Some(to)) => (to, from),
                            (Slot::There(from), None) => (own, from),
                            (_, Some(to)) => (to, own),
                            _ => continue,
                        };
                        to.iter_mut().zip(from).for_each(|(to, a)| *to = $f(*a));
                        if is_result {
                            return None;
                        }
                        slots[top - 1] = Slot::Here;
                    }
                }
            }};
        }
        macro_rules! swift_binary {
            ($f:expr) => {{
                let (below, above) = stack.split_at_mut(top - 1);
                let own = &mut below[top - 2][..n];
                let result = if step == last { side_by_side::<T>(job, block, n, out) } else { None };
                let (is_result, from) = (result.is_some(), [slots[top - 2], slots[top - 1]]);
                let b = match from[1] {
                    Slot::There(b) => b,
                    _ => &above[0][..n],
                };
                top -= 1;
                slots[top - 1] = Slot::Here;
                match (from, result) {
                    ([Slot::All(a), Slot::All(b)], _) => {
                        slots[top - 1] = Slot::All($f(a, b));
                        continue;
                    }
                    ([Slot::Here, Slot::All(b)], None) => own.iter_mut().for_each(|a| *a = $f(*a, b)),
                    ([Slot::Here, _], None) => own.iter_mut().zip(b).for_each(|(a, b)| *a = $f(*a, *b)),
                    ([Slot::All(a), _], result) => result.unwrap_or(own).iter_mut().zip(b).for_each(|(to, b)| *to = $f(a, *b)),
                    ([first, second], result) => {
                        let (to, a): (&mut [T], &[T]) = match (first, result) {
                            (Slot::There(a), Some(to)) => (to, a),
                            (Slot::There(a), None) => (own, a),
                            (_, Some(to)) => (to, own),
                            _ => continue,
                        };
                        match second {
                            Slot::All(b) => to.iter_mut().zip(a).for_each(|(to, a)| *to = $f(*a, b)),
                            _ => to.iter_mut().zip(a).zip(b).for_each(|((to, a), b)| *to = $f(*a, *b)),
                        }
                    }
                }
                if is_result {
                    return None;
                }
            }};
        }
        macro_rules! binary {
            ($f:expr) => {{
                let (below, above) = stack.split_at_mut(top - 1);
                let a = &mut below[top - 2][..n];
                settle(&mut slots[top - 2], a);
                let b = match slots[top - 1] {
                    Slot::Here => Ok(&above[0][..n]),
                    Slot::There(b) => Ok(b),
                    Slot::All(b) => Err(b),
                };
                match b {
                    Ok(b) => a.iter_mut().zip(b).for_each(|(a, b)| *a = $f(*a, *b)),
                    Err(b) => a.iter_mut().for_each(|a| *a = $f(*a, b)),
                }
                top -= 1;
            }};
        }
        match *prim {
            Prim::Input(i) => {
                let operand = 1 + usize::from(i);
                let (bytes, dtype) = job.inputs[usize::from(i)];
                slots[top] = match block {
                    Block::Row(places, strides) if strides[operand] == 1 && dtype == T::DTYPE => {
                        let from = places[operand] as usize;
                        Slot::There(&bytemuck::cast_slice(bytes)[from..from + n])
                    }
                    Block::Row(places, strides) if strides[operand] == 0 => {
                        let mut one = [T::default()];
                        load_block(dtype, bytes, places[operand], 0, &mut one);
                        Slot::All(one[0])
                    }
                    Block::Row(places, strides) => {
                        load_row(dtype, bytes, places[operand], strides[operand], &mut stack[top][..n]);
                        Slot::Here
                    }
                    Block::Rows(at) => {
                        load_walk(dtype, bytes, job.offsets[operand] as isize, (job.loops, operand), at, &mut stack[top][..n]);
                        Slot::Here
                    }
                };
                top += 1;
            }
            Prim::Old => {
                match block {
                    Block::Row(places, strides) => load_row(job.out_dtype, out, places[0], strides[0], &mut stack[top][..n]),
                    Block::Rows(at) => load_walk(job.out_dtype, out, base, (job.loops, 0), at, &mut stack[top][..n]),
                }
                slots[top] = Slot::Here;
                top += 1;
            }
            Prim::Const(x) => push!(T::constant(x)),
            Prim::ConstComplex(re, im) => push!(T::constant_complex(re, im)),
            Prim::ConstInt(x) => push!(T::constant_int(x)),
            Prim::Add if is_swift => swift_binary!(T::add),
            Prim::Add => binary!(T::add),
            Prim::Sub if is_swift => swift_binary!(T::sub),
            Prim::Sub => binary!(T::sub),
            Prim::Mul if is_swift => swift_binary!(T::mul),
            Prim::Mul => binary!(T::mul),
            Prim::Div => binary!(T::div),
            Prim::Pow => binary!(T::pow),
            Prim::Max if is_swift => swift_binary!(T::max),
            Prim::Max => binary!(T::max),
            Prim::Min if is_swift => swift_binary!(T::min),
            Prim::Min => binary!(T::min),
            Prim::Eq => binary!(|a: T, b: T| T::truth(a == b)),
            Prim::Ne => binary!(|a: T, b: T| T::truth(a != b)),
            Prim::Lt => binary!(|a: T, b: T| T::truth(a.lt(b))),
            Prim::Le => binary!(|a: T, b: T| T::truth(a.le(b))),
            Prim::Gt => binary!(|a: T, b: T| T::truth(b.lt(a))),
            Prim::Ge => binary!(|a: T, b: T| T::truth(b.le(a))),
            Prim::Select => {
                for depth in top - 3..top {
                    settle(&mut slots[depth], &mut stack[depth][..n]);
                }
                let (below, above) = stack.split_at_mut(top - 2);
                let (a, b) = above.split_at(1);
                for ((c, &a), &b) in below[top - 3][..n].iter_mut().zip(&a[0]).zip(&b[0]) {
                    *c = if *c != T::default() { a } else { b };
                }
                top -= 2;
            }
            Prim::Neg if is_swift => swift_unary!(T::neg),
            Prim::Neg => unary!(T::neg),
            Prim::Abs => unary!(T::abs),
            Prim::Sign => unary!(T::sign),
            Prim::Exp => unary!(T::exp),
            Prim::Log => unary!(T::log),
            Prim::Log1p => unary!(T::log1p),
            Prim::Expm1 => unary!(T::expm1),
            Prim::Sqrt if is_swift => swift_unary!(T::sqrt),
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
    match slots[0] {
        Slot::There(there) => Some(Some(there)),
        ref mut slot => {
            settle(slot, &mut stack[0][..n]);
            Some(None)
        }
    }
}
