//! Batches of small products of halves, one tile each: operands are widened a chunk of items at a time, multiplied where they then
//! stand, and rounded.

use std::sync::atomic::{AtomicBool, Ordering};

use super::direct::{self, Strides};
use super::disjoint::Shared;
use super::element::Acc;
use super::job::Job;
use super::operand::{Source, is_same};
use super::scratch::{carve, carved_bytes, with_scratch};
use super::steps::Steps;
use crate::arch::tile::MAX_ROWS;
use crate::arch::{Lines, Run};
use crate::threads;

/// Bytes of a chunk once it is widened: they stay in the nearest cache.
const CHUNK_BYTES: usize = 24 << 10;

/// How a job goes.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    strides: Strides,
    /// From item to item in a, b and the result, whose elements stand side by side.
    steps: [usize; 3],
}

/// Whether, and how, each item is one tile, and its halves stand without gaps.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>) -> Option<Form> {
    let [items, m, n, k] = job.sizes;
    if !is_same::<A, f32>() || items < 8 || job.adds || k > A::BLOCK || (m == 1 && n == 1) {
        return None;
    }
    let [inner] = job.plan.batch() else { return None };
    job.lhs.halves()?;
    job.rhs.halves()?;
    let micro = A::micro(job.isa, false);
    let width = micro.lanes * micro.vectors;
    [false, true].into_iter().find_map(|is_swapped| {
        let strides = direct::strides(job, is_swapped, width)?;
        let [rows, columns] = if is_swapped { [n, m] } else { [m, n] };
        // Along an axis of one step any stride will do.
        let is = |len: usize, stride: isize, want: usize| len == 1 || stride == want as isize;
        let ([a_row, c_row], [a_k, b_k]) = (strides.rows, strides.k);
        let is_a_dense = (is(rows, a_row, k) && is(k, a_k, 1)) || (is(rows, a_row, 1) && is(k, a_k, rows));
        let is_dense = is_a_dense && is(k, b_k, columns) && is(rows, c_row, columns);
        if !is_dense || rows > micro.rows || columns > width {
            return None;
        }
        let (a, b) = if is_swapped { (1, 0) } else { (0, 1) };
        let want = [rows * k, k * columns, rows * columns];
        let got = [a, b, 2].map(|which| inner.strides[which]);
        // An operand may be shared by all items.
        let fits = |i: usize| got[i] == want[i] as isize || (i < 2 && got[i] == 0);
        let steps = std::array::from_fn(|i| if got[i] == 0 { 0 } else { want[i] });
        (0..3).all(fits).then_some(Form { strides, steps })
    })
}

/// Runs a job that [`accepts`] took; `None` where there is no room for a chunk.
pub(crate) fn run<A: Acc>(job: &Job<'_, A>, Form { strides, steps }: Form) -> Option<()> {
    let o = job.oriented(strides.is_swapped);
    let [items, _, _, k] = job.sizes;
    let [rows, columns] = o.sizes;
    let sizes = [rows * k, k * columns, rows * columns];
    let most = (CHUNK_BYTES / size_of::<A>() / sizes.iter().sum::<usize>()).clamp(1, items);
    let lens = sizes.map(|size| size * most);
    let row_starts = |step: isize| -> [isize; MAX_ROWS] { std::array::from_fn(|i| i as isize * step) };
    let (a_rows, c_rows) = (row_starts(strides.rows[0]), row_starts(strides.rows[1]));
    let cost = threads::cost(rows * columns * k, 2 * sizes.iter().sum::<usize>());
    let longest = lens.into_iter().max().unwrap_or(0);
    let has_failed = AtomicBool::new(false);
    threads::for_ranges(items.div_ceil(most), cost.saturating_mul(most), &|chunks| {
        let bytes = lens.map(carved_bytes::<A>).iter().sum();
        let done = with_scratch(bytes, longest, |memory, offsets| {
            let (a, memory) = carve::<A>(memory, lens[0]);
            let (b, memory) = carve::<A>(memory, lens[1]);
            let (c, _) = carve::<A>(memory, lens[2]);
            offsets.iter_mut().enumerate().for_each(|(i, at)| *at = i as isize);
            let run = |len: usize| Steps { at: &offsets[..len], stride: Some(1) };
            for item in chunks.map(|chunk| chunk * most) {
                let (bases, count) = (job.bases(item), most.min(items - item));
                let widen = |source: &dyn Source<A>, which: usize, at: isize, dst: &mut [A]| {
                    let len = if steps[which] == 0 { sizes[which] } else { sizes[which] * count };
                    source.pack_rows(at, Steps { at: &[0], stride: Some(1) }, run(len), job.isa, 1, &mut dst[..len]);
                };
                widen(o.a.1, 0, bases[o.a.0], a);
                widen(o.b.1, 1, bases[o.b.0], b);
                o.micro.run(&Run {
                    terms: k,
                    parts: 1,
                    a: Lines { data: bytemuck::cast_slice(&*a), at: 0, step: strides.k[0] },
                    a_rows: &a_rows[..rows],
                    b: Lines { data: bytemuck::cast_slice(&*b), at: 0, step: strides.k[1] },
                    c: &Shared::new(bytemuck::cast_slice_mut(&mut *c)),
                    c_at: 0,
                    c_rows: &c_rows[..rows],
                    cols: columns,
                    start: &[],
                    first: true,
                    is_streamed: false,
                    count,
                    steps: steps.map(|step| step as isize),
                });
                let len = sizes[2] * count;
                job.out.store_block(job.isa, bases[2], &[0], run(len), len, &c[..len]);
            }
        });
        if done.is_none() {
            has_failed.store(true, Ordering::Relaxed);
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}
