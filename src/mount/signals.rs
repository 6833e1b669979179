//! Signals to the process behind a mount.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::attached::Attached;
use super::error::MountError;
use super::table;
use crate::stats::Stats;
use crate::text::shown;

/// Grace period for a busy mount to end after it was detached.
const DETACH_GRACE: Duration = Duration::from_secs(1);

/// Time within which a session ends after its mount is gone, unless the mount is somewhere else, too.
const END_GRACE: Duration = Duration::from_secs(3);

/// Interval of looks at whether the session has ended.
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);

/// Exit code of a process that could not commit everything.
const UNSAVED_CODE: i32 = 2;

/// Catches SIGTERM, SIGINT, SIGHUP and SIGUSR1, to be handled once the mount exists: a mount must not
/// outlive the process.
pub(super) fn catch() -> Result<Signals, MountError> {
    Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1]).map_err(MountError::Signals)
}

/// Ends the mount of this process as a signal does: what was written is committed, and who waits for
/// an answer gets an error.
pub fn end_mount() {
    if let Err(error) = kill_process(getpid(), Signal::TERM) {
        log::error!("the mount cannot be ended: {error}");
    }
}

/// What signals act on.
pub(super) struct Handler {
    /// The mount; gone once it is not served any more, when the process is about to end.
    pub(super) attached: Weak<Attached>,
    /// Counters, which SIGUSR1 logs.
    pub(super) stats: Arc<Stats>,
    /// Makes the last commits, and returns whether they could be made.
    pub(super) finish: Arc<dyn Fn() -> bool + Send + Sync>,
    /// What SIGHUP does; if there is nothing, it ends the mount.
    pub(super) hang_up: Option<Box<dyn Fn() + Send>>,
    /// `true` once the session has ended: the process ends by itself then.
    pub(super) has_ended: Arc<AtomicBool>,
}

impl Handler {
    /// Starts a thread that unmounts on SIGTERM, SIGINT and SIGHUP. That ends the session and so the
    /// process; where it does not, the thread ends the process.
    pub(super) fn start(self, mut signals: Signals) -> io::Result<()> {
        let serve = move || {
            for signal in signals.forever() {
                match signal {
                    SIGUSR1 => log::info!("statistics: {}", self.stats.to_json()),
                    SIGHUP => self.hang_up.as_ref().map_or_else(|| self.end(), |hang_up| hang_up()),
                    _ => self.end(),
                }
            }
        };
        thread::Builder::new().name("signals".to_owned()).spawn(serve).map(drop)
    }

    /// Ends the mount. Returns if the process is about to end by itself.
    fn end(&self) {
        let Some(attached) = self.attached.upgrade() else { return };
        let place = shown(attached.mountpoint());
        if attached.is_there() {
            match attached.unmount() {
                Err(error) if attached.is_there() => {
                    log::warn!("{error}: that is done now, its users see errors from now on");
                    attached.detach();
                    return self.leave(DETACH_GRACE, || ());
                }
                // Another process may have unmounted first.
                Ok(()) | Err(_) => (),
            }
        }
        // By an earlier signal, or detached by another process: it may be in use still.
        self.leave(END_GRACE, || {
            let other = attached.connection().and_then(table::elsewhere);
            let why = other.map_or(String::new(), |(pid, name)| {
                format!(
                    ", by a mount namespace that has it too: process {pid} ({name}), for example"
                )
            });
            log::warn!(
                "{place}: unmounted, but still in use{why}; its users see errors from now on"
            );
        });
    }

    /// Makes the last commits and ends the process if the session does not end within `grace`.
    fn leave(&self, grace: Duration, report: impl FnOnce()) {
        let began = Instant::now();
        while !self.has_ended.load(Ordering::Acquire) {
            if began.elapsed() >= grace {
                report();
                std::process::exit(if (self.finish)() { 0 } else { UNSAVED_CODE });
            }
            thread::sleep(BETWEEN_LOOKS);
        }
    }
}
