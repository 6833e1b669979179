//! `shardfs pack`.

use std::path::PathBuf;

use serde_json::json;

use super::copy::{CopyArgs, Job, PackingArgs, location, run as copy};
use super::exit::Failure;
use super::shard_rule::{Shard, rule};
use crate::format::index::IndexLocation;
use crate::tools::copy::{Shape, Shards};
use crate::tools::shard_file::Packing;

const EXAMPLES: &str = "\
Examples:
  shardfs pack chunks.zarr volume.zarr --shard 1024,1024,1024
  shardfs pack project.zarr packed.zarr --shard 256M         all arrays, of any dimensions
  shardfs pack old-v2.zarr volume.zarr --shard=-1,512,512    a Zarr v2 array; -1: the whole extent
  shardfs pack chunks.zarr s3://bucket/volume.zarr --shard 256M";

/// Put the chunk files of an array into shards
///
/// Chunks are copied as they are encoded, so the shard shape must be a multiple of the chunk shape.
/// Of a hierarchy all arrays with as many dimensions as the shard shape are packed, the others copied.
/// The chunks may be in shards already, nested or compressed ones too: new ones are made of them.
/// DEST gets its metadata last, once all chunks are durable and were read back; until then nobody takes
/// it for an array. If it is interrupted, the same command continues.
///
/// Exit codes: 0 done, 1 the source is damaged, 2 it could not be done.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// An array or a hierarchy: Zarr v3 or v2, or whatever else can be mounted
    source: PathBuf,
    /// Directory to make, or a place in a store: s3://, gs:// or az://
    dest: PathBuf,
    /// Size of shards: a shape in elements (512,512; -1 is the whole extent), chunks along the last axes
    /// (x8,8), or bytes of decoded data at most (256M)
    #[arg(long, value_name = "RULE", value_parser = rule, allow_hyphen_values = true)]
    shard: Shard,
    /// Where a shard's index is: start or end
    #[arg(long, value_name = "WHERE", value_parser = location(), default_value = "end")]
    #[arg(visible_alias = "index-location")]
    #[arg(hide_possible_values = true)]
    index: IndexLocation,
    #[command(flatten)]
    packing: PackingArgs,
    #[command(flatten)]
    copy: CopyArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let packing = Packing::from(&args.packing);
    let shards = Shards {
        rule: Some(args.shard.0.clone()),
        index_location: Some(args.index),
        packing,
        anew: true,
    };
    let job = Job {
        command: "pack",
        source: &args.source,
        dest: &args.dest,
        level: None,
        options: json!(format!("{shards:?}")),
        shape: Shape::Sharded(shards),
    };
    copy(&job, &args.copy)
}
