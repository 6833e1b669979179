//! `shardfs resize`.

use std::path::PathBuf;

use serde_json::json;

use super::exit::{Failure, system};
use super::interrupt::Interruptible;
use super::list::{List, bytes, shape};
use super::mounts::{Purpose, check_not_in_mount, commit_mounts, commit_mounts_of_url};
use super::output::print;
use super::remote::{RemoteArgs, place_of};
use crate::format::json::to_text;
use crate::store::remote::Place;
use crate::text::{count, shown};
use crate::tools::array::{Resize, Resized, Stored};

const AFTER_HELP: &str = "\
Where every extent grows or stays, only the metadata changes: what is new reads as the fill value. \
Where one becomes less, inner chunks that lie outside are removed, and shards of which nothing is left. \
A chunk across the new edge stays as it is, with what it holds beyond. The metadata changes first; if \
the command is interrupted then, the same command again removes the rest. Mounts may go on: they see \
the change within a second.

Examples:
  shardfs resize volume.zarr --shape 1000,2000,4000
  shardfs resize --dry-run volume.zarr --shape 1000,2000,500     what would be removed
  shardfs resize --keep-outside volume.zarr --shape 1000,2000,500
  shardfs resize s3://bucket/volume.zarr --shape 1000,2000,4000

Exit codes: 0 done, 2 it could not be done.";

/// Change the shape of an array
///
/// SOURCE is a Zarr v3 array with a regular chunk grid, sharded or not.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Directory of the array, or its URL: s3://, gs:// or az://
    source: PathBuf,
    /// New extents in elements, one for each dimension
    #[arg(long, value_name = "N,N,...", allow_hyphen_values = true)]
    shape: List<u64>,
    /// Leave chunks that lie outside; they are seen again when the array grows
    #[arg(long)]
    keep_outside: bool,
    /// Print what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print it as one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let Args { dry_run, keep_outside, json, .. } = args;
    let resize = find(args)?;
    let interruptible = Interruptible::new(match (*dry_run, *keep_outside) {
        (true, _) => "nothing was changed",
        (false, true) => "the same command again finishes it",
        (false, false) => {
            "the same command again removes what is left outside; run it before the array grows"
        }
    });
    let done = if *dry_run { resize.look() } else { resize.run() }.map_err(system)?;
    drop(interruptible);
    let text = if *json { document(args, &done) } else { words(args, &done) };
    print(&text)
}

/// Examines the array.
fn find(args: &Args) -> Result<Resize, Failure> {
    let Args { shape: List(extents), keep_outside, dry_run, .. } = args;
    let found = match place_of(&args.source)? {
        Place::Path(source) => {
            check_not_in_mount(&source, "resize")?;
            if !dry_run {
                commit_mounts(&source, Purpose::Change)?;
            }
            Resize::find(&source, extents, *keep_outside)
        }
        Place::Url(url) => {
            if !dry_run {
                commit_mounts_of_url(&url, &args.remote.options(), Purpose::Change)?;
            }
            let stored = Stored::open(&url, &args.remote.options());
            stored.and_then(|stored| Resize::find_stored(stored, extents, *keep_outside))
        }
    };
    found.map_err(system)
}

fn words(args: &Args, done: &Resized) -> Vec<u8> {
    let Resized { before, after, removed } = done;
    let would = if args.dry_run { "would be " } else { "" };
    let mut text = match before == after {
        true => format!("{} has the shape {}\n", shown(&args.source), shape(after)),
        false => format!(
            "{}: {} {would}resized to {}\n",
            shown(&args.source),
            shape(before),
            shape(after)
        ),
    };
    if removed.chunks > 0 || removed.shards > 0 {
        text += &format!(
            "{} outside {would}removed, {}; {} as a whole\n",
            count(removed.chunks, "chunk"),
            bytes(removed.nbytes),
            count(removed.shards, "shard")
        );
    }
    text.into_bytes()
}

fn document(args: &Args, done: &Resized) -> Vec<u8> {
    let Resized { before, after, removed } = done;
    to_text(&json!({
        "path": args.source.to_string_lossy(),
        "written": !args.dry_run,
        "shape_before": before,
        "shape": after,
        "removed_chunks": removed.chunks,
        "removed_nbytes": removed.nbytes,
        "removed_shards": removed.shards,
    }))
}
