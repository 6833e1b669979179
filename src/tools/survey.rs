//! Survey of one shard: its contents, and the use of its bytes.
//!
//! ```text
//! file     | chunks, gaps between them | index | checksum over the shard |
//!            live        dead            overhead
//! ```

use std::sync::Arc;

use crate::format::index::{ByteRange, CHECKSUM_BYTES};
use crate::format::space::{Clash, Space};
use crate::format::whole_shard::{ShardCodec, trailing_checksums};
use crate::number::to_usize;
use crate::source::Array;
use crate::store::entries::{Place, Visit};
use crate::store::formats::Framing;
use crate::store::storage::Storage;
use crate::store::{Body, LoadedShard, ShardStore, StoreError, io_error};

/// Result of the survey of a shard.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Length of the file, in bytes.
    pub nbytes: u64,
    /// Length in bytes of all chunks; bytes shared by several chunks count once. For a shard that
    /// is compressed as a whole: the length of the file.
    pub live: u64,
    /// Length in bytes of indexes, headers and checksums, without what chunks overlap of them.
    pub overhead: u64,
    /// Length in bytes of unreferenced space.
    pub dead: u64,
    /// Runs of unreferenced bytes that are long enough to hold an index.
    pub gaps: Vec<ByteRange>,
    /// Number of chunks whose bytes are those of another chunk already counted.
    pub shared: u64,
    /// Number of empty entries in the form that zarrita wrote.
    pub wrapped: u64,
    /// Chunks, or shards inside the shard, whose bytes partly overlap others.
    pub clashes: Vec<InnerClash>,
}

/// Ranges that overlap within a shard, or within a shard inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InnerClash {
    /// Level of the shard, 0 being the outermost.
    pub level: usize,
    /// Offset of the shard's first byte, which identifies it among those of its level.
    pub start: u64,
    /// The overlapping ranges.
    pub clash: Clash,
    /// `true` if the overlapped range is the index.
    pub is_index: bool,
}

/// A shard, or a shard inside it, whose places are being visited.
struct Frame {
    level: usize,
    start: u64,
    in_memory: bool,
    index: Option<ByteRange>,
    ranges: Vec<ByteRange>,
}

/// Surveys all places of an undamaged shard, and passes each one on to `visit`.
pub(crate) fn survey<E: From<StoreError>>(
    storage: &dyn Storage,
    store: &ShardStore,
    array: &Array,
    coords: &[u64],
    shard: &Arc<LoadedShard>,
    visit: &mut Visit<'_, E>,
) -> Result<Survey, E> {
    let path = array.source.shard_path(coords);
    let framing = array.source.format.framing(storage, &path, shard.stat().size);
    let Framing { head, tail, after_chunk } = framing.map_err(io_error(&path))?;
    let end = shard.stat().size.saturating_sub(tail);
    let head = ByteRange { offset: 0, nbytes: head };
    let overhead = [head, ByteRange { offset: end, nbytes: tail }].into_iter();
    let overhead: Vec<ByteRange> = overhead.filter(|range| range.nbytes > 0).collect();
    let mut surveyor = Surveyor { array, overhead, digest: after_chunk, ..Surveyor::new(array) };
    store.each_place(&array.source, coords, shard, &mut |span, place| {
        surveyor.take(&place);
        visit(span, place)
    })?;
    Ok(surveyor.finish(shard.stat().size))
}

struct Surveyor<'a> {
    array: &'a Array,
    frames: Vec<Frame>,
    /// Ranges in the file of the chunks of completed frames.
    chunks: Vec<ByteRange>,
    overhead: Vec<ByteRange>,
    /// Number of bytes that follow each chunk.
    digest: u64,
    survey: Survey,
}

impl<'a> Surveyor<'a> {
    fn new(array: &'a Array) -> Self {
        let survey = Survey::default();
        Self {
            array,
            frames: Vec::new(),
            chunks: Vec::new(),
            overhead: Vec::new(),
            digest: 0,
            survey,
        }
    }

    fn take(&mut self, place: &Place<'_>) {
        match place {
            Place::Shard { level, shard } => {
                self.leave(*level);
                let (Some(body), Some(index)) = (shard.body(), shard.index()) else { return };
                let (range, in_memory) = range_of(body);
                if let Some(stored) = shard.stored() {
                    self.add(stored);
                    if let (stored, false) = range_of(stored)
                        && in_memory
                    {
                        // The chunks inside have no ranges of their own in the file.
                        self.chunks.push(stored);
                    }
                }
                let has_index = self.array.source.format.has_index();
                let place = has_index.then(|| index.place(range.nbytes)).flatten();
                let index_range = place.map(|place| ByteRange {
                    offset: range.offset + place.offset,
                    nbytes: place.nbytes,
                });
                self.survey.wrapped += if has_index { index.wrapped_empties() } else { 0 };
                if !in_memory {
                    self.overhead.extend(index_range);
                    self.overhead.extend(self.checksums_after(*level, range));
                }
                self.frames.push(Frame {
                    level: *level,
                    start: range.offset,
                    in_memory,
                    index: index_range,
                    ranges: Vec::new(),
                });
            }
            Place::Chunk { body, .. } => {
                self.leave(self.array.source.layout.levels.len());
                self.add(body);
                let (range, in_memory) = range_of(body);
                if !in_memory && self.digest > 0 {
                    let offset = range.offset + range.nbytes;
                    self.overhead.push(ByteRange { offset, nbytes: self.digest });
                }
            }
            Place::Empty | Place::Bad(_) => (),
        }
    }

    /// Returns the range of the checksums that follow a shard; `None` if there are none.
    fn checksums_after(&self, level: usize, shard: ByteRange) -> Option<ByteRange> {
        let after = &self.array.source.layout.levels[level].after;
        let nbytes = trailing_checksums(after).filter(|nbytes| *nbytes > 0)?;
        Some(ByteRange { offset: shard.offset + shard.nbytes, nbytes })
    }

    fn add(&mut self, body: &Body) {
        let Some(frame) = self.frames.last_mut() else { return };
        let (range, _) = range_of(body);
        if let Some(index) = frame.index.filter(|index| overlaps(*index, range)) {
            let clash = Clash { range, with: index };
            let (level, start) = (frame.level, frame.start);
            self.survey.clashes.push(InnerClash { level, start, clash, is_index: true });
        }
        frame.ranges.push(range);
    }

    /// Completes the frames of a level and of those below.
    fn leave(&mut self, level: usize) {
        while let Some(frame) = self.frames.pop_if(|frame| frame.level >= level) {
            let Frame { level, start, in_memory, ranges, .. } = frame;
            let space = Space::new(ranges);
            let clashes = space.clashes().into_iter();
            self.survey.clashes.extend(clashes.map(|clash| InnerClash {
                level,
                start,
                clash,
                is_index: false,
            }));
            let is_innermost = level + 1 == self.array.source.layout.levels.len();
            if !is_innermost {
                continue;
            }
            if in_memory {
                self.survey.shared += space.shared();
            } else if self.chunks.is_empty() {
                self.chunks = space.into_ranges();
            } else {
                self.chunks.extend(space.into_ranges());
            }
        }
    }

    fn finish(mut self, nbytes: u64) -> Survey {
        let is_opaque = self.frames.first().is_some_and(|frame| frame.in_memory);
        self.leave(0);
        let mut survey = self.survey;
        survey.nbytes = nbytes;
        if is_opaque {
            survey.live = nbytes;
            return survey;
        }
        let space = Space::new(self.chunks);
        survey.live = space.nbytes();
        survey.shared += space.shared();
        let mut all = space.into_ranges();
        all.extend(self.overhead);
        let all = Space::new(all);
        // Where a chunk overlaps an index, the bytes count as the chunk's only.
        survey.overhead = all.nbytes().min(nbytes).saturating_sub(survey.live);
        survey.dead = nbytes.saturating_sub(all.nbytes());
        let least = self.array.source.layout.levels[0].index_codecs.stored_size(1).unwrap_or(0);
        survey.gaps = all.gaps(nbytes).filter(|gap| gap.nbytes >= least).collect();
        survey
    }
}

/// Returns a range, and whether it is in the decoded shard (`true`) or in the file (`false`).
pub(crate) fn range_of(body: &Body) -> (ByteRange, bool) {
    match body {
        Body::InFile { offset, nbytes } => (ByteRange { offset: *offset, nbytes: *nbytes }, false),
        Body::InMemory { start, end, .. } => {
            (ByteRange { offset: *start as u64, nbytes: (end - start) as u64 }, true)
        }
    }
}

fn overlaps(one: ByteRange, other: ByteRange) -> bool {
    one.nbytes > 0
        && other.nbytes > 0
        && one.offset < other.offset + other.nbytes
        && other.offset < one.offset + one.nbytes
}

/// Returns the number of checksums over a shard; `None` if there are none, or if there are other
/// codecs around it.
pub(crate) fn has_checksums_only(after: &[ShardCodec]) -> Option<usize> {
    let nbytes = trailing_checksums(after).filter(|nbytes| *nbytes > 0)?;
    Some(to_usize(nbytes) / CHECKSUM_BYTES)
}
