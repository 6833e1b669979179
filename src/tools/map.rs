//! Which chunks exist, as pictures.
//!
//! The last two axes make a picture, leading axes stack pictures on top of each other. Where there
//! are more chunks than cells, a cell stands for a block of chunks, a picture for a run of the leading
//! axes.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::Coords;
use crate::format::grid::{ShardAxis, unravel};
use crate::source::Array;
use crate::store::entries::Span;

/// The most cells that a map may have.
#[derive(Debug, Clone, Copy)]
pub struct MapSize {
    /// Cells in a row.
    pub columns: u64,
    /// Rows of a picture.
    pub rows: u64,
    /// Pictures.
    pub pictures: u64,
}

/// What is in a place of the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A chunk.
    Present,
    /// Something that cannot be read.
    Damaged,
}

/// Which chunks of a box exist. Threads may share it.
#[derive(Debug)]
pub struct Map {
    /// The first chunk of the box.
    origin: Coords,
    /// Its chunks along each axis.
    extents: Coords,
    /// Those of them that are in the array.
    grid: Coords,
    /// Chunks along each side of a cell, in columns and rows, and positions of the leading axes in a
    /// picture.
    block: [u64; 3],
    /// Cells in columns and rows, and pictures.
    cells: [u64; 3],
    /// Chunks, damaged places, chunks outside of each cell.
    counts: Vec<[AtomicU64; 3]>,
    /// Where shards begin, in chunks along a row and along a column; none if they are as small as cells.
    borders: [Vec<u64>; 2],
}

/// What a cell stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cell {
    /// Chunks of the array that can be there.
    pub possible: u64,
    /// Those that are.
    pub present: u64,
    /// Those that cannot be read.
    pub damaged: u64,
    /// Chunks that are there though they are outside of the array's shape.
    pub outside: u64,
}

/// How full a cell is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shade {
    /// No part of the array.
    Beyond,
    /// No chunk.
    Empty,
    /// Up to a third of the chunks.
    Few,
    /// Up to two thirds.
    Some,
    /// Not all of them.
    Most,
    /// All of them.
    Full,
    /// Chunks outside of the array's shape alone.
    Outside,
    /// Something that cannot be read.
    Damaged,
}

impl Cell {
    /// How full it is.
    pub fn shade(&self) -> Shade {
        let Self { possible, present, damaged, outside } = *self;
        match present {
            _ if damaged > 0 => Shade::Damaged,
            0 if outside > 0 => Shade::Outside,
            0 if possible == 0 => Shade::Beyond,
            0 => Shade::Empty,
            all if all >= possible => Shade::Full,
            // Counts of chunks keep a limit far below 2^64 / 3.
            few if few * 3 <= possible => Shade::Few,
            some if some * 3 <= possible * 2 => Shade::Some,
            _ => Shade::Most,
        }
    }
}

impl Map {
    /// A map of all shards of an array.
    pub fn of_array(array: &Array, size: MapSize) -> Self {
        let axes = array.source.layout.shard_grid.iter();
        let extents = axes.map(|axis| match axis.shards().checked_sub(1) {
            Some(last) => {
                let (first, edge) = axis.span(last);
                first + edge
            }
            None => 0,
        });
        let origin = vec![0; array.source.layout.rank()];
        let grid = array.source.layout.chunk_grid();
        let mut map = Self::new(origin, extents.collect(), &grid, size);
        if !array.is_unsharded() {
            let mut axes = array.source.layout.shard_grid.iter().rev();
            map.borders =
                [0, 1].map(|at| axes.next().map_or(Vec::new(), |axis| map.starts(at, axis)));
        }
        map
    }

    /// The chunks that shards begin with along a row (0) or a column (1).
    fn starts(&self, at: usize, axis: &ShardAxis) -> Vec<u64> {
        // With less than two cells for a shard there would be lines alone.
        if axis.shards().saturating_mul(2) > self.cells[at] {
            return Vec::new();
        }
        (1..axis.shards()).map(|shard| axis.span(shard).0).collect()
    }

    /// Where shards begin, but for the first one, in chunks along a row and along a column; none if they
    /// are hardly longer than cells.
    pub fn borders(&self) -> &[Vec<u64>; 2] {
        &self.borders
    }

    /// The chunks along a row and a column that the map shows, by their numbers in the array.
    pub fn shown(&self) -> [Range<u64>; 2] {
        let rank = self.extents.len();
        let along = |axis: Option<usize>| {
            axis.map_or(0..1, |axis| self.origin[axis]..self.origin[axis] + self.extents[axis])
        };
        [along(rank.checked_sub(1)), along(rank.checked_sub(2))]
    }

    /// A map of one shard.
    pub fn of_shard(array: &Array, coords: &[u64], size: MapSize) -> Self {
        let axes = coords.iter().zip(&array.source.layout.shard_grid);
        let (origin, extents) = axes.map(|(coord, axis)| axis.span(*coord)).unzip();
        Self::new(origin, extents, &array.source.layout.chunk_grid(), size)
    }

    fn new(origin: Coords, extents: Coords, grid: &[u64], size: MapSize) -> Self {
        let axes = grid.iter().zip(&origin).zip(&extents);
        let grid = axes.map(|((grid, origin), extent)| grid.saturating_sub(*origin).min(*extent));
        let grid: Coords = grid.collect();
        let (leading, rows, columns) = split(&extents);
        let all = [columns, rows, leading.iter().product()];
        let most = [size.columns, size.rows, size.pictures];
        let block = [0, 1, 2].map(|at| all[at].div_ceil(most[at].max(1)).max(1));
        let cells = [0, 1, 2].map(|at| all[at].div_ceil(block[at]));
        // Within what the caller has asked for.
        let count = usize::try_from(cells.iter().product::<u64>()).unwrap_or(0);
        let counts = (0..count).map(|_| <[AtomicU64; 3]>::default()).collect();
        Self { origin, extents, grid, block, cells, counts, borders: [Vec::new(), Vec::new()] }
    }

    /// Marks the chunks of a box.
    pub fn mark(&self, span: Span<'_>, mark: Mark) {
        let axes = span.first.iter().zip(span.extents).zip(&self.origin).zip(&self.extents);
        let ranges = axes.map(|(((first, extent), origin), whole)| {
            let from = first.saturating_sub(*origin).min(*whole);
            from..(first + extent).saturating_sub(*origin).min(*whole)
        });
        let ranges: Vec<Range<u64>> = ranges.collect();
        if ranges.iter().any(Range::is_empty) {
            return;
        }
        let (leading, rows, columns) = split(&self.extents);
        let inner = ranges.len().saturating_sub(2);
        let (above, last) = ranges.split_at(inner);
        let one = 0..1;
        let (row, column) = match last {
            [row, column] => (row, column),
            [column] => (&one, column),
            _ => (&one, &one),
        };
        debug_assert!(row.end <= rows && column.end <= columns);
        let is_outside = |at: &[u64], row: u64, column: u64| {
            let all = at.iter().copied().chain([row, column].into_iter().skip(2 - last.len()));
            all.zip(&self.grid).any(|(at, grid)| at >= *grid)
        };
        let mut at: Coords = above.iter().map(|range| range.start).collect();
        loop {
            let picture = at.iter().zip(leading).fold(0, |number, (at, all)| number * all + at);
            for row in row.clone() {
                for column in column.clone() {
                    let kind = match mark {
                        Mark::Damaged => 1,
                        Mark::Present if is_outside(&at, row, column) => 2,
                        Mark::Present => 0,
                    };
                    self.count([column, row, picture], kind);
                }
            }
            let next = (0..at.len()).rev().find(|axis| at[*axis] + 1 < above[*axis].end);
            let Some(axis) = next else { return };
            at[axis] += 1;
            for below in axis + 1..at.len() {
                at[below] = above[below].start;
            }
        }
    }

    fn count(&self, place: [u64; 3], kind: usize) {
        let [column, row, picture] = [0, 1, 2].map(|at| place[at] / self.block[at]);
        let number = (picture * self.cells[1] + row) * self.cells[0] + column;
        if let Some(counts) = usize::try_from(number).ok().and_then(|at| self.counts.get(at)) {
            counts[kind].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many axes the array has.
    pub fn rank(&self) -> usize {
        self.extents.len()
    }

    /// Cells of a row, rows of a picture, pictures.
    pub fn cells(&self) -> [u64; 3] {
        self.cells
    }

    /// Chunks along a row and a column that a cell stands for, and positions of the leading axes that
    /// a picture does.
    pub fn block(&self) -> [u64; 3] {
        self.block
    }

    /// A cell, by its column, row and picture.
    pub fn cell(&self, place: [u64; 3]) -> Cell {
        let number = (place[2] * self.cells[1] + place[1]) * self.cells[0] + place[0];
        let counts = usize::try_from(number).ok().and_then(|at| self.counts.get(at));
        let count = |kind: usize| counts.map_or(0, |counts| counts[kind].load(Ordering::Relaxed));
        let (leading, rows, columns) = split(&self.grid);
        let within = |at: usize, all: u64| {
            let range = self.range(at, place[at]);
            range.end.min(all).saturating_sub(range.start)
        };
        let pictures = self.range(2, place[2]);
        let above = split(&self.extents).0;
        let stacked = inside(pictures.end, leading, above) - inside(pictures.start, leading, above);
        let possible = within(0, columns) * within(1, rows) * stacked;
        Cell { possible, present: count(0), damaged: count(1), outside: count(2) }
    }

    fn range(&self, at: usize, number: u64) -> Range<u64> {
        let (leading, rows, columns) = split(&self.extents);
        let all = [columns, rows, leading.iter().product()][at];
        let from = number * self.block[at];
        from..(from + self.block[at]).min(all)
    }

    /// The chunks that a picture begins and ends with along the leading axes; none if there are none.
    pub fn leading(&self, picture: u64) -> Option<(Coords, Coords)> {
        let (leading, ..) = split(&self.extents);
        let range = self.range(2, picture);
        let of = |number: u64| {
            let at = unravel(number, leading).into_iter().zip(&self.origin);
            at.map(|(at, origin)| at + origin).collect::<Coords>()
        };
        (!leading.is_empty()).then(|| (of(range.start), of(range.end.saturating_sub(1))))
    }

    /// The chunks of a cell along the last two axes, or one, or none.
    pub fn chunks(&self, place: [u64; 3]) -> Vec<Range<u64>> {
        let rank = self.extents.len();
        let shown = rank.min(2);
        let origins = &self.origin[rank - shown..];
        let both = [self.range(1, place[1]), self.range(0, place[0])];
        let ranges = both.into_iter().skip(2 - shown).zip(origins);
        ranges.map(|(range, origin)| range.start + origin..range.end + origin).collect()
    }
}

/// Leading extents, rows, columns.
fn split(extents: &[u64]) -> (&[u64], u64, u64) {
    match extents {
        [leading @ .., rows, columns] => (leading, *rows, *columns),
        [columns] => (&[], 1, *columns),
        [] => (&[], 1, 1),
    }
}

/// How many of the first `number` positions of a box, in C order, are in a smaller box `grid` that
/// begins with it.
fn inside(number: u64, grid: &[u64], extents: &[u64]) -> u64 {
    let all: u64 = extents.iter().product();
    if number >= all {
        return grid.iter().product();
    }
    let mut count = 0;
    for (axis, at) in unravel(number, extents).into_iter().enumerate() {
        let below: u64 = grid[axis + 1..].iter().product();
        count += at.min(grid[axis]) * below;
        if at >= grid[axis] {
            break;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(extents: &[u64], grid: &[u64], size: [u64; 3]) -> Map {
        let [columns, rows, pictures] = size;
        let size = MapSize { columns, rows, pictures };
        Map::new(vec![0; extents.len()], extents.to_vec(), grid, size)
    }

    fn mark(map: &Map, first: &[u64], extents: &[u64], mark: Mark) {
        map.mark(Span { first, extents }, mark);
    }

    fn shades(map: &Map) -> Vec<Shade> {
        let [columns, rows, pictures] = map.cells();
        let places = (0..pictures).flat_map(|p| (0..rows).map(move |r| (p, r)));
        let places = places.flat_map(|(p, r)| (0..columns).map(move |c| [c, r, p]));
        places.map(|place| map.cell(place).shade()).collect()
    }

    #[test]
    fn a_cell_for_each_chunk() {
        let map = map(&[2, 3], &[2, 2], [10, 10, 1]);
        mark(&map, &[0, 1], &[1, 1], Mark::Present);
        mark(&map, &[1, 2], &[1, 1], Mark::Present);
        mark(&map, &[1, 0], &[1, 1], Mark::Damaged);
        use Shade::{Beyond, Damaged, Empty, Full, Outside};
        assert_eq!(shades(&map), [Empty, Full, Beyond, Damaged, Empty, Outside]);
        assert_eq!(map.chunks([1, 0, 0]), [0..1, 1..2]);
        assert_eq!(map.leading(0), None);
    }

    #[test]
    fn a_cell_for_a_block_and_a_picture_for_a_run() {
        let map = map(&[3, 2, 4, 6], &[3, 1, 4, 6], [3, 2, 3]);
        assert_eq!((map.block(), map.cells()), ([2, 2, 2], [3, 2, 3]));
        assert_eq!(map.leading(1), Some((vec![1, 0], vec![1, 1])));
        // Of each picture one half is outside.
        assert_eq!(map.cell([0, 0, 0]).possible, 4);
        mark(&map, &[0, 0, 0, 0], &[1, 1, 2, 3], Mark::Present);
        mark(&map, &[2, 1, 0, 0], &[1, 1, 1, 1], Mark::Present);
        let marked = &shades(&map);
        assert_eq!(marked[..2], [Shade::Full, Shade::Some]);
        assert_eq!(marked[12], Shade::Outside);
    }

    #[test]
    fn few_axes_or_none() {
        let line = map(&[5], &[4], [3, 9, 9]);
        mark(&line, &[0], &[3], Mark::Present);
        assert_eq!(shades(&line), [Shade::Full, Shade::Some, Shade::Beyond]);
        let point = map(&[], &[], [3, 9, 9]);
        mark(&point, &[], &[], Mark::Present);
        assert_eq!(shades(&point), [Shade::Full]);
        assert!(shades(&map(&[0, 4], &[0, 4], [9, 9, 9])).is_empty());
    }

    #[test]
    fn positions_inside_are_counted() {
        let (grid, extents) = ([2, 1, 3], [3, 2, 4]);
        let mut count = 0;
        for number in 0..=24 {
            assert_eq!(inside(number, &grid, &extents), count, "{number}");
            let at = unravel(number, &extents);
            count += u64::from(at.iter().zip(&grid).all(|(at, grid)| at < grid));
            if number == 23 {
                assert_eq!(count, 6);
            }
        }
    }
}
