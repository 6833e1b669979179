//! Mounting and unmounting.
//!
//! fuser's own mounting is not used: it drops the subtype, does not escape the source's name and
//! gives up on a busy mount. As root mount(2) is called, otherwise fusermount3.

pub mod background;
mod fusermount;
mod overlap;
mod table;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fuser::{Notifier, Session, SessionACL};
use rustix::mount::{MountFlags, UnmountFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

pub use self::background::{PROBE, probe, run_within, unsaved_of};
pub use self::overlap::{InMount, lie_apart, mount_of, will_be};
pub use self::table::{Use, uses_of};
pub use crate::mountinfo::FILESYSTEM_TYPE;
use crate::stats::Stats;
use crate::text::shown;

/// Maximum length of a readahead request, in KiB.
const READ_AHEAD_KIB: u32 = 1024;

/// Maximum time for a mount to report the process behind it, which it can do at any time.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// Duration and interval of attempts to unmount a mount that is briefly busy: other mounts, `df`
/// and file managers access every mount now and then.
const PASSING: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(20));

/// Grace period for a busy mount to end after it was detached.
const DETACH_GRACE: Duration = Duration::from_secs(1);

/// Users that can access a mount besides the user who mounted it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// No other user.
    #[default]
    Owner,
    /// Root.
    Root,
    /// All users, subject to the permissions.
    Everybody,
}

/// Parameters of a mount.
#[derive(Debug, Clone)]
pub struct MountSpec {
    /// Name of the source in /proc/mounts.
    pub name: String,
    /// Mount point.
    pub mountpoint: PathBuf,
    /// Users that can access the mount.
    pub access: Access,
    /// Number of threads that answer requests.
    pub threads: usize,
    /// `true` if the mount is writable.
    pub writable: bool,
}

/// Error of mounting or unmounting.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point does not exist or cannot be reached.
    #[error("mount point {}: {error}", shown(.path))]
    Mountpoint {
        /// The mount point.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// The mount point is not a directory.
    #[error("mount point {} is not a directory", shown(.0))]
    NotADirectory(PathBuf),
    /// A shardfs filesystem is already mounted there.
    #[error("{} is already mounted on {}; unmount it first: shardfs umount {}", .source_name, shown(.path), shown(.path))]
    AlreadyMounted {
        /// Name of the source that is mounted.
        source_name: String,
        /// The mount point.
        path: PathBuf,
    },
    /// No shardfs filesystem is mounted there.
    #[error("{} is not a mount of shardfs", shown(.0))]
    NotMounted(PathBuf),
    /// The path lies in a mount.
    #[error("{} is not a mount of shardfs, but lies in one: {}", shown(.path), shown(.mountpoint))]
    InMount {
        /// The path.
        path: PathBuf,
        /// The mount point.
        mountpoint: PathBuf,
    },
    /// The FUSE device cannot be opened.
    #[error("/dev/fuse: {0}; is the fuse module loaded?")]
    Device(#[source] io::Error),
    /// The kernel refused to mount.
    #[error("cannot mount on {}: {error}", shown(.path))]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// The process runs as root but without the capability to mount.
    #[error(
        "cannot mount on {}: root has no CAP_SYS_ADMIN here, as in most containers: start the \
         container with --device /dev/fuse --cap-add SYS_ADMIN", shown(.0)
    )]
    NotAllowed(PathBuf),
    /// The mount is in use.
    #[error("{} is busy: a file in it is open or a shell stands in it; shardfs umount --lazy detaches it all the same", shown(.0))]
    Busy(PathBuf),
    /// The process behind the mount does not answer.
    #[error(
        "{}: the process behind it has not answered for {} seconds: it may be stopped, or wait for a disk; \
         `shardfs umount --lazy` detaches the mount and waits for nothing; `echo 1 > \
         /sys/fs/fuse/connections/{connection}/abort` (as root) frees those who wait in it",
        shown(.path), ANSWER_PATIENCE.as_secs()
    )]
    Silent {
        /// The mount point.
        path: PathBuf,
        /// Number of its FUSE connection.
        connection: u32,
    },
    /// Another user has made a writable mount, in which this one may not look.
    #[error("{}: another user has mounted it, so whether all is written cannot be known{hint}", shown(.path))]
    Closed {
        /// The mount point.
        path: PathBuf,
        /// What that means for the command.
        hint: String,
    },
    /// The mount is another user's.
    #[error("{}: another user has mounted it: only that user and root can unmount it", shown(.0))]
    OfAnother(PathBuf),
    /// The kernel refused to unmount.
    #[error("cannot unmount {}: {error}", shown(.path))]
    Unmount {
        /// The mount point.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// fusermount3 is required but cannot be run.
    #[error(
        "only root can mount without fusermount3, and that cannot be run: {0}; it is in the package \
         fuse3 (apt install fuse3, dnf install fuse3)"
    )]
    NoFusermount(#[source] io::Error),
    /// fusermount3 failed with this message.
    #[error("fusermount3: {0}")]
    Fusermount(String),
    /// The FUSE session could not be established.
    #[error("the kernel does not answer: {0}")]
    Session(#[source] io::Error),
    /// Not everything written through the mount is durable.
    #[error("{}: not everything could be written: {error}\n{waiting}{hint}", shown(.path))]
    NotWritten {
        /// The mount point.
        path: PathBuf,
        /// The first error.
        #[source]
        error: io::Error,
        /// Uncommitted changes, one per line.
        waiting: String,
        /// Advice to the user, one line.
        hint: String,
    },
    /// It is not unmounted, because what exists in it alone cannot be saved.
    #[error("{}: not unmounted, what is in it alone would be lost:\n{leftover}{hint}", shown(.path))]
    WouldBeLost {
        /// The mount point.
        path: PathBuf,
        /// What would be lost, a line each.
        leftover: String,
        /// Advice to the user, one line.
        hint: String,
    },
    /// It is unmounted, and the source lacks something that was written, or has something that was
    /// removed.
    #[error("{}: unmounted, and its source is not as it was shown:\n{leftover}", shown(.path))]
    Leftover {
        /// The mount point.
        path: PathBuf,
        /// What is different, a line each.
        leftover: String,
    },
    /// It is unmounted, and the process behind it still runs.
    #[error(
        "{}: unmounted, but the process behind it has not ended after half a minute: what was written \
         may be durable only once it has; its log says what could not be committed",
        shown(.0)
    )]
    Ending(PathBuf),
    /// The process behind a writable mount has ended before it.
    #[error(
        "{}: the process behind it was killed: what was not durable yet is lost, but for long chunks \
         below {}; `shardfs recover SOURCE` finishes what it was writing and names them",
        shown(.path), shown(.saved)
    )]
    Killed {
        /// The mount point.
        path: PathBuf,
        /// Where mounts of this user save what they cannot commit.
        saved: PathBuf,
    },
    /// Signals cannot be caught.
    #[error("signals: {0}")]
    Signals(#[source] io::Error),
}

/// A mount that exists but does not answer requests yet.
pub struct Mounted<F: fuser::Filesystem> {
    session: Session<F>,
    connection: OwnedFd,
    mountpoint: PathBuf,
}

/// Mounts `filesystem`.
pub fn mount<F: fuser::Filesystem>(
    filesystem: F,
    spec: &MountSpec,
) -> Result<Mounted<F>, MountError> {
    check_mountpoint(&spec.mountpoint)?;
    let device = if rustix::process::geteuid().is_root() {
        mount_directly(spec)?
    } else {
        fusermount::mount(spec)?
    };
    let acl = match spec.access {
        Access::Owner => SessionACL::Owner,
        Access::Root => SessionACL::RootAndOwner,
        Access::Everybody => SessionACL::All,
    };
    let mut config = fuser::Config::default();
    config.acl = acl;
    config.n_threads = Some(spec.threads);
    config.clone_fd = true;
    let mountpoint = spec.mountpoint.clone();
    let connection = device.try_clone().map_err(MountError::Session)?;
    match Session::from_fd(filesystem, device, acl, config) {
        Ok(session) => Ok(Mounted { session, connection, mountpoint }),
        Err(error) => {
            // Best effort: the session error is the one to report.
            let _ = unmount_now(&mountpoint, UnmountFlags::DETACH);
            Err(MountError::Session(error))
        }
    }
}

/// Exit code of a process that could not commit everything.
const UNSAVED_CODE: i32 = 2;

impl<F: fuser::Filesystem> Mounted<F> {
    /// Returns the notifier through which notifications are sent to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.session.notifier()
    }

    /// Returns another descriptor of the FUSE connection.
    pub fn connection(&self) -> io::Result<OwnedFd> {
        self.connection.try_clone()
    }

    /// Serves the mount until it is unmounted, by a signal or by another process. `ready` is called
    /// once the mount answers, `finish` before this process exits on a signal while the mount is
    /// busy; it returns whether everything could be committed. SIGUSR1 logs the counters.
    pub fn serve(
        self,
        stats: Arc<Stats>,
        finish: Arc<dyn Fn() -> bool + Send + Sync>,
        ready: impl FnOnce(),
    ) -> Result<(), MountError> {
        let Self { session, mountpoint, .. } = self;
        handle_signals(mountpoint.clone(), stats, finish)?;
        let serving = std::thread::spawn(|| session.run());
        // A reply to this request proves that the mount answers.
        let root = std::fs::metadata(&mountpoint);
        let root = root.map_err(|error| MountError::Refused { path: mountpoint, error })?;
        raise_read_ahead(root.dev());
        ready();
        match serving.join() {
            Ok(ended) => ended.map_err(MountError::Session),
            Err(_panic) => Err(MountError::Session(io::Error::other("a thread panicked"))),
        }
    }
}

/// Returns an error if no shardfs filesystem is mounted at a path, or if the process behind it does
/// not answer. A mount whose process has ended answers with an error.
pub fn check_answers(mountpoint: &Path) -> Result<(), MountError> {
    let mountpoint = find_mounted(mountpoint)?;
    let connection = table::connection(&mountpoint).unwrap_or(0);
    if background::answers_within(&mountpoint, connection, ANSWER_PATIENCE) {
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
    let daemon = background::daemon_of(mountpoint);
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
    let daemon = if answers { background::daemon_of(mountpoint) } else { None };
    unmount_patiently(mountpoint, UnmountFlags::DETACH)?;
    Ok(daemon.is_some_and(|daemon| background::ends_soon(&daemon)))
}

/// Returns the path under which a mount is known to the system.
fn find_mounted(named: &Path) -> Result<PathBuf, MountError> {
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

/// Unmounts; a user of the mount that is gone in a moment does not count.
fn unmount_patiently(mountpoint: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    let began = Instant::now();
    loop {
        match unmount_now(mountpoint, flags) {
            Err(MountError::Busy(_)) if began.elapsed() < PASSING.0 => {
                std::thread::sleep(PASSING.1);
            }
            done => return done,
        }
    }
}

fn unmount_now(mountpoint: &Path, flags: UnmountFlags) -> Result<(), MountError> {
    let flags = flags | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => {
            let own = rustix::process::getuid().as_raw();
            match table::user(mountpoint) {
                Some(user) if user != own => Err(MountError::OfAnother(mountpoint.to_owned())),
                _ => fusermount::unmount(mountpoint, flags),
            }
        }
        Err(rustix::io::Errno::BUSY) => Err(MountError::Busy(mountpoint.to_owned())),
        Err(error) => Err(MountError::Unmount { path: mountpoint.to_owned(), error: error.into() }),
    }
}

/// Starts a thread that unmounts on SIGTERM, SIGINT and SIGHUP, which ends the session and so the
/// process.
fn handle_signals(
    mountpoint: PathBuf,
    stats: Arc<Stats>,
    finish: Arc<dyn Fn() -> bool + Send + Sync>,
) -> Result<(), MountError> {
    let signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]);
    let mut signals = signals.map_err(MountError::Signals)?;
    std::thread::spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                log::info!("statistics: {}", stats.to_json());
                continue;
            }
            let Err(error) = unmount_patiently(&mountpoint, UnmountFlags::empty()) else {
                continue;
            };
            // Two signals at once, or another process has unmounted first: the session ends by
            // itself.
            if table::mounted_source(&mountpoint).is_none() {
                continue;
            }
            log::warn!("{error}: that is done now, its users see errors from now on");
            if let Err(error) = unmount_now(&mountpoint, UnmountFlags::DETACH) {
                log::error!("{error}");
            }
            std::thread::sleep(DETACH_GRACE);
            std::process::exit(if finish() { 0 } else { UNSAVED_CODE });
        }
    });
    Ok(())
}

/// Raises the kernel's readahead limit. Needs root; without it reads are slower but correct.
fn raise_read_ahead(device: u64) {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, READ_AHEAD_KIB.to_string()) {
        log::debug!("{path}: {error}");
    }
}
