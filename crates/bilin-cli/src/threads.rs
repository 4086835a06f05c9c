//! The number of threads that kernels use.

use std::num::NonZeroUsize;

/// Lets kernels use `count` threads, as the environment's `BILIN_NUM_THREADS` does.
pub(crate) fn set(count: NonZeroUsize) {
    // CONNECT: bilin::set_num_threads(count.get()), once the facade has it.
    let _ = count;
}
