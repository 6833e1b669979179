//! Exit codes and the one sentence that goes with each.
//!
//! ```text
//!                       done   found something wrong   wrong command line   cannot   mount failed
//! mount, umount, sync   0                              1                    2        32
//! all others            0      1                       2                    2
//! ```
//!
//! The first line is that of mount(8).

use std::path::PathBuf;
use std::process::ExitCode;

use crate::fs::SourceError;
use crate::mount::MountError;
use crate::source::OpenError;
use crate::source::Unsupported;
use crate::text::{Lines, shown};
use crate::tools::copy::CopyError;
use crate::tools::destination::DestinationError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The command line was wrong, or asked for help: as mount(8) tells it.
    #[error(transparent)]
    Usage(clap::Error),
    /// The same of other commands.
    #[error(transparent)]
    ToolUsage(clap::Error),
    /// Something wrong was found; nothing more is to be said of it if the text is empty.
    #[error("{0}")]
    Found(String),
    /// An option of `-o` was wrong.
    #[error("{0}")]
    Option(String),
    /// A command cannot do what it was asked for.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A destination cannot be written.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    /// A source cannot be copied.
    #[error("{}: {error}", shown(.path))]
    Copy {
        /// The source.
        path: PathBuf,
        /// Why.
        error: CopyError,
    },
    /// The system does not allow it.
    #[error("{0}")]
    System(String),
    /// The source cannot be shown.
    #[error("{path}: {error}")]
    Source {
        /// The source.
        path: String,
        /// The error.
        error: SourceError,
    },
    /// The source is something that shardfs does not mount.
    #[error("{path}: {what}")]
    Unsupported {
        /// The source.
        path: String,
        /// What it is.
        what: Unsupported,
    },
    /// Mounting or unmounting failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The process in the background failed with this code and has told why.
    #[error("failed")]
    Background(u8),
}

impl Failure {
    /// Prints what is wrong and gives the exit code.
    pub(super) fn report(&self) -> ExitCode {
        match self {
            Self::Usage(error) | Self::ToolUsage(error) => {
                // Where it cannot be printed there is nobody to read it.
                let _ = error.print();
            }
            Self::Background(_) => (),
            Self::Found(text) if text.is_empty() => (),
            Self::Mount(MountError::NotWritten { .. }) => eprintln!("shardfs: {}", Lines(self)),
            _ => super::complain(self),
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
                MountError::Device(_)
                | MountError::NoFusermount(_)
                | MountError::Session(_)
                | MountError::NotWritten { .. }
                | MountError::Silent { .. }
                | MountError::Signals(_) => SYSTEM,
                MountError::Mountpoint { .. }
                | MountError::NotADirectory(_)
                | MountError::AlreadyMounted { .. }
                | MountError::NotMounted(_)
                | MountError::Refused { .. }
                | MountError::NotAllowed(_)
                | MountError::Busy(_)
                | MountError::Unmount { .. }
                | MountError::Fusermount(_) => MOUNT,
            },
            Self::Background(code) => *code,
        }
    }
}
