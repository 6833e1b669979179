//! What can go wrong when an array is created, resized or deleted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::source::{NodeError, unfinished};
use crate::store::StoreError;
use crate::store::remote::{ProbeError, SetupError};
use crate::text::{count, shown};
use crate::tools::aside::AsideError;

/// Error of creating, resizing or deleting an array.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArrayError {
    /// The destination exists already.
    #[error("{} exists; --force replaces an array that is there", shown(.0))]
    Exists(PathBuf),
    /// There is something in a store of objects already.
    #[error("{} exists, and what is in a store is not replaced: delete it first, or give another name", shown(.0))]
    ExistsInStore(PathBuf),
    /// A command has not completed what is in a store of objects; holds that command.
    #[error(
        "{}: {}, or remove what it has left by `shardfs delete`", shown(.0), unfinished(.1)
    )]
    UnfinishedInStore(PathBuf, String),
    /// The store cannot be reached.
    #[error("{}: {error}", shown(.path))]
    Setup {
        /// The URL.
        path: PathBuf,
        /// The error.
        #[source]
        error: Box<SetupError>,
    },
    /// The store cannot be written to.
    #[error("{}: {error}", shown(.path))]
    Unwritable {
        /// The URL.
        path: PathBuf,
        /// The error.
        #[source]
        error: ProbeError,
    },
    /// The destination is neither an array nor an empty directory.
    #[error("{} is neither a Zarr array nor an empty directory: it is not replaced", shown(.0))]
    NotReplaced(PathBuf),
    /// The parent directory does not exist.
    #[error("{}: there is no such directory; make it first", shown(.0))]
    NoParent(PathBuf),
    /// The directory does not exist.
    #[error("{}: there is no such directory", shown(.0))]
    Absent(PathBuf),
    /// The path is a symbolic link.
    #[error("{} is a symbolic link; name the directory that it leads to", shown(.0))]
    Link(PathBuf),
    /// The directory has no metadata.
    #[error("{} is no Zarr v3 array or group: it has no zarr.json", shown(.0))]
    NotANode(PathBuf),
    /// The directory has metadata of another format.
    #[error("{} is of another format than Zarr v3, which is all that this command knows", shown(.0))]
    OtherFormat(PathBuf),
    /// The directory is a copy that was not completed; holds the command that has begun it.
    #[error("{}: {}, or remove the directory", shown(.0), unfinished(.1))]
    Unfinished(PathBuf, String),
    /// The metadata cannot be used.
    #[error("{}: {error}", shown(.path))]
    Metadata {
        /// Path of the document.
        path: PathBuf,
        /// The error.
        #[source]
        error: NodeError,
    },
    /// The node is a group where an array is required.
    #[error("{} is a group; name one of its arrays", shown(.0))]
    Group(PathBuf),
    /// The node is a group, and recursive deletion was not requested.
    #[error("{} is a group; --recursive deletes it with everything below", shown(.0))]
    NotRecursive(PathBuf),
    /// There are nodes below the array, and recursive deletion was not requested.
    #[error("{} has arrays or groups below it; --recursive deletes it with everything below", shown(.0))]
    NodesBelow(PathBuf),
    /// There are nodes below the array to be replaced.
    #[error("{} has arrays or groups below it: it is not replaced", shown(.0))]
    NotReplacedAbove(PathBuf),
    /// A commit to the array is in progress.
    #[error("{} is being written to: its journal is locked", shown(.0))]
    Busy(PathBuf),
    /// The chunk grid is not regular.
    #[error("{} has a chunk grid that is not regular, which cannot be resized", shown(.0))]
    Irregular(PathBuf),
    /// The number of extents differs from the number of dimensions.
    #[error("{}, {} has {}", count(.found, "extent"), shown(.path), count(.rank, "dimension"))]
    Rank {
        /// Path of the array.
        path: PathBuf,
        /// Number of extents given.
        found: usize,
        /// Number of dimensions of the array.
        rank: usize,
    },
    /// The shards are compressed as a whole and cannot be changed by shardfs.
    #[error(
        "{}: shards that are compressed as a whole cannot be changed, so chunks outside cannot be \
         removed; --keep-outside leaves them",
        shown(.0)
    )]
    ReadOnly(PathBuf),
    /// The old contents cannot be moved aside, or cannot be removed.
    #[error(transparent)]
    Aside(#[from] AsideError),
    /// The array has its new shape, but not all chunks outside it were removed.
    #[error(
        "{}: it has its new shape, but not all chunks outside could be removed: {error}; they are \
         hidden, and the same command again removes the rest; do that before the array grows", shown(.path)
    )]
    Left {
        /// Path of the array.
        path: PathBuf,
        /// The error.
        error: Arc<StoreError>,
    },
    /// The command has done its work, but not updated the consolidated metadata of a group above.
    #[error(
        "{}: what was asked for is done, but its consolidated metadata could not be changed and is \
         of before: {error}; consolidate it again", shown(.group)
    )]
    Stale {
        /// Directory of the group.
        group: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// A commit or reading a shard failed.
    #[error(transparent)]
    Store(#[from] Arc<StoreError>),
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

/// Makes an error of a failed system call on a path.
pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ArrayError + '_ {
    |error| ArrayError::Io { path: path.to_owned(), error }
}
