//! Tile products by AMX: 16 rows of 16 words, a word being two bf16 or four bytes. The intrinsics aren't stable, so the
//! instructions are written out.
//!
//! A bf16 tile product adds, for 32 terms, the sum of two chains of fused multiply-adds (even terms, odd terms) to what
//! stood there; subnormal operands and results count as zeros. `bilin_core::exec::order` says where it is used.

use core::arch::asm;
use core::arch::x86_64::*;
use core::marker::PhantomData;
use std::sync::OnceLock;

/// Rows of a block, and words of each.
const SIDE: usize = 16;
/// Bytes of a row.
const LINE: usize = 64;
/// 16 rows of 16 words.
pub(crate) type Block = [[u32; SIDE]; SIDE];

/// 32 rows of words, from the first byte on.
pub(crate) struct Rows<'a> {
    pub bytes: &'a [u8],
    /// Bytes from row to row, whose words stand side by side; none where there are two runs of blocks instead.
    pub row: Option<usize>,
}

/// How bytes, or halves, are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dot {
    /// bf16 into f32.
    Bf16,
    /// Bytes into i32, modulo 2³²: whether those of `a` and of `b` have a sign.
    Bytes([bool; 2]),
}

/// Whether the processor has AMX for bf16 and bytes and the system grants this process its state.
pub(super) fn is_granted() -> bool {
    static GRANTED: OnceLock<bool> = OnceLock::new();
    *GRANTED.get_or_init(|| {
        const NEEDED: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & NEEDED == NEEDED && ask_system()
    })
}

#[cfg(target_os = "linux")]
fn ask_system() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call that touches no memory of ours; it writes rax, rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") ARCH_PRCTL => result, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result == 0
}
#[cfg(not(target_os = "linux"))]
fn ask_system() -> bool {
    false
}

/// What a tile configuration looks like in memory: palette 1, all eight tiles 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Shapes([u8; 64]);

static SHAPES: Shapes = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut i = 0;
    while i < 8 {
        bytes[16 + 2 * i] = 64;
        bytes[48 + i] = 16;
        i += 1;
    }
    Shapes(bytes)
};

/// A thread's tiles, shaped; given back when dropped. Stays on its thread.
pub(crate) struct Session {
    on_thread: PhantomData<*mut ()>,
}

impl Session {
    /// `None` where the processor or the system has no tiles.
    pub(crate) fn new() -> Option<Session> {
        if !is_granted() {
            return None;
        }
        // SAFETY: the processor has AMX, its state is granted; 64 readable bytes hold a valid configuration.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const SHAPES, options(nostack, readonly, preserves_flags)) };
        Some(Session { on_thread: PhantomData })
    }

    /// `c[2i + j] = a[i]·b[j]`, or that added, for i and j of 0 and 1, over runs of blocks for 16 words of k each: two in `a`,
    /// and in `b` one after the other.
    pub(crate) fn square(&self, dot: Dot, a: &Rows<'_>, b: &[Block], c: &mut [Block; 4], first: bool) {
        let count = b.len() / 2;
        assert!(count > 0 && b.len() == 2 * count);
        let size = SIDE * LINE;
        let (row, step, second) = match a.row {
            None => (LINE, size, count * size),
            Some(row) => (row, LINE, SIDE * row),
        };
        assert!(second + (SIDE - 1) * row + (count - 1) * step + LINE <= a.bytes.len());
        let (a0, b0) = (a.bytes.as_ptr(), b.as_ptr().cast::<u8>());
        let runs = [a0, a0.wrapping_add(second), b0, b0.wrapping_add(count * size)];
        let (c, steps) = (c.as_mut_ptr(), [row, step]);
        // SAFETY: `b` holds two runs of `count` blocks, `c` four, each of 1024 bytes, and by the assertion above the last line of
        // the last block of `a` stands inside it; the session has shaped the tiles.
        unsafe {
            match dot {
                Dot::Bf16 => square_bf16(count, runs, steps, c, first),
                Dot::Bytes([true, true]) => square_ss(count, runs, steps, c, first),
                Dot::Bytes([true, false]) => square_su(count, runs, steps, c, first),
                Dot::Bytes([false, true]) => square_us(count, runs, steps, c, first),
                Dot::Bytes([false, false]) => square_uu(count, runs, steps, c, first),
            }
        }
    }

    /// `sums[s] = Σ a[i]·b[s − i]` over limbs: `a` and `b` hold `planes` (2, 4 or 8) blocks of unsigned bytes for each 16
    /// words of k, the least limb first.
    pub(crate) fn limbs(&self, planes: usize, a: &[Block], b: &[Block], sums: &mut [Block; 8]) {
        let count = a.len() / planes;
        assert!(count > 0 && a.len() == count * planes && b.len() == a.len());
        let (a, b, sums) = (a.as_ptr(), b.as_ptr(), sums.as_mut_ptr());
        // SAFETY: `a` and `b` hold `count` groups of `planes` blocks, `sums` eight blocks; the session has shaped the tiles.
        unsafe {
            match planes {
                2 => limbs_two(count, 2, a, b, sums),
                4 => limbs_four(count, 4, a, b, sums),
                8 => {
                    limbs_four(count, 8, a, b, sums);
                    limbs_upper(count, 8, a, b, sums.add(4));
                }
                _ => unreachable!("limbs of {planes} bytes"),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: ends what `new` began on this thread.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

macro_rules! square {
    ($name:ident, $dot:literal) => {
        /// # Safety
        /// From `runs` on there are `count` blocks each, those of `a` with lines `steps[0]` bytes apart, a block `steps[1]` after
        /// the other; of `c` there are four; tiles are shaped.
        unsafe fn $name(count: usize, runs: [*const u8; 4], steps: [usize; 2], c: *mut Block, first: bool) {
            // Columns pass by once for each group of rows, which should stay in the nearest cache: hence the loads with a hint.
            // SAFETY: the caller's promise; every tile register is named as overwritten.
            unsafe {
                asm!(
                    "test {first}, {first}",
                    "jnz 3f",
                    "tileloadd tmm0, [{c} + {row}*1]",
                    "tileloadd tmm1, [{c} + {row}*1 + 1024]",
                    "tileloadd tmm2, [{c} + {row}*1 + 2048]",
                    "tileloadd tmm3, [{c} + {row}*1 + 3072]",
                    "jmp 4f",
                    "3:",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "4:",
                    "tileloadd tmm4, [{a0} + {a_row}*1]",
                    "tileloaddt1 tmm6, [{b0} + {row}*1]",
                    "tileloaddt1 tmm7, [{b1} + {row}*1]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{a1} + {a_row}*1]",
                    concat!($dot, " tmm1, tmm4, tmm7"),
                    concat!($dot, " tmm2, tmm5, tmm6"),
                    concat!($dot, " tmm3, tmm5, tmm7"),
                    "add {a0}, {a_step}",
                    "add {a1}, {a_step}",
                    "add {b0}, 1024",
                    "add {b1}, 1024",
                    "dec {count}",
                    "jnz 4b",
                    "tilestored [{c} + {row}*1], tmm0",
                    "tilestored [{c} + {row}*1 + 1024], tmm1",
                    "tilestored [{c} + {row}*1 + 2048], tmm2",
                    "tilestored [{c} + {row}*1 + 3072], tmm3",
                    first = in(reg) usize::from(first), c = in(reg) c, row = in(reg) LINE, a_row = in(reg) steps[0], a_step = in(reg) steps[1],
                    a0 = inout(reg) runs[0] => _, a1 = inout(reg) runs[1] => _,
                    b0 = inout(reg) runs[2] => _, b1 = inout(reg) runs[3] => _,
                    count = inout(reg) count => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        }
    };
}
square!(square_bf16, "tdpbf16ps");
square!(square_ss, "tdpbssd");
square!(square_su, "tdpbsud");
square!(square_us, "tdpbusd");
square!(square_uu, "tdpbuud");

/// A function over limbs: for each limb of `a` the limbs of `b` and the sum (a tile register) that the product goes to.
macro_rules! limbs {
    ($name:ident, $($i:literal: [$($j:literal $to:literal $with:literal),*]);*) => {
        /// # Safety
        /// `a` and `b` have `count` groups of `planes` blocks, `sums` four; tiles are shaped.
        unsafe fn $name(count: usize, planes: usize, a: *const Block, b: *const Block, sums: *mut Block) {
            // SAFETY: the caller's promise; every tile register is named as overwritten.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    $(
                        concat!("tileloadd tmm4, [{a} + {row}*1 + 1024*", $i, "]"),
                        $(
                            concat!("tileloadd tmm", $with, ", [{b} + {row}*1 + 1024*", $j, "]"),
                            concat!("tdpbuud tmm", $to, ", tmm4, tmm", $with),
                        )*
                    )*
                    "add {a}, {step}",
                    "add {b}, {step}",
                    "dec {count}",
                    "jnz 2b",
                    "tilestored [{sums} + {row}*1], tmm0",
                    "tilestored [{sums} + {row}*1 + 1024], tmm1",
                    "tilestored [{sums} + {row}*1 + 2048], tmm2",
                    "tilestored [{sums} + {row}*1 + 3072], tmm3",
                    a = inout(reg) a => _, b = inout(reg) b => _, sums = in(reg) sums, row = in(reg) 64usize,
                    step = in(reg) planes * 1024, count = inout(reg) count => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack)
                );
            }
        }
    };
}
limbs!(limbs_two, 0: [0 0 5, 1 1 6]; 1: [0 1 7]);
limbs!(limbs_four, 0: [0 0 5, 1 1 6, 2 2 7, 3 3 5]; 1: [2 3 6, 0 1 7, 1 2 5]; 2: [0 2 6, 1 3 7]; 3: [0 3 5]);
limbs!(limbs_upper,
    0: [4 0 5, 5 1 6, 6 2 7, 7 3 5]; 1: [3 0 6, 4 1 7, 5 2 5, 6 3 6]; 2: [2 0 7, 3 1 5, 4 2 6, 5 3 7];
    3: [1 0 5, 2 1 6, 3 2 7, 4 3 5]; 4: [0 0 6, 1 1 7, 2 2 5, 3 3 6]; 5: [0 1 7, 1 2 5, 2 3 6]; 6: [0 2 7, 1 3 5]; 7: [0 3 6]);

/// Words of a block across its diagonal; only called where there are tiles, and so AVX-512.
pub(crate) fn transpose(block: &mut Block) {
    if super::Isa::best_detected() >= super::Isa::Avx512 {
        // SAFETY: the processor has AVX-512.
        unsafe { transpose_words(block) };
    }
}

#[target_feature(enable = "avx512f")]
unsafe fn transpose_words(block: &mut Block) {
    // SAFETY: a block is 16 rows of 64 bytes, aligned or not; the caller has AVX-512.
    unsafe {
        let at = block.as_mut_ptr().cast::<[__m512i; 16]>();
        let mut rows = at.read_unaligned();
        super::avx512::cross32(&mut rows);
        at.write_unaligned(rows);
    }
}
