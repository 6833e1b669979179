//! Owners of work directories: the shards that a record or a note in one may name.

use std::borrow::Cow;
use std::path::{Component, Path, PathBuf};

use super::storage::StorageFile;
use super::work::WORK_DIRECTORY;
use super::{Container, SourceArray};
use crate::format::Coords;
use crate::format::bloscpack::{HEADER_BYTES, Header};
use crate::format::index::{ByteRange, ShardIndex, product};
use crate::format::journal::ShardRecord;
use crate::store::blob::bytes_of;

/// Owner of a work directory. The contents of the directory are used only if they fit the owner.
#[derive(Debug, Clone, Copy)]
pub enum Owner<'a> {
    /// An array.
    Array(&'a SourceArray),
    /// A directory without the metadata of an array: it may hold Bloscpack files.
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
            Self::Array(array) if array.container.has_keys() => Some(array),
            _ => None,
        }
    }

    /// Returns the path of the shard with this name in the array's directory.
    ///
    /// # Errors
    /// The reason why there can be no such shard.
    pub fn shard_path(self, key: &[u8]) -> Result<PathBuf, &'static str> {
        let key = std::str::from_utf8(key).map_err(|_| "it is not text")?;
        let is_shard = match self {
            // Bloscpack files in one directory share its journal.
            Self::Directory(_) => is_file_name(key),
            Self::Array(SourceArray { container: Container::Bloscpack(_), .. }) => {
                is_file_name(key)
            }
            Self::Array(array) => array.is_shard_name(key),
        };
        match (is_shard, self) {
            (true, _) => Ok(self.path().join(key)),
            (false, Self::Array(_)) => Err("it is no shard of this array"),
            (false, Self::Directory(_)) => {
                Err("there is no metadata of an array whose shard it could be")
            }
        }
    }

    /// Returns whether `bytes`, read at the range that a record of the shard names, are an index of
    /// the shard in a file of that length.
    fn is_index(self, record: &ShardRecord, length: u64, range: ByteRange, bytes: &[u8]) -> bool {
        let array = match self {
            Self::Array(SourceArray { container: Container::Bloscpack(_), .. })
            | Self::Directory(_) => {
                return range.offset == 0 && Header::parse(bytes, length).is_ok();
            }
            Self::Array(array) => array,
        };
        let Some((place, extents)) = index_place(array, &record.key, length) else { return false };
        let level = &array.layout.levels[0];
        let decoded = || {
            ShardIndex::decode(bytes.to_vec(), &level.index_codecs, level.index_location, &extents)
        };
        place == range && decoded().is_ok()
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
        let range = match self {
            Self::Array(SourceArray { container: Container::Bloscpack(_), .. })
            | Self::Directory(_) => ByteRange { offset: 0, nbytes: HEADER_BYTES as u64 },
            Self::Array(array) => match index_place(array, &record.key, record.length) {
                Some((place, _)) => place,
                None => return Ok(false),
            },
        };
        if range.nbytes > record.length {
            return Ok(false);
        }
        Ok(self.is_index(record, record.length, range, &bytes_of(file, range)?))
    }
}

/// Returns the range of the index of a shard of that length, and its chunks along each axis. `None`
/// if such shards are never changed in place.
fn index_place(array: &SourceArray, key: &[u8], length: u64) -> Option<(ByteRange, Coords)> {
    let level = array.layout.levels.first().filter(|level| level.after.is_empty())?;
    if array.container != Container::Shards {
        return None;
    }
    let coords = array.shard_coords(&String::from_utf8_lossy(key))?;
    let extents = array.layout.chunks_per_shard(0, &coords);
    let nbytes = level.index_codecs.stored_size(product(&extents)?)?;
    Some((level.index_location.place(nbytes, length)?, extents))
}

fn is_file_name(key: &str) -> bool {
    let mut parts = Path::new(key).components();
    let is_plain = |part| matches!(part, Component::Normal(name) if name == key);
    parts.next().is_some_and(is_plain) && parts.next().is_none() && key != WORK_DIRECTORY
}

/// Returns a key in the form shown in messages.
pub fn shown_key(key: &[u8]) -> String {
    const MOST: usize = 200;
    let text: Cow<'_, str> = String::from_utf8_lossy(&key[..key.len().min(MOST)]);
    if key.len() > MOST { text.into_owned() + "..." } else { text.into_owned() }
}
