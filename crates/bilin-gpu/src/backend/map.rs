//! Elementwise work: a postfix program becomes a line of WGSL for each step.

use std::fmt::Write as _;

use bilin_core::exec::call::{MapCall, Source};
use bilin_core::shape::plan::{Loop, steps};
use bilin_core::{DType, OpName, Prim, Result};
use smallvec::SmallVec;

use super::queue::{LANES, Queue, grid};
use super::storage::WgpuStorage;
use super::unsupported;
use super::wgsl::{self, Wide, Words};
use crate::layer::buffer::GpuBuffer;

/// The type that a map over values of `dtype`'s compute dtype computes in.
fn wide(op: &OpName, compute: DType) -> Result<Wide> {
    match compute {
        DType::F32 => Ok(Wide::F32),
        DType::I64 => Ok(Wide::I64),
        other => Err(unsupported(op, other)),
    }
}

/// Whether shaders here can hold a dtype's elements.
pub(super) fn check_dtype(queue: &Queue, op: &OpName, dtype: DType) -> Result<()> {
    let has = match dtype {
        DType::F64 | DType::C64 | DType::C128 => false,
        DType::I64 => queue.device.has_feature("i64"),
        _ => true,
    };
    if has { Ok(()) } else { Err(unsupported(op, dtype)) }
}

/// Whole powers modulo 2⁶⁴; a negative exponent leaves 0 but of 1 and −1.
const POW_INT: &str = "fn pow_int(a: i64, b: i64) -> i64 {
    if b < 0li { return select(select(0li, 1li - 2li * (b & 1li), a == -1li), 1li, a == 1li); }
    var base = a;
    var rest = b;
    var y = 1li;
    while rest > 0li {
        if (rest & 1li) == 1li { y = y * base; }
        base = base * base;
        rest = rest >> 1u;
    }
    return y;
}
";

/// What a map's text depends on.
struct Job<'a> {
    prims: &'a [Prim],
    wide: Wide,
    reads_old: bool,
    loops: &'a [Loop<5>],
    offsets: [usize; 5],
    inputs: SmallVec<[DType; 4]>,
    out: DType,
    piece: Piece,
}

/// What an invocation writes at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Piece {
    /// Four neighbours, at a multiple of four: whole words of the result.
    Four,
    /// One word of a result that is dense and all of its memory.
    Word,
    /// One element: a word, or a part of one that is changed atomically.
    Element,
}

/// Whether four steps of the innermost loop, from any multiple of four on, are neighbours of an operand at a multiple of four.
fn is_fourfold(loops: &[Loop<5>], offsets: &[usize; 5], operand: usize) -> bool {
    let Some((last, outer)) = loops.split_last() else { return false };
    let starts = offsets[operand].is_multiple_of(4) && outer.iter().all(|l| l.strides[operand] % 4 == 0);
    last.len.is_multiple_of(4) && last.strides[operand] == 1 && starts
}

pub(super) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::Bf16 | DType::F32)
}

pub(super) fn run(queue: &Queue, call: MapCall<'_>) -> Result<()> {
    let op = call.op;
    let total = steps(call.plan.loops()) as u64;
    let out = WgpuStorage::of(op, &*call.out.buffer)?;
    let mut buffers: SmallVec<[&GpuBuffer; 5]> = SmallVec::new();
    buffers.push(&out.buffer);
    for source in call.inputs {
        buffers.push(&WgpuStorage::of(op, source.buffer)?.buffer);
    }
    for dtype in call.inputs.iter().map(|s| s.dtype).chain([call.out.dtype]) {
        check_dtype(queue, op, dtype)?;
    }
    let wide = wide(op, call.expr.compute())?;
    if wide == Wide::I64 && !queue.device.has_feature("i64") {
        return Err(unsupported(op, DType::I64));
    }
    if total == 0 {
        return Ok(());
    }
    let covers = total as usize * call.out.dtype.size_bytes() == out.byte_len;
    let (reads_old, loops, offsets) = (call.expr.reads_old(), call.plan.loops(), call.plan.offsets());
    let piece = if is_fourfold(loops, &offsets, 0) && (is_float(call.out.dtype) || !reads_old) {
        Piece::Four
    } else if wgsl::per_word(call.out.dtype) > 1 && call.is_dense && covers {
        Piece::Word
    } else {
        Piece::Element
    };
    let job = Job {
        prims: call.expr.prims(),
        wide,
        reads_old,
        loops,
        offsets,
        inputs: call.inputs.iter().map(|s| s.dtype).collect(),
        out: call.out.dtype,
        piece,
    };
    dispatch(queue, op, &job, &buffers, total)
}

/// Converts the first `count` elements of wide memory to another dtype's dense memory, all of which they fill.
pub(super) fn narrow(queue: &Queue, op: &OpName, from: (&WgpuStorage, Wide), to: (&WgpuStorage, DType), count: usize) -> Result<()> {
    let loops = [Loop { len: count, strides: [1, 1, 0, 0, 0] }];
    let job = Job {
        prims: &[Prim::Input(0)],
        wide: from.1,
        reads_old: false,
        loops: &loops,
        offsets: [0; 5],
        inputs: SmallVec::from_slice(&[from.1.dtype()]),
        out: to.1,
        piece: match wgsl::per_word(to.1) {
            _ if count.is_multiple_of(4) => Piece::Four,
            1 => Piece::Element,
            _ => Piece::Word,
        },
    };
    dispatch(queue, op, &job, &[&to.0.buffer, &from.0.buffer], count as u64)
}

fn dispatch(queue: &Queue, op: &OpName, job: &Job<'_>, buffers: &[&GpuBuffer], total: u64) -> Result<()> {
    let (name, text, words) = source(job, total as u32);
    words.check(op)?;
    let step = match job.piece {
        Piece::Four => 4,
        Piece::Word => wgsl::per_word(job.out) as u64,
        Piece::Element => 1,
    };
    let groups = grid(&queue.device, total.div_ceil(step).div_ceil(LANES));
    queue.record(op, &name, || wgsl::with_scalar_functions(text), buffers, &words.values, groups)
}

/// Name, text and numbers. The name says all that the text depends on.
fn source(job: &Job<'_>, total: u32) -> (String, String, Words) {
    let mut words = Words::default();
    let total = words.add(total);
    let (wide, element, per_word) = (job.wide.text(), wgsl::element(job.out), wgsl::per_word(job.out));
    let is_atomic = per_word > 1 && job.piece == Piece::Element;
    let mut name = format!("map-{wide}-{}-{}-{:?}", job.out, job.loops.len(), job.piece);
    let mut text = String::from(Words::DECLARED);
    let array = match (job.piece, per_word) {
        (Piece::Four, 1) if job.out == DType::I64 => element.to_owned(),
        (Piece::Four, 4) | (Piece::Word, _) => element.to_owned(),
        (Piece::Four, n) => format!("vec{}<{element}>", 4 / n),
        (Piece::Element, _) if is_atomic => format!("atomic<{element}>"),
        (Piece::Element, _) => element.to_owned(),
    };
    let _ = writeln!(text, "@group(0) @binding(0) var<storage, read_write> out: array<{array}>;");
    let mut is_four = SmallVec::<[bool; 4]>::new();
    for (i, &dtype) in job.inputs.iter().enumerate() {
        let four = job.piece == Piece::Four && job.wide == Wide::F32 && is_float(dtype) && is_fourfold(job.loops, &job.offsets, i + 1);
        let element = if four { wgsl::fourfold(dtype) } else { wgsl::element(dtype) };
        let _ = write!(name, "-{dtype}{}", if four { "x4" } else { "" });
        let _ = writeln!(text, "@group(0) @binding({}) var<storage, read> in{i}: array<{element}>;", i + 1);
        text.push_str(&match four {
            true => wgsl::load_fourfold(&format!("load{i}"), &format!("in{i}"), dtype),
            false => wgsl::load(&format!("load{i}"), &format!("in{i}"), dtype, job.wide, false),
        });
        is_four.push(four);
    }
    if job.reads_old {
        text.push_str(&match job.piece {
            Piece::Four => wgsl::load_fourfold("load_old", "out", job.out),
            _ => wgsl::load("load_old", "out", job.out, job.wide, is_atomic),
        });
    }
    text.push_str(&wgsl::pack(job.out, job.wide));
    if is_atomic {
        text.push_str(&wgsl::put(job.out));
    }
    if job.wide == Wide::I64 {
        text.push_str(POW_INT);
    }
    let operands: SmallVec<[usize; 5]> = (0..=job.inputs.len()).collect();
    // Five operands pass what a vector holds, so each has its own function.
    for &o in &operands {
        let offset = words.add(job.offsets[o] as u32);
        text.push_str(&words.positions(&format!("walk{o}"), job.loops, &[o]));
        let _ = writeln!(text, "fn at{o}(step: u32) -> u32 {{ return {offset} + walk{o}(step); }}");
    }
    let parameters: Vec<String> = (0..job.inputs.len()).map(|i| format!("x{i}: {wide}")).chain([format!("old: {wide}")]).collect();
    let _ = writeln!(text, "fn value({}) -> {wide} {{", parameters.join(", "));
    program(job, &mut words, &mut text, &mut name);
    text.push_str("}\n");
    text.push_str(
        "@compute @workgroup_size(256)
fn map(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
",
    );
    let step = match job.piece {
        Piece::Four => 4,
        Piece::Word => per_word,
        Piece::Element => 1,
    };
    let _ = writeln!(text, "    let pieces = ({total} + {}u) / {step}u;\n    let step = groups.x * groups.y * 256u;", step - 1);
    let _ = writeln!(text, "    for (var i = (group.y * groups.x + group.x) * 256u + lane; i < pieces; i += step) {{");
    let old = |text: &str| if job.reads_old { text.to_owned() } else { format!("{wide}(0)") };
    if job.piece == Piece::Four {
        fours(job, &is_four, &mut words, &mut text);
    } else {
        let loads = |e: &str| -> String { (0..job.inputs.len()).map(|i| format!("load{i}(at{}({e})), ", i + 1)).collect() };
        let call = |e: &str| format!("pack(value({}{}))", loads(e), old(&format!("load_old(at0({e}))")));
        let bits = 32 / per_word;
        let _ = match (job.piece, is_atomic) {
            (Piece::Word, _) => writeln!(
                text,
                "        var word = 0u;\n        for (var j = 0u; j < {per_word}u; j++) {{\n            let e = i * {per_word}u + j;\n            if e < {total} {{ word |= {} << (j * {bits}u); }}\n        }}\n        out[i] = word;",
                call("e")
            ),
            (_, false) => writeln!(text, "        out[at0(i)] = {};", call("i")),
            (_, true) => writeln!(text, "        put(at0(i), {});", call("i")),
        };
    }
    text.push_str("    }\n}\n");
    (name, text, words)
}

/// The body for four neighbours of the result: each input is read as one vector where its four are neighbours too, once where
/// it stands still, and else one by one.
fn fours(job: &Job<'_>, is_four: &[bool], words: &mut Words, text: &mut String) {
    let last = job.loops.last().map_or([0; 5], |l| l.strides);
    let _ = writeln!(text, "        let e = i * 4u;\n        let to = at0(e);");
    let mut arguments: [Vec<String>; 4] = Default::default();
    for (i, &four) in is_four.iter().enumerate() {
        if four {
            let _ = writeln!(text, "        let q{i} = load{i}(at{}(e));", i + 1);
        } else {
            let stride = words.add(last[i + 1] as u32);
            let _ = writeln!(text, "        let p{i} = at{}(e);", i + 1);
            for c in 0..4 {
                let _ = writeln!(text, "        let q{i}_{c} = load{i}(p{i} + {c}u * {stride});");
            }
        }
        arguments.iter_mut().enumerate().for_each(|(c, all)| {
            all.push(if four { format!("q{i}.{}", ["x", "y", "z", "w"][c]) } else { format!("q{i}_{c}") });
        });
    }
    if job.reads_old {
        text.push_str("        let before = load_old(to);\n");
    }
    for (c, all) in arguments.iter_mut().enumerate() {
        all.push(if job.reads_old { format!("before.{}", ["x", "y", "z", "w"][c]) } else { format!("{}(0)", job.wide.text()) });
        let _ = writeln!(text, "        let y{c} = pack(value({}));", all.join(", "));
    }
    let _ = match (job.out, wgsl::per_word(job.out)) {
        (DType::I64, _) => (0..4).try_for_each(|c| writeln!(text, "        out[to + {c}u] = y{c};")),
        (_, 4) => writeln!(text, "        out[to / 4u] = y0 | (y1 << 8u) | (y2 << 16u) | (y3 << 24u);"),
        (_, 2) => writeln!(text, "        out[to / 4u] = vec2<u32>(y0 | (y1 << 16u), y2 | (y3 << 16u));"),
        (dtype, _) => writeln!(text, "        out[to / 4u] = vec4<{}>(y0, y1, y2, y3);", wgsl::element(dtype)),
    };
}

/// The program's steps as statements; constants travel as numbers.
fn program(job: &Job<'_>, words: &mut Words, text: &mut String, name: &mut String) {
    let wide = job.wide.text();
    let is_float = job.wide == Wide::F32;
    let mut stack: Vec<String> = Vec::new();
    let pop = |stack: &mut Vec<String>| stack.pop().unwrap_or_default();
    for (at, prim) in job.prims.iter().enumerate() {
        let mut constant = |x: f64, n: i64| match job.wide {
            Wide::F32 => format!("bitcast<f32>({})", words.add((x as f32).to_bits())),
            Wide::I32 => format!("bitcast<i32>({})", words.add(n as u32)),
            Wide::I64 => {
                let (low, high) = (words.add(n as u32), words.add((n >> 32) as u32));
                format!("((i64({high}) << 32u) | i64({low}))")
            }
        };
        let value = match *prim {
            Prim::Input(i) => format!("x{i}"),
            Prim::Old => "old".to_owned(),
            Prim::Const(x) | Prim::ConstComplex(x, _) => constant(x, x as i64),
            Prim::ConstInt(n) => constant(n as f64, n),
            Prim::Select => {
                let (b, a, c) = (pop(&mut stack), pop(&mut stack), pop(&mut stack));
                let is_set = if is_float { format!("!is_zero({c})") } else { format!("{c} != {wide}(0)") };
                format!("select({b}, {a}, {is_set})")
            }
            Prim::Add | Prim::Sub | Prim::Mul | Prim::Div | Prim::Pow | Prim::Max | Prim::Min => {
                let (b, a) = (pop(&mut stack), pop(&mut stack));
                match (*prim, is_float) {
                    (Prim::Add, _) => format!("{a} + {b}"),
                    (Prim::Sub, _) => format!("{a} - {b}"),
                    (Prim::Mul, _) => format!("{a} * {b}"),
                    (Prim::Div, _) => format!("{a} / {b}"),
                    (Prim::Pow, true) => format!("pow_f32({a}, {b})"),
                    (Prim::Pow, false) => format!("pow_int({a}, {b})"),
                    (Prim::Max, true) => format!("max_f32({a}, {b})"),
                    (Prim::Min, true) => format!("min_f32({a}, {b})"),
                    (Prim::Max, false) => format!("select({b}, {a}, {a} >= {b})"),
                    _ => format!("select({b}, {a}, {a} <= {b})"),
                }
            }
            Prim::Eq | Prim::Ne | Prim::Lt | Prim::Le | Prim::Gt | Prim::Ge => {
                let (b, a) = (pop(&mut stack), pop(&mut stack));
                let sign = match *prim {
                    Prim::Eq => "==",
                    Prim::Ne => "!=",
                    Prim::Lt => "<",
                    Prim::Le => "<=",
                    Prim::Gt => ">",
                    _ => ">=",
                };
                let is_ordered = match (is_float, *prim) {
                    (false, _) => String::new(),
                    (true, Prim::Ne) => format!(" || is_nan({a}) || is_nan({b})"),
                    (true, _) => format!(" && !is_nan({a}) && !is_nan({b})"),
                };
                format!("select({wide}(0), {wide}(1), ({a} {sign} {b}){is_ordered})")
            }
            _ => {
                let a = pop(&mut stack);
                match (*prim, is_float) {
                    (Prim::Neg, true) => format!("bitcast<f32>(bitcast<u32>({a}) ^ 0x80000000u)"),
                    (Prim::Neg, false) => format!("{wide}(0) - {a}"),
                    (Prim::Abs, true) => format!("bitcast<f32>(bitcast<u32>({a}) & 0x7fffffffu)"),
                    (Prim::Abs, false) => format!("select({a}, {wide}(0) - {a}, {a} < {wide}(0))"),
                    (Prim::Sign, true) => format!("sign_f32({a})"),
                    (Prim::Sign, false) => format!("select(select({wide}(0), {wide}(1), {a} > {wide}(0)), {wide}(-1), {a} < {wide}(0))"),
                    (Prim::Exp, _) => format!("exp_f32({a})"),
                    (Prim::Log, _) => format!("log_f32({a})"),
                    (Prim::Log1p, _) => format!("log1p_f32({a})"),
                    (Prim::Expm1, _) => format!("expm1_f32({a})"),
                    (Prim::Sqrt, _) => format!("sqrt_f32({a})"),
                    (Prim::Tanh, _) => format!("tanh_f32({a})"),
                    (Prim::Sigmoid, _) => format!("sigmoid_f32({a})"),
                    (Prim::Sin, _) => format!("sin_or_cos({a}, 0)"),
                    (Prim::Cos, _) => format!("sin_or_cos({a}, 1)"),
                    (Prim::Floor, _) => format!("floor({a})"),
                    (Prim::Erf, _) => format!("erf_f32({a})"),
                    (Prim::Erfc, _) => format!("erfc_f32({a})"),
                    (Prim::Imag, _) => format!("{wide}(0)"),
                    (Prim::Conj | Prim::Real, _) => a,
                    // Those above, named so that a new primitive doesn't pass through here unseen.
                    (Prim::Input(_) | Prim::Old | Prim::Const(_) | Prim::ConstComplex(..) | Prim::ConstInt(_), _)
                    | (Prim::Add | Prim::Sub | Prim::Mul | Prim::Div | Prim::Pow | Prim::Max | Prim::Min, _)
                    | (Prim::Eq | Prim::Ne | Prim::Lt | Prim::Le | Prim::Gt | Prim::Ge | Prim::Select, _) => a,
                }
            }
        };
        let _ = match *prim {
            Prim::Const(_) => write!(name, ".C"),
            Prim::ConstInt(_) | Prim::ConstComplex(..) => write!(name, ".K"),
            Prim::Input(i) => write!(name, ".{i}"),
            other => write!(name, ".{other:?}"),
        };
        let _ = writeln!(text, "    let v{at} = {value};");
        stack.push(format!("v{at}"));
    }
    let _ = writeln!(text, "    return {};", pop(&mut stack));
}

/// A source's memory and dtype, where shaders here can hold it.
pub(super) fn source_of<'a>(queue: &Queue, op: &OpName, source: &Source<'a>) -> Result<(&'a WgpuStorage, DType)> {
    check_dtype(queue, op, source.dtype)?;
    Ok((WgpuStorage::of(op, source.buffer)?, source.dtype))
}
