//! Nodes that the metadata of a group names: where names cannot be listed, that tells of what is below it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::json;
use super::zarr2::{ZARRAY, ZGROUP};

/// Returns the paths, relative to its group, of the nodes that a document names: consolidated metadata of Zarr v3
/// (`consolidated_metadata.metadata`) or v2 (`.zmetadata`), and images of OME-Zarr (`multiscales[].datasets[].path`).
/// A text that is no such document names none.
pub(crate) fn named_nodes(text: &[u8]) -> BTreeSet<String> {
    let Ok(document) = json::parse(text) else { return BTreeSet::new() };
    let mut nodes = BTreeSet::new();
    let consolidated = document.get("consolidated_metadata").and_then(|it| it.get("metadata"));
    if let Some(Value::Object(metadata)) = consolidated {
        nodes.extend(metadata.keys().filter(|path| is_below(path)).cloned());
    }
    if let Some(Value::Object(metadata)) = document.get("metadata") {
        let node = |key: &String| {
            let (node, document) = key.rsplit_once('/')?;
            ([ZARRAY, ZGROUP].contains(&document) && is_below(node)).then(|| node.to_owned())
        };
        nodes.extend(metadata.keys().filter_map(node));
    }
    let attributes = document.get("attributes").unwrap_or(&document);
    for attributes in [Some(attributes), attributes.get("ome")].into_iter().flatten() {
        let images = attributes.get("multiscales").and_then(Value::as_array);
        let datasets = images.into_iter().flatten().filter_map(|it| it.get("datasets")?.as_array());
        let paths = datasets.flatten().filter_map(|it| it.get("path")?.as_str());
        nodes.extend(paths.filter(|path| is_below(path)).map(str::to_owned));
    }
    nodes
}

/// Returns whether a path leads to a node below the group, and nowhere else.
fn is_below(path: &str) -> bool {
    path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(document: &Value) -> Vec<String> {
        named_nodes(document.to_string().as_bytes()).into_iter().collect()
    }

    #[test]
    fn consolidated_metadata_and_images_name_nodes() {
        let group = json!({"node_type": "group", "consolidated_metadata": {"metadata": {
            "a": {}, "b/c": {}, "../d": {}, "/e": {}, "": {}}}});
        assert_eq!(named(&group), ["a", "b/c"]);
        let group = json!({"zarr_consolidated_format": 1, "metadata": {
            ".zgroup": {}, "a/.zarray": {}, "a/.zattrs": {}, "b/c/.zgroup": {}}});
        assert_eq!(named(&group), ["a", "b/c"]);
        let image = json!([{"datasets": [{"path": "0"}, {"path": "s1/x"}, {"path": 2}]}]);
        assert_eq!(named(&json!({"attributes": {"ome": {"multiscales": image}}})), ["0", "s1/x"]);
        assert_eq!(named(&json!({"multiscales": image})), ["0", "s1/x"]);
    }

    #[test]
    fn other_texts_name_none() {
        for text in ["", "[", "3", "{\"metadata\": 3}", "{\"consolidated_metadata\": []}"] {
            assert_eq!(named_nodes(text.as_bytes()), BTreeSet::new(), "{text}");
        }
    }
}
