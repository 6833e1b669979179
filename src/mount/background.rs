//! The process in the background.
//!
//! The program starts itself again with the same arguments and waits until that process says
//! that the mount answers, or has ended: then its message is on stderr already and its exit code
//! is passed on. No fork is needed for it, which a process with threads could not do safely.

use std::env;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, pidfd_open, setsid};

/// Set for the process in the background.
const MARK: &str = "SHARDFS_IN_BACKGROUND";
/// What it writes to its standard output once the mount answers.
const READY: &[u8] = b"ready\n";
/// How long a process usually takes to end after its mount is gone, at most.
const END_USUAL: Duration = Duration::from_secs(2);
/// How much longer it may take.
const END_PATIENCE: Duration = Duration::from_secs(28);

/// How the start of the background process went.
#[derive(Debug, PartialEq, Eq)]
pub enum Started {
    /// The mount answers.
    Ready,
    /// It failed with this exit code and has told why.
    Failed(u8),
}

/// Whether this is the process in the background.
pub fn is_background() -> bool {
    env::var_os(MARK).is_some()
}

/// Starts this program again with its arguments in the background.
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
    let code = child.wait()?.code().and_then(|code| u8::try_from(code).ok());
    Ok(Started::Failed(code.filter(|code| *code != 0).unwrap_or(2)))
}

/// Leaves the terminal that the program was started from. Called before threads are.
pub fn leave_terminal() -> io::Result<()> {
    // Fails where it leads a session already, which is as good.
    let _ = setsid();
    env::set_current_dir("/")
}

/// Tells the process that waits, and lets go of the terminal.
pub fn report_ready() -> io::Result<()> {
    let mut stdout = io::stdout();
    stdout.write_all(READY)?;
    stdout.flush()?;
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

/// The process that serves a mount.
pub(super) fn daemon_of(mountpoint: &Path) -> Option<OwnedFd> {
    let stats = std::fs::read(mountpoint.join(".shardfs/stats.json")).ok()?;
    let stats: serde_json::Value = serde_json::from_slice(&stats).ok()?;
    let pid = i32::try_from(stats.get("pid")?.as_i64()?).ok()?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

/// What this program is called when it only asks the mount that is its argument.
pub const PROBE: &str = "shardfs-probe";

/// Asks a mount for what its process can say at any time.
pub fn probe(mountpoint: &Path) {
    // An error is an answer.
    let _ = daemon_of(mountpoint);
}

/// Whether the process that serves a mount answers within a time, with an error maybe.
///
/// It is asked by another process, which is given up if there is no answer: a request that was taken, and is
/// not answered, cannot be interrupted, and no process ends before all of its threads have.
pub(super) fn answers_within(mountpoint: &Path, time: Duration) -> bool {
    let asked = Command::new("/proc/self/exe")
        .arg0(PROBE)
        .arg(mountpoint)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    // Where no process can be started, it is not known that this one does not answer.
    let Ok(mut asking) = asked else { return true };
    let process = i32::try_from(asking.id()).ok().and_then(Pid::from_raw);
    let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    let answers = process.is_none_or(|process| ends_within(&process, time));
    if answers {
        let _ = asking.wait();
    } else {
        let _ = asking.kill();
    }
    answers
}

/// Waits until a process has ended; `is_late` is called if that takes its time.
pub(super) fn wait_for_end(process: Option<OwnedFd>, is_late: impl FnOnce()) {
    let Some(process) = process else { return };
    if !ends_within(&process, END_USUAL) {
        is_late();
        // A process that takes longer is left to itself: its mount is gone.
        ends_within(&process, END_PATIENCE);
    }
}

fn ends_within(process: &OwnedFd, time: Duration) -> bool {
    let timeout = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout));
    ended.is_ok_and(|ready| ready > 0)
}
