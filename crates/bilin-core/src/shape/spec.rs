//! Which axis of which operand of a contraction is which: three lists of labels.

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// In all three lists.
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
}

impl Spec {
    /// A spec from its three lists; `None` where a label repeats within a list or stands in one list only.
    pub fn new(lhs: Axes, rhs: Axes, out: Axes) -> Option<Spec> {
        let spec = Spec { lhs, rhs, out };
        let lists = [&spec.lhs, &spec.rhs, &spec.out];
        for list in lists {
            for (i, axis) in list.iter().enumerate() {
                if let Axis::Label(_) = axis {
                    let lists_with = lists.iter().filter(|l| l.contains(axis)).count();
                    if list[..i].contains(axis) || lists_with < 2 {
                        return None;
                    }
                }
            }
        }
        Some(spec)
    }

    /// (m, k)·(k, n) → (m, n).
    pub fn matrices() -> Spec {
        let list = |a, b| Axes::from_slice(&[Axis::Label(a), Axis::Label(b)]);
        Spec { lhs: list(0, 2), rhs: list(2, 1), out: list(0, 1) }
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

    /// The spec of ∂lhs = contract(G, rhs): (out, rhs → lhs).
    pub fn for_lhs_grad(&self) -> Spec {
        Spec { lhs: self.out.clone(), rhs: self.rhs.clone(), out: self.lhs.clone() }
    }

    /// The spec of ∂rhs = contract(lhs, G): (lhs, out → rhs).
    pub fn for_rhs_grad(&self) -> Spec {
        Spec { lhs: self.lhs.clone(), rhs: self.out.clone(), out: self.rhs.clone() }
    }

    /// The result's shape, given the operands'; axes of one label have been checked to agree.
    pub fn out_shape(&self, lhs: &[usize], rhs: &[usize]) -> super::layout::Dims {
        let find = |axis: &Axis| {
            let at = |list: &Axes, shape: &[usize]| list.iter().position(|a| a == axis).and_then(|i| shape.get(i).copied());
            match axis {
                Axis::Unit => 1,
                Axis::Label(_) => at(&self.lhs, lhs).or_else(|| at(&self.rhs, rhs)).unwrap_or(1),
            }
        };
        self.out.iter().map(find).collect()
    }
}
