//! Rates of the engine's verbs on a wgpu device: `product_rate [largest square]`. Times are of the host around a queue of
//! equal calls that takes about a twentieth of a second, the least of four rounds; the results' memory is part of it. Behind
//! them stands what the device's own clock says of one call, where it has one. Half a second of the same work goes before:
//! an idle card was seen to run at a sixth of its clock rate for some tenths of a second.

use std::time::Instant;

use bilin::prelude::*;

/// Seconds of work before it is measured.
const WARM: f64 = 0.5;

/// Seconds of one call: by the host and by the device.
#[derive(Clone, Copy)]
struct Times {
    host: f64,
    device: f64,
}

impl Times {
    /// The rate of `work` units of 10⁹ by both clocks.
    fn rate(self, name: &str, work: f64, unit: &str) {
        let Times { host, device } = self;
        println!("{name}: {:.3} ms, {:.0} {unit}; device {:.3} ms, {:.0} {unit}", host * 1e3, work / host, device * 1e3, work / device);
    }
}

fn seconds(device: &Device, mut work: impl FnMut() -> Result<Tensor>) -> Result<Times> {
    let mut round = |repeats: usize| -> Result<f64> {
        device.sync()?;
        let start = Instant::now();
        for _ in 0..repeats {
            work()?;
        }
        device.sync()?;
        Ok(start.elapsed().as_secs_f64() / repeats as f64)
    };
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < WARM {
        round(1)?;
    }
    let repeats = ((0.05 / round(1)?) as usize).clamp(2, 200);
    let mut host = f64::INFINITY;
    for _ in 0..4 {
        host = host.min(round(repeats)?);
    }
    device.backend().start_clock()?;
    let ran = round(repeats.min(20));
    let clock = device.backend().stop_clock()?;
    ran?;
    Ok(Times { host, device: clock.map_or(f64::NAN, |c| c.as_secs_f64() / repeats.min(20) as f64) })
}

fn main() -> Result<()> {
    let largest = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(512usize);
    let device = Device::wgpu(0)?;
    let adapter = bilin_gpu::adapters().into_iter().next();
    println!("{}", adapter.map(|a| format!("{} ({}, {})", a.name, a.api, a.driver)).unwrap_or_default());
    println!("wrong kernels: {:?}", bilin_gpu::check_kernels(&device)?);
    let make = |shape: &[usize], dtype: DType| {
        let x = Tensor::randn(shape, DType::F32, &Device::cpu(), &mut Rng::new(1))?;
        x.astype(dtype)?.to_device(&device)
    };
    let mut size = 512;
    while size <= largest {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let (a, b) = (make(&[size, size], dtype)?, make(&[size, size], dtype)?);
            let t = seconds(&device, || a.matmul(&b))?;
            t.rate(&format!("square {dtype} {size}"), 2e-9 * (size as f64).powi(3), "GFLOP/s");
        }
        size *= 2;
    }
    let count = (64 * largest / 8192).max(2);
    for dtype in [DType::F32, DType::F16] {
        let (a, b) = (make(&[count, 512, 512], dtype)?, make(&[count, 512, 512], dtype)?);
        let t = seconds(&device, || a.matmul(&b))?;
        t.rate(&format!("batched {dtype} {count} of 512"), 2e-9 * count as f64 * 512f64.powi(3), "GFLOP/s");
    }
    let side = largest * 2;
    let (matrix, vector, row) = (make(&[side, side], DType::F32)?, make(&[side, 1], DType::F32)?, make(&[1, side], DType::F32)?);
    let bytes = 4.0 * (side as f64).powi(2);
    let rate = |name: &str, t: Times, bytes: f64| t.rate(&format!("{name} {side}"), bytes * 1e-9, "GB/s");
    rate("copy", seconds(&device, || matrix.copy())?, 2.0 * bytes);
    rate("exp", seconds(&device, || matrix.exp())?, 2.0 * bytes);
    rate("add a row", seconds(&device, || matrix.add(&row))?, 2.0 * bytes);
    rate("cast to half", seconds(&device, || matrix.astype(DType::F16))?, 1.5 * bytes);
    rate("transpose", seconds(&device, || matrix.mt()?.contiguous())?, 2.0 * bytes);
    rate("matrix by vector", seconds(&device, || matrix.matmul(&vector))?, bytes);
    rate("vector by matrix", seconds(&device, || row.matmul(&matrix))?, bytes);
    rate("outer", seconds(&device, || vector.matmul(&row))?, bytes);
    rate("sum", seconds(&device, || matrix.sum(.., false))?, bytes);
    rate("sum of rows", seconds(&device, || matrix.sum(1, false))?, bytes);
    rate("sum of columns", seconds(&device, || matrix.sum(0, false))?, bytes);
    rate("max of columns", seconds(&device, || matrix.max(0, false))?, bytes);
    Ok(())
}
