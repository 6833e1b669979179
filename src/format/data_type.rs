//! Data types of arrays: length of an item, words that the byte order applies to, NumPy's name, and
//! fill value.
//!
//! Zarr core 3.1, "Data types", and the registered extensions whose items all have the same size.
//! Types narrower than a byte take a whole byte, as the codec `bytes` stores them.

mod fill;

use serde_json::Value;

use crate::number::to_usize;

use super::limits::MAX_ITEM_BYTES;

/// Data type whose items all have the same size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataType {
    name: String,
    kind: Kind,
    nbytes: usize,
}

/// Kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    /// Two's complement integer of this many bits.
    Int(u32),
    /// Unsigned integer of this many bits.
    Uint(u32),
    Float(Float),
    /// Real part, imaginary part.
    Complex(Float),
    /// Uninterpreted bytes.
    Raw,
    /// NumPy's `M` or `m`: its letter, the unit, and the number of units per step.
    Time(char, &'static str, u32),
    /// Code points of four bytes, padded with zeros.
    Utf32,
    /// Bytes, padded with zeros.
    Bytes,
}

/// Floating-point format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Float {
    Binary16,
    Bfloat16,
    Binary32,
    Binary64,
    /// At most one byte: the number of bits, and whether a zero byte is the number 0.
    Small(u32, bool),
}

impl Float {
    fn nbytes(self) -> usize {
        match self {
            Self::Small(..) => 1,
            Self::Binary16 | Self::Bfloat16 => 2,
            Self::Binary32 => 4,
            Self::Binary64 => 8,
        }
    }

    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "float16" => Self::Binary16,
            "bfloat16" => Self::Bfloat16,
            "float32" => Self::Binary32,
            "float64" => Self::Binary64,
            "float8_e3m4" | "float8_e4m3" | "float8_e4m3b11fnuz" | "float8_e4m3fn"
            | "float8_e4m3fnuz" | "float8_e5m2" | "float8_e5m2fnuz" => Self::Small(8, true),
            // The format has no mantissa and no sign, only an exponent.
            "float8_e8m0fnu" => Self::Small(8, false),
            "float6_e2m3fn" | "float6_e3m2fn" => Self::Small(6, true),
            "float4_e2m1fn" => Self::Small(4, true),
            _ => return None,
        })
    }
}

/// Error that makes a data type or its fill value unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DataTypeError {
    /// The data type is neither a name nor an object with a name.
    #[error("data_type must be a name or an object with a name")]
    Invalid,
    /// The data type is not known.
    #[error("data type {0:?} is not known")]
    Unknown(String),
    /// The items of the data type differ in length.
    #[error("items of data type {0:?} have no fixed size")]
    NoFixedSize(String),
    /// A member of the configuration has an invalid value.
    #[error("{member} of data type {name:?} must be {expected}")]
    Configuration {
        /// Name of the data type.
        name: String,
        /// Name of the member.
        member: &'static str,
        /// Expected value.
        expected: &'static str,
    },
    /// Items exceed [`MAX_ITEM_BYTES`].
    #[error("items of data type {0:?} are longer than the limit of {MAX_ITEM_BYTES} bytes")]
    Limit(String),
    /// The fill value is not a value of the data type.
    #[error("fill_value {value} is no {name}")]
    FillValue {
        /// Name of the data type.
        name: String,
        /// The fill value, cut to a readable length.
        value: String,
    },
    /// The text given for the fill value is not a value of the data type.
    #[error("fill value {text:?} is no {name}: write {expected}")]
    FillText {
        /// Name of the data type.
        name: String,
        /// The given text, cut to a readable length.
        text: String,
        /// Description of the accepted texts.
        expected: String,
    },
}

impl DataType {
    /// Parses the `data_type` of an array's metadata: a name, or an object with a name and an
    /// optional configuration.
    pub fn parse(data_type: &Value) -> Result<Self, DataTypeError> {
        let name = match data_type {
            Value::String(name) => name,
            Value::Object(object) => match object.get("name") {
                Some(Value::String(name)) => name,
                _ => return Err(DataTypeError::Invalid),
            },
            _ => return Err(DataTypeError::Invalid),
        };
        let configuration = data_type.get("configuration");
        let (kind, nbytes) = match number(name).or_else(|| raw_bits(name)) {
            Some(found) => found,
            None => configured(name, configuration)?,
        };
        if nbytes > MAX_ITEM_BYTES {
            return Err(DataTypeError::Limit(name.clone()));
        }
        Ok(Self { name: name.clone(), kind, nbytes })
    }

    /// Name of the data type in metadata.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length of an item in bytes, from 1 to [`MAX_ITEM_BYTES`].
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Length in bytes of the words that the byte order applies to; 1 if it applies to none.
    /// Divides [`Self::nbytes`].
    pub fn word(&self) -> usize {
        match self.kind {
            Kind::Bool | Kind::Raw | Kind::Bytes => 1,
            Kind::Int(_) | Kind::Uint(_) | Kind::Time(..) => self.nbytes,
            Kind::Float(float) | Kind::Complex(float) => float.nbytes(),
            Kind::Utf32 => 4,
        }
    }

    /// Returns NumPy's name of the data type, as in files of NumPy's own format: `<u2`, `|b1`,
    /// `>c16`, `<M8[ns]`, `<U5`. Types that NumPy does not have are `V` with their length, as NumPy
    /// names types registered by other libraries.
    pub fn descr(&self, big_endian: bool) -> String {
        let order = match (self.word(), big_endian) {
            (1, _) => '|',
            (_, true) => '>',
            (_, false) => '<',
        };
        let letter = match self.kind {
            Kind::Bool => 'b',
            Kind::Int(8..) => 'i',
            Kind::Uint(8..) => 'u',
            Kind::Float(Float::Binary16 | Float::Binary32 | Float::Binary64) => 'f',
            Kind::Complex(Float::Binary32 | Float::Binary64) => 'c',
            Kind::Time(letter, "generic", _) => letter,
            Kind::Time(letter, unit, 1) => return format!("{order}{letter}8[{unit}]"),
            Kind::Time(letter, unit, scale) => return format!("{order}{letter}8[{scale}{unit}]"),
            Kind::Utf32 => return format!("{order}U{}", self.nbytes / 4),
            Kind::Bytes => 'S',
            Kind::Int(_) | Kind::Uint(_) | Kind::Float(_) | Kind::Complex(_) | Kind::Raw => 'V',
        };
        format!("{order}{letter}{}", self.nbytes)
    }
}

/// Parses a numeric or boolean type; returns it with the length of an item in bytes.
fn number(name: &str) -> Option<(Kind, usize)> {
    let whole = |digits: &str| {
        let bits: u32 =
            ["2", "4", "8", "16", "32", "64"].contains(&digits).then(|| digits.parse())?.ok()?;
        Some((bits, bits.div_ceil(8) as usize))
    };
    let complex = match name {
        "bool" => return Some((Kind::Bool, 1)),
        "complex64" => Some(Float::Binary32),
        "complex128" => Some(Float::Binary64),
        _ => name.strip_prefix("complex_").and_then(Float::named),
    };
    if let Some(float) = complex {
        return Some((Kind::Complex(float), 2 * float.nbytes()));
    }
    if let Some((bits, nbytes)) = name.strip_prefix("int").and_then(whole) {
        return Some((Kind::Int(bits), nbytes));
    }
    if let Some((bits, nbytes)) = name.strip_prefix("uint").and_then(whole) {
        return Some((Kind::Uint(bits), nbytes));
    }
    Float::named(name).map(|float| (Kind::Float(float), float.nbytes()))
}

/// Parses raw bits, `r8`, `r16`, ...: whole bytes only.
fn raw_bits(name: &str) -> Option<(Kind, usize)> {
    let digits = name.strip_prefix('r')?;
    let plain = !digits.starts_with('0') && digits.bytes().all(|digit| digit.is_ascii_digit());
    let bits: usize = digits.parse().ok().filter(|_| plain)?;
    bits.is_multiple_of(8).then_some((Kind::Raw, bits / 8))
}

/// Parses a type that depends on its configuration.
fn configured(name: &str, configuration: Option<&Value>) -> Result<(Kind, usize), DataTypeError> {
    let option = |member: &str| configuration.and_then(|options| options.get(member));
    let refused = |member, expected| {
        Err(DataTypeError::Configuration { name: name.to_owned(), member, expected })
    };
    let (kind, word) = match name {
        "numpy.datetime64" | "numpy.timedelta64" => {
            let letter = if name == "numpy.datetime64" { 'M' } else { 'm' };
            let unit = option("unit").and_then(Value::as_str).unwrap_or("generic");
            let Some(unit) = UNITS.iter().find(|known| **known == micro(unit)) else {
                return refused("unit", "one of NumPy's units of time");
            };
            let scale = option("scale_factor").map_or(Some(1), Value::as_u64);
            let most = if *unit == "generic" { 1 } else { i32::MAX.unsigned_abs() };
            let scale = scale.and_then(|scale| u32::try_from(scale).ok());
            return match scale.filter(|scale| (1..=most).contains(scale)) {
                Some(scale) => Ok((Kind::Time(letter, unit, scale), 8)),
                None => refused("scale_factor", "from 1 to 2^31-1, and 1 without a unit"),
            };
        }
        "fixed_length_utf32" => (Kind::Utf32, 4),
        "null_terminated_bytes" => (Kind::Bytes, 1),
        "raw_bytes" => (Kind::Raw, 1),
        "string" | "bytes" | "variable_length_bytes" | "variable_length_utf8" => {
            return Err(DataTypeError::NoFixedSize(name.to_owned()));
        }
        _ => return Err(DataTypeError::Unknown(name.to_owned())),
    };
    let length = option("length_bytes").and_then(Value::as_u64).filter(|length| *length > 0);
    match length.map(to_usize) {
        Some(length) if length.is_multiple_of(word) => Ok((kind, length)),
        _ => refused("length_bytes", "a whole number of bytes and characters from 1"),
    }
}

/// NumPy's units of time.
const UNITS: [&str; 14] =
    ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic"];

/// Normalizes microseconds, which may be written with either of Unicode's two Greek letters.
fn micro(unit: &str) -> &str {
    if matches!(unit, "\u{3bc}s" | "\u{b5}s") { "us" } else { unit }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn described(data_type: &Value) -> (String, String, usize, usize) {
        let it = DataType::parse(data_type).unwrap();
        (it.descr(false), it.descr(true), it.nbytes(), it.word())
    }

    #[test]
    fn names_lengths_and_words() {
        let expected = [
            ("bool", "|b1", 1, 1),
            ("int8", "|i1", 1, 1),
            ("int64", "<i8", 8, 8),
            ("uint8", "|u1", 1, 1),
            ("uint16", "<u2", 2, 2),
            ("float16", "<f2", 2, 2),
            ("float64", "<f8", 8, 8),
            ("complex64", "<c8", 8, 4),
            ("complex_float64", "<c16", 16, 8),
            ("complex_bfloat16", "<V4", 4, 2),
            ("bfloat16", "<V2", 2, 2),
            ("float8_e5m2", "|V1", 1, 1),
            ("float4_e2m1fn", "|V1", 1, 1),
            ("int4", "|V1", 1, 1),
            ("uint2", "|V1", 1, 1),
            ("r8", "|V1", 1, 1),
            ("r24", "|V3", 3, 1),
        ];
        for (name, little, nbytes, word) in expected {
            let big = little.replace('<', ">");
            assert_eq!(described(&json!(name)), (little.to_owned(), big, nbytes, word), "{name}");
            assert_eq!(described(&json!({"name": name, "configuration": {}})).2, nbytes);
        }
    }

    #[test]
    fn configured_types() {
        let of = |name: &str, configuration: Value| {
            described(&json!({"name": name, "configuration": configuration}))
        };
        let time = |unit: &str, scale: u32| json!({"unit": unit, "scale_factor": scale});
        assert_eq!(of("numpy.datetime64", time("ns", 1)).0, "<M8[ns]");
        assert_eq!(of("numpy.datetime64", time("s", 10)).1, ">M8[10s]");
        assert_eq!(of("numpy.timedelta64", time("\u{3bc}s", 1)).0, "<m8[us]");
        assert_eq!(of("numpy.timedelta64", time("generic", 1)).0, "<m8");
        let length = |length: u32| json!({"length_bytes": length});
        assert_eq!(of("fixed_length_utf32", length(20)), ("<U5".into(), ">U5".into(), 20, 4));
        assert_eq!(of("null_terminated_bytes", length(3)), ("|S3".into(), "|S3".into(), 3, 1));
        assert_eq!(of("raw_bytes", length(2)), ("|V2".into(), "|V2".into(), 2, 1));
    }

    #[test]
    fn each_defect_is_named() {
        let refused = |data_type: Value| DataType::parse(&data_type).unwrap_err().to_string();
        let invalid = "data_type must be a name or an object with a name";
        assert_eq!(refused(json!(3)), invalid);
        assert_eq!(refused(json!({"name": 3})), invalid);
        for name in
            ["", "int3", "uint", "int+8", "r", "r7", "r0", "r08", "r+8", "struct", "complex32"]
        {
            assert_eq!(refused(json!(name)), format!("data type {name:?} is not known"));
        }
        assert_eq!(refused(json!("string")), "items of data type \"string\" have no fixed size");
        assert_eq!(
            refused(json!({"name": "bytes"})),
            "items of data type \"bytes\" have no fixed size"
        );
        let long = "items of data type \"r8388616\" are longer than the limit of 1048576 bytes";
        assert_eq!(refused(json!("r8388616")), long);
        let of = |name: &str, configuration: Value| {
            refused(json!({"name": name, "configuration": configuration}))
        };
        assert_eq!(
            of("numpy.datetime64", json!({"unit": "fortnight", "scale_factor": 1})),
            "unit of data type \"numpy.datetime64\" must be one of NumPy's units of time"
        );
        assert_eq!(
            of("numpy.timedelta64", json!({"unit": "s", "scale_factor": 0})),
            "scale_factor of data type \"numpy.timedelta64\" must be from 1 to 2^31-1, and 1 without a unit"
        );
        for (name, length) in
            [("fixed_length_utf32", json!(6)), ("raw_bytes", json!(0)), ("raw_bytes", json!("a"))]
        {
            assert_eq!(
                of(name, json!({"length_bytes": length})),
                format!(
                    "length_bytes of data type {name:?} must be a whole number of bytes and characters from 1"
                )
            );
        }
    }
}
