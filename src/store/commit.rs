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
//! others alone. One whose state on disk is unknown, since a sync failed, is not touched any more.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::blob::{Sources, bytes_of, fingerprint_of};
use super::content::Content;
use super::error::StoreError;
use super::io_error;
use super::journal::{Journal, WORK_DIRECTORY};
use super::lock::ShardLock;
use super::recover::{Found, recover_locked, take_back};
use super::shard::{Body, LoadedShard, ShardId};
use super::storage::{Stat, StorageFile, Timestamp};
use super::{Freshness, ShardStore, SourceArray, lock};
use crate::format::Coords;
use crate::format::after::trailing_checksums;
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
#[derive(Clone, Default)]
pub struct Base {
    /// Its shard: attributes and the open file.
    shard: Option<(Stat, Arc<dyn StorageFile>)>,
    /// Where the chunk was in it.
    body: Option<Body>,
}

/// What became of one staged chunk.
pub type Outcome = Result<(), Arc<StoreError>>;

/// What a store remembers of its commits.
#[derive(Debug, Default)]
pub(super) struct Commits {
    arrays: Mutex<HashMap<u64, Arc<Mutex<ArrayCommits>>>>,
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
    /// The record in the journal names a shard whose state is unknown: it must stay.
    stuck: bool,
    /// Keys of shards that are not touched any more: their state on disk is unknown, or the record
    /// that must stay names them, and would be taken for that of a later commit.
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

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Base").field(&self.shard.as_ref().map(|shard| shard.0)).finish()
    }
}

impl Base {
    /// Attributes of the shard when the chunk was staged; None if there was none.
    pub fn shard(&self) -> Option<&Stat> {
        self.shard.as_ref().map(|(stat, _)| stat)
    }
}

impl ShardStore {
    /// The chunk at `coords` as it is now, for it to be staged over.
    pub fn base(&self, array: &SourceArray, coords: &[u64]) -> Result<Base, StoreError> {
        const ATTEMPTS: usize = 4;
        let location = array.layout.locate(coords);
        let mut freshness = Freshness::Now;
        for _ in 0..ATTEMPTS {
            let Some(shard) = self.shard(array, &location.shard, freshness)? else {
                return Ok(Base::default());
            };
            let stat = *shard.stat();
            let chunk = self.chunk_in(array, shard, &location)?;
            if let Some(file) = self.shard_file(array, &location.shard, &stat)? {
                return Ok(Base { shard: Some((stat, file)), body: chunk.map(|chunk| chunk.body) });
            }
            freshness = Freshness::Again;
        }
        Err(StoreError::Changing { shard: array.shard_path(&location.shard) })
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
        let commits = Arc::clone(lock(&self.commits.arrays).entry(array.id).or_default());
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
    /// Directories in which names have changed.
    unsynced: RefCell<BTreeSet<PathBuf>>,
}

/// A shard with changes.
struct Shard<'a> {
    coords: Coords,
    path: PathBuf,
    /// Its chunks, by their number in the commit.
    chunks: Vec<usize>,
    _lock: ShardLock<'a>,
    old: Option<Old>,
    work: Work,
}

/// A shard as it is.
struct Old {
    stat: Stat,
    file: Arc<dyn StorageFile>,
}

/// What is to be done to a shard.
enum Work {
    /// The file with this name, which is complete and safe, takes its place.
    Replace(PathBuf),
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
        let mut journal = Journal::lock(&*store.storage, &array.path)?;
        if !state.swept || journal.found().is_some() {
            let found = recover_locked(&*store.storage, &array.path, &mut journal)?;
            if found.iter().any(|(_, found)| *found == Found::Lost) {
                state.keep(journal.found());
            }
            state.swept = true;
        }
        let empty = || Content::Memory(Arc::default());
        let contents = chunks.iter().map(|chunk| chunk.content.clone().unwrap_or_else(empty));
        Ok(Self {
            contents: contents.collect(),
            outcomes: chunks.iter().map(|_| Ok(())).collect(),
            unsynced: RefCell::default(),
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
        for shard in &done {
            self.store.forget(self.array, &shard.coords);
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

    /// A shard whose state on disk is unknown is left alone from now on.
    fn poison(&mut self, shard: &Shard<'_>, error: StoreError) {
        self.state.poisoned.insert(self.key(&shard.coords));
        self.fail(&shard.chunks, error);
    }

    /// Everything that can go wrong before anything is changed. None if there is nothing to do.
    fn prepare(
        &mut self,
        coords: Coords,
        mut members: Vec<(usize, Location)>,
        budget: &mut u64,
    ) -> Result<Option<Shard<'a>>, StoreError> {
        let path = self.array.shard_path(&coords);
        if self.state.poisoned.contains(&self.key(&coords)) {
            return Err(StoreError::Poisoned { shard: path });
        }
        let removals = members.iter().all(|(at, _)| self.chunks[*at].content.is_none());
        let absent = |error: io::Error| error.raw_os_error() == Some(libc::ENOENT);
        if removals && self.store.storage.lstat(&path).is_err_and(absent) {
            return Ok(None);
        }
        let make_directory = || self.make_directories(&path);
        let lock = ShardLock::take(&*self.store.storage, &path, &make_directory)?;
        let loaded = self.store.shard(self.array, &coords, Freshness::Again)?;
        if let Some(damage) = loaded.as_ref().and_then(|shard| shard.damage()) {
            return Err(StoreError::Damaged { shard: path, damage });
        }
        let old = match &loaded {
            None => None,
            Some(loaded) => Some(self.open_old(loaded, &path)?),
        };
        members.retain(|(at, location)| {
            let same = self.is_as_staged(*at, location, loaded.as_ref());
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
        Ok(Some(Shard { coords, path, chunks, _lock: lock, old, work }))
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
    ) -> Result<bool, StoreError> {
        let base = &self.chunks[at].base;
        if let (Some((before, _)), Some(loaded)) = (&base.shard, loaded)
            && before.same_content(loaded.stat())
        {
            return Ok(true);
        }
        let now = match loaded {
            None => None,
            Some(loaded) => self.store.chunk_in(self.array, Arc::clone(loaded), location)?,
        };
        let (now, before) = match (now, &base.body) {
            (None, None) => return Ok(true),
            (Some(now), Some(before)) => (now.body, before),
            _ => return Ok(false),
        };
        let (Some((stat, file)), Some(loaded)) = (&base.shard, loaded) else {
            return Ok(false);
        };
        let (Body::InFile { offset, nbytes }, Body::InFile { offset: was, nbytes: had }) =
            (&now, before)
        else {
            return Ok(false);
        };
        let same_file = (stat.dev, stat.ino) == (loaded.stat().dev, loaded.stat().ino);
        if nbytes != had || same_file {
            return Ok(nbytes == had && offset == was);
        }
        let path = self.array.shard_path(&location.shard);
        let fingerprint = |file: &dyn StorageFile, offset| {
            fingerprint_of(file, ByteRange { offset, nbytes: *nbytes })
        };
        let current = self.store.shard_file(self.array, &location.shard, loaded.stat())?;
        let current = current.ok_or(StoreError::Changing { shard: path.clone() })?;
        let now = fingerprint(&*current, *offset).map_err(io_error(&path))?;
        Ok(now == fingerprint(&**file, *was).map_err(io_error(&path))?)
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
            let (at, location) = members[0];
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
        };
        // At most once each: clones turn out to be impossible, the record would be too long.
        loop {
            let layout = self.layout(0, &extents, coords)?;
            let planned = loaded.and_then(LoadedShard::as_planned);
            let plan = plan::plan(&layout, planned, changes, policy, facts);
            let work = match plan.map_err(|error| self.no_plan(coords, error))? {
                Plan::Remove => Work::Remove,
                Plan::Cut(update) => Work::Cut(update),
                Plan::Rewrite(blob) => Work::Replace(self.write_new(&path, old, &blob)?),
                Plan::Clone(update) => match self.write_clone(&path, old, &update) {
                    Ok(temporary) => Work::Replace(temporary),
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

    /// A name for a new file; nobody else has it as long as the journal is locked.
    fn new_name(&mut self) -> PathBuf {
        self.state.names += 1;
        self.array.path.join(WORK_DIRECTORY).join(format!("{}.new", self.state.names))
    }

    /// Writes a shard anew under another name.
    fn write_new(
        &mut self,
        shard: &Path,
        old: Option<&Old>,
        blob: &Blob,
    ) -> Result<PathBuf, StoreError> {
        let temporary = self.new_name();
        let storage = &*self.store.storage;
        let write = |file: Arc<dyn StorageFile>| {
            self.sources(old).put(&*file, 0, blob)?;
            finish_new(&*file, old)
        };
        let file = storage.create(&temporary, NEW_SHARD_MODE).map_err(io_error(&temporary))?;
        self.keep_or_remove(shard, temporary, write(file))
    }

    /// Changes a clone of a shard.
    fn write_clone(
        &mut self,
        shard: &Path,
        old: Option<&Old>,
        update: &Update,
    ) -> Result<PathBuf, StoreError> {
        let temporary = self.new_name();
        let storage = &*self.store.storage;
        let write = |file: Arc<dyn StorageFile>| {
            self.sources(old).put_all(&*file, &update.writes)?;
            file.set_length(update.length)?;
            finish_new(&*file, old)
        };
        let file =
            storage.clone_file(shard, &temporary, NEW_SHARD_MODE).map_err(io_error(shard))?;
        self.keep_or_remove(shard, temporary, write(file))
    }

    fn keep_or_remove(
        &self,
        shard: &Path,
        temporary: PathBuf,
        written: io::Result<()>,
    ) -> Result<PathBuf, StoreError> {
        match written {
            Ok(()) => Ok(temporary),
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
                Err(InPlace::Undone(error)) => self.fail(&shard.chunks, error),
                Err(InPlace::Unknown(error)) => {
                    unknown = true;
                    self.poison(&shard, error);
                    self.store.forget(self.array, &shard.coords);
                }
            }
        }
        if unknown {
            self.state.keep(self.journal.found());
        } else if let Err(error) = self.journal.clear() {
            self.store.report(&error);
        }
        done
    }

    fn write_in_place(&self, shard: &Shard<'_>) -> Result<(), InPlace> {
        let (Work::Journal(update, record), Some(old)) = (&shard.work, &shard.old) else {
            return Ok(());
        };
        let write = || {
            self.sources(Some(old)).put_all(&*old.file, &update.writes)?;
            redate(&*old.file, &old.stat)
        };
        write().map_err(|error| {
            let error = io_error(&shard.path)(error);
            match take_back(&*old.file, record) {
                Ok(()) => InPlace::Undone(error),
                Err(_) => InPlace::Unknown(error),
            }
        })
    }

    fn sync_in_place(&self, shard: &Shard<'_>) -> Result<(), InPlace> {
        let Some(old) = &shard.old else { return Ok(()) };
        old.file.sync().map_err(|error| InPlace::Unknown(io_error(&shard.path)(error)))
    }

    /// Commits shards that need no record. Returns those that have changed.
    fn commit_others(&mut self, shards: Vec<Shard<'a>>) -> Vec<Shard<'a>> {
        if shards.is_empty() {
            return shards;
        }
        if let Err(error) = self.clear_for_good() {
            for shard in &shards {
                if let Work::Replace(temporary) = &shard.work {
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
                Err(Publish::Nothing(error)) => {
                    self.fail(&shard.chunks, io_error(&shard.path)(error));
                }
                Err(Publish::Unknown(error)) => {
                    self.store.forget(self.array, &shard.coords);
                    let error = io_error(&shard.path)(error);
                    self.poison(&shard, error);
                }
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

    fn publish(&self, shard: &Shard<'_>) -> Result<(), Publish> {
        let storage = &*self.store.storage;
        match (&shard.work, &shard.old) {
            (Work::Replace(temporary), _) => {
                if let Err(error) = storage.rename(temporary, &shard.path) {
                    let _ = storage.remove_file(temporary);
                    return Err(Publish::Nothing(error));
                }
            }
            (Work::Remove, _) => match storage.remove_file(&shard.path) {
                Err(error) if error.raw_os_error() != Some(libc::ENOENT) => {
                    return Err(Publish::Nothing(error));
                }
                _ => (),
            },
            (Work::Cut(update), Some(old)) => {
                let write = || {
                    self.sources(Some(old)).put_all(&*old.file, &update.writes)?;
                    old.file.sync()?;
                    old.file.set_length(update.length)
                };
                write().map_err(Publish::Nothing)?;
                redate(&*old.file, &old.stat).map_err(Publish::Unknown)?;
                return old.file.sync().map_err(Publish::Unknown);
            }
            (Work::Cut(_) | Work::Journal(..), _) => return Ok(()),
        }
        self.unsynced.borrow_mut().extend(shard.path.parent().map(Path::to_owned));
        Ok(())
    }

    /// Makes the names of new and removed shards safe.
    fn sync_directories(&mut self, shards: &[Shard<'_>]) {
        let unsynced = std::mem::take(&mut *self.unsynced.borrow_mut());
        for directory in unsynced {
            let Err(error) = self.store.storage.sync_directory(&directory) else { continue };
            let error = Arc::new(io_error(&directory)(error));
            self.store.report(&error);
            for shard in shards.iter().filter(|shard| shard.path.starts_with(&directory)) {
                self.state.poisoned.insert(self.key(&shard.coords));
                for at in &shard.chunks {
                    self.outcomes[*at] = Err(Arc::clone(&error));
                }
            }
        }
    }

    /// Makes the directories of a shard that do not exist.
    fn make_directories(&self, shard: &Path) -> io::Result<()> {
        let below = shard.strip_prefix(&self.array.path).unwrap_or(shard);
        let mut directory = self.array.path.clone();
        let names: Vec<_> = below.parent().into_iter().flat_map(Path::components).collect();
        for name in names {
            let parent = directory.clone();
            directory.push(name);
            match self.store.storage.create_directory(&directory) {
                Ok(()) => drop(self.unsynced.borrow_mut().insert(parent)),
                Err(error) if error.raw_os_error() == Some(libc::EEXIST) => (),
                Err(error) => return Err(error),
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

/// Why a shard was not published.
enum Publish {
    /// It is as it was before.
    Nothing(io::Error),
    /// Old or new, and nobody knows which will be found after a power cut.
    Unknown(io::Error),
}

/// Makes a new file safe, with the attributes of the one it replaces.
fn finish_new(file: &dyn StorageFile, old: Option<&Old>) -> io::Result<()> {
    if let Some(old) = old {
        file.set_owner(&old.stat)?;
        redate(file, &old.stat)?;
    }
    file.sync()
}

/// Others see by its date that a file has changed, also where the clock has not moved on.
fn redate(file: &dyn StorageFile, before: &Stat) -> io::Result<()> {
    let now = file.stat()?;
    if now.mtime > before.mtime {
        return Ok(());
    }
    let Timestamp { seconds, nanoseconds } = before.mtime;
    let next = match nanoseconds {
        999_999_999 => Timestamp { seconds: seconds.saturating_add(1), nanoseconds: 0 },
        _ => Timestamp { seconds, nanoseconds: nanoseconds + 1 },
    };
    file.set_mtime(next)
}

impl ShardStore {
    /// Drops what is known of a shard.
    fn forget(&self, array: &SourceArray, shard: &[u64]) {
        let id = ShardId::of_shard(array, shard);
        lock(&self.shards).remove(&id);
        lock(&self.files).pop(&id);
    }
}
