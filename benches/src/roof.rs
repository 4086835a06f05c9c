//! Limits of the machine: multiply-adds in registers, tiles, reads and copies of memory.

use std::hint::black_box;

use bilin::prelude::*;

use crate::Run;

/// Elements of the arrays that are read and copied: 64 MiB each, as a matrix of 4096² f32.
const FAR: usize = 1 << 24;

/// Work of one call in the unit of [`run`]: FLOP, or bytes.
pub(crate) const FMA_FLOPS: usize = 10 * 16 * 2 * 100_000;
/// The same for tiles of bf16.
pub(crate) const TILE_FLOPS: usize = 4 * 16 * 16 * 32 * 2 * 10_000;

/// A limit by name: `fma` (f32, FLOP a call: 32,000,000), `tiles` (bf16, 655,360,000), `read` (67,108,864 bytes), `copy` (the
/// same read and the same written). `None` where the processor lacks it.
pub(crate) fn run(name: &str) -> Result<Option<Run>> {
    Ok(match name {
        #[cfg(target_arch = "x86_64")]
        "fma" if std::is_x86_feature_detected!("avx512f") => Some(Box::new(|| {
            // SAFETY: the processor has AVX-512.
            black_box(unsafe { fma(FMA_FLOPS / 320) });
            Ok(())
        })),
        #[cfg(target_arch = "x86_64")]
        "tiles" if Device::available().iter().flat_map(|d| &d.kernels).any(|k| k.starts_with("amx")) => {
            let a = Tensor::ones([32, 32], DType::Bf16, &Device::cpu())?;
            // The first product asks the system for the tiles.
            a.matmul(&a)?;
            Some(Box::new(|| {
                // SAFETY: the processor has AMX and the system has granted it.
                unsafe { tiles(TILE_FLOPS / 65_536) };
                Ok(())
            }))
        }
        "read" => {
            let data = vec![1u64; FAR / 2];
            Some(Box::new(move || {
                black_box(data.iter().fold(0u64, |sum, &x| sum.wrapping_add(x)));
                Ok(())
            }))
        }
        "copy" => {
            let (from, mut to) = (vec![1f32; FAR], vec![0f32; FAR]);
            Some(Box::new(move || {
                to.copy_from_slice(&from);
                black_box(&to);
                Ok(())
            }))
        }
        _ => None,
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn fma(turns: usize) -> f32 {
    use core::arch::x86_64::*;
    let x = _mm512_set1_ps(black_box(1e-9));
    let mut sums = [x; 10];
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(x, x, *sum);
        }
    }
    sums.into_iter().fold(0.0, |total, sum| total + _mm512_reduce_add_ps(sum))
}

#[cfg(target_arch = "x86_64")]
unsafe fn tiles(turns: usize) {
    let mut shapes = [0u8; 64];
    shapes[0] = 1;
    for i in 0..8 {
        (shapes[16 + 2 * i], shapes[48 + i]) = (64, 16);
    }
    // SAFETY: the caller's promise; a valid configuration of 64 bytes; every register is named as overwritten.
    unsafe {
        core::arch::asm!(
            "ldtilecfg [{shapes}]", "tilezero tmm4", "tilezero tmm5", "tilezero tmm6", "tilezero tmm7",
            "2:",
            "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7", "tdpbf16ps tmm2, tmm5, tmm6", "tdpbf16ps tmm3, tmm5, tmm7",
            "dec {turns}", "jnz 2b", "tilerelease",
            shapes = in(reg) &raw const shapes, turns = inout(reg) turns => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack)
        );
    }
}
