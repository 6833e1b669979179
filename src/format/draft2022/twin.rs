//! Translation of the metadata of an array to the current Zarr v3.
//!
//! ```text
//! data_type            "<i4", ">i2", "bool"; others with a type  data_type; endian of codec bytes
//! chunk_memory_layout  "F"                                       the codec transpose
//! compressor           a URI and numcodecs' configuration        a codec after bytes
//! storage_transformers chunks_per_shard                          the codec sharding_indexed
//! ```
//!
//! Members are those that zarr-python 2.13 to 2.18 writes and reads, `zarr/meta.py`. Zarr v3 has no
//! name for the encoding of these chunk keys: the metadata says `default`, which has the same
//! separator.

use serde_json::{Map, Value, json};

use super::layout::{TRANSFORMERS, chunks_per_shard, grid, is_sharded, keys};
use crate::format::error::{MetadataError, shape};
use crate::format::numpy::Items;

/// Prefix of codec URIs, followed by a name and a version.
const CODECS: &str = "https://purl.org/zarr/spec/codec/";
/// Attribute in which zarr-python records filters, applied to items before compression.
const FILTERS: &str = "filters";

/// Reason why an array's document has no Zarr v3 form.
#[derive(Debug, thiserror::Error)]
pub enum NoTwin {
    /// The metadata is invalid.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Zarr v3 has no such data type.
    #[error("data type {0} has no form in Zarr v3")]
    DataType(String),
    /// Zarr v3 has no such codec.
    #[error("compressor {0} has no form in Zarr v3")]
    Compressor(String),
    /// The array has filters: changes to its items that are not codecs.
    #[error("filters have no form in Zarr v3")]
    Filters,
}

/// Returns the Zarr v3 metadata of an array with the given document. A sharded array gets the codec
/// `sharding_indexed`.
pub fn to_zarr3(document: &Value) -> Result<Value, NoTwin> {
    check_extensions(document)?;
    let attributes = match document.get("attributes") {
        Some(Value::Object(attributes)) => attributes.clone(),
        _ => Map::new(),
    };
    let has_filters = |filters: &Value| filters.as_array().is_none_or(|list| !list.is_empty());
    if attributes.get(FILTERS).filter(|filters| !filters.is_null()).is_some_and(has_filters) {
        return Err(NoTwin::Filters);
    }
    let whole = shape(document.get("shape"), "shape")?;
    let mut chunk_shape = shape(grid(document)?.get("chunk_shape"), "chunk_shape")?;
    let items = items(document.get("data_type").unwrap_or(&Value::Null))?;
    let mut codecs = Vec::new();
    if is_transposed(document)? && whole.len() > 1 {
        let order: Vec<usize> = (0..whole.len()).rev().collect();
        codecs.push(json!({"name": "transpose", "configuration": {"order": order}}));
    }
    codecs.push(items.codec());
    if let Some(compressor) = document.get("compressor").filter(|it| !it.is_null()) {
        codecs.push(compressor_codec(compressor, &items)?);
    }
    if is_sharded(document) {
        let inner = chunk_shape.clone();
        for (edge, count) in chunk_shape.iter_mut().zip(chunks_per_shard(document)?) {
            let limit = MetadataError::Limit { what: "elements", limit: u64::MAX };
            *edge = edge.checked_mul(count).ok_or(limit)?;
        }
        codecs = vec![json!({"name": "sharding_indexed", "configuration": {
            "chunk_shape": inner,
            "codecs": codecs,
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "index_location": "end",
        }})];
    }
    let separator = keys(document)?.separator.as_char().to_string();
    Ok(json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": whole,
        "data_type": items.data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        "fill_value": document.get("fill_value"),
        "codecs": codecs,
        "attributes": attributes,
    }))
}

/// Fails if an extension changes the meaning of the document. The sharding transformer is listed
/// elsewhere and does not count.
fn check_extensions(document: &Value) -> Result<(), MetadataError> {
    if document.get(TRANSFORMERS).is_some_and(|list| !list.is_array() && !list.is_null()) {
        return Err(MetadataError::invalid(TRANSFORMERS, "a list"));
    }
    let extensions = document.get("extensions").and_then(Value::as_array);
    for extension in extensions.into_iter().flatten() {
        if extension.get("must_understand") != Some(&Value::Bool(false)) {
            let name = extension.get("extension").and_then(Value::as_str).unwrap_or_default();
            return Err(MetadataError::Extension(name.to_owned()));
        }
    }
    Ok(())
}

/// Returns whether the first axis varies fastest in a chunk.
fn is_transposed(document: &Value) -> Result<bool, MetadataError> {
    match document.get("chunk_memory_layout") {
        None => Ok(false),
        Some(Value::String(order)) if order == "C" => Ok(false),
        Some(Value::String(order)) if order == "F" => Ok(true),
        Some(_) => Err(MetadataError::invalid("chunk_memory_layout", "\"C\" or \"F\"")),
    }
}

/// Parses the data type of an array's items: NumPy's name of it, or an object with that name and a
/// URI.
fn items(value: &Value) -> Result<Items, NoTwin> {
    let text = value.as_str().or_else(|| value.get("type")?.as_str()).unwrap_or_default();
    let none = || NoTwin::DataType(value.to_string().chars().take(80).collect());
    Items::parse(text).ok_or_else(none)
}

/// Translates a compressor to a codec. Its configuration is that of numcodecs.
fn compressor_codec(compressor: &Value, items: &Items) -> Result<Value, NoTwin> {
    let uri = compressor.get("codec").and_then(Value::as_str).unwrap_or_default();
    let none = || NoTwin::Compressor(compressor.to_string().chars().take(80).collect());
    let (name, _version) =
        uri.strip_prefix(CODECS).and_then(|rest| rest.split_once('/')).ok_or_else(none)?;
    let mut configuration = match compressor.get("configuration") {
        Some(Value::Object(configuration)) => configuration.clone(),
        _ => Map::new(),
    };
    let name = match name {
        "gzip" => "gzip".to_owned(),
        "zstd" => {
            configuration.entry("checksum").or_insert(false.into());
            "zstd".to_owned()
        }
        "blosc" => {
            let shuffle = configuration.get("shuffle").map_or(Some(1), Value::as_i64);
            let shuffle = match shuffle {
                Some(0) => "noshuffle",
                // -1: numcodecs chooses by the length of an item.
                Some(-1) if items.nbytes == 1 => "bitshuffle",
                Some(1 | -1) => "shuffle",
                Some(2) => "bitshuffle",
                _ => return Err(none()),
            };
            configuration.insert("shuffle".to_owned(), shuffle.into());
            configuration.insert("typesize".to_owned(), items.nbytes.into());
            "blosc".to_owned()
        }
        "zlib" | "bz2" | "lz4" | "lzma" => format!("numcodecs.{name}"),
        _ => return Err(none()),
    };
    Ok(json!({"name": name, "configuration": configuration}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::document::{Dialect, Shown, show};
    use crate::format::draft2022::{parse, unshard};
    use crate::format::pipeline::Pipeline;

    fn array() -> Value {
        json!({"shape": [7, 9], "data_type": ">i2", "fill_value": -3, "attributes": {"a": 1},
            "chunk_grid": {"type": "regular", "chunk_shape": [2, 3], "separator": "."},
            "chunk_memory_layout": "C", "extensions": [],
            "storage_transformers": [{
                "extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
                "type": "indexed", "configuration": {"chunks_per_shard": [2, 4]}}]})
    }

    fn with(member: &str, value: Value) -> Value {
        let mut document = array();
        unshard(&mut document);
        document[member] = value;
        document
    }

    fn codecs(document: &Value) -> Value {
        to_zarr3(document).unwrap()["codecs"].take()
    }

    #[test]
    fn a_sharded_array_is_laid_out_the_same() {
        let twin = to_zarr3(&array()).unwrap();
        let Shown::Array(layout, twin) = show(twin, None, Dialect::V3).unwrap() else {
            panic!("not sharded")
        };
        let own = parse(&array()).unwrap().unwrap();
        assert_eq!(format!("{:?}", layout.levels), format!("{:?}", own.levels));
        assert_eq!(format!("{:?}", layout.shard_grid), format!("{:?}", own.shard_grid));
        let expected = json!({
            "zarr_format": 3, "node_type": "array", "shape": [7, 9], "data_type": "int16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
            "fill_value": -3, "attributes": {"a": 1},
            "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]});
        assert_eq!(twin, expected);
        let mut unsharded = array();
        unshard(&mut unsharded);
        assert_eq!(to_zarr3(&unsharded).unwrap(), expected);
    }

    #[test]
    fn an_array_without_dimensions() {
        let mut document = array();
        document["shape"] = json!([]);
        document["chunk_grid"]["chunk_shape"] = json!([]);
        document["chunk_memory_layout"] = json!("F");
        document[TRANSFORMERS][0]["configuration"]["chunks_per_shard"] = json!([1]);
        let twin = to_zarr3(&document).unwrap();
        let shown = show(twin, None, Dialect::V3).unwrap();
        assert!(matches!(shown, Shown::Array(layout, _) if layout.rank() == 0));
    }

    #[test]
    fn data_types() {
        let read = |data_type: Value| {
            let twin = to_zarr3(&with("data_type", data_type)).unwrap();
            (twin["data_type"].clone(), twin["codecs"][0]["configuration"]["endian"].clone())
        };
        assert_eq!(read(json!("u1")), (json!("uint8"), Value::Null));
        assert_eq!(read(json!("bool")), (json!("bool"), Value::Null));
        assert_eq!(read(json!("<f8")), (json!("float64"), json!("little")));
        // The draft defines these types as extensions.
        let extended =
            |text| read(json!({"extension": "https://...", "type": text, "fallback": null}));
        assert_eq!(extended(">c16"), (json!("complex128"), json!("big")));
        let time = |name: &str, unit: &str, scale: u64| json!({"name": name, "configuration": {"unit": unit, "scale_factor": scale}});
        assert_eq!(extended("<M8[ns]").0, time("numpy.datetime64", "ns", 1));
        assert_eq!(extended("<M8[25s]").0, time("numpy.datetime64", "s", 25));
        assert_eq!(extended("<m8"), (time("numpy.timedelta64", "generic", 1), json!("little")));
        let length = |name: &str, length: u64| json!({"name": name, "configuration": {"length_bytes": length}});
        assert_eq!(extended("|S5"), (length("null_terminated_bytes", 5), Value::Null));
        assert_eq!(extended(">U5"), (length("fixed_length_utf32", 20), json!("big")));
    }

    #[test]
    fn compressors() {
        let of = |name: &str, configuration: Value| {
            let codec = format!("https://purl.org/zarr/spec/codec/{name}/1.0");
            let document =
                with("compressor", json!({"codec": codec, "configuration": configuration}));
            to_zarr3(&document).map(|mut twin| twin["codecs"][1].take()).map_err(|e| e.to_string())
        };
        let codec = |name: &str, configuration: Value| {
            Ok(json!({"name": name, "configuration": configuration}))
        };
        let level = json!({"level": 5});
        assert_eq!(of("gzip", level.clone()), codec("gzip", level.clone()));
        assert_eq!(of("zlib", level.clone()), codec("numcodecs.zlib", level.clone()));
        assert_eq!(
            of("zstd", level.clone()),
            codec("zstd", json!({"level": 5, "checksum": false}))
        );
        assert_eq!(of("bz2", level.clone()), codec("numcodecs.bz2", level));
        let blosc = |shuffle: Value| json!({"cname": "lz4", "clevel": 5, "shuffle": shuffle, "blocksize": 0});
        for (stored, shown) in
            [(0, "noshuffle"), (1, "shuffle"), (2, "bitshuffle"), (-1, "shuffle")]
        {
            let mut expected = blosc(json!(shown));
            expected["typesize"] = json!(2);
            assert_eq!(of("blosc", blosc(json!(stored))), codec("blosc", expected));
        }
        let refused = of("snappy", json!({})).unwrap_err();
        assert!(refused.starts_with("compressor {") && refused.ends_with("no form in Zarr v3"));
        assert!(of("blosc", blosc(json!(3))).is_err());
        assert_eq!(codecs(&with("compressor", Value::Null)).as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn the_order_of_axes() {
        let transposed = codecs(&with("chunk_memory_layout", json!("F")));
        assert_eq!(transposed[0]["configuration"]["order"], json!([1, 0]));
        assert_eq!(transposed[1]["name"], "bytes");
    }

    #[test]
    fn what_has_no_form_is_refused_with_the_reason() {
        let refused =
            |member: &str, value: Value| to_zarr3(&with(member, value)).unwrap_err().to_string();
        let none = |data_type: &str| format!("data type {data_type} has no form in Zarr v3");
        assert_eq!(refused("data_type", json!("|O")), none("\"|O\""));
        assert_eq!(refused("data_type", json!([["a", "<i4"]])), none("[[\"a\",\"<i4\"]]"));
        assert_eq!(refused("data_type", Value::Null), none("null"));
        assert_eq!(refused("data_type", json!("<M8[\u{e9}")), none("\"<M8[\u{e9}\""));
        let filters = json!({"filters": [{"id": "delta", "dtype": "<i2"}]});
        assert_eq!(refused("attributes", filters), "filters have no form in Zarr v3");
        assert!(to_zarr3(&with("attributes", json!({"filters": []}))).is_ok());
        assert_eq!(
            refused("chunk_memory_layout", json!("A")),
            "chunk_memory_layout must be \"C\" or \"F\""
        );
        assert_eq!(
            refused("extensions", json!([{"extension": "x", "must_understand": true}])),
            "extension \"x\" must be understood and is not known"
        );
        assert_eq!(refused("chunk_grid", json!({})), "chunk_grid must be regular");
    }

    #[test]
    fn fill_values_are_those_of_the_data_type() {
        for (data_type, fill, nbytes) in
            [("<f4", json!("NaN"), 4), ("bool", json!(true), 1), ("<c8", json!([0.5, "NaN"]), 8)]
        {
            let mut document = with("data_type", json!(data_type));
            document["fill_value"] = fill;
            let pipeline = Pipeline::parse(&to_zarr3(&document).unwrap()).unwrap();
            assert_eq!(pipeline.fill().len(), nbytes);
            assert!(pipeline.fill().iter().any(|byte| *byte != 0), "{data_type}");
        }
        let none = Pipeline::parse(&to_zarr3(&with("fill_value", Value::Null)).unwrap()).unwrap();
        assert_eq!(none.fill(), [0, 0]);
    }
}
