//! `shardfs recover`.

mod scan;
mod unsaved;
mod uploads;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::exit::{Failure, system};
use super::local::check_local;
use super::message::complain;
use super::mounts::check_not_in_mount;
use super::open::{FormatArgs, open};
use super::output::say;
use super::remote::{RemoteArgs, words_of};
use super::saved::{chunks_wait, saved_hint, saved_of};
use crate::source::{Node, OpenConfig, Source};
use crate::store::StoreConfig;
use crate::store::gather::{GatherError, Where, found};
use crate::store::new_shards;
use crate::store::owner::Owner;
use crate::store::recover::{Found, recover};
use crate::store::remote::Place;
use crate::store::storage::Storage;
use crate::text::{count, shown, without_secrets};

const AFTER_HELP: &str = "\
Examples:
  shardfs recover volume.zarr
  shardfs recover --scan volume.zarr             which shards cannot be read
  shardfs recover --scan --write volume.zarr     and put those back that have an older index
  shardfs recover --unsaved DIR volume.zarr      what a mount could not commit
  shardfs recover s3://bucket/volume.zarr        uploads that were not completed";

/// Roll forward or back what an interrupted mount has left, and repair shards
///
/// Commits that were interrupted by a crash or a power cut are rolled forward or back; so does the
/// next writable mount. Every array below SOURCE is examined.
///
/// With --scan every shard is examined as well: those that cannot be read are named. Where a single
/// byte of an index is wrong, its checksum says which: --write puts it right. A shard that other software was writing to when it was stopped may still hold its older index; with --write
/// a copy of it is put at the shard's end, and nothing else of the shard is touched. Chunks that were
/// written since then read as they did before, or as empty. Where chunks were put into the place of
/// others, as shardfs does, an older index may show bytes of other chunks: all chunks that it reaches
/// are decoded, and it is compared with the indexes that are still in the shard, and with what is left
/// of a newer one. If any of that speaks against it, the shard stays as it is without --force. Not all
/// can be found out so: compare the chunks with what you have.
///
/// With --unsaved what a mount of SOURCE could not commit is put in: each chunk that is saved below
/// DIR replaces the one in its shard, and its file is removed. Of several that were saved of a chunk
/// the newest is put in; those that differ from it are moved to DIR/.other/.older. The mount's log
/// and `shardfs umount` name DIR, and DIR/.source names SOURCE: another one is refused without
/// --force.
///
/// If SOURCE is a URL, what mounts leave in the store that were killed is removed, if it is at least --older old: uploads of
/// shards that were begun and not completed, and objects to try the store out. No shard is changed.
///
/// Exit codes: 0 the source is whole, 1 a shard cannot be recovered, or not without --write, or was put
/// back to an older index, or an upload is left, or chunks wait that a mount could not commit, 2 it could
/// not be done.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
#[command(group = clap::ArgGroup::new("forced").args(["unsaved", "write"]).multiple(true))]
pub(super) struct Args {
    /// What was mounted: a directory or a file; or a folder of such; or a URL
    source: PathBuf,
    /// Look at every shard, and for older indexes in those that cannot be read
    #[arg(long)]
    scan: bool,
    /// Repair what --scan finds
    #[arg(long, requires = "scan")]
    write: bool,
    /// Put the chunks that are saved below DIR into their shards
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath, conflicts_with = "scan")]
    unsaved: Option<PathBuf>,
    /// Age from which on an upload to a store, or an object to try it out, counts as left behind [default: 24h]
    #[arg(long, value_name = "AGE", value_parser = uploads::age, conflicts_with_all = ["scan", "unsaved"])]
    older: Option<Duration>,
    /// Put in what was saved of another source, or of this one at another place; with --write: put shards
    /// back to an older index that may show bytes of other chunks
    #[arg(long, requires = "forced")]
    force: bool,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Age from which on an upload counts as one that was left.
const OLDER: Duration = Duration::from_secs(24 * 3600);

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let format = args.format.format();
    let named = |why: &dyn Display| {
        Failure::Option(format!("{}: {why}", shown(&without_secrets(&args.source))))
    };
    if let Some(directory) = &args.unsaved {
        unsaved::check_directory(directory)?;
    }
    if let Place::Url(url) = Place::of(&args.source).map_err(|why| named(&why))? {
        // Where shards are replaced at once, no commit is interrupted.
        let whole = PathBuf::from(url.to_string());
        let Some(directory) = &args.unsaved else {
            if args.scan {
                let name = shown(&args.source);
                return Err(system(format_args!("{name}: --scan examines shards on this machine")));
            }
            let options = words_of(&args.remote.options());
            let saved = saved_of(&whole);
            saved.iter().for_each(|saved| say(saved_hint(saved, &whole, &options)));
            let older = args.older.unwrap_or(OLDER);
            uploads::give_up(&whole, &url, format, older, &args.remote)?;
            return all_is_in(&saved);
        };
        unsaved::check_is_none(directory)?;
        unsaved::check_saved_of(directory, &whole, args.force)?;
        return unsaved::put_in(directory, &whole, format, &args.remote);
    }
    check_local(&args.source).map_err(|why| named(&why))?;
    if args.older.is_some() {
        let name = shown(&args.source);
        return Err(system(format_args!(
            "{name}: --older is about uploads to a store, and it is no URL"
        )));
    }
    let source =
        open(&args.source, OpenConfig { format, ..OpenConfig::default() }, &RemoteArgs::default())?;
    let whole = args.source.canonicalize().ok().filter(|_| args.unsaved.is_none());
    let saved = whole.as_deref().map_or_else(Vec::new, saved_of);
    // Said where it is the whole answer.
    let says_nothing_found = !args.scan && args.unsaved.is_none() && saved.is_empty();
    let interrupted = finish_commits(&source, says_nothing_found).or_else(|failure| {
        // What a mount shows may look like what an interrupted one has left.
        check_not_in_mount(&args.source, "recover").and(Err(failure))
    });
    if let Some(directory) = &args.unsaved {
        interrupted?;
        unsaved::check_source(directory, &args.source, args.force)?;
        return unsaved::put_in(directory, &args.source, format, &args.remote);
    }
    if let Some(whole) = &whole {
        saved.iter().for_each(|saved| say(saved_hint(saved, whole, "")));
    }
    let mut nodes = source.nodes();
    let only = nodes.next().filter(|_| nodes.next().is_none());
    let lacks_index = |node: Node| match node {
        Node::Array(array) => !array.source.format.has_index(),
        _ => false,
    };
    if args.scan && only.is_some_and(lacks_index) {
        let text = format!("{}: --scan reads shards with an index", shown(&args.source));
        return interrupted.and(Err(Failure::System(text)));
    }
    // The results of recovery are printed, and shards are scanned, even if the other failed.
    let scanned = if args.scan { scan::scan(args, &source) } else { Ok(()) };
    interrupted.and(scanned).and_then(|()| all_is_in(&saved))
}

/// Fails if chunks wait in these directories that an earlier mount could not commit: hints say so.
fn all_is_in(saved: &[PathBuf]) -> Result<(), Failure> {
    if chunks_wait(saved) { Err(Failure::Found(String::new())) } else { Ok(()) }
}

fn finish_commits(source: &Source, says_nothing_found: bool) -> Result<(), Failure> {
    let (mut lost, mut any, mut failed) = (0, false, None);
    for node in source.nodes() {
        let owner = match &node {
            Node::Array(array) => Owner::Array(&array.source),
            node => Owner::Directory(node.directory()),
        };
        // Only a filesystem has unfinished commits.
        let Some(storage) = source.storage.posix() else { continue };
        match gather(&source.storage, owner.path()) {
            Ok(false) => (),
            Ok(true) => {
                any = true;
                say(format_args!(
                    "{}: its chunk files, which an interrupted mount was putting into shards, are in shards",
                    shown(owner.path())
                ));
            }
            Err(error) => {
                if let Some(before) = failed.replace(Failure::System(error.to_string())) {
                    complain(before);
                }
                continue;
            }
        }
        let were_made = new_shards::exist(storage, owner);
        let found = match recover(storage, owner) {
            Ok(found) => found,
            // The commits to other arrays are finished all the same.
            Err(error) => {
                if let Some(before) = failed.replace(Failure::System(error.to_string())) {
                    complain(before);
                }
                continue;
            }
        };
        any |= !found.is_empty();
        for (shard, found) in found {
            lost += usize::from(found == Found::Lost);
            say(format_args!("{}: {}", shown(&shard), outcome(found)));
        }
        if were_made && !new_shards::exist(storage, owner) {
            any = true;
            let array = shown(owner.path());
            say(format_args!(
                "{array}: new shards that an interrupted repack has left were removed"
            ));
        }
        log::debug!("{}", shown(owner.path()));
    }
    if let Some(failed) = failed {
        return Err(failed);
    }
    if !any && says_nothing_found {
        say("nothing to recover");
    }
    match lost {
        0 => Ok(()),
        lost => Err(Failure::Found(format!("{} cannot be recovered", count(lost, "shard")))),
    }
}

/// Goes on where a mount was interrupted that put chunk files into shards. Returns whether the array is in its place
/// by that.
fn gather(storage: &Arc<dyn Storage>, directory: &Path) -> Result<bool, GatherError> {
    let (config, stats) = (StoreConfig::default(), Arc::default());
    found::recover(Where { source: storage, storage, directory, config: &config, stats: &stats })
}

fn outcome(found: Found) -> &'static str {
    match found {
        Found::Replaced => "replaced or removed since, nothing to do",
        Found::Finished => "the interrupted commit was rolled forward",
        Found::Unfinished => "the interrupted commit was rolled back",
        Found::Foreign => "changed by other software since, left as it is",
        Found::Lost => "neither the old nor the new state can be had, left as it is",
    }
}
