//! Opening a source: its arrays of every format, in the order of their paths. They are found one after the
//! other, and nobody keeps them: a hierarchy may have any number.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::kept::Kept;
use crate::format::back::is_sharded;
use crate::format::codec::parse_chain;
use crate::format::document::{Dialect, Shown, show};
use crate::format::draft2022;
use crate::format::error::MetadataError;
use crate::format::metadata::NodeMetadata;
use crate::format::sharding::ShardedArray;
use crate::format::zarr2::{self, NoTwin, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::fs::{Foreign, Format, METADATA_FILE, NodeError, read_document};
use crate::fs::{bloscpack_file, column, superchunks};
use crate::store::local::LocalStorage;
use crate::store::storage::{FileKind, Storage, if_present, kind_of};
use crate::store::work::WORK_DIRECTORY;
use crate::store::{Container, SIZES, ShardStore, SourceArray, StoreConfig, StoreError};
use crate::text::shown;
use crate::tools::unsupported::Unsupported;

/// Bytes of indexes to keep where each shard is looked at once: those of shards inside a shard are
/// asked for by several threads.
const ONE_PASS_CACHE: usize = 16 << 20;

/// What commands work on: a directory, or a file that is an array by itself.
pub struct Source {
    /// As the user called it.
    pub name: PathBuf,
    /// Its files.
    pub storage: Arc<dyn Storage>,
    /// Its shards.
    pub store: ShardStore,
    config: OpenConfig,
    /// Its name in `storage`, of a file that is an array by itself.
    file: Option<OsString>,
    /// What the next array is told by.
    next_id: AtomicU64,
}

/// A node of a source.
#[derive(Debug, Clone)]
pub enum Node {
    /// A group: its directory, from the source's root.
    Group(PathBuf),
    /// An array.
    Array(Arc<Array>),
    /// A node whose metadata cannot be used, or a directory that cannot be read, and why.
    Bad(PathBuf, Arc<NodeError>),
    /// A directory with a journal of a mount, and no array of Zarr.
    Journal(PathBuf),
}

impl Node {
    /// Its directory, from the source's root.
    pub fn directory(&self) -> &Path {
        match self {
            Self::Group(directory) | Self::Bad(directory, _) | Self::Journal(directory) => {
                directory
            }
            Self::Array(array) => &array.source.path,
        }
    }
}

/// An array of a source.
#[derive(Debug)]
pub struct Array {
    /// Where its chunks are.
    pub source: SourceArray,
    /// What it is stored as.
    pub format: ArrayFormat,
    /// Its document, from the source's root, and what is in it, where it has one.
    pub document: Option<(PathBuf, Kept)>,
    /// Its metadata as of Zarr v3; None of one that is not sharded, or has no such form.
    pub sharded: Option<Kept>,
    /// Metadata of the equivalent unsharded array as of Zarr v3; None if it has no such form.
    pub twin: Option<Kept>,
}

/// What an array is stored as. A mount shows less: arrays of Zarr v2 need none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayFormat {
    /// Zarr v3.
    Zarr3,
    /// Zarr v2.
    Zarr2,
    /// The draft of 2022.
    Draft2022,
    /// A Bloscpack file.
    Bloscpack,
    /// BLZ or bcolz.
    Blz,
}

/// Why a source cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be read.
    #[error("{}: {error}", shown(.path))]
    Io {
        /// The source, or what is in it.
        path: PathBuf,
        /// The error.
        #[source]
        error: std::io::Error,
    },
    /// There is nothing in it that shardfs knows.
    #[error("{}: neither an array nor a hierarchy of arrays: there is no metadata in it", shown(.0))]
    NoNode(PathBuf),
    /// It is something that shardfs does not read.
    #[error("{}: {what}", shown(.path))]
    Unsupported {
        /// The source.
        path: PathBuf,
        /// What it is.
        #[source]
        what: Unsupported,
    },
}

/// Documents of a node, by name.
pub type Documents = Vec<(&'static str, Value)>;

/// How a source is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenConfig {
    /// Level of nested sharding whose chunks are meant, 1 the outermost; None the innermost.
    pub level: Option<usize>,
    /// What the source is taken for; by what is in it if not given.
    pub format: Option<Format>,
    /// A last chunk that is shorter than the others is filled up, as readers of Zarr want it.
    pub pad_edge: bool,
}

impl Source {
    /// Opens a directory or a file.
    pub fn open(path: &Path, config: OpenConfig) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Io { path: path.to_owned(), error };
        let unsupported = |what| OpenError::Unsupported { path: path.to_owned(), what };
        if let Some(what) = Unsupported::of_path(path) {
            return Err(unsupported(what));
        }
        let whole = path.canonicalize().map_err(failed)?;
        let (root, file) = match (whole.parent(), whole.file_name()) {
            (Some(directory), Some(name)) if whole.is_file() => (directory, Some(name)),
            _ => (whole.as_path(), None),
        };
        let storage = LocalStorage::open_root(root, Arc::default()).map_err(failed)?;
        let storage: Arc<dyn Storage> = Arc::new(storage);
        if file.is_none() {
            storage.list(Path::new(""), 0, &mut |_| ControlFlow::Break(())).map_err(failed)?;
        }
        let how = StoreConfig { pad_edge: config.pad_edge, ..StoreConfig::default() };
        let store = ShardStore::new(Arc::clone(&storage), how, Arc::default());
        let (name, file) = (path.to_owned(), file.map(OsStr::to_owned));
        let source = Self { name, storage, store, config, file, next_id: AtomicU64::new(0) };
        match source.nodes().next() {
            Some(_) => Ok(source),
            None => {
                let what = Unsupported::of_directory(path);
                Err(what.map_or_else(|| OpenError::NoNode(path.to_owned()), unsupported))
            }
        }
    }

    /// A source whose files are those of a storage, and its shards.
    pub fn over(name: &Path, storage: Arc<dyn Storage>, store: ShardStore) -> Self {
        let (name, config) = (name.to_owned(), OpenConfig::default());
        Self { name, storage, store, config, file: None, next_id: AtomicU64::new(0) }
    }

    /// The same, for whoever looks at each shard once: hardly anything is kept for a second time.
    pub fn for_one_pass(mut self) -> Self {
        let config = StoreConfig { cache_size: ONE_PASS_CACHE, ..StoreConfig::default() };
        self.store = ShardStore::new(Arc::clone(&self.storage), config, Arc::default());
        self
    }

    /// The document of a group as of Zarr v3, its attributes in it; one that has no document of its own
    /// has no attributes.
    pub fn group(&self, directory: &Path) -> Result<Value, NodeError> {
        let storage = &*self.storage;
        let path = directory.join(METADATA_FILE);
        if let Some(document) = document_at(storage, &path)? {
            match NodeMetadata::parse(&document) {
                Ok(NodeMetadata::Group) => return Ok(document),
                Ok(NodeMetadata::Array(_)) => (),
                // The entry point of a hierarchy of the draft of 2022.
                Err(_) if draft2022::is_hierarchy(&document).unwrap_or(false) => (),
                Err(error) => return Err(error.into()),
            }
        } else if let Some(zgroup) = document_at(storage, &directory.join(ZGROUP))? {
            let zattrs = document_at(storage, &directory.join(ZATTRS))?;
            return Ok(zarr2::group_to_zarr3(&zgroup, zattrs.as_ref())?);
        }
        let mut attributes = Map::new();
        for path in draft2022::group_documents(directory) {
            if let Some(document) = document_at(storage, &path)? {
                attributes = document["attributes"].as_object().cloned().unwrap_or_default();
                break;
            }
        }
        Ok(json!({"zarr_format": 3, "node_type": "group", "attributes": attributes}))
    }

    /// The documents of Zarr v2 that a node has as it is stored, by name; None if it is none of Zarr v2.
    pub fn zarr2_documents(&self, directory: &Path) -> Result<Option<Documents>, NodeError> {
        let at = |name: &'static str| {
            let document = document_at(&*self.storage, &directory.join(name))?;
            Ok::<_, NodeError>(document.map(|document| (name, document)))
        };
        if if_present(self.storage.lstat(&directory.join(METADATA_FILE)))?.is_some() {
            return Ok(None);
        }
        let node = match at(ZARRAY)? {
            Some(node) => Some(node),
            None => at(ZGROUP)?,
        };
        let Some(node) = node else { return Ok(None) };
        let consolidated = if node.0 == ZGROUP { at(ZMETADATA)? } else { None };
        Ok(Some([Some(node), at(ZATTRS)?, consolidated].into_iter().flatten().collect()))
    }

    /// Length in bytes of the files that an array's chunks are in, as far as they can be looked at.
    pub fn nbytes(&self, array: &Array) -> u64 {
        let mut sum = 0;
        let counted = self.store.each_shard(&array.source, &mut |shard| {
            let stat = self.storage.stat(&array.source.shard_path(shard));
            sum += stat.map_or(0, |stat| stat.size);
            Ok::<(), StoreError>(())
        });
        counted.map_or(0, |()| sum)
    }

    /// What is in it, in the order of the paths, as it is found.
    pub fn nodes(&self) -> Nodes<'_> {
        let first = match &self.file {
            Some(name) => Step::File(name.clone()),
            None => Step::Directory(PathBuf::new()),
        };
        Nodes { source: self, steps: vec![first], found: VecDeque::new() }
    }

    /// Its arrays, those that can be used.
    pub fn arrays(&self) -> impl Iterator<Item = Arc<Array>> {
        self.nodes().filter_map(|node| match node {
            Node::Array(array) => Some(array),
            _ => None,
        })
    }
}

impl Array {
    /// Metadata of the equivalent unsharded array as of Zarr v3; None if it has no such form.
    pub fn twin(&self) -> Option<Value> {
        self.twin.as_ref().map(Kept::value)
    }

    /// Whether each chunk is a file of its own already.
    pub fn is_unsharded(&self) -> bool {
        self.source.container == Container::Chunks
    }

    /// Whether a name in its directory is that of a shard or chunk, or of what stands above them.
    pub fn claims(&self, name: &OsStr) -> bool {
        let layout = &self.source.layout;
        name.to_str().is_some_and(|name| layout.keys.claims(name, layout.rank()))
    }
}

/// The nodes of a source, as they are found.
pub struct Nodes<'a> {
    source: &'a Source,
    /// What is to be looked at, the next one last.
    steps: Vec<Step>,
    /// What was found, and not yet handed over.
    found: VecDeque<Node>,
}

/// What is to be looked at.
enum Step {
    /// A directory.
    Directory(PathBuf),
    /// What is in one, the next name last.
    Below(PathBuf, Vec<OsString>),
    /// Arrays of a hierarchy of the draft of 2022, their data and their documents, the next one last.
    Draft(Vec<(PathBuf, PathBuf)>),
    /// A file that is an array by itself.
    File(OsString),
}

impl Iterator for Nodes<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        loop {
            if let Some(node) = self.found.pop_front() {
                return Some(node);
            }
            match self.steps.pop()? {
                Step::Directory(directory) => self.look(directory),
                Step::Below(directory, mut names) => {
                    let Some(name) = names.pop() else { continue };
                    let path = directory.join(&name);
                    let next = match name == WORK_DIRECTORY {
                        true => Err(Node::Journal(directory.clone())),
                        false => Ok(Step::Directory(path)),
                    };
                    self.steps.push(Step::Below(directory, names));
                    match next {
                        Ok(step) => self.steps.push(step),
                        Err(node) => self.found.push_back(node),
                    }
                }
                Step::Draft(mut documents) => {
                    let Some((data, path)) = documents.pop() else { continue };
                    self.steps.push(Step::Draft(documents));
                    let array = read_document(self.storage(), &path)
                        .and_then(|document| draft(&data, path, document, self.config().level));
                    self.add(data, array.map(Some));
                }
                Step::File(name) => self.bloscpack(Path::new(&name)),
            }
        }
    }
}

impl Nodes<'_> {
    fn storage(&self) -> &dyn Storage {
        &*self.source.storage
    }

    fn config(&self) -> OpenConfig {
        self.source.config
    }

    fn may_be(&self, format: Format) -> bool {
        self.config().format.is_none_or(|wanted| wanted == format)
    }

    /// Hands a node over; the array, if it is one.
    fn add(
        &mut self,
        directory: PathBuf,
        found: Result<Option<Array>, NodeError>,
    ) -> Option<Arc<Array>> {
        match found {
            Ok(Some(mut array)) => {
                array.source.id = self.source.next_id.fetch_add(1, Ordering::Relaxed);
                let array = Arc::new(array);
                self.found.push_back(Node::Array(Arc::clone(&array)));
                Some(array)
            }
            Ok(None) => None,
            Err(error) => {
                self.bad(directory, error);
                None
            }
        }
    }

    fn bad(&mut self, directory: PathBuf, error: NodeError) {
        self.found.push_back(Node::Bad(directory, Arc::new(error)));
    }

    fn bloscpack(&mut self, name: &Path) {
        let storage = self.storage();
        let found = storage
            .stat(name)
            .map_err(NodeError::from)
            .and_then(|stat| bloscpack_file(storage, name.as_os_str(), &stat, false))
            .map(|found| Some(foreign(Path::new(""), found, ArrayFormat::Bloscpack)));
        self.add(PathBuf::new(), found);
    }

    fn look(&mut self, directory: PathBuf) {
        let path = directory.join(METADATA_FILE);
        let document = document_at(self.storage(), &path);
        if let Some(document) = document.transpose() {
            match document {
                Ok(document) => match NodeMetadata::parse(&document) {
                    _ if draft2022::is_hierarchy(&document).unwrap_or(false) => {
                        return self.look_at_draft(directory);
                    }
                    Ok(NodeMetadata::Group) => self.found.push_back(Node::Group(directory.clone())),
                    Ok(NodeMetadata::Array(_)) => {
                        let array = self.zarr3(&directory, path, document);
                        let array = self.add(directory.clone(), array.map(Some));
                        return self.below_array(directory, array);
                    }
                    Err(error) => {
                        let is_array = document.get("node_type").is_some_and(|it| it == "array");
                        self.bad(directory.clone(), error.into());
                        if is_array {
                            return;
                        }
                    }
                },
                Err(error) => self.bad(directory.clone(), error),
            }
        } else if self.superchunks(&directory) || self.zarr2(&directory) {
            return;
        }
        self.below(directory, |_| true);
    }

    /// Whether there is an array of Zarr v2 in a directory; a group is noted.
    fn zarr2(&mut self, directory: &Path) -> bool {
        if !self.may_be(Format::Zarr) {
            return false;
        }
        let path = directory.join(ZARRAY);
        let array = match if_present(self.storage().lstat(&path)) {
            Ok(Some(_)) => Some(zarr2_array(self.storage(), directory, path)),
            Ok(None) => None,
            Err(error) => Some(Err(error.into())),
        };
        if let Some(array) = array {
            let array = self.add(directory.to_owned(), array.map(Some));
            self.below_array(directory.to_owned(), array);
            return true;
        }
        match if_present(self.storage().lstat(&directory.join(ZGROUP))) {
            Ok(Some(_)) => self.found.push_back(Node::Group(directory.to_owned())),
            Ok(None) => (),
            Err(error) => self.bad(directory.to_owned(), error.into()),
        }
        false
    }

    /// What is in an array's directory and has nothing to do with its chunks: nodes below it, which
    /// Zarr does not foresee and some writers make.
    fn below_array(&mut self, directory: PathBuf, array: Option<Arc<Array>>) {
        // Of one that cannot be used nobody knows which names are those of chunks.
        if let Some(array) = array {
            self.below(directory, |name| name != WORK_DIRECTORY && !array.claims(name));
        }
    }

    fn below(&mut self, directory: PathBuf, is_meant: impl Fn(&OsStr) -> bool) {
        let mut names = Vec::new();
        let listed = self.each_entry(&directory, &is_meant, &mut |name, kind| {
            if kind == Some(FileKind::Directory) {
                names.push(name.to_owned());
            }
        });
        if let Err(error) = listed {
            return self.bad(directory, error);
        }
        names.sort_unstable_by(|one, other| other.cmp(one));
        names.shrink_to_fit();
        self.steps.push(Step::Below(directory, names));
    }

    /// A hierarchy of the draft of 2022: its arrays' documents stand together.
    fn look_at_draft(&mut self, hierarchy: PathBuf) {
        let mut directories = vec![draft2022::metadata_directory(&hierarchy)];
        let mut documents = Vec::new();
        while let Some(directory) = directories.pop() {
            let listed = self.each_entry(&directory, &|_| true, &mut |name, kind| {
                let path = directory.join(name);
                if kind == Some(FileKind::Directory) {
                    directories.push(path);
                } else if let Some(data) = draft2022::data_of(&hierarchy, &path) {
                    documents.push((data, path));
                }
            });
            if let Err(error) = listed {
                self.bad(directory, error);
            }
        }
        documents.sort_unstable_by(|one, other| other.cmp(one));
        self.found.push_back(Node::Group(hierarchy));
        self.steps.push(Step::Draft(documents));
    }

    /// Whether there is a BLZ or bcolz array, or a column of a table, in a directory.
    fn superchunks(&mut self, directory: &Path) -> bool {
        if !self.may_be(Format::Blz) {
            return false;
        }
        let found = match if_present(self.storage().stat(&directory.join(SIZES))) {
            Ok(Some(_)) => match superchunks(self.storage(), directory, false) {
                // A table: its columns are below.
                Ok(None) => return false,
                found => found,
            },
            Ok(None) => match column(self.storage(), directory) {
                Ok(Some((_, found))) => found.map(Some),
                Ok(None) => return false,
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(error.into()),
        };
        let array =
            found.map(|found| found.map(|found| foreign(directory, found, ArrayFormat::Blz)));
        self.add(directory.to_owned(), array);
        true
    }

    fn zarr3(&self, directory: &Path, path: PathBuf, document: Value) -> Result<Array, NodeError> {
        let (layout, container, twin) = shards(&document, self.config().level)?;
        let source = SourceArray { id: 0, path: directory.to_owned(), layout, container };
        let kept = Kept::new(&document);
        let sharded = is_sharded(&document).then(|| kept.clone());
        let twin = if sharded.is_some() { Kept::new(&twin) } else { kept.clone() };
        let document = Some((path, kept));
        Ok(Array { source, format: ArrayFormat::Zarr3, document, sharded, twin: Some(twin) })
    }

    /// The names in a directory that are meant, and what they are.
    fn each_entry(
        &self,
        directory: &Path,
        is_meant: &dyn Fn(&OsStr) -> bool,
        act: &mut dyn FnMut(&OsStr, Option<FileKind>),
    ) -> Result<(), NodeError> {
        let mut failed = Ok(());
        let visit = &mut |item: crate::store::storage::DirItem<'_>| {
            if is_meant(item.name) {
                match kind_of(self.storage(), directory, &item) {
                    Ok(kind) => act(item.name, kind),
                    Err(error) => {
                        failed = Err(error);
                        return ControlFlow::Break(());
                    }
                }
            }
            ControlFlow::Continue(())
        };
        self.storage().list(directory, 0, visit)?;
        Ok(failed?)
    }
}

/// The layout of an array of Zarr v3, what its files are, and its unsharded twin.
fn shards(
    document: &Value,
    level: Option<usize>,
) -> Result<(ShardedArray, Container, Value), MetadataError> {
    match show(document.clone(), level, Dialect::V3)? {
        Shown::Array(layout, twin) => Ok((*layout, Container::Shards, twin)),
        Shown::AsStored | Shown::Group(_) => match NodeMetadata::parse(document)? {
            NodeMetadata::Array(chain) => {
                let layout = ShardedArray::unsharded(document, chain)?;
                Ok((layout, Container::Chunks, document.clone()))
            }
            NodeMetadata::Group => Err(MetadataError::Missing("codecs")),
        },
    }
}

/// The document at a path, if there is one.
fn document_at(storage: &dyn Storage, path: &Path) -> Result<Option<Value>, NodeError> {
    match if_present(storage.lstat(path))? {
        Some(_) => read_document(storage, path).map(Some),
        None => Ok(None),
    }
}

/// The array of Zarr v2 in a directory: each file is a chunk.
fn zarr2_array(storage: &dyn Storage, directory: &Path, path: PathBuf) -> Result<Array, NodeError> {
    let document = read_document(storage, &path)?;
    let zattrs = document_at(storage, &directory.join(ZATTRS))?;
    let layout = zarr2::layout(&document)?;
    let (layout, twin) = match zarr2::to_zarr3(&document, zattrs.as_ref()) {
        Ok(twin) => {
            let chain = parse_chain(twin.get("codecs"))?;
            (ShardedArray::unsharded(&twin, chain)?, Some(twin))
        }
        Err(NoTwin::Metadata(error)) => return Err(error.into()),
        // Its chunks can be found all the same.
        Err(_) => (layout, None),
    };
    let container = Container::Chunks;
    let source = SourceArray { id: 0, path: directory.to_owned(), layout, container };
    let (format, document) = (ArrayFormat::Zarr2, Some((path, Kept::new(&document))));
    Ok(Array { source, format, document, sharded: None, twin: twin.as_ref().map(Kept::new) })
}

/// An array of the draft of 2022 whose data is in a directory.
fn draft(
    directory: &Path,
    path: PathBuf,
    document: Value,
    level: Option<usize>,
) -> Result<Array, NodeError> {
    let keys = draft2022::keys(&document)?;
    let is_sharded = is_sharded(&document);
    let layout = draft2022::parse(&document)?;
    // Its data type or compressor may have no name in Zarr v3.
    let sharded = draft2022::to_zarr3(&document).ok();
    let twin = sharded.as_ref().map(|sharded| shards(sharded, level)).transpose()?;
    let (container, layout, twin) = match (twin, layout) {
        (Some((layout, container, twin)), _) => (container, layout, Some(twin)),
        (None, Some(layout)) if is_sharded => (Container::Shards, layout, None),
        (None, _) => return Err(MetadataError::Missing("data_type of Zarr v3").into()),
    };
    let layout = ShardedArray { keys, ..layout };
    let source = SourceArray { id: 0, path: directory.to_owned(), layout, container };
    let (format, document) = (ArrayFormat::Draft2022, Some((path, Kept::new(&document))));
    let sharded = sharded.filter(|_| is_sharded).as_ref().map(Kept::new);
    Ok(Array { source, format, document, sharded, twin: twin.as_ref().map(Kept::new) })
}

fn foreign(directory: &Path, found: Foreign, format: ArrayFormat) -> Array {
    let Foreign { array, container, .. } = found;
    let path = directory.to_owned();
    let source = SourceArray { id: 0, path, layout: array.layout, container };
    Array {
        source,
        format,
        document: None,
        sharded: None,
        twin: array.metadata.as_ref().map(Kept::new),
    }
}
