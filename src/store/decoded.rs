//! Decoded chunks: reading, decoding, and a cache with a budget.
//!
//! One thread decodes a chunk; others that need the same chunk wait for it. A cached chunk belongs
//! to the shard as it was then: if the shard has changed since, the chunk is decoded again.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

pub(crate) use super::decoded_cache::DecodedChunk;
use super::error::Damage;
use super::storage::Version;
use super::{Chunk, ChunkReader, Freshness, ShardStore, SourceArray, StoreError, io_error};
use crate::format::index::product;
use crate::format::pipeline::{DecodeError, Pipeline};
use crate::memory::{NoMemory, ROOM, resize};
use crate::requester;

/// Attempts to read a chunk that keeps changing while it is read.
const ATTEMPTS: usize = 4;
/// Maximum size of a thread's buffer of encoded bytes that is kept.
const ENCODED_KEPT: usize = 8 << 20;

thread_local! {
    /// Buffer into which encoded chunks are read.
    static ENCODED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Chunk as it was read and decoded.
struct Decoded {
    bytes: Vec<u8>,
    /// Its shard at that moment.
    shard: Version,
    /// `true` if another change of the shard makes another version.
    is_settled: bool,
}

/// Result of a request for a decoded chunk.
#[derive(Debug)]
pub enum Asked {
    /// The index says that the chunk is empty.
    Empty,
    /// The chunk is available.
    Here(Arc<DecodedChunk>),
    /// Another thread is decoding the chunk, or it would have to be decoded.
    Busy,
}

impl Asked {
    /// Returns the chunk. `None` if it is empty or not available.
    pub fn chunk(self) -> Option<Arc<DecodedChunk>> {
        match self {
            Self::Here(chunk) => Some(chunk),
            Self::Empty | Self::Busy => None,
        }
    }
}

impl ShardStore {
    /// Returns the decoded chunk at `coords`, which must lie in the chunk grid. `None` if it is
    /// empty.
    ///
    /// # Errors
    /// Those of reading and decoding; EINTR if it would wait for another thread that decodes the chunk,
    /// and the process whose request this is has been ended.
    pub fn decoded(
        &self,
        array: &SourceArray,
        pipeline: &Pipeline,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<Arc<DecodedChunk>>, StoreError> {
        let found =
            self.decode(array, pipeline, coords, freshness, |it| requester::lock(it).map(Some))?;
        Ok(found.chunk())
    }

    /// Like [`Self::decoded()`], but does not wait for another thread that is decoding the chunk.
    pub fn decoded_unless_busy(
        &self,
        array: &SourceArray,
        pipeline: &Pipeline,
        coords: &[u64],
    ) -> Result<Asked, StoreError> {
        self.decode(array, pipeline, coords, Freshness::Recent, |it| Ok(it.try_lock()))
    }

    /// Like [`Self::decoded()`], but returns [`Asked::Busy`] if the chunk is not cached.
    pub fn decoded_if_kept(
        &self,
        array: &SourceArray,
        pipeline: &Pipeline,
        coords: &[u64],
    ) -> Result<Asked, StoreError> {
        self.decode(array, pipeline, coords, Freshness::Recent, |_| Ok(None))
    }

    fn decode<'a>(
        &'a self,
        array: &SourceArray,
        pipeline: &Pipeline,
        coords: &[u64],
        freshness: Freshness,
        turn: impl FnOnce(&'a Mutex<()>) -> io::Result<Option<MutexGuard<'a, ()>>>,
    ) -> Result<Asked, StoreError> {
        let Some(chunk) = self.chunk(array, coords, freshness)? else { return Ok(Asked::Empty) };
        let key = (array.id, number(array, coords));
        if let Some(known) = self.decoded.get(key, chunk.shard.version()) {
            self.stats.decoded.hits.count();
            return Ok(Asked::Here(known));
        }
        let shard = || array.shard_path(&array.layout.shard_of(coords));
        let turn = turn(self.decoded.stripe(key)).map_err(|error| io_error(&shard())(error))?;
        let Some(_turn) = turn else { return Ok(Asked::Busy) };
        if let Some(known) = self.decoded.get(key, chunk.shard.version()) {
            self.stats.decoded.hits.count();
            return Ok(Asked::Here(known));
        }
        let decoded = ENCODED.with_borrow_mut(|encoded| {
            let decoded = self.read_decoded(array, pipeline, coords, chunk, encoded);
            if encoded.capacity() > ENCODED_KEPT {
                *encoded = Vec::new();
            }
            decoded
        });
        let Some(Decoded { bytes, shard, is_settled }) = decoded? else { return Ok(Asked::Empty) };
        self.stats.decoded.chunks.count();
        self.stats.decoded.bytes.add(bytes.len() as u64);
        let spare = Arc::clone(&self.decoded.spare);
        let chunk = Arc::new(DecodedChunk { bytes, shard, spare });
        if is_settled {
            let chunks = product(&array.layout.chunk_grid()).unwrap_or(u64::MAX);
            self.decoded.put(key, &chunk, chunks);
        }
        Ok(Asked::Here(chunk))
    }

    /// Reads and decodes a chunk. `None` if it is empty by now.
    fn read_decoded(
        &self,
        array: &SourceArray,
        pipeline: &Pipeline,
        coords: &[u64],
        found: Chunk,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<Decoded>, StoreError> {
        let number = array.layout.shard_of(coords);
        let decode = |reader: &ChunkReader, bytes: &mut Vec<u8>| {
            let shard = reader.shard().version();
            // Before it is read: a later change is dated later.
            let is_settled = !self.may_look_unchanged(array.shard_id(&number), shard);
            let decoded = self.read_and_decode(array, pipeline, coords, reader, bytes)?;
            Ok::<_, StoreError>(decoded.map(|bytes| Decoded { bytes, shard, is_settled }))
        };
        let mut found = Some(found);
        for _ in 0..ATTEMPTS {
            let Some(chunk) = found else { return Ok(None) };
            if let Some(reader) = self.reader(array, coords, &chunk)?
                && let Some(decoded) = decode(&reader, bytes)?
            {
                return Ok(Some(decoded));
            }
            found = self.chunk(array, coords, Freshness::Again)?;
        }
        let read = self.quiet_reader(array, coords, |reader| {
            let changing = || StoreError::Changing { shard: array.shard_path(&number) };
            decode(&reader, bytes)?.ok_or_else(changing)
        });
        read?.transpose()
    }

    /// Reads the bytes of an open chunk and decodes them. `None` if its shard changed in the
    /// meantime.
    fn read_and_decode(
        &self,
        array: &SourceArray,
        pipeline: &Pipeline,
        coords: &[u64],
        reader: &ChunkReader,
        bytes: &mut Vec<u8>,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let shard = || array.shard_path(&array.layout.shard_of(coords));
        // Between codecs the chunk is about as long as it is in the end.
        let decoded = (pipeline.nbytes() as u64).saturating_mul(2);
        let room = ROOM.take(reader.nbytes().saturating_add(decoded));
        let _room = room.map_err(io_error(&shard()))?;
        if !self.read_all(reader, &shard, bytes)? {
            return Ok(None);
        }
        let no_memory = |none: NoMemory| io_error(&shard())(none.into());
        let mut decoded = self.decoded.spare.take(pipeline.nbytes()).map_err(no_memory)?;
        match pipeline.decode_at(coords, bytes, &mut decoded) {
            Ok(()) => Ok(Some(decoded)),
            Err(DecodeError::NoMemory(none)) => Err(no_memory(none)),
            Err(error) => Err(self.undecodable(array, coords, error)),
        }
    }

    /// Reads the bytes of an open chunk. Returns `false` if its shard changed in the meantime.
    fn read_all(
        &self,
        reader: &ChunkReader,
        shard: &dyn Fn() -> PathBuf,
        bytes: &mut Vec<u8>,
    ) -> Result<bool, StoreError> {
        let (found, limit) = (reader.nbytes(), self.config.decode_limit);
        if found > limit {
            let damage = Arc::new(Damage::TooLong { found, limit });
            let error = StoreError::Damaged { shard: shard(), damage };
            self.report(&error);
            return Err(error);
        }
        resize(bytes, found).map_err(|none| io_error(&shard())(none.into()))?;
        let read = reader.read(bytes, 0);
        if !self.config.immutable && !reader.unchanged().map_err(io_error(&shard()))? {
            return Ok(false);
        }
        read.map_err(io_error(&shard()))?;
        Ok(true)
    }

    fn undecodable(&self, array: &SourceArray, coords: &[u64], error: DecodeError) -> StoreError {
        let location = array.layout.locate(coords);
        let shard = array.shard_path(&location.shard);
        let error = StoreError::Undecodable { shard, position: location.positions.concat(), error };
        self.report(&error);
        error
    }
}

/// Returns the number of a chunk in C order over the grid.
fn number(array: &SourceArray, coords: &[u64]) -> u64 {
    // Cannot overflow: the grid is limited, because inode numbers are computed from it.
    let axes = coords.iter().zip(&array.layout.shard_grid);
    axes.fold(0, |number, (coord, axis)| number * axis.chunks() + coord)
}
