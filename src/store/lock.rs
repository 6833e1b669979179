//! Files that are locked while somebody changes what they stand for.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::StoreError;
use super::io_error;
use super::storage::{Storage, StorageFile};
use crate::memory::zeroed;
use crate::text::shown;

/// Name of the note of locks in the work directory.
pub const NOTE: &str = "locks";
/// No note of locks is longer, in bytes.
const MAX_NOTE_BYTES: u64 = 64 << 20;
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
        let path = lock_path(shard);
        let file = lock_file(storage, &path, make_directory)?;
        Ok(Self { storage, path, _file: file })
    }
}

fn lock_path(shard: &Path) -> PathBuf {
    let mut path = shard.as_os_str().to_owned();
    path.push(".__lock");
    path.into()
}

/// Notes in an array's work directory which shards a commit is about to lock: if it is killed,
/// somebody has to remove their lock files. Without the note they stay; that is all.
pub fn note_locks<'a>(
    storage: &dyn Storage,
    work: &Path,
    keys: impl Iterator<Item = &'a [u8]>,
) -> io::Result<()> {
    let path = work.join(NOTE);
    let file = match storage.open_writable(&path) {
        Ok(file) => file,
        Err(_) => storage.create(&path, 0o666)?,
    };
    let keys: Vec<u8> = keys.flat_map(|key| [key, b"\n"].concat()).collect();
    file.set_length(0)?;
    file.write_at(&keys, 0)
}

/// Removes the lock files of a commit that was killed, those that nobody holds any more.
pub fn remove_noted_locks(storage: &dyn Storage, array: &Path, work: &Path) -> io::Result<()> {
    let file = storage.open(&work.join(NOTE))?;
    let nbytes = file.stat()?.size.min(MAX_NOTE_BYTES);
    let mut keys = zeroed(nbytes)?;
    let read = file.read_at(&mut keys, 0)?;
    for key in keys[..read].split(|byte| *byte == b'\n').filter(|key| !key.is_empty()) {
        let shard = array.join(OsStr::from_bytes(key));
        if storage.lstat(&lock_path(&shard)).is_ok() {
            let none = || Err(io::ErrorKind::NotFound.into());
            drop(ShardLock::take(storage, &shard, &none));
        }
    }
    Ok(())
}

impl Drop for ShardLock<'_> {
    fn drop(&mut self) {
        // A lock file that stays is only litter; closing it gives the lock back.
        if let Err(error) = self.storage.remove_file(&self.path) {
            log::debug!("{}: {error}", shown(&self.path));
        }
    }
}
