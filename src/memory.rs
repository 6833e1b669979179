//! Allocations whose size comes from outside: lengths in metadata, in indexes and in compressed
//! streams.
//!
//! Each of them has a limit, but many at once add up: a thread that decodes or parses something
//! first reserves room for it ([`ROOM`]), which all threads and views of this process share. A
//! reservation that does not fit waits; one that is larger than the total waits until it is alone.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::number::to_usize;
use crate::requester;

/// Room for everything that is being decoded or parsed at one time. Results that are kept
/// afterwards have budgets of their own.
pub(crate) static ROOM: Room = Room::new(1 << 30);

/// Room for what is being sent to stores of objects, which is in memory. Not [`ROOM`]: readers would wait for
/// uploads.
pub(crate) static UPLOADS: Room = Room::new(1 << 30);

/// Error of an allocation that is within its limit, but for which there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no memory for it")]
pub struct NoMemory;

impl From<NoMemory> for io::Error {
    fn from(_: NoMemory) -> Self {
        Self::from_raw_os_error(libc::ENOMEM)
    }
}

/// Returns a buffer of `nbytes` zeros.
///
/// # Errors
/// There is no memory for it.
pub(crate) fn zeroed(nbytes: u64) -> Result<Vec<u8>, NoMemory> {
    let mut bytes = Vec::new();
    resize(&mut bytes, nbytes)?;
    Ok(bytes)
}

/// Resizes a buffer to `nbytes` bytes with arbitrary contents.
pub(crate) fn resize(bytes: &mut Vec<u8>, nbytes: u64) -> Result<(), NoMemory> {
    let length = to_usize(nbytes);
    bytes.try_reserve_exact(length.saturating_sub(bytes.len())).map_err(|_| NoMemory)?;
    bytes.resize(length, 0);
    Ok(())
}

thread_local! {
    /// Nesting depth of this thread's reservations: the first one counts for all.
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Number of bytes that threads share.
///
/// **A thread that holds room waits for nothing but the source**: no lock, no other thread. Waiting
/// for room with a lock held is allowed; the other way round would be a deadlock.
#[derive(Debug)]
pub(crate) struct Room {
    total: u64,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    taken: u64,
    /// Ticket whose turn it is, and the next one to be issued. No reservation is overtaken, so
    /// large ones get their turn, too.
    turn: u64,
    next: u64,
    /// Tickets of those who do not wait any more.
    given_up: BTreeSet<u64>,
}

impl Room {
    /// Creates room for `total` bytes.
    pub(crate) const fn new(total: u64) -> Self {
        let queue = Queue { taken: 0, turn: 0, next: 0, given_up: BTreeSet::new() };
        Self { total, queue: Mutex::new(queue), changed: Condvar::new() }
    }

    /// Waits until there is room for `nbytes` and reserves it. A thread that holds room reserves no
    /// more: its first reservation covers everything.
    ///
    /// # Errors
    /// EINTR if the process that waits for this thread is to end meanwhile: who holds the room may wait for a
    /// network.
    pub(crate) fn take(&self, nbytes: u64) -> io::Result<Taken<'_>> {
        if HELD.get() > 0 {
            return Ok(self.held(0));
        }
        let mut queue = self.lock();
        let ticket = queue.next;
        queue.next += 1;
        let waits = |queue: &mut Queue| {
            let fits = queue.taken == 0 || queue.taken.saturating_add(nbytes) <= self.total;
            queue.turn != ticket || !fits
        };
        while self.changed.wait_while_for(&mut queue, waits, requester::LOOK).timed_out() {
            let is_over = MutexGuard::unlocked(&mut queue, requester::is_ending);
            // It may have been this one's turn meanwhile.
            if is_over {
                queue.given_up.insert(ticket);
                queue.skip();
                drop(queue);
                self.changed.notify_all();
                return Err(requester::interrupted());
            }
        }
        queue.turn += 1;
        queue.skip();
        queue.taken = queue.taken.saturating_add(nbytes);
        drop(queue);
        self.changed.notify_all();
        Ok(self.held(nbytes))
    }

    /// Records that this thread holds so much room.
    fn held(&self, nbytes: u64) -> Taken<'_> {
        HELD.set(HELD.get() + 1);
        Taken { room: self, nbytes }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

impl Queue {
    /// Passes over those who do not wait any more.
    fn skip(&mut self) {
        while self.given_up.remove(&self.turn) {
            self.turn += 1;
        }
    }
}

/// Reservation of room. It is released when dropped, which must happen in the thread that made it.
#[derive(Debug)]
pub struct Taken<'a> {
    room: &'a Room,
    nbytes: u64,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        HELD.set(HELD.get().saturating_sub(1));
        let mut queue = self.room.lock();
        queue.taken = queue.taken.saturating_sub(self.nbytes);
        drop(queue);
        self.room.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn no_more_is_taken_at_once_than_there_is() {
        static SMALL: Room = Room::new(100);
        static NOW: AtomicU64 = AtomicU64::new(0);
        let work = |nbytes: u64| {
            for _ in 0..200 {
                let _taken = SMALL.take(nbytes).unwrap();
                let now = NOW.fetch_add(nbytes, Ordering::SeqCst) + nbytes;
                assert!(now <= 100 || now == nbytes, "{now}");
                std::thread::yield_now();
                NOW.fetch_sub(nbytes, Ordering::SeqCst);
            }
        };
        // The last one is larger than the total: it must be alone, and must get its turn.
        std::thread::scope(|scope| {
            for nbytes in [30, 30, 40, 60, 100, 500] {
                scope.spawn(move || work(nbytes));
            }
        });
        assert_eq!(SMALL.lock().taken, 0);
    }

    #[test]
    fn a_thread_that_holds_room_does_not_wait_for_itself() {
        let room = Room::new(100);
        let outer = room.take(100).unwrap();
        let inner = room.take(100).unwrap();
        drop(outer);
        drop(inner);
        assert_eq!((room.lock().taken, HELD.get()), (0, 0));
    }

    #[test]
    fn who_waits_for_room_stops_once_its_process_is_to_end_and_holds_up_no_other() {
        let room = Room::new(100);
        let outer = room.take(100).unwrap();
        let errno = |taken: io::Result<Taken<'_>>| taken.map(drop).map_err(|it| it.raw_os_error());
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| {
                // No process has this number.
                let _gone = requester::serve(u32::MAX >> 1);
                errno(room.take(100))
            });
            let later = scope.spawn(|| errno(room.take(50)));
            assert_eq!(ended.join().unwrap(), Err(Some(libc::EINTR)));
            assert!(!later.is_finished());
            drop(outer);
            assert_eq!(later.join().unwrap(), Ok(()));
        });
        let queue = room.lock();
        assert_eq!((queue.taken, queue.turn, queue.given_up.len()), (0, queue.next, 0));
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        assert_eq!(zeroed(u64::MAX), Err(NoMemory));
        assert_eq!(zeroed(1 << 62), Err(NoMemory));
        assert_eq!(zeroed(3), Ok(vec![0; 3]));
        assert_eq!(io::Error::from(NoMemory).raw_os_error(), Some(libc::ENOMEM));
    }
}
