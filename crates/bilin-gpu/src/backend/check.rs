//! The self-test of an adapter: each kernel of products on shapes that choose it, against sums in f64 on the host.

use bilin_core::{DType, Device, Result, Tensor, matmul};

use super::contract::{KERNELS, units_tile};

/// m, k and n of a product.
type Shape = (usize, usize, usize);

/// Shapes for which each kernel is the best, with tails, and for some with k in parts.
const SHAPES: [(&str, &[Shape]); 8] = [
    ("units-128", &[(1284, 36, 1300), (1280, 32, 1280), (100, 4096, 100)]),
    ("units-64", &[(68, 36, 40), (64, 32, 64), (132, 100, 260)]),
    ("outer", &[(37, 1, 301), (1, 1, 1), (9, 1, 1028)]),
    ("rows", &[(70, 300, 1), (3, 9000, 1)]),
    ("columns", &[(1, 300, 70), (1, 9000, 300), (1, 8999, 301)]),
    ("tile-128", &[(130, 33, 129), (260, 100, 132), (1281, 9, 1283)]),
    ("tile-64", &[(65, 40, 67), (64, 16, 64)]),
    ("tile-32", &[(5, 7, 3), (33, 2, 31), (3, 5000, 2)]),
];

/// Numbers in (−1, 1), none of them small, so that a lost term shows.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let one = |i: usize| {
        let x = ((i * 7919 + seed * 104_729) % 1021) as f32 / 1021.0 + 0.01;
        if (i * 31 + seed).is_multiple_of(3) { -x } else { x }
    };
    (0..count).map(one).collect()
}

/// Runs every kernel of products on a wgpu device and takes those out of its table that miscompute: what they would have
/// run, the next one runs. Returns their names.
///
/// A result is wrong where it is further than 4·u·K·(|A|·|B|), and a rounding, from the sum in f64. Errors: `DeviceLost`, `OutOfMemory`,
/// `ShaderCompilation`.
///
/// ```
/// let device = bilin_gpu::open_device(0)?;
/// assert!(bilin_gpu::check_kernels(&device)?.is_empty());
/// # Ok::<(), bilin_core::Error>(())
/// ```
pub fn check_kernels(device: &Device) -> Result<Vec<&'static str>> {
    let mut wrong = Vec::new();
    let here = device.backend().kernels();
    for (kernel, shapes) in SHAPES.into_iter().filter(|(kernel, _)| here.contains(kernel)) {
        let dtype = if units_tile(kernel).is_some() { DType::F16 } else { DType::F32 };
        for &(m, k, n) in shapes {
            if !is_right(device, dtype, m, k, n)? {
                device.backend().ban_kernel(kernel);
                wrong.push(kernel);
                break;
            }
        }
    }
    debug_assert!(KERNELS.iter().all(|k| SHAPES.iter().any(|(name, _)| name == k)));
    Ok(wrong)
}

fn is_right(device: &Device, dtype: DType, m: usize, k: usize, n: usize) -> Result<bool> {
    let host = Device::reference();
    let make = |shape: [usize; 2], seed: usize| Tensor::from_slice(&numbers(shape[0] * shape[1], seed), shape, &host)?.astype(dtype);
    let (lhs, rhs) = (make([m, k], 1)?, make([k, n], 2)?);
    let read = |t: &Tensor| t.to_device(&host)?.astype(DType::F32)?.to_vec::<f32>();
    let (a, b) = (read(&lhs)?, read(&rhs)?);
    let got = read(&matmul(&lhs.to_device(device)?, &rhs.to_device(device)?)?)?;
    let (unit, rounding) = (DType::F32.unit_roundoff(), dtype.unit_roundoff());
    Ok((0..m * n).all(|at| {
        let terms = (0..k).map(|p| f64::from(a[at / n * k + p]) * f64::from(b[p * n + at % n]));
        let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t| (s + t, z + t.abs()));
        (f64::from(got[at]) - sum).abs() <= 4.0 * k as f64 * unit * size + 2.0 * rounding * sum.abs()
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a check fails")]
    use super::{check_kernels, is_right};
    use bilin_core::{Tensor, c128};
    use conformance::compare::numbers;
    use conformance::samples::{all, call, operands};
    use naga::back::{hlsl, msl, spv};
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    #[test]
    fn every_op_stays_within_its_memory_and_its_shaders_translate_to_metal_direct3d_and_vulkan() {
        let backend = WgpuBackend::new(&GpuDevice::new().unwrap());
        let queue = Arc::clone(&backend.queue);
        let device = Device::new("wgpu:0", Box::new(backend));
        queue.guards.raise();
        let mut guarded = 0;
        for (entry, sample, seed) in all() {
            for dtype in [DType::F32, DType::F16, DType::Bf16, DType::I32] {
                let home = operands(entry, sample, dtype, &Device::reference(), seed);
                // What the device lacks has no shader.
                let Ok(want) = call(entry, &home, sample.attrs) else { continue };
                if !home.iter().chain([&want]).all(|x| device.backend().has_dtype(x.dtype())) {
                    continue;
                }
                let what = format!("{} {:?} '{}' {dtype}", entry.schema.name, sample.shapes, sample.attrs);
                let away: Vec<Tensor> = home.iter().map(|x| x.to_device(&device).unwrap()).collect();
                let got = call(entry, &away, sample.attrs).unwrap_or_else(|e| panic!("{what}: {e}"));
                // Poison that was read shows as NaN, and as a wrong number where there is none.
                let alike = |g: &c128, w: &c128| g.re.is_nan() == w.re.is_nan() && (is_float(got.dtype()) || g == w);
                assert!(numbers(&got).iter().zip(&numbers(&want)).all(|(g, w)| alike(g, w)), "{what}: read what isn't an operand's");
                guarded += queue.guards.assert_intact(&what);
            }
        }
        assert!(guarded > 1000, "{guarded} memories");
        assert!(check_kernels(&device).unwrap().is_empty());
        queue.guards.assert_intact("products");
        let names = queue.registry.names();
        assert!(names.len() > 150, "{} shaders", names.len());
        for kernel in device.backend().kernels() {
            assert!(names.iter().any(|n| n.starts_with(&format!("contract-{kernel}-"))), "{kernel}");
        }
        // Matrix units are Vulkan's here; their text is tested where it is made.
        for name in names.into_iter().filter(|n| !n.starts_with("contract-units-")) {
            let module = naga::front::wgsl::parse_str(&queue.registry.source(&name).unwrap()).unwrap();
            let mut validator =
                Validator::new(ValidationFlags::all(), Capabilities::SHADER_INT64 | Capabilities::SHADER_FLOAT16_IN_FLOAT32);
            let info = validator.validate(&module).unwrap_or_else(|e| panic!("{name}: {e}"));
            let entry = Some((naga::ShaderStage::Compute, module.entry_points[0].name.clone()));
            let options = msl::Options { fake_missing_bindings: true, lang_version: (2, 3), ..Default::default() };
            let pipeline = msl::PipelineOptions { entry_point: entry, ..Default::default() };
            let (text, facts) = msl::write_string(&module, &info, &options, &pipeline).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(facts.entry_point_names.iter().all(std::result::Result::is_ok) && text.contains("kernel"), "{name}: {text}");
            let mut text = String::new();
            let options = hlsl::Options { fake_missing_bindings: true, shader_model: hlsl::ShaderModel::V6_0, ..Default::default() };
            let pipeline = hlsl::PipelineOptions { entry_point: None };
            let facts =
                hlsl::Writer::new(&mut text, &options, &pipeline).write(&module, &info, None).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(facts.entry_point_names.iter().all(std::result::Result::is_ok) && text.contains("numthreads"), "{name}: {text}");
            let words = spv::write_vec(&module, &info, &spv::Options::default(), None).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(words[0], 0x0723_0203, "{name}");
        }
    }
    use crate::backend::WgpuBackend;
    use crate::backend::map::is_float;
    use crate::layer::device::GpuDevice;
    use bilin_core::{DType, Device};
    use std::sync::Arc;

    #[test]
    fn a_kernel_that_miscomputes_is_named_and_leaves_the_table() {
        let backend = WgpuBackend::new(&GpuDevice::new().unwrap());
        let queue = Arc::clone(&backend.queue);
        let device = Device::new("wgpu:0", Box::new(backend));
        assert!(check_kernels(&device).unwrap().is_empty());
        for name in queue.registry.names().into_iter().filter(|n| n.starts_with("contract-outer-")) {
            let text = queue.registry.source(&name).unwrap();
            let broken = text.replace("(load_lhs(base.x + row.x)) * b;", "(load_lhs(base.x + row.x)) * b + 0.001;");
            assert_ne!(*text, *broken);
            queue.registry.register(name, broken, true);
        }
        assert!(!is_right(&device, DType::F32, 37, 1, 301).unwrap());
        assert_eq!(check_kernels(&device).unwrap(), ["outer"]);
        assert!(!device.backend().kernels().contains(&"outer"));
        assert!(is_right(&device, DType::F32, 37, 1, 301).unwrap(), "the next kernel stands in");
    }
}
