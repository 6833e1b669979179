//! Files that are locked while somebody changes what they stand for.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::StoreError;
use super::io_error;
use super::storage::{Storage, StorageFile};

/// A file that others keep removing is given up after so many attempts.
const LOCK_ATTEMPTS: usize = 1000;

/// Opens the file at `path`, makes it if there is none, waits for its lock, and takes it.
/// `make_directory` is called where its directory is missing.
///
/// Who gives such a lock back may remove the file first: the lock counts only if the file still
/// has its name. TensorStore and others do the same.
pub fn lock_file(
    storage: &dyn Storage,
    path: &Path,
    make_directory: &dyn Fn() -> io::Result<()>,
) -> Result<Arc<dyn StorageFile>, StoreError> {
    for _ in 0..LOCK_ATTEMPTS {
        let file = open_or_make(storage, path, make_directory).map_err(io_error(path))?;
        file.lock().map_err(io_error(path))?;
        let ours = file.stat().map_err(io_error(path))?;
        let current = storage.stat(path);
        if current.is_ok_and(|stat| (stat.dev, stat.ino) == (ours.dev, ours.ino)) {
            return Ok(file);
        }
    }
    Err(StoreError::Changing { shard: path.to_owned() })
}

fn open_or_make(
    storage: &dyn Storage,
    path: &Path,
    make_directory: &dyn Fn() -> io::Result<()>,
) -> io::Result<Arc<dyn StorageFile>> {
    let mut error = io::Error::from_raw_os_error(libc::ENOENT);
    for _ in 0..LOCK_ATTEMPTS {
        match storage.open_writable(path) {
            Ok(file) => return Ok(file),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => (),
            Err(error) => return Err(error),
        }
        match storage.create(path, 0o666) {
            Ok(file) => return Ok(file),
            // Others were faster.
            Err(failed) if failed.raw_os_error() == Some(libc::EEXIST) => error = failed,
            // Its directory is missing; others may remove it again, but not for ever.
            Err(failed) if failed.raw_os_error() == Some(libc::ENOENT) => {
                make_directory()?;
                error = failed;
            }
            Err(error) => return Err(error),
        }
    }
    Err(error)
}

/// The lock that TensorStore takes while it replaces a shard: a file beside it. It is removed
/// when the lock is given back.
pub struct ShardLock<'a> {
    storage: &'a dyn Storage,
    path: PathBuf,
    _file: Arc<dyn StorageFile>,
}

impl<'a> ShardLock<'a> {
    /// Waits until nobody else replaces the shard.
    pub fn take(
        storage: &'a dyn Storage,
        shard: &Path,
        make_directory: &dyn Fn() -> io::Result<()>,
    ) -> Result<Self, StoreError> {
        let mut path = shard.as_os_str().to_owned();
        path.push(".__lock");
        let path = PathBuf::from(path);
        let file = lock_file(storage, &path, make_directory)?;
        Ok(Self { storage, path, _file: file })
    }
}

impl Drop for ShardLock<'_> {
    fn drop(&mut self) {
        // A lock file that stays is only litter; closing it gives the lock back.
        if let Err(error) = self.storage.remove_file(&self.path) {
            log::debug!("{}: {error}", self.path.display());
        }
    }
}
