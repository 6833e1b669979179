//! Errors of creating the metadata of a new array.

use crate::format::data_type::DataTypeError;
use crate::format::error::MetadataError;
use crate::format::pipeline::PipelineError;
use crate::text::count;

/// Error creating an array.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NewArrayError {
    /// The data type or the fill value cannot be used.
    #[error(transparent)]
    DataType(#[from] DataTypeError),
    /// The layout cannot be used.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The codecs cannot be used.
    #[error(transparent)]
    Codecs(#[from] PipelineError),
    /// A codec is not given in a known form.
    #[error(
        "codec {text:?} is none of {known}, each alone or with its numbers behind colons, nor a JSON \
         object with a name"
    )]
    Codec {
        /// Text given for the codec.
        text: String,
        /// Codecs that have a short form.
        known: &'static str,
    },
    /// A part of a codec's short form is invalid.
    #[error("codec {text:?}: {part:?} is no {what}; its form is {form}")]
    CodecPart {
        /// Text given for the codec.
        text: String,
        /// The invalid part.
        part: String,
        /// Expected kind of the part.
        what: &'static str,
        /// Syntax of the short form.
        form: &'static str,
    },
    /// The order is not a permutation of the axes. Holds the order and the number of axes.
    #[error("order {0:?} is no permutation of the array's axes, of which there are {1}")]
    Order(Vec<usize>, usize),
    /// The order is given twice: as an option and by a codec.
    #[error("an order of the axes and codec {0:?} as well: leave one of them out")]
    OrderAndCodec(String),
    /// The number of dimension names is not that of the dimensions.
    #[error("{}, the array has {}", count(.found, "dimension name"), count(.rank, "dimension"))]
    Names {
        /// Number of names given.
        found: usize,
        /// Number of dimensions of the array.
        rank: usize,
    },
    /// An index location was given for an array without shards.
    #[error("without shards there is no index: inner chunk and shard have the same shape")]
    NoIndex,
    /// A chunk is longer than the maximum length in bytes.
    #[error("{what} of {shape:?} elements are longer than 2^63-1 bytes")]
    TooLong {
        /// Kind of the chunk: inner chunks or shards.
        what: &'static str,
        /// Shape of the chunk in elements.
        shape: Vec<u64>,
    },
}
