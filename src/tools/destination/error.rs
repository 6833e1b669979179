//! What can go wrong when a destination is opened or written.

use std::io;
use std::path::PathBuf;

use crate::store::remote::{ProbeError, SetupError, UrlError};
use crate::text::shown;
use crate::tools::aside::AsideError;

/// Advice to the user after a failed copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    /// No advice.
    None,
    /// The copy can be resumed.
    GoOn,
    /// The previous contents were not touched.
    Untouched,
}

impl std::fmt::Display for Hint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::GoOn => "; the same command, without --force, continues from here",
            Self::Untouched => "; what was there before is as it was",
        })
    }
}

/// Error of opening or writing a destination.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DestinationError {
    /// The destination exists.
    #[error("{}: it exists; --force replaces it", shown(.0))]
    Exists(PathBuf),
    /// The destination exists in a store of objects, in which nothing can take its place at once.
    #[error(
        "{}: it exists, and what is in a store is not replaced: give another name, or remove it first",
        shown(.0)
    )]
    InStore(PathBuf),
    /// The destination exists and is not a Zarr node, so it is not removed.
    #[error(
        "{}: it exists and is no Zarr array or group: remove it yourself if it can go", shown(.0)
    )]
    NotZarr(PathBuf),
    /// The destination is the unfinished result of another job.
    #[error(
        "{}: it holds the unfinished result of another command, {other}, or of its source as it was \
         then; --force starts anew",
        shown(.path)
    )]
    OtherJob {
        /// Path of the destination.
        path: PathBuf,
        /// Description of the other job.
        other: String,
    },
    /// Another process is writing the destination.
    #[error("{}: another process is writing it", shown(.0))]
    Busy(PathBuf),
    /// The old contents cannot be moved aside, or cannot be removed.
    #[error(transparent)]
    Aside(#[from] AsideError),
    /// The copy is complete, but the old contents could not be removed.
    #[error("{}: it is complete; what it has replaced cannot be removed: {error}", shown(.path))]
    Left {
        /// Path of the destination.
        path: PathBuf,
        /// The error.
        error: AsideError,
    },
    /// The URL names no destination.
    #[error("{}: {error}", shown(.path))]
    Url {
        /// The URL, without secrets.
        path: PathBuf,
        /// The error.
        #[source]
        error: UrlError,
    },
    /// The store of the destination cannot be reached.
    #[error("{}: {error}", shown(.path))]
    Setup {
        /// The URL.
        path: PathBuf,
        /// The error.
        #[source]
        error: Box<SetupError>,
    },
    /// The store of the destination cannot be written to.
    #[error("{}: {error}", shown(.path))]
    Unwritable {
        /// The URL.
        path: PathBuf,
        /// The error.
        #[source]
        error: ProbeError,
    },
    /// The destination cannot be written.
    #[error("{}: {error}{hint}", shown(.path))]
    Io {
        /// Path of the destination or of a file in it.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
        /// Advice to the user.
        hint: Hint,
    },
}
