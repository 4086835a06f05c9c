//! Which axis of which operand of a contraction is which: three lists of labels.

use super::layout::Dims;
use super::list::List;

/// One axis of an operand: a labelled loop, or a length-1 axis without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Axis {
    /// A loop; equal labels are the same loop.
    Label(u16),
    /// Length 1, no loop: a new axis, or one that broadcasts against a longer one.
    #[default]
    Unit,
}

/// A list of axes.
pub type Axes = List<Axis, 6>;

/// What a label does in a contraction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Role {
    /// In all three lists.
    #[default]
    Batch,
    /// In lhs and out.
    M,
    /// In rhs and out.
    N,
    /// In lhs and rhs: summed.
    K,
}

/// A contraction: out[..] = Σ over labels absent from `out` of lhs[..]·rhs[..].
///
/// Each label is unique within a list and stands in at least two of the three.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Spec {
    lhs: Axes,
    rhs: Axes,
    out: Axes,
    /// The labels: those of the result in its order, then those that are summed in the order of lhs. Found once, since every call
    /// asks.
    loops: List<Places, 6>,
}

/// Where a label stands in lhs, rhs and out, [`ABSENT`] where it doesn't, and so what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Places {
    pub(super) at: [u16; 3],
    pub(super) role: Role,
}

/// No place in a list.
const ABSENT: u16 = u16::MAX;

impl Places {
    fn new(at: [u16; 3]) -> Places {
        let role = match at.map(|place| place != ABSENT) {
            [true, true, true] => Role::Batch,
            [_, _, false] => Role::K,
            [_, false, _] => Role::M,
            [false, _, _] => Role::N,
        };
        Places { at, role }
    }
}

impl Spec {
    /// A spec from its three lists; `None` where a label repeats within a list or stands in one list only, or where a list has
    /// 65,535 axes or more.
    pub fn new(lhs: Axes, rhs: Axes, out: Axes) -> Option<Spec> {
        let lists = [&lhs, &rhs, &out];
        for list in lists {
            for (i, axis) in list.iter().enumerate() {
                if let Axis::Label(_) = axis {
                    let lists_with = lists.iter().filter(|l| l.contains(axis)).count();
                    if list[..i].contains(axis) || lists_with < 2 {
                        return None;
                    }
                }
            }
            if list.len() >= usize::from(ABSENT) {
                return None;
            }
        }
        let places = |axis: &Axis| Places::new(lists.map(|list| list.iter().position(|a| a == axis).map_or(ABSENT, |at| at as u16)));
        let summed = lhs.iter().filter(|axis| !out.contains(axis));
        let loops = out.iter().chain(summed).filter(|axis| **axis != Axis::Unit).map(places).collect();
        Some(Spec { lhs, rhs, out, loops })
    }

    /// (m, k)·(k, n) → (m, n).
    pub fn matrices() -> Spec {
        let list = |a, b| Axes::from_slice(&[Axis::Label(a), Axis::Label(b)]);
        let loops = [[0, ABSENT, 0], [ABSENT, 1, 1], [1, 0, ABSENT]].into_iter().map(Places::new).collect();
        Spec { lhs: list(0, 2), rhs: list(2, 1), out: list(0, 1), loops }
    }

    /// Axes of the left operand.
    pub fn lhs(&self) -> &[Axis] {
        &self.lhs
    }

    /// Axes of the right operand.
    pub fn rhs(&self) -> &[Axis] {
        &self.rhs
    }

    /// Axes of the result.
    pub fn out(&self) -> &[Axis] {
        &self.out
    }

    /// The role of a label.
    pub fn role(&self, label: u16) -> Role {
        let axis = Axis::Label(label);
        match (self.lhs.contains(&axis), self.rhs.contains(&axis), self.out.contains(&axis)) {
            (true, true, false) => Role::K,
            (true, false, _) => Role::M,
            (false, true, _) => Role::N,
            _ => Role::Batch,
        }
    }

    /// The labels, in the order in which a plan takes them.
    #[inline]
    pub(super) fn loops(&self) -> &[Places] {
        &self.loops
    }

    /// The labels after the lists have changed their places: that at `from[i]` stands at `i` now.
    fn turned(&self, from: [usize; 3]) -> List<Places, 6> {
        let mut loops = self.loops.clone();
        let all = &mut loops[..];
        let key = |places: &Places| u32::from(places.at[2]) << 16 | u32::from(places.at[0]);
        // They are few. What is absent from the result comes last.
        for i in 0..all.len() {
            let next = Places::new(from.map(|place| all[i].at[place]));
            let mut at = i;
            while at > 0 && key(&next) < key(&all[at - 1]) {
                all[at] = all[at - 1];
                at -= 1;
            }
            all[at] = next;
        }
        loops
    }

    /// The spec of ∂lhs = contract(G, rhs): (out, rhs → lhs).
    pub fn for_lhs_grad(&self) -> Spec {
        Spec { lhs: self.out.clone(), rhs: self.rhs.clone(), out: self.lhs.clone(), loops: self.turned([2, 1, 0]) }
    }

    /// The spec of ∂rhs = contract(lhs, G): (lhs, out → rhs).
    pub fn for_rhs_grad(&self) -> Spec {
        Spec { lhs: self.lhs.clone(), rhs: self.out.clone(), out: self.rhs.clone(), loops: self.turned([0, 2, 1]) }
    }

    /// The result's shape, given the operands'; axes of one label have been checked to agree.
    #[inline]
    pub fn out_shape(&self, lhs: &[usize], rhs: &[usize]) -> Dims {
        let mut shape = Dims::from_elem(1, self.out.len());
        let lens = &mut shape[..];
        for places in &self.loops {
            let [l, r, o] = places.at.map(usize::from);
            if let Some(len) = lens.get_mut(o) {
                *len = lhs.get(l).or_else(|| rhs.get(r)).copied().unwrap_or(1);
            }
        }
        shape
    }
}
