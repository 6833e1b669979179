//! Open handles: what each one refers to.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use parking_lot::Mutex;

use super::decoded_file::DecodedFile;
use super::live_file::OpenFile;
use super::nodes::ArrayView;
use super::page_policy::Pages;
use crate::format::Coords;
use crate::format::flat::FlatFile;
use crate::store::ChunkReader;
use crate::store::storage::Stat;

/// Open file.
pub(super) enum Handle {
    Chunk(Box<OpenChunk>),
    /// A file that is passed through, or a file of the overlay.
    Open(Arc<OpenFile>),
    /// A decoded chunk.
    Decoded(Box<DecodedFile>),
    /// A whole array.
    Flat(Arc<ArrayView>, FlatFile),
    /// A rewritten `zarr.json`, or the counters as they were when the file was opened.
    Text(Arc<[u8]>),
}

/// Open chunk. Reads return the bytes that it had when it was opened, or an error, but never a
/// mixture.
pub(super) struct OpenChunk {
    pub(super) array: Arc<ArrayView>,
    pub(super) coords: Coords,
    pub(super) reader: ChunkReader,
    /// Lineage of its shard, if this mount may change it ([`crate::store::ShardStore::line_of`]).
    pub(super) line: Option<u64>,
    /// `true` once bytes of `reader` were returned.
    pub(super) served: AtomicBool,
    /// Shard whose bytes were returned instead, after it had been changed in place.
    pub(super) moved_to: Mutex<Option<Stat>>,
    /// `Stat` of the file of `reader` when the chunk was found in it again after its ctime had
    /// changed.
    pub(super) touched: Mutex<Option<Stat>>,
}

/// Result of opening a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// Handle of the open file.
    pub handle: u64,
    /// Policy for what the kernel has cached of the file: its pages and its size.
    pub pages: Pages,
}
