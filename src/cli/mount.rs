//! `shardfs mount`, and `mount.shardfs` as mount(8) calls it.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::exit::Failure;
use super::help::Words;
use super::logging::{self, Destination};
use super::message::{complain, tell};
use super::open::FormatArgs;
use super::options::{MountOptions, NAMES as OPTION_NAMES, policy};
use super::saved::{saved_hint, saved_of, unsavable, unsaved_directory, unsaved_root};
use super::seconds::seconds;
use super::size;
use super::transport::{self, Transport, start_thread};
use super::views::ViewArgs;
use crate::fs::{Fs, FsConfig, SourceError, View, Views};
use crate::mount::background::{self, Inherited, Started};
use crate::mount::{self, MountSpec};
use crate::number::to_usize;
use crate::source::{Format, OpenConfig, Source, Unsupported};
use crate::stats::Stats;
use crate::store::local::LocalStorage;
use crate::store::remote::{Place, RemoteOptions, RemoteStorage, SetupError, SourceUrl};
use crate::store::storage::{Need, PosixStorage, Storage};
use crate::text::shown;

/// Options of `-o`, for the help of both commands.
macro_rules! options_of_o {
    () => {
        "\
Options of -o:
  ro                  read-only, the default
  rw                  as --rw; in /etc/fstab writable, since mount(8) adds rw by itself
  sync                every close of a written file returns once it is durable
  update=HOW          as --update
  dirty_limit=BYTES   as --dirty-limit
  commit_interval=S   as --commit-interval
  keep_outside        keep chunks outside the shape of an array that shrinks
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
    /// Directory of a Zarr v3 or v2 array or group, or a folder of such; a Bloscpack file; a BLZ or
    /// bcolz directory; a URL such as s3://bucket/volume.zarr
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
    /// Memory for what waits to be committed [default: 64M]
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    #[arg(allow_negative_numbers = true)]
    dirty_limit: Option<u64>,
    /// How long what was written may wait until it is committed [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    commit_interval: Option<Duration>,
    /// Log to this file, not to syslog or stderr
    #[arg(long, value_name = "FILE")]
    log_file: Option<PathBuf>,
    /// Log more; twice: everything. RUST_LOG overrides it
    #[arg(short = 'v', long, action = clap::ArgAction::Count)]
    verbose: u8,
}

/// Mount helper of mount(8) for the type shardfs.
#[derive(Debug, clap::Parser)]
#[command(name = "mount.shardfs", version, after_long_help = HELPER_HELP)]
#[allow(clippy::struct_excessive_bools, reason = "mount(8) passes these flags")]
pub(super) struct HelperArgs {
    /// Directory of a Zarr v3 or v2 array or group, or a folder of such; a Bloscpack file; a BLZ or
    /// bcolz directory
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
    let job = Job { options, log_file: None, verbose: args.verbose, foreground: false };
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
    ] {
        if is_given {
            options.give(option);
        }
    }
    let writing = &mut options.fs.writing;
    writing.policy = args.update.map_or(Ok(writing.policy), |update| policy(&update))?;
    writing.dirty_limit = args.dirty_limit.unwrap_or(writing.dirty_limit);
    writing.interval = args.commit_interval.unwrap_or(writing.interval);
    let store = &mut options.fs.store;
    store.cache_size = args.cache_size.map_or(store.cache_size, to_usize);
    store.decode_limit = args.decode_limit.unwrap_or(store.decode_limit);
    let Args { foreground, log_file, verbose, .. } = args;
    let log_file = log_file.as_deref().map(absolute).transpose()?;
    Job { options, log_file, verbose, foreground }.run(&args.source, &args.mountpoint)
}

/// Threads that answer requests of a mount whose source is on the network: most of them wait.
const REMOTE_THREADS: usize = 64;

/// Source of a mount, opened.
struct OpenedSource {
    storage: Arc<dyn Storage>,
    /// The same if it is on a filesystem.
    local: Option<Arc<LocalStorage>>,
    /// Name of the file in it that is mounted instead of all.
    file: Option<OsString>,
    /// Its real path, or its URL.
    path: PathBuf,
}

impl OpenedSource {
    fn local(source: &Path, stats: &Arc<Stats>) -> std::io::Result<Self> {
        let path = source.canonicalize()?;
        let (root, file) = root_of(&path)?;
        let local = Arc::new(LocalStorage::open_root(&root, Arc::clone(stats))?);
        let storage = Arc::clone(&local) as Arc<dyn Storage>;
        Ok(Self { storage, local: Some(local), file, path })
    }

    fn remote(
        url: &SourceUrl,
        options: &RemoteOptions,
        stats: &Arc<Stats>,
    ) -> Result<Self, SetupError> {
        let storage = Arc::new(RemoteStorage::new(url, options, Arc::clone(stats))?);
        Ok(Self { storage, local: None, file: None, path: PathBuf::from(url.to_string()) })
    }
}

/// A mount to be made.
struct Job {
    options: MountOptions,
    log_file: Option<PathBuf>,
    verbose: u8,
    foreground: bool,
}

/// Returns the directory to open for a source whose path is absolute, and the file name if the
/// source is a file.
pub(super) fn root_of(source: &Path) -> std::io::Result<(PathBuf, Option<OsString>)> {
    match (source.parent(), source.file_name()) {
        (Some(directory), Some(name)) if source.metadata()?.is_file() => {
            Ok((directory.to_owned(), Some(name.to_owned())))
        }
        _ => Ok((source.to_owned(), None)),
    }
}

impl Job {
    fn run(self, source: &Path, mountpoint: &Path) -> Result<(), Failure> {
        if !self.foreground && !background::is_background() {
            return match background::start().map_err(|error| cannot("be started", &error))? {
                Started::Ready => Ok(()),
                Started::Failed(code) => Err(Failure::Background(code)),
            };
        }
        let inherited = if self.foreground { None } else { Some(Inherited::find()) };
        let name = shown(&source).to_string();
        let unsupported = |what| Failure::Unsupported { path: name.clone(), what };
        let format = self.options.fs.format;
        let given = Place::of(source).map_err(|error| unsupported(Unsupported::Url(error)))?;
        // The process in the background is in another directory.
        let place = match &given {
            Place::Path(path) => absolute(path)?,
            Place::Url(_) => source.to_owned(),
        };
        let source = &place;
        if matches!(given, Place::Path(_))
            && let Some(what) = Unsupported::of_path(source, format)
        {
            return Err(unsupported(what));
        }
        let failed = |error: SourceError| match unsupported_of(&place, format, &error) {
            Some(what) => unsupported(what),
            None => Failure::Source { path: name.clone(), error },
        };
        self.check_level(source)?;
        let mountpoint = mountpoint.canonicalize().map_err(|error| {
            mount::MountError::Mountpoint { path: mountpoint.to_owned(), error }
        })?;
        self.check_outside(&mountpoint)?;
        return_memory();
        let stats = Arc::new(Stats::default());
        // Opened before the mount, which may hide it: a source can be mounted on itself.
        let opened = match &given {
            Place::Path(_) => {
                OpenedSource::local(source, &stats).map_err(|error| failed(error.into()))?
            }
            Place::Url(url) => OpenedSource::remote(url, &self.remote(), &stats)
                .map_err(|error| Failure::Option(format!("{name}: {error}")))?,
        };
        let OpenedSource { storage, local, file, path: source } = opened;
        crate::text::name_root(&source);
        let mut warnings = self.options.without_effect(matches!(given, Place::Url(_)));
        warnings.extend(local.iter().flat_map(|storage| self.warnings(storage, &source)));
        if !self.foreground {
            // The log goes elsewhere.
            warnings.iter().for_each(complain);
        }
        self.start_logging()?;
        inherited.into_iter().for_each(Inherited::close);
        warnings.iter().for_each(|warning| log::warn!("{warning}"));
        let (mut options, foreground) = (self.options, self.foreground);
        options.fs.file = file;
        if local.is_none() {
            options.fs.store.trusted = options.remote.trusted / 2;
            // Several readers share the memory.
            options.fs.store.longest_window = (options.remote.window_bytes / 8) as u64;
            // Threads that wait for the network would hold up the rings that they belong to.
            options.transport = options.transport.or(Transport::named("classic"));
        }
        options.fs.shared = options.access == mount::Access::Everybody;
        let spec = MountSpec {
            name: options.name.clone().unwrap_or_else(|| source.to_string_lossy().into_owned()),
            mountpoint,
            access: options.access,
            threads: options.threads.unwrap_or_else(|| match local {
                Some(_) => usual_threads(),
                None => mount::fitting_threads(REMOTE_THREADS).unwrap_or(REMOTE_THREADS),
            }),
            writable: options.fs.writable,
        };
        options.fs.writing.unsaved = unsaved_directory();
        options.fs.writing.source = source;
        let views = views(&storage, &options, &stats).map_err(|error| {
            // It is in the log as well, which is elsewhere.
            let said = storage.failure().filter(|_| !foreground);
            said.iter().for_each(|said| complain(format!("the last request: {said}")));
            failed(error)
        })?;
        let views = Arc::new(Views::new(views));
        let transport = options.transport.unwrap_or_else(Transport::usual);
        let mounted = transport::mount(transport, &views, &spec)?;
        local.iter().for_each(|storage| storage.serves(&spec.mountpoint));
        let (mounted, answering) = mounted.start(&views)?;
        let committing = commit_at_intervals(&views)?;
        let finish = finisher(views);
        let served = mounted.serve(stats, Arc::clone(&finish), || {
            log::info!("{} is mounted on {}", spec.name, shown(&spec.mountpoint));
            if foreground { Ok(()) } else { leave_caller() }
        });
        if let Err(error) = &served
            && !foreground
        {
            // There may be no terminal any more.
            log::error!("{error}");
        }
        let mut threads = committing;
        if served.is_ok() {
            // Otherwise there may be processes left that use the mount.
            threads.extend(answering);
        }
        let ended = end(served, &*finish);
        // They have ended, or are about to end.
        threads.into_iter().for_each(|thread| drop(thread.join()));
        log::info!("{} is unmounted", shown(&spec.mountpoint));
        ended
    }

    /// Returns how a source on the network is reached.
    fn remote(&self) -> RemoteOptions {
        let mut options = self.options.remote.clone();
        if self.options.fs.store.immutable {
            options.trusted = Duration::MAX;
        }
        options
    }

    /// Returns an error if a file that this process needs would lie in the mount.
    fn check_outside(&self, mountpoint: &Path) -> Result<(), Failure> {
        let lies_inside = |path: &Path| {
            // One that cannot be followed is reported where it is opened.
            mount::will_be(path).is_ok_and(|path| path.starts_with(mountpoint))
        };
        let place = shown(&mountpoint);
        if let Some(log) = &self.log_file
            && lies_inside(log)
        {
            return Err(Failure::Option(format!(
                "--log-file {}: it would be hidden by the mount on {place}: name a file outside of it",
                shown(log)
            )));
        }
        let unsaved = unsaved_root();
        if self.options.fs.writable && lies_inside(&unsaved) {
            let elsewhere = match rustix::process::geteuid().is_root() {
                true => "mount on another directory",
                false => "mount on another directory, or set XDG_STATE_HOME to one outside of it",
            };
            return Err(Failure::System(format!(
                "what cannot be committed is saved in {}, which would lie in the mount on {place}: the \
                 mount would wait for itself; {elsewhere}",
                shown(&unsaved)
            )));
        }
        Ok(())
    }

    /// Returns an error if the source has no array with the level of sharding that is to be shown. A
    /// source that cannot be opened is reported where it is mounted.
    fn check_level(&self, source: &Path) -> Result<(), Failure> {
        let FsConfig { level, format, .. } = self.options.fs;
        let config = OpenConfig { level, format, ..OpenConfig::default() };
        let is_asked = level.is_some_and(|level| level > 0);
        let open = || Source::open_place(source, config, &self.options.remote).ok();
        let opened = if is_asked { open() } else { None };
        let checked = opened.map_or(Ok(()), |source| source.check_level());
        checked.map_err(|error| Failure::Option(format!("{}: {error}", shown(source))))
    }

    /// Returns what the user of a writable mount should know from the start.
    fn warnings(&self, storage: &LocalStorage, source: &Path) -> Vec<String> {
        if !self.options.fs.writable {
            return Vec::new();
        }
        let unwritable = storage.access(Path::new(""), Need::Write).err().map(|error| {
            let source = shown(source);
            format!("warning: {source}: every write will fail, it cannot be written to: {error}")
        });
        let saved = saved_of(source).into_iter().map(|saved| saved_hint(&saved, source));
        unwritable.into_iter().chain(unsavable()).chain(saved).collect()
    }

    fn start_logging(&self) -> Result<(), Failure> {
        if !self.foreground {
            background::leave_terminal().map_err(|error| cannot("leave the terminal", &error))?;
        }
        let destination = match &self.log_file {
            Some(path) => Destination::File(path),
            None if self.foreground => Destination::Stderr,
            None => Destination::Syslog,
        };
        logging::start(&destination, self.verbose).map_err(|error| {
            let path = self.log_file.as_deref().unwrap_or(Path::new("log"));
            Failure::System(format!("{}: {error}", shown(&path)))
        })
    }
}

/// Starts the threads that commit at intervals, one for each view that can be written.
fn commit_at_intervals(views: &Views) -> Result<Vec<JoinHandle<()>>, Failure> {
    let writable = views.all().iter().filter(|fs| fs.config().writable).cloned();
    writable.map(|fs| start_thread("commits", move || fs.commit_at_intervals())).collect()
}

/// Reports to the command that waits for this process that the mount answers, and leaves it.
///
/// # Errors
///
/// Fails if that command has ended.
fn leave_caller() -> std::io::Result<()> {
    background::report_ready()?;
    if let Err(error) = background::release_output() {
        log::error!("cannot leave the terminal: {error}");
    }
    Ok(())
}

/// Makes the last commits, however the mount has ended.
fn end(served: Result<(), mount::MountError>, finish: &dyn Fn() -> bool) -> Result<(), Failure> {
    let is_durable = finish();
    served?;
    match is_durable {
        true => Ok(()),
        false => Err(Failure::System("not everything could be committed".to_owned())),
    }
}

/// Returns what a source is that cannot be mounted because of what it is; `None` if the error says it.
fn unsupported_of(
    source: &Path,
    format: Option<Format>,
    error: &SourceError,
) -> Option<Unsupported> {
    match (error, format) {
        (SourceError::NoNode, _) => Unsupported::of_directory(source),
        (SourceError::OtherFormat, Some(format)) => Some(Source::of_other_format(source, format)),
        _ => None,
    }
}

/// Creates the requested views.
fn views(
    storage: &Arc<dyn Storage>,
    options: &MountOptions,
    stats: &Arc<Stats>,
) -> Result<Vec<Arc<Fs>>, SourceError> {
    let several = options.views.len() > 1;
    let view = |view: &View| {
        let mut config = options.fs.clone();
        config.view.view = *view;
        config.view.is_one_of_several = several;
        // A file of a whole array is read-only.
        config.writable &= *view != View::Flat;
        Fs::new(Arc::clone(storage), config, Arc::clone(stats)).map(Arc::new)
    };
    options.views.iter().map(view).collect()
}

/// Returns a function that makes the last commits, only once however often it is called, and returns
/// whether they could be made.
fn finisher(views: Arc<Views>) -> Arc<dyn Fn() -> bool + Send + Sync> {
    let done = std::sync::OnceLock::new();
    Arc::new(move || *done.get_or_init(|| views.end() == 0))
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

/// Returns the default number of threads: one for each processor, but at least 2, as one may wait
/// for the disk, and at most 16; fewer where the address space is limited.
fn usual_threads() -> usize {
    let wanted = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let wanted = wanted.clamp(2, 16);
    // Where there is no room at all, mounting says so.
    mount::fitting_threads(wanted).unwrap_or(wanted)
}

/// Makes the C library return freed memory to the system. Shard indexes come and go, hundreds of
/// kilobytes each. By default the C library adapts to the first ones and keeps such blocks for
/// later ones; their holes would add up to half of the cache's budget again. With a fixed threshold
/// each block is returned.
#[allow(unsafe_code, reason = "the C library has no other way to be told")]
fn return_memory() {
    const MAPPED_FROM: libc::c_int = 64 << 10;
    // SAFETY: called before any thread is started; it sets a number.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM) };
}

/// Returns an absolute path for one that may be relative to the current directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| {
        let path = shown(&path);
        Failure::System(match error.kind() {
            std::io::ErrorKind::NotFound => format!(
                "{path}: the current directory, which it is relative to, no longer exists: change to \
                 one that does, or give its whole path"
            ),
            _ => format!("{path}: {error}"),
        })
    })
}

/// Makes a failure of what the background process cannot do.
fn cannot(what: &str, error: &std::io::Error) -> Failure {
    Failure::System(format!("the background process cannot {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_commits_are_made_although_the_session_has_failed() {
        let calls = std::cell::Cell::new(0);
        let finish = |is_durable: bool| {
            calls.set(calls.get() + 1);
            is_durable
        };
        let failed = || Err(mount::MountError::Session(std::io::Error::other("it broke")));
        for is_durable in [true, false] {
            let ended = end(failed(), &|| finish(is_durable));
            assert!(ended.is_err_and(|failure| failure.to_string().contains("it broke")));
        }
        assert!(end(Ok(()), &|| finish(true)).is_ok());
        assert!(end(Ok(()), &|| finish(false)).is_err());
        assert_eq!(calls.get(), 4);
    }
}
