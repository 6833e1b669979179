//! How large the shards of an array are made.

use super::index::product;
use super::limits::MAX_INDEX_BYTES;

/// Maximum number of chunks in a shard: those that an index with a checksum can have.
const MAX_CHUNKS: u64 = (MAX_INDEX_BYTES - 4) / 16;

/// Size of an item of variable length for which a rule in bytes counts, in bytes.
pub(crate) const VARIABLE_NBYTES: u64 = 16;

/// Requested size of the shards of arrays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ShardRule {
    /// Shape in elements, -1 for an array's whole extent.
    Shape(Vec<i64>),
    /// Inner chunks along the last axes; one along those before.
    Chunks(Vec<u64>),
    /// Length of the decoded data of a shard in bytes, at most.
    Nbytes(u64),
}

/// Inner chunks of an array.
#[derive(Debug, Clone)]
pub(crate) struct ChunkGrid<'a> {
    /// Number of chunks along each axis; 0 along an axis without elements.
    pub chunks: Vec<u64>,
    /// Shape of a chunk in elements.
    pub chunk_shape: &'a [u64],
    /// Length of a decoded chunk in bytes.
    pub chunk_nbytes: u64,
}

impl ShardRule {
    /// Returns whether an array with so many dimensions can have such shards.
    pub(crate) fn fits(&self, rank: usize) -> bool {
        match self {
            Self::Shape(shape) => shape.len() == rank,
            Self::Chunks(chunks) => chunks.len() <= rank,
            Self::Nbytes(_) => true,
        }
    }

    /// Returns the number of dimensions that it names; `None` if it names none.
    pub(crate) fn rank(&self) -> Option<usize> {
        match self {
            Self::Shape(shape) => Some(shape.len()),
            Self::Chunks(chunks) => Some(chunks.len()),
            Self::Nbytes(_) => None,
        }
    }

    /// Returns the shape of the shards of an array that it [fits](Self::fits), in elements.
    ///
    /// A shard of at most so many bytes has about the same number of chunks along every axis, at most as many
    /// as the array has. An axis is divided into shards of about the same length; as long as there is room, it
    /// is divided into one shard less, the last axis first.
    pub(crate) fn shape(&self, grid: &ChunkGrid<'_>) -> Vec<u64> {
        let whole = |axis: usize| grid.chunks.get(axis).copied().unwrap_or(1).max(1);
        let axes = 0..grid.chunk_shape.len();
        let chunks: Vec<u64> = match self {
            Self::Shape(shape) => {
                let extents = shape.iter().zip(grid.chunk_shape).enumerate();
                let extent = |(axis, (extent, chunk)): (usize, (&i64, &u64))| {
                    u64::try_from(*extent).unwrap_or_else(|_| whole(axis).saturating_mul(*chunk))
                };
                return extents.map(extent).collect();
            }
            Self::Chunks(chunks) => {
                let before = grid.chunk_shape.len().saturating_sub(chunks.len());
                let of = |axis: usize| axis.checked_sub(before).and_then(|at| chunks.get(at));
                axes.map(|axis| of(axis).copied().unwrap_or(1).clamp(1, whole(axis))).collect()
            }
            Self::Nbytes(nbytes) => {
                let extents: Vec<u64> = axes.map(whole).collect();
                even(&extents, (nbytes / grid.chunk_nbytes.max(1)).min(MAX_CHUNKS))
            }
        };
        let lengths = chunks.iter().zip(grid.chunk_shape);
        lengths.map(|(chunks, chunk)| chunks.saturating_mul(*chunk)).collect()
    }
}

/// Returns numbers of chunks along each axis, whose product is at most `most`, or 1.
fn even(extents: &[u64], most: u64) -> Vec<u64> {
    let fits = |counts: &[u64]| product(counts).is_some_and(|product| product <= most);
    let up_to = |level: u64| extents.iter().map(|extent| level.min(*extent)).collect::<Vec<_>>();
    let (mut low, mut high) = (1, extents.iter().copied().max().unwrap_or(1));
    while low < high {
        // The mean, rounded up, without overflow.
        let level = high - (high - low) / 2;
        if fits(&up_to(level)) { low = level } else { high = level - 1 }
    }
    let level = up_to(low);
    let fair = |(extent, count): (&u64, &u64)| extent.div_ceil(extent.div_ceil(*count));
    let mut counts: Vec<u64> = extents.iter().zip(&level).map(fair).collect();
    let mut is_full = false;
    while !is_full {
        is_full = true;
        for (axis, extent) in extents.iter().enumerate().rev() {
            let mut more = counts.clone();
            more[axis] = fewer(*extent, counts[axis]);
            if more != counts && fits(&more) {
                (counts, is_full) = (more, false);
            }
        }
    }
    counts
}

/// Returns the number of chunks that divides an axis into one shard less, if there is more than one.
fn fewer(extent: u64, count: u64) -> u64 {
    match extent.div_ceil(count) {
        0 | 1 => count,
        shards => extent.div_ceil(shards - 1),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(rule: &ShardRule, chunks: &[u64], chunk_shape: &[u64], nbytes: u64) -> Vec<u64> {
        rule.shape(&ChunkGrid { chunks: chunks.to_vec(), chunk_shape, chunk_nbytes: nbytes })
    }

    #[test]
    fn a_length_in_bytes_makes_shards_of_as_many_chunks_along_each_axis() {
        let rule = ShardRule::Nbytes(512 << 10);
        assert_eq!(shape(&rule, &[100, 100, 100], &[16, 16, 16], 8192), [64, 64, 64]);
        // 50 chunks: 3 x 3 x 3, and one more along the last axes as far as it goes.
        let rule = ShardRule::Nbytes(50);
        assert_eq!(shape(&rule, &[100, 100, 100], &[1, 1, 1], 1), [3, 4, 4]);
        // 32 chunks: 3 x 3 x 3 would be 18 shards.
        let rule = ShardRule::Nbytes(32);
        assert_eq!(shape(&rule, &[4, 7, 8], &[1, 1, 1], 1), [2, 4, 4]);
        let rule = ShardRule::Nbytes(50);
        // A short axis leaves its part to the others.
        assert_eq!(shape(&rule, &[2, 100, 100], &[1, 1, 1], 1), [2, 5, 5]);
        assert_eq!(shape(&rule, &[100], &[7], 1), [350]);
    }

    #[test]
    fn an_array_is_divided_into_shards_of_about_the_same_length() {
        let rule = ShardRule::Nbytes(9);
        assert_eq!(shape(&rule, &[10], &[1], 1), [5], "not 9 and 1");
        assert_eq!(shape(&rule, &[8], &[1], 1), [8]);
    }

    #[test]
    fn chunks_longer_than_the_rule_have_a_shard_each() {
        let rule = ShardRule::Nbytes(10);
        assert_eq!(shape(&rule, &[5, 5], &[3, 4], 96), [3, 4]);
        assert_eq!(shape(&rule, &[], &[], 8), [0; 0]);
        assert_eq!(shape(&rule, &[0, 4], &[3, 4], 1), [3, 16], "an axis without elements");
    }

    #[test]
    fn a_number_of_chunks_counts_for_the_last_axes() {
        let rule = ShardRule::Chunks(vec![8, 4]);
        assert!(rule.fits(2) && rule.fits(3) && !rule.fits(1));
        assert_eq!(shape(&rule, &[9, 9, 9], &[2, 2, 2], 8), [2, 16, 8]);
        assert_eq!(shape(&rule, &[3, 9], &[2, 2], 8), [6, 8], "at most the array");
    }

    #[test]
    fn a_shape_is_taken_as_it_is_but_for_whole_extents() {
        let rule = ShardRule::Shape(vec![64, -1]);
        assert!(rule.fits(2) && !rule.fits(3));
        assert_eq!(shape(&rule, &[10, 3], &[16, 20], 8), [64, 60]);
    }

    proptest! {
        #[test]
        fn a_shard_holds_as_many_chunks_as_fit_and_the_array_has(
            chunks in prop::collection::vec(1_u64..1 << 40, 0..6),
            nbytes in any::<u64>(),
            chunk_nbytes in 1_u64..1 << 20,
        ) {
            let ones = vec![1; chunks.len()];
            let counts = shape(&ShardRule::Nbytes(nbytes), &chunks, &ones, chunk_nbytes);
            let most = (nbytes / chunk_nbytes).clamp(1, MAX_CHUNKS);
            prop_assert!(product(&counts).unwrap() <= most);
            for (count, extent) in counts.iter().zip(&chunks) {
                prop_assert!((1..=*extent).contains(count));
            }
            for (axis, extent) in chunks.iter().enumerate() {
                let mut more = counts.clone();
                more[axis] = fewer(*extent, counts[axis]);
                prop_assert!(more == counts || product(&more).is_none_or(|more| more > most));
            }
        }
    }
}
