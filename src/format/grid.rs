//! Chunk grids along one axis: mapping of inner chunks to shards.
//!
//! [`ShardAxis`] counts lengths in inner chunks of the view, no longer in elements: the edge of a
//! shard is a whole number of them.
//!
//! `regular`: Zarr core 3.1. `rectilinear`: zarr-extensions, kind `inline`; each axis has one
//! length for all shards or a list of lengths, in which a pair `[length, count]` stands for a run.

use serde_json::Value;

use super::Coords;
use super::error::{MetadataError, extent, shape};
use super::limits::MAX_GRID_RUNS;

/// Edge lengths of an array's chunks along one axis, in elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edges {
    /// All edges have the same length.
    Equal(u64),
    /// Runs of (length, count).
    Runs(Vec<(u64, u64)>),
}

/// Parses the `chunk_grid` of an array with `rank` dimensions.
pub(crate) fn parse(value: Option<&Value>, rank: usize) -> Result<Vec<Edges>, MetadataError> {
    let grid = value.ok_or(MetadataError::Missing("chunk_grid"))?;
    let option = |member| grid.get("configuration").and_then(|value| value.get(member));
    let edges: Vec<Edges> = match grid.get("name").and_then(Value::as_str) {
        Some("regular") => {
            let lengths = shape(option("chunk_shape"), "chunk_shape of the chunk grid")?;
            lengths.into_iter().map(Edges::Equal).collect()
        }
        Some("rectilinear") => {
            match (option("kind").and_then(Value::as_str), option("chunk_shapes")) {
                (Some("inline") | None, Some(Value::Array(axes))) => {
                    axes.iter().map(parse_edges).collect::<Result<_, _>>()?
                }
                _ => {
                    return Err(MetadataError::invalid(
                        "chunk_grid",
                        "of kind inline with chunk_shapes",
                    ));
                }
            }
        }
        _ => {
            return Err(MetadataError::invalid("chunk_grid", "regular or rectilinear"));
        }
    };
    if edges.len() == rank {
        Ok(edges)
    } else {
        Err(MetadataError::Rank { member: "chunk_grid", found: edges.len(), rank })
    }
}

fn parse_edges(axis: &Value) -> Result<Edges, MetadataError> {
    let invalid = || MetadataError::invalid("chunk_shapes", "lengths above 0 or [length, count]");
    let Value::Array(items) = axis else {
        return extent(axis).map(Edges::Equal).ok_or_else(invalid);
    };
    if items.len() > MAX_GRID_RUNS {
        return Err(MetadataError::Limit {
            what: "runs of chunk lengths",
            limit: MAX_GRID_RUNS as u64,
        });
    }
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for item in items {
        let (length, count) = match item.as_array().map(Vec::as_slice) {
            Some([length, count]) => (extent(length), extent(count)),
            Some(_) => (None, None),
            None => (extent(item), Some(1)),
        };
        match (length.ok_or_else(invalid)?, count.ok_or_else(invalid)?) {
            (0, _) => return Err(invalid()),
            (length, count) => match runs.last_mut() {
                Some(run) if run.0 == length => run.1 = run.1.saturating_add(count),
                _ => runs.push((length, count)),
            },
        }
    }
    Ok(Edges::Runs(runs))
}

/// One axis of the shard grid, in inner chunks of the view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardAxis {
    runs: Vec<Run>,
    /// Number of shards that hold a part of the array.
    shards: u64,
    /// Number of chunks that hold a part of the array.
    chunks: u64,
}

/// Consecutive shards with the same edge length.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    first_shard: u64,
    first_chunk: u64,
    edge: u64,
}

impl ShardAxis {
    /// Returns whether the shards that both axes have are equal; if one of them has none, whether
    /// all runs are.
    pub fn has_same_edges(&self, other: &Self) -> bool {
        let both = match self.shards.min(other.shards) {
            0 => u64::MAX,
            both => both,
        };
        // Runs that the array does not reach begin behind its last shard.
        let reached = |run: &&Run| run.first_shard < both;
        let (one, two) = (self.runs.iter().filter(reached), other.runs.iter().filter(reached));
        one.eq(two)
    }

    /// Lays out an array of `extent` elements in shards of `edges` and chunks of `chunk` elements.
    pub fn new(edges: &Edges, chunk: u64, extent: u64) -> Result<Self, MetadataError> {
        let single;
        let runs: &[(u64, u64)] = match edges {
            // A length of 0 is valid only for an axis without elements, which has no chunks.
            Edges::Equal(0) if chunk == 0 && extent == 0 => &[],
            Edges::Equal(edge) => {
                single = [(*edge, if *edge == 0 { 0 } else { extent.div_ceil(*edge) })];
                &single
            }
            Edges::Runs(runs) => runs,
        };
        let mut axis = Self { runs: Vec::with_capacity(runs.len()), shards: 0, chunks: 0 };
        let (mut covered, mut first_chunk) = (0_u64, 0_u64);
        for &(edge, count) in runs {
            if edge == 0 || chunk == 0 || edge % chunk != 0 {
                return Err(MetadataError::NotDividing { chunk, shard: edge });
            }
            let needed = extent.saturating_sub(covered).div_ceil(edge).min(count);
            axis.runs.push(Run { first_shard: axis.shards, first_chunk, edge: edge / chunk });
            axis.shards += needed;
            covered = covered.saturating_add(needed.saturating_mul(edge));
            first_chunk = first_chunk.saturating_add(needed.saturating_mul(edge / chunk));
        }
        if covered < extent {
            return Err(MetadataError::GridTooShort { covered, extent });
        }
        axis.chunks = if chunk == 0 { 0 } else { extent.div_ceil(chunk) };
        Ok(axis)
    }

    /// Memory used by the axis, in bytes.
    pub fn memory(&self) -> usize {
        size_of_val(&*self.runs) + size_of::<Self>()
    }

    /// Number of chunks along this axis that hold a part of the array.
    pub fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Number of shards along this axis that hold a part of the array.
    pub fn shards(&self) -> u64 {
        self.shards
    }

    /// Returns the shard that holds a chunk, and the position of the chunk in it.
    pub fn locate(&self, chunk: u64) -> (u64, u64) {
        let run = self.run(|run| run.first_chunk <= chunk);
        let from_run = chunk - run.first_chunk;
        (run.first_shard + from_run / run.edge, from_run % run.edge)
    }

    /// Returns the first chunk of a shard and the number of chunks along its edge, those beyond the
    /// array included.
    pub fn span(&self, shard: u64) -> (u64, u64) {
        let run = self.run(|run| run.first_shard <= shard);
        (run.first_chunk + (shard - run.first_shard) * run.edge, run.edge)
    }

    /// Returns the number of chunks along the edge of a shard; `None` if it is not the same for all
    /// shards.
    pub fn edge(&self) -> Option<u64> {
        let (first, others) = self.runs.split_first()?;
        others.is_empty().then_some(first.edge)
    }

    /// Returns the number of chunks along the longest edge of a shard.
    pub fn longest_edge(&self) -> u64 {
        self.runs.iter().map(|run| run.edge).max().unwrap_or(0)
    }

    fn run(&self, starts_before: impl Fn(&Run) -> bool) -> &Run {
        const NONE: Run = Run { first_shard: 0, first_chunk: 0, edge: 1 };
        let after = self.runs.partition_point(starts_before);
        after.checked_sub(1).map_or(&NONE, |at| &self.runs[at])
    }
}

/// Returns the coordinates of the `number`-th position, in C order, of a box with these extents.
pub(crate) fn unravel(mut number: u64, extents: &[u64]) -> Coords {
    let mut coords = vec![0; extents.len()];
    for (coord, extent) in coords.iter_mut().zip(extents).rev() {
        let extent = (*extent).max(1);
        *coord = number % extent;
        number /= extent;
    }
    coords
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_regular_axis() {
        let axis = ShardAxis::new(&Edges::Equal(32), 8, 100).unwrap();
        assert_eq!((axis.shards(), axis.chunks()), (4, 13));
        assert_eq!(axis.locate(0), (0, 0));
        assert_eq!(axis.locate(12), (3, 0));
        assert_eq!(axis.span(3), (12, 4));
    }

    #[test]
    fn axes_of_two_extents_have_the_same_edges_where_both_have_shards() {
        let edges = Edges::Runs(vec![(4, 2), (2, 3), (6, 1)]);
        let axes: Vec<_> =
            (1..=20).map(|extent| ShardAxis::new(&edges, 2, extent).unwrap()).collect();
        for (one, two) in axes.iter().flat_map(|one| axes.iter().map(move |two| (one, two))) {
            assert!(one.has_same_edges(two), "{one:?}, {two:?}");
        }
        let others = Edges::Runs(vec![(4, 1), (2, 10)]);
        let other = |extent| ShardAxis::new(&others, 2, extent).unwrap();
        // In the first shard they agree.
        assert!(axes[2].has_same_edges(&other(4)) && axes[10].has_same_edges(&other(3)));
        assert!(!axes[6].has_same_edges(&other(6)) && !axes[19].has_same_edges(&other(20)));
        let equal = |edge, extent| ShardAxis::new(&Edges::Equal(edge), 2, extent).unwrap();
        assert!(equal(4, 0).has_same_edges(&equal(4, 40)));
        assert!(
            !equal(4, 0).has_same_edges(&equal(6, 40)) && !equal(4, 9).has_same_edges(&equal(6, 9))
        );
    }

    #[test]
    fn an_axis_without_elements_has_no_chunks() {
        for (edge, chunk) in [(4, 2), (0, 0)] {
            let axis = ShardAxis::new(&Edges::Equal(edge), chunk, 0).unwrap();
            assert_eq!((axis.shards(), axis.chunks()), (0, 0));
        }
    }

    #[test]
    fn chunks_must_divide_shards() {
        for (edge, chunk) in [(6, 4), (6, 0), (0, 1), (0, 0)] {
            ShardAxis::new(&Edges::Equal(edge), chunk, 12).unwrap_err();
        }
        ShardAxis::new(&Edges::Runs(vec![(6, 1), (4, 1)]), 4, 10).unwrap_err();
    }

    #[test]
    fn rectilinear_lengths_are_read_in_every_form() {
        let grid = json!({"name": "rectilinear", "configuration": {"kind": "inline",
            "chunk_shapes": [[4, 4, [6, 2]], 10]}});
        let edges = parse(Some(&grid), 2).unwrap();
        assert_eq!(edges, [Edges::Runs(vec![(4, 2), (6, 2)]), Edges::Equal(10)]);
        parse(Some(&grid), 3).unwrap_err();
        let axis = ShardAxis::new(&edges[0], 2, 20).unwrap();
        assert_eq!((axis.shards(), axis.chunks()), (4, 10));
        assert_eq!(
            [0, 3, 4, 6, 7].map(|chunk| axis.locate(chunk)),
            [(0, 0), (1, 1), (2, 0), (2, 2), (3, 0)]
        );
    }

    #[test]
    fn bad_grids_are_refused() {
        let rectilinear = |shapes| {
            let grid = json!({"name": "rectilinear",
                "configuration": {"kind": "inline", "chunk_shapes": shapes}});
            parse(Some(&grid), 1)
        };
        for bad in
            [json!([[0]]), json!([[[2]]]), json!(["x"]), json!(7), json!([[1.5]]), json!([[-1]])]
        {
            rectilinear(bad).unwrap_err();
        }
        parse(Some(&json!({"name": "banana"})), 1).unwrap_err();
        let short = ShardAxis::new(&Edges::Runs(vec![(4, 2)]), 4, 9).unwrap_err();
        assert_eq!(short.to_string(), "the chunk grid covers 8 of 9 elements along an axis");
    }

    proptest! {
        #[test]
        fn locate_and_span_agree(
            runs in prop::collection::vec((1_u64..5, 1_u64..4), 1..6), chunk in 1_u64..4,
        ) {
            let runs: Vec<_> = runs.into_iter().map(|(edge, count)| (edge * chunk, count)).collect();
            let extent = runs.iter().map(|(edge, count)| edge * count).sum();
            let axis = ShardAxis::new(&Edges::Runs(runs), chunk, extent).unwrap();
            let mut expected = 0;
            for shard in 0..axis.shards() {
                let (first, edge) = axis.span(shard);
                prop_assert_eq!(first, expected);
                for place in 0..edge {
                    prop_assert_eq!(axis.locate(first + place), (shard, place));
                }
                expected += edge;
            }
            prop_assert_eq!(expected, axis.chunks());
        }
    }
}
