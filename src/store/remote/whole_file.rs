//! Files that are written, and become an object as a whole.
//!
//! ```text
//! opened      what the store has of it is read from there
//! written     all of it is here, in memory or in a temporary file
//! closed      an object in the place of the one that was there when it was opened, or of none
//! ```

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use tempfile::SpooledTempFile;

use super::attributes::Owner;
use super::objects::Objects;
use crate::memory::{UPLOADS, zeroed};
use crate::requester;
use crate::store::storage::{FileKind, PosixFile, SetStat, Stat, StorageFile, Timestamp, WriteId};
use crate::text::shown;

/// Length in bytes of the longest file that can be changed. Of it all is fetched, and put again.
const LONGEST_CHANGED: u64 = 64 << 20;

/// Length in bytes of the longest file that is put: it is in memory as a whole then.
const LONGEST: u64 = 1 << 30;

/// Bytes of each file that are in memory.
const IN_MEMORY: usize = 64 << 10;

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// File of an object store that is open for writing.
pub(super) struct WholeFile {
    objects: Arc<Objects>,
    owner: Owner,
    /// Number of the file: that of the version that it was opened as, or one of its own.
    ino: u64,
    state: Mutex<State>,
    /// Held while it is put, or gets another name.
    turn: Mutex<()>,
    /// Asked before it is put; `None` if that is always right.
    check: Option<Check>,
}

/// Says whether a file may be put.
pub type Check = Box<dyn Fn() -> io::Result<()> + Send + Sync>;

struct State {
    /// `None` once it was removed.
    path: Option<PathBuf>,
    content: Content,
    nbytes: u64,
    mtime: Timestamp,
    ctime: Timestamp,
    /// Entity tag of the object that it is put in the place of. `None` if there is none.
    base: Option<String>,
    /// Writes that may have made another object of it, or may still.
    sent: Vec<WriteId>,
    /// `true` once the mount has ended: it is saved elsewhere, and not stored any more.
    is_ended: bool,
    /// `true` once it was refused, for others have put another one there: that is shown from then on.
    is_refused: bool,
    /// Number of changes, and of those that are stored. A new file has one more than it was changed.
    changes: u64,
    stored: u64,
}

enum Content {
    /// That of the object.
    Stored(Arc<dyn StorageFile>),
    /// In memory, or in a file without a name.
    Here(SpooledTempFile),
}

impl State {
    fn new(
        path: &Path,
        content: Content,
        (nbytes, mtime, ctime): (u64, Timestamp, Timestamp),
    ) -> Self {
        Self {
            path: Some(path.to_owned()),
            content,
            nbytes,
            mtime,
            ctime,
            base: None,
            sent: Vec::new(),
            is_ended: false,
            is_refused: false,
            changes: 0,
            stored: 0,
        }
    }
}

impl WholeFile {
    /// Creates a file that the store does not have.
    pub(super) fn new(objects: Arc<Objects>, owner: Owner, path: &Path, ino: u64) -> Self {
        let now = Timestamp::from(SystemTime::now());
        let content = Content::Here(SpooledTempFile::new(IN_MEMORY));
        let state = State { changes: 1, ..State::new(path, content, (0, now, now)) };
        Self { objects, owner, ino, state: Mutex::new(state), turn: Mutex::new(()), check: None }
    }

    /// Makes it one in the place of the object with the entity tag `base`, or of none, that is stored if `check` agrees,
    /// and of which it is no loss if it is not.
    pub(super) fn drafted(mut self, base: Option<String>, check: Check) -> Self {
        self.state.get_mut().base = base;
        self.check = Some(check);
        self
    }

    /// Opens a version of an object for writing, which has this entity tag.
    pub(super) fn of(
        objects: Arc<Objects>,
        owner: Owner,
        path: &Path,
        (file, tag): (Arc<dyn StorageFile>, String),
    ) -> io::Result<Self> {
        let stat = file.stat()?;
        let Stat { ino, size, mtime, ctime, .. } = stat;
        let state = State::new(path, Content::Stored(file), (size, mtime, ctime));
        let state = Mutex::new(State { base: Some(tag), ..state });
        Ok(Self { objects, owner, ino, state, turn: Mutex::new(()), check: None })
    }

    /// Returns all of its bytes.
    fn whole(&self) -> io::Result<Vec<u8>> {
        let nbytes = self.state.lock().nbytes;
        if nbytes > LONGEST {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        let (mut bytes, mut at) = (zeroed(nbytes)?, 0);
        while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
            match self.read_at(rest, at as u64)? {
                0 => break,
                read => at += read,
            }
        }
        bytes.truncate(at);
        Ok(bytes)
    }

    /// Puts what was written, unless that is stored already.
    ///
    /// # Errors
    /// ESTALE if others have put another object there; those of the requests. What was written stays here.
    pub(super) fn store(&self) -> io::Result<()> {
        let _turn = requester::lock(&self.turn)?;
        let (path, base, changes, nbytes, mut sent) = {
            let mut state = self.state.lock();
            let Some(path) = state.path.clone().filter(|_| state.changes > state.stored) else {
                return Ok(());
            };
            if state.is_refused {
                return Err(io::Error::from_raw_os_error(libc::ESTALE));
            }
            if state.is_ended {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            let sent = std::mem::take(&mut state.sent);
            (path, state.base.clone(), state.changes, state.nbytes, sent)
        };
        let checked = self.check.as_ref().map_or(Ok(()), |check| check());
        let put = checked.and_then(|()| UPLOADS.take(nbytes)).and_then(|_room| {
            self.objects.put_file(&path, || self.whole(), base.as_deref(), &mut sent)
        });
        let mut state = self.state.lock();
        match put {
            Ok(tag) => {
                (state.base, state.stored) = (Some(tag), changes);
                Ok(())
            }
            Err(error) => {
                state.sent = sent;
                state.is_refused = error.raw_os_error() == Some(libc::ESTALE);
                Err(error)
            }
        }
    }

    /// Says that it is saved elsewhere: it is not stored any more.
    pub(super) fn end(&self) {
        self.state.lock().is_ended = true;
    }

    /// Returns whether the store has it as it is in this version.
    pub(super) fn is_version(&self, tag: Option<&str>) -> bool {
        let state = self.state.lock();
        state.changes == state.stored && state.base.as_deref() == tag
    }

    /// Removes it from the store, if it is there. What is written to it from then on is for those who have it open
    /// alone.
    pub(super) fn remove(&self) -> io::Result<()> {
        let _turn = requester::lock(&self.turn)?;
        let (path, is_stored) = {
            let state = self.state.lock();
            (state.path.clone(), state.base.is_some() || !state.sent.is_empty())
        };
        let Some(path) = path else { return Ok(()) };
        // For those who have it open. Who cannot get it finds that it is gone.
        if let Err(error) = self.bring(LONGEST_CHANGED) {
            log::debug!("{}: {error}", shown(&path));
        }
        if is_stored {
            self.objects.remove(&path)?;
        }
        self.state.lock().path = None;
        Ok(())
    }

    /// Returns whether the store does not have it as it is.
    pub(super) fn is_changed(&self) -> bool {
        let state = self.state.lock();
        let is_open = !state.is_ended && !state.is_refused;
        state.path.is_some() && state.changes > state.stored && is_open
    }

    /// Returns whether this is its path.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.state.lock().path.as_deref() == Some(path)
    }

    /// Takes its name from a file in whose place another one is put.
    pub(super) fn leave(&self) {
        self.state.lock().path = None;
    }

    /// Puts it at another path, in the place of the object with the entity tag `base` or of none, and removes it where
    /// it was.
    pub(super) fn rename(&self, to: &Path, base: Option<&str>) -> io::Result<()> {
        let _turn = requester::lock(&self.turn)?;
        let (from, old, changes, nbytes) = {
            let state = self.state.lock();
            (state.path.clone(), state.base.clone(), state.changes, state.nbytes)
        };
        let from = from.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        if nbytes > LONGEST {
            // Callers copy it.
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        }
        self.bring(LONGEST)?;
        let is_still = || -> io::Result<bool> {
            let now = self.objects.current(&from)?;
            Ok(old.is_some() && now.and_then(|now| now.tag) == old)
        };
        if old.is_some() && !is_still()? {
            log::warn!(
                "{}: others have changed it since it was opened: it is not renamed",
                shown(&from)
            );
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        let tag = {
            let _room = UPLOADS.take(nbytes)?;
            self.objects.put_file(to, || self.whole(), base, &mut Vec::new())?
        };
        {
            let mut state = self.state.lock();
            (state.path, state.base, state.stored) = (Some(to.to_owned()), Some(tag), changes);
            state.sent.clear();
        }
        match old.is_none() || !is_still()? {
            // Others have put another one there: it is theirs.
            true => Ok(()),
            false => self.objects.remove(&from),
        }
    }

    /// Fetches all of it, if it is not longer than `longest`. What the store has of it may be replaced at any time.
    fn bring(&self, longest: u64) -> io::Result<()> {
        let (file, nbytes) = match &*self.state.lock() {
            State { content: Content::Here(_), .. } => return Ok(()),
            State { content: Content::Stored(file), nbytes, .. } => (Arc::clone(file), *nbytes),
        };
        if nbytes > longest {
            return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
        }
        let mut copy = SpooledTempFile::new(IN_MEMORY);
        let (mut piece, mut at) = (vec![0; PIECE], 0);
        while at < nbytes {
            match file.read_at(&mut piece, at)? {
                0 => return Err(io::Error::from_raw_os_error(libc::ESTALE)),
                read => {
                    copy.write_all(&piece[..read])?;
                    at += read as u64;
                }
            }
        }
        let mut state = self.state.lock();
        if let Content::Stored(_) = state.content {
            state.content = Content::Here(copy);
        }
        Ok(())
    }

    /// Changes its bytes.
    fn change<T>(
        &self,
        act: impl FnOnce(&mut SpooledTempFile, &mut u64) -> io::Result<T>,
    ) -> io::Result<T> {
        self.bring(LONGEST_CHANGED)?;
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Content::Here(file) = &mut state.content else {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        };
        // Whatever comes of it: some of it may have been written.
        state.changes += 1;
        let done = act(file, &mut state.nbytes);
        let now = Timestamp::from(SystemTime::now());
        (state.mtime, state.ctime) = (now, now);
        done
    }
}

impl WholeFile {
    /// Writes at `offset`, or at the end.
    fn write(&self, bytes: &[u8], offset: Option<u64>) -> io::Result<()> {
        self.change(|file, nbytes| {
            let offset = offset.unwrap_or(*nbytes);
            let end = offset.saturating_add(bytes.len() as u64);
            if end > LONGEST {
                return Err(io::Error::from_raw_os_error(libc::EFBIG));
            }
            if *nbytes < offset {
                file.set_len(offset)?;
            }
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(bytes)?;
            *nbytes = end.max(*nbytes);
            Ok(())
        })
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        // Who has closed it knows why. Of a new one nothing may have been written.
        let is_written = state.changes > state.stored && state.nbytes > 0;
        let is_written = is_written && self.check.is_none();
        if let Some(path) = state.path.as_ref().filter(|_| is_written) {
            log::error!("{}: what was written to it is lost", shown(path));
        }
    }
}

impl StorageFile for WholeFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let stored = match &mut self.state.lock().content {
            Content::Stored(file) => Arc::clone(file),
            Content::Here(file) => {
                file.seek(SeekFrom::Start(offset))?;
                let mut read = 0;
                while let Some(rest) = buffer.get_mut(read..).filter(|rest| !rest.is_empty()) {
                    match file.read(rest)? {
                        0 => break,
                        more => read += more,
                    }
                }
                return Ok(read);
            }
        };
        stored.read_at(buffer, offset)
    }

    fn stat(&self) -> io::Result<Stat> {
        let state = self.state.lock();
        let Owner { uid, gid, store, .. } = self.owner;
        Ok(Stat {
            dev: store,
            ino: self.ino,
            kind: FileKind::File,
            mode: 0o644,
            uid,
            gid,
            links: u64::from(state.path.is_some()),
            size: state.nbytes,
            mtime: state.mtime,
            ctime: state.ctime,
            atime: state.mtime,
        })
    }

    fn posix(&self) -> Option<&dyn PosixFile> {
        Some(self)
    }
}

impl PosixFile for WholeFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write(bytes, Some(offset))
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes, None)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        if length > LONGEST {
            return Err(io::Error::from_raw_os_error(libc::EFBIG));
        }
        if length == 0 {
            let mut state = self.state.lock();
            // Nothing of it has to be fetched.
            state.content = Content::Here(SpooledTempFile::new(IN_MEMORY));
        }
        self.change(|file, nbytes| {
            file.set_len(length)?;
            *nbytes = length;
            Ok(())
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.store()
    }

    fn closed(&self) -> io::Result<()> {
        self.store()
    }

    fn set_owner(&self, _like: &Stat) -> io::Result<()> {
        Ok(())
    }

    fn set_stat(&self, set: &SetStat) -> io::Result<()> {
        self.owner.check(set)?;
        let mut state = self.state.lock();
        state.mtime = set.mtime.unwrap_or(state.mtime);
        Ok(())
    }

    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
}
