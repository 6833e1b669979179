//! Sharded arrays: mapping of inner chunks to shards and positions in them.
//!
//! Sharding nests: the inner chunks of a shard can be shards themselves. A view shows the chunks of
//! one level, and each is found by one index lookup for each level above it.

use serde_json::Value;

use super::Coords;
use super::chain::{ShardingChain, split};
use super::chunk_key::KeyEncoding;
use super::codec::{Codec, parse_chain};
use super::error::MetadataError;
use super::fill_kept::keeps_fill;
use super::grid::{Edges, ShardAxis};
use super::index::{ENTRY_BYTES, IndexCodecs, IndexLocation, product};
use super::limits::{MAX_INDEX_BYTES, MAX_LISTED_SLOTS, MAX_SHARDING_LEVELS};
use super::metadata::ArrayMetadata;
use super::shard_codec::ShardCodec;

/// One level of sharding: storage layout of the shards of that level.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardingLevel {
    /// Axes of the shard: `axes[j]` is the array axis that axis `j` of the shard runs along. A
    /// transpose before the sharding permutes the axes of index and chunks.
    pub axes: Vec<usize>,
    /// Inner chunk shape in elements, along the array's axes.
    pub chunk_shape: Vec<u64>,
    /// Encoding of the index.
    pub index_codecs: IndexCodecs,
    /// Location of the index.
    pub index_location: IndexLocation,
    /// Bytes->bytes codecs over the shard, in encoding order.
    pub after: Vec<ShardCodec>,
    /// Number of the view's chunks along each array axis of one inner chunk of this level.
    unit: Vec<u64>,
}

impl ShardingLevel {
    /// Number of the view's chunks along each array axis of one inner chunk of this level.
    pub fn unit(&self) -> &[u64] {
        &self.unit
    }

    /// Permutes numbers along the array's axes to the order of the shard's own axes.
    pub fn in_shard_axes<'a>(&'a self, array_axes: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
        self.axes.iter().map(|axis| array_axes[*axis])
    }
}

/// Chunk layout of a sharded array.
#[derive(Debug, Clone)]
pub struct ShardedArray {
    /// Encoding of the keys of shards and chunks.
    pub keys: KeyEncoding,
    /// The shard grid along each array axis.
    pub shard_grid: Vec<ShardAxis>,
    /// Levels of sharding, from the shard down to the view's chunks; at least one.
    pub levels: Vec<ShardingLevel>,
    /// Codecs in the view's metadata: those before each sharding, then those of the inner chunk.
    pub view_codecs: Vec<Codec>,
}

/// Description of an array of shards that are not given as codecs.
#[derive(Debug)]
pub struct PlainShards {
    /// Encoding of the keys of shards and chunks.
    pub keys: KeyEncoding,
    /// Extents in elements.
    pub shape: Vec<u64>,
    /// Chunk shape in elements.
    pub chunk_shape: Vec<u64>,
    /// Number of chunks of a shard along each axis.
    pub chunks_per_shard: Vec<u64>,
    /// Encoding of the index.
    pub index_codecs: IndexCodecs,
    /// Location of the index.
    pub index_location: IndexLocation,
}

/// Location of an inner chunk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Location {
    /// Coordinates of the shard, along the array's axes.
    pub shard: Coords,
    /// Position of the chunk in the shard of each level, along the array's axes.
    pub positions: Vec<Coords>,
}

impl ShardedArray {
    /// Returns whether chunks of both arrays have the same bytes at the same location, so that the
    /// arrays differ at most in their extents.
    pub fn has_same_chunks(&self, other: &Self) -> bool {
        let mut axes = self.shard_grid.iter().zip(&other.shard_grid);
        self.shard_grid.len() == other.shard_grid.len()
            && axes.all(|(axis, other)| axis.has_same_edges(other))
            && (self.keys, &self.levels) == (other.keys, &other.levels)
            && self.view_codecs == other.view_codecs
    }

    /// Parses the layout of an array from its metadata, down to the chunks of sharding `level` (1
    /// is the outermost, `None` the innermost). Returns `None` if the array is not sharded or
    /// `level` is 0.
    pub fn parse(
        document: &Value,
        chain: &[Codec],
        level: Option<usize>,
    ) -> Result<Option<Self>, MetadataError> {
        if level == Some(0) || !chain.iter().any(|codec| codec.name == "sharding_indexed") {
            return Ok(None);
        }
        let array = ArrayMetadata::parse(document)?;
        let rank = array.shape.len();
        let fill_value = document.get("fill_value");
        let (levels, view_codecs) = parse_levels(chain.to_vec(), rank, level, fill_value)?;
        let Some(innermost) = levels.last() else {
            return Ok(None);
        };
        let axes = array.grid.iter().zip(&innermost.chunk_shape).zip(&array.shape);
        let shard_grid = axes
            .map(|((edges, chunk), extent)| ShardAxis::new(edges, *chunk, *extent))
            .collect::<Result<Vec<_>, _>>()?;
        let sharded = Self { keys: array.keys, shard_grid, levels, view_codecs };
        sharded.check(&array.grid)?;
        Ok(Some(sharded))
    }

    /// Creates the layout of an unsharded array: each file is one chunk, encoded by `chain`.
    pub fn unsharded(document: &Value, chain: Vec<Codec>) -> Result<Self, MetadataError> {
        let array = ArrayMetadata::parse(document)?;
        for (edges, extent) in array.grid.iter().zip(&array.shape) {
            // What is wrong with the grid by itself comes first.
            let chunk = match edges {
                Edges::Equal(edge) => *edge,
                Edges::Runs(_) => 1,
            };
            ShardAxis::new(edges, chunk, *extent)?;
        }
        let equal = |edges: &Edges| match edges {
            Edges::Equal(edge) => Ok(*edge),
            Edges::Runs(_) => Err(MetadataError::IrregularChunks),
        };
        let shards = PlainShards {
            keys: array.keys,
            chunk_shape: array.grid.iter().map(equal).collect::<Result<_, _>>()?,
            chunks_per_shard: vec![1; array.shape.len()],
            shape: array.shape,
            index_codecs: IndexCodecs::BARE,
            index_location: IndexLocation::End,
        };
        Ok(Self { view_codecs: chain, ..Self::plain(shards)? })
    }

    /// Creates the layout of an array of plain shards.
    pub fn plain(shards: PlainShards) -> Result<Self, MetadataError> {
        let PlainShards { keys, shape, chunk_shape, chunks_per_shard, .. } = shards;
        let rank = shape.len();
        let lists = [("chunk_shape", &chunk_shape), ("chunks_per_shard", &chunks_per_shard)];
        for (member, list) in lists {
            if list.len() != rank {
                return Err(MetadataError::Rank { member, found: list.len(), rank });
            }
        }
        let edge = |(chunk, count): (&u64, &u64)| {
            let edge = chunk.checked_mul(*count);
            edge.map(Edges::Equal).ok_or(MetadataError::Limit { what: "elements", limit: u64::MAX })
        };
        let pairs = chunk_shape.iter().zip(&chunks_per_shard);
        let grid = pairs.map(edge).collect::<Result<Vec<_>, _>>()?;
        let axes = grid.iter().zip(&chunk_shape).zip(&shape);
        let shard_grid = axes
            .map(|((edges, chunk), extent)| ShardAxis::new(edges, *chunk, *extent))
            .collect::<Result<Vec<_>, _>>()?;
        let level = ShardingLevel {
            axes: (0..rank).collect(),
            unit: vec![1; rank],
            chunk_shape,
            index_codecs: shards.index_codecs,
            index_location: shards.index_location,
            after: Vec::new(),
        };
        let sharded = Self { keys, shard_grid, levels: vec![level], view_codecs: Vec::new() };
        sharded.check(&grid)?;
        Ok(sharded)
    }

    /// Checks that every shard edge is a multiple of the outermost inner chunk, not only of the
    /// shown one, that indexes keep their limit, and that positions in listings can be computed.
    fn check(&self, grid: &[Edges]) -> Result<(), MetadataError> {
        for (edges, chunk) in grid.iter().zip(&self.levels[0].chunk_shape) {
            let mut lengths: Box<dyn Iterator<Item = u64>> = match edges {
                Edges::Equal(edge) => Box::new(std::iter::once(*edge)),
                Edges::Runs(runs) => Box::new(runs.iter().map(|run| run.0)),
            };
            let uneven = |edge: &u64| edge.checked_rem(*chunk).unwrap_or(*edge) != 0;
            if let Some(shard) = lengths.find(uneven) {
                return Err(MetadataError::NotDividing { chunk: *chunk, shard });
            }
        }
        for (at, level) in self.levels.iter().enumerate() {
            let slots = product(&self.most_chunks(at).collect::<Vec<_>>());
            if slots.and_then(|slots| level.index_codecs.stored_size(slots)).is_none() {
                let limit = MAX_INDEX_BYTES / ENTRY_BYTES;
                return Err(MetadataError::Limit { what: "inner chunks in a shard", limit });
            }
        }
        let shards: Vec<u64> = self.shard_grid.iter().map(|axis| axis.shards().max(1)).collect();
        let slots = product(&shards).and_then(|n| n.checked_mul(self.longest_shard()?));
        if slots.is_some_and(|slots| slots <= MAX_LISTED_SLOTS) {
            return Ok(());
        }
        Err(MetadataError::Limit { what: "inner chunks", limit: MAX_LISTED_SLOTS })
    }

    /// Returns the number of the view's chunks in the largest shard; `None` if it overflows.
    pub fn longest_shard(&self) -> Option<u64> {
        product(&self.shard_grid.iter().map(|axis| axis.longest_edge().max(1)).collect::<Vec<_>>())
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shard_grid.len()
    }

    /// Number of the view's chunks that hold a part of the array, along each axis.
    pub fn chunk_grid(&self) -> Vec<u64> {
        self.shard_grid.iter().map(ShardAxis::chunks).collect()
    }

    /// Returns whether the chunks are shards of a further level, which is not shown.
    pub fn shows_shards(&self) -> bool {
        self.view_codecs.iter().any(|codec| codec.name == "sharding_indexed")
    }

    /// Shape of the view's chunks in elements.
    pub fn chunk_shape(&self) -> &[u64] {
        self.levels.last().map_or(&[], |level| &level.chunk_shape)
    }

    /// Returns the coordinates of the shard that a chunk of the view is in, as [`Self::locate`] does, in one
    /// allocation; of leading coordinates those of the directory of shards.
    pub fn shard_of(&self, chunk: &[u64]) -> Coords {
        chunk.iter().zip(&self.shard_grid).map(|(coord, axis)| axis.locate(*coord).0).collect()
    }

    /// Returns the location of a chunk of the view. Its coordinates must lie in the chunk grid.
    pub fn locate(&self, chunk: &[u64]) -> Location {
        let (shard, mut rest): (Coords, Coords) =
            chunk.iter().zip(&self.shard_grid).map(|(coord, axis)| axis.locate(*coord)).unzip();
        let take = |(rest, unit): (&mut u64, &u64)| {
            let position = *rest / unit;
            *rest %= unit;
            position
        };
        let levels = self.levels.iter();
        let positions = levels.map(|level| rest.iter_mut().zip(&level.unit).map(take).collect());
        Location { positions: positions.collect(), shard }
    }

    /// Returns the number of the view's chunks in a shard that hold a part of the array; `None` if it overflows.
    pub fn chunks_inside(&self, shard: &[u64]) -> Option<u64> {
        let inside = |(axis, shard): (&ShardAxis, &u64)| {
            let (first, edge) = axis.span(*shard);
            axis.chunks().saturating_sub(first).min(edge)
        };
        product(&self.shard_grid.iter().zip(shard).map(inside).collect::<Vec<_>>())
    }

    /// Returns the maximum number of inner chunks of a shard of `level` (counted from 0) along each
    /// array axis.
    pub fn most_chunks(&self, level: usize) -> impl Iterator<Item = u64> + '_ {
        let units = &self.levels[level].unit;
        self.shard_grid.iter().enumerate().map(move |(axis, grid)| match level {
            0 => grid.longest_edge() / units[axis],
            _ => self.levels[level - 1].unit[axis] / units[axis],
        })
    }

    /// Returns the number of inner chunks of a shard of `level` (counted from 0) that lies in
    /// `shard`, along its own axes.
    pub fn chunks_per_shard(&self, level: usize, shard: &[u64]) -> Coords {
        self.levels[level].in_shard_axes(&self.positions(level, shard)).collect()
    }

    /// Returns the same as [`Self::chunks_per_shard`], along the array's axes.
    pub fn positions(&self, level: usize, shard: &[u64]) -> Coords {
        let units = &self.levels[level].unit;
        let along = |axis: usize| match level {
            0 => self.shard_grid[axis].span(shard[axis]).1 / units[axis],
            _ => self.levels[level - 1].unit[axis] / units[axis],
        };
        (0..self.rank()).map(along).collect()
    }
}

/// Parses the levels of a chain down to the wanted one, and the codecs of the view.
fn parse_levels(
    mut chain: Vec<Codec>,
    rank: usize,
    wanted: Option<usize>,
    fill_value: Option<&Value>,
) -> Result<(Vec<ShardingLevel>, Vec<Codec>), MetadataError> {
    let mut levels: Vec<ShardingLevel> = Vec::new();
    let mut before = Vec::new();
    let mut axes: Vec<usize> = (0..rank).collect();
    while wanted.is_none_or(|wanted| levels.len() < wanted) {
        let next = split(&chain, rank).and_then(|next| keeping_fill(next, fill_value));
        let next = match next {
            Ok(Some(next)) => next,
            Ok(None) => break,
            // Inner chunks with an unusable sharding codec are shown as they are.
            Err(_) if !levels.is_empty() => break,
            Err(error) => return Err(error),
        };
        if levels.len() == MAX_SHARDING_LEVELS {
            let limit = MAX_SHARDING_LEVELS as u64;
            return Err(MetadataError::Limit { what: "levels of sharding", limit });
        }
        axes = next.axes.iter().map(|axis| axes[*axis]).collect();
        let mut chunk_shape = vec![0; rank];
        for (axis, extent) in axes.iter().zip(&next.chunk_shape) {
            chunk_shape[*axis] = *extent;
        }
        before.extend(next.before);
        levels.push(ShardingLevel {
            axes: axes.clone(),
            chunk_shape,
            index_codecs: next.index_codecs,
            index_location: next.index_location,
            after: next.after,
            unit: Vec::new(),
        });
        chain = next.codecs;
    }
    set_units(&mut levels)?;
    before.extend(chain);
    Ok((levels, before))
}

/// Returns the parts of a chain if all codecs before its sharding keep the fill value.
fn keeping_fill(
    parts: Option<ShardingChain>,
    fill_value: Option<&Value>,
) -> Result<Option<ShardingChain>, MetadataError> {
    let mut before = parts.iter().flat_map(|parts| &parts.before);
    match before.find(|codec| !keeps_fill(codec, fill_value)) {
        Some(codec) => Err(MetadataError::FillBefore(codec.name.clone())),
        None => Ok(parts),
    }
}

fn set_units(levels: &mut [ShardingLevel]) -> Result<(), MetadataError> {
    let Some(innermost) = levels.last().map(|level| level.chunk_shape.clone()) else {
        return Ok(());
    };
    for at in 0..levels.len() {
        let below = levels.get(at + 1).map_or(&innermost, |level| &level.chunk_shape);
        for (shard, chunk) in levels[at].chunk_shape.iter().zip(below) {
            // A length of 0 is valid only with a length of 0, because units are used as divisors.
            let both_empty = (*shard, *chunk) == (0, 0);
            if !both_empty && (*shard == 0 || shard.checked_rem(*chunk) != Some(0)) {
                return Err(MetadataError::NotDividing { chunk: *chunk, shard: *shard });
            }
        }
        let lengths = levels[at].chunk_shape.iter().zip(&innermost);
        levels[at].unit = lengths.map(|(n, unit)| n.checked_div(*unit).unwrap_or(1)).collect();
    }
    Ok(())
}

/// Parses the layout from a document, for tests and tools without a parsed chain.
pub fn parse_document(
    document: &Value,
    level: Option<usize>,
) -> Result<Option<ShardedArray>, MetadataError> {
    ShardedArray::parse(document, &parse_chain(document.get("codecs"))?, level)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sharding(chunk_shape: &Value, codecs: &Value) -> Value {
        json!({"name": "sharding_indexed", "configuration":
            {"chunk_shape": chunk_shape, "codecs": codecs, "index_codecs": ["bytes", "crc32c"]}})
    }

    fn array(shape: &Value, shard: &Value, codecs: &Value) -> Value {
        json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint8",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shard}},
            "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": codecs})
    }

    fn parse(document: &Value, level: Option<usize>) -> ShardedArray {
        parse_document(document, level).unwrap().unwrap()
    }

    #[test]
    fn a_chunk_of_a_plain_sharded_array() {
        let codecs = json!([sharding(&json!([2, 3]), &json!(["bytes"]))]);
        let array = parse(&array(&json!([10, 10]), &json!([4, 6]), &codecs), None);
        assert_eq!(array.chunk_grid(), [5, 4]);
        let location = array.locate(&[3, 2]);
        assert_eq!(location, Location { shard: vec![1, 1], positions: vec![vec![1, 0]] });
        assert_eq!(array.chunks_per_shard(0, &[0, 0]), [2, 2]);
    }

    #[test]
    fn of_a_shard_at_the_edge_chunks_beyond_the_array_are_not_counted() {
        let codecs = json!([sharding(&json!([2, 3]), &json!(["bytes"]))]);
        let array = parse(&array(&json!([10, 10]), &json!([4, 6]), &codecs), None);
        let inside = |shard: [u64; 2]| array.chunks_inside(&shard).unwrap();
        assert_eq!([[0, 0], [0, 1], [2, 0], [2, 1], [3, 0]].map(inside), [4, 4, 2, 2, 0]);
    }

    #[test]
    fn nested_sharding_is_flattened_to_the_innermost_or_the_wanted_level() {
        let inner = sharding(&json!([2, 4]), &json!(["bytes", "gzip"]));
        let document = array(
            &json!([40, 40]),
            &json!([16, 16]),
            &json!([sharding(&json!([8, 8]), &json!([inner]))]),
        );
        let innermost = parse(&document, None);
        assert_eq!(innermost.chunk_grid(), [20, 10]);
        assert_eq!(
            innermost.locate(&[13, 5]),
            Location { shard: vec![1, 1], positions: vec![vec![1, 0], vec![1, 1]] }
        );
        assert_eq!(innermost.shard_of(&[13, 5]), [1, 1]);
        assert_eq!(innermost.shard_of(&[13]), [1]);
        assert_eq!(innermost.chunks_per_shard(0, &[0, 0]), [2, 2]);
        assert_eq!(innermost.chunks_per_shard(1, &[0, 0]), [4, 2]);
        assert_eq!(innermost.view_codecs[1].name, "gzip");
        let outermost = parse(&document, Some(1));
        assert_eq!(outermost.chunk_shape(), [8, 8]);
        assert_eq!(outermost.view_codecs[0].name, "sharding_indexed");
        assert!(parse_document(&document, Some(0)).unwrap().is_none());
    }

    #[test]
    fn a_transpose_before_sharding_permutes_index_and_chunks() {
        let transpose = json!({"name": "transpose", "configuration": {"order": [1, 0]}});
        let codecs = json!([transpose, sharding(&json!([3, 4]), &json!(["bytes"]))]);
        let array = parse(&array(&json!([20, 30]), &json!([8, 12]), &codecs), None);
        assert_eq!(array.chunk_shape(), [4, 3]);
        assert_eq!(array.chunks_per_shard(0, &[0, 0]), [4, 2]);
        let location = array.locate(&[3, 9]);
        assert_eq!(location, Location { shard: vec![1, 2], positions: vec![vec![1, 1]] });
        assert!(array.levels[0].in_shard_axes(&[5, 7]).eq([7, 5]));
        assert_eq!(array.view_codecs[0].name, "transpose");
    }

    #[test]
    fn a_codec_that_may_change_the_fill_value_is_refused_before_sharding() {
        let celsius = |fill_value: Value| {
            let scale = json!({"name": "numcodecs.fixedscaleoffset", "configuration":
                {"offset": 273.15, "scale": 1, "dtype": "<f8"}});
            let codecs = json!([scale, sharding(&json!([2]), &json!(["bytes"]))]);
            let mut document = array(&json!([8]), &json!([4]), &codecs);
            document["fill_value"] = fill_value;
            document
        };
        parse(&celsius(json!("NaN")), None);
        let error = parse_document(&celsius(json!(0)), None).unwrap_err();
        assert!(matches!(error, MetadataError::FillBefore(name) if name.ends_with("scaleoffset")));
        assert!(parse_document(&celsius(json!(0)), Some(0)).unwrap().is_none());
    }

    #[test]
    fn shards_of_a_rectilinear_grid_differ_in_their_chunks_per_shard() {
        let mut document =
            array(&json!([10]), &json!([1]), &json!([sharding(&json!([2]), &json!(["bytes"]))]));
        document["chunk_grid"] = json!({"name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [[4, 6]]}});
        let array = parse(&document, None);
        assert_eq!(array.chunks_per_shard(0, &[0]), [2]);
        assert_eq!(array.chunks_per_shard(0, &[1]), [3]);
        assert_eq!(array.locate(&[4]), Location { shard: vec![1], positions: vec![vec![2]] });
        assert_eq!([0, 1, 2, 4].map(|chunk| array.shard_of(&[chunk])), [[0], [0], [1], [1]]);
    }

    #[test]
    fn rank_0_has_one_chunk() {
        let array = parse(
            &array(&json!([]), &json!([]), &json!([sharding(&json!([]), &json!(["bytes"]))])),
            None,
        );
        assert_eq!(array.locate(&[]), Location { shard: vec![], positions: vec![vec![]] });
        assert_eq!(array.longest_shard(), Some(1));
    }

    #[test]
    fn what_cannot_be_laid_out_is_refused() {
        let refused = |document: &Value| parse_document(document, None).unwrap_err().to_string();
        let codecs = json!([sharding(&json!([5, 4]), &json!(["bytes"]))]);
        let message = refused(&array(&json!([12, 12]), &json!([6, 4]), &codecs));
        assert_eq!(message, "inner chunks of 5 elements do not divide a shard of 6 along an axis");
        // The outermost level must divide the shard as well, although the innermost one does.
        let uneven = sharding(&json!([4]), &json!([sharding(&json!([2]), &json!(["bytes"]))]));
        refused(&array(&json!([12]), &json!([6]), &json!([uneven])));
        let inner_uneven =
            sharding(&json!([4]), &json!([sharding(&json!([3]), &json!(["bytes"]))]));
        refused(&array(&json!([12]), &json!([12]), &json!([inner_uneven])));
        // The axis has no shards, so no shard edge reveals that the outermost level is uneven.
        let nested = sharding(&json!([4]), &json!(["bytes"]));
        let mut empty =
            array(&json!([0]), &json!([1]), &json!([sharding(&json!([0]), &json!([nested]))]));
        empty["chunk_grid"] = json!({"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[]]}});
        assert!(refused(&empty).starts_with("inner chunks of 4 elements"));
        let codecs = json!([sharding(&json!([1, 1]), &json!(["bytes"]))]);
        let huge = array(&json!([1_u64 << 40, 1_u64 << 40]), &json!([1, 1]), &codecs);
        assert!(refused(&huge).starts_with("too many inner chunks"));
        let codecs = json!([sharding(&json!([1]), &json!(["bytes"]))]);
        let message = refused(&array(&json!([1 << 30]), &json!([1 << 30]), &codecs));
        assert_eq!(message, "too many inner chunks in a shard, the limit is 16777216");
        let deep =
            (0..10).fold(json!(["bytes"]), |codecs, _| json!([sharding(&json!([1]), &codecs)]));
        assert!(refused(&array(&json!([1]), &json!([1]), &deep)).starts_with("too many levels"));
    }
}
