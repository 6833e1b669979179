//! Messages that a command prints for its user on stderr.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints an error message on stderr, in one line.
pub(super) fn complain(what: impl Display) {
    tell(crate::text::Line(what));
}

/// Prints a message on stderr, which may have several lines.
pub(super) fn tell(what: impl Display) {
    // Nothing can be done if stderr cannot be written.
    let _ = io::stderr().write_all(format!("shardfs: {what}\n").as_bytes());
}
