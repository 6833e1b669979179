//! Layout of an array, as its document defines it: whether it is sharded, chunks and shards, keys.

use serde_json::Value;

use crate::format::chunk_key::{KeyEncoding, Prefix, Separator};
use crate::format::error::{MetadataError, shape};
use crate::format::index::{IndexCodecs, IndexLocation};
use crate::format::sharding::{PlainShards, ShardedArray};

/// URIs of the transformer: as written by zarr-python, and as given in two places of the draft.
const EXTENSIONS: [&str; 3] = [
    "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
    "https://purl.org/zarr/spec/extensions/storage-transformers/sharding/1.0",
    "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0",
];
/// Member of an array's document that lists its storage transformers.
pub(super) const TRANSFORMERS: &str = "storage_transformers";

/// Returns whether an array's document makes it a sharded array.
pub fn is_sharded(document: &Value) -> bool {
    document.get(TRANSFORMERS).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
}

/// Parses the layout of an array; `None` if it is not sharded.
pub fn parse(document: &Value) -> Result<Option<ShardedArray>, MetadataError> {
    if document.as_object().is_none() {
        return Err(MetadataError::NotAnObject);
    }
    if !is_sharded(document) {
        return Ok(None);
    }
    let chunks_per_shard = chunks_per_shard(document)?;
    let shape_of_array = shape(document.get("shape"), "shape")?;
    let chunk_shape = shape(grid(document)?.get("chunk_shape"), "chunk_shape")?;
    let shards = PlainShards {
        keys: keys(document)?,
        shape: shape_of_array,
        chunk_shape,
        chunks_per_shard,
        index_codecs: IndexCodecs::BARE,
        index_location: IndexLocation::End,
    };
    ShardedArray::plain(shards).map(Some)
}

/// Returns the encoding of the keys of an array's chunks, which is also that of its shards.
pub fn keys(document: &Value) -> Result<KeyEncoding, MetadataError> {
    let separator = match grid(document)?.get("separator").and_then(Value::as_str) {
        Some("/") | None => Separator::Slash,
        Some(".") => Separator::Dot,
        Some(_) => return Err(MetadataError::invalid("separator", "\"/\" or \".\"")),
    };
    Ok(KeyEncoding { prefix: Prefix::Joined, separator })
}

/// Returns the chunk grid, which must be regular.
pub(super) fn grid(document: &Value) -> Result<&Value, MetadataError> {
    let grid = document.get("chunk_grid").ok_or(MetadataError::Missing("chunk_grid"))?;
    match grid.get("type").and_then(Value::as_str) {
        Some("regular") => Ok(grid),
        _ => Err(MetadataError::invalid("chunk_grid", "regular")),
    }
}

/// Returns the number of chunks in a shard along each axis of a sharded array.
pub(super) fn chunks_per_shard(document: &Value) -> Result<Vec<u64>, MetadataError> {
    let transformers = document.get(TRANSFORMERS).and_then(Value::as_array);
    let Some([transformer]) = transformers.map(Vec::as_slice) else {
        return Err(MetadataError::invalid(TRANSFORMERS, "one sharding transformer"));
    };
    let extension = transformer.get("extension").and_then(Value::as_str).unwrap_or_default();
    if !EXTENSIONS.contains(&extension) {
        return Err(MetadataError::Extension(extension.to_owned()));
    }
    if transformer.get("type").and_then(Value::as_str) != Some("indexed") {
        return Err(MetadataError::invalid("type of the sharding transformer", "\"indexed\""));
    }
    let configuration = transformer.get("configuration");
    let chunks = shape(configuration.and_then(|c| c.get("chunks_per_shard")), "chunks_per_shard")?;
    if chunks.contains(&0) {
        return Err(MetadataError::invalid("chunks_per_shard", "a list of numbers above 0"));
    }
    let rank = document.get("shape").and_then(Value::as_array).map_or(0, Vec::len);
    // zarr-python writes [1] for arrays without dimensions.
    if rank == 0 && chunks == [1] { Ok(Vec::new()) } else { Ok(chunks) }
}

/// Replaces the metadata of an array by that of its unsharded twin.
pub fn unshard(document: &mut Value) {
    if let Value::Object(members) = document {
        members.shift_remove(TRANSFORMERS);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn array(shape: &Value, chunk: &Value, per_shard: &Value) -> Value {
        json!({"shape": shape, "data_type": "<i4", "fill_value": 0, "attributes": {},
            "chunk_grid": {"type": "regular", "chunk_shape": chunk, "separator": "/"},
            "chunk_memory_layout": "C", "extensions": [],
            "storage_transformers": [{"extension": EXTENSIONS[0], "type": "indexed",
                "configuration": {"chunks_per_shard": per_shard}}]})
    }

    #[test]
    fn a_sharded_array_is_read() {
        let layout =
            parse(&array(&json!([7, 9]), &json!([2, 3]), &json!([2, 2]))).unwrap().unwrap();
        assert_eq!((layout.chunk_grid(), layout.chunk_shape()), (vec![4, 3], &[2, 3][..]));
        assert_eq!(layout.keys.chunk_key(&[1, 0]), "c1/0");
        let scalar = parse(&array(&json!([]), &json!([]), &json!([1]))).unwrap().unwrap();
        assert_eq!((scalar.rank(), scalar.keys.chunk_key(&[])), (0, "c0".to_owned()));
    }

    #[test]
    fn an_array_without_a_transformer_is_not_sharded() {
        let mut document = array(&json!([7]), &json!([2]), &json!([2]));
        unshard(&mut document);
        assert!(parse(&document).unwrap().is_none() && document.get(TRANSFORMERS).is_none());
    }

    #[test]
    fn each_defect_is_named() {
        let refused = |change: &dyn Fn(&mut Value), message: &str| {
            let mut document = array(&json!([7, 9]), &json!([2, 3]), &json!([2, 2]));
            change(&mut document);
            assert_eq!(parse(&document).unwrap_err().to_string(), message);
        };
        refused(
            &|d| d[TRANSFORMERS][0]["configuration"]["chunks_per_shard"] = json!([0, 2]),
            "chunks_per_shard must be a list of numbers above 0",
        );
        refused(
            &|d| d[TRANSFORMERS][0]["configuration"]["chunks_per_shard"] = json!([2]),
            "chunks_per_shard has 1 entry, the array has 2 dimensions",
        );
        refused(
            &|d| d[TRANSFORMERS][0]["extension"] = json!("https://example.org/x"),
            "extension \"https://example.org/x\" must be understood and is not known",
        );
        refused(
            &|d| d["chunk_grid"]["chunk_shape"] = json!([2]),
            "chunk_shape has 1 entry, the array has 2 dimensions",
        );
    }
}
