//! Chunks that an array's shape does not reach any more, and directories in which nothing is left.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use super::error::StoreError;
use super::listing::is_flat;
use super::{Freshness, ShardStore, SourceArray, StagedChunk};
use crate::format::Coords;
use crate::format::chunk_key::Prefix;
use crate::format::grid::unravel;
use crate::format::plan::Policy;

/// Chunks that are removed in one commit.
const REMOVED_AT_ONCE: usize = 1 << 16;

/// What there was outside of a grid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outside {
    /// Shards of which nothing lies inside.
    pub shards: u64,
    /// Chunks, those of such shards included.
    pub chunks: u64,
    /// Bytes of those chunks as stored.
    pub nbytes: u64,
}

impl ShardStore {
    /// What of `array` lies outside of a smaller grid of chunks; nothing is changed.
    pub fn find_outside(&self, array: &SourceArray, grid: &[u64]) -> Result<Outside, StoreError> {
        let mut found = Outside::default();
        self.each_shard(array, &mut |shard| -> Result<(), StoreError> {
            self.outside_of(array, grid, shard, &mut found).map(drop)
        })?;
        Ok(found)
    }

    /// Removes the chunks of `array` that lie outside of a smaller grid of chunks, shards that become
    /// empty by it, and the directories of those. What is removed when this fails stays removed; doing
    /// it again goes on.
    pub fn remove_outside(
        &self,
        array: &SourceArray,
        grid: &[u64],
        policy: Policy,
    ) -> Result<Outside, Arc<StoreError>> {
        let (mut found, mut removed) = (Outside::default(), Vec::new());
        let flush = |removed: &mut Vec<StagedChunk>| -> Result<(), Arc<StoreError>> {
            let chunks = std::mem::take(removed);
            self.commit(array, &chunks, policy).into_iter().collect()
        };
        self.each_shard(array, &mut |shard| -> Result<(), Arc<StoreError>> {
            for coords in self.outside_of(array, grid, shard, &mut found)? {
                let base = self.base(array, &coords, Freshness::Now)?;
                removed.push(StagedChunk { coords, content: None, base });
            }
            if removed.len() >= REMOVED_AT_ONCE { flush(&mut removed) } else { Ok(()) }
        })?;
        flush(&mut removed)?;
        self.remove_empty_directories(array);
        Ok(found)
    }

    /// The chunks of a shard that exist outside of the grid; they are counted.
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
        let mut chunks = Vec::new();
        for place in 0..lengths.iter().product::<u64>() {
            let place = unravel(place, &lengths);
            let coords: Coords =
                place.iter().zip(&spans).map(|(n, (first, _))| first + n).collect();
            if coords.iter().zip(grid).all(|(coord, extent)| coord < extent) {
                continue;
            }
            if let Some(chunk) = self.chunk(array, &coords, Freshness::Recent)? {
                found.chunks += 1;
                found.nbytes = found.nbytes.saturating_add(chunk.nbytes());
                chunks.push(coords);
            }
        }
        Ok(chunks)
    }

    /// Removes the directories of shards in which nothing is left, those that the shard grid does not
    /// reach as well.
    pub fn remove_empty_directories(&self, array: &SourceArray) {
        // The first is the array's own.
        for (directory, _) in self.shard_directories(array).iter().skip(1).rev() {
            let _ = self.storage.remove_directory(directory);
        }
    }

    /// How many shards along each axis the smallest box from the origin has that holds every shard,
    /// those beyond the shard grid included. They are told by their names.
    pub fn reach(&self, array: &SourceArray) -> Coords {
        let (rank, keys) = (array.layout.rank(), array.layout.keys);
        let mut reach = vec![0_u64; rank];
        for (directory, depth) in self.shard_directories(array) {
            // One that cannot be listed has no shard that can be removed.
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

    /// The array's own directory and those of its shards, each before those below it. The names in one
    /// of depth 1 or more are coordinates along the axis of that number, counted from 1.
    fn shard_directories(&self, array: &SourceArray) -> Vec<(PathBuf, usize)> {
        let (rank, keys) = (array.layout.rank(), array.layout.keys);
        // Where no chunk's key has a prefix, leading coordinates are in the array's own directory.
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
            // One that is not there, or cannot be listed, is not empty either.
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
