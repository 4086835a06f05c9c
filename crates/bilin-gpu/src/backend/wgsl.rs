//! Text of shaders: how elements are stored, what they are computed in, how loops become positions.

use std::fmt::Write as _;

use bilin_core::shape::plan::Loop;
use bilin_core::{DType, Error, OpName, Result};
use smallvec::SmallVec;

use crate::layer::device::CONSTANT_WORDS;

/// The type in which a kernel computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wide {
    F32,
    I32,
    I64,
}

impl Wide {
    pub fn text(self) -> &'static str {
        match self {
            Wide::F32 => "f32",
            Wide::I32 => "i32",
            Wide::I64 => "i64",
        }
    }

    /// What sums begin at, as text: −0, to which adding changes nothing. Made from bits, since a compiler may drop the sign
    /// of a constant.
    pub fn neutral(self) -> &'static str {
        match self {
            Wide::F32 => "bitcast<f32>(0x80000000u)",
            Wide::I32 => "0i",
            Wide::I64 => "0li",
        }
    }

    /// What a sum of `terms` terms begins at, as text: without a term it is +0.
    pub fn start(self, terms: &str) -> String {
        match self {
            Wide::F32 => format!("bitcast<f32>(select(0x80000000u, 0u, {terms} == 0u))"),
            _ => self.neutral().to_owned(),
        }
    }

    /// The dtype of memory that holds such values.
    pub fn dtype(self) -> DType {
        match self {
            Wide::F32 => DType::F32,
            Wide::I32 => DType::I32,
            Wide::I64 => DType::I64,
        }
    }
}

/// Functions that every text may call.
const SCALAR: &str = include_str!("../../shader/scalar.wgsl");

/// A text with the functions of `scalar.wgsl` that it calls, and those that they call: the rest would only be compiled.
pub(super) fn with_scalar_functions(text: String) -> String {
    let functions: Vec<(&str, &str)> = SCALAR
        .split("\nfn ")
        .skip(1)
        .map(|body| (body.split('(').next().unwrap_or_default(), body.split("\n\n//").next().unwrap_or_default()))
        .collect();
    let mut out = text;
    let mut has = vec![false; functions.len()];
    loop {
        let calls = |name: &str| out.contains(&format!("{name}("));
        let Some(next) = (0..functions.len()).find(|&i| !has[i] && calls(functions[i].0)) else { return out };
        has[next] = true;
        out.push_str("\nfn ");
        out.push_str(functions[next].1);
        out.push('\n');
    }
}

/// Elements of a dtype in one word of its array.
pub(super) fn per_word(dtype: DType) -> usize {
    (4 / dtype.size_bytes()).max(1)
}

/// Type of the elements of a dtype's array.
pub(super) fn element(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "f32",
        DType::I32 => "i32",
        DType::I64 => "i64",
        _ => "u32",
    }
}

/// A function `name(i) -> wide` that reads element i of `array`. `word` reads an element of the array.
pub(super) fn load(name: &str, array: &str, dtype: DType, wide: Wide, is_atomic: bool) -> String {
    let word = |at: &str| if is_atomic { format!("atomicLoad(&{array}[{at}])") } else { format!("{array}[{at}]") };
    let (bytes, halves) = (word("i >> 2u"), word("i >> 1u"));
    let natural = match dtype {
        DType::Bool => format!("select(0i, 1i, (({bytes} >> ((i & 3u) * 8u)) & 0xffu) != 0u)"),
        DType::U8 => format!("i32(({bytes} >> ((i & 3u) * 8u)) & 0xffu)"),
        DType::I8 => format!("extractBits(bitcast<i32>({bytes}), (i & 3u) * 8u, 8u)"),
        DType::I16 => format!("extractBits(bitcast<i32>({halves}), (i & 1u) * 16u, 16u)"),
        DType::F16 => format!("f16_to_f32(({halves} >> ((i & 1u) * 16u)) & 0xffffu)"),
        DType::Bf16 => format!("bf16_to_f32(({halves} >> ((i & 1u) * 16u)) & 0xffffu)"),
        _ => word("i"),
    };
    let text = wide.text();
    let is_float = matches!(dtype, DType::F16 | DType::Bf16 | DType::F32);
    // Shifts extend the sign, which one driver's conversion was seen not to.
    let value = match wide {
        Wide::I64 if dtype != DType::I64 && !is_float => format!("(i64({natural}) << 32u) >> 32u"),
        _ => format!("{text}({natural})"),
    };
    format!("fn {name}(i: u32) -> {text} {{ return {value}; }}\n")
}

/// Type of four neighbours of a float dtype, as an element of its array.
pub(super) fn fourfold(dtype: DType) -> &'static str {
    if dtype == DType::F32 { "vec4<f32>" } else { "vec2<u32>" }
}

/// A function `name(i) -> vec4<f32>` that reads elements i to i + 3 of `array`, of [`fourfold`] elements; i is a multiple of 4.
pub(super) fn load_fourfold(name: &str, array: &str, dtype: DType) -> String {
    let value = match dtype {
        DType::F16 => "vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y))",
        DType::Bf16 => "bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u))",
        _ => "w",
    };
    format!("fn {name}(i: u32) -> vec4<f32> {{\n    let w = {array}[i >> 2u];\n    return {value};\n}}\n")
}

/// A function `pack(v) -> element` from a wide value to a dtype's element, in the low bits where it is narrower than a word.
pub(super) fn pack(dtype: DType, wide: Wide) -> String {
    let saturated = |low: &str, high: &str, least: &str, most: &str| format!("f32_to_i32(v, {low}, {high}, {least}, {most})");
    let body = match (dtype, wide) {
        (DType::Bool, Wide::F32) => "select(1u, 0u, is_zero(v))".to_owned(),
        (DType::Bool, w) => format!("select(1u, 0u, v == {}(0))", w.text()),
        (DType::F16, Wide::F32) => "f32_to_f16(v)".to_owned(),
        (DType::Bf16, Wide::F32) => "f32_to_bf16(v)".to_owned(),
        (DType::F16, _) => "f32_to_f16(f32(v))".to_owned(),
        (DType::Bf16, _) => "f32_to_bf16(f32(v))".to_owned(),
        (DType::U8, Wide::F32) => format!("bitcast<u32>({})", saturated("0.0", "255.0", "0", "255")),
        (DType::I8, Wide::F32) => format!("bitcast<u32>({}) & 0xffu", saturated("-128.0", "127.0", "-128", "127")),
        (DType::I16, Wide::F32) => format!("bitcast<u32>({}) & 0xffffu", saturated("-32768.0", "32767.0", "-32768", "32767")),
        (DType::I32, Wide::F32) => saturated("-2147483648.0", "2147483648.0", "-2147483647 - 1", "2147483647"),
        (DType::I64, Wide::F32) => {
            let most = "i64(9223372036854775807li)";
            format!(
                "select(select(select(i64(v), -{most} - 1li, v <= -9223372036854775808.0), {most}, v >= 9223372036854775808.0), 0li, is_nan(v))"
            )
        }
        (DType::U8 | DType::I8, _) => "bitcast<u32>(i32(v)) & 0xffu".to_owned(),
        (DType::I16, _) => "bitcast<u32>(i32(v)) & 0xffffu".to_owned(),
        (other, w) if other == w.dtype() => "v".to_owned(),
        (other, _) => format!("{}(v)", element(other)),
    };
    format!("fn pack(v: {}) -> {} {{ return {body}; }}\n", wide.text(), element(dtype))
}

/// A function `put(i, bits)` that stores one element of `out`: where it is narrower than a word, by changing its bits alone,
/// so `out` is atomic then.
pub(super) fn put(dtype: DType) -> String {
    let n = per_word(dtype);
    let bits = 32 / n;
    match n {
        1 => format!("fn put(i: u32, bits: {}) {{ out[i] = bits; }}\n", element(dtype)),
        _ => format!(
            "fn put(i: u32, bits: u32) {{
    let shift = (i % {n}u) * {bits}u;
    atomicAnd(&out[i / {n}u], ~({}u << shift));
    atomicOr(&out[i / {n}u], bits << shift);
}}
",
            (1u64 << bits) - 1
        ),
    }
}

/// The numbers of a call, and the text that reads each.
#[derive(Debug, Default)]
pub(super) struct Words {
    pub values: SmallVec<[u32; 32]>,
}

impl Words {
    pub const DECLARED: &'static str = "@group(1) @binding(0) var<uniform> numbers: array<vec4<u32>, 32>;\n";

    /// Adds a number; the text that reads it.
    pub fn add(&mut self, value: u32) -> String {
        let at = self.values.len();
        self.values.push(value);
        format!("numbers[{}u].{}", at / 4, ["x", "y", "z", "w"][at % 4])
    }

    /// Fails where more numbers were added than travel with a dispatch.
    pub fn check(&self, op: &OpName) -> Result<()> {
        if self.values.len() <= CONSTANT_WORDS {
            return Ok(());
        }
        Err(Error::invalid(op.clone(), "layout", "a view of too many axes", "make it contiguous first"))
    }

    /// A function `name(step) -> array of positions`, from nested loops to where each operand named in `operands` stands.
    /// Positions count modulo 2³², in which negative strides are whole.
    pub fn positions<const N: usize>(&mut self, name: &str, loops: &[Loop<N>], operands: &[usize]) -> String {
        let out = match operands.len() {
            1 => "u32".to_owned(),
            n => format!("vec{n}<u32>"),
        };
        let mut text = format!("fn {name}(step: u32) -> {out} {{\n    var at = {out}();\n    var rest = step;\n");
        for (i, l) in loops.iter().enumerate().rev() {
            let len = self.add(l.len as u32);
            let strides: Vec<String> = operands.iter().map(|&o| self.add(l.strides[o] as u32)).collect();
            let strides = if operands.len() == 1 { strides[0].clone() } else { format!("{out}({})", strides.join(", ")) };
            let _ = match i {
                0 => writeln!(text, "    at += {strides} * rest;"),
                _ => writeln!(text, "    at += {strides} * (rest % {len});\n    rest /= {len};"),
            };
        }
        text.push_str("    return at;\n}\n");
        text
    }
}
