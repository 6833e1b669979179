//! What an unfinished commit has left, and how it is completed or taken back.
//!
//! A shard of the record is *finished* if every range that was to be written has its fingerprint:
//! then the commit is completed. Else the old index has its own, once the overwritten bytes are put
//! back: then the commit is taken back. Chunks that the old index reaches were never overwritten
//! without a record of their bytes, so they are as they were.

use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::blob::{bytes_of, fingerprint_of};
use super::error::StoreError;
use super::io_error;
use super::journal::Journal;
use super::lock::{has_name, remove_noted_locks};
use super::new_shards;
use super::owner::{Owner, shown_key};
use super::storage::{FileKind, Stat, Storage, StorageFile};
use super::work::{WORK_DIRECTORY, check_directory, check_plain, is_new_name, unfit_or};
use crate::format::fingerprint::Fingerprint;
use crate::format::index::ByteRange;
use crate::format::journal::{Record, ShardRecord};
use crate::format::limits::MAX_INDEX_BYTES;
use crate::format::plan::overlap;
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
        let Some(both) = overlap(range, ByteRange { offset: *offset, nbytes: old.len() as u64 })
        else {
            continue;
        };
        // Within both, which are in memory.
        let part = |start: u64| usize::try_from(both.offset - start).unwrap_or(0);
        let (to, from) = (part(range.offset), part(*offset));
        let length = usize::try_from(both.nbytes).unwrap_or(0);
        bytes[to..to + length].copy_from_slice(&old[from..from + length]);
    }
    Ok((Fingerprint::of(&bytes) == record.old_index.fingerprint).then_some(bytes))
}

/// Completes or takes back what unfinished commits have left in the owner's directory, and removes
/// their temporary files. What was found of each shard, by path.
pub fn recover(
    storage: &dyn Storage,
    owner: Owner<'_>,
) -> Result<Vec<(PathBuf, Found)>, StoreError> {
    if !check_directory(storage, &owner.path().join(WORK_DIRECTORY))? {
        return Ok(Vec::new());
    }
    let mut journal = Journal::lock(storage, owner.path())?;
    let found = recover_locked(storage, owner, &mut journal)?;
    new_shards::sweep(storage, owner)?;
    journal.remove()?;
    Ok(found)
}

/// The same, for who has locked the journal. The record stays if a shard of it is lost. Nothing is
/// changed where it names what is no shard of the owner.
pub fn recover_locked(
    storage: &dyn Storage,
    owner: Owner<'_>,
    journal: &mut Journal<'_>,
) -> Result<Vec<(PathBuf, Found)>, StoreError> {
    let record = journal.found().cloned().unwrap_or_default();
    let refused = |shard: &ShardRecord, why: String| {
        let (path, key) = (journal.path(), shown_key(&shard.key));
        StoreError::ForeignRecord { path, key, why }
    };
    let mut shards = Vec::new();
    for shard in &record.shards {
        let path = owner.shard_path(&shard.key);
        shards.push((path.map_err(|why| refused(shard, why.to_owned()))?, shard));
    }
    let writer = journal.stat()?;
    let mut examined = Vec::new();
    for (path, shard) in shards {
        let found = match open_shard(storage, &path, shard)? {
            Some(file) => {
                let found = find(owner, &*file, shard, &writer);
                found.map_err(io_error(&path))?.map_err(|why| refused(shard, why))?
            }
            None => Found::Replaced,
        };
        examined.push((path, shard, found));
    }
    sweep(storage, owner)?;
    let mut all = Vec::new();
    for (path, shard, found) in examined {
        // Opened anew: there may be more shards than open files.
        let found = match open_shard(storage, &path, shard)? {
            Some(file) => finish(&*file, shard, found).map(|()| found).map_err(io_error(&path))?,
            None => Found::Replaced,
        };
        report(&path, found);
        all.push((path, found));
    }
    let is_lost = |(_, found): &(PathBuf, Found)| *found == Found::Lost;
    if journal.found().is_some() && !all.iter().any(is_lost) {
        journal.clear_durably()?;
    }
    Ok(all)
}

/// The file of a record, if it is the one that the commit was about to change.
fn open_shard(
    storage: &dyn Storage,
    path: &Path,
    record: &ShardRecord,
) -> Result<Option<Arc<dyn StorageFile>>, StoreError> {
    let file = match storage.open_writable(path) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(error) => {
            return match storage.lstat(path) {
                Ok(stat) if stat.ino == record.ino => Err(unfit_or(storage, path, error)),
                // Another file in its place has nothing to do with the commit, whatever it is.
                Ok(_) => Ok(None),
                // That must be certain: without its record an unfinished shard is lost.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
                Err(_) => Err(io_error(path)(error)),
            };
        }
    };
    let stat = file.stat().map_err(io_error(path))?;
    if stat.ino != record.ino {
        return Ok(None);
    }
    check_plain(path, &stat)?;
    Ok(Some(file))
}

/// How a shard is, or why the record cannot be one of a commit to it.
fn find(
    owner: Owner<'_>,
    file: &dyn StorageFile,
    record: &ShardRecord,
    writer: &Stat,
) -> io::Result<Result<Found, String>> {
    let found = examine(file, record)?;
    match found {
        Found::Replaced | Found::Foreign | Found::Lost => return Ok(Ok(found)),
        // Others have changed something else of it.
        Found::Finished if !owner.has_new_index(file, record)? => return Ok(Ok(Found::Foreign)),
        Found::Finished => (),
        Found::Unfinished => {
            let old = old_index(file, record)?;
            if !old.is_some_and(|old| owner.is_old_index(record, &old)) {
                return Ok(Err("what it would restore holds no index of that shard".to_owned()));
            }
        }
    }
    let shard = file.stat()?;
    if !may_write(writer, &shard, rustix::process::geteuid().as_raw()) {
        let (writer, owner) = (writer.uid, shard.uid);
        return Ok(Err(format!(
            "it was written by user {writer}, who may not write this shard of user {owner}; only he \
             can recover it, with his own rights"
        )));
    }
    Ok(Ok(found))
}

/// Whether acting on a journal with these attributes gives its owner no right that he has not got:
/// he is trusted, or may write the shard himself.
fn may_write(journal: &Stat, shard: &Stat, own: u32) -> bool {
    journal.uid == 0
        || journal.uid == own
        || journal.uid == shard.uid
        || journal.gid == shard.gid && shard.mode & 0o020 != 0
        || shard.mode & 0o002 != 0
}

fn report(path: &Path, found: Found) {
    match found {
        Found::Replaced => log::info!("{}: replaced since an unfinished commit", shown(path)),
        Found::Finished => log::info!("{}: a commit was completed", shown(path)),
        Found::Unfinished => log::info!("{}: a commit was taken back", shown(path)),
        Found::Foreign => {
            log::warn!("{}: changed by others after an unfinished commit", shown(path));
        }
        Found::Lost => log::error!("{}: {}", shown(path), super::Damage::Unfinished),
    }
}

fn finish(file: &dyn StorageFile, record: &ShardRecord, found: Found) -> io::Result<()> {
    match found {
        Found::Finished => complete(file, record),
        Found::Unfinished => take_back(file, record),
        Found::Replaced | Found::Foreign | Found::Lost => Ok(()),
    }
}

/// Writes what is there once more: after a failed sync it may be in the system's memory only, and
/// pass for safe there.
fn complete(file: &dyn StorageFile, record: &ShardRecord) -> io::Result<()> {
    const PIECE_BYTES: u64 = 1 << 20;
    for written in &record.written {
        let mut rest = written.range;
        while rest.nbytes > 0 {
            let part = ByteRange { offset: rest.offset, nbytes: rest.nbytes.min(PIECE_BYTES) };
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

/// Removes the files of commits that were not finished: nobody else commits at the moment. Only names
/// that commits make are removed, and not those that somebody holds.
fn sweep(storage: &dyn Storage, owner: Owner<'_>) -> Result<(), StoreError> {
    let directory = owner.path().join(WORK_DIRECTORY);
    // One that cannot be read: litter at worst.
    if let Err(error) = remove_noted_locks(storage, owner) {
        log::warn!("{error}");
    }
    let mut left = Vec::new();
    let mut collect = |item: super::storage::DirItem<'_>| {
        if is_new_name(item.name) {
            left.push(directory.join(item.name));
        }
        ControlFlow::Continue(())
    };
    storage.list(&directory, 0, &mut collect).map_err(io_error(&directory))?;
    left.iter().try_for_each(|path| remove_new(storage, path).map_err(io_error(path)))
}

/// Removes a new file in a work directory, unless somebody holds it.
pub(super) fn remove_new(storage: &dyn Storage, path: &Path) -> io::Result<()> {
    let remove = || {
        if storage.lstat(path)?.kind != FileKind::File {
            return Ok(());
        }
        let file = storage.open_writable(path)?;
        match file.try_lock()? && has_name(storage, &*file, path)? {
            true => storage.remove_file(path),
            false => Ok(()),
        }
    };
    match remove() {
        // Whoever made it has put it in its place.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        removed => removed,
    }
}

/// The part of a pending record that is about the shard with this key.
pub fn record_of<'a>(record: &'a Record, name: &Path) -> Option<&'a ShardRecord> {
    record.shards.iter().find(|shard| shard.key == name.as_os_str().as_bytes())
}
