//! Queue of the requests of one CPU, and how many threads there are to answer them.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads at most that are started in addition for a queue.
const MOST_ADDED: usize = 32;
/// Threads that are to be free beside one that waits. What arrives while none is, the kernel hands to no thread
/// that is started meanwhile, but only to one that has answered another request: so the next is started
/// while there is still one.
const FREE: usize = 2;

/// Queue of requests, with the state of the threads that answer them. Another queue's threads cannot: so
/// none may be without a thread for as long as one of its own waits for a commit, which may wait for the
/// lock of another process.
pub(super) struct Queue {
    /// Number of the CPU.
    pub number: u16,
    /// Threads that wait for a request.
    free: AtomicUsize,
    /// Threads whose requests may wait for a commit.
    waiting: AtomicUsize,
    /// Threads that were started in addition.
    added: AtomicUsize,
}

impl Queue {
    pub(super) fn new(number: u16) -> Self {
        let (free, waiting, added) = Default::default();
        Self { number, free, waiting, added }
    }

    /// Called when a thread begins to wait for requests.
    pub(super) fn starts(&self) {
        self.free.fetch_add(1, Ordering::AcqRel);
    }

    /// Called when a thread has taken a request. Returns whether another thread is to be started, which
    /// counts as free from now on.
    pub(super) fn take(&self, may_wait: bool) -> bool {
        let waiting = match may_wait {
            true => self.waiting.fetch_add(1, Ordering::AcqRel) + 1,
            false => self.waiting.load(Ordering::Acquire),
        };
        let are_enough = self.free.fetch_sub(1, Ordering::AcqRel) > FREE;
        if are_enough || waiting == 0 || self.added.load(Ordering::Acquire) >= MOST_ADDED {
            return false;
        }
        self.added.fetch_add(1, Ordering::AcqRel);
        self.free.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Called when the request is answered.
    pub(super) fn give_back(&self, may_wait: bool) {
        if may_wait {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        self.free.fetch_add(1, Ordering::AcqRel);
    }

    /// Called if the thread that was to be started could not be.
    pub(super) fn not_added(&self) {
        self.added.fetch_sub(1, Ordering::AcqRel);
        self.free.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_added_before_few_are_left_beside_one_that_waits_for_a_commit() {
        let queue = Queue::new(0);
        (0..4).for_each(|_| queue.starts());
        assert!((0..4).all(|_| !queue.take(false)), "all are about to answer");
        (0..4).for_each(|_| queue.give_back(false));
        assert!(!queue.take(true), "three are free");
        assert!(!queue.take(false), "two are free");
        assert!(queue.take(false), "one is free");
        queue.not_added();
        (0..2).for_each(|_| queue.give_back(false));
        queue.give_back(true);
        assert!((0..4).all(|_| !queue.take(false)));
        (0..4).for_each(|_| queue.give_back(false));
        // 32 in all.
        for _ in 0..4 + MOST_ADDED {
            queue.take(true);
        }
        assert_eq!(queue.added.load(Ordering::Relaxed), MOST_ADDED);
    }
}
