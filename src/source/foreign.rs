//! Arrays whose metadata is not a document of Zarr.

use std::ffi::OsString;
use std::path::Path;

use super::array::{Array, ArrayFormat};
use super::compact_json::CompactJson;
use super::document::METADATA_FILE;
use crate::format::foreign::ForeignArray;
use crate::format::json;
use crate::store::{Container, SourceArray};

/// An array, and what is shown beside its chunks.
pub struct Foreign {
    /// Its chunks.
    pub array: ForeignArray,
    /// What its shards are.
    pub container: Container,
    /// Documents that the view has and the source has not.
    pub documents: Vec<(OsString, Vec<u8>)>,
}

impl Foreign {
    /// An array with documents of its format; its metadata as of Zarr v3, if it has a form there, is one more.
    pub fn new(
        array: ForeignArray,
        container: Container,
        mut documents: Vec<(OsString, Vec<u8>)>,
    ) -> Self {
        if let Some(metadata) = &array.metadata {
            documents.push((METADATA_FILE.into(), json::to_text(metadata)));
        }
        Self { array, container, documents }
    }

    /// The same as an array of a source.
    pub(super) fn into_array(self, directory: &Path, format: ArrayFormat) -> Array {
        let Self { array, container, .. } = self;
        let path = directory.to_owned();
        let source = SourceArray { id: 0, path, layout: array.layout, container };
        let twin = array.metadata.as_ref().map(CompactJson::new);
        Array { source, format, document: None, sharded: None, twin }
    }
}
