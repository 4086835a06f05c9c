//! Working memory of a thread: packed panels, partial sums, offset tables. Kept from call to call.

use std::cell::Cell;

use bytemuck::Pod;

/// Most bytes that a thread keeps between calls.
const KEEP_BYTES: usize = 8 << 20;
/// Alignment of each part.
const LINE: usize = 64;

/// Reusable memory.
#[derive(Default)]
pub(crate) struct Scratch {
    words: Vec<u64>,
    offsets: Vec<isize>,
}

thread_local! {
    static KEPT: Cell<Option<Scratch>> = const { Cell::new(None) };
}

/// Runs `work` with `bytes` bytes, aligned to a cache line, and `offsets` offsets, both of any contents; `None` where
/// the system has no room.
pub(crate) fn with_scratch<R>(bytes: usize, offsets: usize, work: impl FnOnce(&mut [u8], &mut [isize]) -> R) -> Option<R> {
    let mut scratch = KEPT.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let words = (bytes + LINE).div_ceil(8);
    if scratch.words.len() < words {
        scratch.words.try_reserve_exact(words - scratch.words.len()).ok()?;
        scratch.words.resize(words, 0);
    }
    if scratch.offsets.len() < offsets {
        scratch.offsets.try_reserve_exact(offsets - scratch.offsets.len()).ok()?;
        scratch.offsets.resize(offsets, 0);
    }
    let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut scratch.words);
    let skip = memory.as_ptr().align_offset(LINE).min(LINE);
    let result = work(&mut memory[skip..skip + bytes], &mut scratch.offsets[..offsets]);
    if scratch.words.len() * 8 + scratch.offsets.len() * 8 <= KEEP_BYTES {
        let _ = KEPT.try_with(|kept| kept.set(Some(scratch)));
    }
    Some(result)
}

/// Bytes that [`carve`] takes for `count` elements of `T`.
pub(crate) fn carved_bytes<T>(count: usize) -> usize {
    (count * size_of::<T>()).next_multiple_of(LINE)
}

/// The first `count` elements of aligned memory, and the rest, aligned again.
pub(crate) fn carve<T: Pod>(memory: &mut [u8], count: usize) -> (&mut [T], &mut [u8]) {
    let (head, tail) = memory.split_at_mut(carved_bytes::<T>(count));
    (bytemuck::cast_slice_mut(&mut head[..count * size_of::<T>()]), tail)
}
