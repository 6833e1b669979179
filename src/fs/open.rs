//! Open files that can change between source and overlay: a file of the source that is renamed onto
//! a chunk, or a file of the mount that is renamed to a name that is passed through. Open handles
//! stay valid, wherever the bytes are.
//!
//! ```text
//! handle -> OpenFile -> a file of the source     [`super::paths`] has its open handles
//!                    -> a file of the mount      its `openers`
//! ```
//!
//! A rename from one to the other locks all open handles of the file while it takes the bytes over.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::live::LiveFile;
use super::{FsError, Result};
use crate::store::Base;
use crate::store::storage::StorageFile;

/// Open file, kept alive by its handle.
pub(super) struct OpenFile {
    /// `true` if it was opened for writing.
    pub is_writable: bool,
    behind: RwLock<Behind>,
    /// `true` if its file has moved to a place that this handle cannot follow to.
    is_left: AtomicBool,
    bases: Mutex<Bases>,
}

/// Path of a chunk in the view, and its state at some time.
pub(super) type ChunkBase = (PathBuf, Base);

/// States of the chunk that writes through an open file may be derived from.
#[derive(Default)]
struct Bases {
    /// The chunk that it was opened on, in its state at the open or as this mount has committed it
    /// since.
    own: Option<ChunkBase>,
    /// The oldest state that the kernel may have pages of.
    mapped: Option<ChunkBase>,
    /// `true` if the open made the kernel drop older pages, and it has not requested any since.
    is_fresh: bool,
}

/// File behind an open file.
#[derive(Clone)]
pub(super) enum Behind {
    /// A file of the source.
    Source(Arc<dyn StorageFile>),
    /// A file of the overlay.
    Live(Arc<LiveFile>),
}

impl OpenFile {
    pub(super) fn new(behind: Behind, is_writable: bool) -> Arc<Self> {
        let (behind, is_left) = (RwLock::new(behind), AtomicBool::new(false));
        let bases = Mutex::default();
        Arc::new(Self { is_writable, behind, is_left, bases })
    }

    /// Locks and returns the file behind it. The caller must hold no other lock of the filesystem.
    pub(super) fn behind(&self) -> RwLockReadGuard<'_, Behind> {
        self.behind.read()
    }

    /// Blocks reads and writes through it while the guard lives.
    pub(super) fn hold(&self) -> RwLockWriteGuard<'_, Behind> {
        self.behind.write()
    }

    /// Returns the file of the source behind it; `None` if it is a file of the mount.
    pub(super) fn source(&self) -> Option<Arc<dyn StorageFile>> {
        match &*self.behind() {
            Behind::Source(file) => Some(Arc::clone(file)),
            Behind::Live(_) => None,
        }
    }

    /// Returns the file of the mount behind it; `None` if it is a file of the source.
    pub(super) fn live(&self) -> Option<Arc<LiveFile>> {
        match &*self.behind() {
            Behind::Live(file) => Some(Arc::clone(file)),
            Behind::Source(_) => None,
        }
    }

    fn bases(&self) -> MutexGuard<'_, Bases> {
        self.bases.lock()
    }

    /// Sets the state that writes to it are based on.
    pub(super) fn set_base(&self, base: ChunkBase) {
        let mut bases = self.bases();
        (bases.own, bases.mapped) = (Some(base.clone()), Some(base));
    }

    /// Sets the base of a file that was just opened; the kernel drops older pages before it
    /// requests others.
    pub(super) fn set_fresh_base(&self, base: ChunkBase) {
        self.set_base(base);
        self.bases().is_fresh = true;
    }

    /// Called when the kernel requests pages: returns the state that they are of if it has dropped
    /// all older ones; otherwise `None`.
    pub(super) fn take_fresh_base(&self) -> Option<ChunkBase> {
        let mut bases = self.bases();
        if std::mem::take(&mut bases.is_fresh) { bases.mapped.clone() } else { None }
    }

    /// Records that the kernel has no pages older than `base`.
    pub(super) fn set_mapped_base(&self, base: &ChunkBase) {
        let mut bases = self.bases();
        if bases.own.is_some() {
            bases.mapped = Some(base.clone());
        }
    }

    /// Returns whether writes to it, or from the kernel's pages if `mapped`, can only be based on
    /// the chunk as it is in `now`, under this path. Also `true` if it was opened on another chunk,
    /// or if that is unknown.
    pub(super) fn is_based_on(&self, path: &Path, now: &Base, mapped: bool) -> bool {
        let bases = self.bases();
        let base = if mapped { &bases.mapped } else { &bases.own };
        base.as_ref().is_none_or(|(at, base)| at != path || now.is_same_chunk(base))
    }

    /// Marks that writes to it no longer reach any name, though the file has one.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// Marks that this handle leads to the file's only name again.
    pub(super) fn stay(&self) {
        self.is_left.store(false, Ordering::Relaxed);
    }

    /// Checks that writes to it still reach a name.
    ///
    /// # Errors
    ///
    /// `Stale` if they reach none, though the file has a name.
    pub(super) fn check_written(&self) -> Result<()> {
        if self.is_left.load(Ordering::Relaxed) { Err(FsError::Stale) } else { Ok(()) }
    }
}
