//! Golden documents: each rule once, in both directions.

use serde_json::{Value, json};

use super::*;
use crate::format::error::MetadataError;
use crate::format::fill_chunk::FillChunk;
use crate::format::json;
use crate::format::pipeline::Pipeline;

fn array(twin: &Value) -> Result<Array2, NoForm> {
    super::array(twin, Missing::Auto)
}

fn group(document: &Value) -> Group2 {
    super::group(document, &|_| Missing::Auto)
}

fn back(
    stored: &Value,
    twin: &Value,
    name: &str,
    written: Option<&Value>,
) -> Result<Value, MetadataError> {
    let shown = Shown { twin, missing: Missing::Auto, created_fill: None };
    super::back(stored, &shown, name, written)
}

fn twin() -> Value {
    json!({"zarr_format": 3, "node_type": "array", "shape": [8, 6], "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0.1, "codecs": ["bytes"]})
}

fn sharded() -> Value {
    let mut stored = twin();
    stored["chunk_grid"]["configuration"]["chunk_shape"] = json!([4, 6]);
    stored["codecs"] = json!([{"name": "sharding_indexed", "configuration":
        {"chunk_shape": [2, 3], "codecs": ["bytes"], "index_codecs": ["bytes", "crc32c"]}}]);
    stored
}

fn with(member: &str, value: Value) -> Value {
    let mut twin = twin();
    twin[member] = value;
    twin
}

#[track_caller]
fn zarray(twin: &Value, member: &str) -> Value {
    array(twin).unwrap().zarray[member].clone()
}

#[track_caller]
fn refused(member: &str, value: Value, text: &str) {
    assert_eq!(array(&with(member, value)).unwrap_err().to_string(), text);
}

/// Returns filters and compressor of an array with these codecs.
#[track_caller]
fn codecs(codecs: Value) -> (Value, Value) {
    let zarray = array(&with("codecs", codecs)).unwrap().zarray;
    (zarray["filters"].clone(), zarray["compressor"].clone())
}

#[test]
fn a_whole_array() {
    let mut twin = twin();
    twin["codecs"] = json!([
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "zstd", "configuration": {"level": 3, "checksum": false}}]);
    twin["attributes"] = json!({"units": "m", "gain": 2.50});
    twin["dimension_names"] = json!(["y", null]);
    let array = array(&twin).unwrap();
    let expected = json!({"zarr_format": 2, "shape": [8, 6], "chunks": [2, 3], "dtype": ">f4",
        "compressor": {"id": "zstd", "level": 3}, "fill_value": null, "order": "C",
        "filters": null, "dimension_separator": "/"});
    assert_eq!(array.zarray, expected);
    let expected = json!({"units": "m", "gain": 2.50, "_ARRAY_DIMENSIONS": ["y", "dim_1"]});
    assert_eq!(array.zattrs, Some(expected));
    assert_eq!(array.keys.chunk_key(&[1, 0]), "1/0");
}

#[test]
fn names_of_documents() {
    for name in [".zarray", ".zattrs", ".zgroup", ".zmetadata"] {
        assert!(is_document(name));
    }
    assert!(!is_document("zarr.json"));
}

#[test]
fn keys_keep_their_separator() {
    let separator =
        |value: Value| zarray(&with("chunk_key_encoding", value), "dimension_separator");
    let dot = json!({"separator": "."});
    assert_eq!(separator(json!({"name": "default", "configuration": dot})), ".");
    assert_eq!(separator(json!({"name": "default"})), "/");
    assert_eq!(separator(json!("v2")), ".");
    let mut scalar = twin();
    scalar["shape"] = json!([]);
    scalar["chunk_grid"]["configuration"]["chunk_shape"] = json!([]);
    let scalar = array(&scalar).unwrap();
    assert_eq!((scalar.keys.chunk_key(&[]), &scalar.zarray["order"]), ("0".into(), &json!("C")));
}

#[test]
fn names_of_data_types() {
    let of = |data_type: Value, fill: Value, codec: &str| {
        let mut twin = with("data_type", data_type);
        twin["fill_value"] = fill;
        twin["codecs"] = json!([codec]);
        let zarray = array(&twin).unwrap().zarray;
        (zarray["dtype"].clone(), zarray["fill_value"].clone(), zarray["filters"].clone())
    };
    let fixed = |name: &str, configuration: Value, fill: Value| {
        let (dtype, fill, filters) =
            of(json!({"name": name, "configuration": configuration}), fill, "bytes");
        assert_eq!(filters, Value::Null);
        (dtype.as_str().unwrap().to_owned(), fill)
    };
    let plain = |name: &str, fill: Value| fixed(name, json!({}), fill);
    let expected = |dtype: &str, fill: Value| (dtype.to_owned(), fill);
    assert_eq!(plain("bool", json!(true)), expected("|b1", json!(true)));
    assert_eq!(plain("int8", json!(-1)), expected("|i1", json!(-1)));
    assert_eq!(plain("int16", json!(-2)), expected("<i2", json!(-2)));
    assert_eq!(plain("uint64", json!(u64::MAX)), expected("<u8", json!(u64::MAX)));
    assert_eq!(plain("float16", json!("NaN")), expected("<f2", json!("NaN")));
    assert_eq!(plain("complex64", json!([1.5, "-Infinity"])).1, json!([1.5, "-Infinity"]));
    assert_eq!(plain("complex128", json!([0, 0])), expected("<c16", json!([0, 0])));
    assert_eq!(plain("r16", json!([1, 2])), expected("|V2", json!("AQI=")));
    let length = |length: u64| json!({"length_bytes": length});
    assert_eq!(fixed("raw_bytes", length(2), json!("AQI=")), expected("|V2", json!("AQI=")));
    let bytes = fixed("null_terminated_bytes", length(4), json!("YWIAAA=="));
    assert_eq!(bytes, expected("|S4", json!("YWI=")));
    assert_eq!(fixed("null_terminated_bytes", length(4), json!("")).1, "");
    assert_eq!(fixed("fixed_length_utf32", length(8), json!("é")), expected("<U2", json!("é")));
    let time = |unit: &str, scale: u64| json!({"unit": unit, "scale_factor": scale});
    let nat = json!(-9_223_372_036_854_775_808_i64);
    assert_eq!(fixed("numpy.datetime64", time("ns", 1), json!("NaT")), expected("<M8[ns]", nat));
    assert_eq!(
        fixed("numpy.timedelta64", time("s", 10), json!(-7)),
        expected("<m8[10s]", json!(-7))
    );
    assert_eq!(plain("uint8", Value::Null), expected("|u1", Value::Null));

    let text = of(json!("string"), json!(""), "vlen-utf8");
    assert_eq!(text, (json!("|O"), json!(""), json!([{"id": "vlen-utf8"}])));
    for name in ["bytes", "variable_length_bytes"] {
        let bytes = of(json!(name), json!(""), "vlen-bytes");
        assert_eq!(bytes, (json!("|O"), json!(""), json!([{"id": "vlen-bytes"}])));
    }
}

#[test]
fn data_types_without_a_form() {
    for name in ["bfloat16", "float8_e5m2", "int4", "uint2", "complex_bfloat16", "banana", "r7"] {
        refused("data_type", json!(name), &format!("data type {name:?} has no form in Zarr v2"));
    }
    let records = json!({"name": "struct", "configuration": {"fields": []}});
    refused("data_type", records, "data type \"struct\" has no form in Zarr v2");
    refused(
        "data_type",
        json!("string"),
        "codec \"bytes\" for data type \"string\" has no form in Zarr v2",
    );
    let mut filled = with("data_type", json!("bytes"));
    filled["codecs"] = json!(["vlen-bytes"]);
    filled["fill_value"] = json!("AQI=");
    let text = "fill value \"AQI=\" of data type \"bytes\" has no form in Zarr v2";
    assert_eq!(array(&filled).unwrap_err().to_string(), text);
    refused(
        "codecs",
        json!(["vlen-utf8"]),
        "codec \"vlen-utf8\" for data type \"float32\" has no form in Zarr v2",
    );
}

#[test]
fn floating_point_fill_values() {
    let fill = |data_type: &str, text: &str| {
        let mut twin = with("data_type", json!(data_type));
        twin["fill_value"] = json::parse(text.as_bytes()).unwrap();
        zarray(&twin, "fill_value").to_string()
    };
    assert_eq!(fill("float64", "-0.0"), "-0.0");
    assert_eq!(fill("float64", "1.50"), "1.50");
    assert_eq!(fill("float32", "NaN"), "\"NaN\"");
    assert_eq!(fill("float32", "-Infinity"), "\"-Infinity\"");
    assert_eq!(fill("float32", "\"Infinity\""), "\"Infinity\"");
    assert_eq!(fill("float32", "\"0x7fc00001\""), "\"NaN\"");
    assert_eq!(fill("float32", "\"0x3dcccccd\""), "0.10000000149011612");
    assert_eq!(fill("float16", "\"0xfc00\""), "\"-Infinity\"");
    assert_eq!(fill("float64", "\"0x8000000000000000\""), "-0.0");
    assert_eq!(fill("complex64", "[\"0x3f800000\", NaN]"), "[1.0,\"NaN\"]");
    refused(
        "fill_value",
        json!("zero"),
        "fill value \"zero\" of data type \"float32\" has no form in Zarr v2",
    );
}

#[test]
fn orders_of_axes() {
    let order = |orders: Value| {
        let mut codecs: Vec<Value> = orders
            .as_array()
            .unwrap()
            .iter()
            .map(|order| json!({"name": "transpose", "configuration": {"order": order}}))
            .collect();
        codecs.push("bytes".into());
        let mut twin = with("codecs", codecs.into());
        twin["shape"] = json!([4, 4, 4]);
        twin["chunk_grid"]["configuration"]["chunk_shape"] = json!([1, 2, 4]);
        array(&twin).map(|array| array.zarray["order"].clone()).map_err(|error| error.to_string())
    };
    assert_eq!(order(json!([[0, 1, 2]])), Ok(json!("C")));
    assert_eq!(order(json!([[2, 1, 0]])), Ok(json!("F")));
    assert_eq!(order(json!([[1, 2, 0], [2, 0, 1]])), Ok(json!("C")));
    assert_eq!(order(json!([[1, 2, 0], [1, 0, 2]])), Ok(json!("F")));
    // The position of an axis of length 1 makes no difference.
    assert_eq!(order(json!([[1, 0, 2]])), Ok(json!("C")));
    assert_eq!(order(json!(["F"])), Ok(json!("F")));
    let bad = "order of transpose must be a permutation of the axes";
    assert_eq!(order(json!([[0, 1]])), Err(bad.to_owned()));

    let mut twin = with(
        "codecs",
        json!([
        {"name": "transpose", "configuration": {"order": [1, 0, 2]}}, "bytes"]),
    );
    twin["shape"] = json!([4, 4, 4]);
    twin["chunk_grid"]["configuration"]["chunk_shape"] = json!([2, 2, 2]);
    let error = array(&twin).unwrap_err().to_string();
    assert_eq!(error, "transpose other than a reversal of the axes has no form in Zarr v2");
}

#[test]
fn the_last_codec_compresses_and_those_before_it_filter() {
    assert_eq!(codecs(json!(["bytes"])), (Value::Null, Value::Null));
    let gzip = json!({"name": "gzip", "configuration": {"level": 6}});
    assert_eq!(codecs(json!(["bytes", gzip])), (Value::Null, json!({"id": "gzip", "level": 6})));
    let expected = (json!([{"id": "gzip", "level": 6}]), json!({"id": "crc32c"}));
    assert_eq!(codecs(json!(["bytes", gzip, "crc32c"])), expected);
    let zstd = json!({"name": "zstd", "configuration": {"level": 1, "checksum": true}});
    let zstd2 = json!({"id": "zstd", "level": 1, "checksum": true});
    assert_eq!(codecs(json!(["bytes", zstd])).1, zstd2);
    let blosc = |shuffle: &str| {
        let configuration = json!({"cname": "lz4", "clevel": 9, "shuffle": shuffle,
            "typesize": 4, "blocksize": 0});
        codecs(json!(["bytes", {"name": "blosc", "configuration": configuration}])).1
    };
    for (shuffle, number) in [("noshuffle", 0), ("shuffle", 1), ("bitshuffle", 2)] {
        let expected = json!({"id": "blosc", "cname": "lz4", "clevel": 9, "shuffle": number,
            "blocksize": 0});
        assert_eq!(blosc(shuffle), expected);
    }
}

#[test]
fn codecs_of_numcodecs() {
    let named =
        |name: &str, configuration: Value| json!({"name": name, "configuration": configuration});
    let shuffle = named("numcodecs.shuffle", json!({"elementsize": 4}));
    let lz4 = named("numcodecs.lz4", json!({"acceleration": 1}));
    let expected =
        (json!([{"id": "shuffle", "elementsize": 4}]), json!({"id": "lz4", "acceleration": 1}));
    assert_eq!(codecs(json!(["bytes", shuffle, lz4])), expected);
    let delta = named("numcodecs.delta", json!({}));
    let scale = named(
        "numcodecs.fixedscaleoffset",
        json!({"offset": 0, "scale": 10, "dtype": "<f4",
        "astype": "|u1"}),
    );
    assert_eq!(
        codecs(json!([delta, "bytes"])),
        (json!([{"id": "delta", "dtype": "<f4"}]), Value::Null)
    );
    let expected = json!([{"id": "fixedscaleoffset", "offset": 0, "scale": 10, "dtype": "<f4",
        "astype": "|u1"}]);
    assert_eq!(codecs(json!([scale, "bytes", lz4])).0, expected);

    let reversed = named("transpose", json!({"order": [1, 0]}));
    let big = named("bytes", json!({"endian": "big"}));
    let swapped = "codec \"numcodecs.delta\" on big-endian items has no form in Zarr v2";
    let no = |codec: &str| format!("codec {codec:?} has no form in Zarr v2");
    for (codecs, text) in [
        (json!(["bytes", {"name": "numcodecs.zfpy"}]), no("numcodecs.zfpy")),
        (json!([{"name": "numcodecs.zfpy"}]), no("numcodecs.zfpy")),
        (json!([{"name": "numcodecs.categorize"}, "bytes"]), no("numcodecs.categorize")),
        (json!([{"name": "banana"}, "bytes"]), no("banana")),
        (json!(["bytes", "banana"]), no("banana")),
        (sharded()["codecs"].clone(), no("sharding_indexed")),
        (json!([delta, "bytes", {"name": "sharding_indexed"}]), no("sharding_indexed")),
        (json!([delta]), "codecs must be a list with an array->bytes codec".to_owned()),
        (
            json!([reversed, delta, "bytes"]),
            "codec \"numcodecs.delta\" together with transpose has no form in Zarr v2".to_owned(),
        ),
        (json!([delta, big]), swapped.to_owned()),
        (json!([named("numcodecs.delta", json!({"dtype": ">f4"})), "bytes"]), swapped.to_owned()),
        (
            json!(["bytes", "numcodecs.shuffle"]),
            "codec \"numcodecs.shuffle\" without elementsize has no form in Zarr v2".to_owned(),
        ),
        (
            json!([scale, delta, "bytes"]),
            "codec \"numcodecs.delta\" without dtype has no form in Zarr v2".to_owned(),
        ),
        (
            json!(["bytes", named("blosc", json!({"shuffle": 7}))]),
            "shuffle must be noshuffle, shuffle or bitshuffle".to_owned(),
        ),
    ] {
        refused("codecs", codecs, &text);
    }
}

#[test]
fn grids_and_extensions_without_a_form() {
    let grid = json!({"name": "rectilinear",
        "configuration": {"kind": "inline", "chunk_shapes": [2, [3, 3]]}});
    refused("chunk_grid", grid, "chunk grid \"rectilinear\" has no form in Zarr v2");
    refused("banana", json!(1), "extension \"banana\" must be understood and is not known");
    refused(
        "storage_transformers",
        json!(["x"]),
        "extension \"storage_transformers\" must be understood and is not known",
    );
    refused("node_type", json!("group"), "node_type must be \"array\"");
}

#[test]
fn attributes_of_their_own_stand_before_names_of_dimensions() {
    let mut named = with("dimension_names", json!(["y", "x"]));
    assert_eq!(array(&named).unwrap().zattrs, Some(json!({"_ARRAY_DIMENSIONS": ["y", "x"]})));
    named["attributes"] = json!({"_ARRAY_DIMENSIONS": ["a", "b"]});
    assert_eq!(array(&named).unwrap().zattrs, Some(json!({"_ARRAY_DIMENSIONS": ["a", "b"]})));
    assert_eq!(array(&with("attributes", json!({}))).unwrap().zattrs, Some(json!({})));
    assert_eq!(array(&with("dimension_names", json!(["y"]))).unwrap().zattrs, None);
}

#[test]
fn groups() {
    let plain = json!({"zarr_format": 3, "node_type": "group"});
    let expected = Group2 { zgroup: json!({"zarr_format": 2}), zattrs: None, zmetadata: None };
    assert_eq!(group(&plain), expected);
    let document = json!({"zarr_format": 3, "node_type": "group", "attributes": {"a": 1},
        "consolidated_metadata": {"kind": "inline", "metadata": {
            "g": {"zarr_format": 3, "node_type": "group", "attributes": {"b": 2}},
            "g/x": with("attributes", json!({"c": 3})),
            "g/y": with("data_type", json!("bfloat16")),
            "bad": 1}}});
    let zgroup = json!({"zarr_format": 2});
    let expected = json!({"zarr_consolidated_format": 1, "metadata": {
        ".zgroup": zgroup, ".zattrs": {"a": 1}, "g/.zgroup": zgroup, "g/.zattrs": {"b": 2},
        "g/x/.zarray": array(&twin()).unwrap().zarray, "g/x/.zattrs": {"c": 3}}});
    assert_eq!(group(&document).zmetadata, Some(expected.clone()));
}

/// Returns the document stored for the sharded array, with some members replaced, after a write.
fn written(members: &[(&str, Value)], name: &str, written: Option<Value>) -> Result<Value, String> {
    let (mut stored, mut twin) = (sharded(), twin());
    for (member, value) in members {
        stored[*member] = value.clone();
        twin[*member] = value.clone();
    }
    back(&stored, &twin, name, written.as_ref()).map_err(|error| error.to_string())
}

#[test]
fn a_resize_comes_back() {
    let mut new = array(&twin()).unwrap().zarray;
    new["shape"] = json!([10, 6]);
    // Notations of zarr-python 2.
    new["fill_value"] = json!(0.10000000149011612);
    new["filters"] = json!([]);
    let mut expected = sharded();
    expected["shape"] = json!([10, 6]);
    assert_eq!(written(&[], ZARRAY, Some(new.clone())), Ok(expected));

    let fixed = |member: &str, value: Value| {
        let mut new = new.clone();
        new[member] = value;
        let text =
            "cannot be changed through the view; only attributes, shape and dimension_names can";
        assert_eq!(written(&[], ZARRAY, Some(new)), Err(format!("{member} {text}")));
    };
    fixed("zarr_format", json!(3));
    fixed("chunks", json!([2, 2]));
    fixed("dtype", json!(">f4"));
    fixed("compressor", json!({"id": "zlib", "level": 1}));
    fixed("fill_value", json!(0.2));
    fixed("fill_value", Value::Null);
    fixed("order", json!("F"));
    fixed("filters", json!([{"id": "delta", "dtype": "<f4"}]));
    fixed("dimension_separator", json!("."));
    fixed("dimension_separator", Value::Null);
    fixed("extra", json!(1));
    new["shape"] = json!([10]);
    let rank = "chunk_grid has 2 entries, the array has 1 dimension";
    assert_eq!(written(&[], ZARRAY, Some(new.clone())), Err(rank.to_owned()));
    back(&twin(), &twin(), ZARRAY, Some(&new)).unwrap_err();
    assert!(written(&[], ZARRAY, None).is_err());
    assert!(written(&[], ZARRAY, Some(json!([]))).is_err());
    assert!(written(&[], ZGROUP, Some(json!({"zarr_format": 2}))).is_err());
    assert!(written(&[], ZMETADATA, Some(json!({}))).is_err());
}

#[test]
fn other_spellings_mean_the_same() {
    let codecs = json!([{"name": "numcodecs.delta", "configuration": {"dtype": "float32"}},
        "bytes", "crc32c", {"name": "zstd", "configuration": {"level": 1}}]);
    let members = [
        ("chunk_key_encoding", json!("v2")),
        ("fill_value", json!("0x7fc00000")),
        ("codecs", codecs),
    ];
    let mut stored = sharded();
    let mut twin = twin();
    for (member, value) in members {
        twin[member] = value.clone();
        if member != "codecs" {
            stored[member] = value;
        }
    }
    let mut new = array(&twin).unwrap().zarray;
    new["filters"] = json!([{"id": "delta", "dtype": "<f4", "astype": "<f4"}, {"id": "crc32c",
        "location": "end"}]);
    new["compressor"] = json!({"id": "zstd", "level": 1, "checksum": false});
    new.as_object_mut().unwrap().remove("dimension_separator");
    assert_eq!(back(&stored, &twin, ZARRAY, Some(&new)).unwrap(), stored);
    new["compressor"].as_object_mut().unwrap().remove("level");
    back(&stored, &twin, ZARRAY, Some(&new)).unwrap_err();
    new["compressor"] = json!({"id": "zstd", "level": 1, "checksum": true});
    back(&stored, &twin, ZARRAY, Some(&new)).unwrap_err();
}

#[test]
fn attributes_come_back() {
    let mut expected = sharded();
    expected["attributes"] = json!({"b": 2.50});
    assert_eq!(written(&[], ZATTRS, Some(json!({"b": 2.50}))), Ok(expected));
    assert_eq!(written(&[], ZATTRS, None), Ok(sharded()));
    assert_eq!(written(&[], ZATTRS, Some(json!([]))), Err("it is not a JSON object".to_owned()));

    // Names are moved to `dimension_names`, and stay null where they were.
    let names = |stored: Value, new: Value| {
        let new = json!({"b": 1, "_ARRAY_DIMENSIONS": new});
        let back = written(&[("dimension_names", stored)], ZATTRS, Some(new)).unwrap();
        (back["dimension_names"].clone(), back["attributes"].clone())
    };
    let none = json!({"b": 1});
    let expected = (json!(["lat", null]), none.clone());
    assert_eq!(names(json!(["y", null]), json!(["lat", "dim_1"])), expected);
    assert_eq!(names(json!([null, "dim_1"]), json!(["a", "dim_1"])).0, json!(["a", "dim_1"]));
    assert_eq!(names(Value::Null, json!(["dim_0", "x"])), (json!(["dim_0", "x"]), none));
    // An attribute that does not name every dimension stays an attribute.
    let other = (json!(["y", "x"]), json!({"b": 1, "_ARRAY_DIMENSIONS": ["y"]}));
    assert_eq!(names(json!(["y", "x"]), json!(["y"])), other);

    let own = [
        ("dimension_names", json!(["y", "x"])),
        ("attributes", json!({"_ARRAY_DIMENSIONS": ["a", "b"]})),
    ];
    let back = written(&own, ZATTRS, Some(json!({"_ARRAY_DIMENSIONS": ["c", "d"]}))).unwrap();
    assert_eq!(back["attributes"], json!({"_ARRAY_DIMENSIONS": ["c", "d"]}));
    assert_eq!(back["dimension_names"], json!(["y", "x"]));
    // Names that are no longer present were removed.
    let back = written(&[("dimension_names", json!(["y", "x"]))], ZATTRS, None).unwrap();
    assert_eq!(back.get("dimension_names"), None);
    let back = written(&[("attributes", json!({"a": 1}))], ZATTRS, None).unwrap();
    assert_eq!(back.get("attributes"), None);
    // An empty list of attributes is shown as one.
    let back = written(&[("attributes", json!({"a": 1}))], ZATTRS, Some(json!({}))).unwrap();
    assert_eq!(back["attributes"], json!({}));
}

#[test]
fn documents_of_groups_come_back() {
    let stored = json!({"zarr_format": 3, "node_type": "group"});
    let back = |name: &str, written: Value| back(&stored, &stored, name, Some(&written));
    assert_eq!(back(ZGROUP, json!({"zarr_format": 2})).unwrap(), stored);
    back(ZGROUP, json!({"zarr_format": 3})).unwrap_err();
    back(ZGROUP, json!({})).unwrap_err();
    back(ZARRAY, array(&twin()).unwrap().zarray).unwrap_err();
    let attributes = json!({"_ARRAY_DIMENSIONS": ["x"]});
    assert_eq!(back(ZATTRS, attributes.clone()).unwrap()["attributes"], attributes);
}

#[test]
fn consolidated_metadata_must_say_what_is_shown() {
    let top = json!({"zarr_format": 3, "node_type": "group"});
    let node = with("attributes", json!({"c": 3}));
    let shown = array(&node).unwrap();
    let check = |written: Value| {
        let mut twin = |path: &str| match path {
            "" => Some(top.clone()),
            "g/x" => Some(node.clone()),
            _ => None,
        };
        check_consolidated(&written, &|_| Missing::Auto, &mut twin)
            .map_err(|error| error.to_string())
    };
    let mut new = json!({"zarr_consolidated_format": 1, "metadata": {
        ".zgroup": {"zarr_format": 2}, ".zattrs": {},
        "g/x/.zarray": shown.zarray, "g/x/.zattrs": shown.zattrs}});
    assert_eq!(check(new.clone()), Ok(()));
    new["metadata"]["g/x/.zarray"]["shape"] = json!([1, 1]);
    assert!(check(new.clone()).unwrap_err().starts_with("g/x/.zarray cannot be changed"));
    new["metadata"].as_object_mut().unwrap().remove("g/x/.zarray");
    new["metadata"]["y/.zgroup"] = json!({"zarr_format": 2});
    assert!(check(new).unwrap_err().starts_with("y/.zgroup cannot be changed"));
    check(json!({})).unwrap_err();
}

#[test]
fn odd_documents_are_errors_and_no_panics() {
    for odd in [json!(1), json!([]), json!({}), json!({"zarr_format": 3, "node_type": "array"})] {
        array(&odd).unwrap_err();
        group(&odd);
        for name in [ZARRAY, ZATTRS, ZGROUP, ZMETADATA, ""] {
            assert!(back(&odd, &odd, name, Some(&odd)).is_err());
            assert!(back(&odd, &twin(), name, None).is_err());
        }
    }
    assert!(back(&sharded(), &json!(1), ZARRAY, Some(&json!({}))).is_err());
}

/// An array as written by xarray: `fill_value`, and optionally the attribute `_FillValue`.
fn of_xarray(data_type: &str, fill_value: Value, missing: Option<Value>) -> Value {
    let mut twin = twin();
    (twin["data_type"], twin["fill_value"]) = (json!(data_type), fill_value);
    (twin["dimension_names"], twin["attributes"]) = (json!(["y", "x"]), json!({"units": "m"}));
    if let Some(missing) = missing {
        twin["attributes"]["_FillValue"] = missing;
    }
    twin
}

/// Fill value in Zarr v2, attribute, and the first items of the chunks for an absent and for a
/// removed chunk.
type Represented = (Value, Option<Value>, Option<Vec<u8>>, Option<Vec<u8>>);

#[track_caller]
fn represented(twin: &Value) -> Represented {
    let array = array(twin).unwrap();
    assert!(!array.is_misread);
    let zattrs = array.zattrs.unwrap();
    assert_eq!((&zattrs["units"], &zattrs["_ARRAY_DIMENSIONS"]), (&json!("m"), &json!(["y", "x"])));
    let nbytes = Pipeline::parse(twin).unwrap().data_type().nbytes();
    let item = |chunk: &FillChunk| chunk.encoded().unwrap()[..nbytes].to_vec();
    let (absent, removed) = match &array.filled {
        Some(filled) => (Some(item(&filled.absent)), filled.removed.as_ref().map(item)),
        None => (None, None),
    };
    (array.zarray["fill_value"].clone(), zattrs.get("_FillValue").cloned(), absent, removed)
}

#[test]
fn a_missing_value_is_the_fill_value_of_zarr_v2() {
    let packed = of_xarray("int16", json!(0), Some(json!(-32768)));
    let expected = (json!(-32768), Some(json!(-32768)), Some(vec![0, 0]), Some(vec![0, 0x80]));
    assert_eq!(represented(&packed), expected);
    // xarray's own notation of a floating-point number, and others.
    let number = of_xarray("float32", json!(1.5), Some(json!("AAAAAICHw8A=")));
    let item = |value: f32| Some(value.to_le_bytes().to_vec());
    assert_eq!(
        represented(&number),
        (json!(-9999.0), Some(json!(-9999.0)), item(1.5), item(-9999.0))
    );
    let number = of_xarray("float32", json!(1.5), Some(json!(-9999)));
    assert_eq!(represented(&number), (json!(-9999), Some(json!(-9999)), item(1.5), item(-9999.0)));
    let zero = of_xarray("float64", json!(0.0), Some(json!("AAAAAAAA+H8=")));
    let bits = |value: f64| Some(value.to_le_bytes().to_vec());
    assert_eq!(represented(&zero), (json!("NaN"), None, bits(0.0), bits(f64::NAN)));
    let parts = json!(["AAAAAAAA+H8=", "AAAAAAAA8D8="]);
    let complex = of_xarray("complex64", json!([0.0, 0.0]), Some(parts));
    assert_eq!(represented(&complex).0, json!(["NaN", 1.0]));
}

#[test]
fn an_array_without_a_missing_value_has_no_fill_value_in_zarr_v2() {
    for (data_type, fill_value) in
        [("int8", json!(0)), ("float64", json!(0.0)), ("bool", json!(false))]
    {
        let (shown, attribute, absent, removed) =
            represented(&of_xarray(data_type, fill_value, None));
        assert_eq!((shown, attribute, removed), (Value::Null, None, None), "{data_type}");
        assert!(absent.unwrap().iter().all(|byte| *byte == 0));
    }
    // NaN counts as a missing value without the attribute, too.
    let nan = of_xarray("float32", json!("NaN"), None);
    assert_eq!(represented(&nan), (json!("NaN"), None, None, None));
    // Without a fill value, readers assume zeros.
    let ones = of_xarray("int8", json!(1), None);
    assert_eq!(represented(&ones), (Value::Null, None, Some(vec![1]), Some(vec![0])));
}

#[test]
fn a_missing_value_that_is_the_fill_value_needs_no_chunks() {
    let nan = of_xarray("float32", json!("NaN"), Some(json!("AAAAAAAA+H8=")));
    assert_eq!(represented(&nan), (json!("NaN"), None, None, None));
    let nan = of_xarray("float64", json!("0x7ff8000000000001"), Some(json!("AAAAAAAA+H8=")));
    assert_eq!(represented(&nan), (json!("NaN"), None, None, None));
    let packed = of_xarray("int16", json!(-5), Some(json!(-5)));
    assert_eq!(represented(&packed), (json!(-5), Some(json!(-5)), None, None));
}

#[test]
fn missing_values_that_no_item_has_stay_attributes() {
    let odd = of_xarray("int8", json!(0), Some(json!(255)));
    assert_eq!(represented(&odd), (Value::Null, Some(json!(255)), Some(vec![0]), None));
    // No reader understands this value.
    let odd = of_xarray("int8", json!(0), Some(json!("x")));
    assert_eq!(represented(&odd), (json!(0), Some(json!("x")), None, None));
}

#[test]
fn arrays_whose_dimensions_have_no_names_have_the_fill_value_that_they_have() {
    let mut plain = of_xarray("int16", json!(0), Some(json!(-1)));
    plain.as_object_mut().unwrap().shift_remove("dimension_names");
    let array = array(&plain).unwrap();
    assert_eq!((&array.zarray["fill_value"], array.filled.is_some()), (&json!(0), false));
    assert_eq!(array.zattrs.unwrap()["_FillValue"], -1);
}

#[test]
fn without_chunks_in_the_place_of_absent_ones_the_fill_value_stays() {
    let packed = of_xarray("float32", json!(0.0), Some(json!("AAAAAICHw8A=")));
    let mut unknown = packed.clone();
    unknown["codecs"] = json!([{"name": "bytes"}, {"name": "numcodecs.lzma"}]);
    for (twin, missing) in [(&packed, Missing::Absent), (&unknown, Missing::Auto)] {
        let array = super::array(twin, missing).unwrap();
        assert!(array.is_misread && array.filled.is_none());
        assert_eq!(array.zarray["fill_value"], json!(0.0));
        assert_eq!(array.zattrs.unwrap()["_FillValue"], json!(-9999.0));
    }
    let array = super::array(&twin(), Missing::Fill).unwrap();
    assert!(array.filled.is_some_and(|filled| filled.removed.is_none()) && !array.is_misread);
}

#[test]
fn dimensions_of_a_scalar_are_an_empty_list() {
    let mut scalar = twin();
    (scalar["shape"], scalar["chunk_grid"]["configuration"]["chunk_shape"]) =
        (json!([]), json!([]));
    let zattrs = array(&scalar).unwrap().zattrs.unwrap();
    assert_eq!(zattrs, json!({"_ARRAY_DIMENSIONS": []}));
    let same = back(&scalar, &scalar, ZATTRS, Some(&zattrs)).unwrap();
    assert_eq!(same, scalar);
}

#[test]
fn missing_values_come_back() {
    let base64 = json!("AAAAAICHw8A=");
    let number = of_xarray("float32", json!(1.5), Some(base64.clone()));
    let shown = array(&number).unwrap();
    for (name, written) in [(ZARRAY, &shown.zarray), (ZATTRS, shown.zattrs.as_ref().unwrap())] {
        assert_eq!(back(&number, &number, name, Some(written)).unwrap(), number);
    }
    let back_to = |twin: &Value, written: Value| {
        let back = back(twin, twin, ZATTRS, Some(&written)).unwrap();
        (back["attributes"].clone(), back["fill_value"].clone())
    };
    let names = json!(["y", "x"]);
    let other = json!({"a": 1, "_ARRAY_DIMENSIONS": names});
    assert_eq!(back_to(&number, other), (json!({"a": 1, "_FillValue": base64}), json!(1.5)));
    // Without attributes, the missing value is kept.
    let none = back(&number, &number, ZATTRS, None).unwrap();
    assert_eq!(none["attributes"], json!({"_FillValue": base64}));
    // Another missing value is stored in xarray's notation.
    let other = json!({"_FillValue": -1.0, "_ARRAY_DIMENSIONS": names});
    assert_eq!(back_to(&number, other).0, json!({"_FillValue": "AAAAAAAA8L8="}));
    let plain = of_xarray("int16", json!(0), None);
    let other = json!({"_FillValue": -1, "_ARRAY_DIMENSIONS": names});
    assert_eq!(back_to(&plain, other), (json!({"_FillValue": -1}), json!(0)));
}

#[test]
fn a_fill_value_is_the_missing_value_once_the_dimensions_are_named() {
    let mut unnamed = of_xarray("int16", json!(-1), None);
    unnamed.as_object_mut().unwrap().shift_remove("dimension_names");
    let names = json!({"units": "K", "_ARRAY_DIMENSIONS": ["y", "x"]});
    let back = |fill_value: Option<Value>, written: &Value| {
        let created_fill = fill_value.as_ref();
        let shown = Shown { twin: &unnamed, missing: Missing::Auto, created_fill };
        super::back(&unnamed, &shown, ZATTRS, Some(written)).unwrap()
    };
    let named = back(Some(json!(-1)), &names);
    assert_eq!(named["attributes"], json!({"units": "K", "_FillValue": -1}));
    assert_eq!(array(&named).unwrap().zarray["fill_value"], -1);
    let none = back(Some(Value::Null), &names);
    assert_eq!(none["attributes"], json!({"units": "K"}));
    assert_eq!(array(&none).unwrap().zarray["fill_value"], json!(null));
    // Without names, attributes are attributes.
    assert_eq!(back(Some(json!(-1)), &json!({"a": 1}))["attributes"], json!({"a": 1}));
    // An array of Zarr v3 has no missing value because it gets names.
    assert_eq!(back(None, &names), none);
}
