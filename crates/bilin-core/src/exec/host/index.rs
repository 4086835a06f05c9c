//! Reads and sums by index.

use super::convert::{Compute, load_block, load_walk, store_block};
use super::scalar::Scalar;
use super::{BLOCK, Workers};
use crate::exec::buffer::{host_bytes, host_bytes_mut};
use crate::exec::call::{GatherCall, ScatterCall, Source};
use crate::exec::map_expr::compute_dtype;
use crate::shape::dtype::{DType, c64, c128};
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::{Dims, Layout, Strides};
use crate::shape::plan::{Loop, Loops, fuse, position, steps};

fn loops(layout: &Layout) -> Loops<1> {
    layout.shape().iter().zip(layout.strides()).map(|(&len, &s)| Loop { len, strides: [s] }).collect()
}

/// The positions that an index names, each read and checked once however often broadcasting repeats it.
struct Picks {
    picks: Vec<usize>,
    /// From axis to axis of the index's shape in `picks`: 0 where it repeats.
    strides: Strides,
}

impl Picks {
    fn new(op: &OpName, index: &Source<'_>, layout: &Layout, len: usize) -> Result<Picks> {
        let bytes = host_bytes(op, index.buffer)?;
        let mut own = loops(layout);
        own.iter_mut().filter(|l| l.strides[0] == 0).for_each(|l| l.len = l.len.min(1));
        let shape: Dims = own.iter().map(|l| l.len).collect();
        let mut strides = Strides::from_slice(Layout::contiguous(&shape).strides());
        own.iter().zip(strides.iter_mut()).filter(|(l, _)| l.strides[0] == 0).for_each(|(_, s)| *s = 0);
        fuse(&mut own);
        let mut picks = Vec::new();
        let too_large = |_| Error::TooLarge { op: op.clone(), shape: layout.shape().to_vec(), dtype: index.dtype };
        picks.try_reserve_exact(steps(&own)).map_err(too_large)?;
        for at in 0..steps(&own) {
            let mut one = [0i64];
            load_block(index.dtype, bytes, layout.offset() as isize + position(&own, at)[0], 0, &mut one);
            let i = one[0];
            if i < 0 || i >= len as i64 {
                return Err(Error::invalid(op.clone(), "index", i, format!("want 0 to {} for an axis of length {len}", len as i64 - 1)));
            }
            picks.push(i as usize);
        }
        Ok(Picks { picks, strides })
    }

    /// Loops over the index's shape, by steps of `layout` with the axis standing still and steps of the picks; and runs of
    /// elements that one pick decides.
    fn walk(&self, shape: &[usize], layout: &Layout, axis: usize) -> (Loops<2>, Loop<1>) {
        let still = |a: usize| if a == axis { 0 } else { layout.strides()[a] };
        let mut walk: Loops<2> = (0..shape.len()).map(|a| Loop { len: shape[a], strides: [still(a), self.strides[a]] }).collect();
        fuse(&mut walk);
        let run = match walk.last() {
            Some(&Loop { len, strides: [step, 0] }) if step != 0 => {
                walk.pop();
                Loop { len, strides: [step] }
            }
            _ => Loop { len: 1, strides: [0] },
        };
        (walk, run)
    }
}

/// Runs a gather. Cost: one pass over the index and what it picks.
pub fn gather(call: GatherCall<'_>, workers: &dyn Workers) -> Result<()> {
    let (source, layout) = call.src;
    let (axis, shape) = (call.axis, call.index.1.shape());
    let picks = Picks::new(call.op, &call.index.0, call.index.1, layout.shape()[axis])?;
    let src = host_bytes(call.op, source.buffer)?;
    let size = source.dtype.size_bytes();
    let (walk, run) = picks.walk(shape, layout, axis);
    let (base, along) = (layout.offset() as isize, layout.strides()[axis]);
    let total = steps(&walk) * run.len;
    let out = host_bytes_mut(call.op, call.out.buffer)?;
    if total == 0 {
        return Ok(());
    }
    let lines = super::CHUNK.div_ceil(run.len.max(1));
    let line = run.len * size;
    workers.chunks(&mut out[..total * size], lines * line, total + 4 * steps(&walk), &|i, chunk| {
        for (j, to) in chunk.chunks_exact_mut(line).enumerate() {
            let [place, pick] = position(&walk, i * lines + j);
            let from = base + place + picks.picks[pick as usize] as isize * along;
            if run.strides[0] == 1 || run.len == 1 {
                let from = from as usize * size;
                to.copy_from_slice(&src[from..from + line]);
                continue;
            }
            for (n, to) in to.chunks_exact_mut(size).enumerate() {
                let from = (from + n as isize * run.strides[0]) as usize * size;
                to.copy_from_slice(&src[from..from + size]);
            }
        }
    });
    Ok(())
}

/// Runs a sum by index, in the linear order of what is added. Cost: one pass over it.
pub fn scatter_add(call: ScatterCall<'_>, _workers: &dyn Workers) -> Result<()> {
    match compute_dtype(call.out.0.dtype) {
        DType::F32 => scatter::<f32>(call),
        DType::F64 => scatter::<f64>(call),
        DType::C64 => scatter::<c64>(call),
        DType::C128 => scatter::<c128>(call),
        _ => scatter::<i64>(call),
    }
}

fn scatter<T: Scalar + Compute>(call: ScatterCall<'_>) -> Result<()> {
    let (source, layout) = call.src;
    let (target, out_layout) = call.out;
    let axis = call.axis;
    let picks = Picks::new(call.op, &call.index.0, call.index.1, out_layout.shape()[axis])?;
    let src = host_bytes(call.op, source.buffer)?;
    let mut from = loops(layout);
    fuse(&mut from);
    let (to, run) = picks.walk(layout.shape(), out_layout, axis);
    let along = out_layout.strides()[axis];
    let out = host_bytes_mut(call.op, target.buffer)?;
    let mut buffer = [[T::default(); BLOCK]; 2];
    for line in 0..steps(&to) {
        let [place, pick] = position(&to, line);
        let place = out_layout.offset() as isize + place + picks.picks[pick as usize] as isize * along;
        for done in (0..run.len).step_by(BLOCK) {
            let n = BLOCK.min(run.len - done);
            let [add, old] = &mut buffer;
            let (add, old) = (&mut add[..n], &mut old[..n]);
            let here = place + done as isize * run.strides[0];
            load_walk(source.dtype, src, layout.offset() as isize, (&from, 0), line * run.len + done, add);
            load_block(target.dtype, out, here, run.strides[0], old);
            old.iter_mut().zip(add).for_each(|(old, add)| *old = old.add(*add));
            store_block(target.dtype, out, here, run.strides[0], old);
        }
    }
    Ok(())
}
