//! Chunks that are read as a whole: to verify their checksum, or to pad them.

use std::io;
use std::sync::Arc;

use super::array::SourceArray;
use super::blob::bytes_of;
use super::error::{Damage, StoreError, io_error};
use super::loaded::{Body, Chunk};
use super::shard_store::{ShardStore, VerifiedKey};
use super::storage::StorageFile;
use crate::format::blosc::blosc_buffer;
use crate::format::chunk_error::ChunkDefect;
use crate::format::digest::Digest;
use crate::format::index::ByteRange;
use crate::format::sharding::Location;
use crate::format::whole_shard::{Compression, ShardCodec, decode};
use crate::number::to_usize;

impl ShardStore {
    /// Reads a chunk that has a checksum, as a whole: no part of it can be verified alone.
    pub(super) fn verified(
        &self,
        array: &SourceArray,
        location: &Location,
        file: &dyn StorageFile,
        key: VerifiedKey,
        digest: Digest,
    ) -> Result<Arc<Vec<u8>>, StoreError> {
        if let Some(bytes) = self.verified.lock().get(&key) {
            return Ok(bytes);
        }
        let range = key.2;
        let shard = array.shard_path(&location.shard);
        if range.nbytes > self.config.decode_limit {
            let (found, limit) = (range.nbytes, self.config.decode_limit);
            let damage = Arc::new(Damage::TooLong { found, limit });
            return Err(StoreError::Damaged { shard, damage });
        }
        let stored =
            ByteRange { offset: range.offset + range.nbytes, nbytes: digest.nbytes() as u64 };
        let read = file.read_ranges(&[range, stored]).and_then(|read| {
            <[Vec<u8>; 2]>::try_from(read).map_err(|_| io::ErrorKind::UnexpectedEof.into())
        });
        let [bytes, stored] = read.map_err(io_error(&shard))?;
        if digest.of(&bytes) != stored {
            let position = location.positions.concat();
            let error = ChunkDefect::Checksum.into();
            let error = StoreError::BadEntry { shard, position, error };
            self.report(&error);
            return Err(error);
        }
        let bytes = Arc::new(bytes);
        self.verified.lock().put(key, Arc::clone(&bytes), bytes.len());
        Ok(bytes)
    }

    /// Pads a Blosc buffer that is shorter than the others to one that holds `full` bytes.
    pub(super) fn padded(
        &self,
        array: &SourceArray,
        location: &Location,
        chunk: Chunk,
        full: u64,
    ) -> Result<Chunk, StoreError> {
        let Body::InFile { offset, nbytes } = chunk.body else { return Ok(chunk) };
        let shard = array.shard_path(&location.shard);
        let range = ByteRange { offset, nbytes };
        let version = chunk.shard.version();
        let key = (array.id, version, range, true);
        let known = self.verified.lock().get(&key);
        let bytes = match known {
            Some(bytes) => bytes,
            None => {
                let file = self.shard_file(array, &location.shard, version)?;
                let file = file.ok_or_else(|| StoreError::Changing { shard: shard.clone() })?;
                let stored = match chunk.digest {
                    Digest::None => Arc::new(bytes_of(&*file, range).map_err(io_error(&shard))?),
                    digest => {
                        let key = (array.id, version, range, false);
                        self.verified(array, location, &*file, key, digest)?
                    }
                };
                let filled = filled(&stored, full, self.config.decode_limit);
                let filled = filled.ok_or_else(|| StoreError::BadEntry {
                    shard,
                    position: location.positions.concat(),
                    error: ChunkDefect::NotPaddable.into(),
                })?;
                let filled = Arc::new(filled);
                self.verified.lock().put(key, Arc::clone(&filled), filled.len());
                filled
            }
        };
        let body = Body::InMemory { start: 0, end: bytes.len(), bytes };
        Ok(Chunk { body, digest: Digest::None, ..chunk })
    }
}

/// Decodes a Blosc buffer, pads it with zeros, and stores it without compression. `None` if that is
/// not possible, or would exceed `limit` bytes.
fn filled(stored: &[u8], full: u64, limit: u64) -> Option<Vec<u8>> {
    let codec = ShardCodec::Compressed(Compression::Blosc);
    let mut bytes = decode(&[codec], stored.to_vec(), limit).ok().filter(|_| full <= limit)?;
    bytes.resize(to_usize(full), 0);
    blosc_buffer(&bytes, stored.get(3).copied().unwrap_or(1))
}
