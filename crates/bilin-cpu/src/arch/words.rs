//! Vectors of sums whose terms come several to a word: two bf16, two 16-bit integers, four bytes.

use core::arch::x86_64::*;
use core::marker::PhantomData;
use std::sync::OnceLock;

use super::Isa;
use super::avx512::{F32x16, I32x16};
use super::tile::{Micro, TileFn, kernels, micro};
use super::vector::{MOST_LANES, Vector};

/// acc + Σ aᵢ·bᵢ over the pieces of each word.
pub(super) trait Dot<V> {
    /// # Safety
    /// The processor has the instruction.
    unsafe fn dot(a: V, b: V, acc: V) -> V;
}

/// A vector over words.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Words<V, D>(V, PhantomData<D>);

impl<V: Vector, D: Dot<V> + Copy> Vector for Words<V, D> {
    type Part = V::Part;
    const LANES: usize = V::LANES;
    const PARTS: usize = 1;
    #[inline(always)]
    unsafe fn prefetch(at: *const V::Part) {
        // SAFETY: a hint.
        unsafe { V::prefetch(at) }
    }
    #[inline(always)]
    unsafe fn neutral() -> Self {
        // SAFETY: handed on from the caller, here and below.
        unsafe { Words(V::neutral(), PhantomData) }
    }
    #[inline(always)]
    unsafe fn splat(at: *const V::Part) -> Self {
        // SAFETY: as above.
        unsafe { Words(V::splat(at), PhantomData) }
    }
    #[inline(always)]
    unsafe fn load(at: *const V::Part) -> Self {
        // SAFETY: as above.
        unsafe { Words(V::load(at), PhantomData) }
    }
    #[inline(always)]
    unsafe fn load_part(at: *const V::Part, lanes: usize) -> Self {
        // SAFETY: as above.
        unsafe { Words(V::load_part(at, lanes), PhantomData) }
    }
    #[inline(always)]
    unsafe fn store(self, at: *mut V::Part) {
        // SAFETY: as above.
        unsafe { self.0.store(at) }
    }
    #[inline(always)]
    unsafe fn stream(self, at: *mut V::Part) {
        // SAFETY: as above.
        unsafe { self.0.stream(at) }
    }
    #[inline(always)]
    unsafe fn store_part(self, at: *mut V::Part, lanes: usize) {
        // SAFETY: as above.
        unsafe { self.0.store_part(at, lanes) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self, b: Self, acc: Self) -> Self {
        // SAFETY: as above.
        unsafe { Words(D::dot(a.0, b.0, acc.0), PhantomData) }
    }
    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: as above.
        unsafe { Words(self.0.add(other.0), PhantomData) }
    }
    #[inline(always)]
    unsafe fn cross(rows: &mut [Self; MOST_LANES]) {
        // SAFETY: as above; `Words` is its vector in memory.
        unsafe { V::cross(&mut *rows.as_mut_ptr().cast()) }
    }
}

/// Two bf16, the upper one first: one fused multiply-add after the other, subnormal operands and results counting as zeros.
#[derive(Clone, Copy)]
pub(super) struct Halves;
impl Dot<F32x16> for Halves {
    #[inline(always)]
    unsafe fn dot(a: F32x16, b: F32x16, acc: F32x16) -> F32x16 {
        // SAFETY: the caller has AVX512-BF16; a register of f32 holds the same bits as one of bf16.
        unsafe {
            let [a, b] = [a.0, b.0].map(|x| core::mem::transmute::<__m512, __m512bh>(x));
            F32x16(_mm512_dpbf16_ps(acc.0, a, b))
        }
    }
}

/// Two signed 16-bit integers.
#[derive(Clone, Copy)]
pub(super) struct Shorts;
impl Dot<I32x16> for Shorts {
    #[inline(always)]
    unsafe fn dot(a: I32x16, b: I32x16, acc: I32x16) -> I32x16 {
        // SAFETY: the caller has AVX512-VNNI.
        unsafe { I32x16(_mm512_dpwssd_epi32(acc.0, a.0, b.0)) }
    }
}

/// Four bytes, those of `a` without a sign, those of `b` with one.
#[derive(Clone, Copy)]
pub(super) struct Bytes;
impl Dot<I32x16> for Bytes {
    #[inline(always)]
    unsafe fn dot(a: I32x16, b: I32x16, acc: I32x16) -> I32x16 {
        // SAFETY: the caller has AVX512-VNNI.
        unsafe { I32x16(_mm512_dpbusd_epi32(acc.0, a.0, b.0)) }
    }
}

mod bf16 {
    use super::*;
    kernels!(#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,fma")]);
    pub(super) const HALVES: &Micro<f32> = micro!(run, Words<F32x16, Halves>, rows [1, 2, 3, 4, 5, 6, 7, 8], vectors [1, 2, 3]);
}

mod vnni {
    use super::*;
    kernels!(#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,fma")]);
    pub(super) const SHORTS: &Micro<i32> = micro!(run, Words<I32x16, Shorts>, rows [1, 2, 3, 4, 5, 6, 7, 8], vectors [1, 2, 3]);
    pub(super) const BYTES: &Micro<i32> = micro!(run, Words<I32x16, Bytes>, rows [1, 2, 3, 4, 5, 6, 7, 8], vectors [1, 2, 3]);
}

fn detected(isa: Isa) -> (bool, bool) {
    static DETECTED: OnceLock<(bool, bool)> = OnceLock::new();
    if isa < Isa::Avx512 {
        return (false, false);
    }
    *DETECTED.get_or_init(|| {
        let is_wide = Isa::best_detected() >= Isa::Avx512;
        // Processors with tiles for bf16 multiply pairs more slowly than they do f32.
        let has_tiles = __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & 1 << 22 != 0;
        (is_wide && !has_tiles && std::is_x86_feature_detected!("avx512bf16"), is_wide && std::is_x86_feature_detected!("avx512vnni"))
    })
}

/// Kernels of words of two bf16, where the set and the processor have them and gain by them.
pub(crate) fn halves(isa: Isa) -> Option<&'static Micro<f32>> {
    detected(isa).0.then_some(bf16::HALVES)
}
/// Of two 16-bit integers.
pub(crate) fn shorts(isa: Isa) -> Option<&'static Micro<i32>> {
    detected(isa).1.then_some(vnni::SHORTS)
}
/// Of four bytes.
pub(crate) fn bytes(isa: Isa) -> Option<&'static Micro<i32>> {
    detected(isa).1.then_some(vnni::BYTES)
}
