//! Receiver of a listing, with the ranges of positions in it.

use std::ffi::OsStr;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use crate::fs::attr::Entry;
use crate::fs::error::{FsError, Result};
use crate::fs::node::ArrayView;
use crate::fs::state::fs::Fs;
use crate::fs::state::live_file::{Bytes, LiveFile, Place, Shown};
use crate::store::storage::{FileKind, Stat};

/// Positions after `.` and `..`. No filesystem uses the last ones.
pub(in crate::fs) const DOT: u64 = i64::MAX as u64 - 9;

pub(in crate::fs) const DOT_DOT: u64 = i64::MAX as u64 - 8;

/// Positions after documents that the source does not have, in directories that are passed through.
/// The last of all is ext4's end-of-directory position.
pub(in crate::fs) const DOCUMENTS: Range<u64> = i64::MAX as u64 - 7..i64::MAX as u64 - 3;

/// First position after other names.
pub(in crate::fs) const OTHER: u64 = 1 << 62;

/// Contents of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// Names, kinds and inode numbers.
    Names,
    /// Attributes as well, each equivalent to a lookup.
    Entries,
}

/// Entry of a listing.
#[derive(Debug)]
pub struct DirEntry<'a> {
    /// Name.
    pub name: &'a OsStr,
    /// Inode number.
    pub ino: u64,
    /// File type.
    pub kind: FileKind,
    /// Position from which a listing resumes after it.
    pub next: u64,
    /// Attributes; `None` if they were not requested or are not available, as those of a damaged
    /// chunk.
    pub entry: Option<Entry>,
}

/// Receiver of entries; breaks if it has no room for one.
pub(in crate::fs) type Sink<'a> = dyn FnMut(&DirEntry<'_>) -> ControlFlow<()> + 'a;

/// Listing in progress.
pub(in crate::fs) struct Lister<'a> {
    pub(in crate::fs) fs: &'a Fs,
    /// Handle of the directory, if it is open.
    pub(in crate::fs) handle: Option<u64>,
    pub(in crate::fs) listing: Listing,
    pub(in crate::fs) sink: &'a mut Sink<'a>,
    /// Number of names that the receiver has taken.
    pub(in crate::fs) taken: u64,
    /// `true` once positions are those in a directory of an array.
    pub(in crate::fs) is_in_array: bool,
    /// Directory of shards that was looked at last, if it is there: as many directories above chunks have their
    /// attributes from it as a shard is long.
    pub(in crate::fs) shards: Option<(PathBuf, Stat)>,
}

impl Lister<'_> {
    pub(in crate::fs) fn add(&mut self, entry: &DirEntry<'_>) -> ControlFlow<()> {
        (self.sink)(entry)?;
        self.taken += 1;
        ControlFlow::Continue(())
    }

    pub(in crate::fs) fn directory(
        &mut self,
        array: &ArrayView,
        coords: &[u64],
        next: u64,
    ) -> ControlFlow<()> {
        let entry = match self.listing {
            Listing::Names => None,
            Listing::Entries => self.tree_directory(array, coords).unwrap_or(None),
        };
        self.node(array, coords, FileKind::Directory, next, entry)
    }

    fn tree_directory(&mut self, array: &ArrayView, coords: &[u64]) -> Result<Option<Entry>> {
        let (fs, shards) = (self.fs, &mut self.shards);
        fs.tree_directory_by(array, coords, |path| {
            if let Some((known, stat)) = shards
                && known == path
            {
                return Ok(Some(*stat));
            }
            let stat = fs.store.shard_directory(path)?;
            *shards = stat.map(|stat| (path.to_owned(), stat));
            Ok(stat)
        })
    }

    /// Adds a chunk or a directory above chunks.
    pub(in crate::fs) fn node(
        &mut self,
        array: &ArrayView,
        coords: &[u64],
        kind: FileKind,
        next: u64,
        entry: Option<Entry>,
    ) -> ControlFlow<()> {
        let name = array.tree.name(coords);
        let (name, ino) = (OsStr::new(&name), array.inodes.ino(array.tree.number(coords)));
        if self.listing == Listing::Entries && kind == FileKind::File {
            let has_moved = self.fs.has_moved(ino);
            if has_moved && let Some(file) = self.fs.live_called(ino, &array.path(coords)) {
                return self.live(name, &file, next);
            }
            if has_moved || entry.is_none() {
                return self.without_attributes(name, kind, next);
            }
        }
        let added = DirEntry { name, ino, kind, next, entry };
        self.add(&added)?;
        if self.listing == Listing::Entries
            && let (FileKind::File, Some(entry)) = (kind, &added.entry)
        {
            self.fs.chunk_shown(array, coords, entry);
        }
        ControlFlow::Continue(())
    }

    /// Adds a file whose attributes are not available, under a number that no file has. Placeholder
    /// attributes under its own number, or under one that belongs to another file by now, would make the
    /// kernel give up the file that is in use under it; the lookup that follows returns the right number,
    /// or the error.
    pub(in crate::fs) fn without_attributes(
        &mut self,
        name: &OsStr,
        kind: FileKind,
        next: u64,
    ) -> ControlFlow<()> {
        let ino = self.fs.unused_number();
        self.add(&DirEntry { name, ino, kind, next, entry: None })?;
        // The kernel counts it all the same.
        self.fs.chunk_looked_up(ino);
        ControlFlow::Continue(())
    }

    /// Adds a file of the overlay.
    pub(in crate::fs) fn live(
        &mut self,
        name: &OsStr,
        file: &LiveFile,
        next: u64,
    ) -> ControlFlow<()> {
        let (is_nothing, bytes) = {
            let state = file.state();
            (matches!(state.shown, Shown::Nothing), state.shown())
        };
        let is_gone = |place: &Place| {
            !self.fs.shows_all(&place.array) && !self.fs.is_stored(place).unwrap_or(true)
        };
        let entry = match self.listing {
            _ if is_nothing => return ControlFlow::Continue(()),
            Listing::Names => match &bytes {
                Bytes::Stored(place) if is_gone(place) => return ControlFlow::Continue(()),
                _ => None,
            },
            Listing::Entries => match self.fs.live_entry(file) {
                Ok(entry) => Some(entry),
                // What is stored is shown, and others have removed it.
                Err(FsError::NotFound) => return ControlFlow::Continue(()),
                Err(_) => return self.without_attributes(name, FileKind::File, next),
            },
        };
        let (ino, kind, is_entry) = (file.ino, FileKind::File, entry.is_some());
        let flow = self.add(&DirEntry { name, ino, kind, next, entry });
        if flow.is_break() && is_entry {
            self.fs.forget(ino, 1);
        }
        flow
    }
}
