//! Translation between the types of fuser and those of [`crate::fs`].

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo, Request, TimeOrNow};

use crate::fs::{Attr, Caller, OpenHow, now};
use crate::store::storage::{FileKind, Timestamp};

/// Returns the caller of a request; `umask` holds the permission bits to clear in new files.
pub(super) fn caller(request: &Request, umask: u32) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid(), umask }
}

/// Returns how a file is opened. Opening for reading truncates as well if that is asked for, which the
/// kernel leaves to the filesystem.
pub(super) fn open_how(flags: i32) -> OpenHow {
    let truncate = flags & libc::O_TRUNC != 0;
    OpenHow {
        write: flags & libc::O_ACCMODE != libc::O_RDONLY || truncate,
        truncate,
        exclusive: flags & libc::O_EXCL != 0,
    }
}

pub(super) fn timestamp(time: TimeOrNow) -> Timestamp {
    match time {
        TimeOrNow::Now => now(),
        TimeOrNow::SpecificTime(time) => as_sent(time),
    }
}

/// Converts a time as sent by the kernel: whole seconds, rounded down, plus nanoseconds. fuser
/// subtracts the nanoseconds from a time before 1970.
fn as_sent(time: SystemTime) -> Timestamp {
    match SystemTime::UNIX_EPOCH.duration_since(time) {
        Ok(before) if before > Duration::ZERO => Timestamp {
            seconds: 0_i64.saturating_sub_unsigned(before.as_secs()),
            nanoseconds: before.subsec_nanos(),
        },
        _ => time.into(),
    }
}

/// Attributes of a negative entry.
pub(super) const NO_ATTR: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

/// Translates attributes.
pub fn file_attr(attr: &Attr) -> FileAttr {
    let mtime = attr.mtime.into();
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        atime: attr.atime.into(),
        mtime,
        ctime: attr.ctime.into(),
        crtime: mtime,
        kind: file_type(attr.kind),
        // Permission bits alone: twelve.
        perm: u16::try_from(attr.mode & 0o7777).unwrap_or(0),
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: attr.block,
        flags: 0,
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_opened_for_reading_is_truncated_if_that_is_asked_for() {
        let how = open_how(libc::O_RDONLY | libc::O_TRUNC);
        assert!(how.write && how.truncate);
        assert!(!open_how(libc::O_RDONLY).write);
    }
}
