//! The same values behind other strides.

use bilin::{DType, Index, Kind, Tensor};

use crate::samples::{Number, tensor_of};

/// How the elements of an operand stand in its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strides {
    /// Row-major from offset 0.
    Contiguous,
    /// Column-major.
    Transposed,
    /// Every second element from an offset, in a buffer whose other elements are poison.
    Sliced,
    /// All strides negative.
    Negative,
    /// All strides negative and two elements apart, in poison.
    NegativeSliced,
    /// Column-major and every second element, in poison.
    TransposedSliced,
}

impl Strides {
    /// Every class that keeps the values.
    pub const ALL: [Strides; 6] =
        [Strides::Contiguous, Strides::Transposed, Strides::Sliced, Strides::Negative, Strides::NegativeSliced, Strides::TransposedSliced];

    /// The class `by` places further on, around the list.
    pub fn after(self, by: usize) -> Strides {
        let at = Strides::ALL.iter().position(|s| *s == self).unwrap_or(0);
        Strides::ALL[(at + by) % Strides::ALL.len()]
    }
}

/// What fills the gaps: NaN, and for integers a number that is out of range as a position.
fn poison(dtype: DType) -> Number {
    let mut n = Number { z: bilin::c128::new(f64::NAN, f64::NAN), n: i64::MAX };
    if matches!(dtype.kind(), Kind::Int | Kind::Bool) {
        n.z = bilin::c128::new(0.0, 0.0);
    }
    n
}

fn flipped(x: &Tensor) -> Tensor {
    (0..x.rank()).fold(x.clone(), |x, axis| x.flip(axis as isize).expect("flip"))
}

fn sliced(x: &Tensor) -> Tensor {
    let room: Vec<usize> = std::iter::once(3).chain(x.shape().iter().map(|len| 2 * len + 2)).collect();
    let count = room.iter().product();
    let buffer = tensor_of(&vec![poison(x.dtype()); count], &room, x.dtype(), x.device());
    let items: Vec<Index> = std::iter::once(Index::At(1))
        .chain(x.shape().iter().map(|&len| Index::Slice { start: Some(1), stop: Some(2 * len as isize + 1), step: 2 }))
        .collect();
    let view = buffer.index(&items).expect("a slice");
    view.copy_(x).expect("copy_");
    view
}

fn copy(x: &Tensor) -> Tensor {
    x.copy().expect("copy")
}

/// A view with the values of `x` (which is contiguous) in the class `strides`.
pub fn with_strides(x: &Tensor, strides: Strides) -> Tensor {
    match strides {
        Strides::Contiguous => copy(x),
        Strides::Transposed => copy(&x.t().expect("t")).t().expect("t"),
        Strides::Sliced => sliced(x),
        Strides::Negative => flipped(&copy(&flipped(x))),
        Strides::NegativeSliced => flipped(&sliced(&copy(&flipped(x)))),
        Strides::TransposedSliced => sliced(&copy(&x.t().expect("t"))).t().expect("t"),
    }
}

/// Views of stride 0 on one axis of `x`, or on all of them: the first position is repeated, so the values are others.
pub fn repeated(x: &Tensor) -> Vec<Tensor> {
    let long: Vec<usize> = (0..x.rank()).filter(|&a| x.shape()[a] > 1).collect();
    let first = |x: &Tensor, axis: usize| x.narrow(axis as isize, 0, 1).expect("narrow");
    let mut views: Vec<Tensor> = long.iter().map(|&a| first(x, a)).collect();
    if long.len() > 1 {
        views.push(long.iter().fold(x.clone(), |x, &a| first(&x, a)));
    }
    views.iter().map(|v| copy(v).broadcast_to(x.shape()).expect("broadcast_to")).collect()
}
