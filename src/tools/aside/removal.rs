//! Removal of a directory tree: the one function with which commands do so.
//!
//! It descends directory by directory, opening each one beneath its parent: never through a
//! symbolic link, onto another device or into a mount, including bind mounts of the same device. A
//! path that changes meanwhile therefore cannot lead elsewhere.

use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::error::AsideError;

/// Maximum number of names that are removed before a directory is read again.
const NAMES_AT_ONCE: usize = 4096;

/// Resolution flags that confine a path to the directory itself.
pub(super) const WITHIN: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// Opens a directory in another; fails unless it is a directory on the same device and not a mount
/// point.
pub(super) fn open_within(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = fs::openat2(parent, name, flags, Mode::empty(), WITHIN)?;
    // A btrfs subvolume is not a mount point, but has a device number of its own.
    match fs::fstat(&directory)?.st_dev == fs::fstat(parent)?.st_dev {
        true => Ok(directory),
        false => Err(Errno::XDEV),
    }
}

/// Removes a file, or a directory with its contents; it need not exist. `shown` is the parent's
/// path, for messages.
pub(super) fn remove(parent: BorrowedFd<'_>, name: &OsStr, shown: &Path) -> Result<(), AsideError> {
    let mut path = shown.to_owned();
    match CString::new(name.as_bytes()) {
        Ok(name) => remove_named(parent, &name, &mut path),
        Err(error) => Err(AsideError::Io { path, error: error.into() }),
    }
}

fn remove_named(parent: BorrowedFd<'_>, name: &CStr, path: &mut PathBuf) -> Result<(), AsideError> {
    path.push(OsStr::from_bytes(name.to_bytes()));
    let removed = match fs::unlinkat(parent, name, AtFlags::empty()) {
        // For a directory, POSIX specifies EPERM and Linux returns EISDIR.
        Err(error @ (Errno::ISDIR | Errno::PERM)) => match open_within(parent, name) {
            Ok(directory) => remove_directory(parent, name, directory, path),
            Err(Errno::NOTDIR) => Err(failed(error, path)),
            Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(failed(error, path)),
        },
        Err(Errno::NOENT) | Ok(()) => Ok(()),
        Err(error) => Err(failed(error, path)),
    };
    path.pop();
    removed
}

fn remove_directory(
    parent: BorrowedFd<'_>,
    name: &CStr,
    directory: OwnedFd,
    path: &mut PathBuf,
) -> Result<(), AsideError> {
    use std::os::fd::AsFd;
    let mut before = Vec::new();
    loop {
        let names = first_names(&directory).map_err(|error| failed(error, path))?;
        // Names that are listed again although they were removed would be so for ever.
        if names.is_empty() || names == before {
            break;
        }
        names.iter().try_for_each(|name| remove_named(directory.as_fd(), name, path))?;
        before = names;
    }
    match fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(failed(error, path)),
    }
}

/// Returns the first names of a directory, at most `NAMES_AT_ONCE`.
fn first_names(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let is_other = |name: &CStr| name != c"." && name != c"..";
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        names.extend(is_other(&name).then_some(name));
        if names.len() == NAMES_AT_ONCE {
            break;
        }
    }
    Ok(names)
}

fn failed(error: Errno, path: &Path) -> AsideError {
    match error {
        Errno::XDEV | Errno::BUSY => AsideError::Mounted(path.to_owned()),
        error => AsideError::Io { path: path.to_owned(), error: error.into() },
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn open(path: &Path) -> OwnedFd {
        std::fs::File::open(path).unwrap().into()
    }

    #[test]
    fn a_tree_goes_and_what_links_lead_to_stays() {
        let top = tempfile::tempdir().unwrap();
        let path = |name: &str| top.path().join(name);
        std::fs::create_dir_all(path("tree/a/b/c")).unwrap();
        for number in 0..NAMES_AT_ONCE + 10 {
            std::fs::write(path("tree/a").join(number.to_string()), "").unwrap();
        }
        std::fs::create_dir(path("other")).unwrap();
        std::fs::write(path("other/mine"), "x").unwrap();
        std::os::unix::fs::symlink("../../other", path("tree/a/link")).unwrap();
        std::os::unix::fs::symlink("other", path("link")).unwrap();
        std::fs::hard_link(path("other/mine"), path("tree/a/b/mine")).unwrap();
        let directory = open(top.path());
        for name in ["tree", "link", "absent"] {
            remove(directory.as_fd(), OsStr::new(name), top.path()).unwrap();
        }
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read(path("other/mine")).unwrap(), b"x");
    }

    #[test]
    fn a_link_in_the_place_of_a_directory_is_not_followed() {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir(top.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", top.path().join("link")).unwrap();
        let directory = open(top.path());
        let refused = open_within(directory.as_fd(), c"link").err();
        assert!(matches!(refused, Some(Errno::LOOP | Errno::NOTDIR)), "{refused:?}");
        assert!(open_within(directory.as_fd(), c"other").is_ok());
        assert_eq!(open_within(directory.as_fd(), c"..").err(), Some(Errno::XDEV));
    }
}
