//! Directory listings: streamed, in an order in which a listing can resume from a number.
//!
//! ```text
//! position   0  start                          (any directory)
//!     1 .. 2^61  after chunk or coordinate n-1 (directories of chunks; listed last)
//!     2^62 - 1 - n   after coordinate n, which is listed before n-1 (chunks removed from the end)
//!     2^62 + n   after the n-th other name     (the directory of a sharded array)
//!     2^62 + 2^60 + n   after file n of the mount alone
//!     any other  the source's own position     (directories that are passed through)
//!     DOT, DOT_DOT, DOCUMENTS + n
//! ```

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::format::flat::{FlatFile, FlatForm};
use crate::fs::error::{FsError, Result};
use crate::fs::form::Form;
use crate::fs::node::{ArrayView, NodeKind};
use crate::fs::read::lister::{DOCUMENTS, DOT, DOT_DOT, DirEntry, Lister, Listing, OTHER, Sink};
use crate::fs::read::overlay_names::SCRATCH;
use crate::fs::state::control_files::{ControlFile, DIRECTORY_NAME};
use crate::fs::state::fs::Fs;
use crate::fs::state::target::Target;
use crate::number::to_usize;
use crate::store::storage::{DirItem, FileKind};

impl Lister<'_> {
    fn list(&mut self, ino: u64, target: &Target, position: u64) -> Result<ControlFlow<()>> {
        let ControlFlow::Continue(position) = self.dots(ino, position) else {
            return Ok(ControlFlow::Break(()));
        };
        match target {
            Target::Control(_) | Target::Flat(..) | Target::Live(_) | Target::Nameless(_) => {
                Err(FsError::NotDirectory)
            }
            Target::ControlDirectory => Ok(self.control(position)),
            Target::Tree(array, coords) => {
                let position = self.position_in_array(position);
                self.children(array, coords, position)
            }
            Target::Path(path) => match &self.fs.nodes.node(path)?.kind {
                NodeKind::Sharded(array) => {
                    let position = self.position_in_array(position);
                    self.array(path, array, position)
                }
                _ => self.path(path, position),
            },
        }
    }

    /// Returns the position from which a directory of an array is listed: the start if the listing has begun when it was
    /// passed through, for the position is one in the source. Names may come twice then, and none is missing.
    fn position_in_array(&mut self, position: u64) -> u64 {
        let has_begun_before =
            self.handle.is_some_and(|handle| self.fs.listings.lock().contains(&handle));
        self.is_in_array = true;
        if has_begun_before { 0 } else { position }
    }

    /// Lists `.` and `..`; returns the position from which the rest resumes.
    fn dots(&mut self, ino: u64, position: u64) -> ControlFlow<(), u64> {
        let kind = FileKind::Directory;
        let dots = [(0, ".", DOT), (DOT, "..", DOT_DOT)];
        let mut position = position;
        for (before, name, next) in dots {
            if position == before {
                let name = OsStr::new(name);
                self.add(&DirEntry { name, ino, kind, next, entry: None })?;
                position = next;
            }
        }
        ControlFlow::Continue(if position == DOT_DOT { 0 } else { position })
    }

    fn control(&mut self, position: u64) -> ControlFlow<()> {
        let files = (1..).zip(ControlFile::ALL);
        for (next, file) in files.filter(|(next, _)| *next > position) {
            let (name, ino) = (OsStr::new(file.name()), file.ino());
            self.add(&DirEntry { name, ino, kind: FileKind::File, next, entry: None })?;
        }
        ControlFlow::Continue(())
    }

    /// Lists a directory that is passed through.
    pub(in crate::fs) fn path(
        &mut self,
        directory: &Path,
        position: u64,
    ) -> Result<ControlFlow<()>> {
        let turns = self.fs.nodes.turns();
        if let Some(above) = directory.parent() {
            self.fs.check_shown(directory, above, FileKind::Directory)?;
        }
        let node = self.fs.nodes.node(directory)?;
        // It has become one since it was looked at.
        if let NodeKind::Sharded(array) = &node.kind {
            let position = self.position_in_array(position);
            return self.array(directory, array, position);
        }
        // Of what is being put into shards the source has a part.
        let nodes = &self.fs.nodes;
        let is_as_before = || !nodes.has_turned(directory, turns);
        if let NodeKind::Unshown = node.kind {
            return Ok(ControlFlow::Continue(()));
        }
        let documents = match position {
            0 => 0,
            // After the first ones.
            after if DOCUMENTS.contains(&after) => to_usize(position - DOCUMENTS.start + 1),
            _ => usize::MAX,
        };
        for ((name, _), next) in node.extra.iter().zip(DOCUMENTS).skip(documents) {
            let path = directory.join(name);
            if !self.fs.is_removed(&path) && self.path_item(&path, None, next).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let position = if DOCUMENTS.contains(&position) { 0 } else { position };
        let mut flow = ControlFlow::Continue(());
        self.fs.storage.list(directory, position, &mut |item: DirItem<'_>| {
            let path = directory.join(item.name);
            let hidden = is_hidden(item.name)
                || node.replaces(item.name)
                || self.fs.nodes.is_replaced_apart(&path).unwrap_or(false);
            if hidden || self.fs.is_removed(&path) {
                return ControlFlow::Continue(());
            }
            if !is_as_before() {
                return ControlFlow::Break(());
            }
            flow = self.path_item(&path, item.kind, item.next);
            flow
        })?;
        match flow.is_break() || is_as_before() {
            true => Ok(flow),
            false => Err(FsError::Stale),
        }
    }

    fn path_item(&mut self, path: &Path, kind: Option<FileKind>, next: u64) -> ControlFlow<()> {
        let fs = self.fs;
        if kind == Some(FileKind::Directory) && fs.is_unshown(path).unwrap_or(false) {
            return ControlFlow::Continue(());
        }
        let name = path.file_name().unwrap_or_default();
        if let (Listing::Names, Some(kind)) = (self.listing, kind) {
            let ino = fs.paths.number(path);
            return self.add(&DirEntry { name, ino, kind, next, entry: None });
        }
        let entry = match fs.path_entry(path) {
            Ok(entry) => entry,
            // Removed since it was listed.
            Err(FsError::NotFound) => return ControlFlow::Continue(()),
            Err(_) => {
                let kind = kind.unwrap_or(FileKind::File);
                if self.listing == Listing::Entries {
                    return self.without_attributes(name, kind, next);
                }
                let ino = fs.paths.number(path);
                return self.add(&DirEntry { name, ino, kind, next, entry: None });
            }
        };
        let (ino, kind) = (entry.attr.ino, entry.attr.kind);
        let wanted = self.listing == Listing::Entries;
        let entry = wanted.then_some(entry);
        let flow = self.add(&DirEntry { name, ino, kind, next, entry });
        if flow.is_break() || !wanted {
            // No entry was returned to the kernel after all.
            fs.paths.forget(ino, 1);
        }
        flow
    }

    /// Lists the directory of a sharded array: names outside the chunk tree, then those in it.
    pub(in crate::fs) fn array(
        &mut self,
        directory: &Path,
        array: &Arc<ArrayView>,
        position: u64,
    ) -> Result<ControlFlow<()>> {
        let chunks_from = match position {
            0 => 0,
            OTHER.. => 0,
            position => position,
        };
        if chunks_from == 0 {
            let from = to_usize(position.saturating_sub(OTHER));
            if position < SCRATCH {
                let others = self.other_names(directory, array)?;
                for (name, next) in others.iter().zip(OTHER + 1..).skip(from) {
                    if self.path_item(&directory.join(name), None, next).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
            if self.scratch(&self.fs.scratch_in(directory), position).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if let Form::Flat(form) = &array.form {
            return Ok(self.flat_files(array, form, chunks_from));
        }
        if array.tree.is_flat() {
            return self.flat(array, chunks_from);
        }
        if array.tree.top_depth() == 1 {
            return self.children(array, &[], chunks_from);
        }
        if chunks_from == 0 && self.has_chunks(array) {
            return Ok(self.directory(array, &[], 1));
        }
        Ok(ControlFlow::Continue(()))
    }

    fn other_names(&self, directory: &Path, array: &ArrayView) -> Result<Vec<OsString>> {
        let node = self.fs.nodes.node(directory)?;
        let extra = node.extra.iter().map(|(name, _)| name.clone());
        let is_there = |name: &OsString| !self.fs.is_removed(&directory.join(name));
        let mut names: Vec<OsString> = extra.filter(is_there).collect();
        if array.source.format.is_one_file() {
            // The directory that holds the file is unrelated to the array.
            names.sort();
            return Ok(names);
        }
        self.fs.storage.list(directory, 0, &mut |item| {
            let claimed = item.name.to_str().is_some_and(|name| array.tree.claims(name));
            let hidden = is_hidden(item.name) || array.hides(item.name) || node.replaces(item.name);
            if !claimed && !hidden && !self.fs.is_removed(&directory.join(item.name)) {
                names.push(item.name.to_owned());
            }
            ControlFlow::Continue(())
        })?;
        names.sort();
        Ok(names)
    }

    /// Returns whether any chunk exists; also `true` if that takes too many indexes to determine.
    fn has_chunks(&self, array: &ArrayView) -> bool {
        let few = self.fs.few_shards(array, &[]);
        if self.fs.shows_all(array) {
            return !array.tree.grid().contains(&0);
        }
        self.fs.is_made(array, &[])
            || few.is_none_or(|shards| self.fs.any_chunk(array, &[], &shards))
    }

    /// Lists the files of a whole array.
    fn flat_files(&mut self, array: &ArrayView, form: &FlatForm, from: u64) -> ControlFlow<()> {
        let from = to_usize(from);
        for (file, next) in FlatFile::ALL.into_iter().zip(1..).skip(from) {
            let name = OsStr::new(file.name());
            let entry = match self.listing {
                Listing::Names => None,
                Listing::Entries => match self.fs.flat_entry(array, form, file) {
                    Ok(entry) => Some(entry),
                    Err(_) => {
                        self.without_attributes(name, FileKind::File, next)?;
                        continue;
                    }
                },
            };
            let ino = array.inodes.ino(file as u64);
            self.add(&DirEntry { name, ino, kind: FileKind::File, next, entry })?;
        }
        ControlFlow::Continue(())
    }
}

impl Fs {
    /// Lists a directory, which may be open with a handle, from `position` on until `sink` breaks.
    pub fn readdir<'a>(
        &'a self,
        (ino, handle): (u64, Option<u64>),
        position: u64,
        listing: Listing,
        sink: &'a mut Sink<'a>,
    ) -> Result<()> {
        self.stats.operations.readdir.count();
        let (taken, is_in_array, shards) = (0, false, None);
        let mut lister = Lister { fs: self, handle, listing, sink, taken, is_in_array, shards };
        let listed = loop {
            let turns = self.nodes.turns();
            (lister.is_in_array, lister.shards) = (false, None);
            let target = self.target(ino)?;
            let listed = lister.list(ino, &target, position);
            // It may have become a directory of an array since it was looked at.
            let is_stale = matches!(listed, Err(FsError::Stale | FsError::NotFound));
            if !(is_stale && lister.taken == 0 && self.has_turned(ino, turns)) {
                break listed;
            }
        };
        // From now on positions are those in the array.
        if let (Some(handle), true) = (handle, lister.is_in_array)
            && (listed.is_ok() || lister.taken > 0)
        {
            self.listings.lock().remove(&handle);
        }
        self.stats.operations.entries.add(lister.taken);
        match listed {
            // The names before the error are valid; the next request meets the error right after
            // them.
            Err(_) if lister.taken > 0 => Ok(()),
            // The caller knows from the names it took whether the end was reached.
            listed => listed.map(|_flow| ()),
        }
    }
}

/// Returns whether a name is the source's own `.shardfs`, which holds the journals of commits and
/// is hidden.
fn is_hidden(name: &OsStr) -> bool {
    name == DIRECTORY_NAME
}
