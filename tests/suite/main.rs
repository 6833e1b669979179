//! Tests of the library as its programs use it, mostly over the storage in memory: one program, for building
//! and linking one takes a third of the time of thirty. What changes or measures the whole process is a
//! program of its own, beside this directory.
//!
//!     cargo test --test suite crash::

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

mod as_written;
mod at_once;
mod blosc2;
mod commit;
mod conflict;
mod crash;
mod crash_bloscpack;
mod crash_gather;
mod crash_rename;
mod crash_repack;
mod crash_superchunks;
mod creating_at_once;
mod documents;
mod faults;
mod foreign;
mod foreign_views;
mod freshness;
mod gathering;
mod given_up;
mod handles;
mod hostile;
mod inode_numbers;
mod lookup_faults;
mod model;
mod model_open;
mod model_write;
mod new_arrays;
mod new_zarr2;
mod object_commits;
mod object_store;
mod pipeline;
mod power;
mod remote;
mod remote_assembling;
mod remote_files;
mod remote_mounts;
mod remote_names;
mod remote_object;
mod remote_writing;
mod renames;
mod scan;
mod support;
mod sync_option;
mod views;
mod zarr2_views;
