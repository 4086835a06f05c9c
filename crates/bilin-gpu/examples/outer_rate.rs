//! Bytes per second of the outer-product kernels. `cargo run --release -p bilin-gpu --example outer_rate [N]`
use bilin_core::{DType, Result};
use bilin_gpu::*;

fn main() -> Result<()> {
    let n: usize = std::env::args().nth(1).and_then(|a| a.parse().ok()).unwrap_or(2048);
    let device = GpuDevice::new()?;
    let registry = KernelRegistry::new();
    println!("{:#?}", device.limits());
    let of = |len: usize| device.alloc_buffer(len * 4, DType::F32, [len]);
    let (a, b, out, params) = (of(n)?, of(n)?, of(n)?, of(2)?);
    let (y, z) = (of(n * n)?, of(n * n)?);
    let values: Vec<f32> = (0..n).map(|i| (0.7 * i as f32).sin()).collect();
    a.write(&values)?;
    b.write(&values)?;
    registry.register_source(
        "copy",
        "
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@compute @workgroup_size(256)
fn copy(@builtin(global_invocation_id) at: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    for (var i = at.x; i < arrayLength(&y); i += groups.x * 256u) { y[i] = x[i]; }
}",
    );
    let copy = registry.get_pipeline("copy", &device)?;
    let k = n as u32;
    type Record<'a> = &'a dyn Fn(&mut CommandEncoder) -> Result<()>;
    let cases: [(&str, f64, Record<'_>); 4] = [
        ("copy", 2.0, &|e| e.encode(&copy, &[&y, &z], [16_384, 1, 1])),
        ("outer", 1.0, &|e| dispatch_outer_product_f32(e, &registry, &device, &a, &b, &y, &params, k, k)),
        ("backward_lhs", 1.0, &|e| dispatch_outer_product_backward_lhs_f32(e, &registry, &device, &y, &b, &out, &params, k, k)),
        ("backward_rhs", 1.0, &|e| dispatch_outer_product_backward_rhs_f32(e, &registry, &device, &y, &a, &out, &params, k, k)),
    ];
    // y holds numbers other than zero before anything reads it.
    let mut first = device.command_encoder();
    cases[1].2(&mut first)?;
    first.commit_and_wait()?;
    for (name, passes, record) in cases {
        let mut seconds = Vec::new();
        for run in 0..12 {
            let mut encoder = device.command_encoder();
            record(&mut encoder)?;
            let time = encoder.commit_and_wait_timed()?.as_secs_f64();
            if run > 1 {
                seconds.push(time);
            }
        }
        seconds.sort_by(f64::total_cmp);
        let time = seconds[seconds.len() / 2];
        println!("{name:<14} {n}²: {:9.3} ms, {:8.1} GB/s", time * 1e3, passes * (n * n * 4) as f64 / time * 1e-9);
    }
    Ok(())
}
