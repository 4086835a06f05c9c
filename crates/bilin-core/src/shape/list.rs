//! Short lists of numbers that are copied often: shapes, strides, axes.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};

/// Up to `N` items in place, more on the heap. A list in place clones as one block of memory, which is why this isn't a
/// `SmallVec`, whose clone goes item by item.
#[derive(Clone)]
pub struct List<T, const N: usize>(Items<T, N>);

#[derive(Clone)]
enum Items<T, const N: usize> {
    Here(u8, [T; N]),
    Heap(Vec<T>),
}

impl<T: Copy + Default, const N: usize> List<T, N> {
    /// The empty list.
    #[inline]
    pub fn new() -> Self {
        List(Items::Here(0, [T::default(); N]))
    }

    /// `len` times the same item.
    #[inline]
    pub fn from_elem(item: T, len: usize) -> Self {
        List(if len <= N { Items::Here(len as u8, [item; N]) } else { Items::Heap(vec![item; len]) })
    }

    /// A copy of a slice.
    #[inline]
    pub fn from_slice(items: &[T]) -> Self {
        if items.len() > N {
            return List(Items::Heap(items.to_vec()));
        }
        let mut here = [T::default(); N];
        for (to, from) in here.iter_mut().zip(items) {
            *to = *from;
        }
        List(Items::Here(items.len() as u8, here))
    }

    /// The items.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        self
    }

    /// Adds an item at the end.
    #[inline]
    pub fn push(&mut self, item: T) {
        match &mut self.0 {
            Items::Here(len, here) if usize::from(*len) < N => {
                here[usize::from(*len)] = item;
                *len += 1;
            }
            Items::Here(_, here) => {
                let mut all = here.to_vec();
                all.push(item);
                self.0 = Items::Heap(all);
            }
            Items::Heap(all) => all.push(item),
        }
    }

    /// Takes the last item off.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        match &mut self.0 {
            Items::Here(len, here) => {
                *len = len.checked_sub(1)?;
                Some(here[usize::from(*len)])
            }
            Items::Heap(all) => all.pop(),
        }
    }

    /// Puts an item before position `at`, which is at most the length.
    pub fn insert(&mut self, at: usize, item: T) {
        self.push(item);
        self[at..].rotate_right(1);
    }

    /// Takes the item at `at` out.
    pub fn remove(&mut self, at: usize) -> T {
        let item = self[at];
        self[at..].rotate_left(1);
        self.pop();
        item
    }
}

impl<T: Copy + Default, const N: usize> Default for List<T, N> {
    fn default() -> Self {
        List::new()
    }
}

impl<T, const N: usize> Deref for List<T, N> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        match &self.0 {
            Items::Here(len, here) => here.get(..usize::from(*len)).unwrap_or(here),
            Items::Heap(all) => all,
        }
    }
}

impl<T, const N: usize> AsRef<[T]> for List<T, N> {
    #[inline]
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T, const N: usize> DerefMut for List<T, N> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Items::Here(len, here) => &mut here[..usize::from(*len)],
            Items::Heap(all) => all,
        }
    }
}

impl<T: Copy + Default, const N: usize> Extend<T> for List<T, N> {
    #[inline]
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.push(item));
    }
}

impl<T: Copy + Default, const N: usize> FromIterator<T> for List<T, N> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut list = List::new();
        list.extend(items);
        list
    }
}

impl<T: Copy + Default, const N: usize> From<&[T]> for List<T, N> {
    #[inline]
    fn from(items: &[T]) -> Self {
        List::from_slice(items)
    }
}

impl<'a, T, const N: usize> IntoIterator for &'a List<T, N> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: PartialEq, const N: usize> PartialEq for List<T, N> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}
impl<T: Eq, const N: usize> Eq for List<T, N> {}

impl<T: Hash, const N: usize> Hash for List<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T: fmt::Debug, const N: usize> fmt::Debug for List<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::List;

    /// Every operation agrees with `Vec`, in place, on the heap and across the border.
    #[test]
    fn a_list_is_a_vec() {
        for len in 0..9 {
            let items: Vec<usize> = (1..=len).collect();
            let list: List<usize, 5> = items.iter().copied().collect();
            assert_eq!((&*list, List::from_slice(&items)), (&*items, list.clone()));
            assert_eq!(&*List::<usize, 5>::from_elem(7, len), vec![7; len]);
            for at in 0..=len {
                let (mut a, mut b) = (list.clone(), items.clone());
                a.insert(at, 100);
                b.insert(at, 100);
                assert_eq!(&*a, b);
                assert_eq!((a.remove(at), a.pop(), &*a), (b.remove(at), b.pop(), &*b));
            }
        }
    }
}
