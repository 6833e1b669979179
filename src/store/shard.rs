//! Loading of shards: one open, one read of the index, the index verified.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::error::{Damage, StoreError, UNREACHABLE, io_error};
use super::formats::Reading;
use super::index_reader::IndexReader;
use super::journal::pending_if_readable;
use super::loaded::{Body, InnerError, LoadedShard, Ready, ShardId, is_recent, now};
use super::storage::{FileKind, Stat, StorageFile, Timestamp, Version, is_dangling};
use super::unfinished::record_of;
use super::{Freshness, ShardStore, SourceArray};
use crate::format::journal::ShardRecord;
use crate::format::sharding::Location;

/// Attempts to load a shard that keeps changing while its index is read.
const LOAD_ATTEMPTS: usize = 4;

/// Age up to which a validation counts as made just now: the chunks of a shard are looked up in
/// bursts, each with an open right after it.
const JUST_NOW: Duration = Duration::from_millis(10);

impl ShardStore {
    /// Returns the shard at `coords` in the shard grid, from the cache if it is fresh enough.
    /// `None` if there is none. A damaged shard is returned as such, and was logged when it was
    /// loaded.
    pub fn shard(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        let id = array.shard_id(coords);
        let trusted = self.trusted_for(freshness);
        let trusted = |shard: &LoadedShard| self.config.immutable || shard.is_trusted(trusted);
        // While this mount commits to the shard, its cached index still holds for all chunks but
        // those being committed. `Again` is required where the bytes are to be read.
        let ours = |shard: &LoadedShard| {
            freshness != Freshness::Again && !shard.provisional && self.commits.is_busy(id)
        };
        let cached = self.shards.lock().get(&id);
        if let Some(shard) = &cached
            && (trusted(shard) || ours(shard))
        {
            self.stats.indexes.hits.count();
            return Ok(cached);
        }
        let path = array.shard_path(coords);
        if let Some(shard) = cached {
            if self.is_current(&shard, &path) {
                self.stats.indexes.hits.count();
                return Ok(Some(shard));
            }
            self.stats.indexes.changed.count();
        } else if self.is_absent(id, freshness) {
            return Ok(None);
        }
        let _loading = self.loading_lock_of_requester(&id, &path)?;
        // Another thread may have loaded it while this one waited for the lock.
        if let Some(shard) = self.shards.lock().get(&id)
            && (trusted(&shard) || self.is_current(&shard, &path))
        {
            self.stats.indexes.hits.count();
            return Ok(Some(shard));
        }
        let asked = now();
        let loaded = self.with_files(|| self.load(array, coords, id, &path));
        // `Changing` is reported by the caller once retries are exhausted.
        let loaded = loaded.inspect_err(|error| match error {
            StoreError::Changing { .. } => (),
            error => self.report(error),
        })?;
        match &loaded {
            Some(shard) => self.shards.lock().put(id, Arc::clone(shard), shard.memory()),
            None => {
                self.shards.lock().remove(&id);
                self.absent.lock().put(id, asked);
            }
        }
        Ok(loaded)
    }

    /// Returns how long ago a shard may have been validated.
    fn trusted_for(&self, freshness: Freshness) -> Duration {
        match freshness {
            Freshness::Again => Duration::ZERO,
            // The read that follows fails if the shard has changed.
            Freshness::Now if self.storage.pins_versions() && !self.config.is_written => {
                self.config.trusted
            }
            Freshness::Now => self.config.trusted.min(JUST_NOW),
            Freshness::Recent => self.config.trusted,
        }
    }

    /// Returns whether the shard was found absent, recently enough.
    fn is_absent(&self, id: ShardId, freshness: Freshness) -> bool {
        let Some(asked) = self.absent.lock().get(&id).copied() else { return false };
        self.config.immutable || is_recent(asked, self.trusted_for(freshness))
    }

    fn is_current(&self, shard: &LoadedShard, path: &Path) -> bool {
        let asked = now();
        let current = !shard.provisional && self.storage.has_version(path, &shard.stat.version());
        if current {
            shard.checked.store(asked, Ordering::Relaxed);
        }
        current
    }

    /// Returns whether a shard was changed so recently that another change might leave its version
    /// as it is. What a commit of this mount has left is exempt: it sets a date that no other writer
    /// would.
    pub(super) fn may_look_unchanged(&self, id: ShardId, version: Version) -> bool {
        !self.config.immutable
            && version.is_unsettled(SystemTime::now())
            && !self.commits.has_left(id, version)
    }

    /// Reads the index of a shard of a level that is nested in a shard.
    fn read_inner(
        &self,
        array: &SourceArray,
        level: usize,
        shard: &[u64],
        file: &dyn StorageFile,
        stored: Body,
    ) -> std::io::Result<Result<Ready, Damage>> {
        let reader = IndexReader {
            level: &array.layout.levels[level],
            chunks_per_shard: &array.layout.chunks_per_shard(level, shard),
            limit: self.config.decode_limit,
            stats: &self.stats,
        };
        reader.read(file, stored)
    }

    /// Reads where the chunks of a shard are, from its file.
    fn read_shard(
        &self,
        array: &SourceArray,
        shard: &[u64],
        path: &Path,
        (file, stat): (&dyn StorageFile, &Stat),
        pending: Option<&ShardRecord>,
    ) -> std::io::Result<Result<Ready, Damage>> {
        array.format.read(&Reading {
            path,
            file,
            stat,
            layout: &array.layout,
            chunks_per_shard: &array.layout.chunks_per_shard(0, shard),
            pending,
            pads_end: self.config.pad_edge,
            decode_limit: self.config.decode_limit,
            stats: &self.stats,
        })
    }

    /// Finds a chunk in a shard's file from the file's current contents alone, without the caches.
    /// `None` if it is not there, or cannot be located.
    pub(super) fn body_in(
        &self,
        array: &SourceArray,
        location: &Location,
        path: &Path,
        (file, stat): (&dyn StorageFile, &Stat),
    ) -> std::io::Result<Option<Body>> {
        let mut body = Body::InFile { offset: 0, nbytes: stat.size };
        for (number, (level, position)) in
            array.layout.levels.iter().zip(&location.positions).enumerate()
        {
            let state = match number {
                0 => self.read_shard(array, &location.shard, path, (file, stat), None)?,
                _ => self.read_inner(array, number, &location.shard, file, body)?,
            };
            let Ok(ready) = state else { return Ok(None) };
            let range = ready.index.range(level.in_shard_axes(position), ready.body.nbytes());
            let Ok(Some(range)) = range else { return Ok(None) };
            body = ready.body.part(range.offset, range.nbytes);
        }
        Ok(Some(body))
    }

    fn load(
        &self,
        array: &SourceArray,
        coords: &[u64],
        id: ShardId,
        path: &Path,
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        if let Some(shards) = self.shards_now(array)?
            && coords.first().is_some_and(|number| *number >= shards)
        {
            return Ok(None);
        }
        for _ in 0..LOAD_ATTEMPTS {
            let asked = now();
            let file = match self.open_shard(array, coords, path) {
                Ok(file) => file,
                Err(error) => return self.not_opened(array, id, path, error),
            };
            let before = file.stat().map_err(io_error(path))?;
            let pending = self.pending(array, coords)?;
            let state = self.read_shard(array, coords, path, (&*file, &before), pending.as_ref());
            let state = state.map_err(io_error(path))?;
            // A commit may have begun, or ended, since its record was looked for.
            if state.is_err() && self.pending(array, coords)? != pending {
                continue;
            }
            let after = file.stat().map_err(io_error(path))?;
            let version = after.version();
            if before.version() != version {
                continue;
            }
            self.files.lock().put(id, (version, file));
            let mut shard = self.loaded(id, path, after, state, asked);
            shard.provisional = pending.is_some() || self.may_look_unchanged(id, version);
            return Ok(Some(Arc::new(shard)));
        }
        Err(StoreError::Changing { shard: path.to_owned() })
    }

    /// Opens a shard whose index is read next.
    fn open_shard(
        &self,
        array: &SourceArray,
        coords: &[u64],
        path: &Path,
    ) -> std::io::Result<Arc<dyn StorageFile>> {
        let extents = array.layout.chunks_per_shard(0, coords);
        match array.format.expected(&array.layout, &extents) {
            Some(expected) => self.storage.open_expecting(path, expected),
            None => self.storage.open_as_file(path),
        }
    }

    /// Handles a shard that cannot be opened: it is absent, damaged, or not accessible to this
    /// user.
    fn not_opened(
        &self,
        array: &SourceArray,
        id: ShardId,
        path: &Path,
        error: std::io::Error,
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        let damage = match error.raw_os_error() {
            Some(libc::ENOENT) if !self.is_dangling(path)? => {
                if !self.config.missing_is_damage || !array.format.is_numbered() {
                    return Ok(None);
                }
                Damage::Missing
            }
            Some(errno) if UNREACHABLE.contains(&errno) => Damage::Unreachable(error),
            _ => return Err(StoreError::Io { path: path.to_owned(), error }),
        };
        let stat = self.storage.lstat(path).unwrap_or(NO_STAT);
        Ok(Some(Arc::new(self.loaded(id, path, stat, Err(damage), now()))))
    }

    /// Checks that a shard which was not found may be absent. Numbered files may not, up to the
    /// array's length.
    pub fn check_absent(&self, array: &SourceArray, coords: &[u64]) -> Result<(), StoreError> {
        if !array.format.is_numbered() || self.shard(array, coords, Freshness::Again)?.is_some() {
            return Ok(());
        }
        let shards = self.shards_now(array)?;
        let is_due = coords.first().zip(shards).is_none_or(|(number, shards)| *number < shards);
        if !is_due {
            return Ok(());
        }
        let (shard, damage) = (array.shard_path(coords), Arc::new(Damage::Missing));
        Err(StoreError::Damaged { shard, damage })
    }

    /// Returns the current number of shards of an array along its first axis. `None` if the whole
    /// grid may have shards.
    pub fn shards_now(&self, array: &SourceArray) -> Result<Option<u64>, StoreError> {
        let length = array.format.length(&*self.storage, &array.path)?;
        Ok(length.map(|length| length.shards()))
    }

    /// Returns whether ENOENT is due to a dangling symbolic link.
    pub(super) fn is_dangling(&self, path: &Path) -> Result<bool, StoreError> {
        is_dangling(&*self.storage, path).map_err(io_error(path))
    }

    fn loaded(
        &self,
        id: ShardId,
        path: &Path,
        stat: Stat,
        state: Result<Ready, Damage>,
        asked: u64,
    ) -> LoadedShard {
        let state = state.map_err(Arc::new);
        if let Err(damage) = &state {
            self.stats.indexes.damaged.count();
            let (shard, damage) = (path.to_owned(), Arc::clone(damage));
            self.report(&StoreError::Damaged { shard, damage });
        }
        let checked = AtomicU64::new(asked);
        LoadedShard { id, stat, state, stored: None, checked, provisional: false }
    }

    /// Returns the record of an unfinished commit to a shard. `None` if there is none.
    fn pending(
        &self,
        array: &SourceArray,
        coords: &[u64],
    ) -> Result<Option<ShardRecord>, StoreError> {
        let record = pending_if_readable(&*self.storage, &array.path, |error| self.report(error));
        let record = record.map_err(io_error(&array.path))?;
        Ok(record.and_then(|record| record_of(&record, &array.shard_name(coords)).cloned()))
    }

    /// Returns the shard of the next level inside `outer`, which is of `level`, that a chunk lies
    /// in. `None` if it is empty.
    pub(super) fn inner_of(
        &self,
        array: &SourceArray,
        outer: &LoadedShard,
        location: &Location,
        level: usize,
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        let position = &location.positions[level];
        let body = outer.inner(&array.layout.levels[level], position);
        match body.map_err(|error| self.inner_error(array, location, level, error))? {
            None => Ok(None),
            Some(body) => {
                let id = outer.id.inner(&array.layout, level, position);
                self.inner_shard(array, location, id, outer, body).map(Some)
            }
        }
    }

    /// Returns the shard of `level` + 1 that is stored as a chunk at `body` inside `parent`.
    pub(super) fn inner_shard(
        &self,
        array: &SourceArray,
        location: &Location,
        id: ShardId,
        parent: &LoadedShard,
        body: Body,
    ) -> Result<Arc<LoadedShard>, StoreError> {
        let outer = &location.shard;
        let current = |shard: &LoadedShard| shard.stat.version() == parent.stat.version();
        let _loading = self.loading_lock_of_requester(&id, &array.shard_path(outer))?;
        let cached = self.shards.lock().get(&id).filter(|shard| current(shard));
        let shard = match cached {
            Some(shard) => {
                self.stats.indexes.hits.count();
                shard
            }
            None => self.load_inner(array, outer, id, parent, body)?,
        };
        match &shard.state {
            Ok(_) => Ok(shard),
            Err(damage) => {
                let (path, damage) = (array.shard_path(outer), Arc::clone(damage));
                let position = location.positions[id.level() - 1].clone();
                let error = StoreError::InnerDamaged { shard: path, position, damage };
                self.report(&error);
                Err(error)
            }
        }
    }

    fn load_inner(
        &self,
        array: &SourceArray,
        outer: &[u64],
        id: ShardId,
        parent: &LoadedShard,
        body: Body,
    ) -> Result<Arc<LoadedShard>, StoreError> {
        let path = array.shard_path(outer);
        let changing = || StoreError::Changing { shard: path.clone() };
        let file = self.shard_file(array, outer, parent.stat.version())?.ok_or_else(changing)?;
        let stored = Some(body.clone());
        let state = self.read_inner(array, id.level(), outer, &*file, body);
        let state = state.map_err(io_error(&path))?;
        if !self.config.immutable {
            let after = file.stat().map_err(io_error(&path))?;
            if after.version() != parent.stat.version() {
                return Err(changing());
            }
        }
        let state = state.map_err(Arc::new);
        if state.is_err() {
            self.stats.indexes.damaged.count();
        }
        let checked = AtomicU64::new(parent.checked.load(Ordering::Relaxed));
        let (stat, provisional) = (parent.stat, parent.provisional);
        let shard = Arc::new(LoadedShard { id, stat, state, stored, checked, provisional });
        self.shards.lock().put(id, Arc::clone(&shard), shard.memory());
        Ok(shard)
    }

    /// Returns the open file of a shard. `None` if it is not of the version `expected`.
    pub(super) fn shard_file(
        &self,
        array: &SourceArray,
        shard: &[u64],
        expected: Version,
    ) -> Result<Option<Arc<dyn StorageFile>>, StoreError> {
        let id = array.shard_id(shard);
        if let Some((version, file)) = self.files.lock().get(&id)
            && *version == expected
        {
            return Ok(Some(Arc::clone(file)));
        }
        let path = array.shard_path(shard);
        let open = || {
            let file = self.storage.open_as_file(&path)?;
            Ok((file.stat()?.version(), file))
        };
        let (version, file) = self.with_files(|| open().map_err(io_error(&path)))?;
        if version != expected {
            return Ok(None);
        }
        self.files.lock().put(id, (version, Arc::clone(&file)));
        Ok(Some(file))
    }

    /// Turns the reason why a chunk of a shard cannot be found into an error, and reports it.
    pub(super) fn inner_error(
        &self,
        array: &SourceArray,
        location: &Location,
        level: usize,
        error: InnerError,
    ) -> StoreError {
        let shard = array.shard_path(&location.shard);
        let error = match error {
            InnerError::Damaged(damage) => StoreError::Damaged { shard, damage },
            InnerError::Entry(error) => {
                let position = location.positions[level].clone();
                StoreError::BadEntry { shard, position, error }
            }
        };
        self.report(&error);
        error
    }
}

/// Placeholder for attributes that cannot be read; it equals those of no file.
const NO_STAT: Stat = Stat {
    dev: 0,
    ino: 0,
    kind: FileKind::File,
    mode: 0,
    uid: 0,
    gid: 0,
    links: 1,
    size: 0,
    mtime: Timestamp { seconds: 0, nanoseconds: 0 },
    ctime: Timestamp { seconds: 0, nanoseconds: 0 },
    atime: Timestamp { seconds: 0, nanoseconds: 0 },
};
