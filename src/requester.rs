//! The process for which a thread works. Where that takes as long as a network does, the thread finds
//! out that the process was to be ended, and stops waiting: until its request is answered, the kernel
//! ends no process.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Time between two looks at the process, for those who wait longer.
pub(crate) const LOOK: Duration = Duration::from_millis(200);

/// Signals by which a process is asked to end: SIGHUP, SIGINT, SIGQUIT, SIGKILL, SIGTERM. One that ends
/// it at once is SIGKILL to the kernel, whichever was sent.
const ENDING: u64 = bit(libc::SIGHUP)
    | bit(libc::SIGINT)
    | bit(libc::SIGQUIT)
    | bit(libc::SIGKILL)
    | bit(libc::SIGTERM);

const fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

thread_local! {
    /// For whom this thread works.
    static REQUESTER: Cell<Requester> = const { Cell::new(Requester { thread: 0, hears_caught: false }) };
}

/// Thread of the process whose request is being answered; 0 if it is none.
#[derive(Debug, Clone, Copy)]
struct Requester {
    thread: u32,
    /// `true` if a signal that the process catches counts as well: a reader that is interrupted reads again.
    hears_caught: bool,
}

/// A request that is being answered, or what is done for all meanwhile. Holds for whom this thread worked
/// before.
pub(crate) struct Serving(Requester);

/// Notes for which thread of another process this one works, until the result is dropped.
pub(crate) fn serve(thread: u32) -> Serving {
    Serving(REQUESTER.replace(Requester { thread, hears_caught: true }))
}

/// Notes the same of a request that changes something. A process that catches a signal goes on, and no
/// filesystem lets its `fsync` fail for that.
pub(crate) fn serve_change(thread: u32) -> Serving {
    Serving(REQUESTER.replace(Requester { thread, hears_caught: false }))
}

/// Notes that what this thread does is not for one process alone, until the result is dropped: it is finished
/// even if the process is to end that waits for it.
pub(crate) fn serve_none() -> Serving {
    serve(0)
}

impl Drop for Serving {
    fn drop(&mut self) {
        REQUESTER.set(self.0);
    }
}

/// Returns whether the process that waits for this thread is to end, or has ended.
pub(crate) fn is_ending() -> bool {
    match REQUESTER.get() {
        Requester { thread: 0, .. } => false,
        Requester { thread, hears_caught } => {
            match std::fs::read_to_string(format!("/proc/{thread}/status")) {
                Ok(status) => is_to_end(&status, hears_caught),
                // It may be hidden from this process (`hidepid`). Anything else than that it is not there, such
                // as too many open files, says nothing about it.
                Err(error) => {
                    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
                        && is_gone(thread)
                }
            }
        }
    }
}

/// Returns whether there is no such thread, whether or not it can be seen.
fn is_gone(thread: u32) -> bool {
    let thread = i32::try_from(thread).ok().and_then(Pid::from_raw);
    thread.is_none_or(|thread| test_kill_process(thread) == Err(Errno::SRCH))
}

/// Returns the error of a request whose process is to end.
pub(crate) fn interrupted() -> io::Error {
    io::Error::from_raw_os_error(libc::EINTR)
}

/// Takes a lock that another thread may hold for as long as a network takes.
///
/// # Errors
/// EINTR if the process that waits for this thread is to end meanwhile.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> io::Result<MutexGuard<'_, T>> {
    loop {
        if let Some(lock) = mutex.try_lock_for(LOOK) {
            return Ok(lock);
        }
        if is_ending() {
            return Err(interrupted());
        }
    }
}

/// Returns whether a signal waits for a process, by its status in `/proc`, that asks it to end, or would do
/// so if the process did not catch it.
fn is_to_end(status: &str, hears_caught: bool) -> bool {
    let mask = |name: &str| {
        let mut lines = status.lines();
        let text = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        u64::from_str_radix(text.trim(), 16).ok()
    };
    let mask = |name| mask(name).unwrap_or_default();
    let caught = if hears_caught { 0 } else { mask("SigCgt") };
    (mask("SigPnd") | mask("ShdPnd")) & !mask("SigBlk") & !caught & ENDING != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_to_end_once_a_signal_that_says_so_waits_for_it() {
        let status = |pending: u64, shared: u64, blocked: u64| {
            format!(
                "Name:\tcat\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\n"
            )
        };
        let is_to_end = |status: &str| is_to_end(status, true);
        assert!(!is_to_end(&status(0, 0, 0)));
        assert!(is_to_end(&status(bit(libc::SIGKILL), 0, 0)));
        assert!(is_to_end(&status(0, bit(libc::SIGTERM), 0)));
        // It does not want to know of it now, or it says nothing about its end.
        assert!(!is_to_end(&status(0, bit(libc::SIGINT), bit(libc::SIGINT))));
        assert!(!is_to_end(&status(bit(libc::SIGCHLD), bit(libc::SIGWINCH), 0)));
        assert!(!is_to_end(""));
    }

    #[test]
    fn a_signal_that_is_caught_ends_no_change() {
        let status = |pending: u64| {
            format!("ShdPnd:\t{pending:016x}\nSigCgt:\t{:016x}\n", bit(libc::SIGTERM))
        };
        assert!(is_to_end(&status(bit(libc::SIGTERM)), true));
        assert!(!is_to_end(&status(bit(libc::SIGTERM)), false));
        assert!(is_to_end(&status(bit(libc::SIGTERM) | bit(libc::SIGKILL)), false));
        assert!(is_to_end(&status(bit(libc::SIGINT)), false));
    }

    #[test]
    fn a_thread_that_cannot_be_seen_is_not_gone() {
        assert!(!is_gone(std::process::id()));
        assert!(is_gone(u32::MAX) && is_gone(u32::MAX >> 1));
    }

    #[test]
    fn who_waits_for_a_lock_stops_once_its_process_is_to_end() {
        let mutex = Mutex::new(());
        let held = mutex.lock();
        // No process has this number.
        let gone = serve(u32::MAX >> 1);
        let error = lock(&mutex).map(drop).map_err(|error| error.raw_os_error());
        assert_eq!(error, Err(Some(libc::EINTR)));
        drop((gone, held));
        assert!(lock(&mutex).is_ok());
    }

    #[test]
    fn a_thread_works_for_one_process_or_for_none() {
        assert!(!is_ending());
        let serving = serve(std::process::id());
        assert!(!is_ending());
        drop(serving);
        // No process has this number.
        let gone = serve(u32::MAX >> 1);
        assert!(is_ending());
        let for_all = serve_none();
        assert!(!is_ending());
        drop(for_all);
        assert!(is_ending());
        drop(gone);
        assert!(!is_ending());
    }
}
