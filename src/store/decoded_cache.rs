//! Cache of decoded chunks, with a budget, and the buffers that they leave for the next ones.

use std::sync::Arc;

use parking_lot::Mutex;

use super::byte_cache::ByteCache;
use super::storage::Version;
use crate::memory::{NoMemory, zeroed};

/// Stripes of the lock that keeps two threads from decoding the same chunk.
const STRIPES: usize = 256;
/// Maximum number of bytes in unused buffers that are kept for the next chunks: fresh memory costs
/// as much as fast codecs do.
const SPARE_BYTES: usize = 16 << 20;

/// Decoded chunk: C order, little-endian.
#[derive(Debug)]
pub struct DecodedChunk {
    pub(super) bytes: Vec<u8>,
    pub(super) spare: Arc<Spare>,
}

impl AsRef<[u8]> for DecodedChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for DecodedChunk {
    fn drop(&mut self) {
        self.spare.give(std::mem::take(&mut self.bytes));
    }
}

/// Pool of buffers for reuse.
#[derive(Debug, Default)]
pub(super) struct Spare(Mutex<Vec<Vec<u8>>>);

impl Spare {
    /// Returns a buffer of `nbytes` bytes with arbitrary contents.
    pub(super) fn take(&self, nbytes: usize) -> Result<Vec<u8>, NoMemory> {
        let mut buffers = self.0.lock();
        let fitting = buffers.iter().position(|buffer| buffer.len() == nbytes);
        match fitting.map(|at| buffers.swap_remove(at)) {
            Some(buffer) => Ok(buffer),
            None => {
                drop(buffers);
                zeroed(nbytes as u64)
            }
        }
    }

    fn give(&self, buffer: Vec<u8>) {
        let mut buffers = self.0.lock();
        let kept: usize = buffers.iter().map(Vec::len).sum();
        if kept + buffer.len() <= SPARE_BYTES {
            buffers.push(buffer);
        }
    }
}

/// An array's id, and the number of a chunk in its grid.
pub(super) type Key = (u64, u64);

/// Decoded chunks of a store.
#[derive(Debug)]
pub(super) struct DecodedChunks {
    pub(super) kept: Mutex<ByteCache<Key, (Version, Arc<DecodedChunk>)>>,
    decoding: Vec<Mutex<()>>,
    pub(super) spare: Arc<Spare>,
}

impl DecodedChunks {
    /// Creates a cache with a budget in bytes.
    pub(super) fn new(budget: usize) -> Self {
        Self {
            kept: Mutex::new(ByteCache::new(budget)),
            decoding: (0..STRIPES).map(|_| Mutex::default()).collect(),
            spare: Arc::default(),
        }
    }

    /// Returns the chunk as decoded from this version of its shard.
    pub(super) fn get(&self, key: Key, shard: Version) -> Option<Arc<DecodedChunk>> {
        let (version, chunk) = self.kept.lock().get(&key)?;
        (version == shard).then_some(chunk)
    }

    /// Returns the lock for the decoding of a chunk.
    pub(super) fn stripe(&self, key: Key) -> &Mutex<()> {
        // The remainder is less than a usize, so it fits.
        let at = usize::try_from((key.0 ^ key.1) % STRIPES as u64).unwrap_or(0);
        &self.decoding[at]
    }
}
