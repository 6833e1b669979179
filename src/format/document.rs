//! Metadata of the equivalent unsharded array, which the view shows.
//!
//! `chunk_grid` becomes a regular grid of inner chunks; `codecs` becomes the array->array codecs
//! before the sharding, followed by the codecs of the inner chunks. Every other member keeps its
//! place and its text. Consolidated metadata in a group repeats the metadata of every node below
//! it, so the arrays in it are rewritten the same way.

use std::path::Path;

use serde_json::{Value, json};

use super::draft2022;
use super::error::MetadataError;
use super::metadata::NodeMetadata;
use super::sharding::ShardedArray;

/// Specification that a document follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// A `zarr.json` of Zarr v3.
    V3,
    /// An array's document in the draft of 2022 ([`super::draft2022`]).
    Draft2022,
}

impl Dialect {
    /// Returns the dialect of a document, by its file name.
    pub fn of(path: &Path) -> Self {
        if draft2022::is_document(path) { Self::Draft2022 } else { Self::V3 }
    }
}

/// Presentation of a node in the view.
#[derive(Debug)]
pub enum Shown {
    /// Unchanged.
    AsStored,
    /// A group with rewritten metadata.
    Group(Value),
    /// A sharded array and its unsharded metadata.
    Array(Box<ShardedArray>, Value),
}

/// Determines the presentation of a node from its document and the sharding level to show (1 is the
/// outermost, `None` the innermost).
pub fn show(
    mut document: Value,
    level: Option<usize>,
    dialect: Dialect,
) -> Result<Shown, MetadataError> {
    if dialect == Dialect::Draft2022 {
        return Ok(match draft2022::parse(&document)? {
            Some(array) if level != Some(0) => {
                draft2022::unshard(&mut document);
                Shown::Array(Box::new(array), document)
            }
            _ => Shown::AsStored,
        });
    }
    Ok(match rewrite(&mut document, level)? {
        Rewritten::Nothing => Shown::AsStored,
        Rewritten::Group => Shown::Group(document),
        Rewritten::Array(array) => Shown::Array(array, document),
    })
}

/// Kind of node that was rewritten in a document.
enum Rewritten {
    Nothing,
    Group,
    Array(Box<ShardedArray>),
}

/// Rewrites a document in place. A document that cannot be read stays unchanged.
fn rewrite(document: &mut Value, level: Option<usize>) -> Result<Rewritten, MetadataError> {
    Ok(match NodeMetadata::parse(document)? {
        NodeMetadata::Group if rewrite_consolidated(document, level) => Rewritten::Group,
        NodeMetadata::Group => Rewritten::Nothing,
        NodeMetadata::Array(chain) => match ShardedArray::parse(document, &chain, level)? {
            None => Rewritten::Nothing,
            Some(array) => {
                unshard(document, &array);
                Rewritten::Array(Box::new(array))
            }
        },
    })
}

/// Replaces the metadata of `array` by that of its unsharded twin.
fn unshard(document: &mut Value, array: &ShardedArray) {
    let chunk_shape = array.chunk_shape();
    document["chunk_grid"] =
        json!({"name": "regular", "configuration": {"chunk_shape": chunk_shape}});
    document["codecs"] = array.view_codecs.iter().map(|codec| codec.document().clone()).collect();
}

/// Rewrites every sharded array in the consolidated metadata of a group; returns whether there was
/// one. Nodes that cannot be read stay unchanged, as do their own documents.
fn rewrite_consolidated(group: &mut Value, level: Option<usize>) -> bool {
    let nodes = group.get_mut("consolidated_metadata").and_then(|value| value.get_mut("metadata"));
    let Some(Value::Object(nodes)) = nodes else {
        return false;
    };
    let mut changed = false;
    for node in nodes.values_mut() {
        changed |= matches!(rewrite(node, level), Ok(Rewritten::Group | Rewritten::Array(_)));
    }
    changed
}

/// Replaces, in the shown metadata of the group at the path `at`, each array for which `is_kept` holds by what the
/// `stored` metadata says of it.
pub(crate) fn keep_stored(
    group: &mut Value,
    stored: &Value,
    at: &Path,
    is_kept: &dyn Fn(&Path) -> bool,
) {
    const NODES: &str = "/consolidated_metadata/metadata";
    let Some(Value::Object(nodes)) = group.pointer_mut(NODES) else { return };
    let Some(stored) = stored.pointer(NODES) else { return };
    for (name, node) in nodes.iter_mut() {
        let (Some(stored), path) = (stored.get(name), at.join(name)) else { continue };
        match is_kept(&path) {
            true => *node = stored.clone(),
            false => keep_stored(node, stored, &path, is_kept),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::json;

    const ARRAY: &str = r#"{
        "zarr_format": 3, "node_type": "array", "shape": [24, 18], "data_type": "uint64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6, 6]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 18446744073709551615,
        "codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "sharding_indexed", "configuration": {"chunk_shape": [3, 2],
                "codecs": ["endian", {"name": "banana"}], "index_codecs": ["bytes"]}}, "crc32c"],
        "attributes": {"minus": -0.0, "nan": NaN}, "dimension_names": [null, "x"]}"#;

    fn twin(text: &str) -> String {
        match show(json::parse(text.as_bytes()).unwrap(), None, Dialect::V3).unwrap() {
            Shown::Group(twin) | Shown::Array(_, twin) => {
                String::from_utf8(json::to_text(&twin)).unwrap().split_whitespace().collect()
            }
            Shown::AsStored => "as stored".to_owned(),
        }
    }

    #[test]
    fn a_sharded_array_becomes_its_unsharded_twin() {
        let expected = r#"{
            "zarr_format": 3, "node_type": "array", "shape": [24, 18], "data_type": "uint64",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 18446744073709551615,
            "codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}},
                {"name": "bytes"}, {"name": "banana"}],
            "attributes": {"minus": -0.0, "nan": NaN}, "dimension_names": [null, "x"]}"#;
        let expected: String = expected.split_whitespace().collect();
        assert_eq!(twin(ARRAY), expected);
    }

    #[test]
    fn consolidated_metadata_is_rewritten_the_same_way() {
        let group = |array: &str| {
            format!(
                r#"{{"zarr_format":3,"node_type":"group","attributes":{{"a":1}},
                "consolidated_metadata":{{"kind":"inline","must_understand":false,
                "metadata":{{"a/b":{array},"bad":{{"zarr_format":9}}}}}}}}"#
            )
        };
        let expected: String = group(&twin(ARRAY)).split_whitespace().collect();
        assert_eq!(twin(&group(ARRAY)), expected);
        assert_eq!(twin(&group("1")), "as stored");
    }

    #[test]
    fn unsharded_arrays_and_plain_groups_stay_as_stored() {
        let plain = r#"{"zarr_format":3,"node_type":"array","codecs":["bytes"],"x":NaN}"#;
        assert_eq!(twin(plain), "as stored");
        assert_eq!(twin(r#"{"zarr_format":3,"node_type":"group"}"#), "as stored");
    }

    #[test]
    fn arrays_that_are_kept_stay_as_they_are_stored_at_any_depth() {
        let group = |nodes: &str| {
            let group = format!(
                r#"{{"zarr_format":3,"node_type":"group","consolidated_metadata":{{"metadata":{{{nodes}}}}}}}"#
            );
            json::parse(group.as_bytes()).unwrap()
        };
        let inner = group(&format!(r#""c":{ARRAY},"d":{ARRAY}"#));
        let stored = group(&format!(r#""a":{ARRAY},"b":{ARRAY},"g":{inner}"#));
        let Shown::Group(mut shown) = show(stored.clone(), None, Dialect::V3).unwrap() else {
            panic!("it has sharded arrays")
        };
        let rewritten = shown.clone();
        let kept = |path: &Path| ["top/a", "top/g/d"].iter().any(|kept| path == Path::new(kept));
        keep_stored(&mut shown, &stored, Path::new("top"), &kept);
        let at = |group: &Value, path: &str| group.pointer(path).unwrap().clone();
        const NODES: &str = "/consolidated_metadata/metadata";
        for (path, is_kept) in [("a", true), ("b", false), ("g/c", false), ("g/d", true)] {
            let path = format!("{NODES}/{}", path.replace('/', &format!("{NODES}/")));
            let expected = if is_kept { &stored } else { &rewritten };
            assert_eq!(at(&shown, &path), at(expected, &path), "{path}");
            assert_ne!(at(&stored, &path), at(&rewritten, &path), "{path}");
        }
    }
}
