//! Repacking shards in place: each is rewritten without dead space, read back, and renamed over the
//! old one.
//!
//! ```text
//! ARRAY/.shardfs/repack/lock       held while a process repacks the array
//! ARRAY/.shardfs/repack/c/0/1      the new shard, until it is complete, durable and compared
//! ARRAY/c/0/1                      the old one, then the new one: never anything else
//! ```
//!
//! A shard that is already packed is left alone, so the same command resumes where it was
//! interrupted. A shard that another process changes meanwhile is repacked again.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::digest::ContentDigest;
use super::parallel::{Give, Stopped, in_order};
use super::shard_file::{Find, Packing, ShardFileError, write_shard};
use super::transfer::digest_of_places;
use crate::format::Coords;
use crate::format::index::{ByteRange, IndexLocation, product};
use crate::format::order::Positions;
use crate::format::sharding::ShardedArray;
use crate::format::whole_shard::trailing_checksums;
use crate::source::{Array, Source};
use crate::store::journal::Journal;
use crate::store::new_shards::NewShards;
use crate::store::owner::Owner;
use crate::store::put::take_lists;
use crate::store::recover::recover;
use crate::store::storage::{PosixFile, Stat};
use crate::store::{
    Body, Chunk, Freshness, LoadedShard, ShardStore, SourceArray, StoreConfig, StoreError,
};
use crate::text::shown;

/// Maximum number of attempts to repack a shard that other processes keep changing.
const ATTEMPTS: usize = 4;

/// Options of a repack.
#[derive(Debug, Clone, Copy, Default)]
pub struct How {
    /// Order and deduplication of chunks.
    pub packing: Packing,
    /// `true` if unreadable chunks are left out; otherwise their shards are left as they are, as
    /// those without a readable index always are.
    pub skip_damaged: bool,
}

/// Result of a repack.
#[derive(Debug, Clone, Default)]
pub struct Repacked {
    /// Number of shards that exist.
    pub shards: u64,
    /// Number of shards that were rewritten.
    pub rewritten: u64,
    /// Total length of the existing shards before, in bytes.
    pub before: u64,
    /// Total length of the existing shards after, in bytes.
    pub after: u64,
    /// Number of shards that stay as they are because their index cannot be read.
    pub unreadable: u64,
    /// Number of shards that stay as they are because chunks of them cannot be read.
    pub kept: u64,
    /// Number of rewritten shards that lack the chunks that cannot be read.
    pub cut: u64,
    /// Descriptions of the defects of all these shards.
    pub damaged: BTreeSet<String>,
}

/// Error of repacking an array.
#[derive(Debug, thiserror::Error)]
pub enum RepackError {
    /// The array has no shards with an index.
    #[error("it has no shards with an index: there is nothing to repack")]
    NoShards,
    /// The shards are compressed as a whole.
    #[error("its shards are compressed as a whole, such are not written")]
    Compressed,
    /// The source could not be read or changed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A new shard cannot be written, or cannot take the place of the old one.
    #[error("{}: {error}; no chunk is lost, run the command again to go on", shown(.path))]
    Write {
        /// Path that the error is about, relative to the source's root.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// A new shard differs from what was written to it; the old one stays.
    #[error("shard {}: what was read back of the new one is something else; the old one stays", shown(.0))]
    Differs(PathBuf),
    /// Other processes keep changing a shard.
    #[error("shard {}: others keep changing it; it stays as it is", shown(.0))]
    Changing(PathBuf),
    /// Another thread has failed and returns its error.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Repacks all shards of an array. `report` is called with the length in bytes of each shard that
/// is done.
pub fn repack(
    source: &Source,
    array: &Array,
    how: How,
    threads: NonZeroUsize,
    report: &(dyn Fn(u64) + Sync),
) -> Result<Repacked, RepackError> {
    let levels = &array.source.layout.levels;
    if !array.source.format.has_index() {
        return Err(RepackError::NoShards);
    }
    if levels.iter().any(|level| trailing_checksums(&level.after).is_none()) {
        return Err(RepackError::Compressed);
    }
    let array = &array.source;
    let storage = source.store.posix(array)?;
    // Interrupted commits must be recovered first.
    recover(storage, Owner::Array(array))?;
    let place = NewShards::lock(storage, array)?;
    let mut all = Repacked::default();
    let find = |give: &mut Give<'_, Coords>| {
        source.store.each_shard(array, &mut |shard| Ok::<(), RepackError>(give(shard.to_vec())?))
    };
    let work = |shard: Coords| {
        let done = Shard { source, array, coords: &shard, how, place: &place }.repack()?;
        report(done.before);
        Ok(done)
    };
    let done = in_order(threads, find, work, |done: Repacked| {
        all.shards += done.shards;
        all.rewritten += done.rewritten;
        all.before += done.before;
        all.after += done.after;
        all.unreadable += done.unreadable;
        all.kept += done.kept;
        all.cut += done.cut;
        all.damaged.extend(done.damaged);
        Ok(())
    });
    // Also after an error: on a full disk new shards that are not complete would keep it full.
    let cleared = place.remove().and_then(|()| recover(storage, Owner::Array(array)));
    done?;
    cleared?;
    Ok(all)
}

/// A shard to be repacked.
struct Shard<'a> {
    source: &'a Source,
    array: &'a SourceArray,
    coords: &'a [u64],
    how: How,
    place: &'a NewShards<'a>,
}

/// Outcome of an attempt to repack a shard.
enum Attempt {
    Done(Repacked),
    Changed,
}

impl Shard<'_> {
    fn repack(&self) -> Result<Repacked, RepackError> {
        for _ in 0..ATTEMPTS {
            match self.attempt() {
                Ok(Attempt::Done(done)) => return Ok(done),
                Ok(Attempt::Changed) | Err(RepackError::Store(StoreError::Changing { .. })) => (),
                Err(error) => return Err(error),
            }
        }
        Err(RepackError::Changing(self.array.shard_path(self.coords)))
    }

    fn attempt(&self) -> Result<Attempt, RepackError> {
        let store = &self.source.store;
        let Some(old) = store.shard(self.array, self.coords, Freshness::Again)? else {
            return Ok(Attempt::Done(Repacked::default()));
        };
        let stat = *old.stat();
        let as_it_is =
            Repacked { shards: 1, before: stat.size, after: stat.size, ..<_>::default() };
        let (census, damaged) = self.census(&old)?;
        if !damaged.is_empty() && !self.is_damaged_at_rest()? {
            return Ok(Attempt::Changed);
        }
        let has_index = old.damage().is_none();
        let goes_on = damaged.is_empty() || has_index && self.how.skip_damaged;
        if !goes_on {
            let (unreadable, kept) = (u64::from(!has_index), u64::from(has_index));
            return Ok(Attempt::Done(Repacked { unreadable, kept, damaged, ..as_it_is }));
        }
        let old = OldShard { store, array: self.array, shard: &old };
        if damaged.is_empty() && !self.how.packing.dedup && self.is_packed(&old, &census, &stat)? {
            return Ok(Attempt::Done(as_it_is));
        }
        let path = self.place.array.shard_path(self.coords);
        let Some(new) = self.write(&old, &census, &path)? else { return Ok(Attempt::Changed) };
        let after = new.as_ref().map_or(0, |new| new.length);
        if self.how.packing.dedup && damaged.is_empty() && after >= stat.size {
            self.place.forget(&path).map_err(|error| self.failed(&path, error))?;
            return Ok(Attempt::Done(as_it_is));
        }
        if let Some(new) = &new {
            self.read_back(new)?;
            if !self.finish(&*new.file, &path, &stat)? {
                return Ok(Attempt::Changed);
            }
        }
        let new = new.map(|_| path.as_path());
        let replaced = store.replace_shard(self.array, self.coords, stat.version(), new);
        let replaced = replaced.map_err(|error| match error {
            StoreError::Io { path, error } => RepackError::Write { path, error },
            error => error.into(),
        });
        Ok(match replaced? {
            true => {
                let cut = u64::from(!damaged.is_empty());
                Attempt::Done(Repacked { rewritten: 1, after, cut, damaged, ..as_it_is })
            }
            false => Attempt::Changed,
        })
    }

    /// Returns facts about the shard's chunks, and the descriptions of its defects.
    fn census(&self, shard: &Arc<LoadedShard>) -> Result<(Census, BTreeSet<String>), RepackError> {
        match shard.damage() {
            Some(damage) => {
                let shard = self.array.shard_path(self.coords);
                let damaged = StoreError::Damaged { shard, damage }.to_string();
                Ok((Census::default(), BTreeSet::from([damaged])))
            }
            None => {
                let old = OldShard { store: &self.source.store, array: self.array, shard };
                old.census(self.coords)
            }
        }
    }

    /// Returns whether the shard is damaged even while no commit is in progress; during a commit an
    /// intact shard may look damaged.
    fn is_damaged_at_rest(&self) -> Result<bool, RepackError> {
        let storage = self.source.store.posix(self.array)?;
        let _quiet = Journal::lock(storage, &self.array.path)?;
        let shard = self.source.store.shard(self.array, self.coords, Freshness::Again)?;
        shard.map_or(Ok(false), |shard| Ok(!self.census(&shard)?.1.is_empty()))
    }

    fn failed(&self, path: &Path, error: io::Error) -> RepackError {
        RepackError::Write { path: path.to_owned(), error }
    }

    /// Writes the new shard. The outer `None` means that the old one was changed meanwhile, the
    /// inner `None` that nothing is left of it.
    fn write(
        &self,
        old: &OldShard<'_>,
        census: &Census,
        path: &Path,
    ) -> Result<Option<Option<NewShard>>, RepackError> {
        self.place.forget(path).map_err(|error| self.failed(path, error))?;
        let find: &mut Find<'_, RepackError> = &mut |coords| {
            let Some(chunk) = old.find(coords)? else { return Ok(None) };
            let shared = range_of(&chunk).filter(|range| census.shared.contains(range));
            match old.store.reader(old.array, coords, &chunk)? {
                Some(reader) => Ok(Some((reader, shared))),
                None => Err(StoreError::Changing { shard: PathBuf::new() }.into()),
            }
        };
        let create = || self.place.create(path);
        let (layout, packing) = (&self.array.layout, self.how.packing);
        let written = match write_shard(layout, self.coords, packing, find, &create) {
            Ok(written) => written,
            Err(ShardFileError::Changed) => return Ok(None),
            Err(ShardFileError::Chunk(error)) => return Err(error),
            Err(ShardFileError::Read(error)) => {
                let path = self.array.shard_path(self.coords);
                return Err(StoreError::Io { path, error }.into());
            }
            Err(ShardFileError::Write(error)) => return Err(self.failed(path, error)),
            Err(ShardFileError::Index(error)) => {
                return Err(self.failed(path, io::Error::other(error)));
            }
        };
        let Some(written) = written else { return Ok(Some(None)) };
        let stat = written.file.stat().map_err(|error| self.failed(path, error))?;
        let (file, digest, length) = (written.file, written.digest, stat.size);
        Ok(Some(Some(NewShard { file, digest, length })))
    }

    /// Compares the contents of the new shard with what was written to it.
    fn read_back(&self, new: &NewShard) -> Result<(), RepackError> {
        let storage = Arc::clone(&self.source.storage);
        let store = ShardStore::new(storage, StoreConfig::default(), Arc::default());
        let found = digest_of_places(&store, &self.place.array, self.coords, None);
        match found {
            Ok(found) if found == new.digest => Ok(()),
            _ => Err(RepackError::Differs(self.array.shard_path(self.coords))),
        }
    }

    /// Gives the new shard the owner, permissions and extended attributes of the old one, and makes
    /// it durable. Returns `false` if the old one is gone.
    fn finish(&self, new: &dyn PosixFile, path: &Path, stat: &Stat) -> Result<bool, RepackError> {
        let old = self.array.shard_path(self.coords);
        let xattrs = match self.source.store.posix(self.array)?.open_file(&old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            old => old.and_then(|old| old.lasting_xattrs()),
        };
        let xattrs = xattrs.map_err(|error| StoreError::Io { path: old, error })?;
        let finished = take_lists(new, &xattrs, stat).and_then(|()| new.sync());
        finished.map_err(|error| self.failed(path, error))?;
        Ok(true)
    }

    /// Returns whether the old shard is identical in layout to what would be written.
    fn is_packed(
        &self,
        old: &OldShard<'_>,
        census: &Census,
        stat: &Stat,
    ) -> Result<bool, RepackError> {
        let layout = &self.array.layout;
        let axes = self.coords.iter().zip(&layout.shard_grid);
        let first: Vec<u64> = axes.map(|(coord, axis)| axis.span(*coord).0).collect();
        let mut check = Check {
            layout,
            shard: self.coords,
            how: self.how,
            old,
            seen: HashSet::new(),
            census,
            at: 0,
            is_packed: true,
        };
        let any = check.check_level(0, &first)?;
        Ok(any && check.is_packed && check.at == stat.size)
    }
}

/// A new shard that was written.
struct NewShard {
    file: Arc<dyn PosixFile>,
    digest: ContentDigest,
    length: u64,
}

/// The shard to be repacked.
struct OldShard<'a> {
    store: &'a ShardStore,
    array: &'a SourceArray,
    shard: &'a Arc<LoadedShard>,
}

/// Facts about the chunks of a shard.
#[derive(Default)]
struct Census {
    /// Ranges that several chunks share.
    shared: HashSet<ByteRange>,
}

impl OldShard<'_> {
    /// Returns the chunk at some coordinates; `None` if there is none, or if it is damaged, which
    /// was reported before.
    fn find(&self, coords: &[u64]) -> Result<Option<Chunk>, RepackError> {
        let location = self.array.layout.locate(coords);
        match self.store.chunk_in(self.array, Arc::clone(self.shard), &location) {
            Err(error) if error.is_damage() => Ok(None),
            found => Ok(found?),
        }
    }

    fn census(&self, coords: &[u64]) -> Result<(Census, BTreeSet<String>), RepackError> {
        use crate::store::entries::Place;
        let (mut ranges, mut damaged) = (Vec::new(), BTreeSet::new());
        self.store.each_place(self.array, coords, self.shard, &mut |_, place| {
            match place {
                Place::Chunk { body: Body::InFile { offset, nbytes }, .. } => {
                    ranges.push((offset, nbytes));
                }
                Place::Bad(error) if error.is_damage() => drop(damaged.insert(error.to_string())),
                Place::Bad(error) => return Err(RepackError::Store(error)),
                Place::Chunk { .. } | Place::Empty | Place::Shard { .. } => (),
            }
            Ok(())
        })?;
        ranges.sort_unstable();
        let twice = ranges.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let shared = twice.map(|(offset, nbytes)| ByteRange { offset, nbytes }).collect();
        Ok((Census { shared }, damaged))
    }
}

fn range_of(chunk: &Chunk) -> Option<ByteRange> {
    match chunk.body {
        Body::InFile { offset, nbytes } => Some(ByteRange { offset, nbytes }),
        Body::InMemory { .. } => None,
    }
}

/// Traversal of a shard in the order of [`write_shard`], which compares the locations of its
/// chunks.
struct Check<'a> {
    layout: &'a ShardedArray,
    shard: &'a [u64],
    how: How,
    old: &'a OldShard<'a>,
    census: &'a Census,
    /// Shared ranges met so far.
    seen: HashSet<ByteRange>,
    /// Offset at which the next byte would be written.
    at: u64,
    is_packed: bool,
}

impl Check<'_> {
    /// Checks the shard of a level whose first chunk is at `first`. Returns whether it has any
    /// chunk.
    fn check_level(&mut self, level: usize, first: &[u64]) -> Result<bool, RepackError> {
        let how = &self.layout.levels[level];
        let slots = product(&self.layout.chunks_per_shard(level, self.shard));
        let index = slots.and_then(|slots| how.index_codecs.stored_size(slots)).unwrap_or(0);
        let (base, mut any, mut coords) = (self.at, false, first.to_vec());
        if how.index_location == IndexLocation::Start {
            self.at += index;
        }
        let extents = self.layout.positions(level, self.shard);
        let mut positions = Positions::new(self.how.packing.order, &extents);
        while let Some(position) = positions.advance() {
            if !self.is_packed {
                return Ok(any);
            }
            for (axis, coord) in coords.iter_mut().enumerate() {
                *coord = first[axis] + position[axis] * how.unit()[axis];
            }
            any |= match level + 1 == self.layout.levels.len() {
                true => self.check_chunk(&coords)?,
                false => self.check_level(level + 1, &coords)?,
            };
        }
        if !any {
            self.at = base;
            return Ok(false);
        }
        if how.index_location == IndexLocation::End {
            self.at += index;
        }
        self.at += trailing_checksums(&how.after).unwrap_or(0);
        Ok(true)
    }

    fn check_chunk(&mut self, coords: &[u64]) -> Result<bool, RepackError> {
        let Some(chunk) = self.old.find(coords)? else { return Ok(false) };
        let Some(range) = range_of(&chunk) else { return Ok(true) };
        if self.census.shared.contains(&range) && !self.seen.insert(range) {
            return Ok(true);
        }
        self.is_packed &= range.offset == self.at;
        self.at = self.at.saturating_add(range.nbytes);
        Ok(true)
    }
}

#[cfg(test)]
mod tests;
