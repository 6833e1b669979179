//! Translation of filters and compressors of Zarr v2 to codecs of Zarr v3.

use serde_json::{Map, Value, json};

use super::error::NoTwin;
use super::items::{ArrayItems, short};
use crate::format::error::MetadataError;
use crate::format::numpy::Items;
use crate::format::zarr2::chain::{NUMCODECS, OF_ARRAYS, OF_BYTES};

/// Maximum level of the codec `zstd` in Zarr v3.
const MAX_ZSTD_LEVEL: i64 = 22;

/// Returns filters and compressor in encoding order. Fails if one has no id.
pub(super) fn list(zarray: &Value) -> Result<Vec<Value>, MetadataError> {
    let mut codecs = match zarray.get("filters") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(filters)) => filters.clone(),
        Some(_) => return Err(MetadataError::invalid("filters", "a list or null")),
    };
    let compressor = zarray.get("compressor").filter(|compressor| !compressor.is_null());
    codecs.extend(compressor.cloned());
    match codecs.iter().all(|codec| codec.get("id").is_some_and(Value::is_string)) {
        true => Ok(codecs),
        false => Err(MetadataError::invalid("filters and compressor", "objects with an id")),
    }
}

/// Translates codecs to Zarr v3, for chunks of `rank` dimensions.
pub(super) fn translate(
    codecs: &[Value],
    array: &ArrayItems,
    is_reversed: bool,
    rank: usize,
) -> Result<Vec<Value>, NoTwin> {
    let mut done = Vec::new();
    if is_reversed {
        let order: Vec<usize> = (0..rank).rev().collect();
        done.push(json!({"name": "transpose", "configuration": {"order": order}}));
    }
    let mut rest = codecs.iter().peekable();
    // The output of a codec is bytes: items of length 1.
    let mut nbytes = 1;
    match array.fixed() {
        None => {
            done.push(json!({"name": array.object_codec()}));
            rest.next();
        }
        Some(items) => {
            let mut items = items.clone();
            while let Some(filter) = rest.next_if(|codec| is_of_arrays(id(codec))) {
                items = filtered(filter, &items)?;
                done.push(own(filter));
            }
            done.push(items.codec());
            nbytes = items.nbytes;
        }
    }
    for codec in rest {
        done.push(of_bytes(codec, nbytes)?);
        nbytes = 1;
    }
    Ok(done)
}

fn id(codec: &Value) -> &str {
    codec["id"].as_str().unwrap_or_default()
}

fn is_of_arrays(id: &str) -> bool {
    OF_ARRAYS.iter().any(|(known, _)| *known == id)
}

/// Returns the output items of a filter. The items that the filter assumes must be those of its
/// input: zarr-python 3 does not reinterpret the bytes of a chunk after undoing a filter.
fn filtered(filter: &Value, items: &Items) -> Result<Items, NoTwin> {
    let id = id(filter);
    let named = |member: &str| {
        let text = filter.get(member).filter(|value| !value.is_null());
        let none = || NoTwin::DataType(text.map(short).unwrap_or_default());
        text.map(|text| text.as_str().and_then(Items::parse).ok_or_else(none)).transpose()
    };
    let (from, to) = match id {
        "astype" => (named("decode_dtype")?, named("encode_dtype")?),
        "packbits" => (Items::parse("bool"), Items::parse("|u1")),
        "bitround" => (None, None),
        _ => (named("dtype")?, named("astype")?),
    };
    let from = from.unwrap_or_else(|| items.clone());
    let reinterpreted = |found: &Items, items: &Items| NoTwin::Reinterpreted {
        filter: id.to_owned(),
        found: name(found),
        items: name(items),
    };
    if from != *items && !is_of_times(&from, items) {
        return Err(reinterpreted(&from, items));
    }
    let to = to.unwrap_or_else(|| from.clone());
    // zarr-python 3 interprets the stored items as those of the array.
    if id == "quantize" && to != *items {
        return Err(reinterpreted(&to, items));
    }
    Ok(to)
}

/// Returns whether a filter works on integers and the items are times, which are stored as such.
fn is_of_times(filter: &Items, items: &Items) -> bool {
    let is_time = items.data_type["name"].as_str().is_some_and(|name| name.starts_with("numpy."));
    is_time && filter.data_type == "int64" && filter.big_endian == items.big_endian
}

fn name(items: &Items) -> String {
    let order = if items.big_endian == Some(true) { ", most significant byte first" } else { "" };
    format!("{}{order}", short(&items.data_type))
}

/// Translates a bytes->bytes codec whose input has items of `nbytes`.
fn of_bytes(codec: &Value, nbytes: u64) -> Result<Value, NoTwin> {
    let id = id(codec);
    let option = |member: &str, usual: Value| match codec.get(member) {
        None | Some(Value::Null) => usual,
        Some(value) => value.clone(),
    };
    let named =
        |name: &str, configuration: Value| json!({"name": name, "configuration": configuration});
    Ok(match id {
        "gzip" => match option("level", json!(1)) {
            level if level.as_u64().is_some_and(|level| level <= 9) => {
                named("gzip", json!({"level": level}))
            }
            _ => own(codec),
        },
        "zstd" => match option("level", json!(0)) {
            level if level.as_i64().is_some_and(|level| level <= MAX_ZSTD_LEVEL) => {
                let checksum = option("checksum", json!(false));
                named("zstd", json!({"level": level, "checksum": checksum}))
            }
            _ => own(codec),
        },
        "blosc" => named(
            "blosc",
            json!({
                "typesize": nbytes,
                "cname": option("cname", json!("lz4")),
                "clevel": option("clevel", json!(5)),
                "shuffle": shuffle(codec, nbytes)?,
                "blocksize": option("blocksize", json!(0)),
            }),
        ),
        "crc32c" if option("location", json!("end")) == "end" => json!({"name": "crc32c"}),
        "shuffle" => {
            let elementsize = option("elementsize", json!(4));
            named("numcodecs.shuffle", json!({"elementsize": elementsize}))
        }
        id if OF_BYTES.contains(&id) => own(codec),
        id if is_of_arrays(id) => return Err(NoTwin::FilterOfBytes(id.to_owned())),
        _ => return Err(NoTwin::Codec(short(codec))),
    })
}

/// Returns the name of a shuffle of Blosc; for -1 numcodecs chooses by the length of items.
fn shuffle(codec: &Value, nbytes: u64) -> Result<&'static str, NoTwin> {
    match codec.get("shuffle").map_or(Some(1), Value::as_i64) {
        Some(0) => Ok("noshuffle"),
        Some(-1) if nbytes == 1 => Ok("bitshuffle"),
        Some(1 | -1) => Ok("shuffle"),
        Some(2) => Ok("bitshuffle"),
        _ => Err(NoTwin::Codec(short(codec))),
    }
}

/// Returns a codec of numcodecs under its own name and with its own configuration.
fn own(codec: &Value) -> Value {
    let members = codec.as_object().into_iter().flatten().filter(|(member, _)| *member != "id");
    let configuration: Map<String, Value> =
        members.map(|(member, value)| (member.clone(), value.clone())).collect();
    json!({"name": format!("{NUMCODECS}{}", id(codec)), "configuration": configuration})
}
