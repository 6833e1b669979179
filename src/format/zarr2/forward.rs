//! Arrays and groups of Zarr v2 as Zarr v3: the metadata of an unsharded array whose chunk files are
//! the same bytes and have the same names.
//!
//! ```text
//! dtype       data_type; its order of bytes: endian of the codec bytes
//! order       "F": the codec transpose
//! filters     codecs before bytes, those that make items of items; codecs after it, all others
//! compressor  the last codec
//! keys        chunk_key_encoding v2
//! .zattrs     attributes; _ARRAY_DIMENSIONS as dimension_names, if it names each dimension
//! fill_value  the same; the attribute _FillValue too, if there is _ARRAY_DIMENSIONS
//! ```
//!
//! This is the inverse of [`super::array`] wherever that has a form. Codecs of numcodecs that Zarr v3
//! does not have are called as zarr-python 3 calls them: `numcodecs.zlib`.

mod codecs;
mod items;

use serde_json::{Map, Value, json};

use self::items::ArrayItems;
use super::data_type::DataType2;
use super::{DIMENSIONS, dimension_names, missing};
use crate::format::chunk_key::{KeyEncoding, Prefix, Separator};
use crate::format::error::{MetadataError, shape};
use crate::format::index::{IndexCodecs, IndexLocation};
use crate::format::sharding::{PlainShards, ShardedArray};

/// Why an array of Zarr v2 has no form in Zarr v3.
#[derive(Debug, thiserror::Error)]
pub enum NoTwin {
    /// Its metadata cannot be used at all.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// It has no such items.
    #[error("data type {0} has no form in Zarr v3")]
    DataType(String),
    /// Objects of which no filter says what they are, or one that Zarr v3 does not have.
    #[error("objects without the filter vlen-utf8 or vlen-bytes have no form in Zarr v3")]
    Objects,
    /// A fill value that is none of the data type's.
    #[error("fill value {value} of data type {data_type} has no form in Zarr v3")]
    FillValue {
        /// As the document has it.
        value: String,
        /// The `dtype`.
        data_type: String,
    },
    /// It has no such codec.
    #[error("codec {0} has no form in Zarr v3")]
    Codec(String),
    /// A filter that takes the items for others than they are, which Zarr v3 does not do.
    #[error("filter {filter:?} of items {found} on items {items} has no form in Zarr v3")]
    Reinterpreted {
        /// Its id.
        filter: String,
        /// What it takes them for.
        found: String,
        /// What they are.
        items: String,
    },
    /// A filter of items behind a codec that makes bytes of them.
    #[error("filter {0:?} behind a codec that makes bytes has no form in Zarr v3")]
    FilterOfBytes(String),
}

/// The document of Zarr v3 for an array with this `.zarray` and `.zattrs`.
pub fn to_zarr3(zarray: &Value, zattrs: Option<&Value>) -> Result<Value, NoTwin> {
    let (shape, chunks, keys) = parts(zarray)?;
    let codecs = codecs::list(zarray)?;
    let items = ArrayItems::parse(zarray.get("dtype"), codecs.first())?;
    let rank = shape.len();
    let mut document = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": items.data_type(),
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {
            "name": "v2",
            "configuration": {"separator": keys.separator.as_char().to_string()},
        },
        "fill_value": items.fill_value(zarray.get("fill_value"))?,
        "codecs": codecs::translate(&codecs, &items, is_reversed(zarray)? && rank > 1, rank)?,
        "attributes": attributes(zattrs)?,
    });
    if let Ok(data_type) = DataType2::parse(document.get("data_type"))
        && let Some(attributes) = document["attributes"].as_object_mut()
    {
        missing::to_zarr3(attributes, zarray.get("fill_value"), &data_type);
    }
    if let Some(names) = names(&document, rank) {
        document["dimension_names"] = names;
        if let Some(attributes) = document["attributes"].as_object_mut() {
            attributes.shift_remove(DIMENSIONS);
        }
    }
    Ok(document)
}

/// The document of Zarr v3 for a group with this `.zgroup` and `.zattrs`.
pub fn group_to_zarr3(zgroup: &Value, zattrs: Option<&Value>) -> Result<Value, MetadataError> {
    check_format(zgroup)?;
    let attributes = attributes(zattrs)?;
    Ok(json!({"zarr_format": 3, "node_type": "group", "attributes": attributes}))
}

/// Where the chunks of an array are, whatever is in them.
pub fn layout(zarray: &Value) -> Result<ShardedArray, MetadataError> {
    let (shape, chunk_shape, keys) = parts(zarray)?;
    ShardedArray::plain(PlainShards {
        keys,
        chunks_per_shard: vec![1; shape.len()],
        shape,
        chunk_shape,
        index_codecs: IndexCodecs::BARE,
        index_location: IndexLocation::End,
    })
}

/// Shape, chunk shape and keys of an array.
fn parts(zarray: &Value) -> Result<(Vec<u64>, Vec<u64>, KeyEncoding), MetadataError> {
    check_format(zarray)?;
    let whole = shape(zarray.get("shape"), "shape")?;
    let chunks = shape(zarray.get("chunks"), "chunks")?;
    if chunks.len() != whole.len() {
        let (found, rank) = (chunks.len(), whole.len());
        return Err(MetadataError::Rank { member: "chunks", found, rank });
    }
    // What does not say how its keys are made has them of old.
    let separator = match zarray.get("dimension_separator") {
        None | Some(Value::Null) => Separator::Dot,
        Some(Value::String(text)) if text == "." => Separator::Dot,
        Some(Value::String(text)) if text == "/" => Separator::Slash,
        Some(_) => return Err(MetadataError::invalid("dimension_separator", "\"/\" or \".\"")),
    };
    Ok((whole, chunks, KeyEncoding { prefix: Prefix::None, separator }))
}

fn check_format(document: &Value) -> Result<(), MetadataError> {
    let members = document.as_object().ok_or(MetadataError::NotAnObject)?;
    match members.get("zarr_format").and_then(Value::as_u64) {
        Some(2) => Ok(()),
        _ => Err(MetadataError::invalid("zarr_format", "2")),
    }
}

/// Whether the first axis varies fastest in a chunk.
fn is_reversed(zarray: &Value) -> Result<bool, MetadataError> {
    match zarray.get("order").and_then(Value::as_str) {
        Some("C") => Ok(false),
        Some("F") => Ok(true),
        _ => Err(MetadataError::invalid("order", "\"C\" or \"F\"")),
    }
}

fn attributes(zattrs: Option<&Value>) -> Result<Map<String, Value>, MetadataError> {
    match zattrs {
        None => Ok(Map::new()),
        Some(Value::Object(attributes)) => Ok(attributes.clone()),
        Some(_) => Err(MetadataError::invalid("attributes", "an object")),
    }
}

/// The names that xarray has given to all dimensions.
fn names(document: &Value, rank: usize) -> Option<Value> {
    let names = document["attributes"].get(DIMENSIONS)?;
    let has_all = names.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    if has_all { dimension_names(&json!({"dimension_names": names}), rank) } else { None }
}

#[cfg(test)]
mod tests;
