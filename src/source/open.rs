//! Opening a source: a directory, or a file that is an array by itself.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use serde_json::{Map, Value, json};

use super::array::Array;
use super::config::{Format, OpenConfig, Probe, Unsharded};
use super::document::{METADATA_FILE, document_at};
use super::error::{NodeError, unfinished};
use super::found::FoundKind;
use super::links::{Linked, OutwardLinks};
use super::object::{NoObject, ObjectSource};
use super::unfinished::unfinished_by;
use super::unsupported::Unsupported;
use super::walk::{Node, Nodes};
use crate::format::draft2022;
use crate::format::metadata::NodeMetadata;
use crate::format::zarr2::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::store::local::LocalStorage;
use crate::store::remote::{Place, RemoteOptions, RemoteStorage, SetupError, SourceUrl};
use crate::store::storage::{Storage, if_present};
use crate::store::work::WORK_DIRECTORY;
use crate::store::zip::ZipStorage;
use crate::store::{ShardStore, StoreConfig, StoreError};
use crate::text::{count, shown, without_secrets};

/// Index cache size in bytes for a single pass over the shards. The cache is not empty because
/// several threads request the indexes of shards nested in one shard.
const ONE_PASS_CACHE: usize = 16 << 20;

/// An open source: a directory, or a file that is an array by itself.
pub struct Source {
    /// Path as given by the user.
    pub name: PathBuf,
    /// Storage of the source's files.
    pub storage: Arc<dyn Storage>,
    /// Store that reads the source's shards.
    pub store: ShardStore,
    config: OpenConfig,
    /// Name in `storage` if the source is a file that is an array by itself.
    file: Option<OsString>,
    /// `true` if the files are entries of an archive.
    is_archive: bool,
    /// Identifier of the next array.
    next_id: AtomicU64,
    links: OutwardLinks,
}

/// Error that prevents a source from being opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The source cannot be read.
    #[error("{}: {error}", shown(.path))]
    Io {
        /// Path of the source or of a file in it.
        path: PathBuf,
        /// The error.
        #[source]
        error: std::io::Error,
    },
    /// The store on the network cannot be reached.
    #[error("{}: {error}", shown(.path))]
    Setup {
        /// The URL.
        path: PathBuf,
        /// The error.
        #[source]
        error: Box<SetupError>,
    },
    /// No array of the source has the requested level of sharding.
    #[error("{}: {error}", shown(.path))]
    NoLevel {
        /// Path of the source.
        path: PathBuf,
        /// The error.
        #[source]
        error: NoLevel,
    },
    /// The source contains no known node.
    #[error("{}: neither an array nor a hierarchy of arrays: there is no metadata in it", shown(.0))]
    NoNode(PathBuf),
    /// The source is a copy that was not completed; holds the command that has begun it.
    #[error("{}: {}", shown(.path), unfinished(.by))]
    Unfinished {
        /// Path of the source.
        path: PathBuf,
        /// Command that has begun the copy.
        by: String,
    },
    /// The path is something that shardfs does not read.
    #[error("{}: {what}", shown(.path))]
    Unsupported {
        /// Path of the source.
        path: PathBuf,
        /// Kind of thing at the path.
        #[source]
        what: Unsupported,
    },
}

/// No array of a source has the requested level of sharding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("level {level} of sharding: {}", match .most {
    0 => "no array here is sharded".to_owned(),
    most => format!("no array here has more than {}", count(most, "level")),
})]
pub struct NoLevel {
    /// Level that was requested.
    pub level: usize,
    /// Number of levels of the array with most.
    pub most: usize,
}

/// Documents of a node, with their names.
pub type Documents = Vec<(&'static str, Value)>;

impl Source {
    /// Opens a directory or a file as a source.
    pub fn open(path: &Path, config: OpenConfig) -> Result<Self, OpenError> {
        Self::open_place(path, config, &RemoteOptions::default())
    }

    /// Opens a directory, a file or a URL as a source.
    pub fn open_place(
        path: &Path,
        config: OpenConfig,
        remote: &RemoteOptions,
    ) -> Result<Self, OpenError> {
        let bad = |error| {
            let what = Unsupported::Url(error);
            OpenError::Unsupported { path: without_secrets(path), what }
        };
        match Place::of(path).map_err(bad)? {
            Place::Path(path) => Self::open_path(&path, config),
            Place::Url(url) => Self::open_url(&url, config, remote),
        }
    }

    /// Opens a source on the network.
    fn open_url(
        url: &SourceUrl,
        config: OpenConfig,
        remote: &RemoteOptions,
    ) -> Result<Self, OpenError> {
        let name = PathBuf::from(url.to_string());
        let failed = |error| OpenError::Io { path: name.clone(), error };
        let stats = Arc::default();
        let storage = RemoteStorage::new(url, remote, Arc::clone(&stats));
        let storage = storage
            .map_err(|error| OpenError::Setup { path: name.clone(), error: Box::new(error) })?;
        let storage = Arc::new(storage);
        storage.list(Path::new(""), 0, &mut |_| ControlFlow::Break(())).map_err(failed)?;
        if let Some(by) = unfinished_by(&*storage, Path::new("")) {
            return Err(OpenError::Unfinished { path: name, by });
        }
        let how = StoreConfig { pad_edge: config.pad_edge, ..remote.reading() };
        let open = |storage: Arc<dyn Storage>, file| {
            let store = ShardStore::new(Arc::clone(&storage), how.clone(), Arc::clone(&stats));
            let (links, next_id) = (OutwardLinks::default(), AtomicU64::new(0));
            let name = name.clone();
            let is_archive = false;
            Self { name, storage, store, config, file, is_archive, next_id, links }.checked()
        };
        let found = open(Arc::clone(&storage) as Arc<dyn Storage>, None);
        let Err(OpenError::NoNode(path)) = found else { return found };
        match ObjectSource::find(&storage, url, config.format) {
            Ok(Some(object)) => open(object.storage, Some(object.file)),
            Ok(None) => Err(OpenError::NoNode(path)),
            Err(NoObject::Io(error)) => Err(OpenError::Io { path, error }),
            Err(NoObject::Unsupported(what)) => Err(OpenError::Unsupported { path, what }),
        }
    }

    /// Returns the source, if there is a node in it that can be of the format that it is read as.
    fn checked(self) -> Result<Self, OpenError> {
        let name = || self.name.clone();
        let failed = |error| OpenError::Io { path: name(), error };
        let is_other = !self.is_of_its_format().map_err(failed)?;
        match (self.config.format, self.first_node()) {
            (_, None) => Err(OpenError::NoNode(name())),
            (Some(format), Some(_)) if is_other => {
                let is = "something else".to_owned();
                let what = Unsupported::OtherFormat { named: format.name(), is };
                Err(OpenError::Unsupported { path: name(), what })
            }
            (_, Some(_)) => Ok(self),
        }
    }

    fn open_path(path: &Path, config: OpenConfig) -> Result<Self, OpenError> {
        let failed = |error| OpenError::Io { path: path.to_owned(), error };
        let unsupported = |what| OpenError::Unsupported { path: path.to_owned(), what };
        if let Some(what) = Unsupported::of_path(path, config.format) {
            return Err(unsupported(what));
        }
        let whole = path.canonicalize().map_err(failed)?;
        let (root, file) = match (whole.parent(), whole.file_name()) {
            (Some(directory), Some(name)) if whole.is_file() => (directory, Some(name)),
            _ => (whole.as_path(), None),
        };
        let storage = LocalStorage::open_root(root, Arc::default()).map_err(failed)?;
        let archive = file.map(|file| ZipStorage::find(&storage, Path::new(file)));
        let archive = archive.transpose().map_err(failed)?.flatten();
        let is_archive = archive.is_some();
        let file = file.filter(|_| !is_archive);
        let storage: Arc<dyn Storage> = match archive {
            Some(archive) => Arc::new(archive),
            None => Arc::new(storage),
        };
        if file.is_none() {
            storage.list(Path::new(""), 0, &mut |_| ControlFlow::Break(())).map_err(failed)?;
            if let Some(by) = unfinished_by(&*storage, Path::new("")) {
                return Err(OpenError::Unfinished { path: path.to_owned(), by });
            }
        }
        let how = StoreConfig { pad_edge: config.pad_edge, ..StoreConfig::default() };
        let store = ShardStore::new(Arc::clone(&storage), how, Arc::default());
        let (name, file) = (path.to_owned(), file.map(OsStr::to_owned));
        let links = if is_archive { OutwardLinks::default() } else { OutwardLinks::of(root) };
        let next_id = AtomicU64::new(0);
        let source = Self { name, storage, store, config, file, is_archive, next_id, links };
        let is_other = !source.is_of_its_format().map_err(failed)?;
        match (config.format, source.first_node()) {
            (Some(format), found) if is_other || found.is_none() => {
                Err(unsupported(Self::of_other_format(path, format)))
            }
            (_, Some(_)) => Ok(source),
            (_, None) => {
                let what = Unsupported::of_directory(path);
                Err(what.map_or_else(|| OpenError::NoNode(path.to_owned()), unsupported))
            }
        }
    }

    /// Returns whether the source's files are entries of an archive: none of them has a path of its own.
    pub fn is_archive(&self) -> bool {
        self.is_archive
    }

    /// Returns an error if the source has arrays, but none with the level of sharding whose chunks
    /// are wanted. Arrays with fewer levels show their innermost chunks.
    pub fn check_level(&self) -> Result<(), NoLevel> {
        let Some(level) = self.config.level.filter(|level| *level > 0) else { return Ok(()) };
        let mut most = None;
        for array in self.arrays() {
            // An array without shards has the layout of one whose shards hold a chunk each.
            let levels = if array.is_unsharded() { 0 } else { array.source.layout.levels.len() };
            if levels >= level {
                return Ok(());
            }
            most = most.max(Some(levels));
        }
        most.map_or(Ok(()), |most| Err(NoLevel { level, most }))
    }

    /// Describes what the source is, with the name of its format.
    fn description(&self) -> String {
        let Some(array) = self.arrays().next() else {
            return "a group without usable arrays".to_owned();
        };
        let of = match array.source.path == Path::new("") {
            true => "an array",
            false => "a directory with arrays",
        };
        format!("{of} ({}), which --format {} reads", array.format_name(), array.format.of().name())
    }

    /// Describes what is at a path as something of another format than the one that was named.
    pub fn of_other_format(path: &Path, named: Format) -> Unsupported {
        let found = Self::open(path, OpenConfig::default());
        let is = found.map_or("nothing that shardfs knows".to_owned(), |it| it.description());
        Unsupported::OtherFormat { named: named.name(), is }
    }

    /// Returns whether the source is a file that is an array by itself.
    pub fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Creates a source from a storage and a store over it.
    pub fn over(name: &Path, storage: Arc<dyn Storage>, store: ShardStore) -> Self {
        let (name, config) = (name.to_owned(), OpenConfig::default());
        let (next_id, links) = (AtomicU64::new(0), OutwardLinks::default());
        Self { name, storage, store, config, file: None, is_archive: false, next_id, links }
    }

    /// Replaces the store by one with a small cache, for callers that visit each shard once.
    pub fn for_one_pass(mut self) -> Self {
        let config = StoreConfig { cache_size: ONE_PASS_CACHE, ..self.store.config().clone() };
        self.store = ShardStore::new(Arc::clone(&self.storage), config, Arc::default());
        self
    }

    /// Returns the Zarr v3 document of a node as stored; `None` if it has none.
    pub fn document(&self, directory: &Path) -> Result<Option<Value>, NodeError> {
        document_at(&*self.storage, &directory.join(METADATA_FILE))
    }

    /// Returns the metadata of a group in Zarr v3 form, including its attributes. A group without a
    /// document of its own has no attributes.
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
        } else if if_present(storage.lstat(&directory.join(ZGROUP)))?.is_some() {
            return super::zarr2::group(storage, directory, &directory.join(ZGROUP));
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

    /// Returns the Zarr v2 documents of a node as stored, with their names; `None` if it is not a
    /// Zarr v2 node.
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

    /// Returns the total length in bytes of the files that hold an array's chunks. A file whose
    /// attributes cannot be read counts as 0; so does the whole array if its shards cannot be
    /// listed.
    pub fn nbytes(&self, array: &Array) -> u64 {
        let mut sum = 0;
        let counted = self.store.each_shard(&array.source, &mut |shard| {
            let stat = self.storage.stat(&array.source.shard_path(shard));
            sum += stat.map_or(0, |stat| stat.size);
            Ok::<(), StoreError>(())
        });
        counted.map_or(0, |()| sum)
    }

    /// Iterates over the nodes of the source in path order, as they are found.
    pub fn nodes(&self) -> Nodes<'_> {
        Nodes::new(&*self.storage, self.probe(), &self.next_id, &self.links)
    }

    /// Returns where a path leads through symbolic links, which [`Self::nodes`] does not follow.
    pub fn follow(&self, path: &Path) -> Linked {
        self.links.follow(path)
    }

    /// Returns the first node, if there is any. An empty work directory, which a copy or a commit has
    /// left that did not get further, makes nothing a source.
    fn first_node(&self) -> Option<Node> {
        self.nodes().find(|node| match node {
            Node::Journal(directory) => {
                let mut is_empty = true;
                let listed = self.storage.list(&directory.join(WORK_DIRECTORY), 0, &mut |_| {
                    is_empty = false;
                    ControlFlow::Break(())
                });
                listed.is_err() || !is_empty
            }
            _ => true,
        })
    }

    /// Returns whether the root can be of the format that it is read as. What cannot be read of it
    /// is reported as a node that is bad.
    fn is_of_its_format(&self) -> std::io::Result<bool> {
        let (probe, storage) = (self.probe(), &*self.storage);
        let is_apart = || {
            let path = Path::new(METADATA_FILE);
            let root = probe.node(storage, Path::new(""), path, storage.stat(path));
            root.map_or(true, |root| matches!(root.kind, FoundKind::Apart))
        };
        // Only one format depends on it: the root is not read for the others.
        let asks = self.config.format == Some(Format::Draft2022) && self.file.is_none();
        probe.accepts_root(storage, asks && is_apart())
    }

    fn probe(&self) -> Probe {
        let OpenConfig { level, format, .. } = self.config;
        Probe {
            file: self.file.clone(),
            format,
            level,
            unsharded: Unsharded::Decoded,
            grows: false,
            keeps_stored: true,
        }
    }

    /// Iterates over the usable arrays of the source.
    pub fn arrays(&self) -> impl Iterator<Item = Arc<Array>> {
        self.nodes().filter_map(|node| match node {
            Node::Array(array) => Some(array),
            _ => None,
        })
    }
}
