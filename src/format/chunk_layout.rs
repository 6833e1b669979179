//! The shapes of a new array's inner chunks and shards, from what is wanted of them.
//!
//! The rule is TensorStore's ("Chunk layout", as its `zarr3` driver applies it), so that both make the
//! same array of the same wishes. An inner chunk is what it calls a read chunk, a shard a write chunk.
//!
//! 1. A length is *hard*, *soft* or free. The whole extent of the array (-1) is a soft length.
//! 2. Where both are given along an axis and the inner chunk does not divide the shard: two hard
//!    lengths are an error; a soft shard becomes the nearest multiple of a hard inner chunk; a soft
//!    inner chunk becomes the nearest divisor of the shard.
//! 3. What is free is found by [`complete`], for the inner chunk first: as many elements as wanted, in
//!    the wanted ratio. Inner chunks are kept divisors of a given shard, shards multiples of the inner
//!    chunk.

use crate::text::count;

mod complete;
#[cfg(test)]
mod tests;

use self::complete::{complete, nearest_divisor, nearest_multiple};

/// Elements of a chunk where nothing else is wanted.
pub const DEFAULT_ELEMENTS: u64 = 1 << 20;
/// The longest extent of an array, and the largest number of elements of a chunk that can be asked for.
pub const MAX_LENGTH: u64 = (1 << 62) - 1;

/// Whether a length must be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Firmness {
    /// It must, or nothing is made.
    Hard,
    /// It gives way to what is hard.
    Soft,
}

/// Which of the two shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The inner chunk's: what is read at once.
    Read,
    /// The shard's: what is written at once.
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

/// Why no shapes can be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LayoutError {
    /// Rank 0: its one chunk is the array.
    #[error("an array without dimensions has no chunk shape to choose")]
    NoAxes,
    /// An extent is too long.
    #[error("the array has {extent} elements along axis {axis}, the limit is 2^62-1")]
    Extent {
        /// The axis.
        axis: usize,
        /// The extent.
        extent: u64,
    },
    /// A list has another number of entries than the array has dimensions.
    #[error("the {what} of the {of} has {}, the array has {}", count(.found, "entry"), count(.rank, "dimension"))]
    Rank {
        /// Shape or aspect.
        what: &'static str,
        /// Of which chunk.
        of: Of,
        /// Its number of entries.
        found: usize,
        /// The array's number of dimensions.
        rank: usize,
    },
    /// A length is none.
    #[error(
        "the {of} cannot be {length} long along axis {axis}: write a length from 1 to 2^62-1, 0 to \
         leave it free, or -1 for the whole extent"
    )]
    Length {
        /// Of which chunk.
        of: Of,
        /// The axis.
        axis: usize,
        /// What was asked for.
        length: i64,
    },
    /// A ratio is none.
    #[error("aspect {ratio} of the {of} along axis {axis} is no ratio: write a number above 0")]
    Aspect {
        /// Of which chunk.
        of: Of,
        /// The axis.
        axis: usize,
        /// What was asked for.
        ratio: f64,
    },
    /// A number of elements is none.
    #[error("{} for the {of}: write a number from 1 to 2^62-1", count(.elements, "element"))]
    Elements {
        /// Of which chunk.
        of: Of,
        /// What was asked for.
        elements: u64,
    },
    /// Two wishes contradict each other.
    #[error("the {what} of the {of} is asked to be {one} and {other}")]
    Contradiction {
        /// What of it, with the axis.
        what: String,
        /// Of which chunk.
        of: Of,
        /// What was asked for first.
        one: String,
        /// What was asked for then.
        other: String,
    },
    /// The inner chunk does not divide the shard, and both are hard.
    #[error(
        "inner chunks of {} do not divide shards of {write} along axis {axis}; one of \
         them must be soft, or another number", count(.read, "element")
    )]
    NotDividing {
        /// The axis.
        axis: usize,
        /// Length of the inner chunk.
        read: u64,
        /// Length of the shard.
        write: u64,
    },
}

/// What is wanted of a length along one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Free,
    /// The array's extent; soft.
    Whole,
    Soft(u64),
    Hard(u64),
}

/// What is wanted of one of the two shapes. A wish that comes later fills what is free, and replaces
/// what is soft if it is hard; two hard ones must agree.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    of: Of,
    lengths: Vec<Length>,
    aspect: Option<Vec<f64>>,
    elements: Option<u64>,
}

/// The shapes that were chosen, in elements along each axis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkShapes {
    /// Of the inner chunk.
    pub read: Vec<u64>,
    /// Of the shard: a multiple of the inner chunk along each axis.
    pub write: Vec<u64>,
}

impl Wanted {
    /// Nothing is wanted of a shape with `rank` dimensions.
    pub fn nothing(of: Of, rank: usize) -> Self {
        Self { of, lengths: vec![Length::Free; rank], aspect: None, elements: None }
    }

    /// Wants lengths in elements; -1 is the whole extent, which is always soft, and 0 is free.
    pub fn shape(&mut self, lengths: &[i64], firmness: Firmness) -> Result<(), LayoutError> {
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

    /// Wants lengths in a ratio to each other.
    pub fn aspect(&mut self, ratios: &[f64]) -> Result<(), LayoutError> {
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

    /// Wants so many elements, about.
    pub fn elements(&mut self, elements: u64) -> Result<(), LayoutError> {
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

    /// The lengths as far as they are given, 0 where they are not, and which of them are hard.
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

/// Chooses the shapes for an array of `shape` elements. Each length is from 1 to about 2^63; the inner
/// chunk divides the shard.
pub fn choose(shape: &[u64], read: &Wanted, write: &Wanted) -> Result<ChunkShapes, LayoutError> {
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

/// Makes two lengths along an axis go together; a length of 0 is free. Hard is what comes with true.
fn reconcile(
    axis: usize,
    (read, hard_read): (u64, bool),
    (write, hard_write): (u64, bool),
) -> Result<(u64, u64), LayoutError> {
    Ok(match (hard_read, hard_write) {
        _ if read == 0 || write == 0 || write % read == 0 => (read, write),
        (true, true) => return Err(LayoutError::NotDividing { axis, read, write }),
        (true, false) => (read, nearest_multiple(read, write)),
        // Where both are soft the shard comes first.
        (false, _) => (nearest_divisor(write, read), write),
    })
}
