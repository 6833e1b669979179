//! Attributes of what the mount shows.

use crate::store::storage::{FileKind, Stat, Timestamp};

/// Preferred length of reads from files, in bytes: what stdio buffers.
const FILE_BLOCK: u32 = 128 << 10;
/// Preferred length of directory reads: the C library's readdir asks for as much at once.
const DIRECTORY_BLOCK: u32 = 1 << 20;

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Names that it has.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Last change of its content.
    pub mtime: Timestamp,
    /// Last change of its content or attributes.
    pub ctime: Timestamp,
    /// Last read; of what is made of something else the last change of its content.
    pub atime: Timestamp,
    /// Preferred length of reads in bytes.
    pub block: u32,
}

/// Who owns what the mount shows, where the user says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Owner of everything.
    pub uid: Option<u32>,
    /// Group of everything.
    pub gid: Option<u32>,
    /// Permission bits to take away.
    pub umask: Option<u32>,
}

impl Ownership {
    /// Attributes of something that is stored as `stat` describes.
    pub fn attr(&self, ino: u64, stat: &Stat) -> Attr {
        let directory = stat.kind == FileKind::Directory;
        Attr {
            ino,
            kind: stat.kind,
            // As btrfs does: a directory's subdirectories are not counted.
            links: if directory { 1 } else { u32::try_from(stat.links).unwrap_or(u32::MAX) },
            mode: stat.mode & !self.umask.unwrap_or(0),
            uid: self.uid.unwrap_or(stat.uid),
            gid: self.gid.unwrap_or(stat.gid),
            size: if directory { 0 } else { stat.size },
            mtime: stat.mtime,
            ctime: stat.ctime,
            atime: stat.atime.0,
            block: if directory { DIRECTORY_BLOCK } else { FILE_BLOCK },
        }
    }

    /// Attributes of a file of `size` bytes that takes the rest from the file `stat`. It is never
    /// executable.
    pub fn file(&self, ino: u64, stat: &Stat, size: u64) -> Attr {
        let stat = Stat { kind: FileKind::File, links: 1, size, mode: stat.mode & 0o666, ..*stat };
        Attr { atime: stat.mtime, ..self.attr(ino, &stat) }
    }
}

/// A node that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Attributes.
    pub attr: Attr,
    /// Tells apart two contents of one inode number: an open file never shows the later one.
    pub generation: u64,
    /// Whether name and attributes may be believed for a while.
    pub lasting: bool,
}
