//! What whoever interrupts a long command is told: that the same command goes on.

use std::io::IsTerminal;
use std::thread::JoinHandle;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use signal_hook::low_level::emulate_default_handler;

/// As long as this is there, SIGINT and SIGTERM end the process as usual, after a line on stderr.
pub(super) struct Interruptible(Option<(Handle, JoinHandle<()>)>);

impl Interruptible {
    /// `hint` says what the next call will do.
    pub(super) fn new(hint: &'static str) -> Self {
        let ignored = ignored();
        // A job in the background of a script ignores SIGINT, and shall go on to.
        let caught =
            [SIGINT, SIGTERM].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
        // Without it the command ends as well, in silence.
        let Ok(mut signals) = Signals::new(caught) else { return Self(None) };
        let handle = signals.handle();
        let waiting = std::thread::spawn(move || {
            if let Some(signal) = signals.forever().next() {
                // Behind the bar, which stays where it is.
                let gap = if std::io::stderr().is_terminal() { "\n" } else { "" };
                eprintln!("{gap}shardfs: interrupted; {hint}");
                // It has one, which ends the process.
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
            // It has nothing to tell.
            let _ = waiting.join();
        }
    }
}

/// The signals that this process ignores: the lowest bit is that of signal 1.
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
