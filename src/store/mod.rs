//! Shard I/O: opens shards, reads and caches their indexes, and finds and reads chunks.
//!
//! ```text
//! chunk coordinates -> shard path, positions   (format::sharding, arithmetic)
//! shard path        -> LoadedShard             (one open, one read of the index; cached)
//! LoadedShard       -> Body of the chunk       (one entry; one more for each nested level)
//! Body              -> ChunkReader             (an open file and a range in it)
//! ```

mod array;
mod beneath;
mod blob;
mod cache;
mod commit;
pub mod content;
pub mod decoded;
pub mod entries;
mod error;
pub mod formats;
pub mod identity;
mod index_reader;
pub mod journal;
pub mod listing;
mod loaded;
pub mod local;
mod lock;
pub mod memory;
pub mod new_shards;
mod outside;
pub mod owner;
pub mod put;
mod reader;
pub mod recover;
mod replace;
pub mod scan;
mod shard;
pub mod spool;
pub mod storage;
mod unfinished;
pub mod work;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Resource, getrlimit};

pub use self::array::SourceArray;
pub use self::cache::ByteCache;
pub use self::commit::{Base, Dated, Maker, Outcome, StagedChunk};
pub use self::error::{Damage, StoreError, io_error};
pub use self::loaded::{Body, LoadedShard};
use self::loaded::{InnerError, ShardId};
pub use self::outside::Outside;
pub use self::reader::ChunkReader;
use self::reader::VerifiedKey;
use self::storage::{Stat, Storage, StorageFile};
use crate::format::digest::Digest;
use crate::format::sharding::Location;
use crate::stats::Stats;

/// Default time for which cached state of the source is used without revalidation, where the caller
/// does not ask for more freshness.
pub const TRUSTED: Duration = Duration::from_secs(1);

/// Stripes of the lock that keeps two threads from reading the same index at once.
const LOADING_STRIPES: usize = 64;

/// Limits of a store, and how far it may rely on its caches.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// `true` if the source never changes: disables revalidation.
    pub immutable: bool,
    /// Time for which cached state of the source is used without revalidation, where the caller
    /// does not ask for more freshness.
    pub trusted: Duration,
    /// Cache budget for indexes and decoded shards, in bytes.
    pub cache_size: usize,
    /// Cache budget for decoded chunks, in bytes.
    pub decoded_size: usize,
    /// Number of shard files to keep open, if the process may open that many files.
    pub open_files: usize,
    /// Length of the longest shard that is decoded as a whole, in bytes, both encoded and decoded.
    pub decode_limit: u64,
    /// `true` if a last chunk that is shorter than the others is padded, in formats where it may
    /// be.
    pub pad_edge: bool,
    /// Largest block or page size of the underlying filesystem, in bytes. ext4 was seen to zero the
    /// rest of the last block of a truncated file before the new length was durable.
    pub block_size: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            immutable: false,
            trusted: TRUSTED,
            cache_size: 64 << 20,
            decoded_size: 128 << 20,
            open_files: 256,
            decode_limit: 1 << 30,
            pad_edge: false,
            block_size: 64 << 10,
        }
    }
}

/// Freshness that a caller requires of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Revalidated now: the shard was seen to have changed.
    Again,
    /// Revalidated just now (at most 10 ms ago).
    Now,
    /// Revalidated within [`StoreConfig::trusted`].
    Recent,
}

/// Inner chunk that exists.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Attributes of the shard that holds it.
    pub shard: Stat,
    /// Location of its bytes.
    pub body: Body,
    /// Checksum stored after it.
    pub digest: Digest,
}

/// Shards of a source.
pub struct ShardStore {
    storage: Arc<dyn Storage>,
    config: StoreConfig,
    stats: Arc<Stats>,
    shards: Mutex<ByteCache<ShardId, Arc<LoadedShard>>>,
    /// Shards that were found absent, and when.
    absent: Mutex<LruCache<ShardId, u64>>,
    files: Mutex<LruCache<ShardId, OpenShard>>,
    /// Chunks with checksums that were verified, by the shard's array and attributes, and the
    /// range.
    verified: Mutex<ByteCache<VerifiedKey, Arc<Vec<u8>>>>,
    windows: Mutex<ByteCache<(u64, PathBuf), Arc<listing::Window>>>,
    /// Errors that were logged, so that a reader that retries does not fill the log.
    reported: Mutex<LruCache<String, ()>>,
    loading: [Mutex<()>; LOADING_STRIPES],
    decoded: decoded::DecodedChunks,
    commits: commit::Commits,
    open_files: OpenFiles,
}

/// Limits on the files that a store keeps open, by purpose. Files open for readers of chunks come
/// on top: their number is up to the readers.
#[derive(Debug, Clone, Copy)]
struct OpenFiles {
    /// Shards that were read recently.
    cached: usize,
    /// Shards of one group of a commit, with two files each.
    in_commit: usize,
}

impl OpenFiles {
    /// Upper limit of shards in a group of a commit, however many files may be open.
    const MOST_IN_COMMIT: usize = 1024;
    /// Part of the process's limit that each purpose may use, as a divisor: a mount may have
    /// several stores, and readers need most of the limit.
    const PART: u64 = 16;

    /// Returns the limits for a process that may have `limit` files open; `None` means no limit.
    fn within(limit: Option<u64>, cached: usize) -> Self {
        let part = limit.map_or(usize::MAX, |limit| {
            usize::try_from(limit / Self::PART).unwrap_or(usize::MAX).max(1)
        });
        Self { cached: cached.min(part), in_commit: Self::MOST_IN_COMMIT.min(part) }
    }
}

/// Open shard, and its attributes when it was opened.
type OpenShard = (Stat, Arc<dyn StorageFile>);

/// Number of absent shards to remember.
const ABSENT_SHARDS: usize = 1024;
/// Cache budget for verified chunks, in bytes: a chunk is read in pieces and must not be verified
/// for each.
const VERIFIED_BYTES: usize = 16 << 20;
/// Cache budget for directory listings, in bytes.
const WINDOW_CACHE_BYTES: usize = 8 << 20;
/// Number of logged errors to remember.
const REPORTED_ERRORS: usize = 4096;

impl ShardStore {
    /// Creates a store over `storage`.
    pub fn new(storage: Arc<dyn Storage>, config: StoreConfig, stats: Arc<Stats>) -> Self {
        let at_least_one = |n: usize| NonZeroUsize::new(n).unwrap_or(NonZeroUsize::MIN);
        let limit = getrlimit(Resource::Nofile).current;
        let open_files = OpenFiles::within(limit, config.open_files);
        Self {
            open_files,
            shards: Mutex::new(ByteCache::new(config.cache_size)),
            absent: Mutex::new(LruCache::new(at_least_one(ABSENT_SHARDS))),
            files: Mutex::new(LruCache::new(at_least_one(open_files.cached))),
            verified: Mutex::new(ByteCache::new(VERIFIED_BYTES)),
            windows: Mutex::new(ByteCache::new(WINDOW_CACHE_BYTES)),
            reported: Mutex::new(LruCache::new(at_least_one(REPORTED_ERRORS))),
            decoded: decoded::DecodedChunks::new(config.decoded_size),
            commits: commit::Commits::default(),
            loading: [const { Mutex::new(()) }; LOADING_STRIPES],
            storage,
            config,
            stats,
        }
    }

    /// Finds the chunk at `coords`, which must lie in the array's chunk grid. `None` if the index
    /// says that it is empty, or if there is no shard.
    pub fn chunk(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<Chunk>, StoreError> {
        const ATTEMPTS: usize = 4;
        let is_changing = |found: &Result<_, _>| matches!(found, Err(StoreError::Changing { .. }));
        let mut found = self.chunk_now(array, coords, freshness);
        for _ in 0..ATTEMPTS {
            if !is_changing(&found) {
                return found;
            }
            found = self.chunk_now(array, coords, Freshness::Again);
        }
        if is_changing(&found) {
            // The changes are most likely commits of this mount: try once with those held off.
            found = self.between_commits(array, || self.chunk_now(array, coords, Freshness::Again));
        }
        found.inspect_err(|error| self.report(error))
    }

    /// Returns a shard whose chunks are to be listed, revalidated within [`StoreConfig::trusted`]
    /// and never in the middle of a commit by this mount. `None` if there is no shard.
    pub fn shard_to_list(
        &self,
        array: &SourceArray,
        shard: &[u64],
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        match self.shard(array, shard, Freshness::Recent) {
            Err(StoreError::Changing { .. }) => self
                .between_commits(array, || self.shard(array, shard, Freshness::Again))
                .inspect_err(|error| self.report(error)),
            found => found,
        }
    }

    /// Finds a chunk to be listed in a shard returned by [`Self::shard_to_list`].
    pub fn chunk_to_list(
        &self,
        array: &SourceArray,
        shard: &Arc<LoadedShard>,
        location: &Location,
        coords: &[u64],
    ) -> Result<Option<Chunk>, StoreError> {
        match self.chunk_in(array, Arc::clone(shard), location) {
            // A shard nested in it was read at a later moment.
            Err(StoreError::Changing { .. }) => self.chunk(array, coords, Freshness::Again),
            found => found,
        }
    }

    fn chunk_now(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<Chunk>, StoreError> {
        let location = array.layout.locate(coords);
        match self.shard(array, &location.shard, freshness)? {
            None => Ok(None),
            Some(shard) => self.chunk_in(array, shard, &location),
        }
    }

    /// Finds the chunk at `location` in `shard`, which is loaded. `None` if it is empty.
    pub fn chunk_in(
        &self,
        array: &SourceArray,
        mut shard: Arc<LoadedShard>,
        location: &Location,
    ) -> Result<Option<Chunk>, StoreError> {
        let last = location.positions.len().saturating_sub(1);
        for (level, position) in location.positions.iter().enumerate() {
            if level < last {
                let Some(inner) = self.inner_of(array, &shard, location, level)? else {
                    return Ok(None);
                };
                shard = inner;
                continue;
            }
            let found = shard.inner(&array.layout.levels[level], position);
            let body = found.map_err(|error| self.inner_error(array, location, level, error))?;
            let (stat, digest) = (*shard.stat(), shard.digest());
            let chunk = body.map(|body| Chunk { shard: stat, body, digest });
            return match (chunk, shard.padding(&array.layout.levels[level], position)) {
                (Some(chunk), Some(full)) => self.padded(array, location, chunk, full).map(Some),
                (chunk, _) => Ok(chunk),
            };
        }
        Ok(None)
    }

    fn inner_error(
        &self,
        array: &SourceArray,
        location: &Location,
        level: usize,
        error: InnerError,
    ) -> StoreError {
        let shard = array.shard_path(&location.shard);
        let error = match error {
            InnerError::Damaged(damage) => StoreError::Damaged { shard, damage },
            InnerError::Entry(error) => {
                let position = location.positions[level].clone();
                StoreError::BadEntry { shard, position, error }
            }
        };
        self.report(&error);
        error
    }

    /// Logs an error once.
    pub fn report(&self, error: &StoreError) {
        let text = error.to_string();
        if self.reported.lock().put(text.clone(), ()).is_none() {
            match error.hint() {
                Some(hint) => log::error!("{text}; {hint}"),
                None => log::error!("{text}"),
            }
        }
    }

    /// Runs `act`, which opens files. If no more files can be opened, closes the cached shards and
    /// runs it once more.
    pub fn with_files<T>(
        &self,
        mut act: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match act() {
            Err(error) if error.is_shortage() => {
                self.files.lock().clear();
                act()
            }
            done => done,
        }
    }

    fn loading_lock(&self, id: &ShardId) -> MutexGuard<'_, ()> {
        self.loading[id.stripe(LOADING_STRIPES)].lock()
    }
}

impl Chunk {
    /// Returns the length of the encoded chunk in bytes.
    pub fn nbytes(&self) -> u64 {
        self.body.nbytes()
    }

    /// Returns the offset of the chunk in the shard's file. `None` if the shard is compressed as a
    /// whole.
    pub fn offset(&self) -> Option<u64> {
        match self.body {
            Body::InFile { offset, .. } => Some(offset),
            Body::InMemory { .. } => None,
        }
    }
}
