//! Resolution of paths beneath the source.
//!
//! The kernel refuses symbolic links that lead out. Mounts in the source are entered one by one,
//! each only if it certainly does not depend on this process: a daemon that accesses its own mount
//! waits for itself, and not even SIGKILL would end that.
//!
//! A mount of this program that is older than that of this process cannot depend on it, if all
//! processes keep to that order. Neither finding a mount nor reading its age sends a request to its
//! daemon: `O_PATH` and `AT_STATX_DONT_SYNC` prevent that.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags, StatxFlags};
use rustix::io::Errno;

use crate::mountinfo;
use crate::text::shown;

/// Flags of `openat2` that allow no way out of the source, and no mount to be entered.
const BENEATH: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);
/// `STATX_MNT_ID_UNIQUE`: mount numbers that only ever grow. Since Linux 6.8.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
/// Maximum number of symbolic links followed, as in the kernel.
const MAX_LINKS: usize = 40;
/// Length in bytes from which the kernel refuses a path.
const MAX_PATH_BYTES: usize = 4096;
/// Maximum number of cached decisions on mounts.
const MAX_KNOWN: usize = 1024;

/// Root of the source, with the decisions which mounts below it may be entered.
pub(super) struct Beneath {
    root: OwnedFd,
    /// Path of the root, which all paths begin with: empty but for a directory in the source.
    prefix: PathBuf,
    /// Number of this process's own mount, or 0 if the kernel does not report it. Unset in a
    /// process that serves no mount.
    own: OnceLock<u64>,
    known: Mutex<HashMap<u64, bool>>,
}

/// Result of resolving a path.
pub(super) enum Found {
    /// An open file.
    Open(OwnedFd),
    /// A mount that must not be entered; the directory is the one that holds it.
    Masked(OwnedFd),
}

/// Handling of symbolic links on a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    /// Followed as long as they stay beneath the root.
    Followed,
    /// Refused with ELOOP.
    Refused,
}

impl Links {
    fn resolve(self) -> ResolveFlags {
        match self {
            Self::Followed => BENEATH,
            Self::Refused => BENEATH.union(ResolveFlags::NO_SYMLINKS),
        }
    }
}

impl Beneath {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root, prefix: PathBuf::new(), own: OnceLock::new(), known: Mutex::default() }
    }

    /// Returns the same paths, as far as they lead through the directory `prefix`, which is open.
    pub(super) fn within(&self, prefix: &Path, directory: OwnedFd) -> Self {
        let (own, known) = (self.own.clone(), Mutex::default());
        Self { root: directory, prefix: prefix.to_owned(), own, known }
    }

    /// Returns a path relative to the root, `.` for the root.
    pub(super) fn relative<'a>(&self, path: &'a Path) -> io::Result<&'a Path> {
        let path = path.strip_prefix(&self.prefix).map_err(|_| Errno::XDEV)?;
        Ok(if path.as_os_str().is_empty() { Path::new(".") } else { path })
    }

    pub(super) fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Declares that this process serves `mountpoint` from now on.
    pub(super) fn serves(&self, mountpoint: &Path) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mount = fs::open(mountpoint, flags, Mode::empty());
        let number = mount.ok().filter(is_ours).and_then(|mount| mount_number(&mount, UNIQUE));
        // A second mount of a process would be a bug of the caller; the first one counts.
        let _ = self.own.set(number.unwrap_or(0));
    }

    /// Opens a path. A path that leads through a mount that must not be entered does not exist.
    pub(super) fn open(
        &self,
        path: &Path,
        flags: OFlags,
        mode: Mode,
        links: Links,
    ) -> io::Result<Found> {
        let (path, flags) = (self.relative(path)?, flags | OFlags::CLOEXEC);
        match fs::openat2(&self.root, path, flags, mode, links.resolve()) {
            // The path leads out, or into another mount; or it has a ".." while something was
            // renamed anywhere in the system, and the kernel cannot rule out that it leads out.
            Err(Errno::XDEV | Errno::AGAIN) => self.walk(path, flags, mode, links),
            // The whole path is too long for the kernel, but its names need not be.
            Err(Errno::NAMETOOLONG) if path.as_os_str().len() >= MAX_PATH_BYTES => {
                self.walk(path, flags, mode, links)
            }
            opened => Ok(Found::Open(opened?)),
        }
    }

    /// Opens a path name by name, as the kernel would, and checks each mount on the way.
    fn walk(&self, path: &Path, flags: OFlags, mode: Mode, how: Links) -> io::Result<Found> {
        let resolve = how.resolve();
        let mut rest = names(path)?;
        let (mut above, mut at) = (Vec::new(), self.root.try_clone()?);
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                at = above.pop().ok_or(Errno::XDEV)?;
                continue;
            }
            let is_last = rest.is_empty();
            let entry = match step(&at, &name, !is_last || flags.contains(OFlags::DIRECTORY)) {
                Err(Errno::NOENT) if is_last && flags.contains(OFlags::CREATE) => {
                    return Ok(Found::Open(fs::openat2(&at, &name, flags, mode, resolve)?));
                }
                entry => entry?,
            };
            if entry.is_mount && !self.may_enter(&entry.file) {
                return match is_last {
                    true => Ok(Found::Masked(at)),
                    false if flags.contains(OFlags::CREATE) => Err(Errno::BUSY.into()),
                    false => Err(Errno::NOENT.into()),
                };
            }
            if entry.kind == FileType::Symlink && !(is_last && takes_links(flags)) {
                links += 1;
                if links > MAX_LINKS || how == Links::Refused {
                    return Err(Errno::LOOP.into());
                }
                let target = fs::readlinkat(&entry.file, c"", Vec::new())?;
                let target = names(&PathBuf::from(OsString::from_vec(target.into_bytes())))?;
                rest = target.into_iter().chain(rest).collect();
            } else if is_last && !entry.is_mount {
                return Ok(Found::Open(fs::openat2(&at, &name, flags, mode, resolve)?));
            } else {
                above.push(std::mem::replace(&mut at, entry.file));
            }
        }
        reopen(at, flags).map(Found::Open)
    }

    /// Returns whether a mount certainly does not depend on this process.
    fn may_enter(&self, mount: &OwnedFd) -> bool {
        let number = mount_number(mount, UNIQUE);
        let mut known = self.known.lock();
        if let Some(may) = number.and_then(|number| known.get(&number)) {
            return *may;
        }
        // A mount that no longer exists is not entered, either.
        let Some(mount) = find(mount) else { return false };
        let may = !mount.is_ours() || (!mount.shows_itself() && self.is_older(number));
        if !may {
            log::info!("{}: not entered, it is a mount of shardfs", shown(&mount.place));
        }
        if let Some(number) = number.filter(|_| self.own.get().is_some()) {
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
            known.insert(number, may);
        }
        may
    }

    fn is_older(&self, number: Option<u64>) -> bool {
        self.own.get().is_none_or(|own| number.is_some_and(|number| number < *own))
    }
}

/// Splits a path into its names, without `.` components.
fn names(path: &Path) -> io::Result<VecDeque<OsString>> {
    if path.is_absolute() {
        return Err(Errno::XDEV.into());
    }
    let names = path.components().filter(|component| *component != Component::CurDir);
    Ok(names.map(|component| component.as_os_str().to_owned()).collect())
}

/// Returns whether opening with these flags does not follow a symbolic link in the last place, but
/// opens it or fails.
fn takes_links(flags: OFlags) -> bool {
    flags.intersects(OFlags::NOFOLLOW | OFlags::EXCL)
}

/// File that a name in a directory refers to.
struct Entry {
    file: OwnedFd,
    kind: FileType,
    /// `true` if it is the root of another mount.
    is_mount: bool,
}

/// Opens a name in a directory with `O_PATH`, without a request to the daemon of a mount there.
/// Automounts are triggered for directories only.
fn step(at: &OwnedFd, name: &OsStr, wants_directory: bool) -> rustix::io::Result<Entry> {
    let open = |flags: OFlags, resolve| {
        let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat2(at, name, flags, Mode::empty(), resolve)
    };
    let open = |resolve| match wants_directory {
        true => match open(OFlags::DIRECTORY, resolve) {
            Err(Errno::NOTDIR | Errno::LOOP) => open(OFlags::empty(), resolve),
            opened => opened,
        },
        false => open(OFlags::empty(), resolve),
    };
    let (file, is_mount) = match open(BENEATH) {
        Err(Errno::XDEV) => (open(ResolveFlags::NO_MAGICLINKS)?, true),
        opened => (opened?, false),
    };
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = fs::statx(&file, c"", flags, StatxFlags::TYPE)?;
    Ok(Entry { file, kind: FileType::from_raw_mode(stat.stx_mode.into()), is_mount })
}

/// Opens a file with `flags` that is open with `O_PATH`.
fn reopen(file: OwnedFd, flags: OFlags) -> io::Result<OwnedFd> {
    let stat =
        fs::statx(&file, c"", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE)?;
    let is_directory = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
    if flags.contains(OFlags::EXCL) {
        return Err(Errno::EXIST.into());
    }
    if flags.contains(OFlags::DIRECTORY) && !is_directory {
        return Err(Errno::NOTDIR.into());
    }
    if flags.contains(OFlags::PATH) {
        return Ok(file);
    }
    if is_directory {
        return Ok(fs::openat2(&file, ".", flags, Mode::empty(), BENEATH)?);
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(fs::open(path, flags.difference(OFlags::NOFOLLOW), Mode::empty())?)
}

/// Returns the number of the mount that a file is on. `None` if the kernel does not report it.
fn mount_number(file: impl AsFd, kind: StatxFlags) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = fs::statx(file, c"", flags, kind).ok()?;
    (stat.stx_mask & kind.bits() != 0).then_some(stat.stx_mnt_id)
}

/// Returns the mount that a file is on. `None` if it cannot be found.
fn find(file: impl AsFd) -> Option<mountinfo::Mount> {
    let id = mount_number(file, StatxFlags::MNT_ID)?;
    mountinfo::mounts().ok()?.into_iter().find(|mount| mount.id == id)
}

fn is_ours(file: &OwnedFd) -> bool {
    find(file).is_some_and(|mount| mount.is_ours())
}
