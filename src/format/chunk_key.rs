//! Chunk keys: the names of chunk files relative to their array.
//!
//! Zarr core 3.1, "Chunk key encoding": `default` writes `c/0/1` (rank 0: `c`), `v2` writes `0.1`
//! (rank 0: `0`); the separator of both can be `/` or `.`. The draft of 2022 writes `c0/1` (rank 0:
//! `c0`).

use serde_json::Value;

use super::Coords;
use super::error::MetadataError;

/// Encoding of the chunk keys of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyEncoding {
    /// Prefix of keys.
    pub prefix: Prefix,
    /// Separator of the coordinates.
    pub separator: Separator,
}

/// Prefix before the first number of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefix {
    /// No prefix: `0/1`.
    None,
    /// `c` and a separator: `c/0/1`.
    Apart,
    /// `c` without a separator: `c0/1`.
    Joined,
}

/// Separator between the numbers of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Separator {
    /// `/`: a directory for each axis but the last one.
    Slash,
    /// `.`: all chunks in one directory.
    Dot,
}

impl Separator {
    pub(super) fn as_char(self) -> char {
        match self {
            Self::Slash => '/',
            Self::Dot => '.',
        }
    }
}

impl KeyEncoding {
    /// Parses the `chunk_key_encoding` of an array.
    pub fn parse(value: Option<&Value>) -> Result<Self, MetadataError> {
        let value = value.ok_or(MetadataError::Missing("chunk_key_encoding"))?;
        let name = value.as_str().or_else(|| value.get("name")?.as_str()).unwrap_or_default();
        let (prefix, usual) = match name {
            "default" => (Prefix::Apart, Separator::Slash),
            "v2" => (Prefix::None, Separator::Dot),
            _ => {
                let expected = "\"default\" or \"v2\"";
                return Err(MetadataError::invalid("chunk_key_encoding", expected));
            }
        };
        let separator = value.get("configuration").and_then(|value| value.get("separator"));
        let separator = match separator {
            None => usual,
            Some(Value::String(text)) if text == "/" => Separator::Slash,
            Some(Value::String(text)) if text == "." => Separator::Dot,
            Some(_) => {
                let expected = "\"/\" or \".\"";
                return Err(MetadataError::invalid("separator of chunk_key_encoding", expected));
            }
        };
        Ok(Self { prefix, separator })
    }

    /// Returns the key of a chunk, or of the directory given by leading coordinates. Without
    /// coordinates it is `c` for [`Prefix::Apart`], otherwise empty: the array's own directory.
    pub fn key(self, coords: &[u64]) -> String {
        let mut key = String::from(if self.prefix == Prefix::Apart { "c" } else { "" });
        for (axis, coord) in coords.iter().enumerate() {
            if !key.is_empty() {
                key.push(self.separator.as_char());
            }
            key.push_str(&self.part(axis, *coord));
        }
        key
    }

    /// Returns the key of a chunk of an array of rank `coords.len()`.
    pub fn chunk_key(self, coords: &[u64]) -> String {
        match self.prefix {
            Prefix::None | Prefix::Joined if coords.is_empty() => self.part(0, 0),
            _ => self.key(coords),
        }
    }

    /// Returns the common beginning of the keys of all chunks with the given leading coordinates,
    /// up to their next coordinate.
    pub fn stem(self, leading: &[u64]) -> String {
        let mut stem = self.key(leading);
        if !stem.is_empty() {
            stem.push(self.separator.as_char());
        }
        if self.prefix == Prefix::Joined && leading.is_empty() {
            stem.push('c');
        }
        stem
    }

    /// Parses leading coordinates from the beginning of a key, which must end between two of its
    /// parts, in an array of the given rank; `None` if it is not the beginning of a key.
    pub fn parse_leading(self, beginning: &str, rank: usize) -> Option<Coords> {
        let mut parts = beginning.split(self.separator.as_char());
        match self.prefix {
            _ if rank == 0 => return (beginning == self.chunk_key(&[])).then(Vec::new),
            Prefix::Apart => (parts.next()? == "c").then_some(())?,
            Prefix::None | Prefix::Joined => (),
        }
        let parts = parts.enumerate();
        let coords: Coords =
            parts.map(|(axis, part)| self.parse_part(axis, part)).collect::<Option<_>>()?;
        (coords.len() <= rank).then_some(coords)
    }

    /// Returns the part of a key for a coordinate along an axis.
    pub fn part(self, axis: usize, coord: u64) -> String {
        match (self.prefix, axis) {
            (Prefix::Joined, 0) => format!("c{coord}"),
            _ => coord.to_string(),
        }
    }

    /// Parses the coordinate along an axis from a part of a key; `None` if it is not one.
    pub fn parse_part(self, axis: usize, part: &str) -> Option<u64> {
        match (self.prefix, axis) {
            (Prefix::Joined, 0) => number(part.strip_prefix('c')?),
            _ => number(part),
        }
    }

    /// Parses a file name in the array's directory as the chunk key of an array of that rank with
    /// the separator `.`, or of rank 0; `None` if it is not one.
    pub fn parse_flat(self, name: &str, rank: usize) -> Option<Coords> {
        if rank == 0 {
            return (name == self.chunk_key(&[])).then(Vec::new);
        }
        let parts = if self.prefix == Prefix::Apart { name.strip_prefix("c.")? } else { name };
        let parts = parts.split('.').enumerate();
        let coords: Coords =
            parts.map(|(axis, part)| self.parse_part(axis, part)).collect::<Option<_>>()?;
        (coords.len() == rank).then_some(coords)
    }

    /// Returns whether a name in the array's own directory belongs to its chunk keys. In the source
    /// such names are shards or directories above them; in the view they are replaced by the
    /// chunks.
    pub fn claims(self, name: &str, rank: usize) -> bool {
        match self.separator {
            Separator::Slash if rank > 0 && self.prefix == Prefix::Apart => name == "c",
            Separator::Slash if rank > 0 => self.parse_part(0, name).is_some(),
            _ => self.parse_flat(name, rank).is_some(),
        }
    }
}

/// Returns whether a path relative to a node may be a chunk key, or the beginning of one, if the
/// node is an array of unknown key encoding.
pub fn may_be_key(path: &str) -> bool {
    let numbers = path.strip_prefix('c').unwrap_or(path);
    let numbers = numbers.strip_prefix(['/', '.']).unwrap_or(numbers);
    path == "c" || numbers.split(['/', '.']).all(|part| number(part).is_some())
}

/// Parses a number in a key: decimal, without leading zeros. `None` for any other text.
pub fn number(text: &str) -> Option<u64> {
    let canonical = text == "0" || !text.starts_with('0');
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (canonical && digits).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn encoding(name: &str, separator: &str) -> KeyEncoding {
        let value = json!({"name": name, "configuration": {"separator": separator}});
        KeyEncoding::parse(Some(&value)).unwrap()
    }

    #[test]
    fn keys_of_the_specification() {
        assert_eq!(encoding("default", "/").chunk_key(&[0, 1, 2]), "c/0/1/2");
        assert_eq!(encoding("default", ".").chunk_key(&[0, 1, 2]), "c.0.1.2");
        assert_eq!(encoding("v2", "/").chunk_key(&[0, 1, 2]), "0/1/2");
        assert_eq!(encoding("v2", ".").chunk_key(&[0, 1, 2]), "0.1.2");
        assert_eq!(encoding("default", "/").chunk_key(&[]), "c");
        assert_eq!(encoding("v2", ".").chunk_key(&[]), "0");
        assert_eq!(encoding("v2", "/").key(&[]), "");
    }

    #[test]
    fn defaults_and_bare_names() {
        let parse = |value| KeyEncoding::parse(Some(&value)).unwrap();
        assert_eq!(parse(json!({"name": "default"})), encoding("default", "/"));
        assert_eq!(parse(json!("v2")), encoding("v2", "."));
        KeyEncoding::parse(None).unwrap_err();
        KeyEncoding::parse(Some(&json!("fanout"))).unwrap_err();
        let x = json!({"name": "default", "configuration": {"separator": "x"}});
        let error = KeyEncoding::parse(Some(&x)).unwrap_err();
        assert_eq!(error.to_string(), "separator of chunk_key_encoding must be \"/\" or \".\"");
    }

    #[test]
    fn only_canonical_keys_parse() {
        let flat = encoding("default", ".");
        assert_eq!(flat.parse_flat("c.0.12", 2), Some(vec![0, 12]));
        for name in [
            "c.0",
            "c.0.1.2",
            "c.0.01",
            "c.0.+1",
            "c.0.",
            "0.1",
            "c.0.1.partial",
            "c.0.99999999999999999999",
        ] {
            assert_eq!(flat.parse_flat(name, 2), None, "{name}");
        }
        assert_eq!(flat.parse_flat("c", 0), Some(vec![]));
        assert_eq!(encoding("v2", ".").parse_flat("0", 0), Some(vec![]));
    }

    #[test]
    fn beginnings_of_keys() {
        let joined = KeyEncoding { prefix: Prefix::Joined, separator: Separator::Slash };
        for keys in [encoding("default", "/"), encoding("v2", "."), encoding("v2", "/"), joined] {
            let key = keys.chunk_key(&[3, 0, 12]);
            assert_eq!(keys.stem(&[3, 0]) + "12", key);
            assert_eq!(keys.stem(&[]) + "3", keys.key(&[3]));
            assert_eq!(keys.parse_leading(&key, 3), Some(vec![3, 0, 12]));
            assert_eq!(keys.parse_leading(&keys.key(&[3, 0]), 3), Some(vec![3, 0]));
            assert_eq!(keys.parse_leading(&key, 2), None);
            assert_eq!(keys.parse_leading("x", 2), None);
        }
        assert_eq!(encoding("default", "/").parse_leading("c", 2), Some(vec![]));
        assert_eq!(encoding("default", "/").parse_leading("c", 0), Some(vec![]));
        assert_eq!(encoding("v2", ".").parse_leading("1", 0), None);
    }

    #[test]
    fn keys_of_every_encoding_may_be_keys_and_no_other_names() {
        let joined = KeyEncoding { prefix: Prefix::Joined, separator: Separator::Slash };
        let encodings = [("default", "/"), ("default", "."), ("v2", "/"), ("v2", ".")]
            .map(|(name, separator)| encoding(name, separator));
        for keys in encodings.into_iter().chain([joined]) {
            let chunks = [&[][..], &[7], &[3, 0, 12]].map(|coords| keys.chunk_key(coords));
            let directories = [&[3][..], &[3, 0]].map(|coords| keys.key(coords));
            for key in chunks.iter().chain(&directories) {
                assert!(may_be_key(key), "{key}");
            }
        }
        for name in ["", "zarr.json", "c/empty", "c/0/01", "c.0.partial", "c/", "cc/0", "x/0"] {
            assert!(!may_be_key(name), "{name}");
        }
    }

    #[test]
    fn names_of_the_arrays_own_directory_that_lead_to_chunks() {
        assert!(encoding("default", "/").claims("c", 2));
        assert!(!encoding("default", "/").claims("0", 2));
        assert!(encoding("v2", "/").claims("17", 2));
        assert!(!encoding("v2", "/").claims("zarr.json", 2));
        assert!(encoding("v2", ".").claims("1.2", 2));
        assert!(!encoding("v2", ".").claims("1", 2));
        assert!(encoding("default", ".").claims("c", 0));
    }
}
