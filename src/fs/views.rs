//! Views of a mount: one, or several, each in a directory of its own.
//!
//! ```text
//! one view        its root is the mount's, its inode numbers too
//! several         the mount's root   1
//!                 view n = 1, 2, ..  its own numbers with n in three bits of them (view::inode)
//! ```
//!
//! Views of one mount behave like separate mounts: what is written in one is visible in the others
//! once it is committed, and their commits exclude each other like those of two mounts.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::fs::attr::{Attr, Entry};
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::read::lister::{DirEntry, Listing};
use crate::fs::state::control_files::DIRECTORY_NAME;
use crate::fs::state::fs::Fs;
use crate::number::to_usize;
use crate::stats::Stats;
use crate::store::storage::{FileKind, Space};
use crate::view::inode::{self, in_view, split_view};

/// Views of a mount.
pub struct Views {
    views: Vec<Arc<Fs>>,
    /// `true` once the last commits have begun. Held for reading by every request that changes
    /// something.
    ended: RwLock<bool>,
}

/// View, and an inode number in it.
pub struct Place<'a> {
    /// View.
    pub fs: &'a Fs,
    /// Inode number in the view.
    pub ino: u64,
    /// Number of the view; 0 if it is the only one.
    view: u64,
}

impl Place<'_> {
    /// Returns the mount's inode number for one of the view.
    pub fn outer(&self, ino: u64) -> u64 {
        in_view(self.view, ino)
    }

    /// Returns attributes of the view as the mount shows them.
    pub fn attr(&self, attr: Attr) -> Attr {
        Attr { ino: self.outer(attr.ino), ..attr }
    }

    /// Returns an entry of the view as the mount shows it.
    pub fn entry(&self, entry: Entry) -> Entry {
        Entry { attr: self.attr(entry.attr), ..entry }
    }

    /// Checks that another place is in the same view.
    ///
    /// # Errors
    ///
    /// `CrossDevice` if it is not.
    pub fn check_same(&self, other: &Self) -> Result<()> {
        if self.view == other.view { Ok(()) } else { Err(FsError::CrossDevice) }
    }
}

impl Views {
    /// Creates a mount of these views, at least one and at most [`inode::MAX_VIEWS`].
    pub fn new(views: Vec<Arc<Fs>>) -> Self {
        let turns = Arc::default();
        for fs in &views {
            let others = views.iter().filter(|other| !Arc::ptr_eq(fs, other));
            // Set once: the views of a mount are created before it.
            let _ = fs.turns.set(Arc::clone(&turns));
            let _ = fs.others.set(others.map(Arc::downgrade).collect());
        }
        Self { views, ended: RwLock::default() }
    }

    /// Returns every view.
    pub fn all(&self) -> &[Arc<Fs>] {
        &self.views
    }

    /// Returns every view with its number, by which inode numbers of the mount are made.
    pub fn numbered(&self) -> impl Iterator<Item = (u64, &Arc<Fs>)> {
        let first = u64::from(self.views.len() > 1);
        (first..).zip(&self.views)
    }

    /// Runs `act`, which changes something, or returns once something is durable. All requests that
    /// do so pass here, each of them once.
    ///
    /// # Errors
    ///
    /// `Ended` once [`Views::end`] was called: no commit would follow.
    pub fn change<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let ended = self.ended.read();
        if *ended { Err(FsError::Ended) } else { act() }
    }

    /// Refuses changes from now on, waits for those under way, and makes the last commits of all
    /// views. Processes may still use the mount: one that was detached while it was busy is served
    /// to its end. Returns the number of changes that could not be committed.
    pub fn end(&self) -> usize {
        // Commits under way, too, wait no longer than they must for a store that does not answer.
        self.views.iter().for_each(|fs| fs.store.end_soon());
        // Of all views before the first one ends: what is written in one may be committed by
        // another.
        *self.ended.write() = true;
        // All of them, whatever one cannot commit.
        let mut is_silent = false;
        let end = |fs: &Arc<Fs>| {
            if is_silent {
                fs.store.note_silence();
            }
            let left = fs.end_commits();
            is_silent |= fs.store.is_given_up();
            left
        };
        self.views.iter().map(end).sum()
    }

    /// Handles FLUSH, sent for each close of a descriptor.
    pub fn flush(&self, ino: u64, handle: u64) -> Result<()> {
        let place = self.at(ino)?;
        match self.change(|| place.fs.flush(place.ino, handle)) {
            Err(FsError::Ended) => place.fs.check_committed(place.ino, handle),
            done => done,
        }
    }

    /// Returns once what was written to a file is durable.
    pub fn fsync(&self, ino: u64, handle: u64) -> Result<()> {
        let place = self.at(ino)?;
        match self.change(|| place.fs.fsync(place.ino, handle)) {
            Err(FsError::Ended) => place.fs.check_committed(place.ino, handle),
            done => done,
        }
    }

    /// Closes an open file.
    pub fn release(&self, ino: u64, handle: u64) -> Result<()> {
        let place = self.at(ino)?;
        let released = self.change(|| {
            place.fs.hand_over(place.ino, handle);
            place.fs.release(handle);
            place.fs.paths.closed(place.ino);
            Ok(())
        });
        match released {
            // The last commits take what was written to it, and the handle ends with the process.
            Err(FsError::Ended) => Ok(()),
            done => done,
        }
    }

    /// Returns the counters, which all views share.
    pub fn stats(&self) -> &Stats {
        self.views[0].stats()
    }

    fn is_root(&self, ino: u64) -> bool {
        self.views.len() > 1 && ino == inode::ROOT
    }

    /// Returns the view that an inode number belongs to, and the number in it.
    ///
    /// # Errors
    ///
    /// `Stale` if it belongs to no view, and `NotPermitted` for the root of several views, in which
    /// nothing can be created or changed.
    pub fn at(&self, ino: u64) -> Result<Place<'_>> {
        if let [fs] = self.views.as_slice() {
            return Ok(Place { fs, ino, view: 0 });
        }
        if self.is_root(ino) {
            return Err(FsError::NotPermitted);
        }
        let (view, ino) = split_view(ino);
        let at = to_usize(view).checked_sub(1);
        let fs = at.and_then(|at| self.views.get(at)).ok_or(FsError::Stale)?;
        Ok(Place { fs, ino, view })
    }

    fn root_of(&self, at: usize) -> Place<'_> {
        Place { fs: &self.views[at], ino: inode::ROOT, view: at as u64 + 1 }
    }

    /// Returns the root of the view with that name; `None` if there is none.
    fn named(&self, name: &OsStr) -> Option<Place<'_>> {
        let is_named = |fs: &Arc<Fs>| name == fs.view().name();
        self.views.iter().position(is_named).map(|at| self.root_of(at))
    }

    /// Looks up `name` in a directory; `None` if there is no such entry.
    pub fn lookup(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<Option<Entry>> {
        if !self.is_root(parent) {
            let place = self.at(parent)?;
            let found = place.fs.lookup_for(place.ino, name, caller)?;
            return Ok(found.map(|entry| place.entry(entry)));
        }
        if let Some(place) = self.named(name) {
            let (attr, _) = place.fs.getattr(inode::ROOT, None)?;
            let attr = place.attr(attr);
            return Ok(Some(Entry { attr, generation: 0, lasting: true }));
        }
        // The first view's control files are those of the mount.
        let first = self.root_of(0);
        match name == DIRECTORY_NAME {
            true => Ok(first.fs.lookup(inode::ROOT, name)?.map(|entry| first.entry(entry))),
            false => Ok(None),
        }
    }

    /// Returns the attributes of an inode, or of an open file, and whether the kernel may cache
    /// them.
    pub fn getattr(&self, ino: u64, handle: Option<u64>, caller: &Caller) -> Result<(Attr, bool)> {
        if self.is_root(ino) {
            return self.views[0].getattr(inode::ROOT, None);
        }
        let place = self.at(ino)?;
        let (attr, lasting) = place.fs.getattr_for(place.ino, handle, caller)?;
        Ok((place.attr(attr), lasting))
    }

    /// Lists a directory, which may be open with a handle, from `position` on until `sink` breaks.
    pub fn readdir(
        &self,
        (ino, handle): (u64, Option<u64>),
        position: u64,
        listing: Listing,
        caller: &Caller,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        if self.is_root(ino) {
            return self.list_views(position, listing, caller, sink);
        }
        let place = self.at(ino)?;
        let is_shown = place.fs.permit_listing(place.ino, caller)?;
        place.fs.readdir((place.ino, handle), position, listing, &mut |item| {
            let entry = item.entry.map(|entry| {
                let lasting = entry.lasting && is_shown && !place.fs.is_behind(item.ino);
                place.entry(Entry { lasting, ..entry })
            });
            sink(&DirEntry { ino: place.outer(item.ino), entry, ..*item })
        })
    }

    fn list_views(
        &self,
        position: u64,
        listing: Listing,
        caller: &Caller,
        sink: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let kind = FileKind::Directory;
        let dots = [".", ".."].map(|name| (name, inode::ROOT, None));
        let views = (0..self.views.len()).map(|at| {
            let place = self.root_of(at);
            (place.fs.view().name(), place.outer(inode::ROOT), Some(place))
        });
        for ((name, ino, place), next) in dots.into_iter().chain(views).zip(1_u64..) {
            if next <= position {
                continue;
            }
            let entry = match (place, listing) {
                (Some(_), Listing::Entries) => {
                    self.lookup(inode::ROOT, OsStr::new(name), caller)?
                }
                _ => None,
            };
            let name = OsStr::new(name);
            if sink(&DirEntry { name, ino, kind, next, entry }).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Handles FORGET: drops `lookups` references to an inode number.
    pub fn forget(&self, ino: u64, lookups: u64) {
        if let Ok(place) = self.at(ino) {
            place.fs.stats().operations.forget.add(1);
            place.fs.forget(place.ino, lookups);
        }
    }

    /// Returns the value of an extended attribute. The root of several views has none.
    pub fn getxattr(&self, ino: u64, name: &OsStr, caller: &Caller) -> Result<Vec<u8>> {
        if self.is_root(ino) {
            return Err(FsError::NoAttribute);
        }
        let place = self.at(ino)?;
        place.fs.getxattr(place.ino, name, caller)
    }

    /// Returns the names of the extended attributes, each terminated by a NUL.
    pub fn listxattr(&self, ino: u64, caller: &Caller) -> Result<Vec<u8>> {
        if self.is_root(ino) {
            return Ok(Vec::new());
        }
        let place = self.at(ino)?;
        place.fs.listxattr(place.ino, caller)
    }

    /// Returns the space of the source's filesystem.
    pub fn space(&self) -> Result<Space> {
        self.views[0].space()
    }

    /// Opens a directory and returns its handle.
    pub fn opendir(&self, ino: u64) -> Result<u64> {
        if self.is_root(ino) {
            return Ok(0);
        }
        let place = self.at(ino)?;
        place.fs.opendir(place.ino)
    }

    /// Closes a directory.
    pub fn releasedir(&self, ino: u64, handle: u64) {
        if let Ok(place) = self.at(ino) {
            place.fs.releasedir(handle);
        }
    }

    /// Returns once everything below a directory is durable.
    pub fn fsyncdir(&self, ino: u64, handle: u64) -> Result<()> {
        self.change(|| {
            if self.is_root(ino) {
                let synced = self.views.iter().map(|fs| fs.fsyncdir(inode::ROOT, None));
                return synced.fold(Ok(()), Result::and);
            }
            let place = self.at(ino)?;
            place.fs.fsyncdir(place.ino, Some(handle))
        })
    }
}
