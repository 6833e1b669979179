//! Commands that work on a source without mounting it: create, resize and delete arrays, inspect
//! and verify shards, and write copies of them. This module neither reads options nor prints.
//!
//! ```text
//! Source   -> its arrays, each with its layout and the metadata of its unsharded twin
//! Array    -> shards, one after the other      (store::listing)
//! shard    -> places: chunks, gaps, defects    (store::entries)
//! places   -> batches, processed by threads, handed over in order   (parallel)
//! ```

pub(crate) mod array;
pub(crate) mod aside;
pub(crate) mod copy;
pub(crate) mod destination;
pub(crate) mod digest;
pub(crate) mod info;
pub(crate) mod ls;
pub(crate) mod map;
pub(crate) mod objects;
pub(crate) mod other_file;
pub(crate) mod parallel;
pub(crate) mod parts;
pub(crate) mod refs;
pub mod repack;
pub mod shard_file;
pub(crate) mod sizes;
pub(crate) mod strays;
pub(crate) mod survey;
pub(crate) mod svg;
#[cfg(test)]
mod testing;
pub(crate) mod transfer;
pub(crate) mod unsaved;
pub mod verify;
