//! Copies of what waits for its last commit, where that takes long.
//!
//! A store of objects may take minutes for a shard, or not answer at all. Whoever waits for the mount to end may
//! lose patience, and end the process at once: what it had not committed is saved by then.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::fs::state::copy::Copy;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::Place;
use crate::fs::state::overlay::{Name, What};
use crate::store::content::Content;
use crate::text::{count, shown};

/// Time that commits may take before what waits for them is saved.
const PROMPT: Duration = Duration::from_secs(2);

/// Time between two looks at what does not wait any more.
const LOOK: Duration = Duration::from_secs(1);

/// Durable copy of what was written to a chunk.
pub(in crate::fs) struct Spare {
    path: PathBuf,
    /// Number of the change.
    number: u64,
    copy: Copy,
}

impl Spare {
    /// Leaves the copies of these paths where they are, and removes the others.
    pub(in crate::fs) fn keep_only(spares: Vec<Self>, lost: &[PathBuf]) {
        for spare in spares {
            if lost.contains(&spare.path) {
                spare.copy.stay();
            }
        }
    }
}

impl Fs {
    /// Makes the last commits. What waits for them for long is saved meanwhile; returns the copies of what they
    /// have left.
    pub(in crate::fs) fn with_spares(&self, commit: impl FnOnce()) -> Vec<Spare> {
        if self.storage.objects().is_none() {
            commit();
            return Vec::new();
        }
        let (over, hears) = channel();
        thread::scope(|scope| {
            let saver = thread::Builder::new().spawn_scoped(scope, move || self.spares(&hears));
            if let Err(error) = &saver {
                log::warn!("what waits for the store is not saved until it is given up: {error}");
            }
            commit();
            drop(over);
            // It has panicked if there is none: its copies are removed, and what is left is saved as usual.
            saver.ok().and_then(|saver| saver.join().ok()).unwrap_or_default()
        })
    }

    /// Saves what waits once that takes long, and removes the copies of what is committed, until the last commits
    /// are over.
    fn spares(&self, over: &Receiver<()>) -> Vec<Spare> {
        let mut spares = Vec::new();
        if over.recv_timeout(PROMPT) != Err(RecvTimeoutError::Timeout) {
            return spares;
        }
        for (path, name) in self.waiting() {
            if is_over(over, Duration::ZERO) {
                break;
            }
            spares.extend(self.spare(path, &name));
        }
        if !spares.is_empty() {
            let (files, place) = (count(spares.len(), "file"), shown(&self.config.writing.unsaved));
            log::warn!(
                "the store takes long: {files} that wait for it are saved in {place} meanwhile"
            );
        }
        loop {
            let is_over = is_over(over, LOOK);
            spares.retain(|spare| self.waits(&spare.path, spare.number));
            if is_over {
                return spares;
            }
        }
    }

    fn waiting(&self) -> Vec<(PathBuf, Name)> {
        let Some(overlay) = &self.overlay else { return Vec::new() };
        let names = overlay.names();
        names.all(Path::new("")).map(|(path, name)| (path, name.clone())).collect()
    }

    /// Returns whether a change is not committed yet.
    fn waits(&self, path: &Path, number: u64) -> bool {
        let Some(overlay) = &self.overlay else { return false };
        let names = overlay.names();
        let stage = names.get(path).and_then(|name| name.stage.as_ref());
        stage.and_then(|stage| stage.change.as_ref()).is_some_and(|change| change.number == number)
    }

    /// Saves what was written to a chunk, if it waits and is saved nowhere yet.
    fn spare(&self, path: PathBuf, name: &Name) -> Option<Spare> {
        let (What::File(file), Some(place)) = (&name.what, &name.place) else { return None };
        let change = name.stage.as_ref()?.change.as_ref()?;
        // What is not in memory has a file already, which is called after the chunk.
        let content = change.content.as_ref().filter(|it| matches!(it, Content::Memory(_)))?;
        if !self.waits(&path, change.number) {
            return None;
        }
        let copy = self.copy(&Place::saved_path(place), file, content)?;
        Some(Spare { path, number: change.number, copy })
    }
}

/// Returns whether the last commits are over, or are within a time.
fn is_over(over: &Receiver<()>, within: Duration) -> bool {
    over.recv_timeout(within) != Err(RecvTimeoutError::Timeout)
}
