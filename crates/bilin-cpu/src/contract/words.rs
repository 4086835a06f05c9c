//! Operands whose elements are multiplied several to a word, by the panel driver: two bf16 with sums in f32, bytes and 16-bit
//! integers with sums in i32, 32 truth values.

#![allow(clippy::needless_range_loop, reason = "plain loops over arrays become vectors")]

use bilin_core::exec::order::PAIRED_FROM;
use bytemuck::Pod;

use super::batch;
use super::element::Acc;
use super::job::Job;
use super::operand::{Packed, Raw, Source};
use super::panel;
use super::pieces::Piece;
use super::steps::Steps;
use super::tiles::Tiled;
use crate::arch::tile::Micro;
use crate::arch::vector::MOST_LANES;
use crate::arch::{self, Isa, Lines, Work};

/// What stands in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Two bf16, the earlier one above: that is the order in which they are multiplied.
    Halves,
    /// Two integers of 16 bits.
    Shorts,
    /// Four bytes.
    Bytes,
    /// 32 truth values.
    Bits,
}

/// How a job goes onto words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    kind: Kind,
    /// Whether rhs must stand in the rows, where that matters.
    is_swapped: Option<bool>,
    /// Whether rows hold signed bytes, which are multiplied as unsigned ones, 128 larger.
    is_shifted: bool,
}

/// Whether, and how, a job can run on words. For bf16 this is a question of k alone, since what becomes of subnormal numbers
/// depends on the answer.
pub(crate) fn accepts<A: Tiled>(job: &Job<'_, A>) -> Option<(Form, &'static Micro<A::Part>)> {
    use Raw::{Bf16, Bool, I8, I16, U8};
    let form = |kind, is_swapped, is_shifted| Some(Form { kind, is_swapped, is_shifted });
    let form = match (job.lhs.raw()?, job.rhs.raw()?) {
        (Bf16(_), Bf16(_)) if job.sizes[3] >= PAIRED_FROM => form(Kind::Halves, None, false),
        (I8(_) | U8(_), I8(_) | U8(_)) if job.out.width() == 1 => form(Kind::Bytes, None, false),
        (I8(_), I8(_)) => form(Kind::Bytes, None, true),
        (U8(_), I8(_)) => form(Kind::Bytes, Some(false), false),
        (I8(_), U8(_)) => form(Kind::Bytes, Some(true), false),
        (I8(_) | U8(_) | I16(_), I8(_) | U8(_) | I16(_)) => form(Kind::Shorts, None, false),
        (Bool(_), Bool(_)) => form(Kind::Bits, None, false),
        _ => None,
    }?;
    Some((form, A::words(form.kind, job.isa)?))
}

/// Whether words are worth it where other kernels give the same bits.
pub(crate) fn pays<A: Acc>(job: &Job<'_, A>) -> bool {
    let [_, m, n, k] = job.sizes;
    matches!(job.lhs.raw(), Some(Raw::Bf16(_))) || (k >= 4 && m > 1 && n > 1)
}

/// Runs a job that [`accepts`] took; `None` where there is no room for panels.
pub(crate) fn run<A: Tiled>(job: &Job<'_, A>, (form, micro): (Form, &'static Micro<A::Part>)) -> Option<()> {
    let (lhs, rhs) = (Words { raw: job.lhs.raw()?, form }, Words { raw: job.rhs.raw()?, form });
    let job = Job { lhs: &lhs, rhs: &rhs, ..*job };
    match batch::accepts_words(&job, micro).filter(|_| form.is_swapped.is_none()) {
        Some(small) => batch::run_words(&job, micro, small),
        None => panel::run_by(&job, micro, form.is_swapped),
    }
}

/// An operand as words.
struct Words<'a> {
    raw: Raw<'a>,
    form: Form,
}

/// Calls a generic function with the memory of an operand and the pieces of its words.
macro_rules! by_piece {
    ($self:expr, |$data:ident, $n:ident| $call:expr) => {
        match ($self.form.kind, $self.raw) {
            (Kind::Halves, Raw::Bf16($data)) => {
                const $n: usize = 2;
                $call
            }
            (Kind::Shorts, Raw::I16($data)) => {
                const $n: usize = 2;
                $call
            }
            (Kind::Shorts, Raw::I8($data)) => {
                const $n: usize = 2;
                $call
            }
            (Kind::Shorts, Raw::U8($data)) => {
                const $n: usize = 2;
                $call
            }
            (Kind::Bytes, Raw::I8($data)) => {
                const $n: usize = 4;
                $call
            }
            (Kind::Bytes, Raw::U8($data)) => {
                const $n: usize = 4;
                $call
            }
            (Kind::Bits, Raw::Bool($data)) => {
                const $n: usize = 32;
                $call
            }
            _ => unreachable!("an operand that `accepts` refuses"),
        }
    };
}

impl Words<'_> {
    /// What stands for k past the last one: of bf16, zeros whose product is −0, to which adding changes nothing.
    fn padding<S: Pod>(&self, is_row: bool) -> S {
        let bits: u16 = if self.form.kind == Kind::Halves && is_row { 0x8000 } else { 0 };
        bytemuck::pod_read_unaligned(&bits.to_le_bytes()[..size_of::<S>()])
    }
    /// What makes signed bytes of rows unsigned ones.
    fn shift(&self) -> u32 {
        if self.form.is_shifted { 0x8080_8080 } else { 0 }
    }
}

impl<A: Acc> Source<A> for Words<'_> {
    fn gather(&self, _at: isize, _step: isize, _dst: &mut [A]) {
        unreachable!("the panel driver packs");
    }
    fn in_word(&self) -> usize {
        match self.form.kind {
            Kind::Halves | Kind::Shorts => 2,
            Kind::Bytes => 4,
            Kind::Bits => 32,
        }
    }
    fn has_starts(&self) -> bool {
        self.form.is_shifted
    }
    fn pack_rows(&self, base: isize, rows: Steps<'_>, ks: Steps<'_>, isa: Isa, height: usize, dst: &mut [A]) -> Packed {
        let dst: &mut [u32] = bytemuck::cast_slice_mut(dst);
        by_piece!(self, |data, N| {
            isa.with(Rows::<_, N> { data, base, rows, ks, height, padding: self.padding(true), shift: self.shift(), dst })
        })
    }
    fn pack_columns(&self, base: isize, ks: Steps<'_>, columns: Steps<'_>, isa: Isa, micro: &Micro<A::Part>, dst: &mut [A::Part]) {
        by_piece!(self, |data, N| {
            let (panels, starts) = dst.split_at_mut(columns.at.len() * ks.at.len().div_ceil(N));
            let starts = if self.form.is_shifted { bytemuck::cast_slice_mut(&mut starts[..columns.at.len()]) } else { &mut [] };
            Columns::<_, N> { data, base, ks, padding: self.padding(false) }.pack::<A>(columns, isa, micro, panels, starts);
        });
    }
    fn ask_for(&self, at: isize, len: usize) {
        fn ask<S>(data: &[S], at: isize, len: usize) {
            if let Some(run) = data.get(at as usize..).and_then(|d| d.get(..len)) {
                arch::ask_for(run);
            }
        }
        by_piece!(self, |data, _N| ask(data, at, len))
    }
    fn plain(&self) -> Option<&[A::Part]> {
        None
    }
    fn halves(&self) -> Option<(arch::halves::Kind, &[u16])> {
        None
    }
    fn raw(&self) -> Option<Raw<'_>> {
        None
    }
}

/// Rows on their way into panels.
struct Rows<'a, 'd, S, const N: usize> {
    data: &'a [S],
    base: isize,
    rows: Steps<'a>,
    ks: Steps<'a>,
    height: usize,
    padding: S,
    shift: u32,
    dst: &'d mut [u32],
}

impl<S: Piece<N>, const N: usize> Work for Rows<'_, '_, S, N> {
    type Output = Packed;
    #[inline(always)]
    fn run(self) -> Packed {
        let Rows { data, base, rows, ks, height, padding, shift, dst } = self;
        let k = ks.at.len();
        let (words, whole) = (k.div_ceil(N), k / N);
        let element = |line: isize, i: usize| ks.at.get(i).map_or(padding, |&k| data[(base + line + k) as usize]);
        let packed = if ks.stride == Some(1) && !(rows.at.len() > 1 && rows.stride == Some(1)) {
            if let (Some(&first), true) = (rows.at.first(), whole == words && rows.stride == Some(k as isize)) {
                // Rows one after the other are one run.
                S::words(&data[(base + first + ks.at[0]) as usize..][..rows.at.len() * k], dst);
            } else {
                for (&row, line) in rows.at.iter().zip(dst.chunks_exact_mut(words)) {
                    S::words(&data[(base + row + ks.at[0]) as usize..][..whole * N], &mut line[..whole]);
                    if whole < words {
                        line[whole] = S::word(std::array::from_fn(|q| element(row, whole * N + q)));
                    }
                }
            }
            Packed::RowMajor
        } else {
            for (some, panel) in rows.at.chunks(height).zip(dst.chunks_mut(height * words)) {
                for (w, line) in panel.chunks_exact_mut(some.len()).enumerate() {
                    for (word, &row) in line.iter_mut().zip(some) {
                        *word = S::word(std::array::from_fn(|q| element(row, w * N + q)));
                    }
                }
            }
            Packed::KMajor
        };
        if shift != 0 {
            dst.iter_mut().for_each(|word| *word ^= shift);
        }
        packed
    }
}

/// Columns on their way into panels, and behind these what their sums begin at where rows are shifted: −128 times the sum of
/// each column.
struct Columns<'a, S, const N: usize> {
    data: &'a [S],
    base: isize,
    ks: Steps<'a>,
    padding: S,
}

impl<S: Piece<N>, const N: usize> Columns<'_, S, N> {
    #[inline(always)]
    fn word(&self, column: isize, w: usize) -> u32 {
        S::word(std::array::from_fn(|q| self.ks.at.get(w * N + q).map_or(self.padding, |&k| self.data[(self.base + column + k) as usize])))
    }

    /// Fills a panel where its columns stand side by side and a kernel does it.
    fn interleaved(&self, some: Steps<'_>, panel: &mut [u32]) -> bool {
        let (n, k) = (some.at.len(), self.ks.at.len());
        let (Some(1), Some(step), [first, ..], true) = (some.stride, self.ks.stride, self.ks.at, N == 2 && k >= N) else {
            return false;
        };
        let first = self.base + some.at[0] + first;
        if !S::interleave(self.data, [first, first + step], 2 * step, [k / N, n], panel) {
            return false;
        }
        if !k.is_multiple_of(N) {
            for (word, &column) in panel[k / N * n..].iter_mut().zip(some.at) {
                *word = self.word(column, k / N);
            }
        }
        true
    }

    fn pack<A: Acc>(&self, columns: Steps<'_>, isa: Isa, micro: &Micro<A::Part>, panels: &mut [A::Part], mut starts: &mut [i32]) {
        let depth = self.ks.at.len().div_ceil(N);
        let (mut left, mut rest) = (columns, panels);
        while !left.at.is_empty() {
            let n = micro.panel(left.at.len());
            let (panel, more) = rest.split_at_mut(n * depth);
            let some = left.part(0, n);
            let crossed = if self.ks.stride == Some(1) && some.stride != Some(1) { n / micro.lanes * micro.lanes } else { 0 };
            for first in (0..crossed).step_by(micro.lanes) {
                let at = &some.at[first..first + micro.lanes];
                for from in (0..depth).step_by(MOST_LANES) {
                    let mut lines = [[0u32; MOST_LANES]; MOST_LANES];
                    let count = MOST_LANES.min(depth - from);
                    isa.with(Runs { columns: self, at, from, count, lines: &mut lines });
                    let data = bytemuck::cast_slice(lines.as_flattened());
                    micro.cross(count, Lines { data, at: 0, step: MOST_LANES as isize }, &mut panel[from * n + first..], n);
                }
            }
            let words: &mut [u32] = bytemuck::cast_slice_mut(panel);
            if crossed == n || !self.interleaved(some, words) {
                isa.with(Across { columns: self, some, from: crossed, panel: words });
            }
            if let Some((sums, more)) = std::mem::take(&mut starts).split_at_mut_checked(n) {
                isa.with(Shifted { panel: bytemuck::cast_slice(panel), starts: sums });
                starts = more;
            }
            (left, rest) = (left.part(n, left.at.len() - n), more);
        }
    }
}

/// Words down some columns whose k stand side by side.
struct Runs<'a, 'd, S, const N: usize> {
    columns: &'a Columns<'a, S, N>,
    at: &'a [isize],
    from: usize,
    count: usize,
    lines: &'d mut [[u32; MOST_LANES]; MOST_LANES],
}

impl<S: Piece<N>, const N: usize> Work for Runs<'_, '_, S, N> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Runs { columns: c, at, from, count, lines } = self;
        let whole = count.min((c.ks.at.len() / N).saturating_sub(from));
        for (line, &column) in lines.iter_mut().zip(at) {
            S::words(&c.data[(c.base + column + c.ks.at[from * N]) as usize..][..whole * N], &mut line[..whole]);
            if whole < count {
                line[whole] = c.word(column, from + whole);
            }
        }
    }
}

/// Columns from `from` of a panel, line by line.
struct Across<'a, 'd, S, const N: usize> {
    columns: &'a Columns<'a, S, N>,
    some: Steps<'a>,
    from: usize,
    panel: &'d mut [u32],
}

impl<S: Piece<N>, const N: usize> Work for Across<'_, '_, S, N> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Across { columns: c, some, from, panel } = self;
        let (n, whole) = (some.at.len(), c.ks.at.len() / N);
        if from == n {
            return;
        }
        for (w, line) in panel.chunks_exact_mut(n).enumerate() {
            if some.stride == Some(1) && w < whole {
                let mut runs = [&c.data[..0]; N];
                for q in 0..N {
                    runs[q] = &c.data[(c.base + some.at[0] + c.ks.at[w * N + q]) as usize..][..n];
                }
                // Copies, so that the compiler sees that nothing overlaps; no closures, which would keep the caller's
                // instruction set from it.
                let (blocks, rest) = line.as_chunks_mut::<MOST_LANES>();
                for (i, block) in blocks.iter_mut().enumerate() {
                    let mut some = [[S::default(); MOST_LANES]; N];
                    for q in 0..N {
                        some[q].copy_from_slice(&runs[q][i * MOST_LANES..(i + 1) * MOST_LANES]);
                    }
                    S::across(&some, block);
                }
                for (word, j) in rest.iter_mut().zip(n / MOST_LANES * MOST_LANES..) {
                    let mut pieces = [S::default(); N];
                    for q in 0..N {
                        pieces[q] = runs[q][j];
                    }
                    *word = S::word(pieces);
                }
            } else {
                for (word, &column) in line[from..].iter_mut().zip(&some.at[from..]) {
                    *word = c.word(column, w);
                }
            }
        }
    }
}

/// For each column of a panel −128 times its sum of signed bytes.
struct Shifted<'a, 'd> {
    panel: &'a [u32],
    starts: &'d mut [i32],
}

impl Work for Shifted<'_, '_> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Shifted { panel, starts } = self;
        starts.fill(0);
        for line in panel.chunks_exact(starts.len()) {
            for (start, &word) in starts.iter_mut().zip(line) {
                let [a, b, c, d] = word.to_le_bytes().map(|x| i32::from(x as i8));
                *start = start.wrapping_sub(128 * (a + b + c + d));
            }
        }
    }
}
