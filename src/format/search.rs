//! Searches the bytes of a shard for an index that is not in its place.
//!
//! ```text
//! a shard whose writer was interrupted, index at its end:
//!
//!   | chunks | older index | checksum | newer chunks, and no newer index
//!                         ^
//! at every byte: is what follows the checksum of the preceding bytes, as many as an index has?
//! ```
//!
//! The checksum is rolling: it is updated from the previous one, the byte that enters the window
//! and the byte that leaves it, so a search reads each byte once. One window in 2^32 matches by
//! chance; a match counts as an index only if it names at least one chunk and every chunk it names
//! ends before it.

use crate::number::to_usize;

use super::index::IndexLocation;
use super::index::{
    ByteRange, CHECKSUM_BYTES, ENTRY_BYTES, IndexCodecs, IndexError, ShardIndex, product,
};

/// Search for indexes of shards with given chunks per shard.
#[derive(Debug)]
pub(crate) struct IndexSearch<'a> {
    codecs: &'a IndexCodecs,
    chunks_per_shard: &'a [u64],
    /// Length of an index in bytes, without its checksums.
    window: usize,
    /// Length of an index in bytes, with its checksums.
    stored: usize,
    /// Change of the checksum register by a byte that enters the window (`entering`) or leaves it
    /// (`leaving`).
    entering: [u32; 256],
    leaving: [u32; 256],
    /// Checksum of a window of zeros, which cancels the initial and final inversion of a crc32c.
    zeros: u32,
}

/// An index that the search has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundIndex {
    /// Offset of its first byte in the shard.
    pub offset: u64,
    /// Its bytes as stored.
    pub bytes: Vec<u8>,
    /// Slots and ranges of the chunks that exist according to it.
    pub chunks: Vec<(u64, ByteRange)>,
}

impl<'a> IndexSearch<'a> {
    /// Creates a search for indexes that stand at the end of a shard; `None` if they have no
    /// checksum to be recognised by.
    pub(crate) fn new(
        codecs: &'a IndexCodecs,
        chunks_per_shard: &'a [u64],
    ) -> Result<Option<Self>, IndexError> {
        let slots = product(chunks_per_shard).unwrap_or(u64::MAX);
        let stored = codecs.stored_size(slots).ok_or(IndexError::Limit { slots })?;
        let window = to_usize(slots * ENTRY_BYTES);
        let stored = to_usize(stored);
        if stored < window + CHECKSUM_BYTES || window == 0 {
            return Ok(None);
        }
        // Without the initial and final inversion a crc32c is linear: the checksum of a byte is the
        // sum of those of its bits.
        let mut bytes = vec![0; window + 1];
        let (byte, zeros) = (crc32c::crc32c(&[0]), crc32c::crc32c(&bytes));
        let (mut entering, mut leaving) = ([0; 256], [0; 256]);
        for bit in 0..8 {
            let first = 1 << bit;
            bytes[0] = 1_u8 << bit;
            entering[first] = crc32c::crc32c(&bytes[..1]) ^ byte;
            leaving[first] = crc32c::crc32c(&bytes) ^ zeros;
            for rest in 1..first {
                entering[first + rest] = entering[first] ^ entering[rest];
                leaving[first + rest] = leaving[first] ^ leaving[rest];
            }
        }
        bytes[0] = 0;
        let zeros = crc32c::crc32c(&bytes[..window]);
        Ok(Some(Self { codecs, chunks_per_shard, window, stored, entering, leaving, zeros }))
    }

    /// Length in bytes of the index searched for, checksums included.
    pub(crate) fn nbytes(&self) -> usize {
        self.stored
    }

    /// Returns the indexes in `bytes`, last one first. The first byte of `bytes` is at `offset` in
    /// the shard.
    pub(crate) fn indexes_in<'b>(
        &'b self,
        bytes: &'b [u8],
        offset: u64,
    ) -> impl Iterator<Item = FoundIndex> + 'b {
        let candidates = self.candidates(bytes).into_iter().rev();
        candidates.filter_map(move |at| self.index_at(bytes, offset, at))
    }

    /// Returns the starts of all windows that are followed by their checksum.
    fn candidates(&self, bytes: &[u8]) -> Vec<usize> {
        let mut candidates = Vec::new();
        let Some(first) = bytes.get(..self.window) else { return candidates };
        let mut register = crc32c::crc32c(first) ^ self.zeros;
        let mut begin = 0;
        loop {
            let end = begin + self.window;
            let Some(stored) = bytes.get(end..).and_then(<[u8]>::first_chunk) else { break };
            if u32::from_le_bytes(*stored) == register ^ self.zeros {
                candidates.push(begin);
            }
            let entering = self.entering[usize::from(register.to_le_bytes()[0] ^ bytes[end])];
            register = (register >> 8) ^ entering ^ self.leaving[usize::from(bytes[begin])];
            begin += 1;
        }
        candidates
    }

    fn index_at(&self, bytes: &[u8], offset: u64, at: usize) -> Option<FoundIndex> {
        let stored = bytes.get(at..at + self.stored)?.to_vec();
        let offset = offset.checked_add(at as u64)?;
        let (codecs, extents) = (self.codecs, self.chunks_per_shard);
        let index = ShardIndex::decode(stored.clone(), codecs, IndexLocation::End, extents).ok()?;
        let chunks = index.chunks(offset).ok()?;
        (!chunks.is_empty()).then_some(FoundIndex { offset, bytes: stored, chunks })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(ranges: &[Option<(u64, u64)>]) -> Vec<u8> {
        let extents = [ranges.len() as u64];
        let mut index =
            ShardIndex::empty(&IndexCodecs::USUAL, IndexLocation::End, &extents).unwrap();
        for (slot, range) in (0..).zip(ranges) {
            index.set(slot, range.map(|(offset, nbytes)| ByteRange { offset, nbytes }));
        }
        index.encode()
    }

    fn last(bytes: &[u8], slots: u64, offset: u64) -> Option<(u64, usize)> {
        let extents = [slots];
        let search = IndexSearch::new(&IndexCodecs::USUAL, &extents).unwrap().unwrap();
        let found = search.indexes_in(bytes, offset).next();
        found.map(|found| (found.offset, found.chunks.len()))
    }

    #[test]
    fn the_last_index_counts() {
        let mut bytes = vec![7; 100];
        bytes.extend(index(&[Some((0, 60)), None, Some((60, 40))]));
        bytes.extend([9; 33]);
        bytes.extend(index(&[Some((0, 60)), Some((152, 33)), Some((60, 40))]));
        bytes.extend([5; 1000]);
        assert_eq!(last(&bytes, 3, 0), Some((185, 3)));
        bytes.truncate(230);
        assert_eq!(last(&bytes, 3, 0), Some((100, 2)));
        bytes.truncate(151);
        assert_eq!(last(&bytes, 3, 0), None);
    }

    #[test]
    fn an_index_of_chunks_that_end_after_it_is_none() {
        let mut bytes = vec![7; 100];
        bytes.extend(index(&[Some((0, 101)), None]));
        bytes.extend([0; 100]);
        assert_eq!(last(&bytes, 2, 0), None);
        // The index stands at a higher offset.
        assert_eq!(last(&bytes, 2, 1), Some((101, 1)));
    }

    #[test]
    fn an_index_of_nothing_is_none() {
        assert_eq!(last(&index(&[None, None, None]), 3, 0), None);
        assert_eq!(last(&[], 3, 0), None);
        assert_eq!(last(&[0; 10_000], 3, 0), None);
    }

    #[test]
    fn without_a_checksum_there_is_nothing_to_find_it_by() {
        let bytes = serde_json::json!([{"name": "bytes", "configuration": {"endian": "little"}}]);
        let codecs = IndexCodecs::parse(Some(&bytes), 1).unwrap();
        assert!(IndexSearch::new(&codecs, &[4]).unwrap().is_none());
    }

    proptest! {
        #[test]
        fn an_index_is_found_wherever_it_stands(
            before in prop::collection::vec(any::<u8>(), 0..300),
            after in prop::collection::vec(any::<u8>(), 0..300),
            slots in 1_usize..9,
        ) {
            let mut bytes = before.clone();
            let ranges: Vec<_> = (0..slots).map(|_| Some((0, before.len() as u64))).collect();
            bytes.extend(index(&ranges));
            bytes.extend(&after);
            prop_assert_eq!(last(&bytes, slots as u64, 0), Some((before.len() as u64, slots)));
        }
    }
}
