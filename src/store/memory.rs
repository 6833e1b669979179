//! Storage in memory, for tests: it can be changed at any time, fails on demand, and records every
//! change, so that tests can simulate the states in which a power cut may have left it.

mod changes;
mod faults;
mod file;
mod names;
mod shared;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

pub use self::changes::Change;
pub use self::faults::Fault;
use self::file::{MemoryFile, unlinked};
use self::names::Names;
use self::shared::{Shared, stat};
use crate::number::to_usize;

use super::storage::{
    DirItem, FileKind, PosixFile, PosixStorage, SetStat, Space, Stat, Storage, StorageFile, Visit,
};

/// Storage in memory, with files by path. A directory exists if it was created or a file lies below
/// it.
#[derive(Debug, Default)]
pub struct MemoryStorage {
    files: Mutex<Names<Arc<MemoryFile>>>,
    directories: Mutex<Names<()>>,
    /// Symbolic links and their targets, relative to the root.
    symlinks: Mutex<Names<PathBuf>>,
    shared: Arc<Shared>,
    /// `true` if files can be cloned.
    clones: AtomicBool,
    /// Event that happens before a lookup, counted from 1.
    event: Mutex<Option<(u64, Event)>>,
    /// The same before a removal of a file.
    removal_event: Mutex<Option<(u64, Event)>>,
}

/// Action of another process between two operations.
enum Event {
    /// A file appears.
    File(String, Vec<u8>),
    /// An arbitrary action, on the storage, too.
    Act(Box<dyn FnOnce() + Send>),
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path, _) => write!(f, "{path} appears"),
            Self::Act(_) => f.write_str("something happens"),
        }
    }
}

impl MemoryStorage {
    /// Creates a storage with these files, as a power cut left them.
    pub fn with_files(
        files: impl IntoIterator<Item = (PathBuf, u64, Vec<u8>)>,
        directories: BTreeSet<PathBuf>,
    ) -> Self {
        let storage = Self::default();
        for directory in directories {
            storage.directories.lock().insert(&directory, ());
        }
        for (path, ino, content) in files {
            let file = storage.file_of(ino, content);
            storage.shared.clock.fetch_max(ino, Ordering::Relaxed);
            storage.put(&path, file);
        }
        storage
    }

    /// Puts a symbolic link to `target`, relative to the root, at `path`.
    pub fn put_symlink(&self, path: &str, target: &str) {
        self.symlinks.lock().insert(Path::new(path), target.into());
    }

    /// Resolves the symbolic links on the way to a path and in its place.
    fn resolved<'a>(&self, path: &'a Path) -> io::Result<Cow<'a, Path>> {
        const MOST_LINKS: usize = 40;
        let symlinks = self.symlinks.lock();
        if symlinks.is_empty() {
            return Ok(Cow::Borrowed(path));
        }
        let mut resolved = path.to_owned();
        for _ in 0..MOST_LINKS {
            let mut above: Vec<&Path> = resolved.ancestors().collect();
            above.reverse();
            let link = above.into_iter().find_map(|at| Some((at, symlinks.get(at)?)));
            let Some((link, target)) = link else { return Ok(Cow::Owned(resolved)) };
            let rest = resolved.strip_prefix(link).unwrap_or(Path::new(""));
            resolved = if rest.as_os_str().is_empty() { target.clone() } else { target.join(rest) };
        }
        Err(errno(libc::ELOOP))
    }

    /// Fails if there is a symbolic link on the way to a name.
    fn no_symlinks_above(&self, path: &Path) -> io::Result<()> {
        let symlinks = self.symlinks.lock();
        let is_link = |above: &Path| symlinks.contains(above);
        match !symlinks.is_empty() && path.ancestors().skip(1).any(is_link) {
            true => Err(errno(libc::ELOOP)),
            false => Ok(()),
        }
    }

    fn is_symlink(&self, path: &Path) -> bool {
        self.symlinks.lock().contains(path)
    }

    /// Allows files to be cloned.
    pub fn allow_clones(&self) {
        self.clones.store(true, Ordering::Relaxed);
    }

    /// Replaces the file at `path` by a new one, as a rename does.
    pub fn replace(&self, path: &str, content: impl Into<Vec<u8>>) {
        let tick = self.tick();
        self.shared.renamed.store(tick, Ordering::Relaxed);
        let file = self.file_of(tick, content.into());
        self.put(Path::new(path), file);
    }

    /// Changes the bytes of a file in place.
    pub fn change(&self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let tick = self.tick();
        if let Some(file) = self.files.lock().get(Path::new(path)) {
            let mut content = file.content.lock();
            change(&mut content.0);
            content.1 = tick;
        }
    }

    /// Removes a file.
    pub fn remove(&self, path: &str) {
        self.shared.renamed.store(self.tick(), Ordering::Relaxed);
        self.take(Path::new(path));
    }

    /// Returns the existing files: path, inode number, content.
    pub fn files(&self) -> Vec<(PathBuf, u64, Vec<u8>)> {
        let files = self.files.lock();
        let content = |file: &MemoryFile| file.content.lock().0.clone();
        let one = |(path, file): (&Path, &Arc<MemoryFile>)| (path.into(), file.ino, content(file));
        let mut files: Vec<(PathBuf, u64, Vec<u8>)> = files.iter().map(one).collect();
        files.sort_by(|a, b| a.0.cmp(&b.0));
        files
    }

    /// Returns the directories that were created.
    pub fn directories(&self) -> BTreeSet<PathBuf> {
        self.directories.lock().iter().map(|(path, ())| path.to_owned()).collect()
    }

    /// Returns the changes since the start, or since they were last taken.
    pub fn take_history(&self) -> Vec<Change> {
        std::mem::take(&mut self.shared.history.lock())
    }

    /// Makes the `nth` operation from now, counted from 1, fail with EIO, once.
    pub fn fail_nth(&self, nth: u64) {
        let fault = Fault { errno: libc::EIO, times: 1, half_done: false, changes_only: false };
        self.fail(nth, fault);
    }

    /// Makes the `nth` operation from now, counted from 1, fail; 0 disables failures.
    pub fn fail(&self, nth: u64, fault: Fault) {
        *self.shared.faults.fault.lock() = (nth > 0).then_some((nth, fault));
    }

    /// Disables failures. Returns whether one was still to come.
    pub fn fail_no_more(&self) -> bool {
        self.shared.faults.fault.lock().take().is_some()
    }

    /// Makes a file appear before the `nth` lookup or listing from now, counted from 1, as if
    /// another process created it.
    pub fn appear(&self, nth: u64, path: &str, content: Vec<u8>) {
        *self.event.lock() = Some((nth, Event::File(path.to_owned(), content)));
    }

    /// Runs `act` before the `nth` lookup or listing from now, counted from 1.
    pub fn act_before(&self, nth: u64, act: impl FnOnce() + Send + 'static) {
        *self.event.lock() = Some((nth, Event::Act(Box::new(act))));
    }

    /// Runs `act` before the `nth` removal of a file from now, counted from 1.
    pub fn act_before_removal(&self, nth: u64, act: impl FnOnce() + Send + 'static) {
        *self.removal_event.lock() = Some((nth, Event::Act(Box::new(act))));
    }

    /// Counts a lookup or listing, and triggers the pending event when it is due.
    fn look(&self) -> io::Result<()> {
        self.trigger(&self.event);
        Ok(self.shared.faults.check(false)?)
    }

    /// Triggers a pending event when it is due.
    fn trigger(&self, pending: &Mutex<Option<(u64, Event)>>) {
        let event = {
            let mut event = pending.lock();
            if let Some((left, _)) = &mut *event {
                *left -= 1;
            }
            event.take_if(|(left, _)| *left == 0)
        };
        match event {
            Some((_, Event::File(path, content))) => self.replace(&path, content),
            Some((_, Event::Act(act))) => act(),
            None => (),
        }
    }

    /// Returns whether an operation has failed on demand.
    pub fn has_failed(&self) -> bool {
        self.shared.faults.failed.load(Ordering::Relaxed) > 0
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.shared.faults.operations.load(Ordering::Relaxed)
    }

    fn tick(&self) -> u64 {
        self.shared.tick()
    }

    fn file_of(&self, ino: u64, content: Vec<u8>) -> Arc<MemoryFile> {
        let content = Mutex::new((content, ino));
        let links = AtomicU64::new(0);
        let owner = Mutex::new((0o644, 0, 0));
        Arc::new(MemoryFile { ino, links, owner, content, shared: Arc::clone(&self.shared) })
    }

    /// Gives a file a name, replacing the file that has it.
    fn put(&self, path: &Path, file: Arc<MemoryFile>) {
        file.links.fetch_add(1, Ordering::Relaxed);
        unlinked(self.files.lock().insert(path, file));
    }

    /// Removes a name.
    fn take(&self, path: &Path) {
        unlinked(self.files.lock().remove(path));
    }

    fn file(&self, path: &Path) -> io::Result<Arc<MemoryFile>> {
        self.files.lock().get(path).cloned().ok_or_else(|| errno(libc::ENOENT))
    }

    fn children(&self, path: &Path) -> BTreeMap<OsString, FileKind> {
        let mut children = BTreeMap::new();
        let mut put = |below: &Path, kind: FileKind| {
            let mut parts = below.components();
            if let Some(name) = parts.next() {
                let kind = if parts.next().is_some() { FileKind::Directory } else { kind };
                children.insert(name.as_os_str().to_owned(), kind);
            }
        };
        self.files.lock().below(path, |file| put(file, FileKind::File));
        self.directories.lock().below(path, |made| put(made, FileKind::Directory));
        self.symlinks.lock().below(path, |link| put(link, FileKind::Symlink));
        children
    }

    /// Renames a directory. Directories exist through the paths of files, so each file is renamed.
    fn rename_directory(&self, from: &Path, to: &Path) -> io::Result<()> {
        if !self.children(to).is_empty() {
            return Err(errno(libc::ENOTEMPTY));
        }
        let new_name = |path: &Path| Some(to.join(path.strip_prefix(from).ok()?));
        let files: Vec<PathBuf> =
            self.files.lock().iter().map(|(path, _)| path.to_owned()).collect();
        for file in files {
            let Some(renamed) = new_name(&file) else { continue };
            let above = renamed.ancestors().skip(1).take_while(|above| above.starts_with(to));
            for above in above {
                self.directories.lock().insert(above, ());
            }
            self.rename(&file, &renamed)?;
        }
        let mut directories = self.directories.lock();
        let mut renamed = Names::default();
        for (path, ()) in directories.iter() {
            renamed.insert(&new_name(path).unwrap_or_else(|| path.to_owned()), ());
        }
        *directories = renamed;
        Ok(())
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.as_os_str().is_empty()
            || self.directories.lock().contains(path)
            || self.files.lock().has_below(path)
            || self.directories.lock().has_below(path)
    }

    /// Records a change of names. It may fail on demand, and fails if a parent directory does not
    /// exist.
    fn change_names(&self, paths: &[&Path], change: Change) -> io::Result<()> {
        self.shared.faults.check(true)?;
        paths.iter().try_for_each(|path| self.no_symlinks_above(path))?;
        let has_parent = |path: &Path| path.parent().is_none_or(|above| self.is_directory(above));
        if !paths.iter().all(|path| has_parent(path)) {
            return Err(errno(libc::ENOENT));
        }
        self.shared.renamed.store(self.tick(), Ordering::Relaxed);
        self.shared.history.lock().push(change);
        Ok(())
    }

    fn make(&self, path: &Path, content: Vec<u8>, mode: u32) -> io::Result<Arc<dyn PosixFile>> {
        self.no_symlinks_above(path)?;
        if self.files.lock().contains(path) || self.is_directory(path) || self.is_symlink(path) {
            return Err(errno(libc::EEXIST));
        }
        let ino = self.tick();
        self.change_names(&[path], Change::Name { path: path.to_owned(), ino })?;
        if !content.is_empty() {
            let bytes = content.clone();
            self.shared.history.lock().push(Change::Write { ino, offset: 0, bytes });
        }
        let file = self.file_of(ino, content);
        file.owner.lock().0 = mode;
        self.put(path, Arc::clone(&file));
        Ok(file)
    }
}

impl Storage for MemoryStorage {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.open_file(path)?)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.lstat(&self.resolved(path)?)
    }

    fn lstat(&self, path: &Path) -> io::Result<Stat> {
        self.look()?;
        if self.is_symlink(path) {
            return Ok(stat(FileKind::Symlink, number_of(path), 0, 0));
        }
        let parent = path.parent().map(|parent| self.resolved(parent)).transpose()?;
        let path = &*match (parent, path.file_name()) {
            (Some(Cow::Owned(parent)), Some(name)) => Cow::Owned(parent.join(name)),
            _ => Cow::Borrowed(path),
        };
        if self.is_directory(path) {
            let renamed = self.shared.renamed.load(Ordering::Relaxed);
            return Ok(stat(FileKind::Directory, number_of(path), 0, renamed));
        }
        self.file(path)?.stat_now()
    }

    fn list(&self, path: &Path, from: u64, visit: &mut Visit<'_>) -> io::Result<()> {
        self.look()?;
        let path = &*self.resolved(path)?;
        if !self.is_directory(path) {
            return Err(errno(libc::ENOENT));
        }
        let children = self.children(path);
        for (next, (name, kind)) in (1..).zip(&children).skip(to_usize(from)) {
            let item = DirItem { name: OsStr::new(name), kind: Some(*kind), next };
            if visit(item) == ControlFlow::Break(()) {
                break;
            }
        }
        Ok(())
    }

    fn posix(&self) -> Option<&dyn PosixStorage> {
        Some(self)
    }
}

impl PosixStorage for MemoryStorage {
    fn open_file(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        self.look()?;
        Ok(self.file(&self.resolved(path)?)?)
    }

    fn open_plain(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        self.look()?;
        self.no_symlinks_above(path)?;
        if self.is_symlink(path) {
            return Err(errno(libc::ELOOP));
        }
        if self.is_directory(path) {
            return Err(errno(libc::EISDIR));
        }
        Ok(self.file(path)?)
    }

    fn read_link(&self, _path: &Path) -> io::Result<OsString> {
        Err(errno(libc::EINVAL))
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space::default())
    }

    fn open_writable(&self, path: &Path) -> io::Result<Arc<dyn PosixFile>> {
        self.open_plain(path)
    }

    fn create(&self, path: &Path, mode: u32) -> io::Result<Arc<dyn PosixFile>> {
        self.make(path, Vec::new(), mode & !0o022)
    }

    fn clone_file(
        &self,
        original: &Path,
        path: &Path,
        mode: u32,
    ) -> io::Result<Arc<dyn PosixFile>> {
        if !self.clones.load(Ordering::Relaxed) {
            return Err(errno(libc::EOPNOTSUPP));
        }
        self.look()?;
        let content = self.file(&self.resolved(original)?)?.content.lock().0.clone();
        self.make(path, content, mode & !0o022)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.no_symlinks_above(from)?;
        if self.is_directory(from) {
            return self.rename_directory(from, to);
        }
        let file = self.file(from)?;
        if self.file(to).is_ok_and(|there| Arc::ptr_eq(&there, &file)) {
            // A rename between two hard links of one file does nothing.
            return Ok(());
        }
        let (paths, ino) = ((from.to_owned(), to.to_owned()), file.ino);
        self.change_names(&[from, to], Change::Rename { from: paths.0, to: paths.1, ino })?;
        let mut files = self.files.lock();
        files.remove(from);
        unlinked(files.insert(to, file));
        self.symlinks.lock().remove(to);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.trigger(&self.removal_event);
        self.no_symlinks_above(path)?;
        if self.is_directory(path) {
            return Err(errno(libc::EISDIR));
        }
        if self.symlinks.lock().remove(path).is_some() {
            return Ok(());
        }
        self.file(path)?;
        self.change_names(&[path], Change::Remove { path: path.to_owned() })?;
        self.take(path);
        Ok(())
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.no_symlinks_above(path)?;
        if self.is_directory(path) || self.file(path).is_ok() || self.is_symlink(path) {
            return Err(errno(libc::EEXIST));
        }
        self.change_names(&[path], Change::MakeDirectory { path: path.to_owned() })?;
        self.directories.lock().insert(path, ());
        Ok(())
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        if !self.is_directory(path) {
            return Err(errno(libc::ENOENT));
        }
        if !self.children(path).is_empty() {
            return Err(errno(libc::ENOTEMPTY));
        }
        self.change_names(&[path], Change::RemoveDirectory { path: path.to_owned() })?;
        self.directories.lock().remove(path);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let file = self.file(from)?;
        if self.file(to).is_ok() {
            return Err(errno(libc::EEXIST));
        }
        self.change_names(&[to], Change::Name { path: to.to_owned(), ino: file.ino })?;
        self.put(to, file);
        Ok(())
    }

    /// Fails with EPERM: tests create symbolic links with [`MemoryStorage::put_symlink`].
    fn symlink(&self, _target: &Path, _path: &Path) -> io::Result<()> {
        Err(errno(libc::EPERM))
    }

    /// Changes a file's attributes. All directories have the same owner and permissions, which
    /// stay.
    fn set_stat(&self, path: &Path, set: &SetStat) -> io::Result<()> {
        match self.file(path) {
            Ok(file) => file.set_stat(set),
            Err(_) => Ok(self.shared.faults.check(true)?),
        }
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.shared.faults.check(true)?;
        self.shared.history.lock().push(Change::SyncDirectory { path: path.to_owned() });
        Ok(())
    }
}

fn errno(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno)
}

/// Returns an inode number for a path without a file, distinct from those of files, which count
/// from 1.
fn number_of(path: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish() | 1 << 63
}
