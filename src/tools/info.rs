//! Metadata of an array, the share of its chunks that exist, and the use of its bytes.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::map::{Map as ChunkMap, Mark};
use super::parallel::{Give, Stopped, in_order, threads};
use super::parts::{Loaded, SharedShard};
use super::sizes::{Sizes, Spread};
use super::strays::strays;
use super::survey::survey;
use crate::format::Coords;
use crate::format::codec::parse_chain;
use crate::format::data_type::DataType;
use crate::format::grid::ShardAxis;
use crate::format::index::IndexLocation;
use crate::source::{Array, Source};
use crate::store::StoreError;
use crate::store::entries::{Place, Span};

/// Metadata of an array.
#[derive(Debug, Clone)]
pub(crate) struct Kind {
    /// Description of the storage format.
    pub format: &'static str,
    /// Shape in elements, if known.
    pub shape: Option<Vec<u64>>,
    /// Name of the data type in Zarr v3 metadata.
    pub data_type: Option<String>,
    /// What else its Zarr v3 metadata says of the data type, such as a unit; `None` if nothing.
    pub data_type_configuration: Option<Map<String, Value>>,
    /// Names of the dimensions; `None` if no dimension has a name, an inner `None` for an axis
    /// without one.
    pub dimension_names: Option<Vec<Option<String>>>,
    /// Fill value in its Zarr v3 form.
    pub fill_value: Option<Value>,
    /// User attributes.
    pub attributes: Map<String, Value>,
    /// Names of the codecs in a chunk's codec chain.
    pub codecs: Vec<String>,
    /// Shape of a chunk in elements.
    pub chunk_shape: Vec<u64>,
    /// Shape of a shard in elements; `None` if shards differ or there are none.
    pub shard_shape: Option<Vec<u64>>,
    /// Number of chunks along each axis of the array.
    pub chunk_grid: Vec<u64>,
    /// Number of shards along each axis of the array.
    pub shard_grid: Vec<u64>,
    /// Levels of sharding, from the shard down to its chunks; empty if the files have no index.
    pub levels: Vec<Level>,
}

/// A level of sharding.
#[derive(Debug, Clone)]
pub(crate) struct Level {
    /// Shape in elements of the parts of a shard at this level: chunks, or shards of the next
    /// level.
    pub chunk_shape: Vec<u64>,
    /// Number of parts along each axis; `None` if shards differ.
    pub chunks_per_shard: Option<Vec<u64>>,
    /// `true` if the index is at the start of the shard.
    pub index_at_start: bool,
    /// Description of how the index is stored.
    pub index: String,
    /// Names of the codecs around the shard.
    pub after: Vec<String>,
}

/// Statistics of an array's chunks and bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contents {
    /// Number of chunks in the array's grid.
    pub possible: u64,
    /// Number of these chunks that exist.
    pub present: u64,
    /// Number of these chunks that may exist, but cannot be located: damage is in the way.
    pub unreadable: u64,
    /// Number of chunks that exist outside the array's shape, in shards of its grid.
    pub outside: u64,
    /// Number of files of shards outside the array's grid, which are not read.
    pub stray: u64,
    /// Number of shards in the array's grid.
    pub shards_possible: u64,
    /// Number of these shards that exist.
    pub shards: u64,
    /// Total length of the shards' files, in bytes.
    pub nbytes: u64,
    /// Length in bytes of all chunks; bytes shared by several chunks count once.
    pub live: u64,
    /// Length in bytes of indexes, headers and checksums.
    pub overhead: u64,
    /// Length in bytes of unreferenced space in shards without damage.
    pub dead: u64,
    /// Length in bytes of everything else: what nothing can be said about, because of damage.
    pub unreadable_nbytes: u64,
    /// Length in bytes of the chunks once decoded; `None` if items have no fixed size.
    pub decoded: Option<u64>,
    /// Lengths of the encoded chunks.
    sizes: Sizes,
    /// Number of chunks whose bytes are shared with another chunk.
    pub shared: u64,
    /// Number of shards that cannot be read.
    pub damaged_shards: u64,
    /// Number of chunks, or of shards inside a shard, that cannot be located because of a bad entry
    /// or index.
    pub damaged_entries: u64,
    /// Errors of shards that could not be listed or examined.
    pub errors: Vec<String>,
    /// Descriptions of the first damaged shards and entries, [`MOST_DAMAGE`] at most.
    pub damage: Vec<String>,
}

/// Maximum number of damaged shards and entries that are described.
const MOST_DAMAGE: usize = 100;

/// Metadata and statistics of an array.
#[derive(Debug)]
pub(crate) struct ArrayInfo {
    /// Directory of the array, relative to the source's root.
    pub path: PathBuf,
    /// Metadata.
    pub kind: Kind,
    /// Statistics.
    pub contents: Contents,
}

impl Contents {
    /// Returns the neutral element of [`Self::add_array`].
    pub(crate) fn of_no_array() -> Self {
        Self { decoded: Some(0), ..Self::default() }
    }

    /// Returns the distribution of the lengths of encoded chunks; `None` if there are no chunks.
    pub(crate) fn spread(&self) -> Option<Spread> {
        self.sizes.spread()
    }

    /// Returns the number of chunks of the array's grid that do not exist.
    pub(crate) fn missing(&self) -> u64 {
        self.possible.saturating_sub(self.present).saturating_sub(self.unreadable)
    }

    /// Returns whether anything could not be read.
    pub(crate) fn is_damaged(&self) -> bool {
        self.damaged_shards + self.damaged_entries > 0 || !self.errors.is_empty()
    }

    /// Adds the statistics of another array, including the numbers of possible chunks and shards.
    pub(crate) fn add_array(&mut self, other: Self) {
        self.possible = self.possible.saturating_add(other.possible);
        self.shards_possible = self.shards_possible.saturating_add(other.shards_possible);
        self.decoded =
            self.decoded.zip(other.decoded).and_then(|(one, more)| one.checked_add(more));
        self.add(other);
    }

    /// Counts a place of a shard, and marks its chunks on maps.
    fn add_place(&mut self, grid: &[u64], span: Span<'_>, place: &Place<'_>, maps: &[ChunkMap]) {
        let mark = match place {
            Place::Chunk { body, .. } => {
                let is_outside = span.is_outside(grid);
                self.present += u64::from(!is_outside);
                self.outside += u64::from(is_outside);
                self.sizes.add(body.nbytes());
                Mark::Present
            }
            Place::Bad(error) => {
                self.damaged_entries += 1;
                self.describe(error);
                self.unreadable += span.chunks_within(grid);
                Mark::Damaged
            }
            Place::Empty | Place::Shard { .. } => return,
        };
        maps.iter().for_each(|map| map.mark(span, mark));
    }

    fn describe(&mut self, error: &StoreError) {
        if self.damage.len() < MOST_DAMAGE {
            self.damage.push(error.to_string());
        }
    }

    fn add(&mut self, other: Self) {
        self.present += other.present;
        self.unreadable += other.unreadable;
        self.outside += other.outside;
        self.stray += other.stray;
        self.shards += other.shards;
        self.nbytes += other.nbytes;
        self.live += other.live;
        self.overhead += other.overhead;
        self.dead += other.dead;
        self.unreadable_nbytes += other.unreadable_nbytes;
        self.sizes.merge(other.sizes);
        self.shared += other.shared;
        self.damaged_shards += other.damaged_shards;
        self.damaged_entries += other.damaged_entries;
        self.errors.extend(other.errors);
        self.damage.extend(other.damage);
        self.damage.truncate(MOST_DAMAGE);
    }
}

/// An array that is being examined.
struct Looked {
    array: Arc<Array>,
    /// Maps on which its chunks are marked.
    maps: Vec<ChunkMap>,
}

/// A unit of work.
enum Task {
    /// Examine a shard.
    Shard(Arc<Looked>, Arc<SharedShard>),
    /// Report the error of listing the shards that begin with these coordinates.
    Unlisted(Arc<Looked>, Coords, StoreError),
    /// Report the end of an array, all of whose shards were given.
    End(Arc<Looked>),
}

/// Result of a task.
enum Found {
    Contents(Box<Contents>),
    /// The end of an array, with the number of its files outside the grid.
    End(Arc<Looked>, u64),
}

/// Consumer of the results for an array and its maps.
pub(crate) type Take<'a, E> = dyn FnMut(ArrayInfo, &[ChunkMap]) -> Result<(), E> + 'a;

/// Examines all shards of `arrays`, one array after the other. Chunks are marked on the maps that
/// `maps` makes. `step` is called for each shard with the number of its chunks, `take` for each
/// array.
///
/// # Errors
/// Returns the first error of `take`. Damage is part of the results.
pub(crate) fn info<E: Send>(
    source: &Source,
    arrays: impl Iterator<Item = Arc<Array>> + Send,
    maps: &(dyn Fn(&Array) -> Vec<ChunkMap> + Sync),
    step: &mut dyn FnMut(u64),
    take: &mut Take<'_, E>,
) -> Result<(), E> {
    let find = |give: &mut Give<'_, _>| {
        for array in arrays {
            let looked = Arc::new(Looked { maps: maps(&array), array });
            // Stopped by an error of `take`, which `in_order` returns.
            if find(source, looked, give).is_err() {
                break;
            }
        }
        Ok(())
    };
    let work = |task| {
        Ok(match task {
            Task::Shard(looked, shard) => {
                Found::Contents(Box::new(look(source, &shard, &looked.maps)))
            }
            Task::Unlisted(looked, prefix, error) => {
                Found::Contents(Box::new(unlisted(&looked, &prefix, &error)))
            }
            Task::End(looked) => {
                let stray = strays(source, &looked.array);
                Found::End(looked, stray)
            }
        })
    };
    let mut contents = Contents::default();
    in_order(threads(), find, work, |found| match found {
        Found::Contents(found) => {
            step(found.present + found.outside);
            contents.add(*found);
            Ok(())
        }
        Found::End(looked, stray) => {
            contents.stray = stray;
            take(about(&looked.array, std::mem::take(&mut contents)), &looked.maps)
        }
    })
}

fn find(source: &Source, looked: Arc<Looked>, give: &mut Give<'_, Task>) -> Result<(), Stopped> {
    let array = &looked.array;
    source.store.each_shard_below(&array.source, &[], &mut |found| {
        give(match found {
            Ok(coords) => Task::Shard(Arc::clone(&looked), SharedShard::new(array, coords)),
            Err((prefix, error)) => Task::Unlisted(Arc::clone(&looked), prefix.to_vec(), error),
        })
    })?;
    give(Task::End(looked))
}

/// Combines an array's metadata with the statistics of all of its shards.
fn about(array: &Array, found: Contents) -> ArrayInfo {
    let kind = kind(array);
    let mut contents = Contents {
        possible: kind.chunk_grid.iter().product(),
        shards_possible: kind.shard_grid.iter().product(),
        ..found
    };
    // A directory that fails halfway counts as a whole, with what was found in it before.
    contents.unreadable =
        contents.unreadable.min(contents.possible.saturating_sub(contents.present));
    let twin = array.twin();
    let item = twin.as_ref().and_then(|twin| twin.get("data_type"));
    let item = item.and_then(|value| DataType::parse(value).ok());
    let regular = twin.as_ref().and_then(regular_chunk);
    let shape = regular.as_ref().unwrap_or(&kind.chunk_shape);
    let elements = shape.iter().try_fold(1_u64, |all, edge| all.checked_mul(*edge));
    let chunk = item.zip(elements);
    let chunk = chunk.and_then(|(item, elements)| elements.checked_mul(item.nbytes() as u64));
    contents.decoded =
        chunk.and_then(|chunk| (contents.present + contents.outside).checked_mul(chunk));
    ArrayInfo { path: array.source.path.clone(), kind, contents }
}

fn failed(error: &StoreError) -> Contents {
    Contents { errors: vec![error.to_string()], ..Contents::default() }
}

/// Counts all chunks whose shards may lie in a directory that cannot be listed.
fn unlisted(looked: &Looked, prefix: &[u64], error: &StoreError) -> Contents {
    let layout = &looked.array.source.layout;
    let axes =
        layout.shard_grid.iter().enumerate().map(|(number, axis)| match prefix.get(number) {
            Some(coord) => axis.span(*coord),
            None => {
                let last = axis.shards().checked_sub(1).map(|last| axis.span(last));
                (0, last.map_or(0, |(first, edge)| first + edge))
            }
        });
    let (first, extents): (Vec<_>, Vec<_>) = axes.unzip();
    let span = Span { first: &first, extents: &extents };
    looked.maps.iter().for_each(|map| map.mark(span, Mark::Damaged));
    Contents { unreadable: span.chunks_within(&layout.chunk_grid()), ..failed(error) }
}

fn look(source: &Source, shard: &SharedShard, maps: &[ChunkMap]) -> Contents {
    let (array, coords) = (&*shard.array, &shard.coords);
    let axes = coords.iter().zip(&array.source.layout.shard_grid);
    let (first, extents): (Vec<_>, Vec<_>) = axes.map(|(coord, axis)| axis.span(*coord)).unzip();
    let whole = Span { first: &first, extents: &extents };
    let grid = array.source.layout.chunk_grid();
    let loaded = match shard.load(&source.store) {
        Ok(Loaded::Here(loaded)) => loaded,
        Ok(Loaded::Absent | Loaded::Failed) => return Contents::default(),
        Err(error) => {
            let unreadable = whole.chunks_within(&grid);
            maps.iter().for_each(|map| map.mark(whole, Mark::Damaged));
            return Contents { shards: 1, unreadable, ..failed(&error) };
        }
    };
    let nbytes = loaded.stat().size;
    let mut contents = Contents { shards: 1, nbytes, ..Contents::default() };
    if let Some(damage) = loaded.damage() {
        contents.damaged_shards = 1;
        contents.describe(&StoreError::Damaged { shard: array.source.shard_path(coords), damage });
        contents.unreadable = whole.chunks_within(&grid);
        contents.unreadable_nbytes = nbytes;
        maps.iter().for_each(|map| map.mark(whole, Mark::Damaged));
        return contents;
    }
    let survey =
        survey(&*source.storage, &source.store, array, coords, &loaded, &mut |span, it| {
            contents.add_place(&grid, span, &it, maps);
            Ok::<_, StoreError>(())
        });
    match survey {
        Ok(survey) => {
            contents.live = survey.live;
            contents.overhead = survey.overhead;
            // Beside a bad entry, a gap may be what it should reach.
            contents.dead = if contents.damaged_entries > 0 { 0 } else { survey.dead };
            contents.shared = survey.shared;
        }
        Err(error) => {
            contents.errors.push(error.to_string());
            contents.unreadable = whole.chunks_within(&grid).saturating_sub(contents.present);
            maps.iter().for_each(|map| map.mark(whole, Mark::Damaged));
        }
    }
    let known = contents.live + contents.overhead + contents.dead;
    contents.unreadable_nbytes = nbytes.saturating_sub(known);
    contents
}

/// Returns the metadata of an array.
pub(crate) fn kind(array: &Array) -> Kind {
    let layout = &array.source.layout;
    let twin = array.twin();
    let twin = twin.as_ref();
    let shape = twin.and_then(|twin| twin.get("shape")).and_then(Value::as_array);
    let shape = shape.and_then(|shape| shape.iter().map(Value::as_u64).collect());
    let codecs = parse_chain(twin.and_then(|twin| twin.get("codecs"))).unwrap_or_default();
    let has_index = array.source.format.has_index();
    // The layout of a file of chunks counts these.
    let regular = twin.and_then(regular_chunk).filter(|shape| shape.len() == layout.rank());
    let chunk_shape = regular.unwrap_or_else(|| layout.chunk_shape().to_vec());
    let edges = regular_edges(array);
    let elements = |edges: &Vec<u64>| {
        edges.iter().zip(&chunk_shape).map(|(edge, chunk)| edge.saturating_mul(*chunk)).collect()
    };
    Kind {
        format: array.format_name(),
        shape,
        data_type: twin.and_then(|twin| twin.get("data_type")).map(type_name),
        data_type_configuration: twin.and_then(type_configuration),
        dimension_names: twin.and_then(dimension_names),
        fill_value: twin.and_then(|twin| twin.get("fill_value")).cloned(),
        attributes: twin.and_then(attributes).unwrap_or_default(),
        codecs: codecs.into_iter().map(|codec| codec.name).collect(),
        shard_shape: edges.as_ref().filter(|_| !array.is_unsharded()).map(elements),
        chunk_grid: layout.chunk_grid(),
        shard_grid: layout.shard_grid.iter().map(ShardAxis::shards).collect(),
        levels: if has_index { levels(array, edges.is_some()) } else { Vec::new() },
        chunk_shape,
    }
}

/// Returns the chunk shape in elements of an array whose chunks have one shape.
fn regular_chunk(document: &Value) -> Option<Vec<u64>> {
    let shape = document.pointer("/chunk_grid/configuration/chunk_shape")?.as_array()?;
    shape.iter().map(Value::as_u64).collect()
}

/// Returns the names of an array's dimensions; `None` if none has a name.
pub(crate) fn dimension_names(document: &Value) -> Option<Vec<Option<String>>> {
    let names = document.get("dimension_names")?.as_array()?;
    let names: Vec<_> = names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
    names.iter().any(Option::is_some).then_some(names)
}

fn attributes(document: &Value) -> Option<Map<String, Value>> {
    document.get("attributes")?.as_object().cloned()
}

/// Returns the number of chunks along each edge of a shard; `None` if shards differ.
fn regular_edges(array: &Array) -> Option<Vec<u64>> {
    let axes = array.source.layout.shard_grid.iter();
    axes.map(ShardAxis::edge).collect()
}

fn levels(array: &Array, is_regular: bool) -> Vec<Level> {
    let layout = &array.source.layout;
    let level = |(number, level): (usize, &crate::format::sharding::ShardingLevel)| Level {
        chunk_shape: level.chunk_shape.clone(),
        chunks_per_shard: (is_regular || number > 0).then(|| layout.most_chunks(number).collect()),
        index_at_start: level.index_location == IndexLocation::Start,
        index: level.index_codecs.to_string(),
        after: level.after.iter().map(|codec| codec.name().to_owned()).collect(),
    };
    layout.levels.iter().enumerate().map(level).collect()
}

fn type_configuration(document: &Value) -> Option<Map<String, Value>> {
    let configuration = document.get("data_type")?.get("configuration")?.as_object()?;
    (!configuration.is_empty()).then(|| configuration.clone())
}

fn type_name(value: &Value) -> String {
    let name = value.get("name").unwrap_or(value);
    name.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
