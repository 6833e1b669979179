//! Reading of chunks: an open file and a range in it, or bytes in memory.

use std::sync::Arc;

use super::loaded::Body;
use super::persistence::Persistence;
use super::storage::{Stat, StorageFile};
use super::{Chunk, Freshness, ShardStore, SourceArray, StoreError, io_error};
use crate::format::digest::Digest;
use crate::format::index::ByteRange;
use crate::number::to_usize;

/// Open chunk, ready to be read: no path, index or lock in between.
pub struct ChunkReader {
    source: ReadFrom,
    shard: Stat,
}

enum ReadFrom {
    File { file: Arc<dyn StorageFile>, offset: u64, nbytes: u64 },
    Memory { bytes: Arc<Vec<u8>>, start: usize, end: usize },
}

impl ShardStore {
    /// Opens a chunk for reading. `None` if its shard has changed since it was found.
    pub fn reader(
        &self,
        array: &SourceArray,
        coords: &[u64],
        chunk: &Chunk,
    ) -> Result<Option<ChunkReader>, StoreError> {
        self.fetch_ahead_of(array, coords);
        let source = match &chunk.body {
            Body::InMemory { bytes, start, end } => {
                ReadFrom::Memory { bytes: Arc::clone(bytes), start: *start, end: *end }
            }
            Body::InFile { offset, nbytes } => {
                let location = array.layout.locate(coords);
                let Some(file) = self.shard_file(array, &location.shard, chunk.shard.version())?
                else {
                    return Ok(None);
                };
                match chunk.digest {
                    Digest::None => ReadFrom::File { file, offset: *offset, nbytes: *nbytes },
                    digest => {
                        let range = ByteRange { offset: *offset, nbytes: *nbytes };
                        let key = (array.id, chunk.shard.version(), range, false);
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
        let changing = || {
            let shard = array.layout.shard_of(coords);
            StoreError::Changing { shard: array.shard_path(&shard) }
        };
        let open = || {
            let found = self.chunk_now(array, coords, Freshness::Again)?;
            let reader = |chunk| self.reader(array, coords, &chunk)?.ok_or_else(changing);
            found.map(reader).transpose()
        };
        let mut act = Some(act);
        let mut persistence = Persistence::new();
        loop {
            let done = self.between_commits(array, || {
                let Some(reader) = open()? else { return Ok(None) };
                // It is used up once: there is no attempt after this one.
                Ok(act.take().map(|act| act(reader)))
            });
            if !matches!(done, Err(StoreError::Changing { .. })) || !persistence.again() {
                return done;
            }
        }
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
        if !before.version().has_same_content(&reader.shard.version()) {
            return Ok(None);
        }
        let found =
            self.body_in(array, &location, &path, (&**file, &before)).map_err(io_error(&path))?;
        let after = file.stat().map_err(io_error(&path))?;
        let same = matches!(found, Some(Body::InFile { offset: at, nbytes: length })
            if (at, length) == (*offset, *nbytes));
        Ok((same && after.version() == before.version()).then_some(after))
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
        let left = to_usize(self.nbytes().saturating_sub(offset));
        let length = buffer.len().min(left);
        let buffer = &mut buffer[..length];
        match &self.source {
            ReadFrom::Memory { bytes, start, .. } => {
                // Within the chunk, which is in memory.
                let from = start + to_usize(offset);
                buffer.copy_from_slice(bytes.get(from..from + length).unwrap_or_default());
                Ok(length)
            }
            ReadFrom::File { file, offset: start, .. } => {
                let chunk = ByteRange { offset: *start, nbytes: self.nbytes() };
                match file.read_within(buffer, start + offset, chunk)? {
                    read if read == length => Ok(length),
                    _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
                }
            }
        }
    }

    /// Returns whether the file is unchanged since the chunk was found. A file that was replaced by
    /// another in the meantime is not: its ctime has changed ([`ShardStore::found_again`]).
    pub fn unchanged(&self) -> std::io::Result<bool> {
        Ok(self.stat_now()?.version() == self.shard.version())
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
