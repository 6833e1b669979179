//! Nodes of the hierarchy: the interpretation of each directory by its `zarr.json`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::format::Coords;
use crate::format::error::MetadataError;
use crate::format::zarr2::Missing;
use crate::fs::as_written::AsWritten;
use crate::fs::asked::Asked;
use crate::fs::config::FsConfig;
use crate::fs::continued::Continued;
use crate::fs::created_fills::CreatedFills;
use crate::fs::error::LoadError;
use crate::fs::form::View;
use crate::fs::load::{Failed, Loaded, LoadedArray, LoadedKind, Loader};
use crate::fs::node::{ArrayView, At, Node, NodeKind, unchanged};
use crate::fs::not_shown::NotShown;
use crate::fs::placing::Placing;
use crate::fs::plain_files::PlainFiles;
use crate::fs::ranges::{Outline, Ranges};
use crate::source::{METADATA_FILE, NodeError, apart};
use crate::store::gather::Where;
use crate::store::gather::made::is_unplaced;
use crate::store::owner::Owner;
use crate::store::recover::recover_within;
use crate::store::storage::{FileKind, Stat, Storage, Version, if_present, is_absent};
use crate::store::{ByteCache, SourceArray, StoreConfig, StoreError};
use crate::text::shown;
use crate::view::inode::{InodeRange, MAX_NODES_IN_VIEW};
use crate::view::tree::ChunkTree;

/// Size of the node cache in bytes.
const NODE_CACHE_BYTES: usize = 16 << 20;

/// Times that a node is loaded which others replace meanwhile.
const LOADS: usize = 4;

/// Device and inode number of a file.
type Id = (u64, u64);

/// Nodes of a source, and its arrays by inode range.
pub(super) struct Nodes {
    storage: Arc<dyn Storage>,
    loader: Loader,
    /// `true` if this is one of several views of its mount: its inode numbers have fewer bits.
    is_one_of_several: bool,
    immutable: bool,
    /// `true` in a writable mount, where interrupted commits are rolled forward or back.
    writable: bool,
    /// `true` in a mount that others may use: an array is bound to its directory also for reading.
    shared: bool,
    trusted: Duration,
    cache: Mutex<ByteCache<PathBuf, Arc<Node>>>,
    /// Arrays seen so far, by the inode ranges reported to the kernel.
    ranges: Ranges,
    /// Arrays that chunks were committed to.
    committed: Mutex<HashMap<InodeRange, Arc<ArrayView>>>,
    /// Directories that the view cannot show, with the reason.
    not_shown: NotShown,
    /// Directories in which a file has the name of a document but arbitrary contents.
    plain: PlainFiles,
    /// Directories that become arrays.
    placing: Placing,
    /// Continues what interrupted mounts have left.
    continued: Continued,
    /// Documents in a store of objects.
    asked: Asked,
}

/// Directory that becomes an array: whoever asks for its node waits.
pub(super) struct Held<'a> {
    nodes: &'a Nodes,
    directory: &'a Path,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.nodes.forget(self.directory);
        self.nodes.placing.end(self.directory);
    }
}

impl Nodes {
    /// Creates the nodes of `storage`, shown as `config` says.
    pub(super) fn new(storage: Arc<dyn Storage>, config: &FsConfig) -> Self {
        let StoreConfig { immutable, trusted, .. } = config.store;
        Self {
            loader: Loader::new(Arc::clone(&storage), config),
            storage,
            is_one_of_several: config.view.is_one_of_several,
            immutable,
            writable: config.writable,
            shared: config.shared,
            trusted,
            cache: Mutex::new(ByteCache::new(NODE_CACHE_BYTES)),
            ranges: Ranges::new(config.shared),
            committed: Mutex::default(),
            not_shown: NotShown::default(),
            plain: PlainFiles::default(),
            placing: Placing::default(),
            continued: Continued::new(&config.store),
            asked: Asked::default(),
        }
    }

    /// Returns whether an array that the view cannot show is hidden entirely. Files beside a
    /// mounted file must not take its place.
    fn hides_unshown(&self) -> bool {
        self.loader.view().is_decoded() || self.loader.file().is_some()
    }

    /// Returns whether the source's root, which is `root`, can be of the format that it is read as.
    ///
    /// # Errors
    ///
    /// It cannot be determined whether the root has a document.
    pub(super) fn accepts_root(&self, root: &Node) -> std::io::Result<bool> {
        self.loader.accepts_root(matches!(root.kind, NodeKind::Apart))
    }

    /// Returns the node at `directory`, revalidated if the cached one is older than the trusted
    /// time.
    ///
    /// # Errors
    ///
    /// Fails if the source fails temporarily: that says nothing about the directory.
    pub(super) fn node(&self, directory: &Path) -> std::io::Result<Arc<Node>> {
        self.node_trusting(directory, self.trusted)
    }

    /// Returns the array that was `known`, possibly in another shape by now, so that chunks written to
    /// it can be committed. `None` if others have removed it or put another one in its place.
    ///
    /// # Errors
    ///
    /// Fails while that cannot be determined: its metadata may just be being written.
    pub(super) fn still_there(&self, known: &ArrayView) -> std::io::Result<Option<Arc<ArrayView>>> {
        let node = self.node_trusting(&known.source.path, Duration::ZERO)?;
        Ok(match &node.kind {
            NodeKind::Sharded(array) => Some(Arc::clone(array)).filter(|now| now.is_still(known)),
            // Another process has removed its document.
            NodeKind::Bad if node.place.is_some() => None,
            NodeKind::Bad => return Err(std::io::Error::other("its metadata cannot be used")),
            _ => None,
        })
    }

    /// Compares an array with the source now, as far as it is known: numbers of one that others
    /// have reshaped are stale.
    pub(super) fn revalidate(&self, range: InodeRange) -> std::io::Result<()> {
        match self.ranges.directory(range) {
            Some(directory) => self.node_trusting(&directory, Duration::ZERO).map(drop),
            None => Ok(()),
        }
    }

    fn node_trusting(&self, directory: &Path, trusted: Duration) -> std::io::Result<Arc<Node>> {
        loop {
            let turns = self.placing.wait(directory);
            let node = self.node_now(directory, trusted);
            // Otherwise it may be what the directory was before.
            if self.placing.turns() == turns {
                return node;
            }
            self.lock_cache().remove_if(|path| path == directory);
        }
    }

    fn node_now(&self, directory: &Path, trusted: Duration) -> std::io::Result<Arc<Node>> {
        // Before anything is read: what changes since counts as not seen.
        let revision = self.as_written().revision();
        let is_current = |node: &Arc<Node>| match node.kind {
            NodeKind::AsStored => node.revision == revision,
            NodeKind::Sharded(_) => node.revision == revision || !self.as_written().has(directory),
            _ => true,
        };
        let cached = self.lock_cache().get(directory).filter(is_current);
        if let Some(node) = &cached
            && (self.immutable || node.checked.elapsed() < trusted)
        {
            return Ok(Arc::clone(node));
        }
        let checked = Instant::now();
        let path = self.document_path(directory)?;
        let stat = self.storage.stat(&path);
        let before = cached.as_ref().and_then(|node| node.place);
        if let Some(node) = cached
            && (node.stat.is_some() || !self.loader.probes())
            && let Some(same) = unchanged(&node, stat.as_ref(), checked)
            && self.is_in_place(directory, &same)
            && !self.may_be_made(directory, &same)
        {
            return Ok(self.keep(directory, same));
        }
        let node = self.load(directory, path, stat, checked);
        match node {
            Ok(node) => {
                if let Some(place) = self.lost(directory, before, &node)? {
                    let why =
                        "it is gone, the array's shards may not be: they are not shown".to_owned();
                    self.not_shown.note(directory, &self.document_path(directory)?, why);
                    let lost = Node::plain(NodeKind::Bad, None, checked);
                    return Ok(self.keep(directory, Node { place: Some(place), ..lost }));
                }
                self.not_shown.remove(directory);
                Ok(self.keep(directory, Node { revision, ..node }))
            }
            Err(failed) => self.failed(directory, *failed, (checked, revision)),
        }
    }

    /// Returns whether an array's directory is still the one that the node was loaded from. Its document may be
    /// in another directory, or behind a link. Not compared in a mount of one user's that only reads.
    fn is_in_place(&self, directory: &Path, node: &Node) -> bool {
        let is_compared = (self.shared || self.writable) && self.storage.posix().is_some();
        match &node.kind {
            NodeKind::Sharded(_) if is_compared => {
                node.place == self.storage.stat(directory).ok().map(|stat| stat.id())
            }
            _ => true,
        }
    }

    /// Returns the node for a directory that failed to load: bad, hidden, or as stored.
    fn failed(
        &self,
        directory: &Path,
        failed: Failed,
        (checked, revision): (Instant, u64),
    ) -> std::io::Result<Arc<Node>> {
        let Failed { document, stat, error } = failed;
        let kind = match (error, stat) {
            (LoadError::Node(error), _) if error.io().is_some_and(|error| !is_lasting(error)) => {
                return Err(error.into_io());
            }
            (LoadError::Unshown(error), _) => {
                let (kind, what) = match self.hides_unshown() {
                    true => (NodeKind::Unshown, "not shown"),
                    false => (NodeKind::AsStored, "shown as it is stored"),
                };
                let view = self.loader.view().name();
                let why = format!("{error}; the array is {what} in the view {view}");
                self.not_shown.note(directory, directory, why);
                kind
            }
            (LoadError::Node(NodeError::Metadata(_)), Some(_)) if self.is_plain(directory) => {
                NodeKind::AsStored
            }
            (LoadError::Node(error), _) => {
                let why = format!("{error}; the node is shown as stored, without its data");
                self.not_shown.note(directory, &document, why);
                NodeKind::Bad
            }
        };
        Ok(self.keep(directory, Node { revision, ..Node::plain(kind, stat, checked) }))
    }

    /// Loads the node at a directory whose document is at `path`; again if others have exchanged the
    /// directory or the document meanwhile.
    fn load(
        &self,
        directory: &Path,
        path: PathBuf,
        mut stat: std::io::Result<Stat>,
        checked: Instant,
    ) -> Result<Node, Box<Failed>> {
        for _ in 1..LOADS {
            match self.load_once(directory, path.clone(), stat, checked) {
                Err(failed) if failed.is_stale() => stat = self.storage.stat(&path),
                // Where there is no document, one may be about to come.
                Ok(node) if matches!(node.kind, NodeKind::Inherited) && self.goes_on(directory) => {
                    stat = self.storage.stat(&path);
                    if stat.is_err() {
                        return Ok(self.without_document(directory, node));
                    }
                }
                loaded => return loaded,
            }
        }
        self.load_once(directory, path, stat, checked)
    }

    fn load_once(
        &self,
        directory: &Path,
        path: PathBuf,
        stat: std::io::Result<Stat>,
        checked: Instant,
    ) -> Result<Node, Box<Failed>> {
        if let Ok(stat) = stat
            && self.as_written().has(directory)
        {
            return Ok(Node::plain(NodeKind::AsStored, Some(stat), checked));
        }
        let described_by = stat.as_ref().ok().map(Stat::id);
        let Loaded { kind, document, extra, hidden, stat } =
            self.loader.load(directory, &path, stat)?;
        let kind = match kind {
            LoadedKind::Inherited => NodeKind::Inherited,
            LoadedKind::AsStored => NodeKind::AsStored,
            LoadedKind::Apart => NodeKind::Apart,
            LoadedKind::Array(array) => {
                let place = self.place(directory, &path, described_by);
                let (place, described_by) =
                    place.map_err(|error| Failed::new(path.clone(), stat, NodeError::Io(error)))?;
                let view = self.register(directory, *array, place, described_by);
                NodeKind::Sharded(view.map_err(|error| Failed::new(path, stat, error))?)
            }
        };
        let place = match &kind {
            NodeKind::Sharded(array) => {
                array.place.or_else(|| self.storage.stat(directory).ok().map(|stat| stat.id()))
            }
            _ => None,
        };
        Ok(Node { kind, document, extra, hidden, stat, place, checked, revision: 0 })
    }

    /// Returns the node at a directory in which an array is made, and is not in its place: if its chunk files are going,
    /// what has chunk keys may be shards, and what is absent may be in one.
    fn without_document(&self, directory: &Path, node: Node) -> Node {
        match is_unplaced(&*self.storage, directory) {
            true => Node { kind: NodeKind::Bad, ..node },
            false => node,
        }
    }

    /// Returns whether an array may be about to be made in a directory that was none so far.
    fn may_be_made(&self, directory: &Path, node: &Node) -> bool {
        self.writable
            && matches!(node.kind, NodeKind::Inherited | NodeKind::Bad)
            && node.stat.is_none()
            && Where::has_any(&*self.storage, directory)
    }

    /// Goes on where a mount was interrupted that put chunk files into shards of an array. Returns whether one was.
    pub(super) fn goes_on(&self, directory: &Path) -> bool {
        self.writable && self.continued.go_on(&self.storage, directory)
    }

    /// Lets everyone wait who asks for the node at a directory, which is about to become an array, as long as what
    /// is returned is there. What was known of the directory is forgotten then.
    pub(super) fn hold<'a>(&'a self, directory: &'a Path) -> Held<'a> {
        self.placing.begin(directory);
        Held { nodes: self, directory }
    }

    /// Returns the node at a directory to whoever lets the others wait for it.
    pub(super) fn held_node(&self, directory: &Path) -> std::io::Result<Arc<Node>> {
        self.node_now(directory, Duration::ZERO)
    }

    /// Returns how often a directory has begun or ended to become an array.
    pub(super) fn turns(&self) -> u64 {
        self.placing.turns()
    }

    /// Returns whether a directory, or one above it, may have begun or ended to become an array since.
    pub(super) fn has_turned(&self, directory: &Path, since: u64) -> bool {
        self.placing.has_turned(directory, since)
    }

    /// Records that the file with the name of a directory's document is not metadata: the
    /// version that it has; `None` while it is being written.
    pub(super) fn set_plain(&self, directory: &Path, version: Option<Version>) {
        self.plain.set(directory, version);
    }

    /// Records that there is no such file any more.
    pub(super) fn unset_plain(&self, directory: &Path) {
        self.plain.unset(directory);
    }

    /// Returns whether the file with the name of a directory's document is recorded as not being
    /// metadata.
    pub(super) fn is_plain(&self, directory: &Path) -> bool {
        self.plain.is_set(directory, || {
            self.document_path(directory).and_then(|path| self.storage.stat(&path))
        })
    }

    /// Returns the identity `before` of an array's directory if the array was shown and has lost
    /// its `zarr.json`, but the directory is still there: another process is removing the array,
    /// and what is left in the directory are shards, not chunks.
    fn lost(
        &self,
        directory: &Path,
        before: Option<Id>,
        now: &Node,
    ) -> std::io::Result<Option<Id>> {
        let (Some(before), NodeKind::Inherited) = (before, &now.kind) else { return Ok(None) };
        let Some(stat) = if_present(self.storage.stat(directory))? else { return Ok(None) };
        // Where another mount of shardfs hides it, its place is that of the directory above.
        let above = directory.parent().map(|above| self.storage.stat(above)).transpose()?;
        let is_hidden = above.is_some_and(|above| above.id() == stat.id());
        Ok((is_hidden || stat.id() == before).then_some(before))
    }

    /// Returns a line for each directory visited so far that the view cannot show, with the reason.
    pub(super) fn not_shown(&self) -> String {
        self.not_shown.text() + &self.as_written().text()
    }

    /// Invalidates the nodes at and below `directory` after a change.
    pub(super) fn forget(&self, directory: &Path) {
        self.not_shown.remove_below(directory);
        self.lock_cache().remove_if(|path| path.starts_with(directory));
    }

    /// Notes that a directory is a new one: it is not that of an array which has lost its document, though its identity may
    /// be the same.
    pub(super) fn made(&self, directory: &Path) {
        self.lock_cache().remove(&directory.to_owned());
    }

    /// Remembers that chunks of an array were committed, so that it is finished when the mount
    /// ends.
    pub(super) fn note_commit(&self, array: &Arc<ArrayView>) {
        let mut committed = self.committed.lock();
        committed.entry(array.inodes).or_insert_with(|| Arc::clone(array));
    }

    /// Returns all arrays that chunks were committed to, in each of their shapes.
    pub(super) fn committed(&self) -> Vec<Arc<ArrayView>> {
        let committed = self.committed.lock();
        committed.values().cloned().collect()
    }

    /// Reads the node at `directory` again, bypassing the cache.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the node.
    pub(super) fn check(&self, directory: &Path) -> Result<Node, Box<Failed>> {
        let fail = |error: std::io::Error| Failed::new(METADATA_FILE.into(), None, error);
        let path = self.document_path(directory).map_err(fail)?;
        let stat = self.storage.stat(&path);
        let checked = Instant::now();
        match self.load(directory, path, stat, checked) {
            Err(failed) if failed.is_unshown() && !self.hides_unshown() => {
                Ok(Node::plain(NodeKind::AsStored, failed.stat, checked))
            }
            loaded => loaded,
        }
    }

    /// Returns the path of the document that describes, or would describe, the node at `directory`.
    pub(super) fn document_path(&self, directory: &Path) -> std::io::Result<PathBuf> {
        if let (Some(file), true) = (self.loader.file(), directory.as_os_str().is_empty()) {
            return Ok(file.into());
        }
        for (hierarchy, document) in apart::documents(directory) {
            if self.keeps_apart(hierarchy)? {
                return Ok(document);
            }
        }
        Ok(directory.join(METADATA_FILE))
    }

    /// Returns the directory of the node that a document describes; `None` if `path` is not that of
    /// a document.
    pub(super) fn described_by(&self, path: &Path) -> std::io::Result<Option<PathBuf>> {
        let directory = match path.parent() {
            Some(directory) if path.ends_with(METADATA_FILE) => directory.to_owned(),
            _ => {
                let mut found = None;
                for (hierarchy, directory) in apart::described(path) {
                    if self.keeps_apart(hierarchy)? {
                        found = Some(directory);
                        break;
                    }
                }
                let Some(directory) = found else { return Ok(None) };
                directory
            }
        };
        Ok((self.document_path(&directory)? == path).then_some(directory))
    }

    /// Resolves a path in the view that is neither a chunk nor a directory above chunks.
    pub(super) fn at(&self, path: &Path) -> std::io::Result<At> {
        if let Some(described) = self.described_by(path)? {
            let mut node = self.node(&described)?;
            // What is passed through is the file of now: it may have become the document of a sharded
            // array since the node was read.
            let may_have_become = match node.kind {
                NodeKind::AsStored => true,
                NodeKind::Inherited => self.storage.stat(path).is_ok(),
                _ => false,
            };
            if may_have_become {
                node = self.node_trusting(&described, Duration::ZERO)?;
            }
            if let (Some(document), Some(stat)) = (&node.document, &node.stat) {
                return Ok(At::Text(Arc::clone(document), *stat));
            }
            if node.is_translated() || matches!(node.kind, NodeKind::Unshown) {
                return Ok(At::Hidden);
            }
        }
        let Some((directory, name)) = path.parent().zip(path.file_name()) else {
            return Ok(At::Stored);
        };
        let node = self.node(directory)?;
        let extra = node.extra.iter().find(|(other, _)| other == name);
        Ok(match (extra, node.stat, &node.kind) {
            (Some((_, text)), Some(stat), _) => At::Text(Arc::clone(text), stat),
            _ if node.hides(name) => At::Hidden,
            (_, _, NodeKind::Sharded(array)) if array.hides(name) => At::Hidden,
            _ => At::Stored,
        })
    }

    /// Returns whether a path is that of a document stored apart from its array, which the view
    /// replaces.
    pub(super) fn is_replaced_apart(&self, path: &Path) -> std::io::Result<bool> {
        let may_be = self.loader.view() != View::Zarr3 && apart::is_document(path);
        Ok(may_be && matches!(self.at(path)?, At::Hidden))
    }

    fn keeps_apart(&self, directory: &Path) -> std::io::Result<bool> {
        Ok(matches!(self.node(directory)?.kind, NodeKind::Apart))
    }

    /// Returns the node at a directory as the source has it now.
    pub(super) fn node_in_source(&self, directory: &Path) -> std::io::Result<Arc<Node>> {
        self.node_trusting(directory, Duration::ZERO)
    }

    /// Returns the fill values of arrays that were created in Zarr v2.
    pub(super) fn created(&self) -> &CreatedFills {
        self.loader.created()
    }

    /// Returns the sharded arrays that were made through this mount.
    pub(super) fn as_written(&self) -> &AsWritten {
        self.loader.as_written()
    }

    /// Notes that a directory was renamed, in place of another one, or removed.
    pub(super) fn moved(&self, from: &Path, to: Option<&Path>) {
        self.created().moved(from, to);
        self.as_written().moved(from, to);
    }

    /// Returns how missing chunks of the array in a directory are presented.
    pub(super) fn missing(&self, directory: &Path, twin: Option<&serde_json::Value>) -> Missing {
        self.loader.missing(directory, twin)
    }

    /// Returns the node that files in `directory` belong to, its own or the nearest one above, and
    /// the path of that node.
    pub(super) fn governing<'a>(
        &self,
        directory: &'a Path,
    ) -> std::io::Result<(&'a Path, Arc<Node>)> {
        let mut at = directory;
        loop {
            let node = self.node(at)?;
            match (&node.kind, at.parent()) {
                (NodeKind::Inherited, Some(parent)) => at = parent,
                _ => return Ok((at, node)),
            }
        }
    }

    /// Compares what is known of the directories above a path with the source now, up to the one whose node the path
    /// belongs to.
    pub(super) fn revalidate_above(&self, path: &Path) -> std::io::Result<()> {
        let objects = self.storage.objects().filter(|_| self.writable);
        // Of a store that is only read, what others make is seen when it is no longer believed that it is not there.
        if self.storage.posix().is_none() && objects.is_none() {
            return Ok(());
        }
        for above in path.ancestors().skip(1) {
            if let Some(objects) = objects {
                self.asked.ask(objects, self.document_path(above)?)?;
            }
            if !matches!(self.node_trusting(above, Duration::ZERO)?.kind, NodeKind::Inherited) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the array that an inode range belongs to; `None` if the range is unknown or the
    /// array's layout has changed.
    pub(super) fn array(&self, range: InodeRange) -> std::io::Result<Option<Arc<ArrayView>>> {
        let Some(directory) = self.ranges.directory(range) else { return Ok(None) };
        match &self.node(&directory)?.kind {
            NodeKind::Sharded(array) if array.inodes == range => Ok(Some(Arc::clone(array))),
            _ => Ok(None),
        }
    }

    /// Returns the array that has a directory above chunks by a number of an inode range, and the directory's
    /// coordinates, though the array's own range is another one by now: its shape has changed.
    pub(super) fn directory_since(
        &self,
        range: InodeRange,
        number: u64,
    ) -> std::io::Result<Option<(Arc<ArrayView>, Coords)>> {
        let Some(directory) = self.ranges.directory(range) else { return Ok(None) };
        let node = self.node(&directory)?;
        let NodeKind::Sharded(array) = &node.kind else { return Ok(None) };
        let ids = (array.place, array.described_by);
        let coords = self.ranges.directory_since((range, number), ids, &array.tree);
        Ok(coords.map(|coords| (Arc::clone(array), coords)))
    }

    fn keep(&self, directory: &Path, node: Node) -> Arc<Node> {
        let node = Arc::new(node);
        // Counted twice: the cache holds the path, and so does the array.
        let path = 2 * directory.as_os_str().len();
        let document = node.document.as_ref().map_or(0, |document| document.len());
        let extra =
            node.extra.iter().map(|(name, text)| size_of_val(name) + name.len() + text.len());
        let array = match &node.kind {
            NodeKind::Sharded(array) => array.memory(),
            _ => 0,
        };
        let bytes = size_of::<Node>() + path + document + extra.sum::<usize>() + array;
        self.lock_cache().put(directory.to_owned(), Arc::clone(&node), bytes);
        node
    }

    /// Returns the identity of an array's directory, and that of the document in it if no other name leads
    /// to that; `None` for what cannot be written to.
    ///
    /// # Errors
    ///
    /// ESTALE if the document is not the one in the directory, for others have exchanged it meanwhile: what
    /// may be written to the one must not be written to the other.
    fn place(
        &self,
        directory: &Path,
        document: &Path,
        described_by: Option<Id>,
    ) -> std::io::Result<(Option<Id>, Option<Id>)> {
        let by_path = || self.storage.stat(directory).ok().map(|stat| stat.id());
        let is_bound = self.writable || self.shared;
        let Some(storage) = self.storage.posix().filter(|_| is_bound) else {
            return Ok((by_path(), described_by));
        };
        let stale = || std::io::Error::from_raw_os_error(libc::ESTALE);
        let is_inside = document.starts_with(directory) && described_by.is_some();
        let opened = match storage.within(directory) {
            Ok(Some(opened)) => opened,
            Ok(None) => return Ok((by_path(), described_by)),
            // Behind a link nothing is written.
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Ok((None, None)),
            Err(error) if is_absent(&error) && is_inside => return Err(stale()),
            // Its first chunk makes it.
            Err(error) if is_absent(&error) => return Ok((None, None)),
            Err(error) => return Err(error),
        };
        let place = opened.stat(directory)?.id();
        if !is_inside {
            return Ok((Some(place), None));
        }
        match opened.lstat(document) {
            Ok(stat) if stat.kind == FileKind::Symlink => Ok((Some(place), None)),
            Ok(stat) if described_by != Some(stat.id()) => Err(stale()),
            Ok(stat) => Ok((Some(place), described_by.filter(|_| stat.links == 1))),
            Err(error) if is_absent(&error) => Err(stale()),
            Err(error) => Err(error),
        }
    }

    /// Creates the view of an array, with an inode range that no other array has.
    fn register(
        &self,
        directory: &Path,
        loaded: LoadedArray,
        place: Option<Id>,
        described_by: Option<Id>,
    ) -> Result<Arc<ArrayView>, MetadataError> {
        let LoadedArray { layout, format, shown: how, data_type, hash } = loaded;
        let tree = ChunkTree::new(how.keys, how.suffix, layout.chunk_grid())?;
        if self.is_one_of_several && tree.nodes() > MAX_NODES_IN_VIEW {
            let what = "chunks for a mount of several views";
            return Err(MetadataError::Limit { what, limit: MAX_NODES_IN_VIEW });
        }
        // Behind a link nothing is written, but read.
        let there = || self.storage.stat(directory).ok().map(|stat| stat.id());
        let ids = (place.or_else(there), described_by);
        let outline = || Outline { keys: tree.keys(), grid: tree.grid().into() };
        let outline = self.writable.then(outline);
        let (inodes, is_new) = self.ranges.take(tree.nodes(), directory, hash, ids, outline)?;
        let (id, path) = (inodes.id(), directory.to_owned());
        let source = SourceArray { id, path, layout, format };
        if is_new && self.writable {
            self.goes_on(directory);
            // State left by an interrupted mount is recovered first.
            let owner = Owner::Array(&source);
            let recover = |storage| recover_within(storage, owner, Duration::ZERO);
            match self.storage.posix().map(recover) {
                // The other process has dealt with it, or the first commit will.
                None | Some(Ok(_) | Err(StoreError::Locked { .. })) => (),
                Some(Err(error)) => log::error!("{}: {error}", shown(directory)),
            }
        }
        let (form, keeps_fill) = (how.form, how.keeps_fill);
        let array =
            ArrayView { source, tree, inodes, form, keeps_fill, data_type, place, described_by };
        Ok(Arc::new(array))
    }

    fn lock_cache(&self) -> MutexGuard<'_, ByteCache<PathBuf, Arc<Node>>> {
        self.cache.lock()
    }
}

/// Returns whether an error is a property of the file rather than a temporary condition.
fn is_lasting(error: &std::io::Error) -> bool {
    let lasting = [libc::EACCES, libc::EPERM, libc::ELOOP, libc::EXDEV, libc::ENXIO, libc::EISDIR];
    is_absent(error) || error.raw_os_error().is_some_and(|errno| lasting.contains(&errno))
}
