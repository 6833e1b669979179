//! Shards with an index of their chunks, as by the codec `sharding_indexed` of Zarr v3 and the
//! sharding storage transformer of the draft of 2022. Each is a file named by its key.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::keys;
use super::shard_format::{Accepted, Change, ChangedShard, Reading, ShardFormat};
use crate::format::Coords;
use crate::format::index::{ByteRange, IndexLocation, ShardIndex, product};
use crate::format::journal::ShardRecord;
use crate::format::plan::{self, Blob, Changes, ShardLayout, Source};
use crate::format::sharding::{ShardedArray, ShardingLevel};
use crate::format::whole_shard::trailing_checksums;
use crate::memory::zeroed;
use crate::store::content::Content;
use crate::store::error::{Damage, StoreError};
use crate::store::index_reader::IndexReader;
use crate::store::loaded::{Body, LoadedShard, Ready};
use crate::store::storage::{Expected, FileKind};
use crate::store::unfinished::{Found, examine, old_index};

/// Shards with an index.
#[derive(Debug)]
pub(super) struct Indexed;

impl ShardFormat for Indexed {
    fn name(&self) -> &'static str {
        "indexed"
    }

    fn shard_name(&self, layout: &ShardedArray, shard: &[u64]) -> PathBuf {
        keys::shard_name(layout, shard)
    }

    fn is_shard_name(&self, layout: Option<&ShardedArray>, name: &str) -> bool {
        keys::is_shard_name(layout, name)
    }

    fn has_keys(&self) -> bool {
        true
    }

    fn has_index(&self) -> bool {
        true
    }

    /// Shards that are compressed as a whole can only be read.
    fn is_writable(&self, layout: &ShardedArray) -> bool {
        layout.levels.iter().all(|level| trailing_checksums(&level.after).is_some())
    }

    fn expected(&self, layout: &ShardedArray, chunks_per_shard: &[u64]) -> Option<Expected> {
        let level = layout.levels.first()?;
        let trailing = trailing_checksums(&level.after)?;
        let stored = level.index_codecs.stored_size(product(chunks_per_shard)?)?;
        Some(match level.index_location {
            IndexLocation::Start => Expected::First(stored),
            IndexLocation::End => Expected::Last(stored.checked_add(trailing)?),
        })
    }

    fn read(&self, reading: &Reading<'_>) -> io::Result<Result<Ready, Damage>> {
        let Reading { file, stat, .. } = *reading;
        if let Some(record) = reading.pending {
            match examine(file, record)? {
                Found::Finished | Found::Replaced | Found::Foreign => (),
                Found::Unfinished => return old_state(reading, record),
                Found::Lost => return Ok(Err(Damage::Unfinished)),
            }
        }
        if stat.kind != FileKind::File {
            return Ok(Err(Damage::NotAFile(stat.kind)));
        }
        if stat.size == 0 {
            return Ok(Err(Damage::Empty));
        }
        let reader = IndexReader {
            level: &reading.layout.levels[0],
            chunks_per_shard: reading.chunks_per_shard,
            limit: reading.decode_limit,
            stats: reading.stats,
        };
        reader.read(file, Body::InFile { offset: 0, nbytes: stat.size })
    }

    /// They end or begin with an index that names chunks beside it, and has its checksum, or else names every byte
    /// once. Zeros, and chunks that hold checksums of their own, are none.
    fn is_shard(
        &self,
        layout: &ShardedArray,
        shard: &[u64],
        content: &Content,
    ) -> io::Result<bool> {
        // What is shown may be shards of the next level.
        let Some(level) = layout.levels.first().filter(|_| !layout.shows_shards()) else {
            return Ok(false);
        };
        let is_within = shard.iter().zip(&layout.shard_grid).all(|(at, axis)| *at < axis.shards());
        let extents: Coords = match is_within {
            true => layout.chunks_per_shard(0, shard),
            false => level.in_shard_axes(&layout.most_chunks(0).collect::<Coords>()).collect(),
        };
        let (codecs, location) = (&level.index_codecs, level.index_location);
        let stored = product(&extents).and_then(|slots| codecs.stored_size(slots));
        let nbytes = trailing_checksums(&level.after)
            .and_then(|trailing| content.nbytes().checked_sub(trailing));
        let place = stored.zip(nbytes).and_then(|(stored, nbytes)| location.place(stored, nbytes));
        let (Some(place), Some(nbytes)) = (place, nbytes) else { return Ok(false) };
        if place.nbytes >= nbytes {
            return Ok(false);
        }
        let mut bytes = zeroed(place.nbytes)?;
        content.read_at(&mut bytes, place.offset)?;
        let Ok(index) = ShardIndex::decode(bytes, codecs, location, &extents) else {
            return Ok(false);
        };
        // Everything but the index.
        let beside = match location {
            IndexLocation::Start => place.nbytes..nbytes,
            IndexLocation::End => 0..place.offset,
        };
        let mut chunks = index.chunks(nbytes).unwrap_or_default();
        let is_beside = |(_, range): &(u64, ByteRange)| {
            let end = range.offset.saturating_add(range.nbytes);
            range.nbytes > 0 && beside.contains(&range.offset) && end <= beside.end
        };
        if chunks.is_empty() || !chunks.iter().all(is_beside) {
            return Ok(false);
        }
        chunks.sort_unstable_by_key(|(_, range)| range.offset);
        let end = chunks.iter().try_fold(beside.start, |at, (_, range)| {
            (range.offset == at).then_some(at + range.nbytes)
        });
        Ok(codecs.checksums() > 0 || end == Some(beside.end))
    }

    fn accept<'a>(
        &self,
        shard: &ChangedShard<'a>,
        changes: Vec<Change<'a>>,
    ) -> Result<Accepted<'a>, StoreError> {
        let shard = *shard;
        let loaded = shard.old.map(|(loaded, _)| loaded);
        let changes = changes_of(&shard, 0, loaded, &changes)?;
        check_codecs(&shard, 0)?;
        let extents = shard.layout.chunks_per_shard(0, shard.coords);
        let plan = Box::new(move |policy, facts| {
            let layout = layout_of(&shard.layout.levels[0], &extents);
            plan::plan(&layout, loaded.and_then(LoadedShard::as_planned), &changes, policy, facts)
        });
        Ok(Accepted { refused: Vec::new(), plan })
    }

    fn index_range(
        &self,
        layout: Option<&ShardedArray>,
        name: &str,
        nbytes: u64,
    ) -> Option<ByteRange> {
        index_place(layout?, name, nbytes).map(|(place, _)| place)
    }

    fn is_index(
        &self,
        layout: Option<&ShardedArray>,
        name: &str,
        nbytes: u64,
        range: ByteRange,
        bytes: &[u8],
    ) -> bool {
        let Some(layout) = layout else { return false };
        let Some((place, extents)) = index_place(layout, name, nbytes) else { return false };
        let level = &layout.levels[0];
        let (codecs, location) = (&level.index_codecs, level.index_location);
        place == range && ShardIndex::decode(bytes.to_vec(), codecs, location, &extents).is_ok()
    }
}

/// Reads a shard that an unfinished commit was about to change, in its old state.
fn old_state(reading: &Reading<'_>, record: &ShardRecord) -> io::Result<Result<Ready, Damage>> {
    let Some(bytes) = old_index(reading.file, record)? else {
        return Ok(Err(Damage::Unfinished));
    };
    let level = &reading.layout.levels[0];
    let (codecs, location) = (&level.index_codecs, level.index_location);
    let index = ShardIndex::decode(bytes, codecs, location, reading.chunks_per_shard);
    let lost = record.overwritten.iter();
    let lost = lost.map(|(offset, old)| ByteRange { offset: *offset, nbytes: old.len() as u64 });
    let body = Body::InFile { offset: 0, nbytes: record.old_length };
    let ready = |index| Ready { lost: lost.collect(), ..Ready::new(body, index) };
    Ok(index.map(ready).map_err(Damage::from))
}

/// Returns the range of the index of a shard of that length, and its chunks along each axis. `None`
/// if such shards are never changed in place.
fn index_place(layout: &ShardedArray, key: &str, nbytes: u64) -> Option<(ByteRange, Coords)> {
    let level = layout.levels.first().filter(|level| level.after.is_empty())?;
    let coords = keys::shard_coords(layout, key)?;
    let extents = layout.chunks_per_shard(0, &coords);
    let stored = level.index_codecs.stored_size(product(&extents)?)?;
    Some((level.index_location.place(stored, nbytes)?, extents))
}

/// Checks that shards of a level can be written: they are not compressed as a whole.
fn check_codecs(shard: &ChangedShard<'_>, level: usize) -> Result<(), StoreError> {
    match trailing_checksums(&shard.layout.levels[level].after) {
        Some(_) => Ok(()),
        None => Err(StoreError::Compressed { shard: shard.path.to_owned() }),
    }
}

fn layout_of<'a>(level: &'a ShardingLevel, chunks_per_shard: &'a [u64]) -> ShardLayout<'a> {
    ShardLayout {
        codecs: &level.index_codecs,
        location: level.index_location,
        chunks_per_shard,
        checksums: level.after.len(),
    }
}

/// Returns the changes to the slots of one shard, or of one nested shard.
fn changes_of(
    shard: &ChangedShard<'_>,
    level: usize,
    loaded: Option<&LoadedShard>,
    changes: &[Change<'_>],
) -> Result<Changes, StoreError> {
    let sharding = &shard.layout.levels[level];
    let mut by_position: BTreeMap<&Coords, Vec<Change<'_>>> = BTreeMap::new();
    for change in changes {
        by_position.entry(&change.location.positions[level]).or_default().push(*change);
    }
    let mut slots = Changes::new();
    for (position, changes) in by_position {
        // If a chunk is given twice, the last one counts.
        let Change { at, location, content } = changes[changes.len() - 1];
        let extents = shard.layout.chunks_per_shard(level, &location.shard);
        let slot = sharding
            .in_shard_axes(position)
            .zip(&extents)
            .fold(0, |slot, (at, extent)| slot * extent + at);
        let blob = if level + 1 == shard.layout.levels.len() {
            content.map(|content| Blob::of(content.nbytes(), Source::Staged(at)))
        } else {
            nested(shard, level, loaded, &changes)?
        };
        slots.insert(slot, blob);
    }
    Ok(slots)
}

/// Rewrites a nested shard with its changes. `None` if nothing is left in it.
fn nested(
    shard: &ChangedShard<'_>,
    level: usize,
    outer: Option<&LoadedShard>,
    changes: &[Change<'_>],
) -> Result<Option<Blob>, StoreError> {
    let location = changes[0].location;
    let inner: Option<Arc<LoadedShard>> = match outer {
        None => None,
        Some(outer) => (shard.inner)(outer, location, level)?,
    };
    check_codecs(shard, level + 1)?;
    let extents = shard.layout.chunks_per_shard(level + 1, &location.shard);
    let layout = layout_of(&shard.layout.levels[level + 1], &extents);
    let changes = changes_of(shard, level + 1, inner.as_deref(), changes)?;
    let old = inner.as_deref().and_then(LoadedShard::as_planned);
    plan::rewrite(&layout, old, &changes).map_err(|error| shard.no_plan(error))
}
