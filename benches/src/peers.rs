//! Peers: libraries of raw pointers, called on vectors of their own.

use std::hint::black_box;

use bilin::DType;

use crate::Run;
use crate::case::Case;

/// The `gemm` crate with its AVX-512 feature, row-major, over as many threads as ours.
pub(crate) fn gemm(case: &Case) -> Option<Run> {
    let sizes = case.plain()?;
    match case.dtype {
        DType::F32 => Some(gemm_of(sizes, 1f32)),
        DType::F64 => Some(gemm_of(sizes, 1f64)),
        DType::F16 => Some(gemm_of(sizes, gemm::f16::ONE)),
        DType::C64 => Some(gemm_of(sizes, gemm::c32::new(1.0, 0.0))),
        DType::C128 => Some(gemm_of(sizes, gemm::c64::new(1.0, 0.0))),
        _ => None,
    }
}

fn gemm_of<T: Copy + Default + 'static>([m, k, n]: [usize; 3], one: T) -> Run {
    let (a, b, mut c) = (vec![one; m * k], vec![one; k * n], vec![T::default(); m * n]);
    let threads = bilin::num_threads();
    let parallelism = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    Box::new(move || {
        // SAFETY: the three vectors hold m·k, k·n and m·n elements, row-major, and `c` overlaps neither operand.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c.as_mut_ptr(),
                1,
                n as isize,
                false,
                a.as_ptr(),
                1,
                k as isize,
                b.as_ptr(),
                1,
                n as isize,
                T::default(),
                one,
                false,
                false,
                false,
                parallelism,
            );
        }
        black_box(&c);
        Ok(())
    })
}

/// The `matrixmultiply` crate, on one thread.
pub(crate) fn matrixmultiply(case: &Case) -> Option<Run> {
    let [m, k, n] = case.plain()?;
    let (a_rows, b_rows) = (k as isize, n as isize);
    macro_rules! with {
        ($function:path, $one:expr, $zero:expr) => {{
            let (a, b, mut c) = (vec![$one; m * k], vec![$one; k * n], vec![$zero; m * n]);
            Some(Box::new(move || {
                // SAFETY: the three vectors hold m·k, k·n and m·n elements, row-major, and `c` overlaps neither operand.
                unsafe { $function(m, k, n, $one, a.as_ptr(), a_rows, 1, b.as_ptr(), b_rows, 1, $zero, c.as_mut_ptr(), b_rows, 1) };
                black_box(&c);
                Ok(())
            }))
        }};
    }
    match case.dtype {
        DType::F32 => with!(matrixmultiply::sgemm, 1f32, 0f32),
        DType::F64 => with!(matrixmultiply::dgemm, 1f64, 0f64),
        _ => None,
    }
}
