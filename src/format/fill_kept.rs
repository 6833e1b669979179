//! Codecs before the sharding that keep the fill value as it is.
//!
//! An inner chunk that is absent from a shard holds the fill value where it would be decoded: behind
//! these codecs, which are then undone. Some readers encode the fill value first, others do not.
//! An absent chunk of an unsharded array holds the fill value itself. All of that is the same only
//! if the codec encodes and decodes the fill value to itself.

use std::ops::Range;

use serde_json::Value;

use super::codec::Codec;
use super::numpy;

/// Significant bits of a number of 64 bits, the first of which is not stored.
const SIGNIFICANT: i32 = 53;

/// Returns whether a codec is known to keep `fill_value`.
pub(super) fn keeps_fill(codec: &Codec, fill_value: Option<&Value>) -> bool {
    // These move items, or change their data type and not their bits.
    if ["transpose", "reinterpret"].contains(&codec.name.as_str()) {
        return true;
    }
    match fill_value {
        None | Some(Value::Null) => keeps(codec, 0.0),
        Some(Value::Array(parts)) => {
            parts.iter().all(|part| number(part).is_some_and(|part| keeps(codec, part)))
        }
        Some(value) => number(value).is_some_and(|value| keeps(codec, value)),
    }
}

/// Returns the number of a fill value; `None` if it is none, or is given by its bits.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(truth) => Some(f64::from(u8::from(*truth))),
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

fn keeps(codec: &Codec, value: f64) -> bool {
    let number_of = |member: &str| codec.option(member).and_then(Value::as_f64);
    let is_held_by = |member: &str| match codec.option(member) {
        None | Some(Value::Null) => true,
        Some(data_type) => data_type.as_str().is_some_and(|name| holds(name, value)),
    };
    let is_scaled_to_itself = value.is_nan() || value == 0.0 && number_of("offset") == Some(0.0);
    let is_mapped = codec.option("scalar_map").is_some_and(|map| !map.is_null());
    match codec.name.trim_start_matches("numcodecs.") {
        "astype" => codec.option("encode_dtype").is_some() && is_held_by("encode_dtype"),
        "cast_value" => {
            codec.option("data_type").is_some() && is_held_by("data_type") && !is_mapped
        }
        "fixedscaleoffset" => is_scaled_to_itself && is_held_by("astype"),
        "scale_offset" => is_scaled_to_itself,
        "quantize" => {
            let is_whole = value.fract() == 0.0 && value.abs() < f64::from(1_u32 << 24);
            let is_kept = !value.is_finite() || is_whole && number_of("digits") >= Some(0.0);
            is_kept && is_held_by("astype")
        }
        "bitround" => {
            // The first one is not stored.
            let is_kept = number_of("keepbits") >= Some(significant_bits(value) - 1.0);
            !value.is_finite() || value == 0.0 || value.abs() >= 1.0 && is_kept
        }
        _ => false,
    }
}

/// Returns whether numbers of a data type, named as in Zarr v3 or NumPy, include `value`.
fn holds(data_type: &str, value: f64) -> bool {
    let Some(data_type) = numpy::DataType::parse(data_type) else { return value == 0.0 };
    let is_below = |bits: i32| value.fract() == 0.0 && value.abs() < 2_f64.powi(bits);
    // Without the smallest ones, of which fewer bits are stored.
    let is_exact = |bits: f64, range: Range<f64>| {
        let is_held = significant_bits(value) <= bits && range.contains(&value.abs());
        !value.is_finite() || value == 0.0 || is_held
    };
    let bits = i32::try_from(data_type.nbytes * 8).unwrap_or_default();
    match data_type.name {
        "float64" => true,
        "float32" => is_exact(24.0, 2_f64.powi(-126)..2_f64.powi(128)),
        "float16" => is_exact(11.0, 2_f64.powi(-14)..2_f64.powi(16)),
        name if name.starts_with("int") => is_below(SIGNIFICANT.min(bits - 1)),
        name if name.starts_with("uint") => value >= 0.0 && is_below(SIGNIFICANT.min(bits)),
        _ => value == 0.0,
    }
}

/// Returns the number of bits from the first to the last that is set.
fn significant_bits(value: f64) -> f64 {
    let stored = value.to_bits() | 1 << (SIGNIFICANT - 1);
    f64::from(SIGNIFICANT) - f64::from(stored.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::format::codec::parse_chain;

    fn kept(name: &str, configuration: Value, fill_value: Value) -> bool {
        let codec = json!([{"name": name, "configuration": configuration}]);
        keeps_fill(&parse_chain(Some(&codec)).unwrap()[0], Some(&fill_value))
    }

    #[test]
    fn a_fill_value_that_is_scaled_moved_or_rounded_is_not_kept() {
        let scale = |offset: f64| json!({"scale": 10, "offset": offset, "dtype": "<f4"});
        let to_bytes = json!({"scale": 10, "offset": 0, "dtype": "<f4", "astype": "u1"});
        for name in ["scale_offset", "numcodecs.fixedscaleoffset"] {
            assert!(kept(name, scale(0.0), json!(0)));
            assert!(kept(name, scale(273.15), json!("NaN")));
            assert!(!kept(name, scale(273.15), json!(0)));
            assert!(!kept(name, scale(0.0), json!(1)));
        }
        assert!(kept("numcodecs.fixedscaleoffset", to_bytes.clone(), json!(0)));
        assert!(!kept("numcodecs.fixedscaleoffset", to_bytes, json!("NaN")));
        for name in ["bitround", "numcodecs.bitround"] {
            for value in [json!(0), json!("NaN"), json!("-Infinity"), json!(6), json!([0, 1])] {
                assert!(kept(name, json!({"keepbits": 2}), value));
            }
            assert!(!kept(name, json!({"keepbits": 12}), json!(-9999)));
            assert!(kept(name, json!({"keepbits": 13}), json!(-9999)));
            assert!(!kept(name, json!({"keepbits": 23}), json!(0.1)));
        }
        let digits = |astype: Value| json!({"digits": 2, "dtype": "<f8", "astype": astype});
        assert!(kept("numcodecs.quantize", digits(json!(null)), json!(-9999)));
        assert!(kept("numcodecs.quantize", digits(json!("<f4")), json!("NaN")));
        assert!(!kept("numcodecs.quantize", digits(json!(null)), json!(0.123)));
    }

    #[test]
    fn a_fill_value_that_another_data_type_does_not_hold_is_not_kept() {
        let cast = |data_type: &str, value: Value| {
            let astype = json!({"encode_dtype": data_type, "decode_dtype": "<f8"});
            let is_kept = kept("numcodecs.astype", astype, value.clone());
            assert_eq!(is_kept, kept("cast_value", json!({"data_type": data_type}), value));
            is_kept
        };
        assert!(cast("uint8", json!(255)) && !cast("uint8", json!(256)));
        assert!(!cast("uint8", json!(-1)) && cast("int8", json!(-1)));
        assert!(!cast("int16", json!("NaN")) && cast("float32", json!("NaN")));
        assert!(!cast("int16", json!(3.5)) && !cast("float32", json!(0.1)));
        assert!(cast("float64", json!(0.1)) && cast("int4", json!(0)) && !cast("int4", json!(1)));
        let mapped = json!({"data_type": "uint8", "scalar_map": {"encode": [["NaN", 0]]}});
        assert!(!kept("cast_value", mapped, json!(0)));
    }

    #[test]
    fn a_fill_value_given_by_its_bits_is_not_known_to_be_kept() {
        assert!(!kept("bitround", json!({"keepbits": 9}), json!("0x7fc00000")));
        assert!(kept("reinterpret", json!({"data_type": "int32"}), json!("0x7fc00000")));
    }
}
