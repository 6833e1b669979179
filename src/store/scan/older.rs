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
//! Two indexes that give a byte to different chunks, or to a chunk in different places, show that
//! the space of the shard was used again.

use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::format::index::{ByteRange, IndexLocation, ShardIndex, product};
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
    /// `true` if indexes in the shard give a byte to different chunks: an entry of this one may
    /// point at bytes of another chunk. `false` if nothing in the shard shows that, which does not
    /// prove the contrary.
    pub is_space_reused: bool,
    /// Attributes of the file in which it was found.
    pub(super) found_in: Stat,
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
            let damaged = damaged_entries(array, coords, &*file, found_in.size)?;
            let is_space_reused = is_space_reused(&*file, &index, damaged, search, &accept)?;
            Ok(Some(OlderIndex { index, is_space_reused, found_in }))
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
        let bytes = index.bytes.clone();
        let body = Body::InFile { offset: 0, nbytes: index.offset + bytes.len() as u64 };
        let codecs = &array.layout.levels[0].index_codecs;
        let extents = array.layout.chunks_per_shard(0, coords);
        let decoded = ShardIndex::decode(bytes, codecs, IndexLocation::End, &extents);
        let state = decoded.map(|index| Ready::new(body, index));
        Arc::new(LoadedShard {
            id: array.shard_id(coords),
            stat: *found_in,
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

/// Returns whether indexes of a shard give a byte to different chunks. `damaged` are the entries of
/// its own index, which cannot be read.
fn is_space_reused(
    file: &dyn StorageFile,
    older: &FoundIndex,
    damaged: Vec<Entry>,
    search: &IndexSearch<'_>,
    accept: &Accept<'_>,
) -> io::Result<bool> {
    let mut given = Given::default();
    given.add(&older.chunks);
    let before = ByteRange { offset: 0, nbytes: older.offset };
    let mut left = MOST_COMPARED;
    each_index(file, before, search, &mut |found| {
        if accept(&found)? {
            given.add(&found.chunks);
            left -= 1;
        }
        let is_enough = left == 0 || given.entries.len() >= MOST_ENTRIES || given.is_reused();
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    given.add_damaged(&damaged);
    Ok(given.is_reused())
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

    /// Adds the entries of an index in which some bytes are wrong. Of those that reach into each
    /// other one is wrong: not one that another index has, too.
    fn add_damaged(&mut self, chunks: &[Entry]) {
        let doubtful = clashing(chunks);
        let is_known = |entry: &Entry| self.entries.contains(entry);
        let is_explained =
            chunks.iter().any(|entry| doubtful.contains(&entry.1) && is_known(entry));
        let is_sound =
            |entry: &&Entry| !is_explained || !doubtful.contains(&entry.1) || is_known(entry);
        let sound: Vec<Entry> = chunks.iter().filter(is_sound).copied().collect();
        self.add(&sound);
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

/// Returns the entries of a shard's index that cannot be read, if its place holds most of it: after
/// an append that was interrupted there are other bytes.
fn damaged_entries(
    array: &SourceArray,
    coords: &[u64],
    file: &dyn StorageFile,
    size: u64,
) -> io::Result<Vec<Entry>> {
    let codecs = &array.layout.levels[0].index_codecs;
    let extents = array.layout.chunks_per_shard(0, coords);
    let slots = product(&extents).unwrap_or(u64::MAX);
    let stored = codecs.stored_size(slots);
    let Some(place) = stored.and_then(|stored| IndexLocation::End.place(stored, size)) else {
        return Ok(Vec::new());
    };
    let bytes = bytes_of(file, place)?;
    let (entries, bad) = ShardIndex::entries_of_damaged(bytes, codecs, &extents, place.offset);
    // Half of those that reach into others.
    let wrong = bad + clashing(&entries).len() as u64 / 2;
    Ok(if wrong <= (slots / 4).max(1) { entries } else { Vec::new() })
}

/// Returns the ranges of chunks that partly overlap others of them.
fn clashing(chunks: &[Entry]) -> HashSet<ByteRange> {
    let clashes = Space::new(chunks.iter().map(|(_, range)| *range).collect()).clashes();
    clashes.iter().flat_map(|clash| [clash.range, clash.with]).collect()
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
    for (_, chunk) in &found.chunks {
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
