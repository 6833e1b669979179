//! Extended attributes that tell where a chunk lives, for mounts that were asked for them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::{Fs, FsError, Result, Target};
use crate::store::Freshness;

const SHARD: &str = "user.shardfs.shard";
const OFFSET: &str = "user.shardfs.offset";
const NBYTES: &str = "user.shardfs.nbytes";

impl Fs {
    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: u64, name: &OsStr) -> Result<Vec<u8>> {
        let mut attributes = self.chunk_attributes(ino)?.into_iter();
        let found = attributes.find(|(attribute, _)| name == *attribute);
        found.map(|(_, value)| value).ok_or(FsError::NoAttribute)
    }

    /// The names of the extended attributes, each ended by a NUL.
    pub fn listxattr(&self, ino: u64) -> Result<Vec<u8>> {
        let attributes = self.chunk_attributes(ino)?;
        Ok(attributes.iter().flat_map(|(name, _)| [name.as_bytes(), b"\0"].concat()).collect())
    }

    fn chunk_attributes(&self, ino: u64) -> Result<Vec<(&'static str, Vec<u8>)>> {
        let Target::Tree(array, coords) = self.target(ino)? else {
            return Ok(Vec::new());
        };
        if coords.len() < array.tree.rank() {
            return Ok(Vec::new());
        }
        let chunk = self.store.chunk(&array.source, &coords, Freshness::Now)?;
        let chunk = chunk.ok_or(FsError::NotFound)?;
        let shard = array.source.shard_path(&array.source.layout.locate(&coords).shard);
        let mut attributes = vec![
            (SHARD, shard.as_os_str().as_bytes().to_vec()),
            (NBYTES, chunk.nbytes().to_string().into_bytes()),
        ];
        // A chunk in a shard that is compressed as a whole has no offset in the file.
        attributes.extend(chunk.offset().map(|offset| (OFFSET, offset.to_string().into_bytes())));
        Ok(attributes)
    }
}
