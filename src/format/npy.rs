//! The header of NumPy's `.npy` files.
//!
//! ```text
//! 0      6      8               10 or 12
//! | \x93NUMPY | version | length of the dictionary | dictionary, spaces, \n | items
//!     6 bytes   1.0: 2 bytes of length, 2.0 and 3.0: 4 bytes; little-endian
//!
//! {'descr': '<u2', 'fortran_order': False, 'shape': (3, 4), }
//! ```
//!
//! Written headers align the items to a multiple of 64 bytes, as NumPy does. A header that is read
//! must be a Python dictionary of these three members, in any order; code is never evaluated.

/// First bytes of a file.
const MAGIC: &[u8] = b"\x93NUMPY";
/// Alignment of the first item, in bytes.
const ALIGNMENT: usize = 64;
/// Maximum length of a header to be read, in bytes. NumPy's own limit is 10000.
pub const MAX_HEADER_BYTES: usize = 1 << 16;

/// Content of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Data type, such as `<u2`.
    pub descr: String,
    /// `true` if the first axis varies fastest.
    pub fortran_order: bool,
    /// Extents in items.
    pub shape: Vec<u64>,
}

/// Error reading a header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NpyError {
    /// The file does not begin with the magic of `.npy`.
    #[error("it is no .npy file: it does not begin with \\x93NUMPY")]
    Magic,
    /// The version is not supported.
    #[error("version {0}.{1} of .npy is not known")]
    Version(u8, u8),
    /// The file ends within its header.
    #[error("the file ends within its header")]
    Truncated,
    /// The header exceeds [`MAX_HEADER_BYTES`]. Holds its length in bytes.
    #[error("its header has {0} bytes, the limit is {MAX_HEADER_BYTES}")]
    Long(usize),
    /// The dictionary does not have exactly these members with values of the right kinds.
    #[error("its header is no dictionary of descr, fortran_order and shape")]
    Dictionary,
}

impl Header {
    /// Encodes the header, padded so that the items can follow directly.
    pub fn to_bytes(&self) -> Vec<u8> {
        let shape = match self.shape.as_slice() {
            [extent] => format!("({extent},)"),
            shape => {
                let extents: Vec<String> = shape.iter().map(u64::to_string).collect();
                format!("({})", extents.join(", "))
            }
        };
        let order = if self.fortran_order { "True" } else { "False" };
        let dictionary =
            format!("{{'descr': '{}', 'fortran_order': {order}, 'shape': {shape}, }}", self.descr);
        // With at most 64 axes the header is short enough for a length of two bytes.
        let before = MAGIC.len() + 4;
        let padded = (before + dictionary.len() + 1).next_multiple_of(ALIGNMENT) - before;
        let length = u16::try_from(padded).unwrap_or(u16::MAX);
        let mut bytes = [MAGIC, &[1, 0], &length.to_le_bytes(), dictionary.as_bytes()].concat();
        bytes.resize(before + padded - 1, b' ');
        bytes.push(b'\n');
        bytes
    }

    /// Parses the header at the beginning of a file; returns it and the offset of the first item.
    pub fn parse(file: &[u8]) -> Result<(Self, usize), NpyError> {
        let rest = file.strip_prefix(MAGIC).ok_or(NpyError::Magic)?;
        let (&[major, minor], rest) = rest.split_first_chunk().ok_or(NpyError::Truncated)?;
        let (length, rest) = match (major, minor) {
            (1, 0) => {
                let (length, rest) = rest.split_first_chunk().ok_or(NpyError::Truncated)?;
                (usize::from(u16::from_le_bytes(*length)), rest)
            }
            (2 | 3, 0) => {
                let (length, rest) = rest.split_first_chunk().ok_or(NpyError::Truncated)?;
                (u32::from_le_bytes(*length) as usize, rest)
            }
            _ => return Err(NpyError::Version(major, minor)),
        };
        if length > MAX_HEADER_BYTES {
            return Err(NpyError::Long(length));
        }
        let dictionary = rest.get(..length).ok_or(NpyError::Truncated)?;
        let dictionary = str::from_utf8(dictionary).map_err(|_| NpyError::Dictionary)?;
        let header = parse_dictionary(dictionary).ok_or(NpyError::Dictionary)?;
        Ok((header, file.len() - rest.len() + length))
    }
}

/// Parses a Python dictionary of the three members; `None` if it is invalid.
fn parse_dictionary(text: &str) -> Option<Header> {
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (name, after) = quoted(rest)?;
        let after = after.trim_start().strip_prefix(':')?.trim_start();
        let after = match name {
            "descr" => {
                let (value, after) = quoted(after)?;
                descr.replace(value.to_owned()).is_none().then_some(after)?
            }
            "fortran_order" => {
                let (value, after) = boolean(after)?;
                fortran_order.replace(value).is_none().then_some(after)?
            }
            "shape" => {
                let (inside, after) = after.strip_prefix('(')?.split_once(')')?;
                shape.replace(extents(inside)?).is_none().then_some(after)?
            }
            _ => return None,
        };
        rest = match after.trim_start().strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if after.trim().is_empty() => "",
            None => return None,
        };
    }
    Some(Header { descr: descr?, fortran_order: fortran_order?, shape: shape? })
}

fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| "'\"".contains(*quote))?;
    text[1..].split_once(quote)
}

fn boolean(text: &str) -> Option<(bool, &str)> {
    let is = |word, value| text.strip_prefix(word).map(|rest| (value, rest));
    is("True", true).or_else(|| is("False", false))
}

/// Parses the numbers of a tuple; those written by Python 2 may end in `L`.
fn extents(text: &str) -> Option<Vec<u64>> {
    let parts = text.trim().trim_end_matches(',').trim_end();
    if parts.is_empty() {
        return Some(Vec::new());
    }
    parts.split(',').map(|part| part.trim().trim_end_matches('L').parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(shape: &[u64]) -> Header {
        Header { descr: "<u2".to_owned(), fortran_order: false, shape: shape.to_vec() }
    }

    /// A 3 x 4 array as saved by NumPy 2.3.
    const NUMPY: &[u8] = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<u2', 'fortran_order': False, \
        'shape': (3, 4), }                                                          \n";

    #[test]
    fn a_header_is_what_numpy_writes() {
        assert_eq!(NUMPY.len(), 128);
        assert_eq!(header(&[3, 4]).to_bytes(), NUMPY);
        assert_eq!(Header::parse(NUMPY), Ok((header(&[3, 4]), 128)));
    }

    #[test]
    fn shapes_of_every_rank_are_tuples() {
        for shape in [&[][..], &[7], &[0, 3], &[u64::MAX; 64]] {
            let bytes = header(shape).to_bytes();
            assert_eq!(bytes.len() % 64, 0);
            assert_eq!(Header::parse(&bytes), Ok((header(shape), bytes.len())));
        }
        let text = |shape| String::from_utf8_lossy(&header(shape).to_bytes()[10..]).into_owned();
        assert!(text(&[]).contains("'shape': (), }"));
        assert!(text(&[7]).contains("'shape': (7,), }"));
    }

    fn file(version: u8, dictionary: &str) -> Vec<u8> {
        let length = u32::try_from(dictionary.len()).unwrap().to_le_bytes();
        let length = if version == 1 { &length[..2] } else { &length };
        [MAGIC, &[version, 0], length, dictionary.as_bytes()].concat()
    }

    #[test]
    fn other_writers_spell_it_otherwise() {
        let spelled = r#" {"shape": (3L,4) ,'fortran_order':True,'descr':"<u2"} "#;
        for version in 1..=3 {
            let (read, _) = Header::parse(&file(version, spelled)).unwrap();
            assert_eq!(read, Header { fortran_order: true, ..header(&[3, 4]) });
        }
    }

    #[test]
    fn what_is_no_header_is_refused() {
        let refused = |bytes: &[u8]| Header::parse(bytes).unwrap_err();
        assert_eq!(refused(b""), NpyError::Magic);
        assert_eq!(refused(b"\x93NUMPX\x01\x00"), NpyError::Magic);
        assert_eq!(refused(b"\x93NUMPY\x04\x00"), NpyError::Version(4, 0));
        assert_eq!(refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff"), NpyError::Long(0xffff_ffff));
        for cut in 6..128 {
            assert_eq!(refused(&NUMPY[..cut]), NpyError::Truncated, "{cut}");
        }
        let good = "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 4)}";
        for (from, to) in [
            ("'descr': '<u2', ", ""),
            ("False", "false"),
            ("(3, 4)", "(3, -4)"),
            ("(3, 4)", "[3, 4]"),
            ("'<u2'", "[('a', '<u2')]"),
            ("'descr'", "'kind'"),
            ("'fortran_order': False", "'descr': '<u2'"),
            ("}", "} + 1"),
            (", 'shape'", " 'shape'"),
        ] {
            let text = good.replace(from, to);
            assert_eq!(refused(&file(1, &text)), NpyError::Dictionary, "{text}");
        }
    }
}
