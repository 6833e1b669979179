//! Message on the interruption of a long command: that the same command resumes.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

use super::message::tell;

/// Guard that makes SIGINT and SIGTERM print a line on stderr before they end the process as usual.
pub(super) struct Interruptible(Option<(Handle, JoinHandle<()>)>);

impl Interruptible {
    /// Installs the guard; `hint` describes what the next invocation will do.
    pub(super) fn new(hint: &'static str) -> Self {
        Self::with(hint, || ())
    }

    /// Installs the guard of a command that writes to a file under a temporary name, which is removed
    /// before the process ends; `hint` describes what is there then. `make` makes the file, and
    /// `path_of` returns its path: one that is made before signals are caught could be left.
    pub(super) fn removing<T, E>(
        hint: &'static str,
        make: impl FnOnce() -> Result<T, E>,
        path_of: impl FnOnce(&T) -> PathBuf,
    ) -> Result<(T, Self), E> {
        let made = Arc::new(Mutex::new(None));
        let to_remove = Arc::clone(&made);
        // A signal that comes while the file is made waits for it.
        let mut path = made.lock();
        let installed = Self::with(hint, move || {
            // Nothing can be done if it cannot be removed.
            let removed: Option<PathBuf> = to_remove.lock().take();
            drop(removed.map(std::fs::remove_file));
        });
        let file = make();
        *path = file.as_ref().ok().map(path_of);
        drop(path);
        file.map(|file| (file, installed))
    }

    fn with(hint: &'static str, clean: impl FnOnce() + Send + 'static) -> Self {
        let ignored = ignored();
        // A background job of a script ignores SIGINT, and must continue to do so.
        let caught =
            [SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        // Without it the command ends as well, but silently.
        let Ok(mut signals) = Signals::new(caught) else { return Self(None) };
        let handle = signals.handle();
        let waiting = std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                clean();
                // The line goes below the progress bar, which stays.
                if io::stderr().is_terminal() {
                    let _ = io::stderr().write_all(b"\n");
                }
                tell(format_args!("interrupted; {hint}"));
                // Both signals have a default handler, which ends the process.
                let _ = emulate_default_handler(signal);
            }
        });
        Self(Some((handle, waiting)))
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        if let Some((handle, waiting)) = self.0.take() {
            handle.close();
            // The thread returns nothing.
            let _ = waiting.join();
        }
    }
}

/// Returns the signals that this process ignores, as a mask whose lowest bit is signal 1.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_known() {
        // Rust ignores SIGPIPE, which is 13.
        assert_eq!(ignored() >> 12 & 1, 1);
        assert_eq!(ignored() >> (libc::SIGCHLD - 1) & 1, 0);
        drop(Interruptible::new("nothing happened"));
    }
}
