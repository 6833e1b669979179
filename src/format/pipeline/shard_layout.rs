//! Layout of a chunk that is a shard: where its inner chunks and their index are.

use super::error::{DecodeError, PipelineError};
use super::layout::Region;
use crate::format::chain::split;
use crate::format::codec::Codec;
use crate::format::error::MetadataError;
use crate::format::index::{
    ENTRY_BYTES, IndexCodecs, IndexError, IndexLocation, ShardIndex, product,
};
use crate::format::limits::MAX_INDEX_BYTES;
use crate::number::to_usize;

/// Layout of a chunk that is a shard of smaller ones.
#[derive(Debug)]
pub(super) struct ShardLayout {
    /// Shape in items.
    shape: Vec<usize>,
    /// Shape of an inner chunk in items.
    pub inner_shape: Vec<usize>,
    /// Number of inner chunks along each axis.
    chunks: Vec<u64>,
    index_codecs: IndexCodecs,
    /// Location of the index.
    pub index_location: IndexLocation,
    /// Length of the stored index in bytes.
    pub index_size: u64,
}

impl ShardLayout {
    /// Parses a codec over an array of `shape`. Also returns the codecs of an inner chunk.
    pub(super) fn parse(
        codec: &Codec,
        shape: &[usize],
    ) -> Result<(Self, Vec<Codec>), PipelineError> {
        let rank = shape.len();
        let parts = split(std::slice::from_ref(codec), rank)?;
        let parts = parts.ok_or_else(|| PipelineError::Misplaced(codec.name.clone()))?;
        let mut inner_shape = Vec::with_capacity(rank);
        let mut chunks = Vec::with_capacity(rank);
        for (shard, chunk) in shape.iter().zip(&parts.chunk_shape) {
            let uneven = MetadataError::NotDividing { chunk: *chunk, shard: *shard as u64 };
            let inner = to_usize(*chunk);
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
        let layout = Self {
            shape: shape.to_vec(),
            inner_shape,
            chunks,
            index_codecs: parts.index_codecs,
            index_location: parts.index_location,
            index_size,
        };
        Ok((layout, parts.codecs))
    }

    /// Returns the number of inner chunks.
    pub(super) fn slots(&self) -> u64 {
        product(&self.chunks).unwrap_or(u64::MAX)
    }

    /// Returns the position of the first item of an inner chunk.
    pub(super) fn origin(&self, index: &ShardIndex, slot: u64) -> Vec<usize> {
        let position = index.position(slot);
        #[allow(clippy::cast_possible_truncation, reason = "within the chunks per shard")]
        let at = |(at, length): (u64, &usize)| at as usize * length;
        position.into_iter().zip(&self.inner_shape).map(at).collect()
    }

    /// Returns the region of an inner chunk whose first item is at `origin`.
    pub(super) fn region<'a>(&'a self, origin: &'a [usize], item: usize) -> Region<'a> {
        Region { shape: &self.shape, origin, extent: &self.inner_shape, item }
    }

    /// Returns an index without chunks.
    pub(super) fn empty_index(&self) -> Result<ShardIndex, IndexError> {
        ShardIndex::empty(&self.index_codecs, self.index_location, &self.chunks)
    }

    /// Reads the index of an encoded shard.
    pub(super) fn index(&self, shard: &[u8]) -> Result<ShardIndex, DecodeError> {
        let found = shard.len() as u64;
        if self.index_size > found {
            return Err(IndexError::Length { found, expected: self.index_size }.into());
        }
        let size = to_usize(self.index_size);
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
}
