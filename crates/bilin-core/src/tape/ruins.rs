//! Long chains drop without recursion.

use std::any::Any;
use std::cell::RefCell;

use smallvec::SmallVec;

use super::node::Node;
use super::tensor::Tensor;

/// What may hold the last handle of a long chain.
#[expect(dead_code, reason = "held to be dropped")]
pub(super) enum Ruin {
    Node(Node),
    Tensor(Tensor),
    Held(Box<dyn Any + Send>),
}

#[derive(Default)]
struct Ruins {
    /// Somebody empties the list.
    is_emptied: bool,
    list: Vec<Ruin>,
}

thread_local! {
    /// What dropped nodes leave behind.
    static RUINS: RefCell<Ruins> = RefCell::default();
}

/// Drops what an op holds, which may be tensors and through them long chains of nodes.
pub(crate) fn clear_held(held: Box<dyn Any + Send>) {
    clear(smallvec::smallvec![Ruin::Held(held)]);
}

pub(super) fn clear(ruins: SmallVec<[Ruin; 4]>) {
    if ruins.is_empty() {
        return;
    }
    let is_outermost = RUINS.try_with(|r| {
        let mut r = r.borrow_mut();
        r.list.extend(ruins);
        !std::mem::replace(&mut r.is_emptied, true)
    });
    if is_outermost != Ok(true) {
        return;
    }
    while let Some(ruin) = RUINS.with(|r| r.borrow_mut().list.pop()) {
        drop(ruin);
    }
    RUINS.with(|r| {
        let mut r = r.borrow_mut();
        r.is_emptied = false;
        r.list.shrink_to(64);
    });
}
