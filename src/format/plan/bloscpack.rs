//! Planning a commit to a Bloscpack file ([`crate::format::bloscpack`]).
//!
//! ```text
//! before    | header | metadata | offsets | a | b | c |
//!
//! in place  | header | metadata | offsets | a | B | c |       B over b if it has the same length,
//!                                                             or less than is reserved there
//! append    | HEADER | metadata | OFFSETS | a | b | C | d |   into the spare offsets; the chunk at
//!                                                             the end may have any length
//! rewrite   | HEADER | metadata | OFFSETS | a | B | c | d |   a new file, renamed into place
//! ```
//!
//! The `bloscpack` program reads chunks in sequence and ignores their offsets, so chunks without
//! gaps between them are kept without gaps. There is no second index to switch to: every change
//! within the file is made under a record of the old bytes.

use std::collections::BTreeMap;

use super::{Blob, Facts, Plan, PlanError, Policy, Source, Update, Write, end, overlap};
use crate::format::blosc::MAX_BLOSC;
use crate::format::bloscpack::{HEADER_BYTES, Header, OFFSET_BYTES};
use crate::format::chunk_error::{ChunkDefect, Refusal};
use crate::format::index::ByteRange;
use crate::format::limits::MAX_INDEX_BYTES;

/// An existing file.
#[derive(Debug, Clone)]
pub struct OldFile<'a> {
    /// Header of the file.
    pub header: &'a Header,
    /// Offset of the table of offsets; `None` if there is none.
    pub offsets: Option<u64>,
    /// Offset of the first byte after header, metadata and offsets.
    pub body: u64,
    /// Ranges of the chunks by chunk number, without checksums; unreadable chunks are missing.
    pub chunks: &'a BTreeMap<u64, ByteRange>,
    /// Number of chunks, unreadable ones included.
    pub nchunks: u64,
    /// Uncompressed bytes of the last chunk.
    pub last_decoded: Option<u32>,
    /// Length of the file in bytes.
    pub size: u64,
}

/// A chunk to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewChunk {
    /// Uncompressed bytes.
    pub decoded: u32,
    /// Blosc buffer, followed by its checksum.
    pub stored: Blob,
}

/// Returns the new chunks that cannot be stored, with the reason. `new` maps chunk numbers to
/// uncompressed bytes. All chunks but the last must be as long as the header says, and none before
/// the last may be missing.
pub fn refused(old: &OldFile<'_>, new: &BTreeMap<u64, u32>) -> BTreeMap<u64, Refusal> {
    let (mut nchunks, mut last) = (old.nchunks, old.last_decoded);
    let mut full = old.header.chunk_size;
    let mut refused = BTreeMap::new();
    for (&slot, &decoded) in new {
        let is_short = full.is_some_and(|full| decoded < full);
        // The header cannot express other lengths.
        let why = if !(1..=MAX_BLOSC).contains(&decoded) {
            Some(Refusal::NoBlosc)
        } else if full.is_some_and(|full| decoded > full) {
            Some(Refusal::MoreBytes)
        } else if slot > nchunks {
            Some(Refusal::Gap)
        } else if slot == nchunks && nchunks > 0 && full.is_some() && last != full {
            Some(Refusal::ShortBefore)
        } else if slot + 1 < old.nchunks && is_short {
            Some(Refusal::FewerBytes)
        } else {
            None
        };
        if let Some(why) = why {
            refused.insert(slot, why);
        } else if slot + 1 >= nchunks {
            // The first chunk of an empty file defines the chunk size.
            full = full.or((nchunks == 0).then_some(decoded));
            (nchunks, last) = (slot + 1, Some(decoded));
        }
    }
    refused
}

/// Plans the commit of chunks, none of which [`refused`] returns.
pub fn plan(
    old: &OldFile<'_>,
    changes: &BTreeMap<u64, NewChunk>,
    policy: Policy,
    facts: Facts,
) -> Result<Plan, PlanError> {
    let missing = |slot: &u64| !old.chunks.contains_key(slot) && !changes.contains_key(slot);
    if let Some(slot) = (0..old.nchunks).find(missing) {
        let error = ChunkDefect::InTheWay.into();
        return Err(PlanError::Entry { slot, error });
    }
    let clones = policy == Policy::Auto && facts.can_clone;
    let stays = policy != Policy::Rewrite && (clones || !facts.linked);
    let update = if stays { update(old, changes)? } else { None };
    Ok(match update {
        Some(update) if clones => Plan::Clone(update),
        Some(update) if policy != Policy::Auto || !is_mostly_new(old, &update) => {
            Plan::Journal(update)
        }
        _ => Plan::Rewrite(rewrite(old, changes)?),
    })
}

/// Returns whether a record of the old bytes costs more than a new file.
fn is_mostly_new(old: &OldFile<'_>, update: &Update) -> bool {
    let overwritten = update.overwritten.iter().fold(0_u64, |n, old| n.saturating_add(old.nbytes));
    overwritten.saturating_mul(2) > old.size
}

impl OldFile<'_> {
    /// Returns the stored range of a chunk: with the checksum after it.
    fn stored(&self, chunk: ByteRange) -> ByteRange {
        let nbytes = chunk.nbytes.saturating_add(self.header.digest.nbytes() as u64);
        ByteRange { offset: chunk.offset, nbytes }
    }

    /// Returns the stored ranges of the chunks with their numbers, sorted by offset.
    fn by_place(&self) -> Vec<(ByteRange, u64)> {
        let stored = self.chunks.iter().map(|(slot, range)| (self.stored(*range), *slot));
        let mut stored: Vec<_> = stored.collect();
        stored.sort_unstable_by_key(|(range, slot)| (range.offset, *slot));
        stored
    }

    /// Returns the header after `changes`.
    fn header_with(&self, changes: &BTreeMap<u64, NewChunk>) -> Header {
        let mut header = self.header.clone();
        let nchunks = self.nchunks_with(changes);
        let last = nchunks.checked_sub(1).and_then(|last| changes.get(&last));
        if let (0, Some(first)) = (self.nchunks, changes.get(&0)) {
            header.chunk_size = Some(first.decoded);
        }
        if let Some(last) = last
            && (self.nchunks == 0 || header.last_chunk.is_some())
        {
            header.last_chunk = Some(last.decoded);
        }
        if header.nchunks.is_some() {
            header.nchunks = Some(nchunks);
        }
        // New chunks use up spare offsets, whose number was read from the same field.
        header.rest = header.rest.saturating_sub_unsigned(nchunks - self.nchunks);
        header
    }

    fn nchunks_with(&self, changes: &BTreeMap<u64, NewChunk>) -> u64 {
        let last = changes.last_key_value().map_or(0, |(slot, _)| slot.saturating_add(1));
        self.nchunks.max(last)
    }
}

/// Plans the changes within the file; `None` if they do not fit.
fn update(
    old: &OldFile<'_>,
    changes: &BTreeMap<u64, NewChunk>,
) -> Result<Option<Update>, PlanError> {
    // An unreadable chunk has no range to overwrite. The bytes before the chunks are limited,
    // because recovery has to read all of them to roll a commit back.
    let has_place = |(slot, _): (&u64, &NewChunk)| old.chunks.contains_key(slot);
    if !changes.range(..old.nchunks).all(has_place) || old.body > MAX_INDEX_BYTES {
        return Ok(None);
    }
    let places = old.by_place();
    let is_gapless = places.windows(2).all(|pair| {
        let [(before, _), (after, _)] = pair else { return true };
        before.offset.checked_add(before.nbytes) == Some(after.offset)
    });
    let mut writes: BTreeMap<u64, Blob> = BTreeMap::new();
    let mut tail = old.body;
    for (at, (range, slot)) in places.iter().enumerate() {
        let Some(new) = changes.get(slot) else {
            tail = tail.max(end(range.offset, range.nbytes)?);
            continue;
        };
        if range.offset < tail {
            // The chunk overlaps another one.
            return Ok(None);
        }
        let room = match places.get(at + 1) {
            Some((next, _)) => next.offset.saturating_sub(range.offset),
            // Without a number of chunks in the header, bytes behind the last chunk are read as
            // chunks.
            None if old.header.nchunks.is_none() => range.nbytes,
            None => u64::MAX,
        };
        let nbytes = new.stored.nbytes;
        let is_last = at + 1 == places.len() && old.header.nchunks.is_some();
        let fits = if is_gapless && !is_last { nbytes == range.nbytes } else { nbytes <= room };
        if !fits || range.nbytes > room {
            return Ok(None);
        }
        tail = end(range.offset, nbytes)?;
        writes.insert(range.offset, new.stored.clone());
    }
    let mut offsets = Vec::new();
    for (_, new) in changes.range(old.nchunks..) {
        offsets.extend(tail.to_le_bytes());
        writes.insert(tail, new.stored.clone());
        tail = end(tail, new.stored.nbytes)?;
    }
    if !offsets.is_empty() {
        let Some(at) = old.offsets else { return Ok(None) };
        writes.insert(end(at, old.nchunks.saturating_mul(OFFSET_BYTES))?, Blob::bytes(offsets));
    }
    let header = old.header_with(changes);
    if header != *old.header {
        writes.insert(0, Blob::bytes(header.encode().to_vec()));
    }
    let before = ByteRange { offset: 0, nbytes: old.body };
    let in_use = || std::iter::once(before).chain(places.iter().map(|(range, _)| *range));
    let ranges = writes.iter().map(|(at, blob)| ByteRange { offset: *at, nbytes: blob.nbytes });
    let overwritten = ranges.flat_map(|new| in_use().filter_map(move |old| overlap(new, old)));
    Ok(Some(Update {
        overwritten: overwritten.collect(),
        writes: writes.into_iter().map(|(offset, blob)| Write { offset, blob }).collect(),
        old_index: before,
        length: old.size.max(tail),
    }))
}

/// Lays out the file anew: its chunks in the order of their numbers, without gaps.
fn rewrite(old: &OldFile<'_>, changes: &BTreeMap<u64, NewChunk>) -> Result<Blob, PlanError> {
    let kept = |range: ByteRange| Blob::of(range.nbytes, Source::Kept(range.offset));
    let between = |from: u64, to: u64| ByteRange { offset: from, nbytes: to.saturating_sub(from) };
    let nchunks = old.nchunks_with(changes);
    let (mut body, mut offsets) = (Blob::default(), Vec::new());
    for slot in 0..nchunks {
        offsets.extend(end(old.body, body.nbytes)?.to_le_bytes());
        match (changes.get(&slot), old.chunks.get(&slot)) {
            (Some(new), _) => body.append(new.stored.clone())?,
            (None, Some(range)) => body.append(kept(old.stored(*range)))?,
            // Unreachable: every chunk is either kept or new.
            (None, None) => (),
        }
    }
    let mut file = Blob::bytes(old.header_with(changes).encode().to_vec());
    match old.offsets {
        None => file.append(kept(between(HEADER_BYTES as u64, old.body)))?,
        Some(at) => {
            let spare = end(at, offsets.len() as u64)?;
            file.append(kept(between(HEADER_BYTES as u64, at)))?;
            file.append(Blob::bytes(offsets))?;
            file.append(kept(between(spare, old.body)))?;
        }
    }
    file.append(body)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::digest::Digest;

    /// Three chunks of 20 bytes, each followed by a checksum of 4 bytes and `reserved` bytes.
    fn three(reserved: u64) -> BTreeMap<u64, ByteRange> {
        let range = |slot| (slot, ByteRange { offset: 72 + slot * (24 + reserved), nbytes: 20 });
        (0..3).map(range).collect()
    }

    fn old<'a>(
        header: &'a Header,
        chunks: &'a BTreeMap<u64, ByteRange>,
        reserved: u64,
    ) -> OldFile<'a> {
        OldFile {
            header,
            offsets: Some(32),
            body: 72,
            chunks,
            nchunks: 3,
            last_decoded: Some(100),
            size: 72 + 3 * (24 + reserved),
        }
    }

    const HEADER: Header = Header {
        options: 1,
        digest: Digest::Adler32,
        typesize: 1,
        chunk_size: Some(100),
        last_chunk: Some(100),
        nchunks: Some(3),
        rest: 2,
    };

    fn changes(new: &[(u64, u64)]) -> BTreeMap<u64, NewChunk> {
        let chunk = |(slot, nbytes): &(u64, u64)| {
            let stored = Blob::of(nbytes + 4, Source::Staged(0));
            (*slot, NewChunk { decoded: 100, stored })
        };
        new.iter().map(chunk).collect()
    }

    /// Returns the ranges that a plan writes within the file, and its new length; `None` for a new
    /// file.
    fn written(reserved: u64, new: &[(u64, u64)]) -> Option<(Vec<(u64, u64)>, u64)> {
        let (header, chunks) = (HEADER, three(reserved));
        let old = old(&header, &chunks, reserved);
        match plan(&old, &changes(new), Policy::InPlace, Facts::default()).unwrap() {
            Plan::Journal(update) => {
                let place = |write: &Write| (write.offset, write.blob.nbytes);
                Some((update.writes.iter().map(place).collect(), update.length))
            }
            Plan::Rewrite(_) => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_chunk_of_the_same_length_goes_over_the_old_one() {
        assert_eq!(written(0, &[(1, 20)]), Some((vec![(96, 24)], 144)));
    }

    #[test]
    fn readers_in_order_never_meet_a_gap() {
        assert_eq!(written(0, &[(1, 19)]), None);
        assert_eq!(written(0, &[(1, 21)]), None);
    }

    #[test]
    fn what_is_reserved_is_used() {
        assert_eq!(written(8, &[(1, 28)]), Some((vec![(104, 32)], 168)));
        assert_eq!(written(8, &[(1, 3)]), Some((vec![(104, 7)], 168)));
        assert_eq!(written(8, &[(1, 29)]), None);
    }

    #[test]
    fn the_last_chunk_may_have_any_length() {
        assert_eq!(written(0, &[(2, 50)]), Some((vec![(120, 54)], 174)));
        assert_eq!(written(0, &[(2, 16)]), Some((vec![(120, 20)], 144)));
    }

    #[test]
    fn chunks_are_appended_with_their_offsets_and_a_header_that_counts_them() {
        let places = vec![(0, 32), (56, 16), (144, 24), (168, 34)];
        assert_eq!(written(0, &[(3, 20), (4, 30)]), Some((places, 202)));
        let (header, chunks) = (HEADER, three(0));
        let after = old(&header, &chunks, 0).header_with(&changes(&[(3, 20), (4, 30)]));
        assert_eq!((after.nchunks, after.rest), (Some(5), 0));
    }

    #[test]
    fn what_is_overwritten_is_recorded_and_nothing_else() {
        let (header, chunks) = (HEADER, three(0));
        let old = old(&header, &chunks, 0);
        let Plan::Journal(update) =
            plan(&old, &changes(&[(2, 50), (3, 9)]), Policy::Append, Facts::default()).unwrap()
        else {
            panic!()
        };
        let ranges: Vec<_> = update.overwritten.iter().map(|r| (r.offset, r.nbytes)).collect();
        assert_eq!(ranges, [(0, 32), (56, 8), (120, 24)]);
    }

    #[test]
    fn a_file_whose_number_of_chunks_is_not_known_ends_with_its_last_chunk() {
        let header = Header { nchunks: None, options: 0, rest: 0, ..HEADER };
        let chunks = three(0);
        let old = OldFile { offsets: None, ..old(&header, &chunks, 0) };
        let new = changes(&[(2, 16)]);
        let plan = plan(&old, &new, Policy::InPlace, Facts::default()).unwrap();
        assert!(matches!(plan, Plan::Rewrite(blob) if blob.nbytes == 72 + 24 + 24 + 20));
    }

    #[test]
    fn chunks_that_have_bytes_in_common_are_taken_apart_in_a_new_file() {
        let (header, mut chunks) = (HEADER, three(0));
        chunks.insert(2, ByteRange { offset: 100, nbytes: 20 });
        let old = old(&header, &chunks, 0);
        let plan = plan(&old, &changes(&[(2, 20)]), Policy::InPlace, Facts::default()).unwrap();
        assert!(matches!(plan, Plan::Rewrite(_)));
    }

    #[test]
    fn a_chunk_that_cannot_be_given_stops_the_commit_unless_it_is_replaced() {
        let (header, mut chunks) = (HEADER, three(0));
        chunks.remove(&1);
        let old = old(&header, &chunks, 0);
        let plan = |new: &[(u64, u64)]| plan(&old, &changes(new), Policy::Auto, Facts::default());
        assert!(matches!(plan(&[(0, 20)]), Err(PlanError::Entry { slot: 1, .. })));
        assert!(matches!(plan(&[(1, 20)]), Ok(Plan::Rewrite(_))));
    }

    #[test]
    fn chunks_without_a_place_are_refused() {
        let (header, chunks) = (HEADER, three(0));
        let old = old(&header, &chunks, 0);
        let refused = |new: &[(u64, u32)]| -> Vec<u64> {
            refused(&old, &new.iter().copied().collect()).into_keys().collect()
        };
        assert!(refused(&[(0, 100), (2, 50)]).is_empty());
        assert!(refused(&[(3, 100), (4, 1)]).is_empty());
        assert_eq!(refused(&[(0, 99), (1, 101)]), [0, 1], "of another length than the others");
        assert_eq!(refused(&[(4, 100)]), [4], "one before it is missing");
        assert_eq!(refused(&[(2, 50), (3, 100)]), [3], "the last one is not full");
        assert_eq!(refused(&[(3, 50), (4, 100)]), [4], "neither is this");
        assert_eq!(refused(&[(2, 0)]), [2], "a header that says 0 cannot be read");
        let header = Header { chunk_size: None, last_chunk: None, nchunks: Some(0), ..HEADER };
        let empty = OldFile { header: &header, nchunks: 0, last_decoded: None, ..old.clone() };
        for impossible in [0, 1 << 31, u32::MAX] {
            let refused = super::refused(&empty, &BTreeMap::from([(0, impossible)]));
            assert_eq!(refused.len(), 1, "{impossible}");
        }
    }
}
