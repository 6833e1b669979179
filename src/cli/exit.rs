//! Exit codes, those of mount(8), and the one sentence that goes with each.

use std::process::ExitCode;

use crate::fs::SourceError;
use crate::mount::MountError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The command line was wrong, or asked for help.
    #[error(transparent)]
    Usage(clap::Error),
    /// An option of `-o` was wrong.
    #[error("{0}")]
    Option(String),
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
            Self::Usage(error) => {
                // Where it cannot be printed there is nobody to read it.
                let _ = error.print();
            }
            Self::Background(_) => (),
            _ => eprintln!("shardfs: {self}"),
        }
        self.code().into()
    }

    fn code(&self) -> u8 {
        const USAGE: u8 = 1;
        const SYSTEM: u8 = 2;
        const MOUNT: u8 = 32;
        match self {
            Self::Usage(error) if !error.use_stderr() => 0,
            Self::Usage(_) | Self::Option(_) => USAGE,
            Self::System(_) => SYSTEM,
            Self::Source { .. } => MOUNT,
            Self::Mount(error) => match error {
                MountError::Device(_)
                | MountError::NoFusermount(_)
                | MountError::Session(_)
                | MountError::NotWritten { .. }
                | MountError::Signals(_) => SYSTEM,
                MountError::Mountpoint { .. }
                | MountError::NotADirectory(_)
                | MountError::AlreadyMounted { .. }
                | MountError::NotMounted(_)
                | MountError::Refused { .. }
                | MountError::Busy(_)
                | MountError::Unmount { .. }
                | MountError::Fusermount(_) => MOUNT,
            },
            Self::Background(code) => *code,
        }
    }
}
