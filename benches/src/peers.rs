//! Peers: libraries of raw pointers, called on vectors of their own.

use std::hint::black_box;

use crate::Run;

/// The `gemm` crate with its AVX-512 feature, row-major, over as many threads as ours.
pub(crate) fn gemm_peer<T: Copy + Default + 'static>(m: usize, n: usize, k: usize, one: T) -> (&'static str, Run) {
    let (a, b, mut c) = (vec![one; m * k], vec![one; k * n], vec![T::default(); m * n]);
    let threads = bilin::num_threads();
    let parallelism = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    let run = move || {
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
    };
    ("gemm", Box::new(run))
}

/// The `matrixmultiply` crate, on one thread.
pub(crate) fn matrixmultiply_peer(m: usize, n: usize, k: usize) -> (&'static str, Run) {
    let (a, b, mut c) = (vec![1f32; m * k], vec![1f32; k * n], vec![0f32; m * n]);
    let run = move || {
        // SAFETY: the three vectors hold m·k, k·n and m·n elements, row-major, and `c` overlaps neither operand.
        unsafe {
            matrixmultiply::sgemm(m, k, n, 1.0, a.as_ptr(), k as isize, 1, b.as_ptr(), n as isize, 1, 0.0, c.as_mut_ptr(), n as isize, 1);
        }
        black_box(&c);
        Ok(())
    };
    ("matrixmultiply", Box::new(run))
}
