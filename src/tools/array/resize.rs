//! Resizing an array.
//!
//! The metadata changes first, then chunks that lie outside are removed. Interrupted in between, they
//! are there and hidden; the same resize done again finds them, also beyond what the metadata says by
//! then, and removes them. The other order would for a moment show fill values for data that the array
//! still has.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};

use super::{ArrayError, document_in, io_error, is_of_other_format};
use crate::format::Coords;
use crate::format::error::MetadataError;
use crate::format::grid::Edges;
use crate::format::json;
use crate::format::metadata::{ArrayMetadata, NodeMetadata};
use crate::format::plan::Policy;
use crate::format::sharding::ShardedArray;
use crate::source::METADATA_FILE;
use crate::store::content::Content;
use crate::store::local::LocalStorage;
use crate::store::put::put_file;
use crate::store::storage::Storage;
use crate::store::{Container, Outside, ShardStore, SourceArray, StoreConfig};

/// An array that is to be resized.
pub struct Resize {
    path: PathBuf,
    storage: Arc<dyn Storage>,
    store: ShardStore,
    document: Value,
    /// Its shape before and after.
    before: Coords,
    after: Coords,
    /// Chunks along each axis afterwards.
    grid: Coords,
    /// The array with all of its shards, those that its shape does not reach included; None if nothing
    /// is to be removed.
    whole: Option<SourceArray>,
}

/// What was done, or would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resized {
    /// Extents in elements before.
    pub before: Coords,
    /// Extents in elements now.
    pub after: Coords,
    /// What lay outside and was removed.
    pub removed: Outside,
}

impl Resize {
    /// Looks at the array in `directory`, to give it the extents `shape`. Chunks outside go, unless they
    /// are to be kept or every extent grows.
    pub fn find(directory: &Path, shape: &[u64], keep_outside: bool) -> Result<Self, ArrayError> {
        let path = directory.to_owned();
        let metadata = |error| ArrayError::Metadata { path: path.join(METADATA_FILE), error };
        let document = match document_in(directory)? {
            Some(document) => document,
            None if is_of_other_format(directory) => return Err(ArrayError::OtherFormat(path)),
            None if !directory.is_dir() => return Err(ArrayError::Absent(path)),
            None => return Err(ArrayError::NotANode(path)),
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
        let storage = LocalStorage::open_root(directory, Arc::default());
        let storage: Arc<dyn Storage> = Arc::new(storage.map_err(io_error(directory))?);
        let store = ShardStore::new(Arc::clone(&storage), StoreConfig::default(), Arc::default());
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
        Ok(Self { path, storage, store, document, before, after, grid, whole })
    }

    /// What would be done.
    pub fn look(&self) -> Result<Resized, ArrayError> {
        let removed = match &self.whole {
            None => Outside::default(),
            Some(array) => self.store.find_outside(array, &self.grid).map_err(Arc::new)?,
        };
        let (before, after) = (self.before.clone(), self.after.clone());
        Ok(Resized { before, after, removed })
    }

    /// Resizes it and returns once that is safe.
    pub fn run(mut self) -> Result<Resized, ArrayError> {
        let removable = self.whole.as_ref().filter(|array| !ShardStore::is_writable(array));
        if removable.is_some() && self.look()?.removed.chunks > 0 {
            return Err(ArrayError::ReadOnly(self.path));
        }
        if self.before != self.after {
            self.document["shape"] = json!(self.after);
            let content = Content::Memory(Arc::new(json::to_text(&self.document)));
            let name = Path::new(METADATA_FILE);
            let replaced = put_file(&*self.storage, name, &content);
            replaced.map_err(io_error(&self.path.join(name)))?;
        }
        let mut removed = Outside::default();
        if let Some(array) = &self.whole {
            let done = self.store.remove_outside(array, &self.grid, Policy::Auto);
            // A journal that somebody needs stays.
            let finished = self.store.finish_commits(array).map_err(Arc::new);
            let left = |error| ArrayError::Left { path: self.path.clone(), error };
            removed = done.map_err(left)?;
            finished.map_err(left)?;
        }
        Ok(Resized { before: self.before, after: self.after, removed })
    }
}

/// The array as it would be with other extents.
fn with_shape(document: &Value, shape: &[u64]) -> Result<SourceArray, MetadataError> {
    let mut document = document.clone();
    document["shape"] = json!(shape);
    let NodeMetadata::Array(chain) = NodeMetadata::parse(&document)? else {
        return Err(MetadataError::invalid("node_type", "\"array\""));
    };
    let (layout, container) = match ShardedArray::parse(&document, &chain, None)? {
        Some(layout) => (layout, Container::Shards),
        None => (ShardedArray::unsharded(&document, chain)?, Container::Chunks),
    };
    Ok(SourceArray { id: 0, path: PathBuf::new(), layout, container })
}
