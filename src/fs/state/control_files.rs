//! The control directory `.shardfs`, found by lookup in the mount's root but not listed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::fs::attr::{Attr, Entry, Ownership};
use crate::stats::Stats;
use crate::stats::metrics::{self, Facts};
use crate::store::storage::{FileKind, Stat, Timestamp};
use crate::view::inode;

/// Name of the control directory.
pub(in crate::fs) const DIRECTORY_NAME: &str = ".shardfs";

/// Path of the list of uncommitted changes, relative to the mount's root.
pub const WAITING_PATH: &str = ".shardfs/waiting.txt";

/// Path of the list of what the end of the mount leaves out of the source, relative to the mount's
/// root.
pub const LEFTOVER_PATH: &str = ".shardfs/leftover.txt";

/// Beginning of the line in these lists that says what becomes of what the end of the mount cannot
/// commit.
pub const IN_THE_END: &str = "what cannot be committed in the end";

/// Beginning of that line if the end of the mount could not save it, either.
pub const LOST_IN_THE_END: &str = "what cannot be committed in the end would be lost: ";

/// Words before the path under which the end of the mount will save a file that is no chunk.
pub const TO_BE_SAVED: &str = "when that ends, it is to be saved as";

/// Path of the last lines of the log, relative to the mount's root.
pub const LOG_PATH: &str = ".shardfs/log";

/// Length in bytes of the counters' file, which is padded with spaces: its size must be known
/// before it is read.
const STATS_BYTES: usize = 8192;

/// Maximum length of a path in `stats.json`: a longer one is left out.
const MAX_PATH_BYTES: usize = 512;

/// Length in bytes of the file of metrics, which is padded as well, in its first description.
const METRICS_BYTES: usize = 1 << 16;

/// Time within which a reader goes on with the next piece of a text.
const READ_IN_PIECES: Duration = Duration::from_secs(5);

/// File in `.shardfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs) enum ControlFile {
    /// The counters.
    Stats,
    /// The counters and more, for programs that watch many mounts.
    Metrics,
    /// The list of uncommitted changes.
    Waiting,
    /// The last lines of the log.
    Log,
    /// Directories that the view cannot show, with the reasons.
    NotShown,
    /// What the end of the mount would leave out of the source.
    Leftover,
}

impl ControlFile {
    /// All files, in the order of a listing.
    pub(in crate::fs) const ALL: [Self; 6] =
        [Self::Stats, Self::Waiting, Self::Log, Self::NotShown, Self::Leftover, Self::Metrics];

    pub(in crate::fs) fn name(self) -> &'static str {
        match self {
            Self::Stats => "stats.json",
            Self::Metrics => "metrics",
            Self::Waiting => "waiting.txt",
            Self::Log => "log",
            Self::NotShown => "not-shown.txt",
            Self::Leftover => "leftover.txt",
        }
    }

    pub(in crate::fs) fn ino(self) -> u64 {
        match self {
            Self::Stats => inode::STATS_FILE,
            Self::Metrics => inode::METRICS_FILE,
            Self::Waiting => inode::WAITING_FILE,
            Self::Log => inode::LOG_FILE,
            Self::NotShown => inode::NOT_SHOWN_FILE,
            Self::Leftover => inode::LEFTOVER_FILE,
        }
    }

    pub(in crate::fs) fn by_name(name: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|file| name == file.name())
    }

    pub(in crate::fs) fn by_ino(ino: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|file| file.ino() == ino)
    }
}

/// Text whose beginning was read, and when.
type Begun = (Arc<Vec<u8>>, Instant);

/// Contents of `.shardfs`.
pub(in crate::fs) struct Control {
    stats: Arc<Stats>,
    /// Directory in which changes are saved that cannot be committed; `None` in a read-only mount.
    unsaved: Option<PathBuf>,
    started: SystemTime,
    /// Texts whose beginnings were read without an open, by the inode numbers of their files.
    begun: Mutex<HashMap<u64, Begun>>,
}

impl Control {
    pub(in crate::fs) fn new(stats: Arc<Stats>, unsaved: Option<PathBuf>) -> Self {
        Self { stats, unsaved, started: SystemTime::now(), begun: Mutex::default() }
    }

    /// Returns the text whose beginning was last read, a moment ago, without an open of the file.
    pub(in crate::fs) fn begun(&self, file: ControlFile) -> Option<Arc<Vec<u8>>> {
        let begun = self.begun.lock();
        let (text, since) = begun.get(&file.ino())?;
        (since.elapsed() < READ_IN_PIECES).then(|| Arc::clone(text))
    }

    /// Records the text whose beginning is read, if all texts of the file have one length: others grow, and their readers
    /// may look for what has come.
    pub(in crate::fs) fn begin(&self, file: ControlFile, text: &Arc<Vec<u8>>) {
        if let ControlFile::Stats | ControlFile::Metrics = file {
            self.begun.lock().insert(file.ino(), (Arc::clone(text), Instant::now()));
        }
    }

    /// Returns the entry of a file, dated now and not cached, so that reads return the current
    /// contents. All but the counters and the metrics contain paths of the source that not every user may know;
    /// their length is known only once they are opened, and they are read around the kernel's page
    /// cache.
    pub(in crate::fs) fn file(&self, file: ControlFile) -> Entry {
        let (mode, size) = match file {
            ControlFile::Stats => (0o444, STATS_BYTES as u64),
            ControlFile::Metrics => (0o444, METRICS_BYTES as u64),
            ControlFile::Waiting
            | ControlFile::Log
            | ControlFile::NotShown
            | ControlFile::Leftover => (0o400, 0),
        };
        let mut attr = self.attr(file.ino(), FileKind::File, mode, SystemTime::now());
        attr.size = size;
        Entry { attr, generation: 0, lasting: false }
    }

    pub(in crate::fs) fn directory(&self) -> Entry {
        let attr = self.attr(inode::CONTROL_DIRECTORY, FileKind::Directory, 0o555, self.started);
        Entry { attr, generation: 0, lasting: true }
    }

    /// Returns the counters as JSON, padded to the file's length, with the names of the mount's views and the number of
    /// bytes that wait to be committed, `None` in a read-only mount; `is_failing` if they cannot be at the moment.
    pub(in crate::fs) fn stats_text(
        &self,
        views: &[&str],
        uncommitted: Option<u64>,
        is_failing: bool,
    ) -> Vec<u8> {
        let mut document = self.stats.to_json();
        document["views"] = views.into();
        if let Some(uncommitted) = uncommitted {
            document["uncommitted"] = uncommitted.into();
            document["failing"] = is_failing.into();
        }
        let last = self.stats.last_commit.lock().and_then(|it| jiff::Timestamp::try_from(it).ok());
        if let Some(last) = last {
            document["last_commit"] = format!("{last:.3}").into();
        }
        document["pid"] = std::process::id().into();
        let unsaved = self.unsaved.as_ref().and_then(|path| path.to_str());
        if let Some(unsaved) = unsaved.filter(|path| path.len() <= MAX_PATH_BYTES) {
            document["unsaved"] = unsaved.into();
        }
        document["seconds"] = self.started.elapsed().unwrap_or_default().as_secs().into();
        let mut text = format!("{document:#}").into_bytes();
        text.resize(STATS_BYTES - 1, b' ');
        text.push(b'\n');
        text
    }

    /// Returns the metrics as OpenMetrics text, padded to the file's length. `uncommitted` is the number of bytes
    /// that wait to be committed; `None` in a read-only mount.
    pub(in crate::fs) fn metrics_text(&self, uncommitted: Option<u64>) -> Vec<u8> {
        let facts = Facts { started: self.started, uncommitted };
        let mut text = metrics::text(&self.stats, facts).into_bytes();
        // Nothing may follow the text, nor stand between its lines: the first one, a description, takes the padding.
        let end = text.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let padding = METRICS_BYTES.saturating_sub(text.len());
        text.splice(end..end, std::iter::repeat_n(b' ', padding));
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
        let (mtime, ctime, atime) = (time, time, time);
        let stat = Stat { dev: 0, ino, kind, mode, uid, gid, links: 1, size, mtime, ctime, atime };
        Ownership::default().attr(ino, &stat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Replacing, Transport};

    fn fill(stats: &Stats) {
        let transport = Transport {
            name: "classic",
            threads: usize::MAX,
            shared_nbytes: usize::MAX,
            why: Some("a reason".repeat(100)),
        };
        assert!(stats.transport.set(transport).is_ok());
        *stats.replacing.lock() = Some(Replacing::Unconditionally);
        assert!(stats.address.set("https://store.example".repeat(10)).is_ok());
        *stats.last_commit.lock() = Some(SystemTime::now());
        stats.fill();
    }

    #[test]
    fn the_counters_fill_their_file_and_are_json() {
        let stats = Arc::new(Stats::default());
        fill(&stats);
        let path = |nbytes| Some(PathBuf::from("\"".repeat(nbytes)));
        let views = ["zarr3", "zarr2", "npy", "raw", "flat"];
        let text_of = |control: Control| control.stats_text(&views, Some(u64::MAX), false);
        let text = text_of(Control::new(Arc::clone(&stats), path(MAX_PATH_BYTES + 1)));
        let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["unsaved"], serde_json::Value::Null);
        let text = text_of(Control::new(stats, path(MAX_PATH_BYTES)));
        assert_eq!(text.len(), STATS_BYTES);
        let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(document["operations"]["read_bytes"], u64::MAX);
    }

    #[test]
    fn the_metrics_fill_their_file_whatever_they_count() {
        let stats = Arc::new(Stats::default());
        let control = Control::new(Arc::clone(&stats), None);
        let text = String::from_utf8(control.metrics_text(None)).unwrap();
        assert_eq!(text.len(), METRICS_BYTES);
        assert!(text.starts_with("# HELP ") && text.ends_with("# EOF\n"));
        fill(&stats);
        let text = String::from_utf8(control.metrics_text(Some(u64::MAX))).unwrap();
        assert_eq!(text.len(), METRICS_BYTES);
        // What a later version adds must fit as well.
        assert!(text.lines().next().unwrap().len() > METRICS_BYTES / 8, "{text}");
    }
}
