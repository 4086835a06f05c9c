//! Reductions: a workgroup for each result, an invocation for each where there are few terms, or a workgroup for 32 results
//! where neighbours of the result stand closer together than neighbours of the sum. Long ones are split into parts by the
//! number of terms.

use std::fmt::Write as _;

use bilin_core::exec::call::{ReduceCall, Reduction};
use bilin_core::exec::map_expr::compute_dtype;
use bilin_core::shape::plan::{Loop, steps};
use bilin_core::{DType, OpName, Result, are_deterministic_algorithms_enabled};

use super::queue::{LANES, Queue, grid};
use super::storage::WgpuStorage;
use super::wgsl::{self, Wide, Words};
use super::{map, unsupported};

/// Terms up to which an invocation reduces alone.
const FEW: usize = 32;
/// Terms of a part, where a workgroup reduces it to one result.
const PART: usize = 1 << 14;
/// Terms of a part, where a workgroup reduces it to 32 results; and most parts.
const PART_ACROSS: usize = 1 << 11;
const MOST_PARTS_ACROSS: usize = 32;
/// Results from which on parts aren't needed to keep a card busy.
const MANY: usize = 1 << 10;

/// Who reduces a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crew {
    /// One invocation, the terms in their order.
    Alone,
    /// A workgroup: lane l the terms l, l + 256, …, then the lanes in halves.
    Group,
    /// A workgroup for 32 results: row r of its lanes the terms r, r + 8, …, then the rows in their order.
    Across,
}

pub(super) fn run(queue: &Queue, call: ReduceCall<'_>) -> Result<()> {
    let op = call.op;
    let (outputs, terms) = (steps(&call.kept), steps(&call.reduced));
    let out = WgpuStorage::of(op, &*call.out.buffer)?;
    let input = map::source_of(queue, op, &call.input)?;
    let is_sum = call.reduction == Reduction::Sum;
    let wide = match (if is_sum { compute_dtype(call.accumulator) } else { compute_dtype(input.1) }, input.1) {
        (DType::F32, _) => Wide::F32,
        (DType::I64, DType::I64) | (DType::I64, _) if queue.device.has_feature("i64") => Wide::I64,
        (other, _) => return Err(unsupported(op, other)),
    };
    map::check_dtype(queue, op, call.out.dtype)?;
    if outputs == 0 {
        return Ok(());
    }
    let is_index = matches!(call.reduction, Reduction::Argmax | Reduction::Argmin);
    let offset = call.offset;
    let is_across = match (call.kept.last(), call.reduced.last()) {
        (Some(k), Some(r)) => k.strides[0].unsigned_abs() < r.strides[0].unsigned_abs(),
        _ => false,
    };
    // Under the deterministic switch the order depends on the number of terms alone, so a result's bits depend neither on
    // how many others there are nor on where they stand.
    let is_strict = are_deterministic_algorithms_enabled();
    let (crew, parts) = match () {
        () if terms <= FEW => (Crew::Alone, 1),
        () if is_across && outputs >= 64 && !is_strict => (Crew::Across, (terms / PART_ACROSS).clamp(1, MOST_PARTS_ACROSS)),
        () if terms < 4 * PART || (outputs >= MANY && !is_strict) => (Crew::Group, 1),
        () => (Crew::Group, terms.div_ceil(PART)),
    };
    let job = Job { input, kept: &call.kept, reduced: &call.reduced, offset, crew, parts: 1 };
    if is_index {
        return job.dispatch(queue, op, call.reduction, wide, (out, DType::I64));
    }
    if parts == 1 {
        return finish(queue, op, &job, call.reduction, wide, (out, call.out.dtype), outputs);
    }
    let scratch = queue.acquire(outputs * parts * wide.dtype().size_bytes())?;
    Job { parts, ..job }.dispatch(queue, op, call.reduction, wide, (&scratch, wide.dtype()))?;
    // Part p of result i stands at p·outputs + i.
    let (kept, reduced) = ([Loop { len: outputs, strides: [1] }], [Loop { len: parts, strides: [outputs as isize] }]);
    let crew = if parts <= FEW { Crew::Alone } else { Crew::Group };
    let job = Job { input: (&scratch, wide.dtype()), kept: &kept, reduced: &reduced, offset: 0, crew, parts: 1 };
    finish(queue, op, &job, call.reduction, wide, (out, call.out.dtype), outputs)
}

/// Reduces into the result, by way of wide memory where the result's dtype is another.
fn finish(
    queue: &Queue,
    op: &OpName,
    job: &Job<'_>,
    reduction: Reduction,
    wide: Wide,
    out: (&WgpuStorage, DType),
    outputs: usize,
) -> Result<()> {
    if out.1 == wide.dtype() {
        return job.dispatch(queue, op, reduction, wide, out);
    }
    let scratch = queue.acquire(outputs * wide.dtype().size_bytes())?;
    job.dispatch(queue, op, reduction, wide, (&scratch, wide.dtype()))?;
    map::narrow(queue, op, (&scratch, wide), out, outputs)
}

struct Job<'a> {
    input: (&'a WgpuStorage, DType),
    kept: &'a [Loop<1>],
    reduced: &'a [Loop<1>],
    offset: usize,
    crew: Crew,
    /// Parts of the terms; part p of result i goes to p·results + i.
    parts: usize,
}

impl Job<'_> {
    fn dispatch(&self, queue: &Queue, op: &OpName, reduction: Reduction, wide: Wide, out: (&WgpuStorage, DType)) -> Result<()> {
        let (outputs, terms) = (steps(self.kept), steps(self.reduced));
        let is_index = matches!(reduction, Reduction::Argmax | Reduction::Argmin);
        let mut words = Words::default();
        let (outputs_at, terms_at, offset) = (words.add(outputs as u32), words.add(terms as u32), words.add(self.offset as u32));
        // No part is empty: an extreme of nothing would be 0.
        let part_len = if self.crew == Crew::Group && self.parts > 1 { PART } else { terms.div_ceil(self.parts) };
        let (parts_at, len_at) = (words.add(self.parts as u32), words.add(part_len as u32));
        let t = wide.text();
        let mut text = String::from(Words::DECLARED);
        let _ = writeln!(text, "@group(0) @binding(0) var<storage, read> x: array<{}>;", wgsl::element(self.input.1));
        let result = if is_index { "i64" } else { t };
        let _ = writeln!(text, "@group(0) @binding(1) var<storage, read_write> out: array<{result}>;");
        text.push_str(&wgsl::load("load", "x", self.input.1, wide, false));
        text.push_str(&words.positions("kept_at", self.kept, &[0]));
        text.push_str(&words.positions("term_at", self.reduced, &[0]));
        words.check(op)?;
        text.push_str(&rule(reduction, wide));
        let none = |terms: &str| match reduction {
            Reduction::Sum => format!("Item({}, 0u, 0u)", wide.start(terms)),
            _ => "Item()".to_owned(),
        };
        let put = if is_index { "i64(best.at)" } else { "best.value" };
        let _ = writeln!(text, "fn item(base: u32, i: u32) -> Item {{ return Item(load(base + term_at(i)), i, 1u); }}");
        let head = "(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>)";
        // `start` and `end` of the terms of a part.
        let range = format!("let start = part * {len_at};\n        let end = min(start + {len_at}, {terms_at});");
        let _ = match self.crew {
            Crew::Alone => writeln!(
                text,
                "@compute @workgroup_size(256)
fn reduce{head} {{
    for (var which = (group.y * groups.x + group.x) * 256u + lane; which < {outputs_at}; which += groups.x * groups.y * 256u) {{
        let base = {offset} + kept_at(which);
        var best = {};
        for (var i = 0u; i < {terms_at}; i++) {{ best = join(best, item(base, i)); }}
        out[which] = {put};
    }}
}}",
                none(&terms_at)
            ),
            Crew::Group => writeln!(
                text,
                "var<workgroup> items: array<Item, 256>;
@compute @workgroup_size(256)
fn reduce{head} {{
    for (var which = group.y * groups.x + group.x; which < {outputs_at} * {parts_at}; which += groups.x * groups.y) {{
        let base = {offset} + kept_at(which % {outputs_at});
        let part = which / {outputs_at};
        {range}
        var best = {};
        for (var i = start + lane; i < end; i += 256u) {{ best = join(best, item(base, i)); }}
        items[lane] = best;
        workgroupBarrier();
        for (var half = 128u; half > 0u; half >>= 1u) {{
            if lane < half {{ items[lane] = join(items[lane], items[lane + half]); }}
            workgroupBarrier();
        }}
        if lane == 0u {{ best = items[0]; out[which] = {put}; }}
        workgroupBarrier();
    }}
}}",
                none("1u")
            ),
            Crew::Across => writeln!(
                text,
                "var<workgroup> items: array<Item, 256>;
@compute @workgroup_size(256)
fn reduce{head} {{
    let column = lane % 32u;
    let row = lane / 32u;
    let across = ({outputs_at} + 31u) / 32u;
    for (var which = group.y * groups.x + group.x; which < across * {parts_at}; which += groups.x * groups.y) {{
        let at = which % across * 32u + column;
        let base = {offset} + kept_at(at);
        let part = which / across;
        {range}
        var best = {};
        if at < {outputs_at} {{
            var i = start + row;
            // Four loads are under way at a time.
            for (; i + 24u < end; i += 32u) {{
                let a = item(base, i);
                let b = item(base, i + 8u);
                let c = item(base, i + 16u);
                let d = item(base, i + 24u);
                best = join(join(join(join(best, a), b), c), d);
            }}
            for (; i < end; i += 8u) {{ best = join(best, item(base, i)); }}
        }}
        items[lane] = best;
        workgroupBarrier();
        if row == 0u && at < {outputs_at} {{
            for (var r = 1u; r < 8u; r++) {{ best = join(best, items[r * 32u + column]); }}
            out[part * {outputs_at} + at] = {put};
        }}
        workgroupBarrier();
    }}
}}",
                none("1u")
            ),
        };
        let name = format!("reduce-{reduction:?}-{t}-{}-{}-{}-{:?}", self.input.1, self.kept.len(), self.reduced.len(), self.crew);
        let work = match self.crew {
            Crew::Alone => (outputs as u64).div_ceil(LANES),
            Crew::Group => outputs as u64 * self.parts as u64,
            Crew::Across => (outputs as u64).div_ceil(32) * self.parts as u64,
        };
        queue.record(
            op,
            &name,
            || wgsl::with_scalar_functions(text),
            &[&self.input.0.buffer, &out.0.buffer],
            &words.values,
            grid(&queue.device, work),
        )
    }
}

/// How two partial results become one. An item that holds nothing loses; of equal extremes the first stays, and NaN wins.
fn rule(reduction: Reduction, wide: Wide) -> String {
    let t = wide.text();
    let is_nan = |x: &str| if wide == Wide::F32 { format!("is_nan({x}.value)") } else { "false".to_owned() };
    let (nan_a, nan_b) = (is_nan("a"), is_nan("b"));
    let body = match reduction {
        Reduction::Sum => "    return Item(a.value + b.value, 0u, 1u);".to_owned(),
        Reduction::Max | Reduction::Argmax | Reduction::Min | Reduction::Argmin => {
            let sign = if matches!(reduction, Reduction::Max | Reduction::Argmax) { ">" } else { "<" };
            format!(
                "    if b.count == 0u {{ return a; }}
    if a.count == 0u {{ return b; }}
    let nan_a = {nan_a};
    let nan_b = {nan_b};
    let is_tie = (nan_a && nan_b) || (!nan_a && !nan_b && a.value == b.value);
    if is_tie {{ if b.at < a.at {{ return b; }} return a; }}
    if nan_b || (!nan_a && b.value {sign} a.value) {{ return b; }}
    return a;"
            )
        }
    };
    format!("struct Item {{ value: {t}, at: u32, count: u32 }}\nfn join(a: Item, b: Item) -> Item {{\n{body}\n}}\n")
}
