//! What an array is, how full it is, and what its bytes are used for.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::map::{Map as ChunkMap, Mark};
use super::parallel::{Give, Stopped, in_order, threads};
use super::parts::{Loaded, SharedShard};
use super::sizes::{Sizes, Spread};
use super::survey::survey;
use crate::format::codec::parse_chain;
use crate::format::data_type::DataType;
use crate::format::grid::ShardAxis;
use crate::format::index::IndexLocation;
use crate::source::{Array, ArrayFormat, Source};
use crate::store::entries::{Place, Span};
use crate::store::{Container, StoreError};

/// What an array is.
#[derive(Debug, Clone)]
pub struct Kind {
    /// What it is stored as, in words.
    pub format: &'static str,
    /// Its shape in elements, where that is known.
    pub shape: Option<Vec<u64>>,
    /// Its data type as metadata of Zarr v3 names it.
    pub data_type: Option<String>,
    /// Names of the dimensions, where there are some; an axis may have none.
    pub dimension_names: Option<Vec<Option<String>>>,
    /// The fill value, as metadata of Zarr v3 has it.
    pub fill_value: Option<Value>,
    /// What users say of the array.
    pub attributes: Map<String, Value>,
    /// Names of the codecs of a chunk.
    pub codecs: Vec<String>,
    /// Shape of a chunk in elements.
    pub chunk_shape: Vec<u64>,
    /// Shape of a shard in elements; None where they differ, and where there are none.
    pub shard_shape: Option<Vec<u64>>,
    /// Chunks along each axis of the array.
    pub chunk_grid: Vec<u64>,
    /// Shards along each axis of the array.
    pub shard_grid: Vec<u64>,
    /// From the shard down to its chunks; empty where files have no index.
    pub levels: Vec<Level>,
}

/// A level of sharding.
#[derive(Debug, Clone)]
pub struct Level {
    /// Shape of what is inside in elements: a chunk, or a shard of the next level.
    pub chunk_shape: Vec<u64>,
    /// How many there are along each axis; None where shards differ.
    pub chunks_per_shard: Option<Vec<u64>>,
    /// Whether the index stands at the start.
    pub index_at_start: bool,
    /// How it is stored, in words.
    pub index: String,
    /// Codecs over the shard.
    pub after: Vec<String>,
}

/// What is in an array.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// Chunks that the array can have.
    pub possible: u64,
    /// Those that exist.
    pub present: u64,
    /// Chunks that exist outside of the array's shape.
    pub outside: u64,
    /// Shards that the array can have.
    pub shards_possible: u64,
    /// Those that exist.
    pub shards: u64,
    /// Bytes of their files.
    pub nbytes: u64,
    /// Bytes of chunks, those of several chunks counted once.
    pub live: u64,
    /// Bytes of indexes, headers and checksums.
    pub overhead: u64,
    /// Bytes that nothing reaches, of shards that can be read.
    pub dead: u64,
    /// Bytes of the chunks once they are decoded; None if items have no fixed size.
    pub decoded: Option<u64>,
    /// Lengths of encoded chunks.
    sizes: Sizes,
    /// Chunks whose bytes another chunk has as well.
    pub shared: u64,
    /// Shards that cannot be read.
    pub damaged_shards: u64,
    /// Chunks, or shards inside a shard, that cannot be found for a bad entry or index.
    pub damaged_entries: u64,
    /// What could not be looked at.
    pub errors: Vec<String>,
}

/// An array, and what is in it.
#[derive(Debug)]
pub struct ArrayInfo {
    /// Its directory, from the source's root.
    pub path: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// What is in it.
    pub contents: Contents,
}

impl Contents {
    /// To which those of arrays can be added.
    pub fn of_no_array() -> Self {
        Self { decoded: Some(0), ..Self::default() }
    }

    /// How long encoded chunks are.
    pub fn spread(&self) -> Option<Spread> {
        self.sizes.spread()
    }

    /// Whether something cannot be read.
    pub fn is_damaged(&self) -> bool {
        self.damaged_shards + self.damaged_entries > 0 || !self.errors.is_empty()
    }

    /// Adds what is in another array: the limits of both are one.
    pub fn add_array(&mut self, other: Self) {
        self.possible = self.possible.saturating_add(other.possible);
        self.shards_possible = self.shards_possible.saturating_add(other.shards_possible);
        self.decoded =
            self.decoded.zip(other.decoded).and_then(|(one, more)| one.checked_add(more));
        self.add(other);
    }

    fn add(&mut self, other: Self) {
        self.present += other.present;
        self.outside += other.outside;
        self.shards += other.shards;
        self.nbytes += other.nbytes;
        self.live += other.live;
        self.overhead += other.overhead;
        self.dead += other.dead;
        self.sizes.merge(other.sizes);
        self.shared += other.shared;
        self.damaged_shards += other.damaged_shards;
        self.damaged_entries += other.damaged_entries;
        self.errors.extend(other.errors);
    }
}

/// An array that is being looked at.
struct Looked {
    array: Arc<Array>,
    /// On which its chunks are marked.
    maps: Vec<ChunkMap>,
}

/// What is worked on.
enum Task {
    /// A shard.
    Shard(Arc<Looked>, Arc<SharedShard>),
    /// Something that cannot be listed.
    Failed(StoreError),
    /// The array of which nothing follows.
    End(Arc<Looked>),
}

/// What came of it.
enum Found {
    Contents(Box<Contents>),
    End(Arc<Looked>),
}

/// What to do with an array once all is known of it.
pub type Take<'a, E> = dyn FnMut(ArrayInfo, &[ChunkMap]) -> Result<(), E> + 'a;

/// Looks at all shards of arrays, one array after the other. Chunks are marked on the maps that `maps`
/// makes. `step` is called for each shard with the number of its chunks, `take` for each array.
pub fn info<E: Send>(
    source: &Source,
    arrays: impl Iterator<Item = Arc<Array>> + Send,
    maps: &(dyn Fn(&Array) -> Vec<ChunkMap> + Sync),
    step: &mut dyn FnMut(u64),
    take: &mut Take<'_, E>,
) -> Result<(), E> {
    let find = |give: &mut Give<'_, _>| {
        for array in arrays {
            let looked = Arc::new(Looked { maps: maps(&array), array });
            // What stops it is an error of whoever takes them.
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
            Task::Failed(error) => Found::Contents(Box::new(failed(&error))),
            Task::End(looked) => Found::End(looked),
        })
    };
    let mut contents = Contents::default();
    in_order(threads(), find, work, |found| match found {
        Found::Contents(found) => {
            step(found.present + found.outside);
            contents.add(*found);
            Ok(())
        }
        Found::End(looked) => {
            take(about(&looked.array, std::mem::take(&mut contents)), &looked.maps)
        }
    })
}

fn find(source: &Source, looked: Arc<Looked>, give: &mut Give<'_, Task>) -> Result<(), Stopped> {
    let array = &looked.array;
    source.store.each_shard_below(&array.source, &[], &mut |found| {
        give(match found {
            Ok(coords) => Task::Shard(Arc::clone(&looked), SharedShard::new(array, coords)),
            Err(error) => Task::Failed(error),
        })
    })?;
    give(Task::End(looked))
}

/// What is known of an array once all of its shards were looked at.
fn about(array: &Array, found: Contents) -> ArrayInfo {
    let kind = kind(array);
    let mut contents = Contents {
        possible: kind.chunk_grid.iter().product(),
        shards_possible: kind.shard_grid.iter().product(),
        ..found
    };
    let twin = array.twin();
    let item = twin.as_ref().and_then(|twin| twin.get("data_type"));
    let item = item.and_then(|value| DataType::parse(value).ok());
    let elements = kind.chunk_shape.iter().try_fold(1_u64, |all, edge| all.checked_mul(*edge));
    let chunk = item.zip(elements);
    let chunk = chunk.and_then(|(item, elements)| elements.checked_mul(item.nbytes() as u64));
    contents.decoded =
        chunk.and_then(|chunk| (contents.present + contents.outside).checked_mul(chunk));
    ArrayInfo { path: array.source.path.clone(), kind, contents }
}

fn failed(error: &StoreError) -> Contents {
    Contents { errors: vec![error.to_string()], ..Contents::default() }
}

fn look(source: &Source, shard: &SharedShard, maps: &[ChunkMap]) -> Contents {
    let (array, coords) = (&*shard.array, &shard.coords);
    let loaded = match shard.load(&source.store) {
        Ok(Loaded::Here(loaded)) => loaded,
        Ok(Loaded::Absent | Loaded::Failed) => return Contents::default(),
        Err(error) => return failed(&error),
    };
    let nbytes = loaded.stat().size;
    let mut contents = Contents { shards: 1, nbytes, ..Contents::default() };
    if loaded.is_damaged() {
        contents.damaged_shards = 1;
        let axes = coords.iter().zip(&array.source.layout.shard_grid);
        let (first, extents): (Vec<_>, Vec<_>) =
            axes.map(|(coord, axis)| axis.span(*coord)).unzip();
        let span = Span { first: &first, extents: &extents };
        maps.iter().for_each(|map| map.mark(span, Mark::Damaged));
        return contents;
    }
    let grid = array.source.layout.chunk_grid();
    let survey =
        survey(&*source.storage, &source.store, array, coords, &loaded, &mut |span, it| {
            match it {
                Place::Chunk { body, .. } => {
                    let is_outside = span.is_outside(&grid);
                    contents.present += u64::from(!is_outside);
                    contents.outside += u64::from(is_outside);
                    contents.sizes.add(body.nbytes());
                    maps.iter().for_each(|map| map.mark(span, Mark::Present));
                }
                Place::Bad(_) => {
                    contents.damaged_entries += 1;
                    maps.iter().for_each(|map| map.mark(span, Mark::Damaged));
                }
                Place::Empty | Place::Shard { .. } => (),
            }
            Ok::<_, StoreError>(())
        });
    match survey {
        Ok(survey) => {
            contents.live = survey.live;
            contents.overhead = survey.overhead;
            contents.dead = survey.dead;
            contents.shared = survey.shared;
        }
        Err(error) => contents.errors.push(error.to_string()),
    }
    contents
}

/// What an array is.
pub fn kind(array: &Array) -> Kind {
    let layout = &array.source.layout;
    let twin = array.twin();
    let twin = twin.as_ref();
    let shape = twin.and_then(|twin| twin.get("shape")).and_then(Value::as_array);
    let shape = shape.and_then(|shape| shape.iter().map(Value::as_u64).collect());
    let codecs = parse_chain(twin.and_then(|twin| twin.get("codecs"))).unwrap_or_default();
    let has_index = array.source.container == Container::Shards;
    let chunk_shape = layout.chunk_shape().to_vec();
    let edges = regular_edges(array);
    let elements = |edges: &Vec<u64>| {
        edges.iter().zip(&chunk_shape).map(|(edge, chunk)| edge * chunk).collect()
    };
    Kind {
        format: format_name(array),
        shape,
        data_type: twin.and_then(|twin| twin.get("data_type")).map(type_name),
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

/// Names of the dimensions of an array; None if none has a name.
pub fn dimension_names(document: &Value) -> Option<Vec<Option<String>>> {
    let names = document.get("dimension_names")?.as_array()?;
    let names: Vec<_> = names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
    names.iter().any(Option::is_some).then_some(names)
}

fn attributes(document: &Value) -> Option<Map<String, Value>> {
    document.get("attributes")?.as_object().cloned()
}

/// Chunks along each edge of a shard, if that is the same for all.
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

fn format_name(array: &Array) -> &'static str {
    match (array.format, &array.source.container) {
        (ArrayFormat::Zarr3, Container::Chunks) => "Zarr v3, unsharded: each chunk is a file",
        (ArrayFormat::Zarr3, _) => "Zarr v3, sharded",
        (ArrayFormat::Zarr2, _) => "Zarr v2: each chunk is a file",
        (ArrayFormat::Draft2022, Container::Chunks) => "Zarr v3 draft of 2022, unsharded",
        (ArrayFormat::Draft2022, _) => "Zarr v3 draft of 2022, sharded",
        (ArrayFormat::Bloscpack, _) => "Bloscpack file",
        (ArrayFormat::Blz, _) => "BLZ or bcolz array",
    }
}

fn type_name(value: &Value) -> String {
    let name = value.get("name").unwrap_or(value);
    name.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
