//! State that is kept of a shard from the first write to one of its chunks until the commit, to
//! tell changes by others from those by this mount.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Commits;
use crate::format::fingerprint::Fingerprint;
use crate::format::index::ByteRange;
use crate::format::sharding::Location;
use crate::store::blob::{fingerprint_of, fingerprint_of_content};
use crate::store::content::Content;
use crate::store::loaded::{Body, LoadedShard, ShardId};
use crate::store::storage::{Stat, Timestamp};
use crate::store::{Damage, Freshness, ShardStore, SourceArray, StoreError, io_error};

/// Chunk as it was when it was first staged.
#[derive(Debug, Clone, Default)]
pub struct Base {
    /// Attributes of the chunk's shard. `None` if there was none.
    shard: Option<Stat>,
    /// Length and fingerprint of the chunk. `None` if it was empty.
    pub(super) chunk: Option<Print>,
    /// Number of the shard's [`Line`].
    pub(super) line: u64,
}

/// Identity of a chunk's contents: its length and fingerprint. Its offset is not part of it, as it
/// proves nothing: another writer may rewrite a shard in its place, with chunks that all have the
/// same lengths as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print {
    pub(super) nbytes: u64,
    pub(super) fingerprint: u64,
}

impl Print {
    /// Computes the identity of a chunk with this content.
    pub(super) fn of(content: &Content) -> io::Result<Self> {
        let fingerprint = fingerprint_of_content(content)?;
        Ok(Self { nbytes: content.nbytes(), fingerprint })
    }
}

/// Lineage of a shard: its state when it was last read by [`ShardStore::base`] or left by a commit
/// of this store. As long as the shard is found in that state, no other writer has changed it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    /// Number of the lineage; a change by another writer starts a new one.
    pub(super) number: u64,
    pub(super) shard: Option<Stat>,
    /// `true` if a commit of this store has made the bytes and the name durable.
    pub(super) is_safe: bool,
    /// `true` while a commit of this store is changing the shard, which may already look different.
    pub(super) is_busy: bool,
    /// Dates of its chunks.
    pub(super) dated: Dated,
}

/// Date of the chunks of a shard that this store has not changed since another writer last changed
/// the shard. A change of the ctime alone changes no dates.
#[derive(Debug, Clone, Copy)]
pub struct Dated {
    /// Number of these dates; a change by another writer starts a new one.
    pub number: u64,
    /// When another writer last changed the shard. `None` if there was no shard.
    pub since: Option<Timestamp>,
}

/// Number of lineages to remember. Commits to shards whose lineage was forgotten are slower, but no
/// chunk becomes stale unless another writer has changed it.
const MAX_LINES: usize = 1 << 16;

impl Base {
    /// Returns the base for the next change of the chunk, once this store has committed `content`
    /// over `self`. `None` as content means that the chunk was removed.
    pub fn committed(self, content: Option<&Content>) -> io::Result<Self> {
        Ok(Self { chunk: content.map(Print::of).transpose()?, ..self })
    }

    /// Returns whether the chunk is the same as in `before`.
    pub fn is_same_chunk(&self, before: &Self) -> bool {
        self.line == before.line || self.chunk == before.chunk
    }

    /// Returns the attributes of the shard when the chunk was staged. `None` if there was none.
    pub fn shard(&self) -> Option<&Stat> {
        self.shard.as_ref()
    }
}

impl Line {
    /// Returns whether the shard found is that of the lineage, except for the ctime.
    fn has_content(&self, found: Option<&Stat>) -> bool {
        match (&self.shard, found) {
            (Some(shard), Some(found)) => shard.same_content(found),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Commits {
    /// Returns the lineage of a shard found in this state; starts a new one if the state is not
    /// that of the known one.
    pub(super) fn line(&self, id: ShardId, shard: Option<&Stat>) -> Line {
        let mut lines = self.lines.lock();
        let known = lines.get(&id).copied();
        if let Some(line) = known
            && (line.is_busy || is_same(line.shard.as_ref(), shard))
        {
            return line;
        }
        let number = self.last_line.fetch_add(1, Ordering::Relaxed) + 1;
        let dated = match known {
            Some(line) if line.has_content(shard) => line.dated,
            _ => Dated { number, since: shard.map(|shard| shard.mtime) },
        };
        let line = Line { number, shard: shard.copied(), is_safe: false, is_busy: false, dated };
        lines.put(id, line);
        if lines.len() > MAX_LINES {
            lines.pop_lru();
        }
        line
    }

    /// Returns the state in which a commit has left the shard, if that may be later than `found`.
    /// `None` otherwise.
    fn left_since(&self, id: ShardId, found: &Stat) -> Option<Stat> {
        let line = self.lines.lock().get(&id).copied()?;
        line.shard.filter(|left| !line.is_busy && found.ctime < left.ctime)
    }

    /// Marks whether a commit of this store is changing a shard.
    pub(super) fn set_busy(&self, id: ShardId, is_busy: bool) {
        if let Some(line) = self.lines.lock().get_mut(&id) {
            line.is_busy = is_busy;
        }
    }

    /// Returns whether a shard found in this state is as a commit of this store has left it.
    pub(in crate::store) fn has_left(&self, id: ShardId, found: &Stat) -> bool {
        self.lines
            .lock()
            .get(&id)
            .is_some_and(|line| line.is_safe && is_same(line.shard.as_ref(), Some(found)))
    }

    /// Returns whether a commit of this store is changing a shard.
    pub(in crate::store) fn is_busy(&self, id: ShardId) -> bool {
        self.lines.lock().get(&id).is_some_and(|line| line.is_busy)
    }

    /// Marks the names on the way to the shard as possibly not durable.
    pub(super) fn doubt(&self, id: ShardId) {
        if let Some(line) = self.lines.lock().get_mut(&id) {
            line.is_safe = false;
        }
    }

    /// Records the state in which a commit has left the shard; `None` if that is unknown.
    pub(super) fn leave(&self, id: ShardId, line: Option<Line>) {
        match line {
            Some(line) => drop(self.lines.lock().put(id, line)),
            None => drop(self.lines.lock().pop(&id)),
        }
    }
}

/// Returns whether a shard could not be read because a writer is changing it.
fn is_being_changed(error: &StoreError) -> bool {
    match error {
        StoreError::Changing { .. } => true,
        StoreError::Damaged { damage, .. } => matches!(**damage, Damage::Unfinished),
        StoreError::Io { error, .. } => error.raw_os_error() == Some(libc::ENOENT),
        _ => false,
    }
}

fn is_same(one: Option<&Stat>, other: Option<&Stat>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.unchanged(other),
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
        // Most likely a commit, of this mount or another: wait for its end, or recover it.
        let commits = self.commits.of_array(array);
        let mut commits = commits.lock();
        let _journal = self.settle(array, &mut commits)?;
        for _ in 0..ATTEMPTS {
            base = self.base_now(array, coords, Freshness::Again);
            if !base.as_ref().is_err_and(is_being_changed) {
                break;
            }
        }
        base
    }

    /// Returns the number of the shard's lineage, which stays the same until a writer other than
    /// this store changes the shard. `None` if `found` was read before the last commit.
    pub fn line_of(&self, array: &SourceArray, shard: &[u64], found: &Stat) -> Option<u64> {
        let id = array.shard_id(shard);
        // Another process may have put an older file there: revalidate.
        if let Some(left) = self.commits.left_since(id, found)
            && self.storage.stat(&array.shard_path(shard)).is_ok_and(|now| now.unchanged(&left))
        {
            return None;
        }
        Some(self.commits.line(id, Some(found)).number)
    }

    /// Returns the dates of the chunks of a shard found in this state. `None` if this store knows
    /// nothing of that state.
    pub fn dated(&self, array: &SourceArray, shard: &[u64], found: &Stat) -> Option<Dated> {
        let line = self.commits.lines.lock().get(&array.shard_id(shard)).copied()?;
        (line.is_busy || line.has_content(Some(found))).then_some(line.dated)
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
        let line = self.commits.lines.lock().get(&array.shard_id(shard)).copied()?;
        let date = if line.number == base.line { written } else { line.shard?.mtime };
        Some((line.dated.number, date))
    }

    /// Returns whether a shard found in this state was changed by this store alone since it had
    /// that lineage.
    pub fn is_of_line(&self, array: &SourceArray, shard: &[u64], found: &Stat, line: u64) -> bool {
        let mut lines = self.commits.lines.lock();
        lines.get(&array.shard_id(shard)).is_some_and(|now| {
            now.number == line && (now.is_busy || is_same(now.shard.as_ref(), Some(found)))
        })
    }

    fn base_now(
        &self,
        array: &SourceArray,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Base, StoreError> {
        let location = array.layout.locate(coords);
        let loaded = self.shard(array, &location.shard, freshness)?;
        let shard = loaded.as_ref().map(|shard| *shard.stat());
        let id = array.shard_id(&location.shard);
        let line = self.commits.line(id, shard.as_ref()).number;
        let chunk = match loaded {
            Some(loaded) => self.print(array, &location, loaded)?,
            None => None,
        };
        Ok(Base { shard, chunk, line })
    }

    /// Returns the identity of the chunk at `location`. `None` if it is empty.
    pub(super) fn print(
        &self,
        array: &SourceArray,
        location: &Location,
        shard: Arc<LoadedShard>,
    ) -> Result<Option<Print>, StoreError> {
        let stat = *shard.stat();
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
                let file = self.shard_file(array, &location.shard, &stat)?.ok_or_else(changing)?;
                let found = fingerprint_of(&*file, ByteRange { offset, nbytes });
                if !file.stat().map_err(io_error(&path))?.unchanged(&stat) {
                    return Err(changing());
                }
                found.map_err(io_error(&path))?
            }
        };
        Ok(Some(Print { nbytes, fingerprint }))
    }
}
