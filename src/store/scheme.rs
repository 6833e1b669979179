//! Schemes of the URLs that name sources: what looks like one of these URLs is no file's name.

/// Schemes of the URLs that name sources.
const SCHEMES: [&str; 9] = ["s3", "s3a", "gs", "gcs", "az", "azure", "http", "https", "file"];

/// Returns the scheme with which a path begins that was meant as a URL: `s3:bucket/key`.
pub(crate) fn without_slashes(text: &str) -> Option<&'static str> {
    let (scheme, rest) = text.split_once(':')?;
    SCHEMES.into_iter().find(|known| known.eq_ignore_ascii_case(scheme) && !rest.starts_with("//"))
}
