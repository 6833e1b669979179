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
mod bytes;
mod error;
mod layout;
mod shard;
mod stream;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cell::RefCell;

use serde_json::Value;

pub(super) use self::blosc::Buffer;
use self::bytes::BytesCodec;
pub use self::error::{DecodeError, EncodeError, PipelineError};
use self::layout::Transpose;
use self::shard::Shard;
use super::codec::{Codec, parse_chain, transpose_order};
use super::data_type::DataType;
use super::error::MetadataError;
use super::grid::Edges;
use super::limits::{MAX_DECODED_BYTES, MAX_SHARDING_LEVELS};
use super::metadata::ArrayMetadata;
use crate::memory::resize;

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

/// Properties of an item that codecs depend on.
#[derive(Debug)]
struct Item {
    /// Length of an item in bytes.
    nbytes: usize,
    /// Length in bytes of the words that the byte order applies to.
    word: usize,
    /// Fill value, little-endian.
    fill: Vec<u8>,
}

/// Codec chain of an array of one shape.
#[derive(Debug)]
struct Chain {
    /// Length of the decoded array in bytes.
    nbytes: usize,
    /// The array->array codecs; `None` if no item moves.
    transpose: Option<Transpose>,
    array: ArrayCodec,
    bytes: Vec<BytesCodec>,
}

/// Array->bytes codec.
#[derive(Debug)]
enum ArrayCodec {
    Bytes { big_endian: bool },
    Shard(Box<Shard>),
}

thread_local! {
    // Buffer for a chunk whose items are still to be transposed.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Maximum capacity in bytes of a buffer that is kept for the next chunk.
const MAX_KEPT_BYTES: usize = 16 << 20;

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
        let length = |length: &u64| usize::try_from(*length);
        let shape = chunk_shape.iter().map(length).collect::<Result<Vec<_>, _>>();
        let shape = shape.map_err(|_| PipelineError::TooLarge)?;
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
        let nbytes = usize::try_from(items).ok()?.checked_mul(self.item.nbytes)?;
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

impl Chain {
    /// Parses the codecs of an array of `shape` inside `depth` levels of sharding.
    fn parse(
        codecs: &[Codec],
        shape: &[usize],
        item: &Item,
        depth: usize,
    ) -> Result<Self, PipelineError> {
        if depth > MAX_SHARDING_LEVELS {
            let limit = MAX_SHARDING_LEVELS as u64;
            return Err(MetadataError::Limit { what: "levels of sharding", limit }.into());
        }
        let nbytes = nbytes(shape, item.nbytes).ok_or(PipelineError::TooLarge)?;
        let mut axes: Vec<usize> = (0..shape.len()).collect();
        let mut array = None;
        let mut bytes = Vec::new();
        for codec in codecs {
            match codec.name.as_str() {
                "transpose" if array.is_none() => {
                    let order = transpose_order(codec, shape.len())?;
                    axes = order.into_iter().map(|axis| axes[axis]).collect();
                }
                "bytes" if array.is_none() => array = Some(ArrayCodec::bytes(codec)?),
                "sharding_indexed" if array.is_none() => {
                    let shape: Vec<usize> = axes.iter().map(|axis| shape[*axis]).collect();
                    let shard = Shard::parse(codec, &shape, item, depth)?;
                    array = Some(ArrayCodec::Shard(Box::new(shard)));
                }
                name @ ("transpose" | "bytes" | "sharding_indexed") => {
                    return Err(PipelineError::Misplaced(name.to_owned()));
                }
                name => {
                    let parsed = BytesCodec::parse(codec, item.nbytes)?;
                    if array.is_none() {
                        return Err(PipelineError::Misplaced(name.to_owned()));
                    }
                    bytes.push(parsed);
                }
            }
        }
        let array = array.ok_or(PipelineError::NoArrayToBytes)?;
        Ok(Self { nbytes, transpose: Transpose::new(shape, &axes), array, bytes })
    }

    /// Returns the maximum length in bytes of the encoded array that a reasonable encoder produces.
    fn bound(&self) -> u64 {
        bytes::bound(&self.bytes, self.array_bound())
    }

    /// Returns the same bound before the bytes->bytes codecs.
    fn array_bound(&self) -> u64 {
        match &self.array {
            ArrayCodec::Bytes { .. } => self.nbytes as u64,
            ArrayCodec::Shard(shard) => shard.bound(),
        }
    }

    /// Decodes into `out`, which has `nbytes`.
    fn decode(&self, encoded: &[u8], out: &mut [u8], item: &Item) -> Result<(), DecodeError> {
        match &self.transpose {
            None => self.decode_array(encoded, out, item),
            Some(transpose) => {
                if let (ArrayCodec::Bytes { big_endian }, []) = (&self.array, &self.bytes[..]) {
                    DecodeError::check_length(encoded.len(), out.len())?;
                    transpose.decode(encoded, out, item.nbytes);
                    swap(out, *big_endian, item);
                    return Ok(());
                }
                let mut scratch = SCRATCH.take();
                resize(&mut scratch, self.nbytes as u64)?;
                let decoded = self.decode_array(encoded, &mut scratch, item);
                if decoded.is_ok() {
                    transpose.decode(&scratch, out, item.nbytes);
                }
                if scratch.capacity() <= MAX_KEPT_BYTES {
                    SCRATCH.set(scratch);
                }
                decoded
            }
        }
    }

    /// Undoes all codecs but the array->array codecs.
    fn decode_array(&self, encoded: &[u8], out: &mut [u8], item: &Item) -> Result<(), DecodeError> {
        match &self.array {
            ArrayCodec::Bytes { big_endian } => {
                bytes::decode_into(&self.bytes, encoded, out)?;
                swap(out, *big_endian, item);
                Ok(())
            }
            ArrayCodec::Shard(shard) => {
                let limit = self.array_bound().min(2 * MAX_DECODED_BYTES as u64);
                let stored = bytes::decode_at_most(&self.bytes, encoded, limit)?;
                shard.decode(&stored, out, item)
            }
        }
    }

    fn encode<'a>(&self, array: &'a [u8], item: &Item) -> Result<Cow<'a, [u8]>, EncodeError> {
        let mut array = Cow::Borrowed(array);
        if let Some(transpose) = &self.transpose {
            let mut moved = vec![0; array.len()];
            transpose.encode(&array, &mut moved, item.nbytes);
            array = Cow::Owned(moved);
        }
        let stored = match &self.array {
            ArrayCodec::Bytes { big_endian } => {
                if *big_endian && item.word > 1 {
                    swap(array.to_mut(), true, item);
                }
                array
            }
            ArrayCodec::Shard(shard) => Cow::Owned(shard.encode(&array, item)?),
        };
        bytes::encode(&self.bytes, stored)
    }
}

impl ArrayCodec {
    fn bytes(codec: &Codec) -> Result<Self, PipelineError> {
        let big_endian = match codec.option("endian") {
            None | Some(Value::Null) => false,
            Some(Value::String(order)) if order == "little" => false,
            Some(Value::String(order)) if order == "big" => true,
            Some(_) => {
                return Err(PipelineError::Option {
                    codec: codec.name.clone(),
                    member: "endian",
                    expected: "\"little\" or \"big\"",
                });
            }
        };
        Ok(Self::Bytes { big_endian })
    }
}

/// Returns the length of an array in bytes; `None` if it exceeds [`MAX_DECODED_BYTES`].
fn nbytes(shape: &[usize], item: usize) -> Option<usize> {
    if shape.contains(&0) {
        return Some(0);
    }
    let nbytes = shape.iter().try_fold(item, |nbytes, length| nbytes.checked_mul(*length))?;
    (nbytes <= MAX_DECODED_BYTES).then_some(nbytes)
}

fn swap(bytes: &mut [u8], big_endian: bool, item: &Item) {
    if big_endian {
        layout::swap(bytes, item.word);
    }
}
