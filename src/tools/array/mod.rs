//! Making, resizing and deleting what is in a source, without a mount.
//!
//! What others see at any moment is a whole array: it is made aside and changes places with the old one,
//! is set aside before it is deleted ([`super::aside`]), and is resized by replacing its `zarr.json` before
//! chunks are removed.

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

/// Why an array cannot be made, resized or deleted.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// Something is in its place.
    #[error("{} exists; --force replaces an array that is there", shown(.0))]
    Exists(PathBuf),
    /// Something else than an array is in its place.
    #[error("{} is neither a Zarr array nor an empty directory: it is not replaced", shown(.0))]
    NotReplaced(PathBuf),
    /// There is no directory for it to be in.
    #[error("{}: there is no such directory; make it first", shown(.0))]
    NoParent(PathBuf),
    /// Nothing is there.
    #[error("{}: there is no such directory", shown(.0))]
    Absent(PathBuf),
    /// A path that does not name a directory itself.
    #[error("{} is a symbolic link; name the directory that it leads to", shown(.0))]
    Link(PathBuf),
    /// A directory without metadata.
    #[error("{} is no Zarr v3 array or group: it has no zarr.json", shown(.0))]
    NotANode(PathBuf),
    /// A directory with metadata of another format.
    #[error("{} is of another format than Zarr v3, which is all that this command knows", shown(.0))]
    OtherFormat(PathBuf),
    /// Its metadata cannot be used.
    #[error("{}: {error}", shown(.path))]
    Metadata {
        /// The document.
        path: PathBuf,
        /// Why.
        #[source]
        error: MetadataError,
    },
    /// A group, where only an array will do.
    #[error("{} is a group; name one of its arrays", shown(.0))]
    Group(PathBuf),
    /// A group, which is deleted only when that is asked for.
    #[error("{} is a group; --recursive deletes it with everything below", shown(.0))]
    NotRecursive(PathBuf),
    /// Somebody commits to an array.
    #[error("{} is being written to: its journal is locked", shown(.0))]
    Busy(PathBuf),
    /// Shards of different shapes.
    #[error("{} has a chunk grid that is not regular, which cannot be resized", shown(.0))]
    Irregular(PathBuf),
    /// Another number of extents than dimensions.
    #[error("{}, {} has {}", count(.found, "extent"), shown(.path), count(.rank, "dimension"))]
    Rank {
        /// The array.
        path: PathBuf,
        /// How many were given.
        found: usize,
        /// The array's number of dimensions.
        rank: usize,
    },
    /// Its shards can only be made anew as a whole, by other software.
    #[error(
        "{}: shards that are compressed as a whole cannot be changed, so chunks outside cannot be \
         removed; --keep-outside leaves them",
        shown(.0)
    )]
    ReadOnly(PathBuf),
    /// What was there cannot be set aside, or not be removed.
    #[error(transparent)]
    Aside(#[from] AsideError),
    /// It has its new shape, and what lies outside was not all removed.
    #[error(
        "{}: it has its new shape, but not all chunks outside could be removed: {error}; they are \
         hidden, and the same command again removes the rest; do that before the array grows", shown(.path)
    )]
    Left {
        /// The array.
        path: PathBuf,
        /// Why.
        error: Arc<StoreError>,
    },
    /// A commit or a look at a shard failed.
    #[error(transparent)]
    Store(#[from] Arc<StoreError>),
    /// The system reports an error.
    #[error("{}: {error}", shown(.path))]
    Io {
        /// Where.
        path: PathBuf,
        /// The error.
        #[source]
        error: io::Error,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ArrayError + '_ {
    |error| ArrayError::Io { path: path.to_owned(), error }
}

/// The place of a path, whose parent must be a directory.
fn place_of(path: &Path) -> Result<Place, ArrayError> {
    Place::of(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            ArrayError::NoParent(parent.unwrap_or(path).to_owned())
        }
        _ => io_error(path)(error),
    })
}

/// The metadata of a directory; None if it has none.
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

/// Whether a directory has metadata of Zarr v2 or of N5.
fn is_of_other_format(directory: &Path) -> bool {
    [".zarray", ".zgroup", "attributes.json"].iter().any(|name| directory.join(name).exists())
}

/// The nearest group above a node that has consolidated metadata: that has to be made again once the node
/// is there, has changed or is gone.
pub fn consolidated_above(directory: &Path) -> Option<PathBuf> {
    let directory = place_of(directory).ok()?.path();
    let groups = directory.ancestors().skip(1);
    let mut groups = groups.map_while(|group| Some((group, document_in(group).ok()??)));
    let found = groups.find(|(_, document)| document.get("consolidated_metadata").is_some());
    found.map(|(group, _)| group.to_owned())
}
