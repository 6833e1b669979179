//! URLs of sources: which store, which bucket, and where in it the source begins.
//!
//! ```text
//! s3://BUCKET/KEY...            Amazon S3 and everything that speaks its protocol
//! gs://BUCKET/KEY...            Google Cloud Storage
//! az://CONTAINER/KEY...         Azure Blob Storage; the account is an option
//! http://HOST[:PORT]/PATH...    a web server, also https://
//! file:///PATH                  a path of this machine
//! ```

use std::fmt;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use url::Url;

use crate::store::scheme::without_slashes;

/// Characters that mean something else in a URL than in a key.
const NOT_IN_URL: &AsciiSet = &CONTROLS.add(b' ').add(b'#').add(b'%').add(b'?').add(b'\\');

/// Protocol by which a source is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Amazon S3.
    S3,
    /// Google Cloud Storage.
    Gcs,
    /// Azure Blob Storage.
    Azure,
    /// A web server.
    Web,
}

/// Place of a source on the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceUrl {
    /// How it is read.
    pub protocol: Protocol,
    /// What the store itself is found by: scheme and bucket, or the server.
    pub(super) base: String,
    /// Key of the source's root, without slashes at its ends. Every key of the source begins with it.
    pub(super) root: String,
}

/// What a source is given as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A path of this machine.
    Path(PathBuf),
    /// A place on the network.
    Url(SourceUrl),
}

/// Reason why a URL names no source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// It is not a URL.
    #[error("it is not a URL: {0}")]
    Malformed(String),
    /// The scheme is unknown.
    #[error("{0}:// is none of s3, gs, az, http, https, file")]
    Scheme(String),
    /// It begins as a URL does, without the slashes.
    #[error("a URL begins with {0}://; a file of this name is given as ./{0}:...")]
    Slashes(&'static str),
    /// There is no bucket, container or host.
    #[error("it names no {0}")]
    NoBucket(&'static str),
    /// It holds a user name, a password or a signature.
    #[error(
        "it holds {0}: other users see the arguments of a command and the table of mounts; give \
         credentials in the environment"
    )]
    Secret(&'static str),
    /// It has a fragment, which is no part of a path.
    #[error("\"#\" ends its path: write %23 for one in a name")]
    Fragment,
    /// The key has a part that no path can have.
    #[error("its path has the part {0:?}")]
    Part(String),
    /// A name in the path has a slash in it.
    #[error("its path has %2F, a slash within a name, which cannot be asked for")]
    Slash,
    /// The path is not UTF-8.
    #[error("its path is not UTF-8")]
    Encoding,
}

impl Place {
    /// Returns what a source is given as: a URL if it begins with a scheme, and a path otherwise.
    ///
    /// # Errors
    /// It is a URL that names no source.
    pub fn of(source: &Path) -> Result<Self, UrlError> {
        let path = || Self::Path(source.to_owned());
        let Some(text) = source.to_str() else { return Ok(path()) };
        let Some((scheme, _)) = text.split_once("://") else {
            return match without_slashes(text).filter(|_| !source.exists()) {
                Some(scheme) => Err(UrlError::Slashes(scheme)),
                None => Ok(path()),
            };
        };
        let is_scheme = !scheme.is_empty()
            && scheme.chars().all(|char| char.is_ascii_alphanumeric() || "+-.".contains(char));
        // A directory may be called like a scheme.
        if !is_scheme || source.exists() {
            return Ok(path());
        }
        check_as_written(text)?;
        let url = Url::parse(text).map_err(|error| UrlError::Malformed(error.to_string()))?;
        if url.scheme() == "file" {
            let local = url.to_file_path().map_err(|()| UrlError::NoBucket("path"))?;
            return Ok(Self::Path(local));
        }
        SourceUrl::new(&url).map(Self::Url)
    }
}

impl SourceUrl {
    /// Returns whether another place is this one, or below it.
    pub fn holds(&self, other: &Self) -> bool {
        let below = || other.root.strip_prefix(&self.root).map(|rest| rest.starts_with('/'));
        self.protocol == other.protocol
            && self.base == other.base
            && (self.root.is_empty() || self.root == other.root || below() == Some(true))
    }

    /// Returns the bucket as a whole, and the key in it.
    pub fn in_bucket(&self) -> (Self, PathBuf) {
        (Self { root: String::new(), ..self.clone() }, PathBuf::from(&self.root))
    }

    fn new(url: &Url) -> Result<Self, UrlError> {
        let (protocol, what) = match url.scheme() {
            "s3" | "s3a" => (Protocol::S3, "bucket"),
            "gs" | "gcs" => (Protocol::Gcs, "bucket"),
            "az" | "azure" => (Protocol::Azure, "container"),
            "http" | "https" => (Protocol::Web, "host"),
            other => return Err(UrlError::Scheme(other.to_owned())),
        };
        check_no_secret_in(url)?;
        if url.fragment().is_some() {
            return Err(UrlError::Fragment);
        }
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.ok_or(UrlError::NoBucket(what))?;
        let scheme = match protocol {
            Protocol::S3 => "s3",
            Protocol::Gcs => "gs",
            Protocol::Azure => "az",
            Protocol::Web => url.scheme(),
        };
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let base = format!("{scheme}://{host}{port}");
        if url.path().to_ascii_lowercase().contains("%2f") {
            return Err(UrlError::Slash);
        }
        let path = percent_decode_str(url.path()).decode_utf8().map_err(|_| UrlError::Encoding)?;
        let root = path.trim_matches('/').to_owned();
        match root.split('/').find(|part| part.is_empty() || *part == "." || *part == "..") {
            Some(part) if !root.is_empty() => Err(UrlError::Part(part.to_owned())),
            _ => Ok(Self { protocol, base, root }),
        }
    }

    /// Returns the name of the bucket or container, or the address of the server.
    pub(super) fn bucket(&self) -> &str {
        self.base.split_once("://").map_or(self.base.as_str(), |(_, bucket)| bucket)
    }

    /// Returns the URL without its last name, of one that has any.
    pub fn parent(&self) -> String {
        let above = self.root.rsplit_once('/').map_or("", |(above, _)| above);
        Self { root: above.to_owned(), ..self.clone() }.to_string()
    }

    /// Returns whether a web server is asked, which answers as it likes for what is no file.
    pub fn is_on_web(&self) -> bool {
        self.protocol == Protocol::Web
    }

    /// Returns the last name of the URL, as messages call the source's root.
    pub fn name(&self) -> &str {
        match self.root.rsplit('/').next() {
            Some(name) if !name.is_empty() => name,
            _ => self.bucket(),
        }
    }
}

impl fmt::Display for SourceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)?;
        // As it would be given, for whoever reads it in the table of mounts gives it again.
        let root = utf8_percent_encode(&self.root, NOT_IN_URL);
        if self.root.is_empty() { Ok(()) } else { write!(f, "/{root}") }
    }
}

/// Returns an error if a URL is not what it looks like: parsers leave out control characters and blanks at
/// its ends, and resolve parts like `..`, which keys may have.
fn check_as_written(text: &str) -> Result<(), UrlError> {
    let is_plain = |char: char| !char.is_control() && char != '\\';
    if text.trim() != text || !text.chars().all(is_plain) {
        let why = "it has a backslash, a control character or a blank at an end";
        return Err(UrlError::Malformed(why.to_owned()));
    }
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    let decoded = |part: &str| percent_decode_str(part).decode_utf8_lossy().into_owned();
    let parts = path.split('/').skip(1).map(decoded);
    match parts.into_iter().find(|part| part == "." || part == "..") {
        Some(part) => Err(UrlError::Part(part)),
        None => Ok(()),
    }
}

/// Returns an error if the address of a store holds what others must not see. One that is no URL is left to
/// whoever uses it.
pub(super) fn check_no_secret(address: &str) -> Result<(), UrlError> {
    Url::parse(address).map_or(Ok(()), |url| check_no_secret_in(&url))
}

fn check_no_secret_in(url: &Url) -> Result<(), UrlError> {
    if !url.username().is_empty() || url.password().is_some() {
        return Err(UrlError::Secret("a user name or a password"));
    }
    if url.query().is_some() {
        return Err(UrlError::Secret("a query, which may be a signature"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<(Protocol, String, String, String), UrlError> {
        match Place::of(Path::new(text))? {
            Place::Url(url) => {
                Ok((url.protocol, url.base.clone(), url.root.clone(), url.to_string()))
            }
            Place::Path(path) => panic!("a path: {path:?}"),
        }
    }

    #[test]
    fn urls_name_a_bucket_and_a_key() {
        let found = url("s3://bucket/a/volume.zarr/").unwrap();
        let (base, root) = ("s3://bucket".to_owned(), "a/volume.zarr".to_owned());
        assert_eq!(found, (Protocol::S3, base, root, "s3://bucket/a/volume.zarr".to_owned()));
        assert_eq!(url("gs://b").unwrap().3, "gs://b");
        assert_eq!(url("az://c/x").unwrap().0, Protocol::Azure);
        assert_eq!(url("https://h:8080/a%20b").unwrap().2, "a b");
        for slash in ["https://h/group%2Fproject/a", "s3://bucket/a%2fb"] {
            assert!(matches!(url(slash), Err(UrlError::Slash)), "{slash}");
        }
        let parent = |text: &str| match Place::of(Path::new(text)) {
            Ok(Place::Url(url)) => url.parent(),
            place => panic!("{place:?}"),
        };
        assert_eq!(parent("s3://bucket/a/b/zarr.json"), "s3://bucket/a/b");
        assert_eq!(parent("s3://bucket/zarr.json"), "s3://bucket");
    }

    #[test]
    fn everything_else_is_a_path() {
        for text in ["a/b", "/s3:/x", "./s3:/x", "s3/x", "c:/x", "a b://c", "://x", ""] {
            assert_eq!(Place::of(Path::new(text)), Ok(Place::Path(text.into())), "{text}");
        }
        assert_eq!(Place::of(Path::new("file:///a%20b/c")), Ok(Place::Path("/a b/c".into())));
    }

    #[test]
    fn what_names_no_source_is_refused() {
        assert_eq!(url("ftp://host/x"), Err(UrlError::Scheme("ftp".to_owned())));
        assert_eq!(url("s3:///key"), Err(UrlError::NoBucket("bucket")));
        assert_eq!(url("s3:bucket/key"), Err(UrlError::Slashes("s3")));
        assert_eq!(url("https:/host/x"), Err(UrlError::Slashes("https")));
        assert!(matches!(url("https://me:secret@host/x"), Err(UrlError::Secret(_))));
        assert!(matches!(url("https://host/x?sig=secret"), Err(UrlError::Secret(_))));
        assert_eq!(url("s3://bucket/a//b"), Err(UrlError::Part(String::new())));
        assert_eq!(url("https://host/%ff"), Err(UrlError::Encoding));
        assert_eq!(url("s3://bucket/a#b"), Err(UrlError::Fragment));
        assert_eq!(url("s3://bucket/a%23b").unwrap().2, "a#b");
    }

    #[test]
    fn urls_are_read_as_they_are_written() {
        for text in ["s3://b/a/../c", "s3://b/a/%2e%2E/c", "https://h/./a"] {
            assert!(matches!(url(text), Err(UrlError::Part(_))), "{text}");
        }
        for text in ["s3://b/a\tb", "s3://b/a ", "s3://b/a\nb", "https://h/a\\b"] {
            assert!(matches!(url(text), Err(UrlError::Malformed(_))), "{text:?}");
        }
        assert_eq!(url("s3://b/a..b/.c").unwrap().2, "a..b/.c");
        assert!(check_no_secret("https://me:secret@host").is_err());
        assert!(check_no_secret("https://host:9000").is_ok() && check_no_secret("host").is_ok());
    }

    #[test]
    fn a_url_is_shown_as_it_can_be_given_again() {
        for text in ["s3://b/a%20b/%23%25%3F/c", "https://h:1/ä+b=c&d", "gs://b/%5C%20", "az://c"]
        {
            let shown = url(text).unwrap().3;
            assert_eq!(url(&shown).unwrap(), url(text).unwrap(), "{text}");
            assert!(!shown.contains(' '));
        }
        assert_eq!(url("s3://b/a%20b%25").unwrap().3, "s3://b/a%20b%25");
    }

    #[test]
    fn no_message_repeats_a_secret() {
        for text in ["https://me:secret@host/x", "s3://b/x?sig=secret"] {
            assert!(!url(text).unwrap_err().to_string().contains("secret"), "{text}");
        }
    }
}
