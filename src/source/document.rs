//! Reading the metadata documents of a source, up to a limit on their length.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::error::NodeError;
use crate::format::error::MetadataError;
use crate::format::json;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::format::zarr2;
use crate::memory::zeroed;
pub use crate::store::document::METADATA_FILE;
use crate::store::formats::superchunks::{DOCUMENTS, FILES};
use crate::store::storage::{FileKind, Storage, if_present};

/// Names of documents that make a directory a node of Zarr.
pub const NODE_DOCUMENTS: [&str; 3] = [METADATA_FILE, zarr2::ZARRAY, zarr2::ZGROUP];

/// Returns the files by which a node without a `zarr.json` may be described: in its directory, or, for a column
/// of a BLZ table (`TABLE/data/COLUMN`), in that of the table.
pub fn describing(directory: &Path) -> Vec<PathBuf> {
    let zarr2 = [zarr2::ZARRAY, zarr2::ZGROUP, zarr2::ZATTRS].map(|name| directory.join(name));
    let columns = directory.parent().filter(|above| above.file_name() == Some(FILES.as_ref()));
    let blz = [Some(directory), columns.and_then(Path::parent)];
    let blz = blz.into_iter().flatten();
    let blz = blz.flat_map(|directory| DOCUMENTS.map(|name| directory.join(name)));
    zarr2.into_iter().chain(blz).collect()
}

/// Returns whether a name is that of a document of a node, as Zarr is today or was in version 2.
pub fn is_document(name: &str) -> bool {
    name == METADATA_FILE || zarr2::is_document(name)
}

/// Reads the text of a document.
///
/// # Errors
/// Returns an error if the path is not a regular file, or longer than [`MAX_METADATA_BYTES`].
pub(super) fn read_text(storage: &dyn Storage, path: &Path) -> Result<Vec<u8>, NodeError> {
    let file = storage.open(path)?;
    let stat = file.stat()?;
    if stat.kind != FileKind::File {
        return Err(NodeError::NotAFile(stat.kind));
    }
    if stat.size > MAX_METADATA_BYTES {
        return Err(NodeError::TooLong(stat.size));
    }
    let mut text = zeroed(stat.size).map_err(io::Error::from)?;
    let read = file.read_at(&mut text, 0)?;
    text.truncate(read);
    Ok(text)
}

/// Reads the text of the document at a path; `None` if nothing is there.
pub(super) fn text_at(storage: &dyn Storage, path: &Path) -> Result<Option<Vec<u8>>, NodeError> {
    match if_present(storage.lstat(path))? {
        Some(_) => read_text(storage, path).map(Some),
        None => Ok(None),
    }
}

/// Parses the text of a document.
pub(super) fn parsed(text: &[u8]) -> Result<Value, NodeError> {
    Ok(json::parse(text).map_err(MetadataError::from)?)
}

/// Reads and parses a document.
pub(super) fn read_document(storage: &dyn Storage, path: &Path) -> Result<Value, NodeError> {
    parsed(&read_text(storage, path)?)
}

/// Reads and parses the document at a path; `None` if nothing is there.
pub(crate) fn document_at(storage: &dyn Storage, path: &Path) -> Result<Option<Value>, NodeError> {
    text_at(storage, path)?.as_deref().map(parsed).transpose()
}
