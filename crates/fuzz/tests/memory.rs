//! What a hostile input may make the trace reader hold: little, however much it decompresses to.

use millpond_trace::{RawReader, Trace};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts the bytes that are allocated, and the most there were.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: figures of one thread at a time.
        PEAK.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's pointer, which came from `alloc`, and its layout.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// `text` so often that it makes 64 MiB, compressed.
fn bomb(text: &str) -> Vec<u8> {
    let part = text.repeat((1 << 20) / text.len());
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("a vector");
    (0..64).for_each(|_| encoder.write_all(part.as_bytes()).expect("a vector"));
    encoder.finish().expect("a vector")
}

/// The most that reading holds, and how it ends.
fn reading(bytes: &[u8], read: impl FnOnce(&[u8]) -> String) -> (usize, String) {
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let end = read(bytes);
    (PEAK.load(Relaxed) - before, end)
}

// One test: the figures are the process's.
#[test]
fn little_is_held_of_what_decompresses_to_much() {
    let whole = |bytes: &[u8]| Trace::read("bomb", bytes).expect_err("no trace").to_string();
    for (text, end) in [
        ("a", "bomb:1: the line is too long"),
        ("# k=v\n", "the header is too long"),
        ("# a remark\n", "the trace holds no operations"),
        ("\n", "the trace holds no operations"),
        ("m step 1\n", "the trace holds no operations"),
    ] {
        let (peak, error) = reading(&bomb(text), whole);
        assert!(error.contains(end), "{text:?}: {error}");
        // Marks are operations in memory, of 24 bytes each, in a vector that doubles.
        let ops = if text.starts_with('m') { 3 * 24 * ((64 << 20) / text.len()) } else { 0 };
        assert!(peak < (4 << 20) + ops, "{text:?}: {peak} bytes");
    }
    // Line by line nothing is kept.
    let (peak, end) = reading(&bomb("a 1 0 0 512\n"), |bytes| {
        RawReader::new("bomb", bytes).expect("it opens").filter_map(Result::err).count().to_string()
    });
    assert!(peak < 1 << 20 && end == "0", "{peak} bytes, {end} errors");
    // A frame that asks for a window of 2^31 bytes, and one of the 2^27 that zstd allows.
    for (window, end) in [(21 << 3, "cannot be decompressed"), (17 << 3, "in mid-frame")] {
        let (peak, error) = reading(&[0x28, 0xB5, 0x2F, 0xFD, 0, window], whole);
        assert!(error.contains(end), "{error}");
        assert!(peak < 1 << 20, "{peak} bytes");
    }
}
