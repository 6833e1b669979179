//! The seam between shards and where they are stored: everything that is read from a source goes
//! through [`Storage`], everything that changes one through [`PosixStorage`]. Paths are relative to
//! the source's root and never lead out of it.
//!
//! ```text
//! every source    Storage: open, attributes, list             StorageFile: read, attributes
//!                    |                                           |
//! a filesystem    PosixStorage: links, access, space,         PosixFile: write, lock, sync
//!                    create, rename, remove, sync
//!                    |
//! or objects      ObjectStorage: put on a condition
//! ```
//!
//! On a filesystem, a change is durable only once it was synced: the bytes and the length of a file by
//! [`PosixFile::sync`], its name by [`PosixStorage::sync_directory`]. An object is durable once the store
//! has answered that it was put.

mod objects;
mod stat;

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::objects::{Current, ObjectPart, PutError, When, WriteId};
pub use self::stat::{FileKind, Need, SetStat, Space, Stat, Timestamp, Version};
use crate::format::index::ByteRange;
use crate::format::plan::parts::PartLimits;
use crate::memory::zeroed;

/// One name in a directory.
#[derive(Debug)]
pub struct DirItem<'a> {
    /// The name.
    pub name: &'a OsStr,
    /// Kind of the file, if the storage reports it with the name.
    pub kind: Option<FileKind>,
    /// Position at which a later listing continues after this name.
    pub next: u64,
}

/// Function called for each name of a directory; returns whether to go on.
pub type Visit<'a> = dyn FnMut(DirItem<'_>) -> ControlFlow<()> + 'a;

/// Part of a file that who opens it is about to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// This number of bytes from the start, or all if there are fewer.
    First(u64),
    /// This number of bytes at the end, or all if there are fewer.
    Last(u64),
}

/// Tree of files, for reading.
pub trait Storage: Send + Sync {
    /// Opens a file, following symbolic links that stay within the source.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>>;

    /// Opens what is a file if it is there at all. Where names cannot be listed, whether something is a
    /// directory takes requests.
    fn open_as_file(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        self.open(path)
    }

    /// Opens a file of which a part is read next. A storage where each request takes long may answer
    /// both at once.
    fn open_expecting(&self, path: &Path, _expected: Expected) -> io::Result<Arc<dyn StorageFile>> {
        self.open(path)
    }

    /// Says that [`Self::open_expecting`] will be called soon. Returns whether it then needs no
    /// request; a storage where requests take long sends one now, and returns at once.
    fn announce(&self, _path: &Path, _expected: Expected) -> bool {
        false
    }

    /// Returns the attributes of a file, following symbolic links that stay within the source.
    fn stat(&self, path: &Path) -> io::Result<Stat>;

    /// Returns the attributes of a file, or of the symbolic link itself. The same as
    /// [`Self::stat`] in a storage without symbolic links.
    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.stat(path)
    }

    /// Returns whether the file at `path` has this version.
    fn has_version(&self, path: &Path, version: &Version) -> bool {
        self.stat(path).is_ok_and(|stat| stat.version() == *version)
    }

    /// Visits the names of a directory, without `.` and `..`, from the start (0) or from where an
    /// earlier listing stopped ([`DirItem::next`]).
    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()>;

    /// Returns whether the names in a directory can be listed. Where they cannot, everything that
    /// may be there has to be tried.
    fn can_list(&self) -> bool {
        true
    }

    /// Returns whether an open file stays the version that it was opened as: reads of one that was
    /// replaced meanwhile fail with ESTALE. So what is read is never older than it is believed to be,
    /// and needs no other request that finds out whether it has changed.
    fn pins_versions(&self) -> bool {
        false
    }

    /// Returns what was wrong with the last request that has failed, in words: an errno says little of
    /// what a store on the network has said. `None` if there was none.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns the operations of a POSIX filesystem; `None` if the storage is not on one, and so
    /// has neither links nor owners, and nothing of it can be changed but shards that are objects.
    fn posix(&self) -> Option<&dyn PosixStorage> {
        None
    }

    /// Returns the operations of a store of objects; `None` if it is none, or one that can only be read.
    fn objects(&self) -> Option<&dyn ObjectStorage> {
        None
    }

    /// Returns the operations that change files: those of a POSIX filesystem, or what a store of objects has
    /// instead. `None` if nothing of it can be changed.
    fn files(&self) -> Option<&dyn PosixStorage> {
        self.posix()
    }

    /// Returns the operations that change something.
    ///
    /// # Errors
    /// EROFS if there are none.
    fn writable(&self) -> io::Result<&dyn PosixStorage> {
        self.files().ok_or_else(read_only)
    }
}

/// File that is open for reading.
pub trait StorageFile: Send + Sync {
    /// Reads at `offset` and returns the number of bytes; fewer than asked for only at the end of
    /// the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Reads at `offset` as [`Self::read_at`] does. All of `within`, which the range lies in, will be
    /// read soon: a storage where each request takes long may fetch it at once.
    fn read_within(&self, buffer: &mut [u8], offset: u64, _within: ByteRange) -> io::Result<usize> {
        self.read_at(buffer, offset)
    }

    /// Says that ranges will be read soon. A storage where requests take long requests them now, and
    /// returns at once.
    fn fetch_ahead(&self, _ranges: &[ByteRange]) {}

    /// Reads ranges that are needed together and returns the bytes of each; a storage where each
    /// request takes long may answer them with fewer requests than ranges.
    ///
    /// # Errors
    /// Those of reading; the file ends before a range does, or there is no memory for it.
    fn read_ranges(&self, ranges: &[ByteRange]) -> io::Result<Vec<Vec<u8>>> {
        let read = |range: &ByteRange| {
            let mut bytes = zeroed(range.nbytes)?;
            match self.read_at(&mut bytes, range.offset)? {
                read if read == bytes.len() => Ok(bytes),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        ranges.iter().map(read).collect()
    }

    /// Returns the current attributes.
    fn stat(&self) -> io::Result<Stat>;

    /// Returns the entity tag of the version of an object that is open, as a condition names it: without
    /// quotation marks. `None` if there is none, or if it is no object.
    fn entity_tag(&self) -> Option<&str> {
        None
    }

    /// Returns the operations on an open file of a POSIX filesystem, or on one of a store of objects that is open for
    /// writing; `None` if it is neither.
    fn posix(&self) -> Option<&dyn PosixFile> {
        None
    }

    /// Returns the operations that change the file.
    ///
    /// # Errors
    /// EROFS if there are none.
    fn writable(&self) -> io::Result<&dyn PosixFile> {
        self.posix().ok_or_else(read_only)
    }
}

fn read_only() -> io::Error {
    io::Error::from_raw_os_error(libc::EROFS)
}

/// Storage with the operations of a POSIX filesystem, as far as a store of objects has them: no links, no owners and
/// permissions, and names of files alone. Every operation that changes something fails
/// with ELOOP if a path leads through a symbolic link: links are followed for reading only.
pub trait PosixStorage: Storage {
    /// Opens a file for reading, following symbolic links that stay within the source.
    fn open_file(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>>;

    /// Opens a file for reading. Fails with ELOOP if there is a symbolic link on the way or in its
    /// place.
    fn open_plain(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>>;

    /// Opens a file for reading and writing. Fails with ELOOP if it is a symbolic link.
    fn open_writable(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>>;

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

    /// Opens a directory. In the storage that is returned, paths are those of this one; the way to the
    /// directory leads to the one that is open, whatever name that has from then on, or another one has in
    /// its place. EXDEV for what is not in it. `None` if this storage has no such thing.
    ///
    /// # Errors
    ///
    /// ELOOP if a symbolic link leads there.
    fn within(&self, _directory: &Path) -> io::Result<Option<Arc<dyn PosixStorage>>> {
        Ok(None)
    }

    /// Returns free and used space of the filesystem.
    fn space(&self) -> io::Result<Space>;

    /// Replaces a file as a whole, or creates it, if the storage can do that at once, durably, and so that whoever has
    /// changed it meanwhile is not undone. `None` if a new file must be given its name for that. `expected` is the
    /// version that it replaces; without one it is what is there now, as far as is known.
    ///
    /// # Errors
    /// ESTALE if that is another one.
    fn put_whole(
        &self,
        _path: &Path,
        _content: &dyn Fn() -> io::Result<Vec<u8>>,
        _expected: Option<(u64, u64)>,
    ) -> Option<io::Result<Arc<dyn PosixFile>>> {
        None
    }

    /// Creates a file that does not exist yet, with permissions `mode` less the process's umask,
    /// and opens it for reading and writing.
    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn PosixFile>>;

    /// Creates a file that shares its content's blocks with `original`, and opens it for reading
    /// and writing. Fails with EOPNOTSUPP if the filesystem cannot clone files.
    fn clone_file(&self, original: &Path, path: &Path, mode: u32)
    -> io::Result<Arc<dyn PosixFile>>;

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

    /// Changes attributes, the owner among them, of what this process has just made.
    ///
    /// # Errors
    /// EPERM if something else has its name by now: what is not empty, or neither this process's nor
    /// the new owner's.
    fn give_new(&self, path: &Path, set: &SetStat) -> io::Result<()> {
        self.set_stat(path, set)
    }

    /// Returns once the names in a directory are durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
}

/// Storage whose files are objects. A replacement names the version that it replaces, so writers that know
/// nothing of each other do not undo what others have written.
pub trait ObjectStorage: Storage {
    /// Returns what is at a path now. Nothing that was found out before is believed, neither here nor in what
    /// is asked of the path next. `None` if there is no object.
    ///
    /// # Errors
    /// Those of the request.
    fn current(&self, path: &Path) -> io::Result<Option<Current>>;

    /// Puts an object at a path, if what is there is what `when` says, and returns its entity tag. `id` is
    /// stored with it.
    ///
    /// # Errors
    /// See [`PutError`]. Whatever it is, the request is not repeated.
    fn put(
        &self,
        path: &Path,
        content: Vec<u8>,
        when: When<'_>,
        id: WriteId,
    ) -> Result<String, PutError>;

    /// Returns what the parts must be of which [`Self::assemble`] makes objects. `None` if it cannot.
    fn part_limits(&self) -> Option<PartLimits> {
        None
    }

    /// Puts an object in the place of the one with the entity tag `before`, if that still is there, and returns its own
    /// tag. It is made of new bytes, and of ranges of the one before, which the store copies itself.
    ///
    /// # Errors
    /// As those of [`Self::put`]. The store may turn out not to be able to do that: the limits say so from then on.
    fn assemble(
        &self,
        _path: &Path,
        _parts: Vec<ObjectPart>,
        _before: &str,
        _id: WriteId,
    ) -> Result<String, PutError> {
        Err(PutError::Refused(io::Error::from_raw_os_error(libc::EOPNOTSUPP)))
    }

    /// Removes an object, whatever it is by now. There is no error if there is none.
    ///
    /// # Errors
    /// Those of the request.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns whether other processes may replace objects meanwhile.
    fn is_shared(&self) -> bool {
        true
    }

    /// Says that nothing is changed any more.
    fn ended(&self) {}

    /// Stores no more files. Returns those that are open for writing, and not stored as they are by now: each once.
    fn end(&self) -> Vec<(PathBuf, Arc<dyn PosixFile>)> {
        Vec::new()
    }
}

/// Names and values of extended attributes.
pub type Xattrs = Vec<(OsString, Vec<u8>)>;

/// Open file of a POSIX filesystem.
pub trait PosixFile: StorageFile {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Appends to the file, at its current end even if another process has moved that.
    fn append(&self, bytes: &[u8]) -> io::Result<()>;

    /// Writes at `offset`, or at the end of the file if there is none, and returns the number of bytes
    /// written: fewer than all if the rest cannot be, as on a full disk.
    fn write_some(&self, bytes: &[u8], offset: Option<u64>) -> io::Result<usize> {
        match offset {
            Some(offset) => self.write_at(bytes, offset)?,
            None => self.append(bytes)?,
        }
        Ok(bytes.len())
    }

    /// Truncates the file, or extends it with zeros.
    fn set_length(&self, length: u64) -> io::Result<()>;

    /// Returns once bytes and length are durable.
    fn sync(&self) -> io::Result<()>;

    /// Says that a process which has written to the file has closed it. A store of objects gets it now.
    ///
    /// # Errors
    /// ESTALE if others have changed it since it was opened.
    fn closed(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns once everything that the file is is durable: bytes, attributes, and the name that it was
    /// given last.
    fn sync_all(&self) -> io::Result<()> {
        self.sync()
    }

    /// Gives the file the owner, the group and the permissions in `like`. Only root can give files
    /// away: of owner and group it keeps what this process may not change, and then gives no user but
    /// its owner more permissions than `like`.
    fn set_owner(&self, like: &Stat) -> io::Result<()>;

    /// Changes attributes of the file.
    fn set_stat(&self, set: &SetStat) -> io::Result<()>;

    /// Returns the extended attributes that a file which replaces this one must have: its access
    /// control list, and those that users have set (`user.`).
    fn lasting_xattrs(&self) -> io::Result<Xattrs> {
        Ok(Xattrs::new())
    }

    /// Returns whether an access control list refines the permissions of the file.
    fn has_access_list(&self) -> io::Result<bool> {
        Ok(false)
    }

    /// Gives the file the extended attributes of one that it replaces, and no other access control
    /// list, such as the default one of the directory that it was made in. Owner and permissions are
    /// set afterwards.
    fn take_xattrs(&self, xattrs: &Xattrs) -> io::Result<()> {
        let _ = xattrs;
        Ok(())
    }

    /// Sets the mtime.
    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        self.set_stat(&SetStat { mtime: Some(mtime), ..SetStat::default() })
    }

    /// Takes the lock unless another open file holds it; returns whether it was taken.
    fn try_lock(&self) -> io::Result<bool>;

    /// Releases the lock; closing the file does so, too.
    fn unlock(&self) -> io::Result<()>;
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
    if storage.posix().is_none() {
        // There are no links.
        return Ok(false);
    }
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

/// Returns the kind of a directory entry, with a lookup if the storage does not report it with the
/// name. `None` if the entry was removed in the meantime.
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
