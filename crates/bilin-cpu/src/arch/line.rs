//! A few rows times many columns, and lines of memory into columns of a panel.

use super::tile::{MAX_ROWS, Micro};
use super::vector::{MOST_LANES, Vector};
use super::{Lines, reach};
use crate::contract::disjoint::Shared;

/// Terms that are added to the sums at a time.
const STRIP: usize = 8;
/// Vectors ahead that a run of memory is asked for: several runs at once are more than a processor follows by itself.
const AHEAD: usize = 8;
/// Elements ahead where runs are as many as a vector has lanes; twice as many halves.
pub(super) const AHEAD_ALONG: usize = 128;

/// `c[i, j] = Σ x[i, k]·b[k, j]`, a few rows by many columns.
pub(crate) struct Rows<'a, P> {
    /// Terms, rows (at most [`MAX_ROWS`] but where there is one term) and columns.
    pub sizes: [usize; 3],
    /// Terms of a block, whose sums are added up, where terms stand side by side.
    pub block: usize,
    /// First element, and the step of k.
    pub x: Lines<'a, P>,
    /// From row to row in x and in c.
    pub row_steps: [isize; 2],
    /// First element; the step of k where columns stand side by side, of columns where terms do.
    pub b: Lines<'a, P>,
    /// The result, whose columns stand side by side, and its first element.
    pub c: &'a Shared<'a, P>,
    pub c_at: isize,
}

/// Sums over the columns of [`Rows`], from the same elements: `sums[k] = Σ weights[j]·b[k, j]`.
pub(crate) struct Aside<'a, P> {
    /// First element, and the step of j.
    pub weights: Lines<'a, P>,
    /// Sums that stand side by side, and the first of them.
    pub sums: &'a Shared<'a, P>,
    pub at: isize,
}

/// The same, checked.
#[derive(Clone, Copy)]
pub(crate) struct Raw<P> {
    terms: usize,
    block: usize,
    rows: usize,
    columns: usize,
    x: *const P,
    x_k: isize,
    x_row: isize,
    b: *const P,
    b_step: isize,
    c: *mut P,
    c_row: isize,
    first: bool,
    /// Those of [`Aside`], read by [`both`] alone.
    weights: *const P,
    weights_step: isize,
    sums: *mut P,
}

/// `dst[k, j] = src[j, k]` for `LANES` lines j.
pub(crate) struct Cross<P> {
    terms: usize,
    src: *const P,
    src_line: isize,
    dst: *mut P,
    dst_k: usize,
}

impl<P: Copy> Micro<P> {
    /// Checks positions; `b` moves by its step `steps` times and is read for `run` elements each.
    fn checked(r: &Rows<'_, P>, steps: usize, run: usize, first: bool) -> Raw<P> {
        let [terms, rows, columns] = r.sizes;
        assert!(terms > 0 && rows > 0 && (rows <= MAX_ROWS || terms == 1) && columns > 0);
        let ((x_low, x_high), (x_first, x_last)) = (reach(r.x.at, r.x.step, terms), reach(0, r.row_steps[0], rows));
        assert!(x_low + x_first >= 0 && x_high + x_last < r.x.data.len() as isize);
        let (low, high) = reach(r.b.at, r.b.step, steps);
        assert!(low >= 0 && high + run as isize <= r.b.data.len() as isize);
        let (low, high) = reach(r.c_at, r.row_steps[1], rows);
        assert!(low >= 0 && high + columns as isize <= r.c.len() as isize);
        Raw {
            terms,
            block: r.block.clamp(1, terms),
            rows,
            columns,
            x: r.x.data.as_ptr().wrapping_offset(r.x.at),
            x_k: r.x.step,
            x_row: r.row_steps[0],
            b: r.b.data.as_ptr().wrapping_offset(r.b.at),
            b_step: r.b.step,
            c: r.c.as_ptr().wrapping_offset(r.c_at),
            c_row: r.row_steps[1],
            first,
            weights: std::ptr::null(),
            weights_step: 0,
            sums: std::ptr::null_mut(),
        }
    }

    /// Sums into `c` where columns of `b` stand side by side.
    pub(crate) fn across(&self, r: &Rows<'_, P>) {
        let call = Self::checked(r, r.sizes[0], r.sizes[2], true);
        // SAFETY: every element stands inside its memory; `Shared` is only written at positions of the running task;
        // `pick!` hands out kernels that the processor can run.
        unsafe { (self.across)(&call) }
    }

    /// Sums into `c` where terms of `b` stand side by side.
    pub(crate) fn along(&self, r: &Rows<'_, P>) {
        let call = Self::checked(r, r.sizes[2], r.sizes[0], true);
        // SAFETY: as above.
        unsafe { (self.along)(&call) }
    }

    /// [`along`](Self::along) for one row, and the sums aside, while `b` is read once.
    pub(crate) fn both(&self, r: &Rows<'_, P>, aside: &Aside<'_, P>) {
        let call = Self::checked(r, r.sizes[2], r.sizes[0], true);
        let (low, high) = reach(aside.weights.at, aside.weights.step, call.columns);
        assert!(call.rows == 1 && low >= 0 && high < aside.weights.data.len() as isize);
        assert!(aside.at >= 0 && aside.at + call.terms as isize <= aside.sums.len() as isize);
        let (weights, sums) =
            (aside.weights.data.as_ptr().wrapping_offset(aside.weights.at), aside.sums.as_ptr().wrapping_offset(aside.at));
        // SAFETY: as above.
        unsafe { (self.both)(&Raw { weights, weights_step: aside.weights.step, sums, ..call }) }
    }

    /// Products of one term into `c`, past the caches where that is asked for and rows are aligned.
    pub(crate) fn outer(&self, r: &Rows<'_, P>, is_far: bool) {
        let call = Self::checked(r, 1, r.sizes[2], true);
        assert!(call.terms == 1);
        let is_aligned =
            call.c.addr().is_multiple_of(super::LINE) && (call.c_row.unsigned_abs() * size_of::<P>()).is_multiple_of(super::LINE);
        // SAFETY: as above.
        unsafe { (self.outer)(&Raw { first: !(is_far && is_aligned), ..call }) }
        if is_far {
            super::settle();
        }
    }

    /// `dst[k, j] = src[j, k]` for `lanes` lines of `terms` elements; the step of `src` leads to the next line.
    pub(crate) fn cross(&self, terms: usize, src: Lines<'_, P>, dst: &mut [P], dst_k: usize) {
        let (low, high) = reach(src.at, src.step, self.lanes);
        assert!(terms > 0 && low >= 0 && high + terms as isize <= src.data.len() as isize && (terms - 1) * dst_k + self.lanes <= dst.len());
        let call = Cross { terms, src: src.data.as_ptr().wrapping_offset(src.at), src_line: src.step, dst: dst.as_mut_ptr(), dst_k };
        // SAFETY: as above.
        unsafe { (self.cross)(&call) }
    }
}

/// # Safety
/// Every element that the call names is readable (`x`, `b`) or writable (`c`), and the processor has the vector's
/// instruction set.
#[inline(always)]
pub(super) unsafe fn across<V: Vector>(t: &Raw<V::Part>) {
    let full = t.terms / STRIP * STRIP;
    // SAFETY: handed on from the caller.
    unsafe {
        for from in (0..full).step_by(STRIP) {
            strip::<V, STRIP>(t, from);
        }
        for from in full..t.terms {
            strip::<V, 1>(t, from);
        }
    }
}

/// `N` terms from `from`, added to the sums so far: a few runs of memory are read at a time, each from end to end.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "an index names the register")]
unsafe fn strip<V: Vector, const N: usize>(t: &Raw<V::Part>, from: usize) {
    // SAFETY: the caller's promise covers every element read or written.
    unsafe {
        let x = t.x.wrapping_offset(from as isize * t.x_k);
        let mut runs = [t.b; N];
        for i in 0..N {
            runs[i] = t.b.wrapping_offset((from + i) as isize * t.b_step);
        }
        let full = t.columns / V::LANES * V::LANES;
        if t.rows == 1 {
            let mut terms = [V::neutral(); N];
            for i in 0..N {
                terms[i] = V::splat(x.wrapping_offset(i as isize * t.x_k));
            }
            for j in (0..full).step_by(V::LANES) {
                let c = t.c.wrapping_add(j);
                let mut acc = if from == 0 { V::neutral() } else { V::load(c) };
                for i in 0..N {
                    let at = runs[i].wrapping_add(j);
                    V::prefetch(at.wrapping_add(AHEAD * V::LANES));
                    acc = V::fma(terms[i], V::load(at), acc);
                }
                acc.store(c);
            }
        } else {
            for j in (0..full).step_by(V::LANES) {
                let mut line = [V::neutral(); N];
                for i in 0..N {
                    let at = runs[i].wrapping_add(j);
                    V::prefetch(at.wrapping_add(AHEAD * V::LANES));
                    line[i] = V::load(at);
                }
                for row in 0..t.rows as isize {
                    let (x, c) = (x.wrapping_offset(row * t.x_row), t.c.wrapping_offset(row * t.c_row).wrapping_add(j));
                    let mut acc = if from == 0 { V::neutral() } else { V::load(c) };
                    for i in 0..N {
                        acc = V::fma(V::splat(x.wrapping_offset(i as isize * t.x_k)), line[i], acc);
                    }
                    acc.store(c);
                }
            }
        }
        let rest = t.columns - full;
        for row in 0..(if rest > 0 { t.rows } else { 0 }) as isize {
            let (x, c) = (x.wrapping_offset(row * t.x_row), t.c.wrapping_offset(row * t.c_row).wrapping_add(full));
            let mut acc = if from == 0 { V::neutral() } else { V::load_part(c, rest) };
            for i in 0..N {
                acc = V::fma(V::splat(x.wrapping_offset(i as isize * t.x_k)), V::load_part(runs[i].wrapping_add(full), rest), acc);
            }
            acc.store_part(c, rest);
        }
    }
}

/// # Safety
/// As for [`across`].
#[inline(always)]
pub(super) unsafe fn along<V: Vector>(t: &Raw<V::Part>) {
    // SAFETY: handed on from the caller.
    unsafe { if t.rows == 1 { along_rows::<V, 1, false>(t) } else { along_rows::<V, MAX_ROWS, false>(t) } }
}

/// # Safety
/// As for [`across`]; one row, and what [`Aside`] names is readable or writable.
#[inline(always)]
pub(super) unsafe fn both<V: Vector>(t: &Raw<V::Part>) {
    // SAFETY: handed on from the caller.
    unsafe { along_rows::<V, 1, true>(t) }
}

/// Adds the first `count` lines, each by its weight and one after the other, to a vector of sums.
///
/// # Safety
/// `at` names LANES sums, or `lanes` where these are fewer.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "an index names the register")]
unsafe fn aside<V: Vector>([weights, lines]: [&[V; MOST_LANES]; 2], count: usize, at: *mut V::Part, lanes: usize, first: bool) {
    // SAFETY: the caller's promise.
    unsafe {
        let is_whole = lanes == V::LANES;
        let mut acc = match (first, is_whole) {
            (true, _) => V::neutral(),
            (_, true) => V::load(at),
            _ => V::load_part(at, lanes),
        };
        for i in 0..V::LANES {
            if i == count {
                break;
            }
            acc = V::fma(weights[i], lines[i], acc);
        }
        if is_whole { acc.store(at) } else { acc.store_part(at, lanes) }
    }
}

/// # Safety
/// As for [`across`]; at most `ROWS` rows. With `ASIDE` as for [`both`].
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "an index names the register")]
unsafe fn along_rows<V: Vector, const ROWS: usize, const ASIDE: bool>(t: &Raw<V::Part>) {
    // SAFETY: the caller's promise covers every element read or written.
    unsafe {
        let rows = if ROWS == 1 { 1 } else { t.rows };
        for j in (0..t.columns).step_by(V::LANES) {
            let count = V::LANES.min(t.columns - j);
            let mut runs = [t.b; MOST_LANES];
            for i in 0..V::LANES {
                // Lanes past the last column read it again and aren't stored.
                runs[i] = t.b.wrapping_offset((j + i.min(count - 1)) as isize * t.b_step);
            }
            let mut weights = [V::neutral(); MOST_LANES];
            for i in 0..(if ASIDE { count } else { 0 }) {
                weights[i] = V::splat(t.weights.wrapping_offset((j + i) as isize * t.weights_step));
            }
            let mut totals = [V::neutral(); ROWS];
            let mut lines = [V::neutral(); MOST_LANES];
            for start in (0..t.terms).step_by(t.block) {
                let end = t.terms.min(start + t.block);
                let full = start + (end - start) / V::LANES * V::LANES;
                let mut sums = [V::neutral(); ROWS];
                for from in (start..full).step_by(V::LANES) {
                    for i in 0..V::LANES {
                        let at = runs[i].wrapping_add(from);
                        V::prefetch(at.wrapping_add(AHEAD_ALONG));
                        lines[i] = V::load(at);
                    }
                    if ASIDE {
                        aside([&weights, &lines], count, t.sums.wrapping_add(from), V::LANES, j == 0);
                    }
                    V::cross(&mut lines);
                    for row in 0..rows {
                        let x = t.x.wrapping_offset(row as isize * t.x_row + from as isize * t.x_k);
                        let mut acc = sums[row];
                        for i in 0..V::LANES {
                            acc = V::fma(V::splat(x.wrapping_offset(i as isize * t.x_k)), lines[i], acc);
                        }
                        sums[row] = acc;
                    }
                }
                let some = end - full;
                if some > 0 {
                    for i in 0..V::LANES {
                        lines[i] = V::load_part(runs[i].wrapping_add(full), some);
                    }
                    if ASIDE {
                        aside([&weights, &lines], count, t.sums.wrapping_add(full), some, j == 0);
                    }
                    V::cross(&mut lines);
                }
                for row in 0..rows {
                    let x = t.x.wrapping_offset(row as isize * t.x_row + full as isize * t.x_k);
                    let mut sum = sums[row];
                    for i in 0..some {
                        sum = V::fma(V::splat(x.wrapping_offset(i as isize * t.x_k)), lines[i], sum);
                    }
                    totals[row] = if start == 0 { sum } else { totals[row].add(sum) };
                }
            }
            for row in 0..rows {
                totals[row].store_part(t.c.wrapping_offset(row as isize * t.c_row).wrapping_add(j), count);
            }
        }
    }
}

/// # Safety
/// As for [`across`]; where `first` isn't set, `c` is written past the caches and its rows are aligned.
#[inline(always)]
pub(super) unsafe fn outer<V: Vector>(t: &Raw<V::Part>) {
    // SAFETY: the caller's promise covers every element read or written.
    unsafe {
        let full = t.columns / V::LANES * V::LANES;
        for row in 0..t.rows as isize {
            let (x, c) = (V::splat(t.x.wrapping_offset(row * t.x_row)), t.c.wrapping_offset(row * t.c_row));
            for j in (0..full).step_by(V::LANES) {
                let product = V::fma(x, V::load(t.b.wrapping_add(j)), V::neutral());
                if t.first { product.store(c.wrapping_add(j)) } else { product.stream(c.wrapping_add(j)) }
            }
            if full < t.columns {
                let product = V::fma(x, V::load_part(t.b.wrapping_add(full), t.columns - full), V::neutral());
                product.store_part(c.wrapping_add(full), t.columns - full);
            }
        }
    }
}

/// # Safety
/// Every element that the call names is readable (`src`) or writable (`dst`), and the processor has the vector's
/// instruction set.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "an index names the register")]
pub(super) unsafe fn cross<V: Vector>(t: &Cross<V::Part>) {
    // SAFETY: the caller's promise covers every element read or written.
    unsafe {
        let mut rows = [V::neutral(); MOST_LANES];
        for from in (0..t.terms).step_by(V::LANES) {
            let (count, first) = (V::LANES.min(t.terms - from), t.src.wrapping_add(from));
            for j in 0..V::LANES {
                let line = first.wrapping_offset(j as isize * t.src_line);
                rows[j] = if count == V::LANES { V::load(line) } else { V::load_part(line, count) };
            }
            V::cross(&mut rows);
            if count == V::LANES {
                for i in 0..V::LANES {
                    rows[i].store(t.dst.add((from + i) * t.dst_k));
                }
            } else {
                for i in 0..count {
                    rows[i].store(t.dst.add((from + i) * t.dst_k));
                }
            }
        }
    }
}
