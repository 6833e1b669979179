//! Resizing an array.
//!
//! The metadata changes first, also where groups above have it, then chunks outside the new shape
//! are removed. If interrupted in between, these chunks exist but are hidden; repeating the same
//! resize finds them, even beyond the shape that the metadata has by then, and removes them. The
//! opposite order would for a moment show fill values for data that is still within the array.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::consolidated::{Change, update_above};
use super::error::{ArrayError, io_error};
use super::node::{check_finished, document_in};
use super::stored::{Read, Stored};
use crate::format::Coords;
use crate::format::error::MetadataError;
use crate::format::grid::Edges;
use crate::format::json;
use crate::format::metadata::{ArrayMetadata, NodeMetadata};
use crate::format::plan::Policy;
use crate::format::sharding::ShardedArray;
use crate::source::{METADATA_FILE, is_of_other_format};
use crate::store::content::Content;
use crate::store::formats::{indexed, unsharded};
use crate::store::local::LocalStorage;
use crate::store::put::put_file;
use crate::store::storage::Storage;
use crate::store::{Outside, ShardStore, SourceArray, StoreConfig, StoreError};
use crate::tools::objects::remove;

/// Place of an array that is to be resized.
enum Home {
    Directory(PathBuf),
    /// In a store, with the document as it was read.
    Stored(Box<(Stored, Read)>),
}

impl Home {
    fn path(&self) -> &Path {
        match self {
            Self::Directory(path) => path,
            Self::Stored(stored) => &stored.0.name,
        }
    }

    /// Puts the metadata document in the place of the one that was read.
    fn put_document(&mut self, storage: &dyn Storage, document: &Value) -> io::Result<()> {
        match self {
            Self::Directory(_) => {
                let content = Content::Memory(Arc::new(json::to_text(document)));
                put_file(storage.writable()?, Path::new(METADATA_FILE), &content)
            }
            Self::Stored(stored) => {
                let (stored, read) = &mut **stored;
                read.document.clone_from(document);
                stored.replace(read)
            }
        }
    }

    fn update_above(&self, change: Change<'_>) -> Result<(), ArrayError> {
        match self {
            Self::Directory(path) => {
                update_above(&path.canonicalize().map_err(io_error(path))?, change)
            }
            Self::Stored(stored) => stored.0.update_above(change),
        }
    }
}

/// An array that is to be resized.
pub(crate) struct Resize {
    home: Home,
    storage: Arc<dyn Storage>,
    store: ShardStore,
    document: Value,
    /// Shape before the resize, in elements.
    before: Coords,
    after: Coords,
    /// Number of chunks along each axis after the resize.
    grid: Coords,
    /// The array with all of its shards, including those beyond its shape; `None` if nothing is to
    /// be removed.
    whole: Option<SourceArray>,
}

/// Result of a resize, or of a dry run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resized {
    /// Extents before the resize, in elements.
    pub before: Coords,
    /// Extents after the resize, in elements.
    pub after: Coords,
    /// Chunks, and whole shards, outside the new shape that were removed.
    pub removed: Outside,
}

impl Resize {
    /// Prepares to give the array in `directory` the extents `shape`. Chunks outside are to be
    /// removed, unless `keep_outside` is set or every extent grows.
    pub(crate) fn find(
        directory: &Path,
        shape: &[u64],
        keep_outside: bool,
    ) -> Result<Self, ArrayError> {
        let path = directory.to_owned();
        check_finished(directory)?;
        let document = match document_in(directory)? {
            Some(document) => document,
            None if is_of_other_format(directory) => return Err(ArrayError::OtherFormat(path)),
            None if !directory.is_dir() => return Err(ArrayError::Absent(path)),
            None => return Err(ArrayError::NotANode(path)),
        };
        let storage = LocalStorage::open_root(directory, Arc::default());
        let storage: Arc<dyn Storage> = Arc::new(storage.map_err(io_error(directory))?);
        let store = ShardStore::new(Arc::clone(&storage), StoreConfig::default(), Arc::default());
        Self::of(Home::Directory(path), (storage, store), document, (shape, keep_outside))
    }

    /// The same for an array in a store of objects.
    pub(crate) fn find_stored(
        stored: Stored,
        shape: &[u64],
        keep_outside: bool,
    ) -> Result<Self, ArrayError> {
        let read = stored.document()?;
        if !keep_outside {
            // What could not be listed would stay, and be seen again when the array grows.
            stored.check_lists()?;
        }
        let document = read.document.clone();
        let storage = Arc::clone(&stored.storage) as Arc<dyn Storage>;
        let config = stored.remote.reading();
        let store = ShardStore::new(Arc::clone(&storage), config, Arc::default());
        let home = Home::Stored(Box::new((stored, read)));
        Self::of(home, (storage, store), document, (shape, keep_outside))
    }

    fn of(
        home: Home,
        (storage, store): (Arc<dyn Storage>, ShardStore),
        document: Value,
        (shape, keep_outside): (&[u64], bool),
    ) -> Result<Self, ArrayError> {
        let path = home.path().to_owned();
        let metadata = |error: MetadataError| {
            let (path, error) = (path.join(METADATA_FILE), error.into());
            ArrayError::Metadata { path, error }
        };
        if let NodeMetadata::Group = NodeMetadata::parse(&document).map_err(metadata)? {
            return Err(ArrayError::Group(path));
        }
        let array = ArrayMetadata::parse(&document).map_err(metadata)?;
        let edge = |edges: &Edges| match edges {
            Edges::Equal(edge) => Some(*edge),
            Edges::Runs(_) => None,
        };
        let edges: Option<Coords> = array.grid.iter().map(edge).collect();
        let Some(edges) = edges else { return Err(ArrayError::Irregular(path)) };
        let (found, rank) = (shape.len(), array.shape.len());
        if found != rank {
            return Err(ArrayError::Rank { path, found, rank });
        }
        let now = with_shape(&document, shape).map_err(metadata)?;
        let grows = shape != array.shape && shape.iter().zip(&array.shape).all(|(n, was)| n >= was);
        let grid = now.layout.chunk_grid();
        let whole = if keep_outside || grows {
            None
        } else {
            let reach = store.reach(&now);
            let axes = reach.iter().zip(&edges).zip(array.shape.iter().zip(shape));
            let covered = axes.map(|((shards, edge), (was, is))| {
                let reached = shards.checked_mul(*edge)?;
                Some(reached.max(*was).max(*is))
            });
            let covered: Option<Coords> = covered.collect();
            let limit = MetadataError::Limit { what: "elements along an axis", limit: u64::MAX };
            let covered = covered.ok_or(limit).map_err(metadata)?;
            Some(with_shape(&document, &covered).map_err(metadata)?)
        };
        let (before, after) = (array.shape, shape.to_vec());
        Ok(Self { home, storage, store, document, before, after, grid, whole })
    }

    /// Returns what [`Self::run`] would do, without changing anything.
    pub(crate) fn look(&self) -> Result<Resized, ArrayError> {
        let removed = match &self.whole {
            None => Outside::default(),
            Some(array) => self.store.find_outside(array, &self.grid).map_err(Arc::new)?,
        };
        let (before, after) = (self.before.clone(), self.after.clone());
        Ok(Resized { before, after, removed })
    }

    /// Resizes the array and returns once the new state is durable.
    pub(crate) fn run(mut self) -> Result<Resized, ArrayError> {
        if let Home::Stored(stored) = &self.home {
            stored.0.check_writable()?;
        }
        let removable = self.whole.as_ref().filter(|array| !array.is_writable());
        if removable.is_some() && self.look()?.removed.chunks > 0 {
            return Err(ArrayError::ReadOnly(self.home.path().to_owned()));
        }
        if self.before != self.after {
            self.document["shape"] = json!(self.after);
            let replaced = self.home.put_document(&*self.storage, &self.document);
            replaced.map_err(io_error(&self.home.path().join(METADATA_FILE)))?;
        }
        // An interrupted resize to the same shape may not have come to it.
        let consolidated = self.home.update_above(Change::Changed(&self.document));
        let mut removed = Outside::default();
        if let Some(array) = &self.whole {
            let done = self.remove_outside(array);
            // A journal that is still needed is kept.
            let finished = self.store.finish_commits(array).map_err(Arc::new);
            let left = |error| ArrayError::Left { path: self.home.path().to_owned(), error };
            removed = done.map_err(left)?;
            finished.map_err(left)?;
        }
        consolidated?;
        Ok(Resized { before: self.before, after: self.after, removed })
    }

    /// Removes the chunks outside the new shape.
    fn remove_outside(&self, array: &SourceArray) -> Result<Outside, Arc<StoreError>> {
        let (store, grid) = (&self.store, &self.grid);
        match &self.home {
            Home::Directory(_) => {
                let storage = store.posix(array)?;
                store.remove_outside(Some(storage), array, grid, Policy::Auto, &|_| true)
            }
            Home::Stored(_) if array.format.has_index() => {
                store.remove_outside(None, array, grid, Policy::Auto, &|_| true)
            }
            // Objects that are a chunk each are no shards, which commits replace.
            Home::Stored(stored) => {
                let outside = store.find_outside(array, grid)?;
                store.each_shard(array, &mut |chunk| -> Result<(), Arc<StoreError>> {
                    if chunk.iter().zip(grid).all(|(at, extent)| at < extent) {
                        return Ok(());
                    }
                    let path = array.shard_path(chunk);
                    let removed = remove(&stored.0.storage, &path);
                    removed.map_err(|error| Arc::new(StoreError::Io { path, error }))
                })?;
                Ok(outside)
            }
        }
    }
}

/// Returns the array with other extents.
fn with_shape(document: &Value, shape: &[u64]) -> Result<SourceArray, MetadataError> {
    let mut document = document.clone();
    document["shape"] = json!(shape);
    let NodeMetadata::Array(chain) = NodeMetadata::parse(&document)? else {
        return Err(MetadataError::invalid("node_type", "\"array\""));
    };
    let (layout, format) = match ShardedArray::parse(&document, &chain, None)? {
        Some(layout) => (layout, indexed()),
        None => (ShardedArray::unsharded(&document, chain)?, unsharded()),
    };
    Ok(SourceArray { id: 0, path: PathBuf::new(), layout, format })
}
