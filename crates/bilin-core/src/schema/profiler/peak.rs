//! What a device can do at best, by a short measurement.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::exec::call::{Conj, Precision};
use crate::exec::device::Device;
use crate::exec::launch::{self, Product};
use crate::exec::map_expr::Prim;
use crate::shape::dtype::DType;
use crate::shape::error::Result;
use crate::shape::spec::Spec;

/// Rates by device; of a copy where the dtype is none.
static KNOWN: Mutex<Vec<(Device, Option<DType>, f64)>> = Mutex::new(Vec::new());

/// The smallest and the largest side of the matrices.
const SIDES: (usize, usize) = (256, 4096);
/// The fewest and the most bytes that are copied.
const COPIES: (usize, usize) = (16 << 20, 256 << 20);
/// Work is doubled until it takes this long: what starts it no longer counts.
const LONG_ENOUGH_NS: f64 = 2e6;
const RUNS: usize = 5;

/// FLOP a nanosecond of the device in products of square matrices of `dtype`; none where it can't run them.
pub(super) fn flops_per_ns(device: &Device, dtype: DType) -> Option<f64> {
    rate(device, Some(dtype))
}

/// Bytes read and written a nanosecond in copies; none where the device can't run them.
pub(super) fn bytes_per_ns(device: &Device) -> Option<f64> {
    rate(device, None)
}

/// Measured once; a failure, such as a limit of memory, is tried again.
fn rate(device: &Device, dtype: Option<DType>) -> Option<f64> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, _, rate)) = known.iter().find(|(d, t, _)| d == device && *t == dtype) {
        return Some(*rate);
    }
    let peak = device.memory_stats().peak_bytes;
    let rate = match dtype {
        Some(dtype) => of_products(device, dtype),
        None => of_copies(device),
    };
    device.put_back_peak(peak);
    let rate = rate.ok()?;
    known.push((device.clone(), dtype, rate));
    Some(rate)
}

/// The shortest time of several runs.
fn shortest(device: &Device, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        device.sync()?;
        best = best.min(start.elapsed().as_nanos().max(1) as f64);
    }
    Ok(best)
}

/// The best of `rate_of` sizes from `from` to `to`, doubled until a run is long; a size without room ends it.
fn best(sizes: (usize, usize), rate_of: impl Fn(usize) -> Result<(f64, f64)>) -> Result<f64> {
    let (mut best, mut ns) = rate_of(sizes.0)?;
    let mut size = 2 * sizes.0;
    while ns < LONG_ENOUGH_NS
        && size <= sizes.1
        && let Ok((rate, took)) = rate_of(size)
    {
        (best, ns, size) = (best.max(rate), took, 2 * size);
    }
    Ok(best)
}

fn of_products(device: &Device, dtype: DType) -> Result<f64> {
    let op = "calibrate".into();
    let (spec, flops_a_step) = (Spec::matrices(), if dtype.is_complex() { 8.0 } else { 2.0 });
    best(SIDES, |side| {
        let one = launch::full(&op, device, &[side, side], dtype, Prim::ConstInt(1))?;
        let (accumulator, precision, out) = (dtype.accumulator(), Precision::Ieee, (&[side, side][..], dtype));
        let product = Product { spec: &spec, operands: [&one, &one], conj: [Conj::No; 2], accumulator, precision, out };
        let ns = shortest(device, || launch::contract(&op, &product).map(drop))?;
        Ok((flops_a_step * (side * side * side) as f64 / ns, ns))
    })
}

fn of_copies(device: &Device) -> Result<f64> {
    let op = "calibrate".into();
    best(COPIES, |bytes| {
        let x = launch::full(&op, device, &[bytes / DType::F32.size_bytes()], DType::F32, Prim::ConstInt(1))?;
        let ns = shortest(device, || launch::copy(&op, &x, DType::F32).map(drop))?;
        Ok((2.0 * bytes as f64 / ns, ns))
    })
}
