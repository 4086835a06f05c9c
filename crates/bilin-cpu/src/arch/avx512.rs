//! AVX-512 vectors.

use core::arch::x86_64::*;

use super::portable::Scalar;
use super::tile::{Micro, TileFn, kernels, micro};
use super::vector::{Cx, MOST_LANES, RealVector, Vector};

macro_rules! vector {
    ($name:ident, $reg:ty, $part:ty, $lanes:literal, $mask:ty, $set1:ident, $loadu:ident, $maskz_loadu:ident,
     $storeu:ident, $mask_storeu:ident, $cross:ident, |$a:ident, $b:ident, $c:ident| $fma:expr, |$x:ident, $y:ident| $add:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name(pub(super) $reg);
        #[allow(clippy::useless_transmute, reason = "one of the registers is the integer one")]
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
            unsafe fn stream(self, at: *mut $part) {
                // SAFETY: the caller has the instructions and gives LANES writable parts, aligned; registers of one size.
                unsafe { _mm512_stream_si512(at.cast(), std::mem::transmute::<$reg, __m512i>(self.0)) }
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
            #[inline(always)]
            unsafe fn cross(rows: &mut [Self; MOST_LANES]) {
                // SAFETY: the caller has AVX-512; each vector is one register of 64 bytes.
                unsafe { $cross(&mut *rows.as_mut_ptr().cast()) }
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
    cross32,
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
    cross64,
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
    cross32,
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
    cross64,
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
    cross32,
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
    #[inline(always)]
    unsafe fn mixed(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            [F32x16(_mm512_permutex2var_ps(a.0, low, b.0)), F32x16(_mm512_permutex2var_ps(a.0, high, b.0))]
        }
    }
    #[inline(always)]
    unsafe fn apart(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            [F32x16(_mm512_permutex2var_ps(a.0, even, b.0)), F32x16(_mm512_permutex2var_ps(a.0, odd, b.0))]
        }
    }
}
impl RealVector for F64x8 {
    #[inline(always)]
    unsafe fn fnma(a: Self, b: Self, acc: Self) -> Self {
        // SAFETY: the caller has AVX-512.
        unsafe { F64x8(_mm512_fnmadd_pd(a.0, b.0, acc.0)) }
    }
    #[inline(always)]
    unsafe fn mixed(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let (low, high) = (_mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15));
            [F64x8(_mm512_permutex2var_pd(a.0, low, b.0)), F64x8(_mm512_permutex2var_pd(a.0, high, b.0))]
        }
    }
    #[inline(always)]
    unsafe fn apart(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX-512.
        unsafe {
            let (even, odd) = (_mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15));
            [F64x8(_mm512_permutex2var_pd(a.0, even, b.0)), F64x8(_mm512_permutex2var_pd(a.0, odd, b.0))]
        }
    }
}

/// 16 rows of 16 words across their diagonal.
#[inline(always)]
pub(super) unsafe fn cross32(rows: &mut [__m512i; 16]) {
    // SAFETY: the caller has AVX-512.
    unsafe {
        // Pairs of words, then of pairs: register 4g + c holds column c of each quarter, for rows 4g to 4g + 3.
        let mut words = *rows;
        for i in (0..16).step_by(2) {
            words[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
            words[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        let mut pairs = words;
        for i in (0..16).step_by(4) {
            for half in 0..2 {
                pairs[i + 2 * half] = _mm512_unpacklo_epi64(words[i + half], words[i + 2 + half]);
                pairs[i + 2 * half + 1] = _mm512_unpackhi_epi64(words[i + half], words[i + 2 + half]);
            }
        }
        for column in 0..4 {
            let (a, b, c, d) = (pairs[column], pairs[4 + column], pairs[8 + column], pairs[12 + column]);
            let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
            let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
            rows[column] = _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even);
            rows[4 + column] = _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd);
            rows[8 + column] = _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even);
            rows[12 + column] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd);
        }
    }
}

/// The first eight rows of eight long words across their diagonal.
#[inline(always)]
unsafe fn cross64(rows: &mut [__m512i; 16]) {
    // SAFETY: the caller has AVX-512.
    unsafe {
        // Register 2g + c holds column c of each quarter, for rows 2g and 2g + 1.
        let mut pairs = *rows;
        for i in (0..8).step_by(2) {
            pairs[i] = _mm512_unpacklo_epi64(rows[i], rows[i + 1]);
            pairs[i + 1] = _mm512_unpackhi_epi64(rows[i], rows[i + 1]);
        }
        for column in 0..2 {
            let (a, b, c, d) = (pairs[column], pairs[2 + column], pairs[4 + column], pairs[6 + column]);
            let (ab_even, ab_odd) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0xdd>(a, b));
            let (cd_even, cd_odd) = (_mm512_shuffle_i32x4::<0x88>(c, d), _mm512_shuffle_i32x4::<0xdd>(c, d));
            rows[column] = _mm512_shuffle_i32x4::<0x88>(ab_even, cd_even);
            rows[2 + column] = _mm512_shuffle_i32x4::<0x88>(ab_odd, cd_odd);
            rows[4 + column] = _mm512_shuffle_i32x4::<0xdd>(ab_even, cd_even);
            rows[6 + column] = _mm512_shuffle_i32x4::<0xdd>(ab_odd, cd_odd);
        }
    }
}

kernels!(#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,fma")]);

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
