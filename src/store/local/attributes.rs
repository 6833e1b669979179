//! Attributes of local files.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Timespec, Timestamps};

use crate::store::access_list::without_group;
use crate::store::storage::{FileKind, SetStat, Stat, Timestamp};

/// Maximum length of an extended attribute, or of the list of their names, in the kernel.
pub(super) const MAX_XATTR_BYTES: usize = 64 << 10;

/// Changes attributes of an open file, which may be open with `O_PATH`.
pub(super) fn set_stat(file: &OwnedFd, set: &SetStat) -> io::Result<()> {
    if set.uid.is_some() || set.gid.is_some() || set.ctime {
        let (uid, gid) = (set.uid.map(fs::Uid::from_raw), set.gid.map(fs::Gid::from_raw));
        fs::chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH)?;
    }
    if let Some(mode) = set.mode {
        // Callers never ask for the mode of a symbolic link: the kernel does not.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::chmod(path, Mode::from_raw_mode(mode))?;
    }
    if let Some(times) = times(set) {
        fs::utimensat(file, c"", &times, AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

/// Returns whether a file that is open with `O_PATH` may be what this process has just made: it is its
/// own, has one name and is empty. Users who may write to a directory can put something else in the
/// place of what was made in it, and it must not be given to them.
pub(super) fn is_new(file: &OwnedFd) -> io::Result<bool> {
    let stat = stat_of(file)?;
    if stat.uid != rustix::process::geteuid().as_raw() {
        return Ok(false);
    }
    match stat.kind {
        FileKind::Directory => is_empty(file),
        FileKind::File => Ok(stat.size == 0 && stat.links == 1),
        _ => Ok(stat.links == 1),
    }
}

/// Returns whether there is nothing in a directory that is open with `O_PATH`.
fn is_empty(directory: &OwnedFd) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let entries = fs::Dir::new(fs::openat(directory, c".", flags, Mode::empty())?)?;
    for entry in entries {
        if ![c".", c".."].contains(&entry?.file_name()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the times to be changed. `None` if there are none.
fn times(set: &SetStat) -> Option<Timestamps> {
    let time = |time: Option<Timestamp>| match time {
        Some(_) if set.is_now => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        Some(time) => Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
        None => Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
    };
    let times = Timestamps { last_access: time(set.atime), last_modification: time(set.mtime) };
    (set.atime.is_some() || set.mtime.is_some()).then_some(times)
}

/// Returns the permissions in `like` as far as they mean the same in a file with this owner and
/// group: no user but its owner may do more with it than with the other one.
pub(super) fn permissions_like(like: &Stat, file: &Stat) -> u32 {
    let mode = match file.uid == like.uid {
        true => like.mode,
        false => like.mode & !libc::S_ISUID,
    };
    match file.gid == like.gid {
        true => mode,
        false => without_group(mode & !libc::S_ISUID),
    }
}

pub(super) fn stat_of(file: &OwnedFd) -> io::Result<Stat> {
    Ok(from_raw(&fs::fstat(file)?))
}

#[allow(clippy::useless_conversion, reason = "the count of links has 32 bits on some machines")]
pub(super) fn from_raw(stat: &fs::Stat) -> Stat {
    let time = |seconds, nanoseconds| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    Stat {
        dev: stat.st_dev,
        ino: stat.st_ino,
        kind: kind_of(FileType::from_raw_mode(stat.st_mode)).unwrap_or(FileKind::File),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        links: stat.st_nlink.into(),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        atime: time(stat.st_atime, stat.st_atime_nsec),
    }
}

pub(super) fn kind_of(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}
