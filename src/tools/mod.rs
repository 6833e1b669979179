//! Commands that work on a source without mounting it: create, resize and delete arrays, inspect
//! and verify shards, and write copies of them. This module neither reads options nor prints.
//!
//! ```text
//! Source   -> its arrays, each with its layout and the metadata of its unsharded twin
//! Array    -> shards, one after the other      (store::listing)
//! shard    -> places: chunks, gaps, defects    (store::entries)
//! places   -> batches, processed by threads, handed over in order   (parallel)
//! ```

pub mod array;
pub mod aside;
pub mod copy;
pub mod destination;
pub mod digest;
pub mod info;
pub mod ls;
pub mod map;
pub mod parallel;
pub mod parts;
pub mod refs;
pub mod repack;
pub mod shard_file;
pub mod sizes;
pub mod survey;
pub mod svg;
#[cfg(test)]
mod testing;
pub mod transfer;
pub mod unsaved;
pub mod verify;
