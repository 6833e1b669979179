//! Errors of operations, and the one mapping to errno.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::format::Coords;
use crate::format::decoded::WrittenError;
use crate::format::error::MetadataError;
use crate::format::pipeline::EncodeError;
use crate::format::zarr2::NotStored;
use crate::fs::form::Unshown;
use crate::source::NodeError;
use crate::store::StoreError;
use crate::text::shown;

/// Reason why the contents of a chunk file cannot become a chunk.
#[derive(Debug, thiserror::Error)]
pub enum Unwritable {
    /// It is not a valid file of such a chunk.
    #[error(transparent)]
    File(#[from] WrittenError),
    /// The codecs cannot encode it.
    #[error(transparent)]
    Codecs(#[from] EncodeError),
    /// It is a whole shard: whoever has written it knows the array as sharded.
    #[error(
        "it is a shard, and not a chunk: the view shows the array's chunks; shards are written in the source, or \
         through a mount with `-o level=0`, and programs that know the array as sharded have to open it anew"
    )]
    Shard,
}

/// Reason why metadata that was written is not stored.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// It is invalid, or changes what cannot be changed.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// It is a node of Zarr v2 that cannot be stored in Zarr v3.
    #[error(transparent)]
    Zarr2(#[from] NotStored),
}

/// Error of an operation.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// There is no such file. For a chunk: the shard's index marks it as empty.
    #[error("no such file")]
    NotFound,
    /// The inode number or handle is no longer valid.
    #[error("the file is no longer what it was when it was opened")]
    Stale,
    /// The kernel knows the file as it was before a change: it has to look the name up.
    #[error("the file has changed since its name was looked up")]
    Outdated,
    /// A file operation was requested on a directory.
    #[error("it is a directory")]
    IsDirectory,
    /// A directory operation was requested on a file.
    #[error("it is not a directory")]
    NotDirectory,
    /// The operation is not defined for this kind of file.
    #[error("not possible for this kind of file")]
    Invalid,
    /// A chunk lies outside the chunk grid of its array.
    #[error("{}: it lies outside the array, which has {}", shown(.path), grid_of(.grid))]
    OutsideGrid {
        /// Path of the file.
        path: PathBuf,
        /// Number of chunks along each axis.
        grid: Coords,
    },
    /// The file is read-only.
    #[error("it can only be read")]
    ReadOnly,
    /// The name is taken.
    #[error("it exists")]
    Exists,
    /// The directory is not empty.
    #[error("the directory is not empty")]
    NotEmpty,
    /// The operation is not permitted on this file or in this directory.
    #[error("not permitted here")]
    NotPermitted,
    /// The caller lacks the permission.
    #[error("permission denied")]
    Denied,
    /// The file does not support the operation.
    #[error("not supported here")]
    NotSupported,
    /// The file cannot be renamed across this boundary; it must be copied and deleted instead.
    #[error("it cannot be renamed across this boundary: copy it and delete the old one")]
    CrossDevice,
    /// No filesystem has names of this length.
    #[error("a name has at most 255 bytes")]
    NameTooLong,
    /// The file would be too long.
    #[error("the file would be too long")]
    TooLarge,
    /// The handle was not opened for this access.
    #[error("not open for that")]
    BadHandle,
    /// Written metadata cannot be stored.
    #[error("{}: {error}", shown(.path))]
    Refused {
        /// Path of the document.
        path: PathBuf,
        /// Cause.
        #[source]
        error: Refusal,
    },
    /// The contents written to the file of a decoded chunk cannot be encoded.
    #[error("{}: it is not written: {error}", shown(.path))]
    Unwritable {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        error: Unwritable,
    },
    /// A change could not be committed.
    #[error(transparent)]
    Commit(#[from] Arc<StoreError>),
    /// The last commit has begun: what would be changed now would be lost.
    #[error("the mount ends: nothing can be changed any more")]
    Ended,
    /// There is no such extended attribute.
    #[error("no such extended attribute")]
    NoAttribute,
    /// The file is in an array whose metadata cannot be used: it may be a shard, whose bytes must
    /// not be mistaken for those of a chunk.
    #[error("{}: the metadata of its array cannot be used", shown(.0))]
    BadMetadata(PathBuf),
    /// The shard was changed after a part of the chunk had been read.
    #[error("chunk {key} of {}: its shard was changed while it was being read", shown(.array))]
    Torn {
        /// Directory of the array, relative to the source's root.
        array: PathBuf,
        /// Key of the chunk.
        key: String,
    },
    /// The store could not return a chunk.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The source returned an I/O error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl FsError {
    /// Returns whether a change was given up because of what others did.
    pub(in crate::fs) fn is_given_up(&self) -> bool {
        matches!(self, Self::Commit(error) if error.is_of_others())
    }

    /// Returns the errno reported to the calling process.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            Self::Stale | Self::Outdated => libc::ESTALE,
            Self::IsDirectory => libc::EISDIR,
            Self::NotDirectory => libc::ENOTDIR,
            Self::Invalid
            | Self::OutsideGrid { .. }
            | Self::Refused { .. }
            | Self::Unwritable { .. } => libc::EINVAL,
            Self::ReadOnly => libc::EROFS,
            Self::Exists => libc::EEXIST,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::NotPermitted => libc::EPERM,
            Self::NotSupported => libc::EOPNOTSUPP,
            Self::Denied => libc::EACCES,
            Self::CrossDevice => libc::EXDEV,
            Self::NameTooLong => libc::ENAMETOOLONG,
            Self::TooLarge => libc::EFBIG,
            Self::BadHandle => libc::EBADF,
            Self::Commit(error) => error.errno(),
            Self::NoAttribute => libc::ENODATA,
            Self::BadMetadata(_) | Self::Torn { .. } | Self::Ended => libc::EIO,
            Self::Store(error) => error.errno(),
            Self::Io(error) => error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Returns a chunk grid in words: `4 x 4 chunks`.
fn grid_of(grid: &[u64]) -> String {
    let axes: Vec<String> = grid.iter().map(u64::to_string).collect();
    format!("{} chunks", axes.join(" x "))
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, FsError>;

/// Reason why a node cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Its documents cannot be used.
    #[error(transparent)]
    Node(NodeError),
    /// The view has no form for it.
    #[error(transparent)]
    Unshown(Box<Unshown>),
}

impl From<NodeError> for LoadError {
    fn from(error: NodeError) -> Self {
        match error {
            NodeError::Grid(error) => Unshown::Metadata(error).into(),
            NodeError::NoTwin(why) => Unshown::from(*why).into(),
            error => Self::Node(error),
        }
    }
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
