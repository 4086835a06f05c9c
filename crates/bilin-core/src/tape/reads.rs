//! Memory that a function reads: what a checkpoint depends on beside its operands.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::tensor::Tensor;
use crate::exec::storage::Storage;
use crate::schema::modes;
use crate::shape::error::{Error, Result};
use crate::shape::layout::Dims;

/// Memory that was read, each once, in the order of the first read. It isn't held, but its address stays its own.
#[derive(Default)]
pub(crate) struct Reads {
    known: HashSet<usize>,
    list: Vec<(Weak<Storage>, Dims)>,
}

thread_local! {
    static READS: RefCell<Reads> = RefCell::default();
}

/// Notes the operands of an op, while [`reads_of`] runs.
#[cold]
pub(crate) fn note(inputs: &[&Tensor]) {
    READS.with_borrow_mut(|reads| {
        for t in inputs {
            reads.add(Arc::downgrade(&t.view().storage), || Dims::from_slice(t.shape()));
        }
    });
}

/// Runs `f` and tells what its ops read. They nest: what an inner one reads, the outer one does.
pub(crate) fn reads_of<T>(f: impl FnOnce() -> T) -> (T, Reads) {
    /// Puts the outer list back, also when `f` panics.
    struct Outer(Reads);
    impl Drop for Outer {
        fn drop(&mut self) {
            READS.replace(std::mem::take(&mut self.0));
        }
    }
    let mut outer = Outer(READS.take());
    let out = {
        let _mode = modes::set_noting(true);
        f()
    };
    let inner = READS.take();
    if modes::current().notes {
        inner.list.iter().for_each(|(storage, shape)| outer.0.add(storage.clone(), || shape.clone()));
    }
    (out, inner)
}

impl Reads {
    fn add(&mut self, storage: Weak<Storage>, shape: impl FnOnce() -> Dims) {
        if self.known.insert(storage.as_ptr().addr()) {
            self.list.push((storage, shape()));
        }
    }

    /// Those that somebody still holds, with their versions now.
    pub(crate) fn alive(self, but: impl Fn(*const Storage) -> bool) -> Vec<Read> {
        let held = |(storage, shape): (Weak<Storage>, Dims)| {
            let version = storage.upgrade().filter(|s| !but(Arc::as_ptr(s)))?.version();
            Some(Read { storage, version, shape })
        };
        self.list.into_iter().filter_map(held).collect()
    }
}

/// Memory with the version it had, not held.
pub(crate) struct Read {
    storage: Weak<Storage>,
    version: u64,
    shape: Dims,
}

impl Read {
    /// Errors: `VersionMismatch` where it has changed in place since.
    pub(crate) fn check(&self, op: &'static str, operand: usize) -> Result<()> {
        match self.storage.upgrade().map(|s| s.version()) {
            Some(current) if current != self.version => {
                Err(Error::VersionMismatch { op: op.into(), operand, shape: self.shape.to_vec(), saved: self.version, current })
            }
            _ => Ok(()),
        }
    }
}
