//! Search for unreadable shards, and for older indexes that are still in them.
//!
//! A writer that appends chunks and a new index to a shard and is interrupted in between leaves a
//! file that does not end in an index. The older index is still in its place, and so are the chunks
//! that it reaches. A copy of it after everything else makes the shard readable again, and destroys
//! nothing.
//!
//! A writer that puts chunks into space that others have left, as shardfs does, leaves older indexes
//! whose entries point at bytes of other chunks. Their checksums say nothing about that:
//! [`OlderIndex::contradiction`] does, and decoding every chunk that an index reaches
//! ([`ShardStore::as_of_older`]). Neither finds all of them.
//!
//! An index of which a single byte has changed on the disk says itself which one ([`WrongByte`]).

mod older;
mod own_index;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::older::{Contradiction, OlderIndex};
pub use self::own_index::WrongByte;
use self::own_index::is_plausible;
use super::blob::bytes_of;
use super::error::{Damage, StoreError};
use super::journal::Journal;
use super::lock::{ShardLock, clear_note, note_locks};
use super::owner::Owner;
use super::recover::recover_locked;
use super::storage::{FileKind, PosixFile};
use super::{Freshness, LoadedShard, ShardStore, SourceArray, io_error};
use crate::format::Coords;
use crate::format::index::{EntryError, IndexCodecs, IndexLocation, ShardIndex, product};
use crate::format::search::IndexSearch;
use crate::format::whole_shard::trailing_checksums;
use crate::text::{count, shown};

/// Defect of a shard.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// Its index cannot be read.
    #[error("{0}")]
    Damaged(Arc<Damage>),
    /// Its index, which has no checksum, cannot be one.
    #[error("its index names chunks of no bytes, or chunks that overlap")]
    Implausible,
    /// Its index names a chunk that the shard does not hold.
    #[error("chunk at {0:?}: {1}")]
    BadEntry(Vec<u64>, #[source] EntryError),
}

/// Remedy for a faulty shard.
#[derive(Debug)]
pub enum Remedy {
    /// One byte of its index is wrong.
    Byte(WrongByte),
    /// An older index is in it.
    Older(OlderIndex),
    /// There is none, for this reason.
    None(NoRemedy),
}

/// Reason why a faulty shard cannot be repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRemedy {
    /// The index can be read, the chunks that it names cannot.
    #[error("the index itself is sound: the shard was cut off, or written by faulty software")]
    SoundIndex,
    /// A record of a commit does not fit the shard.
    #[error("the record of the interrupted commit does not fit it")]
    ForeignRecord,
    /// The shard has no bytes.
    #[error("there is nothing in it")]
    Empty,
    /// The shard is not a file that can be opened.
    #[error("there is no file to look into")]
    NoFile,
    /// The format has no index.
    #[error("it has no index")]
    NoIndex,
    /// Codecs over the whole shard cannot be undone.
    #[error("the shard is compressed as a whole")]
    Compressed,
    /// A codec over the whole shard makes the place of the index unknown.
    #[error("a codec over the whole shard hides where its index was")]
    HiddenIndex,
    /// The index is at the start, where each new one overwrites the one before.
    #[error("an index at the start has no older one: it is overwritten in its place")]
    IndexAtStart,
    /// The index has no checksum.
    #[error("its index has no checksum: an older one cannot be distinguished from data")]
    NoChecksum,
    /// No older index was found.
    #[error("no older index stands in it")]
    NoOlderIndex,
}

/// Shard that cannot be read, or not as a whole.
#[derive(Debug)]
pub struct FaultyShard {
    /// Coordinates in the shard grid.
    pub coords: Coords,
    /// Path of the shard, relative to the source's root.
    pub path: PathBuf,
    /// Defect of the shard.
    pub fault: Fault,
    /// Remedy for it.
    pub remedy: Remedy,
    /// Number of its chunks, existing or not.
    pub slots: u64,
}

/// Alternative parameters that make an index readable which cannot be read as the metadata says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtherReading {
    /// Codec chain of the index.
    pub codecs: IndexCodecs,
    /// Location of the index.
    pub location: IndexLocation,
    /// Number of chunks that exist according to it.
    pub chunks: u64,
}

impl std::fmt::Display for OtherReading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = match self.location {
            IndexLocation::Start => "start",
            IndexLocation::End => "end",
        };
        write!(
            f,
            "an index of {} can be read at the {place}, {}",
            count(self.chunks, "chunk"),
            self.codecs
        )
    }
}

impl ShardStore {
    /// Examines all shards of an array and passes the faulty ones to `faulty`, and the errors of those
    /// that cannot be examined. `shards` counts all of them.
    ///
    /// # Errors
    /// The shards cannot be listed.
    pub fn scan(
        &self,
        array: &SourceArray,
        shards: &mut u64,
        faulty: &mut dyn FnMut(Result<FaultyShard, StoreError>),
    ) -> Result<(), StoreError> {
        self.each_shard(array, &mut |coords| -> Result<(), StoreError> {
            let examined = self.shard(array, coords, Freshness::Again).and_then(|shard| {
                let Some(shard) = shard else { return Ok(None) };
                *shards += 1;
                self.examine(array, coords, &shard)
            });
            if let Some(found) = examined.transpose() {
                faulty(found);
            }
            Ok(())
        })
    }

    fn examine(
        &self,
        array: &SourceArray,
        coords: &[u64],
        shard: &LoadedShard,
    ) -> Result<Option<FaultyShard>, StoreError> {
        let path = array.shard_path(coords);
        let slots = product(&array.layout.chunks_per_shard(0, coords)).unwrap_or(u64::MAX);
        let faulty = |fault, remedy| FaultyShard {
            coords: coords.to_vec(),
            path: path.clone(),
            fault,
            remedy,
            slots,
        };
        if let Some(damage) = shard.damage() {
            let remedy = self.remedy(array, (coords, shard), &damage)?;
            return Ok(Some(faulty(Fault::Damaged(damage), remedy)));
        }
        let has_checksum = array.layout.levels[0].index_codecs.checksums() > 0;
        let bad = shard.as_planned().and_then(|old| match old.index.chunks(old.length) {
            Err((slot, error)) => Some(Fault::BadEntry(old.index.position(slot), error)),
            Ok(chunks) if has_checksum || chunks.is_empty() => None,
            Ok(chunks) => {
                let is_index = is_plausible(old.index, &chunks, old.length);
                (!is_index).then_some(Fault::Implausible)
            }
        });
        Ok(bad.map(|fault| {
            let why = match fault {
                Fault::Implausible => NoRemedy::NoChecksum,
                Fault::Damaged(_) | Fault::BadEntry(..) => NoRemedy::SoundIndex,
            };
            faulty(fault, Remedy::None(why))
        }))
    }

    fn remedy(
        &self,
        array: &SourceArray,
        (coords, shard): (&[u64], &LoadedShard),
        damage: &Damage,
    ) -> Result<Remedy, StoreError> {
        let none = |why| Ok(Remedy::None(why));
        match damage {
            Damage::Index(_) | Damage::TooShort { .. } => (),
            Damage::Unfinished => {
                return none(NoRemedy::ForeignRecord);
            }
            Damage::Empty => return none(NoRemedy::Empty),
            Damage::NotAFile(_)
            | Damage::NotADirectory(_)
            | Damage::Unreachable(_)
            | Damage::Missing => {
                return none(NoRemedy::NoFile);
            }
            Damage::Bloscpack(_) | Damage::Blosc2(_) | Damage::Wkw(_) => {
                return none(NoRemedy::NoIndex);
            }
            Damage::Decode(_) | Damage::TooLong { .. } => {
                return none(NoRemedy::Compressed);
            }
        }
        let sharding = &array.layout.levels[0];
        if trailing_checksums(&sharding.after) != Some(0) {
            return none(NoRemedy::HiddenIndex);
        }
        if let Some(wrong) = self.wrong_byte(array, coords, *shard.stat())? {
            return Ok(Remedy::Byte(wrong));
        }
        if sharding.index_location == IndexLocation::Start {
            return none(NoRemedy::IndexAtStart);
        }
        let extents = array.layout.chunks_per_shard(0, coords);
        let Ok(Some(search)) = IndexSearch::new(&sharding.index_codecs, &extents) else {
            return none(NoRemedy::NoChecksum);
        };
        let older = self.older_index(array, coords, &search, *shard.stat())?;
        Ok(older.map_or(Remedy::None(NoRemedy::NoOlderIndex), Remedy::Older))
    }

    /// Finds other parameters, in which writers differ, with which the index of a shard can be
    /// read. `None` if there are none.
    pub fn other_reading(
        &self,
        array: &SourceArray,
        coords: &[u64],
    ) -> Result<Option<OtherReading>, StoreError> {
        let sharding = &array.layout.levels[0];
        let extents = array.layout.chunks_per_shard(0, coords);
        let slots = product(&extents).unwrap_or(u64::MAX);
        let path = array.shard_path(coords);
        let file = self.storage.open(&path).map_err(io_error(&path))?;
        let size = file.stat().map_err(io_error(&path))?.size;
        let Some(nbytes) =
            trailing_checksums(&sharding.after).and_then(|after| size.checked_sub(after))
        else {
            return Ok(None);
        };
        for location in [sharding.index_location, sharding.index_location.other()] {
            for codecs in sharding.index_codecs.others() {
                let stored = codecs.stored_size(slots);
                let Some(place) = stored.and_then(|stored| location.place(stored, nbytes)) else {
                    continue;
                };
                let bytes = bytes_of(&*file, place).map_err(io_error(&path))?;
                let Ok(index) = ShardIndex::decode(bytes, &codecs, location, &extents) else {
                    continue;
                };
                if let Ok(chunks) = index.chunks(nbytes)
                    && is_plausible(&index, &chunks, nbytes)
                {
                    let chunks = chunks.len() as u64;
                    return Ok(Some(OtherReading { codecs, location, chunks }));
                }
            }
        }
        Ok(None)
    }

    /// Puts the remedy that was found into the shard, and returns once it is durable: the right byte in the place of
    /// the wrong one, or a copy of the older index at the end. Nothing else of the shard is changed.
    ///
    /// # Errors
    /// The shard was changed since it was examined, or cannot be written.
    pub fn restore(&self, array: &SourceArray, shard: &FaultyShard) -> Result<(), StoreError> {
        let found_in = match &shard.remedy {
            Remedy::Byte(WrongByte { found_in, .. })
            | Remedy::Older(OlderIndex { found_in, .. }) => found_in,
            Remedy::None(_) => return Ok(()),
        };
        let (path, storage) = (&shard.path, self.posix(array)?);
        let mut journal = Journal::lock(storage, &array.path)?;
        recover_locked(storage, Owner::Array(array), &mut journal)?;
        let key = path.strip_prefix(&array.path).unwrap_or(path).as_os_str().as_bytes();
        note_locks(storage, &array.path, std::iter::once(key))?;
        {
            let _lock = ShardLock::take_of(storage, path)?;
            let file = storage.open_writable(path).map_err(io_error(path))?;
            let now = file.stat().map_err(io_error(path))?;
            if now.kind != FileKind::File || now.version() != found_in.version() {
                return Err(StoreError::Changing { shard: path.clone() });
            }
            let put = match &shard.remedy {
                // One byte is there, or it is not.
                Remedy::Byte(wrong) => {
                    file.write_at(&[wrong.right], wrong.at).and_then(|()| file.sync())
                }
                Remedy::Older(older) => append(&*file, path, older),
                Remedy::None(_) => Ok(()),
            };
            put.map_err(io_error(path))?;
        }
        clear_note(storage, &array.path);
        journal.remove()
    }
}

/// Appends a copy of an older index, and makes it durable.
fn append(file: &dyn PosixFile, path: &Path, older: &OlderIndex) -> io::Result<()> {
    let OlderIndex { index, found_in, .. } = older;
    let append = || {
        file.write_at(&index.bytes, found_in.size)?;
        file.sync()
    };
    // A part of it would hide what the shard ends in. What others have put there, who take no locks, stays.
    let is_ours = |size| size <= found_in.size.saturating_add(index.bytes.len() as u64);
    let undo = || match file.stat()?.size {
        size if is_ours(size) => {
            file.set_length(found_in.size)?;
            file.sync()
        }
        _ => Ok(()),
    };
    append().inspect_err(|_| {
        if let Err(left) = undo() {
            log::error!("{}: half a copy of an index is left at its end: {left}", shown(path));
        }
    })
}
