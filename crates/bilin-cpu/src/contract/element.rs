//! Accumulators and conversions between them and what stands in memory.

use bilin_core::exec::order::contract_block_len;
use bilin_core::{DType, c64, c128, round_to_odd};
use bytemuck::Pod;
use half::{bf16, f16};

use crate::arch::portable::Scalar;
use crate::arch::tile::Micro;
use crate::arch::{self, Isa};

/// What sums are kept in: f32, f64, c64, c128; i32 for integers of at most 32 bits, i64; u32 for truth values.
pub(crate) trait Acc: Pod + Default + Send + Sync {
    /// Scalar in packed memory.
    type Part: Pod + Scalar + Send + Sync;
    /// Scalars of one accumulator.
    const PARTS: usize;
    /// Terms of a block.
    const BLOCK: usize;
    /// What sums begin at: adding it changes nothing.
    const NEUTRAL: Self;
    /// acc + a·b by the rule of the dtype; `a` is the call's lhs.
    fn mul_add(a: Self, b: Self, acc: Self) -> Self;
    /// Sum of two block sums.
    fn plus(self, other: Self) -> Self;
    /// The sum of one term.
    #[inline(always)]
    fn product(a: Self, b: Self) -> Self {
        Self::mul_add(a, b, Self::NEUTRAL)
    }
    /// Real and imaginary parts; a real number twice.
    fn parts(self) -> (Self::Part, Self::Part);
    /// Complex conjugate.
    fn conjugate(self) -> Self {
        self
    }
    /// Micro-kernels; swapped ones take the call's rhs as `a`.
    fn micro(isa: Isa, is_swapped: bool) -> &'static Micro<Self::Part>;
}

macro_rules! real {
    ($t:ty, $micro:ident, $dtype:expr) => {
        impl Acc for $t {
            type Part = $t;
            const PARTS: usize = 1;
            const NEUTRAL: Self = <$t as Scalar>::NEUTRAL;
            const BLOCK: usize = contract_block_len($dtype);
            #[inline(always)]
            fn mul_add(a: Self, b: Self, acc: Self) -> Self {
                <$t as Scalar>::mul_add(a, b, acc)
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                <$t as Scalar>::plus(self, other)
            }
            #[inline(always)]
            fn parts(self) -> ($t, $t) {
                (self, self)
            }
            #[inline]
            fn micro(isa: Isa, _is_swapped: bool) -> &'static Micro<$t> {
                arch::$micro(isa)
            }
        }
    };
}
real!(f32, f32, DType::F32);
real!(f64, f64, DType::F64);
real!(i32, i32, DType::I32);
real!(i64, i64, DType::I64);
real!(u32, truth, DType::Bool);

macro_rules! complex {
    ($t:ty, $part:ty, $micro:ident, $dtype:expr) => {
        impl Acc for $t {
            type Part = $part;
            const PARTS: usize = 2;
            const NEUTRAL: Self = Self { re: -0.0, im: -0.0 };
            const BLOCK: usize = contract_block_len($dtype);
            #[inline(always)]
            fn mul_add(a: Self, b: Self, acc: Self) -> Self {
                let re = (-a.im).mul_add(b.im, a.re.mul_add(b.re, acc.re));
                let im = a.im.mul_add(b.re, a.re.mul_add(b.im, acc.im));
                Self { re, im }
            }
            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                Self { re: self.re + other.re, im: self.im + other.im }
            }
            #[inline(always)]
            fn parts(self) -> ($part, $part) {
                (self.re, self.im)
            }
            #[inline(always)]
            fn conjugate(self) -> Self {
                Self { re: self.re, im: -self.im }
            }
            #[inline]
            fn micro(isa: Isa, is_swapped: bool) -> &'static Micro<$part> {
                arch::$micro(isa)[usize::from(is_swapped)]
            }
        }
    };
}
complex!(c64, f32, c64, DType::C64);
complex!(c128, f64, c128, DType::C128);

/// A conversion without state, exact or rounded once.
pub(crate) trait Convert<S, T>: Copy + Default + Send + Sync + 'static {
    /// Converted.
    fn convert(x: S) -> T;
}

/// By value.
#[derive(Clone, Copy, Default)]
pub(crate) struct Plain;
/// Bytes as truth values: 0 or 1.
#[derive(Clone, Copy, Default)]
pub(crate) struct AsTruth;

macro_rules! convert {
    ($($from:ty => $to:ty, |$x:ident| $e:expr;)*) => {$(
        impl Convert<$from, $to> for Plain {
            #[inline(always)]
            fn convert($x: $from) -> $to { $e }
        }
    )*};
}
macro_rules! convert_ints {
    ($to:ty: $($from:ty),*) => { convert! { $($from => $to, |x| x as $to;)* } };
}
convert! {
    f16 => f32, |x| widen_half(x);
    bf16 => f32, |x| f32::from_bits(u32::from(x.to_bits()) << 16);
    f32 => f32, |x| x;
    f16 => f64, |x| f64::from(widen_half(x));
    bf16 => f64, |x| f64::from(f32::from_bits(u32::from(x.to_bits()) << 16));
    f32 => f64, |x| f64::from(x);
    f64 => f64, |x| x;
    f64 => f32, |x| x as f32;
    f32 => f16, |x| narrow_half(x);
    f64 => f16, |x| narrow_half(round_to_odd(x));
    f32 => bf16, |x| narrow_bf16(x);
    f64 => bf16, |x| narrow_bf16(round_to_odd(x));
    c64 => c64, |x| x;
    c128 => c128, |x| x;
    c64 => c128, |x| c128::new(f64::from(x.re), f64::from(x.im));
    c128 => c64, |x| c64::new(x.re as f32, x.im as f32);
    f32 => c64, |x| c64::new(x, 0.0);
    f64 => c128, |x| c128::new(x, 0.0);
    f32 => c128, |x| c128::new(f64::from(x), 0.0);
}
convert_ints!(i32: u8, i8, i16, i32, i64);
convert_ints!(i64: u8, i8, i16, i32, i64);
convert_ints!(u8: i32, i64);
convert_ints!(i8: i32, i64);
convert_ints!(i16: i32, i64);

impl<T: From<bool> + 'static> Convert<u8, T> for AsTruth {
    #[inline(always)]
    fn convert(x: u8) -> T {
        T::from(x != 0)
    }
}
impl Convert<u32, u8> for AsTruth {
    #[inline(always)]
    fn convert(x: u32) -> u8 {
        u8::from(x != 0)
    }
}

/// f32 of a half, without branches: the exponent is moved by a multiplication, which is exact also for subnormals.
#[inline(always)]
fn widen_half(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let finite = scaled.to_bits();
    let special = magnitude | 0x7f80_0000;
    let chosen = if bits & 0x7c00 == 0x7c00 { special } else { finite };
    f32::from_bits(chosen | ((bits & 0x8000) << 16))
}

/// Nearest half, ties to even; NaN stays NaN.
#[inline(always)]
fn narrow_half(x: f32) -> f16 {
    let (sign, magnitude) = (x.to_bits() >> 16 & 0x8000, x.to_bits() & 0x7fff_ffff);
    // The exponent is moved; what rounds up past the largest half is infinite.
    let moved = magnitude.wrapping_sub(0x3800_0000).wrapping_add(0xfff + ((magnitude >> 13) & 1)) >> 13;
    // The sum with a half has a half's subnormal numbers in its last bits, rounded.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let finite = if magnitude < 0x3880_0000 { subnormal } else { moved.min(0x7c00) };
    let nan = 0x7e00 | (magnitude >> 13 & 0x3ff);
    f16::from_bits((sign | if magnitude > 0x7f80_0000 { nan } else { finite }) as u16)
}

/// Nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
fn narrow_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    let quiet = (bits >> 16) | 0x40;
    bf16::from_bits(if x.is_nan() { quiet } else { rounded } as u16)
}
