//! What is in a source for this process alone: files that are being written, and empty directories, which a store of
//! objects does not have.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::whole_file::WholeFile;
use crate::store::storage::FileKind;

/// Files and directories that the store does not have, or not as they are here.
#[derive(Default)]
pub(super) struct Unstored(Mutex<State>);

#[derive(Default)]
struct State {
    /// Files that are open for writing, each with a number of its own.
    files: BTreeMap<PathBuf, (u64, Weak<WholeFile>)>,
    /// Directories in which there was nothing when they were made, or when the last file in them was removed.
    directories: BTreeMap<PathBuf, u64>,
    /// The last number: readers of a directory go on after one.
    last: u64,
}

impl State {
    fn add(&mut self, path: &Path, file: Arc<WholeFile>) -> Arc<WholeFile> {
        self.files.retain(|_, (_, file)| file.strong_count() > 0);
        self.last += 1;
        self.files.insert(path.to_owned(), (self.last, Arc::downgrade(&file)));
        file
    }
}

/// Name in a directory that the store may not have.
pub(super) struct Here {
    pub name: PathBuf,
    pub kind: FileKind,
    /// Number that it keeps.
    pub number: u64,
}

impl Unstored {
    /// Returns the file at a path that is open for writing.
    pub(super) fn file(&self, path: &Path) -> Option<Arc<WholeFile>> {
        self.0.lock().files.get(path)?.1.upgrade()
    }

    /// Adds a file that is open for writing, in the place of another one.
    pub(super) fn put_file(&self, path: &Path, file: Arc<WholeFile>) {
        self.0.lock().add(path, file);
    }

    /// Adds a file that is opened for writing as the version with this entity tag, or as a new one. Returns the one that is
    /// there already, if it is that version or was written to. `None` if `is_last`, which is asked under the lock, says
    /// that this mount has put another version, or has found one, since this one was asked for.
    pub(super) fn open_file(
        &self,
        path: &Path,
        tag: Option<&str>,
        file: Arc<WholeFile>,
        is_last: impl FnOnce() -> bool,
    ) -> Option<Arc<WholeFile>> {
        let mut state = self.0.lock();
        let there = state.files.get(path).and_then(|(_, file)| file.upgrade());
        if let Some(there) = there
            && (there.is_changed() || tag.is_some() && there.is_version(tag))
        {
            return Some(there);
        }
        is_last().then(|| state.add(path, file))
    }

    /// Returns all files that are open for writing.
    pub(super) fn files(&self) -> Vec<(PathBuf, Arc<WholeFile>)> {
        let state = self.0.lock();
        let files = state.files.iter();
        files.filter_map(|(path, (_, file))| Some((path.clone(), file.upgrade()?))).collect()
    }

    /// Takes its name from a file that is open for writing, unless another one has it by now.
    pub(super) fn take_file(&self, path: &Path, file: &Arc<WholeFile>) {
        let files = &mut self.0.lock().files;
        if files.get(path).is_some_and(|(_, there)| Weak::as_ptr(there) == Arc::as_ptr(file)) {
            files.remove(path);
        }
    }

    /// Returns whether something at a path is a directory as long as this process lives.
    pub(super) fn is_directory(&self, path: &Path) -> bool {
        let state = self.0.lock();
        let is_below = |found: Option<(&PathBuf, &u64)>| {
            found.is_some_and(|(found, _)| found.starts_with(path))
        };
        let mut files = state.files.range::<Path, _>(from(path));
        is_below(state.directories.range::<Path, _>(from(path)).next())
            || files
                .by_ref()
                .take_while(|(found, _)| found.starts_with(path))
                .any(|(found, (_, file))| found != path && is_changed(file))
    }

    /// Adds a directory.
    pub(super) fn add_directory(&self, path: &Path) {
        if path.as_os_str().is_empty() {
            return;
        }
        let mut guard = self.0.lock();
        let state = &mut *guard;
        state.last += 1;
        state.directories.entry(path.to_owned()).or_insert(state.last);
    }

    /// Removes a directory. Returns whether it was one of these.
    pub(super) fn take_directory(&self, path: &Path) -> bool {
        self.0.lock().directories.remove(path).is_some()
    }

    /// Returns the names in a directory, sorted by their numbers.
    pub(super) fn names(&self, directory: &Path) -> Vec<Here> {
        let state = self.0.lock();
        let mut names: BTreeMap<PathBuf, (FileKind, u64)> = BTreeMap::new();
        let mut add = |path: &Path, kind, number: u64| {
            let mut below = path.strip_prefix(directory).ok()?.iter();
            let name = PathBuf::from(below.next()?);
            let kind = if below.next().is_some() { FileKind::Directory } else { kind };
            // That of the first one below a directory.
            let known = names.entry(name).or_insert((kind, number));
            *known = (kind, known.1.min(number));
            Some(())
        };
        let is_below = |path: &Path| path.starts_with(directory);
        let directories = state.directories.range::<Path, _>(from(directory));
        for (path, number) in directories.take_while(|(path, _)| is_below(path)) {
            add(path, FileKind::Directory, *number);
        }
        let files = state.files.range::<Path, _>(from(directory));
        for (path, (number, file)) in files.take_while(|(path, _)| is_below(path)) {
            if is_changed(file) {
                add(path, FileKind::File, *number);
            }
        }
        let here = |(name, (kind, number))| Here { name, kind, number };
        let mut names: Vec<Here> = names.into_iter().map(here).collect();
        names.sort_by_key(|here| here.number);
        names
    }
}

/// Returns whether a file is still open, and not stored as it is.
fn is_changed(file: &Weak<WholeFile>) -> bool {
    file.upgrade().is_some_and(|file| file.is_changed())
}

/// Returns the range of what follows a path, and of the path. Paths are sorted by their parts: what is below a path
/// comes first.
fn from(path: &Path) -> (Bound<&Path>, Bound<&Path>) {
    (Bound::Included(path), Bound::Unbounded)
}
