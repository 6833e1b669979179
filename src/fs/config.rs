//! Configuration of a mounted source.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::format::plan::Policy;
use crate::fs::attr::Ownership;
use crate::fs::form::ViewConfig;
use crate::source::Format;
use crate::store::StoreConfig;

/// Configuration of how a source is shown.
#[derive(Debug, Clone, Default)]
pub struct FsConfig {
    /// Configuration of the store: its budgets and how long it trusts what it has cached.
    pub store: StoreConfig,
    /// File in the source's root that is mounted instead of the whole source; `None` mounts the
    /// source.
    pub file: Option<OsString>,
    /// Format to read the source as; `None` detects it from the contents.
    pub format: Option<Format>,
    /// Level of nested sharding to show: 1 is the outermost, 0 the shards themselves; `None` is the
    /// innermost.
    pub level: Option<usize>,
    /// View: the files shown in place of shards.
    pub view: ViewConfig,
    /// Owner, group and umask of what is shown.
    pub ownership: Ownership,
    /// `true` if extended attributes report where chunks are stored.
    pub xattr: bool,
    /// `true` if users other than the one who mounts may access the mount.
    pub shared: bool,
    /// `true` if the mount is writable.
    pub writable: bool,
    /// Configuration of writes and commits.
    pub writing: WriteConfig,
}

/// Configuration of writes in a writable mount.
#[derive(Debug, Clone)]
pub struct WriteConfig {
    /// Policy for changing shards.
    pub policy: Policy,
    /// Limit of uncommitted data in bytes.
    pub dirty_limit: u64,
    /// Interval between commits.
    pub interval: Duration,
    /// `true` if every close of a file commits it.
    pub sync: bool,
    /// `true` if chunks outside the shape of an array that shrinks are kept.
    pub keep_outside: bool,
    /// Directory for chunks that cannot be committed in the end.
    pub unsaved: PathBuf,
    /// Absolute path of the source, which is recorded there.
    pub source: PathBuf,
}

impl Default for WriteConfig {
    fn default() -> Self {
        Self {
            policy: Policy::Auto,
            dirty_limit: 64 << 20,
            interval: Duration::from_secs(1),
            sync: false,
            keep_outside: false,
            unsaved: std::env::temp_dir().join(format!("shardfs-unsaved-{}", std::process::id())),
            source: PathBuf::new(),
        }
    }
}
