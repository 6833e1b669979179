//! Files that the kernel knows by a number, found by the number and by their file of the source.
//!
//! There may be millions: what few of them have is kept apart.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Weak};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use slab::Slab;

use crate::fs::state::live_file::OpenFile;
use crate::fs::state::order::Promise;
use crate::fs::state::page_policy::Held;
use crate::fs::state::paths::tree::Name;

/// File of the source: its device and its inode number there.
pub(super) type FileId = (u64, u64);

/// Entry that was reported to the kernel.
pub(super) struct Known {
    ino: u64,
    file: Option<FileId>,
    /// Lookup count: lookups reported to the kernel, less those that it has forgotten.
    pub(super) lookups: u64,
    /// Contents that the kernel's pages hold; `None` if it has none, because the file was never
    /// opened.
    pub(super) pages: Option<Held>,
    /// `true` if it was looked up or opened since [`Entries::oldest`] has last come past it.
    pub(super) is_recent: bool,
    /// `true` if it is a file of the source, not a directory or anything else.
    pub(super) is_file: bool,
    name: Option<Name>,
    rare: Option<Box<Rare>>,
}

/// What few entries have.
#[derive(Default)]
pub(super) struct Rare {
    /// Names but the first: hard links.
    links: Vec<Name>,
    pub(super) open: Vec<Weak<OpenFile>>,
    /// `true` if it was linked to a name that is not passed through, which has a copy.
    pub(super) is_copied: bool,
    /// Promises of these copies.
    pub(super) copies: Vec<Arc<Promise>>,
    /// Generation of the number; 0 unless a file of the mount had it before, or a directory that was removed.
    pub(super) generation: u64,
}

/// Entries by number and by file.
#[derive(Default)]
pub(super) struct Entries {
    known: Slab<Known>,
    /// Places in the slab, by number.
    by_number: HashTable<usize>,
    /// Places in the slab, by file: of several numbers of a file the latest.
    by_file: HashTable<usize>,
    hasher: RandomState,
    /// Place in the slab up to which [`Entries::oldest`] has come.
    hand: usize,
}

impl Known {
    /// Returns the file behind the number; `None` for a document that the view generates.
    pub(super) fn file(&self) -> Option<FileId> {
        self.file
    }

    /// Returns the names of the file; none once it was removed or replaced.
    pub(super) fn names(&self) -> impl Iterator<Item = Name> {
        self.name.into_iter().chain(self.rare.iter().flat_map(|rare| rare.links.iter().copied()))
    }

    /// Returns the names of the file, which has none from now on.
    pub(super) fn take_names(&mut self) -> Vec<Name> {
        let names = self.names().collect();
        self.name = None;
        self.with_rare(|rare| rare.links.clear());
        names
    }

    /// Returns whether the file has a single name.
    pub(super) fn has_one_name(&self) -> bool {
        self.name.is_some() && self.rare.as_ref().is_none_or(|rare| rare.links.is_empty())
    }

    pub(super) fn has_names(&self) -> bool {
        self.name.is_some()
    }

    pub(super) fn add_name(&mut self, name: Name) {
        match self.name {
            None => self.name = Some(name),
            Some(_) => self.rare_mut().links.push(name),
        }
    }

    pub(super) fn remove_name(&mut self, name: Name) {
        if self.name != Some(name) {
            self.with_rare(|rare| rare.links.retain(|link| *link != name));
            return;
        }
        let link = |rare: &mut Rare| (!rare.links.is_empty()).then(|| rare.links.remove(0));
        self.name = self.with_rare(link).flatten();
    }

    pub(super) fn open_files(&self) -> Vec<Arc<OpenFile>> {
        self.rare()
            .map(|rare| rare.open.iter().filter_map(Weak::upgrade).collect())
            .unwrap_or_default()
    }

    pub(super) fn is_open(&self) -> bool {
        self.rare().is_some_and(|rare| rare.open.iter().any(|open| open.strong_count() > 0))
    }

    pub(super) fn rare(&self) -> Option<&Rare> {
        self.rare.as_deref()
    }

    /// Replaces all but the number, the file and the names by what another entry without names has, which was removed.
    pub(super) fn restore(&mut self, removed: Known) {
        (self.lookups, self.pages, self.rare) = (removed.lookups, removed.pages, removed.rare);
    }

    /// Adds what another entry of this number has, which was removed before this one was made.
    pub(super) fn join(&mut self, removed: Known) {
        self.lookups += removed.lookups;
        let Some(removed) = removed.rare else { return };
        let rare = self.rare_mut();
        rare.open.extend(removed.open);
        rare.is_copied |= removed.is_copied;
        rare.copies.extend(removed.copies);
        rare.generation = removed.generation;
    }

    /// Returns what few entries have, to add to it.
    pub(super) fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    /// Calls a function that takes something from what few entries have, if this one has any of it.
    pub(super) fn with_rare<R>(&mut self, take: impl FnOnce(&mut Rare) -> R) -> Option<R> {
        let rare = self.rare.as_mut()?;
        let taken = take(rare);
        if rare.is_empty() {
            self.rare = None;
        }
        Some(taken)
    }
}

impl Rare {
    fn is_empty(&self) -> bool {
        let Self { links, open, is_copied, copies, generation } = self;
        links.is_empty() && open.is_empty() && !is_copied && copies.is_empty() && *generation == 0
    }
}

impl Entries {
    pub(super) fn get(&self, ino: u64) -> Option<&Known> {
        self.place(ino).map(|at| &self.known[at])
    }

    pub(super) fn get_mut(&mut self, ino: u64) -> Option<&mut Known> {
        self.place(ino).map(|at| &mut self.known[at])
    }

    pub(super) fn contains(&self, ino: u64) -> bool {
        self.place(ino).is_some()
    }

    /// Returns the entry of a number, a new one if there is none.
    pub(super) fn get_or_insert(&mut self, ino: u64) -> &mut Known {
        let at = self.place(ino).unwrap_or_else(|| self.insert(ino));
        &mut self.known[at]
    }

    fn insert(&mut self, ino: u64) -> usize {
        let (file, pages, name, rare) = Default::default();
        let known =
            Known { ino, file, lookups: 0, pages, is_recent: true, is_file: false, name, rare };
        let at = self.known.insert(known);
        let Self { known, by_number, hasher, .. } = self;
        by_number.insert_unique(hasher.hash_one(ino), at, |&at| hasher.hash_one(known[at].ino));
        at
    }

    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Returns the names of at most `most` files that have nothing of [`Rare`], so are not open, and were not looked up
    /// since this has last come past them.
    pub(super) fn oldest(&mut self, most: usize) -> Vec<Name> {
        let mut oldest = Vec::new();
        let end = self.known.capacity();
        for _ in 0..end {
            if oldest.len() >= most {
                break;
            }
            self.hand = if self.hand + 1 < end { self.hand + 1 } else { 0 };
            let Some(known) = self.known.get_mut(self.hand) else { continue };
            let was_recent = std::mem::take(&mut known.is_recent);
            if known.is_file && !was_recent && known.rare.is_none() {
                oldest.extend(known.name);
            }
        }
        oldest
    }

    pub(super) fn remove(&mut self, ino: u64) -> Option<Known> {
        let at = self.place(ino)?;
        self.leave_file(at);
        if let Ok(there) =
            self.by_number.find_entry(self.hasher.hash_one(ino), |&other| other == at)
        {
            there.remove();
        }
        self.known.try_remove(at)
    }

    /// Returns the latest number of a file, and its entry.
    pub(super) fn of_file(&self, file: FileId) -> Option<(u64, &Known)> {
        let is_of_file = |&at: &usize| self.known[at].file == Some(file);
        let known =
            &self.known[*self.by_file.find(self.hasher.hash_one(Some(file)), is_of_file)?];
        Some((known.ino, known))
    }

    /// Records the file behind a number, whose latest number it is then.
    pub(super) fn set_file(&mut self, ino: u64, file: Option<FileId>) {
        let Some(at) = self.place(ino) else { return };
        if self.known[at].file != file {
            self.leave_file(at);
            self.known[at].file = file;
        }
        let Some(file) = file else { return };
        let Self { known, by_file, hasher, .. } = self;
        let is_of_file = |&at: &usize| known[at].file == Some(file);
        match by_file
            .entry(hasher.hash_one(Some(file)), is_of_file, |&at| hasher.hash_one(known[at].file))
        {
            Entry::Occupied(mut there) => *there.get_mut() = at,
            Entry::Vacant(free) => {
                free.insert(at);
            }
        }
    }

    /// Removes an entry from the table of files.
    fn leave_file(&mut self, at: usize) {
        let hash = self.hasher.hash_one(self.known[at].file);
        if let Ok(there) = self.by_file.find_entry(hash, |&other| other == at) {
            there.remove();
        }
    }

    fn place(&self, ino: u64) -> Option<usize> {
        self.by_number.find(self.hasher.hash_one(ino), |&at| self.known[at].ino == ino).copied()
    }
}
