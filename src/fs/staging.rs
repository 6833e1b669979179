//! Group commit of written files to their shards.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lru::LruCache;
use parking_lot::{Condvar, Mutex};

use super::live::{Bytes, LiveFile, LiveState, Name, Place, Shown, What};
use super::nodes::ArrayView;
use super::order::Promise;
use super::pending::{Round, Task};
use super::unsaved::chunk_path;
use super::{Fs, FsError, Result};
use crate::format::plan::Policy;
use crate::store::storage::{Stat, Timestamp};
use crate::store::{Maker, Outcome, StagedChunk, StoreError};
use crate::text::shown;

/// Number of chunks whose modification times are remembered.
const REMEMBERED_DATES: usize = 1 << 18;

/// Configuration of writes in a writable mount.
#[derive(Debug, Clone)]
pub struct WriteConfig {
    /// Policy for changing shards.
    pub policy: Policy,
    /// Limit of uncommitted data in bytes.
    pub dirty_limit: u64,
    /// Interval between commits.
    pub interval: Duration,
    /// `true` if every close of a file commits it.
    pub sync: bool,
    /// `true` if chunks outside the shape of an array that shrinks are kept.
    pub keep_outside: bool,
    /// Directory for chunks that cannot be committed in the end.
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

/// State of a mount's commits.
pub(super) struct Commits {
    /// Serializes commits.
    turn: Mutex<()>,
    /// `true` if a commit has failed and no commit of everything has succeeded since.
    failing: AtomicBool,
    /// Times at which chunks were written here, by path, with the number of their shard's
    /// [`crate::store::Dated`] for which they hold: a commit changes the mtime of the whole shard.
    dates: Mutex<LruCache<PathBuf, (u64, Timestamp)>>,
    ended: Mutex<bool>,
    wake: Condvar,
}

impl Default for Commits {
    fn default() -> Self {
        Self {
            turn: Mutex::default(),
            failing: AtomicBool::default(),
            dates: Mutex::new(LruCache::unbounded()),
            ended: Mutex::default(),
            wake: Condvar::new(),
        }
    }
}

impl Commits {
    /// Returns whether a commit has failed and no commit of everything has succeeded since.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Remembers a date. Memory grows with their number and is not allocated up front.
    fn remember_date(&self, path: PathBuf, date: (u64, Timestamp)) {
        let mut dates = self.dates.lock();
        dates.put(path, date);
        if dates.len() > REMEMBERED_DATES {
            dates.pop_lru();
        }
    }
}

/// Chunk that is being committed.
struct Waiting {
    path: PathBuf,
    /// Number of its change.
    number: u64,
    chunk: StagedChunk,
    /// Promises that its commit keeps.
    made: Vec<Arc<Promise>>,
}

impl Fs {
    /// Commits what was written and closed below a path of the view, and returns once it is
    /// durable.
    ///
    /// # Errors
    ///
    /// Returns the first error; the others stay with the uncommitted changes, or are recorded in
    /// [`super::failures`].
    pub fn commit(&self, below: &Path) -> Result<()> {
        let committed = self.commit_for(below, false);
        // A commit of a part that had nothing to do says nothing about the disk.
        if self.overlay.is_some() && (committed.is_err() || below.as_os_str().is_empty()) {
            self.commits.failing.store(committed.is_err(), Ordering::Relaxed);
        }
        committed
    }

    /// Commits like [`Fs::commit`]; with `room`, removals of files that were renamed away below the
    /// path do not wait any longer, so that their names are free for new files.
    pub(super) fn commit_for(&self, below: &Path, room: bool) -> Result<()> {
        let Some(overlay) = &self.overlay else { return Ok(()) };
        let _turn = self.commits.turn.lock();
        let (until, as_callers) = (overlay.names().next_number(), self.access.acts());
        let mut round = Round { until, as_callers, failed: HashSet::new() };
        let mut first = Ok(());
        loop {
            let pending = self.next_pending(below, &round, room)?;
            if pending.is_empty() {
                return first;
            }
            let mut by_array: HashMap<u64, (Arc<ArrayView>, Vec<Waiting>)> = HashMap::new();
            for one in pending {
                let (path, number, made) = (one.path, one.number, one.made);
                match one.task {
                    Task::Chunk(array, chunk) => {
                        let (_, waiting) =
                            by_array.entry(array.source.id).or_insert((array, Vec::new()));
                        waiting.push(Waiting { path, number, chunk, made });
                    }
                    Task::Remove(stat) => {
                        let removed = self.remove_hidden(&path, &stat);
                        if removed.is_err() {
                            round.failed.insert((path, number));
                        }
                        first = first.and(removed);
                    }
                }
            }
            for (array, waiting) in by_array.into_values() {
                self.nodes.note_commit(&array);
                let committed = self.commit_array(&array, &waiting, &mut round);
                first = first.and(committed);
            }
        }
    }

    fn commit_array(
        &self,
        array: &ArrayView,
        waiting: &[Waiting],
        round: &mut Round,
    ) -> Result<()> {
        let chunks: Vec<StagedChunk> = waiting.iter().map(|one| one.chunk.clone()).collect();
        let outcomes = match self.replaced(array) {
            Some(error) => vec![Err(Arc::new(error)); chunks.len()],
            None => self.store.commit(&array.source, &chunks, self.config.writing.policy),
        };
        if !array.source.format.has_keys() {
            // The metadata of these formats says how many chunks there are.
            self.nodes.forget(&array.source.path);
        }
        let (mut first, mut again) = (Ok(()), Vec::new());
        for (one, outcome) in waiting.iter().zip(&outcomes) {
            if self.settle(array, one, outcome)? {
                again.push(one);
            }
            if let Err(error) = outcome {
                round.failed.insert((one.path.clone(), one.number));
                first = first.and(Err(FsError::Commit(Arc::clone(error))));
            }
        }
        // Written again in the meantime, over what was just committed. The source is not read: that
        // may fail, and another process may have written it since.
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

    /// Returns why nothing can be committed to an array: it was replaced by another, or that cannot
    /// be determined. `None` if it is still there.
    fn replaced(&self, array: &ArrayView) -> Option<StoreError> {
        let path = array.source.path.clone();
        match self.nodes.is_still_there(array) {
            Ok(true) => None,
            Ok(false) => Some(StoreError::Replaced { array: path }),
            Err(error) => Some(StoreError::Io { path, error }),
        }
    }

    /// Records the outcome of a commit of a chunk; returns whether the chunk was changed again
    /// since.
    fn settle(&self, array: &ArrayView, one: &Waiting, outcome: &Outcome) -> Result<bool> {
        if let Err(error) = outcome {
            self.settle_failed(one, error)?;
            return Ok(false);
        }
        one.made.iter().for_each(|promise| promise.keep());
        self.set_bases(one)?;
        let mut names = self.overlay()?.names();
        let Some(name) = names.get_mut(&one.path) else { return Ok(false) };
        let what = name.what.clone();
        name.made.retain(|promise| promise.is_open());
        name.after.retain(|promise| promise.is_open());
        let Some(stage) = &mut name.stage else { return Ok(false) };
        if !is_change(stage, one.number) {
            return Ok(true);
        }
        stage.change = None;
        name.error = None;
        // Including promises that were made during the commit.
        name.made.drain(..).for_each(|promise| promise.keep());
        if let What::File(file) = &what
            && let Some(copy) = file.state().copy.take()
        {
            copy.remove();
        }
        match what {
            What::File(file) => {
                let place = name.place.clone();
                let mtime = {
                    let mut state = file.state();
                    if state.dirty {
                        return Ok(true);
                    }
                    // In the same critical section: later writes stage the chunk anew.
                    name.stage = None;
                    settle_bytes(&mut state, place);
                    state.mtime
                };
                let (source, base) = (&array.source, &one.chunk.base);
                let shard = source.layout.locate(&one.chunk.coords).shard;
                if let Some(date) = self.store.committed_date(source, &shard, base, mtime) {
                    self.commits.remember_date(one.path.clone(), date);
                }
                names.drop_unused(&file);
            }
            What::Removed => drop(names.take(&one.path)),
            What::Directory => (),
        }
        Ok(false)
    }

    /// Updates the base of open handles that keep writing to a chunk that was committed.
    fn set_bases(&self, one: &Waiting) -> Result<()> {
        let what = self.overlay()?.names().get(&one.path).map(|name| name.what.clone());
        let Some(What::File(file)) = what else { return Ok(()) };
        let open = file.state().open_files();
        if open.iter().all(|open| !open.is_writable) {
            return Ok(());
        }
        match one.chunk.base.clone().committed(one.chunk.content.as_ref()) {
            // Not those that were opened before a change by another process.
            Ok(base) => open
                .iter()
                .filter(|open| open.is_based_on(&one.path, &one.chunk.base, false))
                .for_each(|open| open.set_base((one.path.clone(), base.clone()))),
            // It is committed all the same; the next write is assumed to be based on it.
            Err(error) => log::error!("{}: {error}", shown(&one.path)),
        }
        Ok(())
    }

    /// Keeps a failed change for the next attempt, or gives it up if another process has changed
    /// the chunk.
    fn settle_failed(&self, one: &Waiting, error: &Arc<StoreError>) -> Result<()> {
        if !matches!(**error, StoreError::Stale { .. } | StoreError::Replaced { .. }) {
            if let Some(name) = self.overlay()?.names().get_mut(&one.path) {
                name.error = Some(Arc::clone(error));
            }
            return Ok(());
        }
        let name = self.overlay()?.names().get(&one.path).cloned();
        let (place, what) = name.map_or((None, None), |name| (name.place, Some(name.what)));
        let saved = place.as_ref().map_or_else(|| one.path.clone(), chunk_path);
        let file = match what {
            Some(What::File(file)) => Some(file),
            _ => None,
        };
        // Newer contents are given up with it.
        let newer = file.as_ref().and_then(|file| match &*file.state() {
            LiveState { dirty: true, bytes: Bytes::Here(content), .. } => Some(content.clone()),
            _ => None,
        });
        let is_encoded = place.as_ref().is_none_or(|place| place.array.decoded_form().is_none());
        let content = newer.filter(|_| is_encoded).or_else(|| one.chunk.content.clone());
        self.save(&saved, file.as_deref(), content.as_ref(), error);
        self.failures.record(&one.path, error);
        let mut names = self.overlay()?.names();
        let Some(name) = names.get_mut(&one.path) else { return Ok(()) };
        if name.stage.as_ref().is_some_and(|stage| is_change(stage, one.number)) {
            // From now on the chunk is what the other process has written.
            (name.stage, name.error) = (None, None);
            name.after.clear();
            let (what, place) = (name.what.clone(), name.place.clone());
            if let What::File(file) = &what {
                // The contents have just been saved from the same state.
                file.state().copy = None;
            }
            names.break_promises(&one.path, error);
            if let What::File(file) = what {
                let mut state = file.state();
                state.dirty = false;
                settle_bytes(&mut state, place);
                // Later writes through open handles are based on contents that no longer exist.
                let lost = (one.path.clone(), one.chunk.base.clone());
                state.open_files().iter().for_each(|open| open.set_base(lost.clone()));
                drop(state);
                names.drop_unused(&file);
            } else {
                names.take(&one.path);
                drop(names);
                self.show_stored(&one.path, place)?;
            }
        }
        Ok(())
    }

    /// Returns the modification time of a chunk, as far as this mount knows it.
    pub(super) fn chunk_date(&self, array: &ArrayView, coords: &[u64], shard: &Stat) -> Timestamp {
        let source = &array.source;
        let number = source.layout.locate(coords).shard;
        let Some(dated) = self.store.dated(source, &number, shard) else { return shard.mtime };
        let own = match self.commits.dates.lock().get(&array.path(coords)) {
            Some((number, date)) if *number == dated.number => Some(*date),
            // Never written here, or by another process since.
            _ => None,
        };
        own.or(dated.since).unwrap_or(shard.mtime)
    }

    /// Sets the modification time of a chunk whose shard is in the state `shard`.
    pub(super) fn set_chunk_date(&self, place: &Place, shard: &Stat, date: Timestamp) {
        let source = &place.array.source;
        let number = source.layout.locate(&place.coords).shard;
        // Dates are recorded from the first use of a shard.
        self.store.line_of(source, &number, shard);
        if let Some(dated) = self.store.dated(source, &number, shard) {
            let path = place.array.path(&place.coords);
            self.commits.remember_date(path, (dated.number, date));
        }
    }

    /// Commits at intervals until [`Fs::end_commits`] is called.
    pub fn commit_at_intervals(&self) {
        let mut ended = self.commits.ended.lock();
        while !*ended {
            self.commits.wake.wait_for(&mut ended, self.config.writing.interval);
            if !*ended {
                drop(ended);
                // Errors stay with the changes, are reported by `fsync`, and are in the log.
                let _ = self.commit(Path::new(""));
                ended = self.commits.ended.lock();
            }
        }
    }

    /// Stops the commits at intervals and commits for the last time. Returns the number of chunks
    /// that could not be committed; they are saved as files of their own.
    pub fn end_commits(&self) -> usize {
        *self.commits.ended.lock() = true;
        self.commits.wake.notify_all();
        let Some(overlay) = &self.overlay else { return 0 };
        self.publish_all();
        // Errors are ignored: the remaining changes are saved and counted.
        let _ = self.commit(Path::new(""));
        let all = || -> Vec<(PathBuf, Name)> {
            overlay.names().all(Path::new("")).map(|(path, name)| (path, name.clone())).collect()
        };
        let mut unsaved = 0;
        for (path, name) in all().iter().filter(|(_, name)| name.place.is_none()) {
            unsaved += usize::from(self.save_scratch(path, name));
        }
        // Commits the changes that were waiting for those.
        let _ = self.commit(Path::new(""));
        self.remove_documents_at_end();
        let mut arrays: HashMap<u64, Arc<ArrayView>> = HashMap::new();
        for (path, name) in all() {
            unsaved += usize::from(self.save_chunk(&path, &name));
        }
        for array in self.nodes.committed() {
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

    /// Stages the contents of files that are still open.
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

/// Returns the owner and permissions of a new shard that is created by a change of this name.
pub(super) fn maker(name: &Name) -> Option<Maker> {
    let What::File(file) = &name.what else { return None };
    let state = file.state();
    Some(Maker { uid: state.uid, gid: state.gid, mode: state.mode & 0o666 })
}

fn is_change(stage: &super::live::Stage, number: u64) -> bool {
    stage.change.as_ref().is_some_and(|change| change.number == number)
}

/// Marks the contents of a file as stored in its shard.
fn settle_bytes(state: &mut LiveState, place: Option<Place>) {
    state.staged = false;
    let Some(place) = place else { return };
    // A chunk of fill values no longer exists, though its file may still be open.
    let is_gone = matches!(state.shown, Shown::Nothing);
    state.shown = if is_gone { Shown::Stored(place.clone()) } else { Shown::Written };
    state.bytes = Bytes::Stored(place);
}
