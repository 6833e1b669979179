//! Store of a source's shards: its state, and what all of its operations share.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lru::LruCache;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Resource, getrlimit};

use super::array::SourceArray;
use super::byte_cache::ByteCache;
use super::commit_state::Commits;
use super::config::StoreConfig;
use super::decoded_cache::DecodedChunks;
use super::error::{StoreError, io_error};
use super::loaded::{LoadedShard, ShardId};
use super::storage::{PosixStorage, Storage, StorageFile, Version};
use super::streams::Streams;
use super::window::Window;
use crate::bounded::bounded;
use crate::format::index::ByteRange;
use crate::number::to_usize;
use crate::requester;
use crate::stats::Stats;

/// Stripes of the lock that keeps two threads from reading the same index at once.
const LOADING_STRIPES: usize = 64;

/// A shard's array and version, a range of it, and whether the bytes were padded.
pub(super) type VerifiedKey = (u64, Version, ByteRange, bool);

/// Shards of a source.
pub struct ShardStore {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) config: StoreConfig,
    pub(super) stats: Arc<Stats>,
    pub(super) shards: Mutex<ByteCache<ShardId, Arc<LoadedShard>>>,
    /// Shards that were found absent, and when.
    pub(super) absent: Mutex<LruCache<ShardId, u64>>,
    pub(super) files: Mutex<LruCache<ShardId, OpenShard>>,
    /// Chunks with checksums that were verified, by the shard's array and version, and the range.
    pub(super) verified: Mutex<ByteCache<VerifiedKey, Arc<Vec<u8>>>>,
    pub(super) windows: Mutex<ByteCache<(u64, PathBuf), Arc<Window>>>,
    /// Errors that were logged, so that a reader that retries does not fill the log.
    reported: Mutex<LruCache<String, ()>>,
    loading: [Mutex<()>; LOADING_STRIPES],
    pub(super) decoded: DecodedChunks,
    pub(super) commits: Commits,
    pub(super) streams: Streams,
    pub(super) open_files: OpenFiles,
}

/// Limits on the files that a store keeps open, by purpose. Files open for readers of chunks come
/// on top: their number is up to the readers.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenFiles {
    /// Shards that were read recently.
    cached: usize,
    /// Shards of one group of a commit, with two files each.
    pub(super) in_commit: usize,
}

impl OpenFiles {
    /// Upper limit of shards in a group of a commit, however many files may be open.
    const MOST_IN_COMMIT: usize = 1024;
    /// Part of the process's limit that each purpose may use, as a divisor: a mount may have
    /// several stores, and readers need most of the limit.
    const PART: u64 = 16;

    /// Returns the limits for a process that may have `limit` files open; `None` means no limit.
    fn within(limit: Option<u64>, cached: usize) -> Self {
        let part = limit.map_or(usize::MAX, |limit| to_usize(limit / Self::PART).max(1));
        Self { cached: cached.min(part), in_commit: Self::MOST_IN_COMMIT.min(part) }
    }
}

/// Open shard, and its version when it was opened.
pub(super) type OpenShard = (Version, Arc<dyn StorageFile>);

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
            absent: Mutex::new(bounded(at_least_one(ABSENT_SHARDS))),
            files: Mutex::new(bounded(at_least_one(open_files.cached))),
            verified: Mutex::new(ByteCache::new(VERIFIED_BYTES)),
            windows: Mutex::new(ByteCache::new(WINDOW_CACHE_BYTES)),
            reported: Mutex::new(bounded(at_least_one(REPORTED_ERRORS))),
            decoded: DecodedChunks::new(config.decoded_size),
            commits: Commits::default(),
            streams: Streams::new(config.longest_window),
            loading: [const { Mutex::new(()) }; LOADING_STRIPES],
            storage,
            config,
            stats,
        }
    }

    /// Returns the limits of the store.
    pub fn config(&self) -> &StoreConfig {
        &self.config
    }

    /// Returns the filesystem that the source is on, for changes to an array.
    ///
    /// # Errors
    /// `ReadOnly` if the source is not on one.
    pub fn posix(&self, array: &SourceArray) -> Result<&dyn PosixStorage, StoreError> {
        let read_only = || StoreError::ReadOnly { array: array.path.clone() };
        self.storage.posix().ok_or_else(read_only)
    }

    /// Logs an error once.
    pub fn report(&self, error: &StoreError) {
        // A reader that was ended while it waited: nothing is wrong with the source.
        if error.errno() == libc::EINTR {
            return;
        }
        let text = error.to_string();
        if self.reported.lock().put(text.clone(), ()).is_none() {
            // Of what to do with a shard, which is done where it can be written.
            match error.hint().filter(|_| self.storage.posix().is_some()) {
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

    /// Locks the loading of a shard.
    pub(super) fn loading_lock(&self, id: &ShardId) -> MutexGuard<'_, ()> {
        self.loading[id.stripe(LOADING_STRIPES)].lock()
    }

    /// Locks the loading of a shard for a thread that answers a request: another may wait for an answer
    /// of the network with the lock held.
    ///
    /// # Errors
    /// EINTR if the process whose request it is has been ended meanwhile.
    pub(super) fn loading_lock_of_requester(
        &self,
        id: &ShardId,
        path: &Path,
    ) -> Result<MutexGuard<'_, ()>, StoreError> {
        requester::lock(&self.loading[id.stripe(LOADING_STRIPES)]).map_err(io_error(path))
    }

    /// Drops all cached state of a shard, including what another thread is about to put into the
    /// cache.
    pub(super) fn forget(&self, id: ShardId) {
        let _loading = self.loading_lock(&id);
        self.shards.lock().remove(&id);
        self.absent.lock().pop(&id);
        self.files.lock().pop(&id);
    }

    /// Runs `act` while this mount commits nothing to an array.
    pub(super) fn between_commits<T>(&self, array: &SourceArray, act: impl FnOnce() -> T) -> T {
        let commits = self.commits.of_array(array);
        let _quiet = commits.state.lock();
        act()
    }
}
