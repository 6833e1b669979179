//! `shardfs delete`.

use std::path::PathBuf;

use serde_json::json;

use super::exit::{Failure, system};
use super::interrupt::Interruptible;
use super::list::bytes;
use super::mounts::{check_unused, check_unused_url};
use super::output::print;
use super::remote::{RemoteArgs, place_of};
use crate::format::json::to_text;
use crate::store::remote::Place;
use crate::text::{count, shown};
use crate::tools::array::{Deletion, Kind, Stored, StoredDeletion};

const AFTER_HELP: &str = "\
What is deleted is renamed first, to a hidden name beside it: no reader sees a part of it. In a store its \
metadata goes first: without that it is no array. If the command is interrupted, the same command again \
removes what is left. Nothing is asked, as by rm -r.

Examples:
  shardfs delete volume.zarr
  shardfs delete --recursive hierarchy.zarr      a group with everything below
  shardfs delete --dry-run volume.zarr           how many files, and how long
  shardfs delete s3://bucket/volume.zarr

Exit codes: 0 done, 2 it could not be done.";

/// Delete an array, or a group with everything below
///
/// SOURCE is a Zarr v3 array or group; nothing else is deleted. Nor is what is mounted, or what a
/// mount is just writing to.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    /// Directory of the array or group, or its URL: s3://, gs:// or az://
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
    #[command(flatten)]
    remote: RemoteArgs,
}

/// What is deleted.
enum Found {
    Directory(Deletion),
    Stored(Box<StoredDeletion>),
}

impl Found {
    fn of(args: &Args) -> Result<Self, Failure> {
        match place_of(&args.source)? {
            Place::Path(path) => {
                let deletion = Deletion::find(&path, args.recursive).map_err(system)?;
                check_unused(&deletion.path())?;
                Ok(Self::Directory(deletion))
            }
            Place::Url(url) => {
                let stored = Stored::open(&url, &args.remote.options());
                let deletion = stored.and_then(|it| StoredDeletion::find(it, args.recursive));
                let deletion = deletion.map_err(system)?;
                check_unused_url(deletion.name(), deletion.address())?;
                Ok(Self::Stored(Box::new(deletion)))
            }
        }
    }

    /// Returns its kind, the number of its files and their length; of objects that is not known.
    fn totals(&self) -> (Option<Kind>, u64, Option<u64>) {
        match self {
            Self::Directory(it) => (it.kind, it.files, Some(it.nbytes)),
            Self::Stored(it) => (it.kind, it.files, None),
        }
    }

    /// Returns the number of hidden directories left by interrupted commands.
    fn leftovers(&self) -> usize {
        match self {
            Self::Directory(it) => it.leftovers(),
            Self::Stored(_) => 0,
        }
    }

    fn run(self) -> Result<(), Failure> {
        match self {
            Self::Directory(it) => it.run().map_err(system),
            Self::Stored(it) => it.run().map_err(system),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let Args { source, dry_run, json, .. } = args;
    let deletion = Found::of(args)?;
    let (kind, files, nbytes) = deletion.totals();
    let leftovers = deletion.leftovers();
    let left = match deletion {
        Found::Directory(_) => "an interrupted deletion",
        Found::Stored(_) => "an interrupted command",
    };
    if !dry_run {
        let interruptible = Interruptible::new(match deletion {
            Found::Directory(_) => {
                "the same command again deletes the rest, which may have a hidden name beside it"
            }
            Found::Stored(_) => "the same command again deletes the rest",
        });
        deletion.run()?;
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
        format!("{shown}: what {left} has left {would}removed\n").into_bytes()
    } else {
        let files = match nbytes {
            Some(nbytes) => format!("{}, {}", count(files, "file"), bytes(nbytes)),
            None => count(files, "object"),
        };
        format!("{name} {shown} {would}deleted: {files}\n").into_bytes()
    };
    print(&text)
}
