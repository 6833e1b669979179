//! What an operation can fail with, and the one mapping to errno.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::decoded::Unwritable;
use super::form::Unshown;
use crate::format::bloscpack::BloscpackError;
use crate::format::error::MetadataError;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::store::StoreError;
use crate::store::storage::FileKind;
use crate::text::shown;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// There is no such file. For a chunk: its index says that it is empty.
    #[error("no such file")]
    NotFound,
    /// An inode number or handle that is no longer valid.
    #[error("the file is no longer what it was when it was opened")]
    Stale,
    /// A file operation on a directory.
    #[error("it is a directory")]
    IsDirectory,
    /// A directory operation on a file.
    #[error("it is not a directory")]
    NotDirectory,
    /// The operation makes no sense for this kind of file.
    #[error("not possible for this kind of file")]
    Invalid,
    /// Written to what is only read.
    #[error("it can only be read")]
    ReadOnly,
    /// The name is taken.
    #[error("it exists")]
    Exists,
    /// A directory is not empty.
    #[error("the directory is not empty")]
    NotEmpty,
    /// Not allowed here.
    #[error("not permitted here")]
    NotPermitted,
    /// The caller may not do that.
    #[error("permission denied")]
    Denied,
    /// This file has no room for it.
    #[error("not supported here")]
    NotSupported,
    /// It must be copied and removed instead.
    #[error("it cannot be renamed, but copied and removed")]
    CrossDevice,
    /// A file would be too long.
    #[error("the file would be too long")]
    TooLarge,
    /// Not open for that.
    #[error("not open for that")]
    BadHandle,
    /// Metadata that cannot be stored.
    #[error("{}: {error}", shown(.path))]
    Refused {
        /// Path of the document.
        path: PathBuf,
        /// Why.
        #[source]
        error: MetadataError,
    },
    /// A file of a decoded chunk that cannot be encoded.
    #[error("{}: it is not written: {error}", shown(.path))]
    Unwritable {
        /// Path of the file.
        path: PathBuf,
        /// Why.
        #[source]
        error: Unwritable,
    },
    /// A chunk could not be committed.
    #[error(transparent)]
    Commit(#[from] Arc<StoreError>),
    /// No such extended attribute.
    #[error("no such extended attribute")]
    NoAttribute,
    /// A file of an array whose metadata cannot be used: it may be a shard, and its bytes must not
    /// be taken for a chunk's.
    #[error("{}: the metadata of its array cannot be used", shown(.0))]
    BadMetadata(PathBuf),
    /// The shard was changed after a part of the chunk had been read.
    #[error("chunk {key} of {}: its shard was changed while it was being read", shown(.array))]
    Torn {
        /// The array's directory, from the source's root.
        array: PathBuf,
        /// The chunk's key.
        key: String,
    },
    /// The store could not give a chunk.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The source reports an error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl FsError {
    /// The errno that the caller of the operation sees.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            Self::Stale => libc::ESTALE,
            Self::IsDirectory => libc::EISDIR,
            Self::NotDirectory => libc::ENOTDIR,
            Self::Invalid | Self::Refused { .. } | Self::Unwritable { .. } => libc::EINVAL,
            Self::ReadOnly => libc::EROFS,
            Self::Exists => libc::EEXIST,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::NotPermitted => libc::EPERM,
            Self::NotSupported => libc::EOPNOTSUPP,
            Self::Denied => libc::EACCES,
            Self::CrossDevice => libc::EXDEV,
            Self::TooLarge => libc::EFBIG,
            Self::BadHandle => libc::EBADF,
            Self::Commit(error) => error.errno(),
            Self::NoAttribute => libc::ENODATA,
            Self::BadMetadata(_) | Self::Torn { .. } => libc::EIO,
            Self::Store(error) => error.errno(),
            Self::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, FsError>;

/// Name of the metadata document of every node.
pub const METADATA_FILE: &str = "zarr.json";

impl From<Unshown> for NodeError {
    fn from(error: Unshown) -> Self {
        Self::Unshown(Box::new(error))
    }
}

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
    /// The view cannot show it.
    #[error(transparent)]
    Unshown(Box<Unshown>),
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
