//! Counts the memory of each thread, so that a decoder can be held to a bound. Sees what Rust allocates, in all crates.
//! Tests of one program may run in parallel.
//!
//! A program can have one allocator only, so one that uses this says so:
//! `#[global_allocator] static HEAP: Counting = Counting;`. Without that, [`peak`] counts nothing.
#![expect(unsafe_code, reason = "counting allocations takes a global allocator, whose trait is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The system's allocator, with a count.
#[derive(Debug)]
pub struct Counting;

thread_local! {
    static NOW: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

fn count(added: usize, gone: usize) {
    // A thread that is ending has no counters any more, and nothing to measure.
    let _ = NOW.try_with(|now| {
        now.set((now.get() + added).saturating_sub(gone));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: every call is forwarded unchanged to the system's allocator; counting uses no heap.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: `at` came from `System` with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Runs `run`. Returns its result, and the most bytes that this thread had allocated at once meanwhile.
pub fn peak<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = NOW.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    let result = run();
    (result, PEAK.with(Cell::get).saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static HEAP: Counting = Counting;

    #[test]
    fn the_counter_counts() {
        assert!(peak(|| drop(vec![0u8; 1 << 20])).1 >= 1 << 20);
        assert_eq!(peak(|| ()).1, 0);
    }
}
