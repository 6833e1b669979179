//! Why the codecs of a chunk cannot be used, undone or done.

use crate::format::data_type::DataTypeError;
use crate::format::error::MetadataError;
use crate::format::index::{EntryError, IndexError};
use crate::format::limits::MAX_DECODED_BYTES;
use crate::memory::NoMemory;
use crate::text::count;

/// Why no pipeline can be made of an array's metadata.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The metadata itself cannot be read.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The data type or the fill value cannot be used.
    #[error(transparent)]
    DataType(#[from] DataTypeError),
    /// No such codec.
    #[error("codec {0:?} is not known")]
    UnknownCodec(String),
    /// A codec stands where one of its kind cannot.
    #[error("codec {0:?} cannot stand where it does")]
    Misplaced(String),
    /// No codec makes bytes of the array.
    #[error("codecs have none that makes bytes of an array")]
    NoArrayToBytes,
    /// A member of a codec's configuration has a value that it cannot have.
    #[error("{member} of codec {codec:?} must be {expected}")]
    Option {
        /// The codec.
        codec: String,
        /// The member.
        member: &'static str,
        /// What its value should be.
        expected: &'static str,
    },
    /// Chunks differ in shape.
    #[error("chunks of the grid differ in shape")]
    Irregular,
    /// Chunks are longer than the limit.
    #[error("chunks are longer than the limit of {MAX_DECODED_BYTES} bytes")]
    TooLarge,
}

/// Why a chunk cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It decodes to another length than its shape says.
    #[error("it decodes to {}, {expected} are expected", count(.found, "byte"))]
    Length {
        /// What it decodes to, in bytes.
        found: u64,
        /// What its shape says, in bytes.
        expected: u64,
    },
    /// There is no memory for it.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
    /// It decodes to more, how much more is not known: nothing is decoded beyond the limit.
    #[error("it decodes to more than {}", count(.limit, "byte"))]
    TooLong {
        /// What it may decode to, in bytes.
        limit: u64,
    },
    /// The room given for the chunk has another length than the chunk.
    #[error("the room for the chunk has {}, the chunk has {expected}", count(.found, "byte"))]
    Room {
        /// Length of the room in bytes.
        found: usize,
        /// Length of the chunk in bytes.
        expected: usize,
    },
    /// The bytes end before what every encoded chunk has.
    #[error("it has {}, too few for {codec}", count(.found, "byte"))]
    TooShort {
        /// The codec.
        codec: &'static str,
        /// How many there are.
        found: usize,
    },
    /// A checksum does not match.
    #[error("{codec} is {computed:08x}, stored is {stored:08x}")]
    Checksum {
        /// The codec.
        codec: &'static str,
        /// As the chunk holds it.
        stored: u32,
        /// As its bytes give it.
        computed: u32,
    },
    /// The compressed stream is bad.
    #[error("bad {codec} data: {reason}")]
    Stream {
        /// The codec.
        codec: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The index of a shard inside the chunk.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// An entry of that index.
    #[error("inner chunk {slot}: {error}")]
    Entry {
        /// The slot.
        slot: u64,
        /// What is wrong with its entry.
        error: EntryError,
    },
    /// An inner chunk of a shard inside the chunk.
    #[error("inner chunk {slot}: {error}")]
    Inner {
        /// The slot.
        slot: u64,
        /// Why it cannot be decoded.
        error: Box<DecodeError>,
    },
}

impl DecodeError {
    pub(super) fn stream(codec: &'static str, reason: impl ToString) -> Self {
        Self::Stream { codec, reason: reason.to_string() }
    }

    /// An error unless as many bytes were found as are expected.
    pub(super) fn check_length(found: usize, expected: usize) -> Result<(), Self> {
        let (found, expected) = (found as u64, expected as u64);
        if found == expected { Ok(()) } else { Err(Self::Length { found, expected }) }
    }
}

/// Why a chunk cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The decoded chunk has another length than its shape says.
    #[error("the chunk has {}, {expected} are expected", count(.found, "byte"))]
    Length {
        /// As given.
        found: usize,
        /// What its shape says.
        expected: usize,
    },
    /// The length is no multiple of an element that a codec rearranges.
    #[error("{codec} takes whole elements of {}, the chunk has {}", count(.element, "byte"), count(.nbytes, "byte"))]
    Elements {
        /// The codec.
        codec: &'static str,
        /// Length of an element in bytes.
        element: usize,
        /// Length of what it was given in bytes.
        nbytes: usize,
    },
    /// A compressor failed.
    #[error("{codec}: {reason}")]
    Stream {
        /// The codec.
        codec: &'static str,
        /// What it said.
        reason: String,
    },
    /// The index of a shard inside the chunk.
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl EncodeError {
    pub(super) fn stream(codec: &'static str, reason: impl ToString) -> Self {
        Self::Stream { codec, reason: reason.to_string() }
    }
}
