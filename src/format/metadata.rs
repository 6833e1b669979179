//! `zarr.json`: what kind of node it describes, and whether its chunks are sharded.
//!
//! Zarr core 3.1, "Array metadata" and "Group metadata". Only what the place of a chunk depends
//! on is read; the rest is carried along as it is (see [`super::document`]).

use serde_json::Value;

use super::chunk_key::KeyEncoding;
use super::codec::{Codec, parse_chain};
use super::grid::{self, Edges};
use super::json::JsonError;
use super::limits::MAX_RANK;

/// Why metadata cannot be used. The text names the member and what it should be.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// It is not JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The document is not an object.
    #[error("it is not a JSON object")]
    NotAnObject,
    /// A member that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A member has a value of the wrong kind.
    #[error("{member} must be {expected}")]
    Invalid {
        /// The member.
        member: &'static str,
        /// What its value should be.
        expected: &'static str,
    },
    /// Another version of Zarr.
    #[error("zarr_format is {0}, only 3 can be read")]
    Format(String),
    /// A member has another number of entries than the array has dimensions.
    #[error("{member} has {found} entries, the array has {rank} dimensions")]
    Rank {
        /// The member.
        member: &'static str,
        /// Its number of entries.
        found: usize,
        /// The array's number of dimensions.
        rank: usize,
    },
    /// An inner chunk does not divide its shard.
    #[error("inner chunks of {chunk} elements do not divide a shard of {shard} along an axis")]
    NotDividing {
        /// Length of the inner chunk.
        chunk: u64,
        /// Length of the shard.
        shard: u64,
    },
    /// A rectilinear grid ends before the array does.
    #[error("the chunk grid covers {covered} of {extent} elements along an axis")]
    GridTooShort {
        /// Sum of the chunk lengths.
        covered: u64,
        /// Length of the array.
        extent: u64,
    },
    /// A codec before the sharding that may move chunks.
    #[error("codec {0:?} before sharding_indexed is not known, so chunks cannot be located")]
    UnknownBefore(String),
    /// A codec after the sharding that cannot be undone.
    #[error("codec {0:?} after sharding_indexed is not known, so shards cannot be decoded")]
    UnknownAfter(String),
    /// An extension that must be understood.
    #[error("extension {0:?} must be understood and is not known")]
    Extension(String),
    /// A member that a document written through the view must leave as it is.
    #[error(
        "{0} cannot be changed through the view; only attributes, shape and dimension_names can"
    )]
    Fixed(String),
    /// A sharded array, made through a view that shows none.
    #[error("a sharded array cannot be made through the view: make it in the source")]
    ShardedThroughView,
    /// A limit of this program.
    #[error("too many {what}, the limit is {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much there may be.
        limit: u64,
    },
}

impl MetadataError {
    pub(super) fn invalid(member: &'static str, expected: &'static str) -> Self {
        Self::Invalid { member, expected }
    }
}

/// Members that the core specification defines for arrays, and those that must be ignored.
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

/// What a `zarr.json` describes.
#[derive(Debug)]
pub enum NodeMetadata {
    /// A group.
    Group,
    /// An array.
    Array(Vec<Codec>),
}

impl NodeMetadata {
    /// Reads what every node has, and the codecs of an array.
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

/// The members of an array's metadata that say where its chunks are.
#[derive(Debug)]
pub struct ArrayMetadata {
    /// Extents in elements.
    pub shape: Vec<u64>,
    /// Chunk lengths along each axis, in elements.
    pub grid: Vec<Edges>,
    /// How chunk keys are made.
    pub keys: KeyEncoding,
}

impl ArrayMetadata {
    /// Reads the metadata of an array.
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

/// Reads a list of extents.
pub fn shape(value: Option<&Value>, member: &'static str) -> Result<Vec<u64>, MetadataError> {
    let items = value.ok_or(MetadataError::Missing(member))?;
    let invalid = || MetadataError::invalid(member, "a list of whole numbers from 0 to 2^64-1");
    let items = items.as_array().ok_or_else(invalid)?;
    if items.len() > MAX_RANK {
        return Err(MetadataError::Limit { what: "dimensions", limit: MAX_RANK as u64 });
    }
    items.iter().map(|item| extent(item).ok_or_else(invalid)).collect()
}

/// A whole number; writers in other languages may write it as `4.0`.
pub fn extent(value: &Value) -> Option<u64> {
    let whole = |number: f64| number >= 0.0 && number.fract() == 0.0 && number < 9e15;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    value.as_u64().or_else(|| value.as_f64().filter(|number| whole(*number)).map(|n| n as u64))
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
