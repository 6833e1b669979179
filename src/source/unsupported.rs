//! Recognition of paths that are not a source, with advice for the user.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::config::Format;
use super::document::METADATA_FILE;
use crate::format::blosc2::is_frame;
use crate::format::json;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::format::zarr2::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::store::remote::{Place, UrlError};
use crate::store::zip::ZipStorage;
use crate::text::shown;

/// Name of the documents of N5.
const N5_DOCUMENT: &str = "attributes.json";
/// Usual extension of Bloscpack files.
const BLOSCPACK: &str = "blp";
/// Number of bytes at the start of a file that are searched for known contents.
pub(super) const HEAD_BYTES: usize = 4096;

/// A recognized kind of input that shardfs does not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// A URL that names no source.
    #[error(transparent)]
    Url(UrlError),
    /// A ZIP archive, such as `.zarr.zip` and `.ozx`, that is not on this machine.
    #[error(
        "it is a ZIP archive: those on this machine are read, so copy it here, or unpack it there"
    )]
    Zip,
    /// A metadata document of a node; holds the directory to use instead.
    #[error("it is the metadata of an array or a group: give the directory that it lies in, {}", shown(.0))]
    Document(PathBuf),
    /// An N5 container.
    #[error("it is an N5 container, whose blocks are files already; shardfs does not read N5")]
    N5,
    /// A Neuroglancer precomputed volume.
    #[error("it is a precomputed volume of Neuroglancer, which shardfs does not read")]
    Precomputed,
    /// An HDF5 or netCDF-4 file.
    #[error("it is an HDF5 or netCDF-4 file, which shardfs does not read")]
    Hdf5,
    /// A TIFF file.
    #[error("it is a TIFF file, which shardfs does not read")]
    Tiff,
    /// A file of NumPy.
    #[error("it is a NumPy file, which shardfs does not read")]
    Npy,
    /// A file in an array, such as a shard; holds the array's directory.
    #[error("it is a file in an array: give the array's directory, {}", shown(.0))]
    InArray(PathBuf),
    /// Any other file, which is not an array by itself.
    #[error(
        "it is a file, but not a Bloscpack file (.blp) nor a frame of Blosc2 (.b2nd), the only kinds that are \
         an array by themselves"
    )]
    File,
    /// Something of another format than the one that was named.
    #[error("it is not of the format {named}, but {is}")]
    OtherFormat {
        /// Name of the format that was named.
        named: &'static str,
        /// What it is, with its format.
        is: String,
    },
}

impl Unsupported {
    /// Returns the kind of a path that can never be a source of this format, or of any if none is
    /// named; `None` if it may be one.
    pub fn of_path(path: &Path, format: Option<Format>) -> Option<Self> {
        if let Err(error) = Place::of(path) {
            return Some(Self::Url(error));
        }
        if !path.is_file() {
            return None;
        }
        let documents = [METADATA_FILE, ZARRAY, ZGROUP, ZATTRS, ZMETADATA];
        if path.file_name().is_some_and(|name| documents.iter().any(|other| name == *other)) {
            let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            return Some(Self::Document(directory.unwrap_or(Path::new(".")).to_owned()));
        }
        let head = head(path)?;
        if ZipStorage::is_archive(path, &head) {
            return None;
        }
        match Self::of_head(&head, path, format)? {
            Self::File => Some(array_above(path).map_or(Self::File, Self::InArray)),
            other => Some(other),
        }
    }

    /// Returns the kind of a file of which the first bytes are given, and its path; `None` if it may be
    /// an array by itself.
    pub(super) fn of_head(head: &[u8], path: &Path, format: Option<Format>) -> Option<Self> {
        match head {
            [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => Some(Self::Zip),
            [0x89, b'H', b'D', b'F', b'\r', b'\n', 0x1a, b'\n', ..] => Some(Self::Hdf5),
            [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => Some(Self::Tiff),
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Some(Self::Npy),
            [b'b', b'l', b'p', b'k', ..] => None,
            head if is_frame(head) => None,
            // A Bloscpack file by its name or by what the user says is a damaged one.
            _ if format.is_some() || path.extension().is_some_and(|it| it == BLOSCPACK) => None,
            _ => Some(Self::File),
        }
    }

    /// Returns the kind of a directory in which no node was found; `None` if it is not recognized.
    pub fn of_directory(path: &Path) -> Option<Self> {
        let has = |name: &str, words: &[&str]| {
            let head = head(&path.join(name)).unwrap_or_default();
            let text = String::from_utf8_lossy(&head);
            !words.is_empty() && words.iter().any(|word| text.contains(word))
        };
        if has(N5_DOCUMENT, &["\"n5\"", "\"blockSize\"", "\"dataType\""]) {
            return Some(Self::N5);
        }
        has("info", &["\"scales\"", "\"neuroglancer_"]).then_some(Self::Precomputed)
    }
}

/// Returns whether a directory has metadata of Zarr v2 or N5, beside which no node of Zarr v3 is
/// made.
pub fn is_of_other_format(directory: &Path) -> bool {
    [ZARRAY, ZGROUP, N5_DOCUMENT].iter().any(|name| directory.join(name).exists())
}

/// Returns the directory of the array that a file lies in. `None` if no directory above has an array's metadata.
fn array_above(path: &Path) -> Option<PathBuf> {
    let above = path.ancestors().skip(1).map(|above| match above.as_os_str().is_empty() {
        true => Path::new("."),
        false => above,
    });
    let is_array = |directory: &&Path| {
        let node = beginning(&directory.join(METADATA_FILE), MAX_METADATA_BYTES);
        let node = node.and_then(|text| json::parse(&text).ok());
        let kind = node.as_ref().and_then(|node| node.get("node_type"));
        kind.is_some_and(|kind| kind == "array") || directory.join(ZARRAY).is_file()
    };
    above.take(MOST_ABOVE).find(is_array).map(Path::to_owned)
}

/// Number of directories above a file in which the array is looked for that it lies in: more than arrays have
/// dimensions.
const MOST_ABOVE: usize = 64;

/// Returns the first bytes of a regular file, by which its kind is known; `None` if it cannot be read.
fn head(path: &Path) -> Option<Vec<u8>> {
    beginning(path, HEAD_BYTES as u64)
}

/// Returns a regular file, at most so many bytes of it; `None` if it cannot be read. Opening a named pipe would
/// wait for a writer.
fn beginning(path: &Path, most: u64) -> Option<Vec<u8>> {
    if !path.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_source_is_named() {
        let top = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = top.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let of = |path: PathBuf| Unsupported::of_path(&path, None);
        let is_url = |found| matches!(found, Some(Unsupported::Url(_)));
        assert!(is_url(of("ftp://host/a.zarr".into())));
        assert_eq!(of("s3://bucket/a.zarr".into()).filter(|_| cfg!(feature = "remote")), None);
        assert_eq!(of("/no/such/path".into()), None);
        assert_eq!(of(file("a.zarr.zip", b"PK\x03\x04...")), None);
        assert_eq!(of(file("a.ozx", b"#!/bin/sh...")), None);
        assert_eq!(of(file("a.h5", b"\x89HDF\r\n\x1a\n")), Some(Unsupported::Hdf5));
        assert_eq!(of(file("a.tif", b"II*\0....")), Some(Unsupported::Tiff));
        assert_eq!(of(file("a.npy", b"\x93NUMPY\x01\0")), Some(Unsupported::Npy));
        assert_eq!(of(file("a.txt", b"hello\n")), Some(Unsupported::File));
        assert_eq!(of(file("empty", b"")), Some(Unsupported::File));
        assert_eq!(of(file("a.blp", b"blpk....")), None);
        assert_eq!(of(file("any", b"blpk....")), None);
        assert_eq!(of(file("damaged.blp", b"\0\0\0\0....")), None);
        let named = Unsupported::of_path(&file("damaged", b"...."), Some(Format::Bloscpack));
        assert_eq!(named, None);
        let document = of(file("a/zarr.json", b"{}"));
        assert_eq!(document, Some(Unsupported::Document(top.path().join("a"))));
        // Consolidated metadata of a group names arrays, too.
        file(
            "v/zarr.json",
            b"{\"consolidated_metadata\": {\"node_type\": \"array\"}, \"node_type\": \"group\"}",
        );
        file("v/a/zarr.json", b"{\"node_type\": \"array\"}");
        file("old/.zarray", b"{}");
        let in_array = |name| Some(Unsupported::InArray(top.path().join(name)));
        assert_eq!(of(file("v/a/c/0/0", b"....")), in_array("v/a"));
        assert_eq!(of(file("old/0.0", b"....")), in_array("old"));
        assert_eq!(of(file("v/notes", b"....")), Some(Unsupported::File));

        let of = |path: PathBuf| Unsupported::of_directory(path.parent().unwrap());
        assert_eq!(of(file("n5/attributes.json", b"{\"n5\":\"2.0.0\"}")), Some(Unsupported::N5));
        assert_eq!(of(file("other/attributes.json", b"{}")), None);
        let info = b"{\"@type\":\"neuroglancer_multiscale_volume\",\"scales\":[]}";
        assert_eq!(of(file("pre/info", info)), Some(Unsupported::Precomputed));
        assert_eq!(of(file("plain/info", b"all about it")), None);
    }
}
