//! Shard inside a chunk: `sharding_indexed` as the array->bytes codec.

use super::error::{DecodeError, EncodeError, PipelineError};
use super::layout::{self, Region};
use super::{Chain, Item};
use crate::format::chain::split;
use crate::format::codec::Codec;
use crate::format::error::MetadataError;
use crate::format::index::{
    ByteRange, ENTRY_BYTES, IndexCodecs, IndexError, IndexLocation, ShardIndex, product,
};
use crate::format::limits::MAX_INDEX_BYTES;
use crate::memory::resize;

/// Layout of a chunk that is a shard of smaller ones.
#[derive(Debug)]
pub struct Shard {
    /// Shape in items.
    shape: Vec<usize>,
    /// Shape of an inner chunk in items.
    inner_shape: Vec<usize>,
    /// Number of inner chunks along each axis.
    chunks: Vec<u64>,
    inner: Chain,
    index_codecs: IndexCodecs,
    index_location: IndexLocation,
    /// Length of the stored index in bytes.
    index_size: u64,
}

impl Shard {
    /// Parses a codec over an array of `shape` inside `depth` levels of sharding.
    pub fn parse(
        codec: &Codec,
        shape: &[usize],
        item: &Item,
        depth: usize,
    ) -> Result<Self, PipelineError> {
        let rank = shape.len();
        let parts = split(std::slice::from_ref(codec), rank)?;
        let parts = parts.ok_or_else(|| PipelineError::Misplaced(codec.name.clone()))?;
        let mut inner_shape = Vec::with_capacity(rank);
        let mut chunks = Vec::with_capacity(rank);
        for (shard, chunk) in shape.iter().zip(&parts.chunk_shape) {
            let uneven = MetadataError::NotDividing { chunk: *chunk, shard: *shard as u64 };
            let Ok(inner) = usize::try_from(*chunk) else { return Err(uneven.into()) };
            // A length of 0 is valid only with a length of 0.
            match shard.checked_rem(inner).unwrap_or(*shard) {
                0 => chunks.push(shard.checked_div(inner).unwrap_or(1) as u64),
                _ => return Err(uneven.into()),
            }
            inner_shape.push(inner);
        }
        let stored = product(&chunks).and_then(|slots| parts.index_codecs.stored_size(slots));
        let Some(index_size) = stored else {
            let limit = MAX_INDEX_BYTES / ENTRY_BYTES;
            return Err(MetadataError::Limit { what: "inner chunks in a shard", limit }.into());
        };
        Ok(Self {
            shape: shape.to_vec(),
            inner: Chain::parse(&parts.codecs, &inner_shape, item, depth + 1)?,
            inner_shape,
            chunks,
            index_codecs: parts.index_codecs,
            index_location: parts.index_location,
            index_size,
        })
    }

    /// Returns the maximum length of the encoded shard in bytes, without gaps.
    pub fn bound(&self) -> u64 {
        let slots = product(&self.chunks).unwrap_or(u64::MAX);
        slots.saturating_mul(self.inner.bound()).saturating_add(self.index_size)
    }

    /// Returns the position of the first item of an inner chunk.
    fn origin(&self, index: &ShardIndex, slot: u64) -> Vec<usize> {
        let position = index.position(slot);
        #[allow(clippy::cast_possible_truncation, reason = "within the chunks per shard")]
        let at = |(at, length): (u64, &usize)| at as usize * length;
        position.into_iter().zip(&self.inner_shape).map(at).collect()
    }

    fn region<'a>(&'a self, origin: &'a [usize], item: usize) -> Region<'a> {
        Region { shape: &self.shape, origin, extent: &self.inner_shape, item }
    }

    fn index(&self, shard: &[u8]) -> Result<ShardIndex, DecodeError> {
        let found = shard.len() as u64;
        let size = usize::try_from(self.index_size).ok().filter(|size| *size <= shard.len());
        let too_short = IndexError::Length { found, expected: self.index_size };
        let size = size.ok_or(too_short)?;
        let stored = match self.index_location {
            IndexLocation::Start => &shard[..size],
            IndexLocation::End => &shard[shard.len() - size..],
        };
        let index = ShardIndex::decode(
            stored.to_vec(),
            &self.index_codecs,
            self.index_location,
            &self.chunks,
        )?;
        Ok(index)
    }

    /// Decodes every inner chunk into its place; absent chunks are filled with the fill value.
    pub fn decode(&self, shard: &[u8], out: &mut [u8], item: &Item) -> Result<(), DecodeError> {
        let index = self.index(shard)?;
        let entries = index.chunks(shard.len() as u64);
        let chunks = entries.map_err(|(slot, error)| DecodeError::Entry { slot, error })?;
        if (chunks.len() as u64) < index.slots() {
            layout::fill(out, &item.fill);
        }
        let mut scratch = Vec::new();
        for (slot, range) in chunks {
            let encoded = part(shard, range);
            let origin = self.origin(&index, slot);
            let region = self.region(&origin, item.nbytes);
            let decoded = if let Some(piece) = region.one_piece() {
                self.inner.decode(encoded, &mut out[piece], item)
            } else {
                resize(&mut scratch, self.inner.nbytes as u64)?;
                self.inner.decode(encoded, &mut scratch, item)
            };
            decoded.map_err(|error| DecodeError::Inner { slot, error: Box::new(error) })?;
            if !scratch.is_empty() {
                region.put(&scratch, out);
            }
        }
        Ok(())
    }

    /// Encodes the inner chunks in C order, leaving out those that hold only fill values.
    pub fn encode(&self, array: &[u8], item: &Item) -> Result<Vec<u8>, EncodeError> {
        let mut index = ShardIndex::empty(&self.index_codecs, self.index_location, &self.chunks)?;
        let front = match self.index_location {
            IndexLocation::Start => usize::try_from(self.index_size).unwrap_or_default(),
            IndexLocation::End => 0,
        };
        let mut shard = vec![0; front];
        let mut chunk = vec![0; self.inner.nbytes];
        for slot in 0..index.slots() {
            let origin = self.origin(&index, slot);
            self.region(&origin, item.nbytes).take(array, &mut chunk);
            if layout::is_filled(&chunk, &item.fill) {
                continue;
            }
            let encoded = self.inner.encode(&chunk, item)?;
            let (offset, nbytes) = (shard.len() as u64, encoded.len() as u64);
            index.set(slot, Some(ByteRange { offset, nbytes }));
            shard.extend_from_slice(&encoded);
        }
        let stored = index.encode();
        match self.index_location {
            IndexLocation::Start => shard[..front].copy_from_slice(&stored),
            IndexLocation::End => shard.extend_from_slice(&stored),
        }
        Ok(shard)
    }
}

/// Returns the bytes of a range that was checked to end within the shard.
fn part(shard: &[u8], range: ByteRange) -> &[u8] {
    #[allow(clippy::cast_possible_truncation, reason = "within a slice in memory")]
    let (offset, nbytes) = (range.offset as usize, range.nbytes as usize);
    &shard[offset..offset + nbytes]
}
