//! Objects of a store on the network that are an array by themselves, as a file can be.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use super::config::Format;
use super::document::is_document;
use super::unsupported::{HEAD_BYTES, Unsupported};
use crate::store::remote::{RemoteStorage, SourceUrl};
use crate::store::storage::{Expected, FileKind, Storage};

/// Object that is opened instead of what is below a key.
pub struct ObjectSource {
    /// Storage in which it is the only file.
    pub storage: Arc<dyn Storage>,
    /// Its name there.
    pub file: OsString,
}

impl ObjectSource {
    /// Returns the object that a URL names, of a source below which no node was found. `None` if there
    /// is none, or what a web server answers for a directory.
    ///
    /// # Errors
    /// It is an object of which no source of this format can be made, or of any if none is named.
    pub fn find(
        storage: &RemoteStorage,
        url: &SourceUrl,
        format: Option<Format>,
    ) -> Result<Option<Self>, Unsupported> {
        // What cannot be determined is not there, as far as the error goes that there is no node.
        let Ok(Some((storage, file))) = storage.only_object() else { return Ok(None) };
        let Some(head) = head(&storage, Path::new(&file)) else { return Ok(None) };
        if file.to_str().is_some_and(is_document) {
            return Err(Unsupported::Document(url.parent().into()));
        }
        match Unsupported::of_head(&head, Path::new(&file), format) {
            Some(Unsupported::File) if url.is_on_web() => Ok(None),
            Some(what) => Err(what),
            None => Ok(Some(Self { storage: Arc::new(storage), file })),
        }
    }
}

/// Returns the first bytes of an object; `None` if it cannot be read.
fn head(storage: &RemoteStorage, path: &Path) -> Option<Vec<u8>> {
    let file = storage.open_expecting(path, Expected::First(HEAD_BYTES as u64)).ok()?;
    let stat = file.stat().ok().filter(|stat| stat.kind == FileKind::File)?;
    let mut bytes = vec![0; HEAD_BYTES.min(usize::try_from(stat.size).unwrap_or(HEAD_BYTES))];
    let read = file.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(read);
    Some(bytes)
}
