//! Unsharded arrays: each file is one chunk, byte for byte, and named by its key.

use std::io;
use std::path::PathBuf;

use super::found_chunks::{self, Contents, FoundChunks};
use super::keys;
use super::shard_format::{Accepted, Change, ChangedShard, Reading, ShardFormat};
use crate::format::digest::Digest;
use crate::format::index::ByteRange;
use crate::format::plan::{Blob, Source};
use crate::format::sharding::ShardedArray;
use crate::store::error::{Damage, StoreError};
use crate::store::loaded::Ready;

/// Files of one chunk each.
#[derive(Debug)]
pub(super) struct Single;

impl ShardFormat for Single {
    fn name(&self) -> &'static str {
        "unsharded"
    }

    fn shard_name(&self, layout: &ShardedArray, shard: &[u64]) -> PathBuf {
        keys::shard_name(layout, shard)
    }

    fn is_shard_name(&self, layout: Option<&ShardedArray>, name: &str) -> bool {
        keys::is_shard_name(layout, name)
    }

    fn has_keys(&self) -> bool {
        true
    }

    fn is_bare(&self) -> bool {
        true
    }

    fn is_writable(&self, _layout: &ShardedArray) -> bool {
        true
    }

    fn read(&self, reading: &Reading<'_>) -> io::Result<Result<Ready, Damage>> {
        found_chunks::read(reading, |state| {
            let ranges = vec![ByteRange { offset: 0, nbytes: state.size() }];
            let contents = Contents { ranges, ..Contents::default() };
            Ok(Ok(FoundChunks { contents, digest: Digest::None, full: None }))
        })
    }

    fn accept<'a>(
        &self,
        _shard: &ChangedShard<'a>,
        changes: Vec<Change<'a>>,
    ) -> Result<Accepted<'a>, StoreError> {
        Ok(Accepted::of_single(&changes, |at, content| {
            Blob::of(content.nbytes(), Source::Staged(at))
        }))
    }
}
