//! A source in memory, for tests: it can be changed at any time and fails on command.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::storage::{DirItem, FileKind, Space, Stat, Storage, StorageFile, Timestamp, Visit};

/// Files by path; a directory exists where a file lies below it.
#[derive(Debug, Default)]
pub struct MemoryStorage {
    files: Mutex<BTreeMap<PathBuf, Arc<MemoryFile>>>,
    /// Every change is a tick; files are dated with it.
    clock: AtomicU64,
    /// When a file was last put in or taken out; every directory is dated with it.
    renamed: AtomicU64,
    faults: Arc<Faults>,
}

/// Makes one operation fail.
#[derive(Debug, Default)]
struct Faults {
    /// Operations until the failing one, counted from 1; 0 for none.
    countdown: AtomicU64,
    failed: AtomicU64,
    operations: AtomicU64,
}

impl Faults {
    fn check(&self) -> io::Result<()> {
        self.operations.fetch_add(1, Ordering::Relaxed);
        let due = |left: u64| left.checked_sub(1);
        match self.countdown.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due) {
            Ok(1) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                Err(io::Error::from_raw_os_error(libc::EIO))
            }
            _ => Ok(()),
        }
    }
}

#[derive(Debug)]
struct MemoryFile {
    ino: u64,
    content: Mutex<(Vec<u8>, u64)>,
    faults: Arc<Faults>,
}

impl MemoryStorage {
    /// Puts a new file in the place of `path`, as a rename does.
    pub fn replace(&self, path: &str, content: impl Into<Vec<u8>>) {
        let tick = self.tick();
        self.renamed.store(tick, Ordering::Relaxed);
        let content = Mutex::new((content.into(), tick));
        let file = MemoryFile { ino: tick, content, faults: Arc::clone(&self.faults) };
        self.lock().insert(path.into(), Arc::new(file));
    }

    /// Changes the bytes of a file in place.
    pub fn change(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let tick = self.tick();
        if let Some(file) = self.lock().get(Path::new(path)) {
            let mut content = file.content.lock().unwrap_or_else(PoisonError::into_inner);
            change(&mut content.0);
            content.1 = tick;
        }
    }

    /// Removes a file.
    pub fn remove(&self, path: &str) {
        self.renamed.store(self.tick(), Ordering::Relaxed);
        self.lock().remove(Path::new(path));
    }

    /// Lets the `nth` operation from now, counted from 1, fail with EIO.
    pub fn fail_nth(&self, nth: u64) {
        self.faults.countdown.store(nth, Ordering::Relaxed);
    }

    /// Whether an operation has failed on command.
    pub fn has_failed(&self) -> bool {
        self.faults.failed.load(Ordering::Relaxed) > 0
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.faults.operations.load(Ordering::Relaxed)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, Arc<MemoryFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, path: &Path) -> io::Result<Arc<MemoryFile>> {
        let files = self.lock();
        let error = || io::Error::from_raw_os_error(libc::ENOENT);
        files.get(path).cloned().ok_or_else(error)
    }

    fn children(&self, path: &Path) -> BTreeMap<OsString, FileKind> {
        let mut children = BTreeMap::new();
        for file in self.lock().keys() {
            let Ok(below) = file.strip_prefix(path) else {
                continue;
            };
            let mut parts = below.components();
            if let Some(name) = parts.next() {
                let kind =
                    if parts.next().is_some() { FileKind::Directory } else { FileKind::File };
                children.insert(name.as_os_str().to_owned(), kind);
            }
        }
        children
    }
}

impl Storage for MemoryStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        self.faults.check()?;
        Ok(self.file(path)?)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.lstat(path)
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.faults.check()?;
        if path.as_os_str().is_empty() || !self.children(path).is_empty() {
            return Ok(stat(FileKind::Directory, 1, 0, self.renamed.load(Ordering::Relaxed)));
        }
        self.file(path)?.stat_now()
    }

    fn read_link(&self, _path: &Path) -> io::Result<OsString> {
        Err(io::Error::from_raw_os_error(libc::EINVAL))
    }

    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        self.faults.check()?;
        let children = self.children(path);
        if children.is_empty() && !path.as_os_str().is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        for (next, (name, kind)) in (1..).zip(&children).skip(usize::try_from(from).unwrap_or(0)) {
            let item = DirItem { name: OsStr::new(name), kind: Some(*kind), next };
            if visit(item) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space::default())
    }
}

impl MemoryFile {
    fn stat_now(&self) -> io::Result<Stat> {
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(stat(FileKind::File, self.ino, content.0.len() as u64, content.1))
    }
}

impl StorageFile for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.faults.check()?;
        let content = self.content.lock().unwrap_or_else(PoisonError::into_inner);
        let rest = usize::try_from(offset).ok().and_then(|offset| content.0.get(offset..));
        let rest = rest.unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }

    fn stat(&self) -> io::Result<Stat> {
        self.faults.check()?;
        self.stat_now()
    }
}

fn stat(kind: FileKind, ino: u64, size: u64, tick: u64) -> Stat {
    let time = Timestamp { seconds: i64::try_from(tick).unwrap_or(i64::MAX), nanoseconds: 0 };
    let mode = if kind == FileKind::Directory { 0o755 } else { 0o644 };
    Stat { dev: 1, ino, kind, mode, uid: 0, gid: 0, size, mtime: time, ctime: time }
}
