//! Cache of decoded chunks, with a budget, and the buffers that they leave for the next ones.

use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use super::byte_cache::ByteCache;
use super::storage::Version;
use crate::memory::{NoMemory, zeroed};
use crate::number::to_usize;
use crate::text::count;

/// Stripes of the lock that keeps two threads from decoding the same chunk.
const STRIPES: usize = 256;
/// Maximum number of bytes in unused buffers that are kept for the next chunks: fresh memory costs
/// as much as fast codecs do.
const SPARE_BYTES: usize = 16 << 20;

/// Decoded chunk: C order, little-endian.
#[derive(Debug)]
pub struct DecodedChunk {
    pub(super) bytes: Vec<u8>,
    /// Its shard as it was before and after it was read.
    pub(super) shard: Version,
    pub(super) spare: Arc<Spare>,
}

impl DecodedChunk {
    /// Returns the version of the shard from which it was decoded.
    pub fn shard(&self) -> Version {
        self.shard
    }
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

/// Number of decoded chunks after which it is determined how many of them were decoded before.
const WINDOW: u64 = 1024;
/// Number of decoded chunks to remember: as many as a plane of a large array has.
const REMEMBERED: usize = 1 << 14;

/// Recognition of chunks that are decoded again and again, because the cache has dropped them
/// before they were read to their end: between two decodings of a chunk, fewer than half the chunks
/// of its array were decoded. Another pass over an array is none.
#[derive(Debug)]
struct Repetitions {
    /// The versions of the shards of the last chunks that were decoded, with the number of chunks
    /// decoded until then.
    last: LruCache<Key, (Version, u64)>,
    /// Chunks decoded so far.
    decoded: u64,
    /// Those of them that had been decoded before.
    again: u64,
    /// `true` once a window was reported.
    is_reported: bool,
}

impl Repetitions {
    fn new() -> Self {
        Self { last: LruCache::unbounded(), decoded: 0, again: 0, is_reported: false }
    }

    /// Notes that a chunk of an array of `chunks` chunks was decoded. Returns the number of repetitions in a window if that is the
    /// first one in which more than half of the chunks were decoded before.
    fn note(&mut self, key: Key, shard: Version, chunks: u64) -> Option<u64> {
        if self.is_reported {
            return None;
        }
        self.decoded += 1;
        let before = self.last.put(key, (shard, self.decoded));
        let is_again = |(version, at)| version == shard && self.decoded - at < chunks / 2;
        self.again += u64::from(before.is_some_and(is_again));
        if self.last.len() > REMEMBERED {
            self.last.pop_lru();
        }
        if !self.decoded.is_multiple_of(WINDOW) {
            return None;
        }
        let again = std::mem::take(&mut self.again);
        self.is_reported = again > WINDOW / 2;
        if self.is_reported {
            self.last.clear();
        }
        self.is_reported.then_some(again)
    }
}

/// Decoded chunks of a store.
#[derive(Debug)]
pub(super) struct DecodedChunks {
    kept: Mutex<ByteCache<Key, Arc<DecodedChunk>>>,
    budget: usize,
    repetitions: Mutex<Repetitions>,
    decoding: Vec<Mutex<()>>,
    pub(super) spare: Arc<Spare>,
}

impl DecodedChunks {
    /// Creates a cache with a budget in bytes.
    pub(super) fn new(budget: usize) -> Self {
        Self {
            kept: Mutex::new(ByteCache::new(budget)),
            budget,
            repetitions: Mutex::new(Repetitions::new()),
            decoding: (0..STRIPES).map(|_| Mutex::default()).collect(),
            spare: Arc::default(),
        }
    }

    /// Returns the chunk as decoded from this version of its shard.
    pub(super) fn get(&self, key: Key, shard: Version) -> Option<Arc<DecodedChunk>> {
        self.kept.lock().get(&key).filter(|chunk| chunk.shard == shard)
    }

    /// Keeps a chunk, one of `chunks` of its array. Warns once if most chunks are decoded again and
    /// again.
    pub(super) fn put(&self, key: Key, chunk: &Arc<DecodedChunk>, chunks: u64) {
        self.kept.lock().put(key, Arc::clone(chunk), chunk.bytes.len());
        let again = self.repetitions.lock().note(key, chunk.shard, chunks);
        if let Some(again) = again {
            log::warn!(
                "{again} of the last {WINDOW} chunks were decoded before: those that are read together \
                 do not fit into the {} for decoded chunks; raise --decoded-size, or read along the chunks",
                count(self.budget as u64, "byte")
            );
        }
    }

    /// Returns the lock for the decoding of a chunk.
    pub(super) fn stripe(&self, key: Key) -> &Mutex<()> {
        let at = to_usize((key.0 ^ key.1) % STRIPES as u64);
        &self.decoding[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::storage::{FileKind, Stat, Timestamp};

    fn version(ino: u64) -> Version {
        let (kind, time) = (FileKind::File, Timestamp::default());
        let (mtime, ctime, atime) = (time, time, time);
        let (mode, uid, gid) = (0, 0, 0);
        Stat { dev: 0, ino, kind, mode, uid, gid, links: 1, size: 0, mtime, ctime, atime }.version()
    }

    /// Returns how often chunks that are decoded in this order are reported.
    fn reports(order: impl Iterator<Item = (u64, u64)>) -> usize {
        let mut repetitions = Repetitions::new();
        let note = |(n, ino): &(u64, u64)| repetitions.note((1, *n), version(*ino), 2000).is_some();
        order.filter(note).count()
    }

    #[test]
    fn chunks_that_are_decoded_again_and_again_are_reported_once() {
        // Rows across 100 chunks each, which do not fit.
        assert_eq!(reports((0..10 * WINDOW).map(|n| (n % 100, 0))), 1);
        // Each chunk once, each twice, and one pass after the other.
        assert_eq!(reports((0..10 * WINDOW).map(|n| (n % 2000, 0))), 0);
        assert_eq!(reports((0..10 * WINDOW).map(|n| (n, 0))), 0);
        assert_eq!(reports((0..10 * WINDOW).map(|n| (n / 2, 0))), 0);
        // The same chunks of shards that are written all the time.
        assert_eq!(reports((0..10 * WINDOW).map(|n| (n % 100, n))), 0);
    }
}
