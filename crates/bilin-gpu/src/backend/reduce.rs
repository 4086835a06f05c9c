//! Reductions: a workgroup for each result, or an invocation for each where there are many results of few terms or
//! neighbours of the result stand closer together than neighbours of the sum.

use std::fmt::Write as _;

use bilin_core::exec::call::{ReduceCall, Reduction};
use bilin_core::exec::map_expr::compute_dtype;
use bilin_core::shape::plan::{Loop, steps};
use bilin_core::{DType, OpName, Result};

use super::queue::{LANES, Queue, grid};
use super::storage::WgpuStorage;
use super::wgsl::{self, Wide, Words};
use super::{map, unsupported};

/// Terms up to which an invocation reduces alone.
const FEW: usize = 32;
/// Terms of a part, where one sum is split.
const PART: usize = 1 << 14;

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
    // One long sum keeps few workgroups busy: parts of the outermost loop's steps are summed first, then the parts.
    let is_split = is_sum && wide == Wide::F32 && outputs < 64 && terms >= 4 * PART && call.reduced.len() == 1;
    if is_split {
        let parts = terms.div_ceil(PART);
        let scratch = queue.acquire(outputs * parts * 4)?;
        let stride = call.reduced[0].strides[0];
        let mut kept: Vec<Loop<1>> = call.kept.to_vec();
        kept.push(Loop { len: parts, strides: [stride * PART as isize] });
        let job = Job { input, kept: &kept, reduced: &[Loop { len: PART, strides: [stride] }], offset, last: Some((parts, terms)) };
        job.dispatch(queue, op, Reduction::Sum, wide, (&scratch, DType::F32))?;
        let kept = [Loop { len: outputs, strides: [parts as isize] }];
        let reduced = [Loop { len: parts, strides: [1] }];
        let job = Job { input: (&scratch, DType::F32), kept: &kept, reduced: &reduced, offset: 0, last: None };
        return finish(queue, op, &job, Reduction::Sum, wide, (out, call.out.dtype), outputs);
    }
    let job = Job { input, kept: &call.kept, reduced: &call.reduced, offset, last: None };
    if is_index {
        return job.dispatch(queue, op, call.reduction, wide, (out, DType::I64));
    }
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
    /// Where the innermost kept loop counts parts: their number, and the terms of all parts together.
    last: Option<(usize, usize)>,
}

impl Job<'_> {
    fn dispatch(&self, queue: &Queue, op: &OpName, reduction: Reduction, wide: Wide, out: (&WgpuStorage, DType)) -> Result<()> {
        let (outputs, terms) = (steps(self.kept), steps(self.reduced));
        let is_across = match (self.kept.last(), self.reduced.last()) {
            (Some(k), Some(r)) => k.strides[0].unsigned_abs() < r.strides[0].unsigned_abs(),
            _ => false,
        };
        let is_alone = self.last.is_none() && (terms <= FEW || is_across && outputs >= 64);
        let is_index = matches!(reduction, Reduction::Argmax | Reduction::Argmin);
        let is_sum = reduction == Reduction::Sum;
        let mut words = Words::default();
        let (outputs_at, terms_at, offset) = (words.add(outputs as u32), words.add(terms as u32), words.add(self.offset as u32));
        let t = wide.text();
        let mut text = String::from(Words::DECLARED);
        let _ = writeln!(text, "@group(0) @binding(0) var<storage, read> x: array<{}>;", wgsl::element(self.input.1));
        let result = if is_index { "i64" } else { t };
        let _ = writeln!(text, "@group(0) @binding(1) var<storage, read_write> out: array<{result}>;");
        text.push_str(&wgsl::load("load", "x", self.input.1, wide, false));
        text.push_str(&words.positions("kept_at", self.kept, &[0]));
        text.push_str(&words.positions("term_at", self.reduced, &[0]));
        let end = match self.last {
            Some((parts, all)) => {
                let (parts, all) = (words.add(parts as u32), words.add(all as u32));
                format!("min({terms_at}, {all} - (which % {parts}) * {terms_at})")
            }
            None => terms_at,
        };
        words.check(op)?;
        text.push_str(&rule(reduction, wide));
        let none = if is_sum { format!("Item({}, 0u, 0u)", wide.start("end")) } else { "Item()".to_owned() };
        let put = if is_index { "i64(best.at)" } else { "best.value" };
        let head = "(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>)";
        if is_alone {
            let _ = writeln!(
                text,
                "@compute @workgroup_size(256)
fn reduce{head} {{
    for (var which = (group.y * groups.x + group.x) * 256u + lane; which < {outputs_at}; which += groups.x * groups.y * 256u) {{
        let base = {offset} + kept_at(which);
        let end = {end};
        var best = {none};
        for (var i = 0u; i < end; i++) {{ best = join(best, Item(load(base + term_at(i)), i, 1u)); }}
        out[which] = {put};
    }}
}}"
            );
        } else {
            let _ = writeln!(
                text,
                "var<workgroup> items: array<Item, 256>;
@compute @workgroup_size(256)
fn reduce{head} {{
    for (var which = group.y * groups.x + group.x; which < {outputs_at}; which += groups.x * groups.y) {{
        let base = {offset} + kept_at(which);
        let end = {end};
        var best = {none};
        for (var i = lane; i < end; i += 256u) {{ best = join(best, Item(load(base + term_at(i)), i, 1u)); }}
        items[lane] = best;
        workgroupBarrier();
        for (var half = 128u; half > 0u; half >>= 1u) {{
            if lane < half {{ items[lane] = join(items[lane], items[lane + half]); }}
            workgroupBarrier();
        }}
        if lane == 0u {{ best = items[0]; out[which] = {put}; }}
        workgroupBarrier();
    }}
}}"
            );
        }
        let name = format!(
            "reduce-{reduction:?}-{t}-{}-{}-{}-{}{}",
            self.input.1,
            self.kept.len(),
            self.reduced.len(),
            if is_alone { "alone" } else { "group" },
            if self.last.is_some() { "-parts" } else { "" }
        );
        let work = if is_alone { (outputs as u64).div_ceil(LANES) } else { outputs as u64 };
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
