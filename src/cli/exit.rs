//! Exit codes, and the error message that goes with each.
//!
//! ```text
//!                       done   found something wrong   wrong command line   cannot   mount failed
//! mount, umount, sync   0                              1                    2        32
//! all others            0      1                       2                    2
//! ```
//!
//! The first row is that of mount(8).

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::message::{complain, tell};
use crate::fs::SourceError;
use crate::mount::MountError;
use crate::source::OpenError;
use crate::source::Unsupported;
use crate::text::{Lines, shown};
use crate::tools::copy::CopyError;
use crate::tools::destination::DestinationError;

/// Reason for the failure of a command.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The command line of `mount`, `umount` or `sync` was wrong, or asked for help; the exit codes
    /// are those of mount(8).
    #[error(transparent)]
    Usage(clap::Error),
    /// The command line of another command was wrong, or asked for help.
    #[error(transparent)]
    ToolUsage(clap::Error),
    /// Something wrong was found; an empty text if everything was reported already.
    #[error("{0}")]
    Found(String),
    /// An option of `-o` was wrong.
    #[error("{0}")]
    Option(String),
    /// The source cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A destination cannot be written.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    /// The source cannot be copied.
    #[error("{}: {}", shown(.path), below(.error))]
    Copy {
        /// Path of the source.
        path: PathBuf,
        /// The error.
        error: CopyError,
    },
    /// The command cannot do what was requested.
    #[error("{0}")]
    System(String),
    /// The source cannot be mounted.
    #[error("{path}: {error}")]
    Source {
        /// Name of the source.
        path: String,
        /// The error.
        error: SourceError,
    },
    /// The source is something that shardfs does not mount.
    #[error("{path}: {what}")]
    Unsupported {
        /// Name of the source.
        path: String,
        /// Kind of thing it is.
        what: Unsupported,
    },
    /// Mounting or unmounting failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The background process failed with this exit code and has printed the reason.
    #[error("failed")]
    Background(u8),
}

/// Maps the result of writing to standard output; a reader that has closed it is no error.
pub(super) fn unless_closed(done: io::Result<()>) -> Result<(), Failure> {
    match done {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::System(format!("standard output: {error}")))
        }
        _ => Ok(()),
    }
}

impl Failure {
    /// Prints the error message and returns the exit code.
    pub(super) fn report(&self) -> ExitCode {
        match self {
            Self::Usage(error) | Self::ToolUsage(error) => {
                // Nothing can be done if stderr cannot be written.
                let printed = unless_closed(error.print());
                if let (Err(unsaid), false) = (printed, error.use_stderr()) {
                    return unsaid.report();
                }
            }
            Self::Background(_) => (),
            Self::Found(text) if text.is_empty() => (),
            Self::Mount(
                MountError::NotWritten { .. }
                | MountError::WouldBeLost { .. }
                | MountError::Leftover { .. },
            ) => {
                tell(Lines(self));
            }
            _ => complain(self),
        }
        self.code().into()
    }

    fn code(&self) -> u8 {
        const FOUND: u8 = 1;
        const USAGE: u8 = 1;
        const SYSTEM: u8 = 2;
        const MOUNT: u8 = 32;
        match self {
            Self::Usage(error) | Self::ToolUsage(error) if !error.use_stderr() => 0,
            Self::Usage(_) | Self::Option(_) => USAGE,
            Self::ToolUsage(_)
            | Self::System(_)
            | Self::Open(_)
            | Self::Destination(_)
            | Self::Copy { .. } => SYSTEM,
            Self::Found(_) => FOUND,
            Self::Source { .. } | Self::Unsupported { .. } => MOUNT,
            Self::Mount(error) => match error {
                MountError::Table { .. }
                | MountError::Device(_)
                | MountError::NoFusermount(_)
                | MountError::Session(_)
                | MountError::NotWritten { .. }
                | MountError::Closed { .. }
                | MountError::WouldBeLost { .. }
                | MountError::Leftover { .. }
                | MountError::Ending(_)
                | MountError::Interrupted(_)
                | MountError::NoRings(_)
                | MountError::Killed { .. }
                | MountError::Silent { .. }
                | MountError::Thread(_)
                | MountError::Signals(_) => SYSTEM,
                MountError::Mountpoint { .. }
                | MountError::NotADirectory(_)
                | MountError::AlreadyMounted { .. }
                | MountError::NotMounted(_)
                | MountError::InMount { .. }
                | MountError::Refused { .. }
                | MountError::NotAllowed(_)
                | MountError::Busy { .. }
                | MountError::OfAnother(_)
                | MountError::Unmount { .. }
                | MountError::NoRoom { .. }
                | MountError::Fusermount(_) => MOUNT,
            },
            Self::Background(code) => *code,
        }
    }
}

/// Returns the text of an error after the path of the source. One about the source itself begins with
/// its name.
fn below(error: &CopyError) -> String {
    let (text, root) = (error.to_string(), shown("").to_string());
    let rest = text.strip_prefix(&root).and_then(|rest| rest.strip_prefix(": "));
    rest.filter(|_| error.is_about_source()).unwrap_or(&text).to_owned()
}

/// Makes a failure of an error that keeps a command from running.
pub(super) fn system(error: impl std::fmt::Display) -> Failure {
    Failure::System(error.to_string())
}

/// The same of an error that is about a path.
pub(super) fn failed(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::System(format!("{}: {error}", shown(&path)))
}
