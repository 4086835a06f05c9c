//! A kernel of one's own: y = a·x + y over a million elements. `cargo run -p bilin-gpu --example own_kernel`
use bilin_core::{DType, Result};
use bilin_gpu::{GpuDevice, KernelRegistry};

const AXPY: &str = "
struct Numbers { n: u32, a: f32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(1) @binding(0) var<uniform> numbers: Numbers;

@compute @workgroup_size(256)
fn axpy(@builtin(global_invocation_id) at: vec3<u32>) {
    if at.x < numbers.n { y[at.x] = fma(numbers.a, x[at.x], y[at.x]); }
}";

/// Compiles, dispatches and checks it.
pub fn main() -> Result<()> {
    let n = 1 << 20;
    let device = GpuDevice::new()?;
    let registry = KernelRegistry::new();
    registry.register_source("axpy", AXPY);

    let x = device.alloc_buffer(4 * n, DType::F32, [n])?;
    let y = device.alloc_buffer(4 * n, DType::F32, [n])?;
    x.write(&vec![3f32; n])?;
    y.write(&vec![1f32; n])?;

    // Compiled here, on first use; the words after the buffers fill `numbers`.
    let axpy = registry.get_pipeline("axpy", &device)?;
    let mut encoder = device.command_encoder();
    let groups = (n as u32).div_ceil(axpy.workgroup_size()[0]);
    encoder.encode_with(&axpy, &[&x, &y], &[n as u32, 2f32.to_bits()], [groups, 1, 1])?;
    encoder.commit_and_wait()?;

    assert!(y.read::<f32>()?.iter().all(|&y| y == 7.0));
    println!("{}: y = 2·3 + 1 = 7, {n} times", device.name());
    Ok(())
}
