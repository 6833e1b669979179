//! File of the overlay, and the open files that show it or a file of the source.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::format::Coords;
use crate::fs::caller::{Author, Owner};
use crate::fs::error::{FsError, Result};
use crate::fs::node::ArrayView;
use crate::fs::state::copy::Copy;
use crate::fs::state::opener::Opener;
use crate::store::Base;
use crate::store::content::Content;
use crate::store::spool::level_directory;
use crate::store::storage::{PosixFile, StorageFile, Timestamp, Version};

/// Position of a chunk: its array and its coordinates.
#[derive(Debug, Clone)]
pub(in crate::fs) struct Place {
    pub array: Arc<ArrayView>,
    pub coords: Coords,
}

impl Place {
    /// Returns the path under which the chunk is saved: that in the view `zarr3`, relative to the
    /// source's root, below a directory that names the level if the chunk is itself a shard.
    pub(in crate::fs) fn saved_path(&self) -> PathBuf {
        let source = &self.array.source;
        let path = source.path.join(source.layout.keys.chunk_key(&self.coords));
        match source.layout.shows_shards() {
            true => Path::new(&level_directory(source.layout.levels.len())).join(path),
            false => path,
        }
    }
}

/// File of the mount.
pub(in crate::fs) struct LiveFile {
    /// Inode number, which it keeps under all its names.
    pub ino: u64,
    /// Generation of the number, which it keeps as well.
    pub generation: u64,
    /// Held while its bytes are staged: what was written last must be staged last.
    pub(in crate::fs) turn: Mutex<()>,
    pub(in crate::fs) state: Mutex<LiveState>,
    /// Uncommitted bytes of this file; `dirty` counts those of all files.
    pub(in crate::fs) counted: AtomicU64,
    pub(in crate::fs) dirty: Arc<AtomicU64>,
}

/// Inode number of a file, and its generation: another file that gets the number later has a different
/// one, and the kernel gives up what it knows of the former.
#[derive(Debug, Clone, Copy)]
pub(in crate::fs) struct Number {
    pub ino: u64,
    pub generation: u64,
}

/// Mutable state of a file.
pub(in crate::fs) struct LiveState {
    pub bytes: Bytes,
    /// Contents visible to readers other than the writer.
    pub shown: Shown,
    /// Number of writes so far.
    pub writes: u64,
    pub mode: u32,
    /// Permissions that it was created with, before a umask or an access control list took any away.
    pub asked: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    /// Its names; empty once it was removed.
    pub names: Vec<PathBuf>,
    /// Open handles.
    pub openers: Vec<Weak<OpenFile>>,
    /// `true` if it was linked to a name outside the overlay, which has a copy.
    pub is_copied: bool,
    /// `true` if it was written since it was last staged.
    pub dirty: bool,
    /// `true` if it is a document of a store of objects that was refused, for others have put another one there.
    pub is_stale: bool,
    /// Shard that bytes of it were loaded from, if that is behind a link.
    pub behind_link: Option<Version>,
    /// `true` if all chunks that it stands for have a [`Stage`].
    pub staged: bool,
    /// Number of operations that need its bytes in the overlay.
    pub uses: usize,
    /// Users who have changed it since it was last stored, but for those who may do anything.
    pub writers: Vec<Author>,
    /// Durable copy outside the source, kept while the file is durable nowhere else.
    pub copy: Option<Copy>,
}

/// Location of a file's bytes.
#[derive(Clone)]
pub(in crate::fs) enum Bytes {
    /// In the shard, as those of this chunk.
    Stored(Place),
    /// In the overlay.
    Here(Content),
    /// In this file of the source, which it has become.
    Moved(Arc<dyn PosixFile>),
}

/// Contents visible to readers other than the writer. For a file that is a chunk as it is written
/// these are the same; files of decoded chunks are generated from chunks.
#[derive(Debug, Clone, Default)]
pub(in crate::fs) enum Shown {
    /// Its bytes.
    #[default]
    Written,
    /// Other bytes that make the same chunk.
    Instead(Content),
    /// The chunk as it is stored: the contents last closed were refused.
    Stored(Place),
    /// Nothing: the contents last closed consist of fill values.
    Nothing,
}

impl std::fmt::Debug for LiveFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveFile").field("ino", &self.ino).finish_non_exhaustive()
    }
}

impl LiveFile {
    pub(in crate::fs) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    pub(in crate::fs) fn state(&self) -> LiveGuard<'_> {
        LiveGuard { file: self, state: self.state.lock() }
    }
}

impl Drop for LiveFile {
    fn drop(&mut self) {
        self.dirty.fetch_sub(self.counted.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl LiveState {
    /// Creates the state of a file without contents and names, written at `mtime`.
    pub(in crate::fs) fn new(mode: u32, owner: Owner, mtime: Timestamp) -> Self {
        Self {
            bytes: Bytes::Here(Content::Memory(Arc::default())),
            shown: Shown::Written,
            writes: 0,
            mode: mode & 0o7777,
            asked: mode & 0o7777,
            uid: owner.uid,
            gid: owner.gid,
            mtime,
            names: Vec::new(),
            openers: Vec::new(),
            is_copied: false,
            is_stale: false,
            dirty: true,
            behind_link: None,
            staged: false,
            uses: 0,
            writers: Vec::new(),
            copy: None,
        }
    }

    /// Records that a user changes it.
    pub(in crate::fs) fn written_by(&mut self, author: &Author) {
        if !self.writers.iter().any(|known| known.is_same(author)) {
            self.writers.push(author.clone());
        }
    }

    /// Marks the file as just written.
    pub(in crate::fs) fn written(&mut self) {
        (self.dirty, self.mtime, self.shown) = (true, crate::fs::attr::now(), Shown::Written);
        self.writes += 1;
    }

    /// Returns whether the file has open handles.
    pub(in crate::fs) fn is_open(&self) -> bool {
        self.openers.iter().any(|open| open.strong_count() > 0)
    }

    /// Returns whether processes have the file open.
    pub(in crate::fs) fn held(&self) -> Held {
        let open = self.openers.iter().filter_map(Weak::upgrade);
        open.map(|open| open.held()).max().unwrap_or(Held::No)
    }

    /// Returns all open handles.
    pub(in crate::fs) fn open_files(&self) -> Vec<Arc<OpenFile>> {
        self.openers.iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns whether another handle than `open` is in the middle of writing to the file.
    pub(in crate::fs) fn is_written_beside(&self, open: &Arc<OpenFile>) -> bool {
        let others = self.open_files().into_iter().filter(|other| !Arc::ptr_eq(other, open));
        others.into_iter().any(|other| other.is_writing.load(Ordering::Relaxed))
    }

    /// Returns the bytes visible to readers. For a file of fill values that is still open these are
    /// what was written.
    pub(in crate::fs) fn shown(&self) -> Bytes {
        match &self.shown {
            Shown::Written | Shown::Nothing => self.bytes.clone(),
            Shown::Instead(content) => Bytes::Here(content.clone()),
            Shown::Stored(place) => Bytes::Stored(place.clone()),
        }
    }
}

/// Locked file. Its bytes are counted when it is unlocked.
pub(in crate::fs) struct LiveGuard<'a> {
    pub(in crate::fs) file: &'a LiveFile,
    pub(in crate::fs) state: MutexGuard<'a, LiveState>,
}

impl std::ops::Deref for LiveGuard<'_> {
    type Target = LiveState;
    fn deref(&self) -> &LiveState {
        &self.state
    }
}

impl std::ops::DerefMut for LiveGuard<'_> {
    fn deref_mut(&mut self) -> &mut LiveState {
        &mut self.state
    }
}

impl Drop for LiveGuard<'_> {
    fn drop(&mut self) {
        let now = match &self.state.bytes {
            Bytes::Here(content) => content.nbytes(),
            Bytes::Stored(_) | Bytes::Moved(_) => 0,
        };
        let before = self.file.counted.swap(now, Ordering::Relaxed);
        // Add before subtracting: the sum never drops below zero.
        self.file.dirty.fetch_add(now, Ordering::Relaxed);
        self.file.dirty.fetch_sub(before, Ordering::Relaxed);
    }
}

/// Open file, kept alive by its handle.
pub(in crate::fs) struct OpenFile {
    /// `true` if it was opened for writing.
    pub is_writable: bool,
    pub(in crate::fs) behind: RwLock<Behind>,
    /// `true` if its file has moved to a place that this handle cannot follow to.
    pub(in crate::fs) is_left: AtomicBool,
    /// `true` if its file has bytes by now that who has opened it may not read.
    is_closed_to_reads: AtomicBool,
    /// `true` if a descriptor of it was closed while its file was empty.
    pub(in crate::fs) was_closed_empty: AtomicBool,
    /// `true` if it was not written through since a descriptor of it was closed.
    pub(in crate::fs) was_closed: AtomicBool,
    /// `true` if it has changed its file since a descriptor of it was closed last: what the file holds is not whole yet.
    pub(in crate::fs) is_writing: AtomicBool,
    bases: Mutex<Bases>,
    /// Who has opened it; `None` if that is a user who may do anything.
    pub(in crate::fs) opener: Option<Arc<Opener>>,
}

/// Path of a chunk in the view, and its state at some time.
pub(in crate::fs) type ChunkBase = (PathBuf, Base);

/// States of the chunk that writes through an open file may be derived from.
#[derive(Default)]
struct Bases {
    /// The chunk that it was opened on, in its state at the open or as this mount has committed it
    /// since.
    pub(in crate::fs) own: Option<ChunkBase>,
    /// Version of the shard in which the chunk was last found to be in that state.
    found_in: Option<Version>,
    /// The oldest state that the kernel may have pages of.
    pub(in crate::fs) mapped: Option<ChunkBase>,
    /// `true` if the open made the kernel drop older pages, and it has not requested any since.
    pub(in crate::fs) is_fresh: bool,
}

/// Whether processes have a file open, by what the kernel has said of it so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::fs) enum Held {
    /// There is no handle.
    No,
    /// There are handles that only read: the kernel says nothing of their descriptors, and a while after the last one
    /// was closed that the handle has ended.
    ToRead,
    /// There are handles that were not written through since a descriptor of them was closed, the last one perhaps: a
    /// process knows that before the kernel says so.
    Perhaps,
    /// A descriptor is open.
    Surely,
}

/// File behind an open file.
#[derive(Clone)]
pub(in crate::fs) enum Behind {
    /// A file of the source.
    Source(Arc<dyn StorageFile>),
    /// A file of the overlay.
    Live(Arc<LiveFile>),
}

impl OpenFile {
    pub(in crate::fs) fn new(
        behind: Behind,
        is_writable: bool,
        opener: Option<Arc<Opener>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            is_writable,
            behind: RwLock::new(behind),
            is_left: AtomicBool::new(false),
            is_closed_to_reads: AtomicBool::new(false),
            was_closed_empty: AtomicBool::new(false),
            was_closed: AtomicBool::new(false),
            is_writing: AtomicBool::new(false),
            bases: Mutex::default(),
            opener,
        })
    }

    /// Returns what is known of its descriptors.
    pub(in crate::fs) fn held(&self) -> Held {
        match (self.is_writable, self.was_closed.load(Ordering::Relaxed)) {
            (false, _) => Held::ToRead,
            (true, false) => Held::Surely,
            (true, true) => Held::Perhaps,
        }
    }

    /// Returns who has opened it for writing; `None` for those who may do anything.
    pub(in crate::fs) fn author(&self) -> Option<&Author> {
        self.opener.as_ref().filter(|_| self.is_writable).map(|opener| &opener.author)
    }

    /// Locks and returns the file behind it. The caller must hold no other lock of the filesystem.
    pub(in crate::fs) fn behind(&self) -> RwLockReadGuard<'_, Behind> {
        self.behind.read()
    }

    /// Blocks reads and writes through it while the guard lives.
    pub(in crate::fs) fn hold(&self) -> RwLockWriteGuard<'_, Behind> {
        self.behind.write()
    }

    /// Returns the file of the source behind it; `None` if it is a file of the mount.
    pub(in crate::fs) fn source(&self) -> Option<Arc<dyn StorageFile>> {
        match &*self.behind() {
            Behind::Source(file) => Some(Arc::clone(file)),
            Behind::Live(_) => None,
        }
    }

    /// Returns the file of the mount behind it; `None` if it is a file of the source.
    pub(in crate::fs) fn live(&self) -> Option<Arc<LiveFile>> {
        match &*self.behind() {
            Behind::Live(file) => Some(Arc::clone(file)),
            Behind::Source(_) => None,
        }
    }

    fn bases(&self) -> MutexGuard<'_, Bases> {
        self.bases.lock()
    }

    /// Sets the state that writes to it are based on.
    pub(in crate::fs) fn set_base(&self, base: ChunkBase) {
        let mut bases = self.bases();
        (bases.own, bases.found_in, bases.mapped) = (Some(base.clone()), None, Some(base));
    }

    /// Sets the base of a file that was just opened; the kernel drops older pages before it
    /// requests others.
    pub(in crate::fs) fn set_fresh_base(&self, base: ChunkBase) {
        self.set_base(base);
        self.bases().is_fresh = true;
    }

    /// Called when the kernel requests pages: returns the state that they are of if it has dropped
    /// all older ones; otherwise `None`.
    pub(in crate::fs) fn take_fresh_base(&self) -> Option<ChunkBase> {
        let mut bases = self.bases();
        if std::mem::take(&mut bases.is_fresh) { bases.mapped.clone() } else { None }
    }

    /// Records that the kernel has no pages older than `base`.
    pub(in crate::fs) fn set_mapped_base(&self, base: &ChunkBase) {
        let mut bases = self.bases();
        if bases.own.is_some() {
            bases.mapped = Some(base.clone());
        }
    }

    /// Returns the state of the chunk with this path that it was opened on, or as this mount has
    /// committed it since; `None` if it was opened on another chunk, or if that is unknown.
    pub(in crate::fs) fn base_of(&self, path: &Path) -> Option<Base> {
        let bases = self.bases();
        bases.own.as_ref().filter(|(at, _)| at == path).map(|(_, base)| base.clone())
    }

    /// Returns whether the chunk was found to be in that state in this version of its shard.
    pub(in crate::fs) fn was_found_in(&self, shard: Version) -> bool {
        self.bases().found_in == Some(shard)
    }

    /// Records that it was found so, if `base` is still the one to compare with.
    pub(in crate::fs) fn found_in(&self, shard: Option<Version>, base: &Base) {
        let mut bases = self.bases();
        if bases.own.as_ref().is_some_and(|(_, own)| own.lineage() == base.lineage()) {
            bases.found_in = shard;
        }
    }

    /// Returns whether writes to it, or from the kernel's pages if `mapped`, can only be based on
    /// the chunk as it is in `now`, under this path. Also `true` if it was opened on another chunk,
    /// or if that is unknown.
    pub(in crate::fs) fn is_based_on(&self, path: &Path, now: &Base, mapped: bool) -> bool {
        let bases = self.bases();
        let base = if mapped { &bases.mapped } else { &bases.own };
        base.as_ref().is_none_or(|(at, base)| at != path || now.is_same_chunk(base))
    }

    /// Marks that writes to it no longer reach any name, though the file has one.
    pub(in crate::fs) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// Marks that this handle leads to the file's only name again.
    pub(in crate::fs) fn stay(&self) {
        self.is_left.store(false, Ordering::Relaxed);
    }

    /// Refuses reads through it, or no longer.
    pub(in crate::fs) fn close_to_reads(&self, is_closed: bool) {
        self.is_closed_to_reads.store(is_closed, Ordering::Relaxed);
    }

    /// Checks that it can still be read.
    ///
    /// # Errors
    ///
    /// `Denied` if its file has bytes by now that who has opened it may not read.
    pub(in crate::fs) fn check_readable(&self) -> Result<()> {
        if self.is_closed_to_reads.load(Ordering::Relaxed) { Err(FsError::Denied) } else { Ok(()) }
    }

    /// Checks that writes to it still reach a name.
    ///
    /// # Errors
    ///
    /// `Stale` if they reach none, though the file has a name.
    pub(in crate::fs) fn check_written(&self) -> Result<()> {
        if self.is_left.load(Ordering::Relaxed) { Err(FsError::Stale) } else { Ok(()) }
    }
}
