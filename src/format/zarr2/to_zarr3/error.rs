//! Reasons why an array of Zarr v2 has no form in Zarr v3.

use crate::format::error::MetadataError;

/// Reason why an array of Zarr v2 has no Zarr v3 form.
#[derive(Debug, thiserror::Error)]
pub enum NoTwin {
    /// The metadata is invalid.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Zarr v3 has no such data type.
    #[error("data type {0} has no form in Zarr v3")]
    DataType(String),
    /// The items are objects, and there is no filter that defines their encoding, or Zarr v3 does
    /// not have it.
    #[error("objects without the filter vlen-utf8 or vlen-bytes have no form in Zarr v3")]
    Objects,
    /// The fill value is not a value of the data type.
    #[error("fill value {value} of data type {data_type} has no form in Zarr v3")]
    FillValue {
        /// Fill value as in the document.
        value: String,
        /// The `dtype`.
        data_type: String,
    },
    /// Zarr v3 has no such codec.
    #[error("codec {0} has no form in Zarr v3")]
    Codec(String),
    /// A filter interprets the items as another data type, which Zarr v3 does not support.
    #[error("filter {filter:?} of items {found} on items {items} has no form in Zarr v3")]
    Reinterpreted {
        /// Id of the filter.
        filter: String,
        /// Data type that the filter assumes.
        found: String,
        /// Data type of its input.
        items: String,
    },
    /// A filter of items follows a codec whose output is bytes.
    #[error("filter {0:?} behind a codec that makes bytes has no form in Zarr v3")]
    FilterOfBytes(String),
}
