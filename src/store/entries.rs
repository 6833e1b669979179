//! Traversal of all places of a shard, in order, down to the chunks of the view.
//!
//! ```text
//! shard            its index            Place::Shard
//!   slot 0         a chunk              Place::Chunk    at the innermost level
//!   slot 1         empty                Place::Empty
//!   slot 2         a nested shard       Place::Shard    followed by its places
//!   slot 3         an invalid entry     Place::Bad
//! ```
//!
//! Slots come in C order along the array's axes, whatever order the index is in.

use std::ops::Range;
use std::sync::Arc;

use super::loaded::{Body, LoadedShard};
use super::{ShardStore, SourceArray, StoreError};
use crate::format::Coords;
use crate::format::digest::Digest;
use crate::format::grid::unravel;
use crate::format::sharding::Location;

/// Contents of a place in a shard, or in a nested shard.
#[derive(Debug)]
pub enum Place<'a> {
    /// A shard at the level (0 is the outermost); its places follow.
    Shard {
        /// Level of the shard.
        level: usize,
        /// The shard.
        shard: &'a LoadedShard,
    },
    /// A chunk of the view.
    Chunk {
        /// Location of its bytes.
        body: Body,
        /// Checksum stored after it.
        digest: Digest,
    },
    /// No chunk or shard.
    Empty,
    /// An entry, or a nested shard, that cannot be used.
    Bad(StoreError),
}

/// Box of chunks of the view that a place covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span<'a> {
    /// Coordinates of the first chunk.
    pub first: &'a [u64],
    /// Chunks along each axis; all 1 at the innermost level.
    pub extents: &'a [u64],
}

impl Span<'_> {
    /// Returns whether the whole box lies outside a chunk grid.
    pub fn is_outside(&self, grid: &[u64]) -> bool {
        self.first.iter().zip(grid).any(|(first, extent)| first >= extent)
    }

    /// Returns how many of the box's chunks lie in a chunk grid.
    pub fn chunks_within(&self, grid: &[u64]) -> u64 {
        let axes = self.first.iter().zip(self.extents).zip(grid);
        axes.map(|((first, extent), grid)| grid.saturating_sub(*first).min(*extent)).product()
    }
}

/// Function called for each place; an error stops the traversal.
pub(crate) type Visit<'a, E> = dyn FnMut(Span<'_>, Place<'_>) -> Result<(), E> + 'a;

impl ShardStore {
    /// Visits all places of a shard, including those beyond the array. A damaged shard has none.
    pub fn each_place<E: From<StoreError>>(
        &self,
        array: &SourceArray,
        coords: &[u64],
        shard: &Arc<LoadedShard>,
        visit: &mut Visit<'_, E>,
    ) -> Result<(), E> {
        self.each_place_within(array, coords, 0..u64::MAX, shard, visit)
    }

    /// Like [`Self::each_place`], for a range of the shard's slots, counted in C order along the
    /// array's axes, with everything in them.
    pub fn each_place_within<E: From<StoreError>>(
        &self,
        array: &SourceArray,
        coords: &[u64],
        slots: Range<u64>,
        shard: &Arc<LoadedShard>,
        visit: &mut Visit<'_, E>,
    ) -> Result<(), E> {
        let first = first_chunk(array, coords);
        let levels = vec![Coords::new(); array.layout.levels.len()];
        let location = &mut Location { shard: coords.to_vec(), positions: levels };
        let level = Level { number: 0, first: &first, shard, slots };
        self.each_place_at(array, &level, location, visit)
    }

    fn each_place_at<E: From<StoreError>>(
        &self,
        array: &SourceArray,
        level: &Level<'_>,
        location: &mut Location,
        visit: &mut Visit<'_, E>,
    ) -> Result<(), E> {
        let Level { number, first, shard, .. } = *level;
        let sharding = &array.layout.levels[number];
        let (unit, digest) = (sharding.unit(), shard.digest());
        let is_innermost = number + 1 == array.layout.levels.len();
        let extents = array.layout.positions(number, &location.shard);
        let whole: Coords = extents.iter().zip(unit).map(|(extent, unit)| extent * unit).collect();
        visit(Span { first, extents: &whole }, Place::Shard { level: number, shard })?;
        if shard.is_damaged() {
            return Ok(());
        }
        each_position(first, &extents, unit, level.slots.clone(), &mut |position, here| {
            let span = Span { first: here, extents: unit };
            location.positions[number].clear();
            location.positions[number].extend_from_slice(position);
            match shard.inner(sharding, position) {
                Ok(None) => visit(span, Place::Empty),
                Ok(Some(body)) if is_innermost => visit(span, Place::Chunk { body, digest }),
                Ok(Some(_)) => match self.inner_of(array, shard, location, number) {
                    Ok(Some(inner)) => {
                        let (number, slots) = (number + 1, 0..u64::MAX);
                        let level = Level { number, first: here, shard: &inner, slots };
                        self.each_place_at(array, &level, location, visit)
                    }
                    Ok(None) => visit(span, Place::Empty),
                    Err(error) => visit(span, Place::Bad(error)),
                },
                Err(error) => {
                    let error = self.inner_error(array, location, number, error);
                    visit(span, Place::Bad(error))
                }
            }
        })
    }
}

/// Shard, or nested shard, of which a range of places is visited.
struct Level<'a> {
    /// Level of the shard; 0 is the outermost.
    number: usize,
    /// Coordinates of its first chunk.
    first: &'a [u64],
    shard: &'a Arc<LoadedShard>,
    slots: Range<u64>,
}

/// Calls `act` with the box that each slot of a shard covers, whether the shard exists or not.
pub(crate) fn each_slot<E>(
    array: &SourceArray,
    coords: &[u64],
    slots: Range<u64>,
    act: &mut dyn FnMut(Span<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let unit = array.layout.levels[0].unit();
    let extents = array.layout.positions(0, coords);
    let first = first_chunk(array, coords);
    each_position(&first, &extents, unit, slots, &mut |_, here| {
        act(Span { first: here, extents: unit })
    })
}

/// Returns the coordinates of a shard's first chunk.
fn first_chunk(array: &SourceArray, coords: &[u64]) -> Coords {
    let axes = coords.iter().zip(&array.layout.shard_grid);
    axes.map(|(coord, axis)| axis.span(*coord).0).collect()
}

/// Function called with a position in a shard and the coordinates of its first chunk.
type At<'a, E> = dyn FnMut(&[u64], &[u64]) -> Result<(), E> + 'a;

/// Calls `act` with positions in a shard of `extents`, and the first chunk of each.
fn each_position<E>(
    first: &[u64],
    extents: &[u64],
    unit: &[u64],
    slots: Range<u64>,
    act: &mut At<'_, E>,
) -> Result<(), E> {
    let all: u64 = extents.iter().product();
    let (mut left, mut position) =
        (slots.end.min(all).saturating_sub(slots.start), unravel(slots.start, extents));
    let axes = first.iter().zip(&position).zip(unit);
    let mut here: Coords = axes.map(|((first, at), unit)| first + at * unit).collect();
    while left > 0 {
        act(&position, &here)?;
        left -= 1;
        step(&mut position, &mut here, first, extents, unit);
    }
    Ok(())
}

/// Advances to the next position in C order, and to its first chunk.
fn step(position: &mut [u64], here: &mut [u64], first: &[u64], extents: &[u64], unit: &[u64]) {
    for axis in (0..position.len()).rev() {
        position[axis] += 1;
        here[axis] += unit[axis];
        if position[axis] < extents[axis] {
            return;
        }
        position[axis] = 0;
        here[axis] = first[axis];
    }
}
