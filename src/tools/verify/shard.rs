//! Verification of a shard as a whole: readability, overlaps and dead bytes.

use std::io;

use super::checks::{Checks, VerifyConfig, has_empty_chunks};
use super::finding::{Finding, Looks, What, Within};
use super::step::{Checked, Early};
use crate::format::index::{ByteRange, CHECKSUM_BYTES};
use crate::format::pipeline::DecodeError;
use crate::format::whole_shard::wrong_checksum;
use crate::number::to_usize;
use crate::source::Source;
use crate::store::entries::{Place, Span};
use crate::store::storage::StorageFile;
use crate::store::{Body, Damage, LoadedShard, StoreError, io_error};
use crate::tools::parts::{Loaded, SharedShard};
use crate::tools::survey::{InnerClash, Survey, has_checksums_only, range_of, survey};

/// Maximum length in bytes of a file that is not a shard and is decoded as a chunk, to identify it.
const MAX_GUESS_BYTES: u64 = 256 << 20;
/// Length in bytes of a single read.
const PIECE_BYTES: u64 = 1 << 20;

pub(super) fn check(
    source: &Source,
    config: VerifyConfig,
    early: &Early<'_>,
    checks: &Checks,
    shard: &SharedShard,
) -> Checked {
    let check = ShardCheck { source, config, early, checks, shard };
    let mut checked = Checked::default();
    let done = match shard.load(&source.store) {
        Ok(Loaded::Here(loaded)) => match loaded.damage() {
            Some(damage) => {
                let what = What::Damage { looks: check.looks(&damage), damage };
                check.found(&mut checked, what);
                check.count(&mut checked);
                Ok(())
            }
            None => check.sound(&loaded, &mut checked),
        },
        Ok(Loaded::Absent) => {
            if !has_empty_chunks(&checks.array) {
                check.found(&mut checked, What::Missing);
            }
            Ok(())
        }
        Ok(Loaded::Failed) => Ok(()),
        Err(error) => Err(error),
    };
    if let Err(error) = done {
        let finding = Finding::of_error(&checks.array.source.path, error, None);
        checked.found(early, finding);
    }
    checked
}

struct ShardCheck<'a> {
    source: &'a Source,
    config: VerifyConfig,
    early: &'a Early<'a>,
    checks: &'a Checks,
    shard: &'a SharedShard,
}

impl ShardCheck<'_> {
    fn path(&self) -> std::path::PathBuf {
        self.checks.array.source.shard_path(&self.shard.coords)
    }

    fn found(&self, checked: &mut Checked, what: What) {
        let finding = Finding::of_shard(&self.checks.array.source.path, self.path(), what);
        checked.found(self.early, finding);
    }

    /// Counts the file, a shard or a chunk by itself.
    fn count(&self, checked: &mut Checked) {
        let counts = &mut checked.step.counts;
        match self.checks.array.is_unsharded() {
            true => counts.files = 1,
            false => counts.shards = 1,
        }
    }

    /// Checks a shard whose index can be read.
    fn sound(
        &self,
        loaded: &std::sync::Arc<LoadedShard>,
        checked: &mut Checked,
    ) -> Result<(), StoreError> {
        let (source, array) = (self.source, &*self.checks.array);
        let (store, coords) = (&source.store, &self.shard.coords);
        self.count(checked);
        let (mut bad, mut outside) = (0_u64, 0);
        let mut summed = Vec::new();
        let survey = survey(&*source.storage, store, array, coords, loaded, &mut |span, place| {
            match place {
                Place::Shard { level, shard } if self.config.decode => {
                    self.checksums(level, shard, span, &mut summed)?;
                }
                Place::Chunk { .. } => {
                    outside += u64::from(span.is_outside(&self.checks.grid));
                }
                Place::Bad(StoreError::BadEntry { .. }) => bad += 1,
                Place::Bad(_) | Place::Empty | Place::Shard { .. } => (),
            }
            Ok::<_, StoreError>(())
        })?;
        summed.into_iter().for_each(|finding| checked.found(self.early, finding));
        checked.step.counts.bytes += survey.overhead;
        checked.tally.outside = outside;
        checked.tally.shared = survey.shared;
        checked.tally.wrapped = survey.wrapped;
        checked.tally.dead = survey.dead;
        checked.tally.dead_shards = u64::from(survey.dead > 0);
        if loaded.is_unfinished() {
            self.found(checked, What::Unfinished);
        }
        let is_index_bad = bad > 0 || survey.clashes.iter().any(|clash| clash.is_index);
        if is_index_bad && array.source.layout.levels[0].index_codecs.checksums() == 0 {
            let other = store.other_reading(&array.source, coords)?;
            other.into_iter().for_each(|other| self.found(checked, What::IndexCodecs(other)));
        }
        self.older_indexes(&survey, checked)?;
        if survey.clashes.is_empty() { Ok(()) } else { self.overlaps(loaded, survey, checked) }
    }

    fn older_indexes(&self, survey: &Survey, checked: &mut Checked) -> Result<(), StoreError> {
        let (array, coords) = (&self.checks.array.source, &self.shard.coords);
        let older = self.source.store.count_older_indexes(array, coords, &survey.gaps)?;
        checked.tally.older = older;
        checked.tally.older_shards = u64::from(older > 0);
        Ok(())
    }

    /// Reports the chunks whose ranges overlap others; the survey has found only the ranges.
    fn overlaps(
        &self,
        loaded: &std::sync::Arc<LoadedShard>,
        survey: Survey,
        checked: &mut Checked,
    ) -> Result<(), StoreError> {
        let array = &self.checks.array.source;
        let mut clashes = survey.clashes;
        let key = |clash: &InnerClash| {
            let range = clash.clash.range;
            (clash.level, clash.start, range.offset, range.nbytes)
        };
        clashes.sort_unstable_by_key(key);
        // Offsets of the shards that enclose the current place.
        let mut starts: Vec<u64> = Vec::new();
        let (store, coords) = (&self.source.store, &self.shard.coords);
        store.each_place(array, coords, loaded, &mut |span, place| {
            let (level, range, is_shard) = match &place {
                Place::Shard { level, shard } => {
                    starts.truncate(*level);
                    let stored = shard.stored().map(|stored| range_of(stored).0);
                    let above = starts.len().checked_sub(1).zip(stored);
                    starts.push(shard.body().map_or(0, |body| range_of(body).0.offset));
                    let Some((level, range)) = above else { return Ok(()) };
                    (level, range, true)
                }
                Place::Chunk { body, .. } => {
                    (array.layout.levels.len() - 1, range_of(body).0, false)
                }
                Place::Empty | Place::Bad(_) => return Ok(()),
            };
            let wanted = (level, starts[level], range.offset, range.nbytes);
            let first = clashes.partition_point(|clash| key(clash) < wanted);
            let mine = clashes[first..].iter().take_while(|clash| key(clash) == wanted);
            for InnerClash { clash, is_index, .. } in mine {
                let (range, with, is_index) = (clash.range, clash.with, *is_index);
                let mut position = array.layout.locate(span.first).positions;
                position.truncate(level + 1);
                let (position, chunk) = (position.concat(), Some(span.first.to_vec()));
                checked.found(
                    self.early,
                    Finding {
                        within: Some(Within { is_shard, position, chunk }),
                        ..Finding::of_shard(
                            &array.path,
                            self.path(),
                            What::Overlap { range, with, is_index },
                        )
                    },
                );
            }
            Ok::<_, StoreError>(())
        })
    }

    /// Verifies the checksums over a shard, or over a shard inside it, which reading chunks does
    /// not.
    fn checksums(
        &self,
        level: usize,
        shard: &LoadedShard,
        span: Span<'_>,
        found: &mut Vec<Finding>,
    ) -> Result<(), StoreError> {
        let array = &self.checks.array.source;
        let Some(count) = has_checksums_only(&array.layout.levels[level].after) else {
            return Ok(());
        };
        let path = self.path();
        let whole = Body::InFile { offset: 0, nbytes: shard.stat().size };
        let summed = match shard.stored().unwrap_or(&whole) {
            Body::InFile { offset, nbytes } => {
                let file = self.source.storage.open(&path).map_err(io_error(&path))?;
                let range = ByteRange { offset: *offset, nbytes: *nbytes };
                bad_checksum(range, count, &*file)
            }
            Body::InMemory { bytes, start, end } => {
                let bytes = bytes.get(*start..*end).unwrap_or_default();
                let range = ByteRange { offset: 0, nbytes: bytes.len() as u64 };
                bad_checksum(range, count, bytes)
            }
        };
        let Some(error) = summed.map_err(io_error(&path))? else { return Ok(()) };
        let within = level.checked_sub(1).map(|above| {
            let mut position = array.layout.locate(span.first).positions;
            position.truncate(above + 1);
            let chunk = Some(span.first.to_vec());
            Within { is_shard: true, position: position.concat(), chunk }
        });
        let finding = Finding::of_shard(&array.path, path, What::Checksum(error));
        found.push(Finding { within, ..finding });
        Ok(())
    }

    /// Returns what a file that cannot be read as a shard looks like; `None` if it is not
    /// recognized.
    fn looks(&self, damage: &Damage) -> Option<Looks> {
        let array = &self.checks.array.source;
        if !array.format.has_index()
            || !matches!(damage, Damage::Index(_) | Damage::TooShort { .. })
        {
            return None;
        }
        let other = self.source.store.other_reading(array, &self.shard.coords).ok().flatten();
        if let Some(other) = other {
            return Some(Looks::Other(other));
        }
        let pipeline = self.checks.pipeline.as_ref().ok()?;
        let path = self.path();
        let size = self.source.storage.stat(&path).ok()?.size;
        let is_chunk = match pipeline.encoded_nbytes() {
            Some(nbytes) => size == nbytes,
            None if size > MAX_GUESS_BYTES => false,
            None => {
                let file = self.source.storage.open(&path).ok()?;
                let mut encoded = vec![0; to_usize(size)];
                let read = file.read_at(&mut encoded, 0).ok()?;
                pipeline.decode(&encoded[..read], &mut vec![0; pipeline.nbytes()]).is_ok()
            }
        };
        is_chunk.then_some(Looks::Unsharded)
    }
}

/// A source of bytes at given offsets.
trait Bytes {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Bytes for dyn StorageFile + '_ {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buffer, offset)? {
            read if read == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Bytes for [u8] {
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let from = to_usize(offset);
        let bytes = self.get(from..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Returns the first of `count` checksums at the end of a range that does not match all bytes
/// before it; `None` if all match.
fn bad_checksum<B: Bytes + ?Sized>(
    range: ByteRange,
    count: usize,
    bytes: &B,
) -> io::Result<Option<DecodeError>> {
    let trailing = (count * CHECKSUM_BYTES) as u64;
    let body = range.nbytes.saturating_sub(trailing);
    let mut computed = 0;
    let mut done = 0;
    let mut buffer = vec![0; to_usize(body.min(PIECE_BYTES))];
    while done < body {
        let length = to_usize((body - done).min(PIECE_BYTES));
        bytes.read(&mut buffer[..length], range.offset + done)?;
        computed = crc32c::crc32c_append(computed, &buffer[..length]);
        done += length as u64;
    }
    for _ in 0..count {
        let mut stored = [0; CHECKSUM_BYTES];
        bytes.read(&mut stored, range.offset + done)?;
        let found = u32::from_le_bytes(stored);
        if found != computed {
            return Ok(Some(wrong_checksum(found, computed)));
        }
        computed = crc32c::crc32c_append(computed, &stored);
        done += stored.len() as u64;
    }
    Ok(None)
}
