//! Standard output of commands, whose reader may go away at any time.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use super::exit::Failure;
pub(super) use super::exit::unless_closed;

/// Size of the output buffer, in bytes.
const WAITING_BYTES: usize = 64 << 10;

/// First failure of writing a line to stdout.
static UNSAID: OnceLock<Failure> = OnceLock::new();

/// Buffered standard output of commands that write much.
pub(super) struct Output {
    file: BufWriter<File>,
    /// `true` if output goes to a terminal, where every line is written at once.
    is_terminal: bool,
}

impl Output {
    pub(super) fn new() -> io::Result<Self> {
        let stdout = io::stdout();
        let file = File::from(stdout.as_fd().try_clone_to_owned()?);
        let file = BufWriter::with_capacity(WAITING_BYTES, file);
        Ok(Self { file, is_terminal: stdout.is_terminal() })
    }

    pub(super) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Writes some lines.
    pub(super) fn put(&mut self, text: &[u8]) -> io::Result<()> {
        self.file.write_all(text)?;
        if self.is_terminal { self.file.flush() } else { Ok(()) }
    }

    /// Writes what is buffered.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.file.flush()
    }
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
