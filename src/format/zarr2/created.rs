//! Arrays and groups that are created in Zarr v2 and stored in Zarr v3, as unsharded arrays with the same chunk
//! files.
//!
//! What Zarr v3 cannot say, or would show otherwise than it was written, is refused with the name of the member.

use serde_json::{Map, Value, json};

use super::data_type::DataType2;
use super::dimensions::DIMENSIONS;
use super::document_names::{ZARRAY, ZATTRS, ZGROUP};
use super::error::NoForm;
use super::form::array;
use super::from_zarr3::same_array;
use super::missing::Missing;
use super::to_zarr3::{NoTwin, group_to_zarr3, to_zarr3};
use crate::format::error::MetadataError;

/// Members of a `.zarray` that have a meaning in Zarr v3.
const OF_ARRAYS: [&str; 9] = [
    "zarr_format",
    "shape",
    "chunks",
    "dtype",
    "compressor",
    "fill_value",
    "order",
    "filters",
    "dimension_separator",
];
/// Members of a `.zgroup`.
const OF_GROUPS: [&str; 2] = ["zarr_format", "consolidated_metadata"];

/// Reason why a node that is written in Zarr v2 cannot be stored in Zarr v3.
#[derive(Debug, thiserror::Error)]
pub enum NotStored {
    /// The metadata is invalid.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// It has no form in Zarr v3.
    #[error(transparent)]
    NoTwin(#[from] NoTwin),
    /// Its form in Zarr v3 has none in Zarr v2.
    #[error("it cannot be stored in Zarr v3 and shown in Zarr v2: {0}")]
    NoForm(#[from] NoForm),
    /// A member that is no part of Zarr v2.
    #[error("member {0:?} has no form in Zarr v3")]
    Member(String),
    /// A member that would be shown with another value.
    #[error("{member}: {written} has no form in Zarr v3 that Zarr v2 shows in the same way")]
    Value {
        /// Name of the member.
        member: String,
        /// Its value, cut to a readable length.
        written: String,
    },
    /// A filter of which clients have different notions.
    #[error(
        "filters: shuffle with elementsize 0 is by the size of an item in netCDF-C and none at all in numcodecs: say \
         its size, or leave it out"
    )]
    Shuffle,
    /// Consolidated metadata describes something else than an array or a group.
    #[error("{0}: it describes no node below the group")]
    NoNode(String),
}

/// Returns the Zarr v3 document of a new array with this `.zarray` and `.zattrs`. The view shows it as it was
/// written, with the policy `missing`.
pub fn new_array(
    zarray: &Value,
    zattrs: Option<&Value>,
    missing: Missing,
) -> Result<Value, NotStored> {
    check_members(zarray, &OF_ARRAYS, "array")?;
    check_shuffle(zarray)?;
    let missing = created(zarray.get("fill_value"), missing);
    let mut document = to_zarr3(zarray, zattrs)?;
    leave_out_none(&mut document, zattrs);
    name_no_dimensions(&mut document, zattrs);
    let mut shown = array(&document, missing)?.zarray;
    let data_type = DataType2::parse(document.get("data_type"))?;
    // Where no chunk is presented, any value may be.
    if zarray.get("fill_value").is_none_or(Value::is_null) {
        shown["fill_value"] = zarray.get("fill_value").cloned().unwrap_or_default();
    }
    match same_array(&data_type, &shown, zarray) {
        Err(MetadataError::Fixed(member)) => {
            let written = zarray.get(&member).unwrap_or(&Value::Null).to_string();
            Err(NotStored::Value { member, written: written.chars().take(80).collect() })
        }
        same => Ok(same.map(|()| document)?),
    }
}

/// Returns the Zarr v3 document of a new group with this `.zgroup` and `.zattrs`.
pub fn new_group(zgroup: &Value, zattrs: Option<&Value>) -> Result<Value, NotStored> {
    check_members(zgroup, &OF_GROUPS, "group")?;
    let mut document = group_to_zarr3(zgroup, zattrs)?;
    leave_out_none(&mut document, zattrs);
    Ok(document)
}

/// Returns the policy for an array that was created in Zarr v2 with this fill value, where `missing` is that of the
/// mount.
pub fn created(fill_value: Option<&Value>, missing: Missing) -> Missing {
    match (missing, fill_value) {
        (Missing::Auto, None | Some(Value::Null)) => Missing::Undefined,
        (Missing::Auto, Some(_)) => Missing::Created,
        (missing, _) => missing,
    }
}

/// Returns whether an array with the unsharded metadata `twin` may be the one that was created in Zarr v2 with this
/// fill value, and not another one in its place.
pub fn may_be_created_with(twin: &Value, fill_value: &Value) -> bool {
    let Ok(data_type) = DataType2::parse(twin.get("data_type")) else { return false };
    let Ok(stored) = data_type.fill_value(twin.get("fill_value")) else { return false };
    let has_none = fill_value.is_null() || data_type.is_text() && fill_value.as_u64() == Some(0);
    match has_none {
        true => data_type.assumed().is_some_and(|assumed| data_type.same_fill(&stored, &assumed)),
        false => data_type.same_fill(&stored, fill_value),
    }
}

/// Returns the paths of the nodes below a group that its consolidated metadata describes.
pub fn described_paths(zmetadata: &Value) -> Result<Vec<&str>, MetadataError> {
    let mut paths = Vec::new();
    for key in documents(zmetadata)?.keys() {
        let Some((path, name)) = key.rsplit_once('/') else { continue };
        if [ZARRAY, ZGROUP].contains(&name) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Returns a document in consolidated metadata.
pub fn described<'a>(zmetadata: &'a Value, path: &str, name: &str) -> Option<&'a Value> {
    zmetadata.get("metadata")?.get(format!("{path}/{name}"))
}

/// Returns the Zarr v3 document of a node that consolidated metadata describes and that is not there yet.
pub fn new_described(zmetadata: &Value, path: &str, missing: Missing) -> Result<Value, NotStored> {
    let document = |name| described(zmetadata, path, name);
    match (document(ZARRAY), document(ZGROUP)) {
        (Some(zarray), _) => new_array(zarray, document(ZATTRS), missing),
        (None, Some(zgroup)) => new_group(zgroup, document(ZATTRS)),
        (None, None) => Err(NotStored::NoNode(path.to_owned())),
    }
}

fn documents(zmetadata: &Value) -> Result<&Map<String, Value>, MetadataError> {
    let documents = zmetadata.get("metadata").and_then(Value::as_object);
    documents.ok_or(MetadataError::Missing("metadata"))
}

/// Leaves attributes out where none were written, not even an empty list.
fn leave_out_none(document: &mut Value, zattrs: Option<&Value>) {
    let has_none = document["attributes"].as_object().is_none_or(Map::is_empty);
    if let Some(members) = document.as_object_mut()
        && zattrs.is_none()
        && has_none
    {
        members.shift_remove("attributes");
    }
}

/// Keeps that the dimensions of an array without any were named.
fn name_no_dimensions(document: &mut Value, zattrs: Option<&Value>) {
    let has_names = zattrs.is_some_and(|zattrs| zattrs.get(DIMENSIONS).is_some());
    let is_scalar = document["shape"].as_array().is_some_and(Vec::is_empty);
    if is_scalar && has_names {
        document["dimension_names"] = json!([]);
        if let Some(attributes) = document["attributes"].as_object_mut() {
            attributes.shift_remove(DIMENSIONS);
        }
    }
}

/// Checks that readers of Zarr v3 undo a shuffle as whoever writes it makes it: numcodecs leaves the bytes as they are
/// if items have no size.
fn check_shuffle(zarray: &Value) -> Result<(), NotStored> {
    let filters = zarray.get("filters").and_then(Value::as_array).into_iter().flatten();
    let is_undefined = |codec: &Value| codec["id"] == "shuffle" && codec["elementsize"] == 0;
    match filters.chain(zarray.get("compressor")).any(is_undefined) {
        true => Err(NotStored::Shuffle),
        false => Ok(()),
    }
}

/// Checks that a document has no members but these, and `node_type` if it says the truth.
fn check_members(document: &Value, known: &[&str], node_type: &str) -> Result<(), NotStored> {
    let members = document.as_object().ok_or(MetadataError::NotAnObject)?;
    let is_known = |(member, value): &(&String, &Value)| match member.as_str() {
        "node_type" => *value == node_type,
        member => known.contains(&member),
    };
    match members.iter().find(|member| !is_known(member)) {
        Some((member, _)) => Err(NotStored::Member(member.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zarray(members: Value) -> Value {
        let mut zarray = json!({"zarr_format": 2, "shape": [8, 6], "chunks": [4, 3], "dtype": "<i2", "fill_value": 0,
            "compressor": {"id": "zlib", "level": 1}, "filters": null, "order": "C"});
        let members = members.as_object().unwrap().clone();
        zarray.as_object_mut().unwrap().extend(members);
        zarray
    }

    fn made(members: Value) -> Result<Value, String> {
        new_array(&zarray(members), None, Missing::Auto).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refused(members: Value, why: &str) {
        assert_eq!(made(members).unwrap_err(), why);
    }

    #[test]
    fn arrays_are_shown_as_they_were_written() {
        for members in [
            json!({}),
            json!({"dimension_separator": "/"}),
            json!({"dimension_separator": null, "fill_value": -3}),
            json!({"dtype": ">f8", "fill_value": "NaN", "order": "F", "compressor": null}),
            json!({"dtype": "|O", "fill_value": "", "filters": [{"id": "vlen-utf8"}]}),
            json!({"dtype": "|S3", "fill_value": "YWI="}),
            json!({"dtype": "<M8[ns]", "fill_value": 5}),
            json!({"filters": [{"id": "delta", "dtype": "<i2"}]}),
            json!({"shape": [], "chunks": [], "fill_value": 7}),
            json!({"shape": [], "chunks": [], "dtype": "<U3", "fill_value": ""}),
            json!({"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1}}),
            json!({"node_type": "array"}),
            json!({"shape": [8], "chunks": [4], "order": "F"}),
        ] {
            let document = made(members.clone()).unwrap();
            let shown = array(&document, Missing::Created).unwrap().zarray;
            let data_type = DataType2::parse(document.get("data_type")).unwrap();
            same_array(&data_type, &shown, &zarray(members)).unwrap();
        }
    }

    #[test]
    fn a_fill_value_that_is_undefined_is_any() {
        assert_eq!(made(json!({"fill_value": null})).unwrap()["fill_value"], 0);
        let text = json!({"dtype": "<U3", "fill_value": 0});
        assert_eq!(made(text).unwrap()["fill_value"], "");
        let scalar = json!({"shape": [], "chunks": [], "fill_value": null});
        assert_eq!(made(scalar).unwrap().get("attributes"), None);
    }

    #[test]
    fn what_zarr_v3_cannot_say_is_refused_by_name() {
        refused(json!({"node_type": "group"}), "member \"node_type\" has no form in Zarr v3");
        refused(json!({"_NCZARR_ARRAY": {}}), "member \"_NCZARR_ARRAY\" has no form in Zarr v3");
        refused(json!({"dtype": "<V"}), "data type \"<V\" has no form in Zarr v3");
        refused(
            json!({"dtype": "|O", "fill_value": "", "filters": [{"id": "pickle"}]}),
            "objects without the filter vlen-utf8 or vlen-bytes have no form in Zarr v3",
        );
        refused(
            json!({"fill_value": 70000}),
            "fill value 70000 of data type \"<i2\" has no form in Zarr v3",
        );
        refused(
            json!({"compressor": {"id": "own"}}),
            "codec {\"id\":\"own\"} has no form in Zarr v3",
        );
        refused(
            json!({"dtype": [["a", "<i2"]], "fill_value": null}),
            "it cannot be stored in Zarr v3 and shown in Zarr v2: data type \"structured\" has no form in Zarr v2",
        );
        let shuffle = made(json!({"filters": [{"id": "shuffle", "elementsize": 0}]})).unwrap_err();
        assert!(shuffle.starts_with("filters: shuffle with elementsize 0"));
        refused(json!({"zarr_format": 3}), "zarr_format must be 2");
        let group = |members| new_group(&members, None).map_err(|error| error.to_string());
        assert_eq!(group(json!({"zarr_format": 2})).unwrap()["node_type"], "group");
        assert_eq!(
            group(json!({"zarr_format": 2, "_NCZARR_GROUP": {}})).unwrap_err(),
            "member \"_NCZARR_GROUP\" has no form in Zarr v3"
        );
    }

    #[test]
    fn an_array_with_another_fill_value_is_another_one() {
        let with = |fill: Value| made(json!({"fill_value": fill})).unwrap();
        assert!(may_be_created_with(&with(json!(7)), &json!(7)));
        assert!(may_be_created_with(&with(Value::Null), &Value::Null));
        assert!(!may_be_created_with(&with(json!(7)), &json!(5)));
        assert!(!may_be_created_with(&with(json!(7)), &Value::Null));
    }

    #[test]
    fn consolidated_metadata_describes_nodes_that_are_not_there_yet() {
        let zmetadata = json!({"zarr_consolidated_format": 1, "metadata": {
            ".zgroup": {"zarr_format": 2}, "g/.zgroup": {"zarr_format": 2}, "g/.zattrs": {"a": 1},
            "g/b/.zarray": zarray(json!({})), "g/b/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]}}});
        assert_eq!(described_paths(&zmetadata).unwrap(), ["g", "g/b"]);
        let node = |path| new_described(&zmetadata, path, Missing::Auto).unwrap();
        assert_eq!(node("g")["attributes"], json!({"a": 1}));
        assert_eq!(node("g/b")["dimension_names"], json!(["y", "x"]));
        assert_eq!(node("g/b")["attributes"], json!({"_FillValue": 0}));
        new_described(&zmetadata, "c", Missing::Auto).unwrap_err();
    }
}
