//! `shardfs` mounts a sharded array as a directory in which every inner chunk is a file of its own.
//!
//! Dependencies point one way, from the bottom up:
//!
//! - [`format`]: bytes and their meaning, without I/O: Zarr metadata and its unsharded twin,
//!   chunk grids, chunk keys, shard indexes, the codecs around a shard;
//! - [`store`]: I/O on shards through one small storage trait, with its caches;
//! - [`view`]: names and numbers of what the mount shows, without I/O;
//! - [`source`]: groups and arrays in a source, of every supported format;
//! - [`fs`]: the operations of the filesystem in our own types;
//! - [`fuse`]: the translation to and from the kernel's protocol;
//! - [`tools`]: commands that work on a source without mounting it: create and delete arrays,
//!   inspect shards, verify and copy them;
//! - [`mount`]: mounting, the background process, signals, unmounting;
//! - [`cli`]: one file per subcommand.
//!
//! See `docs/ARCHITECTURE.md` for the shape of the whole and `docs/SEMANTICS.md` for what each
//! file operation does.

#![warn(clippy::disallowed_methods, clippy::print_stderr, clippy::print_stdout)]

mod bounded;
pub mod cli;
mod cpus;
pub mod format;
pub mod fs;
pub mod fuse;
mod memory;
pub mod mount;
mod mountinfo;
mod number;
mod recent;
mod requester;
pub mod source;
pub mod stats;
pub mod store;
mod text;
pub mod tools;
pub mod view;
