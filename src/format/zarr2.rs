//! A Zarr v3 node as the documents of Zarr v2, what is written to them as a Zarr v3 document, and any
//! node of Zarr v2 as one of Zarr v3.
//!
//! ```text
//! zarr.json, array   .zarray   shape, chunks, dtype, compressor, filters, fill_value, order
//!                    .zattrs   attributes; dimension_names as _ARRAY_DIMENSIONS, xarray's way
//! zarr.json, group   .zgroup   nothing but the format
//!                    .zattrs   attributes
//!                    .zmetadata, if its metadata is consolidated: all of these, by path
//! ```
//!
//! The bytes of a chunk are the same in both; keys lose their `c`. Zarr v2, storage specification:
//! <https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html>; where it is silent, what zarr-python
//! 2.18 reads and writes.

mod back;
mod chain;
mod data_type;
mod forward;
mod missing;

use serde_json::{Map, Value, json};

use self::chain::Chain2;
use self::data_type::DataType2;
use super::chunk_key::{KeyEncoding, Prefix};
use super::error::MetadataError;
use super::grid::Edges;
use super::metadata::{ArrayMetadata, NodeMetadata};

pub use self::back::{back, check_consolidated};
pub use self::forward::{NoTwin, group_to_zarr3, layout, to_zarr3};
pub use self::missing::Filled;

/// An array's document.
pub const ZARRAY: &str = ".zarray";
/// A node's attributes.
pub const ZATTRS: &str = ".zattrs";
/// A group's document.
pub const ZGROUP: &str = ".zgroup";
/// The documents of a group and of all nodes below it.
pub const ZMETADATA: &str = ".zmetadata";
/// The attribute that xarray keeps the names of an array's dimensions in.
const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// Whether a file of this name is a document of Zarr v2.
pub fn is_document(name: &str) -> bool {
    [ZARRAY, ZATTRS, ZGROUP, ZMETADATA].contains(&name)
}

/// Which chunks that do not exist are shown all the same, made of the fill value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Missing {
    /// In Zarr v2, those of arrays whose fill value readers would take for a missing value, or for
    /// another one than it is; else none.
    #[default]
    Auto,
    /// None.
    Absent,
    /// All.
    Fill,
}

/// An array as Zarr v2 has it.
#[derive(Debug)]
pub struct Array2 {
    /// Its `.zarray`.
    pub zarray: Value,
    /// Its `.zattrs`; None if it has no attributes.
    pub zattrs: Option<Value>,
    /// How its chunk keys are made.
    pub keys: KeyEncoding,
    /// All chunks are shown, those that do not exist as well.
    pub filled: Option<Filled>,
    /// Readers that take the fill value for a missing value see other values than in Zarr v3.
    pub is_misread: bool,
}

/// A group as Zarr v2 has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Group2 {
    /// Its `.zgroup`.
    pub zgroup: Value,
    /// Its `.zattrs`; None if it has no attributes.
    pub zattrs: Option<Value>,
    /// Its `.zmetadata`; None if its metadata is not consolidated.
    pub zmetadata: Option<Value>,
}

/// Why an array cannot be shown as one of Zarr v2.
#[derive(Debug, thiserror::Error)]
pub enum NoForm {
    /// Its metadata cannot be used at all.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Its chunks are not all alike.
    #[error("chunk grid {0:?} has no form in Zarr v2")]
    Grid(String),
    /// NumPy has no such items.
    #[error("data type {0:?} has no form in Zarr v2")]
    DataType(String),
    /// A fill value that is none of the data type's.
    #[error("fill value {value} of data type {data_type:?} has no form in Zarr v2")]
    FillValue {
        /// As the document has it.
        value: String,
        /// Name of the data type.
        data_type: String,
    },
    /// numcodecs has no such codec, or it makes other bytes.
    #[error("codec {0:?} has no form in Zarr v2")]
    Codec(String),
    /// A member that must be there for lack of a default.
    #[error("codec {codec:?} without {member} has no form in Zarr v2")]
    Option {
        /// Name of the codec.
        codec: String,
        /// Of its configuration.
        member: &'static str,
    },
    /// An array->bytes codec that Zarr v2 does not use for the data type.
    #[error("codec {codec:?} for data type {data_type:?} has no form in Zarr v2")]
    Serialised {
        /// Name of the codec.
        codec: String,
        /// Name of the data type.
        data_type: String,
    },
    /// Axes in an order that is neither C nor F.
    #[error("transpose other than a reversal of the axes has no form in Zarr v2")]
    Transpose,
    /// A filter whose output is transposed.
    #[error("codec {0:?} together with transpose has no form in Zarr v2")]
    TransposedFilter(String),
    /// A filter whose output is stored with the most significant byte first.
    #[error("codec {0:?} on big-endian items has no form in Zarr v2")]
    SwappedFilter(String),
}

/// What of an array's metadata its documents are made of.
struct Parts {
    shape: Vec<u64>,
    chunks: Vec<u64>,
    keys: KeyEncoding,
    data_type: DataType2,
    chain: Chain2,
}

impl Parts {
    fn of(twin: &Value) -> Result<Self, NoForm> {
        let NodeMetadata::Array(codecs) = NodeMetadata::parse(twin)? else {
            return Err(MetadataError::invalid("node_type", "\"array\"").into());
        };
        let ArrayMetadata { shape, grid, mut keys } = ArrayMetadata::parse(twin)?;
        let named = twin["chunk_grid"]["name"].as_str().unwrap_or_default();
        let edge = |edges: &Edges| match edges {
            Edges::Equal(edge) if named == "regular" => Some(*edge),
            _ => None,
        };
        let chunks: Option<Vec<u64>> = grid.iter().map(edge).collect();
        let regular = named == "regular";
        let chunks = chunks.filter(|_| regular).ok_or_else(|| NoForm::Grid(named.to_owned()))?;
        let data_type = DataType2::parse(twin.get("data_type"))?;
        let chain = Chain2::of(&codecs, &chunks, &data_type)?;
        keys.prefix = Prefix::None;
        Ok(Self { shape, chunks, keys, data_type, chain })
    }
}

/// The documents of an array whose metadata, that of an unsharded array, is `twin`.
pub fn array(twin: &Value, missing: Missing) -> Result<Array2, NoForm> {
    let Parts { shape, chunks, keys, data_type, chain } = Parts::of(twin)?;
    let mut attributes = attributes(twin);
    if let Some(names) = dimension_names(twin, shape.len())
        && !attributes.contains_key(DIMENSIONS)
    {
        attributes.insert(DIMENSIONS.to_owned(), names);
    }
    let fill_value = data_type.fill_value(twin.get("fill_value"))?;
    let told = missing::tell(twin, &data_type, fill_value, &mut attributes, missing);
    let filters = if chain.filters.is_empty() { Value::Null } else { chain.filters.into() };
    let zarray = json!({
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": data_type.descr(chain.big_endian),
        "compressor": chain.compressor,
        "fill_value": told.fill_value,
        "order": chain.order,
        "filters": filters,
        "dimension_separator": keys.separator.as_char().to_string(),
    });
    let (filled, is_misread) = (told.filled, told.is_misread);
    Ok(Array2 { zarray, zattrs: document(attributes), keys, filled, is_misread })
}

/// The documents of a group. Nodes of consolidated metadata are those of unsharded arrays; arrays
/// without a form in Zarr v2 are left out, as their directories have no documents either. `missing`
/// is asked for each array, by its path from the group.
pub fn group(document: &Value, missing: &dyn Fn(&str) -> Missing) -> Group2 {
    let (zgroup, zattrs) = (zgroup(), self::document(attributes(document)));
    let nodes = document.get("consolidated_metadata").and_then(|value| value.get("metadata"));
    let zmetadata = nodes.and_then(Value::as_object).map(|nodes| {
        let mut documents = Map::from_iter([(ZGROUP.to_owned(), zgroup.clone())]);
        documents.extend(zattrs.clone().map(|zattrs| (ZATTRS.to_owned(), zattrs)));
        for (path, node) in nodes {
            consolidate(path, node, missing(path), &mut documents);
        }
        json!({"zarr_consolidated_format": 1, "metadata": documents})
    });
    Group2 { zgroup, zattrs, zmetadata }
}

/// Adds the documents of the node at a path.
fn consolidate(path: &str, node: &Value, missing: Missing, documents: &mut Map<String, Value>) {
    let (name, own, zattrs) = match NodeMetadata::parse(node) {
        Ok(NodeMetadata::Group) => (ZGROUP, zgroup(), document(attributes(node))),
        Ok(NodeMetadata::Array(_)) => match array(node, missing) {
            Ok(array) => (ZARRAY, array.zarray, array.zattrs),
            Err(_) => return,
        },
        Err(_) => return,
    };
    documents.insert(format!("{path}/{name}"), own);
    documents.extend(zattrs.map(|zattrs| (format!("{path}/{ZATTRS}"), zattrs)));
}

/// What every `.zgroup` says.
fn zgroup() -> Value {
    json!({"zarr_format": 2})
}

/// The attributes of a node.
fn attributes(document: &Value) -> Map<String, Value> {
    document.get("attributes").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// What `.zattrs` says; an array without attributes has none.
fn document(attributes: Map<String, Value>) -> Option<Value> {
    (!attributes.is_empty()).then_some(Value::Object(attributes))
}

/// The names of all dimensions, if they are named. A dimension without a name is called by its
/// number: xarray wants a name for each, and a list of none where there is no dimension.
fn dimension_names(document: &Value, rank: usize) -> Option<Value> {
    if rank == 0 {
        return Some(json!([]));
    }
    let names = document.get("dimension_names")?.as_array().filter(|names| names.len() == rank)?;
    let name = |(axis, name): (usize, &Value)| match name {
        Value::Null => Some(usual_name(axis)),
        Value::String(_) => Some(name.clone()),
        _ => None,
    };
    names.iter().enumerate().map(name).collect()
}

/// What a dimension without a name is called.
fn usual_name(axis: usize) -> Value {
    format!("dim_{axis}").into()
}

#[cfg(test)]
mod tests;
