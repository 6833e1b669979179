//! How much memory a step takes at its peak, counted by the global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's allocator, counting what each thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let held = HELD.get() + change;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

/// A size is at most `isize::MAX`, as the allocator's contract says.
fn signed(size: usize) -> isize {
    isize::try_from(size).unwrap_or(isize::MAX)
}

#[allow(unsafe_code, reason = "passes every call on to the system's allocator")]
// SAFETY: each method passes its arguments on unchanged; counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // It may have to be moved, so both exist for a moment.
        count(signed(size));
        count(-signed(layout.size()));
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Does a step that may hold no more than `limit` bytes more than were held before it.
#[track_caller]
pub(super) fn within<T>(limit: usize, step: impl FnOnce() -> T) -> T {
    let before = HELD.get();
    PEAK.set(before);
    let result = step();
    let taken = PEAK.get() - before;
    assert!(taken <= signed(limit), "{taken} bytes held, at most {limit} allowed");
    result
}
