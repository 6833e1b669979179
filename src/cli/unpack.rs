//! `shardfs unpack`.

use std::path::PathBuf;

use serde_json::json;

use super::copy::{CopyArgs, Job, run as copy};
use super::exit::Failure;
use super::open::LevelArgs;
use crate::tools::copy::Shape;

const EXAMPLES: &str = "\
Examples:
  shardfs unpack volume.zarr chunks.zarr     every chunk a file, as any Zarr v3 reader knows them
  shardfs unpack data.blp chunks.zarr        a Bloscpack file as a Zarr v3 array
  shardfs unpack --level 1 a.zarr b.zarr     of nested shards the inner shards, not their chunks
  shardfs unpack volume.zarr s3://bucket/chunks.zarr";

/// Make a file of each chunk: the unsharded form of an array or a hierarchy
///
/// Chunks are copied as they are encoded. DEST gets its metadata last, once all chunks are durable and
/// were read back; until then nobody takes it for an array. If it is interrupted, the same command
/// continues.
///
/// Exit codes: 0 done, 1 the source is damaged, 2 it could not be done.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// An array or a hierarchy: Zarr v3, the 2022 draft, a Bloscpack file, Blosc2, BLZ
    source: PathBuf,
    /// Directory to make, or a place in a store: s3://, gs:// or az://
    dest: PathBuf,
    #[command(flatten)]
    level: LevelArgs,
    #[command(flatten)]
    copy: CopyArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let job = Job {
        command: "unpack",
        source: &args.source,
        dest: &args.dest,
        level: args.level.level,
        shape: Shape::Unsharded,
        options: json!({"level": args.level.level}),
    };
    copy(&job, &args.copy)
}
