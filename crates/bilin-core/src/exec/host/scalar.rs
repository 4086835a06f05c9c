//! The scalar primitives of [`Prim`](crate::exec::map_expr::Prim) over the five compute types.

use super::convert::Compute;
use super::elementary;
use crate::shape::dtype::{c64, c128};

/// Arithmetic of a compute type. What a kind of number hasn't is refused when the expression is made and returns the
/// operand here.
pub(super) trait Scalar: Compute {
    fn constant(x: f64) -> Self;
    fn constant_complex(re: f64, im: f64) -> Self;
    fn constant_int(x: i64) -> Self;
    /// What sums begin at: adding it changes nothing.
    fn neutral() -> Self {
        Self::constant_complex(-0.0, -0.0)
    }
    fn truth(b: bool) -> Self {
        Self::constant_int(i64::from(b))
    }
    fn add(self, b: Self) -> Self;
    fn sub(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn div(self, b: Self) -> Self;
    fn pow(self, b: Self) -> Self;
    fn lt(self, b: Self) -> bool;
    fn le(self, b: Self) -> bool;
    fn is_nan(self) -> bool;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn sign(self) -> Self;
    fn exp(self) -> Self;
    fn log(self) -> Self;
    fn log1p(self) -> Self;
    fn expm1(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn sigmoid(self) -> Self;
    fn erf(self) -> Self;
    fn erfc(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn floor(self) -> Self;
    fn conj(self) -> Self;
    fn real(self) -> Self;
    fn imag(self) -> Self;
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        if b.le(self) || self.is_nan() { self } else { b }
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        if self.le(b) || self.is_nan() { self } else { b }
    }
}

impl Scalar for i64 {
    fn constant(x: f64) -> i64 {
        x as i64
    }
    fn constant_complex(re: f64, _im: f64) -> i64 {
        re as i64
    }
    fn constant_int(x: i64) -> i64 {
        x
    }
    fn add(self, b: i64) -> i64 {
        self.wrapping_add(b)
    }
    fn sub(self, b: i64) -> i64 {
        self.wrapping_sub(b)
    }
    fn mul(self, b: i64) -> i64 {
        self.wrapping_mul(b)
    }
    fn div(self, _b: i64) -> i64 {
        self
    }
    fn pow(self, b: i64) -> i64 {
        match (self, b) {
            (_, 0..) => {
                let (mut base, mut exponent, mut out) = (self, b, 1i64);
                while exponent > 0 {
                    if exponent & 1 == 1 {
                        out = out.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    exponent >>= 1;
                }
                out
            }
            (1, _) => 1,
            (-1, _) => 1 - 2 * (b & 1),
            _ => 0,
        }
    }
    fn lt(self, b: i64) -> bool {
        self < b
    }
    fn le(self, b: i64) -> bool {
        self <= b
    }
    fn is_nan(self) -> bool {
        false
    }
    fn neg(self) -> i64 {
        self.wrapping_neg()
    }
    fn abs(self) -> i64 {
        self.wrapping_abs()
    }
    fn sign(self) -> i64 {
        self.signum()
    }
    fn exp(self) -> i64 {
        self
    }
    fn log(self) -> i64 {
        self
    }
    fn log1p(self) -> i64 {
        self
    }
    fn expm1(self) -> i64 {
        self
    }
    fn sqrt(self) -> i64 {
        self
    }
    fn tanh(self) -> i64 {
        self
    }
    fn sigmoid(self) -> i64 {
        self
    }
    fn erf(self) -> i64 {
        self
    }
    fn erfc(self) -> i64 {
        self
    }
    fn sin(self) -> i64 {
        self
    }
    fn cos(self) -> i64 {
        self
    }
    fn floor(self) -> i64 {
        self
    }
    fn conj(self) -> i64 {
        self
    }
    fn real(self) -> i64 {
        self
    }
    fn imag(self) -> i64 {
        0
    }
}

// Inlined whatever their size: within a loop they are compiled for the loop's instruction set, by themselves for the least.
macro_rules! float {
    ($t:ident, $($name:ident: $function:expr),*) => {
        impl Scalar for $t {
            $(
                #[inline(always)]
                fn $name(self) -> $t {
                    ($function)(self)
                }
            )*
            #[inline(always)]
            fn constant(x: f64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn constant_complex(re: f64, _im: f64) -> $t {
                re as $t
            }
            #[inline(always)]
            fn constant_int(x: i64) -> $t {
                x as $t
            }
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self + b
            }
            #[inline(always)]
            fn sub(self, b: $t) -> $t {
                self - b
            }
            #[inline(always)]
            fn mul(self, b: $t) -> $t {
                self * b
            }
            #[inline(always)]
            fn div(self, b: $t) -> $t {
                self / b
            }
            #[inline(always)]
            fn pow(self, b: $t) -> $t {
                if b == 2.0 { self * self } else { self.powf(b) }
            }
            #[inline(always)]
            fn lt(self, b: $t) -> bool {
                self < b
            }
            #[inline(always)]
            fn le(self, b: $t) -> bool {
                self <= b
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self != self
            }
            #[inline(always)]
            fn neg(self) -> $t {
                -self
            }
            #[inline(always)]
            fn abs(self) -> $t {
                $t::abs(self)
            }
            #[inline(always)]
            fn sign(self) -> $t {
                if self == 0.0 || self != self { self } else { self.signum() }
            }
            #[inline(always)]
            fn sqrt(self) -> $t {
                $t::sqrt(self)
            }
            #[inline(always)]
            fn sin(self) -> $t {
                $t::sin(self)
            }
            #[inline(always)]
            fn cos(self) -> $t {
                $t::cos(self)
            }
            #[inline(always)]
            fn floor(self) -> $t {
                $t::floor(self)
            }
            #[inline(always)]
            fn conj(self) -> $t {
                self
            }
            #[inline(always)]
            fn real(self) -> $t {
                self
            }
            #[inline(always)]
            fn imag(self) -> $t {
                0.0
            }
        }
    };
}
float!(
    f32,
    exp: elementary::exp,
    log: elementary::log,
    log1p: elementary::log1p,
    expm1: elementary::expm1,
    tanh: elementary::tanh,
    sigmoid: elementary::sigmoid,
    erf: elementary::erf,
    erfc: elementary::erfc
);
float!(
    f64,
    exp: f64::exp,
    log: f64::ln,
    log1p: f64::ln_1p,
    expm1: f64::exp_m1,
    tanh: f64::tanh,
    sigmoid: |x: f64| 1.0 / (1.0 + f64::exp(-x)),
    erf: libm::erf,
    erfc: libm::erfc
);

macro_rules! complex {
    ($t:ident, $part:ident) => {
        impl Scalar for $t {
            fn constant(x: f64) -> $t {
                $t::new(x as $part, 0.0)
            }
            fn constant_complex(re: f64, im: f64) -> $t {
                $t::new(re as $part, im as $part)
            }
            fn constant_int(x: i64) -> $t {
                $t::new(x as $part, 0.0)
            }
            fn add(self, b: $t) -> $t {
                self + b
            }
            fn sub(self, b: $t) -> $t {
                self - b
            }
            fn mul(self, b: $t) -> $t {
                self * b
            }
            fn div(self, b: $t) -> $t {
                self / b
            }
            fn pow(self, b: $t) -> $t {
                if b == $t::new(0.0, 0.0) {
                    $t::new(1.0, 0.0)
                } else if b == $t::new(2.0, 0.0) {
                    self * self
                } else {
                    self.powc(b)
                }
            }
            fn lt(self, b: $t) -> bool {
                self.re < b.re
            }
            fn le(self, b: $t) -> bool {
                self.re <= b.re
            }
            fn is_nan(self) -> bool {
                self.re.is_nan() || self.im.is_nan()
            }
            fn neg(self) -> $t {
                -self
            }
            fn abs(self) -> $t {
                $t::new(self.re.hypot(self.im), 0.0)
            }
            fn sign(self) -> $t {
                let r = self.re.hypot(self.im);
                if r == 0.0 { self } else { self / r }
            }
            fn exp(self) -> $t {
                num_complex::Complex::exp(self)
            }
            fn log(self) -> $t {
                self.ln()
            }
            fn log1p(self) -> $t {
                self
            }
            fn expm1(self) -> $t {
                self
            }
            fn sqrt(self) -> $t {
                num_complex::Complex::sqrt(self)
            }
            fn tanh(self) -> $t {
                num_complex::Complex::tanh(self)
            }
            fn sigmoid(self) -> $t {
                let one = $t::new(1.0, 0.0);
                one / (one + num_complex::Complex::exp(-self))
            }
            fn erf(self) -> $t {
                self
            }
            fn erfc(self) -> $t {
                self
            }
            fn sin(self) -> $t {
                num_complex::Complex::sin(self)
            }
            fn cos(self) -> $t {
                num_complex::Complex::cos(self)
            }
            fn floor(self) -> $t {
                self
            }
            fn conj(self) -> $t {
                num_complex::Complex::conj(&self)
            }
            fn real(self) -> $t {
                $t::new(self.re, 0.0)
            }
            fn imag(self) -> $t {
                $t::new(self.im, 0.0)
            }
        }
    };
}
complex!(c64, f32);
complex!(c128, f64);
