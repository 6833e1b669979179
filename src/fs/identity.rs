//! What the kernel was told of files that others may change.
//!
//! The kernel believes names and attributes for a second. A file that is opened on such a belief
//! after it was changed must not be read through what the kernel remembers of it, its size least
//! of all. So the files of the last seconds are remembered here, and when they changed.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use lru::LruCache;

/// Files to remember: more than can be looked up in the time that the kernel believes.
// The compiler evaluates it, and would refuse zero.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// The kernel counts in ticks; this much later than it should, its belief has ended.
const SLACK: Duration = Duration::from_millis(100);

/// Files by a number of the caller's, with a fingerprint of their content.
pub(super) struct Identities {
    seen: Mutex<LruCache<u64, Seen>>,
    believed: Duration,
}

#[derive(Clone, Copy)]
struct Seen {
    fingerprint: u64,
    changed: Option<Instant>,
}

impl Identities {
    /// For a kernel that is told to believe for `believed`.
    pub(super) fn new(believed: Duration) -> Self {
        Self { seen: Mutex::new(LruCache::new(REMEMBERED)), believed }
    }

    /// What the kernel believes of a file may be wrong from now on.
    pub(super) fn disturb(&self, file: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = seen.get_mut(&file) {
            entry.changed = Some(Instant::now());
        }
    }

    /// Remembers a file as it is now, after a change that the kernel knows of.
    pub(super) fn expect(&self, file: u64, fingerprint: u64) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = seen.get_mut(&file) {
            entry.fingerprint = fingerprint;
        }
    }

    /// Remembers a file as it is now. Whether the kernel may still believe something older.
    pub(super) fn changed_recently(&self, file: u64, fingerprint: u64) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = seen.get_or_insert_mut(file, || Seen { fingerprint, changed: None });
        if entry.fingerprint != fingerprint {
            *entry = Seen { fingerprint, changed: Some(Instant::now()) };
        }
        entry.changed.is_some_and(|changed| changed.elapsed() < self.believed + SLACK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_recent_until_the_kernel_has_forgotten() {
        let identities = Identities::new(Duration::ZERO);
        assert!(!identities.changed_recently(1, 10));
        assert!(identities.changed_recently(1, 11));
        assert!(identities.changed_recently(1, 11));
        assert!(!identities.changed_recently(2, 11));
        std::thread::sleep(SLACK);
        assert!(!identities.changed_recently(1, 11));
    }
}
