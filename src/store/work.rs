//! Work directories: the files that shardfs keeps in an array's directory while it works there, and
//! the checks that distinguish them from files that others have put in their place.
//!
//! A user who can write to the directory of one array must not be able to direct a daemon, which
//! may have other rights, to the files of another. So a work directory is a real directory, the
//! files in it are regular files with one link, and only names that a commit makes are ever
//! removed.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{StoreError, Unfit};
use super::io_error;
use super::storage::{FileKind, PosixFile, PosixStorage, Stat};
use crate::format::chunk_key::number;

/// Directory in an array's directory that is not part of the array.
pub(crate) const WORK_DIRECTORY: &str = ".shardfs";

/// Suffix of the lock file of a shard, beside it, which other software knows.
pub(crate) const SHARD_LOCK: &str = ".__lock";
/// Suffix of files that replace others once they are complete.
const NEW_SUFFIX: &str = ".new";

/// Returns the name of a new file in a work directory.
pub(crate) fn new_name(number: u64) -> String {
    format!("{number}{NEW_SUFFIX}")
}

/// Returns whether a name in a work directory is that of a new file, which a killed process may
/// have left.
pub(crate) fn is_new_name(name: &OsStr) -> bool {
    let text = name.to_str().and_then(|name| name.strip_suffix(NEW_SUFFIX));
    text.and_then(number).is_some()
}

/// Opens a file of shardfs for reading. `None` if there is none.
pub(crate) fn open_to_read(
    storage: &dyn PosixStorage,
    path: &Path,
) -> Result<Option<Arc<dyn PosixFile>>, StoreError> {
    match storage.open_plain(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        opened => checked(storage, path, opened).map(Some),
    }
}

/// Opens a file of shardfs for reading and writing. `None` if there is none.
pub(crate) fn open_to_write(
    storage: &dyn PosixStorage,
    path: &Path,
) -> Result<Option<Arc<dyn PosixFile>>, StoreError> {
    match storage.open_writable(path) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        opened => checked(storage, path, opened).map(Some),
    }
}

fn checked(
    storage: &dyn PosixStorage,
    path: &Path,
    opened: io::Result<Arc<dyn PosixFile>>,
) -> Result<Arc<dyn PosixFile>, StoreError> {
    let file = opened.map_err(|error| unfit_or(storage, path, error))?;
    check_plain(path, &file.stat().map_err(io_error(path))?)?;
    Ok(file)
}

/// Fails unless this is a regular file without other hard links. A file whose only name was removed
/// is accepted.
pub(crate) fn check_plain(path: &Path, stat: &Stat) -> Result<(), StoreError> {
    let found = match (stat.kind, stat.links) {
        (FileKind::File, 0 | 1) => return Ok(()),
        (FileKind::File, links) => Unfit::Linked(links),
        (kind, _) => Unfit::NotAFile(kind),
    };
    Err(StoreError::Unfit { path: path.to_owned(), found })
}

/// Creates a directory of shardfs, unless it exists.
pub(crate) fn make_directory(storage: &dyn PosixStorage, path: &Path) -> Result<(), StoreError> {
    match storage.create_directory(path) {
        Ok(()) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            check_directory(storage, path).map(drop)
        }
        Err(error) => Err(unfit_or(storage, path, error)),
    }
}

/// Returns whether a directory of shardfs exists.
///
/// # Errors
/// There is something else in its place.
pub(crate) fn check_directory(storage: &dyn PosixStorage, path: &Path) -> Result<bool, StoreError> {
    match storage.lstat(path) {
        Ok(Stat { kind: FileKind::Directory, .. }) => Ok(true),
        Ok(Stat { kind, .. }) => {
            Err(StoreError::Unfit { path: path.to_owned(), found: Unfit::NotADirectory(kind) })
        }
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(unfit_or(storage, path, error)),
    }
}

/// Returns the error for a failed access to `path`: [`StoreError::Unfit`] if something in the way
/// explains it, otherwise `error` itself.
pub(crate) fn unfit_or(storage: &dyn PosixStorage, path: &Path, error: io::Error) -> StoreError {
    const IN_THE_WAY: [i32; 5] =
        [libc::ELOOP, libc::ENOTDIR, libc::EISDIR, libc::ENXIO, libc::EXDEV];
    if !error.raw_os_error().is_some_and(|errno| IN_THE_WAY.contains(&errno)) {
        return io_error(path)(error);
    }
    let mut above: Vec<PathBuf> = path.ancestors().map(Path::to_owned).collect();
    above.retain(|path| !path.as_os_str().is_empty());
    for at in above.into_iter().rev() {
        let kind = match storage.lstat(&at) {
            Ok(Stat { kind, .. }) => kind,
            // Above the directory that the storage has open.
            Err(error) if error.raw_os_error() == Some(libc::EXDEV) => continue,
            Err(_) => break,
        };
        let found = match (kind, at == path) {
            (FileKind::Directory, false) | (FileKind::File, true) => continue,
            (kind, false) => Unfit::NotADirectory(kind),
            (kind, true) => Unfit::NotAFile(kind),
        };
        return StoreError::Unfit { path: at, found };
    }
    io_error(path)(error)
}
