//! Common parts of `shardfs unpack`, `pack` and `repack` to another place.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::builder::TypedValueParser;
use indicatif::{HumanBytes, HumanCount};
use serde_json::{Value, json};

use super::exit::Failure;
use super::help::Words;
use super::interrupt::Interruptible;
use super::message::complain;
use super::mounts::{
    Purpose, check_apart, check_not_made_in_mount, check_unused, commit_mounts,
    commit_mounts_of_url, in_each_other,
};
use super::open::{FormatArgs, open};
use super::output::say;
use super::progress::{Progress, Unit};
use super::remote::RemoteArgs;
use crate::format::index::IndexLocation;
use crate::format::order::ChunkOrder;
use crate::source::{BadNode, Format, Node, OpenConfig, Source};
use crate::store::remote::{Place, SourceUrl};
use crate::text::{json_path, many, shown, without_secrets};
use crate::tools::copy::{Copied, Others, Plan, Shape};
use crate::tools::destination::{Destination, DestinationError};
use crate::tools::objects::THREADS;
use crate::tools::parallel::threads;
use crate::tools::shard_file::Packing;

/// What is said of a symbolic link that consolidated metadata lists and that leads to no node of the
/// copy.
const UNLISTED: &str = "left out of the consolidated metadata: the symbolic link leads to no array or \
                        group of the copy";

/// Options that all of them have.
#[derive(Debug, clap::Args)]
pub(super) struct CopyArgs {
    #[command(flatten)]
    format: FormatArgs,
    /// Replace DEST if it is a Zarr array or group, or begin an unfinished one anew; in a store the latter alone
    #[arg(long, short = 'f')]
    force: bool,
    /// Leave out what cannot be read; without it nothing is finished that lacks a chunk
    #[arg(long)]
    skip_damaged: bool,
    /// Threads that copy; as many as there are processors if not given, 8 to a store
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    threads: Option<NonZeroUsize>,
    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    remote: RemoteArgs,
}

impl CopyArgs {
    /// Returns the number of threads that copy.
    pub(super) fn threads(&self) -> NonZeroUsize {
        self.threads.unwrap_or_else(threads)
    }

    /// The same for threads that copy to `to`.
    fn threads_to(&self, to: &To) -> NonZeroUsize {
        match to {
            To::Directory(_) => self.threads(),
            To::Store(_) => self.threads.unwrap_or(THREADS),
        }
    }

    /// Returns the format of the source; `None` detects it.
    pub(super) fn format(&self) -> Option<Format> {
        self.format.format()
    }

    /// Returns whether damaged chunks and nodes are left out.
    pub(super) fn skips_damaged(&self) -> bool {
        self.skip_damaged
    }

    /// Returns whether the result is printed as JSON.
    pub(super) fn is_json(&self) -> bool {
        self.json
    }
}

/// How chunks are to stand in a shard.
#[derive(Debug, clap::Args)]
pub(super) struct PackingArgs {
    /// Order of the chunks in a shard: c, f or morton
    #[arg(long, value_parser = ORDERS.try_map(|text| order(&text)), default_value = "c")]
    #[arg(hide_possible_values = true)]
    order: ChunkOrder,
    /// Equal chunks of a shard share their bytes
    #[arg(long)]
    dedup: bool,
}

impl From<&PackingArgs> for Packing {
    fn from(args: &PackingArgs) -> Self {
        Self { order: args.order, dedup: args.dedup }
    }
}

/// A requested copy.
pub(super) struct Job<'a> {
    /// Name of the subcommand.
    pub command: &'static str,
    /// Source of the copy.
    pub source: &'a PathBuf,
    /// Destination of the copy.
    pub dest: &'a PathBuf,
    /// Level of nested sharding whose chunks are copied.
    pub level: Option<usize>,
    /// Form of the arrays in the copy.
    pub shape: Shape,
    /// Options that the result depends on; they identify the job.
    pub options: Value,
}

/// Makes a copy, or resumes one.
pub(super) fn run(job: &Job<'_>, args: &CopyArgs) -> Result<(), Failure> {
    let to = To::of(job, args.force)?;
    let url = match Place::of(job.source) {
        Ok(Place::Url(source)) => {
            commit_mounts_of_url(&source, &args.remote.options(), Purpose::Read)?;
            Some(PathBuf::from(source.to_string()))
        }
        _ => {
            commit_mounts(job.source, Purpose::Read)?;
            None
        }
    };
    let config = OpenConfig { level: job.level, format: args.format(), pad_edge: true };
    let source = open(job.source, config, &args.remote)?;
    let named = |error| Failure::Copy { path: job.source.clone(), error };
    let nodes: Vec<Node> = source.nodes().collect();
    let leaves = (args.skip_damaged, matches!(to, To::Directory(_)));
    let plan = Plan::new(&source, &nodes, &job.shape, leaves).map_err(named)?;
    let whole = || job.source.canonicalize().unwrap_or_else(|_| job.source.clone());
    let whole = url.unwrap_or_else(whole);
    let note = json!({
        "command": job.command,
        "source": whole.to_string_lossy(),
        "options": job.options,
        "plan": plan.identity(),
    });
    let destination = to.open(&source, &note, args)?;
    let is_resumed = destination.is_resumed;
    let interruptible = Interruptible::new(match (args.force, &to) {
        (true, To::Directory(_)) => {
            "the destination is as it was; what was copied has a hidden name beside it, which the \
             same command removes, and begins anew"
        }
        (true, To::Store(_)) => "the same command without --force continues where it stopped",
        (false, _) => "the same command continues where it stopped",
    });
    let copied = copy_all(&plan, &source, &destination, args.threads_to(&to)).map_err(named)?;
    let others = plan.copy_others(&destination).map_err(named)?;
    let is_whole = copied.iter().all(|copied| copied.damaged.is_empty());
    if is_whole || args.skip_damaged {
        plan.finish(destination).map_err(named)?;
    }
    drop(interruptible);
    let report = Report { job, plan: &plan, copied: &copied, others: &others, is_resumed };
    if args.json {
        report.print_json();
    } else {
        report.print();
    }
    for copied in copied.iter().filter(|copied| copied.outside > 0) {
        let files = many(copied.outside, "file");
        complain(format_args!(
            "{}: left out: {files} outside the array's grid; `shardfs verify` of the source names \
             them",
            shown(&copied.path)
        ));
    }
    for planned in &plan.arrays {
        if let Some(codec) = planned.array.own_codec() {
            complain(format_args!(
                "{}: its chunks are as they were, and no reader of Zarr knows their codec {codec:?}; shardfs shows them \
                 decoded (--view npy, raw, flat)",
                shown(&planned.path)
            ));
        }
    }
    for BadNode { path, error, .. } in &plan.left_out {
        complain(format_args!("{}: left out: {error}", shown(path)));
    }
    for path in &plan.unlisted {
        complain(format_args!("{}: {UNLISTED}", shown(path)));
    }
    for (path, kind) in &others.left_out {
        complain(format_args!("{}: left out: it is {kind}", shown(path)));
    }
    for defect in copied.iter().flat_map(|copied| &copied.damaged) {
        complain(defect);
    }
    match (is_whole, args.skip_damaged) {
        (true, _) if plan.left_out.is_empty() => Ok(()),
        (_, true) => Err(Failure::Found("what cannot be read was left out".to_owned())),
        _ => Err(Failure::Found(format!(
            "{} is not finished: the source is damaged; --skip-damaged leaves out what cannot be read",
            shown(&job.dest)
        ))),
    }
}

/// Where a copy is made.
enum To {
    Directory(PathBuf),
    Store(SourceUrl),
}

impl To {
    /// Returns where the copy of a job is made, if it can be made there.
    fn of(job: &Job<'_>, force: bool) -> Result<Self, Failure> {
        let bad = |error| DestinationError::Url { path: without_secrets(job.dest), error };
        match Place::of(job.dest).map_err(bad)? {
            Place::Path(path) => {
                check_apart(job.source, &path)?;
                check_not_made_in_mount(&path)?;
                if force {
                    check_unused(&path)?;
                }
                Ok(Self::Directory(path))
            }
            Place::Url(url) => match Place::of(job.source) {
                Ok(Place::Url(source)) if source.holds(&url) || url.holds(&source) => {
                    Err(in_each_other(job.dest))
                }
                _ => Ok(Self::Store(url)),
            },
        }
    }

    /// Opens it for a copy of a source by the job that is described in `note`.
    fn open(
        &self,
        source: &Source,
        note: &Value,
        args: &CopyArgs,
    ) -> Result<Destination, DestinationError> {
        let storage = &source.storage;
        match self {
            Self::Directory(path) => Destination::open(path, storage, note, args.force),
            Self::Store(url) => {
                Destination::open_url(url, &args.remote.options(), storage, note, args.force)
            }
        }
    }
}

fn copy_all(
    plan: &Plan<'_>,
    source: &Source,
    destination: &Destination,
    threads: NonZeroUsize,
) -> Result<Vec<Copied>, crate::tools::copy::CopyError> {
    // Counting reads the attributes of each file, which pays off only if the bar is visible.
    let total = Progress::is_shown()
        .then(|| plan.arrays.iter().map(|planned| source.nbytes(planned.array)).sum());
    let progress = Progress::new(Unit::Bytes, total);
    let mut copied = Vec::new();
    for array in &plan.arrays {
        let report = |nbytes| progress.add(nbytes);
        copied.push(plan.copy(array, destination, threads, &report)?);
    }
    Ok(copied)
}

/// Report of a finished copy.
struct Report<'a> {
    job: &'a Job<'a>,
    plan: &'a Plan<'a>,
    copied: &'a [Copied],
    others: &'a Others,
    is_resumed: bool,
}

impl Report<'_> {
    fn print(&self) {
        for copied in self.copied {
            let Copied { path, digest, written, kept, .. } = copied;
            let files = match kept {
                0 => many(*written, "file"),
                _ => format!(
                    "{}, {} of them there before",
                    many(written + kept, "file"),
                    HumanCount(*kept)
                ),
            };
            let (chunks, nbytes) = (many(digest.chunks, "chunk"), HumanBytes(digest.nbytes));
            say(format_args!("{}: {chunks}, {nbytes}, in {files}", shown(path)));
            say(format_args!("  digest {digest}, read back and equal"));
        }
        for path in &self.plan.other_rank {
            say(format_args!("{}: as it was, it has other dimensions", shown(path)));
        }
        if self.others.copied > 0 {
            say(many(self.others.copied, "other file"));
        }
    }

    fn print_json(&self) {
        let arrays = self.copied.iter().map(|copied| {
            let Copied { path, digest, written, kept, damaged, outside } = copied;
            json!({
                "path": json_path(path),
                "chunks": digest.chunks,
                "nbytes": digest.nbytes,
                "digest": digest.to_string(),
                "files_written": written,
                "files_kept": kept,
                "damaged": damaged,
                "outside": outside,
                "other_rank": self.plan.other_rank.contains(path),
            })
        });
        let left_out = self.plan.left_out.iter();
        let left_out = left_out
            .map(|bad| json!({"path": json_path(&bad.directory), "error": bad.error.to_string()}));
        let unlisted = self.plan.unlisted.iter();
        let unlisted = unlisted.map(|path| json!({"path": json_path(path), "error": UNLISTED}));
        let special = self.others.left_out.iter();
        let special = special
            .map(|(path, kind)| json!({"path": json_path(path), "error": format!("it is {kind}")}));
        say(format_args!(
            "{:#}",
            json!({
                "command": self.job.command,
                "source": self.job.source.to_string_lossy(),
                "destination": self.job.dest.to_string_lossy(),
                "resumed": self.is_resumed,
                "arrays": arrays.collect::<Vec<_>>(),
                "other_files": self.others.copied,
                "left_out": left_out.chain(unlisted).chain(special).collect::<Vec<_>>(),
            })
        ));
    }
}

/// Parses a number of threads.
fn at_least_one(text: &str) -> Result<NonZeroUsize, &'static str> {
    text.parse().map_err(|_| "write a number of threads, at least 1")
}

const ORDERS: Words = Words(&["c", "f", "morton"]);

/// Parses the name of a chunk order.
fn order(text: &str) -> Result<ChunkOrder, String> {
    let found = ChunkOrder::NAMES.iter().find(|(name, _)| *name == text);
    let names = || ChunkOrder::NAMES.map(|(name, _)| name).join(", ");
    found.map(|(_, order)| *order).ok_or_else(|| format!("it is none of {}", names()))
}

/// Returns a parser of index locations.
pub(super) fn location() -> impl TypedValueParser<Value = IndexLocation> {
    Words(&["start", "end"]).try_map(|text| match text.as_str() {
        "start" => Ok(IndexLocation::Start),
        "end" => Ok(IndexLocation::End),
        _ => Err("it is neither start nor end"),
    })
}
