//! Group commit of written files to their shards.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLockReadGuard;

use crate::fs::error::{FsError, Result};
use crate::fs::node::ArrayView;
use crate::fs::read::decoded::Encoded;
use crate::fs::state::filling::ShardKey;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveState, Place, Shown};
use crate::fs::state::order::Promise;
use crate::fs::state::overlay::files::settle_bytes;
use crate::fs::state::overlay::{Names, Stage, What};
use crate::fs::write::pending::{Round, Task, Unblocked};
use crate::requester;
use crate::store::content::Content;
use crate::store::spool::beside_chunks;
use crate::store::storage::{FileKind, PosixStorage, Timestamp};
use crate::store::work::unfit_or;
use crate::store::{Outcome, StagedChunk, StoreError};
use crate::text::shown;

/// Number of times that a change is saved before it is given up, if it is written to meanwhile.
const SAVES: usize = 8;

/// Array in the source, and its directory if the storage can hold it open.
type There = (Arc<ArrayView>, Option<Arc<dyn PosixStorage>>);

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
    /// Makes a name of the source free for a new file: removes now what was renamed away from
    /// `path` or from below it, and makes files linked from there durable.
    ///
    /// # Errors
    ///
    /// Fails where the new file would not be shown, and with EBUSY if a hidden file cannot be
    /// removed.
    ///
    /// The name stays one of the source as long as what is returned is held.
    pub(in crate::fs) fn free_name(
        &self,
        path: &Path,
        kind: FileKind,
    ) -> Result<RwLockReadGuard<'_, ()>> {
        let directory = path.parent().unwrap_or(Path::new(""));
        self.check_shown(path, directory, kind)?;
        let is_hidden = || -> Result<bool> {
            Ok(self.overlay()?.names().all(path).any(|(_, name)| name.hidden.is_some()))
        };
        if is_hidden()? {
            self.commit_for(path, Unblocked::OfSource)?;
            if is_hidden()? {
                return Err(io::Error::from_raw_os_error(libc::EBUSY).into());
            }
        }
        let links = self.overlay()?.names().links(path);
        for link in links.iter().filter_map(|promise| promise.path()) {
            self.commit(&link)?;
        }
        let turn = self.name_in_source();
        // The directory above may have become an array, of this mount or of another.
        self.revalidate_key(path)?;
        self.check_shown(path, directory, kind)?;
        Ok(turn)
    }

    /// Commits what was written and closed below a path of the view, and returns once it is
    /// durable.
    ///
    /// # Errors
    ///
    /// Returns the first error; the others stay with the uncommitted changes, or are recorded in
    /// [`crate::fs::state::failures`].
    pub fn commit(&self, below: &Path) -> Result<()> {
        self.commit_but(below, |_| HashSet::new())
    }

    /// Commits like [`Fs::commit`] all but the shards that `left` names.
    pub(in crate::fs) fn commit_but(
        &self,
        below: &Path,
        left: impl FnOnce(&Names) -> HashSet<ShardKey>,
    ) -> Result<()> {
        let mut is_all = true;
        let committed = self.commit_round(below, Unblocked::Nothing, |names| {
            let left = left(names);
            is_all = left.is_empty();
            left
        });
        // A commit of a part that had nothing to do says nothing about the disk, nor does one that was not
        // waited for.
        let is_told = match &committed {
            Ok(()) => below.as_os_str().is_empty() && is_all,
            Err(error) => error.errno() != libc::EINTR,
        };
        if self.overlay.is_some() && is_told {
            self.commits.failing.store(committed.is_err(), Ordering::Relaxed);
        }
        committed
    }

    /// Commits like [`Fs::commit`], also those removals below the path that `unblocked` names.
    pub(in crate::fs) fn commit_for(&self, below: &Path, unblocked: Unblocked) -> Result<()> {
        self.commit_round(below, unblocked, |_| HashSet::new())
    }

    fn commit_round(
        &self,
        below: &Path,
        unblocked: Unblocked,
        left: impl FnOnce(&Names) -> HashSet<ShardKey>,
    ) -> Result<()> {
        let Some(overlay) = &self.overlay else { return Ok(()) };
        let _turn = requester::lock(&self.commits.turn)?;
        // What is committed is that of many: it does not end with the process that waits for it.
        let _undisturbed = requester::serve_none();
        let (until, as_callers) = (overlay.names().next_number(), self.access.acts());
        let left = left(&overlay.names());
        let mut round = Round { until, as_callers, failed: HashSet::new(), left };
        let mut first = Ok(());
        loop {
            let pending = match self.next_pending(below, &round, unblocked) {
                Ok(pending) => pending,
                Err(error) => return first.and(Err(error)),
            };
            if pending.is_empty() {
                return first;
            }
            // Another array may be at the same path by now.
            let mut by_array: HashMap<_, (Arc<ArrayView>, Vec<Waiting>)> = HashMap::new();
            for one in pending {
                let (path, number, made) = (one.path, one.number, one.made);
                match one.task {
                    Task::Chunk(array, chunk) => {
                        let (_, waiting) = by_array
                            .entry((array.source.id, array.place))
                            .or_insert((array, Vec::new()));
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
        let outcomes = self.commit_to(array, &chunks);
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

    /// Commits chunks to an array as it is now in the source.
    fn commit_to(&self, array: &ArrayView, chunks: &[StagedChunk]) -> Vec<Outcome> {
        match self.there(array) {
            Ok((now, opened)) => self.commit_there((array, &now), opened.as_deref(), chunks),
            Err(error) => vec![Err(Arc::new(error)); chunks.len()],
        }
    }

    /// Returns an array as it is now in the source, and its directory, which is open: what others put in
    /// its place from then on is not committed to.
    fn there(&self, array: &ArrayView) -> std::result::Result<There, StoreError> {
        let path = || array.source.path.clone();
        if let Some(objects) = self.storage.objects() {
            let late = || io::Error::from_raw_os_error(libc::ETIMEDOUT);
            // It is believed for long who the array is that is there.
            let asked = match self.store.is_given_up() {
                true => Err(late()),
                false => {
                    let document = self.nodes.document_path(&array.source.path);
                    document.and_then(|document| objects.current(&document))
                }
            };
            asked.map_err(|error| {
                if error.raw_os_error() == Some(libc::ETIMEDOUT) {
                    self.store.note_silence();
                }
                StoreError::Io { path: path(), error }
            })?;
        }
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESTALE) => StoreError::Replaced { array: path() },
            _ => self.unfit(array, error),
        };
        let now = self.nodes.still_there(array).map_err(failed)?;
        let now = now.ok_or_else(|| StoreError::Replaced { array: path() })?;
        // Its directory did not exist when the chunk was written, or it is the one for which that was
        // permitted.
        let written = if array.place.is_none() { &*now } else { array };
        let opened = self.store.with_files(|| self.open_array(written).map_err(failed))?;
        Ok((now, opened))
    }

    /// Returns the error for an array whose directory cannot be opened: for a link on the way to it, which.
    fn unfit(&self, array: &ArrayView, error: io::Error) -> StoreError {
        let path = &array.source.path;
        match self.storage.posix() {
            Some(storage) => unfit_or(storage, path, error),
            None => StoreError::Io { path: path.clone(), error },
        }
    }

    fn commit_there(
        &self,
        (array, now): (&ArrayView, &ArrayView),
        opened: Option<&dyn PosixStorage>,
        chunks: &[StagedChunk],
    ) -> Vec<Outcome> {
        let refused = self.outside(now, chunks);
        let left = chunks.iter().zip(&refused).filter(|(_, is_refused)| !**is_refused);
        let left: Vec<StagedChunk> = left.map(|(chunk, _)| chunk.clone()).collect();
        let policy = self.config.writing.policy;
        let committed = match opened {
            Some(opened) => self.store.commit_in(opened, &array.source, &left, policy),
            None => self.store.commit(&array.source, &left, policy),
        };
        let mut committed = committed.into_iter();
        let error = Arc::new(StoreError::Outside { array: array.source.path.clone() });
        let outcome = |is_refused: &bool| match is_refused {
            true => Err(Arc::clone(&error)),
            false => committed.next().unwrap_or(Ok(())),
        };
        refused.iter().map(outcome).collect()
    }

    /// Returns for each chunk whether it lies outside the shape that others have given the array, or
    /// depends on one that does.
    fn outside(&self, now: &ArrayView, chunks: &[StagedChunk]) -> Vec<bool> {
        // What is outside a shape that this mount has made smaller is committed, and then removed.
        let is_ours = self.shrinking.lock().contains_key(&now.source.path);
        if is_ours || self.config.writing.keep_outside || !now.source.format.has_keys() {
            return vec![false; chunks.len()];
        }
        let is_outside = |chunk: &StagedChunk| {
            let mut axes = chunk.coords.iter().zip(now.tree.grid());
            chunk.content.is_some() && axes.any(|(coord, extent)| coord >= extent)
        };
        let mut refused: Vec<bool> = chunks.iter().map(is_outside).collect();
        while refused.contains(&true) {
            let depends = |chunk: &StagedChunk| {
                let mut refused = chunks.iter().zip(&refused).filter(|(_, is)| **is);
                refused.any(|(other, _)| chunk.with.contains(&other.coords))
            };
            let next: Vec<bool> =
                chunks.iter().zip(&refused).map(|(chunk, is)| *is || depends(chunk)).collect();
            if next == refused {
                break;
            }
            refused = next;
        }
        refused
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
        // Removed once the names are no longer locked.
        let mut _copy = None;
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
        if let What::File(file) = &what {
            _copy = file.state().copy.take();
        }
        match what {
            What::File(file) => {
                let place = name.place.clone();
                {
                    let mut state = file.state();
                    if state.dirty {
                        // What was written since may have been refused: others see what is stored now.
                        if let (Shown::Instead(_) | Shown::Nothing, Some(place)) =
                            (&state.shown, place)
                        {
                            state.shown = Shown::Stored(place);
                        }
                        return Ok(true);
                    }
                    // Before its date is looked for there.
                    let (source, base) = (&array.source, &one.chunk.base);
                    let shard = source.layout.shard_of(&one.chunk.coords);
                    let date = self.store.committed_date(source, &shard, base, state.mtime);
                    date.into_iter()
                        .for_each(|date| self.commits.remember_date(one.path.clone(), date));
                    // In the same critical section: later writes stage the chunk anew.
                    name.stage = None;
                    match state.uses {
                        0 => settle_bytes(&mut state, place),
                        // They go to the shard once those that use them here have ended.
                        _ => state.staged = false,
                    }
                }
                // What depends on its other names, which need not be those of chunks, depends on these
                // bytes.
                for other in file.state().names.clone() {
                    if let Some(name) = names.get_mut(&other)
                        && name.place.is_none()
                    {
                        name.made.drain(..).for_each(|promise| promise.keep());
                    }
                }
                names.drop_unused(&file);
            }
            What::Removed => drop(names.take(&one.path)),
            What::Directory => (),
        }
        Ok(false)
    }

    /// Updates the base of open handles of a chunk that was committed.
    fn set_bases(&self, one: &Waiting) -> Result<()> {
        let what = self.overlay()?.names().get(&one.path).map(|name| name.what.clone());
        let Some(What::File(file)) = what else { return Ok(()) };
        let open = file.state().open_files();
        if open.is_empty() {
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
        if error.is_of_others() {
            // What is written while it is being saved is saved, too.
            for _ in 0..SAVES {
                let Some(seen) = self.save_given_up(one, error)? else { break };
                if self.give_up(one, error, seen)? {
                    return Ok(());
                }
            }
        }
        // It exists nowhere else: it stays here until it can be committed, or saved.
        if let Some(name) = self.overlay()?.names().get_mut(&one.path) {
            name.error = Some(Arc::clone(error));
        }
        Ok(())
    }

    /// Saves what was written to a chunk that another process has changed, closed or not. Returns
    /// the number of writes to its file that this covers, 0 if there is none; `None` if it cannot
    /// be saved.
    fn save_given_up(&self, one: &Waiting, error: &Arc<StoreError>) -> Result<Option<u64>> {
        let name = self.overlay()?.names().get(&one.path).cloned();
        let (place, what) = name.map_or((None, None), |name| (name.place, Some(name.what)));
        let saved = place.as_ref().map_or_else(|| one.path.clone(), Place::saved_path);
        let file = match what {
            Some(What::File(file)) => Some(file),
            _ => None,
        };
        let (newer, writes) = file.as_ref().map_or((None, 0), |file| match &*file.state() {
            LiveState { dirty: true, bytes: Bytes::Here(content), writes, .. } => {
                (Some(content.clone()), *writes)
            }
            state => (None, state.writes),
        });
        let staged = one.chunk.content.as_ref();
        let is_removal = newer.is_none() && staged.is_none();
        let save = |path: &Path, content| self.save(path, file.as_deref(), content, error);
        let is_saved = match (newer, &place) {
            (None, _) => save(&saved, staged),
            (Some(newer), None) => save(&saved, Some(&newer)),
            // Newer contents are given up with it: as they would have been stored.
            (Some(newer), Some(place)) => match self.encoded(place, &newer) {
                Ok(Encoded { chunk: Some(chunk), .. }) => save(&saved, Some(&chunk)),
                Ok(Encoded { chunk: None, .. }) => true,
                Err(_) => {
                    save(&beside_chunks(&one.path), Some(&newer))
                        && (staged.is_none() || save(&saved, staged))
                }
            },
        };
        Ok((is_saved || is_removal).then_some(writes))
    }

    /// Gives up a change that was saved, with the `seen` first writes of its file. Returns `false`
    /// if more was written since.
    fn give_up(&self, one: &Waiting, error: &Arc<StoreError>, seen: u64) -> Result<bool> {
        let mut names = self.overlay()?.names();
        let Some(name) = names.get_mut(&one.path) else {
            self.failures.record(&one.path, error);
            return Ok(true);
        };
        let file = match &name.what {
            What::File(file) => Some(Arc::clone(file)),
            _ => None,
        };
        if file.as_ref().is_some_and(|file| file.state().writes != seen) {
            return Ok(false);
        }
        self.failures.record(&one.path, error);
        if !name.stage.as_ref().is_some_and(|stage| is_change(stage, one.number)) {
            if let Some(Content::File { file, .. }) =
                name.stage.as_ref().and_then(|stage| stage.change.as_ref()?.content.as_ref())
                && let Err(error) = file.mark_newest()
            {
                log::warn!("{}: its spool file looks older than it is: {error}", shown(&one.path));
            }
            return Ok(true);
        }
        // From now on the chunk is what the other process has written, though its shard may not have changed
        // since the kernel was given the contents that are given up.
        (name.stage, name.error) = (None, None);
        name.after.clear();
        let place = name.place.clone();
        if let (Some(place), Some(file)) = (&place, &file) {
            self.served_other(place, file.ino);
        }
        names.break_promises(&one.path, error);
        if let Some(file) = &file {
            let mut state = file.state();
            // Later writes through open handles are based on contents that no longer exist.
            let lost = (one.path.clone(), one.chunk.base.clone());
            state.open_files().iter().for_each(|open| open.set_base(lost.clone()));
            if state.names.len() == 1 {
                state.dirty = false;
                settle_bytes(&mut state, place);
                drop(state);
                names.drop_unused(file);
                return Ok(true);
            }
        }
        // A file with other names keeps its contents, but not this name.
        names.take(&one.path);
        drop(names);
        self.show_stored(&one.path, place)?;
        Ok(true)
    }

    /// Records that the kernel may have pages of a chunk that hold what its shard does not: the next open
    /// drops them.
    pub(in crate::fs) fn served_other(&self, Place { array, coords }: &Place, ino: u64) {
        let shard = array.source.layout.shard_of(coords);
        for ino in [ino, array.inodes.ino(array.tree.number(coords))] {
            self.identities.served_older(self.shard_identity(array, &shard), ino);
        }
    }

    /// Sets the modification time of a chunk. `false` if there is none.
    pub(in crate::fs) fn set_chunk_date(&self, place: &Place, date: Timestamp) -> Result<bool> {
        let dated = self.store.begin_dates(&place.array.source, &place.coords)?;
        if let Some(Some(dated)) = dated {
            let path = place.array.path(&place.coords);
            self.commits.remember_date(path, (dated.number, date));
        }
        Ok(dated.is_some())
    }
}

fn is_change(stage: &Stage, number: u64) -> bool {
    stage.change.as_ref().is_some_and(|change| change.number == number)
}
