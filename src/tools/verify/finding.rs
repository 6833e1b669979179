//! What is found wrong with a source, or worth to be told.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::Coords;
use crate::format::after;
use crate::format::index::{ByteRange, EntryError};
use crate::format::journal::JournalError;
use crate::format::pipeline;
use crate::store::scan::OtherReading;
use crate::store::{Damage, StoreError};
use crate::text::{Line, count, many, shown};

/// Something that was found.
#[derive(Debug)]
pub struct Finding {
    /// Directory of the array, from the source's root.
    pub array: PathBuf,
    /// The shard, from the source's root, or the file that is none.
    pub shard: Option<PathBuf>,
    /// Where in the shard.
    pub within: Option<Within>,
    /// What.
    pub what: What,
}

/// A place in a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Within {
    /// A shard inside the shard, rather than a chunk.
    pub is_shard: bool,
    /// Its position in the shard along the array's axes, of one level after the other.
    pub position: Vec<u64>,
    /// Coordinates in the chunk grid of the chunk, or of the first one in it, where they are known.
    pub chunk: Option<Coords>,
}

/// What was found: defects first, then what is only worth to be told.
#[derive(Debug, thiserror::Error)]
pub enum What {
    /// The metadata cannot be used.
    #[error("{0}")]
    Metadata(String),
    /// A commit was interrupted.
    #[error(
        "the journal holds the record of a commit to {} that was not completed: \
         `shardfs recover` completes it or takes it back", many(*.0, "shard")
    )]
    Pending(u64),
    /// The journal is none.
    #[error(transparent)]
    Journal(JournalError),
    /// A shard, or one inside it, cannot be read.
    #[error("{damage}{}", .looks.as_ref().map_or(String::new(), |looks| format!("; {looks}")))]
    Damage {
        /// Why not.
        damage: Arc<Damage>,
        /// What it looks like.
        looks: Option<Looks>,
    },
    /// Entries are bad because the index is read in the wrong way.
    #[error("{0}: index_codecs or index_location of the metadata are not those of its writer")]
    IndexCodecs(OtherReading),
    /// An entry is bad.
    #[error("{0}")]
    Entry(EntryError),
    /// A chunk of no bytes.
    #[error("its entry (offset {0}, nbytes 0) is of no bytes, which its codecs never write")]
    NoBytes(u64),
    /// A chunk has another length than its codecs write.
    #[error("it has {}, its codecs always write {expected}", count(.found, "byte"))]
    Length {
        /// Its length in bytes.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// Ranges overlap.
    #[error(
        "its bytes (offset {}, nbytes {}) overlap {} (offset {}, nbytes {})",
        .range.offset, .range.nbytes, if *.is_index { "the index" } else { "those of another" },
        .with.offset, .with.nbytes
    )]
    Overlap {
        /// Its own bytes.
        range: ByteRange,
        /// What they overlap.
        with: ByteRange,
        /// That is the index.
        is_index: bool,
    },
    /// A chunk cannot be decoded.
    #[error("it cannot be decoded: {0}")]
    Undecodable(pipeline::DecodeError),
    /// The same of a Blosc buffer whose items are not known.
    #[error("it cannot be decoded: {0}")]
    Unblosc(after::DecodeError),
    /// A checksum over a shard does not match.
    #[error("{0}")]
    Checksum(after::DecodeError),
    /// A file with a chunk key that no chunk of the array has.
    #[error("it lies outside the shard grid, which has {0:?} shards: the array has no such chunks")]
    Stray(Vec<u64>),
    /// A file of a format without empty chunks is not there.
    #[error("it is missing, and its format has no empty chunks")]
    Missing,
    /// It cannot be read, or changes all the time.
    #[error("{0}")]
    Unreadable(String),

    /// An older index stands in bytes that nothing reaches.
    #[error(
        "an older index of {} stands at byte {offset}, in bytes that nothing reaches",
        count(.chunks, "chunk")
    )]
    OlderIndex {
        /// Where, in bytes.
        offset: u64,
        /// The chunks that exist by it.
        chunks: usize,
    },
    /// The chunks cannot be decoded here.
    #[error("its chunks cannot be decoded here: {0}")]
    NotDecoded(String),
    /// A file was not finished by its writer.
    #[error("its writer has not finished it, or could not tell where chunks are")]
    Unfinished,
    /// A superchunk that the array's length leaves out.
    #[error("it lies beyond the length of the array")]
    Beyond,
    /// Somebody's lock.
    #[error("a lock file of TensorStore or shardfs: of somebody who writes, or was stopped")]
    Lock,
    /// A file of somebody who writes.
    #[error("a temporary file: of somebody who writes, or was stopped")]
    Temporary,
    /// A file that is no chunk key.
    #[error("its name is no chunk key")]
    NoKey,
    /// Bytes that nothing reaches.
    #[error("{} in {}: no index reaches them", count(.nbytes, "dead byte"), many(*.shards, "shard"))]
    Dead {
        /// How many.
        nbytes: u64,
        /// In how many shards.
        shards: u64,
    },
    /// Chunks outside the shape.
    #[error("{} outside the array's shape", many(*.0, "chunk"))]
    Outside(u64),
    /// Shared ranges.
    #[error("{} with bytes that another chunk has as well", many(*.0, "chunk"))]
    Shared(u64),
    /// Empty entries of zarrita.
    #[error("{} of empty chunks as zarrita wrote them: length of the index - 1, 2^64-1",
        many(*.0, "entry"))]
    Wrapped(u64),
    /// Chunks of no bytes whose codecs are not known.
    #[error("{} of no bytes; whether their codecs may write none is not known here",
        many(*.0, "chunk"))]
    NoBytesUnknown(u64),
}

/// What a shard that cannot be read looks like.
#[derive(Debug)]
pub enum Looks {
    /// A chunk, not a shard.
    Unsharded,
    /// A shard that was written in another way.
    Other(OtherReading),
}

impl fmt::Display for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsharded => f.write_str("it looks like an unsharded chunk"),
            Self::Other(reading) => reading.fmt(f),
        }
    }
}

impl What {
    /// Whether it is only worth to be told.
    pub fn is_note(&self) -> bool {
        match self {
            Self::Metadata(_)
            | Self::Pending(_)
            | Self::Journal(_)
            | Self::Damage { .. }
            | Self::IndexCodecs(_)
            | Self::Entry(_)
            | Self::NoBytes(_)
            | Self::Length { .. }
            | Self::Overlap { .. }
            | Self::Undecodable(_)
            | Self::Unblosc(_)
            | Self::Checksum(_)
            | Self::Stray(_)
            | Self::Missing
            | Self::Unreadable(_) => false,
            Self::OlderIndex { .. }
            | Self::NotDecoded(_)
            | Self::Unfinished
            | Self::Beyond
            | Self::Lock
            | Self::Temporary
            | Self::NoKey
            | Self::Dead { .. }
            | Self::Outside(_)
            | Self::Shared(_)
            | Self::Wrapped(_)
            | Self::NoBytesUnknown(_) => true,
        }
    }

    /// A word for programs: it does not change.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Metadata(_) => "metadata",
            Self::Pending(_) => "pending",
            Self::Journal(_) => "journal",
            Self::Damage { .. } => "damage",
            Self::IndexCodecs(_) => "index-codecs",
            Self::Entry(_) => "entry",
            Self::NoBytes(_) => "no-bytes",
            Self::Length { .. } => "length",
            Self::Overlap { .. } => "overlap",
            Self::Undecodable(_) | Self::Unblosc(_) => "undecodable",
            Self::Checksum(_) => "checksum",
            Self::Stray(_) => "stray",
            Self::Missing => "missing",
            Self::Unreadable(_) => "unreadable",
            Self::OlderIndex { .. } => "older-index",
            Self::NotDecoded(_) => "not-decoded",
            Self::Unfinished => "unfinished",
            Self::Beyond => "beyond",
            Self::Lock => "lock",
            Self::Temporary => "temporary",
            Self::NoKey => "no-key",
            Self::Dead { .. } => "dead",
            Self::Outside(_) => "outside",
            Self::Shared(_) => "shared",
            Self::Wrapped(_) => "wrapped",
            Self::NoBytesUnknown(_) => "no-bytes-unknown",
        }
    }
}

impl Finding {
    /// Of an array as a whole.
    pub fn of_array(array: &Path, what: What) -> Self {
        Self { array: array.to_owned(), shard: None, within: None, what }
    }

    /// Of a shard, or a file that is none.
    pub fn of_shard(array: &Path, shard: PathBuf, what: What) -> Self {
        Self { array: array.to_owned(), shard: Some(shard), within: None, what }
    }

    /// What an error says, of a chunk with these coordinates if of any.
    pub fn of_error(array: &Path, error: StoreError, chunk: Option<&[u64]>) -> Self {
        let chunk = chunk.map(<[u64]>::to_vec);
        let within = |is_shard, position| Some(Within { is_shard, position, chunk });
        let (shard, within, what) = match error {
            StoreError::Damaged { shard, damage } => {
                (shard, None, What::Damage { damage, looks: None })
            }
            StoreError::InnerDamaged { shard, position, damage } => {
                (shard, within(true, position), What::Damage { damage, looks: None })
            }
            StoreError::BadEntry { shard, position, error } => {
                (shard, within(false, position), What::Entry(error))
            }
            StoreError::Undecodable { shard, position, error } => {
                (shard, within(false, position), What::Undecodable(error))
            }
            StoreError::Journal { path, error } => (path, None, What::Journal(error)),
            StoreError::Io { path, error } => (path, None, What::Unreadable(error.to_string())),
            StoreError::Changing { shard } => {
                let what = What::Unreadable("it was changed while it was being read".into());
                (shard, None, what)
            }
            error => return Self::of_array(array, What::Unreadable(error.to_string())),
        };
        Self { array: array.to_owned(), shard: Some(shard), within, what }
    }

    /// Whether it is only worth to be told.
    pub fn is_note(&self) -> bool {
        self.what.is_note()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.shard, &self.within) {
            (None, _) => write!(f, "{}: ", shown(&self.array))?,
            (Some(shard), None) => write!(f, "shard {}: ", shown(&shard))?,
            (Some(shard), Some(Within { is_shard, position, .. })) => {
                let what = if *is_shard { "inner shard" } else { "chunk" };
                write!(f, "shard {}, {what} at {position:?}: ", shown(&shard))?;
            }
        }
        Line(&self.what).fmt(f)
    }
}
