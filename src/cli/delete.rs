//! `shardfs delete`.

use std::path::PathBuf;

use serde_json::json;

use super::exit::{Failure, system};
use super::interrupt::Interruptible;
use super::list::bytes;
use super::local::local;
use super::mounts::check_unused;
use super::output::print;
use crate::format::json::to_text;
use crate::text::{count, shown};
use crate::tools::array::{Deletion, Kind};

const AFTER_HELP: &str = "\
What is deleted is renamed first, to a hidden name beside it: nobody sees a part of it. If the command \
is interrupted, the same command again removes what is left. Nothing is asked, as by rm -r.

Examples:
  shardfs delete volume.zarr
  shardfs delete --recursive hierarchy.zarr      a group with everything below
  shardfs delete --dry-run volume.zarr           how many files, and how long

Exit codes: 0 done, 2 it could not be done.";

/// Delete an array, or a group with everything below
///
/// SOURCE is a Zarr v3 array or group; nothing else is deleted. Nor is what is mounted, or what a
/// mount is just writing to.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Directory of the array or group
    #[arg(value_parser = local())]
    source: PathBuf,
    /// Delete a group as well, or an array with others below it, with everything below
    #[arg(long)]
    recursive: bool,
    /// Print what would be deleted, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Print it as one JSON document
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let Args { source, recursive, dry_run, json } = args;
    let deletion = Deletion::find(source, *recursive).map_err(system)?;
    check_unused(&deletion.path())?;
    let (kind, files, nbytes) = (deletion.kind, deletion.files, deletion.nbytes);
    let leftovers = deletion.leftovers();
    if !dry_run {
        let interruptible = Interruptible::new(
            "the same command again deletes the rest, which may have a hidden name beside it",
        );
        deletion.run().map_err(system)?;
        drop(interruptible);
    }
    let name = match kind {
        Some(Kind::Array) => "array",
        Some(Kind::Group) => "group",
        None => "leftovers",
    };
    let shown = shown(&source);
    let would = if *dry_run { "would be " } else { "" };
    let text = if *json {
        to_text(&json!({
            "path": source.to_string_lossy(),
            "written": !dry_run,
            "kind": name,
            "files": files,
            "nbytes": nbytes,
            "leftovers": leftovers,
        }))
    } else if kind.is_none() {
        format!("{shown}: what an interrupted deletion has left {would}removed\n").into_bytes()
    } else {
        format!("{name} {shown} {would}deleted: {}, {}\n", count(files, "file"), bytes(nbytes))
            .into_bytes()
    };
    print(&text)
}
