//! Chunks found in a file in which no index is stored: one is made of them.

use std::collections::HashMap;
use std::io;

use super::file_state::FileState;
use super::shard_format::Reading;
use crate::format::chunk_error::ChunkDefect;
use crate::format::digest::Digest;
use crate::format::index::{
    ByteRange, IndexCodecs, IndexError, IndexLocation, ShardIndex, product,
};
use crate::store::error::Damage;
use crate::store::loaded::{Body, Ready};
use crate::store::storage::FileKind;
use crate::text::shown;

/// Chunks of a file.
#[derive(Debug, Default)]
pub struct Contents {
    /// Ranges of the chunks, without their checksums.
    pub ranges: Vec<ByteRange>,
    /// Chunks that cannot be read, with the reason.
    pub refused: HashMap<u64, ChunkDefect>,
    /// Decoded length of the last chunk in bytes.
    pub last_decoded: u64,
    /// `true` if an offset is missing, or the number of chunks could not be determined: the file's
    /// writer has not finished it.
    pub is_unfinished: bool,
}

/// Chunks of a file, and what is known of all of them.
#[derive(Debug)]
pub(super) struct FoundChunks {
    /// Locations of the chunks.
    pub contents: Contents,
    /// Checksum stored after each chunk.
    pub digest: Digest,
    /// Decoded length to which a short last chunk may be padded, in bytes. `None` if it is not
    /// known, or if the last chunk is not to be padded.
    pub full: Option<u64>,
}

/// Reads a shard with `find`, which locates the chunks of a file.
pub(super) fn read(
    reading: &Reading<'_>,
    find: impl FnOnce(&FileState<'_>) -> io::Result<Result<FoundChunks, Damage>>,
) -> io::Result<Result<Ready, Damage>> {
    if reading.stat.kind != FileKind::File {
        return Ok(Err(Damage::NotAFile(reading.stat.kind)));
    }
    let state = FileState::durable(reading.file, reading.stat.size, reading.pending)?;
    let Some(state) = state else { return Ok(Err(Damage::Unfinished)) };
    Ok(find(&state)?.and_then(|found| found.indexed(reading, &state)))
}

impl FoundChunks {
    /// Makes an index of the chunks.
    fn indexed(self, reading: &Reading<'_>, state: &FileState<'_>) -> Result<Ready, Damage> {
        let Self { contents, digest, full } = self;
        let last = (contents.ranges.len() as u64).checked_sub(1);
        let is_short = |full: &u64| reading.pads_end && contents.last_decoded < *full;
        let padding = last.zip(full.filter(is_short));
        if contents.is_unfinished {
            log::warn!("{}: its writer has not finished it", shown(reading.path));
        }
        reading.stats.indexes.loads.count();
        let slots = product(reading.chunks_per_shard).unwrap_or(u64::MAX);
        let index = contents.index(reading.chunks_per_shard).ok_or(IndexError::Limit { slots })?;
        let body = Body::InFile { offset: 0, nbytes: state.size() };
        let Contents { refused, is_unfinished, .. } = contents;
        Ok(Ready {
            is_index_stored: false,
            lost: state.lost(),
            digest,
            refused,
            padding,
            is_unfinished,
            ..Ready::new(body, index)
        })
    }
}

impl Contents {
    /// Returns the chunks as an index of `slots` chunks; slots beyond them are empty.
    fn index(&self, slots: &[u64]) -> Option<ShardIndex> {
        let mut index = ShardIndex::empty(&IndexCodecs::BARE, IndexLocation::End, slots).ok()?;
        let slots = index.slots();
        for (slot, range) in (0..slots).zip(&self.ranges) {
            index.set(slot, Some(*range));
        }
        Some(index)
    }
}
