//! The file that names the source of what is saved below a directory: it is made, locked by who has spool files
//! there, and removed with the directory.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::names::{OPEN_NAME, REHEARSAL_DIRECTORY, SOURCE_NAME, SPOOL_DIRECTORY};

/// Attempts at the lock of a directory that others are about to remove.
const HOLDING: usize = 500;

/// Attempts at the lock of a directory that is to be removed. Who has it for longer removes it later.
const REMOVING: usize = 20;

/// Time between two attempts at a lock that others hold for a moment.
const BETWEEN_LOCKS: Duration = Duration::from_millis(1);

/// File that names the source, as a mount makes and locks it.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    source: PathBuf,
    /// The file, locked.
    held: Mutex<Option<File>>,
}

impl Record {
    /// Creates the record of a source in a directory; nothing is made yet.
    pub(super) fn new(unsaved: &Path, source: &Path) -> Self {
        let path = unsaved.join(SOURCE_NAME);
        Self { path, source: source.to_owned(), held: Mutex::default() }
    }

    /// Makes the file that names the source. What is saved says of which source it is before there is
    /// anything: paths alone would be those of any array with the same name. It is written in a directory
    /// of this spool first: half of it would name another source.
    pub(super) fn name_source(&self, directory: &Path) -> io::Result<()> {
        if self.path.symlink_metadata().is_err() {
            let draft = directory.join(SOURCE_NAME);
            let named = self.write_name(&draft).and_then(|()| put_at(&draft, &self.path));
            let _ = fs::remove_file(&draft);
            named?;
        }
        self.hold()
    }

    fn write_name(&self, path: &Path) -> io::Result<()> {
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(self.source.as_os_str().as_bytes())?;
        file.sync_all()
    }

    /// Locks the file that names the source, unless that is done. It may have been removed with all that
    /// was saved.
    fn hold(&self) -> io::Result<()> {
        let mut held = self.held.lock();
        if !held.as_ref().is_some_and(|file| is_at(file, &self.path)) {
            let file = File::open(&self.path)?;
            // Some filesystems have no locks; and it may be that everything is put in just now.
            let is_locked = locked(&file, FlockOperation::NonBlockingLockShared, HOLDING);
            if !is_at(&file, &self.path) {
                // It is made anew.
                return Err(io::ErrorKind::NotFound.into());
            }
            *held = is_locked.then_some(file);
        }
        Ok(())
    }

    /// Gives the lock back.
    pub(super) fn release(&self) {
        drop(self.held.lock().take());
    }
}

/// Gives a file another name, unless there is a file of that name: other views of the mount make the same.
fn put_at(draft: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(draft, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
        // A filesystem without links.
        Err(_) => fs::rename(draft, to),
        Ok(()) => Ok(()),
    }
}

/// Returns whether an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(file), Ok(there)) = (file.metadata(), path.symlink_metadata()) else { return false };
    (file.dev(), file.ino()) == (there.dev(), there.ino())
}

/// Returns whether a lock could be had that others hold for a moment, if they do.
fn locked(file: &File, how: FlockOperation, attempts: usize) -> bool {
    for _ in 1..attempts {
        match flock(file, how) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN_LOCKS),
            locked => return locked.is_ok(),
        }
    }
    flock(file, how).is_ok()
}

/// Right to put in what was saved below a directory. No other process has it while this lives.
pub(crate) struct Claim {
    _directory: File,
    /// `true` if a mount that is alive has spool files there.
    pub(crate) is_in_use: bool,
}

impl Claim {
    /// Claims what was saved below a directory; `None` if another process has done so. What a rehearsal
    /// has left that was killed is removed.
    pub(crate) fn take(unsaved: &Path) -> io::Result<Option<Self>> {
        let is_taken = |file: &File| {
            let locked = flock(file, FlockOperation::NonBlockingLockExclusive);
            matches!(locked, Err(Errno::WOULDBLOCK))
        };
        let directory = File::open(unsaved)?;
        if is_taken(&directory) {
            return Ok(None);
        }
        // Released at once: a mount that begins to have spool files takes it. On network filesystems it
        // takes a file that is open for writing.
        let is_in_use = match File::options().read(true).write(true).open(unsaved.join(SOURCE_NAME))
        {
            Ok(source) => is_taken(&source),
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        let rehearsal = unsaved.join(SPOOL_DIRECTORY).join(REHEARSAL_DIRECTORY);
        if !is_in_use && rehearsal.symlink_metadata().is_ok() {
            fs::remove_dir_all(rehearsal)?;
        }
        Ok(Some(Self { _directory: directory, is_in_use }))
    }

    /// Removes a directory in which nothing is saved, with what a process that was killed has left in its
    /// spool. Bytes that were still being written stay, and everything where a mount has spool files.
    pub(crate) fn clear(self, unsaved: &Path) -> io::Result<()> {
        let record = File::options().read(true).write(true).open(unsaved.join(SOURCE_NAME));
        let record = if_found(record)?;
        if let Some(record) = &record
            && flock(record, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK)
        {
            return Ok(());
        }
        let spool = unsaved.join(SPOOL_DIRECTORY);
        for numbered in if_found(fs::read_dir(&spool))?.into_iter().flatten() {
            let numbered = numbered?.path();
            // These and those below stay if something is in them, and need not be there.
            let _ = fs::remove_file(numbered.join(SOURCE_NAME));
            let written = numbered.join(OPEN_NAME);
            // A mount makes them only while it has the record locked.
            let is_empty = written.symlink_metadata().is_ok_and(|it| it.is_file() && it.len() == 0);
            if record.is_some() && is_empty {
                let _ = fs::remove_file(written);
            }
            let _ = fs::remove_dir(numbered);
        }
        let _ = fs::remove_dir(spool);
        drop(record);
        remove_if_empty(unsaved)
    }
}

/// Returns the source whose changes are saved below a directory; `None` if it does not say.
pub(crate) fn saved_source(unsaved: &Path) -> io::Result<Option<PathBuf>> {
    match fs::read(unsaved.join(SOURCE_NAME)) {
        Ok(path) => Ok(Some(OsString::from_vec(path).into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a directory for changes that could not be committed if there are none in it, and no mount has
/// spool files there.
pub(crate) fn remove_if_empty(unsaved: &Path) -> io::Result<()> {
    let holds_others = || -> io::Result<bool> {
        for entry in fs::read_dir(unsaved)? {
            if entry?.file_name() != SOURCE_NAME {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let remove = || {
        if holds_others()? {
            return Ok(());
        }
        let record = unsaved.join(SOURCE_NAME);
        if let Some(source) = if_found(File::options().read(true).write(true).open(&record))? {
            // Open for writing: network filesystems lock no other files exclusively.
            let is_locked = locked(&source, FlockOperation::NonBlockingLockExclusive, REMOVING);
            // Another one may have begun to have some, and takes it for the name of its source; or it has
            // removed this one, and there is another one by now.
            if holds_others()? || !is_at(&source, &record) || !is_locked && has_locks(&source) {
                return Ok(());
            }
            if_found(fs::remove_file(record))?;
        }
        match fs::remove_dir(unsaved) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            done => done,
        }
    };
    // Another one may have removed it.
    if_found(remove()).map(drop)
}

/// Returns whether a lock of a file that could not be had is one that others hold.
fn has_locks(file: &File) -> bool {
    matches!(flock(file, FlockOperation::NonBlockingLockShared), Ok(()) | Err(Errno::WOULDBLOCK))
}

/// Returns `None` if there is no such file.
fn if_found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
