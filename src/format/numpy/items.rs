//! Array items by NumPy's name of their data type, and their form in Zarr v3.

use serde_json::{Value, json};

use super::DataType;

/// Items of an array.
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
