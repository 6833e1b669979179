//! What can be wrong with a shard, and what the reader of a chunk is told.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::storage::FileKind;
use super::work::Unfit;
use crate::format::after::DecodeError;
use crate::format::bloscpack::BloscpackError;
use crate::format::index::{EntryError, IndexError};
use crate::format::journal::JournalError;
use crate::format::pipeline;
use crate::format::plan::PlanError;
use crate::text::{count, shown};

/// What the system says of a path that cannot be reached within the source, as long as nobody
/// changes something: not of one that does not exist, nor of a moment's trouble.
pub(super) const UNREACHABLE: [i32; 5] =
    [libc::ENOENT, libc::ELOOP, libc::EXDEV, libc::ENOTDIR, libc::ENXIO];

/// Why no chunk of a shard can be found. It lasts until the shard changes.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// It is something else than a file.
    #[error("it is {0}, not a regular file")]
    NotAFile(FileKind),
    /// Something else is in the place of a directory of shards.
    #[error("it is {0}, where a directory of shards should be")]
    NotADirectory(FileKind),
    /// It cannot be reached: a loop of links, a link out of the source, a file in the place of a
    /// directory.
    #[error("it cannot be reached within the source: {0}")]
    Unreachable(#[source] io::Error),
    /// It has no bytes. An absent shard is no file at all.
    #[error("it is empty, 0 bytes; an absent shard would be no file at all")]
    Empty,
    /// It is too short to hold its index.
    #[error("it has {}, its index alone has {index}", count(.found, "byte"))]
    TooShort {
        /// Its length in bytes.
        found: u64,
        /// Length of the index in bytes.
        index: u64,
    },
    /// Its index is bad.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// A commit to it was interrupted, and neither its old nor its new state can be had.
    #[error("a commit to it was interrupted, and its bytes are neither the old nor the new ones")]
    Unfinished,
    /// It is no Bloscpack file that can be read.
    #[error(transparent)]
    Bloscpack(#[from] BloscpackError),
    /// It is compressed as a whole and cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It is compressed as a whole and too long to be decoded.
    #[error("it has {found} bytes, the limit for shards that must be decoded is {limit}")]
    TooLong {
        /// Its length in bytes.
        found: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

/// Why a chunk cannot be given.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Its shard is damaged.
    #[error("shard {}: {damage}", shown(.shard))]
    Damaged {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
        /// What is wrong.
        #[source]
        damage: Arc<Damage>,
    },
    /// A shard inside the shard is damaged.
    #[error("shard {}, inner shard at {position:?}: {damage}", shown(.shard))]
    InnerDamaged {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
        /// Position of the inner shard in it.
        position: Vec<u64>,
        /// What is wrong.
        #[source]
        damage: Arc<Damage>,
    },
    /// Its own entry in the index is bad.
    #[error("shard {}, chunk at {position:?}: {error}", shown(.shard))]
    BadEntry {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
        /// Position of the chunk in the shard.
        position: Vec<u64>,
        /// What is wrong.
        #[source]
        error: EntryError,
    },
    /// Its bytes are not what the array's codecs write.
    #[error("shard {}, chunk at {position:?}: it cannot be decoded: {error}", shown(.shard))]
    Undecodable {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
        /// Position of the chunk in the shard.
        position: Vec<u64>,
        /// What is wrong.
        #[source]
        error: pipeline::DecodeError,
    },
    /// Others change the shard faster than it can be read, or changed it in the middle of a read.
    #[error("shard {}: it was changed while it was being read", shown(.shard))]
    Changing {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
    },
    /// Somebody else has changed the chunk since it was staged.
    #[error("shard {}, chunk at {position:?}: others have changed it in the meantime", shown(.shard))]
    Stale {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
        /// Position of the chunk in the shard.
        position: Vec<u64>,
    },
    /// The array that the chunk was staged for is no longer there.
    #[error("array {}: others have removed it in the meantime, or put another one in its place", shown(.array))]
    Replaced {
        /// Path of the array, from the source's root.
        array: PathBuf,
    },
    /// A shard that cannot be read, or not all of it, is not written.
    #[error(
        "{cause}; nothing is written to such a shard, `shardfs recover --scan` tells what can be done"
    )]
    NotWritten {
        /// What is wrong with it.
        #[source]
        cause: Box<StoreError>,
    },
    /// The journal holds a record of the shard that must stay.
    #[error(
        "shard {}: nothing is written to it as long as the journal holds the record of a commit \
         that could be neither completed nor taken back", shown(.shard)
    )]
    Poisoned {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
    },
    /// Shards that are compressed as a whole are not written.
    #[error("shard {}: it is compressed as a whole, which can only be read", shown(.shard))]
    Compressed {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
    },
    /// What is to be written cannot be a chunk of the array.
    #[error("shard {}, chunk at {position:?}: it is not written: {why}", shown(.shard))]
    Refused {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
        /// Position of the chunk in the shard.
        position: Vec<u64>,
        /// Why not.
        why: &'static str,
    },
    /// A change to the shard cannot be planned.
    #[error("shard {}: {error}", shown(.shard))]
    Plan {
        /// Path of the shard, from the source's root.
        shard: PathBuf,
        /// Why.
        #[source]
        error: PlanError,
    },
    /// Something stands where shardfs keeps a file or a directory of its own.
    #[error("{}: {found}; nothing was changed, move it away and try again", shown(.path))]
    Unfit {
        /// Path, from the source's root.
        path: PathBuf,
        /// What it is.
        found: Unfit,
    },
    /// A record in the journal is none of a commit to this array.
    #[error(
        "{}: it names {key:?}: {why}; no shard was changed. If nobody knows where it is from, move it \
         away and try again", shown(.path)
    )]
    ForeignRecord {
        /// Path of the journal, from the source's root.
        path: PathBuf,
        /// What the record names.
        key: String,
        /// Why it is none.
        why: String,
    },
    /// The journal of an array is no journal.
    #[error("{}: {error}", shown(.path))]
    Journal {
        /// Path, from the source's root.
        path: PathBuf,
        /// What is wrong.
        #[source]
        error: JournalError,
    },
    /// The source reports an error.
    #[error("{}: {error}", shown(.path))]
    Io {
        /// Path, from the source's root.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
}

impl StoreError {
    /// Whether it is that no more files could be opened.
    pub(super) fn is_shortage(&self) -> bool {
        let Self::Io { error, .. } = self else { return false };
        [Some(libc::EMFILE), Some(libc::ENFILE)].contains(&error.raw_os_error())
    }

    /// Whether it is the source's bytes that are wrong, not the moment or the system.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::InnerDamaged { .. }
                | Self::BadEntry { .. }
                | Self::Undecodable { .. }
        )
    }

    /// What can be done about it.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Damaged { damage, .. } => match **damage {
                Damage::Index(_) | Damage::TooShort { .. } | Damage::Unfinished => {
                    Some("`shardfs recover --scan` tells whether it can be repaired")
                }
                _ => None,
            },
            Self::NotWritten { cause } => cause.hint(),
            _ => None,
        }
    }

    /// What somebody is told who wants to write to the shard.
    pub(super) fn of_writer(self) -> Self {
        match self {
            error if error.is_damage() => Self::NotWritten { cause: Box::new(error) },
            other => other,
        }
    }

    /// The errno that stands for this error. Never ENOENT: that means an empty chunk, and a
    /// reader takes it for fill values.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Damaged { .. }
            | Self::InnerDamaged { .. }
            | Self::BadEntry { .. }
            | Self::Undecodable { .. }
            | Self::NotWritten { .. }
            | Self::Journal { .. }
            | Self::Poisoned { .. }
            | Self::Unfit { .. }
            | Self::ForeignRecord { .. }
            | Self::Plan { .. }
            | Self::Changing { .. } => libc::EIO,
            Self::Stale { .. } | Self::Replaced { .. } => libc::ESTALE,
            Self::Refused { .. } => libc::EINVAL,
            Self::Compressed { .. } => libc::EROFS,
            Self::Io { error, .. } => match error.raw_os_error() {
                None | Some(libc::ENOENT | libc::ENOTDIR) => libc::EIO,
                Some(errno) => errno,
            },
        }
    }
}
