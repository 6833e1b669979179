//! Operations on names in a writable mount: creating, opening and removing.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use super::access::Caller;
use super::decoded::Pages;
use super::directory::Listing;
use super::file::{Handle, Opened};
use super::live::{Change, Hidden, Place, Shown, What};
use super::open::{Behind, OpenFile};
use super::slot::Slot;
use super::write::{Writers, check_writable, chunk_mode};
use super::{Entry, Fs, FsError, Result, Target};
use crate::store::Freshness;
use crate::store::content::Content;
use crate::store::storage::{FileKind, Need};

impl Fs {
    /// Looks up a name without counting a lookup for the kernel.
    pub(super) fn peek(&self, parent: u64, name: &OsStr) -> Result<Option<Entry>> {
        let entry = self.lookup(parent, name)?;
        if let Some(entry) = &entry {
            self.forget(entry.attr.ino, 1);
        }
        Ok(entry)
    }

    /// Looks up a name in the overlay: `None` if the overlay does not decide, `Some(None)` if the
    /// name was removed.
    #[allow(clippy::option_option, reason = "unknown and removed are different answers")]
    pub(super) fn lookup_staged(&self, parent: u64, name: &OsStr) -> Result<Option<Option<Entry>>> {
        let Some(overlay) = &self.overlay else { return Ok(None) };
        if overlay.names().is_empty() {
            return Ok(None);
        }
        let target = self.target(parent)?;
        let Ok(directory) = self.directory_path(&target) else { return Ok(None) };
        let what = overlay.names().get(&directory.join(name)).map(|name| name.what.clone());
        let shown = match &what {
            Some(What::File(file)) => file.state().shown.clone(),
            _ => Shown::Written,
        };
        Ok(match what {
            None => None,
            Some(What::Removed) => Some(None),
            Some(What::File(file)) => match shown {
                Shown::Written | Shown::Instead(_) => Some(Some(self.live_entry(&file)?)),
                Shown::Nothing => Some(None),
                // As if it had not been written to.
                Shown::Stored(_) => None,
            },
            // Looked up like any directory above chunks.
            Some(What::Directory) => None,
        })
    }

    /// Creates a file and opens it, or opens an existing one unless `how.exclusive` is set.
    pub fn create(
        &self,
        parent: u64,
        name: &OsStr,
        mode: u32,
        how: OpenHow,
        caller: &Caller,
    ) -> Result<(Entry, Opened)> {
        self.overlay()?;
        let slot = self.slot(parent, name)?;
        if let Some(entry) = self.lookup(parent, name)? {
            if how.exclusive {
                return Err(FsError::Exists);
            }
            let opened = self.open_for(entry.attr.ino, how, caller)?;
            return Ok((entry, opened));
        }
        let path = match &slot {
            Slot::Control => return Err(FsError::NotPermitted),
            Slot::Outside => return Err(FsError::Invalid),
            Slot::Above(..) => return Err(FsError::IsDirectory),
            Slot::Source(path) => {
                self.free_name(path, FileKind::File)?;
                return self.create_in_source(path, mode, caller);
            }
            Slot::Chunk(path, _) | Slot::Scratch(path) | Slot::Document(path) => path,
        };
        let (place, mode) = match &slot {
            Slot::Chunk(_, place) => (Some(place), chunk_mode(mode & !caller.umask)),
            _ => (None, mode & !caller.umask),
        };
        // Not even an empty file is left where nothing can be written.
        self.make_room()?;
        if let Some(place) = place {
            self.permit_change(place, caller)?;
        }
        let stage = place.map(|place| self.stage(place)).transpose()?;
        let ino = place.map(|Place { array, coords }| array.inodes.ino(array.tree.number(coords)));
        let file = self.new_file(ino, mode, caller.owner())?;
        {
            let mut names = self.overlay()?.names();
            let name = names.put(path, What::File(Arc::clone(&file)), place.cloned());
            if let Some(stage) = stage {
                name.stage.get_or_insert(stage);
            }
        }
        let entry = self.live_entry(&file)?;
        Ok((entry, self.open_live(&file, how)?))
    }

    /// Opens a file, also for writing.
    pub fn open_for(&self, ino: u64, how: OpenHow, caller: &Caller) -> Result<Opened> {
        /// Number of attempts: another process may change what the number refers to between lookup
        /// and open.
        const ATTEMPTS: usize = 4;
        self.stats.operations.open.count();
        if self.overlay.is_none() {
            return if how.write { Err(FsError::ReadOnly) } else { self.open_as(ino, caller) };
        }
        let mut opened = self.open_once(ino, how, caller);
        for _ in 1..ATTEMPTS {
            if !matches!(opened, Err(FsError::Stale)) {
                break;
            }
            opened = self.open_once(ino, how, caller);
        }
        opened
    }

    fn open_once(&self, ino: u64, how: OpenHow, caller: &Caller) -> Result<Opened> {
        let target = self.target(ino)?;
        let need = if how.write { Need::Write } else { Need::Read };
        self.permit_content(&target, need, caller)?;
        let file = match target {
            // The kernel has cached a name that belongs to another file by now, for instance after
            // a rename that was done but could not be committed. Writes must not go to a file
            // without a name.
            Target::Live(file) if how.write && file.state().names.is_empty() => {
                return Err(FsError::Stale);
            }
            Target::Live(file) => file,
            Target::Tree(array, coords) if how.write && coords.len() == array.tree.rank() => {
                let path = array.path(&coords);
                self.chunk_file(&path, &Place { array, coords })?
            }
            Target::Path(path) if how.write && self.is_document(&path) => {
                self.document_file(&path)?
            }
            Target::Path(path) if how.write => {
                self.check_stored(&path)?;
                let file = self.on_behalf(caller, |storage| {
                    let file = storage.open_writable(&path)?;
                    if how.truncate {
                        file.set_length(0)?;
                    }
                    Ok(file)
                })?;
                let open = OpenFile::new(Behind::Source(file), true);
                let pages = self.source_pages(ino, &open)?;
                return self.insert_handle(Handle::Open(open), pages);
            }
            Target::Nameless(_) if how.write => {
                let file = self.paths.open_file(ino, true).ok_or(FsError::Stale)?;
                if how.truncate {
                    file.set_length(0)?;
                }
                let handle = self.open_nameless(ino, file, true);
                return self.insert_handle(handle, Pages::Kept);
            }
            Target::Control(_) | Target::ControlDirectory if how.write => {
                return Err(FsError::NotPermitted);
            }
            _ => return self.open_as(ino, caller),
        };
        let opened = self.open_live(&file, how)?;
        if how.truncate {
            let emptied = self.truncate_live(&file, 0, &Writers::default());
            emptied.inspect_err(|_| self.release(opened.handle))?;
        }
        Ok(opened)
    }

    /// Removes a file.
    pub fn unlink(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<()> {
        self.overlay()?;
        let slot = self.slot(parent, name)?;
        let entry = self.peek(parent, name)?.ok_or(FsError::NotFound)?;
        self.unlink_slot(&slot, entry.attr.kind, caller)
    }

    fn unlink_slot(&self, slot: &Slot, kind: FileKind, caller: &Caller) -> Result<()> {
        if kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        match slot {
            Slot::Control => Err(FsError::NotPermitted),
            Slot::Outside | Slot::Above(..) => Err(FsError::IsDirectory),
            Slot::Chunk(path, place) => {
                self.permit_change(place, caller)?;
                self.remove_chunk(path, place)
            }
            Slot::Scratch(path) => {
                self.remove_name(path)?;
                Ok(())
            }
            Slot::Document(path) => self.remove_document(path),
            Slot::Source(path) => {
                match self.check_stored(path) {
                    // A document generated by the view.
                    Err(FsError::ReadOnly) => return Err(FsError::NotPermitted),
                    stored => stored?,
                }
                self.remove_source_file(path, caller)
            }
        }
    }

    /// Removes a file of the source. One that was linked to a name beside it is removed only once
    /// it is durable there.
    pub(super) fn remove_source_file(&self, path: &Path, caller: &Caller) -> Result<()> {
        if self.overlay()?.names().links(path).is_empty() {
            self.on_behalf(caller, |storage| storage.remove_file(path))?;
            self.paths.removed(path);
            return Ok(());
        }
        let hidden = Hidden { stat: self.storage.lstat(path)?, by: self.access.identity(caller)? };
        let mut names = self.overlay()?.names();
        let links = names.take_links(path);
        names.hide(path, hidden, links);
        drop(names);
        self.paths.removed(path);
        self.after_change(path)
    }

    /// Removes a name of the overlay, and its file if that is no longer needed.
    pub(super) fn remove_name(&self, path: &Path) -> Result<()> {
        let mut names = self.overlay()?.names();
        if let Some(What::File(file)) = names.get(path).map(|name| name.what.clone()) {
            names.leave(path, &file);
        }
        if let Some(name) = names.take(path)
            && let What::File(file) = &name.what
            && file.state().names.is_empty()
        {
            file.state().dirty = false;
            if let Some(copy) = file.state().copy.take() {
                copy.remove();
            }
            names.drop_unused(file);
        }
        Ok(())
    }

    /// Stages the removal of a chunk.
    pub(super) fn remove_chunk(&self, path: &Path, place: &Place) -> Result<()> {
        check_writable(place)?;
        if !place.array.source.format.has_keys() {
            self.check_removable(place)?;
            if !self.is_stored(place)? {
                return self.remove_name(path);
            }
        }
        // If readers take the absence of a chunk for other values than it has, a chunk of these
        // values is stored.
        let left = match self.shows_all(&place.array) {
            true => place.array.removed_chunk()?.map(|chunk| Arc::new(chunk.to_vec())),
            false => None,
        };
        let before = self.overlay()?.names().get(path).cloned();
        let stage = match before.as_ref().and_then(|name| name.stage.clone()) {
            Some(stage) => stage,
            None => self.stage(place)?,
        };
        let live = match before.map(|name| name.what) {
            Some(What::File(file)) => Some(file),
            _ => None,
        };
        if let Some(file) = &live {
            // Open handles keep reading the removed contents.
            self.bring_here(file)?;
        }
        let mut names = self.overlay()?.names();
        if let Some(file) = &live {
            names.leave(path, file);
        }
        let number = names.next_number();
        let name = names.put(path, What::Removed, Some(place.clone()));
        name.error = None;
        let stage = name.stage.get_or_insert(stage);
        stage.change = Some(Change { content: left.map(Content::Memory), number });
        if let Some(file) = live {
            let without_name = file.state().names.is_empty();
            if without_name {
                file.state().dirty = false;
            }
            names.drop_unused(&file);
        }
        // The directory stays when its last chunk is removed, until it is removed itself.
        let tree = &place.array.tree;
        for above in path.ancestors().skip(1).take(tree.rank() - tree.top_depth()) {
            if names.get(above).is_none() {
                names.put(above, What::Directory, None);
            }
        }
        drop(names);
        self.after_change(path)
    }

    /// Checks that a chunk can be removed.
    ///
    /// # Errors
    ///
    /// `NotPermitted` for a chunk stored in its shard, in a format in which none can be missing
    /// before the last, or none at all.
    pub(super) fn check_removable(&self, place: &Place) -> Result<()> {
        let source = &place.array.source;
        if source.format.has_keys() || !self.is_stored(place)? {
            return Ok(());
        }
        let mut next = place.clone();
        if let Some(number) = next.coords.first_mut() {
            *number += 1;
        }
        match source.format.can_shrink() && !self.is_there(&next)? {
            true => Ok(()),
            false => Err(FsError::NotPermitted),
        }
    }

    /// Returns whether a chunk is stored in its shard.
    pub(super) fn is_stored(&self, place: &Place) -> Result<bool> {
        let Place { array, coords } = place;
        let is_inside = array.source.layout.chunk_grid().iter().zip(coords).all(|(n, at)| at < n);
        Ok(is_inside && self.store.chunk(&array.source, coords, Freshness::Now)?.is_some())
    }

    /// Returns whether a chunk exists in the view.
    fn is_there(&self, place: &Place) -> Result<bool> {
        let path = place.array.path(&place.coords);
        let staged = self.overlay()?.names().get(&path).map(|name| name.what.clone());
        match staged {
            Some(What::File(_)) => Ok(true),
            Some(What::Removed | What::Directory) => Ok(false),
            None => self.is_stored(place),
        }
    }

    /// Commits a change at once if the mount has `-o sync`.
    pub(super) fn after_change(&self, path: &Path) -> Result<()> {
        if self.config.writing.sync { self.commit(path) } else { Ok(()) }
    }

    /// Creates a directory.
    pub fn mkdir(&self, parent: u64, name: &OsStr, mode: u32, caller: &Caller) -> Result<Entry> {
        self.overlay()?;
        let slot = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        match slot {
            Slot::Above(path, place) => {
                check_writable(&place)?;
                self.overlay()?.names().put(&path, What::Directory, None);
                let entry = self.tree_directory(&place.array, &place.coords)?;
                entry.ok_or(FsError::NotFound)
            }
            Slot::Source(path) => {
                self.free_name(&path, FileKind::Directory)?;
                let mode = mode & 0o7777;
                self.on_behalf(caller, |storage| storage.make_directory(&path, mode))?;
                self.own(&path, caller);
                self.path_entry(&path)
            }
            Slot::Outside => Err(FsError::Invalid),
            _ => Err(FsError::NotPermitted),
        }
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: u64, name: &OsStr, caller: &Caller) -> Result<()> {
        self.overlay()?;
        let slot = self.slot(parent, name)?;
        // The kernel has looked the directory up, so its number is known.
        let entry = self.peek(parent, name)?.ok_or(FsError::NotFound)?;
        match entry.attr.kind {
            FileKind::Directory => self.remove_empty(&slot, entry.attr.ino, caller),
            _ => Err(FsError::NotDirectory),
        }
    }

    fn remove_empty(&self, slot: &Slot, ino: u64, caller: &Caller) -> Result<()> {
        let path = slot.path().ok_or(FsError::NotPermitted)?;
        if !self.lists_nothing(ino)? {
            // Chunks removed below may still be in their shards.
            self.commit(path)?;
            if !self.lists_nothing(ino)? {
                return Err(FsError::NotEmpty);
            }
        }
        match slot {
            Slot::Above(path, place) => {
                self.overlay()?.names().take(path);
                self.commit(path)?;
                if place.array.source.format.has_keys() {
                    let shards = self.shard_directory(&place.array, &place.coords);
                    // The directory stays if another process has put something in it, or more of
                    // its shards are left.
                    let _ = self.storage.remove_directory(&shards);
                }
                Ok(())
            }
            Slot::Source(path) => self.remove_source_directory(path, caller),
            _ => Err(FsError::NotPermitted),
        }
    }

    fn lists_nothing(&self, ino: u64) -> Result<bool> {
        let mut empty = true;
        self.readdir(ino, 0, Listing::Names, &mut |entry| {
            if entry.name == "." || entry.name == ".." {
                return ControlFlow::Continue(());
            }
            empty = false;
            ControlFlow::Break(())
        })?;
        Ok(empty)
    }
}

/// Options for opening a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenHow {
    /// Open for writing.
    pub write: bool,
    /// Truncate the file to no contents.
    pub truncate: bool,
    /// Fail if the file exists.
    pub exclusive: bool,
}
