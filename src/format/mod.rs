//! Formats: parsing, encoding and planning as pure functions of bytes and metadata.
//!
//! Nothing here opens files, takes locks or knows the mount. Every input may be hostile: sizes and
//! counts are checked against [`limits`] before anything is allocated, and arithmetic is checked.

pub mod blosc;
pub mod blosc2;
pub mod bloscpack;
pub(crate) mod chain;
pub mod chunk_error;
pub mod chunk_key;
pub(crate) mod chunk_layout;
pub mod codec;
pub mod data_type;
pub(crate) mod decoded;
pub mod digest;
pub mod document;
pub mod draft2022;
pub(crate) mod error;
pub(crate) mod fill_chunk;
mod fill_kept;
pub mod fingerprint;
pub mod flat;
pub mod foreign;
pub(crate) mod from_twin;
pub(crate) mod grid;
pub(crate) mod gzip;
pub mod index;
pub(crate) mod index_remains;
pub mod journal;
pub mod json;
pub mod limits;
pub(crate) mod marker;
pub mod metadata;
#[cfg(any(feature = "remote", test))]
pub(crate) mod named_nodes;
pub(crate) mod new_array;
pub mod npy;
pub mod numpy;
pub mod order;
pub mod pipeline;
pub mod plan;
pub(crate) mod reshard;
pub mod sample;
pub(crate) mod search;
mod shard_codec;
pub(crate) mod shard_rule;
pub mod sharding;
pub(crate) mod space;
pub(crate) mod superchunks;
pub mod whole_shard;
pub mod wkw;
pub(crate) mod wrong_byte;
pub mod zarr2;

/// Coordinates of a chunk or a shard: one number for each array axis, in array order.
pub type Coords = Vec<u64>;
