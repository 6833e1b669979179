//! Operations on names in a writable mount: creating and removing.

use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::fs::attr::Entry;
use crate::fs::caller::Caller;
use crate::fs::error::{FsError, Result};
use crate::fs::read::lister::{DOT_DOT, Listing};
use crate::fs::read::overlay_files::chunk_mode;
use crate::fs::request::OpenHow;
use crate::fs::state::fs::Fs;
use crate::fs::state::handle::Opened;
use crate::fs::state::live_file::{LiveFile, Place};
use crate::fs::state::overlay::{Change, Hidden, Names, What};
use crate::fs::write::content::Prepared;
use crate::fs::write::slot::{Slot, outside_grid};
use crate::requester;
use crate::store::Freshness;
use crate::store::content::Content;
use crate::store::storage::{FileKind, Need};

impl Fs {
    /// Looks up a name without counting a lookup for the kernel.
    pub(in crate::fs) fn peek(&self, parent: u64, name: &OsStr) -> Result<Option<Entry>> {
        let entry = self.lookup(parent, name)?;
        if let Some(entry) = &entry {
            self.forget(entry.attr.ino, 1);
        }
        Ok(entry)
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
        if let Some(found) = self.open_found(parent, name, how, caller)? {
            return Ok(found);
        }
        self.check_slot(&slot)?;
        let path = match &slot {
            Slot::Control => return Err(FsError::NotPermitted),
            Slot::Outside { path, grid } => return Err(outside_grid(path, grid)),
            Slot::Above(..) => return Err(FsError::IsDirectory),
            Slot::Source(path) => {
                let turn = self.free_name(path, FileKind::File)?;
                let created = self.create_in_source(path, mode, caller);
                drop(turn);
                return match created {
                    // Another process was first.
                    Err(error) if error.errno() == libc::EEXIST && !how.exclusive => {
                        self.open_found(parent, name, how, caller)?.ok_or(error)
                    }
                    created => created,
                };
            }
            Slot::Chunk(path, _) | Slot::Scratch(path) | Slot::Document(path) => path,
        };
        let (place, asked) = match &slot {
            Slot::Chunk(_, place) => (Some(place), chunk_mode(mode)),
            _ => (None, mode),
        };
        let mode = match self.inherited_in(parent, asked)? {
            Some(inherited) => inherited.narrow_mode,
            None if place.is_some() => chunk_mode(mode & !caller.umask),
            None => mode & !caller.umask,
        };
        // Not even an empty file is left where nothing can be written.
        self.make_room()?;
        if let Some(place) = place {
            self.permit_change(place, caller)?;
        }
        let stage = place.map(|place| self.stage(place)).transpose()?;
        let ino = place.map(|Place { array, coords }| array.inodes.ino(array.tree.number(coords)));
        // The kernel may be about to open the file that was removed, and would open this one instead,
        // which it takes for another.
        let is_unknown = |ino: &u64| !self.overlay().is_ok_and(|it| it.names().is_known(*ino));
        let number = ino.filter(is_unknown).map(|ino| self.chunk_number(ino));
        let file = self.new_file(number, mode, caller.owner())?;
        file.state().asked = asked;
        {
            let mut names = self.overlay()?.names();
            // One that is not shown, but still open, loses its name to this one.
            if let (Some(place), Some(_)) = (place, names.file(path)) {
                self.end_chunk_file(&names, path, place, Some(&*file));
            }
            let name = names.put(path, What::File(Arc::clone(&file)), place.cloned());
            if let Some(stage) = stage {
                name.stage.get_or_insert(stage);
            }
        }
        let entry = self.live_entry(&file)?;
        let how = OpenHow { truncate: true, ..how };
        let opened = self.open_live(&file, how, self.opener(caller))?;
        Ok((entry, opened))
    }

    /// Opens a file that may exist, unless it must not. `None` if it does not.
    fn open_found(
        &self,
        parent: u64,
        name: &OsStr,
        how: OpenHow,
        caller: &Caller,
    ) -> Result<Option<(Entry, Opened)>> {
        let Some(entry) = self.lookup(parent, name)? else { return Ok(None) };
        let opened = match how.exclusive {
            true => Err(FsError::Exists),
            false => self.open_for(entry.attr.ino, how, caller),
        };
        // Without a reply the kernel knows nothing of it.
        let opened = opened.inspect_err(|_| self.forget(entry.attr.ino, 1))?;
        Ok(Some((entry, opened)))
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
        self.check_slot(slot)?;
        match slot {
            Slot::Control => Err(FsError::NotPermitted),
            Slot::Outside { .. } | Slot::Above(..) => Err(FsError::IsDirectory),
            Slot::Chunk(path, place) => {
                self.permit_change(place, caller)?;
                self.remove_chunk((path, place), None, true, caller)?;
                self.after_change(path)
            }
            Slot::Scratch(path) => {
                self.remove_name(path)?;
                Ok(())
            }
            Slot::Document(path) => {
                self.remove_document(path, caller)?;
                self.after_names(&[path])
            }
            Slot::Source(path) => {
                let _turn = self.name_in_source();
                self.check_no_shard_now(path)?;
                match self.check_stored(path) {
                    // A document generated by the view.
                    Err(FsError::ReadOnly) => return Err(FsError::NotPermitted),
                    stored => stored?,
                }
                self.remove_source_file(path, caller)?;
                self.after_names(&[path])
            }
        }
    }

    /// Records that the file of a chunk loses its name now, to `by` or to nothing, unless it has another
    /// one: what has the chunk's inode number afterwards is another file.
    pub(in crate::fs) fn end_chunk_file(
        &self,
        names: &Names,
        path: &Path,
        place: &Place,
        by: Option<&LiveFile>,
    ) {
        let ino = place.array.inodes.ino(place.array.tree.number(&place.coords));
        let stays = match names.get(path).map(|name| &name.what) {
            Some(What::File(file)) => file.ino != ino || file.state().names.len() > 1,
            // It belongs to a file that has other names.
            _ => self.paths.has_adopted(ino) || names.by_ino(ino).is_some(),
        };
        if !stays && by.is_none_or(|by| by.ino != ino) {
            self.commits.replace(ino);
        }
    }

    /// Removes a file of the source. One that was linked to a name beside it is removed only once
    /// it is durable there.
    pub(in crate::fs) fn remove_source_file(&self, path: &Path, caller: &Caller) -> Result<()> {
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

    /// Stages the removal of a chunk, `prepared` before or now. With it its file `ends`, or else it has got
    /// another name. The caller calls [`Fs::after_change`] once it holds no lock.
    pub(in crate::fs) fn remove_chunk(
        &self,
        (path, place): (&Path, &Place),
        prepared: Option<Prepared>,
        ends: bool,
        caller: &Caller,
    ) -> Result<()> {
        self.check_writable(place)?;
        if !place.array.source.format.has_keys() {
            self.check_removable(place)?;
            // A commit under way may be about to store it.
            let _turn = requester::lock(&self.commits.turn)?;
            if !self.is_stored(place)? {
                if ends {
                    self.end_chunk_file(&self.overlay()?.names(), path, place, None);
                }
                return self.remove_name(path);
            }
        }
        // If readers take the absence of a chunk for other values than it has, a chunk of these
        // values is stored.
        let left = match self.shows_all(&place.array) {
            true => self.removed_chunk(&place.array)?.map(|chunk| Arc::new(chunk.to_vec())),
            false => None,
        };
        let prepared = prepared.map_or_else(|| self.prepare(path, place), Ok)?;
        let opener = self.opener(caller);
        let by: Vec<_> = opener.iter().map(|opener| (&**opener, Need::Write)).collect();
        let (live, _kept, mut names, stage) = loop {
            let live = self.overlay()?.names().file(path);
            // Open handles keep reading the removed contents.
            let kept = live.as_ref().map(|file| self.keep_here(file, &by)).transpose()?;
            let (names, stage) = self.names_with(path, place, prepared.clone())?;
            if names.file(path).as_ref().map(Arc::as_ptr) == live.as_ref().map(Arc::as_ptr) {
                break (live, kept, names, stage);
            }
            // Opened meanwhile: it is kept, too. Not with the names locked.
            drop(names);
        };
        if ends {
            self.end_chunk_file(&names, path, place, None);
        }
        if let Some(file) = &live {
            names.leave(path, file);
        }
        let number = names.next_number();
        let name = names.put(path, What::Removed, Some(place.clone()));
        name.error = None;
        // A removed file need not become durable: who waits for it under this name, its only one, waits
        // no longer. Removals that wait for each other would never be committed.
        name.made.drain(..).for_each(|promise| promise.keep());
        let stage = name.stage.get_or_insert(stage);
        stage.change = Some(Change { content: left.map(Content::Memory), shown: None, number });
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
        Ok(())
    }

    /// Checks that a chunk can be removed.
    ///
    /// # Errors
    ///
    /// `NotPermitted` for a chunk stored in its shard, in a format in which none can be missing
    /// before the last, or none at all.
    pub(in crate::fs) fn check_removable(&self, place: &Place) -> Result<()> {
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
    pub(in crate::fs) fn is_stored(&self, place: &Place) -> Result<bool> {
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
    pub(in crate::fs) fn after_change(&self, path: &Path) -> Result<()> {
        if self.config.writing.sync { self.commit(path) } else { Ok(()) }
    }

    /// Creates a directory.
    pub fn mkdir(&self, parent: u64, name: &OsStr, mode: u32, caller: &Caller) -> Result<Entry> {
        self.overlay()?;
        let slot = self.slot(parent, name)?;
        if self.peek(parent, name)?.is_some() {
            return Err(FsError::Exists);
        }
        self.check_slot(&slot)?;
        match slot {
            Slot::Above(path, place) => {
                self.check_writable(&place)?;
                self.overlay()?.names().put(&path, What::Directory, None);
                let entry = self.tree_directory(&place.array, &place.coords)?;
                entry.ok_or(FsError::NotFound)
            }
            Slot::Source(path) => {
                let _turn = self.free_name(&path, FileKind::Directory)?;
                let mode = self.access.permitted_mode(mode, caller);
                let gone = |error| self.gone(&path, error);
                self.on_behalf(caller, |storage| storage.make_directory(&path, mode))
                    .map_err(gone)?;
                self.nodes.made(&path);
                self.others().for_each(|other| other.nodes.made(&path));
                self.own(&path, caller);
                self.after_names(&[&path])?;
                self.path_entry(&path).map_err(gone)
            }
            Slot::Outside { path, grid } => Err(outside_grid(&path, &grid)),
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
        self.check_slot(slot)?;
        let is_empty = || match self.lists_nothing(ino) {
            // The source knows whether there is anything in it.
            Err(error) if matches!(slot, Slot::Source(_)) && error.errno() == libc::EACCES => {
                Ok(true)
            }
            found => found,
        };
        if !is_empty()? {
            // Chunks removed below may still be in their shards.
            self.commit(path)?;
            if !is_empty()? {
                return Err(FsError::NotEmpty);
            }
        }
        match slot {
            Slot::Above(path, place) => {
                // Directories below it were made when the array was larger.
                let mut names = self.overlay()?.names();
                names.take_directories(path);
                names.take(path);
                drop(names);
                // There is no directory of shards in a store of objects, and each commit replaces whole shards.
                if self.storage.posix().is_some() || self.holds_chunks(place) {
                    self.commit(path)?;
                }
                if place.array.source.format.has_keys() {
                    let shards = self.shard_directory(&place.array, &place.coords);
                    // The directory stays if another process has put something in it, or more of
                    // its shards are left.
                    let removed = self.storage.posix().map(|it| it.remove_directory(&shards));
                    if let Some(Ok(())) = removed {
                        self.after_names(&[&shards])?;
                    }
                }
                // To the kernel the directory is dead, as long as it knows it.
                self.commits.replace(ino);
                Ok(())
            }
            Slot::Source(path) => {
                self.remove_source_directory(path, caller)?;
                self.after_names(&[path])
            }
            _ => Err(FsError::NotPermitted),
        }
    }

    fn lists_nothing(&self, ino: u64) -> Result<bool> {
        let mut empty = true;
        // After `.` and `..`: an error is reported only where no name has come before it.
        self.readdir((ino, None), DOT_DOT, Listing::Names, &mut |_| {
            empty = false;
            ControlFlow::Break(())
        })?;
        Ok(empty)
    }
}
