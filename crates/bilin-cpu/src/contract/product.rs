//! Plans without a sum: elementwise products; and plans with an empty one: zeros.

use bilin_core::shape::plan::{Loop, position};

use super::element::Acc;
use super::job::Job;
use super::operand::Source;
use crate::arch::Work;
use crate::threads;

/// Elements at once.
const CHUNK: usize = 256;
/// Elements of a task.
const TASK: usize = 16 * 1024;

/// Whether nothing is summed, spread or shared.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>) -> bool {
    let [_, m, n, k] = job.sizes;
    m == 1 && n == 1 && k == 1
}

struct Products<'a, A>(&'a mut [A], &'a [A]);

impl<A: Acc> Work for Products<'_, A> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (a, &b) in self.0.iter_mut().zip(self.1) {
            *a = A::product(*a, b);
        }
    }
}

/// Runs a job that [`accepts`] took.
pub(crate) fn run<A: Acc>(job: &Job<'_, A>) -> Option<()> {
    let total = job.sizes[0];
    let offsets = job.plan.offsets().map(|o| o as isize);
    threads::for_each(total.div_ceil(TASK), threads::cost(TASK, 3 * TASK * size_of::<A>()), &|task| {
        let (mut a, mut b) = ([A::default(); CHUNK], [A::default(); CHUNK]);
        runs(job.plan.batch(), task * TASK, total.min((task + 1) * TASK), &mut |at, strides, count| {
            let (a, b) = (&mut a[..count], &mut b[..count]);
            read(job.lhs, offsets[0] + at[0], strides[0], a);
            read(job.rhs, offsets[1] + at[1], strides[1], b);
            job.isa.with(Products(&mut *a, b));
            job.out.scatter(offsets[2] + at[2], strides[2], a);
        });
    });
    Some(())
}

fn read<A: Acc>(source: &dyn Source<A>, at: isize, step: isize, dst: &mut [A]) {
    match source.plain() {
        Some(data) if step == 1 && A::PARTS == 1 => {
            dst.copy_from_slice(&bytemuck::cast_slice::<A::Part, A>(data)[at as usize..][..dst.len()])
        }
        _ => source.gather(at, step, dst),
    }
}

/// Calls `run` with position, strides and count for each piece of the innermost loop between two linear steps.
fn runs(loops: &[Loop<3>], from: usize, to: usize, run: &mut dyn FnMut([isize; 3], [isize; 3], usize)) {
    let (len, strides) = loops.last().map_or((1, [1; 3]), |l| (l.len, l.strides));
    let mut at = from;
    while at < to {
        let count = (len - at % len).min(to - at).min(CHUNK);
        run(position(loops, at), strides, count);
        at += count;
    }
}

/// Zeros everywhere: a sum without terms.
pub(crate) fn zeros<A: Acc>(job: &Job<'_, A>) {
    let [batch, m, n, _] = job.sizes;
    let zeros = [A::default(); CHUNK];
    for item in 0..batch {
        let base = job.bases(item)[2];
        for i in 0..m {
            let row = base + position(job.plan.m(), i)[2];
            runs(job.plan.n(), 0, n, &mut |at, strides, count| job.out.scatter(row + at[2], strides[2], &zeros[..count]));
        }
    }
}
