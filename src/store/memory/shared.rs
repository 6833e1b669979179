//! State that a storage in memory shares with its open files.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::changes::Change;
use super::faults::Faults;
use crate::store::storage::{FileKind, Stat, Timestamp};

/// State shared by a storage and its open files.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Number of changes so far; each dates the file that it changes.
    pub(super) clock: AtomicU64,
    /// Time of the last change of names; the date of every directory.
    pub(super) renamed: AtomicU64,
    pub(super) history: Mutex<Vec<Change>>,
    pub(super) faults: Faults,
}

impl Shared {
    pub(super) fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Returns the attributes of a file that was changed at a tick.
pub(super) fn stat(kind: FileKind, ino: u64, size: u64, tick: u64) -> Stat {
    let time = Timestamp { seconds: i64::try_from(tick).unwrap_or(i64::MAX), nanoseconds: 0 };
    let mode = if kind == FileKind::Directory { 0o755 } else { 0o644 };
    let (mtime, ctime) = (time, time);
    let atime = mtime;
    Stat { dev: 1, ino, kind, mode, uid: 0, gid: 0, links: 1, size, mtime, ctime, atime }
}
