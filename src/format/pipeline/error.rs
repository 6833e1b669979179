//! Errors of parsing a codec chain, and of decoding and encoding chunks.

use crate::format::data_type::DataTypeError;
use crate::format::error::MetadataError;
use crate::format::index::{EntryError, IndexError};
use crate::format::limits::MAX_DECODED_BYTES;
use crate::memory::NoMemory;
use crate::text::count;

/// Error creating a pipeline from an array's metadata.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The metadata is invalid.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The data type or the fill value cannot be used.
    #[error(transparent)]
    DataType(#[from] DataTypeError),
    /// The codec is not known.
    #[error("codec {0:?} is not known")]
    UnknownCodec(String),
    /// A codec of this kind is not allowed at its position.
    #[error("codec {0:?} cannot stand where it does")]
    Misplaced(String),
    /// There is no array->bytes codec.
    #[error("codecs have none that makes bytes of an array")]
    NoArrayToBytes,
    /// A member of a codec's configuration has an invalid value.
    #[error("{member} of codec {codec:?} must be {expected}")]
    Option {
        /// Name of the codec.
        codec: String,
        /// Name of the member.
        member: &'static str,
        /// Expected value.
        expected: &'static str,
    },
    /// Chunks differ in shape.
    #[error("chunks of the grid differ in shape")]
    Irregular,
    /// Chunks exceed [`MAX_DECODED_BYTES`].
    #[error("chunks are longer than the limit of {MAX_DECODED_BYTES} bytes")]
    TooLarge,
}

/// Error decoding a chunk, or a shard that is compressed as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The decoded length does not match the shape.
    #[error("it decodes to {}, {expected} are expected", count(.found, "byte"))]
    Length {
        /// Decoded length in bytes.
        found: u64,
        /// Length given by the shape, in bytes.
        expected: u64,
    },
    /// There is not enough memory.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// The data decodes to more than the limit. The decoded length is unknown, because decoding
    /// stops at the limit.
    #[error("it decodes to more than {}", count(.limit, "byte"))]
    TooLong {
        /// Maximum decoded length in bytes.
        limit: u64,
    },
    /// The output buffer does not have the length of the chunk.
    #[error("the room for the chunk has {}, the chunk has {expected}", count(.found, "byte"))]
    Room {
        /// Length of the buffer in bytes.
        found: usize,
        /// Length of the chunk in bytes.
        expected: usize,
    },
    /// There are fewer bytes than the codec always produces.
    #[error("it has {}, too few for {codec}", count(.found, "byte"))]
    TooShort {
        /// The codec, as messages call it.
        codec: &'static str,
        /// Number of bytes.
        found: usize,
    },
    /// A checksum does not match.
    #[error("{codec} is {computed:08x}, stored is {stored:08x}")]
    Checksum {
        /// The codec, as messages call it.
        codec: &'static str,
        /// Checksum stored in the chunk.
        stored: u32,
        /// Checksum computed over its bytes.
        computed: u32,
    },
    /// The compressed stream is invalid.
    #[error("bad {codec} data: {reason}")]
    Stream {
        /// Name of the codec.
        codec: &'static str,
        /// Defect of the stream.
        reason: String,
    },
    /// The index of a shard inside the chunk is invalid.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// An entry of the index of a shard inside the chunk is invalid.
    #[error("inner chunk {slot}: {error}")]
    Entry {
        /// Slot of the entry.
        slot: u64,
        /// Defect of the entry.
        error: EntryError,
    },
    /// An inner chunk of a shard inside the chunk cannot be decoded.
    #[error("inner chunk {slot}: {error}")]
    Inner {
        /// Slot of the inner chunk.
        slot: u64,
        /// Error decoding the inner chunk.
        error: Box<DecodeError>,
    },
}

impl DecodeError {
    pub(super) fn stream(codec: &'static str, reason: impl ToString) -> Self {
        Self::Stream { codec, reason: reason.to_string() }
    }

    /// Returns an error if `found` and `expected`, both in bytes, differ.
    pub(super) fn check_length(found: usize, expected: usize) -> Result<(), Self> {
        let (found, expected) = (found as u64, expected as u64);
        if found == expected { Ok(()) } else { Err(Self::Length { found, expected }) }
    }
}

/// Error encoding a chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The length of the decoded chunk does not match its shape.
    #[error("the chunk has {}, {expected} are expected", count(.found, "byte"))]
    Length {
        /// Length of the given chunk in bytes.
        found: usize,
        /// Length given by the shape, in bytes.
        expected: usize,
    },
    /// The length is not a multiple of the elements that a codec rearranges.
    #[error("{codec} takes whole elements of {}, the chunk has {}", count(.element, "byte"), count(.nbytes, "byte"))]
    Elements {
        /// Name of the codec.
        codec: &'static str,
        /// Length of an element in bytes.
        element: usize,
        /// Length of the codec's input in bytes.
        nbytes: usize,
    },
    /// A compressor failed.
    #[error("{codec}: {reason}")]
    Stream {
        /// Name of the codec.
        codec: &'static str,
        /// Message of the compressor.
        reason: String,
    },
    /// The index of a shard inside the chunk cannot be made.
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl EncodeError {
    pub(super) fn stream(codec: &'static str, reason: impl ToString) -> Self {
        Self::Stream { codec, reason: reason.to_string() }
    }
}
