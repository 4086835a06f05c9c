//! Instruction sets and micro-kernels. Outside this folder a kernel is reached through [`Micro::run`], which checks
//! every position, and [`Isa::with`].

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_amx.rs"]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
pub(crate) mod chains;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_chains.rs"]
pub(crate) mod chains;
pub(crate) mod f16c;
#[cfg(target_arch = "x86_64")]
pub(crate) mod halves;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_halves.rs"]
pub(crate) mod halves;
pub(crate) mod line;
pub(crate) mod portable;
pub(crate) mod tile;
pub(crate) mod vector;
#[cfg(target_arch = "x86_64")]
pub(crate) mod words;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_words.rs"]
pub(crate) mod words;

use std::sync::OnceLock;

pub(crate) use bilin_core::exec::host::Work;

use crate::contract::disjoint::Shared;
use tile::{MAX_ROWS, Micro, Tile};

/// An instruction set, the poorest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// What every processor has.
    Portable,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512 F, DQ, BW and VL.
    Avx512,
    /// The same, and tiles of bf16 and bytes that the system grants the process.
    Amx,
}

impl Isa {
    /// The richest set that the processor has, at most the one that `BILIN_ISA` (`portable`, `avx2`, `avx512`, `amx`) names.
    pub fn best() -> Isa {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let cap = match std::env::var("BILIN_ISA").as_deref() {
                Ok("portable") => Isa::Portable,
                Ok("avx2") => Isa::Avx2,
                Ok("avx512") => Isa::Avx512,
                _ => Isa::Amx,
            };
            Isa::detected().min(cap)
        })
    }

    /// The richest set that the processor has.
    pub fn detected() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 = std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma");
            let has_avx512 = std::is_x86_feature_detected!("avx512f")
                && std::is_x86_feature_detected!("avx512dq")
                && std::is_x86_feature_detected!("avx512bw")
                && std::is_x86_feature_detected!("avx512vl");
            match (has_avx2, has_avx512) {
                (true, true) => return if amx::is_granted() { Isa::Amx } else { Isa::Avx512 },
                (true, false) => return Isa::Avx2,
                _ => {}
            }
        }
        Isa::Portable
    }

    /// Runs scalar code compiled for this set, so that a fused multiply-add is one instruction. A set that the
    /// processor lacks runs as portable code.
    #[inline]
    pub(crate) fn with<W: Work>(self, work: W) -> W::Output {
        #[cfg(target_arch = "x86_64")]
        match self.min(Isa::best_detected()) {
            // SAFETY: the processor has AVX-512 and FMA.
            Isa::Amx | Isa::Avx512 => return unsafe { with_avx512(work) },
            // SAFETY: the processor has AVX2 and FMA.
            Isa::Avx2 => return unsafe { with_fma(work) },
            Isa::Portable => {}
        }
        work.run()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn best_detected() -> Isa {
        static DETECTED: OnceLock<Isa> = OnceLock::new();
        *DETECTED.get_or_init(Isa::detected)
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,fma")]
unsafe fn with_avx512<W: Work>(work: W) -> W::Output {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn with_fma<W: Work>(work: W) -> W::Output {
    work.run()
}

/// The micro-kernels of a dtype, per instruction set; the processor has the set.
macro_rules! pick {
    ($name:ident: $t:ty) => {
        /// Micro-kernels of an instruction set, at most the richest that the processor has.
        #[inline]
        pub(crate) fn $name(isa: Isa) -> $t {
            #[cfg(target_arch = "x86_64")]
            match isa.min(Isa::best_detected()) {
                Isa::Amx | Isa::Avx512 => return avx512_of::$name(),
                Isa::Avx2 => return avx2_of::$name(),
                Isa::Portable => {}
            }
            let _ = isa;
            portable_of::$name()
        }
    };
}
macro_rules! sets {
    ($room:ident from $set:ident) => {
        mod $room {
            use super::tile::Micro;
            use super::$set as set;
            #[inline(always)]
            pub(super) fn f32() -> &'static Micro<f32> {
                set::F32
            }
            #[inline(always)]
            pub(super) fn f64() -> &'static Micro<f64> {
                set::F64
            }
            #[inline(always)]
            pub(super) fn i32() -> &'static Micro<i32> {
                set::I32
            }
            #[inline(always)]
            pub(super) fn i64() -> &'static Micro<i64> {
                set::I64
            }
            #[inline(always)]
            pub(super) fn truth() -> &'static Micro<u32> {
                set::TRUTH
            }
            #[inline(always)]
            pub(super) fn c64() -> [&'static Micro<f32>; 2] {
                set::C64
            }
            #[inline(always)]
            pub(super) fn c128() -> [&'static Micro<f64>; 2] {
                set::C128
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
sets!(avx512_of from avx512);
#[cfg(target_arch = "x86_64")]
sets!(avx2_of from avx2);
sets!(portable_of from portable);
pick!(f32: &'static Micro<f32>);
pick!(f64: &'static Micro<f64>);
pick!(i32: &'static Micro<i32>);
pick!(i64: &'static Micro<i64>);
pick!(truth: &'static Micro<u32>);
pick!(c64: [&'static Micro<f32>; 2]);
pick!(c128: [&'static Micro<f64>; 2]);

/// Asks for memory that will be read soon, into the second-level cache, where the processor can.
#[inline(always)]
pub(crate) fn ask_for<T>(memory: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        let first = memory.as_ptr().cast::<i8>();
        for at in (0..size_of_val(memory)).step_by(64) {
            // SAFETY: a hint, for any address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(first.wrapping_add(at)) };
        }
    }
    let _ = memory;
}

/// Bytes of a line of memory, and of the widest vector.
const LINE: usize = 64;

/// What was written past the caches is in memory before what this thread writes next.
#[inline(always)]
pub(crate) fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction.
    unsafe {
        core::arch::x86_64::_mm_sfence()
    };
}

/// One operand of a tile: memory, first element, where rows begin (`a`) and the step of k, in parts.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a, P> {
    /// The memory.
    pub data: &'a [P],
    /// First element.
    pub at: isize,
    /// From one k to the next.
    pub step: isize,
}

#[inline(always)]
fn reach(at: isize, step: isize, count: usize) -> (isize, isize) {
    let end = at + step * (count as isize - 1);
    if step < 0 { (end, at) } else { (at, end) }
}

#[inline(always)]
fn row_reach(rows: &[isize]) -> (isize, isize) {
    let mut low = rows[0];
    let mut high = rows[0];
    for &r in &rows[1..] {
        low = low.min(r);
        high = high.max(r);
    }
    (low, high)
}

/// Tiles to compute: `rows` of `a` begin at `a_rows`, those of `c` at `c_rows`; `cols` columns of `b` and `c` stand side
/// by side.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a, P> {
    /// Terms.
    pub terms: usize,
    pub a: Lines<'a, P>,
    pub a_rows: &'a [isize],
    pub b: Lines<'a, P>,
    pub c: &'a Shared<'a, P>,
    pub c_at: isize,
    pub c_rows: &'a [isize],
    pub cols: usize,
    /// What the sums of every row begin at; empty where that is neutral.
    pub start: &'a [P],
    /// Whether `c` is replaced.
    pub first: bool,
    /// Whether a `c` that is replaced is written past the caches, where its rows are aligned.
    pub is_streamed: bool,
    /// How many tiles, and how far `a`, `b` and `c` move from one to the next.
    pub count: usize,
    pub steps: [isize; 3],
}

impl<P: Copy> Micro<P> {
    /// Computes tiles. Positions are checked.
    #[inline(always)]
    pub(crate) fn run(&self, r: &Run<'_, P>) {
        let tile = self.tile(r, std::ptr::null_mut());
        let (rows, vectors) = (r.a_rows.len(), r.cols.div_ceil(self.lanes));
        // SAFETY: as `tile` says; `pick!` hands out kernels of sets that the processor has.
        unsafe { self.tiles[(rows - 1) * self.vectors + vectors - 1](&tile) }
    }

    /// Computes one tile of the largest size by columns as an operand holds them, complex parts side by side, and packs these
    /// into a panel. Positions are checked.
    pub(crate) fn run_packing(&self, r: &Run<'_, P>, panel: &mut [P]) {
        assert!(r.a_rows.len() == self.rows && r.cols == self.lanes * self.vectors && r.count == 1);
        assert!(panel.len() >= r.terms * r.cols * self.parts);
        let tile = self.tile(r, panel.as_mut_ptr());
        // SAFETY: as `tile` says; the panel has room for each term's columns; `pick!` hands out kernels of sets that the
        // processor has.
        unsafe { (self.packing)(&tile) }
    }

    /// The tiles as kernels take them: every element that they name is inside its memory, and `Shared` is only written at
    /// positions that belong to the running task.
    #[inline(always)]
    fn tile(&self, r: &Run<'_, P>, panel: *mut P) -> Tile<P> {
        let rows = r.a_rows.len();
        let vectors = r.cols.div_ceil(self.lanes);
        assert!(r.terms > 0 && r.cols > 0 && rows > 0 && rows <= MAX_ROWS && rows <= self.rows && vectors <= self.vectors);
        assert!(r.c_rows.len() == rows && r.count > 0);
        // Complex panels are padded to whole vectors.
        let (b_width, width) = (if self.parts == 2 { vectors * self.lanes * 2 } else { r.cols }, (r.cols * self.parts) as isize);
        let further = |(low, high): (isize, isize), step: isize| {
            let way = step * (r.count as isize - 1);
            (low + way.min(0), high + way.max(0))
        };
        let (low, high) = row_reach(r.a_rows);
        let (k_low, k_high) = further(reach(r.a.at, r.a.step, r.terms), r.steps[0]);
        assert!(low + k_low >= 0 && high + k_high + self.parts as isize <= r.a.data.len() as isize);
        let (k_low, k_high) = further(reach(r.b.at, r.b.step, r.terms), r.steps[1]);
        assert!(k_low >= 0 && k_high + b_width as isize <= r.b.data.len() as isize);
        let (low, high) = further(row_reach(r.c_rows), r.steps[2]);
        assert!(low + r.c_at >= 0 && high + r.c_at + width <= r.c.len() as isize);
        assert!(r.start.is_empty() || r.start.len() >= width as usize);
        let c = r.c.as_ptr().wrapping_offset(r.c_at);
        let is_aligned = || {
            let is_kept = r.count == 1 || (r.steps[2].unsigned_abs() * size_of::<P>()).is_multiple_of(LINE);
            is_kept && r.c_rows.iter().all(|&row| c.wrapping_offset(row).addr().is_multiple_of(LINE))
        };
        Tile {
            terms: r.terms,
            a: r.a.data.as_ptr().wrapping_offset(r.a.at),
            a_rows: r.a_rows.as_ptr(),
            a_k: r.a.step,
            b: r.b.data.as_ptr().wrapping_offset(r.b.at),
            b_k: r.b.step,
            c,
            c_rows: r.c_rows.as_ptr(),
            start: if r.start.is_empty() { std::ptr::null() } else { r.start.as_ptr() },
            panel,
            cols: r.cols,
            first: r.first,
            is_streamed: r.is_streamed && r.first && is_aligned(),
            count: r.count,
            steps: r.steps,
        }
    }

    /// Columns of the next panel, with `left` to come: as wide as tiles are, but two panels of two vectors rather than one
    /// of three and one of a single vector, which would wait for its operands.
    #[inline]
    pub(crate) fn panel(&self, left: usize) -> usize {
        if self.vectors == 3 && left.div_ceil(self.lanes) == 4 { 2 * self.lanes } else { left.min(self.lanes * self.vectors) }
    }

    /// Columns of the panels, of so many in all, that are as wide as tiles; they come first.
    pub(crate) fn full_panels(&self, columns: usize) -> usize {
        let (width, mut full) = (self.lanes * self.vectors, 0);
        while self.panel(columns - full) == width {
            full += width;
        }
        full
    }
}
