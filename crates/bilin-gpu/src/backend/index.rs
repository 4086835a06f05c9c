//! Reads and sums by index. A position outside its axis is found on the device: such a read gives 0, such a sum leaves the
//! result as it was, and the error surfaces when values are read or at `sync`.

use std::fmt::Write as _;

use bilin_core::exec::call::{GatherCall, ScatterCall};
use bilin_core::exec::map_expr::compute_dtype;
use bilin_core::shape::plan::Loop;
use bilin_core::{DType, Error, Layout, Result};

use super::queue::{LANES, Queue, grid};
use super::storage::WgpuStorage;
use super::wgsl::{self, Wide, Words};
use super::{map, unsupported};

/// One loop for each axis, with an operand's strides; `still` stands still.
fn loops(shape: &[usize], layout: &Layout, still: Option<usize>) -> Vec<Loop<1>> {
    let stride = |a: usize| if Some(a) == still { 0 } else { layout.strides()[a] };
    shape.iter().enumerate().map(|(a, &len)| Loop { len, strides: [stride(a)] }).collect()
}

/// The function `pick(i) -> u32`: position i of the index, or the axis' length where it is outside. Positions of every width are
/// read as the two words of an int64.
fn pick(words: &mut Words, dtype: DType, len: usize, call: u32) -> String {
    let (len, call) = (words.add(len as u32), words.add(call));
    let position = match dtype {
        DType::I64 => "fn position(i: u32) -> vec2<u32> { return index[i]; }\n".to_owned(),
        _ => {
            let widen = "fn position(i: u32) -> vec2<u32> {\n    let v = narrow(i);\n    return vec2<u32>(bitcast<u32>(v), select(0u, 0xffffffffu, v < 0i));\n}\n";
            wgsl::load("narrow", "index", dtype, Wide::I32, false) + widen
        }
    };
    format!(
        "{position}fn pick(i: u32) -> u32 {{
    let at = position(i);
    if at.y == 0u && at.x < {len} {{ return at.x; }}
    if atomicCompareExchangeWeak(&fault[0], 0u, {call}).exchanged {{ atomicStore(&fault[1], at.x); atomicStore(&fault[2], at.y); }}
    return {len};
}}
"
    )
}

/// Type of the elements of the array of positions.
fn position_element(dtype: DType) -> &'static str {
    if dtype == DType::I64 { "vec2<u32>" } else { wgsl::element(dtype) }
}

const HEAD: &str =
    "(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>)";

pub(super) fn gather(queue: &Queue, call: GatherCall<'_>) -> Result<()> {
    let op = call.op;
    let total = call.index.1.numel();
    let (out, src) = (WgpuStorage::of(op, &*call.out.buffer)?, map::source_of(queue, op, &call.src.0)?);
    if total == 0 {
        return Ok(());
    }
    let index = WgpuStorage::of(op, call.index.0.buffer)?;
    let (shape, len) = (call.index.1.shape(), call.src.1.shape()[call.axis]);
    let positions = call.index.0.dtype;
    let (fault, number) = queue.watch_positions(op, len)?;
    let mut words = Words::default();
    let (total_at, len_at, along) = (words.add(total as u32), words.add(len as u32), words.add(call.src.1.strides()[call.axis] as u32));
    let (first_src, first_index) = (words.add(call.src.1.offset() as u32), words.add(call.index.1.offset() as u32));
    let (size, per_word) = (src.1.size_bytes(), wgsl::per_word(src.1));
    let mut text = String::from(Words::DECLARED);
    let element = if size == 8 { "vec2<u32>" } else { "u32" };
    let _ = writeln!(text, "@group(0) @binding(0) var<storage, read> src: array<{element}>;");
    let _ = writeln!(text, "@group(0) @binding(1) var<storage, read> index: array<{}>;", position_element(positions));
    let _ = writeln!(text, "@group(0) @binding(2) var<storage, read_write> out: array<{element}>;");
    text.push_str("@group(0) @binding(3) var<storage, read_write> fault: array<atomic<u32>>;\n");
    text.push_str(&words.positions("src_at", &loops(shape, call.src.1, Some(call.axis)), &[0]));
    text.push_str(&words.positions("index_at", &loops(shape, call.index.1, None), &[0]));
    text.push_str(&pick(&mut words, positions, len, number));
    words.check(op)?;
    let bits = 32 / per_word;
    let read = match per_word {
        1 => "src[at]".to_owned(),
        n => format!("(src[at / {n}u] >> ((at % {n}u) * {bits}u)) & {}u", (1u64 << bits) - 1),
    };
    let _ = writeln!(
        text,
        "fn value(i: u32) -> {element} {{
    let picked = pick({first_index} + index_at(i));
    if picked == {len_at} {{ return {element}(); }}
    let at = {first_src} + src_at(i) + picked * {along};
    return {read};
}}
@compute @workgroup_size(256)
fn gather{HEAD} {{
    let pieces = ({total_at} + {}u) / {per_word}u;
    for (var i = (group.y * groups.x + group.x) * 256u + lane; i < pieces; i += groups.x * groups.y * 256u) {{",
        per_word - 1
    );
    let _ = match per_word {
        1 => writeln!(text, "        out[i] = value(i);"),
        n => writeln!(
            text,
            "        var word = 0u;\n        for (var j = 0u; j < {n}u; j++) {{\n            let e = i * {n}u + j;\n            if e < {total_at} {{ word |= value(e) << (j * {bits}u); }}\n        }}\n        out[i] = word;"
        ),
    };
    text.push_str("    }\n}\n");
    let name = format!("gather-{size}-{positions}-{}", shape.len());
    let work = (total.div_ceil(per_word) as u64).div_ceil(LANES);
    queue.record(
        op,
        &name,
        || wgsl::with_scalar_functions(text),
        &[&src.0.buffer, &index.buffer, &out.buffer, &fault],
        &words.values,
        grid(&queue.device, work),
    )
}

/// One invocation adds a whole line along the axis, in the order of the source, so equal positions add in a fixed order.
pub(super) fn scatter_add(queue: &Queue, call: ScatterCall<'_>) -> Result<()> {
    let op = call.op;
    let (target, out_layout) = call.out;
    let total = call.src.1.numel();
    if total == 0 {
        return Ok(());
    }
    let (out, src) = (WgpuStorage::of(op, &*target.buffer)?, map::source_of(queue, op, &call.src.0)?);
    let index = WgpuStorage::of(op, call.index.0.buffer)?;
    let wide = match (target.dtype, compute_dtype(target.dtype)) {
        (DType::F32, _) => Wide::F32,
        (DType::I64, _) if queue.device.has_feature("i64") => Wide::I64,
        (DType::Bool | DType::U8 | DType::I8 | DType::I16 | DType::I32, _) => Wide::I32,
        (other, _) => return Err(unsupported(op, other)),
    };
    if out_layout.numel() == 0 {
        return Err(Error::invalid(op.clone(), "index", format!("{total} positions"), "want none for an axis of length 0"));
    }
    let (axis, shape) = (call.axis, call.src.1.shape());
    let len = out_layout.shape()[axis];
    let positions = call.index.0.dtype;
    let (fault, number) = queue.watch_positions(op, len)?;
    let mut lines: Vec<usize> = shape.to_vec();
    lines[axis] = 1;
    let count: usize = lines.iter().product();
    let mut words = Words::default();
    let (count_at, steps_at, len_at) = (words.add(count as u32), words.add(shape[axis] as u32), words.add(len as u32));
    let mut stride = |l: &Layout| (words.add(l.offset() as u32), words.add(l.strides()[axis] as u32));
    let (src_s, index_s, out_s) = (stride(call.src.1), stride(call.index.1), stride(out_layout));
    let mut text = String::from(Words::DECLARED);
    let _ = writeln!(text, "@group(0) @binding(0) var<storage, read> src: array<{}>;", wgsl::element(src.1));
    let _ = writeln!(text, "@group(0) @binding(1) var<storage, read> index: array<{}>;", position_element(positions));
    // Elements narrower than a word share it with those of other lines.
    let (per_word, element) = (wgsl::per_word(target.dtype), wgsl::element(target.dtype));
    let array = if per_word > 1 { "atomic<u32>" } else { element };
    let _ = writeln!(text, "@group(0) @binding(2) var<storage, read_write> out: array<{array}>;");
    text.push_str("@group(0) @binding(3) var<storage, read_write> fault: array<atomic<u32>>;\n");
    text.push_str(&wgsl::load("load", "src", src.1, wide, false));
    text.push_str(&wgsl::load("old", "out", target.dtype, wide, per_word > 1));
    text.push_str(&wgsl::pack(target.dtype, wide));
    text.push_str(&wgsl::put(target.dtype));
    for (name, layout) in [("src_at", call.src.1), ("index_at", call.index.1), ("out_at", out_layout)] {
        text.push_str(&words.positions(name, &loops(&lines, layout, Some(axis)), &[0]));
    }
    text.push_str(&pick(&mut words, positions, len, number));
    words.check(op)?;
    let _ = writeln!(
        text,
        "@compute @workgroup_size(256)
fn scatter{HEAD} {{
    for (var i = (group.y * groups.x + group.x) * 256u + lane; i < {count_at}; i += groups.x * groups.y * 256u) {{
        let line = {} + src_at(i);
        let by = {} + index_at(i);
        let to = {} + out_at(i);
        for (var j = 0u; j < {steps_at}; j++) {{
            let picked = pick(by + j * {});
            if picked != {len_at} {{
                let at = to + picked * {};
                put(at, pack(old(at) + load(line + j * {})));
            }}
        }}
    }}
}}",
        src_s.0, index_s.0, out_s.0, index_s.1, out_s.1, src_s.1
    );
    let name = format!("scatter-{}-{}-{positions}-{}", target.dtype, src.1, shape.len());
    let work = (count as u64).div_ceil(LANES);
    queue.record(
        op,
        &name,
        || wgsl::with_scalar_functions(text),
        &[&src.0.buffer, &index.buffer, &out.buffer, &fault],
        &words.values,
        grid(&queue.device, work),
    )
}
