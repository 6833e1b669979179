//! Maps of the chunks that exist, as stacks of pictures.
//!
//! The last two axes form a picture; leading axes stack the pictures. If there are more chunks than
//! cells, a cell represents a block of chunks, and a picture a run of positions along the leading
//! axes.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::format::Coords;
use crate::format::grid::{ShardAxis, unravel};
use crate::number::to_usize;
use crate::source::Array;
use crate::store::entries::Span;

/// Maximum size of a map.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MapSize {
    /// Cells in a row of a picture.
    pub columns: u64,
    /// Rows of a picture.
    pub rows: u64,
    /// Number of pictures.
    pub pictures: u64,
}

/// Mark for a position of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A chunk exists.
    Present,
    /// A chunk or a shard cannot be read.
    Damaged,
}

/// Map of the chunks of a box that exist. Can be shared between threads.
#[derive(Debug)]
pub(crate) struct Map {
    /// Coordinates of the first chunk of the box.
    origin: Coords,
    /// Extents of the box, in chunks.
    extents: Coords,
    /// Extents of the part of the box that is in the array, in chunks.
    grid: Coords,
    /// Chunks per cell along a row and along a column, and positions of the leading axes per
    /// picture.
    block: [u64; 3],
    /// Number of columns, rows and pictures.
    cells: [u64; 3],
    /// Counts for each cell: chunks in the array, damaged positions, chunks outside the array.
    counts: Vec<[AtomicU64; 3]>,
    /// First chunks of shards along a row and along a column; empty if shards are hardly larger
    /// than cells.
    borders: [Vec<u64>; 2],
}

/// Counts of the chunks that a cell represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cell {
    /// Number of chunks of the array in the cell.
    pub possible: u64,
    /// Number of these chunks that exist.
    pub present: u64,
    /// Number of damaged positions.
    pub damaged: u64,
    /// Number of chunks that exist outside the array's shape.
    pub outside: u64,
}

/// Degree to which a cell is filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shade {
    /// No part of the array.
    Beyond,
    /// No chunk.
    Empty,
    /// Up to a third of the chunks.
    Few,
    /// Up to two thirds.
    Some,
    /// More than two thirds, but not all.
    Most,
    /// All chunks.
    Full,
    /// No chunks but those outside the array's shape.
    Outside,
    /// At least one damaged position.
    Damaged,
}

impl Cell {
    /// Returns the degree to which the cell is filled.
    pub(crate) fn shade(&self) -> Shade {
        let Self { possible, present, damaged, outside } = *self;
        match present {
            _ if damaged > 0 => Shade::Damaged,
            0 if outside > 0 => Shade::Outside,
            0 if possible == 0 => Shade::Beyond,
            0 => Shade::Empty,
            all if all >= possible => Shade::Full,
            // The limit on the number of chunks is far below 2^64 / 3, so this cannot overflow.
            few if few * 3 <= possible => Shade::Few,
            some if some * 3 <= possible * 2 => Shade::Some,
            _ => Shade::Most,
        }
    }
}

impl Map {
    /// Creates a map of all shards of an array.
    pub(crate) fn of_array(array: &Array, size: MapSize) -> Self {
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

    /// Returns the first chunks of shards along a row (`at` = 0) or a column (`at` = 1).
    fn starts(&self, at: usize, axis: &ShardAxis) -> Vec<u64> {
        // With fewer than two cells per shard the map would consist of lines.
        if axis.shards().saturating_mul(2) > self.cells[at] {
            return Vec::new();
        }
        (1..axis.shards()).map(|shard| axis.span(shard).0).collect()
    }

    /// Returns the first chunks of all shards but the first, along a row and along a column; empty
    /// if shards are hardly larger than cells.
    pub(crate) fn borders(&self) -> &[Vec<u64>; 2] {
        &self.borders
    }

    /// Returns the ranges of chunks that the map shows along a row and along a column, as
    /// coordinates in the array.
    pub(crate) fn shown(&self) -> [Range<u64>; 2] {
        let rank = self.extents.len();
        let along = |axis: Option<usize>| {
            axis.map_or(0..1, |axis| self.origin[axis]..self.origin[axis] + self.extents[axis])
        };
        [along(rank.checked_sub(1)), along(rank.checked_sub(2))]
    }

    /// Creates a map of one shard.
    pub(crate) fn of_shard(array: &Array, coords: &[u64], size: MapSize) -> Self {
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
        // The number of cells is bounded by the size that the caller has requested.
        let count = to_usize(cells.iter().product::<u64>());
        let counts = (0..count).map(|_| <[AtomicU64; 3]>::default()).collect();
        Self { origin, extents, grid, block, cells, counts, borders: [Vec::new(), Vec::new()] }
    }

    /// Marks the chunks of a box.
    pub(crate) fn mark(&self, span: Span<'_>, mark: Mark) {
        let axes = span.first.iter().zip(span.extents).zip(&self.origin).zip(&self.extents);
        let ranges = axes.map(|(((first, extent), origin), whole)| {
            let from = first.saturating_sub(*origin).min(*whole);
            from..(first + extent).saturating_sub(*origin).min(*whole)
        });
        let ranges: Vec<Range<u64>> = ranges.collect();
        if ranges.iter().any(Range::is_empty) {
            return;
        }
        if mark == Mark::Damaged {
            return self.mark_damaged(&ranges);
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
                    let kind = if is_outside(&at, row, column) { 2 } else { 0 };
                    let place = [column, row, picture];
                    self.count([0, 1, 2].map(|at| place[at] / self.block[at]), kind, 1);
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

    /// Marks a box of positions cell by cell: it may be that of a whole array.
    fn mark_damaged(&self, ranges: &[Range<u64>]) {
        let (above, last) = ranges.split_at(ranges.len().saturating_sub(2));
        let [row, column] = match last {
            [row, column] => [row.clone(), column.clone()],
            [column] => [0..1, column.clone()],
            _ => [0..1, 0..1],
        };
        let leading = split(&self.extents).0;
        let number = |at: &dyn Fn(&Range<u64>) -> u64| {
            above.iter().zip(leading).fold(0, |number, (range, all)| number * all + at(range))
        };
        let run = number(&|range| range.start)..number(&|range| range.end - 1) + 1;
        let cells = |at: usize, range: &Range<u64>| {
            range.start / self.block[at]..=(range.end - 1) / self.block[at]
        };
        let common = |at: usize, cell: u64, range: &Range<u64>| {
            let cell = self.range(at, cell);
            cell.end.min(range.end).saturating_sub(cell.start.max(range.start))
        };
        for picture in cells(2, &run) {
            let stack = self.range(2, picture);
            let stacked = inside(stack.end, above, leading) - inside(stack.start, above, leading);
            for row_cell in cells(1, &row) {
                for column_cell in cells(0, &column) {
                    let plane = common(1, row_cell, &row) * common(0, column_cell, &column);
                    self.count([column_cell, row_cell, picture], 1, plane * stacked);
                }
            }
        }
    }

    fn count(&self, cell: [u64; 3], kind: usize, positions: u64) {
        let [column, row, picture] = cell;
        let number = (picture * self.cells[1] + row) * self.cells[0] + column;
        if let Some(counts) = self.counts.get(to_usize(number)) {
            counts[kind].fetch_add(positions, Ordering::Relaxed);
        }
    }

    /// Returns the number of axes of the array.
    pub(crate) fn rank(&self) -> usize {
        self.extents.len()
    }

    /// Returns the number of cells in a row, of rows in a picture, and of pictures.
    pub(crate) fn cells(&self) -> [u64; 3] {
        self.cells
    }

    /// Returns the numbers of chunks per cell along a row and along a column, and of positions of
    /// the leading axes per picture.
    pub(crate) fn block(&self) -> [u64; 3] {
        self.block
    }

    /// Returns the cell at a column, row and picture.
    pub(crate) fn cell(&self, place: [u64; 3]) -> Cell {
        let number = (place[2] * self.cells[1] + place[1]) * self.cells[0] + place[0];
        let counts = self.counts.get(to_usize(number));
        let count = |kind: usize| counts.map_or(0, |counts| counts[kind].load(Ordering::Relaxed));
        let (leading, rows, columns) = split(&self.grid);
        let within = |at: usize, all: u64| {
            let range = self.range(at, place[at]);
            range.end.min(all).saturating_sub(range.start)
        };
        let pictures = self.range(2, place[2]);
        let above = split(&self.extents).0;
        let leading: Vec<Range<u64>> = leading.iter().map(|grid| 0..*grid).collect();
        let stacked =
            inside(pictures.end, &leading, above) - inside(pictures.start, &leading, above);
        let possible = within(0, columns) * within(1, rows) * stacked;
        Cell { possible, present: count(0), damaged: count(1), outside: count(2) }
    }

    fn range(&self, at: usize, number: u64) -> Range<u64> {
        let (leading, rows, columns) = split(&self.extents);
        let all = [columns, rows, leading.iter().product()][at];
        let from = number * self.block[at];
        from..(from + self.block[at]).min(all)
    }

    /// Returns the first and last coordinates along the leading axes that a picture represents;
    /// `None` if there are no leading axes.
    pub(crate) fn leading(&self, picture: u64) -> Option<(Coords, Coords)> {
        let (leading, ..) = split(&self.extents);
        let range = self.range(2, picture);
        let of = |number: u64| {
            let at = unravel(number, leading).into_iter().zip(&self.origin);
            at.map(|(at, origin)| at + origin).collect::<Coords>()
        };
        (!leading.is_empty()).then(|| (of(range.start), of(range.end.saturating_sub(1))))
    }

    /// Returns the ranges of a cell's chunks along the last two axes, or along the only axis; empty
    /// if the array has no axes.
    pub(crate) fn chunks(&self, place: [u64; 3]) -> Vec<Range<u64>> {
        let rank = self.extents.len();
        let shown = rank.min(2);
        let origins = &self.origin[rank - shown..];
        let both = [self.range(1, place[1]), self.range(0, place[0])];
        let ranges = both.into_iter().skip(2 - shown).zip(origins);
        ranges.map(|(range, origin)| range.start + origin..range.end + origin).collect()
    }
}

/// Splits extents into leading extents, rows and columns.
fn split(extents: &[u64]) -> (&[u64], u64, u64) {
    match extents {
        [leading @ .., rows, columns] => (leading, *rows, *columns),
        [columns] => (&[], 1, *columns),
        [] => (&[], 1, 1),
    }
}

/// Returns how many of the first `number` positions of a box, in C order, are also in the box of
/// `ranges` within it.
fn inside(number: u64, ranges: &[Range<u64>], extents: &[u64]) -> u64 {
    let volume = |ranges: &[Range<u64>]| -> u64 {
        ranges.iter().map(|range| range.end - range.start).product()
    };
    let all: u64 = extents.iter().product();
    if number >= all {
        return volume(ranges);
    }
    let mut count = 0;
    for (axis, at) in unravel(number, extents).into_iter().enumerate() {
        let range = &ranges[axis];
        count += at.min(range.end).saturating_sub(range.start) * volume(&ranges[axis + 1..]);
        if !range.contains(&at) {
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
        // Half of each picture is outside the array.
        assert_eq!(map.cell([0, 0, 0]).possible, 4);
        mark(&map, &[0, 0, 0, 0], &[1, 1, 2, 3], Mark::Present);
        mark(&map, &[2, 1, 0, 0], &[1, 1, 1, 1], Mark::Present);
        let marked = &shades(&map);
        assert_eq!(marked[..2], [Shade::Full, Shade::Some]);
        assert_eq!(marked[12], Shade::Outside);
    }

    #[test]
    fn a_damaged_box_is_marked_by_cells() {
        let (extents, grid) = (&[3, 4, 4, 6], &[3, 3, 4, 6]);
        let (whole, single) = (map(extents, grid, [3, 2, 5]), map(extents, grid, [3, 2, 5]));
        mark(&whole, &[1, 1, 1, 2], &[2, 2, 3, 3], Mark::Damaged);
        for at in 0..36 {
            let at = [1 + at / 18, 1 + at / 9 % 2, 1 + at / 3 % 3, 2 + at % 3];
            mark(&single, &at, &[1, 1, 1, 1], Mark::Damaged);
        }
        let counts = |map: &Map| -> Vec<u64> {
            map.counts.iter().map(|cell| cell[1].load(Ordering::Relaxed)).collect()
        };
        assert_eq!(counts(&whole), counts(&single));
        assert_eq!(counts(&whole).iter().sum::<u64>(), 36);
        // As many positions as there can be take no longer.
        let huge = map(&[1 << 20, 1 << 20, 1 << 20], &[1 << 20, 1 << 20, 1 << 20], [9, 9, 9]);
        mark(&huge, &[0, 0, 0], &[1 << 20, 1 << 20, 1 << 20], Mark::Damaged);
        assert_eq!(counts(&huge).iter().sum::<u64>(), 1 << 60);
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
            assert_eq!(inside(number, &grid.map(|extent| 0..extent), &extents), count, "{number}");
            let at = unravel(number, &extents);
            count += u64::from(at.iter().zip(&grid).all(|(at, grid)| at < grid));
            if number == 23 {
                assert_eq!(count, 6);
            }
        }
    }
}
