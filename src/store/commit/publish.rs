//! Publication of prepared shards, durably: in place under a record, by new files, by removal.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::staged::{Commit, Shard, Work, redate};
use crate::format::journal::Record;
use crate::format::plan::Write;
use crate::store::recover::roll_back;
use crate::store::{StoreError, io_error};

impl<'a> Commit<'a> {
    /// Commits shards in place, under one record. Returns those that have changed.
    pub(super) fn commit_recorded(&mut self, shards: Vec<Shard<'a>>) -> Vec<Shard<'a>> {
        if shards.is_empty() {
            return shards;
        }
        let records = shards.iter().filter_map(|shard| match &shard.work {
            Work::Journal(_, record) => Some(record.clone()),
            _ => None,
        });
        self.state.cleared = None;
        let record = Record { shards: records.collect() };
        let old = shards.iter().filter_map(|shard| shard.old.as_ref());
        let old = old.map(|old| (&old.stat, &*old.file));
        let written = self.journal.narrow(old).and_then(|()| self.journal.write(&record));
        if let Err(error) = written {
            // The record describes changes that did not happen: recovery rolls it back.
            let _ = self.journal.clear();
            let all: Vec<usize> =
                shards.iter().flat_map(|shard| shard.chunks.iter().copied()).collect();
            self.fail(&all, error);
            return Vec::new();
        }
        // A record of old bytes that reappeared after a power cut would restore them over what
        // other writers have written to the same file since, even if this commit did not get far.
        let restores = shards.iter().any(|shard| match &shard.work {
            Work::Journal(update, _) => !update.overwritten.is_empty(),
            _ => false,
        });
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
        let cleared = match unknown {
            true => {
                self.state.keep(self.journal.found());
                Ok(())
            }
            false if restores => self.clear_for_good(),
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
        // The index last, wherever it is: until then other readers of the shard follow the old one.
        let is_before = |write: &Write| write.offset < update.old_index.offset;
        let index_end = update.old_index.offset.saturating_add(update.old_index.nbytes);
        let from = update.writes.partition_point(is_before);
        let (before, rest) = update.writes.split_at(from);
        let (index, behind) = rest.split_at(rest.partition_point(|write| write.offset < index_end));
        let write = || {
            let sources = self.sources(Some(old));
            for writes in [before, behind, index] {
                sources.put_all(&*old.file, writes)?;
            }
            redate(&*old.file, &old.stat)
        };
        write().map_err(|error| undo(shard, error))
    }

    fn sync_in_place(&self, shard: &Shard<'_>) -> Result<(), InPlace> {
        let Some(old) = &shard.old else { return Ok(()) };
        old.file.sync().map_err(|error| undo(shard, error))
    }

    /// Commits shards that need no record. Returns those that have changed.
    pub(super) fn commit_others(&mut self, shards: Vec<Shard<'a>>) -> Vec<Shard<'a>> {
        if shards.is_empty() {
            return shards;
        }
        if let Err(error) = self.clear_for_good() {
            for shard in &shards {
                if let Work::Replace(temporary, _) = &shard.work {
                    let _ = self.storage.remove_file(temporary);
                }
            }
            let all: Vec<usize> =
                shards.iter().flat_map(|shard| shard.chunks.iter().copied()).collect();
            self.fail(&all, error);
            return Vec::new();
        }
        let mut done = Vec::new();
        for mut shard in shards {
            match self.publish(&shard) {
                Ok(()) => {
                    self.note_published(&mut shard);
                    done.push(shard);
                }
                Err(error) => self.give_up(&shard, io_error(&shard.path)(error)),
            }
        }
        done
    }

    /// Clears the journal durably, before shards are changed without a record: an old record must
    /// not reappear after a power cut and be taken for one of such a shard.
    fn clear_for_good(&mut self) -> Result<(), StoreError> {
        if self.state.stuck {
            // The shards that the record names are not changed.
            return Ok(());
        }
        if self.state.cleared != Some(self.journal.stat()?.version()) {
            self.journal.clear_durably()?;
            self.state.cleared = Some(self.journal.stat()?.version());
        }
        Ok(())
    }

    /// Puts the new state of a shard in place. After an error the shard is old or new: its visible
    /// state is not to be relied on before it was synced.
    fn publish(&self, shard: &Shard<'_>) -> io::Result<()> {
        let storage = self.storage;
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

    /// Updates the version of the new file, whose ctime its rename has changed. If another process
    /// has already put another file there, the version from before the rename stays: no file that
    /// will be found has it.
    fn note_published(&self, shard: &mut Shard<'_>) {
        if let Work::Replace(_, version) = &mut shard.work
            && let Ok(now) = self.storage.stat(&shard.path).map(|stat| stat.version())
            && now.has_same_content(version)
        {
            *version = now;
        }
    }

    /// Makes the names of new and removed shards durable, and records the state of all shards that
    /// were changed.
    pub(super) fn sync_directories(&mut self, shards: &[Shard<'_>]) {
        let all: BTreeSet<_> = shards.iter().flat_map(|shard| &shard.directories).collect();
        let mut failed: BTreeMap<&PathBuf, Arc<StoreError>> = BTreeMap::new();
        for directory in all {
            match self.storage.sync_directory(directory) {
                // The directory does not exist: no name in it has to be durable.
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
}

/// Result of a failed update in place.
enum InPlace {
    /// The shard was rolled back.
    Undone(StoreError),
    /// It is unknown which bytes are durable; the record stays.
    Unknown(StoreError),
}

/// Rolls an update in place back. That also rewrites bytes that a failed fsync has dropped; bytes
/// that it does not rewrite are not reached by the old index.
fn undo(shard: &Shard<'_>, error: io::Error) -> InPlace {
    let error = io_error(&shard.path)(error);
    match (&shard.work, &shard.old) {
        (Work::Journal(_, record), Some(old)) if roll_back(&*old.file, record).is_err() => {
            InPlace::Unknown(error)
        }
        _ => InPlace::Undone(error),
    }
}
