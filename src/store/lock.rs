//! Lock files, held while the files that they stand for are changed.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::StoreError;
use super::io_error;
use super::owner::Owner;
use super::storage::{PosixFile, PosixStorage};
use super::work::{SHARD_LOCK, WORK_DIRECTORY, open_to_read, open_to_write, unfit_or};
use crate::memory::zeroed;
use crate::text::shown;

/// Name of the note of locks in the work directory.
pub(super) const NOTE: &str = "locks";
/// Maximum length of a note of locks, in bytes.
const MAX_NOTE_BYTES: u64 = 64 << 20;
/// Maximum number of locks that are removed by a note; the others do no harm.
const MAX_NOTED: usize = 1 << 16;
/// Attempts to lock a file that other processes keep removing.
const LOCK_ATTEMPTS: usize = 1000;
/// How long to wait for a lock of other processes: much longer than a commit takes. One that is stopped,
/// or does not give it back, must not hold up what does not need the lock.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Time after which a wait for a lock is reported.
const SILENCE: Duration = Duration::from_secs(5);
/// Pauses between two attempts to take a lock. A process that commits without a break gives it back for
/// short moments only.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
pub(super) const MAX_PAUSE: Duration = Duration::from_millis(2);
/// How long to wait for a lock that another process has not given back before.
pub(super) const SHORT_PATIENCE: Duration = Duration::from_millis(100);
/// How long to wait for the lock of a shard. Other software holds it while it writes the shard; this process
/// holds up readers and other commits to the array meanwhile.
pub(super) const SHARD_PATIENCE: Duration = Duration::from_secs(20);
/// Permissions of lock files that other software knows, less the process's umask: they have no
/// contents, and other users have to be able to lock them.
const SHARED_MODE: u32 = 0o666;
/// Permissions of other lock files, less the process's umask. A user who may read a file can lock it, and
/// keep it locked: these can be opened only by users who may write.
pub(super) const LOCK_MODE: u32 = 0o622;

/// Parameters for creating a missing lock file.
pub(super) struct Making<'a> {
    /// Permissions of the file, less the process's umask.
    pub mode: &'a dyn Fn() -> u32,
    /// Creates the directory of the file, which is missing.
    pub directory: &'a dyn Fn() -> Result<(), StoreError>,
}

/// Opens the file at `path`, or creates it, waits for its lock, and takes it.
///
/// # Errors
/// `Locked` if another process holds it for longer than `patience`.
///
/// The holder of such a lock may remove the file before releasing it: the lock counts only if the
/// file still has its name. TensorStore and other software do the same.
pub(super) fn lock_file(
    storage: &dyn PosixStorage,
    path: &Path,
    making: &Making<'_>,
    patience: Duration,
) -> Result<Arc<dyn PosixFile>, StoreError> {
    let began = Instant::now();
    for _ in 0..LOCK_ATTEMPTS {
        let file = open_or_make(storage, path, making)?;
        wait_for(&*file, path, (began, patience))?;
        if has_name(storage, &*file, path).map_err(io_error(path))? {
            return Ok(file);
        }
    }
    Err(StoreError::Changing { shard: path.to_owned() })
}

/// Waits for the lock of a file; a long wait is reported while it lasts, for there is no other sign of
/// its cause.
fn wait_for(
    file: &dyn PosixFile,
    path: &Path,
    (began, patience): (Instant, Duration),
) -> Result<(), StoreError> {
    let (mut pause, mut is_reported) = (FIRST_PAUSE, false);
    while !file.try_lock().map_err(io_error(path))? {
        let waited = began.elapsed();
        if waited >= patience {
            return Err(StoreError::Locked { path: path.to_owned() });
        }
        if waited >= SILENCE && !is_reported {
            is_reported = true;
            let held = SILENCE.as_secs();
            log::warn!("{}: others have locked it for {held} s: waiting", shown(path));
        }
        std::thread::sleep(pause.min(patience.saturating_sub(waited)));
        pause = (pause * 2).min(MAX_PAUSE);
    }
    Ok(())
}

/// Returns whether an open file is the one that has this name now.
pub(super) fn has_name(
    storage: &dyn PosixStorage,
    file: &dyn PosixFile,
    path: &Path,
) -> io::Result<bool> {
    let ours = file.stat()?;
    let current = storage.lstat(path);
    Ok(current.is_ok_and(|stat| (stat.dev, stat.ino) == (ours.dev, ours.ino)))
}

/// Opens a file of shardfs for reading and writing, or creates it.
pub(super) fn open_or_make(
    storage: &dyn PosixStorage,
    path: &Path,
    making: &Making<'_>,
) -> Result<Arc<dyn PosixFile>, StoreError> {
    let mut error = io::Error::from_raw_os_error(libc::ENOENT);
    for _ in 0..LOCK_ATTEMPTS {
        if let Some(file) = open_to_write(storage, path)? {
            return Ok(file);
        }
        match storage.create(path, (making.mode)()) {
            Ok(file) => return Ok(file),
            // Another process was faster.
            Err(failed) if failed.raw_os_error() == Some(libc::EEXIST) => error = failed,
            // The directory is missing; other processes may remove it again, but not forever.
            Err(failed) if failed.raw_os_error() == Some(libc::ENOENT) => {
                (making.directory)()?;
                error = failed;
            }
            Err(error) => return Err(unfit_or(storage, path, error)),
        }
    }
    Err(io_error(path)(error))
}

/// The lock that TensorStore takes while it replaces a shard: a file beside the shard. The file is
/// removed when the lock is released.
pub(super) struct ShardLock<'a> {
    storage: &'a dyn PosixStorage,
    path: PathBuf,
    _file: Arc<dyn PosixFile>,
}

impl<'a> ShardLock<'a> {
    /// Waits until no other process holds the shard's lock, up to `patience`, and takes it. `directory`
    /// creates the shard's directory if it is missing.
    pub(super) fn take(
        storage: &'a dyn PosixStorage,
        shard: &Path,
        directory: &dyn Fn() -> Result<(), StoreError>,
        patience: Duration,
    ) -> Result<Self, StoreError> {
        let path = lock_path(shard);
        let making = Making { mode: &|| SHARED_MODE, directory };
        let file = lock_file(storage, &path, &making, patience)?;
        Ok(Self { storage, path, _file: file })
    }

    /// Like [`Self::take`], for a shard whose directory must exist.
    pub(super) fn take_of(storage: &'a dyn PosixStorage, shard: &Path) -> Result<Self, StoreError> {
        let gone = || Err(io_error(shard)(io::ErrorKind::NotFound.into()));
        Self::take(storage, shard, &gone, PATIENCE)
    }
}

fn lock_path(shard: &Path) -> PathBuf {
    let mut path = shard.as_os_str().to_owned();
    path.push(SHARD_LOCK);
    path.into()
}

/// Notes in an array's work directory which shards the holder of its journal is about to lock: if
/// the process is killed, the next one has to remove their lock files.
pub(super) fn note_locks<'a>(
    storage: &dyn PosixStorage,
    array: &Path,
    keys: impl Iterator<Item = &'a [u8]>,
) -> Result<(), StoreError> {
    let path = array.join(WORK_DIRECTORY).join(NOTE);
    let file = match open_to_write(storage, &path)? {
        Some(file) => file,
        None => {
            let made = storage.create(&path, SHARED_MODE);
            made.map_err(|error| unfit_or(storage, &path, error))?
        }
    };
    let keys: Vec<u8> = keys.flat_map(|key| [key, b"\n"].concat()).collect();
    let write = || {
        file.set_length(0)?;
        file.write_at(&keys, 0)
    };
    write().map_err(io_error(&path))
}

/// Empties the note, once the locks in it are released. An error is only logged: a note that stays
/// costs the next process some work and does no harm.
pub(super) fn clear_note(storage: &dyn PosixStorage, array: &Path) {
    let path = array.join(WORK_DIRECTORY).join(NOTE);
    let cleared = open_to_write(storage, &path).and_then(|file| match file {
        Some(file) => file.set_length(0).map_err(io_error(&path)),
        None => Ok(()),
    });
    if let Err(error) = cleared {
        log::debug!("{error}");
    }
}

/// Returns whether there is a note of locks that were not released.
pub(super) fn has_note(storage: &dyn PosixStorage, array: &Path) -> Result<bool, StoreError> {
    let path = array.join(WORK_DIRECTORY).join(NOTE);
    let Some(file) = open_to_read(storage, &path)? else { return Ok(false) };
    Ok(file.stat().map_err(io_error(&path))?.size > 0)
}

/// Removes the lock files noted by a commit that was killed: those of the array's own shards that
/// no process has locked. A process that holds one, TensorStore included, removes it itself.
pub(super) fn remove_noted_locks(
    storage: &dyn PosixStorage,
    owner: Owner<'_>,
) -> Result<(), StoreError> {
    let path = owner.path().join(WORK_DIRECTORY).join(NOTE);
    let Some(file) = open_to_read(storage, &path)? else { return Ok(()) };
    let read = || {
        let nbytes = file.stat()?.size.min(MAX_NOTE_BYTES);
        let mut keys = zeroed(nbytes)?;
        let read = file.read_at(&mut keys, 0)?;
        keys.truncate(read);
        Ok(keys)
    };
    let keys = read().map_err(io_error(&path))?;
    let keys = keys.split(|byte| *byte == b'\n').filter(|key| !key.is_empty());
    let keys: BTreeSet<&[u8]> = keys.take(MAX_NOTED).collect();
    for key in keys {
        let Ok(shard) = owner.shard_path(key) else { continue };
        if let Err(error) = remove_lock_if_free(storage, &shard) {
            log::debug!("{error}");
        }
    }
    clear_note(storage, owner.path());
    Ok(())
}

/// Removes the lock file of a shard, unless a process holds it.
pub(super) fn remove_lock_if_free(
    storage: &dyn PosixStorage,
    shard: &Path,
) -> Result<(), StoreError> {
    let path = lock_path(shard);
    let Some(file) = open_to_write(storage, &path)? else { return Ok(()) };
    let remove = || match file.try_lock()? && has_name(storage, &*file, &path)? {
        true => storage.remove_file(&path),
        false => Ok(()),
    };
    remove().map_err(io_error(&path))
}

impl Drop for ShardLock<'_> {
    fn drop(&mut self) {
        // A lock file that stays does no harm; closing it releases the lock.
        if let Err(error) = self.storage.remove_file(&self.path) {
            log::debug!("{}: {error}", shown(&self.path));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::local::LocalStorage;

    #[test]
    fn a_lock_of_others_is_waited_for_and_not_for_ever() {
        let top = tempfile::tempdir().unwrap();
        let storage = LocalStorage::open_root(top.path(), Arc::default()).unwrap();
        let take = |patience| {
            let making = Making { mode: &|| LOCK_MODE, directory: &|| Ok(()) };
            lock_file(&storage, Path::new("lock"), &making, patience)
        };
        let held = take(Duration::ZERO).unwrap();
        for patience in [Duration::ZERO, Duration::from_millis(20)] {
            let began = Instant::now();
            let error = take(patience).err().unwrap();
            assert!(began.elapsed() >= patience);
            assert!(matches!(error, StoreError::Locked { .. }), "{error}");
            assert_eq!(error.errno(), libc::EBUSY);
        }
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| take(PATIENCE).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
            waits.join().unwrap().unwrap();
        });
        assert!(take(Duration::ZERO).is_ok());
    }
}
