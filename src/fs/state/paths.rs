//! Inode numbers of what is passed through: groups, metadata, unsharded arrays, other files.
//!
//! They are hashes of paths, so the paths are remembered as long as the kernel knows the number.
//! Chunks and the directories above them are not in this table.
//!
//! While a file is not open, its number refers to its path, whatever the source has there. While it
//! is open, the number refers to that file: it is reached through an open handle, and a file that
//! takes its name meanwhile gets the next free number. Several names of one file (hard links) share
//! one number.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use crate::fs::error::{FsError, Result};
use crate::fs::state::live_file::{LiveFile, OpenFile};
use crate::fs::state::order::Promise;
use crate::fs::state::page_policy::Held;
use crate::store::storage::{Stat, StorageFile};
use crate::view::inode::{self, InodeRange};

/// File of the source: its device and its inode number there.
type FileId = (u64, u64);

/// Table of paths by inode number.
#[derive(Default)]
pub(in crate::fs) struct Paths {
    table: Mutex<Table>,
    /// Count of chunk inode numbers in the table: chunks that are files of the source now.
    adopted: AtomicUsize,
}

#[derive(Default)]
struct Table {
    known: HashMap<u64, Known>,
    /// Numbers by path, ordered so that everything below a directory directly follows it. Otherwise
    /// a writer that renames every file would wait for a scan of the whole table each time.
    names: BTreeMap<Arc<Path>, u64>,
    /// Numbers by file of the source.
    files: HashMap<FileId, u64>,
}

/// Entry that was reported to the kernel.
#[derive(Default)]
pub(in crate::fs) struct Known {
    /// Paths of the file; empty once it was removed or replaced.
    names: Vec<Arc<Path>>,
    /// File behind the paths; `None` for a document that the view generates.
    file: Option<FileId>,
    open: Vec<Weak<OpenFile>>,
    /// `true` if it was linked to a name that is not passed through, which has a copy.
    is_copied: bool,
    /// Promises of these copies.
    copies: Vec<Arc<Promise>>,
    /// Contents that the kernel's pages hold; `None` if it has none, because the file was never
    /// opened.
    pages: Option<Held>,
    /// Lookup count: lookups reported to the kernel, less those that it has forgotten.
    lookups: u64,
    /// Generation of the number; 0 unless a file of the mount had it before.
    generation: u64,
}

/// Object that an inode number refers to.
pub(in crate::fs) enum Found {
    /// Paths of the object; more than one for a file with hard links.
    Paths(Vec<Arc<Path>>),
    /// An open file without a name.
    Open(Arc<dyn StorageFile>),
}

impl Paths {
    /// Returns what an inode number known to the kernel refers to; `None` if nothing.
    pub(crate) fn find(&self, ino: u64) -> Option<Found> {
        if ino == inode::ROOT {
            return Some(Found::Paths(vec![Path::new("").into()]));
        }
        let names = self.lock().known.get(&ino)?.names.clone();
        if !names.is_empty() {
            return Some(Found::Paths(names));
        }
        self.open_file(ino, false).map(Found::Open)
    }

    /// Returns a file that is open under an inode number, open for writing if `writable`; `None` if
    /// there is none.
    pub(crate) fn open_file(&self, ino: u64, writable: bool) -> Option<Arc<dyn StorageFile>> {
        let open = self.open_files(ino);
        open.iter().filter(|open| open.is_writable || !writable).find_map(|open| open.source())
    }

    /// Returns all open handles of the file with an inode number.
    pub(crate) fn open_files(&self, ino: u64) -> Vec<Arc<OpenFile>> {
        self.lock().known.get(&ino).map(Known::open_files).unwrap_or_default()
    }

    /// Returns whether a file below a directory that `is_meant` by its path is open for writing.
    pub(crate) fn is_written_below(&self, above: &Path, is_meant: &dyn Fn(&Path) -> bool) -> bool {
        let table = self.lock();
        let is_open = |ino: &u64| {
            let open = table.known.get(ino).map(Known::open_files).unwrap_or_default();
            open.iter().any(|open| open.is_writable)
        };
        let mut below = table.below(above);
        below.any(|(path, ino)| is_meant(path) && is_open(ino))
    }

    /// Registers another open handle of a file that has no name.
    pub(crate) fn opened_again(&self, ino: u64, file: &Arc<OpenFile>) {
        if let Some(known) = self.lock().known.get_mut(&ino) {
            known.open.push(Arc::downgrade(file));
        }
    }

    /// Registers an open handle of a file under an inode number.
    ///
    /// # Errors
    ///
    /// `Stale` if the number is unknown, or refers to another file that is open as well.
    pub(crate) fn opened(&self, ino: u64, stat: &Stat, file: &Arc<OpenFile>) -> Result<()> {
        let mut table = self.lock();
        let known = table.known.get_mut(&ino).ok_or(FsError::Stale)?;
        known.open.retain(|open| open.strong_count() > 0);
        let id = Some(stat.id());
        if known.file != id && !known.open.is_empty() {
            return Err(FsError::Stale);
        }
        known.file = id;
        known.open.push(Arc::downgrade(file));
        table.files.insert(stat.id(), ino);
        Ok(())
    }

    /// Records that a handle under an inode number has ended: nothing of it stays in memory, for the kernel may know a
    /// million files that were open once.
    pub(crate) fn closed(&self, ino: u64) {
        if let Some(known) = self.lock().known.get_mut(&ino) {
            known.open.retain(|open| open.strong_count() > 0);
            known.open.shrink_to_fit();
        }
    }

    /// Returns whether the kernel's pages hold the current contents of the file, or none. If not,
    /// they are dropped by this open.
    pub(crate) fn has_pages(&self, ino: u64, fingerprint: u64) -> bool {
        let mut table = self.lock();
        let Some(known) = table.known.get_mut(&ino) else { return false };
        known.pages.get_or_insert_with(|| Held::first(fingerprint)).holds(fingerprint)
    }

    /// Returns the inode number of a path and counts a lookup for the reply to the kernel. It is
    /// none for which `is_taken` returns `true`. `stat` describes the file of the source at the
    /// path.
    pub(crate) fn remember(
        &self,
        path: &Path,
        stat: Option<&Stat>,
        is_taken: impl Fn(u64) -> bool,
    ) -> u64 {
        let mut table = self.lock();
        let ino = table.number(path, stat, is_taken);
        if let Some(known) = table.known.get_mut(&ino) {
            known.lookups += 1;
        }
        ino
    }

    /// Removes a number that moves to another table, while the kernel keeps using it. Returns
    /// `None`, and changes nothing, if its file has open handles other than `openers`.
    pub(crate) fn take(&self, ino: u64, openers: &[Arc<OpenFile>]) -> Option<Known> {
        let mut table = self.lock();
        let Some(known) = table.known.get(&ino) else { return Some(Known::default()) };
        let is_known = |open: &Arc<OpenFile>| openers.iter().any(|other| Arc::ptr_eq(open, other));
        if !known.open_files().iter().all(is_known) {
            return None;
        }
        let taken = table.drop_number(ino);
        drop(table);
        self.left(ino);
        taken.or_else(|| Some(Known::default()))
    }

    /// Puts an entry back that [`Paths::take`] has removed. If its path was looked up meanwhile, the
    /// lookups of both count.
    pub(crate) fn give_back(&self, ino: u64, known: Known) {
        let mut table = self.lock();
        if let Some(there) = table.known.get_mut(&ino) {
            there.lookups += known.lookups;
            there.open.extend(known.open);
            there.is_copied |= known.is_copied;
            there.copies.extend(known.copies);
            there.generation = known.generation;
            return;
        }
        if (known.names.is_empty() || known.lookups == 0) && !known.is_open() {
            return;
        }
        for name in &known.names {
            table.names.entry(Arc::clone(name)).or_insert(ino);
        }
        if let Some(file) = known.file {
            table.files.insert(file, ino);
        }
        table.known.insert(ino, known);
        self.came(ino);
    }

    /// Takes over a file of the mount that has become the file `path` of the source and keeps its
    /// number.
    pub(crate) fn adopt(
        &self,
        file: &LiveFile,
        path: &Path,
        stat: &Stat,
        openers: &[Arc<OpenFile>],
    ) {
        let LiveFile { ino, generation, .. } = *file;
        let mut table = self.lock();
        table.unname(path);
        if table.drop_number(ino).is_none() {
            self.came(ino);
        }
        let open = openers.iter().map(Arc::downgrade).collect();
        let pages = Some(Held::Unknown);
        let known = Known { open, pages, lookups: 1, generation, ..Known::default() };
        table.known.insert(ino, known);
        table.name(ino, path.into());
        table.set_file(ino, Some(stat.id()));
    }

    /// Returns the generation of a number.
    pub(crate) fn generation(&self, ino: u64) -> u64 {
        self.lock().known.get(&ino).map_or(0, |known| known.generation)
    }

    /// Adds `lookups` to the lookup count of a number.
    pub(crate) fn looked_up(&self, ino: u64, lookups: u64) {
        if let Some(known) = self.lock().known.get_mut(&ino) {
            known.lookups += lookups;
        }
    }

    /// Records that a name that is not passed through has a copy of a file.
    pub(crate) fn copied(&self, ino: u64) {
        if let Some(known) = self.lock().known.get_mut(&ino) {
            known.is_copied = true;
        }
    }

    /// Records that such a copy waits to be committed, with its promise.
    pub(crate) fn copy_waits(&self, ino: u64, promise: &Arc<Promise>) {
        if let Some(known) = self.lock().known.get_mut(&ino) {
            known.copies.retain(|promise| promise.is_open());
            known.copies.push(Arc::clone(promise));
        }
    }

    /// Forgets the promises of those copies that wait no longer, but for some.
    pub(crate) fn forget_settled_copies(&self, ino: u64, but: &[Arc<Promise>]) {
        let is_kept = |promise: &Arc<Promise>| but.iter().any(|kept| Arc::ptr_eq(kept, promise));
        if let Some(known) = self.lock().known.get_mut(&ino) {
            known.copies.retain(|promise| promise.is_open() || is_kept(promise));
        }
    }

    /// Returns the promises of the copies of a file that may still wait.
    pub(crate) fn copies(&self, ino: u64) -> Vec<Arc<Promise>> {
        self.lock().known.get(&ino).map_or_else(Vec::new, |known| known.copies.clone())
    }

    /// Returns whether a chunk's inode number belongs to a file of the source now.
    pub(crate) fn has_adopted(&self, ino: u64) -> bool {
        self.adopted.load(Ordering::Acquire) > 0 && self.lock().known.contains_key(&ino)
    }

    fn came(&self, ino: u64) {
        if InodeRange::split(ino).is_some() {
            self.adopted.fetch_add(1, Ordering::Release);
        }
    }

    fn left(&self, ino: u64) {
        if InodeRange::split(ino).is_some() {
            self.adopted.fetch_sub(1, Ordering::Release);
        }
    }

    /// Removes a name.
    pub(crate) fn removed(&self, path: &Path) {
        self.lock().unname(path);
    }

    /// Moves every path at or below `from` to the same place at or below `to`, keeping the numbers.
    pub(crate) fn renamed(&self, from: &Path, to: &Path) {
        let mut table = self.lock();
        let (gone, moved) = (table.at_or_below(to), table.at_or_below(from));
        // Open handles of the replaced files stay valid.
        for path in gone {
            table.unname(&path);
        }
        for path in moved {
            let (Some(ino), Ok(below)) = (table.unname(&path), path.strip_prefix(from)) else {
                continue;
            };
            let path = if below.as_os_str().is_empty() { to.into() } else { to.join(below).into() };
            table.name(ino, path);
        }
    }

    /// Returns the inode number that a listing shows for a path.
    pub(crate) fn number(&self, path: &Path) -> u64 {
        let known = self.lock().names.get(path).copied();
        known.unwrap_or_else(|| inode::of_path(path, 0))
    }

    /// Handles FORGET: drops `lookups` references to an inode number.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        let mut table = self.lock();
        if let Some(known) = table.known.get_mut(&ino) {
            known.lookups = known.lookups.saturating_sub(lookups);
            if known.lookups == 0 && table.drop_number(ino).is_some() {
                self.left(ino);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Known {
    /// Returns the lookup count: lookups reported to the kernel, less those that it has forgotten.
    pub(in crate::fs) fn lookups(&self) -> u64 {
        self.lookups
    }

    /// Sets the lookup count, which another table has kept meanwhile.
    pub(in crate::fs) fn set_lookups(&mut self, lookups: u64) {
        self.lookups = lookups;
    }

    fn open_files(&self) -> Vec<Arc<OpenFile>> {
        self.open.iter().filter_map(Weak::upgrade).collect()
    }

    fn is_open(&self) -> bool {
        self.open.iter().any(|open| open.strong_count() > 0)
    }
}

impl Table {
    /// Returns the number of a path for the file that is there now, assigning one if needed.
    fn number(&mut self, path: &Path, stat: Option<&Stat>, is_taken: impl Fn(u64) -> bool) -> u64 {
        let file = stat.map(Stat::id);
        if let Some(&ino) = self.names.get(path)
            && let Some(known) = self.known.get(&ino)
        {
            if known.file == file {
                let is_open = known.is_open();
                return match stat.and_then(|stat| self.other_name(stat)) {
                    // It left this name and is linked to it again; meanwhile it got another number.
                    Some(other) if other != ino && !is_open => {
                        self.unname(path);
                        self.name(other, path.into());
                        other
                    }
                    _ => ino,
                };
            }
            // A file other than the one that is open, or that has other names, gets another number.
            let is_of_name = known.names.len() == 1 && !known.is_open();
            if is_of_name && stat.is_none_or(|stat| self.other_name(stat).is_none()) {
                self.set_file(ino, file);
                return ino;
            }
            self.unname(path);
        }
        if let Some(ino) = stat.and_then(|stat| self.other_name(stat)) {
            self.name(ino, path.into());
            return ino;
        }
        for attempt in 0.. {
            let ino = inode::of_path(path, attempt);
            if ino == inode::ROOT {
                return ino;
            }
            // The kernel would take another file for the one that it knows by that number.
            let is_free =
                |known: &Known| known.names.is_empty() && known.lookups == 0 && !known.is_open();
            if !is_taken(ino) && self.known.get(&ino).is_none_or(is_free) {
                self.known.entry(ino).or_default();
                self.name(ino, path.into());
                self.set_file(ino, file);
                return ino;
            }
        }
        inode::ROOT
    }

    /// Visits the known paths at or below a path.
    fn below<'a>(&'a self, above: &'a Path) -> impl Iterator<Item = (&'a Arc<Path>, &'a u64)> {
        let from = self.names.range::<Path, _>((Bound::Included(above), Bound::Unbounded));
        from.take_while(move |(path, _)| path.starts_with(above))
    }

    /// Returns the known paths at or below a path.
    fn at_or_below(&self, above: &Path) -> Vec<Arc<Path>> {
        self.below(above).map(|(path, _)| Arc::clone(path)).collect()
    }

    /// Returns the number of a file that is known by another name; `None` if there is none. A name
    /// that was not looked up for long may belong to a deleted file whose inode number the source
    /// has reused for this one.
    fn other_name(&self, stat: &Stat) -> Option<u64> {
        let ino = *self.files.get(&stat.id())?;
        let known = self.known.get(&ino)?;
        let is_it = known.file == Some(stat.id()) && (stat.has_hard_links() || known.is_open());
        is_it.then_some(ino)
    }

    fn name(&mut self, ino: u64, path: Arc<Path>) {
        if let Some(known) = self.known.get_mut(&ino) {
            known.names.push(Arc::clone(&path));
            self.names.insert(path, ino);
        }
    }

    /// Removes a name from its number, and returns the number.
    fn unname(&mut self, path: &Path) -> Option<u64> {
        let ino = self.names.remove(path)?;
        if let Some(known) = self.known.get_mut(&ino) {
            known.names.retain(|name| &**name != path);
            if known.is_copied && known.names.is_empty() {
                known.open_files().iter().for_each(|open| open.leave());
            }
        }
        Some(ino)
    }

    fn set_file(&mut self, ino: u64, file: Option<FileId>) {
        if let Some(known) = self.known.get_mut(&ino) {
            let before = std::mem::replace(&mut known.file, file);
            if before != file {
                self.drop_file(before, ino);
            }
        }
        if let Some(file) = file {
            self.files.insert(file, ino);
        }
    }

    fn drop_file(&mut self, file: Option<FileId>, ino: u64) {
        if let Some(file) = file
            && self.files.get(&file) == Some(&ino)
        {
            self.files.remove(&file);
        }
    }

    fn drop_number(&mut self, ino: u64) -> Option<Known> {
        let known = self.known.remove(&ino)?;
        for name in &known.names {
            self.names.remove(name);
        }
        self.drop_file(known.file, ino);
        Some(known)
    }
}

#[cfg(test)]
mod tests;
