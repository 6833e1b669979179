//! Creating, resizing and deleting arrays and groups without a mount.
//!
//! Readers see a complete array at any moment: a new one is built aside and exchanged with the old
//! one, a deleted one is moved aside first ([`super::aside`]), and a resize replaces `zarr.json`
//! before it removes chunks.

mod create;
mod delete;
mod resize;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

pub use self::create::{Destination, create};
pub use self::delete::{Deletion, Kind};
pub use self::resize::{Resize, Resized};
use super::aside::{AsideError, Place};
use crate::format::error::MetadataError;
use crate::format::json;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::source::METADATA_FILE;
use crate::store::StoreError;
use crate::text::{count, shown};

/// Error of creating, resizing or deleting an array.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// The destination exists already.
    #[error("{} exists; --force replaces an array that is there", shown(.0))]
    Exists(PathBuf),
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
    /// The metadata cannot be used.
    #[error("{}: {error}", shown(.path))]
    Metadata {
        /// Path of the document.
        path: PathBuf,
        /// The error.
        #[source]
        error: MetadataError,
    },
    /// The node is a group where an array is required.
    #[error("{} is a group; name one of its arrays", shown(.0))]
    Group(PathBuf),
    /// The node is a group, and recursive deletion was not requested.
    #[error("{} is a group; --recursive deletes it with everything below", shown(.0))]
    NotRecursive(PathBuf),
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

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ArrayError + '_ {
    |error| ArrayError::Io { path: path.to_owned(), error }
}

/// Returns the place of a path, whose parent must be a directory.
fn place_of(path: &Path) -> Result<Place, ArrayError> {
    Place::of(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            ArrayError::NoParent(parent.unwrap_or(path).to_owned())
        }
        _ => io_error(path)(error),
    })
}

/// Reads the metadata document in a directory; `None` if there is none.
fn document_in(directory: &Path) -> Result<Option<Value>, ArrayError> {
    let path = directory.join(METADATA_FILE);
    let text = match std::fs::metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(found) if found.len() > MAX_METADATA_BYTES => {
            let limit = MAX_METADATA_BYTES;
            let error = MetadataError::Limit { what: "bytes", limit };
            return Err(ArrayError::Metadata { path, error });
        }
        Ok(_) => std::fs::read(&path),
        Err(error) => Err(error),
    };
    let text = text.map_err(io_error(&path))?;
    let document = json::parse(&text);
    document.map(Some).map_err(|error| ArrayError::Metadata { path, error: error.into() })
}

/// Returns whether a directory has metadata of Zarr v2 or N5.
fn is_of_other_format(directory: &Path) -> bool {
    [".zarray", ".zgroup", "attributes.json"].iter().any(|name| directory.join(name).exists())
}

/// Returns the nearest group above a node that has consolidated metadata, which must be regenerated
/// once the node is created, changed or deleted. `None` if there is none.
pub fn consolidated_above(directory: &Path) -> Option<PathBuf> {
    let directory = place_of(directory).ok()?.path();
    let groups = directory.ancestors().skip(1);
    let mut groups = groups.map_while(|group| Some((group, document_in(group).ok()??)));
    let found = groups.find(|(_, document)| document.get("consolidated_metadata").is_some());
    found.map(|(group, _)| group.to_owned())
}
