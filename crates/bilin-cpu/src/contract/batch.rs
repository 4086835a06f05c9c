//! Batches of small products of halves, or of words: operands are widened, or joined to words, a chunk of items at a time, multiplied
//! where they then stand, and rounded.

use std::sync::atomic::{AtomicBool, Ordering};

use super::direct::{self, Strides};
use super::disjoint::Shared;
use super::element::Acc;
use super::job::Job;
use super::operand::is_same;
use super::scratch::{carve, carved_bytes, with_scratch};
use super::steps::Steps;
use crate::arch::tile::{MAX_ROWS, Micro};
use crate::arch::{Lines, Run};
use crate::threads;

/// Bytes of a chunk once it is widened: they stay in the nearest cache.
const CHUNK_BYTES: usize = 24 << 10;
/// Bytes of a chunk of words, and of one of its items: several share what it takes to begin with a chunk.
const WORDS_BYTES: usize = 64 << 10;
const ITEM_BYTES: usize = 16 << 10;

/// How a job goes.
#[derive(Clone, Copy)]
pub(crate) struct Form {
    strides: Strides,
    /// From item to item in a, b and the result, whose elements stand side by side.
    steps: [usize; 3],
}

/// Whether, and how, each item is one tile, and its halves stand without gaps.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>) -> Option<Form> {
    let [_, m, n, _] = job.sizes;
    if !is_same::<A, f32>() || (m == 1 && n == 1) {
        return None;
    }
    job.lhs.halves()?;
    job.rhs.halves()?;
    let micro = A::micro(job.isa, false);
    let width = micro.lanes * micro.vectors;
    form(job, width, &|rows, columns| rows <= micro.rows && columns <= width)
}

/// Whether, and how, each item of a job whose operands become words is small, a number of whole words deep, and stands without gaps.
pub(crate) fn accepts_words<A: Acc>(job: &Job<'_, A>, micro: &Micro<A::Part>) -> Option<Form> {
    let ([_, _, _, k], in_word) = (job.sizes, job.rhs.in_word());
    if !k.is_multiple_of(in_word) || job.rhs.has_starts() {
        return None;
    }
    let is_small = |rows: usize, columns: usize| ((rows + columns) * k / in_word + rows * columns) * size_of::<A>() <= ITEM_BYTES;
    // Words stand along k.
    form(job, micro.lanes * micro.vectors, &is_small).filter(|form| form.strides.k[0] == 1)
}

fn form<A: Acc>(job: &Job<'_, A>, width: usize, is_small: &dyn Fn(usize, usize) -> bool) -> Option<Form> {
    let [items, m, n, k] = job.sizes;
    if items < 8 || job.adds || k > A::BLOCK {
        return None;
    }
    let [inner] = job.plan.batch() else { return None };
    [false, true].into_iter().find_map(|is_swapped| {
        let strides = direct::strides(job, is_swapped, width)?;
        let [rows, columns] = if is_swapped { [n, m] } else { [m, n] };
        // Along an axis of one step any stride will do.
        let is = |len: usize, stride: isize, want: usize| len == 1 || stride == want as isize;
        let ([a_row, c_row], [a_k, b_k]) = (strides.rows, strides.k);
        let is_a_dense = (is(rows, a_row, k) && is(k, a_k, 1)) || (is(rows, a_row, 1) && is(k, a_k, rows));
        let is_dense = is_a_dense && is(k, b_k, columns) && is(rows, c_row, columns);
        if !is_dense || !is_small(rows, columns) {
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
pub(crate) fn run<A: Acc>(job: &Job<'_, A>, form: Form) -> Option<()> {
    run_by(job, A::micro(job.isa, form.strides.is_swapped), CHUNK_BYTES, form)
}

/// Runs a job that [`accepts_words`] took with the kernels of its words.
pub(crate) fn run_words<A: Acc>(job: &Job<'_, A>, micro: &'static Micro<A::Part>, form: Form) -> Option<()> {
    run_by(job, micro, WORDS_BYTES, form)
}

fn run_by<A: Acc>(job: &Job<'_, A>, micro: &'static Micro<A::Part>, chunk_bytes: usize, Form { strides, steps }: Form) -> Option<()> {
    let o = job.oriented(strides.is_swapped);
    let ([items, _, _, k], [rows, columns], in_word) = (job.sizes, o.sizes, o.b.1.in_word());
    let depth = k / in_word;
    let sizes = [rows * depth, depth * columns, rows * columns];
    let most = (chunk_bytes / size_of::<A>() / sizes.iter().sum::<usize>()).clamp(1, items);
    let lens = sizes.map(|size| size * most);
    let [a_row, a_k] = if in_word == 1 { [strides.rows[0], strides.k[0]] } else { [depth as isize, 1] };
    let row_starts = |step: isize| -> [isize; MAX_ROWS] { std::array::from_fn(|i| i as isize * step) };
    let (a_rows, c_rows) = (row_starts(a_row), row_starts(strides.rows[1]));
    let cost = threads::cost(rows * columns * k, 2 * sizes.iter().sum::<usize>());
    let [a_run, ks, c_run] = [rows * k, k, rows * columns].map(|one| one * most);
    let longest = a_run.max(lens[1]).max(c_run).max(columns);
    let has_failed = AtomicBool::new(false);
    threads::for_ranges(items.div_ceil(most), cost.saturating_mul(most), &|chunks| {
        let bytes = lens.map(carved_bytes::<A>).iter().sum();
        let done = with_scratch(bytes, longest + ks, |memory, offsets| {
            let (a, memory) = carve::<A>(memory, lens[0]);
            let (b, memory) = carve::<A>(memory, lens[1]);
            let (c, _) = carve::<A>(memory, lens[2]);
            let (beside, lines) = offsets.split_at_mut(longest);
            beside.iter_mut().enumerate().for_each(|(i, at)| *at = i as isize);
            lines.iter_mut().enumerate().for_each(|(i, at)| *at = (i * columns) as isize);
            let run = |len: usize| Steps { at: &beside[..len], stride: Some(1) };
            let one = Steps { at: &[0], stride: Some(1) };
            for item in chunks.map(|chunk| chunk * most) {
                let (bases, count) = (job.bases(item), most.min(items - item));
                let of = steps.map(|step| if step == 0 { 1 } else { count });
                o.a.1.pack_rows(bases[o.a.0], one, run(of[0] * rows * k), job.isa, 1, &mut a[..of[0] * sizes[0]]);
                let b_depth = of[1] * depth;
                if in_word == 1 {
                    o.b.1.pack_rows(bases[o.b.0], one, run(b_depth * columns), job.isa, 1, &mut b[..b_depth * columns]);
                } else {
                    let ks = Steps { at: &lines[..of[1] * k], stride: Some(columns as isize) };
                    o.b.1.pack_columns(
                        bases[o.b.0],
                        ks,
                        run(columns),
                        job.isa,
                        micro,
                        bytemuck::cast_slice_mut(&mut b[..b_depth * columns]),
                    );
                }
                let mut at = 0;
                while at < columns {
                    let cols = micro.panel(columns - at);
                    // Of words there is a panel after the other, each with the k of all items.
                    let (first, width) = if in_word == 1 { (at, columns) } else { (at * b_depth, cols) };
                    for row in (0..rows).step_by(micro.rows) {
                        let height = micro.rows.min(rows - row);
                        micro.run(&Run {
                            terms: depth,
                            a: Lines { data: bytemuck::cast_slice(&*a), at: row as isize * a_row, step: a_k },
                            a_rows: &a_rows[..height],
                            b: Lines { data: bytemuck::cast_slice(&*b), at: first as isize, step: width as isize },
                            c: &Shared::new(bytemuck::cast_slice_mut(&mut *c)),
                            c_at: (row * columns + at) as isize,
                            c_rows: &c_rows[..height],
                            cols,
                            start: &[],
                            first: true,
                            is_streamed: false,
                            count,
                            steps: [steps[0] / in_word, if steps[1] == 0 { 0 } else { depth * width }, steps[2]].map(|step| step as isize),
                        });
                    }
                    at += cols;
                }
                let len = sizes[2] * count;
                job.out.store_block(job.isa, bases[2], one.at, run(len), len, &c[..len]);
            }
        });
        if done.is_none() {
            has_failed.store(true, Ordering::Relaxed);
        }
    });
    if has_failed.into_inner() { None } else { Some(()) }
}
