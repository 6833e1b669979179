//! Translation of written Zarr v2 documents back to the stored document of a node.
//!
//! Attributes, names of dimensions and an array's shape may change. Everything else must have the
//! same meaning as in the view, in any notation of zarr-python 2.

use serde_json::{Map, Value};

use super::data_type::DataType2;
use super::dimensions::{DIMENSIONS, dimension_names, usual_name};
use super::document_names::{ZARRAY, ZATTRS, ZGROUP};
use super::error::NoForm;
use super::form::{Array2, array, attributes, zgroup};
use super::missing::{self, Missing};
use crate::format::document::{Dialect, show};
use crate::format::error::{MetadataError, shape};
use crate::format::from_twin::same;
use crate::format::metadata::NodeMetadata;
use crate::format::numpy;

/// Defaults that numcodecs writes for omitted members of a codec's configuration: id, member,
/// value.
const USUAL: [(&str, &str, &str); 19] = [
    ("adler32", "location", "\"start\""),
    ("blosc", "blocksize", "0"),
    ("blosc", "clevel", "5"),
    ("blosc", "cname", "\"lz4\""),
    ("blosc", "shuffle", "1"),
    ("bz2", "level", "1"),
    ("crc32", "location", "\"start\""),
    ("crc32c", "location", "\"end\""),
    ("gzip", "level", "1"),
    ("jenkins_lookup3", "initval", "0"),
    ("jenkins_lookup3", "prefix", "null"),
    ("lz4", "acceleration", "1"),
    ("lzma", "check", "-1"),
    ("lzma", "filters", "null"),
    ("lzma", "format", "1"),
    ("lzma", "preset", "null"),
    ("zlib", "level", "1"),
    ("zstd", "checksum", "false"),
    ("zstd", "level", "0"),
];

/// How the Zarr v2 documents of a node are made.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a> {
    /// Unsharded metadata of the node.
    pub twin: &'a Value,
    /// Policy for chunks that do not exist.
    pub missing: Missing,
    /// Fill value with which the array was created in Zarr v2, null if it has none. `None` if it is not known to
    /// be created so.
    pub created_fill: Option<&'a Value>,
}

/// Returns the document to store for a node with the document `stored`, after its Zarr v2 document
/// `name` was replaced by `written`, or removed if that is `None`.
pub fn back(
    stored: &Value,
    shown: &Shown<'_>,
    name: &str,
    written: Option<&Value>,
) -> Result<Value, MetadataError> {
    let is_array = matches!(NodeMetadata::parse(stored)?, NodeMetadata::Array(_));
    let back = match (name, written) {
        (ZATTRS, written) => {
            let mut attributes = object(written)?;
            let names = is_array.then_some(Names { are_kept: shown.created_fill.is_some() });
            if is_array {
                attributes = missing_back(stored, shown, attributes)?;
            }
            let mut back = attributes_back(stored, names, attributes)?;
            let is_empty = back["attributes"].as_object().is_none_or(Map::is_empty);
            match written {
                None if is_empty => {
                    let members = back.as_object_mut().ok_or(MetadataError::NotAnObject)?;
                    members.shift_remove("attributes");
                }
                Some(Value::Object(none)) if none.is_empty() && is_empty => {
                    back["attributes"] = Map::new().into();
                }
                _ => (),
            }
            back
        }
        (ZARRAY, Some(written)) if is_array => shape_back(stored, shown, written)?,
        (ZGROUP, Some(written)) if !is_array => {
            same_group(written)?;
            stored.clone()
        }
        _ => return Err(MetadataError::Fixed(name.to_owned())),
    };
    // The result must be readable and of the same rank.
    show(back.clone(), None, Dialect::V3)?;
    if is_array && rank(&back)? != rank(stored)? {
        return Err(MetadataError::Fixed("shape".to_owned()));
    }
    Ok(back)
}

/// Checks that written consolidated metadata agrees with the view about every node, so that there
/// is nothing to store. `twin` returns the metadata from which the documents of the node at a path
/// are made; the path of the group itself is empty.
pub fn check_consolidated(
    written: &Value,
    missing: &dyn Fn(&str) -> Missing,
    twin: &mut dyn FnMut(&str) -> Option<Value>,
) -> Result<(), MetadataError> {
    let documents = written.get("metadata").and_then(Value::as_object);
    let documents = documents.ok_or(MetadataError::Missing("metadata"))?;
    for (key, written) in documents {
        let (path, name) = key.rsplit_once('/').unwrap_or(("", key));
        let agrees =
            twin(path).is_some_and(|twin| says_the_same(&twin, name, written, missing(path)));
        if !agrees {
            return Err(MetadataError::Fixed(key.clone()));
        }
    }
    Ok(())
}

/// Returns whether `written` has the same meaning as the document `name` in the view.
fn says_the_same(twin: &Value, name: &str, written: &Value, missing: Missing) -> bool {
    let none = Value::Object(Map::new());
    match (NodeMetadata::parse(twin), name) {
        (Ok(NodeMetadata::Group), ZGROUP) => same_group(written).is_ok(),
        (Ok(NodeMetadata::Group), ZATTRS) => same(&attributes(twin).into(), written),
        (Ok(NodeMetadata::Array(_)), ZATTRS) => {
            array(twin, missing).is_ok_and(|array| same(&array.zattrs.unwrap_or(none), written))
        }
        (Ok(NodeMetadata::Array(_)), ZARRAY) => {
            let parts = array(twin, missing)
                .and_then(|array| Ok((array.zarray, DataType2::parse(twin.get("data_type"))?)));
            parts.is_ok_and(|(zarray, data_type)| {
                same_array(&data_type, &zarray, written).is_ok()
                    && written.get("shape") == zarray.get("shape")
            })
        }
        _ => false,
    }
}

fn rank(document: &Value) -> Result<usize, MetadataError> {
    Ok(shape(document.get("shape"), "shape")?.len())
}

/// Returns the written attributes; none if the document was removed.
fn object(written: Option<&Value>) -> Result<Map<String, Value>, MetadataError> {
    match written {
        None => Ok(Map::new()),
        Some(Value::Object(attributes)) => Ok(attributes.clone()),
        Some(_) => Err(MetadataError::NotAnObject),
    }
}

/// Restores the missing value, which Zarr v2 has in another place, in written attributes. Where they are the first
/// ones to name the dimensions of an array that was created in Zarr v2, its fill value is the missing value from
/// then on, as in any array there.
fn missing_back(
    stored: &Value,
    shown: &Shown<'_>,
    mut attributes: Map<String, Value>,
) -> Result<Map<String, Value>, MetadataError> {
    let Array2 { zarray, zattrs, .. } = array(shown.twin, shown.missing).map_err(no_form)?;
    let data_type = DataType2::parse(shown.twin.get("data_type")).map_err(no_form)?;
    let is_unnamed = zattrs.as_ref().is_none_or(|zattrs| zattrs.get(DIMENSIONS).is_none());
    if let Some(fill_value) = shown.created_fill.filter(|_| is_unnamed) {
        missing::to_zarr3(&mut attributes, Some(fill_value), &data_type);
        return Ok(attributes);
    }
    let stored = stored.get("attributes").and_then(|it| it.get(missing::ATTRIBUTE));
    let shown = zattrs.as_ref().and_then(|attributes| attributes.get(missing::ATTRIBUTE));
    missing::back(&mut attributes, stored, shown, &zarray["fill_value"], &data_type);
    Ok(attributes)
}

/// How the names of an array's dimensions are stored.
#[derive(Debug, Clone, Copy)]
struct Names {
    /// `true` if an array without dimensions keeps that it has no names.
    are_kept: bool,
}

/// Returns the document with other attributes. `names` is `None` for a group.
fn attributes_back(
    stored: &Value,
    names: Option<Names>,
    mut attributes: Map<String, Value>,
) -> Result<Value, MetadataError> {
    let mut back = stored.clone();
    let Value::Object(members) = &mut back else { return Err(MetadataError::NotAnObject) };
    let own = members.get("attributes").is_some_and(|value| value.get(DIMENSIONS).is_some());
    if let Some(names) = names.filter(|_| !own) {
        names_back(members, &mut attributes, rank(stored)?, names);
    }
    // Without attributes, the stored form is kept: an empty object or no member.
    if !attributes.is_empty() || members.contains_key("attributes") {
        members.insert("attributes".to_owned(), attributes.into());
    }
    Ok(back)
}

/// Moves the attribute with the names of the dimensions to `dimension_names`. If it does not name
/// every dimension, it stays an ordinary attribute.
fn names_back(
    members: &mut Map<String, Value>,
    attributes: &mut Map<String, Value>,
    rank: usize,
    kept: Names,
) {
    let stored = Value::Object(members.clone());
    let shown = dimension_names(&stored, rank);
    let names = attributes.get(DIMENSIONS).and_then(Value::as_array);
    let names = names.filter(|names| names.len() == rank && names.iter().all(Value::is_string));
    let Some(names) = names else {
        // Names that were shown and are no longer present were removed.
        if shown.is_some() && !attributes.contains_key(DIMENSIONS) {
            members.shift_remove("dimension_names");
        }
        return;
    };
    let was_null = |axis: usize| stored["dimension_names"].get(axis).is_some_and(Value::is_null);
    let name = |(axis, name): (usize, &Value)| {
        if *name == usual_name(axis) && was_null(axis) { Value::Null } else { name.clone() }
    };
    let names: Vec<Value> = names.iter().enumerate().map(name).collect();
    // An array without dimensions needs no list of names.
    if rank > 0 || kept.are_kept {
        members.insert("dimension_names".to_owned(), names.into());
    }
    attributes.shift_remove(DIMENSIONS);
}

/// Maps the reason to an error: an array that is not shown has no document to write to.
fn no_form(reason: NoForm) -> MetadataError {
    match reason {
        NoForm::Metadata(error) => error,
        _ => MetadataError::Fixed(ZARRAY.to_owned()),
    }
}

/// Returns the document with the shape from a written `.zarray`.
fn shape_back(stored: &Value, shown: &Shown<'_>, written: &Value) -> Result<Value, MetadataError> {
    let Array2 { zarray, .. } = array(shown.twin, shown.missing).map_err(no_form)?;
    let data_type = DataType2::parse(shown.twin.get("data_type")).map_err(no_form)?;
    same_array(&data_type, &zarray, written)?;
    let mut back = stored.clone();
    back["shape"] = shape(written.get("shape"), "shape")?.into();
    Ok(back)
}

/// Checks that an array differs from the shown one at most in its shape.
pub(super) fn same_array(
    data_type: &DataType2,
    shown: &Value,
    written: &Value,
) -> Result<(), MetadataError> {
    let shown_rank = shown.get("shape").and_then(Value::as_array).map_or(0, Vec::len);
    fixed_members(shown, written, |member, shown, written| {
        let (given, written) = (written, written.unwrap_or(&Value::Null));
        Some(match member {
            "shape" => true,
            "dtype" => dtype(shown?) == dtype(written),
            "compressor" => same_codec(shown?, written),
            "filters" => same_filters(shown?, written),
            // zarr-python 2 writes 0 as the fill value of texts and bytes, too.
            "fill_value" if data_type.is_text() && given?.as_u64() == Some(0) => {
                data_type.assumed().as_ref() == shown
            }
            "fill_value" => data_type.same_fill(shown?, given?),
            // Of a list both are the same.
            "order" if shown_rank < 2 => given? == "C" || given? == "F",
            "order" => shown? == given?,
            // The default is a dot; zarr-python 2 omits the member or writes null.
            "dimension_separator" if written.is_null() => shown? == ".",
            // zarrs writes it, as in Zarr v3.
            "node_type" => given? == "array",
            _ => same(shown?, given?),
        })
    })
}

/// Checks every member of two documents. `agree` is called with the values of a member, either of
/// which may be `None`.
fn fixed_members(
    shown: &Value,
    written: &Value,
    agree: impl Fn(&str, Option<&Value>, Option<&Value>) -> Option<bool>,
) -> Result<(), MetadataError> {
    let (Value::Object(shown), Value::Object(written)) = (shown, written) else {
        return Err(MetadataError::NotAnObject);
    };
    for member in shown.keys().chain(written.keys()) {
        if agree(member, shown.get(member), written.get(member)) != Some(true) {
            return Err(MetadataError::Fixed(member.clone()));
        }
    }
    Ok(())
}

/// Normalizes a `dtype`: items of one byte have no byte order.
fn dtype(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    Some(match numpy::DataType::parse(text) {
        Some(number) => format!("{}{}", number.name, number.nbytes > 1 && number.big_endian),
        None => text.to_owned(),
    })
}

/// Returns whether two lists of filters are the same; null stands for an empty list.
fn same_filters(shown: &Value, written: &Value) -> bool {
    let list = |value: &Value| match value {
        Value::Null => Some(Vec::new()),
        Value::Array(list) => Some(list.clone()),
        _ => None,
    };
    match (list(shown), list(written)) {
        (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| same_codec(a, b)),
        _ => false,
    }
}

/// Checks that a `.zgroup` says what every one does. zarr-python 3 repeats what is below in it, and zarrs its type.
fn same_group(written: &Value) -> Result<(), MetadataError> {
    fixed_members(&zgroup(), written, |member, shown, written| {
        Some(match member {
            "node_type" => written? == "group",
            "consolidated_metadata" => true,
            _ => same(shown?, written?),
        })
    })
}

/// Returns whether two configurations of numcodecs define the same codec.
fn same_codec(shown: &Value, written: &Value) -> bool {
    let (shown, mut written) = (complete(shown), complete(written));
    // By the length of items, which is what is shown.
    let is_chosen = written["id"] == "blosc" && written["shuffle"] == -1;
    if is_chosen && [1, 2].iter().any(|shuffle| shown["shuffle"] == *shuffle) {
        written["shuffle"] = shown["shuffle"].clone();
    }
    same(&shown, &written)
}

/// Normalizes the configuration of a codec: adds defaults and normalizes data types.
fn complete(codec: &Value) -> Value {
    let Value::Object(codec) = codec else { return codec.clone() };
    let mut codec = codec.clone();
    let id = codec.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    for (_, member, value) in USUAL.iter().filter(|(of, ..)| *of == id) {
        let value = serde_json::from_str(value).unwrap_or_default();
        codec.entry(*member).or_insert(value);
    }
    if let Some(data_type) = codec.get("dtype").cloned() {
        codec.entry("astype").or_insert(data_type);
    }
    for member in ["dtype", "astype", "encode_dtype", "decode_dtype"] {
        if let Some(text) = codec.get(member).and_then(dtype) {
            codec.insert(member.to_owned(), text.into());
        }
    }
    codec.into()
}
