//! Arithmetic on ranges of bytes of a file.

use std::ops::Range;

use crate::format::index::ByteRange;

/// Returns the intersection of two ranges; `None` if it is empty.
pub fn overlap(a: ByteRange, b: ByteRange) -> Option<ByteRange> {
    let start = a.offset.max(b.offset);
    // The sums do not overflow: the ranges lie in a file, checked or planned.
    let end = (a.offset.saturating_add(a.nbytes)).min(b.offset.saturating_add(b.nbytes));
    (start < end).then(|| ByteRange { offset: start, nbytes: end - start })
}

/// Returns the non-empty ranges, sorted, and joined where they touch or overlap.
pub(super) fn merged(ranges: impl Iterator<Item = ByteRange>) -> Vec<Range<u64>> {
    let mut sorted: Vec<ByteRange> = ranges.filter(|range| range.nbytes > 0).collect();
    sorted.sort_unstable_by_key(|range| range.offset);
    let mut merged: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        let range = range.offset..range.offset.saturating_add(range.nbytes);
        match merged.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => merged.push(range),
        }
    }
    merged
}
