//! Choice of the shapes of a new array's inner chunks and shards from constraints on them.
//!
//! The algorithm is TensorStore's ("Chunk layout", as its `zarr3` driver applies it), so that both
//! make the same array from the same constraints. An inner chunk is a read chunk in its terms, a
//! shard a write chunk.
//!
//! 1. A length is *hard*, *soft* or free. The whole extent of the array (-1) is a soft length.
//! 2. If both lengths along an axis are given and the inner chunk does not divide the shard: two
//!    hard lengths are an error; a soft shard becomes the nearest multiple of a hard inner chunk; a
//!    soft inner chunk becomes the nearest divisor of the shard.
//! 3. Free lengths are chosen by [`complete`], those of the inner chunk first, for the requested
//!    number of elements and aspect ratio. Inner chunks are rounded to divisors of a given shard,
//!    shards to multiples of the inner chunk.

use crate::text::count;

mod complete;
#[cfg(test)]
mod tests;

use self::complete::{complete, nearest_divisor, nearest_multiple};

/// Maximum extent of an array, and maximum number of elements that can be requested for a chunk.
pub(crate) const MAX_LENGTH: u64 = (1 << 62) - 1;

/// Strength of a constraint on a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Firmness {
    /// The length must be kept, or the choice fails.
    Hard,
    /// The length may be changed to fit hard lengths.
    Soft,
}

/// Shape that a constraint applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// The inner chunk, the unit of reading.
    Read,
    /// The shard, the unit of writing.
    Write,
}

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "inner chunk",
            Self::Write => "shard",
        })
    }
}

/// Error choosing the shapes.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) enum LayoutError {
    /// The rank is 0: the only chunk is the array itself.
    #[error("an array without dimensions has no chunk shape to choose")]
    NoAxes,
    /// An extent is too long.
    #[error("the array has {extent} elements along axis {axis}, the limit is 2^62-1")]
    Extent {
        /// Number of the axis.
        axis: usize,
        /// Extent along the axis, in elements.
        extent: u64,
    },
    /// A list does not have one entry for each dimension of the array.
    #[error("the {what} of the {of} has {}, the array has {}", count(.found, "entry"), count(.rank, "dimension"))]
    Rank {
        /// Kind of the list: shape or aspect.
        what: &'static str,
        /// Shape that the list applies to.
        of: Of,
        /// Number of entries in the list.
        found: usize,
        /// Number of dimensions of the array.
        rank: usize,
    },
    /// The requested length is out of range.
    #[error(
        "the {of} cannot be {length} long along axis {axis}: write a length from 1 to 2^62-1, 0 to \
         leave it free, or -1 for the whole extent"
    )]
    Length {
        /// Shape that the length applies to.
        of: Of,
        /// Number of the axis.
        axis: usize,
        /// Requested length.
        length: i64,
    },
    /// The requested ratio is not a positive normal number.
    #[error("aspect {ratio} of the {of} along axis {axis} is no ratio: write a number above 0")]
    Aspect {
        /// Shape that the ratio applies to.
        of: Of,
        /// Number of the axis.
        axis: usize,
        /// Requested ratio.
        ratio: f64,
    },
    /// The requested number of elements is out of range.
    #[error("{} for the {of}: write a number from 1 to 2^62-1", count(.elements, "element"))]
    Elements {
        /// Shape that the number applies to.
        of: Of,
        /// Requested number of elements.
        elements: u64,
    },
    /// Two constraints contradict each other.
    #[error("the {what} of the {of} is asked to be {one} and {other}")]
    Contradiction {
        /// Constrained property, with its axis.
        what: String,
        /// Shape that the constraints apply to.
        of: Of,
        /// Value of the earlier constraint.
        one: String,
        /// Value of the later constraint.
        other: String,
    },
    /// The inner chunk does not divide the shard, and both lengths are hard.
    #[error(
        "inner chunks of {} do not divide shards of {write} along axis {axis}; one of \
         them must be soft, or another number", count(.read, "element")
    )]
    NotDividing {
        /// Number of the axis.
        axis: usize,
        /// Length of the inner chunk, in elements.
        read: u64,
        /// Length of the shard, in elements.
        write: u64,
    },
}

/// Constraint on the length along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Free,
    /// Soft length: the extent of the array.
    Whole,
    Soft(u64),
    Hard(u64),
}

/// Constraints on one of the two shapes. A later constraint fills free lengths and, if it is hard,
/// replaces soft ones; two hard constraints must agree.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Wanted {
    of: Of,
    lengths: Vec<Length>,
    aspect: Option<Vec<f64>>,
    elements: Option<u64>,
}

/// The chosen shapes, in elements along each axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkShapes {
    /// Shape of the inner chunk.
    pub read: Vec<u64>,
    /// Shape of the shard: a multiple of the inner chunk along each axis.
    pub write: Vec<u64>,
}

impl Wanted {
    /// Creates an empty set of constraints on a shape with `rank` dimensions.
    pub(crate) fn nothing(of: Of, rank: usize) -> Self {
        Self { of, lengths: vec![Length::Free; rank], aspect: None, elements: None }
    }

    /// Adds lengths in elements: -1 is the whole extent, which is always soft; 0 leaves a length
    /// free.
    pub(crate) fn shape(&mut self, lengths: &[i64], firmness: Firmness) -> Result<(), LayoutError> {
        self.check_rank("shape", lengths.len())?;
        for (axis, length) in lengths.iter().enumerate() {
            let known = self.lengths[axis];
            self.lengths[axis] = match (known, self.length(axis, *length, firmness)?) {
                (Length::Hard(one), Length::Hard(other)) if one != other => {
                    return Err(self.contradiction(
                        format!("length along axis {axis}"),
                        one,
                        other,
                    ));
                }
                (_, new @ Length::Hard(_)) | (Length::Free, new) => new,
                (known, _) => known,
            };
        }
        Ok(())
    }

    /// Adds an aspect ratio: one number per axis.
    pub(crate) fn aspect(&mut self, ratios: &[f64]) -> Result<(), LayoutError> {
        self.check_rank("aspect", ratios.len())?;
        if let Some((axis, ratio)) =
            ratios.iter().enumerate().find(|(_, ratio)| !(ratio.is_normal() && **ratio > 0.0))
        {
            return Err(LayoutError::Aspect { of: self.of, axis, ratio: *ratio });
        }
        if let Some(known) = &self.aspect
            && let Some(axis) = known.iter().zip(ratios).position(|(one, other)| one != other)
        {
            let what = format!("aspect along axis {axis}");
            return Err(self.contradiction(what, known[axis], ratios[axis]));
        }
        self.aspect = Some(ratios.to_vec());
        Ok(())
    }

    /// Adds the approximate number of elements.
    pub(crate) fn elements(&mut self, elements: u64) -> Result<(), LayoutError> {
        if !(1..=MAX_LENGTH).contains(&elements) {
            return Err(LayoutError::Elements { of: self.of, elements });
        }
        match self.elements {
            Some(known) if known != elements => {
                Err(self.contradiction("number of elements".to_owned(), known, elements))
            }
            _ => {
                self.elements = Some(elements);
                Ok(())
            }
        }
    }

    fn check_rank(&self, what: &'static str, found: usize) -> Result<(), LayoutError> {
        let rank = self.lengths.len();
        if found == rank {
            return Ok(());
        }
        Err(LayoutError::Rank { what, of: self.of, found, rank })
    }

    fn length(&self, axis: usize, length: i64, firmness: Firmness) -> Result<Length, LayoutError> {
        match (u64::try_from(length), firmness) {
            (Ok(0), _) => Ok(Length::Free),
            (Ok(length @ 1..=MAX_LENGTH), Firmness::Hard) => Ok(Length::Hard(length)),
            (Ok(length @ 1..=MAX_LENGTH), Firmness::Soft) => Ok(Length::Soft(length)),
            _ if length == -1 => Ok(Length::Whole),
            _ => Err(LayoutError::Length { of: self.of, axis, length }),
        }
    }

    fn contradiction(&self, what: String, one: impl ToString, other: impl ToString) -> LayoutError {
        let (one, other) = (one.to_string(), other.to_string());
        LayoutError::Contradiction { what, of: self.of, one, other }
    }

    /// Returns each length (0 if free) and whether it is hard.
    fn given(&self, shape: &[u64]) -> Vec<(u64, bool)> {
        let given = |(length, extent): (&Length, &u64)| match length {
            Length::Free => (0, false),
            Length::Whole => ((*extent).max(1), false),
            Length::Soft(length) => (*length, false),
            Length::Hard(length) => (*length, true),
        };
        self.lengths.iter().zip(shape).map(given).collect()
    }
}

/// Chooses the shapes for an array of `shape` elements. Each length is between 1 and about 2^63;
/// the inner chunk divides the shard along each axis.
pub(crate) fn choose(
    shape: &[u64],
    read: &Wanted,
    write: &Wanted,
) -> Result<ChunkShapes, LayoutError> {
    if shape.is_empty() {
        return Err(LayoutError::NoAxes);
    }
    if let Some((axis, extent)) = shape.iter().enumerate().find(|(_, n)| **n > MAX_LENGTH) {
        return Err(LayoutError::Extent { axis, extent: *extent });
    }
    for Wanted { of, lengths, .. } in [read, write] {
        if lengths.len() != shape.len() {
            let (found, rank) = (lengths.len(), shape.len());
            return Err(LayoutError::Rank { what: "shape", of: *of, found, rank });
        }
    }
    let (reads, writes) = (read.given(shape), write.given(shape));
    let pairs = reads.into_iter().zip(writes).enumerate();
    let pairs = pairs.map(|(axis, (read, write))| reconcile(axis, read, write));
    let (mut reads, mut writes): (Vec<u64>, Vec<u64>) =
        pairs.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let shards = writes.clone();
    complete(
        shape,
        read.aspect.as_deref(),
        read.elements,
        &mut reads,
        &|axis, length| match shards[axis] {
            0 => length,
            shard => nearest_divisor(shard, length),
        },
    );
    let chunks = reads.clone();
    complete(shape, write.aspect.as_deref(), write.elements, &mut writes, &|axis, length| {
        nearest_multiple(chunks[axis], length)
    });
    Ok(ChunkShapes { read: reads, write: writes })
}

/// Reconciles the lengths of inner chunk and shard along an axis. A length of 0 is free; the
/// boolean is `true` for hard lengths.
fn reconcile(
    axis: usize,
    (read, hard_read): (u64, bool),
    (write, hard_write): (u64, bool),
) -> Result<(u64, u64), LayoutError> {
    Ok(match (hard_read, hard_write) {
        _ if read == 0 || write == 0 || write % read == 0 => (read, write),
        (true, true) => return Err(LayoutError::NotDividing { axis, read, write }),
        (true, false) => (read, nearest_multiple(read, write)),
        // If both are soft, the shard takes precedence.
        (false, _) => (nearest_divisor(write, read), write),
    })
}
