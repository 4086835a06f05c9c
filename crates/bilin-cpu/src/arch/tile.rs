//! The micro-kernel: one tile of a product over one block of k.

#![allow(clippy::needless_range_loop, reason = "an index names the register")]

use super::line::{Cross, Raw};
use super::vector::Vector;

/// Most rows of a tile.
pub(crate) const MAX_ROWS: usize = 8;

/// One tile: `c[i, j] = Σ a[i, k]·b[k, j]`, or that added to `c`. Offsets and strides count parts.
#[derive(Clone, Copy)]
pub(crate) struct Tile<P> {
    /// Terms.
    pub terms: usize,
    /// First element of `a`, and where its rows begin.
    pub a: *const P,
    /// At least as many as the tile has rows.
    pub a_rows: *const isize,
    /// From one k to the next.
    pub a_k: isize,
    /// First element of `b`; its columns stand side by side.
    pub b: *const P,
    /// From one k to the next.
    pub b_k: isize,
    /// First element of `c`; its columns stand side by side.
    pub c: *mut P,
    /// Where its rows begin.
    pub c_rows: *const isize,
    /// What the sums of every row begin at, where that isn't neutral: `cols` parts, or null.
    pub start: *const P,
    /// Where the lines of `b` go as they are read, one after the other; null where they go nowhere.
    pub panel: *mut P,
    /// Columns.
    pub cols: usize,
    /// Whether `c` is replaced.
    pub first: bool,
    /// Whether `c`, which is replaced, is written past the caches; its rows are aligned to whole vectors.
    pub is_streamed: bool,
    /// How many tiles, and how far `a`, `b` and `c` move from one to the next.
    pub count: usize,
    pub steps: [isize; 3],
}

/// A micro-kernel for one number of rows and vectors.
pub(crate) type TileFn<P> = unsafe fn(&Tile<P>);

/// The micro-kernels of one vector type.
pub(crate) struct Micro<P: 'static> {
    /// Most rows of a tile.
    pub rows: usize,
    /// Most vectors across.
    pub vectors: usize,
    /// Columns in a vector.
    pub lanes: usize,
    /// Scalars of one accumulator.
    pub parts: usize,
    /// Row-major by (rows − 1, vectors − 1).
    pub tiles: &'static [TileFn<P>],
    /// The largest tile, by columns as an operand holds them: it packs their panel as it reads them.
    pub packing: TileFn<P>,
    /// A few rows by columns that stand side by side.
    pub across: unsafe fn(&Raw<P>),
    /// A few rows by columns that stand one after the other.
    pub along: unsafe fn(&Raw<P>),
    /// One row by these, and sums over the columns.
    pub both: unsafe fn(&Raw<P>),
    /// Rows by columns of one term.
    pub outer: unsafe fn(&Raw<P>),
    /// Lines into columns of a panel.
    pub cross: unsafe fn(&Cross<P>),
}

/// Compiles the kernels of a set of vectors with an attribute, for [`micro`].
macro_rules! kernels {
    ($(#[$attribute:meta])?) => {
        $(#[$attribute])?
        unsafe fn run<V: Vector, const ROWS: usize, const VECTORS: usize>(t: &crate::arch::tile::Tile<V::Part>) {
            // SAFETY: the caller's promise.
            unsafe { crate::arch::tile::tile::<V, ROWS, VECTORS>(t) }
        }
        $(#[$attribute])?
        unsafe fn run_packing<V: Vector, const ROWS: usize, const VECTORS: usize>(t: &crate::arch::tile::Tile<V::Part>) {
            // SAFETY: the caller's promise.
            unsafe { crate::arch::tile::sum::<V, ROWS, VECTORS, false, true>(t) }
        }
        $(#[$attribute])?
        unsafe fn run_across<V: Vector>(t: &crate::arch::line::Raw<V::Part>) {
            // SAFETY: the caller's promise.
            unsafe { crate::arch::line::across::<V>(t) }
        }
        $(#[$attribute])?
        unsafe fn run_along<V: Vector>(t: &crate::arch::line::Raw<V::Part>) {
            // SAFETY: the caller's promise.
            unsafe { crate::arch::line::along::<V>(t) }
        }
        $(#[$attribute])?
        unsafe fn run_both<V: Vector>(t: &crate::arch::line::Raw<V::Part>) {
            // SAFETY: the caller's promise.
            unsafe { crate::arch::line::both::<V>(t) }
        }
        $(#[$attribute])?
        unsafe fn run_outer<V: Vector>(t: &crate::arch::line::Raw<V::Part>) {
            // SAFETY: the caller's promise.
            unsafe { crate::arch::line::outer::<V>(t) }
        }
        $(#[$attribute])?
        unsafe fn run_cross<V: Vector>(t: &crate::arch::line::Cross<V::Part>) {
            // SAFETY: the caller's promise.
            unsafe { crate::arch::line::cross::<V>(t) }
        }
    };
}
pub(crate) use kernels;

/// Generates `Micro` for a vector type from the wrapper `$f::<V, ROWS, VECTORS>`.
macro_rules! micro {
    (@row $f:ident, $v:ty, $r:literal, [$($n:literal),*]) => { [$($f::<$v, $r, $n> as TileFn<<$v as Vector>::Part>),*] };
    ($f:ident, $v:ty, rows [$($r:literal),*], vectors $n:tt) => {{
        const LISTS: &[&[TileFn<<$v as Vector>::Part>]] = &[$(&micro!(@row $f, $v, $r, $n)),*];
        const ROWS: usize = LISTS.len();
        const VECTORS: usize = LISTS[0].len();
        const FLAT: [TileFn<<$v as Vector>::Part>; ROWS * VECTORS] = {
            let mut flat = [LISTS[0][0]; ROWS * VECTORS];
            let mut i = 0;
            while i < ROWS * VECTORS {
                flat[i] = LISTS[i / VECTORS][i % VECTORS];
                i += 1;
            }
            flat
        };
        const MICRO: &Micro<<$v as Vector>::Part> = &Micro {
            rows: ROWS,
            vectors: VECTORS,
            lanes: <$v as Vector>::LANES,
            parts: <$v as Vector>::PARTS,
            tiles: &FLAT,
            packing: run_packing::<$v, ROWS, VECTORS>,
            across: run_across::<$v>,
            along: run_along::<$v>,
            both: run_both::<$v>,
            outer: run_outer::<$v>,
            cross: run_cross::<$v>,
        };
        MICRO
    }};
}
pub(crate) use micro;

/// # Safety
/// Every element that the tile names is readable (`a`, `b`) or writable (`c`), nothing else accesses `c`'s meanwhile,
/// and the processor has the vector's instruction set.
#[inline(always)]
pub(crate) unsafe fn tile<V: Vector, const ROWS: usize, const VECTORS: usize>(t: &Tile<V::Part>) {
    let mut one = *t;
    for _ in 0..t.count {
        // SAFETY: handed on from the caller.
        unsafe {
            if t.cols == VECTORS * V::LANES {
                sum::<V, ROWS, VECTORS, false, false>(&one);
            } else {
                sum::<V, ROWS, VECTORS, true, false>(&one);
            }
        }
        one.a = one.a.wrapping_offset(t.steps[0]);
        one.b = one.b.wrapping_offset(t.steps[1]);
        one.c = one.c.wrapping_offset(t.steps[2]);
    }
}

/// Terms from which the result's lines are asked for ahead.
const PREFETCH_FROM: usize = 64;

/// How many k ahead the columns are asked for.
const AHEAD: isize = 12;

/// # Safety
/// As for [`tile`]; with `PACKS`, the columns fill the vectors and the panel is writable.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "indices unroll over constants")]
pub(crate) unsafe fn sum<V: Vector, const ROWS: usize, const VECTORS: usize, const RAGGED: bool, const PACKS: bool>(t: &Tile<V::Part>) {
    let step = V::LANES * V::PARTS;
    let last = t.cols.wrapping_sub((VECTORS - 1) * V::LANES);
    // SAFETY: the caller's promise covers every element read or written; `wrapping_offset` makes no claim on its own.
    unsafe {
        let mut acc = [[V::neutral(); VECTORS]; ROWS];
        if !t.start.is_null() {
            for j in 0..VECTORS {
                let from = t.start.wrapping_add(j * step);
                let x = if RAGGED && j == VECTORS - 1 { V::load_part(from, last) } else { V::load(from) };
                for i in 0..ROWS {
                    acc[i][j] = x;
                }
            }
        }
        let mut rows = [t.a; ROWS];
        for i in 0..ROWS {
            rows[i] = t.a.wrapping_offset(*t.a_rows.add(i));
        }
        if t.terms >= PREFETCH_FROM && !t.is_streamed {
            for i in 0..ROWS {
                for j in 0..VECTORS {
                    V::prefetch(t.c.wrapping_offset(*t.c_rows.add(i)).wrapping_add(j * step));
                }
            }
        }
        let (mut at, mut b, mut panel) = (0isize, t.b, t.panel);
        for _ in 0..t.terms {
            let ahead = b.wrapping_offset(t.b_k.wrapping_mul(AHEAD));
            for j in 0..VECTORS {
                V::prefetch(ahead.wrapping_add(j * step));
            }
            let mut line = [V::neutral(); VECTORS];
            for j in 0..VECTORS {
                let from = b.wrapping_add(j * step);
                // Complex panels are padded to whole vectors.
                line[j] = if RAGGED && V::PARTS == 1 && j == VECTORS - 1 {
                    V::load_part(from, last)
                } else if PACKS {
                    V::load_beside(from)
                } else {
                    V::load(from)
                };
                if PACKS {
                    line[j].store(panel.wrapping_add(j * step));
                }
            }
            panel = panel.wrapping_add(if PACKS { VECTORS * step } else { 0 });
            for i in 0..ROWS {
                let x = V::splat(rows[i].wrapping_offset(at));
                for j in 0..VECTORS {
                    acc[i][j] = V::fma(x, line[j], acc[i][j]);
                }
            }
            at = at.wrapping_add(t.a_k);
            b = b.wrapping_offset(t.b_k);
        }
        for i in 0..ROWS {
            let row = t.c.wrapping_offset(*t.c_rows.add(i));
            for j in 0..VECTORS {
                let to = row.wrapping_add(j * step);
                let is_part = RAGGED && j == VECTORS - 1;
                let mut x = acc[i][j].beside();
                if !t.first {
                    x = if is_part { V::load_part(to, last) } else { V::load(to) }.add(x);
                }
                match (is_part, t.is_streamed) {
                    (true, _) => x.store_part(to, last),
                    (_, true) => x.stream(to),
                    _ => x.store(to),
                }
            }
        }
    }
}
