//! Codec chain of an array of one shape: parsing, decoding and encoding.
//!
//! The array->bytes codec may be `sharding_indexed`: then the array is a shard of smaller ones,
//! each with a chain of its own, which may shard again.

use std::borrow::Cow;
use std::cell::RefCell;

use serde_json::Value;

use super::blosc2::Blocks;
use super::bytes::{self, BytesCodec};
use super::error::{DecodeError, EncodeError, PipelineError};
use super::layout::{self, Transpose};
use super::shard_layout::ShardLayout;
use crate::format::codec::{Codec, transpose_order};
use crate::format::error::MetadataError;
use crate::format::index::{ByteRange, IndexLocation};
use crate::format::limits::{MAX_DECODED_BYTES, MAX_SHARDING_LEVELS};
use crate::memory::resize;
use crate::number::to_usize;

/// Properties of an item that codecs depend on.
#[derive(Debug)]
pub(super) struct Item {
    /// Length of an item in bytes.
    pub nbytes: usize,
    /// Length in bytes of the words that the byte order applies to.
    pub word: usize,
    /// Fill value, little-endian.
    pub fill: Vec<u8>,
}

/// Codec chain of an array of one shape.
#[derive(Debug)]
pub(super) struct Chain {
    /// Length of the decoded array in bytes.
    pub nbytes: usize,
    /// The array->array codecs; `None` if no item moves.
    pub transpose: Option<Transpose>,
    /// The array->bytes codec.
    pub array: ArrayCodec,
    /// The bytes->bytes codecs, in encoding order.
    pub bytes: Vec<BytesCodec>,
}

/// Array->bytes codec.
#[derive(Debug)]
pub(super) enum ArrayCodec {
    /// `bytes`: the items one after the other.
    Bytes {
        /// `true` if the most significant byte of a word comes first.
        big_endian: bool,
    },
    /// `sharding_indexed`.
    Shard(Box<Shard>),
    /// `blosc2`: a chunk of Blosc2, which is cut into blocks.
    Blosc2(Blocks),
}

/// A chunk that is a shard of smaller ones.
#[derive(Debug)]
pub(super) struct Shard {
    layout: ShardLayout,
    /// Codec chain of an inner chunk.
    inner: Chain,
}

thread_local! {
    // Buffer for a chunk whose items are still to be transposed.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Maximum capacity in bytes of a buffer that is kept for the next chunk.
const MAX_KEPT_BYTES: usize = 16 << 20;

impl Chain {
    /// Parses the codecs of an array of `shape` inside `depth` levels of sharding.
    pub(super) fn parse(
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
                "blosc2" if array.is_none() => {
                    let shape: Vec<usize> = axes.iter().map(|axis| shape[*axis]).collect();
                    array = Some(ArrayCodec::Blosc2(Blocks::parse(codec, &shape, item.nbytes)?));
                }
                name @ ("transpose" | "bytes" | "sharding_indexed" | "blosc2") => {
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
            ArrayCodec::Blosc2(blocks) => blocks.nbytes().saturating_mul(2),
        }
    }

    /// Decodes into `out`, which has `nbytes`.
    pub(super) fn decode(
        &self,
        encoded: &[u8],
        out: &mut [u8],
        item: &Item,
    ) -> Result<(), DecodeError> {
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
    pub(super) fn decode_array(
        &self,
        encoded: &[u8],
        out: &mut [u8],
        item: &Item,
    ) -> Result<(), DecodeError> {
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
            ArrayCodec::Blosc2(blocks) => {
                let limit = self.array_bound().min(2 * MAX_DECODED_BYTES as u64);
                let stored = bytes::decode_at_most(&self.bytes, encoded, limit)?;
                blocks.decode(&stored, out)?;
                swap(out, blocks.is_big_endian, item);
                Ok(())
            }
        }
    }

    /// Encodes an array of `nbytes`.
    pub(super) fn encode<'a>(
        &self,
        array: &'a [u8],
        item: &Item,
    ) -> Result<Cow<'a, [u8]>, EncodeError> {
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
            ArrayCodec::Blosc2(_) => {
                return Err(EncodeError::stream("blosc2", "such chunks are only read here"));
            }
        };
        bytes::encode(&self.bytes, stored)
    }
}

impl Shard {
    /// Parses a codec over an array of `shape` inside `depth` levels of sharding.
    fn parse(
        codec: &Codec,
        shape: &[usize],
        item: &Item,
        depth: usize,
    ) -> Result<Self, PipelineError> {
        let (layout, codecs) = ShardLayout::parse(codec, shape)?;
        let inner = Chain::parse(&codecs, &layout.inner_shape, item, depth + 1)?;
        Ok(Self { layout, inner })
    }

    /// Returns the maximum length of the encoded shard in bytes, without gaps.
    fn bound(&self) -> u64 {
        self.layout
            .slots()
            .saturating_mul(self.inner.bound())
            .saturating_add(self.layout.index_size)
    }

    /// Decodes every inner chunk into its place; absent chunks are filled with the fill value.
    fn decode(&self, shard: &[u8], out: &mut [u8], item: &Item) -> Result<(), DecodeError> {
        let index = self.layout.index(shard)?;
        let entries = index.chunks(shard.len() as u64);
        let chunks = entries.map_err(|(slot, error)| DecodeError::Entry { slot, error })?;
        if (chunks.len() as u64) < index.slots() {
            layout::fill(out, &item.fill);
        }
        let mut scratch = Vec::new();
        for (slot, range) in chunks {
            let encoded = part(shard, range);
            let origin = self.layout.origin(&index, slot);
            let region = self.layout.region(&origin, item.nbytes);
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
    fn encode(&self, array: &[u8], item: &Item) -> Result<Vec<u8>, EncodeError> {
        let mut index = self.layout.empty_index()?;
        let front = match self.layout.index_location {
            IndexLocation::Start => to_usize(self.layout.index_size),
            IndexLocation::End => 0,
        };
        let mut shard = vec![0; front];
        let mut chunk = vec![0; self.inner.nbytes];
        for slot in 0..index.slots() {
            let origin = self.layout.origin(&index, slot);
            self.layout.region(&origin, item.nbytes).take(array, &mut chunk);
            if layout::is_filled(&chunk, &item.fill) {
                continue;
            }
            let encoded = self.inner.encode(&chunk, item)?;
            let (offset, nbytes) = (shard.len() as u64, encoded.len() as u64);
            index.set(slot, Some(ByteRange { offset, nbytes }));
            shard.extend_from_slice(&encoded);
        }
        let stored = index.encode();
        match self.layout.index_location {
            IndexLocation::Start => shard[..front].copy_from_slice(&stored),
            IndexLocation::End => shard.extend_from_slice(&stored),
        }
        Ok(shard)
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

/// Returns the bytes of a range that was checked to end within the shard.
fn part(shard: &[u8], range: ByteRange) -> &[u8] {
    #[allow(clippy::cast_possible_truncation, reason = "within a slice in memory")]
    let (offset, nbytes) = (range.offset as usize, range.nbytes as usize);
    &shard[offset..offset + nbytes]
}
