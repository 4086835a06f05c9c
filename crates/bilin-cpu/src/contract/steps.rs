//! Positions along nested loops.

use bilin_core::exec::order::contract_block_len;
use bilin_core::shape::plan::Loop;

const _: () = assert!(contract_block_len(bilin_core::DType::I32) <= 1024);

/// Fills `dst` with the offsets of operand `which` at linear steps `start..` of nested loops.
pub(crate) fn fill_offsets(loops: &[Loop<3>], which: usize, start: usize, dst: &mut [isize]) {
    let Some((inner, outer)) = loops.split_last() else {
        dst.fill(0);
        return;
    };
    let stride = inner.strides[which];
    let (mut row, mut i) = (start / inner.len, start % inner.len);
    let mut at = 0;
    while at < dst.len() {
        let base = bilin_core::shape::plan::position(outer, row)[which];
        let count = (inner.len - i).min(dst.len() - at);
        for (t, d) in dst[at..at + count].iter_mut().enumerate() {
            *d = base + (i + t) as isize * stride;
        }
        at += count;
        row += 1;
        i = 0;
    }
}

/// Offsets of one operand over some steps, and their common difference where there is one.
#[derive(Clone, Copy)]
pub(crate) struct Steps<'a> {
    /// The offsets.
    pub at: &'a [isize],
    /// Difference of neighbours; 1 where there is a single step.
    pub stride: Option<isize>,
}

impl<'a> Steps<'a> {
    /// Fills `dst` as [`fill_offsets`] does.
    pub(crate) fn filled(loops: &[Loop<3>], which: usize, start: usize, dst: &'a mut [isize]) -> Steps<'a> {
        fill_offsets(loops, which, start, dst);
        Steps::of(loops, which, dst)
    }

    /// From what [`fill_offsets`] has filled.
    pub(crate) fn of(loops: &[Loop<3>], which: usize, at: &'a [isize]) -> Steps<'a> {
        match loops {
            [one] => Steps { at, stride: Some(if at.len() <= 1 { 1 } else { one.strides[which] }) },
            _ => Steps::new(at),
        }
    }

    /// From offsets.
    pub(crate) fn new(at: &'a [isize]) -> Steps<'a> {
        let stride = match at {
            [] | [_] => Some(1),
            [a, b, ..] => {
                let d = b - a;
                at.windows(2).all(|w| w[1] - w[0] == d).then_some(d)
            }
        };
        Steps { at, stride }
    }

    /// Length of the pieces, the last perhaps shorter, in which neighbours are 1 apart; at least 1.
    pub(crate) fn run(&self) -> usize {
        match self.stride {
            Some(1) => return self.at.len().max(1),
            Some(_) => return 1,
            None => {}
        }
        let is_next = |w: &[isize]| w[1] - w[0] == 1;
        let run = 1 + self.at.windows(2).take_while(|w| is_next(w)).count();
        if self.at.chunks(run).all(|piece| piece.windows(2).all(is_next)) { run } else { 1 }
    }

    /// A part of them.
    pub(crate) fn part(&self, from: usize, len: usize) -> Steps<'a> {
        let at = &self.at[from..from + len];
        if self.stride.is_some() { Steps { at, stride: if len == 1 { Some(1) } else { self.stride } } } else { Steps::new(at) }
    }
}
