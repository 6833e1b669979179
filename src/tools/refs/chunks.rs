//! References to the chunks of one shard.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tempfile::SpooledTempFile;

use super::config::Config;
use super::error::{Problem, RefsError};
use super::names::{Urls, inside};
use crate::format::chunk_key::KeyEncoding;
use crate::format::grid::ShardAxis;
use crate::memory::zeroed;
use crate::store::entries::{Place, Span};
use crate::store::storage::Stat;
use crate::store::{
    Body, Chunk, Freshness, LoadedShard, ShardStore, SourceArray, StoreError, io_error,
};

/// Maximum number of problems that are reported individually for a shard.
const KEPT_PROBLEMS: usize = 100;

/// An array whose chunks are referenced.
pub(super) struct ArrayRefs<'a> {
    /// Location and layout of the chunks.
    pub array: &'a SourceArray,
    /// Store that reads its shards.
    pub store: &'a ShardStore,
    /// Encoding of the chunks' keys in the references.
    pub keys: KeyEncoding,
    /// Prefix of the keys, escaped for a JSON string.
    pub before: String,
    /// Number of chunks along each axis.
    pub grid: Vec<u64>,
    /// Naming of the source's files.
    pub urls: &'a Urls,
    /// Options for writing references.
    pub config: &'a Config,
    /// Reference for an absent chunk; `None` if absent chunks get none.
    pub absent: Option<String>,
}

/// Output of a unit of work.
pub(super) struct Part {
    /// Text of the references.
    pub text: SpooledTempFile,
    /// Number of chunks referenced.
    pub chunks: u64,
    /// Chunks that cannot be referenced.
    pub problems: Problems,
}

/// Problems of a shard: the first of them and the total number, because all chunks of a shard can
/// be affected.
#[derive(Default)]
pub(super) struct Problems {
    /// The first problems, at most `KEPT_PROBLEMS`.
    pub first: Vec<Problem>,
    /// Total number of problems.
    pub count: u64,
}

impl Problems {
    fn add(&mut self, problem: Problem) {
        self.count += 1;
        if self.first.len() < KEPT_PROBLEMS {
            self.first.push(problem);
        }
    }
}

impl Part {
    pub(super) fn new(kept: usize) -> Self {
        Self { text: SpooledTempFile::new(kept), chunks: 0, problems: Problems::default() }
    }
}

/// A shard whose references are being written.
struct Shard<'a, 'b> {
    refs: &'b ArrayRefs<'a>,
    coords: &'b [u64],
    /// URL of its file, escaped for a JSON string.
    url: String,
    text: BufWriter<&'b mut SpooledTempFile>,
    chunks: u64,
    problems: &'b mut Problems,
}

/// Function that is called with the chunk at some coordinates.
type Act<'a, T> = dyn FnMut(&mut T, &[u64]) -> Result<(), Failed> + 'a;

/// Error of the temporary file or of reading the source.
struct Failed(RefsError);

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self(RefsError::Temporary(error))
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self(error.into())
    }
}

impl ArrayRefs<'_> {
    /// Calls `act` with the coordinates of every shard in the grid.
    pub(super) fn each_shard_of_grid<E>(
        &self,
        act: &mut dyn FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let ends: Vec<u64> = self.array.layout.shard_grid.iter().map(ShardAxis::shards).collect();
        let each = each_in_box(&vec![0; ends.len()], &ends, &mut |coords| match act(coords) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        });
        each.map_or(Ok(()), Err)
    }

    /// Writes references to the chunks of a shard into `part`.
    pub(super) fn shard(&self, coords: &[u64], part: &mut Part) -> Result<(), RefsError> {
        let found = self.store.shard(self.array, coords, Freshness::Now);
        let path = self.array.shard_path(coords);
        let found = found.transpose();
        let missing = || self.store.check_absent(self.array, coords).err().map(Err);
        let found = found.or_else(missing);
        if found.is_none() && self.absent.is_none() {
            return Ok(());
        }
        let url = inside(&self.urls.of(&path)?);
        let text = BufWriter::new(&mut part.text);
        let problems = &mut part.problems;
        let mut writer = Shard { refs: self, coords, url, text, chunks: 0, problems };
        let done = match found {
            None => writer.absent_shard(),
            Some(Ok(shard)) => {
                let stat = *shard.stat();
                self.store.each_place(self.array, coords, &shard, &mut |span, place| {
                    writer.place(stat, span, place)
                })
            }
            Some(Err(error)) => writer.unreadable_shard(error),
        };
        let done = done.and_then(|()| Ok(writer.text.flush()?));
        part.chunks += writer.chunks;
        done.map_err(|Failed(error)| error)
    }
}

impl Shard<'_, '_> {
    fn place(&mut self, stat: Stat, span: Span<'_>, place: Place<'_>) -> Result<(), Failed> {
        let grid = &self.refs.grid;
        if span.is_outside(grid) {
            return Ok(());
        }
        match place {
            Place::Empty => self.absent(span.first, span.extents),
            Place::Shard { shard, .. } => match damage_of(self, shard) {
                Some(error) => self.unreadable(span.first, span.extents, error),
                None => Ok(()),
            },
            Place::Bad(error) => self.unreadable(span.first, span.extents, error),
            Place::Chunk { body, digest } => {
                let chunk = Chunk { shard: stat, body, digest };
                match self.chunk(span.first, chunk) {
                    Err(Failed(RefsError::List(error))) => {
                        self.unreadable(span.first, span.extents, error)
                    }
                    done => done,
                }
            }
        }
    }

    fn chunk(&mut self, coords: &[u64], chunk: Chunk) -> Result<(), Failed> {
        let (array, store) = (self.refs.array, self.refs.store);
        let is_last =
            coords.first().zip(self.refs.grid.first()).is_some_and(|(at, n)| at + 1 == *n);
        let chunk = match is_last && !array.format.has_keys() {
            // Returns the chunk padded if it is shorter than the others.
            true => store.chunk(array, coords, Freshness::Recent)?.unwrap_or(chunk),
            false => chunk,
        };
        let is_padded = chunk.offset().is_none() && !array.format.has_keys();
        let nbytes = chunk.nbytes();
        if nbytes <= self.refs.config.inline || is_padded {
            let bytes = read(store, array, coords, &chunk)?;
            self.key(coords)?;
            write!(self.text, "\"base64:{}\"", STANDARD.encode(bytes))?;
            return Ok(());
        }
        match chunk.body {
            Body::InFile { offset, .. } => {
                self.key(coords)?;
                write!(self.text, "[\"{}\",{offset},{nbytes}]", self.url)?;
            }
            Body::InMemory { .. } => {
                let (shard, key) =
                    (array.shard_path(self.coords), self.refs.keys.chunk_key(coords));
                self.problems.add(Problem::NotInFile { shard, key, nbytes });
                self.empty(coords)?;
            }
        }
        Ok(())
    }

    /// Writes the key of the next reference.
    fn key(&mut self, coords: &[u64]) -> Result<(), Failed> {
        self.chunks += 1;
        let (before, key) = (&self.refs.before, self.refs.keys.chunk_key(coords));
        Ok(write!(self.text, ",\n\"{before}{key}\":")?)
    }

    /// Writes an empty reference, which readers fail to decode.
    fn empty(&mut self, coords: &[u64]) -> Result<(), Failed> {
        self.key(coords)?;
        self.chunks -= 1;
        Ok(self.text.write_all(b"\"\"")?)
    }

    /// Writes references for all chunks of a box, none of which exists.
    fn absent(&mut self, first: &[u64], extents: &[u64]) -> Result<(), Failed> {
        let Some(text) = &self.refs.absent else { return Ok(()) };
        self.each_within(first, extents, &mut |shard, coords| {
            shard.key(coords)?;
            shard.chunks -= 1;
            Ok(shard.text.write_all(text.as_bytes())?)
        })
    }

    fn absent_shard(&mut self) -> Result<(), Failed> {
        let (first, extents) = self.span();
        self.absent(&first, &extents)
    }

    /// Writes empty references for all chunks of a box, none of which can be read.
    fn unreadable(
        &mut self,
        first: &[u64],
        extents: &[u64],
        error: StoreError,
    ) -> Result<(), Failed> {
        self.problems.add(error.into());
        if !self.refs.config.skips {
            return Ok(());
        }
        self.each_within(first, extents, &mut Self::empty)
    }

    /// Calls `act` for all chunks of a box that are in the grid.
    fn each_within(
        &mut self,
        first: &[u64],
        extents: &[u64],
        act: &mut Act<'_, Self>,
    ) -> Result<(), Failed> {
        let grid = &self.refs.grid;
        let ends =
            first.iter().zip(extents).zip(grid).map(|((first, n), grid)| (first + n).min(*grid));
        let ends: Vec<u64> = ends.collect();
        let each = each_in_box(first, &ends, &mut |coords| match act(self, coords) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        });
        each.map_or(Ok(()), Err)
    }

    /// Returns the first chunk of the shard and the number of chunks along each axis.
    fn span(&self) -> (Vec<u64>, Vec<u64>) {
        let axes = self.coords.iter().zip(&self.refs.array.layout.shard_grid);
        axes.map(|(at, axis)| axis.span(*at)).unzip()
    }

    /// Handles a shard that cannot be opened.
    fn unreadable_shard(&mut self, error: StoreError) -> Result<(), Failed> {
        let (first, extents) = self.span();
        self.unreadable(&first, &extents, error)
    }
}

fn damage_of(writer: &Shard<'_, '_>, shard: &LoadedShard) -> Option<StoreError> {
    let path = writer.refs.array.shard_path(writer.coords);
    shard.damage().map(|damage| StoreError::Damaged { shard: path, damage })
}

/// Reads the bytes of a chunk as they were when it was found.
fn read(
    store: &ShardStore,
    array: &SourceArray,
    coords: &[u64],
    chunk: &Chunk,
) -> Result<Vec<u8>, StoreError> {
    let shard = array.shard_path(&array.layout.shard_of(coords));
    let reader = store.reader(array, coords, chunk)?;
    let Some(reader) = reader else { return Err(StoreError::Changing { shard }) };
    // Embedded chunks are small, or already in memory.
    let bytes = zeroed(reader.nbytes()).map_err(std::io::Error::from);
    let mut bytes = bytes.map_err(io_error(&shard))?;
    let read = reader.read(&mut bytes, 0);
    // Bytes of a shard that was changed may be those of another chunk, also where it was cut.
    if !reader.unchanged().map_err(io_error(&shard))? {
        return Err(StoreError::Changing { shard });
    }
    read.map_err(io_error(&shard))?;
    Ok(bytes)
}

/// Calls `act` with all coordinates from `first` up to, but excluding, `ends`, in C order. Returns
/// the value with which `act` broke off; `None` if it did not.
fn each_in_box<E>(
    first: &[u64],
    ends: &[u64],
    act: &mut dyn FnMut(&[u64]) -> ControlFlow<E>,
) -> Option<E> {
    if first.iter().zip(ends).any(|(first, end)| first >= end) {
        return None;
    }
    let mut here = first.to_vec();
    loop {
        if let ControlFlow::Break(error) = act(&here) {
            return Some(error);
        }
        let axis = (0..here.len()).rev().find(|axis| here[*axis] + 1 < ends[*axis])?;
        here[axis] += 1;
        here[axis + 1..].copy_from_slice(&first[axis + 1..]);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;
    use crate::tools::testing::{open, plain, put};

    #[test]
    fn bytes_of_a_shard_that_was_changed_are_not_inlined() {
        let directory = plain();
        let source = open(&directory);
        let array = source.arrays().next().unwrap();
        let chunk = source.store.chunk(&array.source, &[0], Freshness::Now).unwrap().unwrap();
        let read = || read(&source.store, &array.source, &[0], &chunk);
        assert_eq!(read().unwrap(), b"ab");
        // In place, and longer: the clock may not have moved on.
        put(directory.path(), "c/0", &[b'x'; 100]);
        let again = read();
        assert!(matches!(again, Err(StoreError::Changing { .. })), "{again:?}");
    }

    #[test]
    fn a_box_in_c_order() {
        let all = |first: &[u64], ends: &[u64]| {
            let mut found = Vec::new();
            let ended = each_in_box(first, ends, &mut |coords| {
                found.push(coords.to_vec());
                ControlFlow::<()>::Continue(())
            });
            assert!(ended.is_none());
            found
        };
        assert_eq!(all(&[1, 4], &[3, 6]), [[1, 4], [1, 5], [2, 4], [2, 5]]);
        assert_eq!(all(&[1, 6], &[3, 6]), Vec::<Vec<u64>>::new());
        assert_eq!(all(&[], &[]), [Vec::<u64>::new()]);
    }
}
