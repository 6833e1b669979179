//! What a writable mount knows before its shards do: files that are being written or wait for
//! their commit, chunks that were removed, directories that were made, and files with names that
//! are no chunk key, which live in the mount alone.
//!
//! Everything is found by its path in the view. A file is there once, whatever it is called: a
//! rename moves its name, a link adds one, and who has it open goes on reading and writing it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::nodes::ArrayView;
use crate::format::Coords;
use crate::store::content::Content;
use crate::store::storage::Timestamp;
use crate::store::{Base, StoreError};
use crate::view::inode;

/// A chunk's place: its array and its coordinates.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub array: Arc<ArrayView>,
    pub coords: Coords,
}

/// A file of the mount.
#[derive(Debug)]
pub(super) struct LiveFile {
    /// Its inode number, which it keeps under all its names.
    pub ino: u64,
    /// Held by who hands its bytes over: what was written last must come last.
    turn: Mutex<()>,
    state: Mutex<LiveState>,
    /// Bytes that wait, of this file and of all.
    counted: AtomicU64,
    dirty: Arc<AtomicU64>,
}

/// What changes about a file.
#[derive(Debug)]
pub(super) struct LiveState {
    pub bytes: Bytes,
    /// What others see of it.
    pub shown: Shown,
    /// How often it was written to.
    pub writes: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    /// Its names; none once it was removed.
    pub names: Vec<PathBuf>,
    /// How often it is open.
    pub opened: u64,
    /// It was written since it was last handed over to be committed.
    pub dirty: bool,
    /// Why it could not be committed; told once.
    pub error: Option<Arc<StoreError>>,
}

/// Where a file's bytes are.
#[derive(Debug, Clone)]
pub(super) enum Bytes {
    /// In the shard, as those of this chunk.
    Stored(Place),
    /// Here.
    Here(Content),
}

/// What others see of a file than who writes it. Of a file that is a chunk as it is written they see
/// the same; files of decoded chunks are made of chunks.
#[derive(Debug, Clone, Default)]
pub(super) enum Shown {
    /// Its bytes.
    #[default]
    Written,
    /// Other bytes that make the same chunk.
    Instead(Content),
    /// The chunk as it is stored: what was closed last was refused.
    Stored(Place),
    /// Nothing: what was closed last holds fill values alone.
    Nothing,
}

/// A name in the view.
#[derive(Debug, Clone)]
pub(super) struct Name {
    pub what: What,
    /// Of a chunk; None for other files.
    pub place: Option<Place>,
    pub stage: Option<Stage>,
    /// Listings of other files go by it: no two names have the same.
    pub number: u64,
}

/// What a name stands for.
#[derive(Debug, Clone)]
pub(super) enum What {
    File(Arc<LiveFile>),
    /// Nothing any more.
    Removed,
    /// A directory that was made.
    Directory,
}

/// A chunk that is changed.
#[derive(Debug, Clone)]
pub(super) struct Stage {
    /// What it was when the change began.
    pub base: Base,
    /// What is to be committed; None as long as it is being written.
    pub change: Option<Change>,
}

/// One change of a chunk.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// The new bytes; None: it is removed.
    pub content: Option<Content>,
    /// No two changes have the same.
    pub number: u64,
}

/// All names of the view that are not those of the source.
#[derive(Debug, Default)]
pub(super) struct Overlay {
    names: Mutex<Names>,
    dirty: Arc<AtomicU64>,
}

/// The names, by directory and name.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Paths are ordered by their parts: what is below a directory stands together.
    directories: BTreeMap<PathBuf, BTreeMap<OsString, Name>>,
    inodes: HashMap<u64, Known>,
    numbers: u64,
}

#[derive(Debug)]
struct Known {
    file: Arc<LiveFile>,
    /// How often the kernel was told of it, less what it has forgotten.
    lookups: u64,
}

impl LiveFile {
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> LiveGuard<'_> {
        LiveGuard { file: self, state: self.state.lock().unwrap_or_else(PoisonError::into_inner) }
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        self.dirty.fetch_sub(self.counted.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl LiveState {
    /// Somebody has written to it.
    pub(super) fn written(&mut self) {
        (self.dirty, self.mtime, self.shown) = (true, super::now(), Shown::Written);
        self.writes += 1;
    }

    /// The bytes that others see. Of a file of fill values that somebody still has open these are
    /// what was written.
    pub(super) fn shown(&self) -> Bytes {
        match &self.shown {
            Shown::Written | Shown::Nothing => self.bytes.clone(),
            Shown::Instead(content) => Bytes::Here(content.clone()),
            Shown::Stored(place) => Bytes::Stored(place.clone()),
        }
    }
}

/// A locked file. Its bytes are counted when it is unlocked.
pub(super) struct LiveGuard<'a> {
    file: &'a LiveFile,
    state: MutexGuard<'a, LiveState>,
}

impl std::ops::Deref for LiveGuard<'_> {
    type Target = LiveState;
    fn deref(&self) -> &LiveState {
        &self.state
    }
}

impl std::ops::DerefMut for LiveGuard<'_> {
    fn deref_mut(&mut self) -> &mut LiveState {
        &mut self.state
    }
}

impl Drop for LiveGuard<'_> {
    fn drop(&mut self) {
        let now = match &self.state.bytes {
            Bytes::Here(content) => content.nbytes(),
            Bytes::Stored(_) => 0,
        };
        let before = self.file.counted.swap(now, Ordering::Relaxed);
        // One after the other: the sum is never below zero.
        self.file.dirty.fetch_add(now, Ordering::Relaxed);
        self.file.dirty.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Overlay {
    /// The names, for as long as the guard lives: no I/O meanwhile.
    pub(super) fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that wait, in memory and in spool files.
    pub(super) fn dirty(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// A file without a name; `ino`, which the kernel may know already, if no other file has that
    /// number.
    pub(super) fn file(&self, ino: Option<u64>, state: LiveState) -> Arc<LiveFile> {
        let mut names = self.names();
        let (ino, lookups) = match ino.filter(|ino| !names.inodes.contains_key(ino)) {
            // It forgets all it was told at once: more than it is told from now on.
            Some(ino) => (ino, 1),
            None => loop {
                let ino = inode::of_live(names.next_number());
                if !names.inodes.contains_key(&ino) {
                    break (ino, 0);
                }
            },
        };
        let (counted, dirty) = (AtomicU64::new(0), Arc::clone(&self.dirty));
        let file = Arc::new(LiveFile {
            ino,
            turn: Mutex::default(),
            state: Mutex::new(state),
            counted,
            dirty,
        });
        names.inodes.insert(ino, Known { file: Arc::clone(&file), lookups });
        file
    }
}

impl Names {
    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn get(&self, path: &Path) -> Option<&Name> {
        self.directories.get(path.parent()?)?.get(path.file_name()?)
    }

    pub(super) fn get_mut(&mut self, path: &Path) -> Option<&mut Name> {
        self.directories.get_mut(path.parent()?)?.get_mut(path.file_name()?)
    }

    /// The names in a directory.
    pub(super) fn below(&self, directory: &Path) -> impl Iterator<Item = (&OsString, &Name)> {
        self.directories.get(directory).into_iter().flatten()
    }

    /// The first parts, below a directory, of the directories in which something is.
    pub(super) fn directories_below(&self, above: &Path) -> BTreeSet<&OsStr> {
        let from = (Bound::Excluded(above), Bound::Unbounded);
        let inside = self.directories.range::<Path, _>(from);
        let inside = inside.take_while(|(directory, _)| directory.starts_with(above));
        inside
            .filter(|(_, names)| names.values().any(|name| !matches!(name.what, What::Removed)))
            .filter_map(|(directory, _)| directory.strip_prefix(above).ok()?.iter().next())
            .collect()
    }

    /// Every name at or below a path.
    pub(super) fn all<'a>(
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

    pub(super) fn is_empty(&self) -> bool {
        self.directories.is_empty()
    }

    /// Puts a name in, in the place of the one that was there.
    pub(super) fn put(&mut self, path: &Path, what: What, place: Option<Place>) -> &mut Name {
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

    /// Takes a name out.
    pub(super) fn take(&mut self, path: &Path) -> Option<Name> {
        let (directory, name) = split(path);
        let names = self.directories.get_mut(directory)?;
        let taken = names.remove(name);
        if names.is_empty() {
            self.directories.remove(directory);
        }
        let taken = taken?;
        unname(&taken.what, path);
        Some(taken)
    }

    pub(super) fn by_ino(&self, ino: u64) -> Option<Arc<LiveFile>> {
        self.inodes.get(&ino).map(|known| Arc::clone(&known.file))
    }

    /// The kernel was told of a file.
    pub(super) fn told(&mut self, ino: u64) {
        if let Some(known) = self.inodes.get_mut(&ino) {
            known.lookups += 1;
        }
    }

    /// The kernel has forgotten a file so often. Whether it is one of these.
    pub(super) fn forget(&mut self, ino: u64, lookups: u64) -> bool {
        let Some(known) = self.inodes.get_mut(&ino) else { return false };
        known.lookups = known.lookups.saturating_sub(lookups);
        let file = Arc::clone(&known.file);
        self.drop_unused(&file);
        true
    }

    /// Drops what nobody needs any more: a file without names that nobody has open, and one whose
    /// bytes are in the shard, unless the kernel knows it by a number that is not the chunk's: it
    /// may be about to open it.
    pub(super) fn drop_unused(&mut self, file: &Arc<LiveFile>) {
        let state = file.state();
        if state.opened > 0 || state.dirty {
            return;
        }
        let Some(known) = self.inodes.get(&file.ino) else { return };
        let names = state.names.clone();
        let stored = matches!(state.bytes, Bytes::Stored(_));
        drop(state);
        let waits = |path: &PathBuf| {
            self.get(path)
                .is_some_and(|name| name.stage.as_ref().is_some_and(|stage| stage.change.is_some()))
        };
        let is_its_number = |path: &PathBuf| {
            let place = self.get(path).and_then(|name| name.place.as_ref());
            place.is_some_and(|Place { array, coords }| {
                array.inodes.ino(array.tree.number(coords)) == file.ino
            })
        };
        let is_unused = match names.is_empty() {
            true => known.lookups == 0 || !inode::is_live(file.ino),
            false => {
                stored
                    && !names.iter().any(waits)
                    && (known.lookups == 0 || names.iter().all(is_its_number))
            }
        };
        if is_unused {
            for path in &names {
                self.take(path);
            }
            self.inodes.remove(&file.ino);
        }
    }
}

/// A name does not stand for a file any more.
fn unname(what: &What, path: &Path) {
    if let What::File(file) = what {
        file.state().names.retain(|name| name != path);
    }
}

fn split(path: &Path) -> (&Path, &OsStr) {
    // The mount's root is no name in it.
    (path.parent().unwrap_or(Path::new("")), path.file_name().unwrap_or_default())
}
