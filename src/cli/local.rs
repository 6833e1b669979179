//! Paths on the command line that must be of this machine.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

/// Parses the path of what a command writes. A URL is none: it would be the name of a new directory.
pub(super) fn local() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match is_url(&path) {
        false => Ok(path),
        true => Err("it is a URL, and this command changes nothing but what is on this machine"),
    })
}

fn is_url(path: &Path) -> bool {
    let scheme = path.to_str().and_then(|path| path.split_once("://"));
    scheme.is_some_and(|(scheme, _)| {
        let mut chars = scheme.chars();
        let is_rest = |it: char| it.is_ascii_alphanumeric() || matches!(it, '+' | '-' | '.');
        chars.next().is_some_and(|first| first.is_ascii_alphabetic()) && chars.all(is_rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_a_scheme_is_no_path() {
        for url in ["s3://bucket/a", "file:///tmp/a", "https://host/a", "s3a://b"] {
            assert!(is_url(Path::new(url)), "{url}");
        }
        for path in ["a", "/a://b", "./s3://bucket", "://", "3d://a", "a:b", "with space://a"] {
            assert!(!is_url(Path::new(path)), "{path}");
        }
    }
}
