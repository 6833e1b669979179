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
//! Each shard is old or new at any moment, for whoever recovers. A shard that fails leaves the
//! others alone, and can be committed again: after an error nothing that is seen of it is taken for
//! safe, and a record that could not be taken back is dealt with first.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::blob::{Sources, bytes_of, fingerprint_of, fingerprint_of_content};
use super::content::Content;
use super::error::{Damage, StoreError};
use super::io_error;
use super::journal::{Journal, WORK_DIRECTORY};
use super::lock::{ShardLock, note_locks};
use super::recover::{Found, recover_locked, take_back};
use super::shard::{Body, LoadedShard, ShardId};
use super::storage::{Stat, StorageFile, Timestamp};
use super::{Freshness, ShardStore, SourceArray, lock};
use crate::format::Coords;
use crate::format::after::trailing_checksums;
use crate::format::fingerprint::Fingerprint;
use crate::format::index::ByteRange;
use crate::format::journal::{CheckedRange, Record, ShardRecord};
use crate::format::plan::{self, Blob, Changes, Facts, Plan, Policy, ShardLayout, Source, Update};
use crate::format::sharding::Location;

/// Old bytes that a record may hold, all shards together; beyond, shards become new files.
const MAX_OVERWRITTEN: u64 = 256 << 20;
/// A new shard's permissions, less the process's umask.
const NEW_SHARD_MODE: u32 = 0o666;

/// A chunk to be committed.
#[derive(Debug, Clone)]
pub struct StagedChunk {
    /// Its coordinates, which must lie in the chunk grid.
    pub coords: Coords,
    /// Its new bytes; None empties it.
    pub content: Option<Content>,
    /// What it was staged over.
    pub base: Base,
}

/// A chunk as it was when it was first staged.
#[derive(Debug, Clone, Default)]
pub struct Base {
    /// Attributes of its shard.
    shard: Option<Stat>,
    /// The chunk itself.
    chunk: Option<Print>,
    /// Number of the shard's [`Line`].
    line: u64,
}

/// What tells a chunk from others: its length and its fingerprint. Its place does not: others may
/// write a shard anew in its place, with chunks that are all as long as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Print {
    nbytes: u64,
    fingerprint: u64,
}

/// A shard as it was last seen by [`ShardStore::base`] or left by a commit of ours. As long as it
/// is found like that, nobody else has changed it.
#[derive(Debug, Clone, Copy)]
struct Line {
    /// Another number after each change by others.
    number: u64,
    shard: Option<Stat>,
    /// A commit of ours has made its bytes and its name safe.
    is_safe: bool,
    /// A commit of ours is changing it: it may look different already.
    is_busy: bool,
}

/// Lines to remember; then all are forgotten, which makes commits slower and no chunk stale that
/// others have not changed.
const MAX_LINES: usize = 1 << 16;

/// What became of one staged chunk.
pub type Outcome = Result<(), Arc<StoreError>>;

/// What a store remembers of its commits.
#[derive(Debug, Default)]
pub(super) struct Commits {
    arrays: Mutex<HashMap<u64, Arc<Mutex<ArrayCommits>>>>,
    lines: Mutex<HashMap<ShardId, Line>>,
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
}

impl ArrayCommits {
    /// A record must stay, and no other may take its place.
    fn keep(&mut self, record: Option<&Record>) {
        self.stuck = true;
        let shards = record.map_or(&[][..], |record| &record.shards);
        self.poisoned.extend(shards.iter().map(|shard| shard.key.clone()));
    }
}

impl Base {
    /// Attributes of the shard when the chunk was staged; None if there was none.
    pub fn shard(&self) -> Option<&Stat> {
        self.shard.as_ref()
    }
}

impl Commits {
    fn of_array(&self, array: &SourceArray) -> Arc<Mutex<ArrayCommits>> {
        Arc::clone(lock(&self.arrays).entry(array.id).or_default())
    }

    /// The line of a shard that is found like this.
    fn line(&self, id: ShardId, shard: Option<&Stat>) -> Line {
        let mut lines = lock(&self.lines);
        if let Some(line) = lines.get(&id)
            && (line.is_busy || is_same(line.shard.as_ref(), shard))
        {
            return *line;
        }
        if lines.len() >= MAX_LINES {
            lines.clear();
        }
        let number = self.last_line.fetch_add(1, Ordering::Relaxed) + 1;
        let line = Line { number, shard: shard.copied(), is_safe: false, is_busy: false };
        lines.insert(id, line);
        line
    }

    /// Whether a commit of ours is changing a shard.
    fn set_busy(&self, id: ShardId, is_busy: bool) {
        if let Some(line) = lock(&self.lines).get_mut(&id) {
            line.is_busy = is_busy;
        }
    }

    /// Whether a commit of this store is changing a shard.
    pub(super) fn is_busy(&self, id: ShardId) -> bool {
        lock(&self.lines).get(&id).is_some_and(|line| line.is_busy)
    }

    /// The names on the way to the shard may not be safe.
    fn doubt(&self, id: ShardId) {
        if let Some(line) = lock(&self.lines).get_mut(&id) {
            line.is_safe = false;
        }
    }

    /// A commit has left the shard like this; None if nobody knows how.
    fn leave(&self, id: ShardId, line: Option<Line>) {
        match line {
            Some(line) => drop(lock(&self.lines).insert(id, line)),
            None => drop(lock(&self.lines).remove(&id)),
        }
    }
}

/// Whether a shard could not be read because somebody is writing to it.
fn is_being_changed(error: &StoreError) -> bool {
    match error {
        StoreError::Changing { .. } => true,
        StoreError::Damaged { damage, .. } => matches!(**damage, Damage::Unfinished),
        StoreError::Io { error, .. } => error.raw_os_error() == Some(libc::ENOENT),
        _ => false,
    }
}

fn is_same(one: Option<&Stat>, other: Option<&Stat>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.same_content(other),
        _ => false,
    }
}

impl ShardStore {
    /// The chunk at `coords` as it is now, for it to be staged over.
    pub fn base(&self, array: &SourceArray, coords: &[u64]) -> Result<Base, StoreError> {
        let base = self.settled_base(array, coords).map_err(StoreError::of_writer);
        base.inspect_err(|error| self.report(error))
    }

    fn settled_base(&self, array: &SourceArray, coords: &[u64]) -> Result<Base, StoreError> {
        const ATTEMPTS: usize = 4;
        let mut base = self.base_now(array, coords, Freshness::Now);
        if !base.as_ref().is_err_and(is_being_changed) {
            return base;
        }
        // Most likely by a commit, of ours or of others: it has to end first, or to be ended.
        let commits = self.commits.of_array(array);
        let mut commits = lock(&commits);
        let _journal = self.settle(array, &mut commits)?;
        for _ in 0..ATTEMPTS {
            base = self.base_now(array, coords, Freshness::Again);
            if !base.as_ref().is_err_and(is_being_changed) {
                break;
            }
        }
        base
    }

    /// A number that a shard, found like this, keeps until others than this store change it.
    pub fn line_of(&self, array: &SourceArray, shard: &[u64], found: &Stat) -> u64 {
        self.commits.line(ShardId::of_shard(array, shard), Some(found)).number
    }

    /// Whether a shard, found like this, was changed by nobody but this store since it had that
    /// number.
    pub fn is_of_line(&self, array: &SourceArray, shard: &[u64], found: &Stat, line: u64) -> bool {
        let lines = lock(&self.commits.lines);
        lines.get(&ShardId::of_shard(array, shard)).is_some_and(|now| {
            now.number == line && (now.is_busy || is_same(now.shard.as_ref(), Some(found)))
        })
    }

    /// Does something while this mount commits nothing to an array.
    pub(super) fn between_commits<T>(&self, array: &SourceArray, act: impl FnOnce() -> T) -> T {
        let commits = self.commits.of_array(array);
        let _quiet = lock(&commits);
        act()
    }

    fn base_now(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Base, StoreError> {
        let location = array.layout.locate(coords);
        let loaded = self.shard(array, &location.shard, freshness)?;
        let shard = loaded.as_ref().map(|shard| *shard.stat());
        let id = ShardId::of_shard(array, &location.shard);
        let line = self.commits.line(id, shard.as_ref()).number;
        let chunk = match loaded {
            Some(loaded) => self.print(array, &location, loaded)?,
            None => None,
        };
        Ok(Base { shard, chunk, line })
    }

    /// Waits until nobody else commits to an array; completes or takes back what was not finished.
    fn settle(
        &self,
        array: &SourceArray,
        state: &mut ArrayCommits,
    ) -> Result<Journal<'_>, StoreError> {
        let mut journal = Journal::lock(&*self.storage, &array.path)?;
        if !state.swept || journal.found().is_some() {
            let found = recover_locked(&*self.storage, &array.path, &mut journal)?;
            state.stuck = false;
            state.poisoned.clear();
            if found.iter().any(|(_, found)| *found == Found::Lost) {
                state.keep(journal.found());
            }
            state.swept = true;
        }
        Ok(journal)
    }

    /// What tells the chunk at `location` from others.
    fn print(
        &self,
        array: &SourceArray,
        location: &Location,
        shard: Arc<LoadedShard>,
    ) -> Result<Option<Print>, StoreError> {
        let stat = *shard.stat();
        let Some(chunk) = self.chunk_in(array, shard, location)? else {
            return Ok(None);
        };
        let nbytes = chunk.nbytes();
        let fingerprint = match chunk.body {
            Body::InMemory { bytes, start, end } => {
                Fingerprint::of(bytes.get(start..end).unwrap_or_default())
            }
            Body::InFile { offset, nbytes } => {
                let path = array.shard_path(&location.shard);
                let changing = || StoreError::Changing { shard: path.clone() };
                let file = self.shard_file(array, &location.shard, &stat)?.ok_or_else(changing)?;
                let found = fingerprint_of(&*file, ByteRange { offset, nbytes });
                if !file.stat().map_err(io_error(&path))?.same_content(&stat) {
                    return Err(changing());
                }
                found.map_err(io_error(&path))?
            }
        };
        Ok(Some(Print { nbytes, fingerprint }))
    }

    /// Commits chunks of an array and returns once they are safe, with an outcome for each.
    pub fn commit(
        &self,
        array: &SourceArray,
        chunks: &[StagedChunk],
        policy: Policy,
    ) -> Vec<Outcome> {
        if chunks.is_empty() {
            return Vec::new();
        }
        let commits = self.commits.of_array(array);
        let mut commits = lock(&commits);
        match Commit::begin(self, array, chunks, policy, &mut commits) {
            Ok(commit) => commit.run(),
            Err(error) => {
                self.report(&error);
                let error = Arc::new(error);
                chunks.iter().map(|_| Err(Arc::clone(&error))).collect()
            }
        }
    }

    /// Removes the journal of an array, unless somebody needs its record.
    pub fn finish_commits(&self, array: &SourceArray) -> Result<(), StoreError> {
        match lock(&self.commits.arrays).remove(&array.id) {
            Some(_) => Journal::lock(&*self.storage, &array.path)?.remove(),
            None => Ok(()),
        }
    }

    /// Whether chunks of the array can be committed: not where shards are compressed as a whole.
    pub fn is_writable(array: &SourceArray) -> bool {
        array.layout.levels.iter().all(|level| trailing_checksums(&level.after).is_some())
    }
}

/// One commit.
struct Commit<'a> {
    store: &'a ShardStore,
    array: &'a SourceArray,
    chunks: &'a [StagedChunk],
    /// Of every chunk; that of a removed one is empty.
    contents: Vec<Content>,
    policy: Policy,
    state: &'a mut ArrayCommits,
    journal: Journal<'a>,
    outcomes: Vec<Outcome>,
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
    fn begin(
        store: &'a ShardStore,
        array: &'a SourceArray,
        chunks: &'a [StagedChunk],
        policy: Policy,
        state: &'a mut ArrayCommits,
    ) -> Result<Self, StoreError> {
        let journal = store.settle(array, state)?;
        let empty = || Content::Memory(Arc::default());
        let contents = chunks.iter().map(|chunk| chunk.content.clone().unwrap_or_else(empty));
        Ok(Self {
            contents: contents.collect(),
            outcomes: chunks.iter().map(|_| Ok(())).collect(),
            store,
            array,
            chunks,
            policy,
            state,
            journal,
        })
    }

    fn run(mut self) -> Vec<Outcome> {
        let mut by_shard: BTreeMap<Coords, Vec<(usize, Location)>> = BTreeMap::new();
        for (at, chunk) in self.chunks.iter().enumerate() {
            let location = self.array.layout.locate(&chunk.coords);
            by_shard.entry(location.shard.clone()).or_default().push((at, location));
        }
        let keys: Vec<Vec<u8>> = by_shard.keys().map(|shard| self.key(shard)).collect();
        let work = self.array.path.join(WORK_DIRECTORY);
        let keys = keys.iter().map(Vec::as_slice);
        if let Err(error) = note_locks(&*self.store.storage, &work, keys) {
            let all: Vec<usize> = (0..self.chunks.len()).collect();
            self.fail(&all, io_error(&work)(error));
            return self.outcomes;
        }
        let id = |coords: &Coords| ShardId::of_shard(self.array, coords);
        let ids: Vec<ShardId> = by_shard.keys().map(id).collect();
        let mut budget = MAX_OVERWRITTEN;
        let mut shards = Vec::new();
        for (coords, members) in by_shard {
            let all: Vec<usize> = members.iter().map(|(at, _)| *at).collect();
            match self.prepare(coords, members, &mut budget) {
                Ok(shard) => shards.extend(shard),
                Err(error) => self.fail(&all, error),
            }
        }
        let (recorded, others): (Vec<_>, Vec<_>) =
            shards.into_iter().partition(|shard| matches!(shard.work, Work::Journal(..)));
        let mut done = self.commit_recorded(recorded);
        done.extend(self.commit_others(others));
        self.sync_directories(&done);
        for id in ids {
            self.store.commits.set_busy(id, false);
        }
        let count = &self.store.stats.commits;
        count.commits.count();
        for (chunk, content) in self.outcomes.iter().zip(&self.contents) {
            match chunk {
                Ok(()) => count.chunks.count(),
                Err(_) => count.failed.count(),
            }
            count.chunk_bytes.add(if chunk.is_ok() { content.nbytes() } else { 0 });
        }
        self.outcomes
    }

    fn fail(&mut self, chunks: &[usize], error: StoreError) {
        self.store.report(&error);
        let error = Arc::new(error);
        for at in chunks {
            self.outcomes[*at] = Err(Arc::clone(&error));
        }
    }

    fn key(&self, shard: &[u64]) -> Vec<u8> {
        self.array.layout.keys.chunk_key(shard).into_bytes()
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

    /// Everything that can go wrong before anything is changed. None if nothing is left to do.
    fn prepare(
        &mut self,
        coords: Coords,
        mut members: Vec<(usize, Location)>,
        budget: &mut u64,
    ) -> Result<Option<Shard<'a>>, StoreError> {
        let path = self.array.shard_path(&coords);
        let id = ShardId::of_shard(self.array, &coords);
        if self.state.poisoned.contains(&self.key(&coords)) {
            return Err(StoreError::Poisoned { shard: path });
        }
        let removals = members.iter().all(|(at, _)| self.chunks[*at].content.is_none());
        let absent = |error: io::Error| error.raw_os_error() == Some(libc::ENOENT);
        if removals && self.store.storage.lstat(&path).is_err_and(absent) {
            let line = self.store.commits.line(id, None);
            let chunks = members.iter().map(|(at, _)| *at).collect();
            let directories = if line.is_safe { vec![] } else { self.directories(&path) };
            let (work, old, _lock) = (Work::Nothing, None, None);
            return Ok(Some(Shard { id, path, chunks, line, _lock, old, work, directories }));
        }
        let made = Cell::new(false);
        let make_directory = || {
            made.set(true);
            self.make_directories(&path)
        };
        let lock = ShardLock::take(&*self.store.storage, &path, &make_directory);
        if made.get() {
            self.store.commits.doubt(id);
        }
        let lock = lock?;
        let loaded = self.store.shard(self.array, &coords, Freshness::Again)?;
        let line = self.store.commits.line(id, loaded.as_ref().map(|shard| shard.stat()));
        self.store.commits.set_busy(id, true);
        if let Some(damage) = loaded.as_ref().and_then(|shard| shard.damage()) {
            return Err(StoreError::Damaged { shard: path, damage }.of_writer());
        }
        let old = match &loaded {
            None => None,
            Some(loaded) => Some(self.open_old(loaded, &path)?),
        };
        members.retain(|(at, location)| {
            let same = self.is_as_staged(*at, location, loaded.as_ref(), line);
            let stale = match same {
                Ok(true) => return true,
                Ok(false) => {
                    let position = location.positions.concat();
                    StoreError::Stale { shard: path.clone(), position }
                }
                Err(error) => error,
            };
            self.fail(&[*at], stale);
            false
        });
        if members.is_empty() {
            return Ok(None);
        }
        let chunks = members.iter().map(|(at, _)| *at).collect();
        let members: Vec<_> = members.iter().map(|(at, location)| (*at, location)).collect();
        let changes = self.changes(0, loaded.as_ref(), &members)?;
        let work = self.plan(&coords, loaded.as_deref(), old.as_ref(), &changes, budget)?;
        if let (false, Work::Journal(..) | Work::Cut(_), Some(old)) = (line.is_safe, &work, &old) {
            // A change in place relies on the file being on disk as it is seen.
            old.file.sync().map_err(io_error(&path))?;
        }
        let directories = match work {
            _ if !line.is_safe => self.directories(&path),
            Work::Replace(..) | Work::Remove => {
                path.parent().into_iter().map(Path::to_owned).collect()
            }
            Work::Nothing | Work::Journal(..) | Work::Cut(_) => vec![],
        };
        let _lock = Some(lock);
        Ok(Some(Shard { id, path, chunks, line, _lock, old, work, directories }))
    }

    /// The directories on the way to a shard, from that of the array on.
    fn directories(&self, shard: &Path) -> Vec<PathBuf> {
        let within = |path: &&Path| path.starts_with(&self.array.path);
        shard.ancestors().skip(1).take_while(within).map(Path::to_owned).collect()
    }

    fn open_old(&self, loaded: &LoadedShard, path: &Path) -> Result<Old, StoreError> {
        let open = || {
            let file = self.store.storage.open_writable(path)?;
            Ok((file.stat()?, file))
        };
        let (stat, file) = open().map_err(io_error(path))?;
        if !stat.unchanged(loaded.stat()) {
            return Err(StoreError::Changing { shard: path.to_owned() });
        }
        Ok(Old { stat, file })
    }

    /// Whether nobody else has changed the chunk since it was staged.
    fn is_as_staged(
        &self,
        at: usize,
        location: &Location,
        loaded: Option<&Arc<LoadedShard>>,
        line: Line,
    ) -> Result<bool, StoreError> {
        let StagedChunk { base, content, .. } = &self.chunks[at];
        if base.line == line.number {
            return Ok(true);
        }
        let now = match loaded {
            None => None,
            Some(loaded) => self.store.print(self.array, location, Arc::clone(loaded))?,
        };
        if now == base.chunk {
            return Ok(true);
        }
        // An earlier attempt may have got further than was seen.
        let print = |content: &Content| {
            let fingerprint = fingerprint_of_content(content)?;
            Ok(Print { nbytes: content.nbytes(), fingerprint })
        };
        let new = content.as_ref().map(print).transpose();
        Ok(now == new.map_err(io_error(&self.array.shard_path(&location.shard)))?)
    }

    /// The changes to the slots of one shard, or of one shard inside it.
    fn changes(
        &self,
        level: usize,
        shard: Option<&Arc<LoadedShard>>,
        members: &[(usize, &Location)],
    ) -> Result<Changes, StoreError> {
        let sharding = &self.array.layout.levels[level];
        let mut by_position: BTreeMap<&Coords, Vec<(usize, &Location)>> = BTreeMap::new();
        for (at, location) in members {
            by_position.entry(&location.positions[level]).or_default().push((*at, location));
        }
        let mut changes = Changes::new();
        for (position, members) in by_position {
            // Of a chunk that is given twice, the last counts.
            let (at, location) = members[members.len() - 1];
            let extents = self.array.layout.chunks_per_shard(level, &location.shard);
            let slot = sharding
                .in_shard_axes(position)
                .zip(&extents)
                .fold(0, |slot, (at, extent)| slot * extent + at);
            let blob = if level + 1 == self.array.layout.levels.len() {
                let content = self.chunks[at].content.as_ref();
                content.map(|content| Blob::of(content.nbytes(), Source::Staged(at)))
            } else {
                self.inner_blob(level, shard, &members)?
            };
            changes.insert(slot, blob);
        }
        Ok(changes)
    }

    /// A shard inside a shard, made anew.
    fn inner_blob(
        &self,
        level: usize,
        outer: Option<&Arc<LoadedShard>>,
        members: &[(usize, &Location)],
    ) -> Result<Option<Blob>, StoreError> {
        let location = members[0].1;
        let inner = match outer {
            None => None,
            Some(outer) => self.store.inner_of(self.array, outer, location, level)?,
        };
        let extents = self.array.layout.chunks_per_shard(level + 1, &location.shard);
        let layout = self.layout(level + 1, &extents, &location.shard)?;
        let changes = self.changes(level + 1, inner.as_ref(), members)?;
        let old = inner.as_deref().and_then(LoadedShard::as_planned);
        plan::rewrite(&layout, old, &changes).map_err(|error| self.no_plan(&location.shard, error))
    }

    fn layout<'b>(
        &'b self,
        level: usize,
        chunks_per_shard: &'b [u64],
        shard: &[u64],
    ) -> Result<ShardLayout<'b>, StoreError> {
        let sharding = &self.array.layout.levels[level];
        if trailing_checksums(&sharding.after).is_none() {
            return Err(StoreError::Compressed { shard: self.array.shard_path(shard) });
        }
        Ok(ShardLayout {
            codecs: &sharding.index_codecs,
            location: sharding.index_location,
            chunks_per_shard,
            checksums: sharding.after.len(),
        })
    }

    fn no_plan(&self, shard: &[u64], error: plan::PlanError) -> StoreError {
        StoreError::Plan { shard: self.array.shard_path(shard), error }
    }

    /// Plans the changes to a shard, and prepares what can be prepared without touching it.
    fn plan(
        &mut self,
        coords: &[u64],
        loaded: Option<&LoadedShard>,
        old: Option<&Old>,
        changes: &Changes,
        budget: &mut u64,
    ) -> Result<Work, StoreError> {
        let path = self.array.shard_path(coords);
        let extents = self.array.layout.chunks_per_shard(0, coords);
        let mut policy = if self.state.stuck { Policy::Rewrite } else { self.policy };
        let mut facts = Facts {
            can_clone: !self.store.commits.no_clones.load(Ordering::Relaxed),
            linked: old.is_some_and(|old| old.stat.links > 1),
            block: self.store.config.block_size,
        };
        // At most once each: clones turn out to be impossible, the record would be too long.
        loop {
            let layout = self.layout(0, &extents, coords)?;
            let planned = loaded.and_then(LoadedShard::as_planned);
            let plan = plan::plan(&layout, planned, changes, policy, facts);
            let work = match plan.map_err(|error| self.no_plan(coords, error))? {
                Plan::Remove => Work::Remove,
                Plan::Cut(update) => Work::Cut(update),
                Plan::Rewrite(blob) => self.write_new(&path, old, &blob)?,
                Plan::Clone(update) => match self.write_clone(&path, old, &update) {
                    Ok(work) => work,
                    Err(StoreError::Io { error, .. })
                        if error.raw_os_error() == Some(libc::EOPNOTSUPP) && facts.can_clone =>
                    {
                        self.store.commits.no_clones.store(true, Ordering::Relaxed);
                        facts.can_clone = false;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                Plan::Journal(update) => {
                    let overwritten: u64 = update.overwritten.iter().map(|old| old.nbytes).sum();
                    if overwritten > *budget {
                        policy = Policy::Rewrite;
                        continue;
                    }
                    *budget -= overwritten;
                    let record = self.record(coords, &path, old, &update)?;
                    Work::Journal(update, record)
                }
            };
            return Ok(work);
        }
    }

    fn sources<'b>(&'b self, old: Option<&'b Old>) -> Sources<'b> {
        Sources { contents: &self.contents, old: old.map(|old| &*old.file) }
    }

    /// Makes a file under a name that nobody else has as long as the journal is locked.
    fn make_new(
        &mut self,
        make: impl Fn(&Path) -> io::Result<Arc<dyn StorageFile>>,
    ) -> io::Result<(PathBuf, Arc<dyn StorageFile>)> {
        loop {
            self.state.names += 1;
            let name = format!("{}.new", self.state.names);
            let path = self.array.path.join(WORK_DIRECTORY).join(name);
            match make(&path) {
                // Another mount could not remove it.
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => (),
                made => return made.map(|file| (path, file)),
            }
        }
    }

    /// Writes a shard anew under another name.
    fn write_new(
        &mut self,
        shard: &Path,
        old: Option<&Old>,
        blob: &Blob,
    ) -> Result<Work, StoreError> {
        let storage = &*self.store.storage;
        let (temporary, file) =
            self.make_new(|path| storage.create(path, NEW_SHARD_MODE)).map_err(io_error(shard))?;
        let write = || {
            self.sources(old).put(&*file, 0, blob)?;
            finish_new(&*file, old)
        };
        self.keep_or_remove(shard, temporary, write())
    }

    /// Changes a clone of a shard.
    fn write_clone(
        &mut self,
        shard: &Path,
        old: Option<&Old>,
        update: &Update,
    ) -> Result<Work, StoreError> {
        let storage = &*self.store.storage;
        let (temporary, file) = self
            .make_new(|path| storage.clone_file(shard, path, NEW_SHARD_MODE))
            .map_err(io_error(shard))?;
        let write = || {
            self.sources(old).put_all(&*file, &update.writes)?;
            file.set_length(update.length)?;
            finish_new(&*file, old)
        };
        self.keep_or_remove(shard, temporary, write())
    }

    fn keep_or_remove(
        &self,
        shard: &Path,
        temporary: PathBuf,
        written: io::Result<Stat>,
    ) -> Result<Work, StoreError> {
        match written {
            Ok(stat) => Ok(Work::Replace(temporary, stat)),
            Err(error) => {
                // What cannot be removed is removed by the next mount.
                let _ = self.store.storage.remove_file(&temporary);
                Err(io_error(shard)(error))
            }
        }
    }

    fn record(
        &self,
        coords: &[u64],
        path: &Path,
        old: Option<&Old>,
        update: &Update,
    ) -> Result<ShardRecord, StoreError> {
        // A shard that changes in place exists.
        let changing = || StoreError::Changing { shard: path.to_owned() };
        let Old { stat, file } = old.ok_or_else(changing)?;
        let keep = |range: &ByteRange| Ok((range.offset, bytes_of(&**file, *range)?));
        let record = || {
            Ok(ShardRecord {
                key: self.key(coords),
                ino: stat.ino,
                old_length: stat.size,
                old_index: CheckedRange {
                    range: update.old_index,
                    fingerprint: fingerprint_of(&**file, update.old_index)?,
                },
                length: update.length,
                written: self.sources(old).check_all(&update.writes)?,
                overwritten: update.overwritten.iter().map(keep).collect::<io::Result<_>>()?,
            })
        };
        record().map_err(io_error(path))
    }

    /// Commits shards in place, under one record. Returns those that have changed.
    fn commit_recorded(&mut self, shards: Vec<Shard<'a>>) -> Vec<Shard<'a>> {
        if shards.is_empty() {
            return shards;
        }
        let records = shards.iter().filter_map(|shard| match &shard.work {
            Work::Journal(_, record) => Some(record.clone()),
            _ => None,
        });
        self.state.cleared = None;
        if let Err(error) = self.journal.write(&Record { shards: records.collect() }) {
            // A record of what did not happen: it is taken back when it is found.
            let _ = self.journal.clear();
            let all: Vec<usize> =
                shards.iter().flat_map(|shard| shard.chunks.iter().copied()).collect();
            self.fail(&all, error);
            return Vec::new();
        }
        let written: Vec<_> =
            shards.into_iter().map(|shard| (self.write_in_place(&shard), shard)).collect();
        let (mut done, mut unknown) = (Vec::new(), false);
        for (result, shard) in written {
            let result = result.and_then(|()| self.sync_in_place(&shard));
            match result {
                Ok(()) => done.push(shard),
                Err(InPlace::Undone(error)) => self.give_up(&shard, error),
                Err(InPlace::Unknown(error)) => {
                    unknown = true;
                    self.give_up(&shard, error);
                }
            }
        }
        // A record of old bytes that came back after a power cut would put them over what others
        // have written to the same file since.
        let restores = |shard: &Shard<'_>| match &shard.work {
            Work::Journal(update, _) => !update.overwritten.is_empty(),
            _ => false,
        };
        let cleared = match unknown {
            true => {
                self.state.keep(self.journal.found());
                Ok(())
            }
            false if done.iter().any(restores) => self.clear_for_good(),
            false => self.journal.clear(),
        };
        if let Err(error) = cleared {
            self.store.report(&error);
        }
        done
    }

    fn write_in_place(&self, shard: &Shard<'_>) -> Result<(), InPlace> {
        let (Work::Journal(update, _), Some(old)) = (&shard.work, &shard.old) else {
            return Ok(());
        };
        let write = || {
            self.sources(Some(old)).put_all(&*old.file, &update.writes)?;
            redate(&*old.file, &old.stat)
        };
        write().map_err(|error| undo(shard, error))
    }

    fn sync_in_place(&self, shard: &Shard<'_>) -> Result<(), InPlace> {
        let Some(old) = &shard.old else { return Ok(()) };
        old.file.sync().map_err(|error| undo(shard, error))
    }

    /// Commits shards that need no record. Returns those that have changed.
    fn commit_others(&mut self, shards: Vec<Shard<'a>>) -> Vec<Shard<'a>> {
        if shards.is_empty() {
            return shards;
        }
        if let Err(error) = self.clear_for_good() {
            for shard in &shards {
                if let Work::Replace(temporary, _) = &shard.work {
                    let _ = self.store.storage.remove_file(temporary);
                }
            }
            let all: Vec<usize> =
                shards.iter().flat_map(|shard| shard.chunks.iter().copied()).collect();
            self.fail(&all, error);
            return Vec::new();
        }
        let mut done = Vec::new();
        for shard in shards {
            match self.publish(&shard) {
                Ok(()) => done.push(shard),
                Err(error) => self.give_up(&shard, io_error(&shard.path)(error)),
            }
        }
        done
    }

    /// An old record must not come back after a power cut and be taken for that of a shard that
    /// was changed without one since.
    fn clear_for_good(&mut self) -> Result<(), StoreError> {
        if self.state.stuck {
            // Nobody touches the shards that the record names.
            return Ok(());
        }
        if self.state.cleared != Some(self.journal.stat()?) {
            self.journal.clear_durably()?;
            self.state.cleared = Some(self.journal.stat()?);
        }
        Ok(())
    }

    /// Puts a shard in its place. After an error it is old or new: nobody may rely on what is seen
    /// before it was synced.
    fn publish(&self, shard: &Shard<'_>) -> io::Result<()> {
        let storage = &*self.store.storage;
        match (&shard.work, &shard.old) {
            (Work::Replace(temporary, _), _) => {
                storage.rename(temporary, &shard.path).inspect_err(|_| {
                    let _ = storage.remove_file(temporary);
                })
            }
            (Work::Remove, _) => match storage.remove_file(&shard.path) {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                removed => removed,
            },
            (Work::Cut(update), Some(old)) => {
                self.sources(Some(old)).put_all(&*old.file, &update.writes)?;
                old.file.sync()?;
                old.file.set_length(update.length)?;
                redate(&*old.file, &old.stat)?;
                old.file.sync()
            }
            (Work::Nothing | Work::Cut(_) | Work::Journal(..), _) => Ok(()),
        }
    }

    /// Makes the names of new and removed shards safe, and those of shards that were changed.
    fn sync_directories(&mut self, shards: &[Shard<'_>]) {
        let all: BTreeSet<_> = shards.iter().flat_map(|shard| &shard.directories).collect();
        let mut failed: BTreeMap<&PathBuf, Arc<StoreError>> = BTreeMap::new();
        for directory in all {
            match self.store.storage.sync_directory(directory) {
                // Not even a directory: nothing in it has to be safe.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => (),
                Err(error) => {
                    let error = io_error(directory)(error);
                    self.store.report(&error);
                    failed.insert(directory, Arc::new(error));
                }
                Ok(()) => (),
            }
        }
        for shard in shards {
            let error = shard.directories.iter().find_map(|directory| failed.get(directory));
            self.leave(shard, true, error.is_none());
            for at in shard.chunks.iter().filter(|_| error.is_some()) {
                self.outcomes[*at] = error.map_or(Ok(()), |error| Err(Arc::clone(error)));
            }
        }
    }

    /// Makes the directories of a shard that do not exist.
    fn make_directories(&self, shard: &Path) -> io::Result<()> {
        let below = shard.strip_prefix(&self.array.path).unwrap_or(shard);
        let mut directory = self.array.path.clone();
        let names: Vec<_> = below.parent().into_iter().flat_map(Path::components).collect();
        for name in names {
            directory.push(name);
            match self.store.storage.create_directory(&directory) {
                Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
                _ => (),
            }
        }
        Ok(())
    }
}

/// Why a shard was not changed in place.
enum InPlace {
    /// It is as it was before.
    Undone(StoreError),
    /// Nobody knows what of it is safe; its record stays.
    Unknown(StoreError),
}

/// Takes back what was written in place. Bytes that a failed sync has dropped are written once more
/// by that; those that it does not write are not reached by the old index.
fn undo(shard: &Shard<'_>, error: io::Error) -> InPlace {
    let error = io_error(&shard.path)(error);
    match (&shard.work, &shard.old) {
        (Work::Journal(_, record), Some(old)) if take_back(&*old.file, record).is_err() => {
            InPlace::Unknown(error)
        }
        _ => InPlace::Undone(error),
    }
}

/// Makes a new file safe, with the attributes of the one it replaces. Its own attributes.
fn finish_new(file: &dyn StorageFile, old: Option<&Old>) -> io::Result<Stat> {
    if let Some(old) = old {
        file.set_owner(&old.stat)?;
        redate(file, &old.stat)?;
    }
    file.sync()?;
    file.stat()
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
    fn forget(&self, id: ShardId) {
        let _loading = self.loading_lock(&id);
        lock(&self.shards).remove(&id);
        lock(&self.absent).pop(&id);
        lock(&self.files).pop(&id);
    }
}
