//! Verification of the individual chunks of a shard: entry, length and bytes.

use std::ops::Range;
use std::sync::Arc;

use super::checks::{Checks, VerifyConfig, holds_blosc};
use super::finding::{Finding, What, Within};
use super::step::{Checked, Early};
use crate::format::blosc::{BLOSC_BYTES, BloscHeader};
use crate::format::codec::parse_chain;
use crate::format::pipeline::{DecodeError, Pipeline};
use crate::format::whole_shard::{self, Compression, ShardCodec};
use crate::memory::{NoMemory, ROOM, resize};
use crate::source::{Array, Source};
use crate::store::entries::{Place, Span};
use crate::store::{Chunk, ChunkReader, Damage, LoadedShard, StoreError, io_error};
use crate::tools::parts::{Loaded, SharedShard};
use crate::tools::survey::range_of;

/// Maximum length in bytes of an encoded chunk that is decoded.
const MAX_ENCODED_BYTES: u64 = 1 << 30;

/// Maximum size of a buffer that is kept for the next chunk.
const KEPT_BYTES: usize = 8 << 20;

/// Codecs that always write a header, among those whose arrays cannot be decoded here.
const WITH_HEADER: [&str; 3] = ["vlen-utf8", "vlen-bytes", "vlen-array"];

/// Codec of chunks that are Blosc buffers without metadata that says so.
const BLOSC: ShardCodec = ShardCodec::Compressed(Compression::Blosc);

/// Rule for chunks of zero bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NoBytes {
    Legal,
    Defect,
    Unknown,
}

pub(super) struct ChunkCheck<'a> {
    source: &'a Source,
    early: &'a Early<'a>,
    checks: &'a Checks,
    shard: &'a SharedShard,
    no_bytes: NoBytes,
    nbytes: Option<u64>,
    /// Pipeline that decodes chunks; `None` if they cannot be decoded.
    pipeline: Option<&'a Pipeline>,
    decodes: bool,
    encoded: Vec<u8>,
    decoded: Vec<u8>,
    checked: Checked,
}

impl<'a> ChunkCheck<'a> {
    pub(super) fn new(
        source: &'a Source,
        config: VerifyConfig,
        early: &'a Early<'a>,
        checks: &'a Checks,
        shard: &'a SharedShard,
    ) -> Self {
        let pipeline = checks.pipeline.as_ref().ok();
        Self {
            source,
            early,
            checks,
            shard,
            no_bytes: no_bytes(&checks.array, pipeline),
            nbytes: pipeline.and_then(Pipeline::encoded_nbytes),
            pipeline,
            decodes: config.decode && (pipeline.is_some() || holds_blosc(&checks.array)),
            encoded: Vec::new(),
            decoded: Vec::new(),
            checked: Checked::default(),
        }
    }

    pub(super) fn check(mut self, slots: Range<u64>) -> Checked {
        match self.shard.load(&self.source.store) {
            Ok(Loaded::Here(loaded)) if !loaded.is_damaged() => {
                if let Err(error) = self.places(&loaded, slots) {
                    self.error(error, None);
                }
            }
            Ok(_) => (),
            Err(error) => self.error(error, None),
        }
        self.checked
    }

    fn places(&mut self, shard: &Arc<LoadedShard>, slots: Range<u64>) -> Result<(), StoreError> {
        let (store, array) = (&self.source.store, &self.checks.array.source);
        let coords = &self.shard.coords;
        store.each_place_within(array, coords, slots, shard, &mut |span, place| {
            match place {
                Place::Chunk { body, digest } => {
                    let chunk = Chunk { shard: *shard.stat(), body, digest };
                    self.chunk(span, &chunk);
                }
                Place::Bad(error) => self.error(error, Some(span.first)),
                Place::Empty | Place::Shard { .. } => (),
            }
            Ok(())
        })
    }

    fn error(&mut self, error: StoreError, chunk: Option<&[u64]>) {
        let finding = Finding::of_error(&self.checks.array.source.path, error, chunk);
        self.checked.found(self.early, finding);
    }

    fn found(&mut self, span: Span<'_>, what: What) {
        let array = &self.checks.array.source;
        let position = array.layout.locate(span.first).positions.concat();
        let within = Within { is_shard: false, position, chunk: Some(span.first.to_vec()) };
        let path = array.shard_path(&self.shard.coords);
        let finding = Finding::of_shard(&array.path, path, what);
        self.checked.found(self.early, Finding { within: Some(within), ..finding });
    }

    fn chunk(&mut self, span: Span<'_>, chunk: &Chunk) {
        self.checked.step.counts.chunks += 1;
        let found = chunk.nbytes();
        if found == 0 && self.no_bytes != NoBytes::Legal {
            if self.no_bytes == NoBytes::Defect {
                self.found(span, What::NoBytes(range_of(&chunk.body).0.offset));
            } else {
                self.checked.tally.no_bytes_unknown += 1;
            }
            return;
        }
        if let Some(expected) = self.nbytes.filter(|expected| *expected != found) {
            return self.found(span, What::Length { found, expected });
        }
        if !self.decodes {
            return;
        }
        match self.read_and_decode(span, chunk) {
            Ok(decoded) => {
                self.checked.step.counts.bytes += found;
                if let Err(error) = decoded {
                    self.found(span, What::Undecodable(error));
                }
            }
            Err(error) => self.error(error, Some(span.first)),
        }
        // What is kept has no room reserved.
        for buffer in [&mut self.encoded, &mut self.decoded] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
    }

    /// Reads and decodes a chunk. An error of the store says nothing about the chunk's bytes.
    fn read_and_decode(
        &mut self,
        span: Span<'_>,
        chunk: &Chunk,
    ) -> Result<Result<(), DecodeError>, StoreError> {
        let array = &self.checks.array.source;
        let shard = || array.shard_path(&self.shard.coords);
        let (found, limit) = (chunk.nbytes(), MAX_ENCODED_BYTES);
        if found > limit {
            let damage = Arc::new(Damage::TooLong { found, limit });
            return Err(StoreError::Damaged { shard: shard(), damage });
        }
        // It verifies the checksum that follows the chunk, and opens the shard.
        let reader = self.source.store.reader(array, span.first, chunk)?;
        let reader = reader.ok_or_else(|| StoreError::Changing { shard: shard() })?;
        let decoded = self.decoded_nbytes(&reader).map_err(io_error(&shard()))?;
        let room = ROOM.take(reader.nbytes().saturating_add(decoded));
        let _room = room.map_err(io_error(&shard()))?;
        let no_memory = |none: NoMemory| io_error(&shard())(none.into());
        resize(&mut self.encoded, reader.nbytes()).map_err(no_memory)?;
        let read = reader.read(&mut self.encoded, 0);
        let unchanged = reader.unchanged().map_err(io_error(&shard()))?;
        if !unchanged {
            return Err(StoreError::Changing { shard: shard() });
        }
        read.map_err(io_error(&shard()))?;
        match self.decode(span.first) {
            Err(DecodeError::NoMemory(none)) => {
                Err(io_error(&array.shard_path(&self.shard.coords))(none.into()))
            }
            decoded => Ok(decoded),
        }
    }

    /// Returns the memory in bytes that decoding a chunk takes, beside its own.
    fn decoded_nbytes(&self, reader: &ChunkReader) -> std::io::Result<u64> {
        if let Some(pipeline) = self.pipeline {
            // Between codecs the chunk is about as long as it is in the end.
            return Ok((pipeline.nbytes() as u64).saturating_mul(2));
        }
        let mut header = [0; BLOSC_BYTES];
        reader.read(&mut header, 0)?;
        Ok(u64::from(BloscHeader::parse(&header).decoded).min(MAX_ENCODED_BYTES))
    }

    fn decode(&mut self, coords: &[u64]) -> Result<(), DecodeError> {
        let Some(pipeline) = self.pipeline else {
            let encoded = std::mem::take(&mut self.encoded);
            return whole_shard::decode(&[BLOSC], encoded, MAX_ENCODED_BYTES).map(drop);
        };
        resize(&mut self.decoded, pipeline.nbytes() as u64)?;
        pipeline.decode_at(coords, &self.encoded, &mut self.decoded)
    }
}

fn no_bytes(array: &Array, pipeline: Option<&Pipeline>) -> NoBytes {
    let has_header = || {
        let twin = array.twin();
        let codecs = twin.as_ref().and_then(|twin| twin.get("codecs"));
        let codecs = parse_chain(codecs).unwrap_or_default();
        codecs.iter().any(|codec| WITH_HEADER.contains(&codec.name.as_str()))
    };
    match pipeline {
        _ if holds_blosc(array) => NoBytes::Defect,
        Some(pipeline) if pipeline.nbytes() == 0 => NoBytes::Legal,
        Some(_) => NoBytes::Defect,
        None if has_header() => NoBytes::Defect,
        None => NoBytes::Unknown,
    }
}
