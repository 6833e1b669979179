//! The state of a chunk before a change: taken when the change is staged, compared by the commit.

use std::sync::Arc;
use std::time::Instant;

use super::staged::StagedChunk;
use crate::format::fingerprint::Fingerprint;
use crate::format::index::ByteRange;
use crate::format::sharding::Location;
use crate::store::blob::fingerprint_of;
use crate::store::commit_state::{Base, ContentId, Dated, Lineage};
use crate::store::loaded::{Body, Chunk, LoadedShard};
use crate::store::persistence::Persistence;
use crate::store::storage::{Timestamp, Version, if_present};
use crate::store::{Damage, Freshness, ShardStore, SourceArray, StoreError, io_error};

/// Returns whether a shard could not be read because a writer is changing it.
fn is_being_changed(error: &StoreError) -> bool {
    match error {
        StoreError::Changing { .. } => true,
        StoreError::Damaged { damage, .. } => matches!(**damage, Damage::Unfinished),
        StoreError::Io { error, .. } => {
            // An object that was replaced since it was opened is stale.
            matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE))
        }
        _ => false,
    }
}

impl ShardStore {
    /// Returns the chunk at `coords` as the base of a change to be staged. `freshness` says how
    /// recently its shard must have been revalidated.
    pub fn base(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Base, StoreError> {
        let base = self.settled_base(array, coords, freshness).map_err(StoreError::of_writer);
        base.inspect_err(|error| self.report(error))
    }

    /// Returns the base like [`Self::base`], for a change that is staged now. In a store of objects, where names
    /// and indexes are believed for long, it is at most a second old: what others have stored before counts as
    /// known to the writer.
    ///
    /// # Errors
    /// Those of reading; the store does not answer.
    pub fn base_of_change(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Base, StoreError> {
        let is_new = self.ask_anew(array, &array.layout.shard_of(coords))?;
        self.base(array, coords, if is_new { Freshness::Again } else { freshness })
    }

    /// Finds out which version of a shard is there, if it is an object and that was not found out just now. Returns
    /// whether it was.
    fn ask_anew(&self, array: &SourceArray, shard: &[u64]) -> Result<bool, StoreError> {
        let Some(objects) = self.storage.objects() else { return Ok(false) };
        let (id, at) = (array.shard_id(shard), Instant::now());
        if self.commits.was_asked(id) {
            return Ok(false);
        }
        let path = array.shard_path(shard);
        let asked = objects.current(&path).map_err(io_error(&path));
        asked.inspect_err(|error| self.report(error))?;
        self.commits.note_asked(id, at);
        Ok(true)
    }

    fn settled_base(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Base, StoreError> {
        const ATTEMPTS: usize = 4;
        let mut base = self.base_now(array, coords, freshness);
        if !base.as_ref().is_err_and(is_being_changed) {
            return base;
        }
        // Most likely a commit, of this mount or another: wait for its end, or recover it. Of an object there is
        // no unfinished state.
        let commits = self.commits.of_array(array);
        let storage = self.storage.posix();
        let _turn = storage.map(|_| commits.turn.lock());
        if let Some(storage) = storage {
            let mut journal = Self::lock_journal(storage, array, &commits)?;
            Self::settle(storage, array, &mut commits.state.lock(), &mut journal)?;
        }
        let mut persistence = Persistence::new();
        for attempt in 1.. {
            base = self.base_now(array, coords, Freshness::Again);
            let is_over = match &base {
                Err(StoreError::Changing { .. }) => !persistence.again(),
                // It may stay as it is.
                Err(error) => attempt >= ATTEMPTS || !is_being_changed(error),
                Ok(_) => true,
            };
            if is_over {
                break;
            }
        }
        match base {
            Err(StoreError::Io { path: shard, error })
                if error.raw_os_error() == Some(libc::ESTALE) =>
            {
                Err(StoreError::Changing { shard })
            }
            base => base,
        }
    }

    /// Returns the number of the shard's lineage, which stays the same until a writer other than
    /// this store changes the shard. `None` if `found` was read before the last commit.
    pub fn lineage_of(&self, array: &SourceArray, shard: &[u64], found: Version) -> Option<u64> {
        self.lineage_found(array, shard, Some(found)).ok()
    }

    /// Returns the number of the lineage of a shard that was found in this state.
    ///
    /// # Errors
    ///
    /// `Changing` if a commit of this store has changed it since.
    fn lineage_found(
        &self,
        array: &SourceArray,
        shard: &[u64],
        found: Option<Version>,
    ) -> Result<u64, StoreError> {
        let (id, path) = (array.shard_id(shard), array.shard_path(shard));
        let is_now = |state: Option<Version>| match state {
            Some(version) => self.storage.has_version(&path, &version),
            None => matches!(if_present(self.storage.lstat(&path)), Ok(None)),
        };
        let mut outdated = None;
        loop {
            match self.commits.lineage_found(id, found, outdated) {
                Ok(lineage) => return Ok(lineage.number),
                Err(left) if is_now(left) => return Err(StoreError::Changing { shard: path }),
                // Another process has put another file there, perhaps an older one.
                Err(left) => outdated = Some(left),
            }
        }
    }

    /// Returns the dates of the chunks of a shard found in this state. `Ok(None)` if this store knows nothing of that
    /// state.
    ///
    /// # Errors
    ///
    /// `Changing` if `found` was read before the last commit of this store.
    pub fn dated(
        &self,
        array: &SourceArray,
        shard: &[u64],
        found: Version,
    ) -> Result<Option<Dated>, StoreError> {
        let (id, path) = (array.shard_id(shard), array.shard_path(shard));
        let mut before = None;
        loop {
            let lineage = self.commits.lineages.lock().get(&id).copied();
            let Some(lineage) = lineage else { return Ok(None) };
            if lineage.is_busy || lineage.has_content(Some(found)) {
                return Ok(Some(lineage.dated));
            }
            match lineage.shard {
                Some(left) if self.storage.has_version(&path, &left) => {
                    return Err(StoreError::Changing { shard: path });
                }
                // A commit of this store may have replaced it since it was asked what was left.
                Some(left) if before != Some(left) => before = Some(left),
                // Another writer has changed it.
                _ => return Ok(None),
            }
        }
    }

    /// Finds a chunk as [`Self::chunk`] does, with the dates of the chunks of its shard; without dates if this store knows
    /// nothing of the shard.
    pub fn dated_chunk(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<(Chunk, Option<Dated>)>, StoreError> {
        let number = array.layout.shard_of(coords);
        let find = |freshness| {
            let Some(chunk) = self.chunk_now(array, coords, freshness)? else { return Ok(None) };
            let dated = self.dated(array, &number, chunk.shard.version())?;
            Ok(Some((chunk, dated)))
        };
        match self.despite_commits(array, freshness, find) {
            // Other writers change it all the time: it has their dates.
            Err(StoreError::Changing { .. }) => {
                Ok(self.chunk(array, coords, Freshness::Again)?.map(|chunk| (chunk, None)))
            }
            found => found.inspect_err(|error| self.report(error)),
        }
    }

    /// The same after the use of the shard was recorded, from which on dates are. `None` if there is no chunk, `Some(None)`
    /// if it has the dates of other writers, who change it all the time.
    #[allow(clippy::option_option, reason = "a chunk without dates is one")]
    pub fn begin_dates(
        &self,
        array: &SourceArray,
        coords: &[u64],
    ) -> Result<Option<Option<Dated>>, StoreError> {
        let number = array.layout.shard_of(coords);
        let find = |freshness| {
            let Some(chunk) = self.chunk_now(array, coords, freshness)? else { return Ok(None) };
            let version = chunk.shard.version();
            self.lineage_found(array, &number, Some(version))?;
            Ok(Some(self.dated(array, &number, version)?))
        };
        match self.despite_commits(array, Freshness::Recent, find) {
            Err(StoreError::Changing { .. }) => {
                Ok(self.chunk(array, coords, Freshness::Again)?.map(|_| None))
            }
            found => found.inspect_err(|error| self.report(error)),
        }
    }

    /// Returns whether a shard has this lineage, as far as is known.
    pub fn has_lineage(&self, array: &SourceArray, shard: &[u64], lineage: u64) -> bool {
        let mut lineages = self.commits.lineages.lock();
        lineages.get(&array.shard_id(shard)).is_some_and(|now| now.number == lineage)
    }

    /// Returns the date of a chunk that was written at `written`, staged over `base`, and has just
    /// been committed, with the number of the [`Dated`] to which it belongs. If another writer has
    /// changed the shard since it was staged, perhaps even after the commit, it is the date of the
    /// shard. `None` if the lineage was forgotten, or there is no shard.
    pub fn committed_date(
        &self,
        array: &SourceArray,
        shard: &[u64],
        base: &Base,
        written: Timestamp,
    ) -> Option<(u64, Timestamp)> {
        let lineage = self.commits.lineages.lock().get(&array.shard_id(shard)).copied()?;
        let date = if lineage.number == base.lineage { written } else { lineage.shard?.mtime() };
        Some((lineage.dated.number, date))
    }

    /// Returns whether a shard found in this state was changed by this store alone since it had
    /// that lineage.
    pub fn is_of_lineage(
        &self,
        array: &SourceArray,
        shard: &[u64],
        found: Version,
        lineage: u64,
    ) -> bool {
        let mut lineages = self.commits.lineages.lock();
        lineages
            .get(&array.shard_id(shard))
            .is_some_and(|now| now.number == lineage && (now.is_busy || now.shard == Some(found)))
    }

    fn base_now(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Base, StoreError> {
        let location = array.layout.locate(coords);
        let loaded = self.shard(array, &location.shard, freshness)?;
        let shard = loaded.as_ref().map(|shard| shard.stat().version());
        let lineage = self.lineage_found(array, &location.shard, shard)?;
        let chunk = match loaded {
            Some(loaded) => {
                // Who replaces chunks in order has each of them read.
                self.fetch_ahead_of(array, coords);
                self.print(array, &location, loaded)?
            }
            None => None,
        };
        Ok(Base { shard, chunk, lineage })
    }

    /// Returns whether no other writer has changed the chunk since it was staged, if its shard is `loaded`,
    /// of this lineage. `is_ours` tells whether it may have got a content by a commit of this store that has
    /// failed.
    pub(super) fn is_as_staged(
        &self,
        array: &SourceArray,
        chunk: &StagedChunk,
        location: &Location,
        loaded: Option<&Arc<LoadedShard>>,
        lineage: Lineage,
        is_ours: &dyn Fn(Option<ContentId>) -> bool,
    ) -> Result<bool, StoreError> {
        if chunk.base.lineage == lineage.number {
            return Ok(true);
        }
        let now = match loaded {
            None => None,
            Some(loaded) => self.print(array, location, Arc::clone(loaded))?,
        };
        if now == chunk.base.chunk {
            return Ok(true);
        }
        // An earlier attempt may have got further than it reported, or was rolled forward by a
        // recovery.
        if is_ours(now) {
            return Ok(true);
        }
        let new = chunk.content.as_ref().map(ContentId::of).transpose();
        Ok(now == new.map_err(io_error(&array.shard_path(&location.shard)))?)
    }

    /// Returns the identity of the chunk at `location`. `None` if it is empty.
    fn print(
        &self,
        array: &SourceArray,
        location: &Location,
        shard: Arc<LoadedShard>,
    ) -> Result<Option<ContentId>, StoreError> {
        let version = shard.stat().version();
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
                let file =
                    self.shard_file(array, &location.shard, version)?.ok_or_else(changing)?;
                let found = fingerprint_of(&*file, ByteRange { offset, nbytes });
                if file.stat().map_err(io_error(&path))?.version() != version {
                    return Err(changing());
                }
                found.map_err(io_error(&path))?
            }
        };
        Ok(Some(ContentId { nbytes, fingerprint }))
    }
}
