//! Metadata for storing the same chunks in other shards.

use serde_json::{Map, Value, json};

use super::chain::SHARDING;
use super::codec::parse_chain;
use super::data_type::DataType;
use super::error::MetadataError;
use super::grid::ShardAxis;
use super::index::{IndexLocation, product};
use super::metadata::{ArrayMetadata, NodeMetadata};
use super::shard_rule::{ChunkGrid, ShardRule, VARIABLE_NBYTES};
use super::sharding::{ShardedArray, parse_document};

/// Requested layout of shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Resharding {
    /// Shard shape in elements; `None` keeps the current one.
    pub shard_shape: Option<Vec<u64>>,
    /// Location of the index; `None` keeps the current one, or means the end if there is no index
    /// yet.
    pub index_location: Option<IndexLocation>,
}

/// Returns the document of a sharded array with the chunks of the unsharded array `twin`. Fails if
/// no shard shape is requested.
pub(crate) fn shard(twin: &Value, how: &Resharding) -> Result<Value, MetadataError> {
    let array = ArrayMetadata::parse(twin)?;
    let chunk_shape = twin
        .get("chunk_grid")
        .and_then(|grid| grid.get("configuration")?.get("chunk_shape"))
        .cloned()
        .ok_or(MetadataError::invalid("chunk_grid", "regular"))?;
    let shard_shape = how.shard_shape.as_ref().ok_or(MetadataError::Missing("shard shape"))?;
    if shard_shape.len() != array.shape.len() {
        let (member, found, rank) = ("shard shape", shard_shape.len(), array.shape.len());
        return Err(MetadataError::Rank { member, found, rank });
    }
    let chain = parse_chain(twin.get("codecs"))?;
    let codecs: Vec<&Value> = chain.iter().map(super::codec::Codec::document).collect();
    let location = location_name(how.index_location.unwrap_or(IndexLocation::End));
    let mut document = twin.clone();
    document["chunk_grid"] = regular(shard_shape);
    document["codecs"] = json!([{"name": "sharding_indexed", "configuration": {
        "chunk_shape": chunk_shape,
        "codecs": codecs,
        "index_codecs": [
            {"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "index_location": location,
    }}]);
    checked(document)
}

/// Returns the document of a sharded array with the chunks of the unsharded array `twin`, in shards by a rule.
/// `None` if there is nothing to be gained from shards, or they cannot be: the array has one chunk for each, too
/// few dimensions for the rule, or chunks of different lengths.
///
/// # Errors
///
/// The document is that of no array that can be read.
pub(crate) fn shard_by(
    twin: &Value,
    rule: &ShardRule,
    index_location: Option<IndexLocation>,
) -> Result<Option<Value>, MetadataError> {
    let chain = match NodeMetadata::parse(twin)? {
        NodeMetadata::Group => return Ok(None),
        NodeMetadata::Array(chain) => chain,
    };
    let layout = match ShardedArray::unsharded(twin, chain) {
        Err(MetadataError::IrregularChunks) => return Ok(None),
        layout => layout?,
    };
    if !rule.fits(layout.rank()) {
        return Ok(None);
    }
    let shard_shape = shard_shape(rule, &layout, Some(twin));
    if shard_shape == layout.chunk_shape() {
        return Ok(None);
    }
    shard(twin, &Resharding { shard_shape: Some(shard_shape), index_location }).map(Some)
}

/// Returns the shape of an array's shards by a rule that it [fits](ShardRule::fits), in elements. Its items have
/// the data type that `twin` names.
pub(crate) fn shard_shape(
    rule: &ShardRule,
    layout: &ShardedArray,
    twin: Option<&Value>,
) -> Vec<u64> {
    let chunk_shape = layout.chunk_shape();
    let data_type = twin.and_then(|twin| DataType::parse(twin.get("data_type")?).ok());
    let item_nbytes = data_type.map_or(VARIABLE_NBYTES, |data_type| data_type.nbytes() as u64);
    let items = product(chunk_shape).unwrap_or(u64::MAX);
    rule.shape(&ChunkGrid {
        chunks: layout.shard_grid.iter().map(ShardAxis::chunks).collect(),
        chunk_shape,
        chunk_nbytes: items.saturating_mul(item_nbytes),
    })
}

/// Returns the document of a sharded array with other shards of the same inner chunks.
pub(crate) fn reshard(document: &Value, how: &Resharding) -> Result<Value, MetadataError> {
    let mut document = document.clone();
    if let Some(shard_shape) = &how.shard_shape {
        document["chunk_grid"] = regular(shard_shape);
    }
    if let Some(location) = how.index_location {
        let codecs = document.get_mut("codecs").and_then(Value::as_array_mut);
        let is_sharding =
            |codec: &&mut Value| codec.get("name").and_then(Value::as_str) == Some(SHARDING);
        let sharding = codecs.and_then(|codecs| codecs.iter_mut().find(is_sharding));
        let sharding = sharding.ok_or(MetadataError::Missing(SHARDING))?;
        if !sharding.get("configuration").is_some_and(Value::is_object) {
            sharding["configuration"] = Map::new().into();
        }
        sharding["configuration"]["index_location"] = location_name(location).into();
    }
    checked(document)
}

/// Returns `document` if this program can read the array it describes.
fn checked(document: Value) -> Result<Value, MetadataError> {
    let layout: Option<ShardedArray> = parse_document(&document, None)?;
    layout.ok_or(MetadataError::Missing(SHARDING))?;
    Ok(document)
}

fn regular(shape: &[u64]) -> Value {
    json!({"name": "regular", "configuration": {"chunk_shape": shape}})
}

fn location_name(location: IndexLocation) -> &'static str {
    match location {
        IndexLocation::Start => "start",
        IndexLocation::End => "end",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::document::{Dialect, Shown, show};

    fn twin() -> Value {
        json!({"zarr_format": 3, "node_type": "array", "shape": [10, 7], "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0, "codecs": ["bytes", {"name": "zstd", "configuration": {"level": 1}}],
            "attributes": {"a": 1}})
    }

    fn to(shape: &[u64]) -> Resharding {
        Resharding { shard_shape: Some(shape.to_vec()), index_location: None }
    }

    #[test]
    fn the_twin_of_what_was_sharded_is_what_it_was_made_of() {
        let sharded = shard(&twin(), &to(&[4, 6])).unwrap();
        let Shown::Array(_, shown) = show(sharded.clone(), None, Dialect::V3).unwrap() else {
            panic!("it is not sharded");
        };
        let mut expected = twin();
        expected["codecs"][0] = json!({"name": "bytes"});
        assert_eq!(shown, expected);
        let start = Some(IndexLocation::Start);
        let how = Resharding { shard_shape: Some(vec![8, 3]), index_location: start };
        let other = reshard(&sharded, &how).unwrap();
        assert_eq!(other["chunk_grid"], regular(&[8, 3]));
        let configuration = &other["codecs"][0]["configuration"];
        assert_eq!(configuration["index_location"], "start");
        assert_eq!(configuration["codecs"], sharded["codecs"][0]["configuration"]["codecs"]);
    }

    #[test]
    fn an_array_is_sharded_by_a_rule_where_that_makes_fewer_files() {
        let by = |twin: &Value, rule: &ShardRule| shard_by(twin, rule, None);
        let rule = ShardRule::Chunks(vec![2, 2]);
        let sharded = by(&twin(), &rule).unwrap().unwrap();
        assert_eq!(sharded, shard(&twin(), &to(&[4, 6])).unwrap());
        // Twelve bytes are two chunks.
        let sharded = by(&twin(), &ShardRule::Nbytes(12)).unwrap().unwrap();
        assert_eq!(sharded["chunk_grid"], regular(&[2, 6]));
        let mut one = twin();
        one["shape"] = json!([2, 3]);
        let mut scalar = twin();
        scalar["shape"] = json!([]);
        scalar["chunk_grid"] = regular(&[]);
        let mut irregular = twin();
        irregular["chunk_grid"] = json!({"name": "rectilinear", "configuration": {"kind": "inline",
            "chunk_shapes": [[3, 7], [7]]}});
        let group = json!({"zarr_format": 3, "node_type": "group"});
        for plain in [one, scalar, irregular, group] {
            assert_eq!(by(&plain, &ShardRule::Nbytes(1 << 30)).unwrap(), None, "{plain}");
        }
        assert_eq!(by(&twin(), &ShardRule::Chunks(vec![2, 2, 2])).unwrap(), None, "three axes");
        by(&json!({"zarr_format": 3, "node_type": "array"}), &rule).unwrap_err();
    }

    #[test]
    fn shards_that_cannot_be_are_refused() {
        let message = |shape: &[u64]| shard(&twin(), &to(shape)).unwrap_err().to_string();
        assert_eq!(
            message(&[4, 4]),
            "inner chunks of 3 elements do not divide a shard of 4 along an axis"
        );
        assert_eq!(message(&[4]), "shard shape has 1 entry, the array has 2 dimensions");
        assert_eq!(
            message(&[0, 3]),
            "inner chunks of 2 elements do not divide a shard of 0 along an axis"
        );
    }
}
