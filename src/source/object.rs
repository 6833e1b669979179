//! Objects of a store on the network that are an array by themselves, as a file can be.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::config::Format;
use super::document::is_document;
use super::unsupported::{HEAD_BYTES, Unsupported};
use crate::number::to_usize;
use crate::store::remote::{RemoteStorage, SourceUrl};
use crate::store::storage::{Expected, Storage};

/// Object that is opened instead of what is below a key.
pub struct ObjectSource {
    /// Storage in which it is the only file.
    pub storage: Arc<dyn Storage>,
    /// Its name there.
    pub file: OsString,
}

/// Reason why an object is no source.
#[derive(Debug, thiserror::Error)]
pub enum NoObject {
    /// It cannot be determined what it is.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// No source of the format can be made of it, or of any if none is named.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
}

impl ObjectSource {
    /// Returns the object that a URL names, of a source below which no node was found. `None` if there
    /// is none, or what a web server answers for a directory.
    pub fn find(
        storage: &RemoteStorage,
        url: &SourceUrl,
        format: Option<Format>,
    ) -> Result<Option<Self>, NoObject> {
        let Some((storage, file)) = storage.only_object()? else { return Ok(None) };
        let head = head(&storage, Path::new(&file))?;
        if file.to_str().is_some_and(is_document) {
            return Err(Unsupported::Document(url.parent().into()).into());
        }
        match Unsupported::of_head(&head, Path::new(&file), format) {
            Some(Unsupported::File) if url.is_on_web() => Ok(None),
            Some(what) => Err(what.into()),
            None => Ok(Some(Self { storage: Arc::new(storage), file })),
        }
    }
}

/// Returns the first bytes of an object.
fn head(storage: &RemoteStorage, path: &Path) -> io::Result<Vec<u8>> {
    let file = storage.open_expecting(path, Expected::First(HEAD_BYTES as u64))?;
    let mut bytes = vec![0; HEAD_BYTES.min(to_usize(file.stat()?.size))];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}
