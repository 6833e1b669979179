//! What can go wrong when a directory is published or removed.

use std::io;
use std::path::PathBuf;

use crate::text::shown;

/// Error of publishing or removing a directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AsideError {
    /// A mount point or another filesystem is in the way.
    #[error(
        "{}: something is mounted there, or it is another filesystem: nothing in it was touched; \
         unmount it, then run the command again", shown(.0)
    )]
    Mounted(PathBuf),
    /// Another directory has taken the place of the old one.
    #[error("{}: others have replaced it meanwhile; it stays as it is, run the command again", shown(.0))]
    Replaced(PathBuf),
    /// A system call failed.
    #[error("{}: {error}", shown(.path))]
    Io {
        /// Path concerned.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
}
