//! Why a node of a source cannot be used.

use std::io;

use crate::format::bloscpack::BloscpackError;
use crate::format::error::MetadataError;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::store::storage::FileKind;

/// Why a node's document cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It is no file.
    #[error("it is {0}, not a regular file")]
    NotAFile(FileKind),
    /// It is absurdly long.
    #[error("it has {0} bytes, the limit is {MAX_METADATA_BYTES}")]
    TooLong(u64),
    /// It says nothing that can be used.
    #[error("{0}")]
    Metadata(#[from] MetadataError),
    /// It is no Bloscpack file that can be read.
    #[error("{0}")]
    Bloscpack(#[from] BloscpackError),
    /// The documents of a BLZ or bcolz array cannot be used.
    #[error("{0}: {1}")]
    Superchunks(&'static str, #[source] Box<NodeError>),
}

impl NodeError {
    /// What could not be read, whatever it was read for.
    #[must_use]
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            Self::Io(error) => Some(error),
            Self::Superchunks(_, error) => error.io(),
            _ => None,
        }
    }

    /// The same by value; any other error as one of no errno.
    #[must_use]
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Io(error) => error,
            Self::Superchunks(_, error) => error.into_io(),
            error => io::Error::other(error),
        }
    }
}
