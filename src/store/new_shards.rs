//! Directory for the new shards of an array when all of them are rewritten, until they replace the
//! old ones.
//!
//! ```text
//! ARRAY/.shardfs/repack/lock       held while a process makes new shards
//! ARRAY/.shardfs/repack/c/0/1      a new shard, until it is complete
//! ```

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::SourceArray;
use super::error::StoreError;
use super::formats::indexed;
use super::io_error;
use super::lock::{LOCK_MODE, Making, lock_file};
use super::owner::Owner;
use super::storage::{FileKind, PosixFile, PosixStorage};
use super::work::{WORK_DIRECTORY, check_directory, make_directory};
use crate::text::shown;

/// Name of the directory, in the work directory.
const NEW_SHARDS: &str = "repack";
/// Name of the lock in it.
const LOCK: &str = "lock";
/// Permissions of new shards, until they get those of the old ones.
const MODE: u32 = 0o600;

/// Directory of new shards of an array, locked until it is dropped.
pub(crate) struct NewShards<'a> {
    storage: &'a dyn PosixStorage,
    directory: PathBuf,
    original: &'a SourceArray,
    /// The array, with its shards in this directory.
    pub array: SourceArray,
    _lock: Arc<dyn PosixFile>,
}

impl<'a> NewShards<'a> {
    /// Locks the directory, waiting for other processes that make new shards of the array, and
    /// removes leftovers from it.
    pub(crate) fn lock(
        storage: &'a dyn PosixStorage,
        original: &'a SourceArray,
    ) -> Result<Self, StoreError> {
        let work = original.path.join(WORK_DIRECTORY);
        let directory = work.join(NEW_SHARDS);
        let make = || {
            make_directory(storage, &work)?;
            make_directory(storage, &directory)
        };
        let making = Making { mode: &|| LOCK_MODE, directory: &make };
        let lock = lock_file(storage, &directory.join(LOCK), &making, Duration::MAX)?;
        let (id, path, layout) = (original.id, directory.clone(), original.layout.clone());
        let array = SourceArray { id, path, layout, format: indexed() };
        clear(storage, original, &directory, "").map_err(io_error(&directory))?;
        Ok(Self { storage, directory, original, array, _lock: lock })
    }

    /// Creates a file, and the missing directories above it.
    pub(crate) fn create(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.retain(|above| above.starts_with(&self.directory) && *above != self.directory);
        above.into_iter().rev().try_for_each(|path| match self.storage.create_directory(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        })?;
        self.storage.create(path, MODE)
    }

    /// Removes a file, if it exists.
    pub(crate) fn forget(&self, path: &Path) -> io::Result<()> {
        match self.storage.remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the directory and the shards in it.
    pub(crate) fn remove(self) -> Result<(), StoreError> {
        let removed = remove(self.storage, self.original, &self.directory);
        removed.map_err(io_error(&self.directory))
    }
}

/// Returns whether a process makes new shards of an array, or one that was interrupted has left some.
pub(crate) fn exist(storage: &dyn PosixStorage, owner: Owner<'_>) -> bool {
    let directory = |array: &SourceArray| array.path.join(WORK_DIRECTORY).join(NEW_SHARDS);
    // What is unfit is reported by recovery.
    owner.keyed().is_some_and(|array| check_directory(storage, &directory(array)).unwrap_or(false))
}

/// Removes leftover new shards, unless a process is making some at the moment.
pub(crate) fn sweep(storage: &dyn PosixStorage, owner: Owner<'_>) -> Result<(), StoreError> {
    let Some(array) = owner.keyed() else { return Ok(()) };
    let directory = array.path.join(WORK_DIRECTORY).join(NEW_SHARDS);
    if !check_directory(storage, &directory)? {
        return Ok(());
    }
    let making = Making { mode: &|| LOCK_MODE, directory: &|| make_directory(storage, &directory) };
    match lock_file(storage, &directory.join(LOCK), &making, Duration::ZERO) {
        Ok(_lock) => remove(storage, array, &directory).map_err(io_error(&directory)),
        Err(StoreError::Locked { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the directory and the shards in it. The lock goes last: a directory without it counts as
/// abandoned.
fn remove(storage: &dyn PosixStorage, array: &SourceArray, directory: &Path) -> io::Result<()> {
    clear(storage, array, directory, "")?;
    match storage.remove_file(&directory.join(LOCK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    remove_directory(storage, directory)
}

/// Removes the shards in a directory and in those below it that lead to their keys. Files with
/// other names were not made here, and stay. `key` is the directory's own.
fn clear(
    storage: &dyn PosixStorage,
    array: &SourceArray,
    directory: &Path,
    key: &str,
) -> io::Result<()> {
    let mut found = Vec::new();
    storage.list(directory, 0, &mut |item| {
        found.extend(item.name.to_str().map(|name| (name.to_owned(), item.kind)));
        ControlFlow::Continue(())
    })?;
    let (keys, rank) = (array.layout.keys, array.layout.rank());
    for (name, kind) in found {
        let path = directory.join(&name);
        let key = if key.is_empty() { name } else { format!("{key}/{name}") };
        match kind.map_or_else(|| Ok(storage.lstat(&path)?.kind), io::Result::Ok)? {
            FileKind::Directory if keys.parse_leading(&key, rank).is_some() => {
                clear(storage, array, &path, &key)?;
                remove_directory(storage, &path)?;
            }
            FileKind::File if array.is_shard_name(&key) => storage.remove_file(&path)?,
            _ => (),
        }
    }
    Ok(())
}

/// Removes a directory, unless it contains anything that shardfs has not made.
fn remove_directory(storage: &dyn PosixStorage, directory: &Path) -> io::Result<()> {
    match storage.remove_directory(directory) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
            log::warn!("{}: there are files of others in it: it stays", shown(directory));
            Ok(())
        }
        removed => removed,
    }
}
