//! Mounting and unmounting.
//!
//! fuser's own mounting is not used: it drops the subtype, does not escape the source's name and
//! gives up on a busy mount. As root mount(2) is called, otherwise fusermount3.

mod asking;
mod attached;
pub mod background;
mod control_group;
mod error;
mod fusermount;
mod guard;
mod overlap;
mod room;
mod signals;
mod spec;
pub mod status;
mod table;
mod unmounting;
mod users;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvError, channel};
use std::thread;

use fuser::{Notifier, Session, SessionACL};
use rustix::mount::{MountFlags, UnmountFlags};
use signal_hook::iterator::Signals;

pub use self::asking::{PROBE, probe, store_of, unsaved_of};
use self::asking::{answers_within, daemon_of};
use self::attached::Attached;
pub use self::background::run_within;
use self::error::ANSWER_PATIENCE;
pub use self::error::MountError;
pub use self::guard::{GUARD, run as run_guard};
pub use self::overlap::{InMount, lie_apart, mount_of, will_be};
pub use self::room::{fits_beside, fitting as fitting_threads};
use self::signals::Handler;
pub use self::signals::end_mount;
pub use self::spec::{Access, MountSpec};
pub use self::table::{Use, mounts_of_url, uses_of};
use self::unmounting::unmount_patiently;
pub use crate::mountinfo::FILESYSTEM_TYPE;
use crate::stats::Stats;
use crate::text::shown;

/// Maximum length of a readahead request, in KiB.
const READ_AHEAD_KIB: u32 = 1024;

/// A mount that exists but does not answer requests yet.
pub struct Mounted<F: fuser::Filesystem> {
    session: Session<F>,
    connection: OwnedFd,
    acl: SessionACL,
    signals: Signals,
    attached: Attached,
    is_guarded: bool,
}

/// Mounts `filesystem`. It is unmounted again if the value is dropped without being served.
pub fn mount<F: fuser::Filesystem>(
    filesystem: F,
    spec: &MountSpec,
) -> Result<Mounted<F>, MountError> {
    check_mountpoint(&spec.mountpoint)?;
    room::check(spec.threads)?;
    let signals = signals::catch()?;
    let device = if rustix::process::geteuid().is_root() {
        mount_directly(spec)?
    } else {
        fusermount::mount(spec)?
    };
    // Whatever fails from here on must not leave a mount that nothing answers for.
    let attached = Attached::new(&spec.mountpoint);
    let is_guarded = guarded(&attached);
    let acl = match spec.access {
        Access::Owner => SessionACL::Owner,
        Access::Root => SessionACL::RootAndOwner,
        Access::Everybody => SessionACL::All,
    };
    let mut config = fuser::Config::default();
    config.acl = acl;
    config.n_threads = Some(spec.threads);
    config.clone_fd = true;
    let connection = device.try_clone().map_err(MountError::Session)?;
    let session = Session::from_fd(filesystem, device, acl, config).map_err(MountError::Session)?;
    Ok(Mounted { session, connection, acl, signals, attached, is_guarded })
}

/// Lets another process end the mount if this one is killed and cannot end. Returns whether there is
/// one that is not killed with it.
fn guarded(attached: &Attached) -> bool {
    let Some(connection) = attached.connection() else { return false };
    let started = guard::start(connection);
    if let Err(error) = &started {
        log::info!(
            "{}: if this process is killed while it changes what the kernel has cached, the mount may \
             hang until it is unmounted with umount -f: {error}",
            shown(attached.mountpoint())
        );
    }
    started.unwrap_or(false)
}

/// What is learned about a mount while it is served.
enum News {
    /// A request was answered, with the device of the mount's root.
    Answered(io::Result<u64>),
    /// The session has ended.
    Ended(io::Result<()>),
}

impl<F: fuser::Filesystem> Mounted<F> {
    /// Returns the notifier through which notifications are sent to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.session.notifier()
    }

    /// Returns whether the mount ends if its process is killed, whatever its threads wait for.
    pub fn is_guarded(&self) -> bool {
        self.is_guarded && !guard::may_end_with_all()
    }

    /// Returns the mount point.
    pub fn mountpoint(&self) -> &Path {
        self.attached.mountpoint()
    }

    /// Returns whose requests are answered.
    pub fn acl(&self) -> SessionACL {
        self.acl
    }

    /// Returns another descriptor of the FUSE connection.
    pub fn connection(&self) -> io::Result<OwnedFd> {
        self.connection.try_clone()
    }

    /// Serves the mount until it is unmounted, by a signal or by another process. `ready` is called
    /// once the mount answers; if it fails, the mount is not wanted any more. `finish` is called
    /// before this process exits on a signal although the mount is in use; it returns whether
    /// everything could be committed. SIGUSR1 logs the counters. SIGHUP calls `hang_up` if there is one; otherwise it
    /// unmounts, as SIGTERM and SIGINT do.
    ///
    /// # Errors
    ///
    /// Whatever the error, the mount is detached. Threads may still serve processes that have
    /// files open in it.
    pub fn serve(
        self,
        stats: Arc<Stats>,
        finish: Arc<dyn Fn() -> bool + Send + Sync>,
        hang_up: Option<Box<dyn Fn() + Send>>,
        ready: impl FnOnce() -> io::Result<()>,
    ) -> Result<(), MountError> {
        let Self { session, signals, attached, .. } = self;
        let (attached, has_ended) = (Arc::new(attached), Arc::default());
        let place = Arc::downgrade(&attached);
        let ended = Arc::clone(&has_ended);
        let handler = Handler { attached: place, stats, finish, hang_up, has_ended: ended };
        handler.start(signals).map_err(MountError::Thread)?;
        let mountpoint = attached.mountpoint();
        let news = start(session, has_ended, mountpoint).map_err(MountError::Thread)?;
        let device = match news.recv() {
            Ok(News::Answered(device)) => device,
            ended => return outcome(ended),
        };
        let error = |error| MountError::Refused { path: mountpoint.to_owned(), error };
        raise_read_ahead(device.map_err(error)?, &attached);
        ready().map_err(|_| MountError::Interrupted(mountpoint.to_owned()))?;
        outcome(news.recv())
    }
}

/// Starts the session, and a request whose reply proves that the mount answers. They run in threads
/// of their own: a session that ends early answers nothing.
fn start<F: fuser::Filesystem>(
    session: Session<F>,
    has_ended: Arc<AtomicBool>,
    mountpoint: &Path,
) -> io::Result<Receiver<News>> {
    let (ended, news) = channel();
    let (answered, mountpoint) = (ended.clone(), mountpoint.to_owned());
    // If the news cannot be told, the process is about to end.
    thread::Builder::new().name("session".to_owned()).spawn(move || {
        let outcome = session.run();
        has_ended.store(true, Ordering::Release);
        drop(ended.send(News::Ended(outcome)));
    })?;
    thread::Builder::new().name("first request".to_owned()).spawn(move || {
        let device = std::fs::metadata(mountpoint).map(|root| root.dev());
        drop(answered.send(News::Answered(device)));
    })?;
    Ok(news)
}

/// Returns the outcome of a session from the last news of it.
fn outcome(last: Result<News, RecvError>) -> Result<(), MountError> {
    match last {
        Ok(News::Ended(outcome)) => outcome.map_err(MountError::Session),
        // It ends without news.
        Ok(News::Answered(_)) | Err(RecvError) => {
            Err(MountError::Session(io::Error::other("a thread panicked")))
        }
    }
}

/// Returns an error if no shardfs filesystem is mounted at a path, or if the process behind it does
/// not answer. A mount whose process has ended answers with an error.
pub fn check_answers(mountpoint: &Path) -> Result<(), MountError> {
    let mountpoint = find_mounted(mountpoint)?;
    let connection = table::connection(&mountpoint).unwrap_or(0);
    if answers_within(&mountpoint, connection, ANSWER_PATIENCE) {
        return Ok(());
    }
    Err(MountError::Silent { path: mountpoint, connection })
}

/// Returns whether the shardfs filesystem on `mountpoint` is mounted for writing.
pub fn is_writable(mountpoint: &Path) -> Result<bool, MountError> {
    Ok(table::is_writable(&find_mounted(mountpoint)?))
}

/// Unmounts the shardfs filesystem on `mountpoint` and waits, half a minute at most, until its
/// process has ended.
///
/// `report` is called with the number and name of a process in another mount namespace if the process
/// behind the mount keeps running because that namespace has the mount too.
pub fn unmount(mountpoint: &Path, report: impl FnOnce(u32, &str)) -> Result<(), MountError> {
    let mountpoint = &find_mounted(mountpoint)?;
    let connection = table::connection(mountpoint);
    let daemon = daemon_of(mountpoint);
    unmount_patiently(mountpoint, UnmountFlags::empty())?;
    let mut is_elsewhere = false;
    let has_ended = background::wait_for_end(daemon, || {
        if let Some((pid, name)) = connection.and_then(table::elsewhere) {
            is_elsewhere = true;
            report(pid, &name);
        }
    });
    match has_ended || is_elsewhere {
        true => Ok(()),
        false => Err(MountError::Ending(mountpoint.clone())),
    }
}

/// Detaches the shardfs filesystem on `mountpoint` even if it is busy; it ends when its last user has
/// left. Returns whether its process has ended within a second. If the mount may hang, it does not
/// `answer`: it is sent no request, and its process is taken for one that runs.
pub fn detach(mountpoint: &Path, answers: bool) -> Result<bool, MountError> {
    let mountpoint = &find_mounted(mountpoint)?;
    let daemon = if answers { daemon_of(mountpoint) } else { None };
    unmount_patiently(mountpoint, UnmountFlags::DETACH)?;
    Ok(daemon.is_some_and(|daemon| background::ends_soon(&daemon)))
}

/// Returns the path under which a mount is known to the system.
fn find_mounted(named: &Path) -> Result<PathBuf, MountError> {
    if let Ok(path) = std::path::absolute(named)
        && let Some(mountpoint) = table::above(&path)
    {
        return Err(MountError::InMount { path, mountpoint });
    }
    let mut mountpoint = absolute(named)?;
    if table::mounted_source(&mountpoint).is_none() {
        // A symbolic link to the mount. Only now is a request sent to the mount itself.
        mountpoint = named
            .canonicalize()
            .map_err(|error| MountError::Mountpoint { path: named.to_owned(), error })?;
    }
    match table::mounted_source(&mountpoint) {
        Some(_) => Ok(mountpoint),
        None => Err(match mount_of(&mountpoint) {
            Some(InMount { mountpoint: above, .. }) => {
                MountError::InMount { path: mountpoint, mountpoint: above }
            }
            None => MountError::NotMounted(mountpoint),
        }),
    }
}

/// Returns an absolute path of a mount point without sending a request to the mount itself, which
/// may hang.
fn absolute(mountpoint: &Path) -> Result<PathBuf, MountError> {
    let error = |error| MountError::Mountpoint { path: mountpoint.to_owned(), error };
    let Some(name) = mountpoint.file_name() else {
        return mountpoint.canonicalize().map_err(error);
    };
    let parent = match mountpoint.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    Ok(parent.canonicalize().map_err(error)?.join(name))
}

fn check_mountpoint(path: &Path) -> Result<(), MountError> {
    if let Some(source_name) = table::mounted_source(path) {
        return Err(MountError::AlreadyMounted { source_name, path: path.to_owned() });
    }
    let metadata = std::fs::metadata(path)
        .map_err(|error| MountError::Mountpoint { path: path.to_owned(), error })?;
    if metadata.is_dir() { Ok(()) } else { Err(MountError::NotADirectory(path.to_owned())) }
}

fn mount_directly(spec: &MountSpec) -> Result<OwnedFd, MountError> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    let device: File = device.map_err(MountError::Device)?;
    let mut options = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if spec.access != Access::Owner {
        options.push_str(",allow_other");
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    flags.set(MountFlags::RDONLY, !spec.writable);
    let options = std::ffi::CString::new(options).unwrap_or_default();
    let path = &spec.mountpoint;
    rustix::mount::mount(spec.name.as_str(), path, FILESYSTEM_TYPE, flags, &*options).map_err(
        |error| match error {
            rustix::io::Errno::PERM if !may_mount() => MountError::NotAllowed(path.clone()),
            _ => MountError::Refused { path: path.clone(), error: error.into() },
        },
    )?;
    Ok(device.into())
}

/// Returns whether this process has the capability to mount.
fn may_mount() -> bool {
    let wanted = rustix::thread::CapabilitySet::SYS_ADMIN;
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// Raises the kernel's readahead limit. Needs root; without it reads are slower but correct.
fn raise_read_ahead(device: u64, attached: &Attached) {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    // A signal may have unmounted it: this is the device of the directory below then.
    if attached.connection() != Some(minor) {
        return;
    }
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, READ_AHEAD_KIB.to_string()) {
        log::debug!("{path}: {error}");
    }
}
