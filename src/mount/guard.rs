//! The process that ends a mount whose own process was killed and cannot end.
//!
//! A thread that pushes pages into the page cache, or drops them from it, waits for their locks. The
//! kernel holds these while a read is not answered, and nothing interrupts the wait. If the process is
//! killed meanwhile, no thread is left that would answer: that one waits for ever, and with it stays
//! the connection, at which everything hangs that uses the mount. Aborting the connection from outside
//! wakes them all.
//!
//! ```text
//! process of the mount --starts--> guard: opens .../fuse/connections/N/abort, says "ready", waits
//!    its first thread ends --signal--> has it ended? then write to the file, and end
//! ```
//!
//! The signal comes from the kernel when the thread that has started the guard ends, which is all that
//! can be seen of a process that another thread keeps alive. A guard that is killed together with its
//! mount (at the end of a container, or of a service that does not end by itself) is of no use: it leaves the
//! control group of a service, which only that of root can. Where the mount ended as it should, there is no
//! connection any more, and nothing to abort.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::background::release_output;
use super::control_group::leave_unit;

/// Name (`argv[0]`) of this program when it is a guard.
pub const GUARD: &str = "shardfs-guard";

/// Where the control filesystem of FUSE is usually mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// Messages of the guard once it could end the mount: whenever the mount's process is killed, or unless it is
/// killed together with it.
const READY: &[u8] = b"ready\n";
const READY_ALONE: &[u8] = b"ready unless killed as well\n";

/// Time within which a guard says that it is one.
const PATIENCE: Duration = Duration::from_secs(5);

/// Interval and number of looks at whether the process has ended after the signal came: another
/// process may have sent it.
const LOOKS: (Duration, usize) = (Duration::from_millis(20), 50);

/// Returns whether the system may end all processes here at once, the guard among them, as it does at the
/// end of a container.
pub(super) fn may_end_with_all() -> bool {
    /// The PID namespace of the system itself (`PROC_PID_INIT_INO` of the kernel).
    const OF_SYSTEM: &str = "pid:[4026531836]";
    std::fs::read_link("/proc/self/ns/pid").map_or(true, |own| own != Path::new(OF_SYSTEM))
}

/// Starts the guard of a connection. It lives until the thread that calls this has ended, which must
/// therefore be one that ends with the process. Returns whether it lives even if all processes of the service
/// are killed that this one belongs to.
///
/// # Errors
///
/// Fails if the guard could not end the mount: a user other than root can do that only where the
/// control filesystem is mounted.
pub(super) fn start(connection: u32) -> io::Result<bool> {
    let pid = getpid().as_raw_nonzero().to_string();
    let mut guard = Command::new("/proc/self/exe")
        .arg0(GUARD)
        .args([connection.to_string(), pid])
        .current_dir("/")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut said = Vec::new();
    if let Some(mut stdout) = guard.stdout.take() {
        // What starts it may look into the mount, which answers nothing yet.
        if !speaks_within(PATIENCE, &stdout)? {
            guard.kill()?;
            return Err(io::Error::other("the process that would end it does not start"));
        }
        stdout.read_to_end(&mut said)?;
    }
    if [READY, READY_ALONE].contains(&&*said) {
        return Ok(said == READY);
    }
    guard.wait()?;
    Err(io::Error::other(String::from_utf8_lossy(&said).into_owned()))
}

/// Returns whether something is written to a pipe within a time, or its other end is closed.
fn speaks_within(time: Duration, pipe: &impl AsFd) -> io::Result<bool> {
    let began = Instant::now();
    loop {
        let left = time.saturating_sub(began.elapsed());
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => (),
            polled => return Ok(polled? > 0),
        }
    }
}

/// Is the guard of a connection, until the process that serves it has ended. Its arguments are two
/// numbers: of the connection, and of that process, its parent. What keeps it from being one is written
/// to stdout, for the parent.
pub fn run(arguments: impl Iterator<Item = OsString>) {
    let numbers: Option<Vec<i32>> = arguments.map(|number| number.to_str()?.parse().ok()).collect();
    let guarded = match numbers.as_deref() {
        Some(&[connection, parent]) => match Pid::from_raw(parent) {
            Some(parent) => guard(connection, parent),
            None => Err(io::ErrorKind::InvalidInput.into()),
        },
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    if let Err(error) = guarded {
        // If the parent has ended, there is nothing to guard.
        let _ = write!(io::stdout(), "{error}");
    }
}

fn guard(connection: i32, parent: Pid) -> io::Result<()> {
    // They are sent to all processes of a service or terminal at once, or to all of this name; the
    // last one is the kernel's.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2])?;
    set_parent_process_death_signal(Some(Signal::USR2))?;
    check_proc()?;
    let mut abort = open_abort(connection)?;
    io::stdout().write_all(if leave_unit() { READY } else { READY_ALONE })?;
    release_output()?;
    // It may have ended before the signal was asked for.
    let mut is_over = has_ended(parent);
    let mut received = signals.forever();
    while !is_over {
        is_over = received.next().is_none() || ends_soon(parent);
    }
    // There may be no such connection any more.
    let _ = abort.write_all(b"1");
    Ok(())
}

/// Returns an error if /proc is that of another PID namespace: the parent is not in it.
fn check_proc() -> io::Result<()> {
    let own = getpid().as_raw_nonzero().to_string();
    match std::fs::read_link("/proc/self")?.to_str() == Some(&*own) {
        true => Ok(()),
        false => Err(io::Error::other("/proc is that of another PID namespace")),
    }
}

/// Returns whether the parent process ends within a second.
fn ends_soon(parent: Pid) -> bool {
    (0..LOOKS.1).any(|_| {
        let ended = has_ended(parent);
        if !ended {
            std::thread::sleep(LOOKS.0);
        }
        ended
    })
}

/// Returns whether the parent process has ended, or will have as soon as its last thread does.
fn has_ended(parent: Pid) -> bool {
    if getppid() != Some(parent) {
        return true;
    }
    // number (name) state ...; the name can be anything.
    let stat = std::fs::read(format!("/proc/{}/stat", parent.as_raw_nonzero()));
    stat.is_ok_and(|stat| {
        let state = stat.rsplit(|byte| *byte == b')').next().and_then(|rest| rest.get(1));
        matches!(state, Some(b'Z' | b'X'))
    })
}

/// Opens the file that aborts a connection when it is written to.
fn open_abort(connection: i32) -> io::Result<File> {
    let path = format!("{CONNECTIONS}/{connection}/abort");
    let opened = std::fs::OpenOptions::new().write(true).open(&path);
    opened.or_else(|error| {
        // Root need not have it mounted.
        open_unmounted(connection)
            .map_err(|_| io::Error::new(error.kind(), format!("{path}: {error}")))
    })
}

fn open_unmounted(connection: i32) -> Result<File, Errno> {
    let context = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let path = format!("{connection}/abort");
    openat(root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from)
}
