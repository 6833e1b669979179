//! What is remembered of a shard from the first write to one of its chunks to the commit, so that
//! changes by others are noticed and those of this mount are not.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Commits;
use crate::format::fingerprint::Fingerprint;
use crate::format::index::ByteRange;
use crate::format::sharding::Location;
use crate::store::blob::{fingerprint_of, fingerprint_of_content};
use crate::store::content::Content;
use crate::store::shard::{Body, LoadedShard, ShardId};
use crate::store::storage::{Stat, Timestamp};
use crate::store::{Damage, Freshness, ShardStore, SourceArray, StoreError, io_error};

/// A chunk as it was when it was first staged.
#[derive(Debug, Clone, Default)]
pub struct Base {
    /// Attributes of its shard.
    shard: Option<Stat>,
    /// The chunk itself.
    pub(super) chunk: Option<Print>,
    /// Number of the shard's [`Line`].
    pub(super) line: u64,
}

/// What tells a chunk from others: its length and its fingerprint. Its place does not: others may
/// write a shard anew in its place, with chunks that are all as long as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print {
    pub(super) nbytes: u64,
    pub(super) fingerprint: u64,
}

impl Print {
    /// That of a chunk with this content.
    pub(super) fn of(content: &Content) -> io::Result<Self> {
        let fingerprint = fingerprint_of_content(content)?;
        Ok(Self { nbytes: content.nbytes(), fingerprint })
    }
}

/// A shard as it was last seen by [`ShardStore::base`] or left by a commit of ours. As long as it
/// is found like that, nobody else has changed it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    /// Another number after each change by others.
    pub(super) number: u64,
    pub(super) shard: Option<Stat>,
    /// A commit of ours has made its bytes and its name safe.
    pub(super) is_safe: bool,
    /// A commit of ours is changing it: it may look different already.
    pub(super) is_busy: bool,
    /// How its chunks are dated.
    pub(super) dated: Dated,
}

/// How chunks of a shard are dated that this store has not changed since others have last changed the
/// shard. What has changed its ctime alone changes no dates.
#[derive(Debug, Clone, Copy)]
pub struct Dated {
    /// Another number after each change by others.
    pub number: u64,
    /// When others have last changed the shard; None if there was none.
    pub since: Option<Timestamp>,
}

/// Lines to remember; of those forgotten commits are slower, and no chunk is stale that others have not
/// changed.
const MAX_LINES: usize = 1 << 16;

impl Base {
    /// What the next change of the chunk is staged over, once this store has committed `content` (None:
    /// nothing any more) over `self`.
    pub fn committed(self, content: Option<&Content>) -> io::Result<Self> {
        Ok(Self { chunk: content.map(Print::of).transpose()?, ..self })
    }

    /// Whether the chunk is as it was in `before`.
    pub fn is_same_chunk(&self, before: &Self) -> bool {
        self.line == before.line || self.chunk == before.chunk
    }

    /// Attributes of the shard when the chunk was staged; None if there was none.
    pub fn shard(&self) -> Option<&Stat> {
        self.shard.as_ref()
    }
}

impl Line {
    /// Whether its shard is the one that was found, but for the ctime.
    fn has_content(&self, found: Option<&Stat>) -> bool {
        match (&self.shard, found) {
            (Some(shard), Some(found)) => shard.same_content(found),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Commits {
    /// The line of a shard that is found like this.
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

    /// The shard as it was left, if that may have been after it was found like this.
    fn left_since(&self, id: ShardId, found: &Stat) -> Option<Stat> {
        let line = self.lines.lock().get(&id).copied()?;
        line.shard.filter(|left| !line.is_busy && found.ctime < left.ctime)
    }

    /// Whether a commit of ours is changing a shard.
    pub(super) fn set_busy(&self, id: ShardId, is_busy: bool) {
        if let Some(line) = self.lines.lock().get_mut(&id) {
            line.is_busy = is_busy;
        }
    }

    /// Whether a shard, found like this, is as a commit of this store has left it.
    pub(in crate::store) fn has_left(&self, id: ShardId, found: &Stat) -> bool {
        self.lines
            .lock()
            .get(&id)
            .is_some_and(|line| line.is_safe && is_same(line.shard.as_ref(), Some(found)))
    }

    /// Whether a commit of this store is changing a shard.
    pub(in crate::store) fn is_busy(&self, id: ShardId) -> bool {
        self.lines.lock().get(&id).is_some_and(|line| line.is_busy)
    }

    /// The names on the way to the shard may not be safe.
    pub(super) fn doubt(&self, id: ShardId) {
        if let Some(line) = self.lines.lock().get_mut(&id) {
            line.is_safe = false;
        }
    }

    /// A commit has left the shard like this; None if nobody knows how.
    pub(super) fn leave(&self, id: ShardId, line: Option<Line>) {
        match line {
            Some(line) => drop(self.lines.lock().put(id, line)),
            None => drop(self.lines.lock().pop(&id)),
        }
    }
}

/// Whether a shard could not be read because somebody is writing to it.
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
    /// The chunk at `coords` as it is now, for it to be staged over; as it was when its shard was looked
    /// at a moment ago, unless `freshness` asks for more.
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
        // Most likely by a commit, of ours or of others: it has to end first, or to be ended.
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

    /// A number that a shard, found like this, keeps until others than this store change it. None if it was
    /// looked at before the last commit.
    pub fn line_of(&self, array: &SourceArray, shard: &[u64], found: &Stat) -> Option<u64> {
        let id = ShardId::of_shard(array, shard);
        // Others may have put an old file there: it is looked at once more.
        if let Some(left) = self.commits.left_since(id, found)
            && self.storage.stat(&array.shard_path(shard)).is_ok_and(|now| now.unchanged(&left))
        {
            return None;
        }
        Some(self.commits.line(id, Some(found)).number)
    }

    /// How the chunks of a shard, found like this, are dated; None if this store knows nothing of it.
    pub fn dated(&self, array: &SourceArray, shard: &[u64], found: &Stat) -> Option<Dated> {
        let line = self.commits.lines.lock().get(&ShardId::of_shard(array, shard)).copied()?;
        (line.is_busy || line.has_content(Some(found))).then_some(line.dated)
    }

    /// The date of a chunk that was written at `written`, staged over `base`, and has just been committed,
    /// with the number of [`Dated`] for which that holds. If others have changed the shard in between,
    /// maybe even since, it is that of the shard.
    pub fn committed_date(
        &self,
        array: &SourceArray,
        shard: &[u64],
        base: &Base,
        written: Timestamp,
    ) -> Option<(u64, Timestamp)> {
        let line = self.commits.lines.lock().get(&ShardId::of_shard(array, shard)).copied()?;
        let date = if line.number == base.line { written } else { line.shard?.mtime };
        Some((line.dated.number, date))
    }

    /// Whether a shard, found like this, was changed by nobody but this store since it had that
    /// number.
    pub fn is_of_line(&self, array: &SourceArray, shard: &[u64], found: &Stat, line: u64) -> bool {
        let mut lines = self.commits.lines.lock();
        lines.get(&ShardId::of_shard(array, shard)).is_some_and(|now| {
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
        let id = ShardId::of_shard(array, &location.shard);
        let line = self.commits.line(id, shard.as_ref()).number;
        let chunk = match loaded {
            Some(loaded) => self.print(array, &location, loaded)?,
            None => None,
        };
        Ok(Base { shard, chunk, line })
    }

    /// What tells the chunk at `location` from others.
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
