//! Missing values, as interpreted by xarray and other readers that follow the CF conventions.
//!
//! ```text
//! Zarr v3   attribute _FillValue; fill_value is only the content of chunks that do not exist
//! Zarr v2   fill_value is both; the attribute _FillValue counts only if fill_value is null
//! ```
//!
//! So the fill value in Zarr v2 is the missing value of Zarr v3, or null without one, and if it
//! differs from the fill value of Zarr v3, every chunk must exist. netCDF takes the missing value
//! from the attribute only, which xarray ignores if there is a fill value, so the attribute is set
//! as well, if JSON has the value. In Zarr v3 xarray writes a floating-point number to the
//! attribute as the Base64 of its 64 bits, most significant last; it can read no other notation
//! there.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value, json};

use super::data_type::DataType2;
use super::dimensions::DIMENSIONS;
use crate::format::fill_chunk::FillChunk;
use crate::format::from_twin::same;

/// Attribute that holds the missing value.
pub(super) const ATTRIBUTE: &str = "_FillValue";

/// Policy for presenting chunks that do not exist as chunks of the fill value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Missing {
    /// In Zarr v2, present the missing chunks of arrays whose fill value readers would mistake for
    /// a missing value, or for another value; otherwise none.
    #[default]
    Auto,
    /// Present none of them.
    Absent,
    /// Present all of them.
    Fill,
    /// As `Auto`, of an array that was created in Zarr v2: one without dimensions has no names unless it says so.
    Created,
    /// Of an array that was created in Zarr v2 without a fill value: present none, and no fill value.
    Undefined,
}

impl Missing {
    /// Returns whether the array is known to be created in Zarr v2.
    pub(super) fn is_created(self) -> bool {
        matches!(self, Self::Created | Self::Undefined)
    }
}

/// Chunk files that stand in for chunks that do not exist.
#[derive(Debug)]
pub struct Filled {
    /// Content of chunks that do not exist.
    pub absent: FillChunk,
    /// Chunk of the value that readers of Zarr v2 assume for an absent chunk; `None` if it equals
    /// `absent`.
    pub removed: Option<FillChunk>,
    /// Both values as text. If it changes, so do the contents of the files.
    pub values: String,
}

/// Representation of an array's missing values in Zarr v2.
#[derive(Debug, Default)]
pub(super) struct MissingValues {
    /// The `fill_value`.
    pub fill_value: Value,
    /// If set, all chunks are shown, missing ones included.
    pub filled: Option<Filled>,
    /// `true` if readers that take the fill value for a missing value see other values than in Zarr
    /// v3.
    pub is_misread: bool,
}

/// Determines the representation for an array with the unsharded metadata `twin`, whose fill value
/// translates to `fill_value` in Zarr v2. Adapts the missing value in its attributes.
pub(super) fn represent(
    twin: &Value,
    data_type: &DataType2,
    fill_value: Value,
    attributes: &mut Map<String, Value>,
    missing: Missing,
) -> MissingValues {
    if missing == Missing::Undefined {
        if let Mask::Value(value) = Mask::of(attributes.get(ATTRIBUTE), data_type) {
            name(attributes, &value);
        }
        return MissingValues::default();
    }
    let missing = if missing == Missing::Created { Missing::Auto } else { missing };
    let chunk = |wanted| if missing == wanted { FillChunk::of(twin) } else { None };
    let values = |removed: &Value| format!("{fill_value} {removed}");
    let plain = || {
        let values = values(&fill_value);
        let filled = chunk(Missing::Fill).map(|absent| Filled { absent, removed: None, values });
        MissingValues { fill_value: fill_value.clone(), filled, is_misread: false }
    };
    if !attributes.contains_key(DIMENSIONS) || fill_value.is_null() {
        return plain();
    }
    let mask = Mask::of(attributes.get(ATTRIBUTE), data_type);
    match &mask {
        Mask::Unknown => return plain(),
        Mask::Value(value) if data_type.same_missing(value, &fill_value) => {
            name(attributes, value);
            return plain();
        }
        Mask::None if data_type.is_nan(&fill_value) => return plain(),
        Mask::None | Mask::Value(_) | Mask::Other(_) => (),
    }
    let absent = chunk(Missing::Fill).or_else(|| chunk(Missing::Auto));
    match (mask, absent) {
        (Mask::Value(value), Some(absent)) => {
            name(attributes, &value);
            let (removed, values) = (FillChunk::of_value(twin, &value), values(&value));
            let filled = Some(Filled { absent, removed, values });
            MissingValues { fill_value: value, filled, is_misread: false }
        }
        (mask, Some(absent)) => {
            if let Mask::Other(value) = mask {
                attributes.insert(ATTRIBUTE.to_owned(), value);
            }
            let assumed = data_type.assumed().filter(|assumed| *assumed != fill_value);
            let removed = assumed.and_then(|assumed| FillChunk::of_value(twin, &assumed));
            let filled = Some(Filled { absent, removed, values: values(&Value::Null) });
            MissingValues { fill_value: Value::Null, filled, is_misread: false }
        }
        (mask, None) => {
            if let Mask::Value(value) | Mask::Other(value) = &mask {
                name(attributes, value);
            }
            MissingValues { fill_value, filled: None, is_misread: true }
        }
    }
}

/// Sets the attribute to a missing value; removes it if the value is not a number.
fn name(attributes: &mut Map<String, Value>, value: &Value) {
    match value.is_number() {
        true => drop(attributes.insert(ATTRIBUTE.to_owned(), value.clone())),
        false => drop(attributes.shift_remove(ATTRIBUTE)),
    }
}

/// Missing value given by the attribute.
enum Mask {
    /// There is no such attribute.
    None,
    /// An item, in the notation of Zarr v2.
    Value(Value),
    /// A number that the data type cannot represent.
    Other(Value),
    /// A value that no reader understands.
    Unknown,
}

impl Mask {
    fn of(attribute: Option<&Value>, data_type: &DataType2) -> Self {
        let Some(attribute) = attribute else { return Self::None };
        let Some(plain) = decoded(attribute, data_type) else { return Self::Unknown };
        match data_type.fill_value(Some(&plain)) {
            Ok(value) if !value.is_null() => Self::Value(value),
            _ if plain.is_number() => Self::Other(plain),
            _ => Self::Unknown,
        }
    }
}

/// Decodes a missing value to the notation of fill values; `None` if it is invalid.
fn decoded(attribute: &Value, data_type: &DataType2) -> Option<Value> {
    match (data_type.letter(), attribute) {
        ('f', _) => float(attribute),
        ('c', Value::Array(parts)) => match parts.as_slice() {
            [real, imaginary] => Some(json!([float(real)?, float(imaginary)?])),
            _ => None,
        },
        ('i' | 'u', Value::Number(_)) => Some(attribute.clone()),
        ('b', Value::Bool(_) | Value::Number(_)) => Some(attribute.clone()),
        ('U' | 'S' | 'O', Value::String(_)) => Some(attribute.clone()),
        _ => None,
    }
}

/// Decodes a floating-point number, given in Base64, as a number, or as a word for one that JSON
/// does not have.
fn float(value: &Value) -> Option<Value> {
    let Value::String(text) = value else { return value.is_number().then(|| value.clone()) };
    if ["NaN", "Infinity", "-Infinity"].contains(&text.as_str()) {
        return Some(value.clone());
    }
    let bits: [u8; 8] = STANDARD.decode(text).ok()?.try_into().ok()?;
    let number = f64::from_le_bytes(bits);
    Some(match Number::from_f64(number) {
        Some(number) => number.into(),
        None if number.is_nan() => "NaN".into(),
        None => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
    })
}

/// Encodes a missing value as xarray writes it to the attribute of an array of Zarr v3; `None` if
/// xarray cannot read it there.
pub(super) fn encoded(value: &Value, data_type: &DataType2) -> Option<Value> {
    let number = |value: &Value| {
        let number = match value {
            Value::String(text) => match text.as_str() {
                "NaN" => f64::NAN,
                "Infinity" => f64::INFINITY,
                "-Infinity" => f64::NEG_INFINITY,
                _ => return None,
            },
            value => value.as_f64()?,
        };
        Some(Value::from(STANDARD.encode(number.to_le_bytes())))
    };
    match data_type.letter() {
        'f' => number(value),
        'c' => Some(json!([number(value.get(0)?)?, number(value.get(1)?)?])),
        'i' | 'u' => value.is_number().then(|| value.clone()),
        'b' => value.is_boolean().then(|| value.clone()),
        _ => None,
    }
}

/// Translates the attributes of an array to Zarr v3, given its `fill_value` in Zarr v2: the
/// attribute is set to the missing value, if xarray has stored the names of the dimensions in the
/// attributes.
pub(super) fn to_zarr3(
    attributes: &mut Map<String, Value>,
    fill_value: Option<&Value>,
    data_type: &DataType2,
) {
    if !attributes.contains_key(DIMENSIONS) {
        return;
    }
    let fill_value = fill_value.filter(|value| !value.is_null());
    let value = match fill_value {
        Some(value) => data_type.fill_value(Some(value)).ok(),
        None => attributes.get(ATTRIBUTE).and_then(|value| decoded(value, data_type)),
    };
    match value.and_then(|value| encoded(&value, data_type)) {
        Some(value) => drop(attributes.insert(ATTRIBUTE.to_owned(), value)),
        // The attribute has no effect if there is a fill value.
        None if fill_value.is_some() => drop(attributes.shift_remove(ATTRIBUTE)),
        None => (),
    }
}

/// Restores the missing value in attributes that were written to the view. `stored` is the missing
/// value in the stored attributes, `shown` the one in the attributes that the view showed, beside
/// the shown `fill_value`. Omitting the attribute changes nothing if the fill value is the same.
pub(super) fn back(
    attributes: &mut Map<String, Value>,
    stored: Option<&Value>,
    shown: Option<&Value>,
    fill_value: &Value,
    data_type: &DataType2,
) {
    let is_fill_value = || match Mask::of(stored, data_type) {
        Mask::Value(value) => data_type.same_missing(&value, fill_value),
        Mask::None | Mask::Other(_) | Mask::Unknown => false,
    };
    let is_as_shown = match (attributes.get(ATTRIBUTE), shown) {
        (None, None) => true,
        (None, Some(_)) => is_fill_value(),
        (Some(written), Some(shown)) => same(written, shown),
        (Some(_), None) => false,
    };
    if is_as_shown {
        match stored {
            Some(stored) => drop(attributes.insert(ATTRIBUTE.to_owned(), stored.clone())),
            None => drop(attributes.shift_remove(ATTRIBUTE)),
        }
    } else if let Some(written) = attributes.get(ATTRIBUTE)
        && let Some(value) = decoded(written, data_type)
        && let Some(value) = encoded(&value, data_type)
    {
        attributes.insert(ATTRIBUTE.to_owned(), value);
    }
}
