//! Memory given back is kept for the next request of its size, whatever sizes came before. A program of its own: the lists are
//! of the process.
#![allow(clippy::expect_used, reason = "a panic is how a check fails")]

use bilin_core::exec::buffer::Buffer;
use bilin_cpu::{CpuBuffer, held_bytes, kept_bytes, release_kept};

const MIB: usize = 1 << 20;

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
