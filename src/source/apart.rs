//! Hierarchies whose documents are in a directory of their own, apart from the data that they
//! describe: those of the Zarr v3 draft of 2022.

use std::path::PathBuf;

use super::array::{Array, ArrayFormat};
use crate::format::draft2022;

pub(super) use crate::format::draft2022::{data_of, is_hierarchy, metadata_directory};
pub(crate) use crate::format::draft2022::{described, documents, group_documents, is_document};

/// Returns the path of an array in its hierarchy; its data may be elsewhere.
pub(crate) fn node_path(array: &Array) -> PathBuf {
    let directory = &array.source.path;
    let document = array.document.as_ref().filter(|_| array.format == ArrayFormat::Draft2022);
    let node = document.and_then(|(document, _)| draft2022::node_of(document, directory));
    node.unwrap_or_else(|| directory.clone())
}
