//! Names of the documents of Zarr v2.

/// Name of an array's document.
pub const ZARRAY: &str = ".zarray";
/// Name of the document with a node's attributes.
pub const ZATTRS: &str = ".zattrs";
/// Name of a group's document.
pub const ZGROUP: &str = ".zgroup";
/// Name of the consolidated metadata: the documents of a group and of all nodes below it.
pub const ZMETADATA: &str = ".zmetadata";

/// Returns whether `name` is the name of a Zarr v2 document.
pub fn is_document(name: &str) -> bool {
    [ZARRAY, ZATTRS, ZGROUP, ZMETADATA].contains(&name)
}
