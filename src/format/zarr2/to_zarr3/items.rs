//! Translation of data types and fill values of Zarr v2 to Zarr v3.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::error::NoTwin;
use crate::format::limits::MAX_ITEM_BYTES;
use crate::format::numpy::Items;
use crate::format::zarr2::data_type::DataType2;
use crate::number::to_usize;

/// Items of an array, and the data type's name for messages.
#[derive(Debug)]
pub(super) struct ArrayItems {
    dtype: String,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Items of a fixed size, stored by the `bytes` codec.
    Fixed(Items),
    /// Records of a fixed size, stored one after the other.
    Records(Items),
    /// Objects of variable size, and the codec that stores them.
    Objects(&'static str),
}

/// Codecs that store objects, with the resulting data types.
const OBJECTS: [(&str, &str); 2] =
    [("vlen-utf8", "string"), ("vlen-bytes", "variable_length_bytes")];

impl ArrayItems {
    /// Parses a `dtype`. The first codec determines the type of objects.
    pub(super) fn parse(dtype: Option<&Value>, first: Option<&Value>) -> Result<Self, NoTwin> {
        let dtype = dtype.unwrap_or(&Value::Null);
        let shown = short(dtype);
        let none = || NoTwin::DataType(shown.clone());
        let kind = match dtype {
            Value::String(text) if text.trim_start_matches('|') == "O" => {
                let id = first.and_then(|codec| codec["id"].as_str());
                let known = OBJECTS.iter().find(|(codec, _)| Some(*codec) == id);
                Kind::Objects(known.ok_or(NoTwin::Objects)?.0)
            }
            Value::String(text) => Kind::Fixed(Items::parse(text).ok_or_else(none)?),
            Value::Array(_) => Kind::Records(records(dtype).ok_or_else(none)?),
            _ => return Err(none()),
        };
        let items = Self { dtype: shown.clone(), kind };
        match items.fixed() {
            Some(fixed) if fixed.nbytes > MAX_ITEM_BYTES as u64 => Err(none()),
            _ => Ok(items),
        }
    }

    /// Data type in Zarr v3.
    pub(super) fn data_type(&self) -> Value {
        match &self.kind {
            Kind::Fixed(items) | Kind::Records(items) => items.data_type.clone(),
            Kind::Objects(codec) => {
                let known = OBJECTS.iter().find(|(known, _)| known == codec);
                known.map(|(_, name)| *name).into()
            }
        }
    }

    /// Returns the items if they have a fixed size, otherwise `None`.
    pub(super) fn fixed(&self) -> Option<&Items> {
        match &self.kind {
            Kind::Fixed(items) | Kind::Records(items) => Some(items),
            Kind::Objects(_) => None,
        }
    }

    /// Returns the codec of objects; `None` for items of a fixed size.
    pub(super) fn object_codec(&self) -> Option<&'static str> {
        match self.kind {
            Kind::Objects(codec) => Some(codec),
            Kind::Fixed(_) | Kind::Records(_) => None,
        }
    }

    /// Translates a fill value to Zarr v3. If there is none, it is the one that readers assume,
    /// because Zarr v3 requires one.
    pub(super) fn fill_value(&self, value: Option<&Value>) -> Result<Value, NoTwin> {
        let value = value.filter(|value| !value.is_null());
        let found = match &self.kind {
            Kind::Records(items) => record(items, value),
            Kind::Fixed(_) | Kind::Objects(_) => {
                let data_type = DataType2::parse(Some(&self.data_type()));
                data_type.ok().and_then(|data_type| match value {
                    None => data_type.assumed(),
                    // zarr-python 2 writes 0 as the fill value of texts and bytes, too.
                    Some(value) if value.as_u64() == Some(0) && data_type.is_text() => {
                        data_type.assumed()
                    }
                    value => data_type.fill_value(value).ok(),
                })
            }
        };
        found.ok_or_else(|| NoTwin::FillValue {
            value: value.map(short).unwrap_or_default(),
            data_type: self.dtype.clone(),
        })
    }
}

/// Formats JSON, cut to a readable length.
pub(super) fn short(value: &Value) -> String {
    value.to_string().chars().take(80).collect()
}

/// Parses records, the data type `structured` of zarr-python 3, which cannot express big-endian
/// fields. `None` for any other type.
fn records(dtype: &Value) -> Option<Items> {
    let (mut fields, mut nbytes) = (Vec::new(), 0_u64);
    for field in dtype.as_array()? {
        let [name, dtype] = field.as_array()?.as_slice() else { return None };
        let items = Items::parse(dtype.as_str()?)?;
        if items.big_endian == Some(true) {
            return None;
        }
        nbytes = nbytes.checked_add(items.nbytes)?;
        fields.push(json!([name.as_str()?, items.data_type]));
    }
    let data_type = json!({"name": "structured", "configuration": {"fields": fields}});
    (nbytes > 0).then_some(Items { data_type, nbytes, big_endian: None })
}

/// Translates the fill value of records, the bytes of one record; `None` if it is invalid.
fn record(items: &Items, value: Option<&Value>) -> Option<Value> {
    let nbytes = to_usize(items.nbytes);
    match value {
        None => Some(STANDARD.encode(vec![0; nbytes]).into()),
        Some(value) => {
            let bytes = STANDARD.decode(value.as_str()?).ok()?;
            (bytes.len() == nbytes).then(|| value.clone())
        }
    }
}
