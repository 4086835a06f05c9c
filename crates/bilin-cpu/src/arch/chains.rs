//! A few rows of bf16 times columns that stand side by side, by vectors but to the bit as a tile unit adds: for 32 terms
//! at a time a chain of fused multiply-adds over the even ones and one over the odd ones, and the sum of the two added to
//! the total. The matrix is read once, where it stands.
//!
//! Subnormal numbers count as zeros, which the processor is told for the length of a call. The compiler may count on the
//! usual rules wherever it places its own instructions, so the loops are written out.

use core::arch::asm;
use core::mem::offset_of;

use super::{Isa, Lines, reach};

/// Terms between two visits of a total.
pub(crate) const TERMS: usize = 32;
/// Most rows of a call: their sums fill half the registers.
pub(crate) const MOST_ROWS: usize = 8;
/// Columns that are summed at once, a line of memory of them: even ones in one vector, odd ones in another.
pub(crate) const WIDTH: usize = 32;
/// Lines ahead that a run of memory is asked for: 32 runs at once are more than a processor follows by itself.
const AHEAD: usize = 8;
/// Terms of a chain.
const CHAIN: usize = TERMS / 2;
/// The usual rules, and subnormal operands and results counting as zeros.
const FLUSHING: u32 = 0x9fc0;

/// Adds `Σ x[i, k]·b[k, j]` over up to 32 terms to totals.
pub(crate) struct Block<'a> {
    pub rows: usize,
    pub columns: usize,
    /// Terms: of each the rows side by side, widened; the even ones first.
    pub x: &'a [u32],
    /// First element, and the step of k.
    pub b: Lines<'a, u16>,
    /// Whether terms as many as these follow, which will be wanted next.
    pub has_next: bool,
    /// Totals: for each [`WIDTH`] columns and each row the even ones, then the odd ones.
    pub totals: &'a mut [f32],
}

/// Whether the processor has the instructions.
pub(crate) fn are_here() -> bool {
    Isa::best_detected() >= Isa::Avx512
}

/// The same, checked, as the loops read it.
#[repr(C, align(64))]
struct Raw {
    /// Room for the sums of the even terms.
    even: [[f32; WIDTH]; MOST_ROWS],
    b: *const u16,
    /// Bytes from one term to the next, and to the next of a chain.
    step: isize,
    steps: isize,
    x: *const u32,
    totals: *mut f32,
    /// Vectors of columns, and how many are left where memory ahead of the run is that of the next terms.
    lines: usize,
    turn: usize,
    /// Bytes to memory that will be wanted: before the turn and after it.
    near: isize,
    far: isize,
    /// Even and odd terms.
    terms: [usize; 2],
    /// Columns of the last vector.
    mask: u32,
    flushing: u32,
    usual: u32,
}

/// Adds a block's sums to the totals.
pub(crate) fn add(r: &mut Block<'_>) {
    let (rows, lines) = (r.rows, r.columns.div_ceil(WIDTH));
    assert!(are_here() && (1..=MOST_ROWS).contains(&rows) && r.columns > 0 && !r.x.is_empty());
    let terms = r.x.len() / rows;
    assert!(terms <= TERMS && r.x.len() == terms * rows && r.totals.len() >= lines * rows * WIDTH);
    let (low, high) = reach(r.b.at, r.b.step, terms);
    assert!(low >= 0 && high + r.columns as isize <= r.b.data.len() as isize);
    let step = r.b.step * 2;
    let line = 2 * WIDTH as isize;
    let ahead = AHEAD.min(lines);
    let near = ahead as isize * line;
    let far = if r.has_next { (step * TERMS as isize).wrapping_add(near - lines as isize * line) } else { near };
    let mut raw = Raw {
        even: [[0.0; WIDTH]; MOST_ROWS],
        b: r.b.data.as_ptr().wrapping_offset(r.b.at),
        step,
        steps: 2 * step,
        x: r.x.as_ptr(),
        totals: r.totals.as_mut_ptr(),
        lines,
        turn: ahead,
        near,
        far,
        terms: [terms.div_ceil(2), terms / 2],
        mask: u32::MAX >> (lines * WIDTH - r.columns),
        flushing: FLUSHING,
        usual: 0,
    };
    // SAFETY: the processor has the instructions; every term's columns stand inside the matrix, its rows inside `x`, and there are
    // totals for every row of whole vectors.
    unsafe {
        match rows {
            1 => rows_1(&mut raw),
            2 => rows_2(&mut raw),
            3 => rows_3(&mut raw),
            4 => rows_4(&mut raw),
            5 => rows_5(&mut raw),
            6 => rows_6(&mut raw),
            7 => rows_7(&mut raw),
            _ => rows_8(&mut raw),
        }
    }
}

/// A function for a number of rows: of each row its place among a term's and the registers of its even and odd columns.
macro_rules! rows {
    ($name:ident, $rows:literal: $($row:literal $even:literal $odd:literal),*) => {
        /// # Safety
        /// The processor has AVX-512 F and BW; what the call names is readable, totals are writable. Columns that are masked
        /// out aren't read.
        unsafe fn $name(call: &mut Raw) {
            // SAFETY: the caller's promise; the rules of floating-point numbers are as before at the end.
            unsafe {
                asm!(
                    "stmxcsr [{call} + {usual}]",
                    "ldmxcsr [{call} + {flushing}]",
                    "mov {b}, [{call} + {b_at}]",
                    "mov {x}, [{call} + {x_at}]",
                    "mov {totals}, [{call} + {totals_at}]",
                    "mov {lines}, [{call} + {lines_at}]",
                    "kxnord k1, k1, k1",
                    "vpternlogd zmm31, zmm31, zmm31, 255",
                    "vpslld zmm31, zmm31, 16",
                    "vpxord zmm30, zmm30, zmm30",
                    "2:",
                    "mov {ahead}, [{call} + {near}]",
                    "cmp {lines}, [{call} + {turn}]",
                    "cmovbe {ahead}, [{call} + {far}]",
                    "cmp {lines}, 1",
                    "jne 3f",
                    "kmovd k1, [{call} + {mask}]",
                    "3:",
                    "mov {run}, {b}",
                    "mov {term}, {x}",
                    "mov {count}, [{call} + {terms}]",
                    rows!(@chain "4:" "jnz 4b" $rows $($row $even $odd)*),
                    // A tile unit adds zero products for terms that aren't there: a chain at −0 comes to +0.
                    "cmp qword ptr [{call} + {terms}], {full}",
                    "je 5f",
                    $(concat!("vaddps zmm", $even, ", zmm", $even, ", zmm30"), concat!("vaddps zmm", $odd, ", zmm", $odd, ", zmm30"),)*
                    "5:",
                    $(
                        concat!("vmovaps [{call} + 128*", $row, "], zmm", $even),
                        concat!("vmovaps [{call} + 128*", $row, " + 64], zmm", $odd),
                    )*
                    "mov {run}, {b}",
                    "add {run}, [{call} + {step}]",
                    "mov {count}, [{call} + {terms} + 8]",
                    "test {count}, {count}",
                    rows!(@chain "jz 7f\n6:" "jnz 6b" $rows $($row $even $odd)*),
                    "7:",
                    "cmp qword ptr [{call} + {terms} + 8], {full}",
                    "je 8f",
                    $(concat!("vaddps zmm", $even, ", zmm", $even, ", zmm30"), concat!("vaddps zmm", $odd, ", zmm", $odd, ", zmm30"),)*
                    "8:",
                    $(
                        concat!("vaddps zmm", $even, ", zmm", $even, ", [{call} + 128*", $row, "]"),
                        concat!("vaddps zmm", $odd, ", zmm", $odd, ", [{call} + 128*", $row, " + 64]"),
                        concat!("vaddps zmm", $even, ", zmm", $even, ", [{totals} + 128*", $row, "]"),
                        concat!("vaddps zmm", $odd, ", zmm", $odd, ", [{totals} + 128*", $row, " + 64]"),
                        concat!("vmovups [{totals} + 128*", $row, "], zmm", $even),
                        concat!("vmovups [{totals} + 128*", $row, " + 64], zmm", $odd),
                    )*
                    "add {b}, 64",
                    concat!("add {totals}, 128*", $rows),
                    "dec {lines}",
                    "jnz 2b",
                    "ldmxcsr [{call} + {usual}]",
                    call = in(reg) call, b = out(reg) _, x = out(reg) _, totals = out(reg) _, lines = out(reg) _,
                    run = out(reg) _, term = out(reg) _, count = out(reg) _, ahead = out(reg) _,
                    b_at = const offset_of!(Raw, b), x_at = const offset_of!(Raw, x), totals_at = const offset_of!(Raw, totals),
                    lines_at = const offset_of!(Raw, lines), turn = const offset_of!(Raw, turn),
                    near = const offset_of!(Raw, near), far = const offset_of!(Raw, far), mask = const offset_of!(Raw, mask),
                    step = const offset_of!(Raw, step), steps = const offset_of!(Raw, steps), terms = const offset_of!(Raw, terms),
                    usual = const offset_of!(Raw, usual), flushing = const offset_of!(Raw, flushing), full = const CHAIN,
                    out("k1") _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _, out("xmm4") _, out("xmm5") _, out("xmm6") _,
                    out("xmm7") _, out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _, out("xmm12") _, out("xmm13") _,
                    out("xmm14") _, out("xmm15") _, out("xmm26") _, out("xmm27") _, out("xmm28") _, out("xmm29") _,
                    out("xmm30") _, out("xmm31") _,
                    options(nostack)
                );
            }
        }
    };
    // A chain from zero over `count` terms from `run` and `term`; a count of none leaves it there where the loop's head says so.
    (@chain $head:literal $again:literal $rows:literal $($row:literal $even:literal $odd:literal)*) => {
        concat!(
            $("vpxord zmm", $even, ", zmm", $even, ", zmm", $even, "\n", "vpxord zmm", $odd, ", zmm", $odd, ", zmm", $odd, "\n",)*
            $head, "\n",
            "vmovdqu16 zmm29{{k1}}{{z}}, [{run}]\n",
            "prefetcht1 [{run} + {ahead}]\n",
            "vpslld zmm28, zmm29, 16\n",
            "vpandd zmm29, zmm29, zmm31\n",
            $(
                "vbroadcastss zmm27, [{term} + 4*", $row, "]\n",
                "vfmadd231ps zmm", $even, ", zmm28, zmm27\n",
                "vfmadd231ps zmm", $odd, ", zmm29, zmm27\n",
            )*
            "add {run}, [{call} + {steps}]\n",
            "add {term}, 4*", $rows, "\n",
            "dec {count}\n",
            $again
        )
    };
}
rows!(rows_1, 1: 0 0 1);
rows!(rows_2, 2: 0 0 1, 1 2 3);
rows!(rows_3, 3: 0 0 1, 1 2 3, 2 4 5);
rows!(rows_4, 4: 0 0 1, 1 2 3, 2 4 5, 3 6 7);
rows!(rows_5, 5: 0 0 1, 1 2 3, 2 4 5, 3 6 7, 4 8 9);
rows!(rows_6, 6: 0 0 1, 1 2 3, 2 4 5, 3 6 7, 4 8 9, 5 10 11);
rows!(rows_7, 7: 0 0 1, 1 2 3, 2 4 5, 3 6 7, 4 8 9, 5 10 11, 6 12 13);
rows!(rows_8, 8: 0 0 1, 1 2 3, 2 4 5, 3 6 7, 4 8 9, 5 10 11, 6 12 13, 7 14 15);
