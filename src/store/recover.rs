//! Recovery of unfinished commits: rolls each forward or back.
//!
//! [`Found`] lists the states in which a shard can be found, and how they are determined.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::blob::bytes_of;
use super::error::{Foreign, StoreError};
use super::io_error;
use super::journal::Journal;
use super::lock::{PATIENCE, has_name, remove_noted_locks};
use super::new_shards;
use super::owner::{Owner, shown_key};
use super::storage::{FileKind, PosixFile, PosixStorage, Stat, if_present};
pub use super::unfinished::{Found, record_of};
use super::unfinished::{examine, old_index};
use super::work::{WORK_DIRECTORY, check_directory, check_plain, is_new_name, unfit_or};
use crate::format::index::ByteRange;
use crate::format::journal::{Record, ShardRecord};
use crate::text::shown;

/// Rolls unfinished commits in the owner's directory forward or back, and removes their temporary
/// files. Returns the state in which each shard was found, by path.
pub fn recover(
    storage: &dyn PosixStorage,
    owner: Owner<'_>,
) -> Result<Vec<(PathBuf, Found)>, StoreError> {
    recover_within(storage, owner, PATIENCE)
}

/// Like [`recover`], but does not wait for longer than `patience`.
///
/// # Errors
/// `Locked` if another process holds the lock of the journal until then.
pub fn recover_within(
    storage: &dyn PosixStorage,
    owner: Owner<'_>,
    patience: Duration,
) -> Result<Vec<(PathBuf, Found)>, StoreError> {
    if !check_directory(storage, &owner.path().join(WORK_DIRECTORY))? {
        return Ok(Vec::new());
    }
    let mut journal = Journal::lock_within(storage, owner.path(), patience)?;
    let recovered = recover_locked(storage, owner, &mut journal);
    match recovered.and_then(|found| new_shards::sweep(storage, owner).map(|()| found)) {
        Ok(found) => journal.remove().map(|()| found),
        Err(error) => {
            journal.leave();
            Err(error)
        }
    }
}

/// Like [`recover`], for a caller that has locked the journal. The record stays if a shard of it is
/// lost. No shard is changed if it names anything but shards of the owner.
pub fn recover_locked(
    storage: &dyn PosixStorage,
    owner: Owner<'_>,
    journal: &mut Journal<'_>,
) -> Result<Vec<(PathBuf, Found)>, StoreError> {
    let record = journal.found().cloned().unwrap_or_default();
    let refused = |shard: &ShardRecord, why: Foreign| {
        let (path, key) = (journal.path(), shown_key(&shard.key));
        StoreError::ForeignRecord { path, key, why }
    };
    let mut shards = Vec::new();
    for shard in &record.shards {
        let path = owner.shard_path(&shard.key);
        shards.push((path.map_err(|why| refused(shard, why.to_owned()))?, shard));
    }
    remove_second_names(storage, owner, &record)?;
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
        // Files are opened anew: there may be more shards than open files are allowed.
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

/// Opens the shard of a record. `None` if it is not the file that the commit was about to change.
fn open_shard(
    storage: &dyn PosixStorage,
    path: &Path,
    record: &ShardRecord,
) -> Result<Option<Arc<dyn PosixFile>>, StoreError> {
    let file = match storage.open_writable(path) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        Err(error) => {
            return match storage.lstat(path) {
                Ok(stat) if stat.ino == record.ino => Err(unfit_or(storage, path, error)),
                // Another file in its place has nothing to do with the commit, whatever it is.
                Ok(_) => Ok(None),
                // Its absence must be certain: without its record an unfinished shard is lost.
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

/// Returns the state of a shard, or the reason why the record cannot be that of a commit to it.
fn find(
    owner: Owner<'_>,
    file: &dyn PosixFile,
    record: &ShardRecord,
    writer: &Stat,
) -> io::Result<Result<Found, Foreign>> {
    let found = examine(file, record)?;
    match found {
        Found::Replaced | Found::Foreign | Found::Lost => return Ok(Ok(found)),
        // Another writer has changed other parts of it.
        Found::Finished if !owner.has_new_index(file, record)? => return Ok(Ok(Found::Foreign)),
        Found::Finished => (),
        Found::Unfinished => {
            let old = old_index(file, record)?;
            if !old.is_some_and(|old| owner.is_old_index(record, &old)) {
                return Ok(Err(Foreign::NoIndex));
            }
        }
    }
    let shard = file.stat()?;
    if !may_write(writer, &shard, rustix::process::geteuid().as_raw()) {
        let (writer, owner) = (writer.uid, shard.uid);
        return Ok(Err(Foreign::NotPermitted { writer, owner }));
    }
    Ok(Ok(found))
}

/// Returns whether acting on a journal with these attributes grants its owner nothing new: the
/// owner is trusted, or may write to the shard anyway.
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
        Found::Finished => log::info!("{}: a commit was rolled forward", shown(path)),
        Found::Unfinished => log::info!("{}: a commit was rolled back", shown(path)),
        Found::Foreign => {
            log::warn!("{}: changed by others after an unfinished commit", shown(path));
        }
        Found::Lost => log::error!("{}: {}", shown(path), super::Damage::Unfinished),
    }
}

fn finish(file: &dyn PosixFile, record: &ShardRecord, found: Found) -> io::Result<()> {
    match found {
        Found::Finished => roll_forward(file, record),
        Found::Unfinished => roll_back(file, record),
        Found::Replaced | Found::Foreign | Found::Lost => Ok(()),
    }
}

/// Rewrites the written ranges with their current contents and syncs them: after a failed fsync
/// they may be in the page cache only, and marked as clean there.
fn roll_forward(file: &dyn PosixFile, record: &ShardRecord) -> io::Result<()> {
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

/// Rolls a commit back: restores the overwritten bytes and the length.
pub fn roll_back(file: &dyn PosixFile, record: &ShardRecord) -> io::Result<()> {
    for (offset, bytes) in &record.overwritten {
        file.write_at(bytes, *offset)?;
    }
    file.set_length(record.old_length)?;
    file.sync()
}

/// Removes the temporary files of unfinished commits; the caller holds the journal, so no commit is
/// running. Only names that commits make are removed, and no file that another process has locked.
fn sweep(storage: &dyn PosixStorage, owner: Owner<'_>) -> Result<(), StoreError> {
    // A note that cannot be read leaves stray lock files at worst.
    if let Err(error) = remove_noted_locks(storage, owner) {
        log::warn!("{error}");
    }
    let left = new_names(storage, owner)?;
    left.iter().try_for_each(|path| remove_new(storage, path).map_err(io_error(path)))
}

/// Removes the names that shards of a record had while they were written. After a power cut some
/// filesystems (btrfs) have both the new name of a renamed file and the old one, and a shard with two
/// names is not recovered.
fn remove_second_names(
    storage: &dyn PosixStorage,
    owner: Owner<'_>,
    record: &Record,
) -> Result<(), StoreError> {
    let is_shard = |stat: &Stat| {
        stat.kind == FileKind::File
            && stat.links > 1
            && record.shards.iter().any(|shard| shard.ino == stat.ino)
    };
    for path in new_names(storage, owner)? {
        if if_present(storage.lstat(&path))
            .map_err(io_error(&path))?
            .is_some_and(|it| is_shard(&it))
        {
            storage.remove_file(&path).map_err(io_error(&path))?;
        }
    }
    Ok(())
}

/// Returns the paths in an owner's work directory that new files have.
fn new_names(storage: &dyn PosixStorage, owner: Owner<'_>) -> Result<Vec<PathBuf>, StoreError> {
    let directory = owner.path().join(WORK_DIRECTORY);
    let mut found = Vec::new();
    let mut collect = |item: super::storage::DirItem<'_>| {
        if is_new_name(item.name) {
            found.push(directory.join(item.name));
        }
        ControlFlow::Continue(())
    };
    match storage.list(&directory, 0, &mut collect) {
        // Another process has removed it, which it does when it is empty.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
        listed => listed.map(|()| found).map_err(io_error(&directory)),
    }
}

/// Removes a new file from a work directory, unless another process has locked it.
pub(super) fn remove_new(storage: &dyn PosixStorage, path: &Path) -> io::Result<()> {
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
        // Its writer has renamed it to its final name.
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        removed => removed,
    }
}
