//! State that a store keeps of its commits, to distinguish changes by others from its own.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::array::SourceArray;
use super::blob::fingerprint_of_content;
use super::content::Content;
use super::loaded::ShardId;
use super::storage::{Timestamp, Version};
use super::turns::Turns;
use crate::bounded::bounded;
use crate::format::Coords;
use crate::format::journal::Record;

/// Chunk as it was when it was first staged.
#[derive(Debug, Clone, Default)]
pub struct Base {
    /// Version of the chunk's shard. `None` if there was none.
    pub(super) shard: Option<Version>,
    /// Length and fingerprint of the chunk. `None` if it was empty.
    pub(super) chunk: Option<ContentId>,
    /// Number of the shard's [`Lineage`].
    pub(super) lineage: u64,
}

/// Identity of a chunk's contents: its length and fingerprint. Its offset is not part of it, as it
/// proves nothing: another writer may rewrite a shard in its place, with chunks that all have the
/// same lengths as before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContentId {
    pub(super) nbytes: u64,
    pub(super) fingerprint: u64,
}

impl ContentId {
    /// Computes the identity of a chunk with this content.
    pub(super) fn of(content: &Content) -> io::Result<Self> {
        let fingerprint = fingerprint_of_content(content)?;
        Ok(Self { nbytes: content.nbytes(), fingerprint })
    }
}

/// Lineage of a shard: its state when it was last read by [`ShardStore::base`] or left by a commit
/// of this store. As long as the shard is found in that state, no other writer has changed it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lineage {
    /// Number of the lineage; a change by another writer starts a new one.
    pub(super) number: u64,
    pub(super) shard: Option<Version>,
    /// `true` if a commit of this store has made the bytes and the name durable.
    pub(super) is_durable: bool,
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

/// Time for which it is believed which version of an object is there, where a change is staged over it.
const ASKED: Duration = Duration::from_secs(1);

/// Number of objects of which that is remembered.
// Evaluated by the compiler, which rejects zero.
const MAX_ASKED: NonZeroUsize = NonZeroUsize::new(1 << 12).unwrap();

/// Number of lineages to remember. Commits to shards whose lineage was forgotten are slower, but no
/// chunk becomes stale unless another writer has changed it.
const MAX_LINEAGES: usize = 1 << 16;

impl Base {
    /// Returns the base for the next change of the chunk, once this store has committed `content`
    /// over `self`. `None` as content means that the chunk was removed.
    pub fn committed(self, content: Option<&Content>) -> io::Result<Self> {
        Ok(Self { chunk: content.map(ContentId::of).transpose()?, ..self })
    }

    /// Returns whether the chunk is the same as in `before`.
    pub fn is_same_chunk(&self, before: &Self) -> bool {
        self.lineage == before.lineage || self.chunk == before.chunk
    }

    /// Returns whether the chunk was empty.
    pub fn is_empty_chunk(&self) -> bool {
        self.chunk.is_none()
    }

    /// Returns the number of the shard's lineage, which changes made by this store keep.
    pub fn lineage(&self) -> u64 {
        self.lineage
    }

    /// Returns the version of the shard when the chunk was staged. `None` if there was none.
    pub fn shard(&self) -> Option<Version> {
        self.shard
    }
}

impl Lineage {
    /// Returns whether the shard found is that of the lineage, except for the ctime.
    pub(super) fn has_content(&self, found: Option<Version>) -> bool {
        match (self.shard, found) {
            (Some(shard), Some(found)) => shard.has_same_content(&found),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Commits {
    /// Returns the lineage of a shard found in this state; starts a new one if the state is not
    /// that of the known one.
    pub(super) fn lineage(&self, id: ShardId, shard: Option<Version>) -> Lineage {
        let mut lineages = self.lineages.lock();
        match lineages.get(&id) {
            Some(known) if known.is_busy || known.shard == shard => *known,
            _ => self.begin_lineage(&mut lineages, id, shard),
        }
    }

    /// Starts a new lineage: another writer has changed the shard.
    fn begin_lineage(
        &self,
        lineages: &mut LruCache<ShardId, Lineage>,
        id: ShardId,
        shard: Option<Version>,
    ) -> Lineage {
        let known = lineages.get(&id).copied();
        let number = self.last_lineage.fetch_add(1, Ordering::Relaxed) + 1;
        let dated = match known {
            Some(lineage) if lineage.has_content(shard) => lineage.dated,
            _ => Dated { number, since: shard.map(|shard| shard.mtime()) },
        };
        let lineage = Lineage { number, shard, is_durable: false, is_busy: false, dated };
        lineages.put(id, lineage);
        if lineages.len() > MAX_LINEAGES {
            lineages.pop_lru();
        }
        lineage
    }

    /// Returns the lineage of a shard that was found in this state a moment ago.
    ///
    /// # Errors
    /// The shard is known in another state: a commit of this store may have changed it since, or another writer.
    /// That state, once it was found not to be the current one (`outdated`), is that of before the other writer.
    pub(super) fn lineage_found(
        &self,
        id: ShardId,
        found: Option<Version>,
        outdated: Option<Option<Version>>,
    ) -> Result<Lineage, Option<Version>> {
        let mut lineages = self.lineages.lock();
        match lineages.get(&id) {
            Some(known) if known.is_busy || known.shard == found => Ok(*known),
            Some(known) if outdated != Some(known.shard) => Err(known.shard),
            _ => Ok(self.begin_lineage(&mut lineages, id, found)),
        }
    }

    /// Marks whether a commit of this store is changing a shard.
    pub(super) fn set_busy(&self, id: ShardId, is_busy: bool) {
        if let Some(lineage) = self.lineages.lock().get_mut(&id) {
            lineage.is_busy = is_busy;
        }
    }

    /// Returns whether a shard found in this state is as a commit of this store has left it, with a
    /// date that no other writer would set.
    pub(super) fn has_left(&self, id: ShardId, found: Version) -> bool {
        // Where only the owner may set a date, it has the one of the clock.
        if found.has_date_of_change() {
            return false;
        }
        let is_as_left = |lineage: &Lineage| lineage.is_durable && lineage.shard == Some(found);
        self.lineages.lock().get(&id).is_some_and(is_as_left)
    }

    /// Returns whether it was found out a moment ago which version of a shard, an object, is there.
    pub(super) fn was_asked(&self, id: ShardId) -> bool {
        self.asked.lock().get(&id).is_some_and(|at| at.elapsed() < ASKED)
    }

    /// Records when it was found out which version of a shard, an object, is there.
    pub(super) fn note_asked(&self, id: ShardId, at: Instant) {
        self.asked.lock().put(id, at);
    }

    /// Returns whether a commit of this store is changing a shard.
    pub(super) fn is_busy(&self, id: ShardId) -> bool {
        self.lineages.lock().get(&id).is_some_and(|lineage| lineage.is_busy)
    }

    /// Marks the names on the way to the shard as possibly not durable.
    pub(super) fn doubt(&self, id: ShardId) {
        if let Some(lineage) = self.lineages.lock().get_mut(&id) {
            lineage.is_durable = false;
        }
    }

    /// Records the state in which a commit has left the shard; `None` if that is unknown.
    pub(super) fn leave(&self, id: ShardId, lineage: Option<Lineage>) {
        match lineage {
            Some(lineage) => drop(self.lineages.lock().put(id, lineage)),
            None => drop(self.lineages.lock().pop(&id)),
        }
    }
}

/// State that a store keeps of its commits.
#[derive(Debug)]
pub(super) struct Commits {
    pub(super) arrays: Mutex<HashMap<u64, Arc<CommitsOfArray>>>,
    pub(super) lineages: Mutex<LruCache<ShardId, Lineage>>,
    /// When it was last found out which version of a shard, an object, is there.
    asked: Mutex<LruCache<ShardId, Instant>>,
    /// Who else replaces shards that are objects.
    pub(super) turns: Turns,
    /// Last number given to a lineage.
    last_lineage: AtomicU64,
    /// `true` once the filesystem was found unable to clone files.
    pub(super) no_clones: AtomicBool,
    /// `true` once the mount ends, and waits no longer for a store of objects than it must.
    pub(super) is_ending: AtomicBool,
    /// `true` once such a store has not answered since.
    pub(super) is_given_up: AtomicBool,
}

/// The commits to one array.
#[derive(Debug, Default)]
pub(super) struct CommitsOfArray {
    /// Held by the thread that has the journal's lock or waits for it: other processes may have it.
    pub(super) turn: Mutex<()>,
    /// Held during commits alone, so that readers do not wait for other processes.
    pub(super) state: Mutex<ArrayCommits>,
    /// `true` if another process held the lock for too long at the last attempt.
    pub(super) is_held: AtomicBool,
}

/// State kept of the commits to one array.
#[derive(Debug, Default)]
pub(super) struct ArrayCommits {
    /// `true` once the remains of earlier mounts were looked for.
    pub(super) swept: bool,
    /// Version of the journal when it was last cleared durably: while it has it, no older record can
    /// reappear.
    pub(super) cleared: Option<Version>,
    /// `true` if the record in the journal names a shard whose state is unknown: it must stay until
    /// it can be rolled forward or back.
    pub(super) stuck: bool,
    /// Keys of the shards that such a record names. They are not written, or the record would be
    /// taken for that of a later commit.
    pub(super) unsettled: HashSet<Vec<u8>>,
    /// Shards whose lock other software did not give back in time at the last attempt.
    pub(super) held: HashSet<Coords>,
    /// Number of names given to new files so far.
    pub(super) names: u64,
    pub(super) attempts: Attempts,
}

/// Contents that chunks were to get by commits that failed after their shard was touched. A recovery
/// may roll one of those forward later, which is no change by others; or the request for it arrives
/// late.
#[derive(Debug, Default)]
pub(super) struct Attempts(HashMap<Coords, VecDeque<Option<ContentId>>>);

/// Number of failed commits to remember of one chunk. An older one can be found in its shard only
/// if every one since was rolled back.
const MAX_ATTEMPTS: usize = 64;

impl Attempts {
    /// Returns whether the chunk may have got this content by a commit that failed.
    pub(super) fn has(&self, coords: &[u64], content: Option<ContentId>) -> bool {
        self.0.get(coords).is_some_and(|attempts| attempts.contains(&content))
    }

    /// Records that the chunk may have got a content.
    pub(super) fn note(&mut self, coords: &Coords, content: Option<&Content>) {
        // A staged content that cannot be read cannot have been written, either.
        let Ok(print) = content.map(ContentId::of).transpose() else { return };
        let attempts = self.0.entry(coords.clone()).or_default();
        attempts.retain(|other| *other != print);
        attempts.push_back(print);
        if attempts.len() > MAX_ATTEMPTS {
            attempts.pop_front();
        }
    }

    /// Forgets the attempts of a chunk: a commit of it has succeeded.
    pub(super) fn forget(&mut self, coords: &[u64]) {
        self.0.remove(coords);
    }
}

impl Default for Commits {
    fn default() -> Self {
        let lineages = Mutex::new(LruCache::unbounded());
        let asked = Mutex::new(bounded(MAX_ASKED));
        let (arrays, turns, last_lineage, no_clones, is_ending, is_given_up) = Default::default();
        Self { arrays, lineages, asked, turns, last_lineage, no_clones, is_ending, is_given_up }
    }
}

impl Commits {
    pub(super) fn of_array(&self, array: &SourceArray) -> Arc<CommitsOfArray> {
        Arc::clone(self.arrays.lock().entry(array.id).or_default())
    }
}

impl ArrayCommits {
    /// Marks the record as one that must stay and must not be replaced by another.
    pub(super) fn keep(&mut self, record: Option<&Record>) {
        self.stuck = true;
        let shards = record.map_or(&[][..], |record| &record.shards);
        self.unsettled.extend(shards.iter().map(|shard| shard.key.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;
    use crate::format::zarr2::layout;
    use crate::store::memory::MemoryStorage;
    use crate::store::storage::Storage;

    #[test]
    fn what_was_found_before_a_commit_begins_no_lineage_of_others() {
        let layout = layout(&json!({"zarr_format": 2, "shape": [4], "chunks": [4]})).unwrap();
        let (commits, id) = (Commits::default(), ShardId::new(1, &layout, &[0]));
        let storage = MemoryStorage::default();
        let version = |text: &str| {
            storage.replace("shard", text);
            Some(storage.stat(Path::new("shard")).unwrap().version())
        };
        let (before, after, of_others) = (version("1"), version("2"), version("3"));
        let first = commits.lineage_found(id, before, None).unwrap();
        commits.leave(id, Some(Lineage { shard: after, ..first }));
        // A commit has ended since it was found.
        assert_eq!(commits.lineage_found(id, before, None).unwrap_err(), after);
        assert_eq!(commits.lineage_found(id, after, None).unwrap().number, first.number);
        // Others have changed it, which is known once the state of the commit is found to be gone.
        assert_eq!(commits.lineage_found(id, of_others, None).unwrap_err(), after);
        let second = commits.lineage_found(id, of_others, Some(after)).unwrap();
        assert_ne!(second.number, first.number);
        // Another commit ends between the two looks.
        commits.leave(id, Some(Lineage { shard: before, ..second }));
        assert_eq!(commits.lineage_found(id, after, Some(of_others)).unwrap_err(), before);
    }
}
