//! Fill values: conversion of their JSON form to one item. Zarr core 3.1, "Fill value".

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use half::{bf16, f16};
use serde_json::{Value, json};

use super::{DataType, DataTypeError, Float, Kind};
use crate::format::json::{self, bare_word};
use crate::text::count;

/// NumPy's "not a time".
const NAT: i64 = i64::MIN;

impl DataType {
    /// Returns one item of the array's `fill_value`, [`Self::nbytes`] long, little-endian; zeros if
    /// it is absent or null.
    pub fn fill_value(&self, value: Option<&Value>) -> Result<Vec<u8>, DataTypeError> {
        let Some(value) = value.filter(|value| !value.is_null()) else {
            return Ok(vec![0; self.nbytes]);
        };
        self.item(value).ok_or_else(|| {
            let value = value.to_string();
            let shown = value.chars().take(40).collect();
            DataTypeError::FillValue { name: self.name.clone(), value: shown }
        })
    }

    /// Converts `value` to one item, little-endian; `None` if it is not a value of the type.
    fn item(&self, value: &Value) -> Option<Vec<u8>> {
        match self.kind {
            Kind::Bool => match value {
                Value::Bool(truth) => Some(vec![u8::from(*truth)]),
                _ => whole(value, 0, 1, 1),
            },
            Kind::Int(bits) => {
                let most = i128::from(i64::MAX >> (64 - bits));
                let mut item = whole(value, -most - 1, most, self.nbytes)?;
                if bits < 8 {
                    // In memory, the bits above those of the type are zeros.
                    item[0] &= (1 << bits) - 1;
                }
                Some(item)
            }
            Kind::Uint(bits) => whole(value, 0, i128::from(u64::MAX >> (64 - bits)), self.nbytes),
            Kind::Float(format) => float(value, format),
            Kind::Complex(format) => match value.as_array()?.as_slice() {
                [real, imaginary] => {
                    Some([float(real, format)?, float(imaginary, format)?].concat())
                }
                _ => None,
            },
            Kind::Raw => raw(value, self.nbytes).filter(|item| item.len() == self.nbytes),
            Kind::Bytes => padded(raw(value, self.nbytes)?, self.nbytes),
            Kind::Time(..) => match value {
                Value::String(text) if text == "NaT" => Some(NAT.to_le_bytes().to_vec()),
                _ => whole(value, i64::MIN.into(), i64::MAX.into(), 8),
            },
            Kind::Utf32 => {
                let text = value.as_str()?;
                if text.len() > self.nbytes {
                    return None;
                }
                let points = text.chars().flat_map(|point| u32::from(point).to_le_bytes());
                padded(points.collect(), self.nbytes)
            }
        }
    }
}

impl DataType {
    /// Returns the fill value of an array for which none is given, in the notation of writers: all
    /// bytes zero, but NaT for times, as zarr-python chooses it.
    pub fn default_fill(&self) -> Value {
        match self.kind {
            Kind::Bool => json!(false),
            Kind::Int(_) | Kind::Uint(_) => json!(0),
            Kind::Time(..) => json!("NaT"),
            // The format has no zero.
            Kind::Float(Float::Small(_, false)) => json!("0x00"),
            Kind::Complex(Float::Small(_, false)) => json!(["0x00", "0x00"]),
            Kind::Float(_) => json!(0.0),
            Kind::Complex(_) => json!([0.0, 0.0]),
            Kind::Raw => json!(STANDARD.encode(vec![0; self.nbytes])),
            Kind::Bytes | Kind::Utf32 => json!(""),
        }
    }

    /// Parses a fill value as written by a user: JSON, or a word or text without quotation marks.
    pub fn fill_from_text(&self, text: &str) -> Result<Value, DataTypeError> {
        let values = [word(text), json::parse(text.as_bytes()).ok().map(plain), Some(json!(text))];
        let fits = |value: &Value| self.item(value).is_some();
        let found = values.into_iter().flatten().find(fits);
        found.map(|value| self.as_written(value)).ok_or_else(|| DataTypeError::FillText {
            name: self.name.clone(),
            text: text.chars().take(40).collect(),
            expected: self.fills(),
        })
    }

    /// Converts a value to the one form that all readers accept.
    fn as_written(&self, value: Value) -> Value {
        match (self.kind, &value) {
            (Kind::Raw | Kind::Bytes, Value::Array(_)) => {
                raw(&value, self.nbytes).map_or(value, |bytes| json!(STANDARD.encode(bytes)))
            }
            (Kind::Bool, Value::Number(number)) => json!(number.as_f64() == Some(1.0)),
            (Kind::Int(_) | Kind::Uint(_) | Kind::Time(..), Value::Number(number))
                if number.as_i128().is_none() =>
            {
                let whole = number.as_f64().map(|number| format!("{number:.0}"));
                let whole = whole.and_then(|text| json::parse(text.as_bytes()).ok());
                whole.unwrap_or(value)
            }
            _ => value,
        }
    }

    /// Describes the accepted fill values, for messages.
    fn fills(&self) -> String {
        let float = "a number, NaN, Infinity, -Infinity, or its bits as 0x and hexadecimal digits";
        let small = "0, or its bits as 0x and two hexadecimal digits";
        let of =
            |float_format| if matches!(float_format, Float::Small(..)) { small } else { float };
        match self.kind {
            Kind::Bool => "true or false".to_owned(),
            Kind::Int(bits) => {
                let most = i64::MAX >> (64 - bits);
                format!("a whole number from {} to {most}", -most - 1)
            }
            Kind::Uint(bits) => format!("a whole number from 0 to {}", u64::MAX >> (64 - bits)),
            Kind::Float(format) => of(format).to_owned(),
            Kind::Complex(format) => {
                format!("a JSON list of the real and the imaginary part, each {}", of(format))
            }
            Kind::Raw => format!("{}, in base64 or as a JSON list", count(self.nbytes, "byte")),
            Kind::Bytes => {
                format!("at most {}, in base64 or as a JSON list", count(self.nbytes, "byte"))
            }
            Kind::Time(..) => "a whole number of units, or NaT".to_owned(),
            Kind::Utf32 => format!("a text of at most {} characters", self.nbytes / 4),
        }
    }
}

/// Parses the usual words for NaN and the infinities, in any case.
fn word(text: &str) -> Option<Value> {
    Some(match text.to_ascii_lowercase().as_str() {
        "nan" => json!("NaN"),
        "inf" | "+inf" | "infinity" | "+infinity" => json!("Infinity"),
        "-inf" | "-infinity" => json!("-Infinity"),
        _ => return None,
    })
}

/// Replaces the stand-ins of JSON's bare words by the words as strings, the form in fill values.
fn plain(value: Value) -> Value {
    match value {
        Value::String(text) => json!(bare_word(&text)),
        Value::Array(items) => items.into_iter().map(plain).collect(),
        other => other,
    }
}

/// Converts a whole number within a range to `nbytes` bytes. Some writers write it as `4.0`.
fn whole(value: &Value, least: i128, most: i128, nbytes: usize) -> Option<Vec<u8>> {
    let number = value.as_number()?;
    let exact = number.as_i128().or_else(|| {
        // Below 2^53, every whole number is exact.
        let float = number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e15)?;
        #[allow(clippy::cast_possible_truncation, reason = "a small whole number")]
        Some(float as i128)
    })?;
    (least..=most).contains(&exact).then(|| exact.to_le_bytes()[..nbytes].to_vec())
}

/// Converts a floating-point number, given as a number, a word, or the hexadecimal digits of its
/// bit pattern, most significant first.
fn float(value: &Value, format: Float) -> Option<Vec<u8>> {
    let number = match value {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => match bare_word(text) {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            text => return pattern(text, format),
        },
        _ => return None,
    };
    Some(match format {
        Float::Binary64 => number.to_le_bytes().to_vec(),
        Float::Binary32 => narrow(number).to_le_bytes().to_vec(),
        Float::Binary16 => f16::from_f32(odd(number)).to_le_bytes().to_vec(),
        Float::Bfloat16 => bf16::from_f32(odd(number)).to_le_bytes().to_vec(),
        // Zero needs no encoder; other values must be given as a bit pattern.
        Float::Small(_, true) if number.to_bits() == 0 => vec![0],
        Float::Small(..) => return None,
    })
}

fn pattern(text: &str, format: Float) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("0x")?;
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if digits.len() != 2 * format.nbytes() || !plain {
        return None;
    }
    let bits = u64::from_str_radix(digits, 16).ok()?;
    match format {
        Float::Small(width, _) if bits >> width != 0 => None,
        _ => Some(bits.to_le_bytes()[..format.nbytes()].to_vec()),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "rounding is what it is for")]
fn narrow(number: f64) -> f32 {
    number as f32
}

/// Rounds to odd, so that rounding the result again to a narrower format yields the same as
/// rounding the number itself.
fn odd(number: f64) -> f32 {
    let near = narrow(number);
    let bits = near.to_bits();
    if number.is_nan() || f64::from(near) == number || bits & 1 == 1 {
        return near;
    }
    // Adjacent bit patterns are adjacent magnitudes. Zero, whose pattern is even, only has a
    // neighbour of larger magnitude.
    f32::from_bits(if f64::from(near).abs() < number.abs() { bits + 1 } else { bits - 1 })
}

/// Decodes bytes from a list of their values or from base64, limited to about `most` bytes.
fn raw(value: &Value, most: usize) -> Option<Vec<u8>> {
    match value {
        Value::Array(items) if items.len() <= most => {
            let byte = |item: &Value| item.as_u64().and_then(|byte| u8::try_from(byte).ok());
            items.iter().map(byte).collect()
        }
        Value::String(text) if text.len() / 4 <= most => STANDARD.decode(text).ok(),
        _ => None,
    }
}

fn padded(mut item: Vec<u8>, nbytes: usize) -> Option<Vec<u8>> {
    (item.len() <= nbytes).then(|| {
        item.resize(nbytes, 0);
        item
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::format::json;

    fn of(data_type: &Value) -> DataType {
        DataType::parse(data_type).unwrap()
    }

    fn fill(name: &str, value: &Value) -> Vec<u8> {
        of(&json!(name)).fill_value(Some(value)).unwrap()
    }

    #[test]
    fn nothing_and_null_are_zeros() {
        let float = of(&json!("complex64"));
        assert_eq!(float.fill_value(None).unwrap(), [0; 8]);
        assert_eq!(float.fill_value(Some(&Value::Null)).unwrap(), [0; 8]);
    }

    #[test]
    fn whole_numbers_are_exact() {
        let most = json::parse(b"18446744073709551615").unwrap();
        assert_eq!(fill("uint64", &most), [255; 8]);
        assert_eq!(fill("int64", &json!(i64::MIN)), i64::MIN.to_le_bytes());
        assert_eq!(fill("uint16", &json!(0x1234)), [0x34, 0x12]);
        assert_eq!(fill("int16", &json!(-2.0)), [0xfe, 0xff]);
        assert_eq!(fill("int4", &json!(-1)), [0x0f]);
        assert_eq!(fill("int2", &json!(-2)), [2]);
        assert_eq!(fill("uint4", &json!(15)), [15]);
        assert_eq!(fill("bool", &json!(true)), [1]);
        assert_eq!(fill("bool", &json!(0)), [0]);
    }

    #[test]
    fn floats_are_numbers_words_and_patterns() {
        assert_eq!(fill("float32", &json!(0.1)), 0.1_f32.to_le_bytes());
        assert_eq!(fill("float64", &json!(-0.0)), (-0.0_f64).to_le_bytes());
        assert_eq!(fill("float32", &json!("NaN")), [0, 0, 0xc0, 0x7f]);
        assert_eq!(fill("float32", &json::parse(b"NaN").unwrap()), [0, 0, 0xc0, 0x7f]);
        assert_eq!(fill("float16", &json!("NaN")), [0, 0x7e]);
        assert_eq!(fill("bfloat16", &json!("NaN")), [0xc0, 0x7f]);
        assert_eq!(fill("float16", &json!("-Infinity")), [0, 0xfc]);
        assert_eq!(fill("bfloat16", &json!("Infinity")), [0x80, 0x7f]);
        assert_eq!(fill("float32", &json!("0x7fc00001")), [1, 0, 0xc0, 0x7f]);
        assert_eq!(fill("float64", &json!("0x8000000000000000")), (-0.0_f64).to_le_bytes());
        assert_eq!(fill("bfloat16", &json!("0x3F80")), [0x80, 0x3f]);
        assert_eq!(fill("float8_e4m3", &json!("0x7c")), [0x7c]);
        assert_eq!(fill("float8_e4m3", &json!(0.0)), [0]);
        assert_eq!(fill("float4_e2m1fn", &json!("0x0f")), [0x0f]);
        let complex = fill("complex64", &json!([1.0, "0x7fc00000"]));
        assert_eq!(complex, [0, 0, 0x80, 0x3f, 0, 0, 0xc0, 0x7f]);
    }

    #[test]
    fn narrow_floats_are_rounded_once() {
        // Just above the middle between 1 and the next number: a float32 in between would lose the
        // difference.
        let above = 1.0 + 2_f64.powi(-11) + 2_f64.powi(-50);
        assert_eq!(fill("float16", &json!(above)), 0x3c01_u16.to_le_bytes());
        assert_eq!(fill("float16", &json!(1.0 + 2_f64.powi(-11))), 0x3c00_u16.to_le_bytes());
        let above = 1.0 + 2_f64.powi(-8) + 2_f64.powi(-50);
        assert_eq!(fill("bfloat16", &json!(above)), 0x3f81_u16.to_le_bytes());
        assert_eq!(fill("float16", &json!(1e300)), 0x7c00_u16.to_le_bytes());
        assert_eq!(fill("bfloat16", &json!(-1e300)), 0xff80_u16.to_le_bytes());
        assert_eq!(fill("float16", &json!(1e-300)), [0, 0]);
        assert_eq!(fill("float16", &json!(65519.99)), 0x7bff_u16.to_le_bytes());
    }

    #[test]
    fn bytes_texts_and_times() {
        let with = |name: &str, length: u32| {
            of(&json!({"name": name, "configuration": {"length_bytes": length}}))
        };
        assert_eq!(fill("r24", &json!([1, 2, 255])), [1, 2, 255]);
        assert_eq!(fill("r24", &json!("AQL/")), [1, 2, 255]);
        let bytes = with("null_terminated_bytes", 4);
        assert_eq!(bytes.fill_value(Some(&json!("YWI="))).unwrap(), b"ab\0\0");
        let text = with("fixed_length_utf32", 8);
        assert_eq!(text.fill_value(Some(&json!("é"))).unwrap(), [0xe9, 0, 0, 0, 0, 0, 0, 0]);
        assert!(text.fill_value(Some(&json!("abc"))).is_err());
        let time = of(
            &json!({"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}),
        );
        assert_eq!(time.fill_value(Some(&json!("NaT"))).unwrap(), NAT.to_le_bytes());
        assert_eq!(time.fill_value(Some(&json!(-1))).unwrap(), [255; 8]);
    }

    #[test]
    fn what_is_no_value_of_the_type_is_refused() {
        let refused = [
            ("bool", json!(2)),
            ("bool", json!("true")),
            ("uint8", json!(256)),
            ("uint8", json!(-1)),
            ("int8", json!(128)),
            ("int4", json!(8)),
            ("uint2", json!(4)),
            ("int32", json!(1.5)),
            ("int32", json!("1")),
            ("float32", json!("nan")),
            ("float32", json!("0x7fc0")),
            ("float32", json!("0x+fc00000")),
            ("float32", json!([1])),
            ("float8_e5m2", json!(1.0)),
            ("float8_e5m2", json!(-0.0)),
            ("float8_e8m0fnu", json!(0.0)),
            ("float4_e2m1fn", json!("0x10")),
            ("complex64", json!(1.0)),
            ("complex64", json!([1.0])),
            ("r16", json!([1])),
            ("r16", json!([1, 2, 3])),
            ("r16", json!([1, 256])),
            ("r16", json!("A")),
        ];
        for (name, value) in refused {
            let error = of(&json!(name)).fill_value(Some(&value)).unwrap_err().to_string();
            assert_eq!(error, format!("fill_value {value} is no {name}"));
        }
        let long = of(&json!("r16")).fill_value(Some(&json!("A".repeat(5000)))).unwrap_err();
        assert!(long.to_string().len() < 80);
        assert!(of(&json!("float64")).fill_value(Some(&json::parse(b"1e999").unwrap())).is_err());
    }

    #[test]
    fn the_default_is_all_zeros() {
        let names = "bool int2 int8 uint64 float16 bfloat16 float32 float64 float8_e5m2 \
            float8_e8m0fnu float4_e2m1fn complex64 complex_bfloat16 complex_float8_e8m0fnu r8 r24";
        let configured = [
            json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}}),
            json!({"name": "null_terminated_bytes", "configuration": {"length_bytes": 3}}),
            json!({"name": "raw_bytes", "configuration": {"length_bytes": 5}}),
        ];
        for data_type in names.split_whitespace().map(|name| json!(name)).chain(configured) {
            let it = of(&data_type);
            let item = it.fill_value(Some(&it.default_fill()));
            assert_eq!(item, Ok(vec![0; it.nbytes()]), "{data_type}");
        }
        for name in ["numpy.datetime64", "numpy.timedelta64"] {
            let time = of(&json!({"name": name, "configuration": {"unit": "s"}}));
            assert_eq!(time.default_fill(), json!("NaT"));
        }
    }

    #[test]
    fn fill_values_are_read_as_people_write_them() {
        let from = |name: &str, text: &str| of(&json!(name)).fill_from_text(text).unwrap();
        assert_eq!(from("float32", "nan"), json!("NaN"));
        assert_eq!(from("float32", "-inf"), json!("-Infinity"));
        assert_eq!(from("float32", "NaN"), json!("NaN"));
        assert_eq!(from("float64", "0.5"), json::parse(b"0.5").unwrap());
        assert_eq!(from("float32", "0x7fc00001"), json!("0x7fc00001"));
        assert_eq!(from("complex64", "[NaN, 1]").to_string(), r#"["NaN",1]"#);
        assert_eq!(from("int8", "-128"), json!(-128));
        assert_eq!(from("uint8", "4.0").to_string(), "4");
        assert_eq!(from("int64", "1e3").to_string(), "1000");
        assert_eq!(from("uint64", "18446744073709551615").to_string(), "18446744073709551615");
        assert_eq!(from("bool", "true"), json!(true));
        assert_eq!(from("bool", "1"), json!(true));
        assert_eq!(from("r16", "[0, 255]"), json!("AP8="));
        let text = of(&json!({"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}}));
        assert_eq!(text.fill_from_text("ab").unwrap(), json!("ab"));
        assert_eq!(text.fill_from_text("5").unwrap(), json!("5"));
    }

    #[test]
    fn a_bad_fill_value_is_told_what_is_expected() {
        let message =
            |name: &str, text: &str| of(&json!(name)).fill_from_text(text).unwrap_err().to_string();
        assert_eq!(
            message("int8", "128"),
            "fill value \"128\" is no int8: write a whole number from -128 to 127"
        );
        assert_eq!(message("bool", "yes"), "fill value \"yes\" is no bool: write true or false");
        assert!(message("float32", "x").contains("a number, NaN"));
        assert!(message("complex64", "1").contains("a JSON list of the real"));
        assert!(message("r16", "[1]").contains("2 bytes, in base64"));
    }

    proptest! {
        #[test]
        fn rounding_to_odd_keeps_what_is_exact(bits: u16) {
            let half = f16::from_bits(bits);
            prop_assume!(!half.is_nan());
            prop_assert_eq!(f16::from_f32(odd(half.to_f64())), half);
            // The middle of two neighbours is rounded to the even one, numbers beside it to the
            // nearer one.
            let next = f16::from_bits(bits.wrapping_add(1));
            prop_assume!(half.is_finite() && next.is_finite() && bits != 0x7fff);
            let middle = (half.to_f64() + next.to_f64()) / 2.0;
            prop_assume!(middle != 0.0);
            let even = if bits & 1 == 0 { half } else { next };
            prop_assert_eq!(f16::from_f32(odd(middle)), even);
            let beyond = f64::from_bits(middle.to_bits() + 1);
            prop_assert_eq!(f16::from_f32(odd(beyond)), next);
        }
    }
}
