//! Golden documents, refused documents, and the round trip.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::*;
use crate::format::json;
use crate::format::pipeline::Pipeline;
use crate::format::zarr2::{Missing, array};

fn zarray() -> Value {
    json!({"zarr_format": 2, "shape": [8, 6], "chunks": [2, 3], "dtype": "<f4", "compressor": null,
        "fill_value": 0.1, "order": "C", "filters": null})
}

fn with(member: &str, value: Value) -> Value {
    let mut zarray = zarray();
    zarray[member] = value;
    zarray
}

#[track_caller]
fn member(zarray: &Value, member: &str) -> Value {
    to_zarr3(zarray, None).unwrap()[member].clone()
}

/// Returns the codecs for items `dtype` with these filters and this compressor.
fn codecs(dtype: &str, filters: Value, compressor: Value) -> Result<Value, String> {
    let mut zarray = with("dtype", json!(dtype));
    zarray["fill_value"] = Value::Null;
    zarray["filters"] = filters;
    zarray["compressor"] = compressor;
    let twin = to_zarr3(&zarray, None);
    twin.map(|mut twin| twin["codecs"].take()).map_err(|error| error.to_string())
}

fn codec(name: &str, configuration: Value) -> Value {
    json!({"name": name, "configuration": configuration})
}

fn little() -> Value {
    codec("bytes", json!({"endian": "little"}))
}

#[track_caller]
fn refused(name: &str, value: Value, text: &str) {
    assert_eq!(to_zarr3(&with(name, value), None).unwrap_err().to_string(), text);
}

#[test]
fn a_whole_array() {
    let mut zarray = with("dtype", json!(">i2"));
    zarray["fill_value"] = json!(-3);
    zarray["order"] = json!("F");
    zarray["compressor"] = json!({"id": "zstd", "level": 3});
    zarray["dimension_separator"] = json!("/");
    let zattrs = json!({"units": "m", "gain": 2.50, "_ARRAY_DIMENSIONS": ["y", "x"]});
    let attributes = json!({"units": "m", "gain": 2.50, "_FillValue": -3});
    let expected = json!({
        "zarr_format": 3, "node_type": "array", "shape": [8, 6], "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}},
        "fill_value": -3,
        "codecs": [
            {"name": "transpose", "configuration": {"order": [1, 0]}},
            {"name": "bytes", "configuration": {"endian": "big"}},
            {"name": "zstd", "configuration": {"level": 3, "checksum": false}}],
        "attributes": attributes, "dimension_names": ["y", "x"]});
    assert_eq!(to_zarr3(&zarray, Some(&zattrs)).unwrap(), expected);
    assert_eq!(layout(&zarray).unwrap().chunk_grid(), [4, 2]);
}

#[test]
fn groups_and_their_attributes() {
    let attributes = json!({"a": [1]});
    let expected = json!({"zarr_format": 3, "node_type": "group", "attributes": {"a": [1]}});
    let group = group_to_zarr3(&json!({"zarr_format": 2}), Some(&attributes));
    assert_eq!(group.unwrap(), expected);
    let error = group_to_zarr3(&json!({"zarr_format": 3}), None).unwrap_err();
    assert_eq!(error.to_string(), "zarr_format must be 2");
}

#[test]
fn keys_names_and_rank_0() {
    assert_eq!(member(&zarray(), "chunk_key_encoding")["configuration"]["separator"], ".");
    let named = |names: Value| {
        let twin = to_zarr3(&zarray(), Some(&json!({"_ARRAY_DIMENSIONS": names}))).unwrap();
        // The names are in exactly one of the two places.
        let attribute = twin["attributes"].get("_ARRAY_DIMENSIONS").cloned();
        assert_eq!(attribute.xor(twin.get("dimension_names").cloned()), Some(names));
        twin.get("dimension_names").cloned()
    };
    assert_eq!(named(json!(["y", "x"])), Some(json!(["y", "x"])));
    for other in [json!(["y"]), json!(["y", null]), json!("y"), json!(["y", 1])] {
        assert_eq!(named(other), None);
    }
    let mut scalar = with("order", json!("F"));
    scalar["shape"] = json!([]);
    scalar["chunks"] = json!([]);
    assert_eq!(member(&scalar, "codecs"), json!([little()]));
}

#[test]
fn data_types_and_fill_values() {
    let read = |dtype: Value, fill: &str| {
        let mut zarray = with("dtype", dtype);
        zarray["fill_value"] = json::parse(fill.as_bytes()).unwrap();
        let twin = to_zarr3(&zarray, None).unwrap();
        (twin["data_type"].clone(), twin["fill_value"].to_string())
    };
    let plain = |dtype: &str, fill: &str| {
        let (data_type, fill) = read(json!(dtype), fill);
        (data_type.as_str().unwrap().to_owned(), fill)
    };
    let expected = |name: &str, fill: &str| (name.to_owned(), fill.to_owned());
    assert_eq!(plain("|b1", "true"), expected("bool", "true"));
    assert_eq!(plain("|b1", "null"), expected("bool", "false"));
    assert_eq!(plain("|i1", "-1"), expected("int8", "-1"));
    assert_eq!(plain("<i8", "1.0"), expected("int64", "1"));
    assert_eq!(plain(">u8", "18446744073709551615"), expected("uint64", "18446744073709551615"));
    assert_eq!(plain("<u2", "null"), expected("uint16", "0"));
    assert_eq!(plain("<f2", "\"NaN\""), expected("float16", "\"NaN\""));
    assert_eq!(plain("<f4", "NaN"), expected("float32", "\"NaN\""));
    assert_eq!(plain("<f8", "-Infinity"), expected("float64", "\"-Infinity\""));
    assert_eq!(plain("<f8", "-0.0"), expected("float64", "-0.0"));
    assert_eq!(plain("<f8", "null"), expected("float64", "0.0"));
    assert_eq!(plain("<c8", "[1.5, \"NaN\"]"), expected("complex64", "[1.5,\"NaN\"]"));
    assert_eq!(plain(">c16", "null"), expected("complex128", "[0.0,0.0]"));
    let configured = |dtype: &str, fill: &str| {
        let (data_type, fill) = read(json!(dtype), fill);
        (data_type["name"].as_str().unwrap().to_owned(), data_type["configuration"].clone(), fill)
    };
    let expected = |name: &str, configuration: Value, fill: &str| {
        (name.to_owned(), configuration, fill.to_owned())
    };
    let length = |length: u64| json!({"length_bytes": length});
    let time = |unit: &str, scale: u64| json!({"unit": unit, "scale_factor": scale});
    let s4 = |fill| configured("|S4", fill);
    assert_eq!(s4("\"YWI=\""), expected("null_terminated_bytes", length(4), "\"YWI=\""));
    for nothing in ["null", "0", "\"\""] {
        assert_eq!(s4(nothing), expected("null_terminated_bytes", length(4), "\"\""));
        assert_eq!(configured("<U2", nothing).2, "\"\"");
    }
    assert_eq!(configured("<U2", "\"é\""), expected("fixed_length_utf32", length(8), "\"é\""));
    assert_eq!(configured("|V2", "\"AQI=\""), expected("raw_bytes", length(2), "\"AQI=\""));
    assert_eq!(configured("|V2", "null").2, "\"AAA=\"");
    assert_eq!(configured("<M8[ns]", "0"), expected("numpy.datetime64", time("ns", 1), "0"));
    assert_eq!(configured(">m8[25s]", "-1"), expected("numpy.timedelta64", time("s", 25), "-1"));
    let nat = "-9223372036854775808";
    assert_eq!(configured("<M8[D]", nat).2, nat);
    for dtype in ["<M8[D]", ">M8[s]", "<m8[ns]"] {
        assert_eq!(configured(dtype, "null").2, nat, "{dtype}");
    }

    let records = json!([["x", "<i4"], ["name", "|S2"]]);
    let (data_type, fill) = read(records.clone(), "null");
    assert_eq!(data_type["name"], "structured");
    let fields = json!([["x", "int32"], ["name", codec("null_terminated_bytes", length(2))]]);
    assert_eq!(data_type["configuration"]["fields"], fields);
    assert_eq!(fill, "\"AAAAAAAA\"");
    assert_eq!(read(records, "\"AQAAAGFi\"").1, "\"AQAAAGFi\"");
}

#[test]
fn objects() {
    let of = |codec: &str, fill: Value, compressor: Value| {
        let mut zarray = with("dtype", json!("|O"));
        zarray["filters"] = json!([{"id": codec}]);
        zarray["fill_value"] = fill;
        zarray["compressor"] = compressor;
        let twin = to_zarr3(&zarray, None).unwrap();
        (twin["data_type"].clone(), twin["fill_value"].clone(), twin["codecs"].clone())
    };
    let texts = json!([{"name": "vlen-utf8"}]);
    assert_eq!(of("vlen-utf8", json!("?"), Value::Null), (json!("string"), json!("?"), texts));
    let bytes = json!([{"name": "vlen-bytes"},
        codec("gzip", json!({"level": 2}))]);
    let found = of("vlen-bytes", json!(0), json!({"id": "gzip", "level": 2}));
    assert_eq!(found, (json!("variable_length_bytes"), json!(""), bytes));
}

#[test]
fn compressors() {
    let of = |compressor: Value| Ok(codecs("<f4", Value::Null, compressor)?[1].clone());
    let blosc = |shuffle: &str| {
        Ok::<_, String>(codec(
            "blosc",
            json!({"typesize": 4, "cname": "zstd", "clevel": 3, "shuffle": shuffle, "blocksize": 0}),
        ))
    };
    for (number, word) in [(0, "noshuffle"), (1, "shuffle"), (2, "bitshuffle"), (-1, "shuffle")] {
        let stored = json!({"id": "blosc", "cname": "zstd", "clevel": 3, "shuffle": number});
        assert_eq!(of(stored), blosc(word));
    }
    assert_eq!(of(json!({"id": "gzip"})), Ok(codec("gzip", json!({"level": 1}))));
    assert_eq!(
        of(json!({"id": "gzip", "level": -1})),
        Ok(codec("numcodecs.gzip", json!({"level": -1})))
    );
    let zstd = json!({"id": "zstd", "level": 5, "checksum": true});
    assert_eq!(of(zstd), Ok(codec("zstd", json!({"level": 5, "checksum": true}))));
    for id in ["zlib", "bz2", "lz4", "lzma"] {
        let expected = codec(&format!("numcodecs.{id}"), json!({"level": 2}));
        assert_eq!(of(json!({"id": id, "level": 2})), Ok(expected));
    }
    assert_eq!(of(json!({"id": "crc32c", "location": "end"})), Ok(json!({"name": "crc32c"})));
    let start = json!({"location": "start"});
    let stored = json!({"id": "crc32c", "location": "start"});
    assert_eq!(of(stored), Ok(codec("numcodecs.crc32c", start)));
    let no = "codec {\"id\":\"zfpy\"} has no form in Zarr v3";
    assert_eq!(of(json!({"id": "zfpy"})), Err(no.to_owned()));
}

#[test]
fn filters_keep_their_order() {
    let shuffle = json!({"id": "shuffle", "elementsize": 2});
    let shuffle3 = codec("numcodecs.shuffle", json!({"elementsize": 2}));
    let scale = json!({"id": "fixedscaleoffset", "scale": 10, "offset": 0, "dtype": "<f4",
        "astype": ">i2"});
    let delta = json!({"id": "delta", "dtype": ">i2", "astype": ">i2"});
    let found = codecs("<f4", json!([scale, delta, shuffle]), json!({"id": "blosc"})).unwrap();
    let names: Vec<_> = found.as_array().unwrap().iter().map(|codec| &codec["name"]).collect();
    let expected =
        ["numcodecs.fixedscaleoffset", "numcodecs.delta", "bytes", "numcodecs.shuffle", "blosc"];
    assert_eq!(names, expected);
    assert_eq!(found[2]["configuration"]["endian"], "big");
    assert_eq!((&found[3], &found[4]["configuration"]["typesize"]), (&shuffle3, &json!(1)));
    let packed = codecs("|b1", json!([{"id": "packbits"}]), Value::Null).unwrap();
    assert_eq!(packed, json!([codec("numcodecs.packbits", json!({})), {"name": "bytes"}]));
    let times = codecs("<M8[s]", json!([{"id": "delta", "dtype": "<i8"}]), Value::Null).unwrap();
    assert_eq!(times, json!([codec("numcodecs.delta", json!({"dtype": "<i8"})), little()]));
}

#[test]
fn filters_without_a_form() {
    let delta = |dtype: &str| json!({"id": "delta", "dtype": dtype});
    let no = |filter: &str, found: &str, items: &str| {
        Err(format!("filter {filter:?} of items {found} on items {items} has no form in Zarr v3"))
    };
    let none = Value::Null;
    assert_eq!(
        codecs("<f4", json!([delta("<i4")]), none.clone()),
        no("delta", "\"int32\"", "\"float32\"")
    );
    let big = "\"int32\", most significant byte first";
    assert_eq!(codecs("<i4", json!([delta(">i4")]), none.clone()), no("delta", big, "\"int32\""));
    let narrow = json!({"id": "quantize", "digits": 1, "dtype": "<f8", "astype": "<f4"});
    assert_eq!(
        codecs("<f8", json!([narrow]), none.clone()),
        no("quantize", "\"float32\"", "\"float64\"")
    );
    assert_eq!(
        codecs("<i4", json!([{"id": "zlib"}, delta("<i4")]), none.clone()),
        Err("filter \"delta\" behind a codec that makes bytes has no form in Zarr v3".to_owned())
    );
    assert_eq!(
        codecs("|O", json!([{"id": "json2"}]), none.clone()),
        Err("objects without the filter vlen-utf8 or vlen-bytes have no form in Zarr v3".to_owned())
    );
}

#[test]
fn each_defect_is_named() {
    refused("zarr_format", json!(3), "zarr_format must be 2");
    refused("order", json!("A"), "order must be \"C\" or \"F\"");
    refused("chunks", json!([2]), "chunks has 1 entry, the array has 2 dimensions");
    refused("shape", json!([-1, 2]), "shape must be a list of whole numbers from 0 to 2^64-1");
    refused("dimension_separator", json!("x"), "dimension_separator must be \"/\" or \".\"");
    refused("filters", json!({}), "filters must be a list or null");
    refused("compressor", json!({"level": 1}), "filters and compressor must be objects with an id");
    refused("dtype", json!("<f16"), "data type \"<f16\" has no form in Zarr v3");
    refused("dtype", json!("|V0"), "data type \"|V0\" has no form in Zarr v3");
    refused("dtype", json!("|S99999999"), "data type \"|S99999999\" has no form in Zarr v3");
    refused("dtype", json!([]), "data type [] has no form in Zarr v3");
    for fields in
        [json!([["x", ">i4"]]), json!([["x", "<i4", [2]]]), json!([["x", [["y", "<i4"]]]])]
    {
        refused("dtype", fields.clone(), &format!("data type {fields} has no form in Zarr v3"));
    }
    let fill = "fill value \"?\" of data type \"<f4\" has no form in Zarr v3";
    refused("fill_value", json!("?"), fill);
    assert_eq!(to_zarr3(&json!([]), None).unwrap_err().to_string(), "it is not a JSON object");
    let error = to_zarr3(&zarray(), Some(&json!([]))).unwrap_err().to_string();
    assert_eq!(error, "attributes must be an object");
}

/// Data types that Zarr v2 has, each with a fill value and a byte order.
fn data_types() -> impl Strategy<Value = (Value, Value, Option<&'static str>)> {
    let of = |name: &str, configuration: Value| codec(name, configuration);
    select(vec![
        (json!("bool"), json!(true), None),
        (json!("int8"), json!(-7), None),
        (json!("uint16"), json!(65535), Some("little")),
        (json!("int32"), json!(-1), Some("big")),
        (json!("uint64"), json!(u64::MAX), Some("big")),
        (json!("float16"), json!("NaN"), Some("little")),
        (json!("float32"), json!(0.5), Some("big")),
        (json!("float64"), json!("-Infinity"), Some("little")),
        (json!("complex64"), json!([0.5, "NaN"]), Some("big")),
        (json!("r24"), json!([1, 2, 3]), None),
        (of("raw_bytes", json!({"length_bytes": 3})), json!("AQID"), None),
        (of("null_terminated_bytes", json!({"length_bytes": 5})), json!("YWI="), None),
        (of("fixed_length_utf32", json!({"length_bytes": 8})), json!("é"), Some("big")),
        (
            of("numpy.datetime64", json!({"unit": "ms", "scale_factor": 25})),
            json!("NaT"),
            Some("little"),
        ),
    ])
}

/// Bytes->bytes codecs that both versions have.
fn bytes_codecs() -> impl Strategy<Value = Vec<Value>> {
    let blosc = json!({"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4,
        "blocksize": 0});
    let codecs = select(vec![
        codec("gzip", json!({"level": 6})),
        codec("zstd", json!({"level": 2, "checksum": true})),
        codec("blosc", blosc),
        json!("crc32c"),
        codec("numcodecs.zlib", json!({"level": 3})),
        codec("numcodecs.lz4", json!({"acceleration": 1})),
        // Length 1, because the output of a compressor need not be a multiple of a larger element.
        codec("numcodecs.shuffle", json!({"elementsize": 1})),
        codec("numcodecs.adler32", json!({})),
    ]);
    proptest::collection::vec(codecs, 0..4)
}

proptest! {
    /// An array with a Zarr v2 form is translated back to an array with the same chunk bytes.
    #[test]
    fn there_and_back(
        (data_type, fill, endian) in data_types(),
        bytes in bytes_codecs(),
        is_reversed: bool,
        slash: bool,
    ) {
        let mut codecs = vec![json!({"name": "bytes"})];
        if let Some(endian) = endian {
            codecs[0] = codec("bytes", json!({"endian": endian}));
        }
        if is_reversed {
            codecs.insert(0, codec("transpose", json!({"order": [1, 0]})));
        }
        codecs.extend(bytes);
        let separator = if slash { "/" } else { "." };
        let twin = json!({
            "zarr_format": 3, "node_type": "array", "shape": [8, 6], "data_type": data_type,
            "chunk_grid": codec("regular", json!({"chunk_shape": [2, 3]})),
            "chunk_key_encoding": codec("default", json!({"separator": separator})),
            "fill_value": fill, "codecs": codecs, "attributes": {"a": 1},
            "dimension_names": ["y", "x"]});
        let documents = |twin: &Value| {
            let two = array(twin, Missing::Absent).unwrap();
            let mut attributes = two.zattrs.unwrap();
            // In Zarr v2 a fill value is also a missing value.
            attributes.as_object_mut().unwrap().shift_remove("_FillValue");
            (two.zarray, attributes)
        };
        let two = documents(&twin);
        let back = to_zarr3(&two.0, Some(&two.1)).unwrap();
        // The documents in Zarr v2 are the same again,
        prop_assert_eq!(&documents(&back), &two);
        prop_assert_eq!(&back["dimension_names"], &twin["dimension_names"]);
        // and chunks of one array can be decoded as those of the other.
        let (ours, theirs) = (Pipeline::parse(&twin).unwrap(), Pipeline::parse(&back).unwrap());
        prop_assert_eq!(ours.fill(), theirs.fill());
        let chunk: Vec<u8> = (0..=u8::MAX).step_by(7).cycle().take(ours.nbytes()).collect();
        let chunk = if data_type == "bool" { vec![1; ours.nbytes()] } else { chunk };
        let mut decoded = vec![0; chunk.len()];
        theirs.decode(&ours.encode(&chunk).unwrap(), &mut decoded).unwrap();
        prop_assert_eq!(decoded, chunk);
    }
}

#[test]
fn a_fill_value_of_xarray_is_its_missing_value() {
    let read = |dtype: &str, fill_value: Value, zattrs: Value| {
        let mut zarray = with("dtype", json!(dtype));
        zarray["fill_value"] = fill_value;
        let twin = to_zarr3(&zarray, Some(&zattrs)).unwrap();
        (twin["fill_value"].clone(), twin["attributes"].get("_FillValue").cloned())
    };
    let named = || json!({"_ARRAY_DIMENSIONS": ["y", "x"]});
    let nan = Some(json!("AAAAAAAA+H8="));
    assert_eq!(read("<i2", json!(-32768), named()), (json!(-32768), Some(json!(-32768))));
    assert_eq!(read("<f4", json!("NaN"), named()), (json!("NaN"), nan.clone()));
    let number = (json!(-9999.0), Some(json!("AAAAAICHw8A=")));
    assert_eq!(read(">f8", json!(-9999.0), named()), number);
    let parts = json!(["AAAAAAAA+H8=", "AAAAAAAAAAA="]);
    assert_eq!(read("<c8", json!(["NaN", 0.0]), named()), (json!(["NaN", 0.0]), Some(parts)));
    assert_eq!(read("|b1", json!(true), named()), (json!(true), Some(json!(true))));
    // No fill value, and a missing value that is ignored beside a fill value.
    assert_eq!(read("<i2", Value::Null, named()), (json!(0), None));
    let both = json!({"_ARRAY_DIMENSIONS": ["y", "x"], "_FillValue": 7});
    assert_eq!(read("<i2", json!(1), both.clone()), (json!(1), Some(json!(1))));
    assert_eq!(read("<f4", Value::Null, both).1, Some(json!("AAAAAAAAHEA=")));
    // xarray reads none of these from an attribute.
    assert_eq!(read("|S2", json!("YQ=="), named()), (json!("YQ=="), None));
    // Without names of dimensions, the fill value is not a missing value.
    assert_eq!(read("<f4", json!("NaN"), json!({})), (json!("NaN"), None));
}
