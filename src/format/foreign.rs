//! Presentation of Bloscpack files, and of BLZ and bcolz directories, as Zarr arrays of Blosc
//! buffers, which is what the `blosc` codec of Zarr v3 stores.
//!
//! The last chunk of these formats may be shorter than the others. A reader of Zarr expects it to
//! have the same length, so it can read all chunks but that one, unless the mount pads it.

use serde_json::{Map, Value, json};

use super::blosc2::{ArrayLayer, FrameHeader, Special};
use super::bloscpack::{Header, MetadataPlace};
use super::chunk_key::{KeyEncoding, Prefix, Separator};
use super::error::{MetadataError, shape};
use super::index::{ENTRY_BYTES, IndexCodecs, IndexLocation};
use super::json::bare_word;
use super::limits::{MAX_INDEX_BYTES, MAX_ITEM_BYTES};
use super::numpy::DataType;
use super::sharding::{PlainShards, ShardedArray};
use super::superchunks::Extent;

pub(super) const KEYS: KeyEncoding =
    KeyEncoding { prefix: Prefix::Apart, separator: Separator::Slash };

/// Array of another format.
#[derive(Debug)]
pub struct ForeignArray {
    /// Layout of its chunks.
    pub layout: ShardedArray,
    /// Its metadata as of Zarr v3; `None` if its data type is not one of Zarr's numeric types.
    pub metadata: Option<Value>,
}

/// Array of superchunk files.
#[derive(Debug)]
pub struct SuperchunkArray {
    /// The array.
    pub array: ForeignArray,
    /// Its length.
    pub extent: Extent,
}

/// Returns the layout of a Bloscpack file with `nchunks` chunks, which is one shard. Up to `spare`
/// chunks may be appended.
pub fn bloscpack(
    header: &Header,
    nchunks: u64,
    spare: u64,
    metadata: Option<&Value>,
) -> Result<ForeignArray, MetadataError> {
    let slots = nchunks.saturating_add(spare.min(MAX_INDEX_BYTES / ENTRY_BYTES));
    let slots = slots.min(MAX_INDEX_BYTES / ENTRY_BYTES).max(nchunks);
    let layout = ShardedArray::plain(PlainShards {
        keys: KEYS,
        shape: vec![slots],
        chunk_shape: vec![1],
        chunks_per_shard: vec![slots.max(1)],
        index_codecs: IndexCodecs::BARE,
        index_location: IndexLocation::End,
    })?;
    let metadata = metadata.and_then(|metadata| bloscpack_metadata(header, nchunks, metadata));
    Ok(ForeignArray { layout, metadata })
}

/// Returns the metadata of the flat array of a file's numbers; `None` if the metadata of the file
/// does not give a NumPy data type and a shape that match its length.
fn bloscpack_metadata(header: &Header, nchunks: u64, metadata: &Value) -> Option<Value> {
    let data_type = DataType::parse(metadata.get("dtype")?.as_str()?)?;
    let whole = shape(metadata.get("shape"), "shape").ok()?;
    let items = whole.iter().try_fold(1_u64, |product, extent| product.checked_mul(*extent))?;
    let chunk = u64::from(header.chunk_size?);
    let last = u64::from(header.last_chunk?);
    let nbytes = nchunks.checked_sub(1)?.checked_mul(chunk)?.checked_add(last)?;
    if items.checked_mul(data_type.nbytes)? != nbytes || chunk % data_type.nbytes != 0 {
        return None;
    }
    let mut attributes = Map::new();
    if whole.len() != 1 {
        attributes.insert("shape".to_owned(), json!(whole));
        let order = metadata.get("order").cloned().unwrap_or_else(|| json!("C"));
        attributes.insert("order".to_owned(), order);
    }
    let chunk = chunk / data_type.nbytes;
    Some(zarr_json(&[items], &[chunk], data_type, header.typesize.into(), json!(0), attributes))
}

/// Returns the layout of a frame of Blosc2, which is one shard. `fill` is what the items of chunks are that are not stored.
/// Without a metalayer of an array its chunks are one after the other.
pub fn blosc2(
    header: &FrameHeader,
    array: Option<&ArrayLayer>,
    fill: Option<Special>,
    attributes: Map<String, Value>,
) -> Result<ForeignArray, MetadataError> {
    let nchunks = header.nchunks().unwrap_or_default();
    let (shape, chunk_shape, grid) = match array {
        Some(array) => (array.shape.clone(), array.chunk.clone(), array.grid().collect()),
        None => (vec![nchunks], vec![1], vec![nchunks]),
    };
    let layout = ShardedArray::plain(PlainShards {
        keys: KEYS,
        shape,
        chunk_shape,
        chunks_per_shard: grid.into_iter().map(|chunks: u64| chunks.max(1)).collect(),
        index_codecs: IndexCodecs::BARE,
        index_location: IndexLocation::End,
    })?;
    let metadata = array.and_then(|array| blosc2_metadata(header, array, fill, attributes));
    Ok(ForeignArray { layout, metadata })
}

/// Returns the metadata of the array of a frame. Items of an unknown type are bytes.
fn blosc2_metadata(
    header: &FrameHeader,
    array: &ArrayLayer,
    fill: Option<Special>,
    attributes: Map<String, Value>,
) -> Option<Value> {
    let nbytes = u64::from(header.typesize);
    if nbytes > MAX_ITEM_BYTES as u64 {
        return None;
    }
    let known = array.dtype.as_deref().and_then(DataType::parse);
    let known = known.filter(|data_type| data_type.nbytes == nbytes);
    let is_float = known.is_some_and(|known| known.name.starts_with("float"));
    let fill_value = match (fill, known) {
        (Some(Special::Nan), _) if !is_float => return None,
        (Some(Special::Nan), _) => json!("NaN"),
        (_, Some(known)) => match known.name {
            "bool" => json!(false),
            name if name.starts_with("complex") => json!([0, 0]),
            _ => json!(0),
        },
        (_, None) => json!(vec![0; usize::try_from(nbytes).ok()?]),
    };
    let data_type = match known {
        Some(known) => known.name.to_owned(),
        None => format!("r{}", nbytes.checked_mul(8)?),
    };
    // Bytes of other machines are in their order; Blosc2 swaps none.
    let endian = known.map_or("little", DataType::endian);
    Some(json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": array.shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": array.chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": [{"name": "blosc2", "configuration": {"blocks": array.block, "endian": endian}}],
        "attributes": attributes,
    }))
}

/// Returns the header of a frame of Blosc2 as JSON.
pub fn blosc2_header_json(header: &FrameHeader, array: Option<&ArrayLayer>) -> Value {
    let compressor = match header.compressor.0 {
        0 => "blosclz",
        1 => "lz4",
        2 => "lz4hc",
        4 => "zlib",
        5 => "zstd",
        _ => "other",
    };
    let mut members = json!({
        "typesize": header.typesize,
        "chunk_size": header.chunk_size,
        "uncompressed_size": header.decoded,
        "compressed_size": header.stored,
        "nchunks": header.nchunks().unwrap_or_default(),
        "compressor": compressor,
        "level": header.compressor.1,
    });
    if let Some(array) = array {
        members[array.name] = json!({
            "shape": array.shape,
            "chunks": array.chunk,
            "blocks": array.block,
            "dtype": array.dtype,
        });
    }
    members
}

/// Returns the header of a Bloscpack file as JSON.
pub fn header_json(header: &Header, place: Option<&MetadataPlace>) -> Value {
    let is_bare = place.is_some_and(|place| place.is_bare);
    let mut members = json!({
        "format_version": 3,
        "offsets": header.has_offsets(),
        "metadata": header.has_metadata(),
        "checksum": header.digest.name(),
        "typesize": header.typesize,
        "chunk_size": header.chunk_size.map_or(-1, i64::from),
        "last_chunk": header.last_chunk.map_or(-1, i64::from),
        "nchunks": header.nchunks.map_or(json!(-1), |nchunks| json!(nchunks)),
    });
    let name = if is_bare { "meta_size" } else { "max_app_chunks" };
    members[name] = json!(header.rest);
    if let Some(place) = place.filter(|place| !place.is_bare) {
        members["metadata_header"] = json!({
            "checksum": place.digest.name(),
            "codec": if place.compressed { "zlib" } else { "none" },
            "meta_size": place.decoded,
            "max_meta_size": place.digest_offset - place.offset,
            "meta_comp_size": place.stored,
        });
    }
    members
}

/// Returns the layout of a BLZ or bcolz array with `chunks_per_file` chunks in a file. `sizes`,
/// `storage` and `attributes` are its three documents. The layout has room for at least `room`
/// chunks, so that the array can grow.
pub fn superchunks(
    sizes: &Value,
    storage: &Value,
    attributes: Option<Value>,
    chunks_per_file: u64,
    room: u64,
) -> Result<SuperchunkArray, MetadataError> {
    let whole = shape(sizes.get("shape"), "shape")?;
    let chunklen = storage.get("chunklen").and_then(Value::as_u64).filter(|rows| *rows > 0);
    let expected = "a number above 0";
    let chunklen = chunklen.ok_or_else(|| MetadataError::invalid("chunklen", expected))?;
    let Some((_, row)) = whole.split_first() else {
        return Err(MetadataError::invalid("shape", "a list that is not empty"));
    };
    let text = storage.get("dtype").and_then(Value::as_str).unwrap_or_default();
    if !is_data_type(text) {
        return Err(MetadataError::invalid("dtype", "the name of a NumPy data type"));
    }
    let chunk_shape: Vec<u64> =
        std::iter::once(chunklen).chain(row.iter().map(|extent| (*extent).max(1))).collect();
    let layout = ShardedArray::plain(PlainShards {
        keys: KEYS,
        shape: std::iter::once(whole[0].max(chunklen.saturating_mul(room)))
            .chain(row.iter().copied())
            .collect(),
        chunks_per_shard: std::iter::once(chunks_per_file.max(1))
            .chain(std::iter::repeat(1))
            .take(chunk_shape.len())
            .collect(),
        chunk_shape: chunk_shape.clone(),
        index_codecs: IndexCodecs::BARE,
        index_location: IndexLocation::End,
    })?;
    let row_bytes = DataType::parse(text).and_then(|data_type| {
        row.iter().try_fold(data_type.nbytes, |product, extent| product.checked_mul(*extent))
    });
    let row_bytes = row_bytes.filter(|nbytes| *nbytes > 0);
    let extent = Extent { chunklen, row_bytes, rows: whole[0] };
    let metadata = DataType::parse(text).map(|data_type| {
        let fill = fill_value(storage.get("dflt"), data_type);
        let attributes = match attributes {
            Some(Value::Object(members)) => members,
            _ => Map::new(),
        };
        zarr_json(&whole, &chunk_shape, data_type, data_type.nbytes, fill, attributes)
    });
    Ok(SuperchunkArray { array: ForeignArray { layout, metadata }, extent })
}

/// Returns the fill value that stands for the default value of BLZ and bcolz, which write the bare
/// words of Python; 0 if it is no number.
fn fill_value(default: Option<&Value>, data_type: DataType) -> Value {
    match default {
        Some(number @ (Value::Number(_) | Value::Bool(_))) => number.clone(),
        Some(Value::String(text)) if data_type.name.starts_with("float") => match bare_word(text) {
            word @ ("NaN" | "Infinity" | "-Infinity") => json!(word),
            _ => json!(0),
        },
        // One value for each column, equal for all of them.
        Some(Value::Array(list)) => fill_value(list.first(), data_type),
        _ => json!(0),
    }
}

/// Returns whether a text can name a data type: a word, or a list of fields. Code is refused.
fn is_data_type(text: &str) -> bool {
    let is_word =
        |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || "<>|=[]".contains(c));
    !text.is_empty() && (is_word(text) || text.starts_with('[') && !text.contains("__"))
}

fn zarr_json(
    shape: &[u64],
    chunk_shape: &[u64],
    data_type: DataType,
    typesize: u64,
    fill_value: Value,
    attributes: Map<String, Value>,
) -> Value {
    json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": [
            {"name": "bytes", "configuration": {"endian": data_type.endian()}},
            // Each buffer describes its own compression; this configuration is for writers.
            {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5,
                "shuffle": "shuffle", "typesize": typesize.max(1), "blocksize": 0}},
        ],
        "attributes": attributes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_of_superchunks() {
        let sizes = json!({"shape": [34, 20]});
        let storage = json!({"dtype": "float64", "chunklen": 8, "dflt": 0.5});
        let SuperchunkArray { array, extent } =
            superchunks(&sizes, &storage, Some(json!({"a": 1})), 1, 0).unwrap();
        assert_eq!(array.layout.chunk_grid(), [5, 1]);
        assert_eq!(extent, Extent { chunklen: 8, row_bytes: Some(160), rows: 34 });
        let metadata = array.metadata.unwrap();
        assert_eq!(metadata["chunk_grid"]["configuration"]["chunk_shape"], json!([8, 20]));
        assert_eq!(
            (&metadata["fill_value"], &metadata["attributes"]),
            (&json!(0.5), &json!({"a": 1}))
        );
    }

    #[test]
    fn a_default_that_is_no_json_number_is_the_fill_value() {
        let fill = |data_type: &str, default: &str| {
            let storage =
                format!(r#"{{"dtype": "{data_type}", "chunklen": 8, "dflt": {default}}}"#);
            let storage = crate::format::json::parse(storage.as_bytes()).unwrap();
            let found = superchunks(&json!({"shape": [34]}), &storage, None, 1, 0).unwrap();
            found.array.metadata.unwrap()["fill_value"].clone()
        };
        assert_eq!(fill("float64", "NaN"), json!("NaN"));
        assert_eq!(fill("<f4", "Infinity"), json!("Infinity"));
        assert_eq!(fill("float64", "[-Infinity, -Infinity]"), json!("-Infinity"));
        assert_eq!(fill("float64", "[[NaN, NaN]]"), json!("NaN"));
        for (data_type, default) in
            [("int32", "NaN"), ("float64", "\"x\""), ("float64", "[]"), ("float64", "{}")]
        {
            assert_eq!(fill(data_type, default), json!(0), "{default}");
        }
    }

    #[test]
    fn defects_of_superchunks_are_named() {
        let refused = |sizes: Value, storage: Value, message: &str| {
            assert_eq!(superchunks(&sizes, &storage, None, 1, 0).unwrap_err().to_string(), message);
        };
        let sizes = json!({"shape": [34]});
        refused(
            sizes.clone(),
            json!({"dtype": "int8", "chunklen": 0}),
            "chunklen must be a number above 0",
        );
        refused(
            sizes,
            json!({"dtype": "__import__('os').abort()", "chunklen": 1}),
            "dtype must be the name of a NumPy data type",
        );
        refused(
            json!({"shape": []}),
            json!({"dtype": "int8", "chunklen": 1}),
            "shape must be a list that is not empty",
        );
    }

    #[test]
    fn types_that_zarr_has_no_number_for_have_no_metadata() {
        let storage = json!({"dtype": "|S5", "chunklen": 8});
        let found = superchunks(&json!({"shape": [34]}), &storage, None, 1, 7).unwrap();
        assert_eq!((found.array.layout.chunk_grid(), found.array.metadata), (vec![7], None));
        assert_eq!((found.extent.nchunks(), found.extent.row_bytes), (5, None));
    }
}
