//! Formats in which shards are stored. Each implements [`ShardFormat`]; nothing outside of this
//! folder asks which one an array has.
//!
//! | format | files | index |
//! |---|---|---|
//! | [`indexed`] | one per key, as by `sharding_indexed` of Zarr v3 and the draft of 2022 | stored |
//! | [`unsharded`] | one per key, each one chunk | none: one chunk |
//! | [`bloscpack`] | one, the whole array | made of the chunks' headers |
//! | [`blosc2`] | one, the whole array | made of offsets and the chunks' headers |
//! | [`superchunks`] | numbered ones, as by BLZ and bcolz | made of the chunks' headers |
//! | [`wkw_files`] | one per cube of blocks | made of the ends of blocks, or by arithmetic |

pub mod blosc2;
mod blosc_buffer;
pub mod bloscpack;
pub mod file_state;
mod found_chunks;
mod indexed;
mod keys;
mod length;
mod shard_format;
mod single;
pub mod superchunks;
mod wkw;

use std::ffi::OsStr;
use std::sync::Arc;

use crate::format::wkw::WkwHeader;

pub(super) use self::keys::shard_coords;
pub(super) use self::length::{Length, LengthChanges};
pub(super) use self::shard_format::{Accepted, Change, ChangedShard, Planner, Reading};
pub use self::shard_format::{Framing, ShardFormat};

/// Returns the format of shards with an index.
pub fn indexed() -> Arc<dyn ShardFormat> {
    Arc::new(indexed::Indexed)
}

/// Returns the format of files that are one chunk each.
pub fn unsharded() -> Arc<dyn ShardFormat> {
    Arc::new(single::Single)
}

/// Returns the format of the files of a data set of webknossos-wrap with this header.
pub fn wkw_files(header: WkwHeader) -> Arc<dyn ShardFormat> {
    Arc::new(wkw::Wkw { header })
}

/// Returns the format of the frame of Blosc2 of that name, which is an array by itself.
pub fn blosc2_frame(name: &OsStr, opened: blosc2::Opened) -> Arc<dyn ShardFormat> {
    Arc::new(blosc2::Blosc2 { name: name.to_owned(), opened })
}

/// Returns the format of the Bloscpack file of that name, which is an array by itself.
pub fn one_file(name: &OsStr) -> Arc<dyn ShardFormat> {
    Arc::new(bloscpack::Bloscpack { name: Some(name.to_owned()) })
}

/// Returns the format of the files of a directory in which there is no metadata of an array: each
/// may be one.
pub(super) fn any_file() -> &'static dyn ShardFormat {
    static ANY: bloscpack::Bloscpack = bloscpack::Bloscpack { name: None };
    &ANY
}
