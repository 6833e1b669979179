//! Opening a source: a directory, or a file that is an array by itself.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Map, Value, json};

use super::array::Array;
use super::document::{METADATA_FILE, document_at};
use super::error::NodeError;
use super::unsupported::Unsupported;
use super::walk::{Node, Nodes, Step};
use crate::format::draft2022;
use crate::format::metadata::NodeMetadata;
use crate::format::zarr2::{ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use crate::store::local::LocalStorage;
use crate::store::storage::{Storage, if_present};
use crate::store::{ShardStore, StoreConfig, StoreError};
use crate::text::shown;

/// Bytes of indexes to keep where each shard is looked at once: those of shards inside a shard are
/// asked for by several threads.
const ONE_PASS_CACHE: usize = 16 << 20;

/// What a source is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// An array or a hierarchy of Zarr v3 or v2.
    Zarr,
    /// A hierarchy of the draft of 2022.
    Draft2022,
    /// A Bloscpack file.
    Bloscpack,
    /// BLZ or bcolz arrays.
    Blz,
}

impl Format {
    /// What formats are called.
    pub const NAMES: [(&str, Self); 4] = [
        ("zarr", Self::Zarr),
        ("draft2022", Self::Draft2022),
        ("bloscpack", Self::Bloscpack),
        ("blz", Self::Blz),
    ];
}

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

/// What commands work on: a directory, or a file that is an array by itself.
pub struct Source {
    /// As the user called it.
    pub name: PathBuf,
    /// Its files.
    pub storage: Arc<dyn Storage>,
    /// Its shards.
    pub store: ShardStore,
    pub(super) config: OpenConfig,
    /// Its name in `storage`, of a file that is an array by itself.
    file: Option<OsString>,
    /// What the next array is told by.
    next_id: AtomicU64,
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

    /// What the next array is told by.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// What is in it, in the order of the paths, as it is found.
    pub fn nodes(&self) -> Nodes<'_> {
        let first = match &self.file {
            Some(name) => Step::File(name.clone()),
            None => Step::Directory(PathBuf::new()),
        };
        Nodes::new(self, first)
    }

    /// Its arrays, those that can be used.
    pub fn arrays(&self) -> impl Iterator<Item = Arc<Array>> {
        self.nodes().filter_map(|node| match node {
            Node::Array(array) => Some(array),
            _ => None,
        })
    }
}
