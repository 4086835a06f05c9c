//! Reads and sums by index.

use super::Workers;
use super::convert::{Compute, load_block, store_block};
use super::scalar::Scalar;
use crate::exec::buffer::{host_bytes, host_bytes_mut};
use crate::exec::call::{GatherCall, ScatterCall, Source};
use crate::exec::map_expr::compute_dtype;
use crate::shape::dtype::{DType, c64, c128};
use crate::shape::error::{Error, OpName, Result};
use crate::shape::layout::Layout;
use crate::shape::plan::{Loop, position};

fn loops(layout: &Layout) -> Vec<Loop<1>> {
    layout.shape().iter().zip(layout.strides()).map(|(&len, &s)| Loop { len, strides: [s] }).collect()
}

/// All positions, checked against the axis.
fn positions(op: &OpName, index: &Source<'_>, layout: &Layout, len: usize) -> Result<Vec<usize>> {
    let bytes = host_bytes(op, index.buffer)?;
    let loops = loops(layout);
    let mut out = Vec::new();
    let too_large = |_| Error::TooLarge { op: op.clone(), shape: layout.shape().to_vec(), dtype: index.dtype };
    out.try_reserve_exact(layout.numel()).map_err(too_large)?;
    for at in 0..layout.numel() {
        let mut one = [0i64];
        load_block(index.dtype, bytes, layout.offset() as isize + position(&loops, at)[0], 0, &mut one);
        let i = one[0];
        if i < 0 || i >= len as i64 {
            return Err(Error::invalid(op.clone(), "index", i, format!("want 0 to {} for an axis of length {len}", len as i64 - 1)));
        }
        out.push(i as usize);
    }
    Ok(out)
}

/// Runs a gather. Cost: one pass over the index and what it picks.
pub fn gather(call: GatherCall<'_>, workers: &dyn Workers) -> Result<()> {
    let (source, layout) = call.src;
    let axis = call.axis;
    let picks = positions(call.op, &call.index.0, call.index.1, layout.shape()[axis])?;
    let src = host_bytes(call.op, source.buffer)?;
    let size = source.dtype.size_bytes();
    // The source's loops over the result's shape, the axis standing still.
    let mut walk = loops(call.index.1);
    for (a, l) in walk.iter_mut().enumerate() {
        l.strides[0] = if a == axis { 0 } else { layout.strides()[a] };
    }
    let (base, along) = (layout.offset() as isize, layout.strides()[axis]);
    let out = host_bytes_mut(call.op, call.out.buffer)?;
    workers.chunks(&mut out[..picks.len() * size], super::CHUNK * size, picks.len() * 4, &|i, chunk| {
        for (j, to) in chunk.chunks_exact_mut(size).enumerate() {
            let at = i * super::CHUNK + j;
            let from = (base + position(&walk, at)[0] + picks[at] as isize * along) as usize * size;
            to.copy_from_slice(&src[from..from + size]);
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
    let picks = positions(call.op, &call.index.0, call.index.1, out_layout.shape()[axis])?;
    let src = host_bytes(call.op, source.buffer)?;
    let walk = loops(layout);
    let mut to = walk.clone();
    for (a, l) in to.iter_mut().enumerate() {
        l.strides[0] = if a == axis { 0 } else { out_layout.strides()[a] };
    }
    let along = out_layout.strides()[axis];
    let out = host_bytes_mut(call.op, target.buffer)?;
    for (at, &pick) in picks.iter().enumerate() {
        let (mut add, mut old) = ([T::default()], [T::default()]);
        load_block(source.dtype, src, layout.offset() as isize + position(&walk, at)[0], 0, &mut add);
        let place = out_layout.offset() as isize + position(&to, at)[0] + pick as isize * along;
        load_block(target.dtype, out, place, 0, &mut old);
        store_block(target.dtype, out, place, 0, &[old[0].add(add[0])]);
    }
    Ok(())
}
