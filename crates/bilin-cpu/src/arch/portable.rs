//! Arrays as vectors: for every processor.

use super::tile::{Micro, TileFn, kernels, micro};
use super::vector::{Cx, RealVector, Vector};

/// Scalar arithmetic of an accumulator's part.
pub(crate) trait Scalar: Copy + Default {
    /// What sums begin at: adding it changes nothing.
    const NEUTRAL: Self;
    /// acc + a·b, rounded once (wrapping integers; or of and for truth values).
    fn mul_add(a: Self, b: Self, acc: Self) -> Self;
    /// Sum.
    fn plus(self, other: Self) -> Self;
}

macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Scalar for $t {
            const NEUTRAL: Self = -0.0;
            #[inline(always)]
            fn mul_add(a: Self, b: Self, acc: Self) -> Self { a.mul_add(b, acc) }
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
        }
    )*};
}
floats!(f32, f64);

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl Scalar for $t {
            const NEUTRAL: Self = 0;
            #[inline(always)]
            fn mul_add(a: Self, b: Self, acc: Self) -> Self { acc.wrapping_add(a.wrapping_mul(b)) }
            #[inline(always)]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
        }
    )*};
}
integers!(i32, i64);

/// Truth values: 0 or 1.
impl Scalar for u32 {
    const NEUTRAL: Self = 0;
    #[inline(always)]
    fn mul_add(a: Self, b: Self, acc: Self) -> Self {
        acc | (a & b)
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self | other
    }
}

/// `N` scalars.
#[derive(Clone, Copy)]
pub(crate) struct Lanes<T, const N: usize>([T; N]);

impl<T: Scalar, const N: usize> Vector for Lanes<T, N> {
    type Part = T;
    const LANES: usize = N;
    const PARTS: usize = 1;
    #[inline(always)]
    unsafe fn neutral() -> Self {
        Lanes([T::NEUTRAL; N])
    }
    #[inline(always)]
    unsafe fn splat(at: *const T) -> Self {
        // SAFETY: the caller gives a readable part.
        Lanes([unsafe { *at }; N])
    }
    #[inline(always)]
    unsafe fn load(at: *const T) -> Self {
        // SAFETY: the caller gives N readable parts.
        Lanes(unsafe { at.cast::<[T; N]>().read() })
    }
    #[inline(always)]
    unsafe fn load_part(at: *const T, lanes: usize) -> Self {
        let mut out = [T::default(); N];
        for (i, x) in out.iter_mut().enumerate() {
            if i < lanes {
                // SAFETY: the caller gives `lanes` readable parts.
                *x = unsafe { *at.add(i) };
            }
        }
        Lanes(out)
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut T) {
        // SAFETY: the caller gives N writable parts.
        unsafe { at.cast::<[T; N]>().write(self.0) }
    }
    #[inline(always)]
    unsafe fn store_part(self, at: *mut T, lanes: usize) {
        for (i, &x) in self.0.iter().enumerate() {
            if i < lanes {
                // SAFETY: the caller gives `lanes` writable parts.
                unsafe { at.add(i).write(x) };
            }
        }
    }
    #[inline(always)]
    unsafe fn fma(a: Self, b: Self, mut acc: Self) -> Self {
        for i in 0..N {
            acc.0[i] = T::mul_add(a.0[i], b.0[i], acc.0[i]);
        }
        acc
    }
    #[inline(always)]
    unsafe fn add(mut self, other: Self) -> Self {
        for i in 0..N {
            self.0[i] = self.0[i].plus(other.0[i]);
        }
        self
    }
}

macro_rules! negated {
    ($($t:ty),*) => {$(
        impl<const N: usize> RealVector for Lanes<$t, N> {
            #[inline(always)]
            unsafe fn mixed(a: Self, b: Self) -> [Self; 2] {
                [0, N].map(|from| Lanes(std::array::from_fn(|i| if (from + i) % 2 == 0 { a.0[(from + i) / 2] } else { b.0[(from + i) / 2] })))
            }
            #[inline(always)]
            unsafe fn apart(a: Self, b: Self) -> [Self; 2] {
                [0, 1].map(|from| Lanes(std::array::from_fn(|i| if 2 * i < N { a.0[2 * i + from] } else { b.0[2 * i + from - N] })))
            }
            #[inline(always)]
            unsafe fn fnma(a: Self, b: Self, mut acc: Self) -> Self {
                for i in 0..N {
                    acc.0[i] = (-a.0[i]).mul_add(b.0[i], acc.0[i]);
                }
                acc
            }
        }
    )*};
}
negated!(f32, f64);

kernels!();

pub(crate) const F32: &Micro<f32> = micro!(run, Lanes<f32, 8>, rows [1, 2, 3, 4], vectors [1, 2]);
pub(crate) const F64: &Micro<f64> = micro!(run, Lanes<f64, 4>, rows [1, 2, 3, 4], vectors [1, 2]);
pub(crate) const I32: &Micro<i32> = micro!(run, Lanes<i32, 8>, rows [1, 2, 3, 4], vectors [1, 2]);
pub(crate) const I64: &Micro<i64> = micro!(run, Lanes<i64, 4>, rows [1, 2, 3, 4], vectors [1, 2]);
pub(crate) const TRUTH: &Micro<u32> = micro!(run, Lanes<u32, 8>, rows [1, 2, 3, 4], vectors [1, 2]);
pub(crate) const C64: [&Micro<f32>; 2] =
    [micro!(run, Cx<Lanes<f32, 4>, false>, rows [1, 2], vectors [1, 2]), micro!(run, Cx<Lanes<f32, 4>, true>, rows [1, 2], vectors [1, 2])];
pub(crate) const C128: [&Micro<f64>; 2] =
    [micro!(run, Cx<Lanes<f64, 4>, false>, rows [1, 2], vectors [1, 2]), micro!(run, Cx<Lanes<f64, 4>, true>, rows [1, 2], vectors [1, 2])];
