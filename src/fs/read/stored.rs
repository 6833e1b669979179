//! Reading of chunks as they are stored.

use crate::fs::error::{FsError, Result};
use crate::fs::node::ArrayView;
use crate::fs::read::openers::OPEN_ATTEMPTS;
use crate::fs::state::fs::Fs;
use crate::fs::state::opener::Opener;
use crate::number::to_usize;
use crate::store::storage::Need;
use crate::store::{Chunk, ChunkReader, Freshness};

impl Fs {
    /// Reads from a chunk in its current state, if who has opened it may.
    pub(in crate::fs) fn read_stored(
        &self,
        (array, coords): (&ArrayView, &[u64]),
        opener: Option<&Opener>,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<usize> {
        if let Some(form) = array.decoded_form() {
            let file = self.permitted_decoded((array, form, coords), opener)?;
            return Ok(file.read(offset, buffer));
        }
        let mut freshness = Freshness::Recent;
        for attempt in 1..=OPEN_ATTEMPTS {
            let read = self.attempt(attempt, array, coords, freshness, |reader| {
                let shard = reader.shard().version();
                self.permit_shard(opener, Need::Read, (array, coords), shard)?;
                let read = reader.read(buffer, offset);
                Ok(reader.unchanged()?.then_some(read))
            });
            // It was replaced since it was found.
            if matches!(read, Err(FsError::Stale)) && attempt < OPEN_ATTEMPTS {
                freshness = Freshness::Again;
                continue;
            }
            if let Err(FsError::NotFound) = &read
                && let Some(chunk) = self.absent_chunk(array)?
            {
                // It may have been created since the lookup.
                if self.store.chunk(&array.source, coords, Freshness::Again)?.is_none() {
                    return Ok(read_text(&chunk, offset, buffer));
                }
                freshness = Freshness::Again;
                continue;
            }
            if let Some(read) = read? {
                return read.map_err(|error| torn(array, coords, error));
            }
            freshness = Freshness::Again;
        }
        Err(torn(array, coords, std::io::ErrorKind::UnexpectedEof.into()))
    }

    /// Passes a reader of a chunk to `act`. The last attempt excludes commits of this mount, which
    /// may have caused the earlier ones to fail.
    pub(in crate::fs) fn attempt<T>(
        &self,
        attempt: usize,
        array: &ArrayView,
        coords: &[u64],
        freshness: Freshness,
        act: impl FnOnce(ChunkReader) -> Result<T>,
    ) -> Result<T> {
        if attempt < OPEN_ATTEMPTS || self.overlay.is_none() {
            return act(self.chunk_reader(array, coords, freshness)?);
        }
        self.store.quiet_reader(&array.source, coords, act)?.ok_or(FsError::NotFound)?
    }

    /// Looks a chunk up and opens its shard.
    pub(in crate::fs) fn chunk_reader(
        &self,
        array: &ArrayView,
        coords: &[u64],
        freshness: Freshness,
    ) -> Result<ChunkReader> {
        if coords.len() < array.tree.rank() {
            return Err(FsError::IsDirectory);
        }
        let mut freshness = freshness;
        for _ in 0..OPEN_ATTEMPTS {
            let chunk: Option<Chunk> = self.store.chunk(&array.source, coords, freshness)?;
            let chunk = chunk.ok_or(FsError::NotFound)?;
            if let Some(reader) = self.store.reader(&array.source, coords, &chunk)? {
                return Ok(reader);
            }
            freshness = Freshness::Again;
        }
        let reader = self.store.quiet_reader(&array.source, coords, |reader| reader)?;
        reader.ok_or(FsError::NotFound)
    }
}

pub(in crate::fs) fn read_text(text: &[u8], offset: u64, buffer: &mut [u8]) -> usize {
    let rest = text.get(to_usize(offset)..);
    let rest = rest.unwrap_or_default();
    let length = rest.len().min(buffer.len());
    buffer[..length].copy_from_slice(&rest[..length]);
    length
}

/// Maps the error of a read of a chunk: a file that ended early, or is not there any more, was changed during
/// the read. It is not absence, which would mean an empty chunk.
pub(in crate::fs) fn torn(array: &ArrayView, coords: &[u64], error: std::io::Error) -> FsError {
    use std::io::ErrorKind::{NotADirectory, NotFound, UnexpectedEof};
    if ![UnexpectedEof, NotFound, NotADirectory].contains(&error.kind()) {
        return error.into();
    }
    let key = array.tree.path(coords);
    let error = FsError::Torn { array: array.source.path.clone(), key };
    log::error!("{error}");
    error
}
