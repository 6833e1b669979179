//! Commits at intervals, and at the end of a mount.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::fs::error::FsError;
use crate::fs::node::ArrayView;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::LiveFile;
use crate::fs::state::overlay::{Name, What};
use crate::fs::write::spare::Spare;
use crate::fs::write::unsaved::End;
use crate::store::spool::beside_chunks;
use crate::store::storage::PosixFile;
use crate::text::{count, shown};

impl Fs {
    /// Commits at intervals until [`Fs::end_commits`] is called.
    pub fn commit_at_intervals(&self) {
        let mut ended = self.commits.ended.lock();
        while !*ended {
            self.commits.wake.wait_for(&mut ended, self.config.writing.interval);
            if !*ended {
                drop(ended);
                // Errors stay with the changes, are reported by `fsync`, and are in the log.
                let _ = self.commit_due();
                ended = self.commits.ended.lock();
            }
        }
    }

    /// Stops the commits at intervals and commits for the last time. Returns the number of chunks
    /// that could not be committed; they are saved as files of their own, if that is possible.
    ///
    /// Nothing may be changed any more: [`crate::fs::Views::end`] sees to that in a mount.
    pub fn end_commits(&self) -> usize {
        *self.commits.ended.lock() = true;
        self.commits.wake.notify_all();
        let Some(overlay) = &self.overlay else { return 0 };
        self.store.end_soon();
        self.publish_all();
        let all = || -> Vec<(PathBuf, Name)> {
            overlay.names().all(Path::new("")).map(|(path, name)| (path, name.clone())).collect()
        };
        let mut ends = self.end_files();
        let spares = self.with_spares(|| {
            // Errors are ignored: the remaining changes are saved and counted.
            let _ = self.commit(Path::new(""));
            for (path, name) in all().iter().filter(|(_, name)| name.place.is_none()) {
                ends.extend(self.save_scratch(path, name));
            }
            // Commits the changes that were waiting for those.
            let _ = self.commit(Path::new(""));
        });
        let not_shrunk = self.finish_shrinking();
        self.remove_documents_at_end();
        let mut arrays: HashMap<u64, Arc<ArrayView>> = HashMap::new();
        let mut lost = Vec::new();
        for (path, name) in all() {
            let end = self.save_chunk(&path, &name);
            lost.extend((end == Some(End::Lost)).then_some(path));
            ends.extend(end);
        }
        Spare::keep_only(spares, &lost);
        for array in self.nodes.committed() {
            arrays.insert(array.source.id, array);
        }
        for array in arrays.into_values() {
            if let Err(error) = self.store.finish_commits(&array.source) {
                log::warn!("{error}");
            }
        }
        if let Some(objects) = self.storage.objects() {
            objects.ended();
        }
        for (_, name) in all() {
            if let What::File(file) = name.what
                && let Some(copy) = file.state().copy.take()
            {
                copy.stay();
            }
        }
        self.spool.remove();
        self.log_ends(&ends);
        ends.len() + not_shrunk
    }

    /// Saves the files of a store of objects that are being written when the mount ends. They are not stored: a half of
    /// one may be less than what is there.
    fn end_files(&self) -> Vec<End> {
        let Some(objects) = self.storage.objects() else { return Vec::new() };
        let end = |(path, file): (PathBuf, Arc<dyn PosixFile>)| {
            let why = "it was not closed when the mount ended, and is not stored";
            let content = file.stat().map_err(FsError::from).and_then(|stat| {
                self.read_content(stat.size, |buffer, at| file.read_at(buffer, at))
            });
            let saved =
                content.map(|content| self.save(&beside_chunks(&path), None, Some(&content), &why));
            End::of_written(saved.unwrap_or_else(|error| {
                log::error!("{}: {why}; what was written is LOST: {error}", shown(&path));
                false
            }))
        };
        objects.end().into_iter().map(end).collect()
    }

    /// Logs what has become of changes that could not be committed.
    fn log_ends(&self, ends: &[End]) {
        if ends.is_empty() {
            return;
        }
        let place = shown(&self.config.writing.unsaved);
        let saved = format!("saved below {place}");
        let words = [(End::Saved, &*saved), (End::Lost, "LOST"), (End::NotRemoved, "not removed")];
        let parts = words.map(|(end, words)| {
            let number = ends.iter().filter(|other| **other == end).count();
            (number > 0).then(|| format!("{number} {words}"))
        });
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let all = count(ends.len(), "file");
        log::error!("{all} could not be committed: {}", parts.join(", "));
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
