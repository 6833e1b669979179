//! Finding of chunks: through the index of their shard, and of each shard nested in it.

use std::sync::Arc;

use super::array::SourceArray;
use super::config::Freshness;
use super::error::StoreError;
use super::loaded::{Chunk, LoadedShard};
use super::persistence::Persistence;
use super::shard_store::ShardStore;
use crate::format::sharding::Location;

impl ShardStore {
    /// Finds the chunk at `coords`, which must lie in the array's chunk grid. `None` if the index
    /// says that it is empty, or if there is no shard.
    pub fn chunk(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<Chunk>, StoreError> {
        let find = |freshness| self.chunk_now(array, coords, freshness);
        self.despite_commits(array, freshness, find).inspect_err(|error| self.report(error))
    }

    /// Finds something, again if it is not where it was found: a commit, or another process, has changed it since.
    pub(super) fn despite_commits<T>(
        &self,
        array: &SourceArray,
        freshness: Freshness,
        find: impl Fn(Freshness) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        const ATTEMPTS: usize = 4;
        let is_changing = |found: &Result<_, _>| matches!(found, Err(StoreError::Changing { .. }));
        let mut found = find(freshness);
        for _ in 0..ATTEMPTS {
            if !is_changing(&found) {
                return found;
            }
            found = find(Freshness::Again);
        }
        let mut persistence = Persistence::new();
        while is_changing(&found) {
            // The changes are most likely commits of this mount: try with those held off.
            found = self.between_commits(array, || find(Freshness::Again));
            if is_changing(&found) && !persistence.again() {
                break;
            }
        }
        found
    }

    /// Returns a shard whose chunks are to be listed, revalidated within [`StoreConfig::trusted`]
    /// and never in the middle of a commit by this mount. `None` if there is no shard.
    pub fn shard_to_list(
        &self,
        array: &SourceArray,
        shard: &[u64],
    ) -> Result<Option<Arc<LoadedShard>>, StoreError> {
        let mut found = self.shard(array, shard, Freshness::Recent);
        let mut persistence = Persistence::new();
        while let Err(StoreError::Changing { .. }) = found {
            found = self.between_commits(array, || self.shard(array, shard, Freshness::Again));
            if let Err(error @ StoreError::Changing { .. }) = &found
                && !persistence.again()
            {
                self.report(error);
                break;
            }
        }
        found
    }

    /// Finds a chunk to be listed in a shard returned by [`Self::shard_to_list`].
    pub fn chunk_to_list(
        &self,
        array: &SourceArray,
        shard: &Arc<LoadedShard>,
        location: &Location,
        coords: &[u64],
    ) -> Result<Option<Chunk>, StoreError> {
        match self.chunk_in(array, Arc::clone(shard), location) {
            // A shard nested in it was read at a later moment.
            Err(StoreError::Changing { .. }) => self.chunk(array, coords, Freshness::Again),
            found => found,
        }
    }

    /// Finds a chunk without retries.
    pub(super) fn chunk_now(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<Chunk>, StoreError> {
        let location = array.layout.locate(coords);
        match self.shard(array, &location.shard, freshness)? {
            None => Ok(None),
            Some(shard) => self.chunk_in(array, shard, &location),
        }
    }

    /// Finds the chunk at `location` in `shard`, which is loaded. `None` if it is empty.
    pub fn chunk_in(
        &self,
        array: &SourceArray,
        mut shard: Arc<LoadedShard>,
        location: &Location,
    ) -> Result<Option<Chunk>, StoreError> {
        let last = location.positions.len().saturating_sub(1);
        for (level, position) in location.positions.iter().enumerate() {
            if level < last {
                let Some(inner) = self.inner_of(array, &shard, location, level)? else {
                    return Ok(None);
                };
                shard = inner;
                continue;
            }
            let found = shard.inner(&array.layout.levels[level], position);
            let body = found.map_err(|error| self.inner_error(array, location, level, error))?;
            let (stat, digest) = (*shard.stat(), shard.digest());
            let chunk = body.map(|body| Chunk { shard: stat, body, digest });
            return match (chunk, shard.padding(&array.layout.levels[level], position)) {
                (Some(chunk), Some(full)) => self.padded(array, location, chunk, full).map(Some),
                (chunk, _) => Ok(chunk),
            };
        }
        Ok(None)
    }
}
