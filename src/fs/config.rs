//! Configuration of a mounted source.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use glob::{MatchOptions, Pattern};

use crate::format::index::IndexLocation;
use crate::format::plan::Policy;
use crate::format::shard_rule::ShardRule;
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
    /// How arrays are sharded that are created.
    pub new_shards: NewShards,
    /// Directory for chunks that cannot be committed in the end.
    pub unsaved: PathBuf,
    /// Absolute path of the source, which is recorded there.
    pub source: PathBuf,
    /// Options by which commands find it, as words for a shell, each with a space behind it.
    pub source_options: String,
}

impl Default for WriteConfig {
    fn default() -> Self {
        Self {
            policy: Policy::Auto,
            dirty_limit: 64 << 20,
            interval: Duration::from_secs(1),
            sync: false,
            keep_outside: false,
            new_shards: NewShards::default(),
            unsaved: std::env::temp_dir().join(format!("shardfs-unsaved-{}", std::process::id())),
            source: PathBuf::new(),
            source_options: String::new(),
        }
    }
}

/// How arrays are sharded that are created through a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewShards {
    /// Rules, of which the first one counts that is for an array.
    pub(crate) rules: Vec<NewShardsRule>,
    /// Location of the indexes; `None` for the end.
    pub(crate) index_location: Option<IndexLocation>,
}

/// Rule for the arrays at some paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewShardsRule {
    /// Pattern of the paths, from the source's root; `None` for all.
    pub pattern: Option<Pattern>,
    /// Size of the shards; `None` if such arrays are stored as they are written.
    pub rule: Option<ShardRule>,
}

impl NewShards {
    /// Returns the rule that the shards of all arrays have at most so many bytes of decoded data.
    pub fn of_at_most(nbytes: u64) -> Self {
        let rule = NewShardsRule { pattern: None, rule: Some(ShardRule::Nbytes(nbytes)) };
        Self { rules: vec![rule], index_location: None }
    }

    /// Excepts the arrays at some paths, which are stored as they are written.
    ///
    /// # Errors
    /// It is no pattern of paths.
    pub fn except(mut self, paths: &str) -> Result<Self, glob::PatternError> {
        let pattern = Some(Pattern::new(paths)?);
        self.rules.insert(0, NewShardsRule { pattern, rule: None });
        Ok(self)
    }

    /// Puts the indexes at the start of the shards.
    #[must_use]
    pub fn with_index_at_start(self) -> Self {
        Self { index_location: Some(IndexLocation::Start), ..self }
    }

    /// Returns whether arrays are stored as they are written.
    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns whether any arrays are stored in another form than they are written in.
    pub(crate) fn makes_any(&self) -> bool {
        self.rules.iter().any(|rule| rule.rule.is_some())
    }

    /// Returns the rule for an array at a path, from the source's root. `None` if it is stored as it is written.
    pub(in crate::fs) fn rule_of(&self, array: &Path) -> Option<&ShardRule> {
        let options = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        let is_for = |rule: &&NewShardsRule| {
            rule.pattern.as_ref().is_none_or(|pattern| pattern.matches_path_with(array, options))
        };
        self.rules.iter().find(is_for)?.rule.as_ref()
    }
}
