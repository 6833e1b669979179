//! Decoding and encoding of chunks through their codec chain.
//!
//! ```text
//! array -> [transpose]* -> bytes or sharding_indexed -> [bytes->bytes]* -> encoded chunk
//! ```
//!
//! A decoded chunk is in C order along the array's axes, little-endian, and always has the length
//! given by its shape: decoding never produces more. If no item moves, the last codec to be undone
//! decodes directly into the output buffer.

mod blosc;
mod blosc2;
mod bytes;
mod chain;
mod error;
mod layout;
mod shard_layout;
mod stream;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use serde_json::Value;

pub(super) use self::blosc::unblosc_at_most;
pub(crate) use self::blosc2::unblosc2_at_most;
use self::chain::{ArrayCodec, Chain, Item};
pub use self::error::{DecodeError, EncodeError, PipelineError};
pub(super) use self::stream::{ungzip_at_most, unzlib_at_most, unzstd_at_most};
use crate::number::to_usize;

use super::codec::parse_chain;
use super::data_type::DataType;
use super::grid::Edges;
use super::metadata::ArrayMetadata;

/// Codec chain of an array's chunks.
#[derive(Debug)]
pub struct Pipeline {
    data_type: DataType,
    chunk_shape: Vec<u64>,
    item: Item,
    chain: Chain,
    short_end: Option<ShortEnd>,
}

/// The last chunk along the first axis, which may be stored without its part beyond the array.
#[derive(Debug, Clone, Copy)]
struct ShortEnd {
    /// First coordinate of the chunk.
    coord: u64,
    /// Length in bytes of the part within the array.
    nbytes: usize,
}

impl Pipeline {
    /// Creates the pipeline of an unsharded array with a regular chunk grid from its metadata. For
    /// a sharded array, that is the metadata [`super::document::show`] returns.
    pub fn parse(document: &Value) -> Result<Self, PipelineError> {
        let array = ArrayMetadata::parse(document)?;
        let edge = |edges: &Edges| match edges {
            Edges::Equal(length) => Ok(*length),
            Edges::Runs(_) => Err(PipelineError::Irregular),
        };
        let chunk_shape = array.grid.iter().map(edge).collect::<Result<Vec<_>, _>>()?;
        let data_type = DataType::parse(document.get("data_type").unwrap_or(&Value::Null))?;
        let item = Item {
            nbytes: data_type.nbytes(),
            word: data_type.word(),
            fill: data_type.fill_value(document.get("fill_value"))?,
        };
        let shape: Vec<usize> = chunk_shape.iter().map(|length| to_usize(*length)).collect();
        let chain = Chain::parse(&parse_chain(document.get("codecs"))?, &shape, &item, 0)?;
        Ok(Self { data_type, chunk_shape, item, chain, short_end: None })
    }

    /// Adapts the pipeline to an array of `shape` in a format whose last chunk may be shorter than
    /// the others: its part beyond the array along the first axis need not be stored. Has no effect
    /// if chunks are not rows in C order.
    pub fn with_short_end(mut self, shape: &[u64]) -> Self {
        self.short_end = self.find_short_end(shape);
        self
    }

    fn find_short_end(&self, shape: &[u64]) -> Option<ShortEnd> {
        let ((edge, others), extent) = (self.chunk_shape.split_first()?, shape.first()?);
        let rows = extent.checked_rem(*edge).filter(|rows| *rows > 0)?;
        let is_plain =
            self.chain.transpose.is_none() && matches!(self.chain.array, ArrayCodec::Bytes { .. });
        // Less than a whole chunk, whose length is limited.
        let items = others.iter().try_fold(rows, |items, edge| items.checked_mul(*edge))?;
        let nbytes = to_usize(items).checked_mul(self.item.nbytes)?;
        is_plain.then_some(ShortEnd { coord: extent / edge, nbytes })
    }

    /// Data type of the array.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Shape of a chunk in items.
    pub fn chunk_shape(&self) -> &[u64] {
        &self.chunk_shape
    }

    /// Length of a decoded chunk in bytes.
    pub fn nbytes(&self) -> usize {
        self.chain.nbytes
    }

    /// Length of every encoded chunk in bytes; `None` if it depends on the contents.
    pub fn encoded_nbytes(&self) -> Option<u64> {
        let ArrayCodec::Bytes { .. } = self.chain.array else { return None };
        bytes::encoded_nbytes(&self.chain.bytes, self.chain.nbytes as u64)
    }

    /// Fill value: one item, little-endian.
    pub fn fill(&self) -> &[u8] {
        &self.item.fill
    }

    /// Decodes a chunk into `chunk`, which must have [`Self::nbytes`]: C order along the array's
    /// axes, little-endian. After an error its content is unspecified.
    pub fn decode(&self, encoded: &[u8], chunk: &mut [u8]) -> Result<(), DecodeError> {
        let (found, expected) = (chunk.len(), self.nbytes());
        if found != expected {
            return Err(DecodeError::Room { found, expected });
        }
        self.chain.decode(encoded, chunk, &self.item)
    }

    /// Decodes the chunk at `coords` like [`Self::decode`]. If the format allows the last chunk to
    /// be shorter, it is padded with the fill value.
    pub fn decode_at(
        &self,
        coords: &[u64],
        encoded: &[u8],
        chunk: &mut [u8],
    ) -> Result<(), DecodeError> {
        let short = self.short_end.filter(|end| coords.first() == Some(&end.coord));
        match (self.decode(encoded, chunk), short) {
            (Err(DecodeError::Length { found, .. }), Some(ShortEnd { nbytes, .. }))
                if found == nbytes as u64 && nbytes <= chunk.len() =>
            {
                let (stored, missing) = chunk.split_at_mut(nbytes);
                self.chain.decode_array(encoded, stored, &self.item)?;
                let items = missing.chunks_exact_mut(self.item.nbytes.max(1));
                items.for_each(|item| item.copy_from_slice(&self.item.fill));
                Ok(())
            }
            (decoded, _) => decoded,
        }
    }

    /// Encodes a chunk of [`Self::nbytes`]: C order along the array's axes, little-endian.
    pub fn encode(&self, chunk: &[u8]) -> Result<Vec<u8>, EncodeError> {
        let (found, expected) = (chunk.len(), self.nbytes());
        if found != expected {
            return Err(EncodeError::Length { found, expected });
        }
        self.chain.encode(chunk, &self.item).map(Cow::into_owned)
    }
}
