//! `shardfs mount`, and `mount.shardfs` as mount(8) calls it.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use super::copy::location;
use super::exit::Failure;
use super::help::Words;
use super::logging::LogFormat;
use super::message::tell;
use super::mount_job::{Job, absolute};
use super::open::FormatArgs;
use super::options::{MountOptions, NAMES as OPTION_NAMES, policy};
use super::remote::RemoteArgs;
use super::seconds::seconds;
use super::shard_rule::of_created;
use super::size;
use super::views::ViewArgs;
use crate::format::index::IndexLocation;
use crate::fs::NewShardsRule;
use crate::number::to_usize;

/// Options of `-o`, for the help of both commands.
macro_rules! options_of_o {
    () => {
        "\
Options of -o:
  ro                  read-only, the default
  rw                  as --rw: chunk files can be made, changed and removed
  writable            the same, in /etc/fstab and for `mount -t shardfs`, which adds rw by itself: there
                      rw alone leaves a mount read-only
  sync                every close of a written file returns once it is durable
  update=HOW          as --update
  dirty_limit=BYTES   as --dirty-limit
  commit_interval=S   as --commit-interval
  keep_outside        keep chunks outside the shape of an array that shrinks
  shard=RULE          as --shard; a comma in it with a backslash before it
  allow_other         everybody may use the mount, as far as permissions allow
  allow_root          root may use the mount too
  uid=N,gid=N         show everything as owned by this user, this group
  umask=OCTAL         permission bits to take away
  immutable           nobody changes the source while it is mounted: disables revalidation
  format=FORMAT       as --format
  view=VIEW           as --view; several, separated by a colon: view=zarr2:npy
  endian=ORDER        as --endian
  edge=HOW            as --edge
  missing=HOW         as --missing
  keep_fill           as --keep-fill
  level=N             which chunks of nested sharding to show: 1 the outermost, 0 the shards
                      themselves; the innermost if not given
  pad_edge            the last chunk of Bloscpack, BLZ and bcolz is as long as the others, as readers
                      of Zarr expect it
  xattr               extended attributes user.shardfs.{shard,offset,nbytes} report where a chunk is
  fsname=NAME         name of the source in /proc/mounts
  threads=N           threads that answer requests, 2 to 1024
  transport=HOW       how they get them: by io_uring where the kernel has FUSE over io_uring switched on
                      (auto), from /dev/fuse (classic), or by io_uring with a warning if that is not
                      to be had (uring)
  cache_size=BYTES    as --cache-size
  decoded_size=BYTES  as --decoded-size
  decode_limit=BYTES  as --decode-limit

Options of -o for sources that are URLs:
  endpoint=URL        address of a store that is not the provider's own
  region=NAME         region of the bucket
  profile=NAME        profile of ~/.aws to use
  account=NAME        account of Azure Blob Storage
  anonymous           do not sign requests: for public data
  virtual_host        the bucket is part of the host's name, not of the path
  requester_pays      requests and transfer are paid for by who asks
  no_list             do not list names, which may be refused: look for those that the metadata lets
                      expect
  single_writer       write to a store that cannot keep writers apart: nothing else writes there
  absent=403          take objects that may not be read for absent ones
  ca=FILE             accept the certificates in this file, too
  timeout=S           how long a request may take, with its repetitions (60)
  requests=N          how many requests may be under way at once (64)
  trusted=S           how long names, indexes and listings are believed (60)
  fetch_size=BYTES    memory for what was fetched (256M)
  cache_dir=DIR       keep what was fetched there, for the next mount as well
  cache_limit=BYTES   up to this length (10G)

Exit codes: 0 mounted and answering; 1 wrong usage; 2 system error; 32 mount failure.

"
    };
}

const MOUNT_HELP: &str = concat!(
    options_of_o!(),
    "\
Examples:
  shardfs mount volume.zarr /mnt/volume
  shardfs mount -o immutable,allow_other /data/hierarchy.zarr /mnt/h
  shardfs mount --rw volume.zarr /mnt/volume       chunk files can be written
  shardfs mount --rw --shard 256M volume.zarr /mnt/volume   arrays that are created are sharded
  shardfs mount --view zarr2,flat volume.zarr /mnt/volume   for readers of Zarr v2 and of plain files
  shardfs mount -f -v volume.zarr /mnt/volume      stay in front and log more"
);

const HELPER_HELP: &str = concat!(
    options_of_o!(),
    "\
Examples:
  mount -t shardfs /data/volume.zarr /mnt/volume
  mount -t shardfs -o writable,allow_other /data/volume.zarr /mnt/volume

In /etc/fstab:
  /data/volume.zarr  /mnt/volume  shardfs  ro,allow_other,nofail  0  0"
);

const UPDATES: Words = Words(&["auto", "append", "in-place", "rewrite"]);
const OPTIONS: Words = Words(&OPTION_NAMES);

/// Mount a sharded array or a hierarchy of arrays; every inner chunk becomes a file
#[derive(Debug, clap::Args)]
#[command(after_long_help = MOUNT_HELP)]
pub(super) struct Args {
    /// Directory of a Zarr v3 or v2 array or group, or a folder of such; a BLZ, bcolz or webknossos-wrap
    /// directory; a ZIP archive of such; a Bloscpack file or a frame of Blosc2; a URL such as s3://bucket/volume.zarr
    source: PathBuf,
    /// Where to mount it: a directory
    #[arg(value_hint = clap::ValueHint::DirPath)]
    mountpoint: PathBuf,
    /// Stay in front, log to stderr
    #[arg(long, short = 'f')]
    foreground: bool,
    /// Options as mount(8) takes them, separated by commas
    #[arg(short = 'o', value_name = "OPTION,...", value_parser = OPTIONS)]
    #[arg(hide_possible_values = true)]
    options: Vec<String>,
    /// Memory for shard indexes and decoded shards, such as 256M [default: 64M]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    #[arg(allow_negative_numbers = true)]
    cache_size: Option<u64>,
    /// Longest shard that is decoded as a whole, where shards are compressed [default: 1G]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    #[arg(allow_negative_numbers = true)]
    decode_limit: Option<u64>,
    #[command(flatten)]
    views: ViewArgs,
    #[command(flatten)]
    format: FormatArgs,
    /// Allow writing: chunk files can be made, changed and removed
    #[arg(long)]
    rw: bool,
    /// How shards are changed: auto, append, in-place or rewrite [default: auto]
    #[arg(long, value_name = "HOW", value_parser = UPDATES, hide_possible_values = true)]
    update: Option<String>,
    /// Memory for what waits to be committed [default: 64M; of a URL 256M]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    #[arg(allow_negative_numbers = true)]
    dirty_limit: Option<u64>,
    /// How long what was written may wait until it is committed [default: 1; of a URL 5]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    commit_interval: Option<Duration>,
    /// Store arrays that are created sharded, though they are shown as they are written: 256M (decoded bytes of a
    /// shard at most), x8,8 (chunks along the last axes) or off. PATTERN=RULE is for the arrays at paths like
    /// this, such as **/time=off; the first one that fits counts [default: off]
    #[arg(long, value_name = "[PATTERN=]RULE", value_parser = of_created)]
    shard: Vec<NewShardsRule>,
    /// Where the indexes of such shards are: end or start [default: end]
    #[arg(long, value_name = "WHERE", value_parser = location())]
    #[arg(hide_possible_values = true)]
    index_location: Option<IndexLocation>,
    #[command(flatten)]
    remote: RemoteArgs,
    /// Log to this file, not to syslog or stderr
    #[arg(long, value_name = "FILE", help_heading = LOG)]
    log_file: Option<PathBuf>,
    /// Form of the lines of the log: text or json [default: text]
    #[arg(long, value_name = "FORM", hide_possible_values = true, default_value = "text")]
    #[arg(help_heading = LOG)]
    #[arg(hide_default_value = true)]
    log_format: LogFormat,
    /// Log more; twice: everything. RUST_LOG overrides it
    #[arg(short = 'v', long, action = clap::ArgAction::Count, help_heading = LOG)]
    verbose: u8,
}

/// Heading of the options about the log.
const LOG: &str = "Options for the log";

/// Mount helper of mount(8) for the type shardfs.
#[derive(Debug, clap::Parser)]
#[command(name = "mount.shardfs", version, after_long_help = HELPER_HELP)]
#[allow(clippy::struct_excessive_bools, reason = "mount(8) passes these flags")]
pub(super) struct HelperArgs {
    /// Directory of a Zarr v3 or v2 array or group, or a folder of such; a BLZ, bcolz or webknossos-wrap
    /// directory; a ZIP archive of such; a Bloscpack file or a frame of Blosc2; a URL
    source: PathBuf,
    /// Where to mount it: a directory
    #[arg(value_hint = clap::ValueHint::DirPath)]
    mountpoint: PathBuf,
    /// Options, separated by commas
    #[arg(short = 'o', value_name = "OPTION,...", value_parser = OPTIONS)]
    #[arg(hide_possible_values = true)]
    options: Vec<String>,
    /// Do everything but mount
    #[arg(short = 'f')]
    fake: bool,
    /// Tolerate unknown options; they are refused all the same
    #[arg(short = 's')]
    sloppy: bool,
    /// Do not write /etc/mtab, which nobody does
    #[arg(short = 'n')]
    no_mtab: bool,
    /// Log more
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    verbose: u8,
    /// Type and subtype
    #[arg(short = 't')]
    kind: Option<String>,
}

/// Runs the helper of mount(8), which passes `rw` if neither `ro` nor `rw` was given.
pub(super) fn run_helper(args: HelperArgs) -> Result<(), Failure> {
    let mut options = MountOptions::parse(&args.options)?;
    // Writing must be requested by an option that mount(8) does not add by itself.
    options.fs.writable = asks_for_writing(&args.options);
    let is_named = args.options.iter().any(|list| list.split(',').any(|it| it == "writable"));
    check_writable(&options, is_named, &args.options)?;
    if !options.fs.writable && says_rw(&args.options) {
        let text = "read-only: mount(8) adds rw by itself; say -o writable to write";
        match std::io::stderr().is_terminal() {
            true => tell(text),
            false => log::info!("{text}"),
        }
    }
    options.check_views()?;
    let (log_file, log_format) = (None, LogFormat::default());
    let job = Job { options, log_file, log_format, verbose: args.verbose, foreground: false };
    if args.fake { Ok(()) } else { job.run(&args.source, &args.mountpoint) }
}

pub(super) fn run(args: Args) -> Result<(), Failure> {
    let mut options = MountOptions::parse(&args.options)?;
    options.fs.writable |= args.rw;
    check_writable(&options, args.rw, &args.options)?;
    if args.format.is_given() {
        options.fs.format = args.format.format();
    }
    args.views.apply(&mut options)?;
    options.check_views()?;
    for (option, is_given) in [
        ("update", args.update.is_some()),
        ("dirty_limit", args.dirty_limit.is_some()),
        ("commit_interval", args.commit_interval.is_some()),
        ("shard", !args.shard.is_empty()),
    ] {
        if is_given {
            options.give(option);
        }
    }
    for option in args.remote.apply(&mut options.remote) {
        options.give(option);
    }
    let writing = &mut options.fs.writing;
    writing.policy = args.update.map_or(Ok(writing.policy), |update| policy(&update))?;
    writing.dirty_limit = args.dirty_limit.unwrap_or(writing.dirty_limit);
    writing.interval = args.commit_interval.unwrap_or(writing.interval);
    // Those of the command line count more than those of -o.
    writing.new_shards.rules.splice(0..0, args.shard);
    writing.new_shards.index_location = args.index_location;
    let store = &mut options.fs.store;
    store.cache_size = args.cache_size.map_or(store.cache_size, to_usize);
    store.decode_limit = args.decode_limit.unwrap_or(store.decode_limit);
    let Args { foreground, log_file, log_format, verbose, .. } = args;
    let log_file = log_file.as_deref().map(absolute).transpose()?;
    Job { options, log_file, log_format, verbose, foreground }.run(&args.source, &args.mountpoint)
}

/// Returns whether the options of mount(8) ask for writing. A plain `rw` does not count, because
/// mount(8) adds it if nothing else was given.
fn asks_for_writing(lists: &[String]) -> bool {
    let mut options = lists.iter().flat_map(|list| list.split(','));
    options.any(|option| ["writable", "sync"].contains(&option) || option.starts_with("update="))
}

/// Returns whether `rw` is the last of the options `ro` and `rw`.
fn says_rw(lists: &[String]) -> bool {
    last_of(lists, ["ro", "rw"]) == Some("rw")
}

/// Returns the last of two options; `None` if there is neither.
fn last_of<'a>(lists: &'a [String], names: [&str; 2]) -> Option<&'a str> {
    let mut options = lists.iter().flat_map(|list| list.split(','));
    options.rfind(|option| names.contains(option))
}

/// Returns an error if options exclude each other. `is_named` says whether writing was asked for in
/// so many words.
fn check_writable(options: &MountOptions, is_named: bool, lists: &[String]) -> Result<(), Failure> {
    let message = if options.fs.writable && options.fs.store.immutable {
        "immutable and writable exclude each other: leave out \"immutable\", or what asks for writing"
    } else if is_named && last_of(lists, ["ro", "rw"]) == Some("ro") {
        "ro and writable exclude each other: leave out \"ro\", or what asks for writing"
    } else {
        return Ok(());
    };
    Err(Failure::Option(message.to_owned()))
}
