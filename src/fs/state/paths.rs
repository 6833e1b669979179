//! Inode numbers of what is passed through: groups, metadata, unsharded arrays, other files.
//!
//! They are hashes of paths, so the paths are remembered as long as the kernel knows the number.
//! Chunks and the directories above them are not in this table.
//!
//! While a file is not open, its number refers to its path, whatever the source has there. While it
//! is open, the number refers to that file: it is reached through an open handle, and a file that
//! takes its name meanwhile gets the next free number. Several names of one file (hard links) share
//! one number.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::fs::error::{FsError, Result};
use crate::fs::state::live_file::{LiveFile, OpenFile};
use crate::fs::state::order::Promise;
use crate::fs::state::page_policy::Held;
use crate::fs::state::paths::known::Known;
use crate::fs::state::paths::table::Table;
use crate::store::storage::{FileKind, Stat, StorageFile};
use crate::view::inode::{self, InodeRange};

mod known;
mod table;
mod tree;

/// Table of paths by inode number.
#[derive(Default)]
pub(in crate::fs) struct Paths {
    table: Mutex<Table>,
    /// Count of chunk inode numbers in the table: chunks that are files of the source now.
    adopted: AtomicUsize,
}

/// Entry that was removed, because its number moves to another table.
#[derive(Default)]
pub(in crate::fs) struct Taken {
    names: Vec<Arc<Path>>,
    /// `None` if the kernel has forgotten the number.
    known: Option<Known>,
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
        let names = self.lock().paths(ino)?;
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
        self.lock().known.get(ino).map(Known::open_files).unwrap_or_default()
    }

    /// Returns whether a file below a directory that `is_meant` by its path is open for writing.
    pub(crate) fn is_written_below(&self, above: &Path, is_meant: &dyn Fn(&Path) -> bool) -> bool {
        let table = self.lock();
        let is_written = |ino: u64| {
            let open = table.known.get(ino).map(Known::open_files).unwrap_or_default();
            open.iter().any(|open| open.is_writable)
        };
        let mut below = table.names.below(above);
        below.any(|(name, ino)| is_written(ino) && is_meant(&table.names.path(name)))
    }

    /// Registers another open handle of a file that has no name.
    pub(crate) fn opened_again(&self, ino: u64, file: &Arc<OpenFile>) {
        if let Some(known) = self.lock().known.get_mut(ino) {
            known.rare_mut().open.push(Arc::downgrade(file));
        }
    }

    /// Registers an open handle of a file under an inode number.
    ///
    /// # Errors
    ///
    /// `Stale` if the number is unknown, or refers to another file that is open as well.
    pub(crate) fn opened(&self, ino: u64, stat: &Stat, file: &Arc<OpenFile>) -> Result<()> {
        let mut table = self.lock();
        let known = table.known.get_mut(ino).ok_or(FsError::Stale)?;
        if known.file() != Some(stat.id()) && known.is_open() {
            return Err(FsError::Stale);
        }
        known.is_recent = true;
        let open = &mut known.rare_mut().open;
        open.retain(|open| open.strong_count() > 0);
        open.push(Arc::downgrade(file));
        table.known.set_file(ino, Some(stat.id()));
        Ok(())
    }

    /// Records that a handle under an inode number has ended: nothing of it stays in memory, for the kernel may know a
    /// million files that were open once.
    pub(crate) fn closed(&self, ino: u64) {
        if let Some(known) = self.lock().known.get_mut(ino) {
            known.with_rare(|rare| rare.open.retain(|open| open.strong_count() > 0));
        }
    }

    /// Returns whether the kernel's pages hold the current contents of the file, or none. If not,
    /// they are dropped by this open.
    pub(crate) fn has_pages(&self, ino: u64, fingerprint: u64) -> bool {
        let mut table = self.lock();
        let Some(known) = table.known.get_mut(ino) else { return false };
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
        if let Some(known) = table.known.get_mut(ino) {
            known.lookups += 1;
            known.is_recent = true;
            known.is_file = stat.is_some_and(|stat| stat.kind == FileKind::File);
        }
        ino
    }

    /// Removes a number that moves to another table, while the kernel keeps using it. Returns
    /// `None`, and changes nothing, if its file has open handles other than `openers`.
    pub(crate) fn take(&self, ino: u64, openers: &[Arc<OpenFile>]) -> Option<Taken> {
        let mut table = self.lock();
        let Some(known) = table.known.get(ino) else { return Some(Taken::default()) };
        let is_known = |open: &Arc<OpenFile>| openers.iter().any(|other| Arc::ptr_eq(open, other));
        if !known.open_files().iter().all(is_known) {
            return None;
        }
        let names = table.paths(ino).unwrap_or_default();
        let known = table.drop_number(ino);
        drop(table);
        self.left(ino);
        Some(Taken { names, known })
    }

    /// Puts an entry back that [`Paths::take`] has removed. If its path was looked up meanwhile, the
    /// lookups of both count.
    pub(crate) fn give_back(&self, ino: u64, taken: Taken) {
        let mut table = self.lock();
        let Taken { names, known: Some(known) } = taken else { return };
        if let Some(there) = table.known.get_mut(ino) {
            there.join(known);
            return;
        }
        if (names.is_empty() || known.lookups == 0) && !known.is_open() {
            return;
        }
        let file = known.file();
        table.known.get_or_insert(ino).restore(known);
        table.known.set_file(ino, file);
        for name in names {
            if table.names.find(&name).is_none() {
                table.name(ino, &name);
            }
        }
        drop(table);
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
        let known = table.known.get_or_insert(ino);
        (known.lookups, known.pages) = (1, Some(Held::Unknown));
        let rare = known.rare_mut();
        (rare.open, rare.generation) = (openers.iter().map(Arc::downgrade).collect(), generation);
        table.name(ino, path);
        table.known.set_file(ino, Some(stat.id()));
    }

    /// Returns the generation of a number.
    pub(crate) fn generation(&self, ino: u64) -> u64 {
        self.lock().known.get(ino).and_then(Known::rare).map_or(0, |rare| rare.generation)
    }

    /// Adds `lookups` to the lookup count of a number.
    pub(crate) fn looked_up(&self, ino: u64, lookups: u64) {
        if let Some(known) = self.lock().known.get_mut(ino) {
            known.lookups += lookups;
        }
    }

    /// Records that a name that is not passed through has a copy of a file.
    pub(crate) fn copied(&self, ino: u64) {
        if let Some(known) = self.lock().known.get_mut(ino) {
            known.rare_mut().is_copied = true;
        }
    }

    /// Records that such a copy waits to be committed, with its promise.
    pub(crate) fn copy_waits(&self, ino: u64, promise: &Arc<Promise>) {
        if let Some(known) = self.lock().known.get_mut(ino) {
            let copies = &mut known.rare_mut().copies;
            copies.retain(|promise| promise.is_open());
            copies.push(Arc::clone(promise));
        }
    }

    /// Forgets the promises of those copies that wait no longer, but for some.
    pub(crate) fn forget_settled_copies(&self, ino: u64, but: &[Arc<Promise>]) {
        let is_kept = |promise: &Arc<Promise>| but.iter().any(|kept| Arc::ptr_eq(kept, promise));
        if let Some(known) = self.lock().known.get_mut(ino) {
            known.with_rare(|rare| {
                rare.copies.retain(|promise| promise.is_open() || is_kept(promise));
            });
        }
    }

    /// Returns the promises of the copies of a file that may still wait.
    pub(crate) fn copies(&self, ino: u64) -> Vec<Arc<Promise>> {
        self.lock()
            .known
            .get(ino)
            .and_then(Known::rare)
            .map_or_else(Vec::new, |rare| rare.copies.clone())
    }

    /// Returns whether a chunk's inode number belongs to a file of the source now.
    pub(crate) fn has_adopted(&self, ino: u64) -> bool {
        self.adopted.load(Ordering::Acquire) > 0 && self.lock().known.contains(ino)
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

    /// Records that the directory at a path was removed: another one there has another generation.
    pub(crate) fn directory_removed(&self, path: &Path) {
        let mut table = self.lock();
        let Some(ino) = table.names.get(path) else { return };
        if let Some(known) = table.known.get_mut(ino) {
            let rare = known.rare_mut();
            rare.generation = rare.generation.wrapping_add(1);
        }
    }

    /// Removes a name.
    pub(crate) fn removed(&self, path: &Path) {
        self.lock().unname(path);
    }

    /// Moves every path at or below `from` to the same place at or below `to`, keeping the numbers.
    pub(crate) fn renamed(&self, from: &Path, to: &Path) {
        self.lock().rename(from, to);
    }

    /// Returns the inode number that a listing shows for a path.
    pub(crate) fn number(&self, path: &Path) -> u64 {
        let known = self.lock().names.get(path);
        known.unwrap_or_else(|| inode::of_path(path, 0))
    }

    /// Returns files that the kernel may give up, so that it knows no more than `most`: those that it has not looked
    /// up for the longest time. Of each the inode number of its directory, and its name there.
    pub(crate) fn surplus(&self, most: usize) -> Vec<(u64, OsString)> {
        let mut table = self.lock();
        let surplus = table.known.len().saturating_sub(most);
        let oldest = if surplus == 0 { Vec::new() } else { table.known.oldest(surplus) };
        oldest.into_iter().filter_map(|name| table.names.parts(name)).collect()
    }

    /// Handles FORGET: drops `lookups` references to an inode number.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        let mut table = self.lock();
        if let Some(known) = table.known.get_mut(ino) {
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

impl Taken {
    /// Returns the lookup count: lookups reported to the kernel, less those that it has forgotten.
    pub(in crate::fs) fn lookups(&self) -> u64 {
        self.known.as_ref().map_or(0, |known| known.lookups)
    }

    /// Sets the lookup count, which another table has kept meanwhile.
    pub(in crate::fs) fn set_lookups(&mut self, lookups: u64) {
        if let Some(known) = &mut self.known {
            known.lookups = lookups;
        }
    }
}

#[cfg(test)]
mod tests;
