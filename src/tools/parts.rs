//! Shards in pieces: what one thread works on at a time.
//!
//! A shard of many chunks is cut into runs of its slots, so that all threads have something to do and
//! what they make of a run takes bounded memory. Its index is read once, by the first of them.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::format::Coords;
use crate::source::Array;
use crate::store::{Freshness, LoadedShard, ShardStore, StoreError};

/// Chunks of the view in a piece of a shard, about.
const PART_CHUNKS: u64 = 1 << 14;

/// A shard that several threads look into.
pub struct SharedShard {
    /// Its array.
    pub array: Arc<Array>,
    /// Its coordinates in the shard grid.
    pub coords: Coords,
    state: Mutex<Option<Loaded>>,
}

/// What came of loading a shard.
#[derive(Debug, Clone)]
pub enum Loaded {
    /// There is none.
    Absent,
    /// Here it is; it may be damaged.
    Here(Arc<LoadedShard>),
    /// It cannot be read: somebody else was told why.
    Failed,
}

impl SharedShard {
    /// A shard that was not loaded yet.
    pub fn new(array: &Arc<Array>, coords: &[u64]) -> Arc<Self> {
        let array = Arc::clone(array);
        Arc::new(Self { array, coords: coords.to_vec(), state: Mutex::new(None) })
    }

    /// The shard as it was when it was first asked for. The error is given once.
    pub fn load(&self, store: &ShardStore) -> Result<Loaded, StoreError> {
        // Others wait for it; after a panic there is nothing yet.
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

    /// All its slots, in pieces.
    pub fn parts(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let slots = self.array.source.layout.positions(0, &self.coords).iter().product();
        parts_of(&self.array, 0..slots)
    }

    /// What is wrong with it if it is damaged.
    pub fn damage(&self, shard: &LoadedShard) -> Option<StoreError> {
        let damage = shard.damage()?;
        Some(StoreError::Damaged { shard: self.array.source.shard_path(&self.coords), damage })
    }
}

/// A run of slots in pieces.
pub fn parts_of(array: &Array, slots: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
    let chunks: u64 = array.source.layout.levels[0].unit().iter().product();
    let step = PART_CHUNKS.checked_div(chunks).unwrap_or(1).max(1);
    let mut from = slots.start;
    std::iter::from_fn(move || {
        let part = from..from.saturating_add(step).min(slots.end);
        from = part.end;
        (!part.is_empty()).then_some(part)
    })
}
