//! Which inode numbers the kernel may have pages of.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::number::to_usize;

/// Number of counters of two bits, in 256 KiB.
const COUNTERS: u64 = 1 << 20;

/// How often bytes of a file were given to the kernel: never, once, more often; by inode number. Several
/// numbers may share a counter, so a number may be taken for one that was given more often than it was, but
/// never for one that was given less often.
#[derive(Default)]
pub(in crate::fs) struct PageFilter {
    /// Counters in unary: 0, 1, 3. Made by the first read.
    words: OnceLock<Box<[AtomicU64]>>,
    hasher: RandomState,
}

impl PageFilter {
    /// Records that the kernel is about to be given bytes of a file. Called before they are read: who then
    /// finds that it is alone knows that all others read what is there later.
    pub(in crate::fs) fn fill(&self, ino: u64) {
        let (word, shift) = self.place(ino);
        let counter = word.load(Ordering::Acquire) >> shift;
        // Most are full, and a load is not a write that other CPUs wait for.
        if counter & 2 == 0 && word.fetch_or(1 << shift, Ordering::AcqRel) >> shift & 1 != 0 {
            word.fetch_or(2 << shift, Ordering::AcqRel);
        }
    }

    /// Returns whether the kernel may have been given bytes of a file more than once.
    pub(in crate::fs) fn was_given_before(&self, ino: u64) -> bool {
        let (word, shift) = self.place(ino);
        word.load(Ordering::Acquire) >> shift & 2 != 0
    }

    /// Returns the word that holds the counter of a number, and where in it.
    fn place(&self, ino: u64) -> (&AtomicU64, u64) {
        let nwords = COUNTERS / 32;
        let words = self.words.get_or_init(|| (0..nwords).map(|_| AtomicU64::new(0)).collect());
        let counter = self.hasher.hash_one(ino) % COUNTERS;
        (&words[to_usize(counter / 32)], counter % 32 * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_time_that_bytes_of_a_file_are_given_is_known() {
        let filter = PageFilter::default();
        assert!(!filter.was_given_before(7));
        filter.fill(7);
        assert!(!filter.was_given_before(7));
        filter.fill(7);
        assert!(filter.was_given_before(7));
        filter.fill(7);
        assert!(filter.was_given_before(7) && !filter.was_given_before(8));
    }

    #[test]
    fn no_file_is_taken_for_one_that_was_given_less_often() {
        let filter = PageFilter::default();
        (0..1000).for_each(|ino| filter.fill(ino));
        let taken = (0..1000).filter(|ino| filter.was_given_before(*ino)).count();
        assert!(taken < 10, "{taken} of 1000 share a counter");
        (0..1000).for_each(|ino| filter.fill(ino));
        assert!((0..1000).all(|ino| filter.was_given_before(ino)));
    }
}
