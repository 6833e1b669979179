//! History of changes to a storage in memory.

use std::path::PathBuf;

/// A recorded change, or a sync that makes earlier ones durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Bytes were written to the file with that inode number.
    Write {
        /// Inode number of the file.
        ino: u64,
        /// Offset of the write.
        offset: u64,
        /// Bytes that were written.
        bytes: Vec<u8>,
    },
    /// The length of a file was set.
    SetLength {
        /// Inode number of the file.
        ino: u64,
        /// New length in bytes.
        length: u64,
    },
    /// Bytes and length of a file became durable.
    Sync {
        /// Inode number of the file.
        ino: u64,
    },
    /// An fsync has failed: earlier writes may be dropped, and a later fsync says nothing about
    /// them.
    SyncFailed {
        /// Inode number of the file.
        ino: u64,
    },
    /// A file was given a name.
    Name {
        /// The name.
        path: PathBuf,
        /// Inode number of the file.
        ino: u64,
    },
    /// A file was renamed.
    Rename {
        /// The old name.
        from: PathBuf,
        /// The new name.
        to: PathBuf,
        /// Inode number of the file.
        ino: u64,
    },
    /// A name was removed.
    Remove {
        /// The name.
        path: PathBuf,
    },
    /// A directory was created.
    MakeDirectory {
        /// Path of the directory.
        path: PathBuf,
    },
    /// A directory was removed.
    RemoveDirectory {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The names in a directory became durable.
    SyncDirectory {
        /// Path of the directory.
        path: PathBuf,
    },
}
