//! From the mount to the shards: committing what was written, as a group.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use lru::LruCache;

use super::live::{Bytes, LiveFile, Name, Place, Shown, What};
use super::nodes::ArrayView;
use super::unsaved::chunk_path;
use super::{Fs, FsError, Result};
use crate::format::plan::Policy;
use crate::store::storage::{Stat, Timestamp};
use crate::store::{Maker, Outcome, ShardStore, StagedChunk, StoreError};
use crate::text::shown;

/// Chunks and shards whose dates are remembered.
const REMEMBERED_DATES: NonZeroUsize = NonZeroUsize::new(1 << 18).unwrap();

/// How a writable mount writes.
#[derive(Debug, Clone)]
pub struct WriteConfig {
    /// How shards are changed.
    pub policy: Policy,
    /// Bytes that may wait in memory.
    pub dirty_limit: u64,
    /// How long they may wait.
    pub interval: Duration,
    /// Every close of a file is a commit.
    pub sync: bool,
    /// Chunks beyond the shape of an array that shrinks are kept.
    pub keep_outside: bool,
    /// Where chunks are saved that cannot be committed in the end.
    pub unsaved: PathBuf,
}

impl Default for WriteConfig {
    fn default() -> Self {
        Self {
            policy: Policy::Auto,
            dirty_limit: 64 << 20,
            interval: Duration::from_secs(1),
            sync: false,
            keep_outside: false,
            unsaved: std::env::temp_dir().join(format!("shardfs-unsaved-{}", std::process::id())),
        }
    }
}

/// What a mount knows of its own commits.
pub(super) struct Commits {
    /// One commit at a time.
    turn: Mutex<()>,
    /// The last commit of everything has left something that waits.
    failing: AtomicBool,
    dates: Mutex<Dates>,
    ended: Mutex<bool>,
    wake: Condvar,
}

/// When chunks were changed. A commit changes the date of the whole shard. Dates are all that is told by
/// them, so it does not matter who has changed the ctime of a shard alone.
struct Dates {
    /// Chunks that were written here, by path.
    chunks: LruCache<PathBuf, Timestamp>,
    /// The date of all other chunks of a shard: as long as the shard is as this mount has left it.
    shards: LruCache<PathBuf, (Stat, Timestamp)>,
}

impl Default for Commits {
    fn default() -> Self {
        let dates = Dates {
            chunks: LruCache::new(REMEMBERED_DATES),
            shards: LruCache::new(REMEMBERED_DATES),
        };
        Self {
            turn: Mutex::default(),
            failing: AtomicBool::default(),
            dates: Mutex::new(dates),
            ended: Mutex::default(),
            wake: Condvar::new(),
        }
    }
}

impl Commits {
    /// Whether a commit has failed, and none of everything has succeeded since.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }
}

/// A chunk on its way into its shard.
struct Waiting {
    path: PathBuf,
    /// Of its change.
    number: u64,
    chunk: StagedChunk,
}

impl Fs {
    /// Commits what was written below a path of the view and closed since, and returns once it is
    /// safe. The first error; the others are told to who has the files open, and logged.
    pub fn commit(&self, below: &Path) -> Result<()> {
        let Some(overlay) = &self.overlay else { return Ok(()) };
        let _turn = lock(&self.commits.turn);
        let mut by_array: HashMap<u64, (Arc<ArrayView>, Vec<Waiting>)> = HashMap::new();
        for (path, name) in overlay.names().all(below) {
            if let (Some(place), Some(waiting)) =
                (&name.place, waiting(&path, name, self.access.acts()))
            {
                let array = || (Arc::clone(&place.array), Vec::new());
                by_array.entry(place.array.source.id).or_insert_with(array).1.push(waiting);
            }
        }
        let mut first = Ok(());
        for (array, waiting) in by_array.into_values() {
            let committed = self.commit_array(&array, &waiting);
            first = first.and(committed);
        }
        // One that had nothing to do says nothing about the disk.
        if first.is_err() || below.as_os_str().is_empty() {
            self.commits.failing.store(first.is_err(), Ordering::Relaxed);
        }
        first
    }

    fn commit_array(&self, array: &ArrayView, waiting: &[Waiting]) -> Result<()> {
        let chunks: Vec<StagedChunk> = waiting.iter().map(|one| one.chunk.clone()).collect();
        let shards = self.shards_before(array, &chunks);
        let outcomes = self.store.commit(&array.source, &chunks, self.config.writing.policy);
        self.redate(array, shards);
        if !ShardStore::has_holes(&array.source) {
            // Their metadata tells how many chunks there are.
            self.nodes.forget(&array.source.path);
        }
        let (mut first, mut again) = (Ok(()), Vec::new());
        for (one, outcome) in waiting.iter().zip(&outcomes) {
            if self.settle(one, outcome)? {
                again.push(one);
            }
            if let Err(error) = outcome {
                first = first.and(Err(FsError::Commit(Arc::clone(error))));
            }
        }
        // Written again in the meantime: over what was just committed. The source is not asked, which
        // may fail, and may hold what others have written since.
        for one in again {
            let base = one.chunk.base.clone().committed(one.chunk.content.as_ref());
            if let Ok(base) = base.inspect_err(|error| log::error!("{}: {error}", shown(&one.path)))
                && let Some(name) = self.overlay()?.names().get_mut(&one.path)
                && let Some(stage) = &mut name.stage
            {
                stage.base = base;
            }
        }
        first
    }

    /// Whether a chunk was changed again since.
    fn settle(&self, one: &Waiting, outcome: &Outcome) -> Result<bool> {
        let mut names = self.overlay()?.names();
        let Some(name) = names.get_mut(&one.path) else { return Ok(false) };
        let what = name.what.clone();
        if let Err(error) = outcome {
            if let What::File(file) = &what {
                file.state().error = Some(Arc::clone(error));
            }
            let lost = matches!(**error, StoreError::Stale { .. });
            if lost {
                let file = match &what {
                    What::File(file) => Some(&**file),
                    _ => None,
                };
                let path = name.place.as_ref().map_or_else(|| one.path.clone(), chunk_path);
                self.save(&path, file, one.chunk.content.as_ref(), error);
            }
            if lost
                && let Some(stage) = &mut name.stage
                && is_change(stage, one.number)
            {
                // What others have written counts from now on.
                name.stage = None;
                match what {
                    What::File(file) => {
                        let place = name.place.clone();
                        names.settled(&file, place);
                    }
                    _ => drop(names.take(&one.path)),
                }
            }
            return Ok(false);
        }
        let Some(stage) = &mut name.stage else { return Ok(false) };
        if !is_change(stage, one.number) {
            return Ok(true);
        }
        stage.change = None;
        match what {
            What::File(file) if file.state().dirty => return Ok(true),
            What::File(file) => {
                name.stage = None;
                let place = name.place.clone();
                let mtime = file.state().mtime;
                lock(&self.commits.dates).chunks.put(one.path.clone(), mtime);
                names.settled(&file, place);
            }
            What::Removed => drop(names.take(&one.path)),
            What::Directory => (),
        }
        Ok(false)
    }

    /// The shards of chunks, as they are, by path.
    fn shards_before(
        &self,
        array: &ArrayView,
        chunks: &[StagedChunk],
    ) -> BTreeMap<PathBuf, (Vec<u64>, Option<Stat>)> {
        let shard = |chunk: &StagedChunk| {
            let shard = array.source.layout.locate(&chunk.coords).shard;
            let path = array.source.shard_path(&shard);
            let stat = self.storage.stat(&path).ok();
            (path, (shard, stat))
        };
        let mut shards = BTreeMap::new();
        for chunk in chunks {
            let path = array.source.shard_path(&array.source.layout.locate(&chunk.coords).shard);
            if !shards.contains_key(&path) {
                let (path, shard) = shard(chunk);
                shards.insert(path, shard);
            }
        }
        shards
    }

    /// Chunks of a shard that this mount has changed keep their dates.
    fn redate(&self, array: &ArrayView, shards: BTreeMap<PathBuf, (Vec<u64>, Option<Stat>)>) {
        for (path, (shard, before)) in shards {
            let Ok(after) = self.storage.stat(&path) else { continue };
            self.expect_shard(array, &shard, &after);
            let Some(before) = before else { continue };
            let mut dates = lock(&self.commits.dates);
            let date = match dates.shards.get(&path) {
                Some((stat, date)) if stat.same_content(&before) => *date,
                _ => before.mtime,
            };
            dates.shards.put(path, (after, date));
        }
    }

    /// When a chunk was changed, as far as this mount knows.
    pub(super) fn chunk_date(&self, array: &ArrayView, coords: &[u64], shard: &Stat) -> Timestamp {
        let source = &array.source;
        let mut dates = lock(&self.commits.dates);
        if dates.shards.is_empty() {
            return shard.mtime;
        }
        let path = source.shard_path(&source.layout.locate(coords).shard);
        match dates.shards.get(&path) {
            Some((stat, others)) if stat.same_content(shard) => {
                let others = *others;
                let path = array.path(coords);
                dates.chunks.get(&path).copied().unwrap_or(others)
            }
            // Never changed here, or by others since.
            _ => shard.mtime,
        }
    }

    /// Dates a chunk of a shard that is as `shard` says.
    pub(super) fn set_chunk_date(&self, place: &Place, shard: &Stat, date: Timestamp) {
        let source = &place.array.source;
        let before = self.chunk_date(&place.array, &place.coords, shard);
        let mut dates = lock(&self.commits.dates);
        let path = source.shard_path(&source.layout.locate(&place.coords).shard);
        if !dates.shards.get(&path).is_some_and(|(stat, _)| stat.same_content(shard)) {
            dates.shards.put(path, (*shard, before));
        }
        dates.chunks.put(place.array.path(&place.coords), date);
    }

    /// Commits at intervals what waits, until [`Fs::end_commits`].
    pub fn commit_at_intervals(&self) {
        let mut ended = lock(&self.commits.ended);
        while !*ended {
            let waited = self.commits.wake.wait_timeout(ended, self.config.writing.interval);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
            if !*ended {
                drop(ended);
                // Errors are told to those whose files they happened to, and logged.
                let _ = self.commit(Path::new(""));
                ended = lock(&self.commits.ended);
            }
        }
    }

    /// Ends the commits at intervals, and commits for the last time. How many chunks could not be
    /// committed; they are saved as files of their own.
    pub fn end_commits(&self) -> usize {
        *lock(&self.commits.ended) = true;
        self.commits.wake.notify_all();
        let Some(overlay) = &self.overlay else { return 0 };
        self.publish_all();
        let _ = self.commit(Path::new(""));
        self.remove_documents_at_end();
        let left: Vec<(PathBuf, Name)> =
            overlay.names().all(Path::new("")).map(|(path, name)| (path, name.clone())).collect();
        let mut unsaved = 0;
        let mut arrays: HashMap<u64, Arc<ArrayView>> = HashMap::new();
        for (path, name) in left {
            unsaved += usize::from(self.save_at_end(&path, &name));
        }
        for array in self.nodes.arrays() {
            arrays.insert(array.source.id, array);
        }
        for array in arrays.into_values() {
            if let Err(error) = self.store.finish_commits(&array.source) {
                log::warn!("{error}");
            }
        }
        self.spool.remove();
        unsaved
    }

    /// Hands over what nobody has closed.
    fn publish_all(&self) {
        let Some(overlay) = &self.overlay else { return };
        let files: Vec<Arc<LiveFile>> = overlay
            .names()
            .all(Path::new(""))
            .filter_map(|(_, name)| match &name.what {
                What::File(file) => Some(Arc::clone(file)),
                _ => None,
            })
            .collect();
        for file in files {
            if let Err(error) = self.publish(&file) {
                log::error!("{error}");
            }
        }
    }
}

/// Whose a new shard is that begins with a chunk.
fn maker(name: &Name) -> Option<Maker> {
    let What::File(file) = &name.what else { return None };
    let state = file.state();
    Some(Maker { uid: state.uid, gid: state.gid, mode: state.mode & 0o666 })
}

fn waiting(path: &Path, name: &Name, as_callers: bool) -> Option<Waiting> {
    let (place, stage) = (name.place.as_ref()?, name.stage.as_ref()?);
    let change = stage.change.as_ref()?;
    let chunk = StagedChunk {
        coords: place.coords.clone(),
        content: change.content.clone(),
        base: stage.base.clone(),
        maker: maker(name).filter(|_| as_callers),
    };
    Some(Waiting { path: path.to_owned(), number: change.number, chunk })
}

fn is_change(stage: &super::live::Stage, number: u64) -> bool {
    stage.change.as_ref().is_some_and(|change| change.number == number)
}

impl super::live::Names {
    /// What a file holds is in the shard now.
    fn settled(&mut self, file: &Arc<LiveFile>, place: Option<Place>) {
        if let Some(place) = place {
            let mut state = file.state();
            // A chunk of fill values is gone, though somebody may still have its file open.
            let is_gone = matches!(state.shown, Shown::Nothing);
            state.shown = if is_gone { Shown::Stored(place.clone()) } else { Shown::Written };
            state.bytes = Bytes::Stored(place);
        }
        self.drop_unused(file);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
