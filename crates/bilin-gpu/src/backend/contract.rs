//! Products: which kernel runs, over how many parts of k, and what follows it.

use std::fmt::Write as _;

use bilin_core::exec::call::ContractCall;
use bilin_core::shape::plan::Loop;
use bilin_core::{DType, Error, OpName, Result, are_deterministic_algorithms_enabled};

use super::gemm::{self, Form, Sizes, Tile};
use super::queue::{Queue, grid};
use super::storage::WgpuStorage;
use super::wgsl::{self, Wide, Words};
use super::{map, units, unsupported};
use crate::layer::buffer::GpuBuffer;

/// The kernels, best first; the last accepts every call.
pub(super) const KERNELS: [&str; 8] = ["outer", "rows", "columns", "units-128", "units-64", "tile-128", "tile-64", "tile-32"];

/// The tile of a kernel that runs on matrix units.
pub(super) fn units_tile(kernel: &str) -> Option<units::Tile> {
    match kernel {
        "units-128" => Some(units::Tile { sides: [128; 2], part: [64; 2], depth: 32 }),
        "units-64" => Some(units::Tile { sides: [64; 2], part: [32; 2], depth: 32 }),
        _ => None,
    }
}

/// The tile of a kernel that has one. A card is faster without a loop over the steps of a tile; for an adapter that is a
/// processor, compiling them all costs more than it gives.
fn tile(queue: &Queue, kernel: &str) -> Option<Tile> {
    let unroll = if queue.device.limits().kind == "cpu" { 1 } else { 16 };
    match kernel {
        "tile-128" => Some(Tile { sides: [128; 2], blocks: [2; 2], depth: 16, unroll }),
        "tile-64" => Some(Tile { sides: [64; 2], blocks: [2; 2], depth: 16, unroll }),
        "tile-32" => Some(Tile { sides: [32; 2], blocks: [1; 2], depth: 16, unroll: 1 }),
        _ => None,
    }
}

/// Least terms of a part of k.
const PART: usize = 1024;
/// Most parts of k.
const MOST_PARTS: usize = 64;
/// Tiles of matrix units of 128 up to which a card has idle processors: four times as many of 64 are faster then.
const FEW_TILES: usize = 96;

/// What a sum in `accumulator`'s dtype is computed in: small integers modulo 2³², of which the result's width is a part.
fn wide(queue: &Queue, op: &OpName, accumulator: DType) -> Result<Wide> {
    match accumulator {
        DType::F32 => Ok(Wide::F32),
        DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32 => Ok(Wide::I32),
        DType::I64 if queue.device.has_feature("i64") => Ok(Wide::I64),
        other => Err(unsupported(op, other)),
    }
}

/// The loops of a call, with lhs and rhs exchanged where that lets stores stand side by side.
struct Roles<'a> {
    batch: Vec<Loop<3>>,
    m: Vec<Loop<3>>,
    n: Vec<Loop<3>>,
    k: Vec<Loop<3>>,
    offsets: [usize; 3],
    sizes: [usize; 4],
    lhs: (&'a WgpuStorage, DType),
    rhs: (&'a WgpuStorage, DType),
}

fn inner_stride(loops: &[Loop<3>], operand: usize) -> usize {
    loops.last().map_or(usize::MAX, |l| l.strides[operand].unsigned_abs())
}

impl Roles<'_> {
    /// Whether an operand's elements along `inner` stand in memory four by four, each four at a multiple of four.
    fn is_fourfold(&self, operand: usize, inner: &[Loop<3>]) -> bool {
        let Some(last) = inner.last() else { return false };
        let mut others = [&self.batch, &self.m, &self.n, &self.k].into_iter().flatten().filter(|l| !std::ptr::eq(*l, last));
        let stands = last.strides[operand] == 1 && last.len.is_multiple_of(4) && self.offsets[operand].is_multiple_of(4);
        stands && others.all(|l| l.strides[operand] % 4 == 0)
    }

    /// A product with a vector whose matrix has neighbours in m side by side.
    fn is_by_columns(&self) -> bool {
        self.sizes[2] == 1 && self.sizes[3] >= 128 && inner_stride(&self.m, 0) < inner_stride(&self.k, 0)
    }

    fn exchange(&mut self) {
        for loops in [&mut self.batch, &mut self.m, &mut self.n, &mut self.k] {
            loops.iter_mut().for_each(|l| l.strides.swap(0, 1));
        }
        std::mem::swap(&mut self.m, &mut self.n);
        self.offsets.swap(0, 1);
        self.sizes.swap(1, 2);
        std::mem::swap(&mut self.lhs, &mut self.rhs);
    }
}

pub(super) fn run(queue: &Queue, call: ContractCall<'_>) -> Result<()> {
    let (op, plan) = (call.op, call.plan);
    let sizes = plan.sizes();
    let [batch, m, n, _] = sizes;
    let out = WgpuStorage::of(op, &*call.out.buffer)?;
    map::check_dtype(queue, op, call.out.dtype)?;
    let wide = wide(queue, op, call.accumulator)?;
    if batch * m * n == 0 {
        return Ok(());
    }
    let mut roles = Roles {
        batch: plan.batch().to_vec(),
        m: plan.m().to_vec(),
        n: plan.n().to_vec(),
        k: plan.k().to_vec(),
        offsets: plan.offsets(),
        sizes,
        lhs: map::source_of(queue, op, &call.lhs)?,
        rhs: map::source_of(queue, op, &call.rhs)?,
    };
    // Neighbours of the result belong to n; a product with a vector has n = 1.
    let is_turned = if n == 1 { false } else { m == 1 || inner_stride(&roles.m, 2) < inner_stride(&roles.n, 2) };
    if is_turned {
        roles.exchange();
    }
    let need = plan.need()[2];
    // Partial sums are bound at once.
    let room = queue.device.0.limits.max_storage_buffer_binding_size as usize / (4 * need.max(1));
    let parts = parts(&roles, wide, call.accumulator).min(room.max(1));
    let is_wide = call.out.dtype == wide.dtype();
    let job = |parts: usize, step: usize| Job { roles: &roles, wide, is_bool: call.accumulator == DType::Bool, parts, step };
    if parts == 1 {
        let job = job(1, 0);
        let kernel = job.kernel(queue)?;
        if is_wide || (units_tile(kernel).is_some() && call.out.dtype == DType::F16) {
            return job.dispatch(queue, op, kernel, (&out.buffer, call.out.dtype));
        }
    }
    if need != batch * m * n {
        return Err(Error::invalid(op.clone(), "out", "a strided result of another dtype than its sums", "make the result contiguous"));
    }
    let size = wide.dtype().size_bytes();
    let scratch = queue.acquire(need * parts * size)?;
    let job = job(parts, need);
    job.dispatch(queue, op, job.kernel(queue)?, (&scratch.buffer, wide.dtype()))?;
    if parts == 1 {
        return map::narrow(queue, op, (&scratch, wide), (out, call.out.dtype), need);
    }
    let summed = if is_wide { None } else { Some(queue.acquire(need * size)?) };
    let to = summed.as_ref().unwrap_or(out);
    let text = || include_str!("../../shader/sum_of_parts.wgsl").to_owned();
    let groups = [grid(&queue.device, (need as u64).div_ceil(256))[0], 1, 1];
    queue.record(op, "sum_of_parts_f32", text, &[&scratch.buffer, &to.buffer], &[need as u32, parts as u32, 0], groups)?;
    match &summed {
        Some(summed) => map::narrow(queue, op, (summed, wide), (out, call.out.dtype), need),
        None => Ok(()),
    }
}

/// Parts into which k is split: more than one only where the result has too few tiles for a card. It depends on m, n and k
/// alone, so the number of products in a batch never changes the bits; under the deterministic switch there is one part.
fn parts(roles: &Roles<'_>, wide: Wide, accumulator: DType) -> usize {
    let [_, m, n, k] = roles.sizes;
    if wide != Wide::F32 || accumulator == DType::Bool || are_deterministic_algorithms_enabled() {
        return 1;
    }
    let tiles = if roles.is_by_columns() { m.div_ceil(512) } else { m.div_ceil(64).saturating_mul(n.div_ceil(64)) };
    (k / PART).min(256 / tiles.clamp(1, 256)).clamp(1, MOST_PARTS)
}

struct Job<'a> {
    roles: &'a Roles<'a>,
    wide: Wide,
    is_bool: bool,
    parts: usize,
    /// Elements from one part's results to the next.
    step: usize,
}

impl Job<'_> {
    /// Whether neighbours in memory are neighbours in k, for lhs and rhs.
    fn along_k(&self) -> [bool; 2] {
        let Roles { m, n, k, .. } = self.roles;
        [inner_stride(k, 0) <= inner_stride(m, 0), inner_stride(k, 1) <= inner_stride(n, 1)]
    }

    /// Whether lhs, rhs and the result can be read and written four neighbours at a time.
    fn is_fourfold(&self) -> [bool; 3] {
        let (roles, along_k) = (self.roles, self.along_k());
        let inner = [if along_k[0] { &roles.k } else { &roles.m }, if along_k[1] { &roles.k } else { &roles.n }];
        [roles.is_fourfold(0, inner[0]), roles.is_fourfold(1, inner[1]), self.step.is_multiple_of(4) && roles.is_fourfold(2, &roles.n)]
    }

    fn is_accepted(&self, queue: &Queue, kernel: &str) -> bool {
        let Roles { sizes: [batch, m, n, k], lhs, rhs, .. } = *self.roles;
        let is_float = self.wide == Wide::F32;
        let is_large = batch * m.div_ceil(128) * n.div_ceil(128) * self.parts > FEW_TILES && m > 96 && n > 96;
        match kernel {
            "outer" => is_float && k == 1 && self.parts == 1,
            "rows" => is_float && n == 1 && k >= 128 && inner_stride(&self.roles.k, 0) == 1 && !are_deterministic_algorithms_enabled(),
            "columns" => is_float && self.roles.is_by_columns() && !are_deterministic_algorithms_enabled(),
            "units-128" | "units-64" => {
                let fits = if kernel == "units-128" { is_large } else { m > 32 && n > 32 };
                let has_units = fits && queue.device.has_feature("matrix-units") && !are_deterministic_algorithms_enabled();
                has_units && [lhs.1, rhs.1] == [DType::F16; 2] && is_float && self.is_fourfold() == [true; 3]
            }
            "tile-128" => is_float && is_large,
            "tile-64" => m > 32 && n > 32,
            _ => true,
        }
    }

    /// The best kernel that accepts the call.
    fn kernel(&self, queue: &Queue) -> Result<&'static str> {
        let accepted = KERNELS.into_iter().filter(|k| self.is_accepted(queue, k) && !queue.is_banned(k));
        queue.forced(accepted).ok_or_else(|| Error::KernelNotFound { kernel: "contract".to_owned(), backend: "wgpu".to_owned() })
    }

    /// Records `kernel`, which writes `target` in its dtype: the sums', or f16 where matrix units round them.
    fn dispatch(&self, queue: &Queue, op: &OpName, kernel: &'static str, target: (&GpuBuffer, DType)) -> Result<()> {
        let Roles { batch, m, n, k, offsets, sizes, lhs, rhs } = self.roles;
        let along_k = self.along_k();
        let is_float = self.wide == Wide::F32;
        let part_len = sizes[3].div_ceil(self.parts).next_multiple_of(4);
        let (tile, units) = (tile(queue, kernel), units_tile(kernel));
        // What is read and written four at a time: both operands and the result of tiles, the matrix of columns, and the
        // row and the result of outer products.
        let [four_lhs, four_rhs, four_out] = self.is_fourfold().map(|is| is && is_float);
        let is_fourfold = match kernel {
            "outer" => [false, four_rhs && four_out, four_rhs && four_out],
            "columns" => [four_lhs, false, false],
            "rows" => [false; 3],
            _ => [four_lhs, four_rhs, four_out],
        };
        let mut words = Words::default();
        let mut size = |x: usize| words.add(x as u32);
        let names = (size(sizes[0]), size(sizes[1]), size(sizes[2]), size(sizes[3]));
        let (parts, len, step) = (size(self.parts), size(part_len), size(self.step));
        let work = match (kernel, tile.map(|t| t.sides).or(units.map(|u| u.sides))) {
            (_, Some(sides)) => sizes[1].div_ceil(sides[0]) * sizes[2].div_ceil(sides[1]) * sizes[0] * self.parts,
            ("rows", _) => sizes[0] * sizes[1] * self.parts,
            ("columns", _) => sizes[0] * sizes[1].div_ceil(if is_fourfold[0] { 128 } else { 32 }) * self.parts,
            _ => sizes[0] * sizes[1].div_ceil(8) * sizes[2].div_ceil(if is_fourfold[1] { 1024 } else { 256 }),
        };
        let tiles = size(work);
        let first = offsets.map(&mut size);
        let mut text = if units.is_some() { units::HEAD.to_owned() } else { String::new() };
        text.push_str(Words::DECLARED);
        let t = self.wide.text();
        for (i, (name, operand)) in [("lhs", lhs), ("rhs", rhs)].into_iter().enumerate() {
            let element = match (units, is_fourfold[i]) {
                (Some(_), _) => "vec4<f16>",
                (None, true) => wgsl::fourfold(operand.1),
                (None, false) => wgsl::element(operand.1),
            };
            let _ = writeln!(text, "@group(0) @binding({i}) var<storage, read> {name}: array<{element}>;");
            text.push_str(&match is_fourfold[i] {
                _ if units.is_some() => String::new(),
                true => wgsl::load_fourfold(&format!("load4_{name}"), name, operand.1),
                false => wgsl::load(&format!("load_{name}"), name, operand.1, self.wide, false),
            });
        }
        let is_half = target.1 == DType::F16;
        let element = match (is_half, is_fourfold[2]) {
            (true, _) => wgsl::fourfold(DType::F16).to_owned(),
            (false, true) => format!("vec4<{t}>"),
            (false, false) => t.to_owned(),
        };
        let _ = writeln!(text, "@group(0) @binding(2) var<storage, read_write> out: array<{element}>;");
        text.push_str(&words.positions("m_at", m, &[0, 2]));
        text.push_str(&words.positions("n_at", n, &[1, 2]));
        text.push_str(&words.positions("k_at", k, &[0, 1]));
        text.push_str(&words.positions("walk", batch, &[0, 1, 2]));
        let _ = writeln!(text, "fn batch_at(b: u32) -> vec3<u32> {{ return vec3<u32>({}) + walk(b); }}", first.join(", "));
        words.check(op)?;
        let sizes = Sizes { m: names.1, n: names.2, k: names.3, parts, part_len: len, part_step: step, tiles };
        // The longest part is made only where the kernel is new.
        let body = || match (tile, units) {
            (Some(tile), _) => {
                let is_linear = k.len() <= 1;
                gemm::text(Form { tile, wide: self.wide, is_bool: self.is_bool, along_k, is_fourfold, is_linear }, &sizes)
            }
            (None, Some(units)) => units::text(units, along_k, is_half, &sizes),
            (None, None) if kernel == "rows" => rows(&sizes),
            (None, None) if kernel == "columns" => columns(&sizes, is_fourfold[0]),
            (None, None) => outer(&sizes, is_fourfold[1]),
        };
        let flags = |all: &[bool]| all.iter().map(|&f| if f { '1' } else { '0' }).collect::<String>();
        let name = format!(
            "contract-{kernel}-{t}{}{}-{}-{}-{}{}{}{}-{}-{}",
            if self.is_bool { "-bool" } else { "" },
            if is_half { "-half" } else { "" },
            lhs.1,
            rhs.1,
            batch.len(),
            m.len(),
            n.len(),
            k.len(),
            flags(&along_k),
            flags(&is_fourfold)
        );
        queue.record(
            op,
            &name,
            || wgsl::with_scalar_functions(text + &body()),
            &[&lhs.0.buffer, &rhs.0.buffer, target.0],
            &words.values,
            grid(&queue.device, work as u64),
        )
    }
}

/// A product with a vector whose matrix has its rows along k: a workgroup adds one row, lane l the terms l, l + 256, …, and
/// folds the lanes in halves. The order depends on k alone.
fn rows(s: &Sizes) -> String {
    format!(
        "var<workgroup> sums: array<f32, 256>;
@compute @workgroup_size(256)
fn rows(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
    for (var which = group.y * groups.x + group.x; which < {tiles}; which += groups.x * groups.y) {{
        let m = which % {m};
        let part = (which / {m}) % {parts};
        let base = batch_at(which / {m} / {parts});
        let at = m_at(m);
        let end = min((part + 1u) * {len}, {k});
        var sum = {start};
        for (var j = part * {len} + lane; j < end; j += 256u) {{
            let far = k_at(j);
            sum = fma(load_lhs(base.x + at.x + far.x), load_rhs(base.y + far.y), sum);
        }}
        sums[lane] = sum;
        workgroupBarrier();
        for (var half = 128u; half > 0u; half >>= 1u) {{
            if lane < half {{ sums[lane] += sums[lane + half]; }}
            workgroupBarrier();
        }}
        if lane == 0u {{ out[base.z + at.y + part * {step}] = sums[0]; }}
        workgroupBarrier();
    }}
}}
",
        tiles = s.tiles,
        m = s.m,
        start = Wide::F32.neutral(),
        k = s.k,
        parts = s.parts,
        len = s.part_len,
        step = s.part_step,
    )
}

/// A product with a vector whose matrix has its columns along k: a workgroup adds 32 columns, or 32 fours of them, lane row r
/// the terms r, r + 8, …, which are then added in the order of r. The order depends on k and its parts alone.
fn columns(s: &Sizes, is_fourfold: bool) -> String {
    let (width, kind, load) = if is_fourfold { (4, "vec4<f32>", "load4_lhs") } else { (1, "f32", "load_lhs") };
    let mut far = String::new();
    let mut add = String::new();
    for i in 0..4 {
        let _ = writeln!(
            far,
            "                let far{i} = k_at(j + {}u);\n                let x{i} = {load}(base.x + at.x + far{i}.x);",
            8 * i
        );
        let _ = writeln!(add, "                sum = fma(x{i}, {kind}(load_rhs(base.y + far{i}.y)), sum);");
    }
    let put: String = match is_fourfold {
        true => (0..4).map(|c| format!("            out[base.z + m_at(m + {c}u).y + part * {}] = total[{c}];\n", s.part_step)).collect(),
        false => format!("            out[base.z + at.y + part * {}] = total;\n", s.part_step),
    };
    format!(
        "var<workgroup> sums: array<{kind}, 256>;
@compute @workgroup_size(32, 8)
fn columns(@builtin(local_invocation_id) lane: vec3<u32>, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
    let across = ({m} + {past}u) / {wide}u;
    for (var which = group.y * groups.x + group.x; which < {tiles}; which += groups.x * groups.y) {{
        let m = (which % across) * {wide}u + lane.x * {width}u;
        let part = (which / across) % {parts};
        let base = batch_at(which / across / {parts});
        let at = m_at(m);
        var sum = {kind}({start});
        if m < {m} {{
            let end = min((part + 1u) * {len}, {k});
            var j = part * {len} + lane.y;
            // Four loads are under way at a time.
            for (; j + 24u < end; j += 32u) {{
{far}{add}            }}
            for (; j < end; j += 8u) {{
                let far = k_at(j);
                sum = fma({load}(base.x + at.x + far.x), {kind}(load_rhs(base.y + far.y)), sum);
            }}
        }}
        sums[lane.y * 32u + lane.x] = sum;
        workgroupBarrier();
        if lane.y == 0u && m < {m} {{
            var total = sums[lane.x];
            for (var r = 1u; r < 8u; r++) {{ total += sums[r * 32u + lane.x]; }}
{put}        }}
        workgroupBarrier();
    }}
}}
",
        past = 32 * width - 1,
        wide = 32 * width,
        tiles = s.tiles,
        m = s.m,
        start = Wide::F32.neutral(),
        k = s.k,
        parts = s.parts,
        len = s.part_len,
    )
}

/// A product over one term: each workgroup writes 8 rows of 256 columns, or of 256 fours of them.
fn outer(s: &Sizes, is_fourfold: bool) -> String {
    let (width, kind, load) = if is_fourfold { (4, "vec4<f32>", "load4_rhs") } else { (1, "f32", "load_rhs") };
    let place = if is_fourfold { "(base.z + row.y + to.y) / 4u" } else { "base.z + row.y + to.y" };
    format!(
        "@compute @workgroup_size(256)
fn outer(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
    let across = ({n} + {past}u) / {wide}u;
    let down = ({m} + 7u) / 8u;
    for (var which = group.y * groups.x + group.x; which < {tiles}; which += groups.x * groups.y) {{
        let column = (which % across) * {wide}u + lane * {width}u;
        let first = ((which / across) % down) * 8u;
        let base = batch_at(which / across / down);
        if column < {n} {{
            let to = n_at(column);
            let b = {load}(base.y + to.x);
            let end = min(first + 8u, {m});
            for (var i = first; i < end; i++) {{
                let row = m_at(i);
                out[{place}] = {kind}(load_lhs(base.x + row.x)) * b;
            }}
        }}
    }}
}}
",
        past = 256 * width - 1,
        wide = 256 * width,
        n = s.n,
        m = s.m,
        tiles = s.tiles,
    )
}
