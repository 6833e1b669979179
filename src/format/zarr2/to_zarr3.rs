//! Translation of arrays and groups of Zarr v2 to Zarr v3: the metadata of an unsharded array with
//! the same chunk files under the same names.
//!
//! ```text
//! dtype       data_type; its byte order: endian of the codec bytes
//! order       "F": the codec transpose
//! filters     codecs before bytes, if they turn items into items; codecs after it otherwise
//! compressor  the last codec
//! keys        chunk_key_encoding v2
//! .zattrs     attributes; _ARRAY_DIMENSIONS as dimension_names, if it names each dimension
//! fill_value  the same; the attribute _FillValue too, if there is _ARRAY_DIMENSIONS
//! ```
//!
//! This is the inverse of [`super::array`] wherever that has a form. Codecs of numcodecs that Zarr
//! v3 does not have get the names that zarr-python 3 gives them: `numcodecs.zlib`.

mod codecs;
mod error;
mod items;

use serde_json::{Map, Value, json};

pub use self::error::NoTwin;
use self::items::ArrayItems;
use super::data_type::DataType2;
use super::dimensions::{DIMENSIONS, dimension_names};
use super::missing;
use crate::format::chunk_key::{KeyEncoding, Prefix, Separator};
use crate::format::error::{MetadataError, shape};
use crate::format::index::{IndexCodecs, IndexLocation};
use crate::format::sharding::{PlainShards, ShardedArray};

/// Returns the Zarr v3 document of an array with this `.zarray` and `.zattrs`.
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

/// Returns the Zarr v3 document of a group with this `.zgroup` and `.zattrs`.
pub fn group_to_zarr3(zgroup: &Value, zattrs: Option<&Value>) -> Result<Value, MetadataError> {
    check_format(zgroup)?;
    let attributes = attributes(zattrs)?;
    Ok(json!({"zarr_format": 3, "node_type": "group", "attributes": attributes}))
}

/// Returns the layout of an array's chunks, whatever their content.
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

/// Returns shape, chunk shape and key encoding of an array.
fn parts(zarray: &Value) -> Result<(Vec<u64>, Vec<u64>, KeyEncoding), MetadataError> {
    check_format(zarray)?;
    let whole = shape(zarray.get("shape"), "shape")?;
    let chunks = shape(zarray.get("chunks"), "chunks")?;
    if chunks.len() != whole.len() {
        let (found, rank) = (chunks.len(), whole.len());
        return Err(MetadataError::Rank { member: "chunks", found, rank });
    }
    // Without the member, keys have the original separator of Zarr v2.
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

/// Returns whether the first axis varies fastest in a chunk.
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

/// Returns the names that xarray has given to all dimensions; `None` if it has not.
fn names(document: &Value, rank: usize) -> Option<Value> {
    let names = document["attributes"].get(DIMENSIONS)?;
    let has_all = names.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    if has_all { dimension_names(&json!({"dimension_names": names}), rank) } else { None }
}

#[cfg(test)]
mod tests;
