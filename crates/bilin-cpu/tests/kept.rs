//! Memory given back is kept for the next request of its size, whatever sizes came before. A program of its own: the lists are
//! of the process.
#![allow(clippy::expect_used, reason = "a panic is how a check fails")]

use std::sync::Mutex;

use bilin_core::exec::backend::Backend;
use bilin_core::exec::buffer::{Buffer, HostBuffer};
use bilin_core::{Device, Tensor};
use bilin_cpu::{CpuBackend, CpuBuffer, held_bytes, kept_bytes, release_kept};

const MIB: usize = 1 << 20;
/// What is held is counted for the process: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Takes and gives back a block, and says whether the system had to be asked for it.
fn asks_the_system(byte_len: usize) -> bool {
    let before = held_bytes();
    let buffer = CpuBuffer::new(byte_len).expect("room");
    let asked = held_bytes() > before;
    assert_eq!(buffer.byte_len(), byte_len);
    asked
}

#[test]
fn sizes_out_of_use_make_room_for_those_in_use() {
    let _alone = ALONE.lock();
    // More than is kept, of a size that nothing asks for again.
    drop((0..8).map(|_| CpuBuffer::new(40 * MIB).expect("room")).collect::<Vec<_>>());
    assert!(kept_bytes() > 200 * MIB, "{} bytes kept", kept_bytes());
    for byte_len in [64 * MIB, 5 * MIB, 100_000, 128 * MIB] {
        assert!(asks_the_system(byte_len), "{byte_len} bytes come from nowhere");
        for _ in 0..3 {
            assert!(!asks_the_system(byte_len), "{byte_len} bytes weren't kept");
        }
    }
    assert!(kept_bytes() <= 256 * MIB, "{} bytes kept", kept_bytes());
    release_kept();
    assert_eq!(kept_bytes(), 0);
    // What no list takes goes back at once.
    let before = held_bytes();
    assert!(asks_the_system(129 * MIB) && asks_the_system(129 * MIB));
    assert_eq!(held_bytes(), before);
}

/// A thread has small buffers back as they were, of their class alone, and takes nobody else's.
#[test]
fn small_buffers_stay_with_their_thread() {
    let _alone = ALONE.lock();
    let backend = CpuBackend::new();
    let place = |buffer: &dyn Buffer| buffer.host().expect("host memory").as_ptr().addr();
    let take = |byte_len: usize| backend.alloc(byte_len).expect("no error").expect("room");
    for (byte_len, least) in [(0, 0), (64, 1), (128, 65), (4096, 2049)] {
        let first = take(byte_len);
        assert_eq!(first.byte_len(), byte_len);
        let (at, other) = (place(first.as_ref()), take(byte_len));
        assert_ne!(at, place(other.as_ref()), "{byte_len} bytes had twice");
        backend.free(first);
        let smaller = take(least);
        assert_eq!(place(smaller.as_ref()), at, "{byte_len} bytes weren't kept");
        assert_eq!(smaller.host().map(<[u8]>::len), Some(least));
        // Another thread may give it back, and then has it.
        std::thread::scope(|s| {
            s.spawn(|| {
                backend.free(smaller);
                assert_eq!(place(take(byte_len).as_ref()), at);
            });
        });
    }
    // Memory of another kind is dropped, not handed out.
    backend.free(Box::new(HostBuffer::zeroed(64).expect("room")));
    assert!(take(64).as_any().is::<CpuBuffer>());
}

/// A result's memory goes back to the thread that drops it, not to the system.
#[test]
fn results_give_their_buffers_back() {
    let _alone = ALONE.lock();
    let device = Device::new("cpu", Box::new(CpuBackend::new()));
    let x = Tensor::from_slice(&[1f32, 2., 3.], [3], &device).expect("a tensor");
    let result = x.neg().expect("a result");
    let held = held_bytes();
    drop(result);
    assert_eq!(held_bytes(), held);
    drop(x.neg().expect("a result"));
    assert_eq!(held_bytes(), held, "the system was asked again");
}
