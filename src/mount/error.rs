//! Errors of mounting and unmounting.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::table;
use crate::text::{shown, word};

/// Maximum time for a mount to report the process behind it, which it can do at any time.
pub(super) const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

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
    #[error("{} is already mounted on {}; unmount it first: shardfs umount {}", .source_name, shown(.path), word(.path))]
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
    /// The table of mounts cannot be read.
    #[error("/proc/self/mountinfo: {error}")]
    Table {
        /// The error.
        #[source]
        error: io::Error,
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
    #[error(
        "{} is busy: {users}; `shardfs umount --lazy {}` detaches it all the same, and it ends when \
         its last user has left", shown(.path), word(.path)
    )]
    Busy {
        /// The mount point.
        path: PathBuf,
        /// What uses it, as far as that is known; empty if it was not looked for.
        users: String,
    },
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
    /// The FUSE session could not be established, or has failed.
    #[error("the session with the kernel has failed: {0}")]
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
        "{}: the process behind it was killed: what was not durable yet is lost, except long chunks, \
         which are below {}; `shardfs recover {}` finishes what it was writing and names them",
        shown(.path), shown(.saved), word(.source_name)
    )]
    Killed {
        /// The mount point.
        path: PathBuf,
        /// Where mounts of this user save what they cannot commit.
        saved: PathBuf,
        /// Name of its source; SOURCE if it is not known.
        source_name: String,
    },
    /// The command that has started the background process has ended before the mount answered.
    #[error("{}: unmounted again: the command that was to mount it was interrupted", shown(.0))]
    Interrupted(PathBuf),
    /// The kernel has agreed to requests by io_uring, and has then refused to send some.
    #[error(
        "{}: unmounted again: the kernel has refused requests by io_uring, as it does if that was switched off \
         meanwhile: mount it again, or with -o transport=classic",
        shown(.0)
    )]
    NoRings(PathBuf),
    /// There is no address space for the threads that are to answer requests.
    #[error(
        "no room for {threads} threads that answer requests, of 18 MiB each: {error}; {}",
        advice(*.fitting)
    )]
    NoRoom {
        /// Number of threads asked for.
        threads: usize,
        /// A smaller number of threads for which there is room.
        fitting: Option<usize>,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// A thread cannot be started.
    #[error("no thread can be started: {0}")]
    Thread(#[source] io::Error),
    /// Signals cannot be caught.
    #[error("signals: {0}")]
    Signals(#[source] io::Error),
}

/// Returns what to do where the limit of the address space leaves room for `fitting` threads.
fn advice(fitting: Option<usize>) -> String {
    let raise = "raise the limit of the address space (ulimit -v)";
    match fitting {
        Some(fitting) => format!("mount with -o threads={fitting}, or {raise}"),
        None => raise.to_owned(),
    }
}

impl MountError {
    /// Returns the error of a mount that is in use; what uses it is not looked for.
    pub(super) fn busy(mountpoint: &Path) -> Self {
        Self::Busy { path: mountpoint.to_owned(), users: String::new() }
    }

    /// Returns the error of a writable mount whose process has ended before it. `saved` is where mounts
    /// of this user save what they cannot commit.
    pub fn killed(mountpoint: &Path, saved: PathBuf) -> Self {
        // With -o fsname= it may be any name.
        let source = table::mounted_source(mountpoint).filter(|name| Path::new(name).is_absolute());
        let source_name = source.unwrap_or_else(|| "SOURCE".to_owned());
        Self::Killed { path: mountpoint.to_owned(), saved, source_name }
    }
}
