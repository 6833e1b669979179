//! Documents of nodes as files: their name, and their text within limits.

use std::io;

use super::storage::StorageFile;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::memory::zeroed;

/// Name of the metadata document of every node of Zarr v3.
pub const METADATA_FILE: &str = "zarr.json";

/// Returns the text of a document that is open.
///
/// # Errors
/// EFBIG if it is longer than [`MAX_METADATA_BYTES`].
pub(crate) fn text_of(file: &dyn StorageFile) -> io::Result<Vec<u8>> {
    let size = file.stat()?.size;
    if size > MAX_METADATA_BYTES {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let mut text = zeroed(size)?;
    let read = file.read_at(&mut text, 0)?;
    text.truncate(read);
    Ok(text)
}
