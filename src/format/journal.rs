//! The journal record of a commit that updates shards in place: the data to roll it back, and to
//! tell whether it was finished.
//!
//! ```text
//! journal   | "shardfs1" | length of body | fingerprint of body | body | anything |
//!             8 bytes      u64              u64
//! body      | number of shards, u32 | shard | shard | ...
//! shard     | key, in bytes | inode | old length | old index, checked | length |
//!           | n, u32 | n x written, checked | m, u32 | m x (offset | bytes) |
//! checked   | offset | nbytes | fingerprint of these bytes |
//! bytes     | length, u64 | the bytes |
//! ```
//!
//! All numbers are little-endian, u64 unless stated otherwise. A body that does not match its
//! fingerprint was not written completely: the commit had not begun, and there is no record.

use std::collections::HashSet;

use crate::number::to_usize;

use super::fingerprint::{FINGERPRINT_BYTES, Fingerprint};
use super::index::ByteRange;
use super::limits::MAX_INDEX_BYTES;

/// First bytes of a journal.
const MAGIC: [u8; 8] = *b"shardfs1";
/// Length of the head in bytes: magic, length and fingerprint.
pub const HEAD_BYTES: usize = 16 + FINGERPRINT_BYTES;
/// Limit on the length of a body in bytes. A commit that would need more makes new files instead.
pub const MAX_BODY_BYTES: u64 = 320 << 20;
/// Limit on the length of a key in bytes: the longest possible path.
const MAX_KEY_BYTES: usize = 4096;

/// The changes a commit is about to make to files in place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    /// The shards it changes.
    pub shards: Vec<ShardRecord>,
}

/// The changes a commit is about to make to one shard in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardRecord {
    /// Key of the shard in its array.
    pub key: Vec<u8>,
    /// Inode number of the file. A file with another inode number in its place does not belong to
    /// the commit.
    pub ino: u64,
    /// Length of the file before the commit, in bytes.
    pub old_length: u64,
    /// Index before the commit.
    pub old_index: CheckedRange,
    /// Length of the file after the commit, in bytes.
    pub length: u64,
    /// Ranges that are written.
    pub written: Vec<CheckedRange>,
    /// Old bytes of the overwritten ranges, with their offsets.
    pub overwritten: Vec<(u64, Vec<u8>)>,
}

/// Byte range of a file and the fingerprint of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckedRange {
    /// The range.
    pub range: ByteRange,
    /// Fingerprint of the bytes in the range.
    pub fingerprint: u64,
}

/// Error reading a journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The file does not begin with the journal's magic.
    #[error("it is no journal of shardfs")]
    Magic,
    /// The body is longer than [`MAX_BODY_BYTES`].
    #[error("its record has {found} bytes, the limit is {MAX_BODY_BYTES}")]
    TooLong {
        /// Length of the body according to the head, in bytes.
        found: u64,
    },
    /// The fingerprint matches, but the body cannot be parsed.
    #[error("its record cannot be understood")]
    Body,
    /// The record of a shard describes a change that no commit makes.
    #[error("its record cannot be of a commit: shard {shard}: {why}")]
    Shard {
        /// Number of the shard in the record, from 0.
        shard: usize,
        /// The violated condition.
        #[source]
        why: RecordDefect,
    },
}

/// Condition that the record of a shard violates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordDefect {
    /// The key is empty or longer than the limit.
    #[error("its key is empty or too long")]
    Key,
    /// The key is that of another shard in the record.
    #[error("it is in it twice")]
    Twice,
    /// The new length is less than the old one, or none of a file.
    #[error("its length is none after a change in place")]
    Length,
    /// The old index is empty, too long, or not within the old file.
    #[error("its old index is not in the old file")]
    OldIndex,
    /// What is written is empty, not in order, or not within the new file.
    #[error("what is written is not in the new file, or not in order")]
    Written,
    /// Old bytes are kept that are not overwritten.
    #[error("bytes are kept that are not overwritten")]
    Kept,
}

/// Head of a journal: length and fingerprint of its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Length of the body in bytes; 0 if there is no record.
    pub nbytes: u64,
    fingerprint: u64,
}

impl Head {
    /// Reads the head; `None` if the file is shorter than a head or its magic is incomplete, as in
    /// a journal that was just created.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, JournalError> {
        let mut input = Input(bytes);
        let head = (input.array::<8>(), input.u64(), input.u64());
        let (Some(magic), Some(nbytes), Some(fingerprint)) = head else {
            return Ok(None);
        };
        // Length and first bytes of a new file do not become durable together: missing bytes read
        // as zero.
        let torn = magic.iter().zip(MAGIC).all(|(found, right)| [0, right].contains(found));
        if torn && magic != MAGIC {
            return Ok(None);
        }
        match (magic == MAGIC, nbytes <= MAX_BODY_BYTES) {
            (true, true) => Ok(Some(Self { nbytes, fingerprint })),
            (false, _) => Err(JournalError::Magic),
            (true, false) => Err(JournalError::TooLong { found: nbytes }),
        }
    }

    /// Returns whether `body` matches the length and fingerprint in the head.
    pub fn is_of(&self, body: &[u8]) -> bool {
        body.len() as u64 == self.nbytes && Fingerprint::of(body) == self.fingerprint
    }
}

/// Returns a journal without a record.
pub fn cleared() -> Vec<u8> {
    with_head(&[])
}

fn with_head(body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(Fingerprint::of(body).to_le_bytes());
    bytes.extend(body);
    bytes
}

impl Record {
    /// Encodes the journal, head and body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put_count(&mut body, self.shards.len());
        for shard in &self.shards {
            put_bytes(&mut body, &shard.key);
            put(&mut body, shard.ino);
            put(&mut body, shard.old_length);
            put_checked(&mut body, &shard.old_index);
            put(&mut body, shard.length);
            put_count(&mut body, shard.written.len());
            shard.written.iter().for_each(|range| put_checked(&mut body, range));
            put_count(&mut body, shard.overwritten.len());
            for (offset, bytes) in &shard.overwritten {
                put(&mut body, *offset);
                put_bytes(&mut body, bytes);
            }
        }
        with_head(&body)
    }

    /// Decodes a body whose fingerprint matches.
    pub fn decode(body: &[u8]) -> Result<Self, JournalError> {
        let mut input = Input(body);
        let record = input.record().filter(|_| input.0.is_empty());
        let record = record.ok_or(JournalError::Body)?;
        record.check()?;
        Ok(record)
    }

    /// Checks that every field has a value a commit can produce, whatever file it is about: the
    /// record may be forged by a user without write permission to the files it names.
    pub fn check(&self) -> Result<(), JournalError> {
        let mut keys = HashSet::new();
        for (shard, record) in self.shards.iter().enumerate() {
            let refused = |why| JournalError::Shard { shard, why };
            record.check().map_err(refused)?;
            if !keys.insert(&record.key) {
                return Err(refused(RecordDefect::Twice));
            }
        }
        Ok(())
    }
}

impl ShardRecord {
    fn check(&self) -> Result<(), RecordDefect> {
        let longest = i64::MAX as u64;
        if self.key.is_empty() || self.key.len() > MAX_KEY_BYTES {
            return Err(RecordDefect::Key);
        }
        if self.length > longest || self.old_length > self.length {
            return Err(RecordDefect::Length);
        }
        let index = self.old_index.range;
        if index.nbytes == 0 || index.nbytes > MAX_INDEX_BYTES || !is_within(index, self.old_length)
        {
            return Err(RecordDefect::OldIndex);
        }
        let mut end = 0;
        for CheckedRange { range, .. } in &self.written {
            if range.nbytes == 0 || range.offset < end || !is_within(*range, self.length) {
                return Err(RecordDefect::Written);
            }
            end = range.offset + range.nbytes;
        }
        let is_written = |old: ByteRange| {
            let next = self.written.partition_point(|new| new.range.offset <= old.offset);
            let run = next.checked_sub(1).map(|at| self.written[at].range);
            run.is_some_and(|run| is_within(old, run.offset + run.nbytes))
        };
        for (offset, bytes) in &self.overwritten {
            let old = ByteRange { offset: *offset, nbytes: bytes.len() as u64 };
            if old.nbytes == 0 || !is_within(old, self.old_length) || !is_written(old) {
                return Err(RecordDefect::Kept);
            }
        }
        Ok(())
    }
}

/// Returns whether `range` ends within `length` bytes.
fn is_within(range: ByteRange, length: u64) -> bool {
    range.offset.checked_add(range.nbytes).is_some_and(|end| end <= length)
}

fn put(body: &mut Vec<u8>, number: u64) {
    body.extend(number.to_le_bytes());
}

fn put_count(body: &mut Vec<u8>, count: usize) {
    // The conversion cannot fail: each shard or range takes more than one byte, so memory could not
    // hold more of them.
    body.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    put(body, bytes.len() as u64);
    body.extend(bytes);
}

fn put_checked(body: &mut Vec<u8>, checked: &CheckedRange) {
    put(body, checked.range.offset);
    put(body, checked.range.nbytes);
    put(body, checked.fingerprint);
}

/// Unread rest of a body.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = to_usize(self.u64()?);
        let (first, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(first)
    }

    fn checked(&mut self) -> Option<CheckedRange> {
        let range = ByteRange { offset: self.u64()?, nbytes: self.u64()? };
        Some(CheckedRange { range, fingerprint: self.u64()? })
    }

    /// Reads a count and as many items. Nothing is allocated in advance, so a count larger than the
    /// input allocates nothing.
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.u32()?;
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(item(self)?);
        }
        Some(items)
    }

    fn record(&mut self) -> Option<Record> {
        Some(Record { shards: self.list(Self::shard)? })
    }

    fn shard(&mut self) -> Option<ShardRecord> {
        Some(ShardRecord {
            key: self.bytes()?.to_vec(),
            ino: self.u64()?,
            old_length: self.u64()?,
            old_index: self.checked()?,
            length: self.u64()?,
            written: self.list(Self::checked)?,
            overwritten: self.list(|input| Some((input.u64()?, input.bytes()?.to_vec())))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(offset: u64, nbytes: u64, fingerprint: u64) -> CheckedRange {
        CheckedRange { range: ByteRange { offset, nbytes }, fingerprint }
    }

    fn record() -> Record {
        let shard = |key: &str| ShardRecord {
            key: key.into(),
            ino: 5,
            old_length: 100,
            old_index: checked(48, 52, 1),
            length: 180,
            written: vec![checked(10, 3, 2), checked(100, 80, 3)],
            overwritten: vec![(10, b"old".to_vec())],
        };
        Record { shards: vec![shard("c/0/1"), shard("c/0/2")] }
    }

    #[test]
    fn the_golden_journal_is_written() {
        let small = Record { shards: vec![] };
        #[rustfmt::skip]
        let golden = [
            b's', b'h', b'a', b'r', b'd', b'f', b's', b'1',
            4, 0, 0, 0, 0, 0, 0, 0,
            0x1c, 0xdf, 0x44, 0x21, // CRC-32 of four zeros
            0xc7, 0x4b, 0x67, 0x48, // crc32c
            0, 0, 0, 0,
        ];
        assert_eq!(small.encode(), golden);
    }

    #[test]
    fn a_record_survives_and_nothing_shorter_or_longer_is_one() {
        let bytes = record().encode();
        let head = Head::decode(&bytes).unwrap().unwrap();
        let body = &bytes[HEAD_BYTES..];
        assert!(head.is_of(body));
        assert_eq!(Record::decode(body), Ok(record()));
        for length in 0..body.len() {
            assert!(!head.is_of(&body[..length]));
            assert_eq!(Record::decode(&body[..length]), Err(JournalError::Body));
        }
        assert_eq!(Record::decode(&[body, &[0]].concat()), Err(JournalError::Body));
    }

    #[test]
    fn every_flipped_bit_of_the_body_is_noticed() {
        let mut bytes = record().encode();
        let head = Head::decode(&bytes).unwrap().unwrap();
        for bit in HEAD_BYTES * 8..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!head.is_of(&bytes[HEAD_BYTES..]), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_new_or_cleared_journal_has_no_record_and_another_file_is_refused() {
        assert_eq!(Head::decode(b""), Ok(None));
        assert_eq!(Head::decode(&[0; HEAD_BYTES]), Ok(None));
        assert_eq!(Head::decode(&cleared()).unwrap().unwrap().nbytes, 0);
        assert_eq!(Head::decode(b"something of others, long enough"), Err(JournalError::Magic));
        let mut long = cleared();
        long[15] = 1;
        assert_eq!(Head::decode(&long), Err(JournalError::TooLong { found: 1 << 56 }));
    }

    #[test]
    fn a_new_journal_whose_first_bytes_are_torn_has_no_record() {
        let written = cleared();
        for torn in 1..MAGIC.len() {
            let mut bytes = [0; HEAD_BYTES];
            bytes[..torn].copy_from_slice(&written[..torn]);
            assert_eq!(Head::decode(&bytes), Ok(None), "the first {torn} bytes");
            let mut bytes = written.clone();
            bytes[..torn].fill(0);
            assert_eq!(Head::decode(&bytes), Ok(None), "without the first {torn} bytes");
        }
    }

    /// Returns the error after one field of the second shard is changed.
    fn refused(change: impl FnOnce(&mut ShardRecord)) -> RecordDefect {
        let mut record = record();
        change(&mut record.shards[1]);
        match Record::decode(&record.encode()[HEAD_BYTES..]) {
            Err(JournalError::Shard { shard: 1, why }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_record_that_no_commit_makes_is_refused_field_by_field() {
        let key = RecordDefect::Key;
        assert_eq!(refused(|shard| shard.key.clear()), key);
        assert_eq!(refused(|shard| shard.key = vec![b'c'; 4097]), key);
        assert_eq!(refused(|shard| shard.key = b"c/0/1".to_vec()), RecordDefect::Twice);
        let length = RecordDefect::Length;
        assert_eq!(refused(|shard| shard.length = 99), length);
        assert_eq!(refused(|shard| shard.length = u64::MAX), length);
        assert_eq!(refused(|shard| shard.old_length = u64::MAX), length);
        let index = RecordDefect::OldIndex;
        assert_eq!(refused(|shard| shard.old_index.range.nbytes = 0), index);
        assert_eq!(refused(|shard| shard.old_index.range.nbytes = 53), index);
        assert_eq!(refused(|shard| shard.old_index.range.nbytes = u64::MAX), index);
        assert_eq!(refused(|shard| shard.old_index.range.offset = u64::MAX), index);
        assert_eq!(refused(|shard| shard.old_length = 99), index);
        let huge = ByteRange { offset: 0, nbytes: MAX_INDEX_BYTES + 1 };
        let long = |shard: &mut ShardRecord| {
            (shard.old_index.range, shard.old_length, shard.length) = (huge, 1 << 40, 1 << 40);
        };
        assert_eq!(refused(long), index);
        let written = RecordDefect::Written;
        assert_eq!(refused(|shard| shard.written[1].range.nbytes = 81), written);
        assert_eq!(refused(|shard| shard.written[1].range.nbytes = u64::MAX), written);
        assert_eq!(refused(|shard| shard.written[1].range.offset = 12), written);
        assert_eq!(refused(|shard| shard.written[0].range.nbytes = 0), written);
        assert_eq!(refused(|shard| shard.written.swap(0, 1)), written);
        let kept = RecordDefect::Kept;
        assert_eq!(refused(|shard| shard.overwritten[0].0 = 9), kept);
        assert_eq!(refused(|shard| shard.overwritten[0].0 = 11), kept);
        assert_eq!(refused(|shard| shard.overwritten[0].0 = u64::MAX), kept);
        assert_eq!(refused(|shard| shard.overwritten[0].0 = 110), kept);
        assert_eq!(refused(|shard| shard.overwritten[0].1.clear()), kept);
        assert_eq!(refused(|shard| shard.overwritten[0].1 = vec![0; 4]), kept);
    }

    #[test]
    fn absurd_counts_are_refused_without_memory_for_them() {
        assert_eq!(Record::decode(&[255; 4]), Err(JournalError::Body));
        assert_eq!(
            Record::decode(&[[1, 0, 0, 0], [255; 4], [255; 4]].concat()),
            Err(JournalError::Body)
        );
    }
}
