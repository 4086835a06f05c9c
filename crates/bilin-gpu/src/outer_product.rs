//! The outer product of two f32 vectors and its gradients, as kernels to dispatch by hand.

use bilin_core::{DType, Error, OpName, Result};

use crate::layer::buffer::GpuBuffer;
use crate::layer::device::GpuDevice;
use crate::layer::encoder::CommandEncoder;
use crate::layer::registry::KernelRegistry;

/// Bytes of `params`: two u32, n then m.
const PARAMS_BYTES: usize = 8;
/// Rows that one part of the sum over rows covers at least.
const PART_ROWS: u64 = 128;
/// Parts of the sum over rows, at most.
const MOST_PARTS: u64 = 64;

fn vector(width: u64) -> (&'static str, &'static str) {
    if width == 4 { ("vec4<f32>", "(sum.x + sum.y) + (sum.z + sum.w)") } else { ("f32", "sum") }
}

/// Names and sources of the kernels here, one text for each family in two widths.
pub(crate) fn sources() -> Vec<(String, String)> {
    let families = [
        ("outer_product_f32", include_str!("../shader/outer_product.wgsl")),
        ("outer_product_backward_lhs_f32", include_str!("../shader/outer_product_backward_lhs.wgsl")),
        ("outer_product_backward_rhs_f32", include_str!("../shader/outer_product_backward_rhs.wgsl")),
    ];
    let mut all = vec![("sum_of_parts_f32".to_owned(), include_str!("../shader/sum_of_parts.wgsl").to_owned())];
    for (name, text) in families {
        for width in [1, 4] {
            let (vector, fold) = vector(width);
            let text = text.replace("VECTOR", vector).replace("FOLD", fold).replace("WIDTH", &format!("{width}u"));
            all.push((kernel_name(name, width), text));
        }
    }
    all
}

fn kernel_name(family: &str, width: u64) -> String {
    if width == 4 { format!("{family}x4") } else { family.to_owned() }
}

/// Rows of the matrix that are bound together: (first, count). One for all, where the device can bind them.
fn windows(op: &OpName, device: &GpuDevice, matrix: &GpuBuffer, n: u64, m: u64) -> Result<Vec<(u64, u64)>> {
    let limits = &device.0.limits;
    // A kernel counts elements in 32 bits.
    let most = limits.max_storage_buffer_binding_size.min((1 << 34) - 4);
    if n * m * 4 <= most {
        return Ok(vec![(0, n)]);
    }
    let row = m * 4;
    let align = u64::from(limits.min_storage_buffer_offset_alignment);
    // The fewest rows after which a window may start again.
    let step = align / gcd(align, row);
    let rows = most / row / step * step;
    if rows == 0 {
        let got = format!("rows of {row} bytes in {} bytes", matrix.byte_len());
        return Err(Error::invalid(op.clone(), "m", got, format!("the device binds at most {most} bytes, and windows of {step} rows")));
    }
    Ok((0..n.div_ceil(rows)).map(|i| (i * rows, rows.min(n - i * rows))).collect())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// A call that passed the checks which come before the pipeline.
struct Checked {
    op: OpName,
    n: u64,
    m: u64,
    width: u64,
}

/// The checks, in the documented order. `counts` are (argument, buffer, elements wanted).
fn check(op: &'static str, params: &GpuBuffer, n: u32, m: u32, counts: [(&'static str, &GpuBuffer, u64); 3]) -> Result<Checked> {
    let op = OpName::from(op);
    for (argument, len) in [("n", n), ("m", m)] {
        if len == 0 {
            return Err(Error::invalid(op, argument, 0, "want at least 1"));
        }
    }
    if params.byte_len() < PARAMS_BYTES {
        let want = format!("want at least {PARAMS_BYTES}: n and m as two u32");
        return Err(Error::invalid(op, "params", format!("{} bytes", params.byte_len()), want));
    }
    for (argument, buffer, _) in counts {
        if buffer.dtype() != DType::F32 {
            return Err(Error::invalid(op, argument, buffer.dtype(), "want float32"));
        }
    }
    for (argument, buffer, want) in counts {
        if buffer.element_count() as u64 != want {
            let got = format!("{} elements", buffer.element_count());
            return Err(Error::invalid(op, argument, got, format!("want {want}, for n = {n} and m = {m}")));
        }
    }
    let (n, m) = (u64::from(n), u64::from(m));
    Ok(Checked { op, n, m, width: if m.is_multiple_of(4) { 4 } else { 1 } })
}

fn window(matrix: &GpuBuffer, (first, rows): (u64, u64), m: u64) -> GpuBuffer {
    matrix.window(first * m * 4, rows * m * 4, &[rows as usize, m as usize])
}

/// Workgroups along one dimension for `count` pieces of work; kernels stride over what doesn't fit.
fn groups(device: &GpuDevice, count: u64) -> u32 {
    count.clamp(1, u64::from(device.0.limits.max_compute_workgroups_per_dimension)) as u32
}

/// Records `y[i, j] = lhs[i]·rhs[j]`: n elements of `lhs`, m of `rhs`, n·m of `y`.
///
/// dtype: f32. Gradient: [`dispatch_outer_product_backward_lhs_f32`] and [`dispatch_outer_product_backward_rhs_f32`].
/// Cost: n·m multiplications, 4·(n·m + n + m) bytes. A `y` that the device can't bind at once is written window by window.
///
/// Errors, in this order, with nothing recorded: `InvalidArgument` for n or m of 0, `params` under 8 bytes, a dtype other
/// than f32, a number of elements other than n, m and n·m; `KernelNotFound`, `ShaderCompilation`; then what
/// [`CommandEncoder::encode`] refuses. The arguments n and m rule: what stands in `params` is never read for bounds.
#[expect(clippy::too_many_arguments, reason = "the signature that users of such kernels know")]
pub fn dispatch_outer_product_f32(
    encoder: &mut CommandEncoder,
    registry: &KernelRegistry,
    device: &GpuDevice,
    lhs: &GpuBuffer,
    rhs: &GpuBuffer,
    y: &GpuBuffer,
    params: &GpuBuffer,
    n: u32,
    m: u32,
) -> Result<()> {
    let counts = [("lhs", lhs, u64::from(n)), ("rhs", rhs, u64::from(m)), ("y", y, u64::from(n) * u64::from(m))];
    let c = check("dispatch_outer_product_f32", params, n, m, counts)?;
    let kernel = registry.get_pipeline(&kernel_name("outer_product_f32", c.width), device)?;
    for (first, rows) in windows(&c.op, device, y, c.n, c.m)? {
        let grid = [groups(device, (c.m / c.width).div_ceil(256)), groups(device, rows.div_ceil(8)), 1];
        let y = window(y, (first, rows), c.m);
        encoder.encode_with(&kernel, &[lhs, rhs, &y], &[rows as u32, m, first as u32], grid)?;
    }
    Ok(())
}

/// Records `dlhs[i] = Σ_j dy[i, j]·rhs[j]`, the gradient of the outer product by `lhs`: n·m elements of `dy`, m of `rhs`, n of
/// `dlhs`.
///
/// dtype: f32, summed in f32 in an order that depends on m alone; the error is at most that of m additions. Cost: 2·n·m
/// FLOPs, 4·(n·m + n + m) bytes. Errors: as [`dispatch_outer_product_f32`].
#[expect(clippy::too_many_arguments, reason = "the signature that users of such kernels know")]
pub fn dispatch_outer_product_backward_lhs_f32(
    encoder: &mut CommandEncoder,
    registry: &KernelRegistry,
    device: &GpuDevice,
    dy: &GpuBuffer,
    rhs: &GpuBuffer,
    dlhs: &GpuBuffer,
    params: &GpuBuffer,
    n: u32,
    m: u32,
) -> Result<()> {
    let counts = [("dy", dy, u64::from(n) * u64::from(m)), ("rhs", rhs, u64::from(m)), ("dlhs", dlhs, u64::from(n))];
    let c = check("dispatch_outer_product_backward_lhs_f32", params, n, m, counts)?;
    let kernel = registry.get_pipeline(&kernel_name("outer_product_backward_lhs_f32", c.width), device)?;
    for (first, rows) in windows(&c.op, device, dy, c.n, c.m)? {
        let x = groups(device, rows);
        let grid = [x, groups(device, rows.div_ceil(u64::from(x))), 1];
        let dy = window(dy, (first, rows), c.m);
        encoder.encode_with(&kernel, &[&dy, rhs, dlhs], &[rows as u32, m, first as u32], grid)?;
    }
    Ok(())
}

/// Records `drhs[j] = Σ_i dy[i, j]·lhs[i]`, the gradient of the outer product by `rhs`: n·m elements of `dy`, n of `lhs`, m of
/// `drhs`.
///
/// dtype: f32, summed in f32 in an order that depends on n and m (and the device's binding limit, beyond it); the error is
/// at most that of n additions. Cost: 2·n·m FLOPs, 4·(n·m + n + m) bytes and up to 64 rows of partial sums. Errors: as
/// [`dispatch_outer_product_f32`], and `OutOfMemory` for the partial sums.
#[expect(clippy::too_many_arguments, reason = "the signature that users of such kernels know")]
pub fn dispatch_outer_product_backward_rhs_f32(
    encoder: &mut CommandEncoder,
    registry: &KernelRegistry,
    device: &GpuDevice,
    dy: &GpuBuffer,
    lhs: &GpuBuffer,
    drhs: &GpuBuffer,
    params: &GpuBuffer,
    n: u32,
    m: u32,
) -> Result<()> {
    let counts = [("dy", dy, u64::from(n) * u64::from(m)), ("lhs", lhs, u64::from(n)), ("drhs", drhs, u64::from(m))];
    let c = check("dispatch_outer_product_backward_rhs_f32", params, n, m, counts)?;
    let kernel = registry.get_pipeline(&kernel_name("outer_product_backward_rhs_f32", c.width), device)?;
    let finish = registry.get_pipeline("sum_of_parts_f32", device)?;
    let windows = windows(&c.op, device, dy, c.n, c.m)?;
    // Few columns leave most of a card idle unless the rows are split. The parts of several windows are added together, as
    // many as the device can bind.
    let tiles = (c.m / c.width).div_ceil(64);
    let room = (device.0.limits.max_storage_buffer_binding_size / (c.m * 4)).max(1);
    let most_parts = (2048 / tiles).clamp(1, MOST_PARTS).min(room);
    let plan: Vec<(u64, u64, u64, u64)> = windows
        .into_iter()
        .map(|(first, rows)| {
            let length = rows.div_ceil(rows.div_ceil(PART_ROWS).min(most_parts)).next_multiple_of(4);
            (first, rows, length, rows.div_ceil(length))
        })
        .collect();
    let total: u64 = plan.iter().map(|p| p.3).sum();
    let partial = match total {
        1 => drhs.clone(),
        _ => {
            let held = total.min(room);
            device.alloc_buffer((held * c.m * 4) as usize, DType::F32, [held as usize, c.m as usize])?
        }
    };
    let add = |encoder: &mut CommandEncoder, parts: u64, adds: bool| {
        let grid = [groups(device, c.m.div_ceil(256)), 1, 1];
        encoder.encode_with(&finish, &[&partial, drhs], &[m, parts as u32, u32::from(adds)], grid)
    };
    let (mut first_part, mut adds) = (0, false);
    for (first, rows, length, count) in plan {
        if first_part + count > room {
            add(encoder, first_part, adds)?;
            (first_part, adds) = (0, true);
        }
        let constants = [rows, c.m, first, first_part, count, length].map(|x| x as u32);
        let dy = window(dy, (first, rows), c.m);
        encoder.encode_with(&kernel, &[&dy, lhs, &partial], &constants, [groups(device, tiles), groups(device, count), 1])?;
        first_part += count;
    }
    if total > 1 {
        add(encoder, first_part, adds)?;
    }
    Ok(())
}
