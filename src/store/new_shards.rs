//! Where shards are made that will take the place of others, when all of an array are made anew.
//!
//! ```text
//! ARRAY/.shardfs/repack/lock       held as long as somebody is at it
//! ARRAY/.shardfs/repack/c/0/1      a new shard, until it is complete
//! ```

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::StoreError;
use super::io_error;
use super::journal::WORK_DIRECTORY;
use super::lock::lock_file;
use super::storage::{FileKind, Storage, StorageFile};
use super::{Container, SourceArray};

/// The directory, in the work directory.
const NEW_SHARDS: &str = "repack";
/// Name of the lock in it.
const LOCK: &str = "lock";
/// Permissions of files in it.
const MODE: u32 = 0o600;

/// The directory of new shards of an array, locked until it is dropped.
pub struct NewShards<'a> {
    storage: &'a dyn Storage,
    directory: PathBuf,
    /// The array as if its shards were there.
    pub array: SourceArray,
    _lock: Arc<dyn StorageFile>,
}

impl<'a> NewShards<'a> {
    /// Waits until nobody else makes new shards of the array, and clears what was left.
    pub fn lock(storage: &'a dyn Storage, array: &SourceArray) -> Result<Self, StoreError> {
        let work = array.path.join(WORK_DIRECTORY);
        let directory = work.join(NEW_SHARDS);
        let make = || {
            make_directory(storage, &work)?;
            make_directory(storage, &directory)
        };
        let lock = lock_file(storage, &directory.join(LOCK), &make)?;
        let (id, path, layout) = (array.id, directory.clone(), array.layout.clone());
        let array = SourceArray { id, path, layout, container: Container::Shards };
        clear(storage, &directory, true).map_err(io_error(&directory))?;
        Ok(Self { storage, directory, array, _lock: lock })
    }

    /// Makes a file, and the directories above it.
    pub fn create(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.retain(|above| above.starts_with(&self.directory) && *above != self.directory);
        above.into_iter().rev().try_for_each(|path| make_directory(self.storage, path))?;
        self.storage.create(path, MODE)
    }

    /// Removes a file, if it is there.
    pub fn forget(&self, path: &Path) -> io::Result<()> {
        match self.storage.remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes the directory and what is in it.
    pub fn remove(self) -> Result<(), StoreError> {
        remove(self.storage, &self.directory).map_err(io_error(&self.directory))
    }
}

/// Removes what was left of new shards, unless somebody makes some at the moment.
pub fn sweep(storage: &dyn Storage, array: &Path) -> Result<(), StoreError> {
    let directory = array.join(WORK_DIRECTORY).join(NEW_SHARDS);
    let sweep = || {
        let lock = match storage.open_writable(&directory.join(LOCK)) {
            Ok(lock) => Some(lock),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        match lock.as_ref().map(|lock| lock.try_lock()) {
            Some(Ok(false)) => Ok(()),
            Some(Err(error)) => Err(error),
            Some(Ok(true)) | None if storage.lstat(&directory).is_ok() => {
                remove(storage, &directory)
            }
            _ => Ok(()),
        }
    };
    sweep().map_err(io_error(&directory))
}

fn make_directory(storage: &dyn Storage, path: &Path) -> io::Result<()> {
    match storage.create_directory(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The lock goes last: without it the directory counts as nobody's.
fn remove(storage: &dyn Storage, directory: &Path) -> io::Result<()> {
    clear(storage, directory, true)?;
    match storage.remove_file(&directory.join(LOCK)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    storage.remove_directory(directory)
}

/// Removes what is in a directory; not the lock that is in the topmost.
fn clear(storage: &dyn Storage, directory: &Path, is_topmost: bool) -> io::Result<()> {
    let mut found = Vec::new();
    storage.list(directory, 0, &mut |item| {
        found.push((item.name.to_owned(), item.kind));
        ControlFlow::Continue(())
    })?;
    for (name, kind) in found {
        let path = directory.join(&name);
        match kind.map_or_else(|| Ok(storage.lstat(&path)?.kind), io::Result::Ok)? {
            FileKind::Directory => {
                clear(storage, &path, false)?;
                storage.remove_directory(&path)?;
            }
            _ if is_topmost && name == LOCK => (),
            _ => storage.remove_file(&path)?,
        }
    }
    Ok(())
}
