//! Asking a mount how it is, through a process that can be left behind: a request that was accepted but is not
//! answered cannot be interrupted, and a process does not end before all of its threads have.

use std::fs::File;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::Value;

use super::background::ends_within;

/// Name (`argv[0]`) of this program when it only probes the mount given as its arguments: its mount point, and the
/// number of its FUSE connection.
pub const PROBE: &str = "shardfs-probe";

/// Path of the statistics of a mount, which its process can return at any time.
const STATS: &str = ".shardfs/stats.json";
/// Maximum length of what is taken for them. A pipe has room for it.
const MAX_STATS: u64 = 32 << 10;
/// Exit code of a probe that has found another filesystem. Others are numbers of errors.
const HIDDEN: u8 = u8::MAX;

/// Answer of a mount.
#[derive(Debug)]
pub(super) enum Answer {
    /// Its statistics.
    Stats(Value),
    /// None: another filesystem is mounted on its mount point, or above it.
    Hidden,
    /// An error.
    Error(io::Error),
}

/// Returns a pidfd of the process that serves a mount; `None` if it cannot be determined.
pub(super) fn daemon_of(mountpoint: &Path) -> Option<OwnedFd> {
    let pid = i32::try_from(stats_of(mountpoint)?.get("pid")?.as_i64()?).ok()?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// Returns the directory in which a mount saves what it cannot commit in the end; `None` if it is
/// read-only, or that cannot be determined.
pub fn unsaved_of(mountpoint: &Path) -> Option<PathBuf> {
    Some(stats_of(mountpoint)?.get("unsaved")?.as_str()?.into())
}

/// Returns what tells the store of a mount apart from others; `None` if it cannot be determined, or there is none.
pub fn store_of(mountpoint: &Path) -> Option<String> {
    Some(stats_of(mountpoint)?.get("address")?.as_str()?.to_owned())
}

fn stats_of(mountpoint: &Path) -> Option<Value> {
    serde_json::from_slice(&read_stats(&open_root(mountpoint).ok()?).ok()?).ok()
}

fn open_root(mountpoint: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(mountpoint, flags, Mode::empty())?)
}

/// Returns the statistics of a mount by its root. Any user can mount something that says it is of shardfs: links in it
/// are not followed, and what is no file is not read.
fn read_stats(root: &OwnedFd) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = File::from(openat2(root, STATS, flags, Mode::empty(), resolve)?);
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut stats = Vec::new();
    file.take(MAX_STATS).read_to_end(&mut stats)?;
    Ok(stats)
}

/// Requests the statistics of a mount and prints them. Returns the exit code.
pub fn probe(mountpoint: &Path, connection: &[u8]) -> u8 {
    let code = |error: &io::Error| {
        let code = error.raw_os_error().and_then(|number| u8::try_from(number).ok());
        code.filter(|code| *code > 0).unwrap_or(1)
    };
    match asked(mountpoint, connection) {
        // Who asks may need no more than that there is an answer.
        Ok(Some(stats)) => io::stdout().write_all(&stats).map_or(0, |()| 0),
        Ok(None) => HIDDEN,
        Err(error) => code(&error),
    }
}

/// Returns the statistics of a mount; `None` if its mount point leads to another filesystem.
fn asked(mountpoint: &Path, connection: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let root = match open_root(mountpoint) {
        // What is mounted above has no such directory.
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => return Ok(None),
        root => root?,
    };
    let device = rustix::fs::minor(rustix::fs::fstat(&root)?.st_dev);
    if device.to_string().as_bytes() != connection {
        return Ok(None);
    }
    read_stats(&root).map(Some)
}

/// Returns whether the process that serves a mount answers within `time`, possibly with an error.
pub(super) fn answers_within(mountpoint: &Path, connection: u32, time: Duration) -> bool {
    ask(mountpoint, connection, time).is_some()
}

/// Returns the answer of a mount; `None` if there is none within `time`.
///
/// `connection` is the number of the mount's FUSE connection: mounts of other mount namespaces may
/// have the same path.
pub(super) fn ask(mountpoint: &Path, connection: u32, time: Duration) -> Option<Answer> {
    let connection = connection.to_string();
    // A probe that waits already has no answer yet: no other one is started.
    if let Some(asking) = probe_of(mountpoint, &connection)
        && !ends_within(&asking, time)
    {
        return None;
    }
    let asked = Command::new("/proc/self/exe")
        .arg0(PROBE)
        .arg(mountpoint)
        .arg(&connection)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    // If no process can be started, there is no evidence that the mount does not answer.
    let mut asking = match asked {
        Ok(asking) => asking,
        Err(error) => return Some(Answer::Error(error)),
    };
    let process = i32::try_from(asking.id()).ok().and_then(Pid::from_raw);
    let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if !process.is_none_or(|process| ends_within(&process, time)) {
        let _ = asking.kill();
        return None;
    }
    let answer = asking.wait_with_output().and_then(|output| match output.status.code() {
        Some(0) => Ok(Answer::Stats(serde_json::from_slice(&output.stdout)?)),
        Some(code) if code == i32::from(HIDDEN) => Ok(Answer::Hidden),
        Some(number) => Err(io::Error::from_raw_os_error(number)),
        None => Err(io::ErrorKind::Interrupted.into()),
    });
    Some(answer.unwrap_or_else(Answer::Error))
}

/// Returns a process of this user that probes a mount already; `None` if there is none. One of
/// another user proves nothing: anyone can give a process that name and let it sleep.
fn probe_of(mountpoint: &Path, connection: &str) -> Option<OwnedFd> {
    let arguments = [PROBE.as_bytes(), mountpoint.as_os_str().as_bytes(), connection.as_bytes()];
    let wanted: Vec<u8> = arguments.iter().flat_map(|it| [it, &b"\0"[..]].concat()).collect();
    let user = rustix::process::geteuid().as_raw();
    std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        if entry.metadata().ok()?.uid() != user {
            return None;
        }
        let arguments = std::fs::read(entry.path().join("cmdline")).ok()?;
        if arguments != wanted {
            return None;
        }
        pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
    })
}
