//! Sizes in bytes as users write them.

/// Reads `4096`, `64K`, `64M`, `1G` or `1T`; the units are powers of 1024.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let expected =
        || format!("{text:?} is no size: write a number of bytes, or one with K, M, G or T");
    let (number, shift) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = number.parse().map_err(|_| expected())?;
    number.checked_mul(1 << shift).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("64m"), Ok(64 << 20));
        assert_eq!(parse("1T"), Ok(1 << 40));
        for bad in ["", "M", "-1", "1.5G", "99999999T", "1KB"] {
            parse(bad).unwrap_err();
        }
    }
}
