//! Writing a whole shard from its first byte to its last.
//!
//! ```text
//! index at the end:    | chunk | chunk | ... | index | crc32c of all before, if configured |
//! index at the start:  | index | chunk | chunk | ... | crc32c ...                          |
//! nested:              a chunk is a shard itself, written the same way
//! ```
//!
//! Chunks are contiguous, in the requested order. One chunk is held in memory at a time, and only a
//! part of a long one, besides the index.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use blake3::Hasher;

use super::digest::{ChunkDigest, ContentDigest};
use crate::format::index::{ByteRange, CHECKSUM_BYTES, IndexError, IndexLocation, ShardIndex};
use crate::format::order::{ChunkOrder, Positions};
use crate::format::sharding::ShardedArray;
use crate::format::whole_shard::trailing_checksums;
use crate::number::to_usize;
use crate::store::ChunkReader;
use crate::store::storage::PosixFile;

/// Maximum length in bytes of a single read or write.
pub(super) const PIECE_BYTES: usize = 1 << 20;

/// Placement of the chunks in a shard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Packing {
    /// Order of the chunks in the file.
    pub order: ChunkOrder,
    /// `true` if equal chunks share their bytes.
    pub dedup: bool,
}

/// Error of writing a shard.
#[derive(Debug, thiserror::Error)]
pub enum ShardFileError<E> {
    /// The function that finds chunks failed.
    #[error(transparent)]
    Chunk(E),
    /// A chunk cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The file that a chunk was read from was changed meanwhile.
    #[error("it was changed while it was being read")]
    Changed,
    /// The file cannot be written.
    #[error("{0}")]
    Write(#[source] io::Error),
    /// The index would exceed its limits.
    #[error(transparent)]
    Index(#[from] IndexError),
}

/// A shard that was written.
pub struct WrittenShard {
    /// Its file, not yet synced.
    pub file: Arc<dyn PosixFile>,
    /// Digest of its chunks.
    pub digest: ContentDigest,
}

/// Function that returns the chunk at some coordinates, `None` if there is none. The chunk comes
/// with its range in the old shard if other chunks of the shard have the same range: they continue
/// to share it.
pub type Find<'a, E> =
    dyn FnMut(&[u64]) -> Result<Option<(ChunkReader, Option<ByteRange>)>, E> + 'a;

/// Function that creates the file.
pub type Create<'a> = dyn Fn() -> io::Result<Arc<dyn PosixFile>> + 'a;

/// Writes the shard at position `shard` of the shard grid of `layout`, from the chunks that `find`
/// returns, to the file that `create` creates. Codecs around the shard must be checksums. Returns
/// `None`, and creates no file, if the shard would hold no chunk.
pub fn write_shard<E>(
    layout: &ShardedArray,
    shard: &[u64],
    packing: Packing,
    find: &mut Find<'_, E>,
    create: &Create<'_>,
) -> Result<Option<WrittenShard>, ShardFileError<E>> {
    let axes = shard.iter().zip(&layout.shard_grid);
    let first: Vec<u64> = axes.map(|(coord, axis)| axis.span(*coord).0).collect();
    let (out, digest) = (Output::new(create), ContentDigest::default());
    let mut writer = Writer { layout, shard, packing, find, out, digest, buffer: Vec::new() };
    if !writer.write_level(0, &first)? {
        return Ok(None);
    }
    let digest = writer.digest;
    let file = writer.out.finish().map_err(ShardFileError::Write)?;
    Ok(Some(WrittenShard { file, digest }))
}

/// Copies one chunk to a file of its own, which `create` creates.
pub fn write_chunk<E>(
    coords: &[u64],
    reader: &ChunkReader,
    create: &Create<'_>,
) -> Result<ContentDigest, ShardFileError<E>> {
    let mut out = Output::new(create);
    let digest = copy(coords, reader, &mut Vec::new(), &mut |bytes| out.put(bytes))?;
    out.finish().map_err(ShardFileError::Write)?;
    Ok(digest)
}

/// Reads a chunk to its end, passes it to `put` in pieces and returns its digest.
///
/// # Errors
/// Returns [`ShardFileError::Changed`] if the file was changed meanwhile.
pub fn copy<E>(
    coords: &[u64],
    reader: &ChunkReader,
    buffer: &mut Vec<u8>,
    put: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<ContentDigest, ShardFileError<E>> {
    let nbytes = reader.nbytes();
    let mut digest = ChunkDigest::new(coords, nbytes);
    let most = to_usize(nbytes).min(PIECE_BYTES);
    buffer.resize(most.max(buffer.len()), 0);
    let mut done = 0;
    while done < nbytes {
        let read = reader.read(&mut buffer[..most], done).map_err(ShardFileError::Read)?;
        let piece = &buffer[..read];
        digest.update(piece);
        put(piece).map_err(ShardFileError::Write)?;
        done += read as u64;
    }
    match reader.unchanged() {
        Ok(true) => Ok(digest.finish()),
        Ok(false) => Err(ShardFileError::Changed),
        Err(error) => Err(ShardFileError::Read(error)),
    }
}

struct Writer<'a, 'b, E> {
    layout: &'a ShardedArray,
    shard: &'a [u64],
    packing: Packing,
    find: &'a mut Find<'b, E>,
    out: Output<'a>,
    digest: ContentDigest,
    buffer: Vec<u8>,
}

/// Ranges of the chunks written to one shard, by the property they share with others.
type Shared = HashMap<Share, ByteRange>;

/// Property by which chunks share their bytes.
#[derive(PartialEq, Eq, Hash)]
enum Share {
    /// Range in the old shard.
    Place(ByteRange),
    /// BLAKE3 hash and length.
    Content([u8; 32], u64),
}

impl<E> Writer<'_, '_, E> {
    /// Writes the shard of a level whose first chunk is at `first`. Returns `false` if it holds no
    /// chunk.
    fn write_level(&mut self, level: usize, first: &[u64]) -> Result<bool, ShardFileError<E>> {
        let layout = self.layout;
        let how = &layout.levels[level];
        let per_shard = layout.chunks_per_shard(level, self.shard);
        let mut index = ShardIndex::empty(&how.index_codecs, how.index_location, &per_shard)?;
        let base = self.out.at();
        if how.index_location == IndexLocation::Start {
            self.out.skip(index.stored_size()).map_err(ShardFileError::Write)?;
        }
        let (mut shared, mut any, mut coords) = (Shared::new(), false, first.to_vec());
        let mut positions =
            Positions::new(self.packing.order, &layout.positions(level, self.shard));
        while let Some(position) = positions.advance() {
            for (axis, coord) in coords.iter_mut().enumerate() {
                *coord = first[axis] + position[axis] * how.unit()[axis];
            }
            let start = self.out.at();
            let range = if level + 1 == layout.levels.len() {
                self.write_chunk(&coords, base, &mut shared)?
            } else if self.write_level(level + 1, &coords)? {
                Some(ByteRange { offset: start - base, nbytes: self.out.at() - start })
            } else {
                None
            };
            if range.is_some() {
                index.set(index.slot(how.in_shard_axes(position)), range);
                any = true;
            }
        }
        if !any {
            self.out.rewind(base);
            return Ok(false);
        }
        let index = index.encode();
        match how.index_location {
            IndexLocation::Start => self.out.put_at(base, &index),
            IndexLocation::End => self.out.put(&index),
        }
        .map_err(ShardFileError::Write)?;
        let checksums = trailing_checksums(&how.after).unwrap_or(0) / CHECKSUM_BYTES as u64;
        for _ in 0..checksums {
            self.out.put_checksum(base).map_err(ShardFileError::Write)?;
        }
        Ok(true)
    }

    fn write_chunk(
        &mut self,
        coords: &[u64],
        base: u64,
        shared: &mut Shared,
    ) -> Result<Option<ByteRange>, ShardFileError<E>> {
        let Some((reader, place)) = (self.find)(coords).map_err(ShardFileError::Chunk)? else {
            return Ok(None);
        };
        let (start, nbytes) = (self.out.at(), reader.nbytes());
        let mut content = self.packing.dedup.then(Hasher::new);
        let out = &mut self.out;
        let digest = copy(coords, &reader, &mut self.buffer, &mut |bytes| {
            if let Some(content) = &mut content {
                content.update(bytes);
            }
            out.put(bytes)
        })?;
        self.digest.add(&digest);
        let range = ByteRange { offset: start - base, nbytes };
        let share = match (content, place) {
            (Some(content), _) => Share::Content(*content.finalize().as_bytes(), nbytes),
            (None, Some(place)) => Share::Place(place),
            (None, None) => return Ok(Some(range)),
        };
        let place = *shared.entry(share).or_insert(range);
        if place != range {
            self.out.rewind(start);
        }
        Ok(Some(place))
    }
}

/// A file that is written sequentially, and created by the first write.
struct Output<'a> {
    create: &'a Create<'a>,
    file: Option<Arc<dyn PosixFile>>,
    /// Offset at which the buffered bytes will be written.
    start: u64,
    waiting: Vec<u8>,
    /// `true` if the file may be longer than its final contents.
    is_longer: bool,
}

impl<'a> Output<'a> {
    fn new(create: &'a Create<'a>) -> Self {
        Self { create, file: None, start: 0, waiting: Vec::new(), is_longer: false }
    }

    fn at(&self) -> u64 {
        self.start + self.waiting.len() as u64
    }

    fn file(&mut self) -> io::Result<&dyn PosixFile> {
        let file = match self.file.take() {
            Some(file) => file,
            None => (self.create)()?,
        };
        Ok(&**self.file.insert(file))
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.waiting.len() + bytes.len() > PIECE_BYTES {
            self.flush()?;
        }
        if bytes.len() >= PIECE_BYTES {
            let start = self.start;
            self.file()?.write_at(bytes, start)?;
            self.start += bytes.len() as u64;
        } else {
            self.waiting.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let (start, waiting) = (self.start, std::mem::take(&mut self.waiting));
        self.file()?.write_at(&waiting, start)?;
        self.start += waiting.len() as u64;
        self.waiting = waiting;
        self.waiting.clear();
        Ok(())
    }

    /// Skips bytes, which are written later.
    fn skip(&mut self, nbytes: u64) -> io::Result<()> {
        self.flush()?;
        self.start += nbytes;
        Ok(())
    }

    /// Discards what was written from offset `to` on.
    fn rewind(&mut self, to: u64) {
        match to.checked_sub(self.start) {
            Some(keep) => self.waiting.truncate(to_usize(keep)),
            None => {
                self.waiting.clear();
                self.start = to;
                self.is_longer = true;
            }
        }
    }

    fn put_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.flush()?;
        self.file()?.write_at(bytes, offset)
    }

    /// Appends the crc32c of everything from offset `since` on.
    fn put_checksum(&mut self, since: u64) -> io::Result<()> {
        self.flush()?;
        let (mut at, end, mut checksum) = (since, self.start, 0);
        let mut buffer = vec![0; PIECE_BYTES];
        while at < end {
            let length = to_usize(end - at).min(PIECE_BYTES);
            let read = self.file()?.read_at(&mut buffer[..length], at)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            checksum = crc32c::crc32c_append(checksum, &buffer[..read]);
            at += read as u64;
        }
        self.put(&checksum.to_le_bytes())
    }

    fn finish(mut self) -> io::Result<Arc<dyn PosixFile>> {
        self.flush()?;
        let (length, is_longer) = (self.start, self.is_longer);
        let file = self.file()?;
        if is_longer {
            file.set_length(length)?;
        }
        file.closed()?;
        match self.file {
            Some(file) => Ok(file),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
}
