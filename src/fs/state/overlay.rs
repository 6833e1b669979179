//! Overlay of a writable mount: files that are being written or wait for their commit, removed
//! chunks, created directories, and files whose names are not chunk keys, which exist in the mount
//! alone.
//!
//! Everything is found by its path in the view. A file is there once, whatever its names: a rename
//! moves its name, a link adds one, and open handles keep reading and writing it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::ops::{Bound, Deref};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::fs::state::live_file::{Bytes, LiveFile, LiveState, Number, Place, Shown};
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

    /// Prepares a file to lose the name `path`: the old name may go once the file is durable under
    /// another of its names, and changes that wait for this name wait for that one.
    pub(in crate::fs) fn leave(&mut self, path: &Path, file: &LiveFile) {
        let others: Vec<PathBuf> =
            file.state().names.iter().filter(|name| *name != path).cloned().collect();
        let is_chunk = |name: &&PathBuf| self.get(name).is_some_and(|name| name.place.is_some());
        let is_durable = |name: &PathBuf| {
            self.get(name).is_some_and(|name| name.place.is_some() && name.stage.is_none())
        };
        let Some(other) = others.iter().find(is_chunk).or(others.first()) else { return };
        let is_durable = others.iter().any(is_durable);
        let Some(name) = self.get_mut(path) else { return };
        let mut made = std::mem::take(&mut name.made);
        if is_durable {
            return made.iter().for_each(|promise| promise.keep());
        }
        made.iter().for_each(|promise| promise.pass_to(other));
        if name.place.is_some() {
            let promise = Promise::of(other);
            name.after.push(Arc::clone(&promise));
            made.push(promise);
        }
        if let Some(other) = self.get_mut(other) {
            other.made.extend(made);
        }
    }

    /// Returns a promise that the file called `path` becomes durable.
    pub(in crate::fs) fn promise(&mut self, path: &Path) -> Arc<Promise> {
        let promise = Promise::of(path);
        match self.get_mut(path) {
            Some(name) if name.place.is_none() || name.stage.is_some() => {
                name.made.push(Arc::clone(&promise));
            }
            // Removed in the meantime, or committed.
            _ => promise.keep(),
        }
        promise
    }

    /// Breaks the promises of the name `path`, whose change was given up.
    pub(in crate::fs) fn break_promises(&mut self, path: &Path, error: &Arc<StoreError>) {
        let Some(name) = self.get_mut(path) else { return };
        let made = std::mem::take(&mut name.made);
        made.iter().for_each(|promise| promise.break_for(error));
        self.is_broken |= !made.is_empty();
    }

    /// Restores and returns the names whose removal depended on promises that were broken.
    pub(in crate::fs) fn bring_back(&mut self) -> Vec<(PathBuf, Option<Place>, Arc<StoreError>)> {
        if !std::mem::take(&mut self.is_broken) {
            return Vec::new();
        }
        let broken = |name: &Name| name.after.iter().find_map(|promise| promise.broken());
        let back: Vec<_> = self
            .all(Path::new(""))
            .filter(|(_, name)| matches!(name.what, What::Removed))
            .filter_map(|(path, name)| Some((path, name.place.clone(), broken(name)?)))
            .collect();
        for (path, _, error) in &back {
            self.break_promises(path, error);
            self.take(path);
        }
        back
    }

    /// Hides a file of the source that has another name now, until it can be removed.
    pub(in crate::fs) fn hide(&mut self, path: &Path, hidden: Hidden, after: Vec<Arc<Promise>>) {
        let name = self.put(path, What::Removed, None);
        name.hidden = Some(hidden);
        name.after.extend(after);
    }

    /// Forgets a file of the source that was hidden. Its name stays if it has become that of another
    /// file, or if another file was hidden since.
    pub(in crate::fs) fn unhide(&mut self, path: &Path, hidden: &Hidden) {
        let Some(name) = self.get_mut(path) else { return };
        let is_it = |now: &Hidden| now.stat.version() == hidden.stat.version();
        if !name.hidden.as_ref().is_some_and(is_it) {
            return;
        }
        match name.what {
            What::Removed => drop(self.take(path)),
            What::File(_) | What::Directory => (name.hidden, name.error) = (None, None),
        }
    }

    /// Records that a file of the source was linked to a name that is not durable yet.
    pub(in crate::fs) fn linked(&mut self, from: &Path, promise: Arc<Promise>) {
        self.links.retain(|_, promises| promises.iter().any(|promise| promise.is_open()));
        self.links.entry(from.to_owned()).or_default().push(promise);
    }

    /// Returns the promises that must be kept before a linked file of the source may be removed.
    pub(in crate::fs) fn links(&self, path: &Path) -> Vec<Arc<Promise>> {
        let links = self.links.get(path).into_iter().flatten();
        links.filter(|promise| promise.is_open()).cloned().collect()
    }

    /// Removes and returns these promises, for a file that is about to be hidden until they are
    /// kept.
    pub(in crate::fs) fn take_links(&mut self, path: &Path) -> Vec<Arc<Promise>> {
        let links = self.links(path);
        self.links.remove(path);
        links
    }

    /// Moves the promises of a linked file of the source, or of those in a directory, to its new
    /// name.
    pub(in crate::fs) fn move_links(&mut self, from: &Path, to: &Path) {
        let is_moved = |path: &PathBuf, _: &mut Vec<_>| path.starts_with(from);
        let moved: Vec<_> = self.links.extract_if(is_moved).collect();
        for (path, promises) in moved {
            // It is below `from`.
            let Ok(below) = path.strip_prefix(from) else { continue };
            let path = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
            self.links.entry(path).or_default().extend(promises);
        }
    }

    pub(in crate::fs) fn by_ino(&self, ino: u64) -> Option<Arc<LiveFile>> {
        self.inodes.get(&ino).cloned()
    }

    /// Removes a file that has become one of the source, and its number. Returns the number's
    /// lookup count.
    pub(in crate::fs) fn release(&mut self, file: &Arc<LiveFile>) -> u64 {
        if !self.has(file) {
            return 0;
        }
        self.inodes.remove(&file.ino);
        self.lookups.remove(&file.ino).unwrap_or(0)
    }

    /// Sets the lookup count of a file whose number the kernel knew as that of something else.
    pub(in crate::fs) fn set_lookups(&mut self, file: &LiveFile, lookups: u64) {
        self.lookups.insert(file.ino, lookups.max(1));
    }

    /// Returns whether a file is what is stored under its names, and not open: whoever knows it by its
    /// number can look it up anew.
    pub(in crate::fs) fn is_idle(&self, file: &LiveFile) -> bool {
        let state = file.state();
        let is_stored = |path: &PathBuf| {
            self.get(path).is_some_and(|name| {
                let waits = name.stage.as_ref().is_some_and(|stage| stage.change.is_some());
                name.place.is_some() && !waits
            })
        };
        matches!(state.bytes, Bytes::Stored(_))
            && !state.dirty
            && !state.is_open()
            && state.names.iter().all(is_stored)
    }

    /// Takes out a file that is idle, with its names: what they lead to is in the source alone.
    pub(in crate::fs) fn take_idle(&mut self, file: &Arc<LiveFile>) {
        if !self.has(file) || !self.is_idle(file) {
            return;
        }
        let names = file.state().names.clone();
        names.iter().for_each(|path| drop(self.take(path)));
        self.inodes.remove(&file.ino);
    }

    /// Returns whether a file is still the one behind its number: it may have been dropped since it
    /// was found.
    pub(in crate::fs) fn has(&self, file: &Arc<LiveFile>) -> bool {
        self.inodes.get(&file.ino).is_some_and(|known| Arc::ptr_eq(known, file))
    }

    /// Returns whether the kernel knows a number of a file or of a chunk.
    pub(in crate::fs) fn is_known(&self, ino: u64) -> bool {
        self.lookups.contains_key(&ino)
    }

    /// Counts a lookup of a file or of a chunk.
    pub(in crate::fs) fn looked_up(&mut self, ino: u64) {
        *self.lookups.entry(ino).or_default() += 1;
    }

    /// Handles FORGET: drops `lookups` references; returns how many of them were not counted here.
    pub(in crate::fs) fn forget(&mut self, ino: u64, lookups: u64) -> u64 {
        let mut left = lookups;
        if let Some(count) = self.lookups.get_mut(&ino) {
            let counted = lookups.min(*count);
            (*count, left) = (*count - counted, lookups - counted);
            if *count == 0 {
                self.lookups.remove(&ino);
            }
        }
        if let Some(file) = self.by_ino(ino) {
            self.drop_unused(&file);
        }
        left
    }

    /// Drops a file that is no longer needed: one without names and open handles, or one whose
    /// bytes are in the shard, unless the kernel knows it by a number that is not the chunk's: the
    /// kernel may be about to open it.
    pub(in crate::fs) fn drop_unused(&mut self, file: &Arc<LiveFile>) {
        let is_open = {
            let state = file.state();
            if state.dirty || state.is_open() && state.staged {
                return;
            }
            state.is_open()
        };
        self.settle_clean(file);
        if is_open {
            return;
        }
        if !self.has(file) {
            return;
        }
        let is_known = self.lookups.contains_key(&file.ino);
        let state = file.state();
        let names = state.names.clone();
        let stored = matches!(state.bytes, Bytes::Stored(_));
        drop(state);
        let is_chunk = |path: &PathBuf| self.get(path).is_some_and(|name| name.place.is_some());
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
            true => !is_known || !inode::is_live(file.ino),
            false => {
                stored
                    && names.iter().all(is_chunk)
                    && !names.iter().any(waits)
                    && (!is_known || names.iter().all(is_its_number))
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

impl Names {
    /// Gives the bytes of a file back to its shard, if nothing was written that waits to be
    /// committed: they were read for a rename or a link, and others may write the chunk.
    fn settle_clean(&mut self, file: &LiveFile) {
        let mut state = file.state();
        let is_here = match (&state.bytes, &state.shown) {
            (Bytes::Here(_), shown) => !matches!(shown, Shown::Stored(_)),
            _ => false,
        };
        // It may have been truncated by its path since the caller has looked.
        if !is_here || state.dirty || state.uses > 0 {
            return;
        }
        let place = |path: &PathBuf| {
            let name = self.get(path)?;
            let waits = name.stage.as_ref().is_some_and(|stage| stage.change.is_some());
            name.place.clone().filter(|_| !waits)
        };
        let places: Option<Vec<Place>> = state.names.iter().map(place).collect();
        let Some(place) = places.and_then(|places| places.into_iter().next()) else { return };
        settle_bytes(&mut state, Some(place));
        let names = state.names.clone();
        drop(state);
        for path in names {
            if let Some(name) = self.get_mut(&path) {
                name.stage = None;
            }
        }
    }
}

/// Marks the contents of a file as stored in its shard.
pub(in crate::fs) fn settle_bytes(state: &mut LiveState, place: Option<Place>) {
    state.staged = false;
    let Some(place) = place else { return };
    // A chunk of fill values no longer exists, though its file may still be open.
    let is_gone = matches!(state.shown, Shown::Nothing);
    state.shown = if is_gone { Shown::Stored(place.clone()) } else { Shown::Written };
    state.bytes = Bytes::Stored(place);
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
