//! Reading of the index that is stored in a shard, or in a shard nested in one: around the index
//! and the chunks there may be codecs over the whole shard, which are undone first.

use std::sync::Arc;

use super::error::Damage;
use super::loaded::{Body, Ready};
use super::storage::StorageFile;
use crate::format::index::{IndexError, ShardIndex, product};
use crate::format::pipeline::DecodeError;
use crate::format::sharding::ShardingLevel;
use crate::format::whole_shard::{decode, trailing_checksums};
use crate::memory::ROOM;
use crate::stats::Stats;

/// Compression ratio of a shard that is seldom exceeded.
const USUAL_RATIO: u64 = 16;
/// Decoded size that is always allowed in the first attempt, however short the shard is.
const USUAL_BYTES: u64 = 1 << 20;

/// Reader of the indexes of one level of shards.
pub(super) struct IndexReader<'a> {
    /// How shards of the level are stored.
    pub(super) level: &'a ShardingLevel,
    /// Chunks in the shard, along each of its axes.
    pub(super) chunks_per_shard: &'a [u64],
    /// Length of the longest shard that is decoded as a whole, in bytes, both encoded and decoded.
    pub(super) limit: u64,
    /// Counters of what is read.
    pub(super) stats: &'a Stats,
}

impl IndexReader<'_> {
    /// Reads the index of the shard whose stored bytes are `stored`.
    pub(super) fn read(
        &self,
        file: &dyn StorageFile,
        stored: Body,
    ) -> std::io::Result<Result<Ready, Damage>> {
        let body = match self.undo_after(file, stored)? {
            Ok(body) => body,
            Err(damage) => return Ok(Err(damage)),
        };
        let level = self.level;
        let slots = product(self.chunks_per_shard).unwrap_or(u64::MAX);
        let Some(size) = level.index_codecs.stored_size(slots) else {
            return Ok(Err(IndexError::Limit { slots }.into()));
        };
        let Some(place) = level.index_location.place(size, body.nbytes()) else {
            return Ok(Err(Damage::TooShort { found: body.nbytes(), index: size }));
        };
        let Some(bytes) = body.part(place.offset, size).read(file)? else {
            return Ok(Err(Damage::TooShort { found: body.nbytes(), index: size }));
        };
        self.stats.indexes.loads.count();
        self.stats.indexes.load_bytes.add(size);
        let (codecs, location) = (&level.index_codecs, level.index_location);
        let index = ShardIndex::decode(bytes, codecs, location, self.chunks_per_shard);
        Ok(index.map(|index| Ready::new(body, index)).map_err(Damage::from))
    }

    /// Undoes the codecs over the whole shard. Checksums over a shard in a file are not verified:
    /// that would read all of it, and the index has its own.
    fn undo_after(
        &self,
        file: &dyn StorageFile,
        stored: Body,
    ) -> std::io::Result<Result<Body, Damage>> {
        let (after, found) = (&self.level.after, stored.nbytes());
        if let Some(trailing) = trailing_checksums(after) {
            return Ok(match found.checked_sub(trailing) {
                Some(nbytes) => Ok(stored.part(0, nbytes)),
                None => Err(Damage::TooShort { found, index: trailing }),
            });
        }
        let limit = self.limit;
        if found > limit {
            return Ok(Err(Damage::TooLong { found, limit }));
        }
        self.stats.indexes.decoded.count();
        // The decoded length is not known in advance. Most shards fit into a small reservation,
        // which lets many be decoded at once; one that does not is decoded again with the full
        // limit.
        let usual = found.saturating_mul(USUAL_RATIO).max(USUAL_BYTES);
        for most in [usual.min(limit), limit] {
            // Room for the stored bytes, the decoded ones, and an intermediate between two
            // compressors.
            let _room = ROOM.take(most.saturating_mul(2).saturating_add(found))?;
            let Some(bytes) = stored.read(file)? else {
                return Ok(Err(Damage::TooShort { found, index: found }));
            };
            return Ok(match decode(after, bytes, most) {
                Err(DecodeError::TooLong { .. }) if most < limit => continue,
                Err(DecodeError::NoMemory(error)) => return Err(error.into()),
                Err(error) => Err(error.into()),
                Ok(mut bytes) => {
                    bytes.shrink_to_fit();
                    Ok(Body::InMemory { start: 0, end: bytes.len(), bytes: Arc::new(bytes) })
                }
            });
        }
        // The last attempt returns from the loop.
        Ok(Err(Damage::TooLong { found, limit }))
    }
}
