//! Parsing of lists of numbers, and formatting of shapes and byte counts.

use std::str::FromStr;

/// Comma-separated numbers; an empty text is an empty list.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct List<T>(pub Vec<T>);

impl<T: FromStr> FromStr for List<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        let number = |part: &str| {
            let bad = |_| {
                format!(
                    "{:?} is no number that can stand here: write whole numbers with commas between them",
                    part.trim()
                )
            };
            part.trim().parse().map_err(bad)
        };
        text.split(',').map(number).collect::<Result<_, _>>().map(Self)
    }
}

/// Formats a shape as `10 x 20 x 30`.
pub(super) fn shape(extents: &[u64]) -> String {
    match extents {
        [] => "one element".to_owned(),
        _ => extents.iter().map(u64::to_string).collect::<Vec<_>>().join(" x "),
    }
}

/// Formats a number of bytes exactly, and also rounded if it is large.
pub(super) fn bytes(nbytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let large = UNITS.iter().enumerate().rev().find(|(at, _)| nbytes >> (10 * (at + 1)) > 0);
    match large {
        None if nbytes == 1 => "1 byte".to_owned(),
        None => format!("{nbytes} bytes"),
        Some((at, unit)) => {
            let (whole, rest) = (nbytes >> (10 * (at + 1)), (nbytes >> (10 * at)) % 1024);
            format!("{nbytes} bytes ({whole}.{} {unit})", rest * 10 / 1024)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!("1, 2,3".parse(), Ok(List(vec![1_u64, 2, 3])));
        assert_eq!("-1,0".parse(), Ok(List(vec![-1_i64, 0])));
        assert_eq!("".parse::<List<u64>>(), Ok(List(vec![])));
        for bad in ["1,", ",", "1 2", "x", "1.5", "-1", "99999999999999999999"] {
            bad.parse::<List<u64>>().unwrap_err();
        }
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!([bytes(1), bytes(1023)], ["1 byte", "1023 bytes"]);
        assert_eq!(bytes(1536), "1536 bytes (1.5 KiB)");
        assert_eq!(bytes(u64::MAX), "18446744073709551615 bytes (15.9 EiB)");
        assert_eq!(shape(&[2, 3]), "2 x 3");
    }
}
