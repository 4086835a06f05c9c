//! What a device can do at best, by a short measurement.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::exec::call::{Conj, Precision};
use crate::exec::device::Device;
use crate::exec::launch;
use crate::exec::map_expr::Prim;
use crate::shape::dtype::DType;
use crate::shape::error::Result;
use crate::shape::spec::Spec;

/// Measured limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peak {
    flops_per_ns: f64,
    bytes_per_ns: f64,
}

impl Peak {
    /// The share of the nearer limit that these rates reach.
    pub(super) fn share(&self, flops_per_ns: f64, bytes_per_ns: f64) -> f64 {
        (flops_per_ns / self.flops_per_ns).max(bytes_per_ns / self.bytes_per_ns)
    }
}

static KNOWN: Mutex<Vec<(Device, Option<Peak>)>> = Mutex::new(Vec::new());

/// Length of the matrices.
const SIDE: usize = 256;
/// f32 elements of the copies.
const ELEMENTS: usize = 4 << 20;
const RUNS: usize = 7;

/// The limits of a device, measured once; `None` where it can't run the measurement.
pub(super) fn peak_of(device: &Device) -> Option<Peak> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, peak)) = known.iter().find(|(d, _)| d == device) {
        return *peak;
    }
    let peak = measure(device).ok();
    known.push((device.clone(), peak));
    peak
}

fn best(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        run()?;
        best = best.min(start.elapsed().as_nanos().max(1) as f64);
    }
    Ok(best)
}

fn measure(device: &Device) -> Result<Peak> {
    let op = "calibrate".into();
    let ones = |shape: &[usize]| launch::full(&op, device, shape, DType::F32, Prim::ConstInt(1));
    let (a, spec, shape) = (ones(&[SIDE, SIDE])?, Spec::matrices(), [SIDE, SIDE]);
    let product = best(|| {
        launch::contract(&op, &spec, &a, &a, [Conj::No; 2], DType::F32, Precision::Ieee, &shape, DType::F32)?;
        device.sync()
    })?;
    let x = ones(&[ELEMENTS])?;
    let copy = best(|| {
        launch::copy(&op, &x, DType::F32)?;
        device.sync()
    })?;
    Ok(Peak { flops_per_ns: 2.0 * (SIDE * SIDE * SIDE) as f64 / product, bytes_per_ns: 8.0 * ELEMENTS as f64 / copy })
}
