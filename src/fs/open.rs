//! Open files that can change what they are: a file of the source that is renamed onto a chunk, or a
//! file of the mount that is renamed to a name that is passed through. Whoever has one open goes on with
//! it, wherever its bytes are.
//!
//! ```text
//! handle -> OpenFile -> a file of the source     [`super::paths`] knows who has it open
//!                    -> a file of the mount      its `openers`
//! ```
//!
//! A rename from one to the other holds all its open files while it takes the bytes over.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::live::LiveFile;
use super::{FsError, Result};
use crate::store::Base;
use crate::store::storage::StorageFile;

/// An open file. Who has it open keeps it.
pub(super) struct OpenFile {
    /// Whether it was opened for writing.
    pub is_writable: bool,
    behind: RwLock<Behind>,
    /// Its file has a new place that it cannot follow to.
    is_left: AtomicBool,
    bases: Mutex<Bases>,
}

/// A chunk by its path in the view, as it was at some time.
pub(super) type ChunkBase = (PathBuf, Base);

/// What an open file that is written to is written over.
#[derive(Default)]
struct Bases {
    /// The chunk that it was opened on, as it was then, or as this mount has committed it since.
    own: Option<ChunkBase>,
    /// The oldest that the kernel may have pages of.
    mapped: Option<ChunkBase>,
    /// The kernel was told to drop older pages when it was opened, and has not asked for any since.
    is_fresh: bool,
}

/// What is behind an open file.
#[derive(Clone)]
pub(super) enum Behind {
    /// A file of the source.
    Source(Arc<dyn StorageFile>),
    /// A file that is ahead of its shard.
    Live(Arc<LiveFile>),
}

impl OpenFile {
    pub(super) fn new(behind: Behind, is_writable: bool) -> Arc<Self> {
        let (behind, is_left) = (RwLock::new(behind), AtomicBool::new(false));
        let bases = Mutex::default();
        Arc::new(Self { is_writable, behind, is_left, bases })
    }

    /// What is behind it, for as long as the guard lives. Nothing else of the filesystem may be held by
    /// who asks.
    pub(super) fn behind(&self) -> RwLockReadGuard<'_, Behind> {
        self.behind.read()
    }

    /// Nobody reads or writes it while the guard lives.
    pub(super) fn hold(&self) -> RwLockWriteGuard<'_, Behind> {
        self.behind.write()
    }

    /// The file of the source behind it.
    pub(super) fn source(&self) -> Option<Arc<dyn StorageFile>> {
        match &*self.behind() {
            Behind::Source(file) => Some(Arc::clone(file)),
            Behind::Live(_) => None,
        }
    }

    /// The file of the mount behind it.
    pub(super) fn live(&self) -> Option<Arc<LiveFile>> {
        match &*self.behind() {
            Behind::Live(file) => Some(Arc::clone(file)),
            Behind::Source(_) => None,
        }
    }

    fn bases(&self) -> MutexGuard<'_, Bases> {
        self.bases.lock()
    }

    /// What is written to it is written over this.
    pub(super) fn set_base(&self, base: ChunkBase) {
        let mut bases = self.bases();
        (bases.own, bases.mapped) = (Some(base.clone()), Some(base));
    }

    /// The same of one that was opened just now; the kernel drops older pages before it asks for others.
    pub(super) fn set_fresh_base(&self, base: ChunkBase) {
        self.set_base(base);
        self.bases().is_fresh = true;
    }

    /// The kernel asks for pages: if it has dropped all older ones, what they are of.
    pub(super) fn take_fresh_base(&self) -> Option<ChunkBase> {
        let mut bases = self.bases();
        if std::mem::take(&mut bases.is_fresh) { bases.mapped.clone() } else { None }
    }

    /// The kernel has no pages that are older than this.
    pub(super) fn set_mapped_base(&self, base: &ChunkBase) {
        let mut bases = self.bases();
        if bases.own.is_some() {
            bases.mapped = Some(base.clone());
        }
    }

    /// Whether what is written to it, or from the kernel's pages, can be made of nothing but the chunk as
    /// it is in `now`, under this path; if it was opened on another one, or that is not known, it can.
    pub(super) fn is_based_on(&self, path: &Path, now: &Base, mapped: bool) -> bool {
        let bases = self.bases();
        let base = if mapped { &bases.mapped } else { &bases.own };
        base.as_ref().is_none_or(|(at, base)| at != path || now.is_same_chunk(base))
    }

    /// What would be written to it reaches no name any more, though the file has one.
    pub(super) fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    /// The file has its only name where this leads.
    pub(super) fn stay(&self) {
        self.is_left.store(false, Ordering::Relaxed);
    }

    /// Fails if what would be written to it reaches no name any more, though the file has one.
    pub(super) fn check_written(&self) -> Result<()> {
        if self.is_left.load(Ordering::Relaxed) { Err(FsError::Stale) } else { Ok(()) }
    }
}
