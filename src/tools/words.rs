//! Numbers of things in words.

use indicatif::HumanCount;

/// So many of something: `1 chunk`, `2,000 chunks`, `3 entries`.
pub fn many(count: u64, one: &str) -> String {
    match (count, one.strip_suffix("ry")) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) => format!("{} {stem}ries", HumanCount(count)),
        _ => format!("{} {one}s", HumanCount(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_many() {
        assert_eq!(many(1, "entry"), "1 entry");
        assert_eq!(many(0, "entry"), "0 entries");
        assert_eq!(many(2000, "array"), "2,000 arrays");
    }
}
