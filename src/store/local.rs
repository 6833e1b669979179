//! Storage on a local or mounted filesystem.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::fcntl::{AtFlags as NixAtFlags, FcntlArg, fcntl};
use nix::unistd::{AccessFlags, faccessat};
use parking_lot::RwLock;
use rustix::fs::{
    self, AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::{Errno, ReadWriteFlags};

use super::beneath::{Beneath, Found, Links};
use super::storage::{
    DirItem, FileKind, LastRead, Need, SetStat, Space, Stat, Storage, StorageFile, Timestamp, Visit,
};
use crate::stats::Stats;

/// Maximum length of an extended attribute, or of the list of their names, in the kernel.
const MAX_XATTR_BYTES: usize = 64 << 10;
/// Size of the buffer for directory entries.
const LIST_BUFFER_BYTES: usize = 64 << 10;

/// Directory of the local machine. Every path is resolved beneath it: the kernel refuses symbolic
/// links that lead out, and mounts that depend on this process appear as empty directories. Nothing
/// is changed through a symbolic link: the kernel resolves those of a mounted view before it sends
/// a request, so one that is met here was put there by another process.
pub struct LocalStorage {
    beneath: Beneath,
    /// Open files that are closed for a moment when no more can be opened ([`Self::with_spare`]).
    /// Every thread that opens a file holds the lock for reading, so that no other thread gets the
    /// descriptors set free.
    spare: RwLock<Vec<OwnedFd>>,
    /// `true` once the removal of the source's root was logged.
    is_removed: AtomicBool,
    stats: Arc<Stats>,
}

/// Number of spare files: as many as a rename has open, for two directories.
const SPARE_FILES: usize = 2;
/// Timeout for obtaining the spare files.
const SPARE_PATIENCE: Duration = Duration::from_secs(1);

thread_local! {
    /// `true` while this thread has the spare files of a storage: the files it opens take their
    /// place.
    static HAS_SPARE: Cell<bool> = const { Cell::new(false) };
}

impl LocalStorage {
    /// Opens the directory `root`.
    pub fn open_root(root: &Path, stats: Arc<Stats>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::of_root(fs::open(root, flags, Mode::empty())?, stats))
    }

    fn of_root(root: OwnedFd, stats: Arc<Stats>) -> Self {
        let spare = (0..SPARE_FILES).filter_map(|_| root.try_clone().ok()).collect();
        let is_removed = AtomicBool::new(false);
        Self { beneath: Beneath::new(root), spare: RwLock::new(spare), is_removed, stats }
    }

    /// Runs `act`, which keeps files open only until it returns, even if no more files can be
    /// opened. So names can always be removed, those of locks for example.
    fn with_spare<T>(&self, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let is_shortage =
            |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        match act() {
            Err(error) if is_shortage(&error) => {
                // Another thread may be stuck opening a file.
                let Some(mut spare) = self.spare.try_write_for(SPARE_PATIENCE) else {
                    return act();
                };
                spare.clear();
                HAS_SPARE.set(true);
                let done = act();
                HAS_SPARE.set(false);
                let again = (0..SPARE_FILES).map_while(|_| self.beneath.root().try_clone().ok());
                spare.extend(again);
                done
            }
            done => done,
        }
    }

    /// Declares that this process serves `mountpoint` from now on: mounts that depend on that are
    /// not entered.
    pub fn serves(&self, mountpoint: &Path) {
        self.beneath.serves(mountpoint);
    }

    /// Creates a storage on an open directory, whatever its name is by now.
    pub fn at(directory: BorrowedFd<'_>, stats: Arc<Stats>) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::of_root(fs::openat(directory, ".", flags, Mode::empty())?, stats))
    }

    fn open_beneath(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        opened(self.beneath(path, flags, Mode::empty(), Links::Followed)?)
    }

    /// Opens a path. If the source's root was removed, with everything below it, the error is
    /// ESTALE, never ENOENT.
    fn beneath(&self, path: &Path, flags: OFlags, mode: Mode, links: Links) -> io::Result<Found> {
        let opened = {
            let _sharing = (!HAS_SPARE.get()).then(|| self.spare.read());
            self.beneath.open(path, flags, mode, links)
        };
        match opened {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.check_root()?;
                Err(error)
            }
            found => found,
        }
    }

    /// Fails with ESTALE if the source's root was removed.
    fn check_root(&self) -> io::Result<()> {
        if fs::fstat(self.beneath.root())?.st_nlink > 0 {
            return Ok(());
        }
        if !self.is_removed.swap(true, Ordering::Relaxed) {
            log::error!(
                "the source's directory was removed, with everything in it: every access gives an error from \
                 now on; unmount, and mount a new one"
            );
        }
        Err(Errno::STALE.into())
    }

    fn open_unlinked(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        opened(self.beneath(path, flags, Mode::empty(), Links::Refused)?)
    }

    /// Opens the directory that holds a name to be changed. Returns it with the name.
    fn parent<'a>(&self, path: &'a Path) -> io::Result<(OwnedFd, &'a OsStr)> {
        let no_name = || io::Error::from_raw_os_error(libc::EINVAL);
        let name = path.file_name().ok_or_else(no_name)?;
        let parent = path.parent().unwrap_or(Path::new(""));
        Ok((self.open_unlinked(parent, OFlags::PATH | OFlags::DIRECTORY)?, name))
    }

    fn file(&self, file: OwnedFd) -> Arc<dyn StorageFile> {
        Arc::new(LocalFile { file, stats: Arc::clone(&self.stats) })
    }

    fn create_beneath(&self, path: &Path, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        opened(self.beneath(path, flags, Mode::from_raw_mode(mode), Links::Refused)?)
    }

    fn stat_with(&self, path: &Path, flags: OFlags) -> io::Result<Stat> {
        self.stats.source.stat.count();
        self.with_spare(|| {
            match self.beneath(path, flags | OFlags::PATH, Mode::empty(), Links::Followed)? {
                Found::Open(file) => stat_of(&file),
                Found::Masked(directory) => Ok(empty_directory(stat_of(&directory)?)),
            }
        })
    }
}

impl Storage for LocalStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        self.stats.source.open.count();
        // A named pipe in a shard's place must not block the mount.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(self.file(self.open_beneath(path, flags)?))
    }

    fn open_plain(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        self.stats.source.open.count();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(self.file(self.open_unlinked(path, flags)?))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.stat_with(path, OFlags::empty())
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.stat_with(path, OFlags::NOFOLLOW)
    }

    fn is_unchanged(&self, path: &Path, known: &Stat) -> bool {
        self.stat(path).is_ok_and(|stat| stat.unchanged(known))
    }

    fn read_link(&self, path: &Path) -> io::Result<OsString> {
        let link = self.open_beneath(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let target = fs::readlinkat(&link, c"", Vec::new())?;
        Ok(OsString::from_vec(target.into_bytes()))
    }

    fn access(&self, path: &Path, need: Need) -> io::Result<Stat> {
        self.stats.source.stat.count();
        let file = self.open_beneath(path, OFlags::PATH)?;
        let access = match need {
            Need::Find => return stat_of(&file),
            Need::Read => AccessFlags::R_OK,
            Need::Write => AccessFlags::W_OK,
        };
        // Checked with the ids of the thread, which may differ from those of the process.
        faccessat(&file, c"", access, NixAtFlags::AT_EACCESS | NixAtFlags::AT_EMPTY_PATH)?;
        stat_of(&file)
    }

    fn is_linked(&self, path: &Path) -> io::Result<bool> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let _sharing = self.spare.read();
        match fs::openat2(
            self.beneath.root(),
            path,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        ) {
            // There may be a symbolic link behind the root of another filesystem.
            Err(Errno::LOOP | Errno::XDEV) => Ok(true),
            Ok(_) | Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn xattr(&self, path: &Path, name: &OsStr, follow: bool) -> io::Result<Vec<u8>> {
        let flags = if follow { OFlags::empty() } else { OFlags::NOFOLLOW };
        let file = self.open_beneath(path, OFlags::PATH | flags)?;
        let mut value = vec![0; MAX_XATTR_BYTES];
        let length = fs::getxattr(proc_path(&file), name, &mut value[..])?;
        value.truncate(length);
        Ok(value)
    }

    fn xattrs(&self, path: &Path) -> io::Result<Vec<u8>> {
        let file = self.open_beneath(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let mut names = vec![0; MAX_XATTR_BYTES];
        let length = fs::listxattr(proc_path(&file), &mut names[..])?;
        names.truncate(length);
        Ok(names)
    }

    fn set_xattr(&self, path: &Path, name: &OsStr, value: &[u8], flags: u32) -> io::Result<()> {
        let file = self.open_beneath(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok(fs::setxattr(proc_path(&file), name, value, XattrFlags::from_bits_retain(flags))?)
    }

    fn remove_xattr(&self, path: &Path, name: &OsStr) -> io::Result<()> {
        let file = self.open_beneath(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok(fs::removexattr(proc_path(&file), name)?)
    }

    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        self.stats.source.list.count();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Found::Open(directory) = self.beneath(path, flags, Mode::empty(), Links::Followed)?
        else {
            return Ok(());
        };
        if path.as_os_str().is_empty() {
            self.check_root()?;
        }
        if from != 0 {
            fs::seek(&directory, SeekFrom::Start(from))?;
        }
        let mut buffer = vec![MaybeUninit::uninit(); LIST_BUFFER_BYTES];
        let mut entries = RawDir::new(directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            let item =
                DirItem { name, kind: kind_of(entry.file_type()), next: entry.next_entry_cookie() };
            if visit(item) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        let space = fs::fstatvfs(self.beneath.root())?;
        Ok(Space {
            block_size: u32::try_from(space.f_frsize).unwrap_or(4096),
            blocks: space.f_blocks,
            free: space.f_bfree,
            available: space.f_bavail,
            files: space.f_files,
            free_files: space.f_ffree,
        })
    }

    fn open_writable(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        self.stats.source.open.count();
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(self.file(self.open_unlinked(path, flags)?))
    }

    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.file(self.create_beneath(path, mode)?))
    }

    fn clone_file(
        &self,
        original: &Path,
        path: &Path,
        mode: u32,
    ) -> io::Result<Arc<dyn StorageFile>> {
        let original = self.open_beneath(original, OFlags::RDONLY)?;
        let file = self.create_beneath(path, mode)?;
        if let Err(error) = fs::ioctl_ficlone(&file, &original) {
            self.remove_file(path)?;
            // Filesystems that cannot share blocks report it in several ways.
            const UNABLE: [i32; 5] =
                [libc::EOPNOTSUPP, libc::ENOTTY, libc::EINVAL, libc::ENOSYS, libc::EXDEV];
            let unable = UNABLE.contains(&error.raw_os_error());
            let errno = if unable { libc::EOPNOTSUPP } else { error.raw_os_error() };
            return Err(io::Error::from_raw_os_error(errno));
        }
        Ok(self.file(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.with_spare(|| {
            let ((from_parent, from), (to_parent, to)) = (self.parent(from)?, self.parent(to)?);
            Ok(fs::renameat(&from_parent, from, &to_parent, to)?)
        })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.with_spare(|| {
            let (parent, name) = self.parent(path)?;
            Ok(fs::unlinkat(&parent, name, AtFlags::empty())?)
        })
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.make_directory(path, 0o777)
    }

    fn make_directory(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.with_spare(|| {
            let (parent, name) = self.parent(path)?;
            Ok(fs::mkdirat(&parent, name, Mode::from_raw_mode(mode))?)
        })
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        self.with_spare(|| {
            let (parent, name) = self.parent(path)?;
            Ok(fs::unlinkat(&parent, name, AtFlags::REMOVEDIR)?)
        })
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_parent, from), (to_parent, to)) = (self.parent(from)?, self.parent(to)?);
        Ok(fs::linkat(&from_parent, from, &to_parent, to, AtFlags::empty())?)
    }

    fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        Ok(fs::symlinkat(target, &parent, name)?)
    }

    fn make_node(&self, path: &Path, kind: FileKind, mode: u32) -> io::Result<()> {
        let kind = match kind {
            FileKind::Fifo => FileType::Fifo,
            FileKind::Socket => FileType::Socket,
            _ => return Err(Errno::PERM.into()),
        };
        let (parent, name) = self.parent(path)?;
        Ok(fs::mknodat(&parent, name, kind, Mode::from_raw_mode(mode), 0)?)
    }

    fn set_stat(&self, path: &Path, set: &SetStat) -> io::Result<()> {
        set_stat(&self.open_unlinked(path, OFlags::PATH | OFlags::NOFOLLOW)?, set)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.stats.source.syncs.count();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.with_spare(|| Ok(fs::fsync(self.open_unlinked(path, flags)?)?))
    }
}

/// Returns the path of a file opened with `O_PATH`, for calls that do not take such a file.
fn proc_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

struct LocalFile {
    file: OwnedFd,
    stats: Arc<Stats>,
}

impl LocalFile {
    /// Writes all bytes with a call that may write fewer; `write` gets the rest, and how many were
    /// written before.
    fn write_all(
        &self,
        bytes: &[u8],
        write: impl Fn(&[u8], usize) -> Result<usize, Errno>,
    ) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match write(&bytes[written..], written) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        self.stats.source.write.count();
        self.stats.source.write_bytes.add(bytes.len() as u64);
        Ok(())
    }
}

impl StorageFile for LocalFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match rustix::io::pread(&self.file, &mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(Errno::INTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
        self.stats.source.read.count();
        self.stats.source.read_bytes.add(filled as u64);
        Ok(filled)
    }

    fn stat(&self) -> io::Result<Stat> {
        stat_of(&self.file)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all(bytes, |rest, written| {
            rustix::io::pwrite(&self.file, rest, offset + written as u64)
        })
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes, |rest, _| {
            let rest = [io::IoSlice::new(rest)];
            rustix::io::pwritev2(&self.file, &rest, 0, ReadWriteFlags::APPEND)
        })
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        Ok(fs::ftruncate(&self.file, length)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.stats.source.syncs.count();
        Ok(fs::fdatasync(&self.file)?)
    }

    fn set_owner(&self, like: &Stat) -> io::Result<()> {
        let now = self.stat()?;
        if (now.uid, now.gid) != (like.uid, like.gid) {
            let (uid, gid) = (fs::Uid::from_raw(like.uid), fs::Gid::from_raw(like.gid));
            fs::fchown(&self.file, Some(uid), Some(gid))?;
        }
        Ok(fs::fchmod(&self.file, Mode::from_raw_mode(like.mode))?)
    }

    fn set_stat(&self, set: &SetStat) -> io::Result<()> {
        set_stat(&self.file, set)
    }

    fn set_mtime(&self, mtime: Timestamp) -> io::Result<()> {
        self.set_stat(&SetStat { mtime: Some(mtime), ..SetStat::default() })
    }

    /// Takes an open file description lock on the whole file, the kind that TensorStore takes.
    fn lock(&self) -> io::Result<()> {
        loop {
            match fcntl(self.file.as_fd(), FcntlArg::F_OFD_SETLKW(&whole_file(libc::F_WRLCK))) {
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => (),
                Err(error) => return Err(error.into()),
            }
        }
    }

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

/// Takes the lock of a file that the storage locks, unless another open file holds it; returns
/// whether it was taken. Closing the file releases it.
pub fn try_lock(file: &std::fs::File) -> io::Result<bool> {
    match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))) {
        Ok(_) => Ok(true),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Ok(false),
        Err(error) => Err(error.into()),
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

fn opened(found: Found) -> io::Result<OwnedFd> {
    match found {
        Found::Open(file) => Ok(file),
        Found::Masked(_) => Err(io::Error::from_raw_os_error(libc::EBUSY)),
    }
}

/// Returns the attributes shown for a mount in this directory that must not be entered.
fn empty_directory(parent: Stat) -> Stat {
    Stat { mode: parent.mode & 0o555, links: 2, size: 0, ..parent }
}

/// Changes attributes of an open file, which may be open with `O_PATH`.
fn set_stat(file: &OwnedFd, set: &SetStat) -> io::Result<()> {
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

fn stat_of(file: &OwnedFd) -> io::Result<Stat> {
    Ok(from_raw(&fs::fstat(file)?))
}

fn from_raw(stat: &fs::Stat) -> Stat {
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
        links: stat.st_nlink,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec),
        atime: LastRead(time(stat.st_atime, stat.st_atime_nsec)),
    }
}

fn kind_of(kind: FileType) -> Option<FileKind> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn storage() -> (tempfile::TempDir, LocalStorage) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("source")).unwrap();
        std::fs::write(directory.path().join("outside"), b"secret").unwrap();
        std::fs::write(directory.path().join("source/file"), b"content").unwrap();
        std::os::unix::fs::symlink("../outside", directory.path().join("source/out")).unwrap();
        std::os::unix::fs::symlink("file", directory.path().join("source/in")).unwrap();
        let storage = LocalStorage::open_root(&directory.path().join("source"), Arc::default());
        (directory, storage.unwrap())
    }

    #[test]
    fn links_that_stay_within_are_followed_and_others_are_refused() {
        let (_directory, storage) = storage();
        let mut buffer = [0; 9];
        let file = storage.open(Path::new("in")).unwrap();
        assert_eq!(file.read_at(&mut buffer, 3).unwrap(), 4);
        assert_eq!(&buffer[..4], b"tent");
        for path in ["out", "../outside", "/etc/passwd"] {
            let error = storage.open(Path::new(path)).err().unwrap();
            assert_eq!(error.raw_os_error(), Some(libc::EXDEV), "{path}");
        }
        assert_eq!(storage.lstat(Path::new("out")).unwrap().kind, FileKind::Symlink);
        assert_eq!(storage.read_link(Path::new("out")).unwrap(), "../outside");
    }

    #[test]
    fn a_listing_goes_on_where_it_stopped() {
        let (_directory, storage) = storage();
        let (mut names, mut from) = (Vec::new(), 0);
        for _ in 0..3 {
            storage
                .list(Path::new(""), from, &mut |item| {
                    names.push(item.name.to_owned());
                    from = item.next;
                    ControlFlow::Break(())
                })
                .unwrap();
        }
        names.sort();
        assert_eq!(names, ["file", "in", "out"]);
    }

    #[test]
    fn what_is_written_is_there_and_nothing_is_written_outside() {
        let (directory, storage) = storage();
        storage.create_directory(Path::new("c")).unwrap();
        let file = storage.create(Path::new("c/new"), 0o640).unwrap();
        file.write_at(b"0123456789", 2).unwrap();
        file.set_length(5).unwrap();
        file.set_mtime(Timestamp { seconds: 7, nanoseconds: 8 }).unwrap();
        file.sync().unwrap();
        assert_eq!(
            storage.create(Path::new("c/new"), 0o640).err().unwrap().raw_os_error(),
            Some(libc::EEXIST)
        );
        storage.rename(Path::new("c/new"), Path::new("file")).unwrap();
        storage.sync_directory(Path::new("c")).unwrap();
        storage.remove_directory(Path::new("c")).unwrap();
        assert_eq!(std::fs::read(directory.path().join("source/file")).unwrap(), b"\0\x00012");
        let mtime = storage.stat(Path::new("file")).unwrap().mtime;
        assert_eq!(mtime, Timestamp { seconds: 7, nanoseconds: 8 });

        let refused = |result: io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ELOOP));
        };
        std::os::unix::fs::symlink("..", directory.path().join("source/up")).unwrap();
        refused(storage.create(Path::new("up/new"), 0o600).map(drop));
        refused(storage.open_writable(Path::new("up/outside")).map(drop));
        refused(storage.rename(Path::new("file"), Path::new("up/file")));
        refused(storage.rename(Path::new("up/outside"), Path::new("outside")));
        refused(storage.remove_file(Path::new("up/outside")));
        refused(storage.create_directory(Path::new("up/new")));
        refused(storage.remove_directory(Path::new("up/source")));
    }

    #[test]
    fn nothing_is_changed_through_a_link_within_the_source() {
        let (directory, storage) = storage();
        let top = directory.path().join("source");
        std::fs::create_dir(top.join("real")).unwrap();
        std::fs::write(top.join("real/file"), b"mine").unwrap();
        std::os::unix::fs::symlink("real", top.join("alias")).unwrap();
        let through = |name: &str| Path::new("alias").join(name);
        let refused = |what: &str, result: io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ELOOP), "{what}");
        };
        refused("open a link", storage.open_writable(Path::new("in")).map(drop));
        refused("read a link", storage.open_plain(Path::new("in")).map(drop));
        refused("open", storage.open_writable(&through("file")).map(drop));
        refused("read", storage.open_plain(&through("file")).map(drop));
        refused("create", storage.create(&through("new"), 0o600).map(drop));
        refused("clone", storage.clone_file(Path::new("file"), &through("new"), 0o600).map(drop));
        refused("rename from", storage.rename(&through("file"), Path::new("moved")));
        refused("rename to", storage.rename(Path::new("file"), &through("file")));
        refused("link", storage.link(Path::new("file"), &through("new")));
        refused("symlink", storage.symlink(Path::new("x"), &through("new")));
        refused("remove", storage.remove_file(&through("file")));
        refused("mkdir", storage.create_directory(&through("new")));
        refused("rmdir", storage.remove_directory(&through("new")));
        let set = SetStat { mode: Some(0o777), ..SetStat::default() };
        refused("set", storage.set_stat(&through("file"), &set));
        refused("sync", storage.sync_directory(Path::new("alias")));
        assert_eq!(std::fs::read(top.join("real/file")).unwrap(), b"mine");
        assert_eq!(top.join("real").read_dir().unwrap().count(), 1);
        // The link itself is a name like any other.
        storage.remove_file(Path::new("alias")).unwrap();
        // Reading follows it.
        assert_eq!(storage.open(Path::new("in")).unwrap().stat().unwrap().size, 7);
    }

    #[test]
    fn a_clone_has_the_content_or_leaves_nothing_behind() {
        let (directory, storage) = storage();
        match storage.clone_file(Path::new("file"), Path::new("clone"), 0o600) {
            Ok(clone) => assert_eq!(clone.stat().unwrap().size, 7),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
                assert!(!directory.path().join("source/clone").exists());
            }
        }
    }

    #[test]
    fn a_lock_excludes_another_open_file_until_it_is_given_back() {
        let (_directory, storage) = storage();
        let open = || storage.open_writable(Path::new("file")).unwrap();
        let (first, second) = (open(), open());
        let held = AtomicBool::new(true);
        first.lock().unwrap();
        assert!(!second.try_lock().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                second.lock().unwrap();
                assert!(!held.load(Ordering::SeqCst));
            });
            std::thread::sleep(Duration::from_millis(20));
            held.store(false, Ordering::SeqCst);
            first.unlock().unwrap();
        });
        // Closing releases the lock, too.
        drop(second);
        assert!(first.try_lock().unwrap());
    }

    /// The kernel gives up on a ".." while anything is renamed, in whatever filesystem.
    #[test]
    fn a_link_with_dots_is_followed_while_others_rename() {
        let (top, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::create_dir(top.path().join("d")).unwrap();
        std::fs::write(top.path().join("f"), b"content").unwrap();
        std::os::unix::fs::symlink("../f", top.path().join("d/link")).unwrap();
        let storage = LocalStorage::open_root(top.path(), Arc::default()).unwrap();
        let is_done = AtomicBool::new(false);
        let begin = std::time::Instant::now();
        let failed = std::thread::scope(|scope| {
            for number in 0..3 {
                let (from, to) = (format!("{number}"), format!("{number}.new"));
                let names = [from, to].map(|name| elsewhere.path().join(name));
                std::fs::write(&names[0], b"").unwrap();
                let is_done = &is_done;
                scope.spawn(move || {
                    while !is_done.load(Ordering::Relaxed) {
                        std::fs::rename(&names[0], &names[1]).unwrap();
                        std::fs::rename(&names[1], &names[0]).unwrap();
                    }
                });
            }
            let mut failed = Vec::new();
            while begin.elapsed() < Duration::from_secs(1) {
                failed.extend(storage.open(Path::new("d/link")).err());
            }
            is_done.store(true, Ordering::Relaxed);
            failed
        });
        assert!(failed.is_empty(), "{} errors, {:?}", failed.len(), failed.first());
    }
}
