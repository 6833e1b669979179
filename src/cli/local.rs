//! Paths on the command line that must be of this machine.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::store::scheme::without_slashes;

/// Parses the path of what a command writes. A URL is none: it would be the name of a new directory.
pub(super) fn local() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| check_local(&path).map(|()| path))
}

/// Checks that the path of what a command changes is none of a store on the network.
pub(super) fn check_local(path: &Path) -> Result<(), &'static str> {
    match looks_like_url(path) && !path.exists() {
        false => Ok(()),
        true => Err(
            "it is a URL, and this command changes nothing but what is on this machine; a file of \
                     this name is given as ./NAME",
        ),
    }
}

fn looks_like_url(path: &Path) -> bool {
    let Some(text) = path.to_str() else { return false };
    let Some((scheme, _)) = text.split_once("://") else { return without_slashes(text).is_some() };
    let mut chars = scheme.chars();
    let is_rest = |it: char| it.is_ascii_alphanumeric() || matches!(it, '+' | '-' | '.');
    chars.next().is_some_and(|first| first.is_ascii_alphabetic()) && chars.all(is_rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_a_scheme_is_no_path() {
        for url in [
            "s3://bucket/a",
            "file:///tmp/a",
            "https://host/a",
            "s3a://b",
            "s3:bucket/a",
            "S3:bucket/a",
            "https:/host/a",
        ] {
            assert!(looks_like_url(Path::new(url)), "{url}");
        }
        for path in [
            "a",
            "/a://b",
            "./s3://bucket",
            "://",
            "3d://a",
            "a:b",
            "./s3:b",
            "c:/x",
            "with space://a",
        ] {
            assert!(!looks_like_url(Path::new(path)), "{path}");
        }
    }
}
