//! Zarr v2 form of arrays and groups of Zarr v3: the documents that a view shows.

use serde_json::{Map, Value, json};

use super::chain::Chain2;
use super::data_type::DataType2;
use super::dimensions::{DIMENSIONS, dimension_names};
use super::document_names::{ZARRAY, ZATTRS, ZGROUP};
use super::error::NoForm;
use super::missing::{self, Filled, Missing};
use crate::format::chunk_key::{KeyEncoding, Prefix};
use crate::format::error::MetadataError;
use crate::format::grid::Edges;
use crate::format::metadata::{ArrayMetadata, NodeMetadata};

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

/// Parts of an array's metadata that its Zarr v2 documents are made of.
struct Parts {
    shape: Vec<u64>,
    chunks: Vec<u64>,
    keys: KeyEncoding,
    /// `true` if the keys are stored as those of Zarr v2: it was created there.
    has_old_keys: bool,
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
        let has_old_keys = keys.prefix == Prefix::None;
        keys.prefix = Prefix::None;
        Ok(Self { shape, chunks, keys, has_old_keys, data_type, chain })
    }
}

/// Returns the Zarr v2 form of an array with the unsharded metadata `twin`.
pub fn array(twin: &Value, missing: Missing) -> Result<Array2, NoForm> {
    let Parts { shape, chunks, keys, has_old_keys, data_type, chain } = Parts::of(twin)?;
    let mut attributes = attributes(twin);
    let is_unnamed = (has_old_keys || missing.is_created())
        && shape.is_empty()
        && twin.get("dimension_names").is_none();
    if let Some(names) = dimension_names(twin, shape.len()).filter(|_| !is_unnamed)
        && !attributes.contains_key(DIMENSIONS)
    {
        attributes.insert(DIMENSIONS.to_owned(), names);
    }
    let fill_value = data_type.fill_value(twin.get("fill_value"))?;
    let represented = missing::represent(twin, &data_type, fill_value, &mut attributes, missing);
    let filters = if chain.filters.is_empty() { Value::Null } else { chain.filters.into() };
    let zarray = json!({
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": data_type.descr(chain.big_endian),
        "compressor": chain.compressor,
        "fill_value": represented.fill_value,
        "order": chain.order,
        "filters": filters,
        "dimension_separator": keys.separator.as_char().to_string(),
    });
    let (filled, is_misread) = (represented.filled, represented.is_misread);
    Ok(Array2 { zarray, zattrs: document(attributes, twin), keys, filled, is_misread })
}

/// Returns the Zarr v2 form of a group. Arrays in its consolidated metadata must be unsharded;
/// those without a Zarr v2 form are left out, as their directories have no documents either.
/// `missing` returns the policy for the array at a path relative to the group.
pub fn group(document: &Value, missing: &dyn Fn(&str) -> Missing) -> Group2 {
    let (zgroup, zattrs) = (zgroup(), self::document(attributes(document), document));
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
        Ok(NodeMetadata::Group) => (ZGROUP, zgroup(), document(attributes(node), node)),
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
pub(super) fn zgroup() -> Value {
    json!({"zarr_format": 2})
}

/// Returns the attributes of a node.
pub(super) fn attributes(document: &Value) -> Map<String, Value> {
    document.get("attributes").and_then(Value::as_object).cloned().unwrap_or_default()
}

/// Returns the content of `.zattrs`; `None` if the node has no attributes, not even an empty list of them.
fn document(attributes: Map<String, Value>, node: &Value) -> Option<Value> {
    let has_any = node.get("attributes").is_some() || !attributes.is_empty();
    has_any.then_some(Value::Object(attributes))
}
