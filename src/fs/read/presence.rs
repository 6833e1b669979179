//! Whether there is any chunk below a directory of the view.

use std::sync::Arc;

use crate::format::Coords;
use crate::fs::node::ArrayView;
use crate::fs::read::overlay_names::chunks_below;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::Place;

/// Maximum number of shard indexes to read to determine whether a directory holds a chunk: beyond
/// it, a shard that may hold one is enough.
const EXACT_SHARDS: usize = 64;

/// The same limit in a writable mount: a directory shown only because its shards' directory exists
/// would be in the way of `mkdir`.
const EXACT_SHARDS_WRITABLE: usize = 4096;

impl Fs {
    /// Returns whether any chunk exists below a directory; also `true` if that takes too many
    /// indexes to determine.
    pub(in crate::fs) fn holds_chunks(&self, place: &Place) -> bool {
        let Place { array, coords } = place;
        let prefix = array.source.layout.shard_of(coords);
        self.few_shards(array, &prefix).is_none_or(|shards| self.any_chunk(array, coords, &shards))
    }

    /// Returns the shards below leading shard coordinates; `None` if they are too many to read, or
    /// cannot be listed: then chunks below may exist, and damage is never shown as absence.
    pub(in crate::fs) fn few_shards(
        &self,
        array: &ArrayView,
        prefix: &[u64],
    ) -> Option<Vec<Coords>> {
        let few = self.exact_shards();
        let shards = self.store.shards_below(&array.source, prefix, few).ok();
        shards.filter(|shards| shards.len() <= few)
    }

    fn exact_shards(&self) -> usize {
        if self.overlay.is_some() { EXACT_SHARDS_WRITABLE } else { EXACT_SHARDS }
    }

    /// Returns whether any chunk of `shards` below the directory at `coords` is stored and not
    /// removed.
    pub(in crate::fs) fn any_chunk(
        &self,
        array: &ArrayView,
        coords: &[u64],
        shards: &[Coords],
    ) -> bool {
        let layout = &array.source.layout;
        let inner_shards: u64 = match layout.levels.len() {
            1 => 0,
            _ => layout.most_chunks(0).product(),
        };
        // Nested shards have indexes of their own; these are not read if there are many.
        let exact = inner_shards.saturating_mul(shards.len() as u64) <= self.exact_shards() as u64;
        shards.iter().enumerate().any(|(number, shard)| {
            // Most often the first one has a chunk.
            if number == 1 {
                self.store.announce(&array.source, &shards[1..]);
            }
            let Ok(loaded) = self.store.shard_to_list(&array.source, shard) else {
                return true;
            };
            let Some(loaded) = loaded else { return false };
            let exists = |chunk: &[u64]| {
                let mut location = layout.locate(chunk);
                let found = if exact {
                    self.store.chunk_to_list(&array.source, &loaded, &location, chunk)
                } else {
                    location.positions.truncate(1);
                    self.store.chunk_in(&array.source, Arc::clone(&loaded), &location)
                };
                !matches!(found, Ok(None))
            };
            let removed = |chunk: &[u64]| self.is_removed(&array.path(chunk));
            loaded.is_damaged()
                || chunks_below(array, coords, shard)
                    .any(|chunk| exists(&chunk) && !removed(&chunk))
        })
    }
}
