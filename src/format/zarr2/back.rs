//! Documents of Zarr v2 on their way back into a node's own.
//!
//! Attributes, names of dimensions and an array's shape may change. Everything else must say what
//! the view showed, in whatever spelling zarr-python 2 has for it.

use serde_json::{Map, Value};

use super::data_type::DataType2;
use super::{
    Array2, DIMENSIONS, Missing, NoForm, ZARRAY, ZATTRS, ZGROUP, array, attributes,
    dimension_names, missing, usual_name, zgroup,
};
use crate::format::back::same;
use crate::format::document::{Dialect, show};
use crate::format::error::{MetadataError, shape};
use crate::format::metadata::NodeMetadata;
use crate::format::numpy;

/// What numcodecs writes of a codec's configuration if it was not given: id, member, value.
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

/// What to store for a node that is stored as `stored`, after `written` was written to its document
/// `name`, or after that was removed. `twin` is what the node's Zarr v2 documents are made of, with
/// `missing`.
pub fn back(
    stored: &Value,
    twin: &Value,
    name: &str,
    written: Option<&Value>,
    missing: Missing,
) -> Result<Value, MetadataError> {
    let is_array = matches!(NodeMetadata::parse(stored)?, NodeMetadata::Array(_));
    let back = match (name, written) {
        (ZATTRS, written) if is_array => {
            let attributes = missing_back(stored, twin, object(written)?, missing)?;
            attributes_back(stored, true, attributes)?
        }
        (ZATTRS, written) => attributes_back(stored, false, object(written)?)?,
        (ZARRAY, Some(written)) if is_array => shape_back(stored, twin, written, missing)?,
        (ZGROUP, Some(written)) if !is_array => {
            fixed_members(&zgroup(), written, |_, a, b| Some(same(a?, b?)))?;
            stored.clone()
        }
        _ => return Err(MetadataError::Fixed(name.to_owned())),
    };
    // What comes out must be read again, and be of the same rank.
    show(back.clone(), None, Dialect::V3)?;
    if is_array && rank(&back)? != rank(stored)? {
        return Err(MetadataError::Fixed("shape".to_owned()));
    }
    Ok(back)
}

/// Checks that consolidated metadata that was written says of every node what the view shows of
/// it, and so has nothing to store. `twin` knows what the documents of the node at a path are made
/// of; the path of the group itself is empty.
pub fn check_consolidated(
    written: &Value,
    missing: Missing,
    twin: &mut dyn FnMut(&str) -> Option<Value>,
) -> Result<(), MetadataError> {
    let documents = written.get("metadata").and_then(Value::as_object);
    let documents = documents.ok_or(MetadataError::Missing("metadata"))?;
    for (key, written) in documents {
        let (path, name) = key.rsplit_once('/').unwrap_or(("", key));
        let agrees = twin(path).is_some_and(|twin| says_the_same(&twin, name, written, missing));
        if !agrees {
            return Err(MetadataError::Fixed(key.clone()));
        }
    }
    Ok(())
}

/// Whether `written` says what the view shows as the document `name`.
fn says_the_same(twin: &Value, name: &str, written: &Value, missing: Missing) -> bool {
    let none = Value::Object(Map::new());
    match (NodeMetadata::parse(twin), name) {
        (Ok(NodeMetadata::Group), ZGROUP) => same(&zgroup(), written),
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

/// Attributes that were written; a document that was removed has none.
fn object(written: Option<&Value>) -> Result<Map<String, Value>, MetadataError> {
    match written {
        None => Ok(Map::new()),
        Some(Value::Object(attributes)) => Ok(attributes.clone()),
        Some(_) => Err(MetadataError::NotAnObject),
    }
}

/// Attributes with the missing value that Zarr v2 has in another place.
fn missing_back(
    stored: &Value,
    twin: &Value,
    mut attributes: Map<String, Value>,
    missing: Missing,
) -> Result<Map<String, Value>, MetadataError> {
    let shown = array(twin, missing).map_err(no_form)?;
    let data_type = DataType2::parse(twin.get("data_type")).map_err(no_form)?;
    let stored = stored.get("attributes").and_then(|it| it.get(missing::ATTRIBUTE));
    missing::back(&mut attributes, stored, &shown, &data_type);
    Ok(attributes)
}

/// The document with other attributes.
fn attributes_back(
    stored: &Value,
    is_array: bool,
    mut attributes: Map<String, Value>,
) -> Result<Value, MetadataError> {
    let mut back = stored.clone();
    let Value::Object(members) = &mut back else { return Err(MetadataError::NotAnObject) };
    let own = members.get("attributes").is_some_and(|value| value.get(DIMENSIONS).is_some());
    if is_array && !own {
        names_back(members, &mut attributes, rank(stored)?);
    }
    // No attributes are an empty object or no member, whichever it was.
    if !attributes.is_empty() || members.contains_key("attributes") {
        members.insert("attributes".to_owned(), attributes.into());
    }
    Ok(back)
}

/// Moves the attribute that names the dimensions to where they are named. One that does not is an
/// attribute like any other.
fn names_back(members: &mut Map<String, Value>, attributes: &mut Map<String, Value>, rank: usize) {
    let stored = Value::Object(members.clone());
    let shown = dimension_names(&stored, rank);
    let names = attributes.get(DIMENSIONS).and_then(Value::as_array);
    let names = names.filter(|names| names.len() == rank && names.iter().all(Value::is_string));
    let Some(names) = names else {
        // Names that were shown and are not there any more were removed.
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
    // Of no dimensions there need not be a list.
    if rank > 0 {
        members.insert("dimension_names".to_owned(), names.into());
    }
    attributes.shift_remove(DIMENSIONS);
}

/// An array that is not shown has no document to write to.
fn no_form(reason: NoForm) -> MetadataError {
    match reason {
        NoForm::Metadata(error) => error,
        _ => MetadataError::Fixed(ZARRAY.to_owned()),
    }
}

/// The document with the shape of what was written to `.zarray`.
fn shape_back(
    stored: &Value,
    twin: &Value,
    written: &Value,
    missing: Missing,
) -> Result<Value, MetadataError> {
    let Array2 { zarray, .. } = array(twin, missing).map_err(no_form)?;
    let data_type = DataType2::parse(twin.get("data_type")).map_err(no_form)?;
    same_array(&data_type, &zarray, written)?;
    let mut back = stored.clone();
    back["shape"] = shape(written.get("shape"), "shape")?.into();
    Ok(back)
}

/// Checks that nothing but the shape of an array differs from what is shown.
fn same_array(data_type: &DataType2, shown: &Value, written: &Value) -> Result<(), MetadataError> {
    fixed_members(shown, written, |member, shown, written| {
        let (given, written) = (written, written.unwrap_or(&Value::Null));
        Some(match member {
            "shape" => true,
            "dtype" => dtype(shown?) == dtype(written),
            "compressor" => same_codec(shown?, written),
            "filters" => same_filters(shown?, written),
            "fill_value" => data_type.same_fill(shown?, given?),
            "order" => shown? == given?,
            // What is not there is a dot; zarr-python 2 leaves it out or writes null.
            "dimension_separator" if written.is_null() => shown? == ".",
            _ => same(shown?, given?),
        })
    })
}

/// Checks every member of two documents; `agree` is given a member that one of them may lack.
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

/// A `dtype` as one text: items of one byte have no order.
fn dtype(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    Some(match numpy::DataType::parse(text) {
        Some(number) => format!("{}{}", number.name, number.nbytes > 1 && number.big_endian),
        None => text.to_owned(),
    })
}

/// Whether two lists of filters are the same; none are null or an empty list.
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

/// Whether two configurations of numcodecs stand for the same codec.
fn same_codec(shown: &Value, written: &Value) -> bool {
    same(&complete(shown), &complete(written))
}

/// The configuration of a codec with the members that it lacks, and data types as one text.
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
