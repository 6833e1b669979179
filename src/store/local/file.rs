//! Files of a local source, and their locks.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{self, Mode, XattrFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::attributes::{MAX_XATTR_BYTES, permissions_like, set_stat, stat_of};
use crate::stats::Stats;
use crate::store::access_list::ACCESS_LIST;
use crate::store::storage::{PosixFile, SetStat, Stat, StorageFile, Xattrs};

/// Open file of a source.
pub(super) struct LocalFile {
    pub(super) file: OwnedFd,
    pub(super) stats: Arc<Stats>,
}

impl LocalFile {
    /// Writes bytes with a call that may write fewer, as many as possible. Returns their number, and why
    /// there were not more.
    fn write_until_error(&self, bytes: &[u8], offset: Option<u64>) -> (usize, io::Result<()>) {
        let mut written = 0;
        let error = loop {
            let rest = &bytes[written..];
            if rest.is_empty() {
                break Ok(());
            }
            let write = match offset {
                Some(offset) => rustix::io::pwrite(&self.file, rest, offset + written as u64),
                None => {
                    let rest = [io::IoSlice::new(rest)];
                    rustix::io::pwritev2(&self.file, &rest, 0, ReadWriteFlags::APPEND)
                }
            };
            match write {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(Errno::INTR) => (),
                Err(error) => break Err(error.into()),
            }
        };
        self.stats.source.write.count();
        self.stats.source.write_bytes.add(written as u64);
        (written, error)
    }
}

impl StorageFile for LocalFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let _timed = self.stats.source_reads.time();
        self.stats.source.read.count();
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::io::pread(&self.file, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        self.stats.source.read_bytes.add(filled as u64);
        Ok(filled)
    }

    fn stat(&self) -> io::Result<Stat> {
        stat_of(&self.file)
    }

    fn posix(&self) -> Option<&dyn PosixFile> {
        Some(self)
    }
}

impl PosixFile for LocalFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_until_error(bytes, Some(offset)).1
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_until_error(bytes, None).1
    }

    fn write_some(&self, bytes: &[u8], offset: Option<u64>) -> io::Result<usize> {
        match self.write_until_error(bytes, offset) {
            (0, Err(error)) => Err(error),
            (written, _) => Ok(written),
        }
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        Ok(fs::ftruncate(&self.file, length)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.stats.source.syncs.count();
        Ok(fs::fdatasync(&self.file)?)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.stats.source.syncs.count();
        Ok(fs::fsync(&self.file)?)
    }

    fn set_owner(&self, like: &Stat) -> io::Result<()> {
        let now = self.stat()?;
        if (now.uid, now.gid) != (like.uid, like.gid) {
            let (uid, gid) = (fs::Uid::from_raw(like.uid), fs::Gid::from_raw(like.gid));
            let given = fs::fchown(&self.file, Some(uid), Some(gid)).or_else(|error| match error {
                // Only root can give files away, but a member of the group can share them.
                Errno::PERM => fs::fchown(&self.file, None, Some(gid)),
                error => Err(error),
            });
            match given {
                Ok(()) | Err(Errno::PERM) => (),
                Err(error) => return Err(error.into()),
            }
        }
        let mode = permissions_like(like, &self.stat()?);
        Ok(fs::fchmod(&self.file, Mode::from_raw_mode(mode))?)
    }

    fn set_stat(&self, set: &SetStat) -> io::Result<()> {
        set_stat(&self.file, set)
    }

    fn lasting_xattrs(&self) -> io::Result<Xattrs> {
        let mut names = vec![0; MAX_XATTR_BYTES];
        let length = match fs::flistxattr(&self.file, &mut names[..]) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Xattrs::new()),
            length => length?,
        };
        let names = names[..length].split(|byte| *byte == 0).map(OsStr::from_bytes);
        let lasts = |name: &&OsStr| *name == ACCESS_LIST || name.as_bytes().starts_with(b"user.");
        let value = |name: &OsStr| {
            let mut value = vec![0; MAX_XATTR_BYTES];
            match fs::fgetxattr(&self.file, name, &mut value[..]) {
                Ok(length) => value.truncate(length),
                // Removed in the meantime.
                Err(Errno::NODATA) => return None,
                Err(error) => return Some(Err(error.into())),
            }
            Some(Ok((name.to_owned(), value)))
        };
        names.filter(lasts).filter_map(value).collect()
    }

    fn has_access_list(&self) -> io::Result<bool> {
        match fs::fgetxattr(&self.file, ACCESS_LIST, &mut [0; 0]) {
            Ok(_) => Ok(true),
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn take_xattrs(&self, xattrs: &Xattrs) -> io::Result<()> {
        if !xattrs.iter().any(|(name, _)| name == ACCESS_LIST) {
            match fs::fremovexattr(&self.file, ACCESS_LIST) {
                Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => (),
                Err(error) => return Err(error.into()),
            }
        }
        for (name, value) in xattrs {
            fs::fsetxattr(&self.file, name, value, XattrFlags::empty())?;
        }
        Ok(())
    }

    /// Takes an open file description lock on the whole file, the kind that TensorStore takes.
    fn try_lock(&self) -> io::Result<bool> {
        match fcntl(self.file.as_fd(), FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))) {
            Ok(_) => Ok(true),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn unlock(&self) -> io::Result<()> {
        fcntl(self.file.as_fd(), FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK)))?;
        Ok(())
    }
}

#[allow(clippy::cast_possible_truncation, reason = "small constants of the kernel's interface")]
fn whole_file(kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Takes the lock of a file that the storage locks, unless another open file holds it; returns
/// whether it was taken. Closing the file releases it.
pub fn try_lock(file: &std::fs::File) -> io::Result<bool> {
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))) {
        Ok(_) => Ok(true),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
