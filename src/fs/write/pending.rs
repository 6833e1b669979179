//! Uncommitted changes, and the selection of those that can be committed now.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fs::error::{FsError, Result};
use crate::fs::node::ArrayView;
use crate::fs::state::filling::ShardKey;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, Place};
use crate::fs::state::order::{Promise, Step, ready};
use crate::fs::state::overlay::{Hidden, Name, Names, What};
use crate::store::spool::beside_chunks;
use crate::store::storage::{Stat, if_present, is_absent};
use crate::store::{Maker, StagedChunk, StoreError};
use crate::text::shown;

/// Uncommitted change.
pub(in crate::fs) struct Pending {
    pub path: PathBuf,
    /// Number of the change.
    pub number: u64,
    pub task: Task,
    /// Promises that must be kept first.
    after: Vec<Arc<Promise>>,
    /// Promises that its commit keeps.
    pub made: Vec<Arc<Promise>>,
}

/// Operation to perform.
pub(in crate::fs) enum Task {
    /// Change a chunk.
    Chunk(Arc<ArrayView>, StagedChunk),
    /// Remove a file of the source that was renamed away, if it is still this one.
    Remove(Hidden),
}

/// Removals that do not wait for files whose contents have no change to commit: a durable copy of
/// these comes first.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::fs) enum Unblocked {
    Nothing,
    /// Removals that wait for chunks that are still being written.
    ForChunks,
    /// All removals of files of the source.
    OfSource,
}

/// Changes that happen in one disk operation.
#[derive(PartialEq)]
enum Group {
    Shard(ShardKey),
    Source(PathBuf),
}

/// Progress of a commit.
pub(in crate::fs) struct Round {
    /// Number of the last change to include: later ones are left to the next commit.
    pub until: u64,
    /// `true` if new shards are owned by the callers who created their chunks.
    pub as_callers: bool,
    /// Changes that have failed already, which are not retried in this commit.
    pub failed: HashSet<(PathBuf, u64)>,
    /// Shards that are left to a later commit.
    pub left: HashSet<ShardKey>,
}

impl Pending {
    fn of(path: &Path, name: &Name, as_callers: bool) -> Option<Self> {
        let (number, task) = match (&name.place, &name.stage, &name.hidden) {
            (Some(Place { array, coords }), Some(stage), _) => {
                let change = stage.change.as_ref()?;
                let (content, base) = (change.content.clone(), stage.base.clone());
                let (coords, with) = (coords.clone(), Vec::new());
                let maker = maker(name).filter(|_| as_callers);
                let chunk = StagedChunk { coords, content, base, maker, with };
                (change.number, Task::Chunk(Arc::clone(array), chunk))
            }
            (_, _, Some(hidden)) => (name.number, Task::Remove(hidden.clone())),
            _ => return None,
        };
        let is_other = |promise: &Arc<Promise>| promise.path().is_some_and(|at| at != path);
        let after = name.after.iter().filter(|promise| is_other(promise)).cloned().collect();
        Some(Self { path: path.to_owned(), number, task, after, made: name.made.clone() })
    }

    fn group(&self) -> Group {
        match &self.task {
            Task::Chunk(array, chunk) => {
                let shard = array.source.layout.shard_of(&chunk.coords);
                Group::Shard((array.source.id, shard))
            }
            Task::Remove(_) => Group::Source(self.path.clone()),
        }
    }

    /// Returns whether the change adds contents rather than only removing something: then it does
    /// not wait.
    fn is_content(&self) -> bool {
        matches!(&self.task, Task::Chunk(_, chunk) if chunk.content.is_some())
    }
}

impl Names {
    /// Returns the uncommitted changes at or below a path, and everything that must come before
    /// them, wherever that is.
    fn pending(&self, below: &Path, round: &Round) -> Vec<Pending> {
        let of = |path: &Path, name: &Name| {
            let pending = Pending::of(path, name, round.as_callers)?;
            let has_failed = round.failed.contains(&(pending.path.clone(), pending.number));
            let is_left = !round.left.is_empty()
                && matches!(pending.group(), Group::Shard(key) if round.left.contains(&key));
            (pending.number <= round.until && !has_failed && !is_left).then_some(pending)
        };
        let mut found: Vec<Pending> =
            self.all(below).filter_map(|(path, name)| of(&path, name)).collect();
        let mut seen: HashSet<PathBuf> = found.iter().map(|one| one.path.clone()).collect();
        let mut at = 0;
        while let Some(one) = found.get(at) {
            let before: Vec<PathBuf> = one.after.iter().filter_map(|it| it.path()).collect();
            for path in before {
                if seen.insert(path.clone()) {
                    found.extend(self.get(&path).and_then(|name| of(&path, name)));
                }
            }
            at += 1;
        }
        found
    }
}

impl Fs {
    /// Returns the changes to commit next; empty once everything possible is committed. Changes
    /// that must not wait any longer are unblocked by a durable copy of what they would remove: all
    /// changes with contents, and the removals that `unblocked` names.
    ///
    /// # Errors
    ///
    /// Fails if such a change or removal cannot be unblocked.
    pub(in crate::fs) fn next_pending(
        &self,
        below: &Path,
        round: &Round,
        unblocked: Unblocked,
    ) -> Result<Vec<Pending>> {
        loop {
            self.bring_back()?;
            let (now, held) = split(self.overlay()?.names().pending(below, round));
            if !now.is_empty() {
                return Ok(now);
            }
            let unblocks = |one: &Pending| match unblocked {
                Unblocked::Nothing => Ok(false),
                _ if one.is_content() || !one.path.starts_with(below) => Ok(false),
                Unblocked::ForChunks => self.waits_for_chunks(one),
                Unblocked::OfSource => Ok(matches!(one.task, Task::Remove(_))),
            };
            let (mut freed, mut left) = (0, false);
            for one in &held {
                let is_named = unblocks(one)?;
                if one.is_content() || is_named {
                    let kept = one.after.iter().filter(|it| self.keep_by_copy(it)).count();
                    freed += kept;
                    left |= kept == 0;
                }
            }
            match (freed, left) {
                (0, false) => return Ok(Vec::new()),
                (0, true) => return Err(io::Error::from_raw_os_error(libc::EBUSY).into()),
                _ => (),
            }
        }
    }

    /// Returns whether everything that a change waits for is a chunk.
    fn waits_for_chunks(&self, one: &Pending) -> Result<bool> {
        let names = self.overlay()?.names();
        let is_chunk = |path: &PathBuf| names.get(path).is_some_and(|name| name.place.is_some());
        Ok(one.after.iter().filter_map(|promise| promise.path()).all(|path| is_chunk(&path)))
    }

    /// Keeps a promise by a durable copy outside the source: for a file that is not a chunk, for
    /// one whose shard cannot be written, for one of two that change places. Returns whether the
    /// promise is kept now.
    fn keep_by_copy(&self, promise: &Promise) -> bool {
        let (Some(path), Ok(overlay)) = (promise.path(), self.overlay()) else { return true };
        let name = overlay.names().get(&path).cloned();
        if let Some(Name { what: What::File(file), place, stage, .. }) = name {
            let change = stage.and_then(|stage| stage.change);
            let content = match (change.and_then(|change| change.content), &file.state().bytes) {
                (Some(content), _) => Some((content, true)),
                (None, Bytes::Here(content)) => Some((content.clone(), false)),
                (None, Bytes::Stored(_) | Bytes::Moved(_)) => None,
            };
            if let Some((content, is_encoded)) = content {
                let is_chunk = |place: &Place| is_encoded || place.array.decoded_form().is_none();
                let place = place.filter(is_chunk);
                let saved = place.as_ref().map_or_else(|| beside_chunks(&path), Place::saved_path);
                let Some(copy) = self.copy(&saved, &file, &content) else { return false };
                let _older = file.state().copy.replace(copy);
            }
        }
        promise.keep();
        true
    }

    /// Restores names whose removal depended on changes that were given up.
    fn bring_back(&self) -> Result<()> {
        loop {
            let back = self.overlay()?.names().bring_back();
            if back.is_empty() {
                return Ok(());
            }
            for (path, place, error) in back {
                log::error!("{}: it is not removed, its new name was lost: {error}", shown(&path));
                self.failures.record(&path, &error);
                self.show_stored(&path, place)?;
            }
        }
    }

    /// Makes a chunk visible again that was renamed away. If its file has kept the inode number,
    /// the chunk gets another one.
    pub(in crate::fs) fn show_stored(&self, path: &Path, place: Option<Place>) -> Result<()> {
        let Some(place) = place else { return Ok(()) };
        let ino = place.array.inodes.ino(place.array.tree.number(&place.coords));
        let is_taken = self.overlay()?.names().by_ino(ino).is_some();
        if is_taken && let Err(error) = self.chunk_file(path, &place) {
            // Another process has removed it in the meantime.
            log::debug!("{}: {error}", shown(path));
        }
        Ok(())
    }

    /// Removes a file of the source that is durable under its new name, unless another process has
    /// replaced it. It becomes visible again if the caller that renamed it lacks the permission to
    /// remove it.
    pub(in crate::fs) fn remove_hidden(&self, path: &Path, hidden: &Hidden) -> Result<()> {
        let removed = self.remove_if_same(path, hidden);
        let mut names = self.overlay()?.names();
        let Err(error) = removed else {
            names.unhide(path, hidden);
            return Ok(());
        };
        let is_denied = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM));
        let error = Arc::new(StoreError::Io { path: path.to_owned(), error });
        if is_denied {
            log::error!("{}: it has another name now, and is not removed: {error}", shown(path));
            self.failures.record(path, &error);
            names.unhide(path, hidden);
        } else if let Some(name) = names.get_mut(path) {
            name.error = Some(Arc::clone(&error));
        }
        Err(FsError::Commit(error))
    }

    fn remove_if_same(&self, path: &Path, hidden: &Hidden) -> io::Result<()> {
        let storage = self.storage.writable()?;
        let is_linked = |found: &Stat| {
            let links = [found, &hidden.stat];
            found.id() == hidden.stat.id() && links.iter().any(|stat| stat.has_hard_links())
        };
        match storage.lstat(path) {
            // Newer contents are those of all its hard links, past ones included.
            Ok(found)
                if !found.version().has_same_content(&hidden.stat.version())
                    && !is_linked(&found) =>
            {
                let path = shown(path);
                log::warn!("{path}: others have changed it since it was renamed: it stays");
                return Ok(());
            }
            Ok(_) => hidden.by.act(|| storage.remove_file(path))??,
            // Removed by another process, or by an attempt that got no further.
            Err(error) if is_absent(&error) => (),
            Err(error) => return Err(error),
        }
        // Others may have removed the directory as well.
        if_present(storage.sync_directory(path.parent().unwrap_or(Path::new("")))).map(drop)
    }
}

/// Splits changes into those that can be committed now and those that must wait.
fn split(mut pending: Vec<Pending>) -> (Vec<Pending>, Vec<Pending>) {
    let kept_by: HashMap<*const Promise, usize> = pending
        .iter()
        .enumerate()
        .flat_map(|(at, one)| one.made.iter().map(move |promise| (Arc::as_ptr(promise), at)))
        .collect();
    let before = |promise: &Arc<Promise>| kept_by.get(&Arc::as_ptr(promise)).copied();
    let steps: Vec<Step<Group>> = pending
        .iter()
        .map(|one| Step { group: one.group(), after: one.after.iter().map(before).collect() })
        .collect();
    let ready = ready(&steps);
    // They are in one shard, but if the prerequisite is given up this one is not committed either.
    for at in (0..pending.len()).filter(|at| ready[*at]) {
        let with = steps[at].after.iter().flatten().filter_map(|before| {
            let Task::Chunk(_, chunk) = &pending[*before].task else { return None };
            Some(chunk.coords.clone())
        });
        let with = with.collect();
        if let Task::Chunk(_, chunk) = &mut pending[at].task {
            chunk.with = with;
        }
    }
    let (mut now, mut held) = (Vec::new(), Vec::new());
    for (one, is_ready) in pending.into_iter().zip(ready) {
        if is_ready { now.push(one) } else { held.push(one) }
    }
    (now, held)
}

/// Returns the owner and permissions of a new shard that is created by a change of this name.
pub(in crate::fs) fn maker(name: &Name) -> Option<Maker> {
    let What::File(file) = &name.what else { return None };
    let state = file.state();
    let [mode, asked] = [state.mode, state.asked].map(|mode| mode & 0o666);
    Some(Maker { uid: state.uid, gid: state.gid, mode, asked })
}
