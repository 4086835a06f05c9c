//! In which order to contract the operands of an einsum, two at a time.
//!
//! An axis of length 1 has no loop, so a term's labels are counted here without its length-1 axes and without repeats
//! ([`live_labels`]); every other axis of a label has the label's full length. What a partial product of some terms
//! keeps then depends on the set of terms only, not on the order in which they were contracted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Labels;
use super::subscripts::Subscripts;

/// The largest number of operands whose order is found exactly.
pub const MAX_EXACT: usize = 8;

/// One contraction of two operands.
///
/// Operands 0..n are the einsum's; the result of step s is operand n + s. Each operand is used once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The left operand.
    pub lhs: usize,
    /// The right operand.
    pub rhs: usize,
    /// Labels of the result without length-1 axes, as [`surviving`] orders them; in the last step as the output does.
    pub labels: Labels,
}

/// An order of contraction with its cost. Numbers that pass `u128` stay at its maximum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The contractions; none for a single operand.
    pub steps: Vec<Step>,
    /// Sum over the steps of 2 · product of the lengths of the step's labels. A label that is in one term and not in
    /// the output is summed before the first step and is in none.
    pub flops: u128,
    /// Elements of the largest result of a step, the einsum's own included.
    pub peak_elements: u128,
}

/// Labels of term `term`, each once, without those whose axis has length 1 in `shape`.
pub fn live_labels(sub: &Subscripts, term: usize, shape: &[usize]) -> Labels {
    let mut live = Labels::new();
    for (axis, &label) in sub.terms.get(term).into_iter().flatten().enumerate() {
        let len = shape.get(axis).or_else(|| sub.lens.get(usize::from(label)));
        if len.is_some_and(|&l| l != 1) && !live.contains(&label) {
            live.push(label);
        }
    }
    live
}

/// Labels that the contraction of `lhs` with `rhs` keeps: those that a remaining operand or the output holds, the
/// labels of `lhs` first, each once.
pub fn surviving(lhs: &[u16], rhs: &[u16], rest: &[&[u16]], out: &[u16]) -> Labels {
    union(lhs, rhs).into_iter().filter(|l| out.contains(l) || rest.iter().any(|r| r.contains(l))).collect()
}

/// Finds the order of contraction for operands of the given shapes, which are those that `sub` was parsed for.
///
/// Up to [`MAX_EXACT`] operands: fewest flops over all orders, outer products included; among those the lowest peak,
/// then the fewest outer products, then the smaller right side and the lowest operands. Above: NumPy's greedy rule,
/// the pair whose result removes most elements, then the cheapest, then the lowest; operands without a common label are
/// multiplied when no others are left.
///
/// # Cost
/// Exact: O(3ⁿ · c) for n operands and c distinct sets of terms that share a label (c ≤ 2ⁿ⁺¹). Greedy:
/// O(n² · (r + log n)) time and O(n²) memory, r the labels an operand has.
pub fn find(sub: &Subscripts, shapes: &[&[usize]]) -> Path {
    let network = Network::new(sub, shapes);
    let pairs = if network.terms.len() <= MAX_EXACT { network.exact() } else { network.greedy() };
    network.path(&pairs)
}

fn union(lhs: &[u16], rhs: &[u16]) -> Labels {
    let mut all = Labels::new();
    for &label in lhs.iter().chain(rhs) {
        if !all.contains(&label) {
            all.push(label);
        }
    }
    all
}

fn share(lhs: &[u16], rhs: &[u16]) -> bool {
    lhs.iter().any(|l| rhs.contains(l))
}

fn signed(elements: u128) -> i128 {
    i128::try_from(elements).unwrap_or(i128::MAX)
}

/// What the search reads of an einsum.
struct Network {
    /// Live labels of each term, without those that are in no other term and not in the output.
    terms: Vec<Labels>,
    /// Live labels of the output, in its order.
    out: Labels,
    /// Whether the output holds a label, by id.
    in_out: Vec<bool>,
    /// Length of each label, by id.
    lens: Vec<usize>,
}

/// The operands during a contraction.
struct Operands<'a> {
    network: &'a Network,
    /// By index; `None` once used.
    labels: Vec<Option<Labels>>,
    /// How many unused operands hold a label, by id.
    holders: Vec<usize>,
}

/// A pair that the greedy search may contract; the greatest comes first: elements removed, cost, operands.
type Candidate = (i128, Reverse<u128>, Reverse<(usize, usize)>);

/// The best way to contract a set of operands; less is better.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Best {
    flops: u128,
    peak: u128,
    outer_products: u32,
    rhs_size: u32,
    /// Sets of operands as bits.
    lhs: usize,
    rhs: usize,
}

impl Network {
    fn new(sub: &Subscripts, shapes: &[&[usize]]) -> Network {
        let mut terms: Vec<Labels> = (0..sub.terms.len()).map(|t| live_labels(sub, t, shapes.get(t).copied().unwrap_or(&[]))).collect();
        let top = sub.terms.iter().flatten().chain(&sub.out).max().map_or(0, |&l| usize::from(l) + 1);
        let mut lens = sub.lens.clone();
        lens.resize(lens.len().max(top), 1);
        let out: Labels = sub.out.iter().copied().filter(|&l| lens[usize::from(l)] != 1).collect();
        let mut in_out = vec![false; lens.len()];
        for &label in &out {
            in_out[usize::from(label)] = true;
        }
        let holders = holders(&terms, lens.len());
        for term in &mut terms {
            term.retain(|l| in_out[usize::from(*l)] || holders[usize::from(*l)] > 1);
        }
        Network { terms, out, in_out, lens }
    }

    fn elements(&self, labels: &[u16]) -> u128 {
        labels.iter().fold(1, |n: u128, &l| n.saturating_mul(self.lens[usize::from(l)] as u128))
    }

    fn operands(&self) -> Operands<'_> {
        Operands { network: self, labels: self.terms.iter().cloned().map(Some).collect(), holders: holders(&self.terms, self.lens.len()) }
    }

    /// The path that contracts these pairs in turn.
    fn path(&self, pairs: &[(usize, usize)]) -> Path {
        let mut operands = self.operands();
        let mut path = Path { steps: Vec::with_capacity(pairs.len()), flops: 0, peak_elements: self.elements(&self.out) };
        for (at, &(lhs, rhs)) in pairs.iter().enumerate() {
            let Some((all, mut labels)) = operands.contract(lhs, rhs) else { continue };
            path.flops = path.flops.saturating_add(self.elements(&all).saturating_mul(2));
            path.peak_elements = path.peak_elements.max(self.elements(&labels));
            if at + 1 == pairs.len() {
                labels = self.out.clone();
            }
            path.steps.push(Step { lhs, rhs, labels });
        }
        path
    }

    /// Labels by the set of terms that hold them: (terms as bits, whether the output holds them, elements).
    fn classes(&self) -> Vec<(usize, bool, u128)> {
        let mut bits = vec![0usize; self.lens.len()];
        for (t, term) in self.terms.iter().enumerate() {
            for &label in term {
                bits[usize::from(label)] |= 1 << t;
            }
        }
        let mut sets: Vec<(usize, bool, u128)> = Vec::new();
        let mut labels: Vec<usize> = (0..bits.len()).filter(|&l| bits[l] != 0).collect();
        labels.sort_unstable_by_key(|&l| (bits[l], self.in_out[l]));
        for label in labels {
            let (set, kept, len) = (bits[label], self.in_out[label], self.lens[label] as u128);
            match sets.last_mut() {
                Some(last) if (last.0, last.1) == (set, kept) => last.2 = last.2.saturating_mul(len),
                _ => sets.push((set, kept, len)),
            }
        }
        sets
    }

    /// The best order over all, by dynamic programming over subsets of the operands. At most [`MAX_EXACT`] operands.
    fn exact(&self) -> Vec<(usize, usize)> {
        let n = self.terms.len();
        let classes = self.classes();
        let held = |set: usize, class: &(usize, bool, u128)| class.0 & set != 0 && (class.1 || class.0 & !set != 0);
        let product = |of: &dyn Fn(&(usize, bool, u128)) -> bool| {
            classes.iter().filter(|class| of(class)).fold(1, |n: u128, class| n.saturating_mul(class.2))
        };
        let single = Best { flops: 0, peak: 0, outer_products: 0, rhs_size: 0, lhs: 0, rhs: 0 };
        let mut best = vec![single; 1 << n];
        // Subsets of a set are smaller numbers, so they are done first.
        for set in 1usize..1 << n {
            if set.is_power_of_two() {
                continue;
            }
            let elements = product(&|class| held(set, class));
            let lowest = set & set.wrapping_neg();
            let mut chosen: Option<Best> = None;
            let mut rhs = (set - 1) & set;
            while rhs != 0 {
                let lhs = set & !rhs;
                if lhs & lowest != 0 {
                    let (a, b) = (best[lhs], best[rhs]);
                    let cost = product(&|class| held(lhs, class) || held(rhs, class)).saturating_mul(2);
                    let outer = !classes.iter().any(|class| held(lhs, class) && held(rhs, class));
                    let split = Best {
                        flops: a.flops.saturating_add(b.flops).saturating_add(cost),
                        peak: a.peak.max(b.peak).max(elements),
                        outer_products: a.outer_products + b.outer_products + u32::from(outer),
                        rhs_size: rhs.count_ones(),
                        lhs,
                        rhs,
                    };
                    if chosen.is_none_or(|c| split < c) {
                        chosen = Some(split);
                    }
                }
                rhs = (rhs - 1) & set;
            }
            best[set] = chosen.unwrap_or(single);
        }
        let mut pairs = Vec::new();
        if n > 1 {
            emit(&best, (1 << n) - 1, n, &mut pairs);
        }
        pairs
    }

    /// NumPy's greedy order.
    fn greedy(&self) -> Vec<(usize, usize)> {
        let n = self.terms.len();
        let mut operands = self.operands();
        let mut pairs = Vec::new();
        let mut outer = false;
        let mut heap = BinaryHeap::new();
        for rhs in 0..n {
            heap.extend((0..rhs).filter_map(|lhs| operands.candidate(lhs, rhs, outer)));
        }
        while pairs.len() + 1 < n {
            let Some((_, _, Reverse((lhs, rhs)))) = heap.pop() else {
                if outer {
                    break;
                }
                // No two operands share a label, and no result will share one with another operand.
                outer = true;
                let all = operands.labels.len();
                let live: Vec<usize> = (0..all).filter(|&i| operands.labels[i].is_some()).collect();
                for (at, &rhs) in live.iter().enumerate() {
                    heap.extend(live[..at].iter().filter_map(|&lhs| operands.candidate(lhs, rhs, outer)));
                }
                continue;
            };
            // A pair's entry holds as long as both are unused: what it removes depends on nothing else.
            if operands.contract(lhs, rhs).is_none() {
                continue;
            }
            pairs.push((lhs, rhs));
            let new = operands.labels.len() - 1;
            heap.extend((0..new).filter_map(|other| operands.candidate(other, new, outer)));
        }
        pairs
    }
}

fn holders(terms: &[Labels], labels: usize) -> Vec<usize> {
    let mut counts = vec![0; labels];
    for &label in terms.iter().flatten() {
        counts[usize::from(label)] += 1;
    }
    counts
}

/// Writes the pairs that contract `set` and returns the index of its result.
fn emit(best: &[Best], set: usize, n: usize, pairs: &mut Vec<(usize, usize)>) -> usize {
    if set.is_power_of_two() {
        return set.trailing_zeros() as usize;
    }
    let lhs = emit(best, best[set].lhs, n, pairs);
    let rhs = emit(best, best[set].rhs, n, pairs);
    pairs.push((lhs, rhs));
    n + pairs.len() - 1
}

impl Operands<'_> {
    fn get(&self, at: usize) -> Option<&Labels> {
        self.labels.get(at).and_then(Option::as_ref)
    }

    /// All labels of a pair and those that its contraction keeps.
    fn result(&self, lhs: &[u16], rhs: &[u16]) -> (Labels, Labels) {
        let all = union(lhs, rhs);
        let needed = |l: &u16| {
            let inside = usize::from(lhs.contains(l)) + usize::from(rhs.contains(l));
            self.network.in_out[usize::from(*l)] || self.holders[usize::from(*l)] > inside
        };
        let kept = all.iter().copied().filter(needed).collect();
        (all, kept)
    }

    /// Replaces two unused operands by their product, added at the end; returns its labels before and after the sum.
    fn contract(&mut self, lhs: usize, rhs: usize) -> Option<(Labels, Labels)> {
        let (a, b) = (self.get(lhs)?, self.get(rhs)?);
        let (all, kept) = self.result(a, b);
        for label in [lhs, rhs].into_iter().filter_map(|at| self.labels[at].take()).flatten() {
            self.holders[usize::from(label)] -= 1;
        }
        for &label in &kept {
            self.holders[usize::from(label)] += 1;
        }
        self.labels.push(Some(kept.clone()));
        Some((all, kept))
    }

    /// The pair as the greedy search ranks it; `None` where one is used, or where they share no label and needn't be
    /// multiplied yet.
    fn candidate(&self, lhs: usize, rhs: usize, outer: bool) -> Option<Candidate> {
        let (a, b) = (self.get(lhs)?, self.get(rhs)?);
        if !outer && !share(a, b) {
            return None;
        }
        let (all, kept) = self.result(a, b);
        let elements = |labels: &[u16]| signed(self.network.elements(labels));
        let removed = elements(a).saturating_add(elements(b)).saturating_sub(elements(&kept));
        Some((removed, Reverse(self.network.elements(&all)), Reverse((lhs, rhs))))
    }
}

#[cfg(test)]
#[path = "path_tests.rs"]
mod tests;
