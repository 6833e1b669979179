//! `shardfs recover`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::exit::Failure;
use crate::fs::{sharded_arrays, shown};
use crate::store::local::LocalStorage;
use crate::store::recover::{Found, recover};

/// Complete or take back what an interrupted mount has left, and repair shards
///
/// Commits that were interrupted by a crash or a power cut are completed or taken back; so does the
/// next writable mount. Every array below SOURCE is looked at.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Directory of a Zarr v3 array or group, or a folder of such
    source: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let system =
        |error: std::io::Error| Failure::System(format!("{}: {error}", args.source.display()));
    let storage = LocalStorage::open_root(&args.source, Arc::default()).map_err(system)?;
    let (mut lost, mut any) = (0, false);
    for array in sharded_arrays(&storage).map_err(system)? {
        let found = recover(&storage, &array);
        let found = found.map_err(|error| Failure::System(error.to_string()))?;
        any |= !found.is_empty();
        for (shard, found) in found {
            lost += usize::from(found == Found::Lost);
            println!("{}: {}", shard.display(), outcome(found));
        }
        log::debug!("{}", shown(Path::new(&array)));
    }
    if !any {
        println!("nothing to recover");
    }
    match lost {
        0 => Ok(()),
        lost => Err(Failure::System(format!("{lost} shards cannot be recovered"))),
    }
}

fn outcome(found: Found) -> &'static str {
    match found {
        Found::Replaced => "replaced or removed since, nothing to do",
        Found::Finished => "the interrupted commit was completed",
        Found::Unfinished => "the interrupted commit was taken back",
        Found::Foreign => "changed by other software since, left as it is",
        Found::Lost => "neither the old nor the new state can be had, left as it is",
    }
}
