//! Errors that make a node of a source unusable.

use std::io;

use crate::format::blosc2::Blosc2Error;
use crate::format::bloscpack::BloscpackError;
use crate::format::error::MetadataError;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::format::wkw::WkwError;
use crate::format::{draft2022, zarr2};
use crate::store::storage::FileKind;

/// Reason why the chunks of an array cannot be described in Zarr v3.
#[derive(Debug, thiserror::Error)]
pub enum NoTwin {
    /// Zarr v3 lacks what an array of Zarr v2 says.
    #[error(transparent)]
    Zarr2(#[from] zarr2::NoTwin),
    /// Zarr v3 lacks what an array of the draft of 2022 says.
    #[error(transparent)]
    Draft2022(#[from] draft2022::NoTwin),
    /// Its data type is unknown.
    #[error("its data type is not known")]
    NoDataType,
}

/// Error that makes a node's document unusable.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The document cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The path is not a regular file.
    #[error("it is {0}, not a regular file")]
    NotAFile(FileKind),
    /// The document is longer than the limit.
    #[error("it has {0} bytes, the limit is {MAX_METADATA_BYTES}")]
    TooLong(u64),
    /// The metadata is invalid or unsupported.
    #[error("{0}")]
    Metadata(#[from] MetadataError),
    /// The file is not a readable Bloscpack file.
    #[error("{0}")]
    Bloscpack(#[from] BloscpackError),
    /// The file is not a readable frame of Blosc2.
    #[error("{0}")]
    Blosc2(#[from] Blosc2Error),
    /// The data set of webknossos-wrap cannot be read.
    #[error("{0}")]
    Wkw(#[from] WkwError),
    /// It is an array without shards whose grid of chunks cannot be used.
    #[error("{0}")]
    Grid(MetadataError),
    /// It is an array whose chunks cannot be described in Zarr v3.
    #[error("{0}")]
    NoTwin(Box<NoTwin>),
    /// It is a copy that was not completed; holds the command that has begun it.
    #[error("{}", unfinished(.0))]
    Unfinished(String),
    /// Its chunk files were put into shards, not all of which are in their place.
    #[error(
        "an array that is being put here is not complete: a writable mount, or `shardfs recover`, goes on with it"
    )]
    Unplaced,
    /// Names cannot be listed, and the metadata of a group names no nodes in it.
    #[error(
        "what is below it is not known: names cannot be listed here, and its metadata names no arrays; give \
         the path of an array"
    )]
    NotListed,
    /// A document of a BLZ or bcolz array cannot be used.
    #[error("{0}: {1}")]
    Superchunks(&'static str, #[source] Box<NodeError>),
}

/// Describes a copy that a command has begun and not completed.
pub(crate) fn unfinished(command: &str) -> String {
    format!("unfinished: {command} has not completed it; run the same command again")
}

impl From<NoTwin> for NodeError {
    fn from(why: NoTwin) -> Self {
        Self::NoTwin(Box::new(why))
    }
}

impl NodeError {
    /// Returns the underlying I/O error, through any nesting; `None` for other kinds of errors.
    #[must_use]
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Io(error) => Some(error),
            Self::Superchunks(_, error) => error.io(),
            _ => None,
        }
    }

    /// Converts into an I/O error; an error of any other kind becomes one without an errno.
    #[must_use]
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Io(error) => error,
            Self::Superchunks(_, error) => error.into_io(),
            error => io::Error::other(error),
        }
    }
}
