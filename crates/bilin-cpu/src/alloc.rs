//! Host memory in blocks of 64-byte alignment, kept for reuse by size class.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

use bilin_core::exec::buffer::Buffer;

/// Alignment of every block.
const ALIGN: usize = 64;
/// Bytes of a huge page, and of the smallest block that asks for them: walks of page tables cost matrices of this size dearly.
const HUGE: usize = 2 << 20;
const HUGE_FROM: usize = 4 << 20;
/// Blocks up to here are kept by thread.
const SMALL: usize = 4096;
/// Blocks above aren't kept.
const LARGEST_KEPT: usize = 128 << 20;
/// Bytes kept in all by the shared lists; what was given back longest ago goes first, lest sizes that a program no longer
/// uses keep out the ones that it does.
const MOST_KEPT: usize = 256 << 20;
/// Buffers a thread keeps of each small class, as they are: making another box would take longer than small work.
const SMALL_KEPT: usize = 64;
const SMALL_CLASSES: usize = 7;
/// Four classes for each doubling from 4 KiB to 128 MiB.
const CLASSES: usize = 4 * 15 + 1;

/// Bytes of blocks that the system gave.
static HELD: AtomicUsize = AtomicUsize::new(0);
static KEPT: AtomicUsize = AtomicUsize::new(0);
static POISON: AtomicBool = AtomicBool::new(false);
/// Turns of giving back, by which blocks of different classes are told apart by age.
static TURN: AtomicU64 = AtomicU64::new(0);
static LISTS: [Mutex<VecDeque<(u64, Block)>>; CLASSES] = [const { Mutex::new(VecDeque::new()) }; CLASSES];

thread_local! {
    static SMALL_LISTS: RefCell<[Vec<Box<dyn Buffer>>; SMALL_CLASSES]> = const { RefCell::new([const { Vec::new() }; SMALL_CLASSES]) };
}

/// Whether fresh allocations are filled with 0xFF bytes (each float a NaN), so that reads of old contents show. Also
/// on where the environment has `BILIN_POISON=1`.
pub fn set_poison(on: bool) {
    read_poison();
    POISON.store(on, Ordering::Relaxed);
}

fn read_poison() -> bool {
    static READ: Once = Once::new();
    READ.call_once(|| {
        if std::env::var("BILIN_POISON").is_ok_and(|v| v == "1") {
            POISON.store(true, Ordering::Relaxed);
        }
    });
    POISON.load(Ordering::Relaxed)
}

/// Bytes of host memory that buffers stand in, the blocks included that threads and [`kept_bytes`] keep for the next ones.
pub fn held_bytes() -> usize {
    HELD.load(Ordering::Relaxed)
}

/// Bytes that the free lists shared by all threads hold.
pub fn kept_bytes() -> usize {
    KEPT.load(Ordering::Relaxed)
}

/// Returns the memory of the shared free lists to the system.
pub fn release_kept() {
    for class in 0..CLASSES {
        let blocks = std::mem::take(&mut *list(class));
        KEPT.fetch_sub(blocks.iter().map(|(_, block)| block.len).sum(), Ordering::Relaxed);
    }
}

fn list(class: usize) -> MutexGuard<'static, VecDeque<(u64, Block)>> {
    LISTS[class].lock().unwrap_or_else(|e| e.into_inner())
}

/// Keeps a block for the next request of its class, the newest first, and lets go of the oldest of any class that are too many.
fn keep(block: Block, class: usize) {
    let mut kept = KEPT.fetch_add(block.len, Ordering::Relaxed) + block.len;
    list(class).push_back((TURN.fetch_add(1, Ordering::Relaxed), block));
    while kept > MOST_KEPT {
        let oldest = (0..CLASSES).filter_map(|class| Some((list(class).front()?.0, class))).min();
        let Some((_, block)) = oldest.and_then(|(_, class)| list(class).pop_front()) else { return };
        kept = KEPT.fetch_sub(block.len, Ordering::Relaxed) - block.len;
    }
}

/// The bytes of a block for a request, and its class.
fn class(byte_len: usize) -> Option<(usize, usize)> {
    if byte_len <= SMALL {
        let len = byte_len.max(ALIGN).next_power_of_two();
        return Some((len, (len / ALIGN).trailing_zeros() as usize));
    }
    if byte_len > LARGEST_KEPT {
        return Some((byte_len.checked_next_multiple_of(ALIGN)?, usize::MAX));
    }
    let bits = byte_len.ilog2() as usize;
    let step = 1usize << (bits - 2);
    let len = byte_len.next_multiple_of(step);
    let bits = len.ilog2() as usize;
    Some((len, SMALL_CLASSES + 4 * (bits - 12) + (len >> (bits - 2)) % 4))
}

/// What the system is asked for: of a large block room to begin at a huge page, and no alignment beyond its own, for which it
/// would write the zeros that its fresh pages are made of.
fn layout(len: usize) -> Option<Layout> {
    if len >= HUGE_FROM { Layout::from_size_align(len.checked_add(HUGE)?, 16) } else { Layout::from_size_align(len, ALIGN) }.ok()
}

/// Asks the system to back memory with huge pages; it may decline.
#[cfg(target_os = "linux")]
fn ask_for_huge_pages(first: NonNull<u8>, len: usize) {
    // SAFETY: advice about whole pages of memory of ours: its contents stay.
    unsafe { libc::madvise(first.as_ptr().cast(), len / HUGE * HUGE, libc::MADV_HUGEPAGE) };
}
#[cfg(not(target_os = "linux"))]
fn ask_for_huge_pages(_first: NonNull<u8>, _len: usize) {}

/// Memory that the system gave; every byte of it is initialised.
struct Block {
    first: NonNull<u8>,
    len: usize,
    /// Bytes before the first that the system gave too.
    skip: usize,
}

// SAFETY: a block owns its memory alone.
unsafe impl Send for Block {}
// SAFETY: shared access only reads.
unsafe impl Sync for Block {}

impl Block {
    fn fresh(len: usize) -> Option<Block> {
        let layout = layout(len)?;
        // SAFETY: `class` never gives a length of 0.
        let given = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let skip = if len >= HUGE_FROM { given.as_ptr().align_offset(HUGE) } else { 0 };
        // SAFETY: the layout has a huge page more than `len`, and `skip` is less than that.
        let first = unsafe { given.add(skip) };
        if len >= HUGE_FROM {
            ask_for_huge_pages(first, len);
        }
        HELD.fetch_add(len, Ordering::Relaxed);
        Some(Block { first, len, skip })
    }
    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes of the block's own, initialised by `fresh`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the block is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.first.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        HELD.fetch_sub(self.len, Ordering::Relaxed);
        if let Some(layout) = layout(self.len) {
            // SAFETY: from `alloc_zeroed` with this layout, `skip` bytes before the first.
            unsafe { dealloc(self.first.as_ptr().sub(self.skip), layout) }
        }
    }
}

/// Host memory of the CPU backend, aligned to 64 bytes.
pub struct CpuBuffer {
    block: Option<Block>,
    byte_len: usize,
    class: usize,
}

impl std::fmt::Debug for CpuBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CpuBuffer").field("byte_len", &self.byte_len).finish()
    }
}

impl CpuBuffer {
    /// `byte_len` bytes of any contents; `None` where the system has no room.
    pub fn new(byte_len: usize) -> Option<CpuBuffer> {
        let (len, class) = class(byte_len)?;
        let kept = match class.checked_sub(SMALL_CLASSES) {
            Some(shared) if shared < CLASSES => list(shared).pop_back(),
            _ => None,
        };
        let block = match kept {
            Some((_, block)) => {
                KEPT.fetch_sub(len, Ordering::Relaxed);
                block
            }
            None => Block::fresh(len)?,
        };
        let mut buffer = CpuBuffer { block: Some(block), byte_len, class };
        buffer.poison();
        Some(buffer)
    }

    fn poison(&mut self) {
        if let Some(block) = self.block.as_mut().filter(|_| read_poison()) {
            block.bytes_mut().fill(0xFF);
        }
    }
}

/// A buffer of `byte_len` bytes of any contents, one that this thread kept where there is one; `None` where the system has no room.
pub(crate) fn take(byte_len: usize) -> Option<Box<dyn Buffer>> {
    if byte_len <= SMALL {
        let (_, class) = class(byte_len)?;
        let kept = SMALL_LISTS.try_with(|lists| lists.try_borrow_mut().ok()?[class].pop()).ok().flatten();
        if let Some(mut kept) = kept
            && let Some(buffer) = kept.as_any_mut().downcast_mut::<CpuBuffer>()
        {
            buffer.byte_len = byte_len;
            buffer.poison();
            return Some(kept);
        }
    }
    Some(Box::new(CpuBuffer::new(byte_len)?))
}

/// Keeps a small buffer for this thread's next one of its class; others are dropped.
pub(crate) fn give(buffer: Box<dyn Buffer>) {
    let Some(class) = buffer.as_any().downcast_ref::<CpuBuffer>().map(|b| b.class).filter(|c| *c < SMALL_CLASSES) else { return };
    let _ = SMALL_LISTS.try_with(|lists| {
        if let Ok(mut lists) = lists.try_borrow_mut()
            && lists[class].len() < SMALL_KEPT
        {
            lists[class].push(buffer);
        }
    });
}

impl Drop for CpuBuffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take()
            && let Some(shared) = self.class.checked_sub(SMALL_CLASSES).filter(|c| *c < CLASSES)
        {
            keep(block, shared);
        }
    }
}

impl Buffer for CpuBuffer {
    fn byte_len(&self) -> usize {
        self.byte_len
    }
    fn host(&self) -> Option<&[u8]> {
        self.block.as_ref()?.bytes().get(..self.byte_len)
    }
    fn host_mut(&mut self) -> Option<&mut [u8]> {
        self.block.as_mut()?.bytes_mut().get_mut(..self.byte_len)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
