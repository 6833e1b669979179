//! A hierarchy of the draft: where the documents of its nodes and the data of its arrays are.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::format::error::MetadataError;

/// Directory of the data of the root node, relative to the hierarchy.
const DATA: &str = "data/root";
/// Directory of the metadata of nodes below the root, relative to the hierarchy.
const METADATA: &str = "meta/root";
/// Suffix that follows the array's name in the name of its document.
const ARRAY_SUFFIX: &str = ".array.json";
/// Suffix of the name of a group's document.
const GROUP_SUFFIX: &str = ".group.json";

/// Returns whether a `zarr.json` is that of a hierarchy of the draft. Fails if it is one that
/// cannot be read.
pub fn is_hierarchy(document: &Value) -> Result<bool, MetadataError> {
    let format = document.get("zarr_format").and_then(Value::as_str);
    if !format.is_some_and(|uri| uri.contains("zarr/spec/protocol/core/3.0")) {
        return Ok(false);
    }
    match document.get("metadata_key_suffix").and_then(Value::as_str) {
        Some(".json") | None => Ok(true),
        Some(_) => Err(MetadataError::invalid("metadata_key_suffix", "\".json\"")),
    }
}

/// Returns whether a path has the form of an array's document.
pub fn is_document(path: &Path) -> bool {
    array_name(path).is_some() && path.ancestors().skip(1).any(|above| above.ends_with("meta"))
}

/// Returns the name before the suffix of an array's document; `None` if the path has another
/// suffix.
fn array_name(path: &Path) -> Option<&str> {
    path.file_name().and_then(OsStr::to_str)?.strip_suffix(ARRAY_SUFFIX)
}

/// Returns the hierarchies in which `directory` may hold an array's data, each with the path of the
/// array's document.
pub fn documents(directory: &Path) -> impl Iterator<Item = (&Path, PathBuf)> {
    directory.ancestors().filter(|above| above.ends_with(DATA)).filter_map(|data| {
        let (hierarchy, node) = (data.parent()?.parent()?, directory.strip_prefix(data).ok()?);
        let mut document = hierarchy.join(METADATA).join(node).into_os_string();
        // The document of the root node is beside the directory "meta/root", not in it.
        if node.as_os_str().is_empty() {
            document = hierarchy.join(METADATA).into_os_string();
        }
        document.push(ARRAY_SUFFIX);
        Some((hierarchy, document.into()))
    })
}

/// Returns the hierarchies in which `path` may be an array's document, each with the directory of
/// the array's data.
pub fn described(path: &Path) -> impl Iterator<Item = (&Path, PathBuf)> {
    let name = array_name(path);
    let above = path.ancestors().skip(1).filter(|above| above.ends_with("meta"));
    above.filter_map(move |metadata| {
        let hierarchy = metadata.parent()?;
        let below = path.strip_prefix(metadata).ok()?.with_file_name(name?);
        below.starts_with("root").then(|| (hierarchy, hierarchy.join("data").join(below)))
    })
}

/// Returns the path of a node in the tree of its hierarchy, prefixed by the directory of the
/// hierarchy. The node is given by its document and the directory of its data.
pub fn node_of(document: &Path, directory: &Path) -> Option<PathBuf> {
    let (hierarchy, _) = described(document).find(|(_, data)| data == directory)?;
    let node = directory.strip_prefix(hierarchy.join(DATA)).ok()?;
    Some(hierarchy.join(node))
}

/// Returns the possible paths of the document of a group, given the group's path in the tree of a
/// hierarchy, as returned by [`node_of`].
pub fn group_documents(directory: &Path) -> impl Iterator<Item = PathBuf> {
    directory.ancestors().filter_map(|hierarchy| {
        let node = directory.strip_prefix(hierarchy).ok()?;
        let mut document = hierarchy.join(METADATA);
        if !node.as_os_str().is_empty() {
            document.push(node);
        }
        let mut document = document.into_os_string();
        document.push(GROUP_SUFFIX);
        Some(document.into())
    })
}

/// Returns the data directory of the array with the given document; `None` if that is not below
/// `meta/root` of the hierarchy.
pub fn data_of(hierarchy: &Path, document: &Path) -> Option<PathBuf> {
    described(document).find(|(found, _)| *found == hierarchy).map(|(_, directory)| directory)
}

/// Directory of all documents of a hierarchy.
pub fn metadata_directory(hierarchy: &Path) -> PathBuf {
    hierarchy.join("meta")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_data_have_their_places() {
        let one = |directory: &str| {
            let mut found = documents(Path::new(directory));
            let (hierarchy, document) = found.next().unwrap();
            assert!(found.next().is_none());
            (hierarchy.to_str().unwrap().to_owned(), document.to_str().unwrap().to_owned())
        };
        assert_eq!(one("data/root/a/b"), (String::new(), "meta/root/a/b.array.json".to_owned()));
        assert_eq!(one("h/data/root"), ("h".to_owned(), "h/meta/root.array.json".to_owned()));
        assert_eq!(documents(Path::new("data/a")).count(), 0);
        for document in ["meta/root/a/b.array.json", "meta/root.array.json"] {
            let (hierarchy, directory) = described(Path::new(document)).next().unwrap();
            let back: Vec<_> = documents(&directory).collect();
            assert_eq!(back, [(hierarchy, PathBuf::from(document))]);
        }
        assert_eq!(described(Path::new("meta/root/a.group.json")).count(), 0);
        assert!(!is_document(Path::new("data/root/a.array.json")));
    }
}
