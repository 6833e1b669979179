//! Listing of the chunks that exist, with their locations, or of those that do not.
//!
//! ```text
//! source, key prefix  -> shards that may hold such chunks, in parts    (one thread)
//! part                -> one row for each chunk                        (all threads)
//! rows                -> handed over in order
//! ```
//!
//! Shards come in C order of their coordinates, chunks in C order within their shard.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::parallel::{Give, Stopped, in_order, threads};
use super::parts::{Loaded, SharedShard, parts_of};
use crate::format::Coords;
use crate::format::grid::ShardAxis;
use crate::number::to_usize;
use crate::source::{Array, BadNode, Node, Source};
use crate::store::entries::{Place, Span, each_slot};
use crate::store::{Chunk, ChunkReader, LoadedShard, StoreError};
use crate::text::shown;

/// Length in bytes of a single read of a chunk.
const PIECE_BYTES: usize = 1 << 20;

/// Selection of chunks and columns.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query {
    /// Prefix of the chunks' keys, relative to the source's root and ending between two parts of a
    /// key; `None` selects all.
    pub prefix: Option<PathBuf>,
    /// `true` to list chunks that do not exist instead of those that do.
    pub missing: bool,
    /// `true` to include chunks beyond the array's shape.
    pub outside: bool,
    /// `true` to compute a checksum of each chunk's bytes.
    pub checksum: bool,
}

/// A chunk in a listing.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    /// Key relative to the source's root, as a mount shows it.
    pub key: &'a [u8],
    /// Coordinates in the chunk grid.
    pub chunk: &'a [u64],
    /// Path of the shard, relative to the source's root.
    pub shard: &'a [u8],
    /// Location of the chunk; `None` if it does not exist.
    pub place: Option<Extent>,
}

/// Location of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Offset in the shard's file, in bytes; `None` if the shard is compressed as a whole.
    pub offset: Option<u64>,
    /// Length of the encoded chunk, in bytes.
    pub nbytes: u64,
    /// CRC-32C of the encoded chunk, if requested.
    pub crc32c: Option<u32>,
}

/// A batch of formatted rows, with the errors met among them.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    /// Text of the rows, one after the other.
    pub text: Vec<u8>,
    /// Number of rows.
    pub count: u64,
    /// Errors of shards and chunks that cannot be listed.
    pub errors: Vec<ListError>,
}

/// Error of listing a part of the source.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    /// The metadata of a node cannot be used.
    #[error("{0}")]
    Node(BadNode),
    /// A shard or a chunk cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Error for a prefix with which no key of the source can begin.
#[derive(Debug, thiserror::Error)]
#[error("{}: no chunk key of the source can begin like that", shown(.0))]
pub(crate) struct NoSuchKey(PathBuf);

/// Formatter that appends a row to a text.
pub(crate) type Write<'a> = dyn Fn(&Row<'_>, &mut Vec<u8>) + Sync + 'a;

/// Lists chunks. `write` formats each row in a worker thread; `take` receives the batches in order
/// and can end the listing with an error.
///
/// # Errors
/// Returns [`NoSuchKey`] if no key can begin with the prefix; the inner error is that of `take`.
pub(crate) fn list<E: Send>(
    source: &Source,
    query: &Query,
    write: &Write<'_>,
    take: impl FnMut(Rows) -> Result<(), E>,
) -> Result<Result<(), E>, NoSuchKey> {
    let any = AtomicBool::new(false);
    let find = |give: &mut Give<'_, _>| {
        let chosen = source.nodes().filter_map(|node| choose(node, query.prefix.as_deref()));
        for chosen in chosen {
            any.store(true, Ordering::Relaxed);
            // Stopped by an error of `take`, which `in_order` returns.
            if find(source, query, chosen, give).is_err() {
                break;
            }
        }
        Ok(())
    };
    let work = |task| Ok(work(source, query, write, task));
    let listed = in_order(threads(), find, work, take);
    match &query.prefix {
        Some(prefix) if !any.into_inner() => Err(NoSuchKey(prefix.clone())),
        _ => Ok(listed),
    }
}

/// A node and the leading coordinates of the chunks to be listed.
struct Chosen {
    node: Node,
    leading: Arc<[u64]>,
}

/// Returns the part of a node whose keys can begin with a prefix; `None` if there is none.
fn choose(node: Node, prefix: Option<&Path>) -> Option<Chosen> {
    let all = Arc::from([]);
    let Some(prefix) = prefix else { return Some(Chosen { node, leading: all }) };
    // Normalized like keys: without `.` and repeated slashes.
    let parts = prefix.components().filter(|part| *part != Component::CurDir);
    let clean: PathBuf = parts.collect();
    let directory = node.directory();
    if directory.starts_with(&clean) {
        return Some(Chosen { node, leading: all });
    }
    let (Node::Array(array), Ok(rest)) = (&node, clean.strip_prefix(directory)) else {
        return None;
    };
    let layout = &array.source.layout;
    let leading = layout.keys.parse_leading(rest.to_str()?, layout.rank())?.into();
    Some(Chosen { node, leading })
}

/// A unit of work.
enum Task {
    /// List the chunks with these leading coordinates in some slots of a shard.
    Part { shard: Arc<SharedShard>, slots: Range<u64>, leading: Arc<[u64]> },
    /// Report an error.
    Bad(ListError),
}

fn find(
    source: &Source,
    query: &Query,
    chosen: Chosen,
    give: &mut Give<'_, Task>,
) -> Result<(), Stopped> {
    let array = match chosen.node {
        Node::Array(array) => array,
        Node::Bad(node) => return give(Task::Bad(ListError::Node(node))),
        Node::Group(_) | Node::Journal(_) => return Ok(()),
    };
    let leading = chosen.leading;
    let mut axes = leading.iter().zip(array.source.layout.chunk_grid());
    if !query.outside && axes.any(|(coord, grid)| *coord >= grid) {
        return Ok(());
    }
    let axes = leading.iter().zip(&array.source.layout.shard_grid);
    let shards = axes.map(|(coord, axis)| {
        let shard = axis.locate(*coord).0;
        (shard < axis.shards()).then_some(shard)
    });
    let Some(prefix) = shards.collect::<Option<Coords>>() else { return Ok(()) };
    let mut give_shard = |coords: &[u64]| {
        let shard = SharedShard::new(&array, coords);
        parts_of(&array, slots_of(&array, coords, &leading)).try_for_each(|slots| {
            let (shard, leading) = (Arc::clone(&shard), Arc::clone(&leading));
            give(Task::Part { shard, slots, leading })
        })
    };
    if query.missing {
        return each_of_grid(&array.source.layout.shard_grid, prefix, &mut give_shard);
    }
    let mut bad = Vec::new();
    source.store.each_shard_below(&array.source, &prefix, &mut |found| match found {
        Ok(coords) => give_shard(coords),
        Err((_, error)) => {
            bad.push(error);
            Ok(())
        }
    })?;
    bad.into_iter().try_for_each(|error| give(Task::Bad(error.into())))
}

/// Calls `act` with all coordinates of a grid that begin with `coords`, in C order.
fn each_of_grid(
    grid: &[ShardAxis],
    mut coords: Coords,
    act: &mut dyn FnMut(&[u64]) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    let fixed = coords.len();
    if grid.iter().any(|axis| axis.shards() == 0) {
        return Ok(());
    }
    coords.resize(grid.len(), 0);
    loop {
        act(&coords)?;
        let next = (fixed..grid.len()).rev().find(|axis| coords[*axis] + 1 < grid[*axis].shards());
        let Some(axis) = next else { return Ok(()) };
        coords[axis] += 1;
        coords[axis + 1..].fill(0);
    }
}

/// Returns the slots of a shard that hold chunks with these leading coordinates, which are
/// contiguous in C order.
fn slots_of(array: &Array, coords: &[u64], leading: &[u64]) -> Range<u64> {
    let layout = &array.source.layout;
    let extents = layout.positions(0, coords);
    let unit = layout.levels[0].unit();
    let mut first = 0;
    for (axis, chunk) in leading.iter().enumerate() {
        let within = chunk - layout.shard_grid[axis].span(coords[axis]).0;
        first = first * extents[axis] + within / unit[axis];
    }
    let each: u64 = extents[leading.len()..].iter().product();
    first * each..(first + 1) * each
}

fn work(source: &Source, query: &Query, write: &Write<'_>, task: Task) -> Rows {
    let (shard, slots, leading) = match task {
        Task::Part { shard, slots, leading } => (shard, slots, leading),
        Task::Bad(error) => return Rows { errors: vec![error], ..Rows::default() },
    };
    let (array, leading) = (&*shard.array, &*leading);
    let path = array.source.shard_path(&shard.coords);
    let mut lister = Lister {
        source,
        query,
        write,
        array,
        grid: array.source.layout.chunk_grid(),
        leading,
        shard: path.as_os_str().as_bytes(),
        loaded: None,
        key: Vec::new(),
        stem: 0,
        above: Vec::new(),
        rows: Rows::default(),
    };
    let listed = match shard.load(&source.store) {
        Ok(Loaded::Here(loaded)) => match shard.damage(&loaded) {
            // Only the first part of a shard reports its damage.
            Some(error) if slots.start == slots_of(array, &shard.coords, leading).start => {
                Err(error)
            }
            Some(_) => Ok(()),
            None => lister.list(&shard.coords, slots, &loaded),
        },
        Ok(Loaded::Absent) if query.missing => {
            each_slot(&array.source, &shard.coords, slots, &mut |span| {
                lister.missing(span);
                Ok(())
            })
        }
        Ok(Loaded::Absent | Loaded::Failed) => Ok(()),
        Err(error) => Err(error),
    };
    lister.rows.errors.extend(listed.err().map(ListError::Store));
    lister.rows
}

/// State of listing a part of a shard.
struct Lister<'a> {
    source: &'a Source,
    query: &'a Query,
    write: &'a Write<'a>,
    array: &'a Array,
    grid: Coords,
    leading: &'a [u64],
    shard: &'a [u8],
    loaded: Option<Arc<LoadedShard>>,
    /// Key of the chunk listed last.
    key: Vec<u8>,
    /// Length of the prefix shared by keys that differ only in the last coordinate.
    stem: usize,
    /// Coordinates of that chunk except the last.
    above: Coords,
    rows: Rows,
}

impl Lister<'_> {
    fn list(
        &mut self,
        coords: &[u64],
        slots: Range<u64>,
        shard: &Arc<LoadedShard>,
    ) -> Result<(), StoreError> {
        let source = self.source;
        self.loaded = Some(Arc::clone(shard));
        source.store.each_place_within(
            &self.array.source,
            coords,
            slots,
            shard,
            &mut |span, place| {
                match place {
                    Place::Chunk { body, digest } => {
                        if !self.query.missing {
                            let stat = *shard.stat();
                            let chunk = Chunk { shard: stat, body, digest };
                            self.chunk(span, &chunk);
                        }
                    }
                    Place::Empty if self.query.missing => self.missing(span),
                    Place::Bad(error) if self.is_meant(span) => {
                        self.rows.errors.push(error.into());
                    }
                    Place::Empty | Place::Shard { .. } | Place::Bad(_) => (),
                }
                Ok(())
            },
        )
    }

    /// Returns whether chunks of a box are to be listed.
    fn is_meant(&self, span: Span<'_>) -> bool {
        let axes = self.leading.iter().zip(span.first).zip(span.extents);
        let mut within = axes.map(|((at, first), extent)| at >= first && at - first < *extent);
        within.all(|within| within) && (self.query.outside || !span.is_outside(&self.grid))
    }

    fn chunk(&mut self, span: Span<'_>, chunk: &Chunk) {
        if !self.is_meant(span) {
            return;
        }
        let crc32c = match self.query.checksum.then(|| self.checksum(span.first, chunk)) {
            Some(Ok(crc32c)) => Some(crc32c),
            Some(Err(error)) => return self.rows.errors.push(error.into()),
            None => None,
        };
        let (offset, nbytes) = (chunk.offset(), chunk.nbytes());
        self.row(span.first, Some(Extent { offset, nbytes, crc32c }));
    }

    fn missing(&mut self, span: Span<'_>) {
        let mut ranges = Vec::with_capacity(self.grid.len());
        for (axis, grid) in self.grid.iter().enumerate() {
            let (first, extent) = (span.first[axis], span.extents[axis]);
            let all = first..(first + extent).min(*grid);
            ranges.push(match self.leading.get(axis) {
                Some(at) => all.start.max(*at)..all.end.min(at + 1),
                None => all,
            });
        }
        if ranges.iter().any(Range::is_empty) {
            return;
        }
        let mut chunk: Coords = ranges.iter().map(|range| range.start).collect();
        loop {
            self.row(&chunk, None);
            let next = (0..chunk.len()).rev().find(|axis| chunk[*axis] + 1 < ranges[*axis].end);
            let Some(axis) = next else { return };
            chunk[axis] += 1;
            for below in axis + 1..chunk.len() {
                chunk[below] = ranges[below].start;
            }
        }
    }

    fn row(&mut self, chunk: &[u64], place: Option<Extent>) {
        self.set_key(chunk);
        let row = Row { key: &self.key, chunk, shard: self.shard, place };
        (self.write)(&row, &mut self.rows.text);
        self.rows.count += 1;
    }

    /// Sets the key of a chunk, reusing the previous key: neighbouring chunks differ only in the
    /// last coordinate.
    fn set_key(&mut self, chunk: &[u64]) {
        let SourceKeys { keys, path } = self.keys();
        let Some((last, above)) = chunk.split_last() else {
            self.key = path.join(keys.chunk_key(&[])).into_os_string().into_encoded_bytes();
            return;
        };
        if self.key.is_empty() || self.above != above {
            let stem = path.join(keys.stem(above));
            self.key = stem.into_os_string().into_encoded_bytes();
            self.stem = self.key.len();
            self.above = above.to_vec();
        }
        self.key.truncate(self.stem);
        self.key.extend_from_slice(itoa::Buffer::new().format(*last).as_bytes());
    }

    fn keys(&self) -> SourceKeys<'_> {
        let source = &self.array.source;
        SourceKeys { keys: source.layout.keys, path: &source.path }
    }

    fn checksum(&self, coords: &[u64], chunk: &Chunk) -> Result<u32, StoreError> {
        let shard = || {
            let location = self.array.source.layout.locate(coords);
            self.array.source.shard_path(&location.shard)
        };
        let reader = self.source.store.reader(&self.array.source, coords, chunk)?;
        let reader = reader.ok_or_else(|| StoreError::Changing { shard: shard() })?;
        checksum(&reader).map_err(|error| StoreError::Io { path: shard(), error })
    }
}

struct SourceKeys<'a> {
    keys: crate::format::chunk_key::KeyEncoding,
    path: &'a Path,
}

fn checksum(reader: &ChunkReader) -> std::io::Result<u32> {
    let nbytes = reader.nbytes();
    let piece = to_usize(nbytes).min(PIECE_BYTES);
    let mut buffer = vec![0; piece];
    let (mut done, mut crc32c) = (0, 0);
    while done < nbytes {
        let read = reader.read(&mut buffer, done)?;
        crc32c = crc32c::crc32c_append(crc32c, &buffer[..read]);
        done += read as u64;
    }
    Ok(crc32c)
}

#[cfg(test)]
mod tests;
