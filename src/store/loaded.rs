//! Shards in memory: where their bytes are, and where in those the chunks are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::error::Damage;
use super::storage::{Stat, StorageFile};
use crate::format::chunk_error::ChunkDefect;
use crate::format::digest::Digest;
use crate::format::index::{ByteRange, EntryError, ShardIndex};
use crate::format::plan::{OldShard, PlanError, overlap};
use crate::format::sharding::{ShardedArray, ShardingLevel};
use crate::memory::zeroed;
use crate::number::to_usize;

/// Identifier of a shard, or of a shard nested in a shard, within its mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ShardId {
    array: u64,
    /// Level of the shard: 0 for a shard, 1 for its inner shards and so on.
    level: usize,
    /// Number of the shard in C order over the grid of its level.
    number: u64,
}

impl ShardId {
    /// Returns the identifier of a shard of an array, which has a number of its own.
    pub(super) fn new(array: u64, layout: &ShardedArray, shard: &[u64]) -> Self {
        let axes = shard.iter().zip(&layout.shard_grid);
        let number = axes.fold(0, |number, (coord, axis)| number * axis.shards() + coord);
        Self { array, level: 0, number }
    }

    /// Returns the level of the shard.
    pub(super) fn level(self) -> usize {
        self.level
    }

    /// Returns the identifier of the shard at `position` (along the array's axes) inside this one,
    /// which is of `level`.
    pub(super) fn inner(self, layout: &ShardedArray, level: usize, position: &[u64]) -> Self {
        // The product of the chunks of all levels is within a limit that was checked with the
        // metadata: numbers are unique and do not overflow.
        let axes = position.iter().zip(layout.most_chunks(level));
        let number = axes.fold(self.number, |number, (coord, most)| number * most + coord);
        Self { array: self.array, level: level + 1, number }
    }

    pub(super) fn stripe(&self, stripes: usize) -> usize {
        to_usize((self.number ^ (self.array << 3)) % stripes as u64)
    }
}

/// Location of the bytes of a shard, or of a chunk in it.
#[derive(Debug, Clone)]
pub enum Body {
    /// Range of the shard's file.
    InFile {
        /// Offset in the file.
        offset: u64,
        /// Length in bytes.
        nbytes: u64,
    },
    /// Range of a shard that was decoded as a whole.
    InMemory {
        /// The decoded shard.
        bytes: Arc<Vec<u8>>,
        /// Index of the first byte.
        start: usize,
        /// Index past the last byte.
        end: usize,
    },
}

impl Body {
    /// Returns the length in bytes.
    pub fn nbytes(&self) -> u64 {
        match self {
            Self::InFile { nbytes, .. } => *nbytes,
            Self::InMemory { start, end, .. } => (end - start) as u64,
        }
    }

    /// Returns a part of these bytes; the caller has checked that it lies within them.
    pub(super) fn part(&self, from: u64, nbytes: u64) -> Self {
        match self {
            Self::InFile { offset, .. } => Self::InFile { offset: offset + from, nbytes },
            Self::InMemory { bytes, start, .. } => {
                let from = to_usize(from);
                let length = to_usize(nbytes);
                let start = start + from;
                Self::InMemory { bytes: Arc::clone(bytes), start, end: start + length }
            }
        }
    }

    /// Reads the bytes into memory. `None` if the file has fewer.
    pub(super) fn read(&self, file: &dyn StorageFile) -> std::io::Result<Option<Vec<u8>>> {
        match self {
            Self::InMemory { bytes, start, end } => {
                let part = bytes.get(*start..*end).unwrap_or_default();
                let mut copy = zeroed(part.len() as u64)?;
                copy.copy_from_slice(part);
                Ok(Some(copy))
            }
            Self::InFile { offset, nbytes } => {
                // The caller has checked the length against a limit.
                let mut buffer = zeroed(*nbytes)?;
                let read = file.read_at(&mut buffer, *offset)?;
                Ok((read == buffer.len()).then_some(buffer))
            }
        }
    }
}

/// Shard whose index has been read, or could not be read.
#[derive(Debug)]
pub struct LoadedShard {
    pub(super) id: ShardId,
    pub(super) stat: Stat,
    pub(super) state: Result<Ready, Arc<Damage>>,
    /// Stored bytes of a nested shard. `None` for a shard that is a file.
    pub(super) stored: Option<Body>,
    /// When the file was last seen to be unchanged, in milliseconds of [`now`].
    pub(super) checked: AtomicU64,
    /// `true` if a journal record is pending, or a change might have left no trace in the
    /// attributes: revalidate on every access.
    pub(super) provisional: bool,
}

/// What was read of a shard: where its chunks are.
#[derive(Debug)]
pub struct Ready {
    /// The bytes of the shard.
    pub(super) body: Body,
    /// Ranges of the chunks, by slot.
    pub(super) index: ShardIndex,
    /// `true` if the index is stored in the shard; `false` if it was made from the contents.
    pub(super) is_index_stored: bool,
    /// Ranges of the body that an unfinished commit has overwritten.
    pub(super) lost: Vec<ByteRange>,
    /// Checksum stored after each chunk.
    pub(super) digest: Digest,
    /// Chunks that cannot be read, by slot, with the reason.
    pub(super) refused: HashMap<u64, ChunkDefect>,
    /// Slot of a chunk to be padded, and the number of bytes that full chunks hold.
    pub(super) padding: Option<(u64, u64)>,
    /// `true` if the file's writer has not finished it.
    pub(super) is_unfinished: bool,
}

impl Ready {
    /// Creates the state of a shard whose index is stored in it, with nothing lost.
    pub(super) fn new(body: Body, index: ShardIndex) -> Self {
        Self {
            body,
            index,
            is_index_stored: true,
            lost: Vec::new(),
            digest: Digest::None,
            refused: HashMap::new(),
            padding: None,
            is_unfinished: false,
        }
    }
}

/// Reason why an inner chunk of a loaded shard cannot be found.
#[derive(Debug)]
pub(super) enum InnerError {
    Damaged(Arc<Damage>),
    Entry(EntryError),
}

impl LoadedShard {
    /// Returns the attributes of the shard's file when it was loaded.
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns the reason why the index cannot be used. `None` if it can.
    pub fn damage(&self) -> Option<Arc<Damage>> {
        self.state.as_ref().err().map(Arc::clone)
    }

    /// Returns the location of the shard's bytes: in a file, or decoded in memory. `None` if the
    /// shard is damaged.
    pub fn body(&self) -> Option<&Body> {
        self.state.as_ref().ok().map(|ready| &ready.body)
    }

    /// Returns the bytes of a nested shard as stored, before the codecs over it are undone. `None`
    /// for a shard that is a file.
    pub fn stored(&self) -> Option<&Body> {
        self.stored.as_ref()
    }

    /// Returns the index, which is made from the contents in formats without one. `None` if the
    /// shard is damaged.
    pub fn index(&self) -> Option<&ShardIndex> {
        self.state.as_ref().ok().map(|ready| &ready.index)
    }

    /// Returns whether some chunks can be located only through those before them: the writer has
    /// not finished the shard, or cannot know where chunks are.
    pub fn is_unfinished(&self) -> bool {
        self.state.as_ref().is_ok_and(|ready| ready.is_unfinished)
    }

    /// Returns the range of the index in the file. `None` if it is not there in one piece: for a
    /// damaged shard, one that is decoded as a whole, and formats without an index.
    pub fn index_range(&self) -> Option<ByteRange> {
        let Ok(Ready {
            body: Body::InFile { offset, nbytes }, index, is_index_stored: true, ..
        }) = &self.state
        else {
            return None;
        };
        let place = index.place(*nbytes)?;
        Some(ByteRange { offset: offset + place.offset, nbytes: place.nbytes })
    }

    /// Returns the checksum stored after each chunk.
    pub(super) fn digest(&self) -> Digest {
        self.state.as_ref().map_or(Digest::None, |ready| ready.digest)
    }

    /// Returns the number of bytes to which the chunk at a position is to be padded. `None` if it
    /// is not padded.
    pub(super) fn padding(&self, level: &ShardingLevel, position: &[u64]) -> Option<u64> {
        let ready = self.state.as_ref().ok()?;
        let (slot, full) = ready.padding?;
        (ready.index.slot(level.in_shard_axes(position)) == slot).then_some(full)
    }

    /// Returns the shard in the form that the planner of commits takes. `None` if it is damaged, or
    /// not in a file.
    pub(super) fn as_planned(&self) -> Option<OldShard<'_>> {
        let Ok(Ready { body: Body::InFile { offset, nbytes }, index, .. }) = &self.state else {
            return None;
        };
        Some(OldShard { index, start: *offset, length: *nbytes })
    }

    /// Returns the chunks of a file that is a list of them, by their numbers, and the numbers of
    /// those that cannot be read. Both are empty if the file is damaged.
    pub(super) fn numbered(&self) -> Result<(BTreeMap<u64, ByteRange>, BTreeSet<u64>), PlanError> {
        let Ok(Ready { body, index, refused, .. }) = &self.state else { return Ok(<_>::default()) };
        let chunks = index.chunks(body.nbytes());
        let chunks = chunks.map_err(|(slot, error)| PlanError::Entry { slot, error })?;
        let refused: BTreeSet<u64> = refused.keys().copied().collect();
        Ok((chunks.into_iter().filter(|(slot, _)| !refused.contains(slot)).collect(), refused))
    }

    /// Returns whether the index cannot be used.
    pub fn is_damaged(&self) -> bool {
        self.state.is_err()
    }

    /// Returns the location of the inner chunk at `position` along the array's axes, in a shard of
    /// `level`. `None` if it is empty.
    pub(super) fn inner(
        &self,
        level: &ShardingLevel,
        position: &[u64],
    ) -> Result<Option<Body>, InnerError> {
        let ready =
            self.state.as_ref().map_err(|damage| InnerError::Damaged(Arc::clone(damage)))?;
        if !ready.refused.is_empty()
            && let slot = ready.index.slot(level.in_shard_axes(position))
            && let Some(why) = ready.refused.get(&slot)
        {
            return Err(InnerError::Entry(EntryError::Refused(*why)));
        }
        let range = ready.index.range(level.in_shard_axes(position), ready.body.nbytes());
        let range = range.map_err(InnerError::Entry)?;
        if let Some(range) = range
            && ready.lost.iter().any(|lost| overlap(*lost, range).is_some())
        {
            return Err(InnerError::Damaged(Arc::new(Damage::Unfinished)));
        }
        Ok(range.map(|range| ready.body.part(range.offset, range.nbytes)))
    }

    /// Returns the memory that the cache counts. A shard nested in a decoded one counts its own
    /// part of the shared bytes: together, those parts are what keeps them in memory.
    pub(super) fn memory(&self) -> usize {
        let state = match &self.state {
            Ok(Ready { body: Body::InMemory { start, end, .. }, index, .. }) => {
                end - start + index.memory()
            }
            Ok(Ready { index, .. }) => index.memory(),
            Err(_) => 0,
        };
        size_of::<Self>() + state
    }

    /// Returns whether the shard was seen to be unchanged recently enough.
    pub(super) fn is_trusted(&self, trusted: Duration) -> bool {
        !self.provisional && is_recent(self.checked.load(Ordering::Relaxed), trusted)
    }
}

/// Inner chunk that exists.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Attributes of the shard that holds it.
    pub shard: Stat,
    /// Location of its bytes.
    pub body: Body,
    /// Checksum stored after it.
    pub digest: Digest,
}

impl Chunk {
    /// Returns the length of the encoded chunk in bytes.
    pub fn nbytes(&self) -> u64 {
        self.body.nbytes()
    }

    /// Returns the offset of the chunk in the shard's file. `None` if the shard is compressed as a
    /// whole.
    pub fn offset(&self) -> Option<u64> {
        match self.body {
            Body::InFile { offset, .. } => Some(offset),
            Body::InMemory { .. } => None,
        }
    }
}

/// Returns whether `moment`, in milliseconds of [`now`], is less than `trusted` ago.
pub(super) fn is_recent(moment: u64, trusted: Duration) -> bool {
    u128::from(now().saturating_sub(moment)) < trusted.as_millis()
}

/// Returns the milliseconds since the first call, plus one.
pub(super) fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}
