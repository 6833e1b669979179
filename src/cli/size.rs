//! Parsing of sizes in bytes.

/// Units and their sizes in bytes, as in GNU coreutils, in capitals; the longer ones come first.
const UNITS: [(&str, u64); 16] = [
    ("KIB", 1 << 10),
    ("MIB", 1 << 20),
    ("GIB", 1 << 30),
    ("TIB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KI", 1 << 10),
    ("MI", 1 << 20),
    ("GI", 1 << 30),
    ("TI", 1 << 40),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];

/// Parses `4096`, `64K`, `1.5G`, `64MiB` or `64MB`. Units are powers of 1024, except that `KB`,
/// `MB`, `GB` and `TB` are powers of 1000.
pub(super) fn parse(text: &str) -> Result<u64, String> {
    let expected = || {
        format!(
            "{text:?} is no size: write a number of bytes, or one with K, M, G or T, such as 1.5G"
        )
    };
    let capitals = text.trim().to_ascii_uppercase();
    let unit = UNITS.iter().find_map(|(unit, bytes)| Some((capitals.strip_suffix(unit)?, *bytes)));
    let (number, unit) = unit.unwrap_or((capitals.strip_suffix('B').unwrap_or(&capitals), 1));
    let (whole, fraction) = number.trim().split_once('.').unwrap_or((number.trim(), ""));
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    // No size needs more digits after the point.
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) || fraction.len() > 9 {
        return Err(expected());
    }
    if number.contains('.') && unit == 1 {
        return Err(expected());
    }
    let whole: u64 = whole.parse().map_err(|_| expected())?;
    let parts = 10_u64.pow(u32::try_from(fraction.len()).unwrap_or(0));
    // Less than a whole unit; the product is at most a terabyte times a billion.
    let rest =
        u128::from(fraction.parse::<u64>().unwrap_or(0)) * u128::from(unit) / u128::from(parts);
    let rest = u64::try_from(rest).map_err(|_| expected())?;
    whole.checked_mul(unit).and_then(|bytes| bytes.checked_add(rest)).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("4096B"), Ok(4096));
        assert_eq!(parse("64m"), Ok(64 << 20));
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        assert_eq!(parse("256MB"), Ok(256_000_000));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("0.5 kib"), Ok(512));
        assert_eq!(parse("1.999999999T"), Ok((1 << 40) + 1_099_511_626_676));
        assert_eq!(parse("1T"), Ok(1 << 40));
        assert_eq!(parse("0"), Ok(0));
        for bad in ["", "M", "-1", "1.5", "1..5G", ".5G", "1e3", "99999999T", "1KX", "1 2", "0x10"]
        {
            parse(bad).unwrap_err();
        }
    }
}
