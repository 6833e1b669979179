//! Accounting of the bytes of a shard: used ranges, gaps and overlaps.
//!
//! ```text
//! | chunk | chunk |  gap  | chunk        | index |
//!                 |       |    | chunk |           a clash: ranges that overlap partly
//!                                                  equal ranges: one that several chunks share
//! ```

use super::index::ByteRange;

/// Ranges of a shard's bytes, sorted by offset.
#[derive(Debug, Default, Clone)]
pub(crate) struct Space {
    ranges: Vec<ByteRange>,
}

/// Partial overlap of two ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clash {
    /// The range that begins later, or the longer one if both begin at the same offset.
    pub range: ByteRange,
    /// The other range.
    pub with: ByteRange,
}

impl Space {
    /// Creates the space taken by `ranges`. Empty ranges are dropped. Their ends must lie within a
    /// file, so that they do not overflow.
    pub(crate) fn new(mut ranges: Vec<ByteRange>) -> Self {
        ranges.retain(|range| range.nbytes > 0);
        ranges.sort_unstable_by_key(|range| (range.offset, range.nbytes));
        Self { ranges }
    }

    /// Number of bytes that are in at least one range.
    pub(crate) fn nbytes(&self) -> u64 {
        let mut end = 0;
        let each = self.ranges.iter().map(|range| {
            let (from, to) = (range.offset.max(end), range.offset + range.nbytes);
            end = end.max(to);
            to.saturating_sub(from)
        });
        each.sum()
    }

    /// Number of ranges that equal the range before them.
    pub(crate) fn shared(&self) -> u64 {
        self.ranges.windows(2).map(|pair| u64::from(pair[0] == pair[1])).sum()
    }

    /// Returns the ranges that partly overlap an earlier one, each with the earlier range that
    /// reaches furthest.
    pub(crate) fn clashes(&self) -> Vec<Clash> {
        let mut clashes = Vec::new();
        let mut furthest: Option<ByteRange> = None;
        let mut last = None;
        for range in self.ranges.iter().copied() {
            // Equal ranges are handled once.
            if last.replace(range) == Some(range) {
                continue;
            }
            let end = |range: ByteRange| range.offset + range.nbytes;
            if let Some(with) = furthest.filter(|with| end(*with) > range.offset) {
                clashes.push(Clash { range, with });
            }
            if furthest.is_none_or(|furthest| end(furthest) < end(range)) {
                furthest = Some(range);
            }
        }
        clashes
    }

    /// Returns the runs of bytes before `end` that are in no range.
    pub(crate) fn gaps(&self, end: u64) -> impl Iterator<Item = ByteRange> + '_ {
        let last = ByteRange { offset: end, nbytes: 0 };
        let mut from = 0;
        self.ranges.iter().copied().chain([last]).filter_map(move |range| {
            let to = range.offset.min(end);
            let gap = ByteRange { offset: from, nbytes: to.saturating_sub(from) };
            from = from.max(range.offset + range.nbytes);
            (gap.nbytes > 0).then_some(gap)
        })
    }

    /// Returns the ranges, sorted by offset.
    pub(crate) fn into_ranges(self) -> Vec<ByteRange> {
        self.ranges
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges(ranges: &[(u64, u64)]) -> Vec<ByteRange> {
        ranges
            .iter()
            .map(|(offset, nbytes)| ByteRange { offset: *offset, nbytes: *nbytes })
            .collect()
    }

    #[test]
    fn gaps_and_bytes() {
        let space = Space::new(ranges(&[(40, 10), (10, 20), (0, 0), (60, 5)]));
        assert_eq!(space.nbytes(), 35);
        assert!(space.gaps(70).eq(ranges(&[(0, 10), (30, 10), (50, 10), (65, 5)])));
        assert!(space.gaps(65).eq(ranges(&[(0, 10), (30, 10), (50, 10)])));
        assert!(Space::default().gaps(9).eq(ranges(&[(0, 9)])));
    }

    #[test]
    fn equal_ranges_are_shared_and_others_clash() {
        let space = Space::new(ranges(&[(10, 20), (10, 20), (0, 10), (30, 5)]));
        assert_eq!((space.shared(), space.clashes()), (1, vec![]));
        let space = Space::new(ranges(&[(0, 100), (10, 20), (40, 5), (100, 1), (10, 20)]));
        let with = ByteRange { offset: 0, nbytes: 100 };
        let expected = ranges(&[(10, 20), (40, 5)]);
        assert!(
            space.clashes().into_iter().eq(expected.into_iter().map(|range| Clash { range, with }))
        );
        assert_eq!(space.nbytes(), 101);
    }

    proptest! {
        #[test]
        fn each_byte_is_counted_once(all in prop::collection::vec((0_u64..60, 0_u64..20), 0..12)) {
            let space = Space::new(ranges(&all));
            let used = |at: &u64| all.iter().any(|(from, n)| (*from..from + n).contains(at));
            prop_assert_eq!(space.nbytes(), (0..80).filter(used).count() as u64);
            let gaps: u64 = space.gaps(80).map(|gap| gap.nbytes).sum();
            prop_assert_eq!(space.nbytes() + gaps, 80);
            let apart = |a: (u64, u64), b: (u64, u64)| {
                a == b || a.0 + a.1 <= b.0 || b.0 + b.1 <= a.0 || a.1 == 0 || b.1 == 0
            };
            let clean = all.iter().all(|a| all.iter().all(|b| apart(*a, *b)));
            prop_assert_eq!(space.clashes().is_empty(), clean);
        }
    }
}
