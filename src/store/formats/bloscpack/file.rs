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
