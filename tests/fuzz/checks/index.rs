//! Shard indexes: decoded as a plain model of the specification decodes them.
//!
//! ```text
//! flags | rank | chunks per shard, a byte an axis | checksums | order, a byte an axis and one
//!       | length of the shard, u64 | stored index
//! ```

use serde_json::{Value, json};
use shardfs::format::index::IndexLocation;
use shardfs::format::index::{
    ByteRange, EMPTY, EntryError, IndexCodecs, IndexError, ShardIndex, product,
};

use super::Input;
use super::memory::within;

/// Chunks along an axis that stand for the last byte values: beyond what an index may have.
const EXTREMES: [u64; 8] =
    [1 << 20, 1 << 24, 1 << 25, 1 << 32, 1 << 40, 1 << 60, 1 << 63, u64::MAX];
/// What decoding may take besides the index, which it cuts the checksum off.
const SLACK: usize = 1 << 12;
/// Longer indexes are decoded but not made up.
const LONGEST_MADE: u64 = 1 << 14;

/// What an input stands for.
struct Case {
    chunks: Vec<u64>,
    /// Stored axis k is axis `order[k]`; the last is the one over (offset, nbytes).
    order: Vec<usize>,
    big_endian: bool,
    checksums: usize,
    location: IndexLocation,
    shard: u64,
    stored: Vec<u8>,
}

/// An index is refused or gives ranges that end within the shard, those that its bytes say.
pub fn index(bytes: &[u8]) {
    let case = Case::of(bytes);
    let codecs = IndexCodecs::parse(Some(&case.codecs()), case.chunks.len()).unwrap();
    let slots = product(&case.chunks);
    let expected = slots.and_then(|slots| codecs.stored_size(slots));
    let stored = case.stored.clone();
    let found = stored.len() as u64;
    let limit = stored.len() + SLACK;
    let decoded =
        within(limit, || ShardIndex::decode(stored, &codecs, case.location, &case.chunks));
    let index = match decoded {
        Ok(index) => index,
        Err(IndexError::Limit { .. }) => return assert_eq!(expected, None),
        Err(IndexError::Length { .. }) => return assert_ne!(expected, Some(found)),
        Err(IndexError::Checksum { .. }) => return assert!(case.checksums > 0),
    };
    assert_eq!(expected, Some(found));
    assert!(index.memory() <= case.stored.len() + SLACK);
    let mut entries = Vec::new();
    for slot in 0..slots.unwrap_or(0).min(4096) {
        let position = case.position(slot);
        let range = index.range(position.iter().copied(), case.shard);
        assert_eq!(range, case.range(&position), "{position:?}");
        entries.extend(range);
    }
    for range in entries.iter().flatten() {
        assert!(range.offset <= case.shard && range.nbytes <= case.shard - range.offset);
    }
    survives_as_bytes(&entries, case.shard);
}

/// What was encoded is decoded to the same.
fn survives_as_bytes(entries: &[Option<ByteRange>], shard: u64) {
    let codecs = IndexCodecs::parse(None, 1).unwrap();
    let chunks = [entries.len() as u64];
    let mut written = ShardIndex::empty(&codecs, IndexLocation::End, &chunks).unwrap();
    for (slot, entry) in (0..).zip(entries) {
        written.set(slot, *entry);
    }
    let bytes = written.encode();
    let index = ShardIndex::decode(bytes, &codecs, IndexLocation::End, &chunks).unwrap();
    assert_eq!(index, written);
    for (slot, entry) in (0..).zip(entries) {
        assert_eq!(index.range([slot], shard), Ok(*entry));
    }
}

impl Case {
    fn of(bytes: &[u8]) -> Self {
        let mut input = Input(bytes);
        let flags = input.byte();
        let rank = usize::from(input.byte() % 6);
        let extent = |byte: u8| match usize::from(byte).checked_sub(256 - EXTREMES.len()) {
            Some(extreme) => EXTREMES[extreme],
            None => u64::from(byte),
        };
        let chunks: Vec<u64> = (0..rank).map(|_| extent(input.byte())).collect();
        let checksums = usize::from(input.byte() % 4);
        let mut order: Vec<usize> = (0..=rank).collect();
        if flags & 1 != 0 {
            for axis in 0..=rank {
                order.swap(axis, usize::from(input.byte()) % (rank + 1));
            }
        }
        let mut case = Self {
            chunks,
            order,
            big_endian: flags & 2 != 0,
            checksums,
            location: match flags & 4 {
                0 => IndexLocation::End,
                _ => IndexLocation::Start,
            },
            shard: input.u64(),
            stored: input.rest().to_vec(),
        };
        // Few inputs are as long as they should be, fewer have the right checksum.
        if flags & 8 == 0 {
            case.make_fit(flags & 16 == 0);
        }
        case
    }

    fn make_fit(&mut self, seal: bool) {
        let Some(slots) = product(&self.chunks).filter(|slots| *slots <= LONGEST_MADE) else {
            return;
        };
        self.stored.resize(slots as usize * 16, 0xff);
        for _ in 0..self.checksums {
            let checksum = match seal {
                true => crc32c::crc32c(&self.stored),
                false => 0,
            };
            self.stored.extend(checksum.to_le_bytes());
        }
    }

    fn codecs(&self) -> Value {
        let endian = if self.big_endian { "big" } else { "little" };
        let mut codecs = vec![
            json!({"name": "transpose", "configuration": {"order": self.order}}),
            json!({"name": "bytes", "configuration": {"endian": endian}}),
        ];
        codecs.extend((0..self.checksums).map(|_| json!("crc32c")));
        codecs.into()
    }

    /// The position of a slot in C order.
    fn position(&self, slot: u64) -> Vec<u64> {
        let mut rest = slot;
        let mut position = vec![0; self.chunks.len()];
        for (place, extent) in position.iter_mut().zip(&self.chunks).rev() {
            *place = rest % extent;
            rest /= extent;
        }
        position
    }

    /// The entry of a chunk as the specification has it.
    fn range(&self, position: &[u64]) -> Result<Option<ByteRange>, EntryError> {
        let [offset, nbytes] = [0, 1].map(|word| self.word(position, word));
        let shard = self.shard;
        let size = self.stored.len() as u64;
        let start = self.location == IndexLocation::Start;
        match (offset, nbytes) {
            (EMPTY, EMPTY) => Ok(None),
            // What zarrita wrote for an empty chunk.
            (offset, EMPTY) if start && size > 0 && offset == size - 1 => Ok(None),
            (EMPTY, _) | (_, EMPTY) => Err(EntryError::HalfEmpty { offset, nbytes }),
            (offset, nbytes) if u128::from(offset) + u128::from(nbytes) <= u128::from(shard) => {
                Ok(Some(ByteRange { offset, nbytes }))
            }
            _ => Err(EntryError::Outside { offset, nbytes, shard }),
        }
    }

    fn word(&self, position: &[u64], word: u64) -> u64 {
        let coords: Vec<u64> = position.iter().copied().chain([word]).collect();
        let extents: Vec<u64> = self.chunks.iter().copied().chain([2]).collect();
        let at = self.order.iter().fold(0, |at, axis| at * extents[*axis] + coords[*axis]);
        let bytes = self.stored[at as usize * 8..][..8].try_into().unwrap();
        if self.big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
    }
}
