//! Filesystem operations in types of this crate, answered from the view and the store. Nothing here
//! depends on the transport that delivers the requests.

mod access;
mod ahead;
pub mod attr;
mod control;
mod decoded;
mod directory;
mod document;
mod document2;
mod error;
mod failures;
mod file;
pub mod form;
mod grid_listing;
mod identity;
mod live;
mod load;
mod names;
mod nodes;
mod open;
mod order;
mod passthrough;
mod paths;
mod pending;
mod rename;
mod setattr;
mod slot;
mod staging;
mod sync;
mod unsaved;
mod views;
mod write;
mod xattr;

use std::ffi::{OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

pub use self::access::{Caller, Owner};
pub use self::attr::{Attr, Entry, Ownership};
pub use self::control::{LOG_PATH, WAITING_PATH};
pub use self::decoded::Pages;
pub use self::directory::{DirEntry, Listing};
pub use self::error::{FsError, LoadError, Result};
use self::file::Handle;
pub use self::file::Opened;
use self::form::Form;
pub use self::form::{View, ViewConfig};
pub use self::names::OpenHow;
pub use self::nodes::NodeKind;
use self::nodes::{ArrayView, At, Nodes};
use self::paths::{Found, Paths};
pub use self::staging::WriteConfig;
pub use self::sync::WriteHow;
pub use self::views::{Place as ViewPlace, Views};
pub use self::write::{SetAttr, now};
use crate::format::Coords;
use crate::format::flat::FlatFile;
use crate::format::zarr2;
use crate::source::{self, Format, METADATA_FILE};
use crate::stats::Stats;
use crate::store::spool::Spool;
use crate::store::storage::{FileKind, Space, Stat, Storage, StorageFile};
use crate::store::{Freshness, ShardStore, StoreConfig};
use crate::view::inode::{self, InodeRange};

/// First handle of open directories; those of open files are below.
const FIRST_DIRECTORY: u64 = 1 << 63;

/// Configuration of how a source is shown.
#[derive(Debug, Clone, Default)]
pub struct FsConfig {
    /// Configuration of the store: its budgets and how long it trusts what it has cached.
    pub store: StoreConfig,
    /// File in the source's root that is mounted instead of the whole source; `None` mounts the
    /// source.
    pub file: Option<OsString>,
    /// Format to read the source as; `None` detects it from the contents.
    pub format: Option<Format>,
    /// Level of nested sharding to show: 1 is the outermost, 0 the shards themselves; `None` is the
    /// innermost.
    pub level: Option<usize>,
    /// View: the files shown in place of shards.
    pub view: ViewConfig,
    /// Owner, group and umask of what is shown.
    pub ownership: Ownership,
    /// `true` if extended attributes report where chunks are stored.
    pub xattr: bool,
    /// `true` if users other than the one who mounts may access the mount.
    pub shared: bool,
    /// `true` if the mount is writable.
    pub writable: bool,
    /// Configuration of writes and commits.
    pub writing: WriteConfig,
}

/// A mounted source.
pub struct Fs {
    config: FsConfig,
    storage: Arc<dyn Storage>,
    store: Arc<ShardStore>,
    nodes: Nodes,
    access: access::Access,
    paths: Paths,
    /// Held while files of the source become files of the mount or the reverse, and while a file is
    /// written that has the name of a document but is not one.
    moves: Mutex<()>,
    handles: sharded_slab::Slab<Handle>,
    control: control::Control,
    identities: identity::Identities,
    /// Overlay of uncommitted state; `None` in a read-only mount.
    overlay: Option<live::Overlay>,
    commits: staging::Commits,
    /// Spool files for uncommitted data that exceeds the memory limit.
    spool: Spool,
    /// Changes that were given up after their file was closed.
    failures: failures::Failures,
    /// Handle of the next directory to be opened.
    directories: AtomicU64,
    ahead: ahead::Ahead,
    /// Other views of the same mount.
    others: OnceLock<Vec<Weak<Fs>>>,
    stats: Arc<Stats>,
    /// Hasher of file fingerprints, which do not outlive the mount.
    hasher: RandomState,
}

/// Object that an inode number refers to.
enum Target {
    /// The directory `.shardfs`.
    ControlDirectory,
    /// A file in `.shardfs`.
    Control(control::ControlFile),
    /// A path in the source.
    Path(Arc<Path>),
    /// An open file of the source that has no name any more.
    Nameless(Arc<dyn StorageFile>),
    /// A chunk, or a directory above chunks: as many coordinates as its depth.
    Tree(Arc<ArrayView>, Coords),
    /// A file of a whole array.
    Flat(Arc<ArrayView>, FlatFile),
    /// A file of the overlay, not yet committed to its shard.
    Live(Arc<live::LiveFile>),
}

impl Fs {
    /// Creates the filesystem that shows `storage`.
    ///
    /// # Errors
    ///
    /// Fails if the root of `storage` is neither an array nor a hierarchy of arrays, if it is not
    /// of the configured format, if it cannot be read, and if `pad_edge` is set for a writable
    /// mount.
    pub fn new(
        storage: Arc<dyn Storage>,
        config: FsConfig,
        stats: Arc<Stats>,
    ) -> std::result::Result<Self, SourceError> {
        if config.store.pad_edge && config.writable {
            return Err(SourceError::Padded);
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
        if let Some(format) = config.format
            && !is_of(format, &root, config.file.is_some())
        {
            return Err(SourceError::OtherFormat);
        }
        if matches!(root.kind, NodeKind::Inherited) && !source::holds_nodes(&*storage)? {
            return Err(SourceError::NoNode);
        }
        let store = StoreConfig { pad_edge: pads_edge(&config), ..config.store.clone() };
        let store = ShardStore::new(Arc::clone(&storage), store, Arc::clone(&stats));
        let store = Arc::new(store);
        Ok(Self {
            ahead: ahead::Ahead::new(Arc::clone(&store), config.store.decoded_size),
            store,
            nodes,
            access: access::Access::new(&config),
            paths: Paths::default(),
            moves: Mutex::default(),
            handles: sharded_slab::Slab::new(),
            control: control::Control::new(Arc::clone(&stats)),
            identities: identity::Identities::new(config.store.trusted),
            overlay: config.writable.then(live::Overlay::default),
            commits: staging::Commits::default(),
            spool: Spool::new(&config.writing.unsaved),
            failures: failures::Failures::default(),
            directories: AtomicU64::new(FIRST_DIRECTORY),
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

    /// Looks up `name` in the directory `parent`; `None` if there is no such entry.
    pub fn lookup(&self, parent: u64, name: &OsStr) -> Result<Option<Entry>> {
        self.stats.operations.lookup.count();
        if let Some(known) = self.lookup_staged(parent, name)? {
            return Ok(known);
        }
        match self.target(parent)? {
            Target::ControlDirectory => {
                Ok(control::ControlFile::by_name(name).map(|file| self.control_entry(file)))
            }
            Target::Control(_) | Target::Flat(..) | Target::Live(_) | Target::Nameless(_) => {
                Err(FsError::NotDirectory)
            }
            Target::Path(directory) => self.lookup_path(&directory, name),
            Target::Tree(array, coords) => {
                match name.to_str().and_then(|name| array.tree.child(&coords, name)) {
                    None => Ok(None),
                    Some(child) => self.lookup_tree(&array, child),
                }
            }
        }
    }

    fn control_entry(&self, file: control::ControlFile) -> Entry {
        let mut entry = self.control.file(file);
        // Files that are read without an open are read up to the size that the kernel has cached.
        if self.config.store.immutable {
            entry.attr.size = self.control_text(file).len() as u64;
        }
        entry
    }

    /// Returns the text of a file in `.shardfs`.
    fn control_text(&self, file: control::ControlFile) -> Vec<u8> {
        match file {
            control::ControlFile::Stats => self.control.stats_text(),
            control::ControlFile::Waiting => self.waiting_text().into_bytes(),
            control::ControlFile::Log => crate::recent::LOG.text().into_bytes(),
            control::ControlFile::NotShown => {
                let own = self.nodes.not_shown();
                self.others().fold(own, |text, other| text + &other.nodes.not_shown()).into_bytes()
            }
        }
    }

    fn lookup_tree(&self, array: &Arc<ArrayView>, coords: Coords) -> Result<Option<Entry>> {
        // The kernel looks a directory up before it creates it: an empty one that was not created
        // through the mount must not appear because a commit has created the directory of its
        // shards.
        if self.overlay.is_some() && coords.len() < array.tree.rank() {
            let place = live::Place { array: Arc::clone(array), coords };
            let there = self.is_made(array, &place.coords)
                || self.shows_all(array)
                || self.holds_chunks(&place);
            return if there { self.tree_directory(array, &place.coords) } else { Ok(None) };
        }
        let entry = self.tree_entry(array, &coords, Freshness::Now)?;
        match entry {
            // The file that was this chunk was renamed and has kept the inode number.
            Some(entry) if self.has_moved(entry.attr.ino) => {
                let place = live::Place { array: Arc::clone(array), coords };
                let file = self.chunk_file(&array.path(&place.coords), &place)?;
                self.live_entry(&file).map(Some)
            }
            entry => Ok(entry),
        }
    }

    /// Returns whether a chunk's inode number now belongs to another file, which was that chunk.
    fn has_moved(&self, ino: u64) -> bool {
        let Some(overlay) = &self.overlay else { return false };
        self.paths.has_adopted(ino) || overlay.names().by_ino(ino).is_some()
    }

    fn lookup_path(&self, directory: &Path, name: &OsStr) -> Result<Option<Entry>> {
        if name == control::DIRECTORY_NAME {
            let is_root = directory.as_os_str().is_empty();
            return Ok(is_root.then(|| self.control.directory()));
        }
        let node = self.nodes.node(directory)?;
        if let NodeKind::Unshown = node.kind {
            return Ok(None);
        }
        if let (NodeKind::Sharded(array), Some(name)) = (&node.kind, name.to_str())
            && let Some((form, file)) = self.flat_file(array, name)
        {
            return self.flat_entry(array, form, file).map(Some);
        }
        if let (NodeKind::Sharded(array), Some(name)) = (&node.kind, name.to_str())
            && array.tree.claims(name)
        {
            return match array.tree.top(name) {
                None => Ok(None),
                Some(coords) => self.lookup_tree(array, coords),
            };
        }
        match self.path_entry(&directory.join(name)) {
            Ok(entry) => Ok(Some(entry)),
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks that what the view shows at a path is stored in the source at that path.
    ///
    /// # Errors
    ///
    /// `ReadOnly` for text that the view generates, other than documents that can be translated
    /// back, and `NotFound` for paths that the view hides.
    fn check_stored(&self, path: &Path) -> Result<()> {
        match self.nodes.at(path)? {
            At::Text(..) if self.config.file.is_some() || !self.is_document(path) => {
                Err(FsError::ReadOnly)
            }
            At::Stored | At::Text(..) => Ok(()),
            At::Hidden => Err(FsError::NotFound),
        }
    }

    /// Returns the attributes of a path as the view shows it; the inode number is that of a
    /// listing.
    fn path_attr(&self, path: &Path) -> Result<Attr> {
        Ok(self.path_attr_and_stat(path)?.0)
    }

    /// Returns the attributes of a path as the view shows it, and its `Stat` in the source if it is
    /// passed through.
    fn path_attr_and_stat(&self, path: &Path) -> Result<(Attr, Option<Stat>)> {
        let Some(directory) = path.parent() else {
            let stat = self.storage.lstat(path)?;
            return Ok((self.config.ownership.attr(inode::ROOT, &stat), Some(stat)));
        };
        let (ownership, ino) = (&self.config.ownership, self.paths.number(path));
        match self.nodes.at(path)? {
            At::Text(text, stat) => {
                return Ok((ownership.file(ino, &stat, text.len() as u64), None));
            }
            At::Hidden => return Err(FsError::NotFound),
            At::Stored => (),
        }
        let stat = self.storage.lstat(path).map_err(absent_as_not_found)?;
        self.check_shown(path, directory, stat.kind)?;
        if stat.kind == FileKind::Directory && self.is_unshown(path)? {
            return Err(FsError::NotFound);
        }
        Ok((ownership.attr(ino, &stat), Some(stat)))
    }

    /// Refuses what must not be passed through: shards of an array, and files that may be shards of
    /// an array whose metadata cannot be used. The path may have been looked up before its array
    /// became what it is.
    fn check_shown(&self, path: &Path, directory: &Path, kind: FileKind) -> Result<()> {
        let (above, node) = self.nodes.governing(directory)?;
        let below = path.strip_prefix(above).ok().and_then(|below| below.iter().next()?.to_str());
        match &node.kind {
            NodeKind::Sharded(array) => {
                let claimed = below.is_some_and(|name| array.tree.claims(name));
                if claimed { Err(FsError::Stale) } else { Ok(()) }
            }
            NodeKind::Bad if kind != FileKind::Directory && !below.is_some_and(is_metadata) => {
                Err(FsError::BadMetadata(path.to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn remember(&self, path: &Path, stat: Option<&Stat>) -> u64 {
        // A file that was renamed away keeps the number of its first path.
        let live = |ino| self.overlay.as_ref().is_some_and(|it| it.names().by_ino(ino).is_some());
        self.paths.remember(path, stat, live)
    }

    /// Returns the entry of a path as the view shows it, and counts a lookup for the reply to the
    /// kernel.
    fn path_entry(&self, path: &Path) -> Result<Entry> {
        let (mut attr, stat) = self.path_attr_and_stat(path)?;
        attr.ino = self.remember(path, stat.as_ref());
        let content = self.path_content(&attr, stat.as_ref());
        self.identities.changed_recently(attr.ino, content);
        // While this file is open, another file of the same name has another inode number.
        let generation = if stat.is_some() { 0 } else { self.generation(content) };
        Ok(Entry { attr, generation, lasting: true })
    }

    /// Returns a fingerprint of the contents of a document or of a file that is passed through.
    fn path_content(&self, attr: &Attr, stat: Option<&Stat>) -> u64 {
        match (attr.kind, stat) {
            (FileKind::File, Some(stat)) => self.fingerprint(stat),
            (FileKind::File, None) => self.fingerprint(&(attr.size, attr.mtime, attr.ctime)),
            _ => 0,
        }
    }

    /// Returns the entry of a chunk or of a directory above chunks; `None` if it does not exist.
    fn tree_entry(
        &self,
        array: &ArrayView,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<Option<Entry>> {
        if coords.len() < array.tree.rank() {
            return self.tree_directory(array, coords);
        }
        let Some(chunk) = self.store.chunk(&array.source, coords, freshness)? else {
            let Some(stat) = self.filler(array)? else { return Ok(None) };
            let nbytes = array.absent_chunk()?.map_or(0, |chunk| chunk.len() as u64);
            return Ok(Some(self.chunk_entry(array, coords, &stat, nbytes)));
        };
        let shard = array.source.layout.locate(coords).shard;
        self.shard_changed_recently(array, &shard, &chunk.shard);
        Ok(Some(self.chunk_entry(array, coords, &chunk.shard, chunk.nbytes())))
    }

    fn chunk_entry(&self, array: &ArrayView, coords: &[u64], shard: &Stat, nbytes: u64) -> Entry {
        let ino = array.inodes.ino(array.tree.number(coords));
        let nbytes = array.file_nbytes(coords, nbytes);
        let mut attr = self.config.ownership.file(ino, shard, nbytes);
        if self.overlay.is_some() {
            attr.mtime = self.chunk_date(array, coords, shard);
            attr.ctime = attr.mtime;
        }
        attr.atime = attr.mtime;
        // The chunk may vanish once what is written to it is closed.
        let lasting = self.overlay.is_none() || array.decoded_form().is_none();
        Entry { attr, generation: self.generation(self.fingerprint(shard)), lasting }
    }

    /// Returns the generation for a fingerprint of the contents. A new generation cuts off open
    /// files, so that no process reads a new file as if it were the old one. In a writable mount it
    /// is always 0: the mount itself changes files, and they stay the same files.
    fn generation(&self, content: u64) -> u64 {
        if self.overlay.is_some() { 0 } else { content }
    }

    /// Returns the entry of a directory above chunks. It exists if the source has the directory of
    /// the shards below it, or if it, or something in it, was created through the mount.
    fn tree_directory(&self, array: &ArrayView, coords: &[u64]) -> Result<Option<Entry>> {
        if !array.source.format.has_keys() {
            // The source has no directories of chunks.
            let stat = self.storage.stat(&array.source.path)?;
            let ino = array.inodes.ino(array.tree.number(coords));
            let attr = self.config.ownership.attr(ino, &stat);
            return Ok(Some(Entry { attr, generation: 0, lasting: true }));
        }
        let path = self.shard_directory(array, coords);
        let stat = match self.store.shard_directory(&path)? {
            Some(stat) => stat,
            None if self.is_made(array, coords) || self.shows_all(array) => {
                self.storage.stat(&array.source.path)?
            }
            None => return Ok(None),
        };
        let ino = array.inodes.ino(array.tree.number(coords));
        let attr = self.config.ownership.attr(ino, &stat);
        Ok(Some(Entry { attr, generation: 0, lasting: true }))
    }

    /// Returns the path in the source of the directory of the shards below the directory at
    /// `coords`.
    fn shard_directory(&self, array: &ArrayView, coords: &[u64]) -> PathBuf {
        let layout = &array.source.layout;
        let axes = coords.iter().zip(&layout.shard_grid);
        let shards: Coords = axes.map(|(coord, axis)| axis.locate(*coord).0).collect();
        array.source.path.join(layout.keys.key(&shards))
    }

    /// Returns the attributes of an inode, or of an open file, and whether the kernel may cache
    /// them.
    pub fn getattr(&self, ino: u64, handle: Option<u64>) -> Result<(Attr, bool)> {
        self.stats.operations.getattr.count();
        if let Some(attr) = handle.and_then(|handle| self.handle_attr(ino, handle)) {
            return Ok((attr, true));
        }
        match self.target(ino)? {
            Target::ControlDirectory => Ok((self.control.directory().attr, true)),
            Target::Control(file) => Ok((self.control_entry(file).attr, false)),
            Target::Path(path) => match self.paths.open_file(ino, false) {
                Some(file) => Ok((self.open_attr(ino, &*file)?, true)),
                None => Ok((Attr { ino, ..self.path_attr(&path)? }, true)),
            },
            Target::Nameless(file) => Ok((self.open_attr(ino, &*file)?, true)),
            Target::Flat(array, file) => {
                let Form::Flat(form) = &array.form else { return Err(FsError::Stale) };
                Ok((self.flat_entry(&array, form, file)?.attr, true))
            }
            Target::Live(file) => {
                let is_nothing = matches!(file.state().shown, live::Shown::Nothing);
                if is_nothing && handle.is_none() {
                    return Err(FsError::NotFound);
                }
                Ok((self.live_attr(&file)?, !self.is_refusable(&file)))
            }
            Target::Tree(array, coords) => {
                let entry = self.tree_entry(&array, &coords, Freshness::Now)?;
                let Entry { attr, lasting, .. } = entry.ok_or(FsError::NotFound)?;
                Ok((attr, lasting))
            }
        }
    }

    /// Returns the attributes of an open file of the source.
    fn open_attr(&self, ino: u64, file: &dyn StorageFile) -> Result<Attr> {
        Ok(self.config.ownership.attr(ino, &file.stat()?))
    }

    /// Returns the target of a symbolic link.
    pub fn readlink(&self, ino: u64) -> Result<OsString> {
        match self.target(ino)? {
            Target::Path(path) => self.storage.read_link(&path).map_err(|error| {
                match error.raw_os_error() {
                    // The name now belongs to another file, or to none: ESTALE makes the kernel
                    // look it up again.
                    Some(libc::ENOENT | libc::EINVAL) => FsError::Stale,
                    _ => error.into(),
                }
            }),
            Target::Nameless(_) | Target::Live(_) => Err(FsError::Stale),
            _ => Err(FsError::Invalid),
        }
    }

    /// Handles FORGET: drops `lookups` references to an inode number. Numbers of chunks are
    /// computed and not counted, unless a file of the overlay or of the source has one.
    pub fn forget(&self, ino: u64, lookups: u64) {
        if let Some(overlay) = &self.overlay
            && overlay.names().forget(ino, lookups)
        {
            return;
        }
        if InodeRange::split(ino).is_none() || self.paths.has_adopted(ino) {
            self.paths.forget(ino, lookups);
        }
    }

    /// Returns the space of the source's filesystem.
    pub fn space(&self) -> Result<Space> {
        Ok(self.storage.space()?)
    }

    fn target(&self, ino: u64) -> Result<Target> {
        if let Some(overlay) = &self.overlay
            && let Some(file) = overlay.names().by_ino(ino)
        {
            return Ok(Target::Live(file));
        }
        if let Some((range, number)) = InodeRange::split(ino)
            && !self.paths.has_adopted(ino)
        {
            let array = self.nodes.array(range)?.ok_or(FsError::Stale)?;
            if let Form::Flat(_) = array.form {
                let file = FlatFile::ALL.into_iter().find(|file| *file as u64 == number);
                return file.map(|file| Target::Flat(array, file)).ok_or(FsError::Stale);
            }
            let coords = array.tree.coords(number).ok_or(FsError::Stale)?;
            return Ok(Target::Tree(array, coords));
        }
        if ino == inode::CONTROL_DIRECTORY {
            return Ok(Target::ControlDirectory);
        }
        if let Some(file) = control::ControlFile::by_ino(ino) {
            return Ok(Target::Control(file));
        }
        match self.paths.find(ino).ok_or(FsError::Stale)? {
            Found::Open(file) => Ok(Target::Nameless(file)),
            Found::Paths(names) => self.one_of(&names).map(Target::Path),
        }
    }

    /// Returns a name of a file that still exists: other processes may have removed some of
    /// `names`.
    fn one_of(&self, names: &[Arc<Path>]) -> Result<Arc<Path>> {
        let is_there = |path: &&Arc<Path>| self.storage.lstat(path).is_ok();
        let several = names.len() > 1;
        let there = if several { names.iter().find(is_there) } else { None };
        there.or(names.first()).cloned().ok_or(FsError::Stale)
    }

    /// Returns a fingerprint of the contents of a file. A file opened before a change keeps its
    /// generation, and the kernel drops what it had cached of another generation.
    fn fingerprint(&self, content: &impl std::hash::Hash) -> u64 {
        if self.config.store.immutable { 0 } else { self.hasher.hash_one(content) }
    }

    /// Returns whether the kernel may have stale attributes of a shard's chunks cached.
    fn shard_changed_recently(&self, array: &ArrayView, shard: &[u64], stat: &Stat) -> bool {
        if self.config.store.immutable {
            return false;
        }
        let content = self.shard_content(array, shard, stat);
        let changed =
            |content| self.identities.changed_recently(self.shard_identity(array, shard), content);
        content.is_none_or(changed)
    }

    /// Returns the page cache policy for opening a chunk whose shard was found as `shard`.
    fn chunk_pages(&self, array: &ArrayView, coords: &[u64], shard: &Stat, ino: u64) -> Pages {
        if self.config.store.immutable {
            return Pages::Kept;
        }
        let number = array.source.layout.locate(coords).shard;
        let content = self.shard_content(array, &number, shard);
        let opened =
            |content| self.identities.opened(self.shard_identity(array, &number), content, ino);
        content.map(opened).unwrap_or_else(|| {
            self.identities.served_older(self.shard_identity(array, &number), ino);
            Pages::Bypassed
        })
    }

    /// Returns the key of a shard in [`identity::Identities`].
    fn shard_identity(&self, array: &ArrayView, shard: &[u64]) -> u64 {
        self.hasher.hash_one((array.source.id, shard))
    }

    /// Returns an identifier of the contents of a shard that stays the same over commits of this
    /// mount, which leave what the kernel has cached of its chunks valid. `None` if `stat` is out
    /// of date.
    fn shard_content(&self, array: &ArrayView, shard: &[u64], stat: &Stat) -> Option<u64> {
        match self.overlay {
            Some(_) => self.store.line_of(&array.source, shard, stat),
            None => Some(self.fingerprint(stat)),
        }
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

/// Returns whether a source's root can be of a format. A directory of arrays can be of most
/// formats.
fn is_of(format: Format, root: &nodes::Node, is_file: bool) -> bool {
    match format {
        Format::Bloscpack => is_file,
        Format::Draft2022 => matches!(root.kind, NodeKind::Draft2022),
        Format::Blz => !is_file && root.document.is_none(),
        Format::Zarr => !is_file,
    }
}

impl SourceError {
    fn of_root(failed: load::Failed, is_file: bool) -> Self {
        let load::Failed { document, error, .. } = failed;
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
    #[error("-o pad_edge is for reading only: leave it out, or --rw")]
    Padded,
    /// It is not of the requested format.
    #[error("it is not of the format that --format names")]
    OtherFormat,
    /// It has no metadata.
    #[error("it is not a Zarr array or hierarchy: no metadata in it or below it")]
    NoNode,
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// Returns whether a file is metadata by its name, which can be read also where it cannot be used.
fn is_metadata(name: &str) -> bool {
    name == METADATA_FILE || zarr2::is_document(name)
}

fn absent_as_not_found(error: std::io::Error) -> FsError {
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => FsError::NotFound,
        _ => FsError::Io(error),
    }
}
