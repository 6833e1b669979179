//! Chunks of Blosc2: decoded here, stream by stream; the streams by c-blosc.
//!
//! ```text
//! chunk   | header | block starts | block | block | ...            (or what all items are: below)
//!
//! header, 32 bytes, little-endian
//!   0  u8   version of the format
//!   1  u8   version of the compressor's format
//!   2  u8   flags: 1 and 4 together: this header; 2 not compressed; 16 one stream a block; 32 to 128 compressor
//!   3  u8   size of an item in bytes
//!   4  i32  bytes before compression
//!   8  i32  bytes of a block
//!  12  i32  bytes of the chunk
//!  16  6 x u8  filters, in the order in which they were applied
//!  22  u8   number of a compressor of the user
//!  23  u8   what it is given
//!  24  6 x u8  what the filters are given
//!  30  u8   flags: 1 blocks of different lengths
//!  31  u8   flags: 1 dictionary; 2 a longer header; 8 its blocks are elsewhere; 16 to 64 what all items are; 128 measured
//!
//! block starts   i32 for each block, from the chunk's first byte
//! block          a stream for each byte of an item, or one
//! stream         i32 length, and as many bytes; or 0: all are zero; or -v, and u8 1: all are v
//!                as long as it is decoded: not compressed
//! ```
//!
//! A chunk of an array is cut into blocks of its own ([`Blocks`]): each is stored as a whole, in C order, and so are they
//! one after the other; those at the edge are padded.

use super::blosc::Buffer;
use super::error::{DecodeError, PipelineError};
use super::layout::{Axis, copy_box, strides, unshuffle};
use crate::format::blosc2::{CHUNK_HEADER_BYTES, ChunkHeader, Special};
use crate::format::codec::Codec;
use crate::format::error::shape;
use crate::format::limits::MAX_DECODED_BYTES;
use crate::memory::{resize, zeroed};

const CODEC: &str = "blosc2";

/// Filters that can be undone here.
mod filter {
    pub(super) const NONE: u8 = 0;
    pub(super) const SHUFFLE: u8 = 1;
    pub(super) const BITSHUFFLE: u8 = 2;
    pub(super) const DELTA: u8 = 3;
    /// It has removed bits, which are gone.
    pub(super) const TRUNCATE: u8 = 4;
}

/// Decompresses a chunk to at most `limit` bytes.
pub(crate) fn unblosc2_at_most(bytes: &[u8], limit: u64) -> Result<Vec<u8>, DecodeError> {
    let header = header(bytes)?;
    if u64::from(header.decoded) > limit {
        return Err(DecodeError::TooLong { limit });
    }
    let mut decoded = zeroed(header.decoded.into())?;
    unblosc2(bytes, &mut decoded)?;
    Ok(decoded)
}

fn header(bytes: &[u8]) -> Result<ChunkHeader, DecodeError> {
    let too_short = DecodeError::TooShort { codec: CODEC, found: bytes.len() };
    ChunkHeader::parse(bytes.first_chunk::<CHUNK_HEADER_BYTES>().ok_or(too_short)?)
        .map_err(|error| DecodeError::stream(CODEC, error))
}

/// Decompresses the chunk at the beginning of `bytes`, which must decode to exactly the length of `out`.
pub(super) fn unblosc2(bytes: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    let header = header(bytes)?;
    DecodeError::check_length(header.decoded as usize, out.len())?;
    if header.special.is_some() {
        return of_one_value(&header, bytes, out);
    }
    let bytes = bytes.get(..header.nbytes as usize).ok_or_else(|| bad("it is cut off"))?;
    match bytes.get(CHUNK_HEADER_BYTES..) {
        Some(body) if header.is_plain => {
            DecodeError::check_length(body.len(), out.len())?;
            out.copy_from_slice(body);
            Ok(())
        }
        _ => Blocked { header: &header, bytes }.decode(out),
    }
}

/// Decodes a chunk all of whose items are one value.
fn of_one_value(header: &ChunkHeader, bytes: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    match header.special {
        Some(Special::Nan) => match header.typesize {
            4 => repeat(&f32::NAN.to_le_bytes(), out),
            8 => repeat(&f64::NAN.to_le_bytes(), out),
            _ => Err(bad("its items are no floats, and said to be NaN")),
        },
        Some(Special::Value) => {
            let value = bytes.get(CHUNK_HEADER_BYTES..header.nbytes as usize);
            repeat(value.ok_or_else(|| bad("it is cut off"))?, out)
        }
        Some(Special::Zeros | Special::Uninitialised) | None => {
            out.fill(0);
            Ok(())
        }
    }
}

fn bad(reason: &str) -> DecodeError {
    DecodeError::stream(CODEC, reason)
}

fn repeat(item: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
    if item.is_empty() || !out.len().is_multiple_of(item.len()) {
        return Err(bad("the value of its items does not fit it"));
    }
    out.chunks_exact_mut(item.len()).for_each(|to| to.copy_from_slice(item));
    Ok(())
}

/// Chunk of compressed blocks.
struct Blocked<'a> {
    header: &'a ChunkHeader,
    bytes: &'a [u8],
}

impl Blocked<'_> {
    fn decode(&self, out: &mut [u8]) -> Result<(), DecodeError> {
        let block = self.header.block as usize;
        let blocks = out.len().div_ceil(block.max(1));
        let starts = self.bytes.get(CHUNK_HEADER_BYTES..).unwrap_or_default();
        let (starts, _) = starts.as_chunks::<4>();
        let starts = starts.get(..blocks).ok_or_else(|| bad("it has no room for its blocks"))?;
        let mut scratch = (Vec::new(), Vec::new());
        let mut stream = Vec::new();
        for (number, start) in starts.iter().enumerate() {
            let begin = number * block;
            let (before, rest) = out.split_at_mut(begin);
            let room = rest.len().min(block);
            let to = &mut rest[..room];
            // The last one may be shorter, and is one stream then.
            let streams = match self.header.is_split && room == block {
                true => usize::from(self.header.typesize),
                false => 1,
            };
            resize(&mut scratch.0, room as u64)?;
            resize(&mut scratch.1, room as u64)?;
            self.streams(*start, streams, &mut scratch.0, &mut stream)?;
            self.unfilter(&mut scratch, before.get(..block))?;
            to.copy_from_slice(&scratch.0);
        }
        Ok(())
    }

    /// Decompresses the streams of a block.
    fn streams(
        &self,
        start: [u8; 4],
        streams: usize,
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        let start = usize::try_from(i32::from_le_bytes(start)).unwrap_or(usize::MAX);
        let cut = || bad("a block of it ends beyond it");
        let mut rest = self.bytes.get(start..).ok_or_else(cut)?;
        if streams == 0 || out.is_empty() || !out.len().is_multiple_of(streams) {
            return Err(bad("its blocks cannot be split as it says"));
        }
        for part in out.chunks_exact_mut(out.len() / streams) {
            let (length, more) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
            rest = more;
            match i32::from_le_bytes(*length) {
                0 => part.fill(0),
                run @ ..0 => {
                    let (token, more) = rest.split_first().ok_or_else(cut)?;
                    let byte = u8::try_from(-i64::from(run)).ok().filter(|_| token & 1 != 0);
                    part.fill(byte.ok_or_else(|| bad("a run in it is none of a byte"))?);
                    rest = more;
                }
                length => {
                    let length = usize::try_from(length).unwrap_or(usize::MAX);
                    let (stored, more) = rest.split_at_checked(length).ok_or_else(cut)?;
                    match stored.len() == part.len() {
                        true => part.copy_from_slice(stored),
                        false => self.decompress(stored, part, scratch)?,
                    }
                    rest = more;
                }
            }
        }
        Ok(())
    }

    /// Decompresses a stream, as the one block of a buffer of Blosc 1.
    fn decompress(
        &self,
        stored: &[u8],
        out: &mut [u8],
        buffer: &mut Vec<u8>,
    ) -> Result<(), DecodeError> {
        /// Of the buffer's header, the start of its block, and the length of the stream.
        const HEAD: usize = 24;
        /// The block is one stream.
        const ONE: u8 = 16;
        let word = |length: usize| u32::try_from(length).map_err(|_| bad("it is too long"));
        buffer.clear();
        buffer.extend([2, 1, (self.header.compressor << 5) | ONE, 1]);
        let (decoded, nbytes) = (word(out.len())?, word(stored.len().saturating_add(HEAD))?);
        for word in [decoded, decoded, nbytes, 20, word(stored.len())?] {
            buffer.extend(word.to_le_bytes());
        }
        buffer.extend(stored);
        let failed = |_| bad("a stream of it cannot be decompressed");
        Buffer::parse(buffer).map_err(failed)?.decompress(out).map_err(failed)
    }

    /// Undoes the filters of a block, which is in the first buffer before and after. `first` is the chunk's first block,
    /// if this is another one.
    fn unfilter(
        &self,
        (block, other): &mut (Vec<u8>, Vec<u8>),
        first: Option<&[u8]>,
    ) -> Result<(), DecodeError> {
        let size = usize::from(self.header.typesize).max(1);
        for (filter, given) in self.header.filters.iter().zip(self.header.given).rev() {
            match *filter {
                filter::NONE | filter::TRUNCATE => (),
                filter::SHUFFLE => {
                    let size = if given == 0 { size } else { usize::from(given) };
                    let whole = block.len() / size * size;
                    unshuffle(&block[..whole], &mut other[..whole], size);
                    other[whole..].copy_from_slice(&block[whole..]);
                    std::mem::swap(block, other);
                }
                filter::BITSHUFFLE => {
                    bits_back(block, other, size);
                    std::mem::swap(block, other);
                }
                filter::DELTA => undo_delta(block, first, size),
                filter => {
                    let reason = format!("filter {filter} cannot be undone here");
                    return Err(DecodeError::stream(CODEC, reason));
                }
            }
        }
        Ok(())
    }
}

/// Undoes a shuffle of bits over items of `size` bytes: of eight items each, of which the others are as they were.
fn bits_back(bytes: &[u8], out: &mut [u8], size: usize) {
    let items = bytes.len() / size / 8 * 8;
    let (shuffled, rest) = bytes.split_at(items * size);
    let (to, others) = out.split_at_mut(items * size);
    others.copy_from_slice(rest);
    to.fill(0);
    let row = items / 8;
    // A row has one bit of all items.
    for (number, bits) in shuffled.chunks_exact(row.max(1)).enumerate() {
        let (byte, bit) = (number / 8, number % 8);
        for (eight, bits) in bits.iter().enumerate() {
            for item in 0..8 {
                to[(eight * 8 + item) * size + byte] |= ((bits >> item) & 1) << bit;
            }
        }
    }
}

/// Undoes the difference to the first block, or in that one to the item before.
fn undo_delta(block: &mut [u8], first: Option<&[u8]>, size: usize) {
    let word = match size {
        1 | 2 | 4 | 8 => size,
        size if size.is_multiple_of(8) => 8,
        _ => 1,
    };
    let whole = block.len() / word * word;
    match first {
        Some(first) => block[..whole].iter_mut().zip(first).for_each(|(byte, of)| *byte ^= of),
        None => (word..whole).for_each(|at| block[at] ^= block[at - word]),
    }
}

/// How a chunk of an array is cut into blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Shape of the chunk in items, of a block, and how many of these there are along each axis.
    chunk: Vec<usize>,
    block: Vec<usize>,
    grid: Vec<usize>,
    /// Length of an item, and of all blocks, in bytes.
    item: usize,
    nbytes: usize,
    /// `true` if the most significant byte of a word comes first.
    pub is_big_endian: bool,
}

impl Blocks {
    /// Parses the codec of chunks of `chunk` items of `item` bytes.
    pub(super) fn parse(
        codec: &Codec,
        chunk: &[usize],
        item: usize,
    ) -> Result<Self, PipelineError> {
        let bad = || PipelineError::Option {
            codec: codec.name.clone(),
            member: "blocks",
            expected: "the shape of a block, in numbers above 0",
        };
        let blocks = shape(codec.option("blocks"), "blocks").map_err(|_| bad())?;
        if blocks.len() != chunk.len() || blocks.contains(&0) {
            return Err(bad());
        }
        // What is larger than a chunk is refused below.
        let block: Vec<usize> =
            blocks.iter().map(|length| usize::try_from(*length).unwrap_or(usize::MAX)).collect();
        let grid: Vec<usize> =
            chunk.iter().zip(&block).map(|(chunk, block)| chunk.div_ceil(*block)).collect();
        let padded = grid.iter().zip(&block).map(|(blocks, block)| blocks.checked_mul(*block));
        let items = padded.into_iter().try_fold(1_usize, |items, n| items.checked_mul(n?));
        let nbytes = items.and_then(|items| items.checked_mul(item));
        let nbytes = nbytes.filter(|nbytes| *nbytes <= MAX_DECODED_BYTES);
        let nbytes = nbytes.ok_or(PipelineError::TooLarge)?;
        let is_big_endian = codec.option("endian").is_some_and(|endian| endian == "big");
        Ok(Self { chunk: chunk.to_vec(), block, grid, item, nbytes, is_big_endian })
    }

    /// Returns the length of all blocks of a chunk in bytes.
    pub(super) fn nbytes(&self) -> u64 {
        self.nbytes as u64
    }

    /// Decodes a chunk into `out`, in C order.
    pub(super) fn decode(&self, encoded: &[u8], out: &mut [u8]) -> Result<(), DecodeError> {
        if self.nbytes == 0 {
            return Ok(());
        }
        let item = self.item;
        let header = header(encoded)?;
        DecodeError::check_length(header.decoded as usize, self.nbytes)?;
        if let Some(special) = header.special {
            // Wherever an item is, it is the same.
            return match (special, header.nbytes as usize) {
                (Special::Value, nbytes) if nbytes != CHUNK_HEADER_BYTES + item => {
                    Err(bad("the value of its items is not as long as an item"))
                }
                (Special::Nan, _) if usize::from(header.typesize) != item => {
                    Err(bad("its items are longer or shorter than those of the array"))
                }
                _ => of_one_value(&header, encoded, out),
            };
        }
        let nbytes = self.block.iter().product::<usize>() * item;
        if !header.is_plain && header.block as usize != nbytes {
            return Err(bad("its blocks are not those of the array"));
        }
        let mut blocks = zeroed(self.nbytes())?;
        unblosc2(encoded, &mut blocks)?;
        let (from, to) = (strides(&self.block), strides(&self.chunk));
        let mut axes = Vec::with_capacity(self.grid.len());
        let mut place = vec![0; self.grid.len()];
        for block in blocks.chunks_exact(nbytes.max(1)) {
            let first = |axis: usize| place[axis] * self.block[axis];
            let start: usize = (0..place.len()).map(|axis| first(axis) * to[axis]).sum();
            // Of one at the edge only the part within the chunk.
            axes.clear();
            axes.extend((0..place.len()).map(|axis| Axis {
                length: self.block[axis].min(self.chunk[axis] - first(axis)),
                from: from[axis],
                to: to[axis],
            }));
            copy_box(&axes, block, &mut out[start * item..], item);
            // The next one in C order.
            for axis in (0..place.len()).rev() {
                place[axis] += 1;
                if place[axis] < self.grid[axis] {
                    break;
                }
                place[axis] = 0;
            }
        }
        Ok(())
    }
}
