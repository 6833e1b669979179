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

/// Batches of which a blob has its ranges requested: the one that is read, and the next one.
pub(super) const BATCHES: u64 = 2;

/// Range of the existing file, and its place in the blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kept {
    range: ByteRange,
    at: usize,
}

impl Sources<'_> {
    /// Returns all bytes of a blob. What it keeps of the existing file is requested in batches that span about `batch`
    /// bytes, of which [`BATCHES`] are under way at once.
    ///
    /// # Errors
    /// There is no memory for them, or a source cannot be read.
    pub(super) fn collect(&self, blob: &Blob, batch: u64) -> io::Result<Vec<u8>> {
        let mut bytes = zeroed(blob.nbytes)?;
        self.read_kept(blob, batch, &mut bytes)?;
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
    fn read_kept(&self, blob: &Blob, batch: u64, bytes: &mut [u8]) -> io::Result<()> {
        let batch = batch.max(1);
        let kept = kept(blob, batch.div_ceil(2));
        let mut batches = batches(&kept, batch);
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

/// Returns what a blob keeps of the existing file, in the order of that file and in ranges of `longest` bytes at most.
fn kept(blob: &Blob, longest: u64) -> Vec<Kept> {
    let (mut kept, mut at) = (Vec::new(), 0);
    for piece in &blob.pieces {
        if let Source::Kept(offset) = piece.from {
            let mut done = 0;
            while done < piece.nbytes {
                let nbytes = (piece.nbytes - done).min(longest);
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

/// Splits ranges into batches that span `batch` bytes of the file at most, gaps included, which may be fetched as well.
fn batches(kept: &[Kept], batch: u64) -> impl Iterator<Item = &[Kept]> {
    let mut left = kept;
    std::iter::from_fn(move || {
        let first = left.first()?.range;
        let fits = |kept: &&Kept| {
            let ByteRange { offset, nbytes } = kept.range;
            kept.range == first
                || offset.saturating_add(nbytes) <= first.offset.saturating_add(batch)
        };
        let (fitting, rest) = left.split_at(left.iter().take_while(fits).count());
        left = rest;
        Some(fitting)
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
        asked: Mutex<Vec<Asked>>,
    }

    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Asked {
        /// Ranges to fetch ahead: where they begin, and their bytes.
        Ahead(u64, u64),
        Read(u64),
    }

    impl StorageFile for Watched {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            self.asked.lock().push(Asked::Read(offset));
            let rest = self.bytes.get(to_usize(offset)..).unwrap_or_default();
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }

        fn fetch_ahead(&self, ranges: &[ByteRange]) {
            let nbytes = ranges.iter().map(|range| range.nbytes).sum();
            self.asked.lock().push(Asked::Ahead(ranges[0].offset, nbytes));
        }

        fn stat(&self) -> io::Result<Stat> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn watched(nbytes: u64) -> Watched {
        let bytes = (0..nbytes).map(|at| (at % 251) as u8).collect();
        Watched { bytes, asked: Mutex::default() }
    }

    fn blob(pieces: &[(u64, Source)]) -> Blob {
        let piece = |(nbytes, from): &(u64, Source)| Piece { nbytes: *nbytes, from: from.clone() };
        let nbytes = pieces.iter().map(|(nbytes, _)| nbytes).sum();
        Blob { nbytes, pieces: pieces.iter().map(piece).collect() }
    }

    fn collect(blob: &Blob, contents: &[Content], old: Option<&Watched>) -> io::Result<Vec<u8>> {
        let old = old.map(|old| old as &dyn StorageFile);
        Sources { contents, old }.collect(blob, 64)
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
        let expected = [
            Asked::Ahead(0, 15),
            Asked::Ahead(60, 20),
            Asked::Read(0),
            Asked::Read(40),
            Asked::Read(60),
        ];
        assert_eq!(*old.asked.lock(), expected);
    }

    #[test]
    fn the_next_batch_is_requested_before_one_is_read() {
        let old = watched(150);
        let bytes = collect(&blob(&[(150, Source::Kept(0))]), &[], Some(&old)).unwrap();
        assert_eq!(bytes, old.bytes);
        let expected = [
            Asked::Ahead(0, 64),
            Asked::Ahead(64, 64),
            Asked::Read(0),
            Asked::Read(32),
            Asked::Ahead(128, 22),
            Asked::Read(64),
            Asked::Read(96),
            Asked::Read(128),
        ];
        assert_eq!(*old.asked.lock(), expected);
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
