//! Unused space in a shard.

use std::collections::{BTreeMap, BTreeSet};

use super::ranges::merged;
use crate::format::index::ByteRange;

/// Unused ranges of a file; the last one is unbounded.
pub(super) struct Free {
    by_start: BTreeMap<u64, u64>,
    by_length: BTreeSet<(u64, u64)>,
}

impl Free {
    /// Creates the unused ranges around those that are used.
    pub(super) fn around(used: Vec<ByteRange>) -> Self {
        let mut free = Self { by_start: BTreeMap::new(), by_length: BTreeSet::new() };
        let mut start = 0;
        for range in merged(used.into_iter()) {
            free.add(start, range.start);
            start = range.end;
        }
        free.add(start, u64::MAX);
        free
    }

    /// Adds a range; nothing if it is empty.
    pub(super) fn add(&mut self, start: u64, end: u64) {
        if start < end {
            self.by_start.insert(start, end);
            self.by_length.insert((end - start, start));
        }
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(end - start, start));
    }

    /// Takes `nbytes` from the smallest gap that holds them and returns their offset.
    pub(super) fn take(&mut self, nbytes: u64) -> Option<u64> {
        let (length, start) = *self.by_length.range((nbytes, 0)..).next()?;
        self.remove(start, start + length);
        self.add(start + nbytes, start + length);
        Some(start)
    }

    /// Returns the first offset at or after `from` with `nbytes` unused bytes.
    pub(super) fn first_from(&self, from: u64, nbytes: u64) -> Option<u64> {
        let before = self.by_start.range(..from).next_back();
        let gaps = before.into_iter().chain(self.by_start.range(from..));
        let fits = |(start, end): (&u64, &u64)| {
            let start = from.max(*start);
            (start < *end && end - start >= nbytes).then_some(start)
        };
        gaps.map(fits).find_map(|start| start)
    }
}
