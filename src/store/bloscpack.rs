//! Reading of Bloscpack files: header, metadata, and locations of the chunks.
//!
//! A file is a shard without an index of lengths: those are in the chunks' own headers. All of them
//! are read when the file is loaded, sequentially where there are no offsets, and become an index
//! like any other.

use std::collections::HashMap;
use std::io;

use super::recover::{Found, examine};
use super::storage::StorageFile;
use super::{Container, SuperchunkForm};
use crate::format::bloscpack::{
    BLOSC_BYTES, BloscHeader, BloscpackError, HEADER_BYTES, Header, METADATA_HEADER_BYTES,
    MetadataPlace, OFFSET_BYTES, SUPERCHUNK_BYTES, parse_superchunk,
};
use crate::format::digest::Digest;
use crate::format::index::{ByteRange, ENTRY_BYTES, IndexCodecs, IndexLocation, ShardIndex};
use crate::format::journal::ShardRecord;
use crate::format::limits::MAX_INDEX_BYTES;
use crate::format::plan::overlap;
use crate::memory::zeroed;

/// File in its present state, or in that before an unfinished commit.
pub struct View<'a> {
    file: &'a dyn StorageFile,
    size: u64,
    /// Bytes that the commit has overwritten, by offset.
    old: &'a [(u64, Vec<u8>)],
}

impl<'a> View<'a> {
    /// Creates a view of the present state of a file of `size` bytes.
    pub fn now(file: &'a dyn StorageFile, size: u64) -> Self {
        Self { file, size, old: &[] }
    }

    /// Creates a view of a file that a commit was about to change: of its new state if everything
    /// was written, otherwise of its old one. `None` if neither can be recovered.
    pub fn durable(
        file: &'a dyn StorageFile,
        size: u64,
        pending: Option<&'a ShardRecord>,
    ) -> io::Result<Option<Self>> {
        let Some(record) = pending else { return Ok(Some(Self::now(file, size))) };
        Ok(match examine(file, record)? {
            Found::Finished | Found::Replaced | Found::Foreign => Some(Self::now(file, size)),
            Found::Unfinished => {
                Some(Self { file, size: record.old_length, old: &record.overwritten })
            }
            Found::Lost => None,
        })
    }

    /// Returns the length in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Ranges the unfinished commit has overwritten.
    pub fn lost(&self) -> Vec<ByteRange> {
        let range = |(offset, old): &(u64, Vec<u8>)| ByteRange {
            offset: *offset,
            nbytes: old.len() as u64,
        };
        self.old.iter().map(range).collect()
    }

    /// Reads up to `length` bytes; fewer at the end of the file.
    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = zeroed(length as u64)?;
        let read = self.file.read_at(&mut bytes, offset)?;
        let rest = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(length);
        bytes.truncate(read.min(rest));
        let here = ByteRange { offset, nbytes: bytes.len() as u64 };
        for (at, old) in self.old {
            let range = ByteRange { offset: *at, nbytes: old.len() as u64 };
            let Some(both) = overlap(here, range) else { continue };
            // Within both, which are in memory.
            let part = |start: u64| usize::try_from(both.offset - start).unwrap_or(0);
            let (to, from) = (part(offset), part(*at));
            let length = usize::try_from(both.nbytes).unwrap_or(0);
            bytes[to..to + length].copy_from_slice(&old[from..from + length]);
        }
        Ok(bytes)
    }
}

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

/// Chunks of a file.
#[derive(Debug, Default)]
pub struct Contents {
    /// Ranges of the chunks, without their checksums.
    pub ranges: Vec<ByteRange>,
    /// Chunks that cannot be read, with the reason.
    pub refused: HashMap<u64, &'static str>,
    /// Decoded length of the last chunk in bytes.
    pub last_decoded: u64,
    /// `true` if an offset is missing, or the number of chunks could not be determined: the file's
    /// writer has not finished it.
    pub is_unfinished: bool,
}

/// Chunks of a file of any format with Blosc buffers.
#[derive(Debug)]
pub struct Chunks {
    /// Locations of the chunks.
    pub contents: Contents,
    /// Checksum stored after each chunk.
    pub digest: Digest,
    /// Decoded length of a full chunk in bytes. `None` if it is not known.
    pub full: Option<u64>,
}

impl Chunks {
    /// Creates the result for a file of `nbytes` bytes that is one chunk.
    fn single(nbytes: u64) -> Self {
        let ranges = vec![ByteRange { offset: 0, nbytes }];
        let contents = Contents { ranges, ..Contents::default() };
        Self { contents, digest: Digest::None, full: None }
    }
}

/// Locates the chunks of a file that is a shard of `container`.
pub fn chunks_of(
    container: &Container,
    file: &View<'_>,
) -> io::Result<Result<Chunks, BloscpackError>> {
    let known = match container {
        Container::Superchunks { extent, .. } => {
            extent.row_bytes.and_then(|row| row.checked_mul(extent.chunklen))
        }
        Container::Chunks => return Ok(Ok(Chunks::single(file.size))),
        Container::Bloscpack(_) | Container::Shards => None,
    };
    if let Container::Superchunks { form: SuperchunkForm::Single, .. } = container {
        let found = superchunk(file)?;
        return Ok(found.map(|contents| Chunks { contents, digest: Digest::None, full: known }));
    }
    let head = match head(file)? {
        Ok(head) => head,
        Err(error) => return Ok(Err(error)),
    };
    let full = known.or(head.header.chunk_size.map(u64::from));
    Ok(Ok(Chunks { contents: contents(file, &head)?, digest: head.header.digest, full }))
}

/// Reads everything of a file except its chunks.
pub fn head(file: &View<'_>) -> io::Result<Result<Head, BloscpackError>> {
    let size = file.size;
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
        let stored = file.read(place.offset, usize::try_from(place.stored).unwrap_or(0))?;
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
    let end = end.ok_or(BloscpackError::Beyond("offsets"))?;
    if nchunks.saturating_mul(OFFSET_BYTES) > MAX_INDEX_BYTES {
        return Err(BloscpackError::Beyond("limit for indexes: offsets"));
    }
    Ok((Some(at), end))
}

/// Locates the chunks of a file.
pub fn contents(file: &View<'_>, head: &Head) -> io::Result<Contents> {
    let mut found = Contents::default();
    // No array has more chunks, whatever a file that was changed since says.
    let limit = MAX_INDEX_BYTES / ENTRY_BYTES;
    let most = head.header.nchunks.unwrap_or(limit).min(limit);
    let table = match head.offsets {
        // Within limits that were checked.
        Some(at) => file.read(at, usize::try_from(most * OFFSET_BYTES).unwrap_or(0))?,
        None => Vec::new(),
    };
    let (offsets, _) = table.as_chunks::<8>();
    let digest = head.header.digest.nbytes() as u64;
    // Offset of the next chunk if it follows the one before.
    let mut next = Some(head.body);
    for slot in 0..most {
        if head.header.nchunks.is_none() && next.is_none_or(|next| next >= file.size) {
            // After a damaged chunk the number of chunks cannot be determined.
            found.is_unfinished |= next.is_none();
            break;
        }
        let offset = match head.offsets {
            None => next,
            Some(_) => {
                let stored = usize::try_from(slot).ok().and_then(|slot| offsets.get(slot));
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
    file: &View<'_>,
    head: &Head,
    offset: Option<u64>,
    digest: u64,
    expected: Option<u32>,
) -> io::Result<(ByteRange, u64, Option<&'static str>)> {
    let nowhere = ByteRange { offset: 0, nbytes: 0 };
    let Some(offset) = offset else {
        return Ok((
            nowhere,
            0,
            Some("its offset is not known, and the chunk before it is damaged"),
        ));
    };
    if offset < head.body {
        return Ok((nowhere, 0, Some("its offset points into the header")));
    }
    let bytes = file.read(offset, BLOSC_BYTES)?;
    let Some(bytes) = bytes.first_chunk::<BLOSC_BYTES>() else {
        return Ok((nowhere, 0, Some("it would begin beyond the file")));
    };
    let blosc = BloscHeader::parse(bytes);
    let range = ByteRange { offset, nbytes: blosc.nbytes.into() };
    let end = offset.checked_add(range.nbytes).and_then(|end| end.checked_add(digest));
    if end.is_none_or(|end| end > file.size) {
        return Ok((nowhere, 0, Some("it would end beyond the file")));
    }
    Ok((range, blosc.decoded.into(), blosc.defect(expected)))
}

/// Locates the one chunk of a superchunk file.
fn superchunk(file: &View<'_>) -> io::Result<Result<Contents, BloscpackError>> {
    let first = file.read(0, SUPERCHUNK_BYTES + BLOSC_BYTES)?;
    if let Err(error) = parse_superchunk(&first, file.size) {
        return Ok(Err(error));
    }
    let Some(bytes) = first[SUPERCHUNK_BYTES..].first_chunk::<BLOSC_BYTES>() else {
        return Ok(Err(BloscpackError::Beyond("the chunk")));
    };
    let blosc = BloscHeader::parse(bytes);
    let range = ByteRange { offset: SUPERCHUNK_BYTES as u64, nbytes: blosc.nbytes.into() };
    let last_decoded = blosc.decoded.into();
    let mut found = Contents { ranges: vec![range], last_decoded, ..Contents::default() };
    if let Some(defect) = blosc.defect(None) {
        found.refused.insert(0, defect);
    }
    Ok(Ok(found))
}

impl Contents {
    /// Returns the chunks as an index of `slots` chunks; slots beyond them are empty.
    pub fn index(&self, slots: &[u64]) -> Option<ShardIndex> {
        let mut index = ShardIndex::empty(&IndexCodecs::BARE, IndexLocation::End, slots).ok()?;
        let slots = index.slots();
        for (slot, range) in (0..slots).zip(&self.ranges) {
            index.set(slot, Some(*range));
        }
        Some(index)
    }
}
