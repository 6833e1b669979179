//! `shardfs repack`.

use std::path::PathBuf;
use std::sync::Arc;

use indicatif::{HumanBytes, HumanCount};
use serde_json::json;

use super::copy::{CopyArgs, Job, PackingArgs, location, run as copy};
use super::exit::Failure;
use super::interrupt::Interruptible;
use super::message::complain;
use super::mounts::{Purpose, check_not_in_mount, commit_mounts};
use super::open::open;
use super::output::say;
use super::progress::{Progress, Unit};
use super::remote::RemoteArgs;
use super::shard_rule::{Shard, rule};
use crate::format::index::IndexLocation;
use crate::source::{Array, Node, OpenConfig};
use crate::text::{json_path, many, shown};
use crate::tools::copy::{Shape, Shards};
use crate::tools::repack::{How, RepackError, Repacked, repack};
use crate::tools::shard_file::Packing;

const EXAMPLES: &str = "\
Examples:
  shardfs repack volume.zarr                       give dead space back, shard by shard
  shardfs repack volume.zarr --order morton        neighbouring chunks beside each other
  shardfs repack volume.zarr new.zarr --shard 2048,2048,2048 --index start";

/// Write the shards of an array or a hierarchy anew, without dead space
///
/// Chunks are copied as they are encoded. Without DEST each shard is replaced where it is: the new one
/// is complete, durable and read back before it takes the old one's name, so the array is whole at any
/// moment, for mounts and other readers too. A shard that is already as it should be is left alone,
/// so the command can be stopped and called again. So is a damaged shard, unless --skip-damaged leaves
/// out for good the chunks of it that cannot be read; without a readable index it stays in any case.
///
/// With DEST a copy is made, in which shards may have another shape and the index another place.
///
/// Exit codes: 0 done, 1 some shards are damaged, 2 it could not be done.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// An array or a hierarchy with shards
    source: PathBuf,
    /// Directory to make, or a place in a store: s3://, gs:// or az://; the shards are replaced where they are if
    /// not given
    dest: Option<PathBuf>,
    /// Size of shards: a shape in elements (512,512; -1 is the whole extent), chunks along the last axes
    /// (x8,8), or bytes of decoded data at most (256M)
    #[arg(long, value_name = "RULE", value_parser = rule, allow_hyphen_values = true)]
    #[arg(requires = "dest")]
    shard: Option<Shard>,
    /// Where a shard's index is: start or end
    #[arg(long, value_name = "WHERE", value_parser = location(), requires = "dest")]
    #[arg(visible_alias = "index-location")]
    #[arg(hide_possible_values = true)]
    index: Option<IndexLocation>,
    #[command(flatten)]
    packing: PackingArgs,
    #[command(flatten)]
    copy: CopyArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let packing = Packing::from(&args.packing);
    let Some(dest) = &args.dest else { return in_place(args, packing) };
    let rule = args.shard.as_ref().map(|shard| shard.0.clone());
    let shards = Shards { rule, index_location: args.index, packing, anew: false };
    let job = Job {
        command: "repack",
        source: &args.source,
        dest,
        level: None,
        options: json!(format!("{shards:?}")),
        shape: Shape::Sharded(shards),
    };
    copy(&job, &args.copy)
}

fn in_place(args: &Args, packing: Packing) -> Result<(), Failure> {
    commit_mounts(&args.source, Purpose::Change)?;
    let config = OpenConfig { format: args.copy.format(), ..OpenConfig::default() };
    let source = open(&args.source, config, &RemoteArgs::default())?;
    let has_shards = |array: &Arc<Array>| array.source.format.has_index();
    let name = shown(&args.source);
    let how = How { packing, skip_damaged: args.copy.skips_damaged() };
    // Counting reads the attributes of each file, which pays off only if the bar is visible.
    let total = Progress::is_shown()
        .then(|| source.arrays().filter(has_shards).map(|array| source.nbytes(&array)).sum());
    let progress = Progress::new(Unit::Bytes, total);
    let interruptible =
        Interruptible::new("every shard is whole, the same command continues where it stopped");
    let (mut results, mut bad) = (Vec::new(), Vec::new());
    for node in source.nodes() {
        let array = match node {
            Node::Array(array) if has_shards(&array) => array,
            Node::Bad(node) => {
                bad.push(node.to_string());
                continue;
            }
            Node::Array(_) | Node::Group(_) | Node::Journal(_) => continue,
        };
        let report = |nbytes| progress.add(nbytes);
        let done = repack(&source, &array, how, args.copy.threads(), &report);
        let path = shown(&array.source.path);
        let path = match array.source.path.as_os_str().is_empty() {
            true => name.to_string(),
            false => format!("{name}: {path}"),
        };
        let failed = |error| Failure::System(format!("{path}: {error}"));
        results.push((array.source.path.clone(), done.map_err(failed)?));
    }
    if results.is_empty() {
        bad.iter().for_each(complain);
        check_not_in_mount(&args.source, "repack")?;
        let text = format!("{name}: {}", RepackError::NoShards);
        return Err(Failure::System(text));
    }
    drop(progress);
    drop(interruptible);
    if args.copy.is_json() {
        print_json(args, &results);
    } else {
        print(&results);
    }
    let damaged = results.iter().flat_map(|(_, done)| done.damaged.iter().cloned());
    let defects: Vec<String> = bad.into_iter().chain(damaged).collect();
    defects.iter().for_each(complain);
    match defects.is_empty() {
        true => Ok(()),
        false => Err(Failure::Found(what_stays(&results))),
    }
}

/// Says what became of damaged shards. A node that cannot be used was reported.
fn what_stays(results: &[(PathBuf, Repacked)]) -> String {
    let sum = |count: fn(&Repacked) -> u64| results.iter().map(|(_, done)| count(done)).sum();
    let counts: [(u64, &str, &str); 3] = [
        (sum(|done| done.cut), "shards that lack the chunks now that cannot be read", ""),
        (
            sum(|done| done.kept),
            "damaged shards that stay as they are",
            " (--skip-damaged leaves out their chunks that cannot be read)",
        ),
        (
            sum(|done| done.unreadable),
            "shards that stay as they are, without a readable index",
            " (`shardfs recover --scan` says whether it can be repaired)",
        ),
    ];
    let said = counts.iter().filter(|(count, ..)| *count > 0);
    said.map(|(count, what, hint)| format!("{what}: {count}{hint}")).collect::<Vec<_>>().join("; ")
}

fn print(results: &[(PathBuf, Repacked)]) {
    for (path, done) in results {
        let Repacked { shards, rewritten, before, after, .. } = done;
        say(format_args!(
            "{}: {} of {} written anew, {} now, {} before",
            shown(path),
            HumanCount(*rewritten),
            many(*shards, "shard"),
            HumanBytes(*after),
            HumanBytes(*before),
        ));
    }
}

fn print_json(args: &Args, results: &[(PathBuf, Repacked)]) {
    let arrays = results.iter().map(|(path, done)| {
        json!({
            "path": json_path(path),
            "shards": done.shards,
            "shards_rewritten": done.rewritten,
            "bytes_before": done.before,
            "bytes_after": done.after,
            "shards_damaged": done.unreadable + done.kept,
            "shards_cut": done.cut,
            "damaged": done.damaged,
        })
    });
    say(format_args!(
        "{:#}",
        json!({
            "command": "repack",
            "source": args.source.to_string_lossy(),
            "arrays": arrays.collect::<Vec<_>>(),
        })
    ));
}
