//! exp, log and their kin of f32: computed in f64 without branches, fused operations or tables, so that a loop over them
//! becomes vectors and a bit depends on no processor and no system library. Each is off by less than 2⁻³² of itself before its
//! one rounding to f32.

use core::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// Adding it leaves a whole number in the low bits.
const WHOLE: f64 = 6_755_399_441_055_744.0;

/// c₀ + c₁x + c₂x² + …
#[inline(always)]
fn polynomial<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut sum = c[N - 1];
    for i in (0..N - 1).rev() {
        sum = sum * x + c[i];
    }
    sum
}

/// s, a power of two, and p with eˣ = s·(1 + p), p accurate also where it is small; −300 ≤ x ≤ 300 or NaN.
#[inline(always)]
fn power(x: f64) -> (f64, f64) {
    let shifted = x * LOG2_E + WHOLE;
    let s = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1023 << 52));
    let r = x - (shifted - WHOLE) * LN_2;
    // The series of (eʳ − 1)/r, |r| ≤ ½ ln 2.
    const C: [f64; 9] = [1.0, 1.0 / 2.0, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0, 1.0 / 40_320.0, 1.0 / 362_880.0];
    (s, r * polynomial(r, C))
}

/// `x` between two bounds; NaN stays.
#[inline(always)]
fn within(x: f64, low: f64, high: f64) -> f64 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let (s, p) = power(within(f64::from(x), -110.0, 90.0));
    (s + s * p) as f32
}

#[inline(always)]
pub(super) fn expm1(x: f32) -> f32 {
    let (s, p) = power(within(f64::from(x), -110.0, 90.0));
    ((s * p + (s - 1.0)) as f32).copysign(x)
}

#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let (s, p) = power(2.0 * within(f64::from(x.abs()), 0.0, 20.0));
    let above_one = s * p + (s - 1.0);
    ((above_one / (above_one + 2.0)) as f32).copysign(x)
}

#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    let (s, p) = power(within(-f64::from(x), -110.0, 110.0));
    (1.0 / (1.0 + (s + s * p))) as f32
}

/// 2 artanh(s) = ln((1 + s)/(1 − s)), |s| ≤ 0.172.
#[inline(always)]
fn log_ratio(s: f64) -> f64 {
    const C: [f64; 8] = [2.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0, 2.0 / 11.0, 2.0 / 13.0, 2.0 / 15.0];
    s * polynomial(s * s, C)
}

/// Of a normal number, or any result for another.
#[inline(always)]
fn log_normal(x: f64) -> f64 {
    const MANTISSA: u64 = (1 << 52) - 1;
    // The exponent, as the low bits of 2⁵².
    let exponent = f64::from_bits(x.to_bits() >> 52 | 0x4330_0000_0000_0000) - (4_503_599_627_370_496.0 + 1023.0);
    let m = f64::from_bits(x.to_bits() & MANTISSA | 1023 << 52);
    let is_upper = m > SQRT_2;
    let (m, exponent) = (if is_upper { 0.5 * m } else { m }, if is_upper { exponent + 1.0 } else { exponent });
    exponent * LN_2 + log_ratio((m - 1.0) / (m + 1.0))
}

/// What a logarithm of `x` is: `log` of a positive finite one.
#[inline(always)]
fn with_limits(x: f64, log: f64) -> f64 {
    let positive = if x < f64::INFINITY { log } else { x };
    let rest = if x == 0.0 { f64::NEG_INFINITY } else { f64::NAN };
    if x > 0.0 { positive } else { rest }
}

#[inline(always)]
pub(super) fn log(x: f32) -> f32 {
    let x = f64::from(x);
    with_limits(x, log_normal(x)) as f32
}

#[inline(always)]
pub(super) fn log1p(x: f32) -> f32 {
    let x = f64::from(x);
    let near = log_ratio(x / (2.0 + x));
    let far = with_limits(1.0 + x, log_normal(1.0 + x));
    (if x > -0.25 && x < 0.25 { near } else { far }) as f32
}

/// erfc of x ≥ 0: e^(−x²)/(1 + 2x) times a polynomial in (x − 3.75)/(x + 3.75), fitted at Chebyshev points up to x = 10.6.
#[inline(always)]
fn erfc_above(x: f64) -> f64 {
    const C: [f64; 13] = [
        1.2375126309959645,
        -0.14024059847503423,
        0.0035853873447483885,
        0.08227671627559086,
        -0.10880312808251894,
        0.09230531447761536,
        -0.05870124896403841,
        0.02834830527840472,
        -0.009719254254318964,
        0.0018300809967300936,
        0.0002936061721547731,
        -0.0004187422468475154,
        -6.691675998479971e-05,
    ];
    let x = within(x, 0.0, 10.6);
    let (s, p) = power(-x * x);
    (s + s * p) * polynomial((x - 3.75) / (x + 3.75), C) / (1.0 + 2.0 * x)
}

#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    // erf(x)/x in x², fitted at Chebyshev points up to x = 1.
    const C: [f64; 8] = [
        1.128379167062361,
        -0.376126384759917,
        0.112837826220659,
        -0.02686543831071821,
        0.0052210534131216495,
        -0.0008484396559472103,
        0.00011268253961485981,
        -9.673591012322246e-06,
    ];
    let size = f64::from(x.abs());
    let near = size * polynomial(size * size, C);
    (if size < 1.0 { near } else { 1.0 - erfc_above(size) } as f32).copysign(x)
}

#[inline(always)]
pub(super) fn erfc(x: f32) -> f32 {
    let above = erfc_above(f64::from(x.abs()));
    (if x < 0.0 { 2.0 - above } else { above }) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against libm's f64 functions: off by half a unit of the last place and what its own error and ours may tip.
    #[test]
    fn functions_of_f32_are_rounded_from_better_ones() {
        type Pair = (&'static str, fn(f32) -> f32, fn(f64) -> f64);
        let pairs: [Pair; 8] = [
            ("exp", exp, libm::exp),
            ("expm1", expm1, libm::expm1),
            ("tanh", tanh, libm::tanh),
            ("sigmoid", sigmoid, |x| 1.0 / (1.0 + libm::exp(-x))),
            ("log", log, libm::log),
            ("log1p", log1p, libm::log1p),
            ("erf", erf, libm::erf),
            ("erfc", erfc, libm::erfc),
        ];
        let special =
            [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, 1e-45, 0.25, 0.9999999, 88.72284];
        for (name, ours, theirs) in pairs {
            for x in special.into_iter().chain((0..u32::MAX).step_by(7001).map(f32::from_bits)) {
                let (got, want) = (ours(x), theirs(f64::from(x)));
                if want.is_nan() {
                    assert!(got.is_nan(), "{name}({x:e}) is {got:e}, want NaN");
                    continue;
                }
                let nearest = want as f32;
                if got.to_bits() == nearest.to_bits() {
                    continue;
                }
                let unit = f64::from(nearest.abs().next_up()) - f64::from(nearest.abs());
                let off = (f64::from(got) - want).abs();
                assert!(off <= 0.504 * unit, "{name}({x:e}) is {got:e}, want {want:e}: off by {} units", off / unit);
                assert_eq!(got.is_sign_negative(), nearest.is_sign_negative(), "{name}({x:e}) is {got:e}, want {want:e}");
            }
        }
    }
}
