//! Bloscpack files ([`crate::format::bloscpack`]): the whole array is one file, and one shard.

mod changes;
pub mod file;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};

use self::file::{contents, head};
use super::blosc_buffer;
use super::file_state::FileState;
use super::found_chunks::{self, FoundChunks};
use super::shard_format::{Accepted, Change, ChangedShard, Framing, Reading, ShardFormat};
use crate::format::bloscpack::{BloscpackError, HEADER_BYTES, Header};
use crate::format::chunk_error::Refusal;
use crate::format::index::ByteRange;
use crate::format::sharding::ShardedArray;
use crate::store::content::Content;
use crate::store::error::{Damage, StoreError};
use crate::store::loaded::Ready;
use crate::store::storage::{Storage, StorageFile};
use crate::store::work::WORK_DIRECTORY;

/// One file.
#[derive(Debug)]
pub(super) struct Bloscpack {
    /// Name of the file; `None` for any file of the directory.
    pub(super) name: Option<OsString>,
}

impl ShardFormat for Bloscpack {
    fn name(&self) -> &'static str {
        "Bloscpack"
    }

    fn shard_name(&self, _layout: &ShardedArray, _shard: &[u64]) -> PathBuf {
        self.name.clone().unwrap_or_default().into()
    }

    fn is_shard_name(&self, _layout: Option<&ShardedArray>, name: &str) -> bool {
        is_file_name(name)
    }

    fn hides(&self, _name: &OsStr) -> bool {
        true
    }

    fn is_one_file(&self) -> bool {
        true
    }

    fn holds_blosc(&self) -> bool {
        true
    }

    fn is_writable(&self, _layout: &ShardedArray) -> bool {
        true
    }

    fn can_shrink(&self) -> bool {
        false
    }

    fn read(&self, reading: &Reading<'_>) -> io::Result<Result<Ready, Damage>> {
        found_chunks::read(reading, |state| {
            Ok(chunks_of(state)?.map(with_checked_end).map_err(Damage::from))
        })
    }

    fn framing(&self, storage: &dyn Storage, path: &Path, nbytes: u64) -> io::Result<Framing> {
        framing(&*storage.open(path)?, nbytes)
    }

    fn check(&self, content: &Content) -> io::Result<Result<Option<u32>, Refusal>> {
        Ok(blosc_buffer::decoded(content)?.map(Some))
    }

    fn accept<'a>(
        &self,
        shard: &ChangedShard<'a>,
        changes: Vec<Change<'a>>,
    ) -> Result<Accepted<'a>, StoreError> {
        changes::accept(shard, changes)
    }

    fn index_range(
        &self,
        _layout: Option<&ShardedArray>,
        _name: &str,
        _nbytes: u64,
    ) -> Option<ByteRange> {
        Some(ByteRange { offset: 0, nbytes: HEADER_BYTES as u64 })
    }

    fn is_index(
        &self,
        _layout: Option<&ShardedArray>,
        _name: &str,
        nbytes: u64,
        range: ByteRange,
        bytes: &[u8],
    ) -> bool {
        range.offset == 0 && Header::parse(bytes, nbytes).is_ok()
    }
}

/// Locates the chunks of a file.
///
/// # Errors
/// The reason why it is no such file, or an I/O error.
pub(super) fn chunks_of(state: &FileState<'_>) -> io::Result<Result<FoundChunks, BloscpackError>> {
    let head = match head(state)? {
        Ok(head) => head,
        Err(error) => return Ok(Err(error)),
    };
    let full = head.header.chunk_size.map(u64::from);
    Ok(Ok(FoundChunks { contents: contents(state, &head)?, digest: head.header.digest, full }))
}

/// The last chunk is padded only if the one before it is as long as the header says.
fn with_checked_end(found: FoundChunks) -> FoundChunks {
    let last = (found.contents.ranges.len() as u64).checked_sub(1);
    let before = last.and_then(|last| last.checked_sub(1));
    let is_whole = before.is_some_and(|before| !found.contents.refused.contains_key(&before));
    FoundChunks { full: found.full.filter(|_| is_whole), ..found }
}

/// Returns what a file holds besides its chunks.
pub(super) fn framing(file: &dyn StorageFile, nbytes: u64) -> io::Result<Framing> {
    // The header is valid: the file is not damaged.
    Ok(head(&FileState::now(file, nbytes))?.map_or_else(
        |_| Framing::default(),
        |head| Framing {
            head: head.body,
            after_chunk: head.header.digest.nbytes() as u64,
            ..Framing::default()
        },
    ))
}

fn is_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_plain = |part| matches!(part, Component::Normal(found) if found == name);
    parts.next().is_some_and(is_plain) && parts.next().is_none() && name != WORK_DIRECTORY
}
