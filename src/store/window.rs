//! Window of sorted numbers in a directory of shards: what is kept of a listing.

use super::array::SourceArray;
use super::storage::Stat;
use crate::format::grid::ShardAxis;

/// Maximum number of shards in a window.
pub(super) const WINDOW_SHARDS: usize = 1 << 18;

/// Window of the shards, or directories of shards, in one directory of the source.
#[derive(Debug)]
pub struct Window {
    /// Number at which the window begins.
    pub(super) from: u64,
    /// Existing numbers, ascending.
    pub numbers: Vec<u64>,
    /// `true` if no number follows the last one.
    pub complete: bool,
    /// Attributes of the directory when it was listed. `None` if its date cannot show later
    /// changes.
    pub(super) directory: Option<Stat>,
}

impl Window {
    /// Returns whether the window holds all numbers from `from` up to its end.
    pub(super) fn covers(&self, from: u64) -> bool {
        self.from <= from
            && (self.complete || self.numbers.last().is_some_and(|last| from <= *last))
    }

    /// Returns the numbers that are at least `from`.
    pub fn from(&self, from: u64) -> &[u64] {
        &self.numbers[self.numbers.partition_point(|number| *number < from)..]
    }

    /// Creates a window of all shards that may exist, for formats whose files are not named by
    /// keys, and not in the order of the view.
    pub(super) fn of_all(
        array: &SourceArray,
        prefix: &[u64],
        from: u64,
        most: Option<u64>,
    ) -> Self {
        let shards = array.layout.shard_grid.get(prefix.len()).map_or(0, ShardAxis::shards);
        let shards = most.map_or(shards, |most| shards.min(most));
        let to = shards.min(from.saturating_add(WINDOW_SHARDS as u64));
        Self { from, numbers: (from..to).collect(), complete: to == shards, directory: None }
    }

    /// Creates a window of all shards, or directories of shards, that may exist below the leading
    /// coordinates `prefix`, for storages that cannot list which do.
    pub(super) fn of_grid(array: &SourceArray, prefix: &[u64], from: u64, is_flat: bool) -> Self {
        let mut grid = array.layout.shard_grid.iter().map(ShardAxis::shards);
        let all = if is_flat {
            grid.fold(1, u64::saturating_mul)
        } else {
            grid.nth(prefix.len()).unwrap_or(0)
        };
        let to = all.min(from.saturating_add(WINDOW_SHARDS as u64));
        Self { from, numbers: (from..to).collect(), complete: to == all, directory: None }
    }

    /// Creates the window of a directory in which there is nothing.
    pub(super) fn empty(from: u64) -> Self {
        Self { from, numbers: Vec::new(), complete: true, directory: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_covers_what_it_has_seen() {
        let window = Window { from: 3, numbers: vec![3, 5, 7], complete: false, directory: None };
        assert!(window.covers(3) && window.covers(7));
        assert!(!window.covers(2) && !window.covers(8));
        assert_eq!(window.from(4), [5, 7]);
        assert!(Window::empty(0).covers(9));
    }
}
