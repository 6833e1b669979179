//! Defects of shards, and the errors returned to readers and writers of chunks.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::storage::FileKind;
use crate::format::blosc2::Blosc2Error;
use crate::format::bloscpack::BloscpackError;
use crate::format::chunk_error::Refusal;
use crate::format::index::{EntryError, IndexError};
use crate::format::journal::JournalError;
use crate::format::pipeline;
use crate::format::plan::PlanError;
use crate::format::wkw::WkwError;
use crate::text::{count, shown};

/// Errnos of a path that cannot be reached within the source, and will not be until the source
/// changes. ENOENT counts only for a dangling symbolic link: callers handle a file that does not
/// exist first. Errors that may pass by themselves are not in the list.
pub(super) const UNREACHABLE: [i32; 5] =
    [libc::ENOENT, libc::ELOOP, libc::EXDEV, libc::ENOTDIR, libc::ENXIO];

/// Reason why no chunk of a shard can be found. It lasts until the shard changes.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The shard is not a regular file.
    #[error("it is {0}, not a regular file")]
    NotAFile(FileKind),
    /// Something else is in the place of a directory of shards.
    #[error("it is {0}, where a directory of shards should be")]
    NotADirectory(FileKind),
    /// The shard cannot be reached: a loop of links, a link out of the source, or a file in the
    /// place of a directory.
    #[error("it cannot be reached within the source: {0}")]
    Unreachable(#[source] io::Error),
    /// There is no such shard, in a format in which all exist.
    #[error("it does not exist; the format has no absent chunks")]
    Missing,
    /// The shard has no bytes. An absent shard is no file at all.
    #[error("it is empty, 0 bytes; an absent shard would be no file at all")]
    Empty,
    /// The shard is too short to hold its index.
    #[error("it has {}, its index alone has {index}", count(.found, "byte"))]
    TooShort {
        /// Length of the shard in bytes.
        found: u64,
        /// Length of the index in bytes.
        index: u64,
    },
    /// The index is invalid.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A commit to the shard was interrupted, and neither its old nor its new state can be
    /// recovered.
    #[error("a commit to it was interrupted, and its bytes are neither the old nor the new ones")]
    Unfinished,
    /// The shard is not a readable Bloscpack file.
    #[error(transparent)]
    Bloscpack(#[from] BloscpackError),
    /// The shard is not a readable frame of Blosc2.
    #[error(transparent)]
    Blosc2(#[from] Blosc2Error),
    /// The shard is not a readable file of webknossos-wrap.
    #[error(transparent)]
    Wkw(#[from] WkwError),
    /// The shard is compressed as a whole and cannot be decoded.
    #[error(transparent)]
    Decode(#[from] pipeline::DecodeError),
    /// The shard is compressed as a whole and too long to be decoded.
    #[error("it has {found} bytes, the limit for shards that must be decoded is {limit}")]
    TooLong {
        /// Length of the shard in bytes.
        found: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

/// What was found in the place of a file or directory of shardfs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Something else where a directory must be.
    NotADirectory(FileKind),
    /// Something else where a file must be.
    NotAFile(FileKind),
    /// A file with this link count, which may belong to others.
    Linked(u64),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotADirectory(found) => write!(f, "it is {found} where a directory must be"),
            Self::NotAFile(found) => write!(f, "it is {found} where a regular file must be"),
            Self::Linked(links) => {
                write!(f, "it has {links} names (hard links) where a file with one must be")
            }
        }
    }
}

/// Reason why the record of a shard in a journal is not acted upon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Foreign {
    /// The key is not UTF-8.
    #[error("it is not text")]
    NotText,
    /// No shard of the array has that key.
    #[error("it is no shard of this array")]
    NoShard,
    /// There is no metadata that gives the keys of shards.
    #[error("there is no metadata of an array whose shard it could be")]
    NoArray,
    /// The bytes that it would restore are no index.
    #[error("what it would restore holds no index of that shard")]
    NoIndex,
    /// The record's writer may not write to the shard.
    #[error(
        "it was written by user {writer}, who may not write this shard of user {owner}; only he can \
         recover it, with his own rights"
    )]
    NotPermitted {
        /// User who owns the journal.
        writer: u32,
        /// User who owns the shard.
        owner: u32,
    },
}

/// Error of an operation on a chunk or a shard.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The chunk's shard is damaged.
    #[error("shard {}: {damage}", shown(.shard))]
    Damaged {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// The damage.
        #[source]
        damage: Arc<Damage>,
    },
    /// A shard nested in the shard is damaged.
    #[error("shard {}, inner shard at {position:?}: {damage}", shown(.shard))]
    InnerDamaged {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// Position of the inner shard in it.
        position: Vec<u64>,
        /// The damage.
        #[source]
        damage: Arc<Damage>,
    },
    /// The chunk's own entry in the index is invalid.
    #[error("shard {}, chunk at {position:?}: {error}", shown(.shard))]
    BadEntry {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// Position of the chunk in the shard.
        position: Vec<u64>,
        /// Defect of the entry.
        #[source]
        error: EntryError,
    },
    /// The chunk's bytes cannot be decoded by the array's codec chain.
    #[error("shard {}, chunk at {position:?}: it cannot be decoded: {error}", shown(.shard))]
    Undecodable {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// Position of the chunk in the shard.
        position: Vec<u64>,
        /// Error of the codec chain.
        #[source]
        error: pipeline::DecodeError,
    },
    /// Another writer changes the shard faster than it can be read, or changed it during a read.
    #[error("shard {}: it was changed while it was being read", shown(.shard))]
    Changing {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
    },
    /// Another writer has changed the chunk since it was staged.
    #[error("shard {}, chunk at {position:?}: others have changed it in the meantime", shown(.shard))]
    Stale {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// Position of the chunk in the shard.
        position: Vec<u64>,
    },
    /// The array that the chunk was staged for no longer exists.
    #[error("array {}: others have removed it in the meantime, or put another one in its place", shown(.array))]
    Replaced {
        /// Path of the array, relative to the source's root.
        array: PathBuf,
    },
    /// Something is where a shard or a document is to be, or among chunk files of which shards are made.
    #[error("{}: it is in the way of an array whose chunk files are put into shards: move it elsewhere", shown(.path))]
    InTheWay {
        /// Its path, relative to the source's root.
        path: PathBuf,
    },
    /// The chunk lies outside the shape that others have given the array.
    #[error("array {}: others have made it smaller in the meantime, and the chunk lies outside", shown(.array))]
    Outside {
        /// Path of the array, relative to the source's root.
        array: PathBuf,
    },
    /// The shard is not written because it, or a part of it, cannot be read.
    #[error(
        "{cause}; nothing is written to such a shard, `shardfs recover --scan` reports what can be done"
    )]
    NotWritten {
        /// The error met when reading it.
        #[source]
        cause: Box<StoreError>,
    },
    /// The journal holds a record of the shard that must stay.
    #[error(
        "shard {}: nothing is written to it as long as the journal holds the record of a commit \
         that could be neither rolled forward nor back", shown(.shard)
    )]
    Unsettled {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
    },
    /// Nothing is written because the source is not on a filesystem, nor the array one whose shards are replaced as
    /// objects.
    #[error("array {}: its source can only be read, it is not on a filesystem", shown(.array))]
    ReadOnly {
        /// Path of the array, relative to the source's root.
        array: PathBuf,
    },
    /// Other writers replace the shard, an object, again and again.
    #[error("shard {}: others replace it faster than this mount can; it is tried again", shown(.shard))]
    Contended {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
    },
    /// The shard is not written because the store gives it no entity tag.
    #[error(
        "shard {}: the store gives it no entity tag, so it cannot be replaced without the danger of \
         undoing what others write", shown(.shard)
    )]
    Untagged {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
    },
    /// The shard is an object, and too long to be put as a whole.
    #[error(
        "shard {}: it would have {nbytes} bytes, the limit for shards that are put as a whole is {limit}",
        shown(.shard)
    )]
    TooLongToPut {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// Its length in bytes.
        nbytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The shard is not written because it is compressed as a whole.
    #[error("shard {}: it is compressed as a whole, which can only be read", shown(.shard))]
    Compressed {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
    },
    /// The bytes to be written cannot be a chunk of the array.
    #[error("shard {}, chunk at {position:?}: it is not written: {why}", shown(.shard))]
    Refused {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// Position of the chunk in the shard.
        position: Vec<u64>,
        /// Reason for the refusal.
        #[source]
        why: Refusal,
    },
    /// A change to the shard cannot be planned.
    #[error("shard {}: {error}", shown(.shard))]
    Plan {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// Error of the planner.
        #[source]
        error: PlanError,
    },
    /// Something else is in the place of a file or directory of shardfs.
    #[error("{}: {found}; nothing was changed, move it away and try again", shown(.path))]
    Unfit {
        /// Its path, relative to the source's root.
        path: PathBuf,
        /// What was found there.
        found: Unfit,
    },
    /// A record in the journal is not one of a commit to this array.
    #[error(
        "{}: it names {key:?}: {why}; no shard was changed. If nobody knows where it is from, move it \
         away and try again", shown(.path)
    )]
    ForeignRecord {
        /// Path of the journal, relative to the source's root.
        path: PathBuf,
        /// Key that the record names.
        key: String,
        /// Reason why the record does not belong to the array.
        #[source]
        why: Foreign,
    },
    /// The journal of an array is not a valid journal.
    #[error("{}: {error}", shown(.path))]
    Journal {
        /// Its path, relative to the source's root.
        path: PathBuf,
        /// Defect of the journal.
        #[source]
        error: JournalError,
    },
    /// Another process holds a lock for longer than it takes to commit.
    #[error(
        "{}: another process has locked it and does not give it back: `fuser` names those that have it open",
        shown(.path)
    )]
    Locked {
        /// Path of the lock, relative to the source's root.
        path: PathBuf,
    },
    /// The source returned an error.
    #[error("{}: {error}", shown(.path))]
    Io {
        /// Path, relative to the source's root.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
}

impl StoreError {
    /// Returns whether the error is that no more files could be opened.
    pub(super) fn is_shortage(&self) -> bool {
        let Self::Io { error, .. } = self else { return false };
        [Some(libc::EMFILE), Some(libc::ENFILE)].contains(&error.raw_os_error())
    }

    /// Returns whether the source's bytes are wrong, rather than the moment or the system.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::InnerDamaged { .. }
                | Self::BadEntry { .. }
                | Self::Undecodable { .. }
        )
    }

    /// Returns advice to the user. `None` if there is none.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Damaged { damage, .. } => match **damage {
                Damage::Index(_) | Damage::TooShort { .. } | Damage::Unfinished => {
                    Some("`shardfs recover --scan` reports whether it can be repaired")
                }
                _ => None,
            },
            Self::NotWritten { cause } => cause.hint(),
            _ => None,
        }
    }

    /// Maps damage to the error returned to writers.
    pub(super) fn of_writer(self) -> Self {
        match self {
            error if error.is_damage() => Self::NotWritten { cause: Box::new(error) },
            other => other,
        }
    }

    /// Returns whether what was to be written has no place any more, because of what others did.
    pub fn is_of_others(&self) -> bool {
        matches!(self, Self::Stale { .. } | Self::Replaced { .. } | Self::Outside { .. })
    }

    /// Returns the errno that reports the error. Never ENOENT: that means an empty chunk, which a
    /// reader takes for fill values.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Damaged { .. }
            | Self::InnerDamaged { .. }
            | Self::BadEntry { .. }
            | Self::Undecodable { .. }
            | Self::NotWritten { .. }
            | Self::Journal { .. }
            | Self::Unsettled { .. }
            | Self::Unfit { .. }
            | Self::ForeignRecord { .. }
            | Self::Plan { .. }
            | Self::Changing { .. } => libc::EIO,
            Self::Stale { .. } | Self::Replaced { .. } | Self::Outside { .. } => libc::ESTALE,
            Self::Refused { .. } => libc::EINVAL,
            Self::Locked { .. } | Self::InTheWay { .. } | Self::Contended { .. } => libc::EBUSY,
            Self::ReadOnly { .. } | Self::Compressed { .. } | Self::Untagged { .. } => libc::EROFS,
            Self::TooLongToPut { .. } => libc::EFBIG,
            Self::Io { error, .. } => match error.raw_os_error() {
                None | Some(libc::ENOENT | libc::ENOTDIR) => libc::EIO,
                Some(errno) => errno,
            },
        }
    }
}

/// Returns a function that turns an I/O error on `path` into a [`StoreError`].
pub fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
    |error| StoreError::Io { path: path.to_owned(), error }
}
