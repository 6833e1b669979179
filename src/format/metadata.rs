//! Parsing of `zarr.json`: the kind of the node, and what locates its chunks.
//!
//! Zarr core 3.1, "Array metadata" and "Group metadata". Only members that the location of a chunk
//! depends on are parsed; the others are passed on unchanged (see [`super::document`]).

use serde_json::Value;

use super::chunk_key::KeyEncoding;
use super::codec::{Codec, parse_chain};
use super::error::{MetadataError, shape};
use super::grid::{self, Edges};

/// Array members defined by the core specification. Any other member must be marked as ignorable
/// (`must_understand` is `false`).
const ARRAY_MEMBERS: [&str; 11] = [
    "attributes",
    "chunk_grid",
    "chunk_key_encoding",
    "codecs",
    "data_type",
    "dimension_names",
    "fill_value",
    "node_type",
    "shape",
    "storage_transformers",
    "zarr_format",
];

/// Kind of the node described by a `zarr.json`.
#[derive(Debug)]
pub enum NodeMetadata {
    /// A group.
    Group,
    /// An array, with its codec chain.
    Array(Vec<Codec>),
}

impl NodeMetadata {
    /// Parses the members that every node has, and the codecs of an array.
    pub fn parse(document: &Value) -> Result<Self, MetadataError> {
        let object = document.as_object().ok_or(MetadataError::NotAnObject)?;
        let format = object.get("zarr_format").ok_or(MetadataError::Missing("zarr_format"))?;
        if format.as_u64() != Some(3) {
            return Err(MetadataError::Format(format.to_string()));
        }
        match object.get("node_type").and_then(Value::as_str) {
            Some("group") => Ok(Self::Group),
            Some("array") => Ok(Self::Array(parse_chain(object.get("codecs"))?)),
            _ => Err(MetadataError::invalid("node_type", "\"array\" or \"group\"")),
        }
    }
}

/// Array metadata that determines where its chunks are.
#[derive(Debug)]
pub struct ArrayMetadata {
    /// Extents in elements.
    pub shape: Vec<u64>,
    /// Chunk lengths along each axis, in elements.
    pub grid: Vec<Edges>,
    /// Encoding of chunk keys.
    pub keys: KeyEncoding,
}

impl ArrayMetadata {
    /// Parses the metadata of an array.
    pub fn parse(document: &Value) -> Result<Self, MetadataError> {
        let object = document.as_object().ok_or(MetadataError::NotAnObject)?;
        let unknown = object.iter().find(|(member, value)| {
            let ignorable = value.get("must_understand") == Some(&Value::Bool(false));
            !ARRAY_MEMBERS.contains(&member.as_str()) && !ignorable
        });
        if let Some((member, _)) = unknown {
            return Err(MetadataError::Extension(member.clone()));
        }
        match object.get("storage_transformers") {
            None | Some(Value::Null) => (),
            Some(Value::Array(list)) if list.is_empty() => (),
            Some(_) => return Err(MetadataError::Extension("storage_transformers".to_owned())),
        }
        match object.get("data_type") {
            Some(Value::String(_) | Value::Object(_)) => (),
            _ => return Err(MetadataError::invalid("data_type", "a name or an object")),
        }
        let shape = shape(object.get("shape"), "shape")?;
        Ok(Self {
            grid: grid::parse(object.get("chunk_grid"), shape.len())?,
            keys: KeyEncoding::parse(object.get("chunk_key_encoding"))?,
            shape,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn array() -> Value {
        json!({"zarr_format": 3, "node_type": "array", "shape": [10], "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": ["bytes"]})
    }

    #[track_caller]
    fn refused(member: &str, value: Value, message: &str) {
        let mut document = array();
        document[member] = value;
        let node = NodeMetadata::parse(&document).map(|_| ());
        let error = node.and_then(|()| ArrayMetadata::parse(&document).map(|_| ())).unwrap_err();
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn a_small_array_is_read() {
        assert!(matches!(NodeMetadata::parse(&array()).unwrap(), NodeMetadata::Array(_)));
        let metadata = ArrayMetadata::parse(&array()).unwrap();
        assert_eq!((metadata.shape, metadata.grid), (vec![10], vec![Edges::Equal(4)]));
    }

    #[test]
    fn each_defect_is_named() {
        let numbers = "shape must be a list of whole numbers from 0 to 2^64-1";
        refused("zarr_format", json!(4), "zarr_format is 4, only 3 can be read");
        refused("node_type", json!("tree"), "node_type must be \"array\" or \"group\"");
        refused("codecs", json!([7]), "codecs must be a list of names or objects with a name");
        refused("shape", json!([1.5]), numbers);
        refused("shape", json!([-1]), numbers);
        refused("shape", serde_json::from_str("[18446744073709551616]").unwrap(), numbers);
        refused("shape", json!(vec![1; 65]), "too many dimensions, the limit is 64");
        refused(
            "chunk_grid",
            json!({"name": "banana"}),
            "chunk_grid must be regular or rectilinear",
        );
        refused("data_type", json!(7), "data_type must be a name or an object");
        refused("banana", json!(1), "extension \"banana\" must be understood and is not known");
        refused(
            "storage_transformers",
            json!(["x"]),
            "extension \"storage_transformers\" must be understood and is not known",
        );
    }

    #[test]
    fn ignorable_extensions_are_ignored() {
        let mut document = array();
        document["banana"] = json!({"must_understand": false, "name": "x"});
        document["storage_transformers"] = json!([]);
        ArrayMetadata::parse(&document).unwrap();
    }
}
