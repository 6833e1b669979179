//! What the commands beside the mount do with a source: they make, resize and delete arrays, look into
//! shards, check them, and write others of the same chunks. No option is read here and nothing is printed.
//!
//! ```text
//! Source   -> its arrays, each with its layout and the metadata of its unsharded twin
//! Array    -> shards, one after the other      (store::listing)
//! shard    -> places: chunks, gaps, defects    (store::entries)
//! places   -> batches, worked on by threads, handed over in order   (parallel)
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
pub mod verify;
