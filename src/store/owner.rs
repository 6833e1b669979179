//! Owners of work directories: the shards that a record or a note in one may name.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::SourceArray;
use super::blob::bytes_of;
use super::error::Foreign;
use super::formats::{ShardFormat, any_file};
use super::storage::StorageFile;
use crate::format::index::ByteRange;
use crate::format::journal::ShardRecord;
use crate::format::sharding::ShardedArray;

/// Owner of a work directory. The contents of the directory are used only if they fit the owner.
#[derive(Debug, Clone, Copy)]
pub enum Owner<'a> {
    /// An array.
    Array(&'a SourceArray),
    /// A directory without the metadata of an array: it may hold files that are one each.
    Directory(&'a Path),
}

impl<'a> Owner<'a> {
    /// Returns the directory that holds the work directory.
    pub fn path(self) -> &'a Path {
        match self {
            Self::Array(array) => &array.path,
            Self::Directory(path) => path,
        }
    }

    /// Returns the array, if its shards have keys.
    pub fn keyed(self) -> Option<&'a SourceArray> {
        match self {
            Self::Array(array) if array.format.has_keys() => Some(array),
            _ => None,
        }
    }

    /// Returns the format of its shards, and their layout if there is metadata of an array.
    fn shards(self) -> (&'a dyn ShardFormat, Option<&'a ShardedArray>) {
        match self {
            Self::Array(array) => (&*array.format, Some(&array.layout)),
            Self::Directory(_) => (any_file(), None),
        }
    }

    /// Returns the path of the shard with this name in the array's directory.
    ///
    /// # Errors
    /// The reason why there can be no such shard.
    pub fn shard_path(self, key: &[u8]) -> Result<PathBuf, Foreign> {
        let key = std::str::from_utf8(key).map_err(|_| Foreign::NotText)?;
        let (format, layout) = self.shards();
        match (format.is_shard_name(layout, key), self) {
            (true, _) => Ok(self.path().join(key)),
            (false, Self::Array(_)) => Err(Foreign::NoShard),
            (false, Self::Directory(_)) => Err(Foreign::NoArray),
        }
    }

    /// Returns whether `bytes`, read at the range that a record of the shard names, are an index of
    /// the shard in a file of that length.
    fn is_index(self, record: &ShardRecord, length: u64, range: ByteRange, bytes: &[u8]) -> bool {
        let (format, layout) = self.shards();
        format.is_index(layout, &String::from_utf8_lossy(&record.key), length, range, bytes)
    }

    /// Returns whether the old index that a record restores is one of the shard.
    pub fn is_old_index(self, record: &ShardRecord, bytes: &[u8]) -> bool {
        self.is_index(record, record.old_length, record.old_index.range, bytes)
    }

    /// Returns whether a file, in which everything of a record was written, holds an index of the
    /// shard.
    pub fn has_new_index(
        self,
        file: &dyn StorageFile,
        record: &ShardRecord,
    ) -> std::io::Result<bool> {
        let (format, layout) = self.shards();
        let key = String::from_utf8_lossy(&record.key);
        match format.index_range(layout, &key, record.length) {
            Some(range) if range.nbytes <= record.length => {
                let bytes = bytes_of(file, range)?;
                Ok(self.is_index(record, record.length, range, &bytes))
            }
            _ => Ok(false),
        }
    }
}

/// Returns a key in the form shown in messages.
pub fn shown_key(key: &[u8]) -> String {
    const MOST: usize = 200;
    let text: Cow<'_, str> = String::from_utf8_lossy(&key[..key.len().min(MOST)]);
    if key.len() > MOST { text.into_owned() + "..." } else { text.into_owned() }
}
