//! What an unfinished commit has left, and how it is completed or taken back.
//!
//! A shard of the record is *finished* if every range that was to be written has its fingerprint:
//! then the commit is completed. Else the old index has its own, once the overwritten bytes are put
//! back: then the commit is taken back. Chunks that the old index reaches were never overwritten
//! without a record of their bytes, so they are as they were.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::blob::{bytes_of, fingerprint_of};
use super::error::StoreError;
use super::io_error;
use super::journal::{JOURNAL, Journal, WORK_DIRECTORY};
use super::lock::remove_noted_locks;
use super::new_shards;
use super::storage::{Storage, StorageFile};
use crate::format::fingerprint::Fingerprint;
use crate::format::journal::{Record, ShardRecord};
use crate::format::limits::MAX_INDEX_BYTES;
use crate::text::shown;

/// How a shard was found that an unfinished commit was about to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// It was replaced or removed since.
    Replaced,
    /// Everything was written.
    Finished,
    /// Something was not written, and the old state can be had.
    Unfinished,
    /// Somebody else has changed its length since: it is no longer ours.
    Foreign,
    /// Neither the old nor the new index can be made out.
    Lost,
}

/// The shard of a record.
pub fn shard_path(array: &Path, record: &ShardRecord) -> PathBuf {
    array.join(OsStr::from_bytes(&record.key))
}

/// How the shard is that an unfinished commit was about to change.
pub fn examine(file: &dyn StorageFile, record: &ShardRecord) -> io::Result<Found> {
    let stat = file.stat()?;
    if stat.ino != record.ino {
        return Ok(Found::Replaced);
    }
    if stat.size == record.length && is_written(file, record)? {
        return Ok(Found::Finished);
    }
    if stat.size < record.old_length || stat.size > record.length.max(record.old_length) {
        return Ok(Found::Foreign);
    }
    let index = old_index(file, record)?;
    Ok(if index.is_some() { Found::Unfinished } else { Found::Lost })
}

fn is_written(file: &dyn StorageFile, record: &ShardRecord) -> io::Result<bool> {
    for written in &record.written {
        match fingerprint_of(file, written.range) {
            Ok(found) if found == written.fingerprint => (),
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// The stored index as it was before the commit; None if it cannot be had.
pub fn old_index(file: &dyn StorageFile, record: &ShardRecord) -> io::Result<Option<Vec<u8>>> {
    let range = record.old_index.range;
    if range.nbytes > MAX_INDEX_BYTES {
        return Ok(None);
    }
    let mut bytes = match bytes_of(file, range) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    for (offset, old) in &record.overwritten {
        for (at, byte) in (*offset..).zip(old) {
            let place = at.checked_sub(range.offset).and_then(|at| usize::try_from(at).ok());
            if let Some(place) = place.and_then(|at| bytes.get_mut(at)) {
                *place = *byte;
            }
        }
    }
    Ok((Fingerprint::of(&bytes) == record.old_index.fingerprint).then_some(bytes))
}

/// Completes or takes back what unfinished commits to the array in the directory `array` have
/// left, and removes their temporary files. What was found of each shard, by path.
pub fn recover(storage: &dyn Storage, array: &Path) -> Result<Vec<(PathBuf, Found)>, StoreError> {
    if is_absent(storage.lstat(&array.join(WORK_DIRECTORY))) {
        return Ok(Vec::new());
    }
    let mut journal = Journal::lock(storage, array)?;
    let found = recover_locked(storage, array, &mut journal)?;
    new_shards::sweep(storage, array)?;
    journal.remove()?;
    Ok(found)
}

fn is_absent<T>(result: io::Result<T>) -> bool {
    result.is_err_and(|error| error.raw_os_error() == Some(libc::ENOENT))
}

/// The same, for who has locked the journal. The record stays if a shard of it is lost.
pub fn recover_locked(
    storage: &dyn Storage,
    array: &Path,
    journal: &mut Journal<'_>,
) -> Result<Vec<(PathBuf, Found)>, StoreError> {
    sweep(storage, array)?;
    let Some(record) = journal.found().cloned() else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for shard in &record.shards {
        let path = shard_path(array, shard);
        let found = recover_shard(storage, &path, shard)?;
        match found {
            Found::Replaced => (),
            Found::Finished => log::info!("{}: a commit was completed", shown(&path)),
            Found::Unfinished => log::info!("{}: a commit was taken back", shown(&path)),
            Found::Foreign => {
                log::warn!("{}: changed by others after an unfinished commit", shown(&path));
            }
            Found::Lost => log::error!("{}: {}", shown(&path), super::Damage::Unfinished),
        }
        all.push((path, found));
    }
    if all.iter().all(|(_, found)| *found != Found::Lost) {
        journal.clear_durably()?;
    }
    Ok(all)
}

fn recover_shard(
    storage: &dyn Storage,
    path: &Path,
    record: &ShardRecord,
) -> Result<Found, StoreError> {
    let file = match storage.open_writable(path) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(Found::Replaced),
        Err(error) => return Err(io_error(path)(error)),
    };
    let found = examine(&*file, record).map_err(io_error(path))?;
    match found {
        Found::Finished => complete(&*file, record).map_err(io_error(path))?,
        Found::Unfinished => take_back(&*file, record).map_err(io_error(path))?,
        Found::Replaced | Found::Foreign | Found::Lost => (),
    }
    Ok(found)
}

/// Writes what is there once more: after a failed sync it may be in the system's memory only, and
/// pass for safe there.
fn complete(file: &dyn StorageFile, record: &ShardRecord) -> io::Result<()> {
    const PIECE_BYTES: u64 = 1 << 20;
    for written in &record.written {
        let mut rest = written.range;
        while rest.nbytes > 0 {
            let part = crate::format::index::ByteRange {
                offset: rest.offset,
                nbytes: rest.nbytes.min(PIECE_BYTES),
            };
            file.write_at(&bytes_of(file, part)?, part.offset)?;
            rest.offset += part.nbytes;
            rest.nbytes -= part.nbytes;
        }
    }
    file.sync()
}

/// Restores what was overwritten, and the length.
pub fn take_back(file: &dyn StorageFile, record: &ShardRecord) -> io::Result<()> {
    for (offset, bytes) in &record.overwritten {
        file.write_at(bytes, *offset)?;
    }
    file.set_length(record.old_length)?;
    file.sync()
}

/// Removes the files of commits that were not finished: nobody else commits at the moment.
fn sweep(storage: &dyn Storage, array: &Path) -> Result<(), StoreError> {
    let directory = array.join(WORK_DIRECTORY);
    // None, or one that cannot be read: litter at worst.
    let _ = remove_noted_locks(storage, array, &directory);
    let mut left = Vec::new();
    let mut collect = |item: super::storage::DirItem<'_>| {
        if item.name != JOURNAL {
            left.push(directory.join(item.name));
        }
        ControlFlow::Continue(())
    };
    storage.list(&directory, 0, &mut collect).map_err(io_error(&directory))?;
    for path in left {
        match storage.remove_file(&path) {
            Err(error) if error.raw_os_error() == Some(libc::EISDIR) => (),
            result => result.map_err(io_error(&path))?,
        }
    }
    Ok(())
}

/// The part of a pending record that is about the shard with this key.
pub fn record_of<'a>(record: &'a Record, name: &Path) -> Option<&'a ShardRecord> {
    record.shards.iter().find(|shard| shard.key == name.as_os_str().as_bytes())
}
