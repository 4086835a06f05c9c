//! AVX2 and FMA vectors.

use core::arch::x86_64::*;

use super::portable::Scalar;
use super::tile::{Micro, TileFn, kernels, micro};
use super::vector::{Cx, MOST_LANES, RealVector, Vector};

/// −1 up to the lane, 0 after it, from a sliding window.
static WINDOW32: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
static WINDOW64: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

#[inline(always)]
unsafe fn mask32(lanes: usize) -> __m256i {
    debug_assert!(lanes <= 8);
    // SAFETY: the caller has AVX2 and passes at most 8.
    unsafe { _mm256_loadu_si256(WINDOW32.as_ptr().add(8 - lanes).cast()) }
}
#[inline(always)]
unsafe fn mask64(lanes: usize) -> __m256i {
    debug_assert!(lanes <= 4);
    // SAFETY: the caller has AVX2 and passes at most 4.
    unsafe { _mm256_loadu_si256(WINDOW64.as_ptr().add(4 - lanes).cast()) }
}
#[inline(always)]
unsafe fn splat_u32(x: u32) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_set1_epi32(x as i32) }
}
/// Low halves of 64-bit products, from 32-bit ones.
#[inline(always)]
unsafe fn mullo64(a: __m256i, b: __m256i) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe {
        let cross = _mm256_mullo_epi32(a, _mm256_shuffle_epi32::<0xb1>(b));
        let high = _mm256_add_epi32(_mm256_slli_epi64::<32>(cross), _mm256_and_si256(cross, _mm256_set1_epi64x(!0xffff_ffff)));
        _mm256_add_epi64(_mm256_mul_epu32(a, b), high)
    }
}

macro_rules! vector {
    ($name:ident, $reg:ty, $part:ty, $lanes:literal, $mask:ident, $set1:ident, $loadu:ident, $maskload:ident,
     $storeu:ident, $maskstore:ident, $cross:ident, |$a:ident, $b:ident, $c:ident| $fma:expr, |$x:ident, $y:ident| $add:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name($reg);
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
                // SAFETY: the caller has AVX2.
                unsafe { $name($set1(<$part as Scalar>::NEUTRAL)) }
            }
            #[inline(always)]
            unsafe fn splat(at: *const $part) -> Self {
                // SAFETY: the caller has AVX2 and gives a readable part.
                unsafe { $name($set1(*at)) }
            }
            #[inline(always)]
            unsafe fn load(at: *const $part) -> Self {
                // SAFETY: the caller has AVX2 and gives LANES readable parts.
                unsafe { $name($loadu(at.cast())) }
            }
            #[inline(always)]
            unsafe fn load_part(at: *const $part, lanes: usize) -> Self {
                // SAFETY: the caller has AVX2; lanes that are masked out aren't read.
                unsafe { $name($maskload(at.cast(), $mask(lanes))) }
            }
            #[inline(always)]
            unsafe fn store(self, at: *mut $part) {
                // SAFETY: the caller has AVX2 and gives LANES writable parts.
                unsafe { $storeu(at.cast(), self.0) }
            }
            #[inline(always)]
            unsafe fn stream(self, at: *mut $part) {
                // SAFETY: the caller has the instructions and gives LANES writable parts, aligned; registers of one size.
                unsafe { _mm256_stream_si256(at.cast(), std::mem::transmute::<$reg, __m256i>(self.0)) }
            }
            #[inline(always)]
            unsafe fn store_part(self, at: *mut $part, lanes: usize) {
                // SAFETY: the caller has AVX2; lanes that are masked out aren't written.
                unsafe { $maskstore(at.cast(), $mask(lanes), self.0) }
            }
            #[inline(always)]
            unsafe fn fma(a: Self, b: Self, acc: Self) -> Self {
                let ($a, $b, $c) = (a.0, b.0, acc.0);
                // SAFETY: the caller has AVX2 and FMA.
                unsafe { $name($fma) }
            }
            #[inline(always)]
            unsafe fn add(self, other: Self) -> Self {
                let ($x, $y) = (self.0, other.0);
                // SAFETY: the caller has AVX2.
                unsafe { $name($add) }
            }
            #[inline(always)]
            unsafe fn cross(rows: &mut [Self; MOST_LANES]) {
                // SAFETY: the caller has AVX2; each vector is one register of 32 bytes.
                unsafe { $cross(&mut *rows.as_mut_ptr().cast()) }
            }
        }
    };
}

vector!(
    F32x8,
    __m256,
    f32,
    8,
    mask32,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_maskload_ps,
    _mm256_storeu_ps,
    _mm256_maskstore_ps,
    cross32,
    |a, b, c| _mm256_fmadd_ps(a, b, c),
    |x, y| _mm256_add_ps(x, y)
);
vector!(
    F64x4,
    __m256d,
    f64,
    4,
    mask64,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_maskload_pd,
    _mm256_storeu_pd,
    _mm256_maskstore_pd,
    cross64,
    |a, b, c| _mm256_fmadd_pd(a, b, c),
    |x, y| _mm256_add_pd(x, y)
);
vector!(
    I32x8,
    __m256i,
    i32,
    8,
    mask32,
    _mm256_set1_epi32,
    _mm256_loadu_si256,
    _mm256_maskload_epi32,
    _mm256_storeu_si256,
    _mm256_maskstore_epi32,
    cross32,
    |a, b, c| _mm256_add_epi32(_mm256_mullo_epi32(a, b), c),
    |x, y| _mm256_add_epi32(x, y)
);
vector!(
    I64x4,
    __m256i,
    i64,
    4,
    mask64,
    _mm256_set1_epi64x,
    _mm256_loadu_si256,
    _mm256_maskload_epi64,
    _mm256_storeu_si256,
    _mm256_maskstore_epi64,
    cross64,
    |a, b, c| _mm256_add_epi64(mullo64(a, b), c),
    |x, y| _mm256_add_epi64(x, y)
);
vector!(
    Truth8,
    __m256i,
    u32,
    8,
    mask32,
    splat_u32,
    _mm256_loadu_si256,
    _mm256_maskload_epi32,
    _mm256_storeu_si256,
    _mm256_maskstore_epi32,
    cross32,
    |a, b, c| _mm256_or_si256(_mm256_and_si256(a, b), c),
    |x, y| _mm256_or_si256(x, y)
);

impl RealVector for F32x8 {
    #[inline(always)]
    unsafe fn fnma(a: Self, b: Self, acc: Self) -> Self {
        // SAFETY: the caller has FMA.
        unsafe { F32x8(_mm256_fnmadd_ps(a.0, b.0, acc.0)) }
    }
    #[inline(always)]
    unsafe fn mixed(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX2.
        unsafe {
            let (low, high) = (_mm256_unpacklo_ps(a.0, b.0), _mm256_unpackhi_ps(a.0, b.0));
            [F32x8(_mm256_permute2f128_ps::<0x20>(low, high)), F32x8(_mm256_permute2f128_ps::<0x31>(low, high))]
        }
    }
    #[inline(always)]
    unsafe fn apart(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX2.
        unsafe {
            let (low, high) = (_mm256_permute2f128_ps::<0x20>(a.0, b.0), _mm256_permute2f128_ps::<0x31>(a.0, b.0));
            [F32x8(_mm256_shuffle_ps::<0x88>(low, high)), F32x8(_mm256_shuffle_ps::<0xdd>(low, high))]
        }
    }
}
impl RealVector for F64x4 {
    #[inline(always)]
    unsafe fn fnma(a: Self, b: Self, acc: Self) -> Self {
        // SAFETY: the caller has FMA.
        unsafe { F64x4(_mm256_fnmadd_pd(a.0, b.0, acc.0)) }
    }
    #[inline(always)]
    unsafe fn mixed(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX2.
        unsafe {
            let (low, high) = (_mm256_unpacklo_pd(a.0, b.0), _mm256_unpackhi_pd(a.0, b.0));
            [F64x4(_mm256_permute2f128_pd::<0x20>(low, high)), F64x4(_mm256_permute2f128_pd::<0x31>(low, high))]
        }
    }
    #[inline(always)]
    unsafe fn apart(a: Self, b: Self) -> [Self; 2] {
        // SAFETY: the caller has AVX2.
        unsafe {
            let (low, high) = (_mm256_permute2f128_pd::<0x20>(a.0, b.0), _mm256_permute2f128_pd::<0x31>(a.0, b.0));
            [F64x4(_mm256_unpacklo_pd(low, high)), F64x4(_mm256_unpackhi_pd(low, high))]
        }
    }
}

/// The first eight rows of eight words across their diagonal.
#[inline(always)]
unsafe fn cross32(rows: &mut [__m256i; 16]) {
    // SAFETY: the caller has AVX2.
    unsafe {
        // Pairs of words, then of pairs: register 4g + c holds column c of each half, for rows 4g to 4g + 3.
        let mut words = *rows;
        for i in (0..8).step_by(2) {
            words[i] = _mm256_unpacklo_epi32(rows[i], rows[i + 1]);
            words[i + 1] = _mm256_unpackhi_epi32(rows[i], rows[i + 1]);
        }
        let mut pairs = words;
        for i in (0..8).step_by(4) {
            for half in 0..2 {
                pairs[i + 2 * half] = _mm256_unpacklo_epi64(words[i + half], words[i + 2 + half]);
                pairs[i + 2 * half + 1] = _mm256_unpackhi_epi64(words[i + half], words[i + 2 + half]);
            }
        }
        for column in 0..4 {
            rows[column] = _mm256_permute2x128_si256::<0x20>(pairs[column], pairs[4 + column]);
            rows[4 + column] = _mm256_permute2x128_si256::<0x31>(pairs[column], pairs[4 + column]);
        }
    }
}

/// The first four rows of four long words across their diagonal.
#[inline(always)]
unsafe fn cross64(rows: &mut [__m256i; 16]) {
    // SAFETY: the caller has AVX2.
    unsafe {
        let (a, b) = (_mm256_unpacklo_epi64(rows[0], rows[1]), _mm256_unpackhi_epi64(rows[0], rows[1]));
        let (c, d) = (_mm256_unpacklo_epi64(rows[2], rows[3]), _mm256_unpackhi_epi64(rows[2], rows[3]));
        rows[0] = _mm256_permute2x128_si256::<0x20>(a, c);
        rows[1] = _mm256_permute2x128_si256::<0x20>(b, d);
        rows[2] = _mm256_permute2x128_si256::<0x31>(a, c);
        rows[3] = _mm256_permute2x128_si256::<0x31>(b, d);
    }
}

kernels!(#[target_feature(enable = "avx2,fma")]);

pub(crate) const F32: &Micro<f32> = micro!(run, F32x8, rows [1, 2, 3, 4], vectors [1, 2, 3]);
pub(crate) const F64: &Micro<f64> = micro!(run, F64x4, rows [1, 2, 3, 4], vectors [1, 2, 3]);
pub(crate) const I32: &Micro<i32> = micro!(run, I32x8, rows [1, 2, 3, 4], vectors [1, 2, 3]);
pub(crate) const I64: &Micro<i64> = micro!(run, I64x4, rows [1, 2, 3, 4], vectors [1, 2]);
pub(crate) const TRUTH: &Micro<u32> = micro!(run, Truth8, rows [1, 2, 3, 4], vectors [1, 2, 3]);
pub(crate) const C64: [&Micro<f32>; 2] =
    [micro!(run, Cx<F32x8, false>, rows [1, 2], vectors [1, 2]), micro!(run, Cx<F32x8, true>, rows [1, 2], vectors [1, 2])];
pub(crate) const C128: [&Micro<f64>; 2] =
    [micro!(run, Cx<F64x4, false>, rows [1, 2], vectors [1, 2]), micro!(run, Cx<F64x4, true>, rows [1, 2], vectors [1, 2])];
