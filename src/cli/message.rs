//! Lines that a command prints for its user: results on stdout, error messages on stderr.

use std::io::Write;

/// Prints an error message on stderr, in one line.
pub(super) fn complain(what: impl std::fmt::Display) {
    eprintln!("shardfs: {}", crate::text::Line(what));
}

/// Prints a line. Nothing can be done if stdout cannot be written.
pub(super) fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}
