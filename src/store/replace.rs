//! Replacement of a shard by a new one that was made beside the array.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::error::StoreError;
use super::io_error;
use super::journal::Journal;
use super::lock::{ShardLock, clear_note, has_note, note_locks, remove_noted_locks};
use super::owner::Owner;
use super::storage::{PosixStorage, Version};
use super::{ShardStore, SourceArray};

impl ShardStore {
    /// Renames the file at `new`, which is complete and durable, to a shard, or removes the shard
    /// if `new` is `None`; returns once that is durable. Returns `false`, without changing the
    /// shard, if it is no longer of the version `expected`. Waits for commits of mounts and
    /// for locks of other software.
    pub fn replace_shard(
        &self,
        array: &SourceArray,
        coords: &[u64],
        expected: Version,
        new: Option<&Path>,
    ) -> Result<bool, StoreError> {
        let path = array.shard_path(coords);
        let storage = self.posix(array)?;
        let journal = Journal::lock(storage, &array.path)?;
        if journal.found().is_some() {
            return Err(StoreError::Unsettled { shard: path });
        }
        if has_note(storage, &array.path)? {
            remove_noted_locks(storage, Owner::Array(array))?;
        }
        // If this process is killed, the next one must find its lock.
        let key = array.shard_name(coords).into_os_string();
        note_locks(storage, &array.path, std::iter::once(key.as_bytes()))?;
        let replaced = replace_locked(storage, &path, expected, new);
        clear_note(storage, &array.path);
        if !replaced? {
            return Ok(false);
        }
        self.forget(array.shard_id(coords));
        let parent = path.parent().unwrap_or(Path::new(""));
        storage.sync_directory(parent).map_err(io_error(parent))?;
        Ok(true)
    }
}

/// Renames a file to a shard, or removes the shard, under the lock that other software knows.
fn replace_locked(
    storage: &dyn PosixStorage,
    path: &Path,
    expected: Version,
    new: Option<&Path>,
) -> Result<bool, StoreError> {
    let _lock = ShardLock::take_of(storage, path)?;
    if !storage.has_version(path, &expected) {
        return Ok(false);
    }
    let replaced = match new {
        Some(new) => storage.rename(new, path),
        None => storage.remove_file(path),
    };
    replaced.map(|()| true).map_err(io_error(path))
}
