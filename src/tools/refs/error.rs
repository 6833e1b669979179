//! What cannot be referenced, and what keeps references from being written.

use std::io;
use std::path::PathBuf;

use crate::store::StoreError;
use crate::text::{count, shown};

/// A chunk or node that cannot be referenced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// The node cannot be used, or cannot be expressed in the requested format.
    #[error("{}: {why}", shown(.directory))]
    Node {
        /// Directory of the node, relative to the source's root.
        directory: PathBuf,
        /// Reason.
        why: String,
    },
    /// Chunks cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The chunk is not stored in any file as it is.
    #[error(
        "shard {}, chunk {key}: the shard is compressed as a whole, so no range of it is the chunk; \
         the chunk has {}, more than may be put into the references",
        shown(.shard), count(.nbytes, "byte")
    )]
    NotInFile {
        /// Path of the shard, relative to the source's root.
        shard: PathBuf,
        /// Key of the chunk.
        key: String,
        /// Length of the chunk, in bytes.
        nbytes: u64,
    },
    /// Nothing is left out, but missing values are misread: the array does not have a reference for
    /// each absent chunk, so its fill value in Zarr v2 cannot be the missing value.
    #[error(
        "{}: in Zarr v2 its fill value is not what it is in Zarr v3, the missing value: readers of CF \
         conventions, xarray and netCDF among them, see other values",
        shown(.0)
    )]
    Misread(PathBuf),
}

/// Error of writing references.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RefsError {
    /// The output cannot be written.
    #[error("{0}")]
    Write(#[source] io::Error),
    /// A temporary file cannot be written or read.
    #[error("a temporary file: {0}")]
    Temporary(#[source] io::Error),
    /// A directory of shards cannot be read, so the existing chunks are unknown.
    #[error(transparent)]
    List(#[from] StoreError),
    /// A name is not UTF-8, which JSON cannot represent.
    #[error("{}: its name is not UTF-8, which references must be", shown(.0))]
    NotText(PathBuf),
}
