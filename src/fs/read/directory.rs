//! Directory listings: streamed, in an order in which a listing can resume from a number.
//!
//! ```text
//! position   0  start                          (any directory)
//!     1 .. 2^61  after chunk or coordinate n-1 (directories of chunks; listed last)
//!     2^62 + n   after the n-th other name     (the directory of a sharded array)
//!     2^62 + 2^60 + n   after file n of the mount alone
//!     any other  the source's own position     (directories that are passed through)
//!     DOT, DOT_DOT, DOCUMENTS + n
//! ```

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use crate::format::Coords;
use crate::format::flat::{FlatFile, FlatForm};
use crate::format::grid::{ShardAxis, unravel};
use crate::fs::attr::{Attr, Entry};
use crate::fs::error::{FsError, Result};
use crate::fs::form::Form;
use crate::fs::node::{ArrayView, NodeKind};
use crate::fs::read::lister::{DOCUMENTS, DOT, DOT_DOT, DirEntry, Lister, Listing, OTHER, Sink};
use crate::fs::read::overlay_names::{SCRATCH, Scratch, Staged};
use crate::fs::state::control::{ControlFile, DIRECTORY_NAME};
use crate::fs::state::fs::Fs;
use crate::fs::state::overlay::What;
use crate::fs::state::target::Target;
use crate::store::LoadedShard;
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
            Target::Tree(array, coords) => self.children(array, coords, position),
            Target::Path(path) => match &self.fs.nodes.node(path)?.kind {
                NodeKind::Sharded(array) => self.array(path, array, position),
                _ => self.path(path, position),
            },
        }
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
        if let Some(above) = directory.parent() {
            self.fs.check_shown(directory, above, FileKind::Directory)?;
        }
        let node = self.fs.nodes.node(directory)?;
        if let NodeKind::Unshown = node.kind {
            return Ok(ControlFlow::Continue(()));
        }
        let documents = match position {
            0 => 0,
            // After the first ones.
            after if DOCUMENTS.contains(&after) => {
                usize::try_from(position - DOCUMENTS.start + 1).unwrap_or(usize::MAX)
            }
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
            flow = self.path_item(&path, item.kind, item.next);
            flow
        })?;
        Ok(flow)
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
            Err(_) => Entry {
                attr: unknown(fs.remember(path, None), kind.unwrap_or(FileKind::File)),
                generation: 0,
                lasting: false,
            },
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
            let from = usize::try_from(position.saturating_sub(OTHER)).unwrap_or(usize::MAX);
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

    /// Lists the names below a directory above chunks.
    fn children(
        &mut self,
        array: &Arc<ArrayView>,
        coords: &[u64],
        from: u64,
    ) -> Result<ControlFlow<()>> {
        let (source, axis) = (&array.source, coords.len());
        let (Some(grid), Some(&extent)) =
            (source.layout.shard_grid.get(axis), array.tree.grid().get(axis))
        else {
            return Err(FsError::NotDirectory);
        };
        let mut prefix: Coords = coords
            .iter()
            .zip(&source.layout.shard_grid)
            .map(|(c, axis)| axis.locate(*c).0)
            .collect();
        let staged = self.fs.staged_below(array, coords);
        // Names that are not coordinates come first; where chunk keys have no prefix, they are
        // names of the array's own directory.
        let is_own = coords.is_empty() && array.tree.top_depth() == 1;
        if (from == 0 || from > OTHER) && !is_own && self.scratch(&staged.others, from).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        let mut from = if from > OTHER { 0 } else { from };
        if self.fs.shows_all(array) {
            return Ok(self.all_children(array, coords, from));
        }
        let staged_shards: BTreeSet<u64> =
            staged.coords.keys().map(|coord| grid.locate(*coord).0).collect();
        while from < extent {
            let first = grid.locate(from).0;
            let window = self.fs.store.shard_window(source, &prefix, first)?;
            let last = if window.complete { None } else { window.numbers.last().copied() };
            let mut shards: BTreeSet<u64> = window.from(first).iter().copied().collect();
            shards.extend(staged_shards.range(first..=last.unwrap_or(u64::MAX)));
            for shard in &shards {
                let (start, edge) = grid.span(*shard);
                let range = start.max(from)..(start + edge).min(extent);
                prefix.push(*shard);
                let flow = if axis + 1 == array.tree.rank() {
                    self.chunks(array, &prefix, coords, range, &staged)
                } else {
                    self.directories(array, &prefix, coords, range, &staged)
                };
                prefix.pop();
                if flow.is_break() {
                    return Ok(flow);
                }
            }
            match last {
                Some(last) => from = grid.span(last + 1).0,
                None => break,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Lists the directories below `coords` that hold a chunk and have their last coordinate in
    /// `range`, all of one shard along that axis.
    fn directories(
        &mut self,
        array: &ArrayView,
        prefix: &[u64],
        coords: &[u64],
        range: Range<u64>,
        staged: &Staged,
    ) -> ControlFlow<()> {
        let few = self.fs.few_shards(array, prefix);
        for coord in range {
            let child = [coords, &[coord]].concat();
            let exists = |shards: &Vec<Coords>| self.fs.any_chunk(array, &child, shards);
            let made = matches!(staged.coords.get(&coord), Some(What::Directory));
            if made || few.as_ref().is_none_or(exists) {
                self.directory(array, &child, coord + 1)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Lists the files of a whole array.
    fn flat_files(&mut self, array: &ArrayView, form: &FlatForm, from: u64) -> ControlFlow<()> {
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        for (file, next) in FlatFile::ALL.into_iter().zip(1..).skip(from) {
            let entry = match self.listing {
                Listing::Names => None,
                Listing::Entries => self.fs.flat_entry(array, form, file).ok(),
            };
            let (name, ino) = (OsStr::new(file.name()), array.inodes.ino(file as u64));
            self.add(&DirEntry { name, ino, kind: FileKind::File, next, entry })?;
        }
        ControlFlow::Continue(())
    }

    /// Lists the chunks of one shard along the last axis, below the directory at `coords`.
    fn chunks(
        &mut self,
        array: &ArrayView,
        shard: &[u64],
        coords: &[u64],
        range: Range<u64>,
        staged: &Staged,
    ) -> ControlFlow<()> {
        let shard = self.shard(array, shard);
        let mut child = [coords, &[0]].concat();
        for coord in range {
            if let Some(last) = child.last_mut() {
                *last = coord;
            }
            if let Some(what) = staged.coords.get(&coord) {
                if let What::File(file) = what {
                    self.live(OsStr::new(&array.tree.name(&child)), file, coord + 1)?;
                }
                continue;
            }
            let Some(shard) = &shard else { continue };
            self.chunk(array, shard.as_ref(), &child, coord + 1)?;
        }
        ControlFlow::Continue(())
    }

    /// Lists all chunks of an array whose chunks are in one directory, shard by shard.
    fn flat(&mut self, array: &Arc<ArrayView>, from: u64) -> Result<ControlFlow<()>> {
        if self.fs.shows_all(array) {
            return Ok(self.all_flat(array, from));
        }
        let layout = &array.source.layout;
        let Some(slots) = layout.longest_shard() else {
            return Ok(ControlFlow::Continue(()));
        };
        let shards: Coords = layout.shard_grid.iter().map(ShardAxis::shards).collect();
        let edges: Coords = layout.shard_grid.iter().map(ShardAxis::longest_edge).collect();
        let (mut number, mut slot) = (from / slots, from % slots);
        let staged = self.fs.staged_flat(array);
        let ravel = |shard: &[u64]| shard.iter().zip(&shards).fold(0, |at, (s, n)| at * n + s);
        let staged_shards: BTreeSet<u64> =
            staged.keys().map(|coords| ravel(&layout.locate(coords).shard)).collect();
        loop {
            let window = self.fs.store.shard_window(&array.source, &[], number)?;
            let last = if window.complete { None } else { window.numbers.last().copied() };
            let mut there: BTreeSet<u64> = window.from(number).iter().copied().collect();
            there.extend(staged_shards.range(number..=last.unwrap_or(u64::MAX)));
            for shard in there {
                if shard != number {
                    slot = 0;
                }
                number = shard;
                let place = unravel(number, &shards);
                let loaded = self.shard(array, &place);
                if loaded.is_some() || staged_shards.contains(&number) {
                    for slot in slot..slots {
                        let Some(coords) = chunk_of_slot(array, &place, &unravel(slot, &edges))
                        else {
                            continue;
                        };
                        let next = number * slots + slot + 1;
                        if let Some(what) = staged.get(&coords) {
                            if let What::File(file) = what {
                                let name = array.tree.name(&coords);
                                if self.live(OsStr::new(&name), file, next).is_break() {
                                    return Ok(ControlFlow::Break(()));
                                }
                            }
                            continue;
                        }
                        let Some(loaded) = &loaded else { continue };
                        if self.chunk(array, loaded.as_ref(), &coords, next).is_break() {
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                }
            }
            match last {
                Some(last) => (number, slot) = (last + 1, 0),
                None => return Ok(ControlFlow::Continue(())),
            }
        }
    }

    /// Lists files that exist in the mount alone, after a position.
    fn scratch(&mut self, files: &[Scratch], position: u64) -> ControlFlow<()> {
        for (number, name, file) in files {
            let next = SCRATCH + number;
            if position < next {
                self.live(name, file, next)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns a shard to list: `None` if it is absent, `Some(None)` if it cannot be read.
    #[allow(clippy::option_option, reason = "absent and unreadable are different answers")]
    fn shard(&self, array: &ArrayView, coords: &[u64]) -> Option<Option<Arc<LoadedShard>>> {
        match self.fs.store.shard_to_list(&array.source, coords) {
            Ok(None) => None,
            Ok(Some(shard)) if shard.is_damaged() => Some(None),
            Ok(Some(shard)) => {
                self.fs.shard_changed_recently(array, coords, shard.stat());
                Some(Some(shard))
            }
            Err(_) => Some(None),
        }
    }

    /// Adds a chunk if it exists. In a shard that cannot be read every chunk may exist: damage is
    /// never shown as absence.
    fn chunk(
        &mut self,
        array: &ArrayView,
        shard: Option<&Arc<LoadedShard>>,
        coords: &[u64],
        next: u64,
    ) -> ControlFlow<()> {
        let chunk = shard.map(|shard| {
            let location = array.source.layout.locate(coords);
            self.fs.store.chunk_to_list(&array.source, shard, &location, coords)
        });
        let entry = match chunk {
            Some(Ok(None)) => return ControlFlow::Continue(()),
            Some(Ok(Some(chunk))) if self.listing == Listing::Entries => {
                Some(self.fs.chunk_entry(array, coords, &chunk.shard, chunk.nbytes()))
            }
            _ => None,
        };
        self.node(array, coords, FileKind::File, next, entry)
    }
}

impl Fs {
    /// Lists a directory from `position` on until `sink` breaks.
    pub fn readdir<'a>(
        &'a self,
        ino: u64,
        position: u64,
        listing: Listing,
        sink: &'a mut Sink<'a>,
    ) -> Result<()> {
        self.stats.operations.readdir.count();
        let target = self.target(ino)?;
        let mut lister = Lister { fs: self, listing, sink, taken: 0 };
        let listed = lister.list(ino, &target, position);
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

/// Returns the chunk at a position of a shard; `None` if it is outside the shard or outside the
/// array.
fn chunk_of_slot(array: &ArrayView, shard: &[u64], place: &[u64]) -> Option<Coords> {
    let axes = array.source.layout.shard_grid.iter().zip(array.tree.grid());
    axes.zip(shard.iter().zip(place))
        .map(|((axis, extent), (shard, place))| {
            let (first, edge) = axis.span(*shard);
            (*place < edge && first + place < *extent).then_some(first + place)
        })
        .collect()
}

/// Returns whether a name is the source's own `.shardfs`, which holds the journals of commits and
/// is hidden.
fn is_hidden(name: &OsStr) -> bool {
    name == DIRECTORY_NAME
}

/// Returns placeholder attributes, which are not cached: the lookup that follows reports the error.
fn unknown(ino: u64, kind: FileKind) -> Attr {
    let time = crate::store::storage::Timestamp::default();
    Attr {
        ino,
        kind,
        links: 1,
        mode: 0,
        uid: 0,
        gid: 0,
        size: 0,
        mtime: time,
        ctime: time,
        atime: time,
        block: 4096,
    }
}
