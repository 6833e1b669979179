//! Files of webknossos-wrap ([`crate::format::wkw`]): a shard for each cube of blocks. They are read alone.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use super::file_state::FileState;
use super::shard_format::{Framing, Reading, ShardFormat};
use crate::format::chunk_error::ChunkDefect;
use crate::format::chunk_key::number;
use crate::format::index::{
    ByteRange, IndexCodecs, IndexError, IndexLocation, ShardIndex, product,
};
use crate::format::sharding::ShardedArray;
use crate::format::wkw::{END_BYTES, HEADER, HEADER_BYTES, WkwError, WkwHeader, file_name};
use crate::number::to_usize;
use crate::store::error::Damage;
use crate::store::loaded::{Body, Ready};
use crate::store::storage::{Expected, FileKind, Storage};

/// Data set of files.
#[derive(Debug)]
pub(super) struct Wkw {
    /// Its header.
    pub(super) header: WkwHeader,
}

impl ShardFormat for Wkw {
    fn name(&self) -> &'static str {
        "webknossos-wrap"
    }

    fn shard_name(&self, _layout: &ShardedArray, shard: &[u64]) -> PathBuf {
        file_name(shard).into()
    }

    fn is_shard_name(&self, _layout: Option<&ShardedArray>, _name: &str) -> bool {
        // Nothing is written, so no journal names one.
        false
    }

    fn hides(&self, name: &OsStr) -> bool {
        let is_directory = |name: &str| name.strip_prefix('z').and_then(number).is_some();
        name == HEADER || name.to_str().is_some_and(is_directory)
    }

    fn can_shrink(&self) -> bool {
        false
    }

    fn expected(&self, _layout: &ShardedArray, _chunks_per_shard: &[u64]) -> Option<Expected> {
        let ends = if self.header.is_compressed() { self.header.slots() * END_BYTES } else { 0 };
        Some(Expected::First(HEADER_BYTES as u64 + ends))
    }

    fn read(&self, reading: &Reading<'_>) -> io::Result<Result<Ready, Damage>> {
        if reading.stat.kind != FileKind::File {
            return Ok(Err(Damage::NotAFile(reading.stat.kind)));
        }
        let file = FileState::now(reading.file, reading.stat.size);
        let header = match self.header_of(&file)? {
            Ok(header) => header,
            Err(error) => return Ok(Err(error.into())),
        };
        reading.stats.indexes.loads.count();
        let slots = product(reading.chunks_per_shard).unwrap_or(u64::MAX);
        let index =
            ShardIndex::empty(&IndexCodecs::BARE, IndexLocation::End, reading.chunks_per_shard);
        let Ok(mut index) = index else { return Ok(Err(IndexError::Limit { slots }.into())) };
        let ends = match header.is_compressed() {
            // Within the file, which was checked.
            true => file.read(HEADER_BYTES as u64, to_usize(header.slots() * END_BYTES))?,
            false => Vec::new(),
        };
        let mut refused = HashMap::new();
        for slot in 0..index.slots() {
            let found = block(&header, &ends, header.morton(slot), file.size());
            let nowhere = ByteRange { offset: 0, nbytes: 0 };
            index.set(slot, Some(*found.as_ref().unwrap_or(&nowhere)));
            refused.extend(found.err().map(|defect| (slot, defect)));
        }
        let body = Body::InFile { offset: 0, nbytes: file.size() };
        Ok(Ok(Ready { is_index_stored: false, refused, ..Ready::new(body, index) }))
    }

    fn framing(&self, storage: &dyn Storage, path: &Path, nbytes: u64) -> io::Result<Framing> {
        let file = storage.open(path)?;
        // The header is valid: the file is not damaged.
        let header = self.header_of(&FileState::now(&*file, nbytes))?;
        Ok(Framing { head: header.map_or(0, |header| header.data), ..Framing::default() })
    }
}

impl Wkw {
    /// Reads the header of a file of the data set.
    fn header_of(&self, file: &FileState<'_>) -> io::Result<Result<WkwHeader, WkwError>> {
        let header = WkwHeader::parse(&file.read(0, HEADER_BYTES)?, file.size());
        Ok(header.and_then(|header| self.header.check(&header, file.size()).map(|()| header)))
    }
}

/// Returns the range of the block of this number in a file of `size` bytes with these ends of blocks.
fn block(
    header: &WkwHeader,
    ends: &[u8],
    number: u64,
    size: u64,
) -> Result<ByteRange, ChunkDefect> {
    let (begin, end) = match header.is_compressed() {
        false => {
            let nbytes = header.block_bytes();
            let begin = number.checked_mul(nbytes).and_then(|at| at.checked_add(header.data));
            let begin = begin.ok_or(ChunkDefect::BeginsBeyond)?;
            (begin, begin.saturating_add(nbytes))
        }
        true => {
            let (ends, _) = ends.as_chunks::<8>();
            let end = |number: u64| ends.get(to_usize(number)).map(|end| u64::from_le_bytes(*end));
            let begin = match number.checked_sub(1) {
                Some(before) => end(before),
                None => Some(header.data),
            };
            begin.zip(end(number)).ok_or(ChunkDefect::NoOffset)?
        }
    };
    if begin < header.data {
        return Err(ChunkDefect::InHeader);
    }
    if end > size {
        return Err(ChunkDefect::EndsBeyond);
    }
    match end.checked_sub(begin) {
        Some(nbytes @ 1..) => Ok(ByteRange { offset: begin, nbytes }),
        _ => Err(ChunkDefect::NoOffset),
    }
}
