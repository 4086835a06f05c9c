//! The result's memory, shared by tasks that write disjoint parts of it.

use std::marker::PhantomData;

use bytemuck::Pod;

/// Memory of a result that several tasks write at once.
///
/// Invariant, kept by every driver in this folder: the tasks of one call split the index space of the result, and a
/// plan's result doesn't overlap itself, so no position is touched by two tasks.
pub(crate) struct Shared<'a, T> {
    first: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: tasks on different threads touch different positions (the type's invariant), and `T` may be sent.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: it stands for an exclusive slice, which may be sent.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T: Copy> Shared<'a, T> {
    /// All of a slice.
    #[inline]
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        Shared { first: data.as_mut_ptr(), len: data.len(), life: PhantomData }
    }

    /// Elements.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first element.
    #[inline]
    pub(crate) fn as_ptr(&self) -> *mut T {
        self.first
    }

    /// The same memory of halves as their bits.
    #[inline]
    pub(crate) fn bits(&self) -> Shared<'a, u16>
    where
        T: Pod,
    {
        assert!(size_of::<T>() == size_of::<u16>() && align_of::<T>() == align_of::<u16>());
        Shared { first: self.first.cast(), len: self.len, life: PhantomData }
    }

    /// Writes one element of the running task's.
    #[inline(always)]
    pub(crate) fn write(&self, at: isize, value: T) {
        assert!((at as usize) < self.len);
        // SAFETY: inside the slice, and no other task touches this position.
        unsafe { self.first.offset(at).write(value) }
    }

    /// A run of the running task's elements.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "tasks own disjoint positions, see the type")]
    pub(crate) fn run(&self, at: isize, len: usize) -> &mut [T] {
        assert!(at >= 0 && (at as usize).checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: inside the slice, and no other task touches these positions; callers hold one run at a time.
        unsafe { std::slice::from_raw_parts_mut(self.first.offset(at), len) }
    }
}
