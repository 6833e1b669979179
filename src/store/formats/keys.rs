//! Shards that are files named by their keys.

use std::path::PathBuf;

use crate::format::Coords;
use crate::format::grid::ShardAxis;
use crate::format::sharding::ShardedArray;

/// Returns the path of a shard.
pub(super) fn shard_name(layout: &ShardedArray, shard: &[u64]) -> PathBuf {
    layout.keys.chunk_key(shard).into()
}

/// Returns the coordinates of the shard with this key. `None` if it is no key of a shard.
pub(crate) fn shard_coords(layout: &ShardedArray, key: &str) -> Option<Coords> {
    let coords = layout.keys.parse_leading(key, layout.rank())?;
    let is_whole = coords.len() == layout.rank();
    // Chunks of a shard far beyond the grid would have coordinates that overflow.
    let fits = |(coord, axis): (&u64, &ShardAxis)| {
        let chunks = coord.checked_mul(axis.longest_edge().max(1));
        chunks.is_some_and(|chunks| chunks.checked_add(axis.chunks()).is_some())
    };
    let is_spelled_so = || layout.keys.chunk_key(&coords) == key;
    let is_key = is_whole && is_spelled_so() && coords.iter().zip(&layout.shard_grid).all(fits);
    is_key.then_some(coords)
}

/// Returns whether a name is the key of a shard.
pub(super) fn is_shard_name(layout: Option<&ShardedArray>, name: &str) -> bool {
    layout.is_some_and(|layout| shard_coords(layout, name).is_some())
}
