//! Files of the overlay by number: how often the kernel has looked them up, and when they are dropped.

use std::path::PathBuf;
use std::sync::Arc;

use super::Names;
use crate::fs::state::live_file::{Bytes, LiveFile, LiveState, Place, Shown};
use crate::view::inode;

impl Names {
    /// Returns the file with an inode number; `None` if there is none.
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
