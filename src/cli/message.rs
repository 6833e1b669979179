//! Lines that a command prints for its user: results on stdout, error messages on stderr.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::OnceLock;

use super::exit::Failure;
use super::output::unless_closed;

/// First failure of writing a line to stdout.
static UNSAID: OnceLock<Failure> = OnceLock::new();

/// Prints an error message on stderr, in one line.
pub(super) fn complain(what: impl Display) {
    tell(crate::text::Line(what));
}

/// Prints a message on stderr, which may have several lines.
pub(super) fn tell(what: impl Display) {
    // Nothing can be done if stderr cannot be written.
    let _ = io::stderr().write_all(format!("shardfs: {what}\n").as_bytes());
}

/// Prints a line. What is being done goes on if stdout cannot be written; see [`unsaid`].
pub(super) fn say(line: impl Display) {
    if let Err(failure) = print(format!("{line}\n").as_bytes()) {
        // Only the first failure is reported.
        let _ = UNSAID.set(failure);
    }
}

/// Returns the failure of printing lines, which a command reports at its end.
pub(super) fn unsaid() -> Option<&'static Failure> {
    UNSAID.get()
}

/// Writes to stdout. A reader that has closed it is no error.
pub(super) fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    unless_closed(out.write_all(text).and_then(|()| out.flush()))
}
