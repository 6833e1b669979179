//! The seam between shards and the disk: everything that is read from a source or written to it
//! goes through [`Storage`]. Paths are relative to the source's root and never lead out of it.
//!
//! A change is durable only once it was synced: the bytes and the length of a file by
//! [`StorageFile::sync`], its name by [`Storage::sync_directory`].

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Point in time as filesystems store it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let (since, sign) = match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => (since, 1),
            Err(before) => (before.duration(), -1),
        };
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX) * sign;
        match (sign, since.subsec_nanos()) {
            (-1, nanoseconds @ 1..) => {
                Self { seconds: seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds }
            }
            (_, nanoseconds) => Self { seconds, nanoseconds },
        }
    }
}

/// Turns the result of a lookup into an `Option`: `None` if there is nothing of that name. A name
/// whose lookup fails otherwise is not absent: any other error stays one.
///
/// # Errors
/// Those of the lookup, except ENOENT and ENOTDIR.
pub fn if_present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether an error says that there is nothing of that name.
#[must_use]
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR))
}

/// Returns whether ENOENT of `path` is due to a dangling symbolic link, in its place or in that of
/// a directory above, rather than to an absent file. A file that another process has created there
/// in the meantime counts as absent, as it was.
///
/// # Errors
/// Those of the lookups.
pub fn is_dangling(storage: &dyn Storage, path: &Path) -> io::Result<bool> {
    for above in path.ancestors() {
        match if_present(storage.lstat(above))? {
            None => (),
            Some(stat) if stat.kind == FileKind::Symlink => {
                return Ok(if_present(storage.stat(above))?.is_none());
            }
            Some(_) => return Ok(false),
        }
    }
    Ok(false)
}

/// Returns the kind of a directory entry, with a lookup if the filesystem does not report it with
/// the name. `None` if the entry was removed in the meantime.
///
/// # Errors
/// Those of the lookup.
pub fn kind_of(
    storage: &dyn Storage,
    directory: &Path,
    item: &DirItem<'_>,
) -> io::Result<Option<FileKind>> {
    match item.kind {
        Some(kind) => Ok(Some(kind)),
        None => Ok(if_present(storage.lstat(&directory.join(item.name)))?.map(|stat| stat.kind)),
    }
}

impl From<Timestamp> for SystemTime {
    fn from(time: Timestamp) -> Self {
        let seconds = Duration::from_secs(time.seconds.unsigned_abs());
        let whole = if time.seconds < 0 {
            Self::UNIX_EPOCH.checked_sub(seconds)
        } else {
            Self::UNIX_EPOCH.checked_add(seconds)
        };
        let fraction = Duration::from_nanos(u64::from(time.nanoseconds));
        whole.and_then(|whole| whole.checked_add(fraction)).unwrap_or(Self::UNIX_EPOCH)
    }
}

/// Kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::File => "a regular file",
            Self::Directory => "a directory",
            Self::Symlink => "a symbolic link",
            Self::Fifo => "a named pipe",
            Self::Socket => "a socket",
            Self::CharDevice | Self::BlockDevice => "a device",
        })
    }
}

/// Attributes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Stat {
    /// Device that holds the file.
    pub dev: u64,
    /// Inode number on that device.
    pub ino: u64,
    /// Kind of the file.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count.
    pub links: u64,
    /// Length in bytes.
    pub size: u64,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the content or the attributes.
    pub ctime: Timestamp,
    /// Last read.
    pub atime: LastRead,
}

/// Time of a file's last read. All values compare equal, because reading does not change the file:
/// two states never differ by it alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct LastRead(pub Timestamp);

impl PartialEq for LastRead {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for LastRead {}

impl std::hash::Hash for LastRead {
    fn hash<H: std::hash::Hasher>(&self, _state: &mut H) {}
}

impl Stat {
    /// Returns device and inode number, which no two files share at one time.
    pub fn id(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }

    /// Returns whether the file has other hard links. Always `false` for a directory.
    pub fn has_hard_links(&self) -> bool {
        self.kind != FileKind::Directory && self.links > 1
    }

    /// Returns whether both describe one file that was not changed in between.
    pub fn unchanged(&self, other: &Self) -> bool {
        self.ctime == other.ctime && self.same_content(other)
    }

    /// Returns whether both describe one file of which at most the ctime has changed in between.
    /// That happens when it is renamed, linked, unlinked, or given another owner or permissions;
    /// but also when a writer changes its content and puts the mtime back (`touch -r`, `cp -p`,
    /// `rsync --inplace --times`). So this alone does not prove that the content is unchanged.
    pub fn same_content(&self, other: &Self) -> bool {
        let content = |stat: &Self| (stat.dev, stat.ino, stat.kind, stat.size, stat.mtime);
        content(self) == content(other)
    }
}

/// Longest tick of the clock by which filesystems date changes.
const TICK: Duration = Duration::from_millis(10);

impl Stat {
    /// Returns whether another change at `now` might leave the ctime as it is.
    pub fn is_unsettled(&self, now: SystemTime) -> bool {
        now.duration_since(self.ctime.into()).is_ok_and(|since| since < TICK)
    }
}

/// Changes to a file's attributes; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetStat {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last read.
    pub atime: Option<Timestamp>,
    /// Last change of the content.
    pub mtime: Option<Timestamp>,
    /// `true` if both times are to be set to the current time, which every process that may write
    /// to the file is allowed to do.
    pub is_now: bool,
    /// `true` to update the ctime even if nothing else is changed.
    pub ctime: bool,
}

/// Access that a file is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// To look it up.
    Find,
    /// To read it.
    Read,
    /// To write to it.
    Write,
}

/// One name in a directory.
#[derive(Debug)]
pub struct DirItem<'a> {
    /// The name.
    pub name: &'a OsStr,
    /// Kind of the file, if the filesystem reports it with the name.
    pub kind: Option<FileKind>,
    /// Position at which a later listing continues after this name.
    pub next: u64,
}

/// Free and used space of the filesystem below a source.
#[derive(Debug, Clone, Copy, Default)]
pub struct Space {
    /// Block size in bytes.
    pub block_size: u32,
    /// Total number of blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Free blocks for unprivileged users.
    pub available: u64,
    /// Total number of inodes.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
}

/// Function called for each name of a directory; returns whether to go on.
pub type Visit<'a> = dyn FnMut(DirItem<'_>) -> ControlFlow<()> + 'a;

/// Tree of files. Every operation that changes something fails with ELOOP if a path leads through a
/// symbolic link: links are followed for reading only.
pub trait Storage: Send + Sync {
    /// Opens a file for reading, following symbolic links that stay within the source.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>>;

    /// Opens a file for reading. Fails with ELOOP if there is a symbolic link on the way or in its
    /// place.
    fn open_plain(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>>;

    /// Returns the attributes of a file, following symbolic links that stay within the source.
    fn stat(&self, path: &Path) -> io::Result<Stat>;

    /// Returns the attributes of a file, or of the symbolic link itself.
    fn lstat(&self, path: &Path) -> io::Result<Stat>;

    /// Returns whether the file at `path` is the one that `known` describes, and unchanged.
    fn is_unchanged(&self, path: &Path, known: &Stat) -> bool {
        self.stat(path).is_ok_and(|stat| stat.unchanged(known))
    }

    /// Returns the target of a symbolic link.
    fn read_link(&self, path: &Path) -> io::Result<OsString>;

    /// Returns the attributes of a file, if this thread may look it up and has the access asked
    /// for. Follows symbolic links that stay within the source.
    fn access(&self, path: &Path, _need: Need) -> io::Result<Stat> {
        self.stat(path)
    }

    /// Returns whether there is a symbolic link on the way to a file, or in its place.
    fn is_linked(&self, _path: &Path) -> io::Result<bool> {
        Ok(false)
    }

    /// Returns an extended attribute of a file, or of the symbolic link itself if links are not
    /// followed.
    fn xattr(&self, _path: &Path, _name: &OsStr, _follow: bool) -> io::Result<Vec<u8>> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Returns the names of the extended attributes, each terminated by a NUL.
    fn xattrs(&self, _path: &Path) -> io::Result<Vec<u8>> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Sets an extended attribute, with the flags of `setxattr`.
    fn set_xattr(&self, _path: &Path, _name: &OsStr, _value: &[u8], _flags: u32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Removes an extended attribute.
    fn remove_xattr(&self, _path: &Path, _name: &OsStr) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Visits the names of a directory, without `.` and `..`, from the start (0) or from where an
    /// earlier listing stopped ([`DirItem::next`]).
    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()>;

    /// Returns free and used space of the filesystem.
    fn space(&self) -> io::Result<Space>;

    /// Opens a file for reading and writing. Fails with ELOOP if it is a symbolic link.
    fn open_writable(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>>;

    /// Creates a file that does not exist yet, with permissions `mode` less the process's umask,
    /// and opens it for reading and writing.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn StorageFile>>;

    /// Creates a file that shares its content's blocks with `original`, and opens it for reading
    /// and writing. Fails with EOPNOTSUPP if the filesystem cannot clone files.
    fn clone_file(
        &self,
        original: &Path,
        path: &Path,
        mode: u32,
    ) -> io::Result<Arc<dyn StorageFile>>;

    /// Renames a file, replacing the file at the new name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// Creates a directory with permissions `mode`, less the umask.
    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.create_directory(path)?;
        self.set_stat(path, &SetStat { mode: Some(mode), ..SetStat::default() })
    }

    /// Removes an empty directory.
    fn remove_directory(&self, path: &Path) -> io::Result<()>;

    /// Adds a hard link to a file.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Creates a symbolic link.
    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()>;

    /// Creates a named pipe or a socket, with permissions `mode` less the process's umask.
    fn make_node(&self, _path: &Path, _kind: FileKind, _mode: u32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    /// Changes attributes of a file, or of the symbolic link itself.
    fn set_stat(&self, path: &Path, set: &SetStat) -> io::Result<()>;

    /// Returns once the names in a directory are durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

/// Open file.
pub trait StorageFile: Send + Sync {
    /// Reads at `offset` and returns the number of bytes; fewer than asked for only at the end of
    /// the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Returns the current attributes.
    fn stat(&self) -> io::Result<Stat>;

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Appends to the file, at its current end even if another process has moved that.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Truncates the file, or extends it with zeros.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Returns once bytes and length are durable.
    fn sync(&self) -> io::Result<()>;

    /// Gives the file the owner and the permissions in `like`.
    fn set_owner(&self, like: &Stat) -> io::Result<()>;

    /// Changes attributes of the file.
    fn set_stat(&self, set: &SetStat) -> io::Result<()>;

    /// Sets the mtime.
    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()>;

    /// Waits until no other open file holds the lock on this one, and takes it.
    fn lock(&self) -> io::Result<()>;

    /// Takes the lock unless another open file holds it; returns whether it was taken.
    fn try_lock(&self) -> io::Result<bool>;

    /// Releases the lock; closing the file does so, too.
    fn unlock(&self) -> io::Result<()>;
}
