//! The shard index: maps each inner chunk to its byte range in the shard.
//!
//! ```text
//! index_location "end":    | inner chunks, in any order, gaps allowed | index | checksum |
//! index_location "start":  | index | checksum | inner chunks, in any order, gaps allowed |
//!
//! index, little-endian u64 unless its codecs say otherwise, chunks per shard in C order:
//!
//!   slot 0            slot 1            ...   slot n-1
//!   | offset | nbytes | offset | nbytes | ... | offset | nbytes |   16 * n bytes
//! checksum: crc32c of the index, little-endian u32; absent if the index codecs have none
//! ```
//!
//! Offsets count from the first byte of the shard in both layouts. An entry with both words 2^64-1
//! marks an empty chunk. Specification: `sharding_indexed` 1.0, "Binary shard format".

use serde_json::Value;

use super::chunk_error::ChunkDefect;
use super::codec::{parse_chain, transpose_order};
use super::error::MetadataError;
use super::limits::MAX_INDEX_BYTES;
use crate::number::to_usize;
use crate::text::count;

/// Length of a crc32c in bytes.
pub const CHECKSUM_BYTES: usize = 4;
/// Length of an index entry in bytes: two words.
pub const ENTRY_BYTES: u64 = 16;
/// Value of both words in the entry of an empty chunk.
pub const EMPTY: u64 = u64::MAX;

/// Position of the index in a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexLocation {
    /// At the beginning of the shard.
    Start,
    /// At the end of the shard; the default where `index_location` is missing.
    End,
}

impl IndexLocation {
    /// Returns the opposite location.
    pub fn other(self) -> Self {
        match self {
            Self::Start => Self::End,
            Self::End => Self::Start,
        }
    }

    /// Returns the range of an index of `index` bytes in a shard of `shard` bytes; `None` if the
    /// shard is shorter than the index.
    pub fn place(self, index: u64, shard: u64) -> Option<ByteRange> {
        let from_end = shard.checked_sub(index)?;
        let offset = match self {
            Self::Start => 0,
            Self::End => from_end,
        };
        Some(ByteRange { offset, nbytes: index })
    }
}

/// Encoding of an index: the `index_codecs` of a sharding codec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexCodecs {
    /// Axis of the shard for each axis of the stored index, where axis `rank` is the one over
    /// (offset, nbytes); `None` for C order.
    order: Option<Vec<usize>>,
    big_endian: bool,
    checksums: usize,
}

impl IndexCodecs {
    /// The encoding that writers use by default: little-endian, C order, with a checksum.
    pub const USUAL: Self = Self { order: None, big_endian: false, checksums: 1 };
    /// [`Self::USUAL`] without a checksum.
    pub const BARE: Self = Self { order: None, big_endian: false, checksums: 0 };

    /// Parses the `index_codecs` of a shard with `rank` dimensions. If they are absent (the
    /// specification requires them, zarr-python does not), little-endian with a checksum is
    /// assumed; `bytes` without `endian` is little-endian as well.
    pub fn parse(value: Option<&Value>, rank: usize) -> Result<Self, MetadataError> {
        if value.is_none() {
            return Ok(Self::USUAL);
        }
        let mut codecs = Self { order: None, big_endian: false, checksums: 0 };
        let invalid = || {
            MetadataError::invalid("index_codecs", "transpose, then bytes, then crc32c, at most")
        };
        let mut bytes_seen = false;
        for codec in parse_chain(value)? {
            match (codec.name.as_str(), bytes_seen) {
                ("transpose", false) => {
                    let next = transpose_order(&codec, rank + 1)?;
                    codecs.order = Some(match codecs.order {
                        None => next,
                        Some(order) => next.into_iter().map(|axis| order[axis]).collect(),
                    });
                }
                ("bytes", false) => {
                    bytes_seen = true;
                    codecs.big_endian = match codec.option("endian") {
                        None => false,
                        Some(Value::String(endian)) if endian == "little" => false,
                        Some(Value::String(endian)) if endian == "big" => true,
                        Some(_) => return Err(invalid()),
                    };
                }
                ("crc32c", true) => codecs.checksums += 1,
                _ => return Err(invalid()),
            }
        }
        if bytes_seen { Ok(codecs) } else { Err(invalid()) }
    }

    /// Number of checksums that follow the index.
    pub fn checksums(&self) -> usize {
        self.checksums
    }

    /// Returns alternative encodings that some writers use: with and without a checksum, in both
    /// byte orders.
    pub fn others(&self) -> impl Iterator<Item = Self> + '_ {
        let both = [self.big_endian, !self.big_endian];
        let all = both.into_iter().flat_map(|big| [(big, 1), (big, 0)]);
        all.map(|(big_endian, checksums)| Self { big_endian, checksums, ..self.clone() })
    }

    /// Length in bytes of the stored index of `slots` chunks; `None` if it exceeds
    /// [`MAX_INDEX_BYTES`].
    pub fn stored_size(&self, slots: u64) -> Option<u64> {
        let checksums = (self.checksums * CHECKSUM_BYTES) as u64;
        let size = slots.checked_mul(ENTRY_BYTES)?.checked_add(checksums)?;
        (size <= MAX_INDEX_BYTES).then_some(size)
    }
}

impl std::fmt::Display for IndexCodecs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let order = if self.big_endian { "big-endian" } else { "little-endian" };
        let checksum = if self.checksums == 0 { "without a checksum" } else { "with a checksum" };
        write!(f, "{order}, {checksum}")
    }
}

/// Error that makes a whole index unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// The length does not match the number of chunks per shard.
    #[error("the index has {}, {expected} are expected", count(.found, "byte"))]
    Length {
        /// Actual length in bytes.
        found: u64,
        /// Length in bytes computed from the chunks per shard.
        expected: u64,
    },
    /// The shard has more inner chunks than the limit allows.
    #[error("an index of {slots} chunks is longer than the limit of {MAX_INDEX_BYTES} bytes")]
    Limit {
        /// Number of chunks per shard.
        slots: u64,
    },
    /// The checksum does not match.
    #[error("checksum of the index is {computed:08x}, stored is {stored:08x}")]
    Checksum {
        /// Checksum stored in the shard.
        stored: u32,
        /// Checksum computed over the index.
        computed: u32,
    },
}

/// Error that makes a single index entry unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The range does not end within the shard.
    #[error(
        "its entry (offset {offset}, nbytes {nbytes}) points outside the shard of {}",
        count(.shard, "byte")
    )]
    Outside {
        /// First word of the entry.
        offset: u64,
        /// Second word of the entry.
        nbytes: u64,
        /// Length of the shard in bytes.
        shard: u64,
    },
    /// The shard's format rules out the entry.
    #[error(transparent)]
    Refused(#[from] ChunkDefect),
    /// Exactly one of the two words marks the chunk as empty.
    #[error("its entry (offset {offset}, nbytes {nbytes}) is half empty")]
    HalfEmpty {
        /// First word of the entry.
        offset: u64,
        /// Second word of the entry.
        nbytes: u64,
    },
}

/// Byte range of an encoded chunk, checked to end within its shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// Offset from the first byte of the shard.
    pub offset: u64,
    /// Length in bytes.
    pub nbytes: u64,
}

/// Verified index of one shard. Entries are decoded on demand, so it takes no more memory than its
/// stored form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex {
    bytes: Box<[u8]>,
    /// Number of chunks along each axis of the shard.
    extents: Box<[u64]>,
    /// Words between neighbours along each axis of the shard.
    strides: Box<[usize]>,
    /// Words between the offset and the nbytes of an entry.
    pair_stride: usize,
    big_endian: bool,
    checksums: usize,
    location: IndexLocation,
    /// Stored length in bytes, checksums included.
    stored_size: u64,
}

impl ShardIndex {
    /// Verifies and decodes a stored index. `chunks_per_shard` is given in the axes of the shard.
    pub fn decode(
        mut bytes: Vec<u8>,
        codecs: &IndexCodecs,
        location: IndexLocation,
        chunks_per_shard: &[u64],
    ) -> Result<Self, IndexError> {
        let (_, expected) = sizes(codecs, chunks_per_shard)?;
        let found = bytes.len() as u64;
        if found != expected {
            return Err(IndexError::Length { found, expected });
        }
        for _ in 0..codecs.checksums {
            let Some((body, stored)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
                return Err(IndexError::Length { found, expected });
            };
            let (stored, computed) = (u32::from_le_bytes(*stored), crc32c::crc32c(body));
            if stored != computed {
                return Err(IndexError::Checksum { stored, computed });
            }
            bytes.truncate(body.len());
        }
        let (strides, pair_stride) = strides(codecs, chunks_per_shard);
        Ok(Self {
            bytes: bytes.into_boxed_slice(),
            extents: chunks_per_shard.into(),
            strides,
            pair_stride,
            big_endian: codecs.big_endian,
            checksums: codecs.checksums,
            location,
            stored_size: expected,
        })
    }

    /// Returns what `bytes` say of chunks as the entries of an index, without checksums, in a shard of
    /// `shard` bytes, by slot. Entries that no writer makes are left out.
    pub(crate) fn readable_entries(
        bytes: Vec<u8>,
        codecs: &IndexCodecs,
        chunks_per_shard: &[u64],
        shard: u64,
    ) -> Vec<(u64, Option<ByteRange>)> {
        let codecs = IndexCodecs { checksums: 0, ..codecs.clone() };
        let index = Self::decode(bytes, &codecs, IndexLocation::End, chunks_per_shard);
        let Ok(index) = index else { return Vec::new() };
        let readable = |slot| {
            let entry = index.range_at(index.word_of_slot(slot), shard).ok()?;
            entry.is_none_or(|range| range.nbytes > 0).then_some((slot, entry))
        };
        (0..index.slots()).filter_map(readable).collect()
    }

    /// Returns the bytes of the entry of a chunk, if the two words of an entry are neighbours, and
    /// entries are in the order of slots.
    pub(crate) fn entry_bytes(codecs: &IndexCodecs, range: ByteRange) -> Option<[u8; 16]> {
        if codecs.order.is_some() {
            return None;
        }
        let words = [range.offset, range.nbytes];
        let bytes = words.map(|word| match codecs.big_endian {
            true => word.to_be_bytes(),
            false => word.to_le_bytes(),
        });
        bytes.concat().try_into().ok()
    }

    /// Returns the index of a shard in which every chunk is empty.
    pub fn empty(
        codecs: &IndexCodecs,
        location: IndexLocation,
        chunks_per_shard: &[u64],
    ) -> Result<Self, IndexError> {
        let (slots, stored_size) = sizes(codecs, chunks_per_shard)?;
        let words = slots.saturating_mul(ENTRY_BYTES);
        let (strides, pair_stride) = strides(codecs, chunks_per_shard);
        Ok(Self {
            // Every byte of 2^64-1 is 255, in either byte order. `sizes` has checked the limit.
            bytes: vec![u8::MAX; to_usize(words)].into_boxed_slice(),
            extents: chunks_per_shard.into(),
            strides,
            pair_stride,
            big_endian: codecs.big_endian,
            checksums: codecs.checksums,
            location,
            stored_size,
        })
    }

    /// Number of slots: chunks per shard, empty ones included.
    pub fn slots(&self) -> u64 {
        self.bytes.len() as u64 / ENTRY_BYTES
    }

    /// Returns whether no slot has a chunk.
    pub fn is_empty(&self) -> bool {
        self.bytes.iter().all(|byte| *byte == u8::MAX)
    }

    /// Stored length in bytes, checksums included.
    pub fn stored_size(&self) -> u64 {
        self.stored_size
    }

    /// Location of the index in its shard.
    pub fn location(&self) -> IndexLocation {
        self.location
    }

    /// Returns the range of the index in a shard of `shard` bytes; `None` if the shard is too
    /// short.
    pub fn place(&self, shard: u64) -> Option<ByteRange> {
        self.location.place(self.stored_size, shard)
    }

    /// Returns the slot number, in C order, of `position`, given in the axes of the shard.
    pub fn slot(&self, position: impl IntoIterator<Item = u64>) -> u64 {
        position.into_iter().zip(&self.extents).fold(0, |slot, (at, extent)| slot * extent + at)
    }

    /// Returns the position of a slot in the axes of the shard.
    pub fn position(&self, slot: u64) -> Vec<u64> {
        let mut rest = slot;
        let mut position = vec![0; self.extents.len()];
        for (at, extent) in position.iter_mut().zip(&self.extents).rev() {
            *at = rest.checked_rem(*extent).unwrap_or(0);
            rest = rest.checked_div(*extent).unwrap_or(0);
        }
        position
    }

    /// Returns the existing chunks in slot order, for a shard of `shard` bytes, or the slot and
    /// error of the first bad entry.
    pub fn chunks(&self, shard: u64) -> Result<Vec<(u64, ByteRange)>, (u64, EntryError)> {
        let mut chunks = Vec::new();
        for slot in 0..self.slots() {
            match self.range_at(self.word_of_slot(slot), shard) {
                Ok(Some(range)) => chunks.push((slot, range)),
                Ok(None) => (),
                Err(error) => return Err((slot, error)),
            }
        }
        Ok(chunks)
    }

    /// Number of chunks marked as empty the way zarrita does it, with one word that is not 2^64-1.
    pub fn wrapped_empties(&self) -> u64 {
        if self.location == IndexLocation::End {
            return 0;
        }
        let is_wrapped = |slot: &u64| {
            let at = self.word_of_slot(*slot);
            self.is_wrapped_empty(self.word(at), self.word(at + self.pair_stride))
        };
        (0..self.slots()).filter(is_wrapped).count() as u64
    }

    /// Sets the range of a slot; `None` empties it.
    pub fn set(&mut self, slot: u64, range: Option<ByteRange>) {
        let (offset, nbytes) = range.map_or((EMPTY, EMPTY), |range| (range.offset, range.nbytes));
        let at = self.word_of_slot(slot);
        self.set_word(at, offset);
        self.set_word(at + self.pair_stride, nbytes);
    }

    /// Encodes the index, checksums included.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.bytes.to_vec();
        for _ in 0..self.checksums {
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        }
        bytes
    }

    /// Memory used by the index, in bytes.
    pub fn memory(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.strides) + size_of::<Self>()
    }

    /// Returns the range of the chunk at `position`, given in the axes of the shard, in a shard of
    /// `shard` bytes; `None` if the chunk is empty.
    pub fn range(
        &self,
        position: impl IntoIterator<Item = u64>,
        shard: u64,
    ) -> Result<Option<ByteRange>, EntryError> {
        self.range_at(self.word_of(position), shard)
    }

    fn range_at(&self, at: usize, shard: u64) -> Result<Option<ByteRange>, EntryError> {
        let (offset, nbytes) = (self.word(at), self.word(at + self.pair_stride));
        if (offset, nbytes) == (EMPTY, EMPTY) || self.is_wrapped_empty(offset, nbytes) {
            return Ok(None);
        }
        if offset == EMPTY || nbytes == EMPTY {
            return Err(EntryError::HalfEmpty { offset, nbytes });
        }
        match offset.checked_add(nbytes) {
            Some(end) if end <= shard => Ok(Some(ByteRange { offset, nbytes })),
            _ => Err(EntryError::Outside { offset, nbytes, shard }),
        }
    }

    /// Returns whether the words are an empty entry as zarrita wrote it. zarrita (Python), the
    /// reference implementation of ZEP 2, added the length of an index at the start to the offsets
    /// of empty chunks too; the sum wrapped to that length minus one.
    fn is_wrapped_empty(&self, offset: u64, nbytes: u64) -> bool {
        self.location == IndexLocation::Start
            && nbytes == EMPTY
            && offset.checked_add(1) == Some(self.stored_size)
    }

    /// Returns the position of the first word of an entry. Positions lie within the chunks per
    /// shard, and the words of all chunks are in memory, so the sum does not overflow. A position
    /// outside would be a bug, which the access to the word exposes.
    fn word_of(&self, position: impl IntoIterator<Item = u64>) -> usize {
        #[allow(clippy::cast_possible_truncation, reason = "smaller than the index in memory")]
        position.into_iter().zip(&self.strides).map(|(p, s)| p as usize * s).sum()
    }

    fn word_of_slot(&self, slot: u64) -> usize {
        let mut rest = slot;
        let axes = self.extents.iter().zip(&self.strides).rev();
        #[allow(clippy::cast_possible_truncation, reason = "smaller than the index in memory")]
        axes.map(|(extent, stride)| {
            let along = rest.checked_rem(*extent).unwrap_or(0);
            rest = rest.checked_div(*extent).unwrap_or(0);
            along as usize * stride
        })
        .sum()
    }

    fn set_word(&mut self, at: usize, word: u64) {
        let bytes = if self.big_endian { word.to_be_bytes() } else { word.to_le_bytes() };
        let (words, _) = self.bytes.as_chunks_mut::<8>();
        if let Some(place) = words.get_mut(at) {
            *place = bytes;
        }
    }

    fn word(&self, at: usize) -> u64 {
        let (words, _) = self.bytes.as_chunks::<8>();
        match words.get(at) {
            Some(word) if self.big_endian => u64::from_be_bytes(*word),
            Some(word) => u64::from_le_bytes(*word),
            // Unreachable for a checked position; an empty word is no range in any shard.
            None => EMPTY,
        }
    }
}

/// Returns the words between neighbours along each axis of the shard, and the words between the two
/// words of an entry.
fn strides(codecs: &IndexCodecs, chunks_per_shard: &[u64]) -> (Box<[usize]>, usize) {
    let rank = chunks_per_shard.len();
    #[allow(clippy::cast_possible_truncation, reason = "their product is in memory")]
    let mut extents: Vec<usize> = chunks_per_shard.iter().map(|n| *n as usize).collect();
    extents.push(2);
    let mut strides = vec![0; rank + 1];
    let mut step = 1_usize;
    for stored_axis in (0..=rank).rev() {
        let axis = codecs.order.as_ref().map_or(stored_axis, |order| order[stored_axis]);
        strides[axis] = step;
        // The product of some axes of an index without chunks is unbounded.
        step = step.saturating_mul(extents[axis]);
    }
    let pair_stride = strides.pop().unwrap_or(1);
    (strides.into_boxed_slice(), pair_stride)
}

/// Returns the number of slots and the length in bytes of their stored index.
fn sizes(codecs: &IndexCodecs, chunks_per_shard: &[u64]) -> Result<(u64, u64), IndexError> {
    let slots = product(chunks_per_shard).ok_or(IndexError::Limit { slots: u64::MAX })?;
    let stored = codecs.stored_size(slots).ok_or(IndexError::Limit { slots })?;
    Ok((slots, stored))
}

/// Product of the numbers; `None` if it overflows.
pub fn product(numbers: &[u64]) -> Option<u64> {
    numbers.iter().try_fold(1_u64, |product, number| product.checked_mul(*number))
}

#[cfg(test)]
mod tests;
