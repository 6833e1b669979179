//! Return of saved chunks to arrays that are not sharded: a mount shows those as they are stored,
//! in files that it passes through.

use std::path::Path;
use std::sync::Arc;

use crate::format::plan::Policy;
use crate::source::{Array, Source};
use crate::store::content::Content;
use crate::store::{Freshness, StagedChunk, StoreError};

/// Unsharded arrays of a source, to which saved chunks may belong.
pub(crate) struct Unsharded<'a> {
    source: &'a Source,
    arrays: Vec<Arc<Array>>,
}

impl<'a> Unsharded<'a> {
    /// Finds the unsharded arrays of a source that are above any of these paths.
    pub(crate) fn above(source: &'a Source, paths: &[&Path]) -> Self {
        let is_above = |array: &Arc<Array>| {
            array.is_unsharded() && paths.iter().any(|path| path.starts_with(&array.source.path))
        };
        Self { source, arrays: source.arrays().filter(is_above).collect() }
    }

    /// Commits a chunk, as it is stored, over what the array holds, and returns once it is durable.
    /// Returns `false` if the path, relative to the source's root, is not that of a chunk.
    pub(crate) fn put(&self, path: &Path, content: Vec<u8>) -> Result<bool, Arc<StoreError>> {
        let found = self.arrays.iter().find_map(|array| {
            let key = path.strip_prefix(&array.source.path).ok()?.to_str()?;
            Some((array, array.source.chunk_of_file(key)?))
        });
        let Some((array, coords)) = found else { return Ok(false) };
        let (store, array) = (&self.source.store, &array.source);
        let base = store.base(array, &coords, Freshness::Again)?;
        let content = Some(Content::Memory(content.into()));
        let chunk = StagedChunk { coords, content, base, maker: None, with: Vec::new() };
        store.commit(array, &[chunk], Policy::default()).into_iter().collect::<Result<(), _>>()?;
        store.finish_commits(array)?;
        Ok(true)
    }
}
