//! The sharding storage transformer of the draft of February 2022, as written by zarr-python 2.13
//! to 2.18 with its experimental Zarr v3.
//!
//! ```text
//! zarr.json                       the hierarchy: zarr_format is a URI
//! meta/root/a/b.array.json        an array; sharded if it has storage_transformers
//! meta/root/a.group.json
//! data/root/a/b/c0/1              a shard of it; its chunks are c0/2, c0/3, c1/2 and so on
//!
//! shard   | chunks, in any order, gaps allowed | index |
//! index   (offset, nbytes) of each chunk, little-endian u64, chunks per shard in C order,
//!         without a checksum; both words 2^64-1: the chunk is empty
//! ```
//!
//! This is a shard of `sharding_indexed` whose index codecs are `bytes` alone. Only the location
//! and the content of the metadata and the prefix of keys differ.

mod hierarchy;
mod layout;
mod twin;

pub use self::hierarchy::{
    data_of, described, documents, group_documents, is_document, is_hierarchy, metadata_directory,
    node_of,
};
pub use self::layout::{is_sharded, keys, parse, unshard};
pub use self::twin::{NoTwin, to_zarr3};
