//! One sum per step of the batch: dot products. Several chains of fused multiply-adds run at once, across blocks of k
//! and across the batch; each keeps its order.

use super::element::Acc;
use super::job::Job;
use crate::arch::Work;
use crate::threads;

/// Chains that run at once.
const CHAINS: usize = 8;
/// Terms that are gathered at once where operands can't be read in place.
const GATHERED: usize = 64;
/// Block sums kept before they are added up.
const SUMS: usize = 256;

/// Strides of lhs and rhs along k, where k is one loop.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>) -> Option<[isize; 2]> {
    let [_, m, n, _] = job.sizes;
    match job.plan.k() {
        [k] if m == 1 && n == 1 => Some([k.strides[0], k.strides[1]]),
        _ => None,
    }
}

/// Eight chains over slices of one length.
struct Chains<'a, A> {
    a: [&'a [A]; CHAINS],
    b: [&'a [A]; CHAINS],
    acc: [A; CHAINS],
}

impl<A: Acc> Work for Chains<'_, A> {
    type Output = [A; CHAINS];
    #[inline(always)]
    fn run(self) -> [A; CHAINS] {
        let Chains { mut a, mut b, mut acc } = self;
        let len = a[0].len();
        for i in 0..CHAINS {
            (a[i], b[i]) = (&a[i][..len], &b[i][..len]);
        }
        for t in 0..len {
            for i in 0..CHAINS {
                acc[i] = A::mul_add(a[i][t], b[i][t], acc[i]);
            }
        }
        acc
    }
}

/// Sums of `terms` terms from up to eight pairs of positions.
fn sums<A: Acc>(job: &Job<'_, A>, steps: [isize; 2], terms: usize, at: &[[isize; 2]]) -> [A; CHAINS] {
    let pair = |i: usize| at[i.min(at.len() - 1)];
    let mut acc = [A::NEUTRAL; CHAINS];
    if let (Some(a), Some(b), [1, 1], 1) = (job.lhs.plain(), job.rhs.plain(), steps, A::PARTS) {
        let (a, b): (&[A], &[A]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
        let a = std::array::from_fn(|i| &a[pair(i)[0] as usize..][..terms]);
        let b = std::array::from_fn(|i| &b[pair(i)[1] as usize..][..terms]);
        return job.isa.with(Chains { a, b, acc });
    }
    let mut a = [[A::default(); GATHERED]; CHAINS];
    let mut b = a;
    for from in (0..terms).step_by(GATHERED) {
        let count = GATHERED.min(terms - from);
        for (i, &[x, y]) in at.iter().enumerate() {
            job.lhs.gather(x + from as isize * steps[0], steps[0], &mut a[i][..count]);
            job.rhs.gather(y + from as isize * steps[1], steps[1], &mut b[i][..count]);
        }
        acc = job.isa.with(Chains { a: a.each_ref().map(|x| &x[..count]), b: b.each_ref().map(|x| &x[..count]), acc });
    }
    acc
}

/// Sums of consecutive blocks of one pair of vectors.
fn block_sums<A: Acc>(job: &Job<'_, A>, steps: [isize; 2], base: [isize; 3], first: usize, k: usize, dst: &mut [A]) {
    let start = |block: usize| {
        let from = (block * A::BLOCK) as isize;
        [base[0] + from * steps[0], base[1] + from * steps[1]]
    };
    let full = dst.len().min((k / A::BLOCK).saturating_sub(first));
    for from in (0..full).step_by(CHAINS) {
        let count = CHAINS.min(full - from);
        let at: [[isize; 2]; CHAINS] = std::array::from_fn(|i| start(first + (from + i).min(full - 1)));
        let got = sums(job, steps, A::BLOCK, &at[..count]);
        dst[from..from + count].copy_from_slice(&got[..count]);
    }
    if full < dst.len() {
        dst[full] = sums(job, steps, k % A::BLOCK, &[start(first + full)])[0];
    }
}

/// Runs a job that [`accepts`] took.
pub(crate) fn run<A: Acc>(job: &Job<'_, A>, steps: [isize; 2]) -> Option<()> {
    let [batch, _, _, k] = job.sizes;
    if k <= A::BLOCK {
        let groups = batch.div_ceil(CHAINS);
        threads::for_each(groups, CHAINS * k * A::PARTS, &|group| {
            let from = group * CHAINS;
            let count = CHAINS.min(batch - from);
            let bases: [[isize; 3]; CHAINS] = std::array::from_fn(|i| job.bases((from + i).min(batch - 1)));
            let at = bases.map(|b| [b[0], b[1]]);
            let got = sums(job, steps, k, &at[..count]);
            for (base, sum) in bases.iter().zip(got).take(count) {
                job.out.scatter(base[2], 1, &[sum]);
            }
        });
        return Some(());
    }
    let blocks = k.div_ceil(A::BLOCK);
    if batch == 1 && blocks >= 4 * CHAINS && k >= threads::SERIAL_BELOW && threads::current_threads() > 1 {
        return one(job, steps, blocks, k);
    }
    threads::for_each(batch, k * A::PARTS, &|item| {
        let base = job.bases(item);
        let mut total = A::default();
        let mut kept = [A::default(); SUMS];
        for first in (0..blocks).step_by(SUMS) {
            let some = &mut kept[..SUMS.min(blocks - first)];
            block_sums(job, steps, base, first, k, some);
            total = folded(total, first == 0, some);
        }
        job.out.scatter(base[2], 1, &[total]);
    });
    Some(())
}

/// Total and block sums, left to right.
fn folded<A: Acc>(total: A, is_first: bool, sums: &[A]) -> A {
    match sums {
        [head, rest @ ..] if is_first => rest.iter().fold(*head, |t, &s| t.plus(s)),
        _ => sums.iter().fold(total, |t, &s| t.plus(s)),
    }
}

/// One long pair of vectors on several threads: block sums by thread, added up by one.
fn one<A: Acc>(job: &Job<'_, A>, steps: [isize; 2], blocks: usize, k: usize) -> Option<()> {
    const TURN: usize = 64 * SUMS;
    let base = job.bases(0);
    let mut kept: Vec<A> = Vec::new();
    kept.try_reserve_exact(TURN.min(blocks)).ok()?;
    kept.resize(TURN.min(blocks), A::default());
    let mut total = A::default();
    for first in (0..blocks).step_by(TURN) {
        let some = &mut kept[..TURN.min(blocks - first)];
        threads::for_each_chunk(some, 4 * CHAINS, A::BLOCK, &|at, part| block_sums(job, steps, base, first + at, k, part));
        total = folded(total, first == 0, some);
    }
    job.out.scatter(base[2], 1, &[total]);
    Some(())
}
