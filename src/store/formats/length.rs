//! Length of an array that records it in a document of its own, apart from its chunks.

use std::path::Path;

use serde_json::Value;

use crate::format::json;
use crate::format::limits::MAX_METADATA_BYTES;
pub(crate) use crate::format::superchunks::Changes as LengthChanges;
use crate::format::superchunks::{Extent, Outcome, rows};
use crate::memory::zeroed;
use crate::store::error::{StoreError, io_error};
use crate::store::storage::Storage;

/// Recorded length of an array, and the document that records it.
#[derive(Debug, Clone)]
pub struct Length {
    /// Path of the document, relative to the array's directory.
    pub document: &'static Path,
    value: Value,
    extent: Extent,
    /// Bytes of a shard's file before its chunk.
    head: u64,
}

impl Length {
    /// Reads the length from the array's directory. What the array's metadata said when it was read
    /// is in `extent`.
    pub(super) fn read(
        storage: &dyn Storage,
        directory: &Path,
        document: &'static Path,
        extent: Extent,
        head: u64,
    ) -> Result<Self, StoreError> {
        let path = directory.join(document);
        let value = read_json(storage, &path).map_err(io_error(&path))?;
        let rows = rows(&value).map_err(std::io::Error::other).map_err(io_error(&path))?;
        Ok(Self { document, value, extent: Extent { rows, ..extent }, head })
    }

    /// Returns the length in rows.
    pub fn rows(&self) -> u64 {
        self.extent.rows
    }

    /// Returns the number of shards, each of which is one chunk.
    pub fn shards(&self) -> u64 {
        self.extent.nchunks()
    }

    /// Returns the bytes of a chunk in a shard's file of that length.
    pub fn chunk_nbytes(&self, file: u64) -> u64 {
        file.saturating_sub(self.head)
    }

    /// Determines which changes to chunks can be made, and the length after them.
    pub fn change(&self, changes: &LengthChanges) -> Outcome {
        self.extent.change(changes)
    }

    /// Returns the document for an array of `rows` rows, whose encoded chunks have become longer by
    /// that many bytes.
    pub fn document_for(&self, rows: u64, longer: i64) -> Vec<u8> {
        json::to_text(&Extent { rows, ..self.extent }.sizes(&self.value, longer))
    }
}

fn read_json(storage: &dyn Storage, path: &Path) -> std::io::Result<Value> {
    let file = storage.open(path)?;
    let size = file.stat()?.size;
    if size > MAX_METADATA_BYTES {
        return Err(std::io::Error::other("it is too long"));
    }
    let mut text = zeroed(size)?;
    let read = file.read_at(&mut text, 0)?;
    text.truncate(read);
    json::parse(&text).map_err(std::io::Error::other)
}
