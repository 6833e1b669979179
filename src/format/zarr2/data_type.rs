//! Data types by NumPy's names, and fill values in the notation of Zarr v2.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use half::f16;
use serde_json::{Number, Value, json};

use super::error::NoForm;
use crate::format::data_type::DataType;
use crate::format::from_twin::same;

/// Data type that Zarr v2 can represent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DataType2 {
    name: String,
    items: Items,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Items {
    /// Items of a fixed size.
    Fixed(DataType),
    /// Texts of any length.
    Texts,
    /// Bytes of any length.
    Bytes,
}

impl DataType2 {
    /// Parses the `data_type` of an array.
    pub(super) fn parse(value: Option<&Value>) -> Result<Self, NoForm> {
        let name = value.and_then(|value| value.as_str().or_else(|| value.get("name")?.as_str()));
        let name = name.unwrap_or_default();
        let none = || NoForm::DataType(name.to_owned());
        let items = match (name, value) {
            ("string", _) => Items::Texts,
            ("variable_length_bytes" | "bytes", _) => Items::Bytes,
            (_, Some(value)) => Items::Fixed(DataType::parse(value).map_err(|_| none())?),
            (_, None) => return Err(none()),
        };
        let data_type = Self { name: name.to_owned(), items };
        // The letter for raw bytes also stands for types that NumPy does not have.
        let raw = name == "raw_bytes" || name.starts_with('r');
        if data_type.letter() == 'V' && !raw { Err(none()) } else { Ok(data_type) }
    }

    /// Name of the data type in Zarr v3.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the `dtype` in Zarr v2.
    pub(super) fn descr(&self, big_endian: bool) -> String {
        match &self.items {
            Items::Fixed(data_type) => data_type.descr(big_endian),
            Items::Texts | Items::Bytes => "|O".to_owned(),
        }
    }

    /// Letter of NumPy's name of the data type.
    pub(super) fn letter(&self) -> char {
        self.descr(false).chars().nth(1).unwrap_or('V')
    }

    /// Returns the filter that encodes items of variable length; `None` for items of a fixed size.
    pub(super) fn object_codec(&self) -> Option<&'static str> {
        match self.items {
            Items::Fixed(_) => None,
            Items::Texts => Some("vlen-utf8"),
            Items::Bytes => Some("vlen-bytes"),
        }
    }

    /// Translates a fill value to the notation of Zarr v2; numbers keep their text.
    pub(super) fn fill_value(&self, value: Option<&Value>) -> Result<Value, NoForm> {
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(Value::Null) };
        let fill = match &self.items {
            Items::Texts => value.is_string().then(|| value.clone()),
            // zarr-python 2 would use the encoded text itself as fill value.
            Items::Bytes => is_empty(value).then(|| "".into()),
            Items::Fixed(data_type) => {
                let item = data_type.fill_value(Some(value)).ok();
                item.and_then(|item| self.spelled(value, &item))
            }
        };
        fill.ok_or_else(|| NoForm::FillValue {
            value: value.to_string().chars().take(40).collect(),
            data_type: self.name.clone(),
        })
    }

    /// Returns the fill value that zarr-python assumes where there is none, in the notation that
    /// both versions share: zeros, for times NaT, or the empty text.
    pub(super) fn assumed(&self) -> Option<Value> {
        let Items::Fixed(data_type) = &self.items else { return Some("".into()) };
        let unspelled = match self.letter() {
            'U' => "".into(),
            'c' => json!([null, null]),
            _ => Value::Null,
        };
        let value = matches!(self.letter(), 'M' | 'm').then(|| json!("NaT"));
        self.spelled(&unspelled, &data_type.fill_value(value.as_ref()).ok()?)
    }

    /// Returns whether a fill value is NaN or, for complex numbers, has a part that is.
    pub(super) fn is_nan(&self, value: &Value) -> bool {
        let is_nan = |value: &Value| value == "NaN";
        match self.letter() {
            'f' => is_nan(value),
            'c' => value.as_array().is_some_and(|parts| parts.iter().any(is_nan)),
            _ => false,
        }
    }

    /// Returns whether two values in the notation of Zarr v2 mark the same items as missing: they
    /// are the same fill value, both NaN, or floating-point zeros of any sign.
    pub(super) fn same_missing(&self, a: &Value, b: &Value) -> bool {
        let is_zero = |value: &Value| value.as_f64() == Some(0.0);
        self.same_fill(a, b)
            || self.is_nan(a) && self.is_nan(b)
            || self.letter() == 'f' && is_zero(a) && is_zero(b)
    }

    /// Returns whether items are texts or bytes, of fixed or variable length.
    pub(super) fn is_text(&self) -> bool {
        ['O', 'U', 'S'].contains(&self.letter())
    }

    /// Returns the fill value in the notation of Zarr v2, given its item and its value in Zarr v3.
    fn spelled(&self, value: &Value, item: &[u8]) -> Option<Value> {
        Some(match self.letter() {
            'b' => json!(item.first() != Some(&0)),
            'u' => json!(u64::from_le_bytes(extended(item, 0)?)),
            'i' => {
                let negative = item.last().is_some_and(|byte| *byte >= 0x80);
                json!(i64::from_le_bytes(extended(item, if negative { 0xff } else { 0 })?))
            }
            'M' | 'm' => json!(i64::from_le_bytes(extended(item, 0)?)),
            'f' => float(value, item)?,
            'c' => {
                let (re, im) = item.split_at_checked(item.len() / 2)?;
                json!([float(value.get(0)?, re)?, float(value.get(1)?, im)?])
            }
            'U' => value.clone(),
            'S' => {
                let end = item.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                STANDARD.encode(&item[..end]).into()
            }
            _ => STANDARD.encode(item).into(),
        })
    }

    /// Returns whether two fill values in the notation of Zarr v2 stand for the same item:
    /// zarr-python 2 writes `0.1` of 32 bits as `0.10000000149011612`.
    pub(super) fn same_fill(&self, a: &Value, b: &Value) -> bool {
        match &self.items {
            Items::Fixed(data_type) if !a.is_null() && !b.is_null() => {
                let item = |value| data_type.fill_value(Some(value)).ok();
                item(a).is_some_and(|a| Some(a) == item(b))
            }
            _ => same(a, b),
        }
    }
}

/// Returns whether a fill value in Base64, or as a list of numbers, has no bytes.
fn is_empty(value: &Value) -> bool {
    value.as_str().is_some_and(str::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Extends the bytes of a whole number to 8, filling with `missing`.
fn extended(item: &[u8], missing: u8) -> Option<[u8; 8]> {
    let mut bytes = [missing; 8];
    bytes.get_mut(..item.len())?.copy_from_slice(item);
    Some(bytes)
}

/// Translates a floating-point number: a number keeps its text, the words for NaN and infinities
/// are normalized, and a bit pattern becomes a number or such a word.
fn float(value: &Value, item: &[u8]) -> Option<Value> {
    if value.is_number() {
        return Some(value.clone());
    }
    let number = match *item {
        [a, b] => f16::from_le_bytes([a, b]).to_f64(),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]).into(),
        _ => f64::from_le_bytes(item.try_into().ok()?),
    };
    Some(match Number::from_f64(number) {
        Some(number) => Value::Number(number),
        None if number.is_nan() => "NaN".into(),
        None => if number > 0.0 { "Infinity" } else { "-Infinity" }.into(),
    })
}
