//! Translation of a codec chain of Zarr v3 to Zarr v2: byte order, order of the axes, filters and
//! compressor.
//!
//! zarr-python 2 encodes a chunk with each filter in turn, then with the compressor; both can be
//! any codec of numcodecs. So bytes->bytes codecs become filters, and the last of them the
//! compressor.

use serde_json::{Map, Value, json};

use super::data_type::DataType2;
use super::error::NoForm;
use crate::format::codec::{Codec, transpose_order};
use crate::format::error::MetadataError;

/// Prefix, before the `id`, of the names of numcodecs' own codecs in Zarr v3.
pub(super) const NUMCODECS: &str = "numcodecs.";
/// Codecs of numcodecs that are bytes->bytes codecs in zarr-python 3.
pub(super) const OF_BYTES: [&str; 13] = [
    "adler32",
    "blosc",
    "bz2",
    "crc32",
    "crc32c",
    "fletcher32",
    "gzip",
    "jenkins_lookup3",
    "lz4",
    "lzma",
    "shuffle",
    "zlib",
    "zstd",
];
/// Codecs of numcodecs that are array->array codecs in zarr-python 3, each with the member of its
/// configuration whose default is the array's data type.
pub(super) const OF_ARRAYS: [(&str, Option<&str>); 6] = [
    ("astype", Some("decode_dtype")),
    ("bitround", None),
    ("delta", Some("dtype")),
    ("fixedscaleoffset", Some("dtype")),
    ("packbits", None),
    ("quantize", Some("dtype")),
];

/// Codecs of an array in Zarr v2.
#[derive(Debug)]
pub(super) struct Chain2 {
    /// Order of the axes within a chunk, `"C"` or `"F"`.
    pub order: &'static str,
    /// `true` if the most significant byte of an item comes first.
    pub big_endian: bool,
    /// Filters in encoding order.
    pub filters: Vec<Value>,
    /// Compressor, applied after the filters, or null.
    pub compressor: Value,
}

impl Chain2 {
    /// Translates the codecs of an array with chunks of `chunk_shape`.
    pub(super) fn of(
        codecs: &[Codec],
        chunk_shape: &[u64],
        data_type: &DataType2,
    ) -> Result<Self, NoForm> {
        let to_bytes = ["bytes", "vlen-utf8", "vlen-bytes"];
        let Some(at) = codecs.iter().position(|codec| to_bytes.contains(&codec.name.as_str()))
        else {
            let unknown =
                codecs.iter().find(|codec| !is_filter(codec) && codec.name != "transpose");
            return Err(match unknown {
                Some(codec) => NoForm::Codec(codec.name.clone()),
                None => {
                    MetadataError::invalid("codecs", "a list with an array->bytes codec").into()
                }
            });
        };
        let (before, after) = (&codecs[..at], &codecs[at + 1..]);
        let big_endian = serialised(&codecs[at], data_type)?;
        let order = order(before, chunk_shape)?;
        let mut filters = array_filters(before, order, big_endian, data_type)?;
        if let Some(id) = data_type.object_codec() {
            filters.push(json!({"id": id}));
        }
        for codec in after {
            filters.push(of_bytes(codec)?);
        }
        let compressor = if after.is_empty() { None } else { filters.pop() };
        Ok(Self { order, big_endian, filters, compressor: compressor.unwrap_or(Value::Null) })
    }
}

/// Returns whether an array->bytes codec stores items in big-endian byte order. Fails if the codec
/// does not suit the data type.
fn serialised(codec: &Codec, data_type: &DataType2) -> Result<bool, NoForm> {
    if codec.name != data_type.object_codec().unwrap_or("bytes") {
        return Err(NoForm::Serialised {
            codec: codec.name.clone(),
            data_type: data_type.name().to_owned(),
        });
    }
    match codec.option("endian").map(Value::as_str) {
        None | Some(Some("little")) => Ok(false),
        Some(Some("big")) => Ok(true),
        Some(_) => Err(MetadataError::invalid("endian", "\"little\" or \"big\"").into()),
    }
}

/// Returns the order of the axes after all transposes. Axes of length 1 can be anywhere.
fn order(before: &[Codec], chunk_shape: &[u64]) -> Result<&'static str, NoForm> {
    let rank = chunk_shape.len();
    let mut axes: Vec<usize> = (0..rank).collect();
    for codec in before.iter().filter(|codec| codec.name == "transpose") {
        axes = transpose_order(codec, rank)?.into_iter().map(|axis| axes[axis]).collect();
    }
    axes.retain(|axis| chunk_shape[*axis] != 1);
    if axes.is_sorted() {
        Ok("C")
    } else if axes.is_sorted_by(|a, b| a > b) {
        Ok("F")
    } else {
        Err(NoForm::Transpose)
    }
}

/// Returns whether a codec is one of numcodecs' array->array codecs.
fn is_filter(codec: &Codec) -> bool {
    let id = codec.name.strip_prefix(NUMCODECS);
    id.is_some_and(|id| OF_ARRAYS.iter().any(|(known, _)| *known == id))
}

/// Translates the array->array codecs other than transposes.
///
/// In Zarr v2 the output of a filter is stored unchanged. In Zarr v3 transposes and the byte order
/// are applied after it, and the filter's `dtype` cannot express them, so C order and little-endian
/// are required.
fn array_filters(
    before: &[Codec],
    order: &str,
    big_endian: bool,
    data_type: &DataType2,
) -> Result<Vec<Value>, NoForm> {
    let mut filters = Vec::new();
    for codec in before.iter().filter(|codec| codec.name != "transpose") {
        let none = || NoForm::Codec(codec.name.clone());
        let id = codec.name.strip_prefix(NUMCODECS).ok_or_else(none)?;
        let (_, typed) = OF_ARRAYS.iter().find(|(known, _)| *known == id).ok_or_else(none)?;
        if order != "C" {
            return Err(NoForm::TransposedFilter(codec.name.clone()));
        }
        let mut filter = with_id(id, codec)?;
        let is_big = |value: &Value| value.as_str().is_some_and(|text| text.starts_with('>'));
        if big_endian || filter.values().any(is_big) {
            return Err(NoForm::SwappedFilter(codec.name.clone()));
        }
        if let Some(member) = typed
            && filter.get(*member).is_none_or(Value::is_null)
        {
            // The data type after an earlier filter is not determined.
            if !filters.is_empty() {
                return Err(NoForm::Option { codec: codec.name.clone(), member });
            }
            filter.insert((*member).to_owned(), data_type.descr(false).into());
        }
        filters.push(Value::Object(filter));
    }
    Ok(filters)
}

/// Translates a bytes->bytes codec to numcodecs.
fn of_bytes(codec: &Codec) -> Result<Value, NoForm> {
    let option = |member, usual: Value| codec.option(member).cloned().unwrap_or(usual);
    Ok(match codec.name.as_str() {
        "gzip" => json!({"id": "gzip", "level": option("level", json!(5))}),
        "zstd" => {
            let mut zstd = json!({"id": "zstd", "level": option("level", json!(0))});
            // numcodecs before 0.13 does not know the member.
            if codec.option("checksum") == Some(&Value::Bool(true)) {
                zstd["checksum"] = true.into();
            }
            zstd
        }
        "blosc" => json!({
            "id": "blosc",
            "cname": option("cname", json!("zstd")),
            "clevel": option("clevel", json!(5)),
            "shuffle": shuffle(codec.option("shuffle"))?,
            "blocksize": option("blocksize", json!(0)),
        }),
        "crc32c" => json!({"id": "crc32c"}),
        name => match name.strip_prefix(NUMCODECS) {
            // The length of an item is a member that zarr-python 3 always stores.
            Some("shuffle") if codec.option("elementsize").is_none_or(Value::is_null) => {
                return Err(NoForm::Option { codec: name.to_owned(), member: "elementsize" });
            }
            Some(id) if OF_BYTES.contains(&id) => Value::Object(with_id(id, codec)?),
            _ => return Err(NoForm::Codec(name.to_owned())),
        },
    })
}

/// Returns numcodecs' number for a shuffle of Blosc.
fn shuffle(value: Option<&Value>) -> Result<u8, NoForm> {
    match value.and_then(Value::as_str) {
        Some("noshuffle") => Ok(0),
        Some("shuffle") => Ok(1),
        Some("bitshuffle") => Ok(2),
        None if value.is_none() => Ok(1),
        _ => Err(MetadataError::invalid("shuffle", "noshuffle, shuffle or bitshuffle").into()),
    }
}

/// Returns the configuration of a codec, preceded by its id.
fn with_id(id: &str, codec: &Codec) -> Result<Map<String, Value>, NoForm> {
    let mut with_id = Map::from_iter([("id".to_owned(), id.into())]);
    match codec.document().get("configuration") {
        None | Some(Value::Null) => (),
        Some(Value::Object(members)) => {
            let others = members.iter().filter(|(member, _)| *member != "id");
            with_id.extend(others.map(|(member, value)| (member.clone(), value.clone())));
        }
        Some(_) => return Err(MetadataError::invalid("configuration", "an object").into()),
    }
    Ok(with_id)
}
