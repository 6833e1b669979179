//! What a mount remembers of its commits.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use lru::LruCache;
use parking_lot::{Condvar, Mutex};

use super::filling::Filling;
use crate::store::storage::Timestamp;

/// Number of chunks whose modification times, and whose replacements, are remembered.
const REMEMBERED: usize = 1 << 18;

/// State of a mount's commits.
pub(in crate::fs) struct Commits {
    /// Serializes commits.
    pub(in crate::fs) turn: Mutex<()>,
    /// `true` if a commit has failed and no commit of everything has succeeded since.
    pub(in crate::fs) failing: AtomicBool,
    /// Times at which chunks were written here, by path, with the number of their shard's
    /// [`crate::store::Dated`] for which they hold: a commit changes the mtime of the whole shard.
    pub(in crate::fs) dates: Mutex<LruCache<PathBuf, (u64, Timestamp)>>,
    pub(in crate::fs) ended: Mutex<bool>,
    pub(in crate::fs) wake: Condvar,
    /// Shards that are being filled.
    pub(in crate::fs) filling: Mutex<Filling>,
    /// Inode numbers of chunks whose file was replaced or removed through this mount, and of directories above
    /// chunks that were removed, with the number of the last time. What has the number afterwards is another
    /// file, or another directory.
    replaced: Mutex<LruCache<u64, u64>>,
    replacements: AtomicU64,
}

impl Default for Commits {
    fn default() -> Self {
        Self {
            turn: Mutex::default(),
            failing: AtomicBool::default(),
            dates: Mutex::new(LruCache::unbounded()),
            ended: Mutex::default(),
            wake: Condvar::new(),
            filling: Mutex::default(),
            replaced: Mutex::new(LruCache::unbounded()),
            replacements: AtomicU64::default(),
        }
    }
}

impl Commits {
    /// Returns whether a commit has failed and no commit of everything has succeeded since.
    pub(in crate::fs) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Records that the file of the chunk with this inode number is about to be replaced or removed, or that the
    /// directory with this number was removed.
    pub(in crate::fs) fn replace(&self, ino: u64) {
        let mut replaced = self.replaced.lock();
        replaced.put(ino, self.replacements.fetch_add(1, Ordering::Relaxed) + 1);
        if replaced.len() > REMEMBERED {
            replaced.pop_lru();
        }
    }

    /// Returns the number of the last time that the file of a chunk was replaced or removed; 0 if it
    /// never was.
    pub(in crate::fs) fn replaced(&self, ino: u64) -> u64 {
        self.replaced.lock().peek(&ino).copied().unwrap_or(0)
    }

    /// Remembers a date. Memory grows with their number and is not allocated up front.
    pub(in crate::fs) fn remember_date(&self, path: PathBuf, date: (u64, Timestamp)) {
        let mut dates = self.dates.lock();
        dates.put(path, date);
        if dates.len() > REMEMBERED {
            dates.pop_lru();
        }
    }
}
