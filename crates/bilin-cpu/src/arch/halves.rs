//! Halves by AVX-512: one row times a matrix of them, read once in the order in which it stands, and pairs of lines side by
//! side.

#![allow(clippy::needless_range_loop, reason = "an index names the register")]

use core::arch::x86_64::*;
use std::sync::OnceLock;

use super::avx512::cross32;
use super::line::AHEAD_ALONG;
use super::{Isa, Lines, reach};
use crate::contract::disjoint::Shared;

/// Halves in a vector, and columns that are summed at once where they stand side by side.
pub(crate) const WIDTH: usize = 32;
/// Words of two halves in a vector, and columns that are summed at once where terms stand side by side.
const LANES: usize = 16;
/// Pairs of terms that are added to the sums at a time.
const STRIP: usize = 4;
/// Pairs of lines ahead that lines are asked for.
const LINES_AHEAD: isize = 6;
/// Halves ahead that a run of memory is asked for.
const AHEAD: usize = 8 * WIDTH;

/// How two terms are multiplied, and in which of the two orders for bf16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// bf16 by the instruction for pairs.
    Pairs,
    /// bf16, widened.
    Bf16,
    /// f16, widened.
    F16,
}

impl Kind {
    /// Whether the processor has its instructions, and gains by them.
    pub(crate) fn is_here(self) -> bool {
        if self == Kind::Pairs { super::words::halves(Isa::best_detected()).is_some() } else { Isa::best_detected() >= Isa::Avx512 }
    }
}

/// `c[j] = Σ x[k]·b[k, j]`.
pub(crate) struct Row<'a> {
    pub terms: usize,
    pub columns: usize,
    /// Terms of a block (even), whose sums are added up where terms stand side by side.
    pub block: usize,
    /// Two terms each, a missing last one −0: as a word with the earlier one above for [`Kind::Pairs`], else widened.
    pub x: &'a [[u32; 2]],
    /// First element; the step of k where columns stand side by side, of columns where terms do.
    pub b: Lines<'a, u16>,
    /// The sums, whole vectors of them.
    pub c: &'a mut [f32],
}

/// The same, checked.
struct Raw {
    terms: usize,
    columns: usize,
    block: usize,
    x: *const [u32; 2],
    b: *const u16,
    step: isize,
    c: *mut f32,
}

fn checked(kind: Kind, r: &mut Row<'_>, steps: usize, run: usize) -> Raw {
    assert!(kind.is_here() && r.terms > 0 && r.columns > 0 && r.block > 0 && r.block.is_multiple_of(2));
    assert!(r.x.len() >= r.terms.div_ceil(2) && r.c.len() >= r.columns.next_multiple_of(WIDTH));
    let (low, high) = reach(r.b.at, r.b.step, steps);
    assert!(low >= 0 && high + run as isize <= r.b.data.len() as isize);
    let b = r.b.data.as_ptr().wrapping_offset(r.b.at);
    Raw { terms: r.terms, columns: r.columns, block: r.block, x: r.x.as_ptr(), b, step: r.b.step, c: r.c.as_mut_ptr() }
}

/// Sums where columns stand side by side; at most a block of terms.
pub(crate) fn across(kind: Kind, r: &mut Row<'_>) {
    let call = checked(kind, r, r.terms, r.columns);
    // SAFETY: every element stands inside its memory, and the processor has the kind's instructions.
    unsafe {
        match kind {
            Kind::Pairs => pairs::across(&call),
            Kind::Bf16 => widened::across::<Bf16>(&call),
            Kind::F16 => widened::across::<F16>(&call),
        }
    }
}

/// Sums where terms stand side by side.
pub(crate) fn along(kind: Kind, r: &mut Row<'_>) {
    let call = checked(kind, r, r.columns, r.terms);
    // SAFETY: as above.
    unsafe {
        match kind {
            Kind::Pairs => pairs::along(&call),
            Kind::Bf16 => widened::along::<Bf16>(&call),
            Kind::F16 => widened::along::<F16>(&call),
        }
    }
}

/// acc + the products of two terms, one after the other, the earlier one in the lower half of each word of `b`.
trait Two {
    /// # Safety
    /// The processor has the instructions; `x` is readable.
    unsafe fn add(x: *const [u32; 2], b: __m512i, acc: __m512) -> __m512;
}

struct Joined;
impl Two for Joined {
    #[inline(always)]
    unsafe fn add(x: *const [u32; 2], b: __m512i, acc: __m512) -> __m512 {
        // SAFETY: the caller's promise; registers of one size.
        unsafe {
            let (x, b) = (_mm512_set1_epi32((*x)[0] as i32), _mm512_rol_epi32::<16>(b));
            let [x, b] = [x, b].map(|x| core::mem::transmute::<__m512i, __m512bh>(x));
            _mm512_dpbf16_ps(acc, x, b)
        }
    }
}

struct Bf16;
impl Two for Bf16 {
    #[inline(always)]
    unsafe fn add(x: *const [u32; 2], b: __m512i, acc: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let upper = _mm512_and_epi32(b, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            terms(x, _mm512_castsi512_ps(_mm512_slli_epi32::<16>(b)), _mm512_castsi512_ps(upper), acc)
        }
    }
}

struct F16;
impl Two for F16 {
    #[inline(always)]
    unsafe fn add(x: *const [u32; 2], b: __m512i, acc: __m512) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let upper = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(b));
            terms(x, _mm512_cvtph_ps(_mm512_cvtepi32_epi16(b)), _mm512_cvtph_ps(upper), acc)
        }
    }
}

#[inline(always)]
unsafe fn terms(x: *const [u32; 2], earlier: __m512, later: __m512, acc: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512 and gives a readable pair.
    unsafe {
        let [a, b] = (*x).map(f32::from_bits);
        _mm512_fmadd_ps(_mm512_set1_ps(b), later, _mm512_fmadd_ps(_mm512_set1_ps(a), earlier, acc))
    }
}

mod pairs {
    use super::*;
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,fma")]
    pub(super) unsafe fn across(r: &Raw) {
        // SAFETY: the caller's promise.
        unsafe { super::across_by::<Joined>(r) }
    }
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16,fma")]
    pub(super) unsafe fn along(r: &Raw) {
        // SAFETY: the caller's promise.
        unsafe { super::along_by::<Joined>(r) }
    }
}

mod widened {
    use super::*;
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,fma")]
    pub(super) unsafe fn across<T: Two>(r: &Raw) {
        // SAFETY: the caller's promise.
        unsafe { super::across_by::<T>(r) }
    }
    #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,fma")]
    pub(super) unsafe fn along<T: Two>(r: &Raw) {
        // SAFETY: the caller's promise.
        unsafe { super::along_by::<T>(r) }
    }
}

/// # Safety
/// Every element that the call names is readable (`x`, `b`) or writable (`c`), and the processor has the instructions.
#[inline(always)]
unsafe fn across_by<T: Two>(r: &Raw) {
    let full = r.terms / (2 * STRIP) * STRIP;
    // SAFETY: handed on from the caller.
    unsafe {
        for pair in (0..full).step_by(STRIP) {
            strip::<T, STRIP>(r, pair);
        }
        for pair in full..r.terms.div_ceil(2) {
            strip::<T, 1>(r, pair);
        }
    }
}

/// `N` pairs of terms from `pair`, added to the sums so far: a few runs of memory are read at a time, each from end to end.
#[inline(always)]
unsafe fn strip<T: Two, const N: usize>(r: &Raw, pair: usize) {
    // SAFETY: the caller's promise covers every element read or written; lanes that are masked out aren't read.
    unsafe {
        let mut runs = [[r.b; 2]; N];
        for i in 0..N {
            let at = 2 * (pair + i);
            for q in 0..2 {
                runs[i][q] = r.b.wrapping_offset((at + q) as isize * r.step);
            }
        }
        let has_both = 2 * (pair + N) <= r.terms;
        // Halves side by side come in quarters of a vector: lower quarters' words, then upper ones'.
        let (lower, upper) = (
            _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
            _mm512_setr_epi32(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31),
        );
        let (first, second) = (
            _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
            _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31),
        );
        for j in (0..r.columns).step_by(WIDTH) {
            let mask = if r.columns - j < WIDTH { (1u32 << (r.columns - j)) - 1 } else { u32::MAX };
            let c = r.c.add(j);
            let mut acc = [_mm512_set1_ps(-0.0); 2];
            if pair > 0 {
                let (a, b) = (_mm512_loadu_ps(c), _mm512_loadu_ps(c.add(LANES)));
                acc = [_mm512_permutex2var_ps(a, lower, b), _mm512_permutex2var_ps(a, upper, b)];
            }
            for i in 0..N {
                let [a, b] = runs[i].map(|run| run.wrapping_add(j));
                _mm_prefetch::<_MM_HINT_T0>(a.wrapping_add(AHEAD).cast());
                let a = _mm512_maskz_loadu_epi16(mask, a.cast());
                let b = if has_both || i + 1 < N {
                    _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD).cast());
                    _mm512_maskz_loadu_epi16(mask, b.cast())
                } else {
                    _mm512_setzero_si512()
                };
                let x = r.x.add(pair + i);
                acc[0] = T::add(x, _mm512_unpacklo_epi16(a, b), acc[0]);
                acc[1] = T::add(x, _mm512_unpackhi_epi16(a, b), acc[1]);
            }
            _mm512_storeu_ps(c, _mm512_permutex2var_ps(acc[0], first, acc[1]));
            _mm512_storeu_ps(c.add(LANES), _mm512_permutex2var_ps(acc[0], second, acc[1]));
        }
    }
}

/// # Safety
/// As for [`across_by`].
#[inline(always)]
unsafe fn along_by<T: Two>(r: &Raw) {
    // SAFETY: the caller's promise covers every element read or written; lanes that are masked out aren't read.
    unsafe {
        // As many runs at once as a vector has lanes: processors follow hardly more.
        for j in (0..r.columns).step_by(LANES) {
            let mut runs = [r.b; LANES];
            for i in 0..LANES {
                // Lanes past the last column read it again.
                runs[i] = r.b.wrapping_offset((j + i).min(r.columns - 1) as isize * r.step);
            }
            let mut total = _mm512_setzero_ps();
            for start in (0..r.terms).step_by(r.block) {
                let end = r.terms.min(start + r.block);
                let full = start + (end - start) / WIDTH * WIDTH;
                let mut sum = _mm512_set1_ps(-0.0);
                let mut lines = [_mm512_setzero_si512(); LANES];
                for from in (start..full).step_by(WIDTH) {
                    for i in 0..LANES {
                        let at = runs[i].wrapping_add(from);
                        _mm_prefetch::<_MM_HINT_NTA>(at.wrapping_add(2 * AHEAD_ALONG).cast());
                        lines[i] = _mm512_loadu_si512(at.cast());
                    }
                    cross32(&mut lines);
                    for i in 0..LANES {
                        sum = T::add(r.x.add(from / 2 + i), lines[i], sum);
                    }
                }
                if full < end {
                    let mask = (1u32 << (end - full)) - 1;
                    for i in 0..LANES {
                        lines[i] = _mm512_maskz_loadu_epi16(mask, runs[i].wrapping_add(full).cast());
                    }
                    cross32(&mut lines);
                    for i in 0..(end - full).div_ceil(2) {
                        sum = T::add(r.x.add(full / 2 + i), lines[i], sum);
                    }
                }
                total = if start == 0 { sum } else { _mm512_add_ps(total, sum) };
            }
            _mm512_storeu_ps(r.c.add(j), total);
        }
    }
}

/// `dst[w, j] = upper[w, j] << 16 | lower[w, j]` for `count` lines of `columns` halves, which stand side by side, two of the
/// matrix's lines to one of words; the processor has AVX-512.
pub(crate) fn interleave(data: &[u16], [upper, lower]: [isize; 2], step: isize, [count, columns]: [usize; 2], dst: &mut [u32]) {
    assert!(Isa::best_detected() >= Isa::Avx512 && count > 0 && dst.len() >= count * columns);
    for at in [upper, lower] {
        let (low, high) = reach(at, step, count);
        assert!(low >= 0 && high + columns as isize <= data.len() as isize);
    }
    let at = [upper, lower].map(|at| data.as_ptr().wrapping_offset(at));
    // SAFETY: every line stands inside its memory.
    unsafe { interleave_lines(at, step, [count, columns], dst.as_mut_ptr()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn interleave_lines([mut upper, mut lower]: [*const u16; 2], step: isize, [count, columns]: [usize; 2], mut dst: *mut u32) {
    // SAFETY: the caller's promise; lanes that are masked out are neither read nor written.
    unsafe {
        let mut index = [0u16; WIDTH];
        for i in 0..LANES {
            (index[2 * i], index[2 * i + 1]) = (i as u16, (WIDTH + i) as u16);
        }
        let index = _mm512_loadu_si512(index.as_ptr().cast());
        let whole = columns / LANES * LANES;
        for _ in 0..count {
            for j in (0..whole).step_by(LANES) {
                let [a, b] = [lower, upper].map(|run| {
                    let at = run.wrapping_add(j);
                    _mm_prefetch::<_MM_HINT_T0>(at.wrapping_offset(LINES_AHEAD.wrapping_mul(step)).cast());
                    _mm512_castsi256_si512(_mm256_loadu_si256(at.cast()))
                });
                _mm512_storeu_si512(dst.wrapping_add(j).cast(), _mm512_permutex2var_epi16(a, index, b));
            }
            if whole < columns {
                let mask = (1u16 << (columns - whole)) - 1;
                let [a, b] =
                    [lower, upper].map(|run| _mm512_castsi256_si512(_mm256_maskz_loadu_epi16(mask, run.wrapping_add(whole).cast())));
                _mm512_mask_storeu_epi32(dst.wrapping_add(whole).cast(), mask, _mm512_permutex2var_epi16(a, index, b));
            }
            (upper, lower, dst) = (upper.wrapping_offset(step), lower.wrapping_offset(step), dst.wrapping_add(columns));
        }
    }
}

/// Writes a block of `height` lines of 16 sums, or two side by side, as the nearest bf16 (ties to even; NaN stays NaN): `count`
/// columns to `base` plus each of `rows`. False, and nothing is done, where the processor has no instruction for it.
pub(crate) fn round_rows(src: &[f32], height: usize, out: &Shared<'_, u16>, base: isize, rows: &[isize], count: usize) -> bool {
    static IS_HERE: OnceLock<bool> = OnceLock::new();
    let is_here = || Isa::best_detected() >= Isa::Avx512 && std::is_x86_feature_detected!("avx512bf16");
    if !IS_HERE.get_or_init(is_here) {
        return false;
    }
    assert!((1..=2 * LANES).contains(&count) && rows.len() <= height && src.len() >= count.div_ceil(LANES) * height * LANES);
    let last = out.len() as isize - count as isize;
    assert!(rows.iter().all(|row| (0..=last).contains(&(base + row))));
    // SAFETY: the processor has the instructions; `src` holds the blocks, and every row stands inside the result.
    unsafe { round_rows_by(src.as_ptr(), height, out.as_ptr().wrapping_offset(base), rows, count) };
    true
}

#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx512bf16")]
unsafe fn round_rows_by(src: *const f32, height: usize, out: *mut u16, rows: &[isize], count: usize) {
    const SUBNORMAL: i32 = 1 << 5;
    let mask = u32::MAX >> (2 * LANES - count);
    // Where there is one block it is both halves of a vector, of which the upper one isn't written.
    let second = if count > LANES { height * LANES } else { 0 };
    for (i, &row) in rows.iter().enumerate() {
        // SAFETY: the caller's promise; lanes that are masked out aren't written.
        unsafe {
            let both = [0, second].map(|block| _mm512_loadu_ps(src.add(block + i * LANES)));
            let are_subnormal = both.map(|x| _mm512_fpclass_ps_mask::<SUBNORMAL>(x));
            let halves = if are_subnormal == [0; 2] {
                core::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(both[1], both[0]))
            } else {
                let [low, high] = both.map(|x| round(x));
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
            };
            let to = out.offset(row);
            if mask == u32::MAX { _mm512_storeu_si512(to.cast(), halves) } else { _mm512_mask_storeu_epi16(to.cast(), mask, halves) }
        }
    }
}

/// The nearest bf16 in whole numbers: the instruction takes subnormal numbers for zeros.
#[target_feature(enable = "avx512f")]
fn round(x: __m512) -> __m256i {
    let (bits, is_nan) = (_mm512_castps_si512(x), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x));
    let upper = _mm512_srli_epi32::<16>(bits);
    let half = _mm512_add_epi32(_mm512_and_si512(upper, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
    _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, is_nan, upper, _mm512_set1_epi32(0x40)))
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn rounding_is_to_nearest_with_ties_to_even_and_keeps_nan() {
        // Every upper half with lower halves around a tie, and some of all kinds.
        let lower = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x1234, 0xabcd];
        let all: Vec<f32> = (0..1u32 << 16).flat_map(|upper| lower.map(|low| f32::from_bits(upper << 16 | low))).collect();
        for src in all.chunks_exact(2 * LANES * LANES) {
            let mut dst = [0u16; 2 * LANES * LANES];
            let rows: [isize; LANES] = std::array::from_fn(|i| (i * WIDTH) as isize);
            if !round_rows(src, LANES, &Shared::new(&mut dst), 0, &rows, WIDTH) {
                return;
            }
            for (at, got) in dst.iter().enumerate() {
                let x = src[at % WIDTH / LANES * LANES * LANES + at / WIDTH * LANES + at % LANES];
                assert_eq!(*got, bf16::from_f32(x).to_bits(), "{x} ({:x})", x.to_bits());
            }
        }
    }
}
