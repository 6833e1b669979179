//! The state of a mounted source, which all operations share.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::fs::caller::{Access, Author};
use crate::fs::config::FsConfig;
use crate::fs::error::{FsError, LoadError, Result};
use crate::fs::form::View;
use crate::fs::load::Failed;
use crate::fs::node::{ArrayView, NodeKind};
use crate::fs::nodes::Nodes;
use crate::fs::served::Served;
use crate::fs::state::commit_state::Commits;
use crate::fs::state::control_files::Control;
use crate::fs::state::failures::Failures;
use crate::fs::state::fill_chunks::FillChunks;
use crate::fs::state::handle::Handle;
use crate::fs::state::overlay::Overlay;
use crate::fs::state::page_filter::PageFilter;
use crate::fs::state::page_policy::Identities;
use crate::fs::state::paths::Paths;
use crate::fs::state::prefetch::Prefetch;
use crate::fs::state::push_queue::Ahead;
use crate::source::{self, unfinished};
use crate::stats::Stats;
use crate::store::spool::Spool;
use crate::store::storage::{PosixStorage, Space, Storage};
use crate::store::{ShardStore, StoreConfig};
use crate::view::inode::InodeRange;

/// First handle of open directories; those of open files are below ([`FileHandles`]).
const FIRST_DIRECTORY: u64 = 1 << 63;

/// Numbers of open files, which leave the highest bit to directories.
#[derive(Debug)]
pub(in crate::fs) struct FileHandles;

impl sharded_slab::Config for FileHandles {
    const RESERVED_BITS: usize = 1;
}

/// Number of files that are passed through beyond which the kernel is asked to forget some: about 20 MiB here.
const MOST_KNOWN: usize = 1 << 17;

/// A mounted source.
pub struct Fs {
    pub(in crate::fs) config: FsConfig,
    pub(in crate::fs) storage: Arc<dyn Storage>,
    pub(in crate::fs) store: Arc<ShardStore>,
    pub(in crate::fs) nodes: Nodes,
    pub(in crate::fs) access: Access,
    pub(in crate::fs) paths: Paths,
    /// Held while files of the source become files of the mount or the reverse, and while a file is
    /// written that has the name of a document but is not one.
    pub(in crate::fs) moves: Mutex<()>,
    /// Locks of all views of the mount.
    pub(in crate::fs) turns: OnceLock<Arc<Turns>>,
    /// Arrays that may have become smaller and still have chunks outside their shape, by directory.
    pub(in crate::fs) shrinking: Mutex<HashMap<PathBuf, Shrinking>>,
    pub(in crate::fs) handles: sharded_slab::Slab<Handle, FileHandles>,
    /// Handles of directories that were passed through when they were opened, and may become an array's.
    pub(in crate::fs) listings: Mutex<HashSet<u64>>,
    pub(in crate::fs) control: Control,
    pub(in crate::fs) identities: Identities,
    /// Files of which the kernel may have pages.
    pub(in crate::fs) filled: PageFilter,
    /// Overlay of uncommitted state; `None` in a read-only mount.
    pub(in crate::fs) overlay: Option<Overlay>,
    pub(in crate::fs) commits: Commits,
    /// Spool files for uncommitted data that exceeds the memory limit.
    pub(in crate::fs) spool: Spool,
    /// Changes that were given up after their file was closed.
    pub(in crate::fs) failures: Failures,
    /// The next number that is given once in a mount.
    numbers: AtomicU64,
    pub(in crate::fs) prefetch: Prefetch,
    /// `true` once the log says that arrays of Zarr v2 are not stored sharded.
    pub(in crate::fs) told_of_zarr2: AtomicBool,
    /// Chunks shown in place of absent ones.
    pub(in crate::fs) fill_chunks: FillChunks,
    /// Queue of what is pushed into the kernel's page cache.
    pub(in crate::fs) ahead: Ahead,
    /// Other views of the same mount.
    pub(in crate::fs) others: OnceLock<Vec<Weak<Fs>>>,
    pub(in crate::fs) stats: Arc<Stats>,
    /// Hasher of file fingerprints, which do not outlive the mount.
    pub(in crate::fs) hasher: RandomState,
}

impl SourceError {
    pub(in crate::fs) fn of_root(failed: Failed, is_file: bool) -> Self {
        let Failed { document, error, .. } = failed;
        let is_of_all = is_file || matches!(error, LoadError::Unshown(_));
        let document = match document.to_str() {
            Some(document) if !is_of_all && !document.is_empty() => format!("{document}: "),
            _ => String::new(),
        };
        Self::Node { document, error }
    }
}

/// Reason why a source cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// Its metadata cannot be used.
    #[error("{document}{error}")]
    Node {
        /// Name of the document, followed by ": ", if the error is not about the source as a whole;
        /// otherwise empty.
        document: String,
        /// Cause.
        #[source]
        error: LoadError,
    },
    /// `pad_edge` shows chunks longer than they are stored, so they cannot be written.
    #[error("-o pad_edge requires a read-only mount: leave it out, or --rw")]
    Padded,
    /// It is neither on a filesystem nor in a store of objects that can be written to.
    #[error(
        "it can only be read: sources on a filesystem can be written to, and what is below s3://, gs:// and az://; \
         leave out --rw"
    )]
    OnlyRead,
    /// It is not of the requested format.
    #[error("it is not of the format that --format names")]
    OtherFormat,
    /// It has no metadata.
    #[error(
        "it is not a Zarr array or hierarchy: no metadata in it or below it; `--rw --shard RULE` mounts it to create \
         arrays in it"
    )]
    NoNode,
    /// It is a copy that was not completed; holds the command that has begun it.
    #[error("{}", unfinished(.0))]
    Unfinished(String),
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// Locks that all views of a mount share, and what is known to all of them.
#[derive(Default)]
pub(in crate::fs) struct Turns {
    /// Held from the reading of a stored document until what was changed in it is stored: several documents of
    /// a view may be made from one. Taken after `moves`, and after the turn of a file; before the turn of
    /// commits, for it is held while chunks outside a smaller shape are committed and removed.
    documents: Mutex<()>,
    /// Held to write while a directory becomes a sharded array, from finding that there are no files of chunks
    /// in it; to read while names, bytes or attributes of the source change, from finding that they are no shard's.
    /// Taken after `documents` and `moves`. Who holds it must not ask the kernel for anything.
    source_names: RwLock<()>,
    /// Documents in a store of objects.
    served: Served,
}

/// Array that may have become smaller.
#[derive(Clone)]
pub(in crate::fs) struct Shrinking {
    /// The array as it was before.
    pub before: Arc<ArrayView>,
    /// Users who have made it smaller, but for those who may do anything.
    pub writers: Vec<Author>,
}

impl Fs {
    /// Creates the filesystem that shows `storage`.
    ///
    /// # Errors
    ///
    /// Fails if the root of `storage` is neither an array nor a hierarchy of arrays, if it is not
    /// of the configured format, if it is an unfinished copy, if it cannot be read, and if the mount is
    /// to be writable though `pad_edge` is set or `storage` can only be read.
    pub fn new(
        storage: Arc<dyn Storage>,
        config: FsConfig,
        stats: Arc<Stats>,
    ) -> std::result::Result<Self, SourceError> {
        if config.store.pad_edge && config.writable {
            return Err(SourceError::Padded);
        }
        let is_object = config.file.is_some() && storage.posix().is_none();
        if config.writable
            && (is_object || storage.posix().is_none() && storage.objects().is_none())
        {
            return Err(SourceError::OnlyRead);
        }
        if config.file.is_none()
            && let Some(command) = source::unfinished_by(&*storage, Path::new(""))
        {
            return Err(SourceError::Unfinished(command));
        }
        let nodes = Nodes::new(Arc::clone(&storage), &config);
        let root = match nodes.check(Path::new("")) {
            // Other views of the mount show this array; in this one the root is empty.
            Err(failed) if failed.is_unshown() && config.view.is_one_of_several => {
                nodes.node(Path::new(""))?
            }
            root => {
                let failed = |failed| SourceError::of_root(failed, config.file.is_some());
                Arc::new(root.map_err(|it| failed(*it))?)
            }
        };
        if !nodes.accepts_root(&root)? {
            return Err(SourceError::OtherFormat);
        }
        // What is created there has yet to come.
        let may_be_empty = config.writable && !config.writing.new_shards.is_empty();
        if matches!(root.kind, NodeKind::Inherited)
            && !may_be_empty
            && !source::holds_nodes(&*storage, config.format)?
        {
            return Err(match config.format {
                Some(_) => SourceError::OtherFormat,
                None => SourceError::NoNode,
            });
        }
        let store = StoreConfig {
            pad_edge: pads_edge(&config),
            missing_is_damage: !config.writable,
            ..config.store.clone()
        };
        let store = ShardStore::new(Arc::clone(&storage), store, Arc::clone(&stats));
        let store = Arc::new(store);
        Ok(Self {
            prefetch: Prefetch::new(Arc::clone(&store), config.store.decoded_size),
            told_of_zarr2: AtomicBool::new(false),
            fill_chunks: FillChunks::default(),
            ahead: Ahead::default(),
            store,
            nodes,
            access: Access::new(&config),
            paths: Paths::default(),
            moves: Mutex::default(),
            turns: OnceLock::new(),
            shrinking: Mutex::default(),
            handles: sharded_slab::Slab::new_with_config::<FileHandles>(),
            listings: Mutex::default(),
            control: Control::new(
                Arc::clone(&stats),
                config.writable.then(|| config.writing.unsaved.clone()),
            ),
            identities: Identities::new(config.store.trusted),
            filled: PageFilter::default(),
            overlay: config.writable.then(Overlay::default),
            commits: Commits::default(),
            spool: Spool::new(&config.writing.unsaved, &config.writing.source),
            failures: Failures::default(),
            numbers: AtomicU64::new(FIRST_DIRECTORY),
            others: OnceLock::new(),
            stats,
            hasher: RandomState::new(),
            storage,
            config,
        })
    }

    /// Returns the configuration of how the source is shown.
    pub fn config(&self) -> &FsConfig {
        &self.config
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns a number that is given once in a mount: the handle of a directory, or what the number of a
    /// file without attributes is made from.
    pub(in crate::fs) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a lookup of a chunk. Its number is computed, but in a writable mount a file may keep it that
    /// is not this chunk any more, for as long as the kernel knows it.
    pub(in crate::fs) fn chunk_looked_up(&self, ino: u64) {
        let Some(overlay) = &self.overlay else { return };
        match self.paths.has_adopted(ino) {
            true => self.paths.looked_up(ino, 1),
            false => overlay.names().looked_up(ino),
        }
    }

    /// Handles FORGET: drops `lookups` references to an inode number. Those of chunks are counted in
    /// writable mounts alone.
    pub fn forget(&self, ino: u64, lookups: u64) {
        let overlay = self.overlay.as_ref();
        let lookups = overlay.map_or(lookups, |overlay| overlay.names().forget(ino, lookups));
        if lookups == 0 {
            return;
        }
        if InodeRange::split(ino).is_none() || self.paths.has_adopted(ino) {
            self.paths.forget(ino, lookups);
        }
    }

    /// Returns whether arrays that are created may be stored sharded.
    pub fn makes_shards(&self) -> bool {
        self.overlay.is_some() && !self.config.writing.new_shards.is_empty()
    }

    /// Returns files that the kernel may give up, each by the inode number of its directory and its name there. Where
    /// arrays are created, as many chunk files may wait for their metadata as an array has chunks, and nothing uses
    /// them: what is known of them must not take up all memory.
    pub fn surplus(&self) -> Vec<(u64, OsString)> {
        if self.makes_shards() { self.paths.surplus(MOST_KNOWN) } else { Vec::new() }
    }

    /// Returns the space of the source's filesystem. Of one that is not on a filesystem it is unknown: zeros, or
    /// more than enough if it can be written to, for programs look whether there is any.
    pub fn space(&self) -> Result<Space> {
        let unknown = || if self.overlay.is_some() { Space::ENDLESS } else { Space::default() };
        Ok(self.storage.posix().map_or_else(|| Ok(unknown()), PosixStorage::space)?)
    }

    /// Returns a fingerprint of the contents of a file. A file opened before a change keeps its
    /// generation, and the kernel drops what it had cached of another generation.
    pub(in crate::fs) fn fingerprint(&self, content: &impl std::hash::Hash) -> u64 {
        if self.config.store.immutable { 0 } else { self.hasher.hash_one(content) }
    }

    /// Returns the kind of this view.
    pub fn view(&self) -> View {
        self.config.view.view
    }

    /// Waits until no view of this mount changes a stored document.
    pub(in crate::fs) fn documents(&self) -> MutexGuard<'_, ()> {
        self.turns.get_or_init(Arc::default).documents.lock()
    }

    /// Waits until no directory becomes a sharded array, and lets none become one. What changes names or bytes of the
    /// source holds it. It must not be taken twice.
    pub(in crate::fs) fn name_in_source(&self) -> RwLockReadGuard<'_, ()> {
        self.turns.get_or_init(Arc::default).source_names.read()
    }

    /// Returns the documents in a store of objects that programs have read or written.
    pub(in crate::fs) fn served(&self) -> &Served {
        &self.turns.get_or_init(Arc::default).served
    }

    /// Waits until the source gets no new name, and lets it get none.
    pub(in crate::fs) fn no_name_in_source(&self) -> RwLockWriteGuard<'_, ()> {
        self.turns.get_or_init(Arc::default).source_names.write()
    }

    /// Returns the other views of this mount.
    pub(in crate::fs) fn others(&self) -> impl Iterator<Item = Arc<Self>> {
        self.others.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// Forgets what is known of a directory and of everything below it, in all views.
    pub(in crate::fs) fn forget_nodes(&self, directory: &Path) {
        self.nodes.forget(directory);
        self.others().for_each(|other| other.nodes.forget(directory));
    }

    /// Takes what all views know of arrays by their directories along with a directory that was renamed, in place of
    /// another one, or forgets it, for that was removed.
    pub(in crate::fs) fn nodes_moved(&self, from: &Path, to: Option<&Path>) {
        self.nodes.moved(from, to);
        self.others().for_each(|other| other.nodes.moved(from, to));
    }

    /// Returns the overlay.
    ///
    /// # Errors
    ///
    /// `ReadOnly` if the mount is not writable.
    pub(in crate::fs) fn overlay(&self) -> Result<&Overlay> {
        self.overlay.as_ref().ok_or(FsError::ReadOnly)
    }
}

/// Returns whether a last chunk that is shorter than the others is padded while it is encoded. In
/// the view zarr2 readers see it in no other form; decoded chunks are padded after decoding.
fn pads_edge(config: &FsConfig) -> bool {
    match config.view.view {
        View::Zarr3 => config.store.pad_edge,
        View::Zarr2 => !config.writable,
        View::Npy | View::Raw | View::Flat => false,
    }
}
