//! Blosc 1 buffers: the chunks of several formats, and what the codec writes.
//!
//! ```text
//!  0  u8   version    1  u8  version of the compressor    2  u8  flags    3  u8  size of an item
//!  4  u32  bytes before compression     8  u32  block size     12  u32  bytes of the whole buffer
//! ```

use super::chunk_error::ChunkDefect;

/// Length of the header of a buffer in bytes.
pub const BLOSC_BYTES: usize = 16;
/// Maximum uncompressed bytes of a buffer.
pub const MAX_BLOSC: u32 = i32::MAX as u32 - 16;

/// Header of a Blosc buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BloscHeader {
    /// Uncompressed bytes.
    pub decoded: u32,
    /// Length of the whole buffer in bytes.
    pub nbytes: u32,
}

impl BloscHeader {
    /// Parses the header of a buffer.
    pub fn parse(bytes: &[u8; BLOSC_BYTES]) -> Self {
        let [_, _, _, _, d0, d1, d2, d3, _, _, _, _, n0, n1, n2, n3] = *bytes;
        let [decoded, nbytes] = [[d0, d1, d2, d3], [n0, n1, n2, n3]].map(u32::from_le_bytes);
        Self { decoded, nbytes }
    }

    /// Returns the reason why this cannot be a chunk of `expected` uncompressed bytes, if that
    /// number is known; `None` if it can.
    pub fn defect(self, expected: Option<u32>) -> Option<ChunkDefect> {
        if (self.nbytes as usize) < BLOSC_BYTES {
            return Some(ChunkDefect::ShorterThanHeader);
        }
        let other = expected.is_some_and(|expected| expected != self.decoded);
        other.then_some(ChunkDefect::OtherLength)
    }
}

/// Encodes `bytes` uncompressed as a Blosc buffer, for readers that require all chunks to have the
/// same length. `None` if they exceed [`MAX_BLOSC`].
pub fn blosc_buffer(bytes: &[u8], typesize: u8) -> Option<Vec<u8>> {
    let decoded = u32::try_from(bytes.len()).ok().filter(|length| *length <= MAX_BLOSC)?;
    // Version 2 of the format, version 1 of LZ4, the flag for uncompressed bytes; one block.
    let mut buffer = vec![2, 1, 2, typesize.max(1)];
    for word in [decoded, decoded, decoded + 16] {
        buffer.extend(word.to_le_bytes());
    }
    buffer.extend(bytes);
    Some(buffer)
}
