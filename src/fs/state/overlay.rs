//! Overlay of a writable mount: files that are being written or wait for their commit, removed
//! chunks, created directories, and files whose names are not chunk keys, which exist in the mount
//! alone.
//!
//! Everything is found by its path in the view. A file is there once, whatever its names: a rename
//! moves its name, a link adds one, and open handles keep reading and writing it.

pub(in crate::fs) mod files;
mod promises;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::ops::{Bound, Deref};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::fs::state::live_file::{LiveFile, LiveState, Number, Place};
use crate::fs::state::order::Promise;
use crate::store::content::Content;
use crate::store::identity::Identity;
use crate::store::storage::{Stat, Version};
use crate::store::{Base, StoreError};
use crate::view::inode;

/// Name in the view.
#[derive(Debug, Clone)]
pub(in crate::fs) struct Name {
    pub what: What,
    /// Position of the chunk; `None` for other files.
    pub place: Option<Place>,
    pub stage: Option<Stage>,
    /// Number by which listings order other files: no two names have the same.
    pub number: u64,
    /// Promises to others that the file will be durable under this name.
    pub made: Vec<Arc<Promise>>,
    /// Promises that must be kept before its change may be committed.
    pub after: Vec<Arc<Promise>>,
    /// File of the source that was renamed away and is to be removed.
    pub hidden: Option<Hidden>,
    /// Version of the document in the source that was removed and stays there while its array does.
    pub document: Option<Version>,
    /// Error of the last failed commit of its change.
    pub error: Option<Arc<StoreError>>,
}

/// File of the source that is to be removed.
#[derive(Debug, Clone)]
pub(in crate::fs) struct Hidden {
    /// The file: another process may put a different one in its place.
    pub stat: Stat,
    /// Identity of the caller that renamed it away.
    pub by: Identity,
}

/// Object that a name stands for.
#[derive(Debug, Clone)]
pub(in crate::fs) enum What {
    File(Arc<LiveFile>),
    /// Nothing: the name was removed.
    Removed,
    /// A directory that was created.
    Directory,
}

/// Chunk that is being changed.
#[derive(Debug, Clone)]
pub(in crate::fs) struct Stage {
    /// State of the chunk when the change began.
    pub base: Base,
    /// Change to commit; `None` while it is being written.
    pub change: Option<Change>,
}

/// Change of a chunk.
#[derive(Debug, Clone)]
pub(in crate::fs) struct Change {
    /// New bytes; `None` if the chunk is removed.
    pub content: Option<Content>,
    /// Bytes of its file as readers see them; `None` if there is no such file.
    pub shown: Option<Content>,
    /// Unique number of the change.
    pub number: u64,
}

/// Overlay: all names of the view that differ from those of the source.
#[derive(Debug, Default)]
pub(in crate::fs) struct Overlay {
    pub(in crate::fs) names: Mutex<Names>,
    pub(in crate::fs) dirty: Arc<AtomicU64>,
}

/// Names, by directory and name.
#[derive(Debug, Default)]
pub(in crate::fs) struct Names {
    /// Paths are ordered by their components: everything below a directory is contiguous.
    pub(in crate::fs) directories: BTreeMap<PathBuf, BTreeMap<OsString, Name>>,
    /// Files by inode number.
    pub(in crate::fs) inodes: HashMap<u64, Arc<LiveFile>>,
    /// Lookup count of each number that the kernel knows, of files of the overlay and of chunks:
    /// lookups reported to it, less those that it has forgotten. It may forget some of them, and go on
    /// to use the number.
    pub(in crate::fs) lookups: HashMap<u64, u64>,
    pub(in crate::fs) numbers: u64,
    /// Promises of names that are not durable yet, by the file of the source that was linked to
    /// them.
    pub(in crate::fs) links: HashMap<PathBuf, Vec<Arc<Promise>>>,
    /// `true` if a promise was broken since the removals that depend on it were last looked for.
    pub(in crate::fs) is_broken: bool,
}

/// File whose bytes stay in the overlay as long as this is there.
pub(in crate::fs) struct Kept<'a> {
    overlay: &'a Overlay,
    file: Arc<LiveFile>,
}

impl Deref for Kept<'_> {
    type Target = Arc<LiveFile>;

    fn deref(&self) -> &Arc<LiveFile> {
        &self.file
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.file.state().uses -= 1;
        self.overlay.names().drop_unused(&self.file);
    }
}

impl Overlay {
    /// Keeps the bytes of a file in the overlay once they are there. It must not be given up while
    /// the names are locked.
    pub(in crate::fs) fn keep(&self, file: Arc<LiveFile>) -> Kept<'_> {
        file.state().uses += 1;
        Kept { overlay: self, file }
    }

    /// Locks the names. No I/O may be done while the guard lives.
    pub(in crate::fs) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock()
    }

    /// Returns the number of uncommitted bytes, in memory and in spool files.
    pub(in crate::fs) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Creates a file without a name. Its inode number is `number`, which the kernel may know already,
    /// unless another file has that number. `names` are those of this overlay: whoever creates the file of
    /// a name that exists keeps them locked until it is named, so that of two who do so none gives it
    /// another number.
    pub(in crate::fs) fn file(
        &self,
        names: &mut Names,
        number: Option<Number>,
        state: LiveState,
    ) -> Arc<LiveFile> {
        let is_free = |number: &Number| !names.inodes.contains_key(&number.ino);
        let Number { ino, generation } = number.filter(is_free).unwrap_or_else(|| {
            loop {
                let ino = inode::of_live(names.next_number());
                if !names.inodes.contains_key(&ino) && !names.lookups.contains_key(&ino) {
                    break Number { ino, generation: 0 };
                }
            }
        });
        let (counted, dirty) = (AtomicU64::new(0), Arc::clone(&self.dirty));
        let file = Arc::new(LiveFile {
            ino,
            generation,
            turn: Mutex::default(),
            state: Mutex::new(state),
            counted,
            dirty,
        });
        names.inodes.insert(ino, Arc::clone(&file));
        file
    }
}

impl Names {
    pub(in crate::fs) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(in crate::fs) fn get(&self, path: &Path) -> Option<&Name> {
        self.directories.get(path.parent()?)?.get(path.file_name()?)
    }

    pub(in crate::fs) fn get_mut(&mut self, path: &Path) -> Option<&mut Name> {
        self.directories.get_mut(path.parent()?)?.get_mut(path.file_name()?)
    }

    /// Returns the file that a name stands for; `None` if it stands for none.
    pub(in crate::fs) fn file(&self, path: &Path) -> Option<Arc<LiveFile>> {
        match &self.get(path)?.what {
            What::File(file) => Some(Arc::clone(file)),
            What::Removed | What::Directory => None,
        }
    }

    /// Returns a name if it is one of `file`: others may have taken it away since the file's names
    /// were read.
    pub(in crate::fs) fn of_file(
        &mut self,
        path: &Path,
        file: &Arc<LiveFile>,
    ) -> Option<&mut Name> {
        let is_its =
            |name: &&mut Name| matches!(&name.what, What::File(it) if Arc::ptr_eq(it, file));
        self.get_mut(path).filter(is_its)
    }

    /// Returns the names in a directory.
    pub(in crate::fs) fn below(
        &self,
        directory: &Path,
    ) -> impl Iterator<Item = (&OsString, &Name)> {
        self.directories.get(directory).into_iter().flatten()
    }

    /// Returns the first components, below a directory, of the directories that contain something.
    pub(in crate::fs) fn directories_below(&self, above: &Path) -> BTreeSet<&OsStr> {
        let from = (Bound::Excluded(above), Bound::Unbounded);
        let inside = self.directories.range::<Path, _>(from);
        let inside = inside.take_while(|(directory, _)| directory.starts_with(above));
        inside
            .filter(|(_, names)| names.values().any(|name| !matches!(name.what, What::Removed)))
            .filter_map(|(directory, _)| directory.strip_prefix(above).ok()?.iter().next())
            .collect()
    }

    /// Returns every name at or below a path.
    pub(in crate::fs) fn all<'a>(
        &'a self,
        below: &'a Path,
    ) -> impl Iterator<Item = (PathBuf, &'a Name)> + 'a {
        let own = self.get(below).map(|name| (below.to_owned(), name));
        let named = |directory: &Path, name: &OsStr| directory.join(name);
        let directories =
            self.directories.range::<Path, _>((Bound::Included(below), Bound::Unbounded));
        let inside = directories.take_while(move |(directory, _)| directory.starts_with(below));
        own.into_iter().chain(inside.flat_map(move |(directory, names)| {
            names.iter().map(move |(name, entry)| (named(directory, name), entry))
        }))
    }

    pub(in crate::fs) fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    /// Inserts a name, replacing the one that was there.
    pub(in crate::fs) fn put(
        &mut self,
        path: &Path,
        what: What,
        place: Option<Place>,
    ) -> &mut Name {
        let number = self.next_number();
        let (directory, name) = split(path);
        if let What::File(file) = &what {
            let mut state = file.state();
            if !state.names.iter().any(|name| name == path) {
                state.names.push(path.to_owned());
            }
        }
        let names = self.directories.entry(directory.to_owned()).or_default();
        let entry = names.entry(name.to_owned()).or_insert(Name {
            what: What::Removed,
            place: None,
            stage: None,
            number,
            made: Vec::new(),
            after: Vec::new(),
            hidden: None,
            document: None,
            error: None,
        });
        let before = std::mem::replace(&mut entry.what, what);
        entry.place = place;
        if let (What::File(before), What::File(now)) = (&before, &entry.what)
            && Arc::ptr_eq(before, now)
        {
            return entry;
        }
        unname(&before, path);
        entry
    }

    /// Removes the directories at and below a path that the mount alone has.
    pub(in crate::fs) fn take_directories(&mut self, below: &Path) {
        let made = self.all(below).filter(|(_, name)| matches!(name.what, What::Directory));
        let made: Vec<PathBuf> = made.map(|(path, _)| path).collect();
        made.iter().for_each(|path| drop(self.take(path)));
    }

    /// Removes a name.
    pub(in crate::fs) fn take(&mut self, path: &Path) -> Option<Name> {
        let (directory, name) = split(path);
        let names = self.directories.get_mut(directory)?;
        let taken = names.remove(name);
        if names.is_empty() {
            self.directories.remove(directory);
        }
        let taken = taken?;
        unname(&taken.what, path);
        // A removed file need not become durable.
        taken.made.iter().for_each(|promise| promise.keep());
        Some(taken)
    }
}

/// Removes a name from the file that it stood for.
pub(in crate::fs) fn unname(what: &What, path: &Path) {
    if let What::File(file) = what {
        let mut state = file.state();
        state.names.retain(|name| name != path);
        if state.is_copied && state.names.is_empty() {
            state.open_files().iter().for_each(|open| open.leave());
        }
    }
}

pub(in crate::fs) fn split(path: &Path) -> (&Path, &OsStr) {
    // The mount's root has no name.
    (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default())
}
