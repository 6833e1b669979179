//! Reasons why an array has no form in Zarr v2.

use crate::format::error::MetadataError;

/// Reason why an array has no Zarr v2 form.
#[derive(Debug, thiserror::Error)]
pub enum NoForm {
    /// The metadata is invalid.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The chunks do not all have the same shape.
    #[error("chunk grid {0:?} has no form in Zarr v2")]
    Grid(String),
    /// NumPy has no such data type.
    #[error("data type {0:?} has no form in Zarr v2")]
    DataType(String),
    /// The fill value is not a value of the data type.
    #[error("fill value {value} of data type {data_type:?} has no form in Zarr v2")]
    FillValue {
        /// Fill value as in the document.
        value: String,
        /// Name of the data type.
        data_type: String,
    },
    /// numcodecs has no such codec, or its codec produces other bytes.
    #[error("codec {0:?} has no form in Zarr v2")]
    Codec(String),
    /// The configuration of a codec lacks a member that has no default.
    #[error("codec {codec:?} without {member} has no form in Zarr v2")]
    Option {
        /// Name of the codec.
        codec: String,
        /// Name of the missing member.
        member: &'static str,
    },
    /// Zarr v2 does not use this array->bytes codec for the data type.
    #[error("codec {codec:?} for data type {data_type:?} has no form in Zarr v2")]
    Serialised {
        /// Name of the codec.
        codec: String,
        /// Name of the data type.
        data_type: String,
    },
    /// The order of the axes is neither C nor F.
    #[error("transpose other than a reversal of the axes has no form in Zarr v2")]
    Transpose,
    /// The output of a filter is transposed.
    #[error("codec {0:?} together with transpose has no form in Zarr v2")]
    TransposedFilter(String),
    /// The output of a filter is stored in big-endian byte order.
    #[error("codec {0:?} on big-endian items has no form in Zarr v2")]
    SwappedFilter(String),
}
