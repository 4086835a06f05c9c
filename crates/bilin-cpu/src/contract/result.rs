//! Results behind one interface per accumulator.

use std::marker::PhantomData;

use bytemuck::Pod;
use half::{bf16, f16};

use super::disjoint::Shared;
use super::element::{Acc, Convert};
use super::operand::is_same;
use super::steps::Steps;
use crate::arch::{Isa, Work, f16c, halves};

/// Columns of a block of a tile unit.
const TILE: usize = 16;
/// Elements of two of its blocks.
const PAIR: usize = 2 * TILE * TILE;

/// Where a result goes.
pub(crate) trait Sink<A: Acc>: Sync {
    /// The parts of the elements, where these stand in memory as accumulators.
    fn plain(&self) -> Option<&Shared<'_, A::Part>>;
    /// Writes, or adds, `src` from `at`, `step` apart.
    fn scatter(&self, at: isize, step: isize, src: &[A]);
    /// Bytes of an element.
    fn width(&self) -> usize;
    /// Writes, or adds, rows of `width` elements to `base` plus each of `rows` plus each of `columns`, as many as there are of
    /// these. More columns than that are in further blocks of `src`.
    fn store_block(&self, isa: Isa, base: isize, rows: &[isize], columns: Steps<'_>, width: usize, src: &[A]);
}

/// A typed result.
pub(crate) struct Out<'a, T, A: Acc, F> {
    /// Its memory.
    pub data: Shared<'a, T>,
    /// Instead its parts, where elements are accumulators.
    pub plain: Option<Shared<'a, A::Part>>,
    /// Whether elements, which are accumulators then, are added to.
    pub adds: bool,
    /// The conversion.
    pub convert: PhantomData<F>,
}

impl<'a, T: Pod, A: Acc, F> Out<'a, T, A, F> {
    /// From the memory.
    pub(crate) fn new(data: &'a mut [T], adds: bool) -> Self {
        if is_same::<T, A>() {
            // The types are one, so the cast can't fail.
            let parts = bytemuck::cast_slice_mut::<T, A::Part>(data);
            return Out { data: Shared::new(&mut []), plain: Some(Shared::new(parts)), adds, convert: PhantomData };
        }
        Out { data: Shared::new(data), plain: None, adds, convert: PhantomData }
    }

    /// A run of a result that is added to.
    #[inline(always)]
    fn sums(&self, at: isize, len: usize) -> &mut [A] {
        match &self.plain {
            Some(out) => bytemuck::cast_slice_mut(out.run(at * A::PARTS as isize, len * A::PARTS)),
            None => bytemuck::cast_slice_mut(self.data.run(at, len)),
        }
    }
}

/// A run of results, converted.
#[inline(always)]
fn convert_line<T: Pod, A: Acc, F: Convert<A, T>>(src: &[A], dst: &mut [T]) {
    let done =
        if is_same::<A, f32>() && is_same::<T, f16>() { f16c::narrow(bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst)) } else { 0 };
    // A plain loop: nested ones over chunks become gathers.
    for (to, &from) in dst[done..].iter_mut().zip(&src[done..]) {
        *to = F::convert(from);
    }
}

/// A block on its way into the result.
struct Stored<'a, 'o, T, A: Acc, F> {
    out: &'a Out<'o, T, A, F>,
    base: isize,
    rows: &'a [isize],
    columns: Steps<'a>,
    width: usize,
    src: &'a [A],
}

/// Lines of `TILE` elements of one or two blocks of `height` lines, to `count` columns of the rows.
#[inline(always)]
fn place<T: Copy>(out: &Shared<'_, T>, lines: &[T], height: usize, first: isize, rows: &[isize], count: usize) {
    for (i, &row) in rows.iter().enumerate() {
        let (left, right) = out.run(first + row, count).split_at_mut(count.min(TILE));
        for (block, to) in [left, right].into_iter().enumerate() {
            let from = (block * height + i) * TILE;
            // A line of a number that is known here is a register.
            match to.as_chunks_mut::<TILE>() {
                ([], []) => {}
                ([whole], []) => whole.copy_from_slice(&lines[from..][..TILE]),
                (_, part) => part.copy_from_slice(&lines[from..][..part.len()]),
            }
        }
    }
}

impl<T: Pod + Send + Sync, A: Acc, F: Convert<A, T>> Work for Stored<'_, '_, T, A, F> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Stored { out, base, mut rows, columns, mut width, src } = self;
        let (dense, mut count) = (columns.stride == Some(1), columns.at.len());
        if dense && count == width && rows.windows(2).all(|w| w[1] - w[0] == count as isize) {
            // One run.
            count *= rows.len();
            (width, rows) = (count, &rows[..1]);
        }
        let across = count.div_ceil(width);
        let height = src.len() / (across * width);
        // Complex numbers that stay what they are go line by line.
        let is_whole = A::PARTS == 1 || out.plain.is_none();
        if dense && !out.adds && is_whole && width == TILE && across <= 2 && src.len() <= PAIR {
            // Lines are too short for a loop each.
            let first = base + columns.at[0];
            if let Some(plain) = &out.plain {
                return place(plain, bytemuck::cast_slice(src), height, first, rows, count);
            }
            let is_bf16 = is_same::<A, f32>() && is_same::<T, bf16>();
            if is_bf16 && halves::round_rows(bytemuck::cast_slice(src), height, &out.data.bits(), first, rows, count) {
                return;
            }
            let mut made = [T::zeroed(); PAIR];
            for (to, &from) in made.iter_mut().zip(src) {
                *to = F::convert(from);
            }
            return place(&out.data, &made, height, first, rows, count);
        }
        // The line of a row in a block, and where its columns begin.
        let lines = (0..rows.len()).flat_map(|row| (0..across).map(move |block| (row, (block * height + row) * width, block * width)));
        let converts = dense && !out.adds && out.plain.is_none();
        for (row, at, column) in lines {
            let (row, columns) = (base + rows[row], &columns.at[column.min(columns.at.len())..]);
            let line = &src[at..][..width.min(count - column)];
            if converts {
                convert_line::<T, A, F>(line, out.data.run(row + columns[0], line.len()));
            } else if dense {
                out.scatter(row + columns[0], 1, line);
            } else {
                for (&column, x) in columns.iter().zip(line) {
                    out.scatter(row + column, 1, std::slice::from_ref(x));
                }
            }
        }
    }
}

impl<T: Pod + Send + Sync, A: Acc, F: Convert<A, T>> Sink<A> for Out<'_, T, A, F> {
    fn plain(&self) -> Option<&Shared<'_, A::Part>> {
        self.plain.as_ref()
    }

    fn scatter(&self, at: isize, step: isize, src: &[A]) {
        if self.adds {
            let len = if step == 1 { src.len().max(1) } else { 1 };
            for (i, part) in src.chunks(len).enumerate() {
                for (sum, &x) in self.sums(at + i as isize * step, len).iter_mut().zip(part) {
                    *sum = sum.plus(x);
                }
            }
        } else if let Some(out) = &self.plain {
            let src: &[A::Part] = bytemuck::cast_slice(src);
            if step == 1 {
                out.run(at * A::PARTS as isize, src.len()).copy_from_slice(src);
            } else {
                for (i, x) in src.chunks_exact(A::PARTS).enumerate() {
                    out.run((at + i as isize * step) * A::PARTS as isize, A::PARTS).copy_from_slice(x);
                }
            }
        } else if step == 1 {
            convert_line::<T, A, F>(src, self.data.run(at, src.len()));
        } else {
            for (i, &x) in src.iter().enumerate() {
                self.data.write(at + i as isize * step, F::convert(x));
            }
        }
    }

    fn width(&self) -> usize {
        size_of::<T>()
    }

    fn store_block(&self, isa: Isa, base: isize, rows: &[isize], columns: Steps<'_>, width: usize, src: &[A]) {
        isa.with(Stored { out: self, base, rows, columns, width, src });
    }
}

#[cfg(test)]
mod tests {
    use bilin_core::c64;

    use super::super::element::Plain;
    use super::*;

    /// One block and two side by side, whole and cut off, in rows with and without gaps, converted, kept and added.
    #[test]
    fn blocks_land_at_their_rows_and_columns_and_nowhere_else() {
        // Whole numbers below 2⁸ are exact in bf16.
        let all: Vec<f32> = (0..PAIR).map(|i| (i % 256) as f32).collect();
        for (height, width) in [(TILE, TILE), (TILE, 2 * TILE), (3, 20), (1, 17), (TILE, 5), (TILE, 31)] {
            for step in [1, 2] {
                let pitch = width * step + 3;
                let rows: Vec<isize> = (0..height).map(|i| (i * pitch) as isize).collect();
                let columns: Vec<isize> = (0..width).map(|j| (j * step) as isize).collect();
                let src = &all[..width.div_ceil(TILE) * TILE * TILE];
                let len = 7 + height * pitch;
                let check = |got: &dyn Fn(usize) -> f32, adds: bool, what: &str| {
                    let mut want = vec![0.5f32; len];
                    for (i, j) in (0..height).flat_map(|i| (0..width).map(move |j| (i, j))) {
                        let term = src[(j / TILE * TILE + i) * TILE + j % TILE];
                        want[7 + i * pitch + j * step] = if adds { 0.5 + term } else { term };
                    }
                    for (at, want) in want.iter().enumerate() {
                        assert_eq!(got(at), *want, "{what}, {height} × {width}, {step} apart, at {at}");
                    }
                };
                let mut halves = vec![bf16::from_f32(0.5); len];
                Out::<bf16, f32, Plain>::new(&mut halves, false).store_block(Isa::best(), 7, &rows, Steps::new(&columns), TILE, src);
                check(&|at| halves[at].to_f32(), false, "bf16");
                let complex: Vec<c64> = src.iter().map(|&x| c64::new(x, -x)).collect();
                let mut parts = vec![c64::new(0.5, -0.5); len];
                Out::<c64, c64, Plain>::new(&mut parts, false).store_block(Isa::best(), 7, &rows, Steps::new(&columns), TILE, &complex);
                check(&|at| parts[at].re, false, "c64");
                check(&|at| -parts[at].im, false, "c64, imaginary parts");
                for adds in [false, true] {
                    let mut sums = vec![0.5f32; len];
                    Out::<f32, f32, Plain>::new(&mut sums, adds).store_block(Isa::best(), 7, &rows, Steps::new(&columns), TILE, src);
                    check(&|at| sums[at], adds, if adds { "added" } else { "f32" });
                }
            }
        }
    }
}
