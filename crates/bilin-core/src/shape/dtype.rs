//! Element types and what they accumulate in.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};
use num_complex::Complex;

/// 64-bit complex: two f32.
#[allow(non_camel_case_types)]
pub type c64 = Complex<f32>;
/// 128-bit complex: two f64.
#[allow(non_camel_case_types)]
pub type c128 = Complex<f64>;

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// 8-bit unsigned.
    U8,
    /// 8-bit signed.
    I8,
    /// 16-bit signed.
    I16,
    /// 32-bit signed.
    I32,
    /// 64-bit signed.
    I64,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// IEEE single.
    F32,
    /// IEEE double.
    F64,
    /// Complex of two f32.
    C64,
    /// Complex of two f64.
    C128,
}

/// The kinds of number that promote within themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Truth values.
    Bool,
    /// Signed and unsigned integers.
    Int,
    /// Real floating point.
    Float,
    /// Complex floating point.
    Complex,
}

impl DType {
    /// Every dtype, in promotion order within each kind.
    pub const ALL: [DType; 12] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::Bf16,
        DType::F32,
        DType::F64,
        DType::C64,
        DType::C128,
    ];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::Bf16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 | DType::C64 => 8,
            DType::C128 => 16,
        }
    }

    /// The kind of number.
    pub const fn kind(self) -> Kind {
        match self {
            DType::Bool => Kind::Bool,
            DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => Kind::Int,
            DType::F16 | DType::Bf16 | DType::F32 | DType::F64 => Kind::Float,
            DType::C64 | DType::C128 => Kind::Complex,
        }
    }

    /// Whether a tensor of this dtype can require a gradient.
    pub const fn is_differentiable(self) -> bool {
        matches!(self.kind(), Kind::Float | Kind::Complex)
    }

    /// Whether this is f16 or bf16.
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::Bf16)
    }

    /// Whether this is complex.
    pub const fn is_complex(self) -> bool {
        matches!(self.kind(), Kind::Complex)
    }

    /// The dtype in which sums of products of this dtype are kept: f32 for the halves, else itself.
    pub const fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::Bf16 => DType::F32,
            other => other,
        }
    }

    /// The real dtype of a complex number's parts; itself for others.
    pub const fn real(self) -> DType {
        match self {
            DType::C64 => DType::F32,
            DType::C128 => DType::F64,
            other => other,
        }
    }

    /// NumPy's name: `float32`, `bfloat16`, `complex64`, `bool`, …
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "uint8",
            DType::I8 => "int8",
            DType::I16 => "int16",
            DType::I32 => "int32",
            DType::I64 => "int64",
            DType::F16 => "float16",
            DType::Bf16 => "bfloat16",
            DType::F32 => "float32",
            DType::F64 => "float64",
            DType::C64 => "complex64",
            DType::C128 => "complex128",
        }
    }

    /// The dtype of a name, in NumPy's form or the short one (`f32`, `bf16`, `i64`, `c64`).
    pub fn parse(name: &str) -> Option<DType> {
        let short = |d: DType| match d {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::C64 => "c64",
            DType::C128 => "c128",
        };
        DType::ALL.into_iter().find(|d| d.name() == name || short(*d) == name)
    }

    /// Unit roundoff of the dtype's arithmetic: half an ulp of 1; 0 for exact dtypes.
    pub const fn unit_roundoff(self) -> f64 {
        match self {
            DType::F16 => 1.0 / 2048.0,
            DType::Bf16 => 1.0 / 256.0,
            DType::F32 | DType::C64 => 5.960_464_477_539_063e-8,
            DType::F64 | DType::C128 => 1.110_223_024_625_156_5e-16,
            _ => 0.0,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The f32 from which rounding to f16 or bf16 gives what rounding `x` itself would: the neighbour with an odd last bit where
/// `x` isn't an f32.
///
/// Source: S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd",
/// IEEE Transactions on Computers 57(4), 2008.
pub fn round_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let bits = near.to_bits();
    if f64::from(near) == x || x.is_nan() || bits & 1 == 1 {
        near
    } else if f64::from(near).abs() < x.abs() {
        f32::from_bits(bits + 1)
    } else {
        f32::from_bits(bits - 1)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that a tensor can hold.
pub trait Element: sealed::Sealed + Copy + Send + Sync + PartialEq + fmt::Debug + 'static {
    /// Its dtype.
    const DTYPE: DType;
    /// What stands in memory: itself, but a byte for `bool`.
    type Repr: Pod + Send + Sync;
    /// To memory.
    fn to_repr(self) -> Self::Repr;
    /// From memory.
    fn from_repr(repr: Self::Repr) -> Self;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
            type Repr = $t;
            fn to_repr(self) -> $t { self }
            fn from_repr(repr: $t) -> $t { repr }
        }
    )*};
}
element!(u8 => U8, i8 => I8, i16 => I16, i32 => I32, i64 => I64, f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64, c64 => C64, c128 => C128);

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    type Repr = u8;
    fn to_repr(self) -> u8 {
        u8::from(self)
    }
    fn from_repr(repr: u8) -> bool {
        repr != 0
    }
}
