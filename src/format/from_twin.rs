//! Translation of a document written through the view back to the metadata of the sharded array.
//!
//! Attributes, shape and dimension names may change. Everything else must have the same meaning as
//! in the view; writers may use another notation (members in another order, codecs as bare names,
//! `1.0` for `1`, an empty list of storage transformers).

use serde_json::{Map, Value};

use super::codec::{Codec, parse_chain};
use super::document::{Dialect, Shown, show};
use super::draft2022;
use super::error::MetadataError;

/// Members that may change.
const CHANGEABLE: [&str; 3] = ["attributes", "shape", "dimension_names"];

/// Returns the document to store for an array with the document `stored`, after `written` has
/// replaced the document that the view of sharding `level` shows.
pub(crate) fn translate_back(
    stored: &Value,
    written: &Value,
    level: Option<usize>,
    dialect: Dialect,
) -> Result<Value, MetadataError> {
    let shown = match show(stored.clone(), level, dialect)? {
        Shown::Array(_, shown) => shown,
        Shown::Group(shown) => shown,
        Shown::AsStored => stored.clone(),
    };
    let (Value::Object(shown), Value::Object(written)) = (&shown, written) else {
        return Err(MetadataError::NotAnObject);
    };
    for member in shown.keys().chain(written.keys()) {
        let fixed = !CHANGEABLE.contains(&member.as_str());
        if fixed && !same_member(member, shown.get(member), written.get(member)) {
            return Err(MetadataError::Fixed(member.clone()));
        }
    }
    let mut back = stored.clone();
    let Value::Object(members) = &mut back else { return Err(MetadataError::NotAnObject) };
    for member in CHANGEABLE {
        match written.get(member) {
            Some(value) => drop(members.insert(member.to_owned(), value.clone())),
            None => drop(members.shift_remove(member)),
        }
    }
    // The result must again be an array of the same rank.
    match (show(back.clone(), level, dialect)?, stored.get("shape"), back.get("shape")) {
        (Shown::Array(..), Some(Value::Array(old)), Some(Value::Array(new)))
            if old.len() == new.len() => {}
        _ => return Err(MetadataError::Fixed("shape".to_owned())),
    }
    Ok(back)
}

/// Translates the arrays in a group's consolidated metadata back. `stored` returns the stored
/// document of the node at a path, unless it is shown as it is stored: what is said of that one, or of one that is not
/// there, stays. Returns whether anything was translated.
pub(crate) fn translate_group_back(
    group: &mut Value,
    stored: &mut dyn FnMut(&str) -> Option<Value>,
    level: Option<usize>,
) -> Result<bool, MetadataError> {
    let nodes = group.get_mut("consolidated_metadata").and_then(|value| value.get_mut("metadata"));
    let Some(Value::Object(nodes)) = nodes else { return Ok(false) };
    let mut changed = false;
    for (path, node) in nodes.iter_mut() {
        if let Some(stored) = stored(path).filter(is_sharded) {
            *node = translate_back(&stored, node, level, Dialect::V3)?;
            changed = true;
        }
    }
    Ok(changed)
}

/// Makes the consolidated metadata of a group describe the array at a path as it is stored, sharded, where it
/// describes it otherwise, as it was written. Returns whether it did.
pub(crate) fn describe_stored(group: &mut Value, path: &str, stored: &Value) -> bool {
    let nodes = group.get_mut("consolidated_metadata").and_then(|value| value.get_mut("metadata"));
    let node = nodes.and_then(|nodes| nodes.get_mut(path)).filter(|node| !is_sharded(node));
    let Some(node) = node else { return false };
    // Otherwise it is of another array, that was there before.
    *node = translate_back(stored, node, None, Dialect::V3).unwrap_or_else(|_| stored.clone());
    true
}

/// Returns whether a document, of either dialect, is that of a sharded array.
pub(crate) fn is_sharded(document: &Value) -> bool {
    if draft2022::is_sharded(document) {
        return true;
    }
    let sharding =
        |codecs: &Vec<Codec>| codecs.iter().any(|codec| codec.name == "sharding_indexed");
    parse_chain(document.get("codecs")).as_ref().is_ok_and(sharding)
}

fn same_member(member: &str, shown: Option<&Value>, written: Option<&Value>) -> bool {
    match (member, shown, written) {
        ("codecs", shown, written) => match (parse_chain(shown), parse_chain(written)) {
            (Ok(shown), Ok(written)) => {
                shown.len() == written.len()
                    && shown
                        .iter()
                        .zip(&written)
                        .all(|(a, b)| same(&named(a.document()), &named(b.document())))
            }
            _ => false,
        },
        (_, None, Some(Value::Array(empty))) | (_, Some(Value::Array(empty)), None)
            if member == "storage_transformers" =>
        {
            empty.is_empty()
        }
        // zarr-python repeats the separator here in the draft of 2022, until it resizes an array.
        ("dimension_separator", Some(_), None) => true,
        ("consolidated_metadata", _, Some(Value::Null)) => shown.is_none_or(Value::is_null),
        ("chunk_grid" | "chunk_key_encoding" | "data_type", Some(shown), Some(written)) => {
            same(&named(shown), &named(written))
        }
        (_, Some(shown), Some(written)) => same(shown, written),
        (_, None, None) => true,
        _ => false,
    }
}

/// Normalizes an extension to an object with a configuration, with the default separator of a chunk
/// key encoding.
pub(crate) fn named(value: &Value) -> Value {
    let mut object = match value {
        Value::String(name) => Map::from_iter([("name".to_owned(), name.as_str().into())]),
        Value::Object(object) => object.clone(),
        other => return other.clone(),
    };
    if object.get("name").and_then(Value::as_str) == Some("default")
        || object.get("name").and_then(Value::as_str) == Some("v2")
    {
        let separator = if object["name"] == "v2" { "." } else { "/" };
        let configuration = object.entry("configuration").or_insert_with(|| Map::new().into());
        if let Value::Object(configuration) = configuration {
            configuration.entry("separator").or_insert_with(|| separator.into());
        }
    }
    object.entry("configuration").or_insert_with(|| Map::new().into());
    Value::Object(object)
}

/// Returns whether two values are equal, comparing numbers by their value.
pub(super) fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            a == b
                || matches!((a.as_f64(), b.as_f64()), (Some(a), Some(b)) if a.to_bits() == b.to_bits())
                    && !is_large_integer(a)
                    && !is_large_integer(b)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b)))
        }
        _ => a == b,
    }
}

/// Returns whether a number is an integer that a float would round.
fn is_large_integer(number: &serde_json::Number) -> bool {
    const EXACT: u64 = 1 << 53;
    let text = number.to_string();
    !text.contains(['.', 'e', 'E'])
        && number.as_f64().is_none_or(|value| value.abs() > EXACT as f64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored() -> Value {
        json!({"zarr_format": 3, "node_type": "array", "shape": [8, 8], "data_type": "float32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0,
            "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 2],
                "codecs": ["bytes", {"name": "gzip", "configuration": {"level": 1}}],
                "index_codecs": ["bytes", "crc32c"]}}],
            "attributes": {"a": 1}})
    }

    fn written() -> Value {
        json!({"shape": [8, 8], "data_type": "float32", "node_type": "array", "zarr_format": 3,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0.0, "storage_transformers": [],
            "codecs": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}],
            "attributes": {"a": 1}})
    }

    #[test]
    fn attributes_shape_and_dimension_names_pass_and_the_sharding_stays() {
        let mut new = written();
        new["attributes"] = json!({"b": 2.50});
        new["shape"] = json!([10, 8]);
        new["dimension_names"] = json!(["y", null]);
        let back = translate_back(&stored(), &new, None, Dialect::V3).unwrap();
        let mut expected = stored();
        expected["attributes"] = json!({"b": 2.50});
        expected["shape"] = json!([10, 8]);
        expected["dimension_names"] = json!(["y", null]);
        assert_eq!(back, expected);

        new = written();
        new.as_object_mut().unwrap().remove("attributes");
        let back = translate_back(&stored(), &new, None, Dialect::V3).unwrap();
        assert_eq!(back.get("attributes"), None);
    }

    #[test]
    fn what_is_fixed_is_refused_by_name() {
        let refused = |member: &str, value: Value| {
            let mut new = written();
            new[member] = value;
            translate_back(&stored(), &new, None, Dialect::V3).unwrap_err().to_string()
        };
        let expected = |member: &str| {
            format!(
                "{member} cannot be changed through the view; only attributes, shape and dimension_names can"
            )
        };
        assert_eq!(refused("data_type", json!("float64")), expected("data_type"));
        assert_eq!(refused("codecs", json!(["bytes"])), expected("codecs"));
        assert_eq!(refused("fill_value", json!(1)), expected("fill_value"));
        assert_eq!(
            refused("shape", json!([8])),
            "chunk_grid has 2 entries, the array has 1 dimension"
        );
        assert_eq!(refused("extra", json!(1)), expected("extra"));
        let grid = json!({"name": "regular", "configuration": {"chunk_shape": [4, 4]}});
        assert_eq!(refused("chunk_grid", grid), expected("chunk_grid"));
    }

    #[test]
    fn large_integers_are_not_compared_as_floats() {
        let number = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
        assert!(same(&number("1"), &number("1.0")));
        assert!(!same(&number("18446744073709551615"), &number("18446744073709551614")));
        assert!(!same(&number("0.0"), &number("-0.0")));
    }

    #[test]
    fn consolidated_metadata_is_translated_with_what_is_stored() {
        let group = |array: Value| {
            json!({"zarr_format": 3, "node_type": "group",
                "consolidated_metadata": {"kind": "inline", "metadata": {"a": array}}})
        };
        let mut new = group(written());
        let mut known = |path: &str| (path == "a").then(stored);
        assert!(translate_group_back(&mut new, &mut known, None).unwrap());
        assert_eq!(new, group(stored()));
        let mut unknown = |_: &str| None;
        assert!(!translate_group_back(&mut group(stored()), &mut unknown, None).unwrap());
        // What is sharded in the view's place cannot be said of an array that the view shows.
        assert!(translate_group_back(&mut group(stored()), &mut known, None).is_err());
        assert!(!translate_group_back(&mut group(written()), &mut unknown, None).unwrap());
    }
}
