//! Frames of Blosc2 ([`crate::format::blosc2`]): the whole array is one file, and one shard. They are read alone.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::file_state::FileState;
use super::shard_format::{Framing, Reading, ShardFormat};
use crate::format::blosc2::{
    ArrayLayer, Blosc2Error, CHUNK_HEADER_BYTES, ChunkHeader, ChunkPlace, FIXED_BYTES, FrameHeader,
    Special, TRAILER_END, hexadecimal, json_of, trailer_layers, trailer_length,
};
use crate::format::chunk_error::ChunkDefect;
use crate::format::index::{
    ByteRange, IndexCodecs, IndexError, IndexLocation, ShardIndex, product,
};
use crate::format::pipeline::unblosc2_at_most;
use crate::format::sharding::ShardedArray;
use crate::number::to_usize;
use crate::store::error::Damage;
use crate::store::loaded::{Body, Ready};
use crate::store::storage::{FileKind, Storage, StorageFile};

/// Chunks whose headers are requested before the first of them is read.
const HEADERS_AHEAD: usize = 64;

/// Maximum decoded length of all values of the trailer in bytes: as JSON they take up to a hundred times as much memory.
const MAX_VALUES: u64 = 1 << 20;

/// One file.
#[derive(Debug)]
pub(super) struct Blosc2 {
    /// Name of the file.
    pub(super) name: OsString,
    /// What was read of the frame when it was opened.
    pub(super) opened: Opened,
}

/// What chunks of a frame are read by: another frame may have its name by now.
#[derive(Debug, PartialEq, Eq)]
pub struct Opened {
    array: Option<ArrayLayer>,
    typesize: u32,
    /// `true` if chunks that are not stored are NaN, `false` if they are zeros.
    is_nan: bool,
}

impl ShardFormat for Blosc2 {
    fn name(&self) -> &'static str {
        "Blosc2"
    }

    fn shard_name(&self, _layout: &ShardedArray, _shard: &[u64]) -> PathBuf {
        self.name.clone().into()
    }

    fn is_shard_name(&self, _layout: Option<&ShardedArray>, name: &str) -> bool {
        OsStr::new(name) == self.name
    }

    fn hides(&self, _name: &OsStr) -> bool {
        true
    }

    fn is_one_file(&self) -> bool {
        true
    }

    fn can_shrink(&self) -> bool {
        false
    }

    fn read(&self, reading: &Reading<'_>) -> io::Result<Result<Ready, Damage>> {
        if reading.stat.kind != FileKind::File {
            return Ok(Err(Damage::NotAFile(reading.stat.kind)));
        }
        let state = FileState::now(reading.file, reading.stat.size);
        let frame = match frame(&state)? {
            Ok(frame) => frame,
            Err(error) => return Ok(Err(error.into())),
        };
        if frame.opened() != self.opened {
            return Ok(Err(Blosc2Error::Changed.into()));
        }
        frame.indexed(reading, &state)
    }

    fn framing(&self, storage: &dyn Storage, path: &Path, nbytes: u64) -> io::Result<Framing> {
        let file = storage.open(path)?;
        let head = FileState::now(&*file, nbytes).read(0, FIXED_BYTES)?;
        // The header is valid: the file is not damaged. Offsets and trailer are behind the chunks.
        let of = |header: FrameHeader| Framing {
            head: header.header,
            tail: nbytes.saturating_sub(header.header + header.stored),
            after_chunk: 0,
        };
        Ok(FrameHeader::parse(&head, nbytes).map_or_else(|_| Framing::default(), of))
    }
}

/// Frame of which all but the chunks was read.
#[derive(Debug)]
pub struct Frame {
    /// Its header.
    pub header: FrameHeader,
    /// What a metalayer says of the array. `None` if there is none.
    pub array: Option<ArrayLayer>,
    /// Where each chunk is.
    pub places: Vec<ChunkPlace>,
}

/// Reads everything of a frame but its chunks and its trailer.
pub fn frame(file: &FileState<'_>) -> io::Result<Result<Frame, Blosc2Error>> {
    let size = file.size();
    let header = match FrameHeader::parse(&file.read(0, FIXED_BYTES)?, size) {
        Ok(header) => header,
        Err(error) => return Ok(Err(error)),
    };
    // Within a limit that was checked.
    let bytes = file.read(0, to_usize(header.header))?;
    let array = match ArrayLayer::parse(&bytes, &header) {
        Ok(array) => array,
        Err(error) => return Ok(Err(error)),
    };
    let places = places(file, &header)?;
    Ok(places.and_then(|places| {
        ChunkPlace::check(&places, header.stored)?;
        Ok(Frame { header, array, places })
    }))
}

/// Reads the offsets of all chunks.
fn places(
    file: &FileState<'_>,
    header: &FrameHeader,
) -> io::Result<Result<Vec<ChunkPlace>, Blosc2Error>> {
    let nbytes = match header.nchunks() {
        Ok(0) => return Ok(Ok(Vec::new())),
        Ok(nchunks) => nchunks * crate::format::blosc2::OFFSET_BYTES,
        Err(error) => return Ok(Err(error)),
    };
    let bad = |error: String| Ok(Err(Blosc2Error::Offsets(error)));
    let at = header.header + header.stored;
    let first = file.read(at, CHUNK_HEADER_BYTES)?;
    let chunk = match first.first_chunk().map(ChunkHeader::parse) {
        Some(Ok(chunk)) => chunk,
        Some(Err(error)) => return bad(error.to_owned()),
        None => return Ok(Err(Blosc2Error::Beyond("the offsets"))),
    };
    let end = at.checked_add(chunk.nbytes.into()).filter(|end| *end <= header.frame);
    if end.is_none() {
        return Ok(Err(Blosc2Error::Beyond("the offsets")));
    }
    let stored = file.read(at, chunk.nbytes as usize)?;
    match unblosc2_at_most(&stored, nbytes) {
        Ok(offsets) if offsets.len() as u64 == nbytes => {
            Ok(Ok(ChunkPlace::all(&offsets).collect()))
        }
        Ok(offsets) => bad(format!("they have {} bytes, {nbytes} are expected", offsets.len())),
        Err(error) => bad(error.to_string()),
    }
}

/// Reads the metadata in the trailer of a frame by name: values as JSON.
///
/// # Errors
/// The file cannot be read. Metadata that cannot be understood is the reason why not.
pub fn metadata(
    file: &FileState<'_>,
    header: &FrameHeader,
) -> io::Result<Result<serde_json::Map<String, serde_json::Value>, Blosc2Error>> {
    const TRAILER: &str = "its trailer";
    let end = file.read(header.frame.saturating_sub(TRAILER_END as u64), TRAILER_END)?;
    let start = trailer_length(&end).and_then(|length| header.frame.checked_sub(length));
    let Some(start) = start.filter(|start| *start >= header.header) else {
        return Ok(Err(Blosc2Error::Msgpack(TRAILER)));
    };
    // Within a limit that was checked.
    let trailer = file.read(start, to_usize(header.frame - start))?;
    let layers = match trailer_layers(&trailer) {
        Ok(layers) => layers,
        Err(error) => return Ok(Err(error)),
    };
    // Chunks of these are made when python-blosc2 reads them: here they would be zeros.
    let is_made = |name: &str| name == "b2o" || name.starts_with("proxy-");
    if layers.iter().any(|(name, _)| is_made(name)) {
        return Ok(Err(Blosc2Error::Kind("no items of its own, but those of others")));
    }
    let mut left = MAX_VALUES;
    let mut value = |content: &[u8]| {
        let text = unblosc2_at_most(content, left).ok()?;
        left -= text.len() as u64;
        // A program may store any bytes.
        Some(json_of(&text).unwrap_or_else(|| hexadecimal(&text)))
    };
    let bad = || Blosc2Error::Msgpack("a value of its metadata, or more than a MiB of them,");
    let values =
        layers.into_iter().map(|(name, content)| Ok((name, value(&content).ok_or_else(bad)?)));
    Ok(values.collect())
}

impl Frame {
    /// Makes an index of the chunks.
    fn indexed(
        &self,
        reading: &Reading<'_>,
        file: &FileState<'_>,
    ) -> io::Result<Result<Ready, Damage>> {
        if let Err(error) = ChunkPlace::fill(&self.places) {
            return Ok(Err(error.into()));
        }
        reading.stats.indexes.loads.count();
        let slots = product(reading.chunks_per_shard).unwrap_or(u64::MAX);
        let index =
            ShardIndex::empty(&IndexCodecs::BARE, IndexLocation::End, reading.chunks_per_shard);
        let Ok(mut index) = index else { return Ok(Err(IndexError::Limit { slots }.into())) };
        let mut refused = HashMap::new();
        for (slot, place) in (0..index.slots()).zip(&self.places) {
            self.expect_headers(file, to_usize(slot));
            let found = match place {
                ChunkPlace::At(offset) => self.chunk(file, slot, *offset)?,
                ChunkPlace::Special(_) => continue,
                ChunkPlace::Invalid => Err(ChunkDefect::NoOffset),
            };
            let nowhere = ByteRange { offset: 0, nbytes: 0 };
            index.set(slot, Some(*found.as_ref().unwrap_or(&nowhere)));
            refused.extend(found.err().map(|defect| (slot, defect)));
        }
        let body = Body::InFile { offset: 0, nbytes: file.size() };
        Ok(Ok(Ready { is_index_stored: false, refused, ..Ready::new(body, index) }))
    }

    /// Returns what its chunks are read by.
    pub fn opened(&self) -> Opened {
        let fill = ChunkPlace::fill(&self.places).ok().flatten();
        Opened {
            array: self.array.clone(),
            typesize: self.header.typesize,
            is_nan: fill == Some(Special::Nan),
        }
    }

    /// Returns the range of the chunk at an offset from the header's end.
    fn chunk(
        &self,
        file: &FileState<'_>,
        number: u64,
        offset: u64,
    ) -> io::Result<Result<ByteRange, ChunkDefect>> {
        let (begin, end) = (self.header.header, self.header.header + self.header.stored);
        let Some(offset) = begin.checked_add(offset).filter(|offset| *offset < end) else {
            return Ok(Err(ChunkDefect::BeginsBeyond));
        };
        let bytes = file.read(offset, CHUNK_HEADER_BYTES)?;
        let Some(bytes) = bytes.first_chunk() else { return Ok(Err(ChunkDefect::BeginsBeyond)) };
        let Some((decoded, nbytes)) = ChunkHeader::lengths(bytes) else {
            return Ok(Err(ChunkDefect::Header));
        };
        if offset.checked_add(nbytes).is_none_or(|last| last > end) {
            return Ok(Err(ChunkDefect::EndsBeyond));
        }
        if decoded != self.header.decoded_of(number) {
            return Ok(Err(ChunkDefect::OtherLength));
        }
        Ok(Ok(ByteRange { offset, nbytes }))
    }

    /// Says which headers of chunks are read next, each time that many of them were read.
    fn expect_headers(&self, file: &FileState<'_>, slot: usize) {
        if !slot.is_multiple_of(HEADERS_AHEAD) {
            return;
        }
        let header = |place: &ChunkPlace| match place {
            ChunkPlace::At(offset) => {
                let offset = self.header.header.checked_add(*offset)?;
                Some(ByteRange { offset, nbytes: CHUNK_HEADER_BYTES as u64 })
            }
            _ => None,
        };
        let next = self.places.iter().skip(slot).take(HEADERS_AHEAD).filter_map(header);
        next.for_each(|header| file.expect(&[header]));
    }
}

/// Returns whether a file begins like a frame.
pub fn is_frame(file: &dyn StorageFile) -> io::Result<bool> {
    let mut head = [0; 16];
    let read = file.read_at(&mut head, 0)?;
    Ok(crate::format::blosc2::is_frame(&head[..read]))
}
