//! AVX-512 vectors.

use core::arch::x86_64::*;

use super::portable::Scalar;
use super::tile::{Micro, Tile, TileFn, micro, tile};
use super::vector::{Cx, RealVector, Vector};

macro_rules! vector {
    ($name:ident, $reg:ty, $part:ty, $lanes:literal, $mask:ty, $set1:ident, $loadu:ident, $maskz_loadu:ident,
     $storeu:ident, $mask_storeu:ident, |$a:ident, $b:ident, $c:ident| $fma:expr, |$x:ident, $y:ident| $add:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name($reg);
        impl Vector for $name {
            type Part = $part;
            const LANES: usize = $lanes;
            const PARTS: usize = 1;
            #[inline(always)]
            unsafe fn prefetch(at: *const $part) {
                // SAFETY: a hint, for any address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
            }
            #[inline(always)]
            unsafe fn neutral() -> Self {
                // SAFETY: the caller has AVX-512.
                unsafe { $name($set1(<$part as Scalar>::NEUTRAL)) }
            }
            #[inline(always)]
            unsafe fn splat(at: *const $part) -> Self {
                // SAFETY: the caller has AVX-512 and gives a readable part.
                unsafe { $name($set1(*at)) }
            }
            #[inline(always)]
            unsafe fn load(at: *const $part) -> Self {
                // SAFETY: the caller has AVX-512 and gives LANES readable parts.
                unsafe { $name($loadu(at.cast())) }
            }
            #[inline(always)]
            unsafe fn load_part(at: *const $part, lanes: usize) -> Self {
                // SAFETY: the caller has AVX-512; lanes that are masked out aren't read.
                unsafe { $name($maskz_loadu(((1u32 << lanes) - 1) as $mask, at.cast())) }
            }
            #[inline(always)]
            unsafe fn store(self, at: *mut $part) {
                // SAFETY: the caller has AVX-512 and gives LANES writable parts.
                unsafe { $storeu(at.cast(), self.0) }
            }
            #[inline(always)]
            unsafe fn store_part(self, at: *mut $part, lanes: usize) {
                // SAFETY: the caller has AVX-512; lanes that are masked out aren't written.
                unsafe { $mask_storeu(at.cast(), ((1u32 << lanes) - 1) as $mask, self.0) }
            }
            #[inline(always)]
            unsafe fn fma(a: Self, b: Self, acc: Self) -> Self {
                let ($a, $b, $c) = (a.0, b.0, acc.0);
                // SAFETY: the caller has AVX-512.
                unsafe { $name($fma) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                let ($x, $y) = (self.0, other.0);
                // SAFETY: the caller has AVX-512.
                unsafe { $name($add) }
            }
        }
    };
}

vector!(
    F32x16,
    __m512,
    f32,
    16,
    u16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_maskz_loadu_ps,
    _mm512_storeu_ps,
    _mm512_mask_storeu_ps,
    |a, b, c| _mm512_fmadd_ps(a, b, c),
    |x, y| _mm512_add_ps(x, y)
);
vector!(
    F64x8,
    __m512d,
    f64,
    8,
    u8,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_maskz_loadu_pd,
    _mm512_storeu_pd,
    _mm512_mask_storeu_pd,
    |a, b, c| _mm512_fmadd_pd(a, b, c),
    |x, y| _mm512_add_pd(x, y)
);
vector!(
    I32x16,
    __m512i,
    i32,
    16,
    u16,
    _mm512_set1_epi32,
    _mm512_loadu_epi32,
    _mm512_maskz_loadu_epi32,
    _mm512_storeu_epi32,
    _mm512_mask_storeu_epi32,
    |a, b, c| _mm512_add_epi32(_mm512_mullo_epi32(a, b), c),
    |x, y| _mm512_add_epi32(x, y)
);
vector!(
    I64x8,
    __m512i,
    i64,
    8,
    u8,
    _mm512_set1_epi64,
    _mm512_loadu_epi64,
    _mm512_maskz_loadu_epi64,
    _mm512_storeu_epi64,
    _mm512_mask_storeu_epi64,
    |a, b, c| _mm512_add_epi64(_mm512_mullo_epi64(a, b), c),
    |x, y| _mm512_add_epi64(x, y)
);
vector!(
    Truth16,
    __m512i,
    u32,
    16,
    u16,
    splat_u32,
    _mm512_loadu_epi32,
    _mm512_maskz_loadu_epi32,
    _mm512_storeu_epi32,
    _mm512_mask_storeu_epi32,
    |a, b, c| _mm512_or_epi32(_mm512_and_epi32(a, b), c),
    |x, y| _mm512_or_epi32(x, y)
);

#[inline(always)]
unsafe fn splat_u32(x: u32) -> __m512i {
    // SAFETY: the caller has AVX-512.
    unsafe { _mm512_set1_epi32(x as i32) }
}

impl RealVector for F32x16 {
    #[inline(always)]
    unsafe fn fnma(a: Self, b: Self, acc: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { F32x16(_mm512_fnmadd_ps(a.0, b.0, acc.0)) }
    }
}
impl RealVector for F64x8 {
    #[inline(always)]
    unsafe fn fnma(a: Self, b: Self, acc: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { F64x8(_mm512_fnmadd_pd(a.0, b.0, acc.0)) }
    }
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,fma")]
unsafe fn run<V: Vector, const ROWS: usize, const VECTORS: usize>(t: &Tile<V::Part>) {
    // SAFETY: the caller's promise.
    unsafe { tile::<V, ROWS, VECTORS>(t) }
}

pub(crate) const F32: &Micro<f32> = micro!(run, F32x16, rows [1, 2, 3, 4, 5, 6, 7, 8], vectors [1, 2, 3]);
pub(crate) const F64: &Micro<f64> = micro!(run, F64x8, rows [1, 2, 3, 4, 5, 6, 7, 8], vectors [1, 2, 3]);
pub(crate) const I32: &Micro<i32> = micro!(run, I32x16, rows [1, 2, 3, 4, 5, 6, 7, 8], vectors [1, 2, 3]);
pub(crate) const I64: &Micro<i64> = micro!(run, I64x8, rows [1, 2, 3, 4, 5, 6, 7, 8], vectors [1, 2, 3]);
pub(crate) const TRUTH: &Micro<u32> = micro!(run, Truth16, rows [1, 2, 3, 4, 5, 6, 7, 8], vectors [1, 2, 3]);
pub(crate) const C64: [&Micro<f32>; 2] = [
    micro!(run, Cx<F32x16, false>, rows [1, 2, 3, 4, 5, 6], vectors [1, 2]),
    micro!(run, Cx<F32x16, true>, rows [1, 2, 3, 4, 5, 6], vectors [1, 2]),
];
pub(crate) const C128: [&Micro<f64>; 2] = [
    micro!(run, Cx<F64x8, false>, rows [1, 2, 3, 4, 5, 6], vectors [1, 2]),
    micro!(run, Cx<F64x8, true>, rows [1, 2, 3, 4, 5, 6], vectors [1, 2]),
];
