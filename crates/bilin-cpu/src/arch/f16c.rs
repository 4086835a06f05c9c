//! f16 to f32 and back by the processor's own conversions, eight at a time.

/// Halves in a vector of f32.
const LANES: usize = 8;

/// Whether the processor has the instructions and they may be used.
#[cfg(target_arch = "x86_64")]
fn are_here() -> bool {
    static ARE_HERE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *ARE_HERE.get_or_init(|| super::Isa::best() >= super::Isa::Avx2 && std::is_x86_feature_detected!("f16c"))
}
#[cfg(not(target_arch = "x86_64"))]
fn are_here() -> bool {
    false
}

/// Whole vectors of both, or none where the processor can't convert them.
fn vectors<S, T>(src: &[S], dst: &[T]) -> usize {
    if src.len().min(dst.len()) >= LANES && are_here() { src.len().min(dst.len()) / LANES } else { 0 }
}

/// Converts the bits of halves, exactly but for signaling NaN, which become quiet: as many from the first on as fill whole
/// vectors. How many these were.
pub(crate) fn widen(src: &[u16], dst: &mut [f32]) -> usize {
    let count = vectors(src, dst);
    #[cfg(target_arch = "x86_64")]
    if count > 0 {
        // SAFETY: the processor has the instructions; both are as long as `count` vectors at least.
        unsafe { x86::widen(src.as_ptr(), dst.as_mut_ptr(), count) };
    }
    count * LANES
}

/// Converts to the bits of the nearest halves, ties to even, NaN to quiet NaN: as many from the first on as fill whole vectors. How
/// many these were.
pub(crate) fn narrow(src: &[f32], dst: &mut [u16]) -> usize {
    let count = vectors(src, dst);
    #[cfg(target_arch = "x86_64")]
    if count > 0 {
        // SAFETY: the processor has the instructions; both are as long as `count` vectors at least.
        unsafe { x86::narrow(src.as_ptr(), dst.as_mut_ptr(), count) };
    }
    count * LANES
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::*;

    use super::LANES;

    #[target_feature(enable = "avx,f16c")]
    pub(super) unsafe fn widen(src: *const u16, dst: *mut f32, count: usize) {
        for i in 0..count {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_ps(dst.add(i * LANES), _mm256_cvtph_ps(_mm_loadu_si128(src.add(i * LANES).cast()))) };
        }
    }

    #[target_feature(enable = "avx,f16c")]
    pub(super) unsafe fn narrow(src: *const f32, dst: *mut u16, count: usize) {
        for i in 0..count {
            // SAFETY: the caller's promise.
            unsafe {
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(src.add(i * LANES)));
                _mm_storeu_si128(dst.add(i * LANES).cast(), halves);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn every_half_widens_and_rounding_is_to_nearest_with_ties_to_even() {
        let halves: Vec<u16> = (0..=u16::MAX).collect();
        let mut wide = vec![0.0; halves.len()];
        assert_eq!(widen(&halves, &mut wide), if are_here() { halves.len() } else { 0 });
        if !are_here() {
            return;
        }
        for (&bits, got) in halves.iter().zip(&wide) {
            let want = f16::from_bits(bits).to_f32();
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:x}: {got}");
        }
        // Every half, a little less and more than it, ties with the next, and what lies beside these; some of every other kind.
        let last = [0u32, 1, 0xfff, 0x1000, 0x1001, 0x1fff].map(|bits| move |x: f32| f32::from_bits(x.to_bits() | bits));
        let others = [1e-45, 1e-38, f32::MIN_POSITIVE, 65519.9, 65520.0, 65536.0, 1e30, f32::INFINITY, f32::NAN];
        let src: Vec<f32> = wide.iter().flat_map(|&x| last.map(|f| f(x))).chain(others).chain(others.map(|x| -x)).collect();
        let mut dst = vec![0u16; src.len()];
        let done = narrow(&src, &mut dst);
        assert_eq!(done, src.len() / LANES * LANES);
        for (x, got) in src.iter().zip(&dst[..done]) {
            let want = f16::from_f32(*x);
            assert!(*got == want.to_bits() || f16::from_bits(*got).is_nan() && want.is_nan(), "{x} ({:x})", x.to_bits());
        }
        // What doesn't fill a vector stays as it is.
        let mut few = [7u16; LANES + 3];
        assert_eq!(narrow(&src[..LANES + 3], &mut few), LANES);
        assert_eq!(few[LANES..], [7; 3]);
    }
}
