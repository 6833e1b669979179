//! What is found at the path of a node: its place and its metadata document.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::error::{ArrayError, io_error};
use crate::source::{METADATA_FILE, document_at, unfinished_by};
use crate::store::local::LocalStorage;
use crate::tools::aside::Place;

/// Returns the place of a path, whose parent must be a directory.
pub(super) fn place_of(path: &Path) -> Result<Place, ArrayError> {
    Place::of(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            ArrayError::NoParent(parent.unwrap_or(path).to_owned())
        }
        _ => io_error(path)(error),
    })
}

/// Returns an error if a directory is a copy that was not completed.
pub(crate) fn check_finished(directory: &Path) -> Result<(), ArrayError> {
    // What cannot be opened is reported by whoever uses it.
    let Ok(storage) = LocalStorage::open_root(directory, Arc::default()) else { return Ok(()) };
    match unfinished_by(&storage, Path::new("")) {
        Some(command) => Err(ArrayError::Unfinished(directory.to_owned(), command)),
        None => Ok(()),
    }
}

/// Reads the metadata document in a directory, as mounts do: a regular file of limited length, no
/// symbolic link that leads out of the directory. `None` if there is none.
pub(super) fn document_in(directory: &Path) -> Result<Option<Value>, ArrayError> {
    let storage = match LocalStorage::open_root(directory, Arc::default()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        storage => storage.map_err(io_error(directory))?,
    };
    let bad = |error| ArrayError::Metadata { path: directory.join(METADATA_FILE), error };
    document_at(&storage, Path::new(METADATA_FILE)).map_err(bad)
}
