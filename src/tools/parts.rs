//! Parts of shards, as units of work for a thread.
//!
//! A shard of many chunks is divided into runs of its slots, so that all threads are busy and the
//! results of a run take bounded memory. The shard's index is read once, by the first thread that
//! needs it.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::Coords;
use crate::source::Array;
use crate::store::{Freshness, LoadedShard, ShardStore, StoreError};

/// Approximate number of the view's chunks in a part of a shard.
const PART_CHUNKS: u64 = 1 << 14;

/// A shard that several threads read.
pub(crate) struct SharedShard {
    /// Array of the shard.
    pub array: Arc<Array>,
    /// Coordinates in the shard grid.
    pub coords: Coords,
    state: Mutex<Option<Loaded>>,
}

/// Outcome of loading a shard.
#[derive(Debug, Clone)]
pub(crate) enum Loaded {
    /// The shard does not exist.
    Absent,
    /// The shard was loaded; it may be damaged.
    Here(Arc<LoadedShard>),
    /// The shard cannot be read; the error was returned to the first caller.
    Failed,
}

impl SharedShard {
    /// Creates a shard that is not loaded yet.
    pub(crate) fn new(array: &Arc<Array>, coords: &[u64]) -> Arc<Self> {
        let array = Arc::clone(array);
        Arc::new(Self { array, coords: coords.to_vec(), state: Mutex::new(None) })
    }

    /// Creates a shard that is loaded.
    pub(crate) fn loaded(
        array: &Arc<Array>,
        coords: &[u64],
        shard: &Arc<LoadedShard>,
    ) -> Arc<Self> {
        let state = Mutex::new(Some(Loaded::Here(Arc::clone(shard))));
        Arc::new(Self { array: Arc::clone(array), coords: coords.to_vec(), state })
    }

    /// Returns the shard as it was at the first call, which loads it. Only that call returns the
    /// error.
    pub(crate) fn load(&self, store: &ShardStore) -> Result<Loaded, StoreError> {
        // Other threads wait for the lock. After a panic the state is still empty.
        let mut state = self.state.lock();
        if let Some(loaded) = &*state {
            return Ok(loaded.clone());
        }
        let found = store.shard(&self.array.source, &self.coords, Freshness::Recent);
        let (loaded, result) = match found {
            Ok(None) => (Loaded::Absent, Ok(Loaded::Absent)),
            Ok(Some(shard)) => (Loaded::Here(Arc::clone(&shard)), Ok(Loaded::Here(shard))),
            Err(error) => (Loaded::Failed, Err(error)),
        };
        *state = Some(loaded);
        result
    }

    /// Returns all slots of the shard, in parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let slots = self.array.source.layout.positions(0, &self.coords).iter().product();
        parts_of(&self.array, 0..slots)
    }

    /// Returns the damage of a loaded shard as an error; `None` if it is intact.
    pub(crate) fn damage(&self, shard: &LoadedShard) -> Option<StoreError> {
        let damage = shard.damage()?;
        Some(StoreError::Damaged { shard: self.array.source.shard_path(&self.coords), damage })
    }
}

/// Divides a run of slots into parts.
pub(crate) fn parts_of(
    array: &Array,
    slots: Range<u64>,
) -> impl Iterator<Item = Range<u64>> + use<> {
    let chunks: u64 = array.source.layout.levels[0].unit().iter().product();
    let step = PART_CHUNKS.checked_div(chunks).unwrap_or(1).max(1);
    let mut from = slots.start;
    std::iter::from_fn(move || {
        let part = from..from.saturating_add(step).min(slots.end);
        from = part.end;
        (!part.is_empty()).then_some(part)
    })
}
