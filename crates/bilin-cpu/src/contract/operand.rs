//! Operands behind one interface per accumulator, so that drivers are compiled once per accumulator.

use std::marker::PhantomData;

use bytemuck::Pod;
use half::{bf16, f16};

use super::element::{Acc, Convert, Plain};
use super::steps::Steps;
use crate::arch::halves::Kind;
use crate::arch::tile::Micro;
use crate::arch::vector::MOST_LANES;
use crate::arch::{self, Isa, Lines, Work, f16c};

/// An operand, read as accumulators (and conjugated where the call says so).
pub(crate) trait Source<A: Acc>: Sync {
    /// `dst.len()` elements from `at`, `step` apart.
    fn gather(&self, at: isize, step: isize, dst: &mut [A]);
    /// Panels of `height` rows, each as long as its rows and k say: row-major where k is the nearer axis, else k-major.
    fn pack_rows(&self, base: isize, rows: Steps<'_>, ks: Steps<'_>, isa: Isa, height: usize, dst: &mut [A]) -> Packed;
    /// Panels as wide as the kernels say, k-major: columns side by side; complex ones as groups of a vector's real, then
    /// imaginary parts, padded with zeros.
    fn pack_columns(&self, base: isize, ks: Steps<'_>, columns: Steps<'_>, isa: Isa, micro: &Micro<A::Part>, dst: &mut [A::Part]);
    /// Asks for `len` elements from `at` ahead of their use.
    fn ask_for(&self, at: isize, len: usize);
    /// Elements that are multiplied at once, and packed into one part.
    fn in_word(&self) -> usize {
        1
    }
    /// Whether packed columns are followed by what their sums begin at.
    fn has_starts(&self) -> bool {
        false
    }
    /// The parts of the elements, where these stand in memory as the accumulators that they are read as.
    fn plain(&self) -> Option<&[A::Part]>;
    /// The elements as they stand in memory, where they are halves, and which.
    fn halves(&self) -> Option<(Kind, &[u16])>;
    /// The elements as they stand in memory, where tiles or words read them.
    fn raw(&self) -> Option<Raw<'_>>;
}

/// Elements as they stand in memory.
#[derive(Clone, Copy)]
pub(crate) enum Raw<'a> {
    Bf16(&'a [bf16]),
    U8(&'a [u8]),
    I8(&'a [i8]),
    I16(&'a [i16]),
    I32(&'a [i32]),
    I64(&'a [i64]),
    /// Truth values, of which those that aren't 0 are true.
    Bool(&'a [u8]),
}

/// How rows were packed.
#[derive(Clone, Copy)]
pub(crate) enum Packed {
    /// One row after the other.
    RowMajor,
    /// The rows of a panel side by side, one k after the other.
    KMajor,
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
        // For a short run the call would take longer than the copy.
        if is_same::<S, A>() && !(A::PARTS == 2 && self.is_conj) && dst.len() >= 8 * MOST_LANES {
            dst.copy_from_slice(bytemuck::cast_slice(src));
            return;
        }
        let done = if is_same::<S, f16>() && is_same::<A, f32>() {
            f16c::widen(bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst))
        } else {
            0
        };
        let (dst_pieces, dst_rest) = dst[done..].as_chunks_mut::<16>();
        let (src_pieces, src_rest) = src[done..].as_chunks::<16>();
        for (d, s) in dst_pieces.iter_mut().zip(src_pieces) {
            // A copy, so that the compiler sees that the two don't overlap; no closure, which would keep the caller's
            // instruction set from it.
            let s = *s;
            for i in 0..16 {
                d[i] = self.turned(F::convert(s[i]));
            }
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

    /// A vector's columns, each a run of `k` elements, into a panel of lines of `width`.
    #[expect(clippy::too_many_arguments, reason = "one call site, all arguments distinct")]
    fn cross<A: Acc>(&self, base: isize, at: &[isize], k: usize, isa: Isa, micro: &Micro<A::Part>, panel: &mut [A::Part], width: usize)
    where
        F: Convert<S, A>,
    {
        let plain: Option<&[A::Part]> = if is_same::<S, A>() { bytemuck::try_cast_slice(self.data).ok() } else { None };
        if let (Some(data), Some(step)) = (plain, Steps::new(at).stride) {
            return micro.cross(k, Lines { data, at: base + at[0], step }, panel, width);
        }
        let mut lines = [A::default(); MOST_LANES * MOST_LANES];
        for from in (0..k).step_by(MOST_LANES) {
            let count = MOST_LANES.min(k - from);
            for (line, &c) in lines.chunks_exact_mut(MOST_LANES).zip(at) {
                let src = self.slice(base + c + from as isize, count);
                isa.with(Converted { source: self, dst: &mut line[..count], src });
            }
            let lines = Lines { data: bytemuck::cast_slice(&lines), at: 0, step: MOST_LANES as isize };
            micro.cross(count, lines, &mut panel[from * width..], width);
        }
    }

    /// One panel of complex columns, wherever these stand.
    fn pack_complex<A: Acc>(&self, base: isize, ks: Steps<'_>, columns: &[isize], lanes: usize, panel: &mut [A::Part])
    where
        F: Convert<S, A>,
    {
        let line_len = columns.len().next_multiple_of(lanes) * 2;
        for (&kk, line) in ks.at.iter().zip(panel.chunks_exact_mut(line_len)) {
            for (group, at) in line.chunks_exact_mut(2 * lanes).zip(columns.chunks(lanes)) {
                let (re, im) = group.split_at_mut(lanes);
                for ((re, im), &c) in re.iter_mut().zip(im.iter_mut()).zip(at) {
                    (*re, *im) = self.get::<A>(base + kk + c).parts();
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

    fn pack_rows(&self, base: isize, rows: Steps<'_>, ks: Steps<'_>, isa: Isa, height: usize, dst: &mut [A]) -> Packed {
        let (m, k) = (rows.at.len(), ks.at.len());
        let run = ks.run();
        if run >= k.min(MOST_LANES) && !(m > 1 && rows.stride == Some(1)) {
            for (&r, line) in rows.at.iter().zip(dst.chunks_exact_mut(k)) {
                for (some, dst) in ks.at.chunks(run).zip(line.chunks_mut(run)) {
                    isa.with(Converted { source: self, dst, src: self.slice(base + r + some[0], some.len()) });
                }
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

    fn pack_columns(&self, base: isize, ks: Steps<'_>, columns: Steps<'_>, isa: Isa, micro: &Micro<A::Part>, dst: &mut [A::Part]) {
        let k = ks.at.len();
        if A::PARTS == 2 && columns.stride == Some(1) {
            return isa.with(Apart::<_, _, A> {
                source: self,
                first: base + columns.at[0],
                ks: ks.at,
                count: columns.at.len(),
                micro,
                dst,
            });
        }
        if A::PARTS == 2 {
            let (mut left, mut rest) = (columns.at, dst);
            while !left.is_empty() {
                let (at, after) = left.split_at(micro.panel(left.len()));
                let (panel, more) = rest.split_at_mut(at.len().next_multiple_of(micro.lanes) * k * 2);
                self.pack_complex(base, ks, at, micro.lanes, panel);
                (left, rest) = (after, more);
            }
            return;
        }
        let beside = columns.run();
        if beside >= columns.at.len().min(MOST_LANES) {
            let dst = bytemuck::cast_slice_mut(dst);
            return isa.with(Beside { source: self, base, ks: ks.at, columns: columns.at, beside, micro, dst });
        }
        let (mut left, mut rest) = (columns.at, dst);
        let run = ks.run();
        while !left.is_empty() {
            let (at, after) = left.split_at(micro.panel(left.len()));
            let (panel, more) = rest.split_at_mut(at.len() * k);
            let n = at.len();
            let crossed = if run >= k.min(MOST_LANES) { n / micro.lanes * micro.lanes } else { 0 };
            for (piece, some) in (0..k).step_by(run).zip(ks.at.chunks(run)) {
                for from in (0..crossed).step_by(micro.lanes) {
                    let to = &mut panel[piece * n + from..];
                    self.cross(base + some[0], &at[from..from + micro.lanes], some.len(), isa, micro, to, n);
                }
            }
            let panel: &mut [A] = bytemuck::cast_slice_mut(panel);
            for (&kk, line) in ks.at.iter().zip(panel.chunks_exact_mut(n)) {
                for (d, &c) in line[crossed..].iter_mut().zip(&at[crossed..]) {
                    *d = self.get(base + kk + c);
                }
            }
            (left, rest) = (after, more);
        }
    }

    fn ask_for(&self, at: isize, len: usize) {
        if let Some(run) = self.data.get(at as usize..).and_then(|d| d.get(..len)) {
            arch::ask_for(run);
        }
    }

    fn plain(&self) -> Option<&[A::Part]> {
        if is_same::<S, A>() && !(A::PARTS == 2 && self.is_conj) { bytemuck::try_cast_slice(self.data).ok() } else { None }
    }

    fn halves(&self) -> Option<(Kind, &[u16])> {
        let kind = if is_same::<S, bf16>() {
            Kind::Bf16
        } else if is_same::<S, f16>() {
            Kind::F16
        } else {
            return None;
        };
        Some((kind, bytemuck::try_cast_slice(self.data).ok()?))
    }

    fn raw(&self) -> Option<Raw<'_>> {
        if is_same::<A, u32>() {
            return bytemuck::try_cast_slice(self.data).ok().map(Raw::Bool);
        }
        if !is_same::<F, Plain>() {
            return None;
        }
        macro_rules! first_of {
            ($($name:ident: $t:ty),*) => {
                $(if is_same::<S, $t>() { return bytemuck::try_cast_slice(self.data).ok().map(Raw::$name); })*
            };
        }
        first_of!(Bf16: bf16, U8: u8, I8: i8, I16: i16, I32: i32, I64: i64);
        None
    }
}

/// Columns that stand side by side, at least `beside` at a time, on their way into panels.
struct Beside<'a, 's, S, F, A: Acc> {
    source: &'a In<'s, S, F>,
    base: isize,
    ks: &'a [isize],
    columns: &'a [isize],
    beside: usize,
    micro: &'a Micro<A::Part>,
    dst: &'a mut [A],
}

impl<S: Pod + Sync, A: Acc, F: Convert<S, A>> Work for Beside<'_, '_, S, F, A> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Beside { source, base, ks, columns, beside, micro, dst } = self;
        for (i, &k) in ks.iter().enumerate() {
            let (mut panels, mut to_come, mut from) = (&mut *dst, columns.len(), 0);
            for piece in columns.chunks(beside) {
                let mut run = source.slice(base + k + piece[0], piece.len());
                if let Some(next) = ks.get(i + 2) {
                    arch::ask_for(source.slice(base + next + piece[0], piece.len()));
                }
                // A run may begin or end inside a panel.
                while !run.is_empty() {
                    let width = micro.panel(to_come);
                    let (some, after) = run.split_at(run.len().min(width - from));
                    source.convert_run(&mut panels[i * width + from..][..some.len()], some);
                    (run, from) = (after, from + some.len());
                    if from == width {
                        (panels, to_come, from) = (&mut panels[width * ks.len()..], to_come - width, 0);
                    }
                }
            }
        }
    }
}

/// Complex columns that stand side by side on their way into panels, parts apart.
struct Apart<'a, 's, S, F, A: Acc> {
    source: &'a In<'s, S, F>,
    first: isize,
    ks: &'a [isize],
    count: usize,
    micro: &'a Micro<A::Part>,
    dst: &'a mut [A::Part],
}

impl<S: Pod + Sync, A: Acc, F: Convert<S, A>> Apart<'_, '_, S, F, A> {
    #[inline(always)]
    fn by<const LANES: usize>(self) {
        let Apart { source, first, ks, count, micro, dst } = self;
        for (i, &k) in ks.iter().enumerate() {
            if let Some(next) = ks.get(i + 2) {
                arch::ask_for(source.slice(first + next, count));
            }
            let (mut run, mut panel) = (source.slice(first + k, count), 0);
            while !run.is_empty() {
                let (some, after) = run.split_at(micro.panel(run.len()));
                let line_len = some.len().next_multiple_of(LANES) * 2;
                let line = dst[panel + i * line_len..][..line_len].as_chunks_mut::<LANES>().0;
                let (groups, rest) = some.as_chunks::<LANES>();
                for (two, group) in line.chunks_exact_mut(2).zip(groups) {
                    // A copy, so that the compiler sees that nothing overlaps.
                    let group = *group;
                    let mut parts = [[A::Part::default(); LANES]; 2];
                    for j in 0..LANES {
                        (parts[0][j], parts[1][j]) = source.turned::<A>(F::convert(group[j])).parts();
                    }
                    two.copy_from_slice(&parts);
                }
                if let ([_, ..], [.., re, im]) = (rest, line) {
                    (*re, *im) = ([A::Part::default(); LANES], [A::Part::default(); LANES]);
                    for ((re, im), &x) in re.iter_mut().zip(im).zip(rest) {
                        (*re, *im) = source.turned::<A>(F::convert(x)).parts();
                    }
                }
                (run, panel) = (after, panel + line_len * ks.len());
            }
        }
    }
}

impl<S: Pod + Sync, A: Acc, F: Convert<S, A>> Work for Apart<'_, '_, S, F, A> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        match self.micro.lanes {
            16 => self.by::<16>(),
            8 => self.by::<8>(),
            _ => self.by::<4>(),
        }
    }
}

/// A run on its way into a panel.
struct Converted<'a, 's, S, F, A> {
    source: &'a In<'s, S, F>,
    dst: &'a mut [A],
    src: &'a [S],
}

impl<S: Pod + Sync, A: Acc, F: Convert<S, A>> Work for Converted<'_, '_, S, F, A> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        self.source.convert_run(self.dst, self.src);
    }
}

pub(super) fn is_same<S: 'static, T: 'static>() -> bool {
    std::any::TypeId::of::<S>() == std::any::TypeId::of::<T>()
}
