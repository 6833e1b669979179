//! Shards that an unfinished commit was about to change, as its record describes them.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::blob::{bytes_of, fingerprint_of};
use super::storage::StorageFile;
use crate::format::fingerprint::Fingerprint;
use crate::format::index::ByteRange;
use crate::format::journal::{Record, ShardRecord};
use crate::format::limits::MAX_INDEX_BYTES;
use crate::format::plan::overlap;
use crate::number::to_usize;

/// State of a shard that an unfinished commit was about to change.
///
/// A shard of the record is *finished* if every range that was to be written has its fingerprint:
/// then the commit is rolled forward. Otherwise the old index has its own fingerprint once the
/// overwritten bytes are restored: then the commit is rolled back. Chunks that the old index
/// reaches were never overwritten without a record of their bytes, so they are intact.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The shard was replaced or removed in the meantime.
    Replaced,
    /// Everything was written.
    Finished,
    /// Something was not written, and the old state can be restored.
    Unfinished,
    /// Another writer has changed the shard's length, or an index that the commit does not overwrite,
    /// in the meantime: the record no longer applies.
    Foreign,
    /// Neither the old nor the new index can be recovered.
    Lost,
}

/// Determines the state of a shard that an unfinished commit was about to change.
pub(super) fn examine(file: &dyn StorageFile, record: &ShardRecord) -> io::Result<Found> {
    let stat = file.stat()?;
    if stat.ino != record.ino {
        return Ok(Found::Replaced);
    }
    if stat.size == record.length && is_written(file, record)? {
        return Ok(Found::Finished);
    }
    if stat.size < record.old_length || stat.size > record.length.max(record.old_length) {
        return Ok(Found::Foreign);
    }
    if old_index(file, record)?.is_some() {
        return Ok(Found::Unfinished);
    }
    let index = record.old_index.range;
    let is_overwritten = record.written.iter().any(|new| overlap(new.range, index).is_some());
    Ok(if is_overwritten { Found::Lost } else { Found::Foreign })
}

fn is_written(file: &dyn StorageFile, record: &ShardRecord) -> io::Result<bool> {
    for written in &record.written {
        match fingerprint_of(file, written.range) {
            Ok(found) if found == written.fingerprint => (),
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Returns the stored index as it was before the commit. `None` if it cannot be recovered.
pub(super) fn old_index(
    file: &dyn StorageFile,
    record: &ShardRecord,
) -> io::Result<Option<Vec<u8>>> {
    let range = record.old_index.range;
    if range.nbytes > MAX_INDEX_BYTES {
        return Ok(None);
    }
    let mut bytes = match bytes_of(file, range) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    };
    for (offset, old) in &record.overwritten {
        let Some(both) = overlap(range, ByteRange { offset: *offset, nbytes: old.len() as u64 })
        else {
            continue;
        };
        // Within both, which are in memory.
        let part = |start: u64| to_usize(both.offset - start);
        let (to, from) = (part(range.offset), part(*offset));
        let length = to_usize(both.nbytes);
        bytes[to..to + length].copy_from_slice(&old[from..from + length]);
    }
    Ok((Fingerprint::of(&bytes) == record.old_index.fingerprint).then_some(bytes))
}

/// Returns the part of a pending record that is about the shard with this key. `None` if there is
/// none.
pub fn record_of<'a>(record: &'a Record, name: &Path) -> Option<&'a ShardRecord> {
    record.shards.iter().find(|shard| shard.key == name.as_os_str().as_bytes())
}
