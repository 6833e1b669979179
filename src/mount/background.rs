//! Starting and supervising the background process.
//!
//! The program starts itself again with the same arguments and waits until that process reports
//! that the mount answers, or has ended. In the latter case its message is already on stderr and
//! its exit code is passed on. No fork is needed, which would be unsound in a process with threads.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Signal, pidfd_open, set_parent_process_death_signal, setsid,
};

/// Environment variable that is set for the background process.
const MARK: &str = "SHARDFS_IN_BACKGROUND";
/// Message that the background process writes to its standard output once the mount answers.
const READY: &[u8] = b"ready\n";
/// Time within which a process usually ends after its mount is gone.
const END_USUAL: Duration = Duration::from_secs(2);
/// Additional time that the process is given to end.
const END_PATIENCE: Duration = Duration::from_secs(28);

/// Outcome of starting the background process.
#[derive(Debug, PartialEq, Eq)]
pub enum Started {
    /// The mount answers.
    Ready,
    /// The process failed with this exit code and has printed the reason.
    Failed(u8),
    /// The process has ended, without an error: it was asked to, or could not go on.
    Ended,
}

/// Returns whether this process is the background process.
pub fn is_background() -> bool {
    env::var_os(MARK).is_some()
}

/// Starts this program again in the background, with the same arguments.
pub fn start() -> io::Result<Started> {
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut child = Command::new("/proc/self/exe")
        .arg0(name)
        .args(arguments)
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout.read_to_end(&mut said)?;
    }
    if said == READY {
        return Ok(Started::Ready);
    }
    Ok(match child.wait()?.code().and_then(|code| u8::try_from(code).ok()) {
        Some(0) => Started::Ended,
        code => Started::Failed(code.unwrap_or(2)),
    })
}

/// Files that this process was given by its parent, other than the standard ones. Whoever waits for
/// them to be closed, as for a lock or the end of a pipe, must not wait for the end of the mount.
pub struct Inherited(Vec<RawFd>);

impl Inherited {
    /// Finds them. Must be called before this process opens files of its own.
    pub fn find() -> Self {
        // Without /proc nothing is mounted in the first place.
        let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let numbers = open.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let given: Vec<RawFd> = numbers.filter(|number| *number > libc::STDERR_FILENO).collect();
        // The listing itself had one of the numbers, which is free again.
        Self(given.into_iter().filter(|number| is_open(*number)).collect())
    }

    /// Closes them. Until then they can be named, as in `--log-file /dev/fd/3`.
    pub fn close(self) {
        for number in self.0 {
            #[allow(unsafe_code, reason = "nothing in this process owns what it was given")]
            // SAFETY: it was open before this process opened any file, so no value here owns it.
            let closed = unsafe { OwnedFd::from_raw_fd(number) };
            drop(closed);
        }
    }
}

/// Returns whether a number is that of an open file.
fn is_open(number: RawFd) -> bool {
    std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok()
}

/// Detaches from the controlling terminal. Must be called before threads are started.
pub fn leave_terminal() -> io::Result<()> {
    // Fails if this process already leads a session, which is just as good.
    let _ = setsid();
    env::set_current_dir("/")
}

/// Ends this process by SIGTERM if the one that waits for it is ended before the mount answers: it may wait for
/// the network, and nothing needs the mount any more.
pub fn end_with_caller() {
    // Where that fails, its end is noticed once the mount answers.
    let _ = set_parent_process_death_signal(Some(Signal::TERM));
}

/// Lets this process live on when the one that waits for it ends.
pub fn outlive_caller() {
    let _ = set_parent_process_death_signal(None);
}

/// Reports readiness to the waiting parent process.
///
/// # Errors
///
/// Fails if that process has ended: it was interrupted.
pub fn report_ready() -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(READY)?;
    stdout.flush()
}

/// Lets go of the terminal, and of the pipe to the parent process, which waits until then.
pub fn release_output() -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// Runs this program with arguments, silently, in a process that is left behind if it takes longer
/// than `time`: one that waits for a mount cannot be ended. Returns whether it succeeded; `None` if it
/// did not end in time, or cannot be started.
pub fn run_within(time: Duration, arguments: &[&OsStr]) -> Option<bool> {
    let mut running = Command::new("/proc/self/exe")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let process = i32::try_from(running.id()).ok().and_then(Pid::from_raw);
    let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok())?;
    if ends_within(&process, time) {
        return Some(running.wait().ok()?.success());
    }
    let _ = running.kill();
    None
}

/// Returns whether a process ends within a second.
pub(super) fn ends_soon(process: &OwnedFd) -> bool {
    ends_within(process, Duration::from_secs(1))
}

/// Waits until a process has ended; `is_late` is called if that takes longer than usual. Returns
/// `false` if it is not waited for any longer: its mount is gone.
pub(super) fn wait_for_end(process: Option<OwnedFd>, is_late: impl FnOnce()) -> bool {
    let Some(process) = process else { return true };
    if ends_within(&process, END_USUAL) {
        return true;
    }
    is_late();
    ends_within(&process, END_PATIENCE)
}

pub(super) fn ends_within(process: &OwnedFd, time: Duration) -> bool {
    let timeout = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout));
    ended.is_ok_and(|ready| ready > 0)
}
