//! Products of so few terms that to arrange a tile takes longer than they do: one chain of fused multiply-adds after the other, on
//! operands as they stand.

use bilin_core::shape::plan::Loop;

use super::disjoint::Shared;
use super::element::Acc;
use super::job::Job;
use crate::arch::Work;

/// Multiply-adds up to which this pays.
const MOST: usize = 64;
/// And of two matrices of which tiles would want one packed.
const MOST_PACKED: usize = 7 * 7 * 7;

/// Strides of m, n and k; zero where there is no loop.
pub(crate) type Strides = [[isize; 3]; 3];

/// Whether, and how, a job is so small and its operands stand in memory as accumulators.
pub(crate) fn accepts<A: Acc>(job: &Job<'_, A>) -> Option<Strides> {
    let [batch, m, n, k] = job.sizes;
    if A::PARTS != 1 || batch != 1 || m.saturating_mul(n).saturating_mul(k) > MOST_PACKED {
        return None;
    }
    job.lhs.plain()?;
    job.rhs.plain()?;
    job.out.plain()?;
    let only = |loops: &[Loop<3>]| match loops {
        [] => Some([0; 3]),
        [one] => Some(one.strides),
        _ => None,
    };
    let strides @ [by_m, by_n, _] = [only(job.plan.m())?, only(job.plan.n())?, only(job.plan.k())?];
    let is_packed = [by_n[1], by_n[2]] != [1, 1] && [by_m[0], by_m[2]] != [1, 1];
    (m * n * k <= MOST || (is_packed && m.min(n) > 1)).then_some(strides)
}

struct Sums<'a, 'b, A: Acc> {
    lhs: &'a [A],
    rhs: &'a [A],
    out: &'a Shared<'b, A::Part>,
    offsets: [usize; 3],
    sizes: [usize; 4],
    strides: Strides,
    adds: bool,
}

impl<A: Acc> Work for Sums<'_, '_, A> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let Sums { lhs, rhs, out, offsets, sizes: [_, m, n, k], strides: [by_m, by_n, by_k], adds } = self;
        let [mut lhs_row, first_column, mut out_row] = offsets.map(|o| o as isize);
        for _ in 0..m {
            let (mut rhs_column, mut at) = (first_column, out_row);
            for _ in 0..n {
                let (mut sum, mut l, mut r) = (A::NEUTRAL, lhs_row, rhs_column);
                for _ in 0..k {
                    sum = A::mul_add(lhs[l as usize], rhs[r as usize], sum);
                    (l, r) = (l + by_k[0], r + by_k[1]);
                }
                let to: &mut [A] = bytemuck::cast_slice_mut(out.run(at, 1));
                to[0] = if adds { to[0].plus(sum) } else { sum };
                (rhs_column, at) = (rhs_column + by_n[1], at + by_n[2]);
            }
            (lhs_row, out_row) = (lhs_row + by_m[0], out_row + by_m[2]);
        }
    }
}

/// Runs a job that [`accepts`] took.
pub(crate) fn run<A: Acc>(job: &Job<'_, A>, strides: Strides) -> Option<()> {
    let (lhs, rhs, out) = (job.lhs.plain()?, job.rhs.plain()?, job.out.plain()?);
    let (lhs, rhs): (&[A], &[A]) = (bytemuck::cast_slice(lhs), bytemuck::cast_slice(rhs));
    job.isa.with(Sums { lhs, rhs, out, offsets: job.plan.offsets(), sizes: job.sizes, strides, adds: job.adds });
    Some(())
}
