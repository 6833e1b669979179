//! Open handles: what each one refers to.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use crate::format::Coords;
use crate::format::flat::FlatFile;
use crate::fs::attr::Attr;
use crate::fs::node::ArrayView;
use crate::fs::state::decoded_file::DecodedFile;
use crate::fs::state::live_file::OpenFile;
use crate::fs::state::opener::Opener;
use crate::fs::state::page_policy::Pages;
use crate::store::ChunkReader;
use crate::store::storage::{Stat, Version};

/// Open file.
pub(in crate::fs) enum Handle {
    Chunk(Box<OpenChunk>),
    /// A file that is passed through, or a file of the overlay.
    Open(Arc<OpenFile>),
    /// A decoded chunk.
    Decoded(Box<OpenDecoded>),
    /// A whole array.
    Flat(Box<OpenFlat>),
    /// A rewritten `zarr.json`, or the counters as they were when the file was opened.
    Text(OpenText),
}

/// Open file that the view generates, as it was when it was opened.
pub(in crate::fs) struct OpenText {
    pub(in crate::fs) text: Arc<[u8]>,
    /// Attributes when it was opened, which it keeps without its name; `None` if it is never without one.
    pub(in crate::fs) attr: Option<Attr>,
}

/// Open chunk. Reads return the bytes that it had when it was opened, or an error, but never a
/// mixture.
pub(in crate::fs) struct OpenChunk {
    pub(in crate::fs) array: Arc<ArrayView>,
    pub(in crate::fs) coords: Coords,
    pub(in crate::fs) reader: ChunkReader,
    /// Attributes when it was opened. Once its file is replaced they change no more: the kernel would
    /// drop the pages that it has of it.
    pub(in crate::fs) attr: Attr,
    /// Number of the last replacement of its file when it was opened.
    pub(in crate::fs) replaced: u64,
    /// Who has opened it; `None` if that is a user who may do anything.
    pub(in crate::fs) opener: Option<Arc<Opener>>,
    /// Lineage of its shard, if this mount may change it ([`crate::store::ShardStore::lineage_of`]).
    pub(in crate::fs) lineage: Option<u64>,
    /// `true` if what is read through it is not kept in the kernel's pages, nor taken from them.
    pub(in crate::fs) is_direct: bool,
    /// `true` once bytes of `reader` were returned.
    pub(in crate::fs) served: AtomicBool,
    /// Shard whose bytes were returned instead, after it had been changed in place.
    pub(in crate::fs) moved_to: Mutex<Option<Version>>,
    /// `Stat` of the file of `reader` when the chunk was found in it again after its ctime had
    /// changed.
    pub(in crate::fs) touched: Mutex<Option<Stat>>,
}

/// Open decoded chunk. Reads return what it was when it was opened, as it was changed through this
/// mount since, or an error.
pub(in crate::fs) struct OpenDecoded {
    pub(in crate::fs) array: Arc<ArrayView>,
    pub(in crate::fs) coords: Coords,
    pub(in crate::fs) file: DecodedFile,
    /// Number of the last replacement of its file when it was opened.
    pub(in crate::fs) replaced: u64,
    /// Who has opened it; `None` if that is a user who may do anything.
    pub(in crate::fs) opener: Option<Arc<Opener>>,
    /// Its shard when it was opened; `None` if the chunk did not exist.
    pub(in crate::fs) shard: Option<Version>,
    /// Lineage of its shard, if this mount may change it ([`crate::store::ShardStore::lineage_of`]).
    pub(in crate::fs) lineage: Option<u64>,
    /// Attributes when it was opened, which it keeps without its name; `None` in a read-only mount.
    pub(in crate::fs) attr: Option<Attr>,
}

/// Open file of a whole array.
pub(in crate::fs) struct OpenFlat {
    pub(in crate::fs) array: Arc<ArrayView>,
    pub(in crate::fs) file: FlatFile,
    /// Who has opened it; `None` if that is a user who may do anything.
    pub(in crate::fs) opener: Option<Arc<Opener>>,
}

impl Handle {
    /// Returns the array of an open chunk.
    pub(in crate::fs) fn array(&self) -> Option<&ArrayView> {
        match self {
            Self::Chunk(open) => Some(&open.array),
            Self::Decoded(open) => Some(&open.array),
            Self::Open(_) | Self::Flat(_) | Self::Text(_) => None,
        }
    }

    /// Returns who has opened it; `None` if that is a user who may do anything, or if what it shows does not
    /// change any more.
    pub(in crate::fs) fn opener(&self) -> Option<&Arc<Opener>> {
        match self {
            Self::Chunk(open) => open.opener.as_ref(),
            Self::Open(open) => open.opener.as_ref(),
            Self::Decoded(open) => open.opener.as_ref(),
            Self::Flat(open) => open.opener.as_ref(),
            Self::Text(_) => None,
        }
    }

    /// Returns the attributes that a file had when it was opened; `None` if it keeps none.
    pub(in crate::fs) fn kept_attr(&self) -> Option<Attr> {
        match self {
            Self::Chunk(open) => Some(open.attr),
            Self::Decoded(open) => open.attr,
            Self::Text(open) => open.attr,
            Self::Open(_) | Self::Flat(_) => None,
        }
    }
}

/// Result of opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Handle of the open file.
    pub handle: u64,
    /// Policy for what the kernel has cached of the file: its pages and its size.
    pub pages: Pages,
}
