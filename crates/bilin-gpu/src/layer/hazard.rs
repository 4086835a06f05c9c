//! Which recorded work must wait for which.

use std::ops::Range;

use super::kernel::Access;

/// What one piece of work does to bytes of a memory.
#[derive(Debug, Clone)]
pub(crate) struct Touch {
    pub memory: u64,
    pub bytes: Range<u64>,
    pub access: Access,
}

impl Touch {
    /// Whether the order of the two matters: they share a byte and one of them writes it.
    pub(crate) fn conflicts(&self, other: &Touch) -> bool {
        let is_shared = self.memory == other.memory && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end;
        is_shared && (self.access.writes() || other.access.writes())
    }
}

/// What was touched since the last barrier.
#[derive(Debug, Default)]
pub(crate) struct Hazards {
    touched: Vec<Touch>,
}

impl Hazards {
    /// Adds work. True where it has to wait: a barrier then stands before it, and it is the first after that.
    pub(crate) fn add(&mut self, touches: impl Iterator<Item = Touch> + Clone) -> bool {
        let waits = touches.clone().any(|t| self.touched.iter().any(|u| u.conflicts(&t)));
        if waits {
            self.touched.clear();
        }
        self.touched.extend(touches);
        waits
    }

    /// A barrier; false where nothing stands before it.
    pub(crate) fn clear(&mut self) -> bool {
        let has_work = !self.touched.is_empty();
        self.touched.clear();
        has_work
    }
}

#[cfg(test)]
mod tests {
    use super::{Hazards, Touch};
    use crate::Access::{Read, ReadWrite};

    fn touch(memory: u64, bytes: std::ops::Range<u64>, access: crate::Access) -> Touch {
        Touch { memory, bytes, access }
    }

    #[test]
    fn only_a_shared_byte_that_is_written_is_a_hazard() {
        let mut h = Hazards::default();
        let mut add = |touches: &[Touch]| h.add(touches.iter().cloned());
        assert!(!add(&[touch(0, 0..8, Read), touch(1, 0..8, ReadWrite)]));
        assert!(!add(&[touch(0, 0..8, Read), touch(1, 8..16, ReadWrite)]), "a neighbour is no hazard");
        assert!(!add(&[touch(1, 16..17, Read), touch(2, 0..8, ReadWrite)]));
        assert!(add(&[touch(1, 15..17, Read)]), "one byte read after it was written");
        assert!(!add(&[touch(2, 0..8, Read)]), "the barrier before it covers all earlier work");
        assert!(add(&[touch(2, 7..9, ReadWrite)]), "written after it was read");
        assert!(add(&[touch(2, 8..9, ReadWrite)]), "written twice");
        assert!(!add(&[touch(3, 8..9, ReadWrite)]));
        assert!(h.clear() && !h.clear());
    }
}
