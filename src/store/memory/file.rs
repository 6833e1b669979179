//! Files of a storage in memory.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::changes::Change;
use super::shared::{Shared, stat};
use crate::number::to_usize;
use crate::store::storage::{FileKind, PosixFile, SetStat, Stat, StorageFile};

/// File, which may have several names.
#[derive(Debug)]
pub(super) struct MemoryFile {
    pub(super) ino: u64,
    /// Link count.
    pub(super) links: AtomicU64,
    /// Permissions, user and group.
    pub(super) owner: Mutex<(u32, u32, u32)>,
    pub(super) content: Mutex<(Vec<u8>, u64)>,
    pub(super) shared: Arc<Shared>,
}

impl MemoryFile {
    pub(super) fn stat_now(&self) -> io::Result<Stat> {
        let content = self.content.lock();
        let links = self.links.load(Ordering::Relaxed);
        let (mode, uid, gid) = *self.owner.lock();
        let stat = stat(FileKind::File, self.ino, content.0.len() as u64, content.1);
        Ok(Stat { links, mode, uid, gid, ..stat })
    }

    fn put(&self, bytes: &[u8], offset: u64) {
        let change = Change::Write { ino: self.ino, offset, bytes: bytes.to_vec() };
        self.shared.history.lock().push(change);
        let mut content = self.content.lock();
        write(&mut content.0, offset, bytes);
        content.1 = self.shared.tick();
    }
}

/// Writes to a file's content, which is extended with zeros as needed.
fn write(content: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    // Files of tests fit into memory.
    let at = to_usize(offset);
    if content.len() < at + bytes.len() {
        content.resize(at + bytes.len(), 0);
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

impl StorageFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.shared.faults.check(false)?;
        let content = self.content.lock();
        let rest = content.0.get(to_usize(offset)..);
        let rest = rest.unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.shared.faults.check(false)?;
        self.stat_now()
    }

    fn posix(&self) -> Option<&dyn PosixFile> {
        Some(self)
    }
}

impl PosixFile for MemoryFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Err(fault) = self.shared.faults.check(true) {
            if fault.half_done {
                self.put(&bytes[..bytes.len() / 2], offset);
            }
            return Err(fault.into());
        }
        self.put(bytes, offset);
        Ok(())
    }

    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        self.write_at(bytes, self.stat()?.size)
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.shared.faults.check(true)?;
        self.shared.history.lock().push(Change::SetLength { ino: self.ino, length });
        let mut content = self.content.lock();
        content.0.resize(to_usize(length), 0);
        content.1 = self.shared.tick();
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let synced = self.shared.faults.check(true);
        let ino = self.ino;
        let change = if synced.is_ok() { Change::Sync { ino } } else { Change::SyncFailed { ino } };
        self.shared.history.lock().push(change);
        Ok(synced?)
    }

    fn set_owner(&self, like: &Stat) -> io::Result<()> {
        let (mode, uid, gid) = (Some(like.mode), Some(like.uid), Some(like.gid));
        self.set_stat(&SetStat { mode, uid, gid, ..SetStat::default() })
    }

    fn set_stat(&self, set: &SetStat) -> io::Result<()> {
        self.shared.faults.check(true)?;
        {
            let mut owner = self.owner.lock();
            let (mode, uid, gid) = *owner;
            *owner = (set.mode.unwrap_or(mode), set.uid.unwrap_or(uid), set.gid.unwrap_or(gid));
        }
        // Not with the owner locked: `stat_now` locks the two the other way round.
        if set.mtime.is_some() {
            self.content.lock().1 = self.shared.tick();
        }
        Ok(())
    }

    /// Does nothing: tests of locks use real files.
    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn unlock(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Counts a name that a file has lost.
pub(super) fn unlinked(file: Option<Arc<MemoryFile>>) {
    if let Some(file) = file {
        file.links.fetch_sub(1, Ordering::Relaxed);
    }
}
