//! The journal of an array: a file that holds the record of a commit to shards of the array
//! ([`crate::format::journal`]), and a lock that is held meanwhile.
//!
//! ```text
//! <array>/.shardfs/          also holds new shards until they are renamed (see `work`)
//! <array>/.shardfs/journal   the record: for all who may read the array
//! <array>/.shardfs/lock      no contents: for those who may write to it
//! ```
//!
//! A record is durable when [`Journal::write`] returns. It is replaced by the next one, or cleared;
//! an old one may reappear after a power cut unless it was cleared durably.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::error::StoreError;
use super::io_error;
use super::lock::{LOCK_MODE, Making, NOTE, PATIENCE, lock_file, open_or_make};
use super::storage::{PosixFile, PosixStorage, Stat, Storage, StorageFile};
use super::work::{WORK_DIRECTORY, make_directory, open_to_read};
use crate::format::journal::{HEAD_BYTES, Head, JournalError, Record, cleared};
use crate::memory::{ROOM, zeroed};

/// Length in bytes up to which a record is read without a reservation of memory.
const USUAL_BYTES: u64 = 1 << 20;

/// Name of the journal in the work directory.
pub const JOURNAL: &str = "journal";
/// Name of the lock in the work directory.
pub const LOCK: &str = "lock";

/// Name of the note of a single writer, in a copy of what is in a store of objects.
const WRITER: &str = "writer";

/// Returns whether a name in the work directory is one that stays there while a mount is in use.
pub fn is_work_file(name: &std::ffi::OsStr) -> bool {
    name == JOURNAL || name == LOCK || name == NOTE || name == WRITER
}

/// Journal of an array, locked until it is dropped.
pub struct Journal<'a> {
    storage: &'a dyn PosixStorage,
    array: PathBuf,
    file: Arc<dyn PosixFile>,
    _lock: Arc<dyn PosixFile>,
    found: Option<Record>,
    /// `true` if nothing was ever written to it: its name may not be durable yet.
    is_new: bool,
}

impl<'a> Journal<'a> {
    /// Locks the journal of the array in the directory `array`, waiting for other commits to it,
    /// and reads the record that an unfinished commit has left.
    pub fn lock(storage: &'a dyn PosixStorage, array: &Path) -> Result<Self, StoreError> {
        Self::lock_within(storage, array, PATIENCE)
    }

    /// Like [`Self::lock`], but does not wait for longer than `patience`.
    ///
    /// # Errors
    /// `Locked` if another process holds the lock until then.
    pub fn lock_within(
        storage: &'a dyn PosixStorage,
        array: &Path,
        patience: Duration,
    ) -> Result<Self, StoreError> {
        let directory = array.join(WORK_DIRECTORY);
        let making = Making {
            mode: &|| journal_mode(storage, array) & LOCK_MODE,
            directory: &|| make_directory(storage, &directory),
        };
        let path = directory.join(LOCK);
        let lock = lock_file(storage, &path, &making, patience)?;
        // What is no journal stays as it is, alone. The lock is held until its file is removed.
        let opened = Self::open(storage, array, Arc::clone(&lock));
        opened.inspect_err(|_| drop(storage.remove_file(&path)))
    }

    fn open(
        storage: &'a dyn PosixStorage,
        array: &Path,
        lock: Arc<dyn PosixFile>,
    ) -> Result<Self, StoreError> {
        let directory = array.join(WORK_DIRECTORY);
        let path = directory.join(JOURNAL);
        let making = Making {
            mode: &|| journal_mode(storage, array),
            directory: &|| make_directory(storage, &directory),
        };
        let file = open_or_make(storage, &path, &making)?;
        let found = read(&*file, &path)?;
        let is_new = file.stat().map_err(io_error(&path))?.size == 0;
        Ok(Self { storage, array: array.to_owned(), file, _lock: lock, found, is_new })
    }

    /// Returns the record of an unfinished commit. `None` if there is none.
    pub fn found(&self) -> Option<&Record> {
        self.found.as_ref()
    }

    /// Removes the permission to read the journal from users who may not read one of these shards,
    /// whose bytes it is about to hold.
    pub fn narrow<'b>(
        &mut self,
        shards: impl Iterator<Item = (&'b Stat, &'b dyn PosixFile)>,
    ) -> Result<(), StoreError> {
        let stat = self.stat()?;
        let own = rustix::process::geteuid().as_raw();
        // Its owner may have it open, whatever its permissions are.
        let is_others = ![0, own].contains(&stat.uid);
        let (mut mode, mut is_readable) = (stat.mode, false);
        for (shard, file) in shards {
            let may_all = shard.mode & 0o004 != 0;
            let may_group = shard.mode & 0o040 != 0 && shard.gid == stat.gid;
            // A list may refuse to some what the permissions grant.
            mode &= match may_all || may_group {
                true if file.has_access_list().map_err(io_error(&self.path()))? => 0o700,
                true if may_all => 0o777,
                true => 0o770,
                false => 0o700,
            };
            is_readable |= is_others && shard.uid != stat.uid && mode & 0o004 == 0;
        }
        if mode == stat.mode && !is_readable {
            return Ok(());
        }
        if self.found.is_none() {
            self.replace(mode)?;
        }
        let uid = if is_readable { own } else { stat.uid };
        self.file.set_owner(&Stat { mode, uid, ..stat }).map_err(io_error(&self.path()))
    }

    /// Puts an empty journal in the place of this one, which others may have opened to read.
    fn replace(&mut self, mode: u32) -> Result<(), StoreError> {
        let path = self.path();
        let replace = || {
            self.storage.remove_file(&path)?;
            self.storage.create(&path, mode & 0o777)
        };
        self.file = replace().map_err(io_error(&path))?;
        self.is_new = true;
        Ok(())
    }

    /// Writes a record durably, replacing the one before.
    pub fn write(&mut self, record: &Record) -> Result<(), StoreError> {
        let path = self.path();
        record.check().map_err(|error| StoreError::Journal { path, error })?;
        self.put(&record.encode())?;
        self.file.sync().map_err(io_error(&self.path()))?;
        self.found = Some(record.clone());
        Ok(())
    }

    /// Clears the record, not durably: it may reappear after a power cut.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        self.put(&cleared())?;
        self.found = None;
        Ok(())
    }

    /// Clears the record durably.
    pub fn clear_durably(&mut self) -> Result<(), StoreError> {
        self.clear()?;
        self.file.sync().map_err(io_error(&self.path()))
    }

    /// Returns the attributes of the journal; writing a record changes them.
    pub fn stat(&self) -> Result<Stat, StoreError> {
        self.file.stat().map_err(io_error(&self.path()))
    }

    /// Clears the journal durably and removes it, its lock, and its directory if that is otherwise empty.
    /// If there is a record, only the lock is removed.
    pub fn remove(mut self) -> Result<(), StoreError> {
        if self.found.is_some() {
            self.leave();
            return Ok(());
        }
        // The old content could reappear together with the name.
        self.clear_durably()?;
        let _ = self.storage.remove_file(&self.array.join(WORK_DIRECTORY).join(NOTE));
        let path = self.path();
        self.storage.remove_file(&path).map_err(io_error(&path))?;
        self.storage.remove_file(&self.lock_path()).map_err(io_error(&self.lock_path()))?;
        // Other files in the directory are not ours: it stays if there are any.
        let _ = self.storage.remove_directory(&self.array.join(WORK_DIRECTORY));
        Ok(())
    }

    /// Leaves the journal as it is, and no lock beside it.
    pub fn leave(self) {
        let _ = self.storage.remove_file(&self.lock_path());
    }

    fn lock_path(&self) -> PathBuf {
        self.array.join(WORK_DIRECTORY).join(LOCK)
    }

    /// Returns the path of the journal.
    pub fn path(&self) -> PathBuf {
        self.array.join(WORK_DIRECTORY).join(JOURNAL)
    }

    /// Writes to the journal. Its name is made durable before anything is in it, so that every
    /// process that finds something in it may rely on the name, too.
    fn put(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        if self.is_new {
            for directory in [self.array.join(WORK_DIRECTORY), self.array.clone()] {
                self.storage.sync_directory(&directory).map_err(io_error(&directory))?;
            }
            self.is_new = false;
        }
        self.file.write_at(bytes, 0).map_err(io_error(&self.path()))
    }
}

/// Reads the record that an unfinished commit to the array in the directory `array` has left,
/// without locking the journal. `None` if there is none: only commits on a POSIX filesystem leave
/// any.
pub fn pending(storage: &dyn Storage, array: &Path) -> Result<Option<Record>, StoreError> {
    let Some(storage) = storage.posix() else { return Ok(None) };
    let path = array.join(WORK_DIRECTORY).join(JOURNAL);
    match open_to_read(storage, &path)? {
        Some(file) => read(&*file, &path),
        None => Ok(None),
    }
}

/// Like [`pending`], but returns `None` if the journal is invalid or this user may not read it, and
/// calls `report` with that error.
///
/// # Errors
/// The journal could not be read, so there may be a record, without which an unfinished shard would
/// be taken for a finished one.
pub fn pending_if_readable(
    storage: &dyn Storage,
    array: &Path,
    report: impl FnOnce(&StoreError),
) -> io::Result<Option<Record>> {
    const FORBIDDEN: [i32; 2] = [libc::EACCES, libc::EPERM];
    match pending(storage, array) {
        Ok(record) => Ok(record),
        Err(StoreError::Io { error, .. })
            if !error.raw_os_error().is_some_and(|errno| FORBIDDEN.contains(&errno)) =>
        {
            Err(error)
        }
        Err(error) => {
            report(&error);
            Ok(None)
        }
    }
}

/// Returns the permissions of a new journal, less the process's umask. Users who may write to the
/// array's directory may take over a commit, unless the directory is sticky: then only owners may
/// remove what is in it.
fn journal_mode(storage: &dyn PosixStorage, array: &Path) -> u32 {
    const STICKY: u32 = 0o1000;
    match storage.stat(array) {
        Ok(Stat { mode, .. }) if mode & STICKY == 0 => 0o644 | mode & 0o022,
        _ => 0o644,
    }
}

fn read(file: &dyn StorageFile, path: &Path) -> Result<Option<Record>, StoreError> {
    let bad = |error: JournalError| StoreError::Journal { path: path.to_owned(), error };
    let mut head = [0; HEAD_BYTES];
    let length = file.read_at(&mut head, 0).map_err(io_error(path))?;
    let Some(head) = Head::decode(&head[..length]).map_err(bad)?.filter(|head| head.nbytes > 0)
    else {
        return Ok(None);
    };
    // The length is limited by the file's: a torn head must not cost memory.
    let held = file.stat().map_err(io_error(path))?.size.saturating_sub(HEAD_BYTES as u64);
    let nbytes = head.nbytes.min(held);
    // The bytes, what they are decoded to, and a copy of that. Those of every commit are short.
    let room = (nbytes > USUAL_BYTES).then(|| ROOM.take(nbytes.saturating_mul(3)));
    let _room = room.transpose().map_err(io_error(path))?;
    let mut body = zeroed(nbytes).map_err(|none| io_error(path)(none.into()))?;
    let length = file.read_at(&mut body, HEAD_BYTES as u64).map_err(io_error(path))?;
    if !head.is_of(&body[..length]) {
        return Ok(None);
    }
    Record::decode(&body).map(Some).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::index::ByteRange;
    use crate::format::journal::{CheckedRange, ShardRecord};
    use crate::store::local::LocalStorage;
    use crate::store::memory::{Change, MemoryStorage};

    fn record(key: &str) -> Record {
        let old_index = CheckedRange { range: ByteRange { offset: 0, nbytes: 4 }, fingerprint: 1 };
        let key = key.into();
        let written = CheckedRange { range: ByteRange { offset: 1, nbytes: 8 }, fingerprint: 1 };
        let (written, overwritten) = (vec![written], vec![(1, vec![1, 2, 3])]);
        let shard =
            ShardRecord { key, ino: 1, old_length: 4, old_index, length: 9, written, overwritten };
        Record { shards: vec![shard] }
    }

    #[test]
    fn a_record_is_found_until_it_is_cleared_and_then_nothing_is_left_behind() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("array")).unwrap();
        let storage = LocalStorage::open_root(directory.path(), Arc::default()).unwrap();
        let array = Path::new("array");
        assert_eq!(pending(&storage, array).unwrap(), None);
        Journal::lock(&storage, array).unwrap().write(&record("c/0")).unwrap();
        assert_eq!(pending(&storage, array).unwrap(), Some(record("c/0")));

        let mut journal = Journal::lock(&storage, array).unwrap();
        assert_eq!(journal.found(), Some(&record("c/0")));
        journal.write(&record("c/1")).unwrap();
        journal.clear().unwrap();
        assert_eq!(pending(&storage, array).unwrap(), None);
        journal.remove().unwrap();
        assert_eq!(std::fs::read_dir(directory.path().join("array")).unwrap().count(), 0);
    }

    #[test]
    fn a_journal_that_was_removed_is_not_taken_for_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let storage = LocalStorage::open_root(directory.path(), Arc::default()).unwrap();
        let (array, count) = (Path::new(""), std::sync::atomic::AtomicU32::new(0));
        let (turns, order) = (50, std::sync::atomic::Ordering::SeqCst);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..turns {
                        let journal = Journal::lock(&storage, array).unwrap();
                        assert_eq!(count.fetch_add(1, order), 0, "two hold the lock");
                        count.fetch_sub(1, order);
                        journal.remove().unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn who_may_read_an_array_cannot_hold_up_commits_to_it() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let storage = LocalStorage::open_root(directory.path(), Arc::default()).unwrap();
        let _journal = Journal::lock(&storage, Path::new("")).unwrap();
        let mode = |name: &str| {
            let path = directory.path().join(WORK_DIRECTORY).join(name);
            path.metadata().unwrap().permissions().mode()
        };
        // Who may open a file to read can lock it.
        assert_eq!((mode(JOURNAL) & 0o044, mode(LOCK) & 0o044), (0o044, 0));
    }

    #[test]
    fn the_name_of_a_journal_is_safe_before_anything_is_in_it() {
        let storage = MemoryStorage::default();
        // The process that made the journal has not written to it.
        drop(Journal::lock(&storage, Path::new("")).unwrap());
        storage.take_history();
        Journal::lock(&storage, Path::new("")).unwrap().write(&record("c/0")).unwrap();
        let history = storage.take_history();
        let synced = |path: &str| {
            let change = Change::SyncDirectory { path: path.into() };
            history.iter().position(|other| *other == change)
        };
        let written = history.iter().position(|change| matches!(change, Change::Write { .. }));
        assert!(synced(".shardfs").is_some() && synced(".shardfs") < written);
        assert!(synced("").is_some() && synced("") < written);
    }

    #[test]
    fn what_was_not_written_to_its_end_is_no_record() {
        let storage = MemoryStorage::default();
        let mut journal = Journal::lock(&storage, Path::new("")).unwrap();
        journal.write(&record("c/0")).unwrap();
        let path = ".shardfs/journal";
        for length in 0..record("c/0").encode().len() {
            storage.change(path, |bytes| bytes.truncate(length));
            assert_eq!(pending(&storage, Path::new("")).unwrap(), None);
            storage.change(path, |bytes| *bytes = record("c/0").encode());
        }
        storage.change(path, |bytes| bytes[0] = b'S');
        let error = pending(&storage, Path::new("")).unwrap_err();
        assert_eq!(error.to_string(), ".shardfs/journal: it is no journal of shardfs");
    }
}
