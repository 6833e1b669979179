//! Findings of the verification of a source: defects and notes.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::format::Coords;
use crate::format::index::{ByteRange, EntryError};
use crate::format::journal::JournalError;
use crate::format::pipeline;
use crate::store::scan::OtherReading;
use crate::store::{Damage, StoreError};
use crate::text::{Line, count, many, shown};

/// A defect or a note, with its location.
#[derive(Debug)]
pub struct Finding {
    /// Directory of the array, relative to the source's root.
    pub array: PathBuf,
    /// Path of the shard, or of a file that is not a shard, relative to the source's root; `None`
    /// for a finding about the array.
    pub shard: Option<PathBuf>,
    /// Place within the shard; `None` for a finding about the whole file.
    pub within: Option<Within>,
    /// `true` if the file is one chunk, of an array without shards.
    pub is_chunk_file: bool,
    /// Kind of finding.
    pub what: What,
}

/// A place in a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Within {
    /// `true` for a shard inside the shard, `false` for a chunk.
    pub is_shard: bool,
    /// Position along the array's axes in the shard, for one level of sharding after the other.
    pub position: Vec<u64>,
    /// Coordinates in the chunk grid of the chunk, or of the first chunk of the inner shard, if
    /// known.
    pub chunk: Option<Coords>,
}

/// Kind of finding: first the defects, then the notes.
#[derive(Debug, thiserror::Error)]
pub enum What {
    /// The metadata cannot be used.
    #[error("{error}")]
    Metadata {
        /// Path of the document, or of the directory, that the error is about.
        document: PathBuf,
        /// The error.
        error: String,
    },
    /// Readers of the consolidated metadata of a group read another array.
    #[error("the consolidated metadata in {} {how}", shown(.document))]
    Consolidated {
        /// Path of the group's document.
        document: PathBuf,
        /// What it says, and what is there.
        how: String,
    },
    /// It is a copy that was not completed.
    #[error("{0}")]
    UnfinishedCopy(String),
    /// A commit was interrupted.
    #[error(
        "the journal holds the record of a commit to {} that was not completed: \
         `shardfs recover` completes it or takes it back", many(*.0, "shard")
    )]
    Pending(u64),
    /// The journal is invalid.
    #[error(transparent)]
    Journal(JournalError),
    /// A shard, or a shard inside it, cannot be read.
    #[error("{damage}{}", .looks.as_ref().map_or(String::new(), |looks| format!("; {looks}")))]
    Damage {
        /// Reason.
        damage: Arc<Damage>,
        /// Alternative interpretation of the file; `None` if there is none.
        looks: Option<Looks>,
    },
    /// Entries are bad because the metadata describes the index wrongly.
    #[error("{0}: index_codecs or index_location of the metadata are not those of its writer")]
    IndexCodecs(OtherReading),
    /// An entry is bad.
    #[error("{0}")]
    Entry(EntryError),
    /// A chunk has zero bytes.
    #[error("its entry (offset {0}, nbytes 0) is of no bytes, which its codecs never write")]
    NoBytes(u64),
    /// A chunk has another length than its codecs always write.
    #[error("it has {}, its codecs always write {expected}", count(.found, "byte"))]
    Length {
        /// Length found, in bytes.
        found: u64,
        /// Expected length, in bytes.
        expected: u64,
    },
    /// The ranges of a chunk or inner shard and of another, or of the index, overlap.
    #[error(
        "its bytes (offset {}, nbytes {}) overlap {} (offset {}, nbytes {})",
        .range.offset, .range.nbytes, if *.is_index { "the index" } else { "those of another" },
        .with.offset, .with.nbytes
    )]
    Overlap {
        /// Range of the chunk or inner shard.
        range: ByteRange,
        /// Range that it overlaps.
        with: ByteRange,
        /// `true` if that range is the index.
        is_index: bool,
    },
    /// A chunk cannot be decoded.
    #[error("it cannot be decoded: {0}")]
    Undecodable(pipeline::DecodeError),
    /// A checksum over a shard does not match.
    #[error("{0}")]
    Checksum(pipeline::DecodeError),
    /// A file has a chunk key outside the array's grid.
    #[error("it lies outside the shard grid, which has {0:?} shards: the array has no such chunks")]
    Stray(Vec<u64>),
    /// A file is absent although its format has no empty chunks.
    #[error("it is missing, and its format has no empty chunks")]
    Missing,
    /// A file cannot be read, or keeps changing.
    #[error("{0}")]
    Unreadable(String),

    /// Unreferenced bytes hold older indexes.
    #[error(
        "{} in dead bytes of {}, as updates leave them",
        many(*.indexes, "older index"), many(*.shards, "shard")
    )]
    OlderIndexes {
        /// Number of indexes.
        indexes: u64,
        /// Number of shards they are in.
        shards: u64,
    },
    /// The metadata is valid, but shardfs cannot read such an array.
    #[error("it is not checked: {0}")]
    NotRead(String),
    /// The chunks cannot be decoded by shardfs.
    #[error("its chunks cannot be decoded here: {0}")]
    NotDecoded(String),
    /// A file was not completed by its writer.
    #[error("its writer has not finished it, or could not record where chunks are")]
    Unfinished,
    /// A file of chunks lies beyond the length of the array.
    #[error("it lies beyond the length of the array")]
    Beyond,
    /// A lock file of a writer.
    #[error("a lock file of TensorStore or shardfs: its owner is writing, or was stopped")]
    Lock,
    /// A temporary file of a writer.
    #[error("a temporary file: its owner is writing, or was stopped")]
    Temporary,
    /// A file name is not a chunk key.
    #[error("its name is no chunk key")]
    NoKey,
    /// Bytes are unreferenced.
    #[error("{} in {}: no index reaches them", count(.nbytes, "dead byte"), many(*.shards, "shard"))]
    Dead {
        /// Number of bytes.
        nbytes: u64,
        /// Number of shards they are in.
        shards: u64,
    },
    /// Chunks lie outside the array's shape.
    #[error("{} outside the array's shape, in shards at its edge", many(*.0, "chunk"))]
    Outside(u64),
    /// Chunks share their bytes with other chunks.
    #[error("{} with bytes that another chunk has as well", many(*.0, "chunk"))]
    Shared(u64),
    /// Empty entries have the form that zarrita wrote.
    #[error("{} of empty chunks as zarrita wrote them: length of the index - 1, 2^64-1",
        many(*.0, "entry"))]
    Wrapped(u64),
    /// Chunks have zero bytes, and their codecs are not known.
    #[error("{} of no bytes; whether their codecs may write none is not known here",
        many(*.0, "chunk"))]
    NoBytesUnknown(u64),
}

/// Alternative interpretation of a shard that cannot be read.
#[derive(Debug)]
pub enum Looks {
    /// An unsharded chunk.
    Unsharded,
    /// A shard that was written with other settings.
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
    /// Returns whether the finding is a note.
    pub fn is_note(&self) -> bool {
        match self {
            Self::Metadata { .. }
            | Self::Consolidated { .. }
            | Self::UnfinishedCopy(_)
            | Self::Pending(_)
            | Self::Journal(_)
            | Self::Damage { .. }
            | Self::IndexCodecs(_)
            | Self::Entry(_)
            | Self::NoBytes(_)
            | Self::Length { .. }
            | Self::Overlap { .. }
            | Self::Undecodable(_)
            | Self::Checksum(_)
            | Self::Stray(_)
            | Self::Missing
            | Self::Unreadable(_) => false,
            Self::OlderIndexes { .. }
            | Self::NotRead(_)
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

    /// Returns an identifier for programs, which never changes.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Metadata { .. } => "metadata",
            Self::Consolidated { .. } => "consolidated",
            Self::UnfinishedCopy(_) => "unfinished-copy",
            Self::Pending(_) => "pending",
            Self::Journal(_) => "journal",
            Self::Damage { .. } => "damage",
            Self::IndexCodecs(_) => "index-codecs",
            Self::Entry(_) => "entry",
            Self::NoBytes(_) => "no-bytes",
            Self::Length { .. } => "length",
            Self::Overlap { .. } => "overlap",
            Self::Undecodable(_) => "undecodable",
            Self::Checksum(_) => "checksum",
            Self::Stray(_) => "stray",
            Self::Missing => "missing",
            Self::Unreadable(_) => "unreadable",
            Self::OlderIndexes { .. } => "older-index",
            Self::NotRead(_) => "not-read",
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
    /// Creates a finding about an array as a whole.
    pub fn of_array(array: &Path, what: What) -> Self {
        Self { array: array.to_owned(), shard: None, within: None, is_chunk_file: false, what }
    }

    /// Creates a finding about a shard, or a file that is not a shard.
    pub fn of_shard(array: &Path, shard: PathBuf, what: What) -> Self {
        Self { shard: Some(shard), ..Self::of_array(array, what) }
    }

    /// Creates a finding from an error, which concerns the chunk at the given coordinates if any
    /// are given.
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
        Self { within, ..Self::of_shard(array, shard, what) }
    }

    /// Returns whether the finding is a note.
    pub fn is_note(&self) -> bool {
        self.what.is_note()
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.shard, &self.within) {
            (None, _) if let What::Metadata { document, .. } = &self.what => {
                write!(f, "{}: ", shown(document))?;
            }
            (None, _) => write!(f, "{}: ", shown(&self.array))?,
            (Some(file), _) if self.is_chunk_file => write!(f, "file {}: ", shown(&file))?,
            (Some(shard), None) => write!(f, "shard {}: ", shown(&shard))?,
            (Some(shard), Some(Within { is_shard, position, .. })) => {
                let what = if *is_shard { "inner shard" } else { "chunk" };
                write!(f, "shard {}, {what} at {position:?}: ", shown(&shard))?;
            }
        }
        Line(&self.what).fmt(f)
    }
}
