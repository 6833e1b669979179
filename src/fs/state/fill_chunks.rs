//! Encoded chunks that are shown in place of absent ones, within a budget for all arrays.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::fill_chunk::FillChunk;
use crate::fs::error::{FsError, Result};
use crate::memory::ROOM;
use crate::store::ByteCache;

/// Budget in bytes. Most of these chunks are short: a single value compresses well.
const BUDGET: usize = 16 << 20;

/// An array's id, and the fingerprint of one of its chunks.
type Key = (u64, u64);

/// Encoded chunks of a single value.
pub(in crate::fs) struct FillChunks(Mutex<ByteCache<Key, Arc<[u8]>>>);

impl Default for FillChunks {
    fn default() -> Self {
        Self(Mutex::new(ByteCache::new(BUDGET)))
    }
}

impl FillChunks {
    /// Returns the bytes of a chunk of an array.
    pub(in crate::fs) fn encoded(&self, array: u64, chunk: &FillChunk) -> Result<Arc<[u8]>> {
        let key = (array, chunk.fingerprint());
        if let Some(known) = self.0.lock().get(&key) {
            return Ok(known);
        }
        let _room = ROOM.take(chunk.memory())?;
        // Another thread may have made it while this one waited.
        if let Some(known) = self.0.lock().get(&key) {
            return Ok(known);
        }
        let made = chunk.encoded().map_err(|error| FsError::Io(std::io::Error::other(error)))?;
        let made: Arc<[u8]> = made.into();
        self.0.lock().put(key, Arc::clone(&made), made.len());
        Ok(made)
    }
}
