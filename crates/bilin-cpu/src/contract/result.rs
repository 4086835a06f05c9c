//! Results behind one interface per accumulator.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::disjoint::Shared;
use super::element::{Acc, Convert};
use super::operand::is_same;
use super::steps::Steps;
use crate::arch::{Isa, Work};

/// Where a result goes.
pub(crate) trait Sink<A: Acc>: Sync {
    /// The parts of the elements, where these stand in memory as accumulators.
    fn plain(&self) -> Option<&Shared<'_, A::Part>>;
    /// Writes, or adds, `src` from `at`, `step` apart.
    fn scatter(&self, at: isize, step: isize, src: &[A]);
    /// Bytes of an element.
    fn width(&self) -> usize;
    /// Writes, or adds, rows of `width` elements to `base` plus each of `rows` plus each of `columns`, as many as there are of
    /// these.
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

/// A block on its way into the result.
struct Stored<'a, 'o, T, A: Acc, F> {
    out: &'a Out<'o, T, A, F>,
    base: isize,
    rows: &'a [isize],
    columns: Steps<'a>,
    width: usize,
    src: &'a [A],
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
        for (&row, line) in rows.iter().zip(src.chunks_exact(width)) {
            if dense && !out.adds && out.plain.is_none() {
                // A plain loop: nested ones over chunks become gathers.
                for (to, &from) in out.data.run(base + row + columns.at[0], count).iter_mut().zip(line) {
                    *to = F::convert(from);
                }
                continue;
            }
            if dense {
                out.scatter(base + row + columns.at[0], 1, &line[..count]);
            } else {
                for (&column, x) in columns.at.iter().zip(line) {
                    out.scatter(base + row + column, 1, std::slice::from_ref(x));
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
            for (d, &x) in self.data.run(at, src.len()).iter_mut().zip(src) {
                *d = F::convert(x);
            }
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
