//! Blobs in memory, as a store of objects takes them. What a blob keeps of the existing file is read in the order of
//! that file, whatever its order in the blob is: libraries store the chunks of a shard in an order of their own
//! (zarr-python along a Morton curve), and where requests take long, ranges that lie close together need one for all.
//!
//! ```text
//! existing file  | 0 | 1 | 4 | 5 | 2 | 3 | 6 | 7 | index |
//!                  \________ one request ________/
//! blob           | 0 | 1 | 2 | new 3 | 4 | 5 | 6 | 7 | index |
//! ```

use std::io;

use super::blob::{Checksums, Sources, full, no_source};
use crate::format::index::ByteRange;
use crate::format::plan::{Blob, Source};
use crate::memory::zeroed;
use crate::number::to_usize;

/// Bytes of the existing file that are requested at once; as many more are under way meanwhile.
const BATCH: u64 = 16 << 20;

/// Longest range of the existing file that is read at once, in bytes.
const LONGEST: u64 = 4 << 20;

/// Range of the existing file, and its place in the blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    range: ByteRange,
    at: usize,
}

impl Sources<'_> {
    /// Returns all bytes of a blob.
    ///
    /// # Errors
    /// There is no memory for them, or a source cannot be read.
    pub(super) fn collect(&self, blob: &Blob) -> io::Result<Vec<u8>> {
        let mut bytes = zeroed(blob.nbytes)?;
        self.read_kept(blob, &mut bytes)?;
        let (mut checksums, mut at) = (Checksums::of(blob), 0);
        for piece in &blob.pieces {
            let place = place(&mut bytes, at, piece.nbytes)?;
            match &piece.from {
                Source::Bytes(of_piece) => copy(of_piece, place)?,
                Source::Checksum(_) => copy(&checksums.pop().to_le_bytes(), place)?,
                Source::Staged(number) => {
                    let content = self.contents.get(*number).ok_or_else(no_source)?;
                    full(content.read_at(place, 0)?, place.len())?;
                }
                Source::Kept(_) => (),
            }
            checksums.take(place);
            at += place.len();
        }
        Ok(bytes)
    }

    /// Reads what a blob keeps of the existing file into its places.
    fn read_kept(&self, blob: &Blob, bytes: &mut [u8]) -> io::Result<()> {
        let kept = kept(blob);
        let mut batches = batches(&kept);
        let Some(mut batch) = batches.next() else { return Ok(()) };
        let old = self.old.ok_or_else(no_source)?;
        let request = |batch: &[Kept]| {
            old.fetch_ahead(&batch.iter().map(|kept| kept.range).collect::<Vec<_>>());
        };
        request(batch);
        loop {
            // It comes while the one before it is taken.
            let next = batches.next();
            next.into_iter().for_each(request);
            for Kept { range, at } in batch {
                let place = place(bytes, *at, range.nbytes)?;
                full(old.read_within(place, range.offset, *range)?, place.len())?;
            }
            match next {
                Some(next) => batch = next,
                None => return Ok(()),
            }
        }
    }
}

/// Returns what a blob keeps of the existing file, in the order of that file.
fn kept(blob: &Blob) -> Vec<Kept> {
    let (mut kept, mut at) = (Vec::new(), 0);
    for piece in &blob.pieces {
        if let Source::Kept(offset) = piece.from {
            let mut done = 0;
            while done < piece.nbytes {
                let nbytes = (piece.nbytes - done).min(LONGEST);
                let range = ByteRange { offset: offset.saturating_add(done), nbytes };
                kept.push(Kept { range, at: at + to_usize(done) });
                done += nbytes;
            }
        }
        at += to_usize(piece.nbytes);
    }
    kept.sort_unstable_by_key(|kept| (kept.range.offset, kept.at));
    kept
}

/// Splits ranges into batches of about [`BATCH`] bytes.
fn batches(kept: &[Kept]) -> impl Iterator<Item = &[Kept]> {
    let mut left = kept;
    std::iter::from_fn(move || {
        let mut nbytes: u64 = 0;
        let fits = |kept: &&Kept| {
            let is_first = nbytes == 0;
            nbytes = nbytes.saturating_add(kept.range.nbytes);
            is_first || nbytes <= BATCH
        };
        let length = left.iter().take_while(fits).count();
        let (batch, rest) = left.split_at(length);
        left = rest;
        (!batch.is_empty()).then_some(batch)
    })
}

/// Returns the place of a piece in a blob.
fn place(bytes: &mut [u8], at: usize, nbytes: u64) -> io::Result<&mut [u8]> {
    let end = at.saturating_add(to_usize(nbytes));
    bytes.get_mut(at..end).ok_or_else(bad_plan)
}

fn copy(bytes: &[u8], place: &mut [u8]) -> io::Result<()> {
    match place.len() == bytes.len() {
        true => place.copy_from_slice(bytes),
        false => return Err(bad_plan()),
    }
    Ok(())
}

/// Returns the error for a blob whose pieces do not fill it: a bug of the planner.
fn bad_plan() -> io::Error {
    io::Error::other("the lengths in the plan contradict each other")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::format::plan::Piece;
    use crate::store::content::Content;
    use crate::store::storage::{Stat, StorageFile};

    /// File that records what is requested of it.
    struct Watched {
        bytes: Vec<u8>,
        ahead: Mutex<Vec<Vec<ByteRange>>>,
        read: Mutex<Vec<u64>>,
    }

    impl StorageFile for Watched {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            self.read.lock().push(offset);
            let rest = self.bytes.get(to_usize(offset)..).unwrap_or_default();
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }

        fn fetch_ahead(&self, ranges: &[ByteRange]) {
            self.ahead.lock().push(ranges.to_vec());
        }

        fn stat(&self) -> io::Result<Stat> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn watched(nbytes: u64) -> Watched {
        let bytes = (0..nbytes).map(|at| (at % 251) as u8).collect();
        Watched { bytes, ahead: Mutex::default(), read: Mutex::default() }
    }

    fn blob(pieces: &[(u64, Source)]) -> Blob {
        let piece = |(nbytes, from): &(u64, Source)| Piece { nbytes: *nbytes, from: from.clone() };
        let nbytes = pieces.iter().map(|(nbytes, _)| nbytes).sum();
        Blob { nbytes, pieces: pieces.iter().map(piece).collect() }
    }

    fn collect(blob: &Blob, contents: &[Content], old: Option<&Watched>) -> io::Result<Vec<u8>> {
        let old = old.map(|old| old as &dyn StorageFile);
        Sources { contents, old }.collect(blob)
    }

    #[test]
    fn the_existing_file_is_read_in_its_own_order() {
        let old = watched(100);
        let contents = [Content::Memory(Arc::new(vec![7; 3]))];
        let head = Arc::from([1, 2]);
        let blob = blob(&[
            (2, Source::Bytes(head)),
            (20, Source::Kept(60)),
            (3, Source::Staged(0)),
            (10, Source::Kept(0)),
            (4, Source::Checksum(35)),
            (5, Source::Kept(40)),
        ]);
        let bytes = collect(&blob, &contents, Some(&old)).unwrap();
        let mut expected = vec![1, 2];
        expected.extend(&old.bytes[60..80]);
        expected.extend([7; 3]);
        expected.extend(&old.bytes[..10]);
        expected.extend(crc32c::crc32c(&expected).to_le_bytes());
        expected.extend(&old.bytes[40..45]);
        assert_eq!(bytes, expected);
        assert_eq!(*old.read.lock(), [0, 40, 60]);
        assert_eq!(old.ahead.lock().len(), 1);
    }

    #[test]
    fn long_files_are_requested_in_batches_before_they_are_read() {
        let nbytes = 2 * BATCH + LONGEST + 1;
        let old = watched(nbytes);
        let bytes = collect(&blob(&[(nbytes, Source::Kept(0))]), &[], Some(&old)).unwrap();
        assert_eq!(bytes, old.bytes);
        let ahead = old.ahead.lock();
        let lengths = ahead.iter().map(|batch| batch.iter().map(|range| range.nbytes).sum::<u64>());
        assert_eq!(lengths.collect::<Vec<_>>(), [BATCH, BATCH, LONGEST + 1]);
        assert!(ahead.iter().flatten().all(|range| range.nbytes <= LONGEST));
    }

    #[test]
    fn a_blob_that_its_sources_do_not_fill_is_an_error() {
        let old = watched(10);
        let short = collect(&blob(&[(8, Source::Kept(5))]), &[], Some(&old)).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
        for (nbytes, from) in
            [(8, Source::Kept(5)), (1, Source::Staged(0)), (3, Source::Bytes(Arc::from([1])))]
        {
            assert!(collect(&blob(&[(nbytes, from.clone())]), &[], None).is_err(), "{from:?}");
        }
        let short = [Content::Memory(Arc::new(vec![1]))];
        assert!(collect(&blob(&[(2, Source::Staged(0))]), &short, None).is_err());
    }
}
