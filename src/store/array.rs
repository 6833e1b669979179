//! Array in a source: where its shards are, and in which format.

use std::path::PathBuf;
use std::sync::Arc;

use super::content::Content;
use super::error::{StoreError, io_error};
use super::formats::{ShardFormat, shard_coords};
use super::loaded::ShardId;
use super::work::SHARD_LOCK;
use crate::format::Coords;
use crate::format::sharding::ShardedArray;

/// Array in a source.
#[derive(Debug)]
pub struct SourceArray {
    /// Number of the array, unique in its mount.
    pub id: u64,
    /// Directory of the array, relative to the source's root.
    pub path: PathBuf,
    /// Layout of its chunks in shards.
    pub layout: ShardedArray,
    /// Format of its shards.
    pub format: Arc<dyn ShardFormat>,
}

impl SourceArray {
    /// Returns the path of a shard, relative to the source's root.
    pub fn shard_path(&self, shard: &[u64]) -> PathBuf {
        self.path.join(self.shard_name(shard))
    }

    /// Returns the path of the shard of a chunk, relative to the source's root.
    pub fn shard_path_of(&self, coords: &[u64]) -> PathBuf {
        self.shard_path(&self.layout.shard_of(coords))
    }

    /// Returns the path of a shard, relative to the array's directory.
    pub(super) fn shard_name(&self, shard: &[u64]) -> PathBuf {
        self.format.shard_name(&self.layout, shard)
    }

    /// Returns whether `name` is the path of a shard, relative to the array's directory, in the
    /// spelling that commits use.
    pub(crate) fn is_shard_name(&self, name: &str) -> bool {
        self.format.is_shard_name(Some(&self.layout), name)
    }

    /// Returns whether `name` is the path of the lock file of a shard, relative to the array's directory: a commit, or another
    /// writer, has it there for a moment.
    pub(crate) fn is_lock_name(&self, name: &str) -> bool {
        name.strip_suffix(SHARD_LOCK).is_some_and(|shard| self.is_shard_name(shard))
    }

    /// Returns the coordinates of the chunk that the file with this name, relative to the array's
    /// directory, is. `None` if it is none, and where files are more than a chunk.
    pub fn chunk_of_file(&self, name: &str) -> Option<Coords> {
        let coords = shard_coords(&self.layout, name).filter(|_| self.format.is_bare())?;
        let is_within =
            coords.iter().zip(self.layout.chunk_grid()).all(|(at, extent)| *at < extent);
        is_within.then_some(coords)
    }

    /// Returns the identifier of a shard.
    pub(super) fn shard_id(&self, shard: &[u64]) -> ShardId {
        ShardId::new(self.id, &self.layout, shard)
    }

    /// Returns whether chunks of the array can be committed.
    pub fn is_writable(&self) -> bool {
        self.format.is_writable(&self.layout)
    }

    /// Returns whether some bytes that were written to the name of a chunk are a whole shard, as whoever knows the array
    /// as sharded writes it to the shard's name, which may be that of a chunk as well.
    pub fn is_shard(&self, name: &[u64], content: &Content) -> std::io::Result<bool> {
        self.format.is_shard(&self.layout, name, content)
    }

    /// Checks that some bytes can be a chunk of the array, as far as the bytes alone show.
    ///
    /// # Errors
    /// The reason why they cannot, or an I/O error.
    pub fn check_chunk(&self, coords: &[u64], content: &Content) -> Result<(), StoreError> {
        let checked = self.format.check(content);
        if let Ok(Ok(_)) = checked {
            return Ok(());
        }
        let location = self.layout.locate(coords);
        let shard = self.shard_path(&location.shard);
        match checked.map_err(io_error(&shard))? {
            Ok(_) => Ok(()),
            Err(why) => {
                let position = location.positions.concat();
                Err(StoreError::Refused { shard, position, why })
            }
        }
    }
}
