//! Operands and results behind one interface per accumulator, so that drivers are compiled once per accumulator.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::disjoint::Shared;
use super::element::{Acc, Convert};
use super::steps::Steps;
use crate::arch;

/// An operand, read as accumulators (and conjugated where the call says so).
pub(crate) trait Source<A: Acc>: Sync {
    /// `dst.len()` elements from `at`, `step` apart.
    fn gather(&self, at: isize, step: isize, dst: &mut [A]);
    /// Panels of `height` rows, each as long as its rows and k say: row-major where k is the nearer axis, else k-major.
    fn pack_rows(&self, base: isize, rows: Steps<'_>, ks: Steps<'_>, height: usize, dst: &mut [A]) -> Packed;
    /// Panels of `width` columns, k-major: columns side by side; complex ones as groups of `lanes` real, then imaginary
    /// parts, padded with zeros.
    fn pack_columns(&self, base: isize, ks: Steps<'_>, columns: Steps<'_>, width: usize, lanes: usize, dst: &mut [A::Part]);
    /// Asks for `len` elements from `at` ahead of their use.
    fn ask_for(&self, at: isize, len: usize);
    /// The elements, where they stand in memory as accumulators.
    fn plain(&self) -> Option<&[A::Part]>;
}

/// How rows were packed.
#[derive(Clone, Copy)]
pub(crate) enum Packed {
    /// One row after the other.
    RowMajor,
    /// The rows of a panel side by side, one k after the other.
    KMajor,
}

/// Where a result goes.
pub(crate) trait Sink<A: Acc>: Sync {
    /// The elements, where they stand in memory as real accumulators.
    fn plain(&self) -> Option<&Shared<'_, A::Part>>;
    /// Writes, or adds, `src` from `at`, `step` apart.
    fn scatter(&self, at: isize, step: isize, src: &[A]);
    /// Writes, or adds, elements at `base` plus each of `columns`. `src` holds them as a tile row does.
    fn store_row(&self, base: isize, columns: Steps<'_>, lanes: usize, src: &[A::Part]);
}

/// A typed operand.
pub(crate) struct In<'a, S, F> {
    /// Its memory.
    pub data: &'a [S],
    /// Whether it is conjugated.
    pub is_conj: bool,
    /// The conversion.
    pub convert: PhantomData<F>,
}

impl<S: Pod + Sync, F> In<'_, S, F> {
    #[inline(always)]
    fn get<A: Acc>(&self, at: isize) -> A
    where
        F: Convert<S, A>,
    {
        self.turned(F::convert(self.data[at as usize]))
    }
    #[inline(always)]
    fn turned<A: Acc>(&self, x: A) -> A {
        if A::PARTS == 2 && self.is_conj { x.conjugate() } else { x }
    }
    #[inline(always)]
    fn slice(&self, at: isize, len: usize) -> &[S] {
        &self.data[at as usize..][..len]
    }

    /// Converts a run, in pieces that become straight code.
    #[inline(always)]
    fn convert_run<A: Acc>(&self, dst: &mut [A], src: &[S])
    where
        F: Convert<S, A>,
    {
        if is_same::<S, A>() && !(A::PARTS == 2 && self.is_conj) {
            dst.copy_from_slice(bytemuck::cast_slice(src));
            return;
        }
        let (dst_pieces, dst_rest) = dst.as_chunks_mut::<16>();
        let (src_pieces, src_rest) = src.as_chunks::<16>();
        for (d, s) in dst_pieces.iter_mut().zip(src_pieces) {
            // By value, so that the compiler sees that the two don't overlap.
            *d = s.map(|x| self.turned(F::convert(x)));
        }
        for (d, &s) in dst_rest.iter_mut().zip(src_rest) {
            *d = self.turned(F::convert(s));
        }
    }

    /// Rows side by side, one k after the other, where rows are neighbours in memory: panels of `HEIGHT` rows.
    #[inline(always)]
    fn pack_neighbours<A: Acc, const HEIGHT: usize>(&self, first: isize, m: usize, ks: &[isize], dst: &mut [A])
    where
        F: Convert<S, A>,
    {
        // A few k at once, so that a run of rows is read whole before its cache lines are gone.
        for (from, some) in (0..ks.len()).step_by(8).zip(ks.chunks(8)) {
            for (row, panel) in (0..m).step_by(HEIGHT).zip(dst.chunks_mut(HEIGHT * ks.len())) {
                let count = HEIGHT.min(m - row);
                for (&k, line) in some.iter().zip(panel[from * count..].chunks_exact_mut(count)) {
                    let run = self.slice(first + k + row as isize, count);
                    if let (Ok(line), Ok(run)) = (<&mut [A; HEIGHT]>::try_from(&mut *line), <&[S; HEIGHT]>::try_from(run)) {
                        *line = run.map(|x| self.turned(F::convert(x)));
                    } else {
                        for (d, &s) in line.iter_mut().zip(run) {
                            *d = self.turned(F::convert(s));
                        }
                    }
                }
            }
        }
    }

    /// One panel of complex columns.
    fn pack_complex<A: Acc>(&self, base: isize, ks: Steps<'_>, columns: &[isize], lanes: usize, panel: &mut [A::Part])
    where
        F: Convert<S, A>,
    {
        let line_len = columns.len().next_multiple_of(lanes) * 2;
        let is_dense = Steps::new(columns).stride == Some(1);
        for (&kk, line) in ks.at.iter().zip(panel.chunks_exact_mut(line_len)) {
            for (group, at) in line.chunks_exact_mut(2 * lanes).zip(columns.chunks(lanes)) {
                let (re, im) = group.split_at_mut(lanes);
                let slots = re.iter_mut().zip(im.iter_mut());
                let put = |(re, im): (&mut A::Part, &mut A::Part), x: S| {
                    let x: A = self.turned(F::convert(x));
                    (*re, *im) = x.parts();
                };
                if is_dense {
                    slots.zip(self.slice(base + kk + at[0], at.len())).for_each(|(slot, &x)| put(slot, x));
                } else {
                    slots.zip(at).for_each(|(slot, &c)| put(slot, self.data[(base + kk + c) as usize]));
                }
                re[at.len()..].fill(A::Part::default());
                im[at.len()..].fill(A::Part::default());
            }
        }
    }
}

impl<A: Acc, S: Pod + Send + Sync, F: Convert<S, A>> Source<A> for In<'_, S, F> {
    fn gather(&self, at: isize, step: isize, dst: &mut [A]) {
        if step == 1 {
            let len = dst.len();
            self.convert_run(dst, self.slice(at, len));
        } else {
            for (i, d) in dst.iter_mut().enumerate() {
                *d = self.get(at + i as isize * step);
            }
        }
    }

    fn pack_rows(&self, base: isize, rows: Steps<'_>, ks: Steps<'_>, height: usize, dst: &mut [A]) -> Packed {
        let (m, k) = (rows.at.len(), ks.at.len());
        if ks.stride == Some(1) && !(m > 1 && rows.stride == Some(1)) {
            for (&r, line) in rows.at.iter().zip(dst.chunks_exact_mut(k)) {
                self.convert_run(line, self.slice(base + r + ks.at[0], k));
            }
            return Packed::RowMajor;
        }
        if rows.stride == Some(1) {
            let first = base + rows.at[0];
            match height {
                8 => self.pack_neighbours::<A, 8>(first, m, ks.at, dst),
                6 => self.pack_neighbours::<A, 6>(first, m, ks.at, dst),
                4 => self.pack_neighbours::<A, 4>(first, m, ks.at, dst),
                _ => self.pack_neighbours::<A, 2>(first, m, ks.at, dst),
            }
            return Packed::KMajor;
        }
        for (rows, panel) in rows.at.chunks(height).zip(dst.chunks_mut(height * k)) {
            for (&kk, line) in ks.at.iter().zip(panel.chunks_exact_mut(rows.len())) {
                for (d, &r) in line.iter_mut().zip(rows) {
                    *d = self.get(base + kk + r);
                }
            }
        }
        Packed::KMajor
    }

    fn pack_columns(&self, base: isize, ks: Steps<'_>, columns: Steps<'_>, width: usize, lanes: usize, dst: &mut [A::Part]) {
        let (n, k) = (columns.at.len(), ks.at.len());
        if A::PARTS == 2 {
            for (at, panel) in columns.at.chunks(width).zip(dst.chunks_mut(width * k * 2)) {
                self.pack_complex(base, ks, at, lanes, panel);
            }
            return;
        }
        let dst: &mut [A] = bytemuck::cast_slice_mut(dst);
        if columns.stride == Some(1) {
            for (i, &kk) in ks.at.iter().enumerate() {
                let run = self.slice(base + kk + columns.at[0], n);
                if let Some(next) = ks.at.get(i + 2) {
                    Source::<A>::ask_for(self, base + next + columns.at[0], n);
                }
                for (from, panel) in run.chunks(width).zip(dst.chunks_mut(width * k)) {
                    self.convert_run(&mut panel[i * from.len()..][..from.len()], from);
                }
            }
            return;
        }
        for (columns, panel) in columns.at.chunks(width).zip(dst.chunks_mut(width * k)) {
            let n = columns.len();
            if ks.stride == Some(1) {
                // Short runs of k, so that the lines written to stay in the nearest cache.
                for (from, lines) in (0..k).step_by(16).zip(panel[..n * k].chunks_mut(16 * n)) {
                    let count = lines.len() / n;
                    for (j, &c) in columns.iter().enumerate() {
                        let run = self.slice(base + c + ks.at[from], count);
                        for (line, &s) in lines.chunks_exact_mut(n).zip(run) {
                            line[j] = self.turned(F::convert(s));
                        }
                    }
                }
            } else {
                for (&kk, line) in ks.at.iter().zip(panel.chunks_exact_mut(n)) {
                    for (d, &c) in line.iter_mut().zip(columns) {
                        *d = self.get(base + kk + c);
                    }
                }
            }
        }
    }

    fn ask_for(&self, at: isize, len: usize) {
        if let Some(run) = self.data.get(at as usize..).and_then(|d| d.get(..len)) {
            arch::ask_for(run);
        }
    }

    fn plain(&self) -> Option<&[A::Part]> {
        if A::PARTS == 1 && is_same::<S, A>() { bytemuck::try_cast_slice(self.data).ok() } else { None }
    }
}

fn is_same<S: 'static, T: 'static>() -> bool {
    std::any::TypeId::of::<S>() == std::any::TypeId::of::<T>()
}

/// A typed result.
pub(crate) struct Out<'a, T, A: Acc, F> {
    /// Its memory.
    pub data: Shared<'a, T>,
    /// The same as real accumulators, where it is that.
    pub plain: Option<Shared<'a, A::Part>>,
    /// Whether elements, which are accumulators then, are added to.
    pub adds: bool,
    /// The conversion.
    pub convert: PhantomData<F>,
}

impl<'a, T: Pod, A: Acc, F> Out<'a, T, A, F> {
    /// From the memory.
    pub(crate) fn new(data: &'a mut [T], adds: bool) -> Self {
        if A::PARTS == 1 && is_same::<T, A>() {
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
            Some(out) => bytemuck::cast_slice_mut(out.run(at, len)),
            None => bytemuck::cast_slice_mut(self.data.run(at, len)),
        }
    }
}

/// An element of a tile row.
#[inline(always)]
fn element<A: Acc>(row: &[A::Part], at: usize, lanes: usize) -> A {
    if A::PARTS == 2 {
        let first = at / lanes * 2 * lanes + at % lanes;
        A::from_parts(row[first], row[first + lanes])
    } else {
        bytemuck::cast_slice::<A::Part, A>(row)[at]
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
                out.run(at, src.len()).copy_from_slice(src);
            } else {
                for (i, &x) in src.iter().enumerate() {
                    out.write(at + i as isize * step, x);
                }
            }
        } else if step == 1 {
            for (d, &x) in self.data.run(at, src.len()).iter_mut().zip(src) {
                *d = F::convert(x);
            }
        } else {
            for (i, &x) in src.iter().enumerate() {
                self.data.write(at + i as isize * step, F::convert(x));
            }
        }
    }

    fn store_row(&self, base: isize, columns: Steps<'_>, lanes: usize, src: &[A::Part]) {
        if A::PARTS == 1 && columns.stride == Some(1) {
            return self.scatter(base + columns.at[0], 1, &bytemuck::cast_slice(src)[..columns.at.len()]);
        }
        for (j, &c) in columns.at.iter().enumerate() {
            self.scatter(base + c, 1, &[element::<A>(src, j, lanes)]);
        }
    }
}
