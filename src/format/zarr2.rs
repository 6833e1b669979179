//! Translation between Zarr v3 and Zarr v2 metadata: nodes of Zarr v3 as Zarr v2 documents, edits
//! to those back to Zarr v3, and nodes of Zarr v2 as nodes of Zarr v3.
//!
//! ```text
//! zarr.json, array   .zarray   shape, chunks, dtype, compressor, filters, fill_value, order
//!                    .zattrs   attributes; dimension_names as _ARRAY_DIMENSIONS, as xarray does
//! zarr.json, group   .zgroup   the format number only
//!                    .zattrs   attributes
//!                    .zmetadata, if its metadata is consolidated: all of these, by path
//! ```
//!
//! The bytes of a chunk are the same in both; keys lose their `c`. Zarr v2, storage specification:
//! <https://zarr-specs.readthedocs.io/en/latest/v2/v2.0.html>; where it leaves room, this follows
//! what zarr-python 2.18 reads and writes.

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

/// Name of an array's document.
pub const ZARRAY: &str = ".zarray";
/// Name of the document with a node's attributes.
pub const ZATTRS: &str = ".zattrs";
/// Name of a group's document.
pub const ZGROUP: &str = ".zgroup";
/// Name of the consolidated metadata: the documents of a group and of all nodes below it.
pub const ZMETADATA: &str = ".zmetadata";
/// Attribute in which xarray stores the names of an array's dimensions.
const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// Returns whether `name` is the name of a Zarr v2 document.
pub fn is_document(name: &str) -> bool {
    [ZARRAY, ZATTRS, ZGROUP, ZMETADATA].contains(&name)
}

/// Policy for presenting chunks that do not exist as chunks of the fill value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Missing {
    /// In Zarr v2, present the missing chunks of arrays whose fill value readers would mistake for
    /// a missing value, or for another value; otherwise none.
    #[default]
    Auto,
    /// Present none of them.
    Absent,
    /// Present all of them.
    Fill,
}

/// Zarr v2 form of an array.
#[derive(Debug)]
pub struct Array2 {
    /// Its `.zarray`.
    pub zarray: Value,
    /// Its `.zattrs`; `None` if it has no attributes.
    pub zattrs: Option<Value>,
    /// Encoding of its chunk keys.
    pub keys: KeyEncoding,
    /// If set, all chunks are shown, missing ones included.
    pub filled: Option<Filled>,
    /// `true` if readers that take the fill value for a missing value see other values than in Zarr
    /// v3.
    pub is_misread: bool,
}

/// Zarr v2 form of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Group2 {
    /// Its `.zgroup`.
    pub zgroup: Value,
    /// Its `.zattrs`; `None` if it has no attributes.
    pub zattrs: Option<Value>,
    /// Its `.zmetadata`; `None` if its metadata is not consolidated.
    pub zmetadata: Option<Value>,
}

/// Reason why an array has no Zarr v2 form.
#[derive(Debug, thiserror::Error)]
pub enum NoForm {
    /// The metadata is invalid.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// The chunks do not all have the same shape.
    #[error("chunk grid {0:?} has no form in Zarr v2")]
    Grid(String),
    /// NumPy has no such data type.
    #[error("data type {0:?} has no form in Zarr v2")]
    DataType(String),
    /// The fill value is not a value of the data type.
    #[error("fill value {value} of data type {data_type:?} has no form in Zarr v2")]
    FillValue {
        /// Fill value as in the document.
        value: String,
        /// Name of the data type.
        data_type: String,
    },
    /// numcodecs has no such codec, or its codec produces other bytes.
    #[error("codec {0:?} has no form in Zarr v2")]
    Codec(String),
    /// The configuration of a codec lacks a member that has no default.
    #[error("codec {codec:?} without {member} has no form in Zarr v2")]
    Option {
        /// Name of the codec.
        codec: String,
        /// Name of the missing member.
        member: &'static str,
    },
    /// Zarr v2 does not use this array->bytes codec for the data type.
    #[error("codec {codec:?} for data type {data_type:?} has no form in Zarr v2")]
    Serialised {
        /// Name of the codec.
        codec: String,
        /// Name of the data type.
        data_type: String,
    },
    /// The order of the axes is neither C nor F.
    #[error("transpose other than a reversal of the axes has no form in Zarr v2")]
    Transpose,
    /// The output of a filter is transposed.
    #[error("codec {0:?} together with transpose has no form in Zarr v2")]
    TransposedFilter(String),
    /// The output of a filter is stored in big-endian byte order.
    #[error("codec {0:?} on big-endian items has no form in Zarr v2")]
    SwappedFilter(String),
}

/// Parts of an array's metadata that its Zarr v2 documents are made of.
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

/// Returns the Zarr v2 form of an array with the unsharded metadata `twin`.
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

/// Returns the Zarr v2 form of a group. Arrays in its consolidated metadata must be unsharded;
/// those without a Zarr v2 form are left out, as their directories have no documents either.
/// `missing` returns the policy for the array at a path relative to the group.
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

/// Adds the documents of the node at `path`.
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

/// Content of every `.zgroup`.
fn zgroup() -> Value {
    json!({"zarr_format": 2})
}

/// Returns the attributes of a node.
fn attributes(document: &Value) -> Map<String, Value> {
    document.get("attributes").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Returns the content of `.zattrs`; `None` if there are no attributes.
fn document(attributes: Map<String, Value>) -> Option<Value> {
    (!attributes.is_empty()).then_some(Value::Object(attributes))
}

/// Returns the names of all dimensions; `None` if they are not named. A dimension without a name
/// gets one made of its number, because xarray requires a name for each dimension, and an empty
/// list if there is none.
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

/// Generated name of a dimension without a name.
fn usual_name(axis: usize) -> Value {
    format!("dim_{axis}").into()
}

#[cfg(test)]
mod tests;
