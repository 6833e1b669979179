//! Reading of Bloscpack files: header, metadata, and locations of the chunks.
//!
//! A file has no index of lengths: those are in the chunks' own headers. All of them are read when
//! the file is loaded, sequentially where there are no offsets.

use std::io;

use crate::format::blosc::{BLOSC_BYTES, BloscHeader};
use crate::format::bloscpack::{
    BloscpackError, HEADER_BYTES, Header, METADATA_HEADER_BYTES, MetadataPlace, OFFSET_BYTES, Part,
};
use crate::format::chunk_error::ChunkDefect;
use crate::format::index::{ByteRange, ENTRY_BYTES};
use crate::format::limits::MAX_INDEX_BYTES;
use crate::number::to_usize;
use crate::store::formats::file_state::FileState;
use crate::store::formats::found_chunks::Contents;

/// Headers of chunks that are requested before the first of them is read.
const HEADERS_AHEAD: usize = 64;

/// Mean length of chunks, in bytes, up to which their headers are requested with all that is between them.
const SHORT: u64 = 64 << 10;

/// Contents of a file before its chunks.
#[derive(Debug)]
pub struct Head {
    /// Header of the file.
    pub header: Header,
    /// Location of the metadata, and its text. `None` if there is none.
    pub metadata: Option<(MetadataPlace, Vec<u8>)>,
    /// Offset of the table of offsets. `None` if there is none.
    pub offsets: Option<u64>,
    /// Offset of the first byte after the header, the metadata and the offsets.
    pub body: u64,
}

/// Reads everything of a file except its chunks.
pub fn head(file: &FileState<'_>) -> io::Result<Result<Head, BloscpackError>> {
    let size = file.size();
    let first = file.read(0, HEADER_BYTES + METADATA_HEADER_BYTES)?;
    let header = match Header::parse(&first, size) {
        Ok(header) => header,
        Err(error) => return Ok(Err(error)),
    };
    let (mut at, mut metadata) = (HEADER_BYTES as u64, None);
    if header.has_metadata() {
        let place = MetadataPlace::parse(&header, &first[HEADER_BYTES..], size);
        let place = match place {
            Ok(place) => place,
            Err(error) => return Ok(Err(error)),
        };
        // Within limits that were checked.
        let stored = file.read(place.offset, to_usize(place.stored))?;
        let digest = file.read(place.digest_offset, place.digest.nbytes())?;
        match place.decode(&stored, &digest) {
            Ok(text) => {
                at = place.end;
                metadata = Some((place, text));
            }
            Err(error) => return Ok(Err(error)),
        }
    }
    let is_bare = metadata.as_ref().is_some_and(|(place, _)| place.is_bare);
    let found = offsets(&header, at, is_bare, size);
    Ok(found.map(|(offsets, body)| Head { header, metadata, offsets, body }))
}

/// Returns the offset of the table of offsets, which begins at `at` if there is one, and the offset
/// of what follows it.
fn offsets(
    header: &Header,
    at: u64,
    is_bare: bool,
    size: u64,
) -> Result<(Option<u64>, u64), BloscpackError> {
    let spare = if is_bare { 0 } else { header.spare_offsets()? };
    if !header.has_offsets() {
        return Ok((None, at));
    }
    let Some(nchunks) = header.nchunks else {
        return Err(BloscpackError::Field { field: "nchunks of a file with offsets", value: -1 });
    };
    let nbytes = nchunks.checked_add(spare).and_then(|n| n.checked_mul(OFFSET_BYTES));
    let end = nbytes.and_then(|nbytes| at.checked_add(nbytes)).filter(|end| *end <= size);
    let end = end.ok_or(BloscpackError::Beyond(Part::Offsets))?;
    if nchunks.saturating_mul(OFFSET_BYTES) > MAX_INDEX_BYTES {
        return Err(BloscpackError::TooManyOffsets { nchunks });
    }
    Ok((Some(at), end))
}

/// Locates the chunks of a file.
pub fn contents(file: &FileState<'_>, head: &Head) -> io::Result<Contents> {
    let mut found = Contents::default();
    // No array has more chunks, whatever a file that was changed since says.
    let limit = MAX_INDEX_BYTES / ENTRY_BYTES;
    let most = head.header.nchunks.unwrap_or(limit).min(limit);
    let table = match head.offsets {
        // Within limits that were checked.
        Some(at) => file.read(at, to_usize(most * OFFSET_BYTES))?,
        None => Vec::new(),
    };
    let (offsets, _) = table.as_chunks::<8>();
    let digest = head.header.digest.nbytes() as u64;
    // Offset of the next chunk if it follows the one before.
    let mut next = Some(head.body);
    for slot in 0..most {
        if head.header.nchunks.is_none() && next.is_none_or(|next| next >= file.size()) {
            // After a damaged chunk the number of chunks cannot be determined.
            found.is_unfinished |= next.is_none();
            break;
        }
        expect_headers(file, offsets, to_usize(slot));
        let offset = match head.offsets {
            None => next,
            Some(_) => {
                let stored = offsets.get(to_usize(slot));
                let stored = stored.map_or(-1, |bytes| i64::from_le_bytes(*bytes));
                found.is_unfinished |= stored < 0;
                u64::try_from(stored).ok().or(next)
            }
        };
        let expected = match head.header.nchunks {
            Some(nchunks) if slot + 1 == nchunks => head.header.last_chunk,
            Some(_) => head.header.chunk_size,
            None => None,
        };
        let (range, decoded, defect) = chunk(file, head, offset, digest, expected)?;
        found.last_decoded = decoded;
        next = defect.is_none().then(|| range.offset + range.nbytes + digest);
        if let Some(defect) = defect {
            found.refused.insert(slot, defect);
        }
        found.ranges.push(range);
    }
    Ok(found)
}

/// Says which headers of chunks are read next, each time that many of them were read. Where a request takes
/// long, they come at once; each by itself, unless the chunks between them are short.
fn expect_headers(file: &FileState<'_>, offsets: &[[u8; 8]], slot: usize) {
    if !slot.is_multiple_of(HEADERS_AHEAD) {
        return;
    }
    let header = |offset: &[u8; 8]| {
        let offset = u64::try_from(i64::from_le_bytes(*offset)).ok()?;
        Some(ByteRange { offset, nbytes: BLOSC_BYTES as u64 })
    };
    let headers = offsets.iter().skip(slot).take(HEADERS_AHEAD).filter_map(header);
    let headers: Vec<ByteRange> = headers.collect();
    let (first, last) =
        (headers.iter().min_by_key(|it| it.offset), headers.iter().max_by_key(|it| it.offset));
    let Some((first, last)) = first.zip(last) else { return };
    match (last.offset - first.offset) / headers.len() as u64 {
        ..=SHORT => file.expect(&headers),
        _ => headers.chunks(1).for_each(|header| file.expect(header)),
    }
}

/// Returns the range of the chunk at an offset, its decoded length, and its defect, if any.
fn chunk(
    file: &FileState<'_>,
    head: &Head,
    offset: Option<u64>,
    digest: u64,
    expected: Option<u32>,
) -> io::Result<(ByteRange, u64, Option<ChunkDefect>)> {
    let nowhere = ByteRange { offset: 0, nbytes: 0 };
    let Some(offset) = offset else {
        return Ok((nowhere, 0, Some(ChunkDefect::NoOffset)));
    };
    if offset < head.body {
        return Ok((nowhere, 0, Some(ChunkDefect::InHeader)));
    }
    let bytes = file.read(offset, BLOSC_BYTES)?;
    let Some(bytes) = bytes.first_chunk::<BLOSC_BYTES>() else {
        return Ok((nowhere, 0, Some(ChunkDefect::BeginsBeyond)));
    };
    let blosc = BloscHeader::parse(bytes);
    let range = ByteRange { offset, nbytes: blosc.nbytes.into() };
    let end = offset.checked_add(range.nbytes).and_then(|end| end.checked_add(digest));
    if end.is_none_or(|end| end > file.size()) {
        return Ok((nowhere, 0, Some(ChunkDefect::EndsBeyond)));
    }
    Ok((range, blosc.decoded.into(), blosc.defect(expected)))
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::store::storage::{Stat, StorageFile};

    /// What is done with a file.
    #[derive(Debug, PartialEq)]
    enum Step {
        Expect(u64),
        Read(u64),
    }

    struct Watched {
        bytes: Vec<u8>,
        steps: Mutex<Vec<Step>>,
    }

    impl StorageFile for Watched {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            self.steps.lock().push(Step::Read(offset));
            buffer.copy_from_slice(&self.bytes[to_usize(offset)..][..buffer.len()]);
            Ok(buffer.len())
        }

        fn fetch_ahead(&self, ranges: &[ByteRange]) {
            self.steps.lock().extend(ranges.iter().map(|range| Step::Expect(range.offset)));
        }

        fn stat(&self) -> io::Result<Stat> {
            unreachable!("nothing asks for it")
        }
    }

    #[test]
    fn headers_of_chunks_are_expected_before_the_first_is_read() {
        const CHUNKS: u64 = HEADERS_AHEAD as u64 + 2;
        let buffer = [&[2, 1, 2, 1], &[8, 0, 0, 0, 8, 0, 0, 0, 24, 0, 0, 0][..], &[7; 8]].concat();
        let place = |chunk: u64| HEADER_BYTES as u64 + CHUNKS * OFFSET_BYTES + chunk * 24;
        let mut bytes = b"blpk\x03\x01\x00\x01".to_vec();
        bytes.extend([8_u32, 8].map(u32::to_le_bytes).concat());
        bytes.extend([CHUNKS, 0].map(u64::to_le_bytes).concat());
        bytes.extend((0..CHUNKS).flat_map(|chunk| place(chunk).to_le_bytes()));
        bytes.extend(buffer.repeat(to_usize(CHUNKS)));
        let size = bytes.len() as u64;
        let file = Watched { bytes, steps: Mutex::default() };
        let state = FileState::now(&file, size);
        let head = head(&state).unwrap().unwrap();
        file.steps.lock().clear();
        let found = contents(&state, &head).unwrap();
        assert_eq!((found.ranges.len() as u64, found.refused.len()), (CHUNKS, 0));
        let steps = file.steps.into_inner();
        let ahead = HEADERS_AHEAD as u64;
        let mut expected = vec![Step::Read(HEADER_BYTES as u64)];
        expected.extend((0..ahead).map(|chunk| Step::Expect(place(chunk))));
        expected.extend((0..ahead).map(|chunk| Step::Read(place(chunk))));
        expected.extend((ahead..CHUNKS).map(|chunk| Step::Expect(place(chunk))));
        expected.extend((ahead..CHUNKS).map(|chunk| Step::Read(place(chunk))));
        assert_eq!(steps, expected);
    }
}
