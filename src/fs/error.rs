//! What an operation can fail with, and the one mapping to errno.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::decoded::Unwritable;
use super::form::Unshown;
use crate::format::error::MetadataError;
use crate::source::NodeError;
use crate::store::StoreError;
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

/// Why a node is not shown as what it is.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its documents cannot be used.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The view has no form for it.
    #[error(transparent)]
    Unshown(Box<Unshown>),
}

impl From<Unshown> for LoadError {
    fn from(error: Unshown) -> Self {
        Self::Unshown(Box::new(error))
    }
}

impl From<MetadataError> for LoadError {
    fn from(error: MetadataError) -> Self {
        Self::Node(error.into())
    }
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        Self::Node(error.into())
    }
}
