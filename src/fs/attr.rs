//! Attributes of the files that the mount shows.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::store::storage::{FileKind, Stat, Timestamp};

/// Preferred length of reads from files in bytes: the size of the buffer that stdio allocates.
const FILE_BLOCK: u32 = 128 << 10;

/// Preferred length of directory reads in bytes: what the C library's readdir then requests at
/// once.
const DIRECTORY_BLOCK: u32 = 1 << 20;

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// File type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Link count.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Time of the last change of the contents or attributes.
    pub ctime: Timestamp,
    /// Time of the last read; for generated files the time of the last change of the contents.
    pub atime: Timestamp,
    /// Preferred length of reads in bytes.
    pub block: u32,
}

/// Owner, group and umask set by the user; `None` keeps those of the source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Owner of every file.
    pub uid: Option<u32>,
    /// Group of every file.
    pub gid: Option<u32>,
    /// Permission bits to clear.
    pub umask: Option<u32>,
}

impl Ownership {
    /// Returns the attributes of a file that is stored as `stat` describes.
    pub fn attr(&self, ino: u64, stat: &Stat) -> Attr {
        let directory = stat.kind == FileKind::Directory;
        Attr {
            ino,
            kind: stat.kind,
            // As on btrfs, subdirectories are not counted.
            links: if directory { 1 } else { u32::try_from(stat.links).unwrap_or(u32::MAX) },
            mode: stat.mode & !self.umask.unwrap_or(0),
            uid: self.uid.unwrap_or(stat.uid),
            gid: self.gid.unwrap_or(stat.gid),
            size: if directory { 0 } else { stat.size },
            mtime: stat.mtime,
            ctime: stat.ctime,
            atime: stat.atime,
            block: if directory { DIRECTORY_BLOCK } else { FILE_BLOCK },
        }
    }

    /// Returns the attributes of a file of `size` bytes that takes all others from `stat`. It is
    /// never executable.
    pub fn file(&self, ino: u64, stat: &Stat, size: u64) -> Attr {
        let stat = Stat { kind: FileKind::File, links: 1, size, mode: stat.mode & 0o666, ..*stat };
        Attr { atime: stat.mtime, ..self.attr(ino, &stat) }
    }
}

/// Inode that a lookup returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Attributes.
    pub attr: Attr,
    /// Generation, which distinguishes two contents of one inode number: an open file never shows
    /// the later one.
    pub generation: u64,
    /// `true` if the kernel may cache the name and the attributes for a while.
    pub lasting: bool,
}

/// Returns the current time as a file timestamp.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp { seconds, nanoseconds: since.subsec_nanos() }
}
