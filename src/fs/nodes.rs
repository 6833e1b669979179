//! The nodes of the hierarchy: what each directory's `zarr.json` makes of it.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use parking_lot::{Mutex, RwLock};
use serde_json::Value;

use super::FsConfig;
use super::error::{METADATA_FILE, NodeError};
use super::foreign::{Foreign, Format, bloscpack_file, column, is_hidden, superchunks};
use super::form::{Form, Lengths, ShownArray, Unshown, View, ViewConfig};
use crate::format::document::{Dialect, Shown, show};
use crate::format::draft2022;
use crate::format::error::MetadataError;
use crate::format::grid::ShardAxis;
use crate::format::json;
use crate::format::limits::MAX_METADATA_BYTES;
use crate::format::metadata::NodeMetadata;
use crate::format::sharding::ShardedArray;
use crate::memory::{ROOM, Taken, zeroed};
use crate::store::owner::Owner;
use crate::store::recover::recover;
use crate::store::storage::{FileKind, Stat, Storage, if_present, is_absent};
use crate::store::{ByteCache, Container, SIZES, SourceArray, StoreConfig};
use crate::text::{Line, shown};
use crate::view::inode::{InodeRange, MAX_NODES_IN_VIEW, stable_hash};
use crate::view::tree::ChunkTree;

/// Bytes of nodes to keep.
const NODE_CACHE_BYTES: usize = 16 << 20;
/// Directories that are remembered because the view cannot show what is in them.
const MAX_NOT_SHOWN: usize = 10_000;
/// Directories that are remembered because of a file that is called like a document and is none.
const MAX_PLAIN: usize = 10_000;
/// Inode ranges to try for an array before it is given up.
const RANGE_ATTEMPTS: u64 = 1 << 10;

/// A sharded array as the mount shows it.
#[derive(Debug)]
pub struct ArrayView {
    /// Where its chunks are.
    pub source: SourceArray,
    /// What they are called.
    pub tree: ChunkTree,
    /// Their inode numbers.
    pub inodes: InodeRange,
    /// What is in their files.
    pub form: Form,
}

impl ArrayView {
    /// About how much memory it takes.
    fn memory(&self) -> usize {
        let runs = self.source.layout.shard_grid.iter().map(ShardAxis::memory);
        size_of::<Self>() + runs.sum::<usize>()
    }

    /// The path of a chunk, or of a directory above chunks, in the view.
    pub fn path(&self, coords: &[u64]) -> PathBuf {
        self.source.path.join(self.tree.path(coords))
    }

    /// Whether the view has no place for what the source has under a name in the array's directory:
    /// shards, and what has nothing to do with the array.
    pub fn hides(&self, name: &OsStr) -> bool {
        let (SourceArray { layout, container, .. }, rank) = (&self.source, self.tree.rank());
        let is = |claims: &dyn Fn(&str) -> bool| name.to_str().is_some_and(claims);
        if is(&|name| self.tree.claims(name)) {
            return false;
        }
        // A file of the whole array stands for them all.
        let is_shard = container.has_keys() && is(&|name| layout.keys.claims(name, rank));
        is_shard || is_hidden(container, name)
    }
}

/// What a directory is.
#[derive(Debug, Clone)]
pub enum NodeKind {
    /// No node of its own: it is what the directory above is.
    Inherited,
    /// A group or an array that is shown as it is stored.
    AsStored,
    /// A hierarchy of the draft of 2022 ([`crate::format::draft2022`]): metadata and data of its
    /// nodes are apart.
    Draft2022,
    /// A sharded array.
    Sharded(Arc<ArrayView>),
    /// A node whose metadata cannot be used.
    Bad,
    /// An array that the view does not show at all.
    Unshown,
}

/// A directory of the hierarchy.
#[derive(Debug)]
pub struct Node {
    /// What it is.
    pub kind: NodeKind,
    /// The rewritten `zarr.json`, where the view shows another one than the source.
    pub document: Option<Arc<[u8]>>,
    /// Documents that the source has not, by name.
    pub extra: Vec<(OsString, Arc<[u8]>)>,
    /// Its `zarr.json` is not shown: the view has others in its place.
    pub is_translated: bool,
    /// The stored `zarr.json`.
    pub stat: Option<Stat>,
    /// The directory itself, of an array that is shown, or was until it lost its `zarr.json`: device and inode
    /// number.
    place: Option<(u64, u64)>,
    checked: Instant,
}

impl Node {
    /// One that has no documents but the source's.
    fn plain(kind: NodeKind, stat: Option<Stat>, checked: Instant) -> Self {
        let (document, extra, place) = (None, Vec::new(), None);
        Self { kind, document, extra, is_translated: false, stat, place, checked }
    }
}

impl Node {
    /// Whether the view has another document in the place of one of the source.
    pub fn replaces(&self, name: &OsStr) -> bool {
        let has_other = self.extra.iter().any(|(other, _)| other == name);
        has_other || self.is_translated && name == METADATA_FILE
    }
}

/// What the view shows at a path.
pub enum At {
    /// A document in another form than the source's, or one that the source has not; with the
    /// attributes of the file that it is made of.
    Text(Arc<[u8]>, Stat),
    /// Nothing, whatever the source has there.
    Hidden,
    /// What the source has there.
    Stored,
}

/// An array that has an inode range.
struct Known {
    directory: Box<Path>,
    /// Changes with everything that the meaning of a node number depends on.
    layout_hash: u64,
}

/// The nodes of a source, and the arrays among them by inode range.
pub struct Nodes {
    storage: Arc<dyn Storage>,
    /// The file in the source's root that is mounted, and nothing else of it.
    file: Option<OsString>,
    /// What the source is taken for, whatever is in it.
    format: Option<Format>,
    level: Option<usize>,
    view: ViewConfig,
    immutable: bool,
    /// Whether it is written to: then interrupted commits are completed or taken back.
    writable: bool,
    trusted: Duration,
    cache: Mutex<ByteCache<PathBuf, Arc<Node>>>,
    /// Arrays seen so far, by the numbers that the kernel knows them by. It may ask for any of them at
    /// any time, so as little as possible is kept of each.
    arrays: RwLock<HashMap<InodeRange, Known>>,
    /// Those that chunks were committed to.
    committed: Mutex<HashMap<InodeRange, Arc<ArrayView>>>,
    /// Directories of what the view cannot show, and why.
    not_shown: Mutex<BTreeMap<PathBuf, String>>,
    /// Directories of files that are called like documents and say what they like, and those files: they were
    /// written through this mount, where no array was.
    plain: Mutex<HashMap<PathBuf, Option<Stat>>>,
}

impl Nodes {
    /// The nodes of `storage`, shown like that.
    pub fn new(storage: Arc<dyn Storage>, config: &FsConfig) -> Self {
        let StoreConfig { immutable, trusted, .. } = config.store;
        Self {
            storage,
            file: config.file.clone(),
            format: config.format,
            level: config.level,
            view: config.view,
            immutable,
            writable: config.writable,
            trusted,
            cache: Mutex::new(ByteCache::new(NODE_CACHE_BYTES)),
            arrays: RwLock::default(),
            committed: Mutex::default(),
            not_shown: Mutex::default(),
            plain: Mutex::default(),
        }
    }

    /// Whether an array that the view cannot show is not there at all. What is beside a file that is
    /// mounted must not take its place.
    fn hides_unshown(&self) -> bool {
        self.view.view.is_decoded() || self.file.is_some()
    }

    /// Whether arrays of other formats have room for more chunks. Decoded, they are only read.
    fn grows(&self) -> bool {
        self.writable && !self.view.view.is_decoded()
    }

    fn may_be(&self, format: Format) -> bool {
        self.format.is_none_or(|wanted| wanted == format)
    }

    /// The node at `directory`, as old as is believed at most. Fails where the source fails for
    /// the moment: that makes nothing of the directory.
    pub fn node(&self, directory: &Path) -> std::io::Result<Arc<Node>> {
        self.node_trusting(directory, self.trusted)
    }

    /// Whether an array is still the one that `known` is of, though maybe of another shape: chunks
    /// that were written to it can be committed. Fails while that cannot be told: somebody may just
    /// be writing its metadata.
    pub fn is_still_there(&self, known: &ArrayView) -> std::io::Result<bool> {
        let node = self.node_trusting(&known.source.path, Duration::ZERO)?;
        Ok(match &node.kind {
            NodeKind::Sharded(array) => {
                let (source, known) = (&array.source, &known.source);
                std::mem::discriminant(&source.container)
                    == std::mem::discriminant(&known.container)
                    && (!source.container.has_keys()
                        || source.layout.has_same_chunks(&known.layout))
            }
            // Others have removed its document.
            NodeKind::Bad if node.place.is_some() => false,
            NodeKind::Bad => return Err(std::io::Error::other("its metadata cannot be used")),
            _ => false,
        })
    }

    fn node_trusting(&self, directory: &Path, trusted: Duration) -> std::io::Result<Arc<Node>> {
        let cached = self.lock_cache().get(directory);
        if let Some(node) = &cached
            && (self.immutable || node.checked.elapsed() < trusted)
        {
            return Ok(Arc::clone(node));
        }
        let checked = Instant::now();
        let stat = self.storage.stat(&self.document_path(directory)?);
        let before = cached.as_ref().and_then(|node| node.place);
        if let Some(node) = cached
            && let Some(same) = unchanged(&node, stat.as_ref(), checked)
        {
            return Ok(self.keep(directory, same));
        }
        match self.load(directory, stat, checked) {
            Ok(node) => {
                if let Some(place) = self.lost(directory, before, &node)? {
                    let why =
                        "it is gone, the array's shards may not be: they are not shown".to_owned();
                    self.note_not_shown(directory, &self.document_path(directory)?, why);
                    let lost = Node::plain(NodeKind::Bad, None, checked);
                    return Ok(self.keep(directory, Node { place: Some(place), ..lost }));
                }
                self.lock_not_shown().remove(directory);
                Ok(self.keep(directory, self.placed(directory, node)))
            }
            Err((_, error)) if error.io().is_some_and(|error| !is_lasting(error)) => {
                Err(error.into_io())
            }
            Err((stat, NodeError::Unshown(error))) => {
                let (kind, what) = match self.hides_unshown() {
                    true => (NodeKind::Unshown, "not shown"),
                    false => (NodeKind::AsStored, "shown as it is stored"),
                };
                let view = self.view.view.name();
                let why = format!("{error}; the array is {what} in the view {view}");
                self.note_not_shown(directory, directory, why);
                Ok(self.keep(directory, Node::plain(kind, stat, checked)))
            }
            Err((Some(stat), NodeError::Metadata(_))) if self.is_plain_file(directory, &stat) => {
                Ok(self.keep(directory, Node::plain(NodeKind::AsStored, Some(stat), checked)))
            }
            Err((stat, error)) => {
                let document = match error {
                    NodeError::Superchunks(..) => directory.to_owned(),
                    _ => self.document_path(directory)?,
                };
                let why = format!("{error}; the node is shown as stored, without its data");
                self.note_not_shown(directory, &document, why);
                Ok(self.keep(directory, Node::plain(NodeKind::Bad, stat, checked)))
            }
        }
    }

    /// A file that is called like the document of a directory, which is no array, is written; None as long as
    /// that lasts.
    pub fn set_plain(&self, directory: &Path, stat: Option<&Stat>) {
        let mut plain = self.lock_plain();
        if plain.len() < MAX_PLAIN || plain.contains_key(directory) {
            plain.insert(directory.to_owned(), stat.copied());
        }
    }

    /// There is none.
    pub fn unset_plain(&self, directory: &Path) {
        self.lock_plain().remove(directory);
    }

    /// Whether what is called like the document of a directory is such a file.
    pub fn is_plain(&self, directory: &Path) -> bool {
        let path = self.document_path(directory);
        let stat = path.and_then(|path| self.storage.stat(&path));
        stat.is_ok_and(|stat| self.is_plain_file(directory, &stat))
    }

    fn is_plain_file(&self, directory: &Path, stat: &Stat) -> bool {
        let plain = self.lock_plain();
        let known = plain.get(directory);
        known.is_some_and(|known| known.is_none_or(|known| known.same_content(stat)))
    }

    fn lock_plain(&self) -> parking_lot::MutexGuard<'_, HashMap<PathBuf, Option<Stat>>> {
        self.plain.lock()
    }

    /// The node of an array with the directory that it is in.
    fn placed(&self, directory: &Path, mut node: Node) -> Node {
        if let NodeKind::Sharded(_) = node.kind {
            node.place = self.storage.stat(directory).ok().map(|stat| stat.id());
        }
        node
    }

    /// The directory of an array that was shown, `before`, and of which all but the `zarr.json` may still be
    /// there: others remove it, and what is left are shards, not chunks.
    fn lost(
        &self,
        directory: &Path,
        before: Option<(u64, u64)>,
        now: &Node,
    ) -> std::io::Result<Option<(u64, u64)>> {
        let (Some(before), NodeKind::Inherited) = (before, &now.kind) else { return Ok(None) };
        let stat = if_present(self.storage.stat(directory))?;
        Ok(stat.map(|stat| stat.id()).filter(|id| *id == before))
    }

    /// Remembers why the view cannot show a directory, and logs it unless it was so before.
    fn note_not_shown(&self, directory: &Path, document: &Path, why: String) {
        let mut not_shown = self.lock_not_shown();
        if not_shown.get(directory).is_some_and(|known| *known == why) {
            return;
        }
        log::warn!("{}: {why}", shown(document));
        if not_shown.len() < MAX_NOT_SHOWN || not_shown.contains_key(directory) {
            not_shown.insert(directory.to_owned(), why);
        }
    }

    /// What of all that was looked at so far the view cannot show, and why: a line each.
    pub fn not_shown(&self) -> String {
        let not_shown = self.lock_not_shown();
        let line = |(path, why): (&PathBuf, &String)| format!("{}: {}\n", shown(path), Line(why));
        let all: String = not_shown.iter().map(line).collect();
        if not_shown.len() < MAX_NOT_SHOWN { all } else { all + "...\n" }
    }

    fn lock_not_shown(&self) -> parking_lot::MutexGuard<'_, BTreeMap<PathBuf, String>> {
        self.not_shown.lock()
    }

    /// The node at `directory` was changed, or those below it.
    pub fn forget(&self, directory: &Path) {
        self.lock_not_shown().retain(|path, _| !path.starts_with(directory));
        self.lock_cache().remove_if(|path| path.starts_with(directory));
    }

    /// Remembers that chunks of an array are committed: there is something to finish at the end.
    pub fn note_commit(&self, array: &Arc<ArrayView>) {
        let mut committed = self.committed.lock();
        committed.entry(array.inodes).or_insert_with(|| Arc::clone(array));
    }

    /// All arrays that chunks were committed to, in all their shapes.
    pub fn committed(&self) -> Vec<Arc<ArrayView>> {
        let committed = self.committed.lock();
        committed.values().cloned().collect()
    }

    /// Reads the node at `directory` anew and tells what is wrong with it.
    pub fn check(&self, directory: &Path) -> Result<Node, NodeError> {
        let stat = self.storage.stat(&self.document_path(directory)?);
        let checked = Instant::now();
        match self.load(directory, stat, checked) {
            Err((stat, NodeError::Unshown(_))) if !self.hides_unshown() => {
                Ok(Node::plain(NodeKind::AsStored, stat, checked))
            }
            loaded => loaded.map_err(|(_, error)| error),
        }
    }

    /// The path of the document that describes the node at `directory`, if there is one.
    pub fn document_path(&self, directory: &Path) -> std::io::Result<PathBuf> {
        if let (Some(file), true) = (&self.file, directory.as_os_str().is_empty()) {
            return Ok(file.into());
        }
        for (hierarchy, document) in draft2022::documents(directory) {
            if self.is_draft(hierarchy)? {
                return Ok(document);
            }
        }
        Ok(directory.join(METADATA_FILE))
    }

    /// The directory of the node that a document describes; None if the path is that of none.
    pub fn described_by(&self, path: &Path) -> std::io::Result<Option<PathBuf>> {
        let directory = match path.parent() {
            Some(directory) if path.ends_with(METADATA_FILE) => directory.to_owned(),
            _ => {
                let mut found = None;
                for (hierarchy, directory) in draft2022::described(path) {
                    if self.is_draft(hierarchy)? {
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

    /// What the view shows at a path that is neither a chunk nor above chunks.
    pub fn at(&self, path: &Path) -> std::io::Result<At> {
        if let Some(described) = self.described_by(path)? {
            let node = self.node(&described)?;
            if let (Some(document), Some(stat)) = (&node.document, &node.stat) {
                return Ok(At::Text(Arc::clone(document), *stat));
            }
            if node.is_translated || matches!(node.kind, NodeKind::Unshown) {
                return Ok(At::Hidden);
            }
        }
        let Some((directory, name)) = path.parent().zip(path.file_name()) else {
            return Ok(At::Stored);
        };
        let node = self.node(directory)?;
        if node.is_translated && name == METADATA_FILE {
            return Ok(At::Hidden);
        }
        let extra = node.extra.iter().find(|(other, _)| other == name);
        Ok(match (extra, node.stat, &node.kind) {
            (Some((_, text)), Some(stat), _) => At::Text(Arc::clone(text), stat),
            (_, _, NodeKind::Sharded(array)) if array.hides(name) => At::Hidden,
            _ => At::Stored,
        })
    }

    /// Whether a path is that of a document, apart from its array, which the view has others for.
    pub fn is_replaced_apart(&self, path: &Path) -> std::io::Result<bool> {
        let may_be = self.view.view != View::Zarr3 && draft2022::is_document(path);
        Ok(may_be && matches!(self.at(path)?, At::Hidden))
    }

    fn is_draft(&self, directory: &Path) -> std::io::Result<bool> {
        Ok(matches!(self.node(directory)?.kind, NodeKind::Draft2022))
    }

    /// What files in `directory` belong to: its own node or the nearest one above, and where that
    /// is.
    pub fn governing<'a>(&self, directory: &'a Path) -> std::io::Result<(&'a Path, Arc<Node>)> {
        let mut at = directory;
        loop {
            let node = self.node(at)?;
            match (&node.kind, at.parent()) {
                (NodeKind::Inherited, Some(parent)) => at = parent,
                _ => return Ok((at, node)),
            }
        }
    }

    /// The array that an inode range belongs to, if the array still is what it was.
    pub fn array(&self, range: InodeRange) -> std::io::Result<Option<Arc<ArrayView>>> {
        let directory = {
            let arrays = self.arrays.read();
            let Some(known) = arrays.get(&range) else { return Ok(None) };
            known.directory.clone()
        };
        match &self.node(&directory)?.kind {
            NodeKind::Sharded(array) if array.inodes == range => Ok(Some(Arc::clone(array))),
            _ => Ok(None),
        }
    }

    fn keep(&self, directory: &Path, node: Node) -> Arc<Node> {
        let node = Arc::new(node);
        // Twice: the cache has the path as well as the array.
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

    #[allow(clippy::result_large_err, reason = "once for each document that is read")]
    fn load(
        &self,
        directory: &Path,
        stat: std::io::Result<Stat>,
        checked: Instant,
    ) -> Result<Node, (Option<Stat>, NodeError)> {
        let path = self.document_path(directory).map_err(|error| (None, error.into()))?;
        if let Some(node) = self.load_foreign(directory, &path, &stat, checked) {
            return node;
        }
        let stat = match stat {
            Ok(stat) => stat,
            Err(error) if is_absent(&error) => {
                // Not a symbolic link that leads nowhere. What others have made there since was not there.
                let there = if_present(self.storage.lstat(&path));
                return match there.map_err(|error| (None, error.into()))? {
                    Some(Stat { kind: FileKind::Symlink, .. }) => Err((None, error.into())),
                    _ => Ok(Node::plain(NodeKind::Inherited, None, checked)),
                };
            }
            Err(error) => return Err((None, error.into())),
        };
        let fail = |error: NodeError| (Some(stat), error);
        let text = self.read(&path, &stat).map_err(fail)?;
        let room = ROOM.take(json::memory(&text));
        let document =
            json::parse(&text).map_err(|error| fail(NodeError::Metadata(error.into())))?;
        let dialect = Dialect::of(&path);
        let is_draft = || draft2022::is_hierarchy(&document).map_err(|e| fail(e.into()));
        if dialect == Dialect::V3 && self.may_be(Format::Draft2022) && is_draft()? {
            return Ok(Node::plain(NodeKind::Draft2022, Some(stat), checked));
        }
        if self.view.view != View::Zarr3 {
            let node = self.load_translated(directory, document, dialect, stat, checked, room);
            return node.map_err(fail);
        }
        let shown = show(document, self.level, dialect).map_err(|e| fail(e.into()))?;
        let (kind, document) = match shown {
            Shown::AsStored => (NodeKind::AsStored, None),
            Shown::Group(twin) => (NodeKind::AsStored, Some(twin)),
            Shown::Array(layout, twin) => {
                let hash = layout_hash(directory, &twin, &layout);
                let as_is = ShownArray::as_stored(layout.keys);
                // It may wait for locks.
                drop(room);
                let view = self.register(directory, *layout, Container::Shards, as_is, hash);
                let view = view.map_err(|e| fail(e.into()))?;
                (NodeKind::Sharded(view), Some(twin))
            }
        };
        let document = document.map(|document| json::to_text(&document).into());
        let (extra, is_translated) = (Vec::new(), false);
        Ok(Node { kind, document, extra, is_translated, stat: Some(stat), place: None, checked })
    }

    /// A node in a view that has other documents than the source.
    fn load_translated(
        &self,
        directory: &Path,
        document: Value,
        dialect: Dialect,
        stat: Stat,
        checked: Instant,
        room: Taken<'_>,
    ) -> Result<Node, NodeError> {
        let (document, keys) = match dialect {
            Dialect::V3 => (document, None),
            Dialect::Draft2022 => {
                // What is wrong with a sharded array is so in every view.
                draft2022::parse(&document)?;
                let twin = draft2022::to_zarr3(&document).map_err(Unshown::from)?;
                (twin, Some(draft2022::keys(&document)?))
            }
        };
        let shown = show(document.clone(), self.level, Dialect::V3)?;
        let (mut layout, container, twin) = match shown {
            Shown::Array(layout, twin) => (*layout, Container::Shards, twin),
            Shown::Group(twin) => return Ok(self.translated_group(&twin, stat, checked)),
            Shown::AsStored => match NodeMetadata::parse(&document)? {
                NodeMetadata::Group => return Ok(self.translated_group(&document, stat, checked)),
                NodeMetadata::Array(chain) => {
                    let layout = ShardedArray::unsharded(&document, chain);
                    let layout = layout.map_err(Unshown::Metadata)?;
                    (layout, Container::Chunks, document)
                }
            },
        };
        layout.keys = keys.unwrap_or(layout.keys);
        // What follows may wait for locks.
        drop(room);
        self.translated(directory, &twin, layout, container, stat, checked)
    }

    fn translated(
        &self,
        directory: &Path,
        twin: &Value,
        layout: ShardedArray,
        container: Container,
        stat: Stat,
        checked: Instant,
    ) -> Result<Node, NodeError> {
        let mut shown = self.view.array(twin, layout.keys, Lengths::Equal)?;
        let extra = std::mem::take(&mut shown.documents);
        let extra = extra.into_iter().map(|(name, text)| (name, text.into())).collect();
        if shown.is_misread {
            log::warn!(
                "{}: in the view zarr2 its fill value is not what it is in Zarr v3, the missing value: \
                 readers of CF conventions, xarray and netCDF among them, see other values",
                self::shown(directory)
            );
        }
        let hash = self.form_hash(twin, &shown.form, layout_hash(directory, twin, &layout));
        let kind = NodeKind::Sharded(self.register(directory, layout, container, shown, hash)?);
        let (document, is_translated, stat) = (None, true, Some(stat));
        Ok(Node { kind, document, extra, is_translated, stat, place: None, checked })
    }

    /// The hash of a layout with what decoded chunks depend on as well: they are others once that has
    /// changed, and so are the files.
    fn form_hash(&self, twin: &Value, form: &Form, layout_hash: u64) -> u64 {
        if let Form::Filled(filled) = form {
            return stable_hash([filled.values.as_bytes(), &layout_hash.to_le_bytes()]);
        }
        if !self.view.view.is_decoded() {
            return layout_hash;
        }
        let members = ["shape", "data_type", "fill_value", "codecs"];
        let members = members.map(|name| twin.get(name).map(ToString::to_string));
        let parts = members.iter().flatten().map(String::as_bytes);
        stable_hash(parts.chain([layout_hash.to_le_bytes().as_slice()]))
    }

    fn translated_group(&self, group: &Value, stat: Stat, checked: Instant) -> Node {
        let extra = self.view.group(group).into_iter();
        let extra = extra.map(|(name, text)| (name, text.into())).collect();
        let (document, stat) = (None, Some(stat));
        let (kind, place) = (NodeKind::AsStored, None);
        Node { kind, document, extra, is_translated: true, stat, place, checked }
    }

    /// The node of another format that is at a directory, if there is one. `document` is the path of
    /// its document, and `stat` what the source says of that.
    fn load_foreign(
        &self,
        directory: &Path,
        document: &Path,
        stat: &std::io::Result<Stat>,
        checked: Instant,
    ) -> Option<Result<Node, (Option<Stat>, NodeError)>> {
        let storage = &*self.storage;
        let (stat, found) = match (&self.file, stat) {
            (Some(file), Ok(stat)) if document == Path::new(file) => {
                (*stat, bloscpack_file(storage, file, stat, self.grows()).map(Some))
            }
            (_, Err(error)) if is_absent(error) && self.may_be(Format::Blz) => {
                match if_present(storage.stat(&directory.join(SIZES))) {
                    Ok(Some(stat)) => (stat, superchunks(storage, directory, self.grows())),
                    Ok(None) => match column(storage, directory) {
                        Ok(found) => {
                            let (stat, found) = found?;
                            (stat, found.map(Some))
                        }
                        Err(error) => return Some(Err((None, error.into()))),
                    },
                    Err(error) => return Some(Err((None, error.into()))),
                }
            }
            _ => return None,
        };
        let node = match found {
            Ok(Some(found)) => self.foreign(directory, found, stat, checked),
            Ok(None) => Ok(Node::plain(NodeKind::AsStored, Some(stat), checked)),
            Err(error) => Err(error),
        };
        Some(node.map_err(|error| (Some(stat), error)))
    }

    /// A node of another format.
    fn foreign(
        &self,
        directory: &Path,
        found: Foreign,
        stat: Stat,
        checked: Instant,
    ) -> Result<Node, NodeError> {
        let Foreign { array, container, documents } = found;
        // Metadata comes and goes with the length, or follows it, and numbers mean the same.
        let kind = match &container {
            Container::Superchunks { extent, .. } => {
                serde_json::json!({"codecs": extent.row_bytes})
            }
            _ => Value::Null,
        };
        let hash = layout_hash(directory, &kind, &array.layout);
        let (mut shown, is_translated) = match (&array.metadata, self.view.view) {
            (_, View::Zarr3) => (ShownArray::as_stored(array.layout.keys), false),
            (Some(twin), _) => (self.view.array(twin, array.layout.keys, Lengths::ShortEnd)?, true),
            (None, _) => return Err(Unshown::NoMetadata.into()),
        };
        let hash =
            array.metadata.as_ref().map_or(hash, |twin| self.form_hash(twin, &shown.form, hash));
        let mut documents = documents;
        if is_translated {
            documents.retain(|(name, _)| name != METADATA_FILE);
            documents.append(&mut shown.documents);
        }
        let view = self.register(directory, array.layout, container, shown, hash)?;
        let extra = documents.into_iter().map(|(name, text)| (name, text.into())).collect();
        let kind = NodeKind::Sharded(view);
        let (document, stat) = (None, Some(stat));
        Ok(Node { kind, document, extra, is_translated, stat, place: None, checked })
    }

    fn read(&self, path: &Path, stat: &Stat) -> Result<Vec<u8>, NodeError> {
        if stat.kind != FileKind::File {
            return Err(NodeError::NotAFile(stat.kind));
        }
        if stat.size > MAX_METADATA_BYTES {
            return Err(NodeError::TooLong(stat.size));
        }
        let mut text = zeroed(stat.size).map_err(std::io::Error::from)?;
        let read = self.storage.open(path)?.read_at(&mut text, 0)?;
        text.truncate(read);
        Ok(text)
    }

    /// Finds or makes the view of an array; its inode range is taken by no other.
    fn register(
        &self,
        directory: &Path,
        layout: ShardedArray,
        container: Container,
        how: ShownArray,
        layout_hash: u64,
    ) -> Result<Arc<ArrayView>, MetadataError> {
        let tree = ChunkTree::new(how.keys, how.suffix, layout.chunk_grid())?;
        if self.view.is_one_of_several && tree.nodes() > MAX_NODES_IN_VIEW {
            let what = "chunks for a mount of several views";
            return Err(MetadataError::Limit { what, limit: MAX_NODES_IN_VIEW });
        }
        let (inodes, is_new) = self.take_range(&tree, directory, layout_hash)?;
        let (id, path) = (inodes.id(), directory.to_owned());
        let source = SourceArray { id, path, layout, container };
        if is_new && self.writable {
            // What an interrupted mount has left comes first.
            if let Err(error) = recover(&*self.storage, Owner::Array(&source)) {
                log::error!("{}: {error}", shown(directory));
            }
        }
        Ok(Arc::new(ArrayView { source, tree, inodes, form: how.form }))
    }

    /// The inode range of an array, and whether it was taken now.
    fn take_range(
        &self,
        tree: &ChunkTree,
        directory: &Path,
        layout_hash: u64,
    ) -> Result<(InodeRange, bool), MetadataError> {
        let mut arrays = self.arrays.write();
        for attempt in 0..RANGE_ATTEMPTS {
            let inodes = InodeRange::new(tree.nodes(), layout_hash, attempt);
            match arrays.entry(inodes) {
                Entry::Occupied(known)
                    if known.get().layout_hash == layout_hash
                        && *known.get().directory == *directory =>
                {
                    return Ok((inodes, false));
                }
                Entry::Occupied(_) => (),
                Entry::Vacant(free) => {
                    free.insert(Known { directory: directory.into(), layout_hash });
                    return Ok((inodes, true));
                }
            }
        }
        Err(MetadataError::Limit { what: "arrays with as many chunks", limit: RANGE_ATTEMPTS })
    }

    fn lock_cache(&self) -> parking_lot::MutexGuard<'_, ByteCache<PathBuf, Arc<Node>>> {
        self.cache.lock()
    }
}

/// The node again, if its metadata is the same file that it was.
fn unchanged(node: &Node, stat: Result<&Stat, &std::io::Error>, checked: Instant) -> Option<Node> {
    let same = match (&node.stat, stat) {
        (Some(before), Ok(now)) => before.unchanged(now),
        (None, Err(error)) => matches!(node.kind, NodeKind::Inherited) && is_absent(error),
        _ => false,
    };
    let again = || Node {
        kind: node.kind.clone(),
        document: node.document.clone(),
        extra: node.extra.clone(),
        is_translated: node.is_translated,
        stat: node.stat,
        place: node.place,
        checked,
    };
    same.then(again)
}

/// Hashes what the meaning of inode numbers depends on: the path, the shape, both grids, the keys
/// and the codecs around the chunks. Attributes and the like do not count.
fn layout_hash(directory: &Path, twin: &Value, layout: &ShardedArray) -> u64 {
    use std::os::unix::ffi::OsStrExt;
    let member = |name: &str| twin.get(name).map(ToString::to_string).unwrap_or_default();
    let members = ["shape", "chunk_grid", "chunk_key_encoding", "codecs"].map(member);
    let layout = format!("{:?} {:?}", layout.shard_grid, layout.levels);
    let parts = members.iter().map(String::as_bytes);
    stable_hash(parts.chain([layout.as_bytes(), directory.as_os_str().as_bytes()]))
}

/// Whether an error tells something of the file, not of the moment.
fn is_lasting(error: &std::io::Error) -> bool {
    let lasting = [libc::EACCES, libc::EPERM, libc::ELOOP, libc::EXDEV, libc::ENXIO, libc::EISDIR];
    is_absent(error) || error.raw_os_error().is_some_and(|errno| lasting.contains(&errno))
}
