//! Planning of a commit: where the bytes of changed chunks go in a shard, and which bytes of it
//! they may take. Does no I/O.
//!
//! ```text
//! before   | a | b | c |   gap   | d | index |
//!
//! rewrite  | a | B | c | d | index |                           a new file, renamed into place
//! extend   | a | b | c |   gap   | d | B | index |             a new version of an object, most of which a
//!                                                              store can copy itself
//! clone    | a | B, if it fits | c | B, if not | d | index |   a copy that shares its blocks
//! append   | a |   | c | B | gap | d |       | index |         the file itself; B in a gap if it
//!                                      ^ old                   fits, behind the old index if not
//! cut      | a |   | c | B | index |                           the file itself; everything behind
//!                                                              the new index can go
//! in place | a | B | c |   gap   | d | index |                 the file itself, B where b was
//! ```
//!
//! Append and cut do not overwrite the index on disk, nor any byte it reaches. Append needs a
//! record of the old length, so that an unfinished commit can be rolled back; a cut is one
//! truncation, far enough from the old index ([`Facts::block`]). In-place updates, and those of
//! shards with the index at the start, overwrite bytes in use; the record holds the old bytes.

pub mod bloscpack;
mod free_space;
pub mod parts;
mod ranges;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use self::free_space::Free;
use self::ranges::merged;
pub use self::ranges::overlap;
use super::index::{
    ByteRange, CHECKSUM_BYTES, EntryError, IndexCodecs, IndexError, IndexLocation, ShardIndex,
};

/// Unused bytes a file may hold, however few bytes are in use.
const TOLERATED_WASTE: u64 = 64 << 10;
/// Part of a shard that may be unused once all its chunks are there: one in so many bytes. To reclaim less costs more
/// than it is worth: all of them are written again.
const WASTE_OF_COMPLETE: u64 = 8;
/// Distance in bytes below which two changed places in an index are written as one. With fewer
/// writes, concurrent readers of the file are less likely to see only part of them.
const PATCH_DISTANCE: usize = 4096;

/// Storage layout of the shards of one level of sharding.
#[derive(Debug, Clone, Copy)]
pub struct ShardLayout<'a> {
    /// Encoding of the index.
    pub codecs: &'a IndexCodecs,
    /// Location of the index.
    pub location: IndexLocation,
    /// Number of chunks along each axis of the shard.
    pub chunks_per_shard: &'a [u64],
    /// Number of `crc32c` codecs over the whole shard.
    pub checksums: usize,
}

/// An existing shard.
#[derive(Debug, Clone, Copy)]
pub struct OldShard<'a> {
    /// Index of the shard.
    pub index: &'a ShardIndex,
    /// Offset of the shard in its file: 0 unless it is a chunk of another shard.
    pub start: u64,
    /// Length of the shard in bytes, without checksums over the whole shard.
    pub length: u64,
}

/// Bytes to be stored, as a list of pieces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blob {
    /// Total length of all pieces in bytes.
    pub nbytes: u64,
    /// The pieces in order.
    pub pieces: Vec<Piece>,
}

/// Bytes from one source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Length in bytes.
    pub nbytes: u64,
    /// Source of the bytes.
    pub from: Source,
}

/// Source of bytes to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Staged content, identified by a number the caller has assigned.
    Staged(usize),
    /// The current file of the shard, from this offset.
    Kept(u64),
    /// Literal bytes.
    Bytes(Arc<[u8]>),
    /// Little-endian crc32c of the given number of bytes directly before it.
    Checksum(u64),
}

/// New content of slots; `None` empties a slot.
pub type Changes = BTreeMap<u64, Option<Blob>>;

/// Strategy for changing a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Chosen by the contents of the shard and the filesystem. A shard that is an object is extended, or laid out
    /// anew if too much of it would be unused.
    #[default]
    Auto,
    /// Write to unused bytes: gaps, or behind the bytes in use. A shard that is an object is extended if that is
    /// possible: all of its bytes but the index stay where they are.
    Append,
    /// Overwrite the old bytes where the new ones fit.
    InPlace,
    /// Always write a new file.
    Rewrite,
}

/// Facts other than the shard's contents that the plan depends on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Facts {
    /// `true` if the filesystem can clone files (copies that share their blocks).
    pub can_clone: bool,
    /// `true` if the file has other hard links, which must keep their contents.
    pub linked: bool,
    /// Size in bytes of the blocks that truncation zeroes: the rest of the block at the new end may
    /// be zeroed some time before the new length is durable, so it must hold no byte in use. 0 if
    /// the filesystem does not do this.
    pub block: u64,
    /// Bytes that no other shard has, for one that is an object. They are stored in it, so that its entity
    /// tag, which may be a hash of its bytes, never comes back: a request that arrives late must not find
    /// the version that it was made for once more. For the same reason such a shard stays if its last chunk
    /// is removed. `None` for a file.
    pub mark: Option<Mark>,
}

/// Bytes that distinguish a shard from all others.
pub type Mark = [u8; 16];

/// Changes to the file of a shard that make up a commit.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// No chunk is left: remove the file.
    Remove,
    /// Replace the file by a new one with this content.
    Rewrite(Blob),
    /// Update a clone of the file and replace the file by it.
    Clone(Update),
    /// Update the file itself, under a journal record.
    Journal(Update),
    /// Update unused bytes of the file itself, then truncate it.
    Cut(Update),
}

/// Changes within a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Update {
    /// The writes, by ascending offset, without overlaps.
    pub writes: Vec<Write>,
    /// Parts of the writes that overwrite bytes in use. Empty for the clone of a shard with an
    /// index.
    pub overwritten: Vec<ByteRange>,
    /// Range of the old index, the one on disk. For a Bloscpack file, all bytes before its chunks.
    pub old_index: ByteRange,
    /// Length of the file after the update, in bytes.
    pub length: u64,
}

/// One write.
#[derive(Debug, PartialEq, Eq)]
pub struct Write {
    /// Offset in the file.
    pub offset: u64,
    /// Bytes to write.
    pub blob: Blob,
}

/// Error planning a commit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The old index has an invalid entry.
    #[error("{error}")]
    Entry {
        /// Slot of the entry.
        slot: u64,
        /// Defect of the entry.
        #[source]
        error: EntryError,
    },
    /// The layout allows no index.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The shard would exceed the maximum length of a file.
    #[error("the shard would be longer than a file can be")]
    TooLong,
}

impl Blob {
    /// Creates a blob of one piece.
    pub fn of(nbytes: u64, from: Source) -> Self {
        Self { nbytes, pieces: vec![Piece { nbytes, from }] }
    }

    fn bytes(bytes: Vec<u8>) -> Self {
        Self::of(bytes.len() as u64, Source::Bytes(bytes.into()))
    }

    /// Appends `blob`, joining adjacent pieces of the old file.
    fn append(&mut self, blob: Self) -> Result<(), PlanError> {
        self.nbytes = end(self.nbytes, blob.nbytes)?;
        for piece in blob.pieces.into_iter().filter(|piece| piece.nbytes > 0) {
            if let Source::Kept(offset) = piece.from
                && let Some(Piece { nbytes, from: Source::Kept(start) }) = self.pieces.last_mut()
                && start.checked_add(*nbytes) == Some(offset)
            {
                *nbytes += piece.nbytes;
            } else {
                self.pieces.push(piece);
            }
        }
        Ok(())
    }
}

/// Plans the commit of `changes` to a shard that is a file of its own.
pub fn plan(
    layout: &ShardLayout<'_>,
    old: Option<OldShard<'_>>,
    changes: &Changes,
    policy: Policy,
    facts: Facts,
) -> Result<Plan, PlanError> {
    let laid_out = |old| {
        let shard = lay_out(layout, old, changes, facts.mark)?;
        Ok(shard.map_or(Plan::Remove, Plan::Rewrite))
    };
    let Some(old) = old else { return laid_out(None) };
    let census = Census::take(&old, changes)?;
    if census.kept.is_empty() && census.new.is_empty() && facts.mark.is_none() {
        return Ok(Plan::Remove);
    }
    if let (Policy::Auto | Policy::Append, Some(mark)) = (policy, facts.mark)
        && let Some(blob) = extend(layout, &old, &census, mark)?
        && (policy == Policy::Append || !census.should_be_rewritten(layout, blob.nbytes))
    {
        return Ok(Plan::Rewrite(blob));
    }
    let reuse = match policy {
        _ if layout.checksums > 0 || facts.mark.is_some() => None,
        Policy::Rewrite => None,
        Policy::Auto if facts.can_clone => Some(Reuse::Replaced),
        _ if facts.linked => None,
        Policy::Auto | Policy::Append => Some(Reuse::Unreached),
        Policy::InPlace => Some(Reuse::Own),
    };
    if let Some(reuse) = reuse {
        let plan = update(layout, &old, &census, reuse, facts.block)?;
        let (Plan::Clone(update) | Plan::Journal(update) | Plan::Cut(update)) = &plan else {
            return Ok(plan);
        };
        if policy != Policy::Auto || !census.should_be_rewritten(layout, update.length) {
            return Ok(plan);
        }
    }
    laid_out(Some(old))
}

/// Lays out the shard anew: kept and new chunks in slot order, without gaps. `None` if there is no
/// chunk.
pub fn rewrite(
    layout: &ShardLayout<'_>,
    old: Option<OldShard<'_>>,
    changes: &Changes,
) -> Result<Option<Blob>, PlanError> {
    lay_out(layout, old, changes, None)
}

/// Lays out the shard anew as [`rewrite`] does, with a mark beside the index. One that exists and has a mark
/// stays, though no chunk is left.
///
/// ```text
/// | a | c | d | mark | index |        | index | a | c | d | mark |
/// ```
fn lay_out(
    layout: &ShardLayout<'_>,
    old: Option<OldShard<'_>>,
    changes: &Changes,
    mark: Option<Mark>,
) -> Result<Option<Blob>, PlanError> {
    let mut index = ShardIndex::empty(layout.codecs, layout.location, layout.chunks_per_shard)?;
    let head = if layout.location == IndexLocation::Start { index.stored_size() } else { 0 };
    let mut contents: BTreeMap<u64, Blob> = BTreeMap::new();
    let start = old.map_or(0, |old| old.start);
    let mut shared: HashMap<ByteRange, ByteRange> = HashMap::new();
    let kept: BTreeMap<u64, ByteRange> = match &old {
        Some(old) => Census::take(old, changes)?.kept.into_iter().collect(),
        None => BTreeMap::new(),
    };
    for (slot, range) in &kept {
        contents.insert(*slot, Blob::of(range.nbytes, Source::Kept(start + range.offset)));
    }
    for (slot, blob) in changes {
        if let Some(blob) = blob {
            contents.insert(*slot, blob.clone());
        }
    }
    if contents.is_empty() && (mark.is_none() || old.is_none()) {
        return Ok(None);
    }
    let mut body = Blob::default();
    for (slot, blob) in contents {
        let here = ByteRange { offset: end(head, body.nbytes)?, nbytes: blob.nbytes };
        // Slots that share their bytes continue to share them.
        let place = kept.get(&slot).map_or(here, |old| *shared.entry(*old).or_insert(here));
        if place == here {
            body.append(blob)?;
        }
        index.set(slot, Some(place));
    }
    if let Some(mark) = mark {
        body.append(Blob::bytes(mark.to_vec()))?;
    }
    let mut shard = Blob::default();
    let index = Blob::bytes(index.encode());
    match layout.location {
        IndexLocation::Start => [index, body],
        IndexLocation::End => [body, index],
    }
    .into_iter()
    .try_for_each(|part| shard.append(part))?;
    for _ in 0..layout.checksums {
        let before = shard.nbytes;
        shard.append(Blob::of(CHECKSUM_BYTES as u64, Source::Checksum(before)))?;
    }
    Ok(Some(shard))
}

/// Lays out the next version of a shard that is an object, so that nearly all of its bytes stay where they are: a
/// store can copy them itself. `None` if that is impossible.
///
/// ```text
/// before   | a | b | c | mark | index |                    | index | a | b | c | mark |
/// after    | a |   | c |      | B | mark | index |         | index | a |   | c |      | B | mark |
/// ```
fn extend(
    layout: &ShardLayout<'_>,
    old: &OldShard<'_>,
    census: &Census<'_>,
    mark: Mark,
) -> Result<Option<Blob>, PlanError> {
    let stored = old.index.stored_size();
    let body = match layout.location {
        IndexLocation::Start => stored..old.length,
        IndexLocation::End => 0..old.length.saturating_sub(stored),
    };
    // Bytes of the old index may be those of a chunk as well.
    let is_within = |range: &ByteRange| {
        range.offset >= body.start && range.offset.saturating_add(range.nbytes) <= body.end
    };
    let is_possible = layout.checksums == 0
        && old.start == 0
        && body.start <= body.end
        && census.kept.iter().all(|(_, range)| is_within(range));
    if !is_possible {
        return Ok(None);
    }
    let mut index = old.index.clone();
    for slot in census.freed.keys() {
        index.set(*slot, None);
    }
    let mut after = Blob::default();
    after.append(Blob::of(body.end - body.start, Source::Kept(body.start)))?;
    for (slot, blob) in &census.new {
        let offset = end(body.start, after.nbytes)?;
        index.set(*slot, Some(ByteRange { offset, nbytes: blob.nbytes }));
        after.append((*blob).clone())?;
    }
    after.append(Blob::bytes(mark.to_vec()))?;
    let mut shard = Blob::default();
    let index = Blob::bytes(index.encode());
    match layout.location {
        IndexLocation::Start => [index, after],
        IndexLocation::End => [after, index],
    }
    .into_iter()
    .try_for_each(|part| shard.append(part))?;
    Ok(Some(shard))
}

/// Chunks of a shard, sorted by the effect of the changes on them.
struct Census<'a> {
    kept: Vec<(u64, ByteRange)>,
    /// Ranges of the chunks that are replaced or removed.
    freed: BTreeMap<u64, ByteRange>,
    new: BTreeMap<u64, &'a Blob>,
}

impl<'a> Census<'a> {
    fn take(old: &OldShard<'_>, changes: &'a Changes) -> Result<Self, PlanError> {
        let chunks = old.index.chunks(old.length);
        let chunks = chunks.map_err(|(slot, error)| PlanError::Entry { slot, error })?;
        let (freed, kept): (Vec<_>, _) =
            chunks.into_iter().partition(|(slot, _)| changes.contains_key(slot));
        let new = changes.iter().filter_map(|(slot, blob)| Some((*slot, blob.as_ref()?)));
        Ok(Self { kept, freed: freed.into_iter().collect(), new: new.collect() })
    }

    /// Returns the freed ranges that overlap neither another chunk nor the index.
    fn unshared(&self, old_index: ByteRange) -> HashSet<ByteRange> {
        let kept = self.kept.iter().map(|(_, range)| *range);
        let mut all: Vec<ByteRange> =
            kept.chain(self.freed.values().copied()).chain([old_index]).collect();
        all.sort_unstable_by_key(|range| range.offset);
        let mut unshared = HashSet::new();
        let mut before = 0;
        for (at, range) in all.iter().enumerate() {
            let end = range.offset.saturating_add(range.nbytes);
            let next = all.get(at + 1).map_or(u64::MAX, |next| next.offset);
            if before <= range.offset && end <= next {
                unshared.insert(*range);
            }
            before = before.max(end);
        }
        unshared
    }

    /// Returns whether a file of `length` bytes would waste too much space, or nearly all of it
    /// would be new.
    fn should_be_rewritten(&self, layout: &ShardLayout<'_>, length: u64) -> bool {
        let kept: HashSet<ByteRange> = self.kept.iter().map(|(_, range)| *range).collect();
        let kept: u64 = kept.iter().fold(0, |sum, range| sum.saturating_add(range.nbytes));
        let new = self.new.values().fold(0_u64, |sum, blob| sum.saturating_add(blob.nbytes));
        let slots = layout.chunks_per_shard.iter().product();
        let index = layout.codecs.stored_size(slots).unwrap_or(0);
        let least = kept.saturating_add(new).saturating_add(index);
        // What commits of a shard that fills up have left behind is reclaimed by the last one of them.
        let is_completed = self.freed.is_empty()
            && !self.new.is_empty()
            && (self.kept.len() + self.new.len()) as u64 == slots;
        kept <= new / 32
            || is_completed && length.saturating_sub(least) > least / WASTE_OF_COMPLETE
            || length
                > least.saturating_add(least / 4 * 3).max(least.saturating_add(TOLERATED_WASTE))
    }
}

/// Set of bytes of a file that new chunks may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reuse {
    /// Bytes that the old index does not reach.
    Unreached,
    /// Bytes that the new index does not reach; the old file stays unchanged.
    Replaced,
    /// Bytes that the old index does not reach, and those of the replaced chunk itself.
    Own,
}

fn update(
    layout: &ShardLayout<'_>,
    old: &OldShard<'_>,
    census: &Census<'_>,
    reuse: Reuse,
    block: u64,
) -> Result<Plan, PlanError> {
    let stored = old.index.stored_size();
    let at_start = layout.location == IndexLocation::Start;
    let old_index = ByteRange {
        offset: if at_start { 0 } else { old.length.saturating_sub(stored) },
        nbytes: stored,
    };
    let kept = || census.kept.iter().map(|(_, range)| *range);
    let reached: Vec<ByteRange> =
        kept().chain(census.freed.values().copied()).chain([old_index]).collect();
    let mut free = Free::around(match reuse {
        Reuse::Replaced if at_start => kept().chain([old_index]).collect(),
        Reuse::Replaced => kept().collect(),
        Reuse::Unreached | Reuse::Own => reached.clone(),
    });
    let own = if reuse == Reuse::Own { census.unshared(old_index) } else { HashSet::new() };
    let mut index = old.index.clone();
    let mut writes: BTreeMap<u64, Blob> = BTreeMap::new();
    let mut last = if at_start { stored } else { 0 };
    for slot in census.freed.keys() {
        index.set(*slot, None);
    }
    for (slot, blob) in &census.new {
        let offset = match census.freed.get(slot).filter(|range| own.contains(range)) {
            Some(old) if old.nbytes >= blob.nbytes && is_fresh(blob) => old.offset,
            // The offset of an empty chunk is arbitrary, but readers check that it lies within the
            // shard, and some check that it does not lie within the index.
            _ if blob.nbytes == 0 => last,
            _ => free.take(blob.nbytes).ok_or(PlanError::TooLong)?,
        };
        index.set(*slot, Some(ByteRange { offset, nbytes: blob.nbytes }));
        if blob.nbytes > 0 {
            writes.insert(offset, (*blob).clone());
        }
    }
    let new =
        writes.iter().map(|(offset, blob)| ByteRange { offset: *offset, nbytes: blob.nbytes });
    for range in kept().chain(new) {
        last = last.max(end(range.offset, range.nbytes)?);
    }
    let encoded = index.encode();
    let mut cut = false;
    let length = if at_start {
        put_patches(&mut writes, 0, &old.index.encode(), &encoded);
        if reuse == Reuse::Replaced { last } else { last.max(old.length) }
    } else if reuse == Reuse::Own && last <= old_index.offset {
        put_patches(&mut writes, old_index.offset, &old.index.encode(), &encoded);
        old.length
    } else {
        let before_old = (reuse == Reuse::Unreached)
            .then(|| free.first_from(last, stored))
            .flatten()
            .filter(|at| {
                let end = at.saturating_add(stored).checked_next_multiple_of(block.max(1));
                // The old index must not reach the rest of the block either.
                end.is_some_and(|end| {
                    end <= old_index.offset && free.first_from(*at, end - at) == Some(*at)
                })
            });
        cut = before_old.is_some();
        let at = match (before_old, reuse) {
            (Some(at), _) => at,
            (None, Reuse::Replaced) => last,
            (None, _) => last.max(old.length),
        };
        writes.insert(at, Blob::bytes(encoded));
        end(at, stored)?
    };
    if length > i64::MAX as u64 {
        return Err(PlanError::TooLong);
    }
    let writes: Vec<Write> =
        writes.into_iter().map(|(offset, blob)| Write { offset, blob }).collect();
    let overwritten = if reuse == Reuse::Replaced { vec![] } else { within(&writes, &reached) };
    let update = Update { writes, overwritten, old_index, length };
    Ok(match reuse {
        Reuse::Replaced => Plan::Clone(update),
        _ if cut => Plan::Cut(update),
        _ => Plan::Journal(update),
    })
}

/// Returns whether no byte of `blob` is read from the file that is overwritten.
fn is_fresh(blob: &Blob) -> bool {
    blob.pieces.iter().all(|piece| matches!(piece.from, Source::Staged(_) | Source::Bytes(_)))
}

/// Adds writes for the parts in which the new index differs from the old one in its place.
fn put_patches(writes: &mut BTreeMap<u64, Blob>, offset: u64, old: &[u8], new: &[u8]) {
    let mut patch: Option<Range<usize>> = None;
    let mut put = |patch: Range<usize>| {
        writes.insert(offset + patch.start as u64, Blob::bytes(new[patch].to_vec()));
    };
    for at in (0..new.len()).filter(|at| old.get(*at) != new.get(*at)) {
        match &mut patch {
            Some(patch) if at - patch.end < PATCH_DISTANCE => patch.end = at + 1,
            _ => {
                if let Some(done) = patch.replace(at..at + 1) {
                    put(done);
                }
            }
        }
    }
    if let Some(last) = patch {
        put(last);
    }
}

/// Returns the parts of the writes that overwrite bytes in use.
fn within(writes: &[Write], reached: &[ByteRange]) -> Vec<ByteRange> {
    let reached = merged(reached.iter().copied());
    let mut parts = Vec::new();
    for write in writes {
        let write = ByteRange { offset: write.offset, nbytes: write.blob.nbytes };
        // Both lists are sorted and without overlaps, so only a few of `reached` can match.
        let first = reached.partition_point(|range| range.end <= write.offset);
        let near = reached[first..]
            .iter()
            .map(|range| ByteRange { offset: range.start, nbytes: range.end - range.start });
        parts.extend(near.map_while(|range| overlap(range, write)));
    }
    parts
}

fn end(offset: u64, nbytes: u64) -> Result<u64, PlanError> {
    offset.checked_add(nbytes).ok_or(PlanError::TooLong)
}

#[cfg(test)]
mod tests;
