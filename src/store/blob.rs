//! Execution of a plan: streams the bytes of each [`Blob`] into a file.

use std::collections::VecDeque;
use std::io;

use super::content::Content;
use super::storage::{PosixFile, StorageFile};
use crate::format::fingerprint::Fingerprint;
use crate::format::index::ByteRange;
use crate::format::journal::CheckedRange;
use crate::format::plan::{Blob, Source, Write};
use crate::memory::zeroed;
use crate::number::to_usize;

/// Number of bytes read or written at once.
const PIECE_BYTES: usize = 1 << 20;

/// Sources of the bytes of blobs.
pub(super) struct Sources<'a> {
    /// Contents to which [`Source::Staged`] refers, by number.
    pub contents: &'a [Content],
    /// Existing file of the shard.
    pub old: Option<&'a dyn StorageFile>,
}

/// Consumer of the bytes of a blob, in order.
type Sink<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

impl Sources<'_> {
    /// Passes all bytes of a blob to `sink`.
    fn stream(&self, blob: &Blob, sink: &mut Sink<'_>) -> io::Result<()> {
        let mut checksums = Checksums::of(blob);
        let mut sink = |bytes: &[u8], checksums: &mut Checksums| {
            checksums.take(bytes);
            sink(bytes)
        };
        for piece in &blob.pieces {
            match &piece.from {
                Source::Bytes(bytes) => sink(bytes, &mut checksums)?,
                Source::Checksum(_) => {
                    let stored = checksums.pop().to_le_bytes();
                    sink(&stored, &mut checksums)?;
                }
                Source::Staged(at) => {
                    let content = self.contents.get(*at).ok_or_else(no_source)?;
                    if let Content::Memory(bytes) = content {
                        sink(bytes, &mut checksums)?;
                        continue;
                    }
                    each_part(piece.nbytes, |buffer, done| {
                        let read = content.read_at(buffer, done)?;
                        full(read, buffer.len())?;
                        sink(buffer, &mut checksums)
                    })?;
                }
                Source::Kept(offset) => {
                    let file = self.old.ok_or_else(no_source)?;
                    let kept = ByteRange { offset: *offset, nbytes: piece.nbytes };
                    each_part(piece.nbytes, |buffer, done| {
                        let read = file.read_within(buffer, offset + done, kept)?;
                        full(read, buffer.len())?;
                        sink(buffer, &mut checksums)
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Writes a blob at `offset`.
    pub(super) fn put(&self, file: &dyn PosixFile, offset: u64, blob: &Blob) -> io::Result<()> {
        let mut output = Output::new(file, offset, blob.nbytes);
        self.stream(blob, &mut |bytes| output.put(bytes))?;
        output.flush()
    }

    /// Executes writes; adjacent ones are joined.
    pub(super) fn put_all(&self, file: &dyn PosixFile, writes: &[Write]) -> io::Result<()> {
        for run in runs(writes) {
            let nbytes = run.iter().map(|write| write.blob.nbytes).sum();
            let Some(first) = run.first() else { continue };
            let mut output = Output::new(file, first.offset, nbytes);
            for write in run {
                self.stream(&write.blob, &mut |bytes| output.put(bytes))?;
            }
            output.flush()?;
        }
        Ok(())
    }

    /// Returns the ranges that the writes will fill, with fingerprints of their new contents.
    pub(super) fn check_all(&self, writes: &[Write]) -> io::Result<Vec<CheckedRange>> {
        let check = |run: &[Write]| {
            let mut fingerprint = Fingerprint::default();
            for write in run {
                self.stream(&write.blob, &mut |bytes| {
                    fingerprint.update(bytes);
                    Ok(())
                })?;
            }
            let offset = run.first().map_or(0, |first| first.offset);
            let nbytes = run.iter().map(|write| write.blob.nbytes).sum();
            let range = ByteRange { offset, nbytes };
            Ok(CheckedRange { range, fingerprint: fingerprint.value() })
        };
        runs(writes).map(check).collect()
    }
}

/// Returns the fingerprint of a range of a file. Fails if the file ends before the range does.
pub(super) fn fingerprint_of(file: &dyn StorageFile, range: ByteRange) -> io::Result<u64> {
    fingerprint(range.nbytes, |buffer, done| file.read_within(buffer, range.offset + done, range))
}

/// Returns the fingerprint of a content.
pub(super) fn fingerprint_of_content(content: &Content) -> io::Result<u64> {
    fingerprint(content.nbytes(), |buffer, done| content.read_at(buffer, done))
}

fn fingerprint(nbytes: u64, read: impl Fn(&mut [u8], u64) -> io::Result<usize>) -> io::Result<u64> {
    let mut fingerprint = Fingerprint::default();
    each_part(nbytes, |buffer, done| {
        let read = read(buffer, done)?;
        full(read, buffer.len())?;
        fingerprint.update(buffer);
        Ok(())
    })?;
    Ok(fingerprint.value())
}

/// Reads a range of a file into memory. Fails if the file ends before the range does.
pub(super) fn bytes_of(file: &dyn StorageFile, range: ByteRange) -> io::Result<Vec<u8>> {
    let mut bytes = zeroed(range.nbytes)?;
    let read = file.read_at(&mut bytes, range.offset)?;
    full(read, bytes.len())?;
    Ok(bytes)
}

/// Splits writes into runs of adjacent ranges.
fn runs(writes: &[Write]) -> impl Iterator<Item = &[Write]> {
    writes.chunk_by(|before, next| before.offset + before.blob.nbytes == next.offset)
}

fn each_part(
    nbytes: u64,
    mut part: impl FnMut(&mut [u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let most = to_usize(nbytes).min(PIECE_BYTES);
    let (mut buffer, mut done) = (vec![0; most], 0);
    while done < nbytes {
        let length = to_usize(nbytes - done).min(most);
        part(&mut buffer[..length], done)?;
        done += length as u64;
    }
    Ok(())
}

pub(super) fn full(read: usize, wanted: usize) -> io::Result<()> {
    if read == wanted { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Returns the error for a plan that names a source that its caller did not provide: a bug of the
/// caller.
pub(super) fn no_source() -> io::Error {
    io::Error::other("the plan asks for bytes that are nowhere")
}

/// Running checksums of the parts of a blob that end with their own. Few are open at any time: one
/// for each level of nesting.
pub(super) struct Checksums {
    /// Start of each part, in the order of their ends, and its checksum so far.
    parts: VecDeque<(u64, u32)>,
    at: u64,
}

impl Checksums {
    pub(super) fn of(blob: &Blob) -> Self {
        let mut parts = VecDeque::new();
        let mut at: u64 = 0;
        for piece in &blob.pieces {
            if let Source::Checksum(before) = piece.from {
                parts.push_back((at.saturating_sub(before), 0));
            }
            at = at.saturating_add(piece.nbytes);
        }
        Self { parts, at: 0 }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len() as u64;
        for (start, crc32c) in &mut self.parts {
            if *start < end {
                // Within the bytes, which are in memory.
                let from = to_usize(start.saturating_sub(self.at));
                *crc32c = crc32c::crc32c_append(*crc32c, &bytes[from..]);
            }
        }
        self.at = end;
    }

    pub(super) fn pop(&mut self) -> u32 {
        self.parts.pop_front().map_or(0, |(_, crc32c)| crc32c)
    }
}

/// Writer that joins small writes.
struct Output<'a> {
    file: &'a dyn PosixFile,
    /// Offset of the first byte that is not written yet.
    offset: u64,
    waiting: Vec<u8>,
}

impl<'a> Output<'a> {
    fn new(file: &'a dyn PosixFile, offset: u64, nbytes: u64) -> Self {
        let most = to_usize(nbytes).min(PIECE_BYTES);
        Self { file, offset, waiting: Vec::with_capacity(most) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.waiting.len() + bytes.len() > PIECE_BYTES {
            self.flush()?;
        }
        if bytes.len() >= PIECE_BYTES {
            self.file.write_at(bytes, self.offset)?;
            self.offset += bytes.len() as u64;
        } else {
            self.waiting.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.waiting.is_empty() {
            self.file.write_at(&self.waiting, self.offset)?;
            self.offset += self.waiting.len() as u64;
            self.waiting.clear();
        }
        Ok(())
    }
}
