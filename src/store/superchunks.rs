//! Current length of an array of superchunk files.

use std::path::Path;

use serde_json::Value;

use super::{Container, SIZES, ShardStore, SourceArray, StoreError, io_error};
use crate::format::json;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::format::superchunks::{Extent, rows};
use crate::memory::zeroed;

impl ShardStore {
    /// Reads `meta/sizes` of an array that may grow. Returns it with the length that it gives.
    pub(super) fn sizes(
        &self,
        array: &SourceArray,
        extent: Extent,
    ) -> Result<(Value, Extent), StoreError> {
        let path = array.path.join(SIZES);
        let sizes = self.read_sizes(&path).map_err(io_error(&path))?;
        let rows = rows(&sizes).map_err(std::io::Error::other).map_err(io_error(&path))?;
        Ok((sizes, Extent { rows, ..extent }))
    }

    fn read_sizes(&self, path: &Path) -> std::io::Result<Value> {
        let file = self.storage.open(path)?;
        let size = file.stat()?.size;
        if size > MAX_METADATA_BYTES {
            return Err(std::io::Error::other("it is too long"));
        }
        let mut text = zeroed(size)?;
        let read = file.read_at(&mut text, 0)?;
        text.truncate(read);
        json::parse(&text).map_err(std::io::Error::other)
    }

    /// Returns the current number of shards of an array along its first axis. `None` if the whole
    /// grid may have shards.
    pub(super) fn shards_now(&self, array: &SourceArray) -> Result<Option<u64>, StoreError> {
        match array.container {
            Container::Superchunks { extent, grows: true, .. } => {
                let (_, extent) = self.sizes(array, extent)?;
                Ok(Some(extent.nchunks()))
            }
            _ => Ok(None),
        }
    }
}
