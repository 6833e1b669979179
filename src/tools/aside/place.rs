//! Where a directory is to be created, replaced or removed.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

/// Maximum number of bytes of a name used in the name of its hidden directory; a file name has at
/// most 255.
const NAME_BYTES: usize = 200;

/// Identity of a file (device and inode), unique as long as the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileId(u64, u64);

impl From<&fs::Stat> for FileId {
    fn from(stat: &fs::Stat) -> Self {
        Self(stat.st_dev, stat.st_ino)
    }
}

/// Location of a directory to be created, replaced or removed: the parent directory and a name in
/// it.
#[derive(Debug)]
pub(crate) struct Place {
    /// Path of the parent directory, absolute and without symbolic links.
    pub parent: PathBuf,
    /// Name in the parent directory.
    pub name: OsString,
    /// The parent directory.
    pub(super) directory: OwnedFd,
}

impl Place {
    /// Resolves a path, whose parent must exist. The path itself may be that of a symbolic link.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let (parent, name) = match path.file_name() {
            Some(name) => match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => (parent.canonicalize()?, name),
                _ => (Path::new(".").canonicalize()?, name),
            },
            // Paths such as `.` and `..`.
            None => {
                let whole = path.canonicalize()?;
                let name = whole.file_name().ok_or(io::ErrorKind::InvalidInput)?;
                let parent = whole.parent().ok_or(io::ErrorKind::InvalidInput)?;
                return Self::open(parent.to_owned(), name.to_owned());
            }
        };
        Self::open(parent, name.to_owned())
    }

    fn open(parent: PathBuf, name: OsString) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = fs::open(&parent, flags, Mode::empty())?;
        Ok(Self { parent, name, directory })
    }

    /// Returns the absolute path.
    pub(crate) fn path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Returns the attributes of the file at this place, not following a symbolic link; `None` if
    /// there is none.
    pub(crate) fn stat(&self) -> io::Result<Option<fs::Stat>> {
        match fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the directory at this place; it may be a mount point.
    pub(crate) fn open_directory(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&self.directory, &self.name, flags, Mode::empty())?)
    }

    /// Creates an empty directory at this place, with permissions `mode`, less the umask.
    pub(crate) fn make_directory(&self, mode: u32) -> io::Result<OwnedFd> {
        fs::mkdirat(&self.directory, &self.name, Mode::from_raw_mode(mode))?;
        fs::fsync(&self.directory)?;
        self.open_directory()
    }

    /// Removes the directory at this place if it is empty.
    pub(crate) fn remove_empty_directory(&self) {
        // Whatever the reason is, it stays.
        let _ = fs::unlinkat(&self.directory, &self.name, AtFlags::REMOVEDIR);
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let (parent, name) = (self.parent.clone(), self.name.clone());
        Ok(Self { parent, name, directory: self.directory.try_clone()? })
    }

    /// Returns the prefix of the names of hidden directories beside this place.
    pub(super) fn prefix(&self) -> Vec<u8> {
        let name = self.name.as_bytes();
        [b".", &name[..name.len().min(NAME_BYTES)], b".shardfs-"].concat()
    }

    /// Returns the name as it is recorded in a marker.
    pub(super) fn note(&self) -> String {
        self.name.to_string_lossy().into_owned()
    }
}
