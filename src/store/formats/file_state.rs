//! State of a shard's file: the present one, or that before an unfinished commit.

use std::io;

use crate::format::index::ByteRange;
use crate::format::journal::ShardRecord;
use crate::format::plan::overlap;
use crate::memory::zeroed;
use crate::number::to_usize;
use crate::store::storage::StorageFile;
use crate::store::unfinished::{Found, examine};

/// File in its present state, or in that before an unfinished commit.
pub struct FileState<'a> {
    file: &'a dyn StorageFile,
    size: u64,
    /// Bytes that the commit has overwritten, by offset.
    old: &'a [(u64, Vec<u8>)],
}

impl<'a> FileState<'a> {
    /// Returns the present state of a file of `size` bytes.
    pub fn now(file: &'a dyn StorageFile, size: u64) -> Self {
        Self { file, size, old: &[] }
    }

    /// Returns the state of a file that a commit was about to change: the new one if everything was
    /// written, otherwise the old one. `None` if neither can be recovered.
    pub fn durable(
        file: &'a dyn StorageFile,
        size: u64,
        pending: Option<&'a ShardRecord>,
    ) -> io::Result<Option<Self>> {
        let Some(record) = pending else { return Ok(Some(Self::now(file, size))) };
        Ok(match examine(file, record)? {
            Found::Finished | Found::Replaced | Found::Foreign => Some(Self::now(file, size)),
            Found::Unfinished => {
                Some(Self { file, size: record.old_length, old: &record.overwritten })
            }
            Found::Lost => None,
        })
    }

    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Ranges the unfinished commit has overwritten.
    pub fn lost(&self) -> Vec<ByteRange> {
        let range = |(offset, old): &(u64, Vec<u8>)| ByteRange {
            offset: *offset,
            nbytes: old.len() as u64,
        };
        self.old.iter().map(range).collect()
    }

    /// Says that ranges will be read soon: [`StorageFile::fetch_ahead`].
    pub fn expect(&self, ranges: &[ByteRange]) {
        self.file.fetch_ahead(ranges);
    }

    /// Reads up to `length` bytes; fewer at the end of the file.
    pub fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = zeroed(length as u64)?;
        let read = self.file.read_at(&mut bytes, offset)?;
        let rest = to_usize(self.size.saturating_sub(offset));
        bytes.truncate(read.min(rest));
        let here = ByteRange { offset, nbytes: bytes.len() as u64 };
        for (at, old) in self.old {
            let range = ByteRange { offset: *at, nbytes: old.len() as u64 };
            let Some(both) = overlap(here, range) else { continue };
            // Within both, which are in memory.
            let part = |start: u64| to_usize(both.offset - start);
            let (to, from) = (part(offset), part(*at));
            let length = to_usize(both.nbytes);
            bytes[to..to + length].copy_from_slice(&old[from..from + length]);
        }
        Ok(bytes)
    }
}
