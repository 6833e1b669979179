//! Commits: publishing staged chunks in the shards of an array.
//!
//! ```text
//! lock the journal; roll an unfinished commit forward or back
//! for each shard:  lock it, read its index, compare with the staged changes' base, plan
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
//! At any moment recovery finds each shard old or new. A shard that fails does not affect the
//! others, and can be committed again: after an error no visible state of it counts as durable, and
//! a record that could not be rolled back is dealt with first.

mod base;
mod counted;
mod group;
mod prepare;
mod publish;

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
use super::loaded::ShardId;
use super::lock::{ShardLock, clear_note, has_note, note_locks};
use super::owner::Owner;
use super::recover::{Found, recover_locked};
use super::storage::{Stat, StorageFile, Timestamp};
use super::{ShardStore, SourceArray};
use crate::format::Coords;
use crate::format::journal::{Record, ShardRecord};
use crate::format::plan::{Policy, Update};

/// Maximum length of a record in bytes, without its head; changes that would exceed it make new
/// files.
const MAX_RECORD: u64 = 256 << 20;

/// Chunk to be committed.
#[derive(Debug, Clone)]
pub struct StagedChunk {
    /// Coordinates of the chunk, which must lie in the chunk grid.
    pub coords: Coords,
    /// New bytes; `None` empties the chunk.
    pub content: Option<Content>,
    /// State of the chunk that the change was staged over.
    pub base: Base,
    /// Owner and permissions for a shard that does not exist yet; those of this process if `None`.
    pub maker: Option<Maker>,
    /// Chunks of the same shard and commit on which this one depends: it is committed only if they
    /// are.
    pub with: Vec<Coords>,
}

/// Owner and permissions of new files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker {
    /// User.
    pub uid: u32,
    /// Group, unless the directory passes on its own.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
}

/// Result of committing one staged chunk.
pub type Outcome = Result<(), Arc<StoreError>>;

/// State that a store keeps of its commits.
#[derive(Debug)]
pub(super) struct Commits {
    arrays: Mutex<HashMap<u64, Arc<Mutex<ArrayCommits>>>>,
    lines: Mutex<LruCache<ShardId, Line>>,
    /// Last number given to a lineage.
    last_line: AtomicU64,
    /// `true` once the filesystem was found unable to clone files.
    no_clones: AtomicBool,
}

/// State kept of the commits to one array.
#[derive(Debug, Default)]
struct ArrayCommits {
    /// `true` once the remains of earlier mounts were looked for.
    swept: bool,
    /// Attributes of the journal when it was last cleared durably: while they hold, no older record
    /// can reappear.
    cleared: Option<Stat>,
    /// `true` if the record in the journal names a shard whose state is unknown: it must stay until
    /// it can be rolled forward or back.
    stuck: bool,
    /// Keys of the shards that such a record names. They are not written, or the record would be
    /// taken for that of a later commit.
    poisoned: HashSet<Vec<u8>>,
    /// Number of names given to new files so far.
    names: u64,
    /// Contents that chunks were to get by commits that failed after their shard was touched. A
    /// recovery may roll one of those forward later, which is no change by others. Forgotten with
    /// the chunk's next successful commit.
    attempts: HashMap<Coords, VecDeque<Option<Print>>>,
}

/// Number of failed commits to remember of one chunk. An older one can be found in its shard only
/// if every one since was rolled back.
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
    /// Marks the record as one that must stay and must not be replaced by another.
    fn keep(&mut self, record: Option<&Record>) {
        self.stuck = true;
        let shards = record.map_or(&[][..], |record| &record.shards);
        self.poisoned.extend(shards.iter().map(|shard| shard.key.clone()));
    }
}

impl ShardStore {
    /// Runs `act` while this mount commits nothing to an array.
    pub(super) fn between_commits<T>(&self, array: &SourceArray, act: impl FnOnce() -> T) -> T {
        let commits = self.commits.of_array(array);
        let _quiet = commits.lock();
        act()
    }

    /// Locks the journal of an array, waiting for other commits to it, and rolls an unfinished one
    /// forward or back.
    fn settle(
        &self,
        array: &SourceArray,
        state: &mut ArrayCommits,
    ) -> Result<Journal<'_>, StoreError> {
        let mut journal = Journal::lock(&*self.storage, &array.path)?;
        // A killed process has left at least a note of its locks.
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
            // The record is gone: its shards were dealt with, and it was cleared as far as
            // possible, or another process has done so.
            state.stuck = false;
            state.poisoned.clear();
        }
        Ok(journal)
    }

    /// Commits chunks of an array and returns once they are durable, with an outcome for each.
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
            // Released after each group: others wait for a turn.
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

    /// Removes the journal of an array, unless its record is still needed.
    pub fn finish_commits(&self, array: &SourceArray) -> Result<(), StoreError> {
        let commits = self.commits.arrays.lock().remove(&array.id);
        let Some(commits) = commits else { return Ok(()) };
        let mut commits = commits.lock();
        self.settle(array, &mut commits)?.remove()
    }
}

/// Commit of one group of shards.
struct Commit<'a> {
    store: &'a ShardStore,
    array: &'a SourceArray,
    /// Chunks of all groups.
    chunks: &'a [StagedChunk],
    /// Contents of all chunks; empty for a chunk to be removed.
    contents: &'a [Content],
    policy: Policy,
    state: &'a mut ArrayCommits,
    journal: Journal<'a>,
    outcomes: &'a mut [Outcome],
}

/// Shard with changes.
struct Shard<'a> {
    id: ShardId,
    path: PathBuf,
    /// Chunks of the shard, by their number in the commit.
    chunks: Vec<usize>,
    line: Line,
    _lock: Option<ShardLock<'a>>,
    old: Option<Old>,
    work: Work,
    /// Directories to be synced for its name to be durable.
    directories: Vec<PathBuf>,
}

/// Existing state of a shard.
struct Old {
    stat: Stat,
    file: Arc<dyn StorageFile>,
    /// `true` if the file has other hard links, or its name is a symbolic link: the file must keep
    /// its content.
    is_linked: bool,
}

/// Change to be made to a shard.
enum Work {
    /// Nothing: the shard is as wanted.
    Nothing,
    /// Replace the shard by the file with this name, which is complete and durable.
    Replace(PathBuf, Stat),
    /// Update the shard in place, under a record.
    Journal(Update, ShardRecord),
    /// Write to ranges that no reader uses, then truncate.
    Cut(Update),
    /// Remove the shard.
    Remove,
}

impl<'a> Commit<'a> {
    /// Commits a group of shards. Returns those left for the next group, for want of open files or
    /// of time.
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
            group.iter().map(|(coords, _)| self.array.shard_id(coords)).collect();
        self.store.stats.commits.commits.count();
        let store = self.store;
        let left = match self.array.format.length(&*store.storage, &self.array.path) {
            Ok(None) => self.commit_shards(group),
            Ok(Some(length)) => self.commit_counted(group, &length),
            Err(error) => {
                let all: Vec<usize> =
                    group.iter().flat_map(|(_, members)| members).map(|it| it.0).collect();
                self.fail(&all, error);
                Group::new()
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

    /// Remembers the contents that chunks may have got by a commit that failed.
    fn note_attempts(&mut self, touched: &[usize]) {
        for at in touched {
            let chunk = &self.chunks[*at];
            if self.outcomes[*at].is_ok() {
                self.state.attempts.remove(&chunk.coords);
                continue;
            }
            // A staged content that cannot be read cannot have been written, either.
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

    /// Records that a shard could not be committed.
    fn give_up(&mut self, shard: &Shard<'_>, error: StoreError) {
        self.leave(shard, false, false);
        self.fail(&shard.chunks, error);
    }

    /// Records the state in which a shard was left: whether it was changed, and whether that is
    /// durable.
    fn leave(&self, shard: &Shard<'_>, changed: bool, is_safe: bool) {
        // Not by its name: another process may already have put another file there.
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

/// Bumps the mtime past the old and the current one, so that readers notice the change even within
/// one clock tick, or if they read the attributes during the write: the kernel dates a write when
/// it begins.
fn redate(file: &dyn StorageFile, before: &Stat) -> io::Result<()> {
    let Timestamp { seconds, nanoseconds } = file.stat()?.mtime.max(before.mtime);
    let next = match nanoseconds {
        999_999_999 => Timestamp { seconds: seconds.saturating_add(1), nanoseconds: 0 },
        _ => Timestamp { seconds, nanoseconds: nanoseconds + 1 },
    };
    file.set_mtime(next)
}

impl ShardStore {
    /// Drops all cached state of a shard, including what another thread is about to put into the
    /// cache.
    pub(super) fn forget(&self, id: ShardId) {
        let _loading = self.loading_lock(&id);
        self.shards.lock().remove(&id);
        self.absent.lock().pop(&id);
        self.files.lock().pop(&id);
    }
}
