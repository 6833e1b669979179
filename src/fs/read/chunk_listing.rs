//! Listings of chunks, and of the directories above them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use crate::format::Coords;
use crate::format::grid::{ShardAxis, unravel};
use crate::fs::error::{FsError, Result};
use crate::fs::node::ArrayView;
use crate::fs::read::lister::{Lister, Listing, OTHER};
use crate::fs::read::overlay_names::{SCRATCH, Scratch, Staged};
use crate::fs::state::overlay::What;
use crate::store::storage::FileKind;
use crate::store::{Freshness, LoadedShard};

/// Shards whose indexes are requested before the first of them is listed.
const ANNOUNCED: usize = 64;
/// Directories of which the first shard is requested before they are listed.
const ANNOUNCED_DIRECTORIES: usize = 16;

impl Lister<'_> {
    /// Lists the names below a directory above chunks.
    pub(in crate::fs) fn children(
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
        let mut prefix = source.layout.shard_of(coords);
        let staged = self.fs.staged_below(array, coords);
        // Names that are not coordinates come first; where chunk keys have no prefix, they are
        // names of the array's own directory.
        let is_own = coords.is_empty() && array.tree.top_depth() == 1;
        if (from == 0 || from >= OTHER) && !is_own && self.scratch(&staged.others, from).is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
        let mut from = if from >= OTHER { 0 } else { from };
        if self.fs.shows_all(array) {
            return Ok(self.all_children(array, coords, from));
        }
        if self.is_last_first(array, coords) {
            return self.children_from_last(array, from, &staged);
        }
        let staged_shards: BTreeSet<u64> =
            staged.coords.keys().map(|coord| grid.locate(*coord).0).collect();
        while from < extent {
            let first = grid.locate(from).0;
            let window = self.fs.store.shard_window(source, &prefix, first)?;
            let last = if window.complete { None } else { window.numbers.last().copied() };
            let mut shards: BTreeSet<u64> = window.from(first).iter().copied().collect();
            shards.extend(staged_shards.range(first..=last.unwrap_or(u64::MAX)));
            if axis + 1 == array.tree.rank() {
                let place = |shard: &u64| [&prefix[..], &[*shard]].concat();
                let next: Vec<Coords> = shards.iter().take(ANNOUNCED).map(place).collect();
                self.fs.store.announce(source, &next);
            } else if self.fs.store.has_slow_requests() {
                // Of each directory, that in which a chunk will be looked for first.
                let first = |shard: &u64| {
                    let below = [&prefix[..], &[*shard]].concat();
                    self.fs.store.shards_below(source, &below, 1).ok()?.into_iter().next()
                };
                let next: Vec<Coords> =
                    shards.iter().take(ANNOUNCED_DIRECTORIES).filter_map(first).collect();
                self.fs.store.announce(source, &next);
            }
            for shard in &shards {
                let (start, edge) = grid.span(*shard);
                let range = start.max(from)..(start + edge).min(extent);
                prefix.push(*shard);
                let flow = if axis + 1 == array.tree.rank() {
                    let shard = self.shard(array, &prefix)?;
                    self.chunks(array, shard.as_ref(), coords, range, &staged)
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

    /// Returns whether a directory is listed from its last name to the first: only the last chunk of
    /// such an array can be removed, and `rm -r` removes up to 10,000 names in the order of the
    /// listing.
    fn is_last_first(&self, array: &ArrayView, coords: &[u64]) -> bool {
        let source = &array.source;
        let shrinks = || {
            let format = &source.format;
            !format.has_keys() && format.can_shrink() && format.is_writable(&source.layout)
        };
        coords.is_empty() && self.fs.overlay.is_some() && shrinks()
    }

    /// Returns the position after a coordinate in a directory.
    fn position_after(&self, array: &ArrayView, coords: &[u64], coord: u64) -> u64 {
        if self.is_last_first(array, coords) { OTHER - 1 - coord } else { coord + 1 }
    }

    /// Lists the names in the directory of all chunks from the last one on. The position counts from
    /// a fixed end, as the array may get shorter meanwhile.
    fn children_from_last(
        &mut self,
        array: &Arc<ArrayView>,
        from: u64,
        staged: &Staged,
    ) -> Result<ControlFlow<()>> {
        let Some(grid) = array.source.layout.shard_grid.first() else {
            return Err(FsError::NotDirectory);
        };
        let extent = array.tree.grid().first().copied().unwrap_or(0);
        let stored = self.fs.store.shards_now(&array.source)?.unwrap_or(extent);
        let end = if from == 0 { extent } else { extent.min(OTHER - 1 - from) };
        let stored = stored.min(end);
        let beyond = staged.coords.range(stored..end).rev().map(|(coord, _)| *coord);
        for coord in beyond.chain((0..stored).rev()) {
            let (prefix, range) = ([grid.locate(coord).0], coord..coord + 1);
            let flow = match array.tree.rank() {
                1 => {
                    let shard = self.shard(array, &prefix)?;
                    self.chunks(array, shard.as_ref(), &[], range, staged)
                }
                _ => self.directories(array, &prefix, &[], range, staged),
            };
            if flow.is_break() {
                return Ok(flow);
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
                let next = self.position_after(array, coords, coord);
                self.directory(array, &child, next)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Lists the chunks of one shard, as [`Self::shard`] returns it, along the last axis, below the directory at
    /// `coords`.
    fn chunks(
        &mut self,
        array: &ArrayView,
        shard: Option<&Option<Arc<LoadedShard>>>,
        coords: &[u64],
        range: Range<u64>,
        staged: &Staged,
    ) -> ControlFlow<()> {
        let mut child = [coords, &[0]].concat();
        for coord in range {
            if let Some(last) = child.last_mut() {
                *last = coord;
            }
            let next = self.position_after(array, coords, coord);
            if let Some(what) = staged.coords.get(&coord) {
                if let What::File(file) = what {
                    self.live(OsStr::new(&array.tree.name(&child)), file, next)?;
                }
                continue;
            }
            let Some(shard) = shard else { continue };
            self.chunk(array, shard.as_ref(), &child, next)?;
        }
        ControlFlow::Continue(())
    }

    /// Lists all chunks of an array whose chunks are in one directory, shard by shard.
    pub(in crate::fs) fn flat(
        &mut self,
        array: &Arc<ArrayView>,
        from: u64,
    ) -> Result<ControlFlow<()>> {
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
            staged.keys().map(|coords| ravel(&layout.shard_of(coords))).collect();
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
                let loaded = self.shard(array, &place)?;
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
    pub(in crate::fs) fn scratch(&mut self, files: &[Scratch], position: u64) -> ControlFlow<()> {
        for (number, name, file) in files {
            let next = SCRATCH + number;
            if position < next {
                self.live(name, file, next)?;
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns a shard to list: `None` if it is absent, `Some(None)` if it cannot be read.
    ///
    /// # Errors
    ///
    /// There was no answer in time, or the process that lists is to end: the other shards would be waited for
    /// as long.
    #[allow(clippy::option_option, reason = "absent and unreadable are different answers")]
    fn shard(&self, array: &ArrayView, coords: &[u64]) -> Result<Option<Option<Arc<LoadedShard>>>> {
        Ok(match self.fs.store.shard_to_list(&array.source, coords) {
            Ok(None) => None,
            Ok(Some(shard)) if shard.is_damaged() => Some(None),
            Ok(Some(shard)) => {
                self.fs.shard_changed_recently(array, coords, shard.stat());
                Some(Some(shard))
            }
            Err(error) if [libc::ETIMEDOUT, libc::EINTR].contains(&error.errno()) => {
                return Err(error.into());
            }
            Err(_) => Some(None),
        })
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
                match self.fs.chunk_date(array, coords, &chunk.shard) {
                    // A commit of this mount has replaced the shard since it was looked at.
                    None => self.fs.tree_entry(array, coords, Freshness::Recent).ok().flatten(),
                    date => {
                        let dated = (&chunk.shard, date);
                        Some(self.fs.dated_entry(array, coords, dated, chunk.nbytes()))
                    }
                }
            }
            _ => None,
        };
        self.node(array, coords, FileKind::File, next, entry)
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
