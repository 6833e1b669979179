//! Smallest, median and largest of very many lengths, in bounded memory.
//!
//! Lengths are counted individually as long as few are distinct; the median is then exact. Beyond
//! that they are counted in classes, 64 for each power of two, so that the median is off by 1 % at
//! most.

use std::collections::BTreeMap;

/// Maximum number of distinct lengths before they are counted in classes.
const MOST_DISTINCT: usize = 1 << 16;
/// Number of classes for each power of two, as a power of two.
const CLASS_BITS: u32 = 6;

/// Counts of lengths.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sizes {
    /// Number of occurrences of each length, or of each class by its smallest length.
    counts: BTreeMap<u64, u64>,
    in_classes: bool,
    range: Option<(u64, u64)>,
}

/// Summary of the lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spread {
    /// The smallest length.
    pub smallest: u64,
    /// The median; of an even number of lengths, the lower one of the middle two.
    pub median: u64,
    /// The largest length.
    pub largest: u64,
    /// `true` if the median is exact.
    pub is_exact: bool,
}

impl Sizes {
    /// Counts a length.
    pub(crate) fn add(&mut self, length: u64) {
        self.add_many(length, 1);
    }

    fn add_many(&mut self, length: u64, count: u64) {
        let (least, most) = self.range.unwrap_or((length, length));
        self.range = Some((least.min(length), most.max(length)));
        let class = if self.in_classes { class(length) } else { length };
        *self.counts.entry(class).or_default() += count;
        if !self.in_classes && self.counts.len() > MOST_DISTINCT {
            self.use_classes();
        }
    }

    fn use_classes(&mut self) {
        self.in_classes = true;
        for (length, count) in std::mem::take(&mut self.counts) {
            *self.counts.entry(class(length)).or_default() += count;
        }
    }

    /// Adds the counts of another instance.
    pub(crate) fn merge(&mut self, other: Self) {
        if other.in_classes && !self.in_classes {
            self.use_classes();
        }
        // A class is represented by its smallest length, which may not have occurred.
        let ranges = self.range.into_iter().chain(other.range);
        let range = ranges.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)));
        for (length, count) in other.counts {
            self.add_many(length, count);
        }
        self.range = range;
    }

    /// Returns the summary; `None` if nothing was counted.
    pub(crate) fn spread(&self) -> Option<Spread> {
        let (smallest, largest) = self.range?;
        let total: u64 = self.counts.values().sum();
        let mut before = 0;
        let middle = self.counts.iter().find(|(_, count)| {
            before += **count;
            before * 2 >= total
        });
        let median = *middle?.0;
        // The midpoint of the class.
        let half = if self.in_classes { width(median) / 2 } else { 0 };
        let median = (median + half).clamp(smallest, largest);
        Some(Spread { smallest, median, largest, is_exact: !self.in_classes })
    }
}

/// Returns the number of lengths in the class of a length.
fn width(length: u64) -> u64 {
    1 << length.checked_ilog2().unwrap_or(0).saturating_sub(CLASS_BITS)
}

/// Returns the smallest length of the class of a length.
fn class(length: u64) -> u64 {
    length - length % width(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn few_lengths_are_told_exactly() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.spread(), None);
        [7, 1000, 7, 3, 1 << 40].into_iter().for_each(|length| sizes.add(length));
        let spread = Spread { smallest: 3, median: 7, largest: 1 << 40, is_exact: true };
        assert_eq!(sizes.spread(), Some(spread));
    }

    proptest! {
        #[test]
        fn classes_are_off_by_little(lengths in prop::collection::vec(0_u64..1 << 40, 1..60)) {
            let (mut one, mut other) = (Sizes::default(), Sizes::default());
            one.use_classes();
            for (at, length) in lengths.iter().enumerate() {
                if at % 3 == 0 { one.add(*length) } else { other.add(*length) }
            }
            other.merge(one);
            let found = other.spread().unwrap();
            let mut sorted = lengths.clone();
            sorted.sort_unstable();
            prop_assert_eq!((found.smallest, found.largest), (sorted[0], sorted[sorted.len() - 1]));
            let median = sorted[(sorted.len() - 1) / 2];
            prop_assert!(found.median.abs_diff(median) <= median / 100 + 1);
        }
    }
}
