//! NumPy's names of data types, as stored by other formats, and their names in Zarr v3.

use serde_json::{Value, json};

/// A numeric or boolean data type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataType {
    /// Name in Zarr v3.
    pub name: &'static str,
    /// Length of an item in bytes.
    pub nbytes: u64,
    /// `true` if the most significant byte comes first.
    pub big_endian: bool,
}

/// Name in Zarr v3, NumPy's type code, length of an item in bytes.
const TYPES: [(&str, &str, u64); 14] = [
    ("bool", "b1", 1),
    ("int8", "i1", 1),
    ("int16", "i2", 2),
    ("int32", "i4", 4),
    ("int64", "i8", 8),
    ("uint8", "u1", 1),
    ("uint16", "u2", 2),
    ("uint32", "u4", 4),
    ("uint64", "u8", 8),
    ("float16", "f2", 2),
    ("float32", "f4", 4),
    ("float64", "f8", 8),
    ("complex64", "c8", 8),
    ("complex128", "c16", 16),
];

impl DataType {
    /// Parses `int32`, `<i4` or `'<i4'`; `None` for anything but a known name. Code is never
    /// evaluated.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim_matches(['\'', '"']);
        let (big_endian, letter) = match text.split_at_checked(1)? {
            ("<" | "|" | "=", letter) => (false, letter),
            (">", letter) => (true, letter),
            _ => (false, text),
        };
        let found = TYPES.iter().find(|(name, short, _)| *short == letter || *name == text);
        found.map(|(name, _, nbytes)| Self { name, nbytes: *nbytes, big_endian })
    }

    /// Value of `endian` for the codec `bytes`.
    pub fn endian(self) -> &'static str {
        if self.big_endian { "big" } else { "little" }
    }
}

/// Items of an array, in Zarr v3: numbers, times, and texts and bytes of a fixed length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Items {
    /// Data type in Zarr v3.
    pub data_type: Value,
    /// Length of an item in bytes.
    pub nbytes: u64,
    /// `true` if the most significant byte comes first; `None` if the item has no byte order.
    pub big_endian: Option<bool>,
}

impl Items {
    /// Parses NumPy's name of a data type: `<i4`, `|b1`, `<M8[25s]`, `<U5`, `|S5`, `|V5`; `None`
    /// for any other.
    pub fn parse(text: &str) -> Option<Self> {
        let number = DataType::parse(text).map(|number| Self {
            data_type: number.name.into(),
            nbytes: number.nbytes,
            big_endian: (number.nbytes > 1).then_some(number.big_endian),
        });
        number.or_else(|| Self::configured(text))
    }

    /// Parses times, and texts and bytes of a fixed length.
    fn configured(text: &str) -> Option<Self> {
        let big_endian = Some(text.starts_with('>'));
        let text = text.trim_start_matches(['<', '>', '|']);
        let named = |name: &str, configuration: Value| json!({"name": name, "configuration": configuration});
        let length = |digits: &str| digits.parse().ok().filter(|length: &u64| *length > 0);
        for (letter, name) in [('S', "null_terminated_bytes"), ('V', "raw_bytes")] {
            if let Some(nbytes) = text.strip_prefix(letter).and_then(length) {
                let data_type = named(name, json!({"length_bytes": nbytes}));
                return Some(Self { data_type, nbytes, big_endian: None });
            }
        }
        if let Some(length) = text.strip_prefix('U').and_then(length) {
            let nbytes = length.checked_mul(4)?;
            let data_type = named("fixed_length_utf32", json!({"length_bytes": nbytes}));
            return Some(Self { data_type, nbytes, big_endian });
        }
        let (name, unit) = match text.split_at_checked(2)? {
            ("M8", unit) => ("numpy.datetime64", unit),
            ("m8", unit) => ("numpy.timedelta64", unit),
            _ => return None,
        };
        let unit = match unit {
            "" => "generic",
            unit => unit.strip_prefix('[')?.strip_suffix(']')?,
        };
        let letters = unit.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let scale: u64 = match &unit[..unit.len() - letters.len()] {
            "" => 1,
            digits => digits.parse().ok()?,
        };
        let data_type = named(name, json!({"unit": letters, "scale_factor": scale}));
        Some(Self { data_type, nbytes: 8, big_endian })
    }

    /// Returns the array->bytes codec that stores the items.
    pub fn codec(&self) -> Value {
        match self.big_endian {
            Some(big) => {
                let endian = if big { "big" } else { "little" };
                json!({"name": "bytes", "configuration": {"endian": endian}})
            }
            None => json!({"name": "bytes"}),
        }
    }
}

/// Parses the fields of a structured data type, `[('x', '<i4'), ('y', '<f8')]`, into names and data
/// types; `None` for anything else. Code is never evaluated.
pub fn fields(text: &str) -> Option<Vec<(&str, &str)>> {
    let mut rest = text.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut fields = Vec::new();
    while !rest.is_empty() {
        let (name, after) = quoted(rest.strip_prefix('(')?)?;
        let (data_type, after) = quoted(after.trim_start().strip_prefix(',')?)?;
        fields.push((name, data_type));
        rest = after.trim_start().strip_prefix(')')?.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if rest.is_empty() => rest,
            None => return None,
        };
    }
    (!fields.is_empty()).then_some(fields)
}

/// Splits a text in quotes, which must not contain a backslash, from what follows it; `None` if
/// there is none.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let quote = text.chars().next().filter(|quote| "'\"".contains(*quote))?;
    let (inside, after) = text[1..].split_once(quote)?;
    (!inside.contains('\\')).then_some((inside, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_records() {
        let two = Some(vec![("x", "<i4"), ("y z", "float64")]);
        assert_eq!(fields("[('x', '<i4'), (\"y z\",'float64')]"), two);
        assert_eq!(fields(" [('x', '<i4'), ('y z', 'float64'),] "), two);
        let refused = [
            "float64",
            "[]",
            "[('x')]",
            "[('x', [('y', 'i4')])]",
            "[('x', 'i4') ('y', 'i4')]",
            "[(f(), 'i4')]",
            "[('x', 'i4'",
            "[('\\x', 'i4')]",
            "[('x', '<i4', (2,))]",
        ];
        for text in refused {
            assert_eq!(fields(text), None, "{text}");
        }
    }

    #[test]
    fn names_of_numbers() {
        let read = |text| DataType::parse(text).map(|it| (it.name, it.nbytes, it.big_endian));
        assert_eq!(read("<f8"), Some(("float64", 8, false)));
        assert_eq!(read("'>i2'"), Some(("int16", 2, true)));
        assert_eq!(read("uint16"), Some(("uint16", 2, false)));
        assert_eq!(read("|u1"), Some(("uint8", 1, false)));
        for other in ["", "<", "S5", "object", "[('a', '<i4')]", "__import__('os').abort()"] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
