//! The index of a shard that has one wrong byte, and is right with another one in its place.

use std::io;
use std::sync::Arc;

use crate::format::index::{ByteRange, IndexLocation, ShardIndex, product};
use crate::format::space::Space;
use crate::format::wrong_byte::wrong_bytes;
use crate::store::blob::bytes_of;
use crate::store::storage::Stat;
use crate::store::{LoadedShard, ShardStore, SourceArray, StoreError, io_error};

/// Byte of an index without which its checksum would match.
#[derive(Debug)]
pub struct WrongByte {
    /// Offset in the shard's file.
    pub at: u64,
    /// What is there.
    pub found: u8,
    /// What was there, as the checksum has it.
    pub right: u8,
    /// The index as it was.
    index: Vec<u8>,
    /// Attributes of the file in which it was found.
    pub(super) found_in: Stat,
}

impl WrongByte {
    /// Returns whether the checksum alone shows that it is this byte: that several bytes are wrong, and one other seems to
    /// explain it, happens once in 2^24 for each byte of an index.
    pub fn is_certain(&self) -> bool {
        const SHORT: usize = 128 << 10;
        self.index.len() <= SHORT
    }
}

impl ShardStore {
    /// Finds the one byte of a shard's index, whose checksum does not match, with which it would. The shard's file had
    /// the attributes `found_in` then. `None` if that is none, or not certain: of several bytes that are wrong the
    /// checksum does not say which they are.
    ///
    /// # Errors
    /// The file cannot be read, or has changed since.
    pub(super) fn wrong_byte(
        &self,
        array: &SourceArray,
        coords: &[u64],
        found_in: Stat,
    ) -> Result<Option<WrongByte>, StoreError> {
        let sharding = &array.layout.levels[0];
        let (codecs, location) = (&sharding.index_codecs, sharding.index_location);
        let extents = array.layout.chunks_per_shard(0, coords);
        let stored = product(&extents).and_then(|slots| codecs.stored_size(slots));
        let place = stored.and_then(|stored| location.place(stored, found_in.size));
        let Some(place) = place.filter(|_| codecs.checksums() == 1) else { return Ok(None) };
        let path = array.shard_path(coords);
        let file = self.storage.open(&path).map_err(io_error(&path))?;
        let read = || Ok::<_, io::Error>((bytes_of(&*file, place)?, file.stat()?));
        let (index, now) = read().map_err(io_error(&path))?;
        if now.version() != found_in.version() {
            return Err(StoreError::Changing { shard: path });
        }
        let mut found = wrong_bytes(&index).into_iter().filter_map(|wrong| {
            let mut right = index.clone();
            right[wrong.at] = wrong.right;
            let decoded = ShardIndex::decode(right.clone(), codecs, location, &extents).ok()?;
            let chunks = decoded.chunks(found_in.size).ok()?;
            is_plausible(&decoded, &chunks, found_in.size).then_some(WrongByte {
                at: place.offset + wrong.at as u64,
                found: index[wrong.at],
                right: wrong.right,
                index: right,
                found_in,
            })
        });
        Ok(found.next().filter(|_| found.next().is_none()))
    }

    /// Returns the shard at `coords` as it is once this byte is right.
    pub fn as_with(
        &self,
        array: &SourceArray,
        coords: &[u64],
        wrong: &WrongByte,
    ) -> Arc<LoadedShard> {
        let location: IndexLocation = array.layout.levels[0].index_location;
        let index = (wrong.index.clone(), location);
        self.as_by(array, coords, (wrong.found_in, wrong.found_in.size), index)
    }
}

/// Returns whether an index that no checksum has proved is plausible: its chunks are not empty, and overlap
/// neither each other nor the index.
pub(super) fn is_plausible(index: &ShardIndex, chunks: &[(u64, ByteRange)], shard: u64) -> bool {
    let mut ranges: Vec<ByteRange> = chunks.iter().map(|(_, range)| *range).collect();
    if ranges.is_empty() || ranges.iter().any(|range| range.nbytes == 0) {
        return false;
    }
    ranges.extend(index.place(shard));
    Space::new(ranges).clashes().is_empty()
}
