//! Arrays whose metadata is not a Zarr document.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::array::{Array, ArrayFormat};
use super::compact_json::CompactJson;
use super::document::METADATA_FILE;
use crate::format::foreign::ForeignArray;
use crate::format::json;
use crate::store::SourceArray;
use crate::store::formats::ShardFormat;

/// An array of a foreign format and the documents shown beside its chunks.
pub struct Foreign {
    /// Layout and metadata of the array.
    pub array: ForeignArray,
    /// Format in which the chunks are stored.
    pub format: Arc<dyn ShardFormat>,
    /// Metadata that, besides the layout, distinguishes the array from another in its place.
    pub identity: Value,
    /// Documents that are in the view but not in the source, by name.
    pub documents: Vec<(OsString, Vec<u8>)>,
}

impl Foreign {
    /// Creates a foreign array with the documents of its format, and adds its Zarr v3 metadata to
    /// them if it can be expressed in Zarr v3.
    pub fn new(
        array: ForeignArray,
        format: Arc<dyn ShardFormat>,
        mut documents: Vec<(OsString, Vec<u8>)>,
    ) -> Self {
        if let Some(metadata) = &array.metadata {
            documents.push((METADATA_FILE.into(), json::to_text(metadata)));
        }
        Self { array, format, identity: Value::Null, documents }
    }

    /// Converts into an [`Array`] of a source.
    pub(super) fn into_array(self, directory: &Path, kind: ArrayFormat) -> Array {
        let Self { array, format, .. } = self;
        let path = directory.to_owned();
        let source = SourceArray { id: 0, path, layout: array.layout, format };
        let twin = array.metadata.as_ref().map(CompactJson::new);
        Array { source, format: kind, document: None, sharded: None, twin }
    }
}
