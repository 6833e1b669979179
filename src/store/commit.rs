//! Committing: publishing staged chunks in the shards of an array.
//!
//! ```text
//! lock the journal; complete or take back what an earlier commit has left
//! for each shard:  lock it, read its index, compare with what was staged over, plan
//! new files:       written and synced under other names
//! the journal:     one record for all shards that change in place, synced
//! those shards:    written, synced
//! new files:       renamed; removed shards: unlinked; directories synced
//! clear the journal
//! ```
//!
//! Many shards are committed in groups, one after the other ([`group`]): a group holds a number of
//! open files and of locks that does not grow with the work.
//!
//! Each shard is old or new at any moment, for whoever recovers. A shard that fails leaves the
//! others alone, and can be committed again: after an error nothing that is seen of it is taken for
//! safe, and a record that could not be taken back is dealt with first.

mod base;
mod bloscpack;
mod group;
mod prepare;
mod publish;
mod superchunks;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use lru::LruCache;
use parking_lot::Mutex;

pub use self::base::{Base, Dated};
use self::base::{Line, Print};
use self::group::{Group, Groups};
use super::blob::Sources;
use super::content::Content;
use super::error::StoreError;
use super::journal::Journal;
use super::lock::{ShardLock, clear_note, has_note, note_locks};
use super::owner::Owner;
use super::recover::{Found, recover_locked};
use super::shard::ShardId;
use super::storage::{Stat, StorageFile, Timestamp};
use super::{Container, ShardStore, SourceArray};
use crate::format::Coords;
use crate::format::after::trailing_checksums;
use crate::format::journal::{Record, ShardRecord};
use crate::format::plan::{Policy, Update};

/// Length of a record in bytes, its head apart; beyond, shards become new files.
const MAX_RECORD: u64 = 256 << 20;

/// A chunk to be committed.
#[derive(Debug, Clone)]
pub struct StagedChunk {
    /// Its coordinates, which must lie in the chunk grid.
    pub coords: Coords,
    /// Its new bytes; None empties it.
    pub content: Option<Content>,
    /// What it was staged over.
    pub base: Base,
    /// Who has made it: a shard that does not exist yet becomes theirs. This process if None.
    pub maker: Option<Maker>,
    /// Chunks of the same shard and commit without which it is not committed either.
    pub with: Vec<Coords>,
}

/// Owner and permissions of new files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker {
    /// User.
    pub uid: u32,
    /// Group, but where the directory passes on its own.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

/// What became of one staged chunk.
pub type Outcome = Result<(), Arc<StoreError>>;

/// What a store remembers of its commits.
#[derive(Debug)]
pub(super) struct Commits {
    arrays: Mutex<HashMap<u64, Arc<Mutex<ArrayCommits>>>>,
    lines: Mutex<LruCache<ShardId, Line>>,
    /// Numbers given to lines so far.
    last_line: AtomicU64,
    /// The filesystem cannot clone files.
    no_clones: AtomicBool,
}

/// What is remembered of the commits to one array.
#[derive(Debug, Default)]
struct ArrayCommits {
    /// What earlier mounts have left was looked for.
    swept: bool,
    /// The journal as it was when it was cleared durably; no record comes back from under it.
    cleared: Option<Stat>,
    /// The record in the journal names a shard whose state is unknown: it must stay until it can be
    /// completed or taken back.
    stuck: bool,
    /// Keys of the shards that such a record names. They are not touched, or it would be taken for
    /// that of a later commit.
    poisoned: HashSet<Vec<u8>>,
    /// Names of new files so far.
    names: u64,
    /// What chunks were to become by commits that have failed after their shard was touched. A recovery
    /// may complete one of those later: no change by others. Forgotten with the chunk's next commit.
    attempts: HashMap<Coords, VecDeque<Option<Print>>>,
}

/// Failed commits of one chunk to remember. What is older can be found in its shard only if every one
/// since was taken back.
const MAX_ATTEMPTS: usize = 64;

impl Default for Commits {
    fn default() -> Self {
        let lines = Mutex::new(LruCache::unbounded());
        let (arrays, last_line, no_clones) = Default::default();
        Self { arrays, lines, last_line, no_clones }
    }
}

impl Commits {
    fn of_array(&self, array: &SourceArray) -> Arc<Mutex<ArrayCommits>> {
        Arc::clone(self.arrays.lock().entry(array.id).or_default())
    }
}

impl ArrayCommits {
    /// A record must stay, and no other may take its place.
    fn keep(&mut self, record: Option<&Record>) {
        self.stuck = true;
        let shards = record.map_or(&[][..], |record| &record.shards);
        self.poisoned.extend(shards.iter().map(|shard| shard.key.clone()));
    }
}

impl ShardStore {
    /// Does something while this mount commits nothing to an array.
    pub(super) fn between_commits<T>(&self, array: &SourceArray, act: impl FnOnce() -> T) -> T {
        let commits = self.commits.of_array(array);
        let _quiet = commits.lock();
        act()
    }

    /// Waits until nobody else commits to an array; completes or takes back what was not finished.
    fn settle(
        &self,
        array: &SourceArray,
        state: &mut ArrayCommits,
    ) -> Result<Journal<'_>, StoreError> {
        let mut journal = Journal::lock(&*self.storage, &array.path)?;
        // Others who were killed have left at least a note of their locks.
        let is_left = journal.found().is_some() || has_note(&*self.storage, &array.path)?;
        if !state.swept || is_left {
            let found = recover_locked(&*self.storage, Owner::Array(array), &mut journal)?;
            state.stuck = false;
            state.poisoned.clear();
            if found.iter().any(|(_, found)| *found == Found::Lost) {
                state.keep(journal.found());
            }
            state.swept = true;
        } else {
            // The record is gone: its shards were dealt with, and it was cleared as far as that could
            // be done, or somebody else has done it.
            state.stuck = false;
            state.poisoned.clear();
        }
        Ok(journal)
    }

    /// Commits chunks of an array and returns once they are safe, with an outcome for each.
    pub fn commit(
        &self,
        array: &SourceArray,
        chunks: &[StagedChunk],
        policy: Policy,
    ) -> Vec<Outcome> {
        let empty = || Content::Memory(Arc::default());
        let contents = chunks.iter().map(|chunk| chunk.content.clone().unwrap_or_else(empty));
        let contents: Vec<Content> = contents.collect();
        let mut outcomes: Vec<Outcome> = chunks.iter().map(|_| Ok(())).collect();
        let mut groups = Groups::new(array, chunks, &contents, self.open_files.in_commit);
        while let Some(group) = groups.next() {
            let commits = self.commits.of_array(array);
            // Given back after each group: others wait for a turn.
            let mut commits = commits.lock();
            let journal = self.with_files(|| self.settle(array, &mut commits));
            match journal {
                Ok(journal) => {
                    let (state, outcomes) = (&mut *commits, &mut outcomes);
                    let (store, contents) = (self, &*contents);
                    let commit =
                        Commit { store, array, chunks, contents, policy, state, journal, outcomes };
                    groups.put_back(commit.run(group));
                }
                Err(error) => {
                    self.report(&error);
                    let error = Arc::new(error);
                    for (at, _) in group.into_iter().chain(groups.rest()).flat_map(|one| one.1) {
                        outcomes[at] = Err(Arc::clone(&error));
                    }
                }
            }
        }
        let count = &self.stats.commits;
        for (chunk, content) in outcomes.iter().zip(&contents) {
            match chunk {
                Ok(()) => count.chunks.count(),
                Err(_) => count.failed.count(),
            }
            count.chunk_bytes.add(if chunk.is_ok() { content.nbytes() } else { 0 });
        }
        outcomes
    }

    /// Removes the journal of an array, unless somebody needs its record.
    pub fn finish_commits(&self, array: &SourceArray) -> Result<(), StoreError> {
        let commits = self.commits.arrays.lock().remove(&array.id);
        let Some(commits) = commits else { return Ok(()) };
        let mut commits = commits.lock();
        self.settle(array, &mut commits)?.remove()
    }

    /// Whether chunks of the array can be committed: not where shards are compressed as a whole,
    /// nor in every other format.
    pub fn is_writable(array: &SourceArray) -> bool {
        let has_checksums_only = || {
            let mut levels = array.layout.levels.iter();
            levels.all(|level| trailing_checksums(&level.after).is_some())
        };
        match array.container {
            Container::Shards => has_checksums_only(),
            Container::Chunks | Container::Bloscpack(_) => true,
            Container::Superchunks { grows, .. } => grows,
        }
    }

    /// Whether the array's format has a word for chunks that are not there.
    pub fn has_holes(array: &SourceArray) -> bool {
        array.container.has_keys()
    }

    /// Whether the last chunk of an array can be removed.
    pub fn can_shrink(array: &SourceArray) -> bool {
        !matches!(array.container, Container::Bloscpack(_))
    }
}

/// The commit of one group of shards.
struct Commit<'a> {
    store: &'a ShardStore,
    array: &'a SourceArray,
    /// Those of all groups.
    chunks: &'a [StagedChunk],
    /// Of every chunk; that of a removed one is empty.
    contents: &'a [Content],
    policy: Policy,
    state: &'a mut ArrayCommits,
    journal: Journal<'a>,
    outcomes: &'a mut [Outcome],
}

/// A shard with changes.
struct Shard<'a> {
    id: ShardId,
    path: PathBuf,
    /// Its chunks, by their number in the commit.
    chunks: Vec<usize>,
    line: Line,
    _lock: Option<ShardLock<'a>>,
    old: Option<Old>,
    work: Work,
    /// Directories that must be synced for its name to be safe.
    directories: Vec<PathBuf>,
}

/// A shard as it is.
struct Old {
    stat: Stat,
    file: Arc<dyn StorageFile>,
    /// It has other names, or its name is a symbolic link: it must keep its content.
    is_linked: bool,
}

/// What is to be done to a shard.
enum Work {
    /// It is as wanted.
    Nothing,
    /// The file with this name, which is complete and safe, takes its place.
    Replace(PathBuf, Stat),
    /// It is changed in place, under a record.
    Journal(Update, ShardRecord),
    /// It is changed where nobody reads, then made shorter.
    Cut(Update),
    /// It is removed.
    Remove,
}

impl<'a> Commit<'a> {
    /// Commits a group of shards. Those that it could not take along, for want of open files or of
    /// time, are left for the next one.
    fn run(mut self, group: Group) -> Group {
        let keys: Vec<Vec<u8>> = group.iter().map(|(shard, _)| self.key(shard)).collect();
        let keys = keys.iter().map(Vec::as_slice);
        if let Err(error) = note_locks(&*self.store.storage, &self.array.path, keys) {
            let all: Vec<usize> =
                group.iter().flat_map(|(_, members)| members).map(|it| it.0).collect();
            self.fail(&all, error);
            return Group::new();
        }
        let ids: Vec<ShardId> =
            group.iter().map(|(coords, _)| ShardId::of_shard(self.array, coords)).collect();
        self.store.stats.commits.commits.count();
        let store = self.store;
        let left = match self.array.container {
            Container::Superchunks { extent, .. } => self.commit_superchunks(group, extent),
            Container::Shards | Container::Chunks | Container::Bloscpack(_) => {
                self.commit_shards(group)
            }
        };
        clear_note(&*store.storage, &self.array.path);
        for id in ids {
            store.commits.set_busy(id, false);
        }
        left
    }

    fn commit_shards(&mut self, group: Group) -> Group {
        let mut budget = MAX_RECORD;
        let (shards, left) = self.prepare_group(group, &mut budget);
        let touched: Vec<usize> = shards.iter().flat_map(|shard| &shard.chunks).copied().collect();
        let (recorded, others): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|shard| matches!(shard.work, Work::Journal(..)));
        let mut done = self.commit_recorded(recorded);
        done.extend(self.commit_others(others));
        self.sync_directories(&done);
        self.note_attempts(&touched);
        left
    }

    /// Remembers what chunks may have become, of which that is not certain.
    fn note_attempts(&mut self, touched: &[usize]) {
        for at in touched {
            let chunk = &self.chunks[*at];
            if self.outcomes[*at].is_ok() {
                self.state.attempts.remove(&chunk.coords);
                continue;
            }
            // What waits and cannot be read cannot have been written, either.
            let Ok(print) = chunk.content.as_ref().map(Print::of).transpose() else { continue };
            let attempts = self.state.attempts.entry(chunk.coords.clone()).or_default();
            attempts.retain(|other| *other != print);
            attempts.push_back(print);
            if attempts.len() > MAX_ATTEMPTS {
                attempts.pop_front();
            }
        }
    }

    fn fail(&mut self, chunks: &[usize], error: StoreError) {
        self.store.report(&error);
        let error = Arc::new(error);
        for at in chunks {
            self.outcomes[*at] = Err(Arc::clone(&error));
        }
    }

    fn key(&self, shard: &[u64]) -> Vec<u8> {
        self.array.shard_name(shard).into_os_string().into_vec()
    }

    /// A shard could not be committed.
    fn give_up(&mut self, shard: &Shard<'_>, error: StoreError) {
        self.leave(shard, false, false);
        self.fail(&shard.chunks, error);
    }

    /// Remembers how a shard was left: changed or not, and whether that is safe.
    fn leave(&self, shard: &Shard<'_>, changed: bool, is_safe: bool) {
        // Not by its name: others may have put another file there already.
        let left = match (&shard.work, &shard.old) {
            (Work::Replace(_, stat), _) if changed => Ok(Some(*stat)),
            (Work::Remove, _) if changed => Ok(None),
            (_, None) => Ok(None),
            (_, Some(old)) => old.file.stat().map(Some),
        };
        let line = left.ok().map(|left| Line { shard: left, is_safe, ..shard.line });
        self.store.commits.leave(shard.id, line);
        self.store.forget(shard.id);
    }

    fn sources<'b>(&'b self, old: Option<&'b Old>) -> Sources<'b> {
        Sources { contents: self.contents, old: old.map(|old| &*old.file) }
    }
}

/// Others see by its date that a file has changed: also where the clock has not moved on, and also
/// those who looked at it while it was being written. The system dates a write when it begins.
fn redate(file: &dyn StorageFile, before: &Stat) -> io::Result<()> {
    let Timestamp { seconds, nanoseconds } = file.stat()?.mtime.max(before.mtime);
    let next = match nanoseconds {
        999_999_999 => Timestamp { seconds: seconds.saturating_add(1), nanoseconds: 0 },
        _ => Timestamp { seconds, nanoseconds: nanoseconds + 1 },
    };
    file.set_mtime(next)
}

impl ShardStore {
    /// Drops what is known of a shard, also what a thread is about to put into the cache.
    pub(super) fn forget(&self, id: ShardId) {
        let _loading = self.loading_lock(&id);
        self.shards.lock().remove(&id);
        self.absent.lock().pop(&id);
        self.files.lock().pop(&id);
    }
}
