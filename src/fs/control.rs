//! `.shardfs`: answers to its name in the mount's root and is listed nowhere.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::attr::{Attr, Entry, Ownership};
use crate::stats::Stats;
use crate::store::storage::{FileKind, Stat, Timestamp};
use crate::view::inode;

/// Its name.
pub(super) const DIRECTORY_NAME: &str = ".shardfs";
/// The counters.
pub(super) const STATS_NAME: &str = "stats.json";
/// What waits to be committed.
pub(super) const WAITING_NAME: &str = "waiting.txt";
/// The same, from the mount's root.
pub const WAITING_PATH: &str = ".shardfs/waiting.txt";

/// The counters' file always has this length, filled with spaces: its size must be known before
/// it is read.
const STATS_BYTES: usize = 4096;

/// What `.shardfs` shows.
pub(super) struct Control {
    stats: Arc<Stats>,
    started: SystemTime,
}

impl Control {
    pub(super) fn new(stats: Arc<Stats>) -> Self {
        Self { stats, started: SystemTime::now() }
    }

    pub(super) fn lookup(&self, name: &OsStr) -> Option<Entry> {
        match name.to_str() {
            Some(STATS_NAME) => Some(self.stats_file()),
            Some(WAITING_NAME) => Some(self.waiting_file()),
            _ => None,
        }
    }

    /// Its length is known once it is opened; it is read around the kernel's cache.
    pub(super) fn waiting_file(&self) -> Entry {
        let mut attr = self.attr(inode::WAITING_FILE, FileKind::File, 0o444, SystemTime::now());
        attr.size = 0;
        Entry { attr, generation: 0, lasting: false }
    }

    pub(super) fn directory(&self) -> Entry {
        let attr = self.attr(inode::CONTROL_DIRECTORY, FileKind::Directory, 0o555, self.started);
        Entry { attr, generation: 0, lasting: true }
    }

    /// Always new, so that what is read is what holds now.
    pub(super) fn stats_file(&self) -> Entry {
        let attr = self.attr(inode::STATS_FILE, FileKind::File, 0o444, SystemTime::now());
        Entry { attr, generation: 0, lasting: false }
    }

    /// The counters as JSON, filled up to the file's length.
    pub(super) fn stats_text(&self) -> Vec<u8> {
        let mut document = self.stats.to_json();
        document["pid"] = std::process::id().into();
        document["seconds"] = self.started.elapsed().unwrap_or_default().as_secs().into();
        let mut text = format!("{document:#}").into_bytes();
        text.resize(STATS_BYTES - 1, b' ');
        text.push(b'\n');
        text
    }

    fn attr(&self, ino: u64, kind: FileKind, mode: u32, changed: SystemTime) -> Attr {
        let since = changed.duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(0),
            nanoseconds: since.subsec_nanos(),
        };
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let size = STATS_BYTES as u64;
        let stat =
            Stat { dev: 0, ino, kind, mode, uid, gid, links: 1, size, mtime: time, ctime: time };
        Ownership::default().attr(ino, &stat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_fill_their_file_and_are_json() {
        let stats = Arc::new(Stats::default());
        stats.operations.read_bytes.add(u64::MAX);
        let text = Control::new(stats).stats_text();
        assert_eq!(text.len(), STATS_BYTES);
        let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["operations"]["read_bytes"], u64::MAX);
    }
}
