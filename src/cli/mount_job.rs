//! A mount from its options to its end: opens the source, mounts it, serves it and makes the last commits.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::exit::Failure;
use super::logging::{self, Destination, LogFile, LogFormat};
use super::message::complain;
use super::open::root_of;
use super::options::MountOptions;
use super::remote::words_of;
use super::saved::{saved_hint, saved_of, unsavable, unsaved_directory, unsaved_root};
use super::source_defaults::{DEFAULTS_FILE, Defaults, defaults_of};
use super::transport::{self, Transport, start_thread};
use crate::fs::{Fs, FsConfig, SourceError, View, Views};
use crate::mount::background::{self, Inherited, Started};
use crate::mount::{self, MountSpec};
use crate::source::{Format, NoObject, ObjectSource, OpenConfig, Source, Unsupported};
use crate::stats::Stats;
use crate::store::TRUSTED;
use crate::store::formats::blosc2::is_frame;
use crate::store::local::LocalStorage;
use crate::store::remote::{
    Place, ProbeError, RemoteOptions, RemoteStorage, SetupError, SourceUrl,
};
use crate::store::storage::{Need, PosixStorage, Storage};
use crate::store::zip::ZipStorage;
use crate::text::{count, shown, without_secrets};

/// Threads that answer requests of a mount whose source is on the network: most of them wait.
const REMOTE_THREADS: usize = 64;

/// Time for which threads are waited for that answer requests, once the mount has ended.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// Interval between commits to a store on the network: each of them replaces whole shards.
const REMOTE_INTERVAL: Duration = Duration::from_secs(5);

/// Limit of what waits for them, in bytes: where shards are put as a whole, a new one that is committed in parts is sent
/// several times.
const REMOTE_DIRTY_LIMIT: u64 = 256 << 20;

/// Interval of looks at whether they have ended.
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

/// Source of a mount, as it was given.
struct Given {
    /// What messages call it.
    name: String,
    place: Place,
    /// Its absolute path, or its URL.
    path: PathBuf,
    format: Option<Format>,
}

/// Source of a mount, opened.
struct OpenedSource {
    storage: Arc<dyn Storage>,
    /// The same if it is on a filesystem.
    local: Option<Arc<LocalStorage>>,
    /// The same if it is on the network.
    remote: Option<Arc<RemoteStorage>>,
    /// Name of the file in it that is mounted instead of all.
    file: Option<OsString>,
    /// Its real path, or its URL.
    path: PathBuf,
}

impl Given {
    fn new(source: &Path, format: Option<Format>) -> Result<Self, Failure> {
        let name = shown(&source).to_string();
        let unsupported = |path: &Path, what| {
            let path = shown(&path).to_string();
            Failure::Unsupported { path, what }
        };
        let place = Place::of(source)
            .map_err(|error| unsupported(&without_secrets(source), Unsupported::Url(error)))?;
        let (path, refused) = match &place {
            Place::Path(path) => {
                // The process in the background is in another directory.
                let path = absolute(path)?;
                let refused = Unsupported::of_path(&path, format);
                (path, refused)
            }
            Place::Url(_) => (source.to_owned(), None),
        };
        match refused {
            Some(what) => Err(unsupported(source, what)),
            None => Ok(Self { name, place, path, format }),
        }
    }

    fn open(&self, options: &RemoteOptions, stats: &Arc<Stats>) -> Result<OpenedSource, Failure> {
        match &self.place {
            Place::Path(_) => {
                OpenedSource::local(&self.path, stats).map_err(|error| self.failure(error.into()))
            }
            Place::Url(url) => OpenedSource::remote(url, options, stats)
                .map_err(|error| Failure::Option(format!("{}: {error}", self.name))),
        }
    }

    /// Creates the requested views. An object that a URL names is shown as a file is, if no node is below
    /// it.
    fn views(
        &self,
        opened: &OpenedSource,
        options: &MountOptions,
        stats: &Arc<Stats>,
    ) -> Result<Vec<Arc<Fs>>, Failure> {
        let error = match views((&opened.storage, opened.file.as_ref()), options, stats) {
            Err(error @ (SourceError::NoNode | SourceError::OtherFormat)) => error,
            found => return found.map_err(|error| self.failure(error)),
        };
        let (Place::Url(url), Some(remote)) = (&self.place, &opened.remote) else {
            return Err(self.failure(error));
        };
        let object = match ObjectSource::find(remote, url, self.format) {
            Ok(Some(object)) => object,
            Ok(None) => return Err(self.failure(error)),
            Err(NoObject::Io(error)) => return Err(self.failure(error.into())),
            Err(NoObject::Unsupported(what)) => {
                return Err(Failure::Unsupported { path: self.name.clone(), what });
            }
        };
        let source = (&object.storage, Some(&object.file));
        views(source, options, stats).map_err(|error| self.failure(error))
    }

    /// Returns the failure of the command that an error of the source is.
    fn failure(&self, error: SourceError) -> Failure {
        let path = self.name.clone();
        // On the network, what else it may be is not looked for.
        let what = match self.place {
            Place::Path(_) => unsupported_of(&self.path, self.format, &error),
            Place::Url(_) => None,
        };
        match what {
            Some(what) => Failure::Unsupported { path, what },
            None => Failure::Source { path, error },
        }
    }
}

impl OpenedSource {
    fn local(source: &Path, stats: &Arc<Stats>) -> std::io::Result<Self> {
        let path = source.canonicalize()?;
        let (root, file) = root_of(&path)?;
        let local = Arc::new(LocalStorage::open_root(&root, Arc::clone(stats))?);
        let archive = file.as_ref().map(|file| ZipStorage::find(&*local, Path::new(file)));
        if let Some(archive) = archive.transpose()?.flatten() {
            let storage = Arc::new(archive);
            return Ok(Self { storage, local: None, remote: None, file: None, path });
        }
        let storage = Arc::clone(&local) as Arc<dyn Storage>;
        Ok(Self { storage, local: Some(local), remote: None, file, path })
    }

    fn remote(
        url: &SourceUrl,
        options: &RemoteOptions,
        stats: &Arc<Stats>,
    ) -> Result<Self, SetupError> {
        let remote = Arc::new(RemoteStorage::new(url, options, Arc::clone(stats))?);
        let storage = Arc::clone(&remote) as Arc<dyn Storage>;
        let path = PathBuf::from(url.to_string());
        Ok(Self { storage, local: None, remote: Some(remote), file: None, path })
    }
}

/// A mount to be made.
pub(super) struct Job {
    /// What was asked for.
    pub options: MountOptions,
    /// Where the log goes, if it is named: an absolute path.
    pub log_file: Option<PathBuf>,
    /// Form of its lines.
    pub log_format: LogFormat,
    /// How often the user has asked for more of it.
    pub verbose: u8,
    /// `true` if the process stays where it is, with its terminal.
    pub foreground: bool,
}

impl Job {
    /// Mounts a source and serves the mount until it is unmounted. In the background, unless the job is to
    /// stay in front: then it returns once the mount answers.
    pub(super) fn run(self, source: &Path, mountpoint: &Path) -> Result<(), Failure> {
        if !self.foreground && !background::is_background() {
            return match background::start().map_err(|error| cannot("be started", &error))? {
                Started::Ready => Ok(()),
                Started::Failed(code) => Err(Failure::Background(code)),
                Started::Ended => Err(Failure::System(format!(
                    "{}: the mount has ended before it answered anything; its log says why (syslog, or the \
                     file of --log-file)",
                    shown(&mountpoint)
                ))),
            };
        }
        let inherited = if self.foreground { None } else { Some(Inherited::find()) };
        if !self.foreground {
            background::end_with_caller();
        }
        let given = Given::new(source, self.options.fs.format)?;
        self.check_level(&given.path)?;
        let mountpoint = mountpoint.canonicalize().map_err(|error| {
            mount::MountError::Mountpoint { path: mountpoint.to_owned(), error }
        })?;
        self.check_outside(&mountpoint)?;
        return_memory();
        let stats = Arc::new(Stats::default());
        // Opened before the mount, which may hide it: a source can be mounted on itself.
        let opened = given.open(&self.remote(), &stats)?;
        crate::text::name_root(&opened.path);
        self.check_archive(&given, &opened)?;
        let mut warnings = self.options.without_effect(opened.remote.is_some());
        warnings.extend(self.warnings(&opened));
        warnings.extend(Self::hides(&mountpoint, &opened.path));
        if !self.foreground {
            // The log goes elsewhere.
            warnings.iter().for_each(complain);
        }
        let log = self.start_logging()?;
        inherited.into_iter().for_each(Inherited::close);
        warnings.iter().for_each(|warning| log::warn!("{warning}"));
        self.serve(&given, opened, mountpoint, stats, log)
    }

    /// Mounts a source that is open, and serves the mount until it is unmounted.
    fn serve(
        self,
        given: &Given,
        opened: OpenedSource,
        mountpoint: PathBuf,
        stats: Arc<Stats>,
        log: Option<LogFile>,
    ) -> Result<(), Failure> {
        let foreground = self.foreground;
        let mut options = self.settled(&opened);
        take_defaults(&mut options, given, &opened)?;
        let spec = spec(&options, &opened, mountpoint);
        let say_why = || {
            // It is in the log as well, which is elsewhere.
            let said = opened.storage.failure().filter(|_| !foreground);
            said.iter().for_each(|said| complain(format!("the last request: {said}")));
        };
        let views = given.views(&opened, &options, &stats).inspect_err(|_| say_why())?;
        if options.fs.writable
            && let Some(remote) = &opened.remote
        {
            let failed = |error: ProbeError| {
                let hint = if error.is_readable() { "; leave out --rw" } else { "" };
                Failure::System(format!("{}: {error}{hint}", given.name))
            };
            remote.check_writable().map_err(failed).inspect_err(|_| say_why())?;
        }
        let local = opened.local;
        let views = Arc::new(Views::new(views));
        let transport = options.transport.unwrap_or_else(Transport::usual);
        let finish = finisher(Arc::clone(&views), opened.remote.clone());
        // The store may have a note that this process writes to it.
        let give_up = || {
            finish();
        };
        let mounted = transport::mount(transport, &views, &spec).inspect_err(|_| give_up())?;
        local.iter().for_each(|storage| storage.serves(&spec.mountpoint));
        let (mounted, answering) = mounted.start(&views).inspect_err(|_| give_up())?;
        let committing = commit_at_intervals(&views).inspect_err(|_| give_up())?;
        let hang_up = log.map(|log| Box::new(move || reopen(&log)) as Box<dyn Fn() + Send>);
        let served = mounted.serve(stats, Arc::clone(&finish), hang_up, || {
            log::info!("{} is mounted on {}", spec.name, shown(&spec.mountpoint));
            if !foreground {
                return leave_caller();
            }
            tell_supervisor();
            Ok(())
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
        join_within(END_PATIENCE, threads);
        log::info!("{} is unmounted", shown(&spec.mountpoint));
        ended
    }

    /// Returns a warning if files become invisible below the mount, unless they are of the source, or there
    /// is a mount already.
    fn hides(mountpoint: &Path, source: &Path) -> Option<String> {
        let device = |path: &Path| path.metadata().map(|found| found.dev()).ok();
        let is_mounted = device(mountpoint) != device(mountpoint.parent()?);
        if mountpoint == source {
            let place = shown(&mountpoint);
            return Some(format!(
                "{place}: it is the source itself, which this mount hides until it is unmounted"
            ));
        }
        if mountpoint.starts_with(source) || is_mounted {
            return None;
        }
        mountpoint.read_dir().ok()?.next()?.ok()?;
        let place = shown(&mountpoint);
        Some(format!("{place}: it is not empty: what is in it is hidden until this is unmounted"))
    }

    /// Fails if an archive is to be written to, or a file that is only read.
    fn check_archive(&self, given: &Given, opened: &OpenedSource) -> Result<(), Failure> {
        if !self.options.fs.writable {
            return Ok(());
        }
        let refused = |why| Err(Failure::Option(format!("{}: {why}", given.name)));
        if opened.local.is_none() && opened.remote.is_none() {
            return refused(
                "a ZIP archive is only read; leave out --rw, or unpack it and mount the directory",
            );
        }
        // What cannot be opened is reported as such.
        let file = opened.file.as_ref().and_then(|file| opened.storage.open(Path::new(file)).ok());
        match file.is_some_and(|file| is_frame(&*file).unwrap_or(false)) {
            true => refused("a frame of Blosc2 is only read; leave out --rw"),
            false => Ok(()),
        }
    }

    /// Returns the options, with what follows from the source.
    fn settled(self, opened: &OpenedSource) -> MountOptions {
        let source_options = self.source_options(opened);
        let mut options = self.options;
        options.fs.writing.source_options = source_options;
        options.fs.shared = options.access == mount::Access::Everybody;
        options.fs.writing.unsaved = unsaved_directory();
        options.fs.writing.source = opened.path.clone();
        if opened.remote.is_some() {
            let store = &mut options.fs.store;
            store.trusted = options.remote.trusted / 2;
            if options.fs.writable {
                // Names are believed for longer. What is made of them must not hide what another view has stored.
                (store.trusted, store.is_written) = (store.trusted.min(TRUSTED), true);
                if !options.given.contains("commit_interval") {
                    options.fs.writing.interval = REMOTE_INTERVAL;
                }
                if !options.given.contains("dirty_limit") {
                    options.fs.writing.dirty_limit = REMOTE_DIRTY_LIMIT;
                }
            }
            // Several readers share the memory.
            options.fs.store.longest_window = (options.remote.window_bytes / 8) as u64;
            options.transport = options.transport.or(Some(Transport::ForNetwork));
        }
        options
    }

    /// Returns the options by which commands find the source.
    fn source_options(&self, opened: &OpenedSource) -> String {
        if opened.remote.is_none() { String::new() } else { words_of(&self.options.remote) }
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
        if let Some(cache) = &self.options.remote.cache_dir
            && lies_inside(cache)
        {
            return Err(Failure::Option(format!(
                "cache_dir={}: it would lie in the mount on {place}, which would wait for itself: name a \
                 directory outside of it",
                shown(cache)
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
    fn warnings(&self, opened: &OpenedSource) -> Vec<String> {
        if !self.options.fs.writable {
            return Vec::new();
        }
        let source = &opened.path;
        let access = opened.local.as_ref().map(|local| local.access(Path::new(""), Need::Write));
        let unwritable = access.and_then(Result::err).map(|error| {
            let source = shown(source);
            format!("warning: {source}: every write will fail, it cannot be written to: {error}")
        });
        let options = self.source_options(opened);
        let saved = saved_of(source).into_iter().map(|saved| saved_hint(&saved, source, &options));
        unwritable.into_iter().chain(unsavable()).chain(saved).collect()
    }

    fn start_logging(&self) -> Result<Option<LogFile>, Failure> {
        if !self.foreground {
            background::leave_terminal().map_err(|error| cannot("leave the terminal", &error))?;
        }
        let destination = match &self.log_file {
            Some(path) => Destination::File(path.clone()),
            None if self.foreground => Destination::stderr(),
            None => Destination::Syslog,
        };
        logging::start(destination, self.log_format, self.verbose).map_err(|error| {
            let path = self.log_file.as_deref().unwrap_or(Path::new("log"));
            Failure::System(format!("{}: {error}", shown(&path)))
        })
    }
}

/// Opens a log anew, in a thread of its own: the disk that it is on may not answer.
fn reopen(log: &LogFile) {
    let reopened = log.clone();
    if let Err(error) = start_thread("log", move || reopened.reopen()) {
        log::error!("the log is not opened anew: {error}");
    }
}

/// Tells systemd that the mount answers, if it has started this process as a service that says so.
fn tell_supervisor() {
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
        log::warn!("NOTIFY_SOCKET: {error}");
    }
}

/// Takes from the source how new arrays are stored, where it says so and the options do not.
fn take_defaults(
    options: &mut MountOptions,
    given: &Given,
    opened: &OpenedSource,
) -> Result<(), Failure> {
    let Some(local) = &opened.local else { return Ok(()) };
    let is_told = !options.fs.writing.new_shards.rules.is_empty();
    if is_told || !options.fs.writable || opened.file.is_some() {
        return Ok(());
    }
    let defaults = defaults_of(&**local).map_err(|error| {
        Failure::Option(format!(
            "{}/{DEFAULTS_FILE}: {error}: mend it, or say with --shard how arrays that are created are stored \
             (`--shard off`: as they are written)",
            given.name
        ))
    })?;
    if let Some(Defaults { rules, new_shards }) = defaults {
        log::info!("arrays that are created are stored by {DEFAULTS_FILE}: {}", rules.join(", "));
        let writing = &mut options.fs.writing.new_shards;
        writing.index_location = writing.index_location.or(new_shards.index_location);
        writing.rules = new_shards.rules;
    }
    Ok(())
}

/// Returns what is mounted, and how.
fn spec(options: &MountOptions, opened: &OpenedSource, mountpoint: PathBuf) -> MountSpec {
    let name = options.name.clone();
    MountSpec {
        name: name.unwrap_or_else(|| opened.path.to_string_lossy().into_owned()),
        mountpoint,
        access: options.access,
        threads: options.threads.unwrap_or_else(|| match opened.local {
            Some(_) => usual_threads(options.fs.writable),
            None => mount::fitting_threads(REMOTE_THREADS).unwrap_or(REMOTE_THREADS),
        }),
        writable: options.fs.writable,
    }
}

/// Waits for threads that have ended, or are about to end. One that waits for a source that does not
/// answer ends with the process: its request has been given up.
fn join_within(time: Duration, threads: Vec<JoinHandle<()>>) {
    let began = Instant::now();
    while !threads.iter().all(JoinHandle::is_finished) {
        if began.elapsed() >= time {
            let left = threads.iter().filter(|thread| !thread.is_finished()).count();
            log::warn!("{} still waiting for the source", count(left, "thread"));
            return;
        }
        std::thread::sleep(BETWEEN_LOOKS);
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
    background::outlive_caller();
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

/// Creates the requested views of a storage, or of a file in it.
fn views(
    (storage, file): (&Arc<dyn Storage>, Option<&OsString>),
    options: &MountOptions,
    stats: &Arc<Stats>,
) -> Result<Vec<Arc<Fs>>, SourceError> {
    let several = options.views.len() > 1;
    let view = |view: &View| {
        let mut config = options.fs.clone();
        config.file = file.cloned();
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
fn finisher(
    views: Arc<Views>,
    remote: Option<Arc<RemoteStorage>>,
) -> Arc<dyn Fn() -> bool + Send + Sync> {
    let done = std::sync::OnceLock::new();
    let finish = move || {
        let left = views.end();
        remote.iter().for_each(|remote| remote.end_alone());
        left == 0
    };
    Arc::new(move || *done.get_or_init(&finish))
}

/// Returns the default number of threads: one for each processor, but at least 2, as one may wait
/// for the disk, and at most 16; fewer where the address space is limited. In a writable mount some may wait, too, for what
/// others are about to close.
fn usual_threads(is_writable: bool) -> usize {
    let wanted = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    let wanted = wanted.clamp(if is_writable { 4 } else { 2 }, 16);
    // Where there is no room at all, mounting says so.
    mount::fitting_threads(wanted).unwrap_or(wanted)
}

/// Makes the C library return freed memory to the system. Shard indexes come and go, hundreds of
/// kilobytes each. By default the C library adapts to the first ones and keeps such blocks for
/// later ones; their holes would add up to half of the cache's budget again. With a fixed threshold
/// each block is returned. That is glibc; musl returns blocks of 128 KiB and more by itself.
#[allow(unsafe_code, reason = "the C library has no other way to be told")]
fn return_memory() {
    #[cfg(target_env = "gnu")]
    {
        const MAPPED_FROM: libc::c_int = 64 << 10;
        // SAFETY: called before any thread is started; it sets a number.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM) };
    }
}

/// Returns an absolute path for one that may be relative to the current directory.
pub(super) fn absolute(path: &Path) -> Result<PathBuf, Failure> {
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
