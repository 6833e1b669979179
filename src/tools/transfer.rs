//! Copying the encoded chunks of an array into other shards, or into files of their own.
//!
//! ```text
//! shards of the source, one after the other -> the shards of the copy that have a chunk in them
//! a shard of the copy (or several chunk files) -> one unit of work
//!    absent:   written chunk by chunk from the source's readers into one file, digested on the way
//!    present:  compared with the source by digest; rewritten if it differs
//! everything -> synced, read back, its digest compared with that of the source
//! ```

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use super::destination::{Destination, DestinationError};
use super::digest::ContentDigest;
use super::parallel::{Give, Stopped, in_order};
use super::shard_file::{Packing, ShardFileError, copy, write_chunk, write_shard};
use crate::format::Coords;
use crate::format::sharding::ShardedArray;
use crate::source::{Array, Source};
use crate::store::entries::Place;
use crate::store::{Chunk, ChunkReader, Freshness, ShardStore, SourceArray, StoreError};
use crate::text::{count, shown};

/// Number of chunk files in one unit of work.
const FILES_AT_ONCE: usize = 64;

/// The same in a store, where each takes long.
const OBJECTS_AT_ONCE: usize = 4;

/// Error of copying an array.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    /// A chunk of the source cannot be read.
    #[error(transparent)]
    Source(#[from] StoreError),
    /// Another process is writing to the source.
    #[error(
        "{}: it was changed while it was being read: another process writes to the source; nothing is \
         lost, run the command again once it has finished", shown(.0)
    )]
    Changing(PathBuf),
    /// The copy cannot be written.
    #[error(transparent)]
    Destination(#[from] DestinationError),
    /// The index of a shard would exceed its limits.
    #[error("{}: {error}", shown(.path))]
    Shard {
        /// Path of the shard, relative to the destination.
        path: PathBuf,
        /// The error.
        error: crate::format::index::IndexError,
    },
    /// Another thread has failed and returns its error.
    #[error("stopped")]
    Stopped(#[from] Stopped),
    /// The copy differs from the source when read back.
    #[error(
        "{}: what was written is not what was read: {} of digest {found_digest}, \
         {expected} of {expected_digest} were expected; --force makes it anew",
        shown(.path), count(.found, "chunk")
    )]
    Differs {
        /// The array's directory in the destination.
        path: PathBuf,
        /// Number of chunks in the copy.
        found: u64,
        /// Digest of the chunks in the copy.
        found_digest: String,
        /// Number of chunks in the source.
        expected: u64,
        /// Digest of the chunks in the source.
        expected_digest: String,
    },
}

/// A copy of an array in progress.
pub(crate) struct Transfer<'a> {
    /// Source of the chunks.
    source: &'a Source,
    /// Array in the source.
    array: &'a Array,
    /// Destination of the chunks.
    destination: &'a Destination,
    /// Array in the destination.
    copy: SourceArray,
    /// Packing of the shards of the copy.
    packing: Packing,
    /// Store of the destination.
    there: ShardStore,
}

/// Result of copying chunks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Transferred {
    /// Digest of the chunks that were copied or already present.
    pub digest: ContentDigest,
    /// Number of files that were already present and correct.
    pub kept: u64,
    /// Number of files that were written.
    pub written: u64,
    /// Descriptions of the defects of chunks and shards in the source that cannot be read.
    pub damaged: BTreeSet<String>,
}

impl Transferred {
    fn add(&mut self, other: Self) {
        self.digest.add(&other.digest);
        self.kept += other.kept;
        self.written += other.written;
        self.damaged.extend(other.damaged);
    }
}

/// Progress callback, called with the number of bytes of chunks copied.
pub(crate) type Report<'a> = dyn Fn(u64) + Sync + 'a;

impl<'a> Transfer<'a> {
    /// Prepares a copy of `array` as the array `copy` of the destination.
    pub(crate) fn new(
        source: &'a Source,
        array: &'a Array,
        destination: &'a Destination,
        copy: SourceArray,
        packing: Packing,
    ) -> Self {
        let storage = Arc::clone(&destination.storage);
        let there = ShardStore::new(storage, destination.reading(), Arc::default());
        Self { source, array, destination, copy, packing, there }
    }

    /// Copies all undamaged chunks and reads them back.
    ///
    /// # Errors
    /// Returns [`TransferError::Differs`] if the copy differs from the source.
    pub(crate) fn run(
        &self,
        threads: NonZeroUsize,
        report: &Report<'_>,
    ) -> Result<Transferred, TransferError> {
        let mut all = Transferred::default();
        in_order(
            threads,
            |give| self.find_work(give),
            |shards: Vec<Coords>| self.make(&shards, report),
            |done| {
                all.add(done);
                Ok(())
            },
        )?;
        // Sync and read-back run at once: one uses the disk, the other the processors.
        let (synced, found) = std::thread::scope(|scope| {
            let sync = scope.spawn(|| self.destination.sync());
            let found = self.read_back(threads);
            (sync.join(), found)
        });
        synced.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let found = found?;
        if found == all.digest {
            return Ok(all);
        }
        Err(TransferError::Differs {
            path: self.destination.name.join(&self.copy.path),
            found: found.chunks,
            found_digest: found.to_string(),
            expected: all.digest.chunks,
            expected_digest: all.digest.to_string(),
        })
    }

    /// Returns the digest of the copy as it is.
    fn read_back(&self, threads: NonZeroUsize) -> Result<ContentDigest, TransferError> {
        digest_of(&self.there, &self.copy, threads, &|_| ())
    }

    /// Queues the shards of the copy that may have chunks in them, each once.
    fn find_work(&self, give: &mut Give<'_, Vec<Coords>>) -> Result<(), TransferError> {
        let (from, to) = (&self.array.source.layout, &self.copy.layout);
        let at_once = match (self.copy.format.is_bare(), self.destination.is_in_store()) {
            (true, false) => FILES_AT_ONCE,
            (true, true) => OBJECTS_AT_ONCE,
            (false, _) => 1,
        };
        let mut seen: HashSet<Coords> = HashSet::new();
        let mut waiting = Vec::new();
        self.source.store.each_shard(&self.array.source, &mut |shard| {
            let covered = covered_shards(from, shard, to);
            for target in boxed(&covered) {
                // A target within the source's shard is met only once and need not be remembered.
                if !lies_within(to, &target, from, shard) && !seen.insert(target.clone()) {
                    continue;
                }
                waiting.push(target);
                if waiting.len() >= at_once {
                    give(std::mem::take(&mut waiting))?;
                }
            }
            Ok::<(), TransferError>(())
        })?;
        Ok(give(waiting)?)
    }

    fn make(&self, shards: &[Coords], report: &Report<'_>) -> Result<Transferred, TransferError> {
        let mut done = Transferred::default();
        for shard in shards {
            done.add(match self.copy.format.is_bare() {
                true => self.make_file(shard, report)?,
                false => self.make_shard(shard, report)?,
            });
        }
        Ok(done)
    }

    /// Opens the chunk at some coordinates; `None` if there is none. The defect of a damaged one is
    /// added to `damaged`.
    fn find(
        &self,
        coords: &[u64],
        damaged: &mut BTreeSet<String>,
    ) -> Result<Option<ChunkReader>, TransferError> {
        if coords.iter().zip(&self.copy.layout.shard_grid).any(|(at, axis)| *at >= axis.chunks()) {
            return Ok(None);
        }
        match open_chunk(&self.source.store, &self.array.source, coords) {
            Err(TransferError::Source(error)) if error.is_damage() => {
                damaged.insert(error.to_string());
                Ok(None)
            }
            found => found,
        }
    }

    /// Copies one chunk to a file of its own.
    fn make_file(&self, coords: &[u64], report: &Report<'_>) -> Result<Transferred, TransferError> {
        let mut done = Transferred::default();
        let Some(reader) = self.find(coords, &mut done.damaged)? else { return Ok(done) };
        let path = self.copy.shard_path(coords);
        let (mode, failed) = (reader.shard().mode, |error| self.failed(coords, &path, error));
        let made = match write_chunk(coords, &reader, &|| self.destination.create(&path, mode)) {
            Err(ShardFileError::Write(error)) if is_there(&error) => {
                let digest = copy(coords, &reader, &mut Vec::new(), &mut |_| Ok(()));
                let digest = digest.map_err(failed)?;
                if self.digest_there(coords)? == Some(digest) {
                    done.kept += 1;
                    Ok(digest)
                } else {
                    done.written += 1;
                    write_chunk(coords, &reader, &|| self.destination.create_anew(&path, mode))
                }
            }
            made => {
                done.written += 1;
                made
            }
        };
        let digest = made.map_err(failed)?;
        report(digest.nbytes);
        done.digest = digest;
        Ok(done)
    }

    /// Writes a shard, unless it is already present and correct.
    fn make_shard(&self, shard: &[u64], report: &Report<'_>) -> Result<Transferred, TransferError> {
        let path = self.copy.shard_path(shard);
        let mut damaged = BTreeSet::new();
        let is_there_already =
            self.destination.is_resumed && self.destination.storage.lstat(&path).is_ok();
        if is_there_already && let Some(digest) = self.compare(shard, &mut damaged)? {
            report(digest.nbytes);
            return Ok(Transferred { digest, kept: 1, written: 0, damaged });
        }
        damaged.clear();
        let mode = self.mode_of(shard)?;
        let mut find = |coords: &[u64]| {
            let found = self.find(coords, &mut damaged)?;
            report(found.as_ref().map_or(0, ChunkReader::nbytes));
            Ok(found.map(|reader| (reader, None)))
        };
        let create = || self.destination.create_anew(&path, mode);
        let written = write_shard(&self.copy.layout, shard, self.packing, &mut find, &create);
        if let Err(ShardFileError::Write(error)) = &written
            && error.raw_os_error() == Some(libc::ESTALE)
            && let Some(digest) = self.compare(shard, &mut damaged)?
        {
            // Another process does the same, and was faster.
            return Ok(Transferred { digest, kept: 1, written: 0, damaged });
        }
        let written = written.map_err(|error| self.failed_shard(&path, error))?;
        let (digest, written) = match &written {
            Some(written) => (written.digest, 1),
            None => (ContentDigest::default(), 0),
        };
        Ok(Transferred { digest, kept: 0, written, damaged })
    }

    /// Returns the digest of the source's chunks for a shard of the copy if the shard holds exactly
    /// these; otherwise `None`.
    fn compare(
        &self,
        shard: &[u64],
        damaged: &mut BTreeSet<String>,
    ) -> Result<Option<ContentDigest>, TransferError> {
        let Some(there) = self.digest_there(shard)? else { return Ok(None) };
        let (mut digest, mut buffer) = (ContentDigest::default(), Vec::new());
        for coords in boxed(&self.spans(shard)) {
            if let Some(reader) = self.find(&coords, damaged)? {
                let chunk = copy(&coords, &reader, &mut buffer, &mut |_| Ok(()));
                digest.add(&chunk.map_err(|error| self.failed(&coords, &PathBuf::new(), error))?);
            }
        }
        Ok((digest == there).then_some(digest))
    }

    /// Returns the first chunk of a shard of the copy along each axis, and the first one behind it.
    fn spans(&self, shard: &[u64]) -> Vec<(u64, u64)> {
        let axes = shard.iter().zip(&self.copy.layout.shard_grid);
        axes.map(|(coord, axis)| {
            let (first, edge) = axis.span(*coord);
            (first, (first + edge).min(axis.chunks()))
        })
        .collect()
    }

    /// Returns the permissions of a shard of the copy: those that all files give that hold its
    /// chunks. They must be known before the first chunk is written.
    fn mode_of(&self, shard: &[u64]) -> Result<u32, TransferError> {
        let mut mode = 0o777;
        for coords in boxed(&self.spans(shard)) {
            match self.source.store.chunk(&self.array.source, &coords, Freshness::Recent) {
                Ok(Some(chunk)) => mode &= chunk.shard.mode,
                Ok(None) => (),
                Err(error) if error.is_damage() => (),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(mode)
    }

    /// Returns the digest of a file of the copy; `None` if it cannot be read.
    fn digest_there(&self, shard: &[u64]) -> Result<Option<ContentDigest>, TransferError> {
        match digest_of_shard(&self.there, &self.copy, shard, &|_| ()) {
            Ok(digest) => Ok(Some(digest)),
            Err(TransferError::Source(_) | TransferError::Changing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn failed(
        &self,
        coords: &[u64],
        path: &std::path::Path,
        error: ShardFileError<TransferError>,
    ) -> TransferError {
        let source = &self.array.source;
        let from = || source.shard_path(&source.layout.shard_of(coords));
        match error {
            ShardFileError::Chunk(error) => error,
            ShardFileError::Changed => TransferError::Changing(from()),
            ShardFileError::Read(error) => StoreError::Io { path: from(), error }.into(),
            ShardFileError::Write(error) => self.destination.failed(path)(error).into(),
            ShardFileError::Index(error) => TransferError::Shard { path: path.to_owned(), error },
        }
    }

    fn failed_shard(
        &self,
        path: &std::path::Path,
        error: ShardFileError<TransferError>,
    ) -> TransferError {
        self.failed(&[], path, error)
    }
}

/// Opens a chunk for reading; `None` if there is none. A chunk that must exist is damaged then.
pub(crate) fn open_chunk(
    store: &ShardStore,
    array: &SourceArray,
    coords: &[u64],
) -> Result<Option<ChunkReader>, TransferError> {
    let Some(chunk) = store.chunk(array, coords, Freshness::Recent)? else {
        store.check_absent(array, &array.layout.shard_of(coords))?;
        return Ok(None);
    };
    match store.reader(array, coords, &chunk)? {
        Some(reader) => Ok(Some(reader)),
        None => Err(TransferError::Changing(array.shard_path(&array.layout.shard_of(coords)))),
    }
}

/// Returns the digest of all chunks of an array that are in its grid.
pub(crate) fn digest_of(
    store: &ShardStore,
    array: &SourceArray,
    threads: NonZeroUsize,
    report: &Report<'_>,
) -> Result<ContentDigest, TransferError> {
    let mut all = ContentDigest::default();
    let find = |give: &mut Give<'_, Vec<Coords>>| {
        let at_once = if array.format.is_bare() { FILES_AT_ONCE } else { 1 };
        let mut waiting = Vec::new();
        store.each_shard(array, &mut |shard| {
            waiting.push(shard.to_vec());
            if waiting.len() >= at_once {
                give(std::mem::take(&mut waiting))?;
            }
            Ok::<(), TransferError>(())
        })?;
        Ok(give(waiting)?)
    };
    let work = |shards: Vec<Coords>| {
        let mut sum = ContentDigest::default();
        for shard in shards {
            sum.add(&digest_of_shard(store, array, &shard, report)?);
        }
        Ok(sum)
    };
    let take = |sum: ContentDigest| -> Result<(), TransferError> {
        all.add(&sum);
        Ok(())
    };
    in_order(threads, find, work, take)?;
    Ok(all)
}

/// Returns the digest of the chunks of a shard that are in the array's grid.
pub(crate) fn digest_of_shard(
    store: &ShardStore,
    array: &SourceArray,
    shard: &[u64],
    report: &Report<'_>,
) -> Result<ContentDigest, TransferError> {
    let digest = digest_of_places(store, array, shard, Some(&array.layout.chunk_grid()))?;
    report(digest.nbytes);
    Ok(digest)
}

/// Returns the digest of the chunks of a shard: of all, or of those in a grid.
pub(crate) fn digest_of_places(
    store: &ShardStore,
    array: &SourceArray,
    shard: &[u64],
    grid: Option<&[u64]>,
) -> Result<ContentDigest, TransferError> {
    let mut digest = ContentDigest::default();
    // The shard may just have been rewritten.
    let loaded = store.shard(array, shard, Freshness::Again)?;
    let Some(loaded) = loaded else { return Ok(digest) };
    if let Some(damage) = loaded.damage() {
        return Err(StoreError::Damaged { shard: array.shard_path(shard), damage }.into());
    }
    let changing = || TransferError::Changing(array.shard_path(shard));
    let mut buffer = Vec::new();
    store.each_place(array, shard, &loaded, &mut |span, place| {
        let (body, digest_of_chunk) = match place {
            _ if grid.is_some_and(|grid| span.is_outside(grid)) => return Ok(()),
            Place::Shard { .. } | Place::Empty => return Ok(()),
            Place::Bad(error) => return Err(TransferError::Source(error)),
            Place::Chunk { body, digest } => (body, digest),
        };
        let chunk = Chunk { shard: *loaded.stat(), body, digest: digest_of_chunk };
        let reader = store.reader(array, span.first, &chunk)?.ok_or_else(changing)?;
        let chunk = copy(span.first, &reader, &mut buffer, &mut |_| Ok(()));
        digest.add(&chunk.map_err(|error: ShardFileError<TransferError>| match error {
            ShardFileError::Read(error) => {
                StoreError::Io { path: array.shard_path(shard), error }.into()
            }
            _ => changing(),
        })?);
        Ok(())
    })?;
    Ok(digest)
}

/// Returns, along each axis, the first shard of `to` that has chunks in common with a shard of
/// `from`, and the one after the last.
fn covered_shards(from: &ShardedArray, shard: &[u64], to: &ShardedArray) -> Vec<(u64, u64)> {
    let axes = shard.iter().zip(&from.shard_grid).zip(&to.shard_grid);
    axes.map(|((coord, from), to)| {
        let (first, edge) = from.span(*coord);
        let end = (first + edge).min(from.chunks()).min(to.chunks());
        match end.checked_sub(1) {
            Some(last) if last >= first => (to.locate(first).0, to.locate(last).0 + 1),
            _ => (0, 0),
        }
    })
    .collect()
}

/// Returns whether all chunks of a shard of `to` that are in the grid are also in a shard of
/// `from`.
fn lies_within(to: &ShardedArray, target: &[u64], from: &ShardedArray, shard: &[u64]) -> bool {
    let axes = target.iter().zip(&to.shard_grid).zip(shard.iter().zip(&from.shard_grid));
    axes.into_iter().all(|((target, to), (shard, from))| {
        let ((first, edge), (start, length)) = (to.span(*target), from.span(*shard));
        first >= start && (first + edge).min(to.chunks()) <= start + length
    })
}

/// Iterates over all coordinates in a box, in C order.
fn boxed(spans: &[(u64, u64)]) -> impl Iterator<Item = Coords> + use<> {
    let (first, extents): (Vec<u64>, Vec<u64>) =
        spans.iter().map(|(from, to)| (*from, to.saturating_sub(*from))).unzip();
    let mut positions =
        crate::format::order::Positions::new(crate::format::order::ChunkOrder::C, &extents);
    std::iter::from_fn(move || {
        let position = positions.advance()?;
        Some(first.iter().zip(position).map(|(first, at)| first + at).collect())
    })
}

fn is_there(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AlreadyExists
}
