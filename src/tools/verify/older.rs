//! Verification of a shard by an older index, before the shard is put back to it.

use std::sync::Arc;

use parking_lot::Mutex;

use super::checks::{Checks, VerifyConfig, holds_blosc};
use super::chunks::ChunkCheck;
use super::finding::Finding;
use super::shard;
use super::step::Step;
use crate::source::{Array, Source};
use crate::store::LoadedShard;
use crate::tools::parts::SharedShard;

/// What stands where an older index says that chunks are.
#[derive(Debug, Default)]
pub struct OlderChunks {
    /// Number of defects: of chunks that cannot be read or decoded, and of shards.
    pub defects: u64,
    /// The first of them.
    pub first: Option<Finding>,
    /// `false` if chunks of this array cannot be decoded here: only their lengths were checked.
    pub are_decoded: bool,
}

/// Reads and decodes all chunks of the shard at `coords`, which was loaded by an older index.
pub fn check_older(
    source: &Source,
    array: &Arc<Array>,
    coords: &[u64],
    shard: &Arc<LoadedShard>,
) -> OlderChunks {
    let checks = Checks::new(Arc::clone(array));
    let are_decoded = checks.pipeline.is_ok() || holds_blosc(array);
    let older = Mutex::new(OlderChunks { are_decoded, ..OlderChunks::default() });
    let take = |step: &mut Step| {
        let mut older = older.lock();
        let defects = std::mem::take(step).findings.into_iter().filter(|found| !found.is_note());
        for defect in defects {
            older.defects += 1;
            older.first.get_or_insert(defect);
        }
    };
    let shard = SharedShard::loaded(array, coords, shard);
    let config = VerifyConfig { decode: true };
    for slots in shard.parts() {
        let mut checked = ChunkCheck::new(source, config, &take, &checks, &shard).check(slots);
        take(&mut checked.step);
    }
    let mut checked = shard::check(source, config, &take, &checks, &shard);
    take(&mut checked.step);
    older.into_inner()
}
