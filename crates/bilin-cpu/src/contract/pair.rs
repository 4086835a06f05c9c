//! Two products of one matrix, by a row and by a column, as the gradients of an outer product are. Both wait for the matrix
//! where it is larger than the caches, so it is read once for both.

use bilin_core::exec::buffer::{host_bytes, host_bytes_mut};
use bilin_core::exec::call::{Accum, ContractCall};
use bilin_core::shape::plan::{Loop, Plan};
use bilin_core::{DType, Result};

use super::disjoint::Shared;
use super::element::Acc;
use super::line::{Added, LEAST_ALONG};
use super::scratch::with_scratch;
use super::typed::{elements, elements_mut};
use crate::arch::line::{Aside, Rows};
use crate::arch::{Isa, Lines};
use crate::threads;

/// Lines up to which short ones pay too: that one call is spared outweighs how they are read.
const MOST_SHORT: usize = 64;

/// How a vector times a matrix stands: which operand is the matrix, its columns and its terms.
#[derive(Clone, Copy)]
struct Form {
    matrix: usize,
    columns: Loop<3>,
    terms: Loop<3>,
}

impl Form {
    fn new(plan: &Plan) -> Option<Form> {
        let [batch, m, n, _] = plan.sizes();
        let (matrix, columns) = if n < m { (0, plan.m()) } else { (1, plan.n()) };
        let (&[columns], &[terms], (1, 1)) = (columns, plan.k(), (batch, m.min(n))) else { return None };
        (columns.strides[2] == 1).then_some(Form { matrix, columns, terms })
    }

    /// From column to column and from term to term of the matrix.
    fn steps(&self) -> [isize; 2] {
        [self.columns.strides[self.matrix], self.terms.strides[self.matrix]]
    }
}

/// How two products stand, where each is a vector times a matrix of the same lines, of which the terms of the first stand side by
/// side, and the columns of the second.
fn accepts(plans: [&Plan; 2]) -> Option<[Form; 2]> {
    let [first, second] = [Form::new(plans[0])?, Form::new(plans[1])?];
    let (lines, step) = ([first.columns.len, first.terms.len], first.steps()[0]);
    let is_one = first.steps() == [step, 1] && second.steps() == [1, step] && [second.terms.len, second.columns.len] == lines;
    let pays = lines[1] >= LEAST_ALONG || lines[0] <= MOST_SHORT;
    (is_one && pays).then_some([first, second])
}

/// The memory of a product, with its first elements.
struct Side<'a, A> {
    matrix: (&'a [A], isize),
    vector: Lines<'a, A>,
    out: (Shared<'a, A>, isize),
}

/// `None` where memory isn't aligned to elements.
fn side<'a, A: Acc>(call: ContractCall<'a>, form: &Form) -> Result<Option<Side<'a, A>>> {
    let ContractCall { op, plan, lhs, rhs, out, .. } = call;
    let (sources, ats, vector) = ([lhs, rhs], plan.offsets().map(|o| o as isize), 1 - form.matrix);
    let [matrix, data] = [form.matrix, vector].map(|i| host_bytes(op, sources[i].buffer).map(elements));
    let (Some(matrix), Some(data), Some(out)) = (matrix?, data?, elements_mut(host_bytes_mut(op, out.buffer)?)) else { return Ok(None) };
    let vector = Lines { data, at: ats[vector], step: form.terms.strides[vector] };
    Ok(Some(Side { matrix: (matrix, ats[form.matrix]), vector, out: (Shared::new(out), ats[2]) }))
}

/// Runs two calls whose operands, sums and results are all of `dtype`, which is `A`'s. False, and nothing is touched, where they
/// are of others or not of one matrix, or where one after the other is better or all there is room for.
pub(super) fn run<A: Acc<Part = A>>(mut calls: [ContractCall<'_>; 2], dtype: DType, isa: Isa) -> Result<bool> {
    let is_plain = |c: &ContractCall<'_>| [c.accumulator, c.lhs.dtype, c.rhs.dtype, c.out.dtype] == [dtype; 4];
    if calls.iter().any(|c| c.accum != Accum::Replace || !is_plain(c)) {
        return Ok(false);
    }
    let found = |calls: &[ContractCall<'_>; 2]| accepts([calls[0].plan, calls[1].plan]);
    let forms = found(&calls).or_else(|| {
        calls.reverse();
        found(&calls)
    });
    let Some(forms) = forms else { return Ok(false) };
    let [rows, columns] = [forms[0].columns.len, forms[0].terms.len];
    // A task reads the rows of one block of the sums over columns, so that it sums each of these from end to end.
    let blocks = rows.div_ceil(A::BLOCK);
    let cost = threads::cost(2 * A::BLOCK * columns, A::BLOCK.saturating_mul(columns) * size_of::<A>());
    // Twice by all threads is better than once by less than half of them.
    if cost.saturating_mul(blocks) >= threads::SERIAL_BELOW && 2 * blocks < threads::current_threads() {
        return Ok(false);
    }
    let [first, second] = calls;
    let (Some(along), Some(across)) = (side::<A>(first, &forms[0])?, side::<A>(second, &forms[1])?) else { return Ok(false) };
    let ((matrix, at), step) = (along.matrix, forms[0].steps()[0]);
    if !std::ptr::eq(matrix, across.matrix.0) || at != across.matrix.1 {
        return Ok(false);
    }
    let done = with_scratch((blocks - 1) * columns * size_of::<A>(), 0, |memory, _| {
        let more: &mut [A] = bytemuck::cast_slice_mut(memory);
        let kept = Shared::new(&mut *more);
        threads::for_each(blocks, cost, &|block| {
            let from = (block * A::BLOCK) as isize;
            let later = block.checked_sub(1).map(|later| (&kept, (later * columns) as isize));
            let (sums, sums_at) = later.unwrap_or((&across.out.0, across.out.1));
            let rows = Rows {
                sizes: [columns, 1, A::BLOCK.min(rows - block * A::BLOCK)],
                block: A::BLOCK,
                x: along.vector,
                row_steps: [0, 0],
                b: Lines { data: matrix, at: at + from * step, step },
                c: &along.out.0,
                c_at: along.out.1 + from,
            };
            let weights = Lines { at: across.vector.at + from * across.vector.step, ..across.vector };
            A::micro(isa, false).both(&rows, &Aside { weights, sums, at: sums_at });
        });
        let total: &mut [A] = across.out.0.run(across.out.1, columns);
        more.chunks_exact(columns).for_each(|sums| isa.with(Added(&mut *total, sums)));
    });
    Ok(done.is_some())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a panic is how a check fails")]
mod tests {
    use bilin_core::exec::backend::Backend;
    use bilin_core::exec::buffer::{Buffer, HostBuffer};
    use bilin_core::exec::call::{Conj, Precision, Source, Target};
    use bilin_core::exec::reference::ReferenceBackend;
    use bilin_core::shape::spec::{Axis, Spec};
    use bilin_core::{Layout, OpName};

    use super::*;
    use crate::CpuBackend;

    const ISAS: [Isa; 3] = [Isa::Portable, Isa::Avx2, Isa::Avx512];

    /// A matrix of 8-byte words before, between and behind whose lines others stand, a vector for each product, both of every
    /// second element, and results with guards.
    struct Case {
        dtype: DType,
        layouts: [Layout; 3],
        memory: [HostBuffer; 3],
    }

    fn layout(shape: &[usize], strides: &[isize], offset: usize) -> Layout {
        Layout::from_parts(&"test".into(), shape.into(), strides.into(), offset).unwrap()
    }

    impl Case {
        /// `lines` says which axis is dense, and whether lines and elements are read backwards.
        fn new(dtype: DType, [m, n]: [usize; 2], (is_transposed, flips): (bool, [bool; 2])) -> Case {
            let (count, len) = if is_transposed { (n, m) } else { (m, n) };
            let (mut strides, mut offset) = ([(len + 3) as isize, 1], 7);
            for (axis, &size) in [count, len].iter().enumerate().filter(|(axis, _)| flips[*axis]) {
                offset += (size - 1) * strides[axis].unsigned_abs();
                strides[axis] = -strides[axis];
            }
            if is_transposed {
                strides.reverse();
            }
            let mut seed = 1u64;
            let mut filled = |elements: usize| {
                let mut buffer = HostBuffer::zeroed(elements * dtype.size_bytes()).unwrap();
                let mut next = || {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // Sums of many sizes and signs: each order of additions has bits of its own.
                    let x = (seed >> 33) as f64 / (1u64 << 30) as f64 - 1.0;
                    if seed.is_multiple_of(97) { -0.0 } else { x * [1.0, 1e-3, 1e3][(seed >> 20) as usize % 3] }
                };
                match dtype {
                    DType::F32 => bytemuck::cast_slice_mut(buffer.host_mut().unwrap()).fill_with(|| next() as f32),
                    _ => bytemuck::cast_slice_mut(buffer.host_mut().unwrap()).fill_with(next),
                }
                buffer
            };
            let memory = [filled(14 + (count + 1) * (len + 3)), filled(2 * n), filled(2 * m)];
            Case { dtype, layouts: [layout(&[m, n], &strides, offset), layout(&[n], &[2], 1), layout(&[m], &[-2], 2 * m - 1)], memory }
        }

        /// Both results, poisoned before, by `run`; `copy` stands for the matrix in the second product.
        fn by<T>(&self, copy: Option<&HostBuffer>, run: impl FnOnce([ContractCall<'_>; 2]) -> T) -> (T, [Vec<u8>; 2]) {
            let (op, size): (OpName, _) = ("test".into(), self.dtype.size_bytes());
            let axes = |labels: &[u16]| labels.iter().map(|&l| Axis::Label(l)).collect();
            let [m, n] = [self.layouts[0].shape()[0], self.layouts[0].shape()[1]];
            let outs = [m, n].map(|len| layout(&[len], &[1], 3));
            let specs =
                [(&[0, 1][..], &[1][..], &[0][..]), (&[0], &[0, 1], &[1])].map(|(l, r, o)| Spec::new(axes(l), axes(r), axes(o)).unwrap());
            let plans = [
                Plan::new(&op, &specs[0], &self.layouts[0], &self.layouts[1], &outs[0]).unwrap(),
                Plan::new(&op, &specs[1], &self.layouts[2], &self.layouts[0], &outs[1]).unwrap(),
            ];
            let mut results = [m, n].map(|len| HostBuffer::zeroed((len + 6) * size).unwrap());
            results.iter_mut().for_each(|r| r.host_mut().unwrap().fill(0xFF));
            let source = |buffer| Source { buffer, dtype: self.dtype };
            let [matrix, row, column] = &self.memory;
            let [first, second] = &mut results;
            let call = |plan, lhs, rhs, buffer| {
                let target = Target { buffer, dtype: self.dtype };
                ContractCall::new(&op, plan, lhs, rhs, target, [Conj::No; 2], self.dtype, Precision::Ieee).unwrap()
            };
            let one = call(&plans[0], source(matrix), source(row), first);
            let other = call(&plans[1], source(column), source(copy.unwrap_or(matrix)), second);
            let out = run([one, other]);
            (out, results.map(|r| r.host().unwrap().to_vec()))
        }

        fn pair(&self, isa: Isa) -> (bool, [Vec<u8>; 2]) {
            self.by(None, |calls| match self.dtype {
                DType::F32 => run::<f32>(calls, self.dtype, isa).unwrap(),
                _ => run::<f64>(calls, self.dtype, isa).unwrap(),
            })
        }

        /// Compares with the two products by themselves, of this backend and of the reference.
        fn check(&self, name: &str) {
            let alone = |backend: &dyn Backend| self.by(None, |calls| calls.map(|call| backend.contract(call).unwrap())).1;
            let (ours, want) = (alone(&CpuBackend::new()), alone(&ReferenceBackend));
            assert!(ours == want, "{name}");
            for isa in ISAS {
                let (is_done, got) = self.pair(isa);
                assert!(is_done, "{name} by {isa:?} is of one matrix");
                assert!(got == want, "{name} by {isa:?}");
            }
        }
    }

    /// Runs a check on two threads: what pays depends on their number, which is the machine's elsewhere.
    fn on_two_threads(check: impl FnOnce() + Send) {
        rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(check);
    }

    /// Around vectors, blocks of the one sum and of the other, and tasks.
    #[test]
    fn both_have_the_bits_of_each_by_itself() {
        let shapes = [
            [2, 2],
            [5, 3],
            [16, 16],
            [64, 7],
            [9, 1024],
            [15, 600],
            [16, 513],
            [17, 511],
            [31, 300],
            [255, 40],
            [257, 33],
            [511, 17],
            [512, 16],
            [513, 15],
            [1100, 530],
            [2049, 9],
        ];
        for dtype in [DType::F32, DType::F64] {
            for shape in shapes {
                for lines in [(false, [false; 2]), (false, [true, false]), (true, [false; 2]), (true, [true, false])] {
                    on_two_threads(|| Case::new(dtype, shape, lines).check(&format!("{dtype} {shape:?} {lines:?}")));
                }
            }
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let case = Case::new(DType::F32, [2600, 700], (false, [false; 2]));
        let want = case.by(None, |calls| calls.map(|call| ReferenceBackend.contract(call).unwrap())).1;
        for threads in [1, 2, 5, 12] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let (is_done, got) = pool.install(|| case.pair(Isa::best()));
            assert!(is_done && got == want, "{threads} threads");
        }
        // Six blocks are too few for more.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(13).build().unwrap();
        assert!(!pool.install(|| case.pair(Isa::best())).0);
    }

    #[test]
    fn what_isnt_one_matrix_is_left_alone() {
        on_two_threads(|| {
            let untouched = |(is_done, results): (bool, [Vec<u8>; 2])| !is_done && results.iter().flatten().all(|&b| b == 0xFF);
            let plain = (false, [false; 2]);
            let run = |calls: [ContractCall<'_>; 2]| run::<f32>(calls, DType::F32, Isa::best()).unwrap();
            let case = Case::new(DType::F32, [40, 300], plain);
            assert!(case.by(None, run).0);
            // The same numbers elsewhere.
            let mut copy = HostBuffer::zeroed(case.memory[0].byte_len()).unwrap();
            copy.host_mut().unwrap().copy_from_slice(case.memory[0].host().unwrap());
            assert!(untouched(case.by(Some(&copy), run)));
            assert!(untouched(case.by(None, |[one, other]| run([one, other.adding().unwrap()]))));
            assert!(untouched(Case::new(DType::F64, [40, 300], plain).by(None, run)));
            // No dense axis; one column; many short lines.
            for (shape, lines) in [([40, 300], (false, [false, true])), ([4000, 1], plain), ([4000, 5], plain)] {
                assert!(untouched(Case::new(DType::F32, shape, lines).by(None, run)), "{shape:?}");
            }
        });
    }
}
