//! Storage on a local or mounted filesystem.

mod attributes;
mod file;

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::fcntl::AtFlags as NixAtFlags;
use nix::unistd::{AccessFlags, faccessat};
use parking_lot::RwLock;
use rustix::fs::{
    self, AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, SeekFrom, XattrFlags,
};
use rustix::io::Errno;

use self::attributes::{MAX_XATTR_BYTES, is_new, kind_of, set_stat, stat_of};
use self::file::LocalFile;
pub use self::file::try_lock;
use super::beneath::{Beneath, Found, Links};
use super::storage::{
    DirItem, FileKind, Need, PosixFile, PosixStorage, SetStat, Space, Stat, Storage, StorageFile,
    Visit,
};
use crate::stats::Stats;

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
    spare: Arc<RwLock<Vec<OwnedFd>>>,
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
        Self { beneath: Beneath::new(root), spare: Arc::new(RwLock::new(spare)), is_removed, stats }
    }

    /// Runs `act`, which keeps files open only until it returns, even if no more files can be
    /// opened. So names can always be removed, those of locks for example.
    fn with_spare<T>(&self, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
        let is_shortage =
            |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
        match act() {
            // This thread has them already.
            Err(error) if is_shortage(&error) && HAS_SPARE.get() => Err(error),
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

    fn file(&self, file: OwnedFd) -> Arc<dyn PosixFile> {
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
        Ok(self.open_file(path)?)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.stat_with(path, OFlags::empty())
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.stat_with(path, OFlags::NOFOLLOW)
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

    fn posix(&self) -> Option<&dyn PosixStorage> {
        Some(self)
    }
}

impl PosixStorage for LocalStorage {
    fn open_file(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        self.stats.source.open.count();
        // A named pipe in a shard's place must not block the mount.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(self.file(self.open_beneath(path, flags)?))
    }

    fn open_plain(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        self.stats.source.open.count();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        Ok(self.file(self.open_unlinked(path, flags)?))
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
        let path = self.beneath.relative(path)?;
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
        let file = self.open_unlinked(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok(fs::setxattr(proc_path(&file), name, value, XattrFlags::from_bits_retain(flags))?)
    }

    fn remove_xattr(&self, path: &Path, name: &OsStr) -> io::Result<()> {
        let file = self.open_unlinked(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        Ok(fs::removexattr(proc_path(&file), name)?)
    }

    fn within(&self, directory: &Path) -> io::Result<Option<Arc<dyn PosixStorage>>> {
        let root = self.open_unlinked(directory, OFlags::PATH | OFlags::DIRECTORY)?;
        let beneath = self.beneath.within(directory, root);
        // Its root is not that of the source, so nothing need be said of its removal.
        let (spare, is_removed) = (Arc::clone(&self.spare), AtomicBool::new(true));
        Ok(Some(Arc::new(Self { beneath, spare, is_removed, stats: Arc::clone(&self.stats) })))
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

    fn open_writable(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        self.stats.source.open.count();
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = match self.open_unlinked(path, flags | OFlags::RDWR) {
            // It may be written to, and not read.
            Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
                self.open_unlinked(path, flags | OFlags::WRONLY)
            }
            opened => opened,
        };
        Ok(self.file(opened?))
    }

    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn PosixFile>> {
        Ok(self.file(self.create_beneath(path, mode)?))
    }

    fn clone_file(
        &self,
        original: &Path,
        path: &Path,
        mode: u32,
    ) -> io::Result<Arc<dyn PosixFile>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let original = self.open_beneath(original, flags)?;
        let file = self.create_beneath(path, mode)?;
        if let Err(error) = fs::ioctl_ficlone(&file, &original) {
            // If it cannot be removed, the next mount removes it.
            let _ = self.remove_file(path);
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

    fn give_new(&self, path: &Path, set: &SetStat) -> io::Result<()> {
        let made = self.open_unlinked(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        // Some filesystems give each file to the user that they were mounted for.
        let is_theirs = set.uid == Some(stat_of(&made)?.uid);
        if !is_theirs && !is_new(&made)? {
            return Err(Errno::PERM.into());
        }
        set_stat(&made, set)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.stats.source.syncs.count();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        self.with_spare(|| match self.open_unlinked(path, flags) {
            // Whoever may not list a directory may change it all the same.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let root = self.open_unlinked(Path::new(""), flags)?;
                // It may be on another filesystem than the root.
                match fs::fstat(&root)?.st_dev == self.stat(path)?.dev {
                    true => Ok(fs::syncfs(root)?),
                    false => Err(error),
                }
            }
            directory => Ok(fs::fsync(directory?)?),
        })
    }
}

/// Returns the path of a file opened with `O_PATH`, for calls that do not take such a file.
fn proc_path(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
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

#[cfg(test)]
mod tests;
