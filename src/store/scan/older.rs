//! Older indexes in a shard: where they are, and whether their entries can be relied on.
//!
//! ```text
//! updates that are appended: every byte is written once
//!
//!   | a b c | index | b' | index |  c' and half an index
//!
//! updates that fill gaps: where b was, c' is; the first index takes it for b
//!
//!   | a c' c | index | b' | index |  a' and half an index
//! ```
//!
//! Where chunks were replaced or removed after an index, their bytes may be those of others by now:
//! what is left of a newer index shows that. Two older ones that give a byte to different chunks show
//! that the writer of this shard uses space again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::format::index::{ByteRange, IndexLocation, ShardIndex, product};
use crate::format::index_remains::{has_empty_entry, remains};
use crate::format::search::{FoundIndex, IndexSearch};
use crate::format::space::Space;
use crate::format::whole_shard::trailing_checksums;
use crate::memory::zeroed;
use crate::number::to_usize;
use crate::store::blob::bytes_of;
use crate::store::loaded::{Body, Ready, now};
use crate::store::storage::{Stat, StorageFile};
use crate::store::{Damage, LoadedShard, ShardStore, SourceArray, StoreError, io_error};

/// Number of bytes searched at once, without the overlap by the length of an index.
const PIECE_BYTES: u64 = 4 << 20;

/// Number of bytes at the end of a shard in which what is left of its index is looked for.
const TAIL_BYTES: u64 = 64 << 20;

/// Number of chunks that an index names which are looked at for an inner shard.
const MOST_INNER: usize = 64;

/// Number of indexes that are compared with each other: shards that are updated often have
/// thousands, and the youngest ones show how their writer works.
const MOST_COMPARED: usize = 64;

/// Number of their entries, which are in memory: 100 MB.
const MOST_ENTRIES: usize = 1 << 22;

/// Older index of a shard whose own cannot be read.
#[derive(Debug)]
pub struct OlderIndex {
    /// The index.
    pub index: FoundIndex,
    /// What shows that an entry of it may point at bytes of another chunk. `None` if nothing does,
    /// which does not prove the contrary.
    pub contradiction: Option<Contradiction>,
    /// Attributes of the file in which it was found.
    pub(super) found_in: Stat,
}

/// What in a shard speaks against an older index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// Chunks were replaced, removed, or put where others were since it was written.
    #[error(
        "by what is left of a newer one chunks were replaced or removed since, whose bytes others may have"
    )]
    Newer,
    /// Only a part of a newer index is left, which does not say where all chunks were put.
    #[error(
        "only a part of a newer one is left, by which chunks may stand where this one has others"
    )]
    Partial,
    /// Older indexes give a byte to different chunks.
    #[error("indexes in this shard give one byte to two chunks: it may show bytes of others")]
    Reused,
    /// It does not stand behind a chunk that it names.
    #[error("it does not begin where a chunk of it ends: it may be the contents of a chunk")]
    Detached,
}

/// Returns whether a complete index is one of the shard, and not of a shard nested in it.
type Accept<'a> = dyn Fn(&FoundIndex) -> io::Result<bool> + 'a;

/// Slot of a chunk, and its bytes.
type Entry = (u64, ByteRange);

impl ShardStore {
    /// Finds the last older index of a shard whose own cannot be read, and whose file had the
    /// attributes `found_in` then.
    ///
    /// # Errors
    /// The file cannot be read, or has changed since.
    pub(super) fn older_index(
        &self,
        array: &SourceArray,
        coords: &[u64],
        search: &IndexSearch<'_>,
        found_in: Stat,
    ) -> Result<Option<OlderIndex>, StoreError> {
        let path = array.shard_path(coords);
        let file = self.storage.open(&path).map_err(io_error(&path))?;
        let is_same = || Ok::<_, io::Error>(file.stat()?.version() == found_in.version());
        let find = || {
            let accept = |found: &FoundIndex| holds_inner_shards(array, coords, &*file, found);
            let Some(index) = last_index(&*file, found_in.size, search, &accept)? else {
                return Ok(None);
            };
            let newer = by_newer(array, coords, (&*file, found_in.size), &index)?;
            let contradiction = match newer {
                None => by_others(&*file, &index, search, &accept)?,
                newer => newer,
            };
            Ok(Some(OlderIndex { index, contradiction, found_in }))
        };
        let found = find().map_err(io_error(&path))?;
        match is_same().map_err(io_error(&path))? {
            true => Ok(found),
            false => Err(StoreError::Changing { shard: path }),
        }
    }

    /// Returns the shard at `coords`, whose own index cannot be read, as it is by an older one.
    pub fn as_of_older(
        &self,
        array: &SourceArray,
        coords: &[u64],
        older: &OlderIndex,
    ) -> Arc<LoadedShard> {
        let OlderIndex { index, found_in, .. } = older;
        let nbytes = index.offset + index.bytes.len() as u64;
        let index = (index.bytes.clone(), IndexLocation::End);
        self.as_by(array, coords, (*found_in, nbytes), index)
    }

    /// Returns the shard at `coords`, of `nbytes` bytes in a file with these attributes, as it is by an index that it
    /// does not have.
    pub(super) fn as_by(
        &self,
        array: &SourceArray,
        coords: &[u64],
        (stat, nbytes): (Stat, u64),
        (index, location): (Vec<u8>, IndexLocation),
    ) -> Arc<LoadedShard> {
        let body = Body::InFile { offset: 0, nbytes };
        let codecs = &array.layout.levels[0].index_codecs;
        let extents = array.layout.chunks_per_shard(0, coords);
        let decoded = ShardIndex::decode(index, codecs, location, &extents);
        let state = decoded.map(|index| Ready::new(body, index));
        Arc::new(LoadedShard {
            id: array.shard_id(coords),
            stat,
            state: state.map_err(|error| Arc::new(Damage::Index(error))),
            stored: None,
            checked: AtomicU64::new(now()),
            provisional: true,
        })
    }

    /// Returns the number of complete indexes in `gaps`, runs of bytes that nothing reaches: these are
    /// older ones. It is 0 if an index cannot be distinguished from data.
    pub fn count_older_indexes(
        &self,
        array: &SourceArray,
        coords: &[u64],
        gaps: &[ByteRange],
    ) -> Result<u64, StoreError> {
        let sharding = &array.layout.levels[0];
        let extents = array.layout.chunks_per_shard(0, coords);
        let is_plain = array.format.has_index() && sharding.after.is_empty();
        let mut indexes = 0;
        let Ok(Some(search)) = IndexSearch::new(&sharding.index_codecs, &extents) else {
            return Ok(indexes);
        };
        let is_room = |gap: &&ByteRange| gap.nbytes >= search.nbytes() as u64;
        let mut gaps = gaps.iter().filter(is_room).peekable();
        if !is_plain || sharding.index_location == IndexLocation::Start || gaps.peek().is_none() {
            return Ok(indexes);
        }
        let path = array.shard_path(coords);
        let file = self.storage.open(&path).map_err(io_error(&path))?;
        for gap in gaps {
            let mut count = |found| {
                indexes += u64::from(holds_inner_shards(array, coords, &*file, &found)?);
                Ok(ControlFlow::Continue(()))
            };
            each_index(&*file, *gap, &search, &mut count).map_err(io_error(&path))?;
        }
        Ok(indexes)
    }
}

/// Returns what speaks against an older index of what is left of a newer one, behind it.
fn by_newer(
    array: &SourceArray,
    coords: &[u64],
    (file, size): (&dyn StorageFile, u64),
    older: &FoundIndex,
) -> io::Result<Option<Contradiction>> {
    let end = older.offset + older.bytes.len() as u64;
    let nbytes = size.saturating_sub(end).min(TAIL_BYTES);
    let start = size - nbytes;
    let tail = bytes_of(file, ByteRange { offset: start, nbytes })?;
    let codecs = &array.layout.levels[0].index_codecs;
    let extents = array.layout.chunks_per_shard(0, coords);
    let slots = product(&extents).unwrap_or(u64::MAX);
    let (mut is_recognised, mut is_partial) = (false, true);
    let was: HashMap<u64, ByteRange> = older.chunks.iter().copied().collect();
    let is_other = |(slot, now): &(u64, Option<ByteRange>)| {
        was.get(slot).is_some_and(|was| *now != Some(*was))
    };
    for left in remains((&tail, start), older, codecs, &extents) {
        let mut given = Given::default();
        given.add(&older.chunks);
        given.entries.extend(left.iter().filter_map(|(slot, range)| Some((*slot, (*range)?))));
        if left.iter().any(is_other) || given.is_reused() {
            return Ok(Some(Contradiction::Newer));
        }
        is_recognised = true;
        is_partial &= (left.len() as u64) < slots;
    }
    let is_partial = if is_recognised { is_partial } else { has_empty_entry(&tail) };
    Ok(is_partial.then_some(Contradiction::Partial))
}

/// Returns what speaks against an older index of its place, and of the indexes before it.
fn by_others(
    file: &dyn StorageFile,
    older: &FoundIndex,
    search: &IndexSearch<'_>,
    accept: &Accept<'_>,
) -> io::Result<Option<Contradiction>> {
    if !older.chunks.iter().any(|(_, range)| range.offset + range.nbytes == older.offset) {
        return Ok(Some(Contradiction::Detached));
    }
    let mut given = Given::default();
    given.add(&older.chunks);
    let before = ByteRange { offset: 0, nbytes: older.offset };
    let mut looked_at = 0;
    each_index(file, before, search, &mut |found| {
        looked_at += 1;
        if accept(&found)? {
            given.add(&found.chunks);
        }
        let is_enough = looked_at == MOST_COMPARED || given.entries.len() >= MOST_ENTRIES;
        Ok(match is_enough || given.is_reused() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    })?;
    Ok(given.is_reused().then_some(Contradiction::Reused))
}

/// Bytes that indexes of one shard give to chunks.
#[derive(Default)]
struct Given {
    /// The entries of all of them, each once.
    entries: HashSet<Entry>,
    /// Ranges that an index gives to several chunks: its writer stores equal chunks once.
    shared: HashSet<ByteRange>,
}

impl Given {
    /// Adds the entries of an index.
    fn add(&mut self, chunks: &[Entry]) {
        let mut ranges = HashSet::new();
        let again = chunks.iter().filter(|(_, range)| !ranges.insert(*range));
        self.shared.extend(again.map(|(_, range)| *range));
        self.entries.extend(chunks);
    }

    /// Returns whether a byte was given to different chunks, or as part of different ranges.
    fn is_reused(&self) -> bool {
        let mut ranges = HashSet::new();
        let mut others = self.entries.iter().filter(|(_, range)| !self.shared.contains(range));
        if others.any(|(_, range)| range.nbytes > 0 && !ranges.insert(*range)) {
            return true;
        }
        let all = self.entries.iter().map(|(_, range)| *range).collect();
        !Space::new(all).clashes().is_empty()
    }
}

/// Finds the last accepted index in a file, searching from its end.
fn last_index(
    file: &dyn StorageFile,
    size: u64,
    search: &IndexSearch<'_>,
    accept: &Accept<'_>,
) -> io::Result<Option<FoundIndex>> {
    let mut last = None;
    each_index(file, ByteRange { offset: 0, nbytes: size }, search, &mut |found| {
        if accept(&found)? {
            last = Some(found);
            return Ok(ControlFlow::Break(()));
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(last)
}

/// Calls `act` with the indexes in a range of a file, from the last to the first.
fn each_index(
    file: &dyn StorageFile,
    range: ByteRange,
    search: &IndexSearch<'_>,
    act: &mut dyn FnMut(FoundIndex) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let index = search.nbytes() as u64;
    // Pieces overlap: an index that begins in one may end in the next.
    let room = PIECE_BYTES.min(range.nbytes).saturating_add(index);
    let mut buffer = zeroed(room)?;
    let last = range.offset + range.nbytes;
    let mut end = last;
    while end > range.offset {
        let begin = end.saturating_sub(PIECE_BYTES).max(range.offset);
        let length = (end - begin).saturating_add(index - 1).min(last - begin);
        let part = &mut buffer[..to_usize(length)];
        let read = file.read_at(part, begin)?;
        for found in search.indexes_in(&part[..read], begin) {
            if act(found)?.is_break() {
                return Ok(());
            }
        }
        end = begin;
    }
    Ok(())
}

/// Returns whether a chunk that an index names is a shard, if the array's shards are nested. The index
/// of a nested shard may have the same length, and must not be taken for that of the outer one. Not
/// all chunks need be shards: some may have been written over.
fn holds_inner_shards(
    array: &SourceArray,
    shard: &[u64],
    file: &dyn StorageFile,
    found: &FoundIndex,
) -> io::Result<bool> {
    let Some(level) = array.layout.levels.get(1) else { return Ok(true) };
    let extents = array.layout.chunks_per_shard(1, shard);
    let slots = product(&extents).unwrap_or(u64::MAX);
    let (Some(after), Some(size)) =
        (trailing_checksums(&level.after), level.index_codecs.stored_size(slots))
    else {
        return Ok(false);
    };
    for (_, chunk) in found.chunks.iter().take(MOST_INNER) {
        let held = chunk.nbytes.checked_sub(after);
        let Some(place) = held.and_then(|nbytes| level.index_location.place(size, nbytes)) else {
            continue;
        };
        let range = ByteRange { offset: chunk.offset + place.offset, nbytes: size };
        let index = bytes_of(file, range)?;
        let codecs = &level.index_codecs;
        if ShardIndex::decode(index, codecs, level.index_location, &extents).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}
