//! Operands for the samples of the registry, such that the op is defined and smooth there.

use bilin::ops::{Attrs, OpEntry, Sample, Values, entries};
use bilin::{DType, Device, Kind, Result, Rng, Tensor, bf16, c64, c128, f16};

/// A number that any dtype can be made of: the complex part for floats, the whole number for integers.
#[derive(Debug, Clone, Copy)]
pub struct Number {
    /// For floating and complex dtypes.
    pub z: c128,
    /// For integers and bool.
    pub n: i64,
}

impl Number {
    /// A whole number in either form.
    pub fn whole(n: i64) -> Number {
        Number { z: c128::new(n as f64, 0.0), n }
    }
    /// A real number; as an integer it is truncated.
    pub fn real(x: f64) -> Number {
        Number { z: c128::new(x, 0.0), n: x as i64 }
    }
}

/// A row-major tensor of numbers, each rounded once to `dtype` by the host.
pub fn tensor_of(numbers: &[Number], shape: &[usize], dtype: DType, device: &Device) -> Tensor {
    macro_rules! of {
        ($f:expr) => {
            Tensor::from_vec(numbers.iter().map($f).collect(), shape, device)
        };
    }
    let made = match dtype {
        DType::Bool => of!(|x| x.n & 1 == 1),
        DType::U8 => of!(|x| x.n as u8),
        DType::I8 => of!(|x| x.n as i8),
        DType::I16 => of!(|x| x.n as i16),
        DType::I32 => of!(|x| x.n as i32),
        DType::I64 => of!(|x| x.n),
        DType::F16 => of!(|x| f16::from_f32(bilin::round_to_odd(x.z.re))),
        DType::Bf16 => of!(|x| bf16::from_f32(bilin::round_to_odd(x.z.re))),
        DType::F32 => of!(|x| x.z.re as f32),
        DType::F64 => of!(|x| x.z.re),
        DType::C64 => of!(|x| c64::new(x.z.re as f32, x.z.im as f32)),
        DType::C128 => of!(|x| x.z),
    };
    made.expect("a tensor of the sample")
}

/// A uniform number in [0, 1).
pub fn uniform(rng: &mut Rng) -> f64 {
    rng.below(1 << 53) as f64 * 2f64.powi(-53)
}

/// Numbers in [−2, 2), integers of all widths, bits.
fn any(count: usize, rng: &mut Rng) -> Vec<Number> {
    let mut part = || 4.0 * uniform(rng) - 2.0;
    let parts: Vec<c128> = (0..count).map(|_| c128::new(part(), part())).collect();
    parts.into_iter().map(|z| Number { z, n: rng.below(u64::MAX) as i64 }).collect()
}

/// Odd multiples of 1/8 (never whole, at least 1/4 apart, so never tied) and whole numbers other than 0.
fn distinct(count: usize, operand: usize, rng: &mut Rng) -> Vec<Number> {
    let half = (count / 2) as f64;
    let part = |p: usize| (p as f64 + 0.5 - half) / 4.0;
    let (re, im) = (rng.permutation(count), rng.permutation(count));
    let shift = operand as f64 / 16.0;
    re.into_iter().zip(im).map(|(a, b)| Number { z: c128::new(part(a) + shift, part(b) + shift), n: a as i64 + 1 }).collect()
}

fn positive(count: usize, rng: &mut Rng) -> Vec<Number> {
    (0..count).map(|_| Number { z: c128::new(0.5 + 1.5 * uniform(rng), 0.25 * uniform(rng)), n: 1 + 2 * rng.below(3) as i64 }).collect()
}

/// The dtype of operand `i` of `of` where the sample is run in `dtype`.
pub fn operand_dtype(entry: &OpEntry, i: usize, of: usize, dtype: DType) -> DType {
    match entry.values {
        Values::Masked if i == 0 => DType::Bool,
        Values::Indexed if i + 1 == of => DType::I64,
        _ => dtype,
    }
}

/// Contiguous operands of a sample.
pub fn operands(entry: &OpEntry, sample: &Sample, dtype: DType, device: &Device, seed: u64) -> Vec<Tensor> {
    let mut rng = Rng::new(seed);
    let of = sample.shapes.len();
    let attrs = attrs(entry, sample.attrs);
    let below = attrs.int("below", 1).expect("below").max(1) as u64;
    let one = |(i, shape): (usize, &&[usize])| {
        let count: usize = shape.iter().product();
        let dtype = operand_dtype(entry, i, of, dtype);
        let numbers = match entry.values {
            Values::Indexed if i + 1 == of => (0..count).map(|_| Number::whole(rng.below(below) as i64)).collect(),
            Values::Masked if i == 0 => any(count, &mut rng),
            Values::Distinct => distinct(count, i, &mut rng),
            Values::Positive => positive(count, &mut rng),
            _ => any(count, &mut rng),
        };
        tensor_of(&numbers, shape, dtype, device)
    };
    sample.shapes.iter().enumerate().map(one).collect()
}

/// Parsed attributes of a sample.
pub fn attrs(entry: &OpEntry, text: &str) -> Attrs {
    Attrs::parse(entry.schema.name, text).expect("attributes of a sample")
}

/// Runs the op of an entry.
pub fn call(entry: &OpEntry, operands: &[Tensor], text: &str) -> Result<Tensor> {
    (entry.call)(operands, &attrs(entry, text))
}

/// Attribute texts under which a sample runs in `dtype`: its own, and for products a wider result where there is one.
pub fn attribute_texts(entry: &OpEntry, sample: &Sample, dtype: DType) -> Vec<String> {
    let mut texts = vec![sample.attrs.to_owned()];
    let wider = match dtype.kind() {
        Kind::Int if dtype == DType::I64 => None,
        Kind::Int => Some(DType::I64),
        _ if dtype.is_half() => Some(DType::F32),
        _ => None,
    };
    if let (true, Some(wider)) = (entry.params.contains(&"out_dtype"), wider) {
        texts.push(format!("{};out_dtype={}", sample.attrs, wider.name()));
    }
    texts
}

/// Every entry with every of its samples and a seed for its operands.
pub fn all() -> impl Iterator<Item = (&'static OpEntry, &'static Sample, u64)> {
    entries().flat_map(|e| e.samples.iter().map(move |s| (e, s))).enumerate().map(|(i, (e, s))| (e, s, i as u64 + 1))
}
