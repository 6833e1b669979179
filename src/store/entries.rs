//! All places of a shard, one after the other: what is in each, down to the chunks of the view.
//!
//! ```text
//! shard            its index             Place::Shard
//!   slot 0         a chunk               Place::Chunk     at the innermost level
//!   slot 1         empty                 Place::Empty
//!   slot 2         a shard inside it     Place::Shard     and what is in that
//!   slot 3         an entry that is bad  Place::Bad
//! ```
//!
//! Slots come in C order along the array's axes, whatever order the index is in.

use std::sync::Arc;

use super::shard::{Body, LoadedShard};
use super::{ShardStore, SourceArray, StoreError};
use crate::format::Coords;
use crate::format::digest::Digest;
use crate::format::sharding::Location;

/// What is in a place of a shard, or inside a shard of it.
#[derive(Debug)]
pub enum Place<'a> {
    /// A shard at the level (0 the outermost), of which the places follow.
    Shard {
        /// Its level.
        level: usize,
        /// The shard.
        shard: &'a LoadedShard,
    },
    /// A chunk of the view.
    Chunk {
        /// Where its bytes are.
        body: Body,
        /// The checksum that follows it.
        digest: Digest,
    },
    /// Nothing.
    Empty,
    /// An entry, or a shard inside the shard, that cannot be used.
    Bad(StoreError),
}

/// The chunks of the view that a place stands for: a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span<'a> {
    /// Coordinates of its first chunk.
    pub first: &'a [u64],
    /// Chunks along each axis; all 1 at the innermost level.
    pub extents: &'a [u64],
}

impl Span<'_> {
    /// Whether no part of it is in a chunk grid.
    pub fn is_outside(&self, grid: &[u64]) -> bool {
        self.first.iter().zip(grid).any(|(first, extent)| first >= extent)
    }

    /// How many of its chunks are in a chunk grid.
    pub fn chunks_within(&self, grid: &[u64]) -> u64 {
        let axes = self.first.iter().zip(self.extents).zip(grid);
        axes.map(|((first, extent), grid)| grid.saturating_sub(*first).min(*extent)).product()
    }
}

/// What is called for each place; stops at an error.
pub type Visit<'a, E> = dyn FnMut(Span<'_>, Place<'_>) -> Result<(), E> + 'a;

impl ShardStore {
    /// Visits all places of a shard, also those beyond the array. A damaged shard has none.
    pub fn each_place<E: From<StoreError>>(
        &self,
        array: &SourceArray,
        coords: &[u64],
        shard: &Arc<LoadedShard>,
        visit: &mut Visit<'_, E>,
    ) -> Result<(), E> {
        let axes = coords.iter().zip(&array.layout.shard_grid);
        let first: Coords = axes.map(|(coord, axis)| axis.span(*coord).0).collect();
        let levels = vec![Coords::new(); array.layout.levels.len()];
        let mut location = Location { shard: coords.to_vec(), positions: levels };
        self.each_place_at(array, 0, &first, shard, &mut location, visit)
    }

    fn each_place_at<E: From<StoreError>>(
        &self,
        array: &SourceArray,
        level: usize,
        first: &[u64],
        shard: &Arc<LoadedShard>,
        location: &mut Location,
        visit: &mut Visit<'_, E>,
    ) -> Result<(), E> {
        let layout = &array.layout;
        let (unit, digest) = (layout.levels[level].unit(), shard.digest());
        let extents = layout.positions(level, &location.shard);
        let whole: Coords = extents.iter().zip(unit).map(|(extent, unit)| extent * unit).collect();
        visit(Span { first, extents: &whole }, Place::Shard { level, shard })?;
        if shard.is_damaged() || extents.contains(&0) {
            return Ok(());
        }
        let mut here = first.to_vec();
        location.positions[level] = vec![0; extents.len()];
        loop {
            let position = &location.positions[level];
            let span = Span { first: &here, extents: unit };
            match shard.inner(&layout.levels[level], position) {
                Ok(None) => visit(span, Place::Empty)?,
                Ok(Some(body)) if level + 1 == layout.levels.len() => {
                    visit(span, Place::Chunk { body, digest })?;
                }
                Ok(Some(_)) => match self.inner_of(array, shard, location, level) {
                    Ok(Some(inner)) => {
                        self.each_place_at(array, level + 1, &here, &inner, location, visit)?;
                    }
                    Ok(None) => visit(span, Place::Empty)?,
                    Err(error) => visit(span, Place::Bad(error))?,
                },
                Err(error) => {
                    let error = self.inner_error(array, location, level, error);
                    visit(span, Place::Bad(error))?;
                }
            }
            if !step(&mut location.positions[level], &mut here, first, &extents, unit) {
                return Ok(());
            }
        }
    }
}

/// Goes on to the next position in C order, and to its first chunk; false after the last one.
fn step(
    position: &mut [u64],
    here: &mut [u64],
    first: &[u64],
    extents: &[u64],
    unit: &[u64],
) -> bool {
    for axis in (0..position.len()).rev() {
        position[axis] += 1;
        here[axis] += unit[axis];
        if position[axis] < extents[axis] {
            return true;
        }
        position[axis] = 0;
        here[axis] = first[axis];
    }
    false
}
