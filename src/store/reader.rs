//! Reading of chunks: opens their shard, verifies checksums, and pads chunks that are too short.

use std::sync::Arc;

use super::loaded::Body;
use super::storage::{Stat, StorageFile};
use super::{Chunk, Damage, Freshness, ShardStore, SourceArray, StoreError, blob, io_error};
use crate::format::after::{AfterCodec, Compression, decode};
use crate::format::bloscpack::blosc_buffer;
use crate::format::digest::Digest;
use crate::format::index::{ByteRange, EntryError};
use crate::format::sharding::Location;

/// Open chunk, ready to be read: no path, index or lock in between.
pub struct ChunkReader {
    source: ReadFrom,
    shard: Stat,
}

enum ReadFrom {
    File { file: Arc<dyn StorageFile>, offset: u64, nbytes: u64 },
    Memory { bytes: Arc<Vec<u8>>, start: usize, end: usize },
}

/// A shard's array and attributes, a range of it, and whether the bytes were padded.
pub(super) type VerifiedKey = (u64, Stat, ByteRange, bool);

impl ShardStore {
    /// Opens a chunk for reading. `None` if its shard has changed since it was found.
    pub fn reader(
        &self,
        array: &SourceArray,
        coords: &[u64],
        chunk: &Chunk,
    ) -> Result<Option<ChunkReader>, StoreError> {
        let source = match &chunk.body {
            Body::InMemory { bytes, start, end } => {
                ReadFrom::Memory { bytes: Arc::clone(bytes), start: *start, end: *end }
            }
            Body::InFile { offset, nbytes } => {
                let location = array.layout.locate(coords);
                let Some(file) = self.shard_file(array, &location.shard, &chunk.shard)? else {
                    return Ok(None);
                };
                match chunk.digest {
                    Digest::None => ReadFrom::File { file, offset: *offset, nbytes: *nbytes },
                    digest => {
                        let range = ByteRange { offset: *offset, nbytes: *nbytes };
                        let key = (array.id, chunk.shard, range, false);
                        let bytes = self.verified(array, &location, &*file, key, digest)?;
                        let end = bytes.len();
                        ReadFrom::Memory { bytes, start: 0, end }
                    }
                }
            }
        };
        Ok(Some(ChunkReader { source, shard: chunk.shard }))
    }

    /// Finds and opens a chunk while this mount commits nothing to its array, and runs `act` on it
    /// meanwhile. `None` if there is no such chunk.
    pub fn quiet_reader<T>(
        &self,
        array: &SourceArray,
        coords: &[u64],
        act: impl FnOnce(ChunkReader) -> T,
    ) -> Result<Option<T>, StoreError> {
        self.between_commits(array, || {
            let Some(chunk) = self.chunk_now(array, coords, Freshness::Again)? else {
                return Ok(None);
            };
            let reader = self.reader(array, coords, &chunk)?;
            let changing = || {
                let shard = array.layout.locate(coords).shard;
                StoreError::Changing { shard: array.shard_path(&shard) }
            };
            Ok(Some(act(reader.ok_or_else(changing)?)))
        })
    }

    /// Returns the open file of a shard. `None` if the file is not the one that `expected`
    /// describes.
    pub(super) fn shard_file(
        &self,
        array: &SourceArray,
        shard: &[u64],
        expected: &Stat,
    ) -> Result<Option<Arc<dyn StorageFile>>, StoreError> {
        let id = array.shard_id(shard);
        if let Some((stat, file)) = self.files.lock().get(&id)
            && stat.unchanged(expected)
        {
            return Ok(Some(Arc::clone(file)));
        }
        let path = array.shard_path(shard);
        let open = || {
            let file = self.storage.open(&path)?;
            Ok((file.stat()?, file))
        };
        let (stat, file) = self.with_files(|| open().map_err(io_error(&path)))?;
        if !stat.unchanged(expected) {
            return Ok(None);
        }
        self.files.lock().put(id, (stat, Arc::clone(&file)));
        Ok(Some(file))
    }

    /// Revalidates an open chunk whose file has another ctime than before, by locating it through
    /// the file's current index. Returns the file's attributes; `None` if the chunk is not where it
    /// was, or if more than the ctime has changed.
    pub fn found_again(
        &self,
        array: &SourceArray,
        coords: &[u64],
        reader: &ChunkReader,
    ) -> Result<Option<Stat>, StoreError> {
        let ReadFrom::File { file, offset, nbytes } = &reader.source else {
            return Ok(Some(reader.shard));
        };
        let location = array.layout.locate(coords);
        let path = array.shard_path(&location.shard);
        let before = file.stat().map_err(io_error(&path))?;
        if !before.same_content(&reader.shard) {
            return Ok(None);
        }
        let found = self.body_in(array, &location, &**file, &before).map_err(io_error(&path))?;
        let after = file.stat().map_err(io_error(&path))?;
        let same = matches!(found, Some(Body::InFile { offset: at, nbytes: length })
            if (at, length) == (*offset, *nbytes));
        Ok((same && after.unchanged(&before)).then_some(after))
    }

    /// Reads a chunk that has a checksum, as a whole: no part of it can be verified alone.
    fn verified(
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
        let bytes = blob::bytes_of(file, range).map_err(io_error(&shard))?;
        let stored = blob::bytes_of(file, stored).map_err(io_error(&shard))?;
        if digest.of(&bytes) != stored {
            let position = location.positions.concat();
            let error = EntryError::Refused("its checksum does not match");
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
        let key = (array.id, chunk.shard, range, true);
        let known = self.verified.lock().get(&key);
        let bytes = match known {
            Some(bytes) => bytes,
            None => {
                let file = self.shard_file(array, &location.shard, &chunk.shard)?;
                let file = file.ok_or_else(|| StoreError::Changing { shard: shard.clone() })?;
                let stored = match chunk.digest {
                    Digest::None => {
                        Arc::new(blob::bytes_of(&*file, range).map_err(io_error(&shard))?)
                    }
                    digest => {
                        let key = (array.id, chunk.shard, range, false);
                        self.verified(array, location, &*file, key, digest)?
                    }
                };
                let filled = filled(&stored, full, self.config.decode_limit);
                let filled = filled.ok_or_else(|| StoreError::BadEntry {
                    shard,
                    position: location.positions.concat(),
                    error: EntryError::Refused("it cannot be decoded to be filled up"),
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

impl ChunkReader {
    /// Returns the length of the encoded chunk in bytes.
    pub fn nbytes(&self) -> u64 {
        match &self.source {
            ReadFrom::File { nbytes, .. } => *nbytes,
            ReadFrom::Memory { start, end, .. } => (end - start) as u64,
        }
    }

    /// Returns the attributes of the shard when the chunk was found.
    pub fn shard(&self) -> &Stat {
        &self.shard
    }

    /// Reads from `offset` in the chunk into `buffer` and returns the number of bytes; fewer than
    /// fit only at the chunk's end.
    ///
    /// # Errors
    /// Those of the file, also if it ends before its chunk does.
    pub fn read(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let left = usize::try_from(self.nbytes().saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = buffer.len().min(left);
        let buffer = &mut buffer[..length];
        match &self.source {
            ReadFrom::Memory { bytes, start, .. } => {
                // Within the chunk, which is in memory: both fit.
                let from = start + usize::try_from(offset).unwrap_or(0);
                buffer.copy_from_slice(bytes.get(from..from + length).unwrap_or_default());
                Ok(length)
            }
            ReadFrom::File { file, offset: start, .. } => {
                match file.read_at(buffer, start + offset)? {
                    read if read == length => Ok(length),
                    _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
                }
            }
        }
    }

    /// Returns whether the file is unchanged since the chunk was found. A file that was replaced by
    /// another in the meantime is not: its ctime has changed ([`ShardStore::found_again`]).
    pub fn unchanged(&self) -> std::io::Result<bool> {
        Ok(self.stat_now()?.unchanged(&self.shard))
    }

    /// Returns the current attributes of the file; those at the time of the lookup for a chunk that
    /// is in memory.
    pub fn stat_now(&self) -> std::io::Result<Stat> {
        match &self.source {
            ReadFrom::File { file, .. } => file.stat(),
            ReadFrom::Memory { .. } => Ok(self.shard),
        }
    }
}

/// Decodes a Blosc buffer, pads it with zeros, and stores it without compression. `None` if that is
/// not possible, or would exceed `limit` bytes.
fn filled(stored: &[u8], full: u64, limit: u64) -> Option<Vec<u8>> {
    let codec = AfterCodec::Compressed(Compression::Blosc);
    let mut bytes = decode(&[codec], stored.to_vec(), limit).ok()?;
    bytes.resize(usize::try_from(full).ok().filter(|_| full <= limit)?, 0);
    blosc_buffer(&bytes, stored.get(3).copied().unwrap_or(1))
}
