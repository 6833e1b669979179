//! Chunks beyond an array's shape, and empty directories of shards.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::StoreError;
use super::listing::is_flat;
use super::lock::remove_lock_if_free;
use super::storage::PosixStorage;
use super::work::SHARD_LOCK;
use super::{Freshness, ShardStore, SourceArray, StagedChunk, io_error};
use crate::format::Coords;
use crate::format::chunk_key::Prefix;
use crate::format::grid::unravel;
use crate::format::index::{ByteRange, ShardIndex};
use crate::format::plan::Policy;
use crate::format::space::Space;

/// Maximum number of chunks removed in one commit.
const REMOVED_AT_ONCE: usize = 1 << 16;
/// Maximum number of shards that one commit removes chunks from: it has a few files open for each.
const SHARDS_AT_ONCE: usize = 128;

/// Totals of the chunks outside a grid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outside {
    /// Shards that lie outside as a whole.
    pub shards: u64,
    /// Chunks, including those of such shards.
    pub chunks: u64,
    /// Stored bytes of those chunks; bytes shared by several chunks of a shard count once.
    pub nbytes: u64,
}

impl ShardStore {
    /// Counts the shards and chunks of `array` that lie outside a smaller chunk grid, without
    /// changing anything.
    pub fn find_outside(&self, array: &SourceArray, grid: &[u64]) -> Result<Outside, StoreError> {
        let mut found = Outside::default();
        self.each_shard(array, &mut |shard| -> Result<(), StoreError> {
            self.outside_of(array, grid, shard, &mut found).map(drop)
        })?;
        Ok(found)
    }

    /// Removes the chunks of `array` that lie outside a smaller chunk grid, the shards that become
    /// empty, and their directories; nothing of shards for which `may_change` is false. Chunks
    /// removed before an error stay removed; a second call continues. They are removed in `storage`, as by
    /// [`Self::commit_in`], or if that is none as by [`Self::commit`].
    pub fn remove_outside(
        &self,
        storage: Option<&dyn PosixStorage>,
        array: &SourceArray,
        grid: &[u64],
        policy: Policy,
        may_change: &dyn Fn(&[u64]) -> bool,
    ) -> Result<Outside, Arc<StoreError>> {
        let (mut found, mut removed, mut shards) = (Outside::default(), Vec::new(), 0);
        let flush = |removed: &mut Vec<StagedChunk>| -> Result<(), Arc<StoreError>> {
            let chunks = std::mem::take(removed);
            let outcomes = match storage {
                Some(storage) => self.commit_in(storage, array, &chunks, policy),
                None => self.commit(array, &chunks, policy),
            };
            outcomes.into_iter().collect()
        };
        self.each_shard(array, &mut |shard| -> Result<(), Arc<StoreError>> {
            let before = removed.len();
            let outside = self.outside_of(array, grid, shard, &mut found)?;
            if !outside.is_empty() && !may_change(shard) {
                return Ok(());
            }
            for coords in outside {
                let base = self.base(array, &coords, Freshness::Now)?;
                removed.push(StagedChunk {
                    coords,
                    content: None,
                    base,
                    maker: None,
                    with: vec![],
                });
            }
            shards += usize::from(removed.len() > before);
            if removed.len() < REMOVED_AT_ONCE && shards < SHARDS_AT_ONCE {
                return Ok(());
            }
            shards = 0;
            flush(&mut removed)
        })?;
        flush(&mut removed)?;
        let is_outside = |shard: &[u64]| {
            let first =
                array.layout.shard_grid.iter().zip(shard).map(|(axis, at)| axis.span(*at).0);
            first.zip(grid).any(|(first, extent)| first >= *extent)
        };
        self.remove_empty_shards(array, &is_outside)?;
        self.remove_empty_directories(array);
        Ok(found)
    }

    /// Returns the chunks of a shard that exist outside the grid, and counts them in `found`.
    fn outside_of(
        &self,
        array: &SourceArray,
        grid: &[u64],
        shard: &[u64],
        found: &mut Outside,
    ) -> Result<Vec<Coords>, StoreError> {
        let axes = array.layout.shard_grid.iter().zip(shard).zip(array.layout.chunk_grid());
        let spans: Vec<(u64, u64)> = axes
            .map(|((axis, shard), extent)| {
                let (first, edge) = axis.span(*shard);
                (first, (first + edge).min(extent).saturating_sub(first))
            })
            .collect();
        let all_inside = |((first, length), extent): (&(u64, u64), &u64)| first + length <= *extent;
        if spans.iter().zip(grid).all(all_inside) {
            return Ok(Vec::new());
        }
        let is_whole = spans.iter().zip(grid).any(|((first, _), extent)| first >= extent);
        found.shards += u64::from(is_whole);
        let lengths: Coords = spans.iter().map(|span| span.1).collect();
        let (mut chunks, mut ranges) = (Vec::new(), Vec::new());
        for place in 0..lengths.iter().product::<u64>() {
            let place = unravel(place, &lengths);
            let coords: Coords =
                place.iter().zip(&spans).map(|(n, (first, _))| first + n).collect();
            if coords.iter().zip(grid).all(|(coord, extent)| coord < extent) {
                continue;
            }
            if let Some(chunk) = self.chunk(array, &coords, Freshness::Recent)? {
                found.chunks += 1;
                match (chunk.offset(), chunk.nbytes()) {
                    (Some(offset), nbytes) => ranges.push(ByteRange { offset, nbytes }),
                    (None, nbytes) => found.nbytes = found.nbytes.saturating_add(nbytes),
                }
                chunks.push(coords);
            }
        }
        found.nbytes = found.nbytes.saturating_add(Space::new(ranges).nbytes());
        Ok(chunks)
    }

    /// Removes those of the shards of an array in a store of objects which have no chunks, and are meant. Elsewhere a
    /// shard goes with its last chunk; here its name may be that of a request which is still on its way.
    pub fn remove_empty_shards(
        &self,
        array: &SourceArray,
        is_meant: &dyn Fn(&[u64]) -> bool,
    ) -> Result<(), StoreError> {
        let Some(objects) = self.storage.objects() else { return Ok(()) };
        self.each_shard(array, &mut |shard| -> Result<(), StoreError> {
            if !is_meant(shard) {
                return Ok(());
            }
            // Others may have put chunks in it.
            let loaded = self.shard(array, shard, Freshness::Again)?;
            if loaded.as_ref().and_then(|shard| shard.index()).is_some_and(ShardIndex::is_empty) {
                let (path, id) = (array.shard_path(shard), array.shard_id(shard));
                let version = loaded.map(|shard| shard.stat().version());
                let file =
                    version.map(|version| self.shard_file(array, shard, version)).transpose()?;
                let now = objects.current(&path).map_err(io_error(&path))?;
                let is_same = file.flatten().is_some_and(|file| {
                    file.entity_tag() == now.as_ref().and_then(|now| now.tag.as_deref())
                });
                if !is_same {
                    return Ok(());
                }
                objects.remove(&path).map_err(io_error(&path))?;
                self.commits.leave(id, None);
                self.forget(id);
            }
            Ok(())
        })
    }

    /// Removes the lock files of shards that nothing holds: other software has left them when it was killed. They are
    /// not shown, and would keep directories from being removed.
    pub fn remove_left_locks(&self, array: &SourceArray) {
        let Some(storage) = self.storage.posix() else { return };
        for (directory, _) in self.shard_directories(array) {
            let mut shards = Vec::new();
            let listed = storage.list(&directory, 0, &mut |item| {
                let path = directory.join(item.name);
                let key = path.strip_prefix(&array.path).ok().and_then(Path::to_str);
                let shard = key.filter(|key| array.is_lock_name(key));
                let shard = shard.and_then(|key| key.strip_suffix(SHARD_LOCK));
                shards.extend(shard.map(|shard| array.path.join(shard)));
                ControlFlow::Continue(())
            });
            if let Err(error) = listed {
                log::debug!("{}", io_error(&directory)(error));
            }
            for shard in shards {
                // One that others hold stays.
                if let Err(error) = remove_lock_if_free(storage, &shard) {
                    log::warn!("a lock file that is left stays: {error}");
                }
            }
        }
    }

    /// Removes the empty directories of shards, including those beyond the shard grid.
    pub fn remove_empty_directories(&self, array: &SourceArray) {
        let Some(storage) = self.storage.files() else { return };
        // The first is the array's own.
        for (directory, _) in self.shard_directories(array).iter().skip(1).rev() {
            let _ = storage.remove_directory(directory);
        }
    }

    /// Returns the number of shards along each axis of the smallest box from the origin that holds
    /// every shard, including those beyond the shard grid. Shards are found by their names.
    pub fn reach(&self, array: &SourceArray) -> Coords {
        let (rank, keys) = (array.layout.rank(), array.layout.keys);
        let mut reach = vec![0_u64; rank];
        for (directory, depth) in self.shard_directories(array) {
            // A directory that cannot be listed has no shard that can be removed.
            let _ = self.storage.list(&directory, 0, &mut |item| {
                let name = item.name.to_str().unwrap_or_default();
                let found = match depth {
                    _ if is_flat(array) => keys.parse_flat(name, rank).unwrap_or_default(),
                    0 => Coords::new(),
                    depth => keys.parse_part(depth - 1, name).into_iter().collect(),
                };
                let first = if is_flat(array) { 0 } else { depth.saturating_sub(1) };
                for (most, coord) in reach.iter_mut().skip(first).zip(found) {
                    *most = (*most).max(coord.saturating_add(1));
                }
                ControlFlow::Continue(())
            });
        }
        reach
    }

    /// Returns the array's own directory and those of its shards, parents first, each with its
    /// depth. Names in a directory of depth 1 or more are coordinates along the axis of that
    /// number, counted from 1.
    fn shard_directories(&self, array: &SourceArray) -> Vec<(PathBuf, usize)> {
        let (rank, keys) = (array.layout.rank(), array.layout.keys);
        // If no chunk's key has a prefix, leading coordinates are in the array's own directory.
        let top_depth = usize::from(keys.prefix != Prefix::Apart);
        let mut found = vec![(array.path.clone(), top_depth)];
        if is_flat(array) {
            return found;
        }
        let mut at = 0;
        while let Some((directory, depth)) = found.get(at).cloned() {
            at += 1;
            if depth >= rank {
                continue;
            }
            // A directory that does not exist, or cannot be listed, is not to be removed either.
            let _ = self.storage.list(&directory, 0, &mut |item| {
                let is_own = |name| match depth {
                    0 => keys.claims(name, rank),
                    depth => keys.parse_part(depth - 1, name).is_some(),
                };
                if item.name.to_str().is_some_and(is_own) {
                    found.push((directory.join(item.name), depth + 1));
                }
                ControlFlow::Continue(())
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::format::sharding::ShardedArray;
    use crate::store::StoreConfig;
    use crate::store::formats::unsharded;
    use crate::store::local::LocalStorage;

    /// Creates an unsharded array in a new directory, with 2 by 2 elements in each chunk.
    fn array(shape: &[u64], keys: (&str, &str)) -> (tempfile::TempDir, ShardStore, SourceArray) {
        let directory = tempfile::tempdir().unwrap();
        let document = json!({"zarr_format": 3, "node_type": "array", "shape": shape,
            "data_type": "uint8", "fill_value": 0, "codecs": ["bytes"],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
            "chunk_key_encoding": {"name": keys.0, "configuration": {"separator": keys.1}}});
        let layout = ShardedArray::unsharded(&document, Vec::new()).unwrap();
        let storage = LocalStorage::open_root(directory.path(), Arc::default()).unwrap();
        let store = ShardStore::new(Arc::new(storage), StoreConfig::default(), Arc::default());
        let (path, format) = (PathBuf::new(), unsharded());
        (directory, store, SourceArray { id: 0, path, layout, format })
    }

    const KEYS: [(&str, &str); 4] = [("default", "/"), ("default", "."), ("v2", "/"), ("v2", ".")];

    #[test]
    fn what_lies_outside_goes_in_each_key_encoding() {
        for keys in KEYS {
            let (directory, store, array) = array(&[8, 6], keys);
            let path = |chunk: &[u64]| directory.path().join(array.layout.keys.chunk_key(chunk));
            let chunks = [[0, 0], [1, 2], [3, 0], [3, 2], [2, 1]];
            for chunk in &chunks {
                std::fs::create_dir_all(path(chunk).parent().unwrap()).unwrap();
                std::fs::write(path(chunk), "1234").unwrap();
            }
            std::fs::write(directory.path().join("notes"), "mine").unwrap();
            let expected = Outside { shards: 4, chunks: 4, nbytes: 16 };
            assert_eq!(store.find_outside(&array, &[2, 2]).unwrap(), expected, "{keys:?}");
            let removed = store
                .remove_outside(
                    Some(store.posix(&array).unwrap()),
                    &array,
                    &[2, 2],
                    Policy::Auto,
                    &|_| true,
                )
                .unwrap();
            assert_eq!(removed, expected, "{keys:?}");
            store.finish_commits(&array).unwrap();
            for chunk in &chunks {
                assert_eq!(path(chunk).exists(), *chunk == [0, 0], "{keys:?} {chunk:?}");
            }
            // The chunk's directory or file, and the file `notes`.
            assert_eq!(directory.path().read_dir().unwrap().count(), 2, "{keys:?}");
        }
    }

    #[test]
    fn shards_beyond_the_grid_are_reached() {
        for keys in KEYS {
            let (directory, store, array) = array(&[2, 2], keys);
            let reach = || store.reach(&array);
            assert_eq!(reach(), [0, 0], "{keys:?}");
            for chunk in [[0, 7], [4, 1]] {
                let path = directory.path().join(array.layout.keys.chunk_key(&chunk));
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "1234").unwrap();
            }
            std::fs::write(directory.path().join("notes.9"), "mine").unwrap();
            assert_eq!(reach(), [5, 8], "{keys:?}");
        }
    }
}
